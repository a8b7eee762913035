//! waffle: after any cut exactly the last root.

use fstitch_core::BlockDevice;
use fstitch_crashlab::medium::Image;
use fstitch_systems::WaffleSystem;

use fstitch_crashlab::LabOptions;

use super::{WHOLE, lawful, run};

#[test]
fn waffle_and_every_single_operation() {
    lawful("waffle-shadow", "seq1", WHOLE, 16);
}

#[test]
fn waffle_and_random_runs_on_every_kind_of_volume() {
    for system in
        ["waffle-shadow", "waffle-shadow-o0-c256", "waffle-shadow-o1-k8192", "waffle-shadow-o7-k1024"]
    {
        lawful(system, "random", 24, 24);
    }
}

/// Clusters are packed and made loose while the power fails.
#[test]
fn waffle_and_compressed_files() {
    for family in ["random", "writers", "db", "mail", "shares", "postmark", "editor", "brim"] {
        lawful("waffle-shadow-z1", family, 12, 24);
    }
}

#[test]
fn waffle_under_applications_and_on_full_volumes() {
    for family in ["writers", "postmark", "mail", "editor", "db", "brim", "shares"] {
        lawful("waffle-shadow", family, 12, 24);
    }
}

#[test]
fn without_order_waffle_is_found_corrupt() {
    let outcome = run("waffle-async", "seq1", 60, LabOptions::default());
    assert!(!outcome.found.is_empty());
}

#[test]
fn names_of_waffle_systems_are_read_again() {
    for name in ["waffle-shadow", "waffle-shadow-k8192-o0-c256", "waffle-shadow-z1"] {
        let system: WaffleSystem = name.parse().unwrap();
        assert_eq!(system.to_string(), name);
    }
    for name in ["waffle-soft", "waffle", "waffle-shadow-k4", "waffle-shadow-z2"] {
        assert!(name.parse::<WaffleSystem>().is_err(), "{name}");
    }
    for name in ["ext2-shadow", "ufs2-shadow"] {
        assert!(fstitch_systems::system(name).is_err(), "{name}");
    }
    let made = fstitch_systems::system("waffle-shadow").unwrap().format().unwrap();
    assert_eq!(Image::new(made).geometry().block_size, 4096);
}
