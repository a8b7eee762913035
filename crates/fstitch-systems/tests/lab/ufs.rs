//! UFS in both versions and orders of bytes.

use fstitch_core::BlockDevice;
use fstitch_crashlab::LabOptions;
use fstitch_crashlab::medium::Image;
use fstitch_systems::UfsSystem;

use super::{WHOLE, half, lawful, run};

const KINDS: [&str; 4] = ["ufs1", "ufs1be", "ufs2", "ufs2be"];

#[test]
fn ufs_and_every_single_operation() {
    lawful("ufs2-soft", "seq1", WHOLE, 64);
    lawful("ufs1be-soft", "seq1", 400, 64);
}

#[test]
fn ufs_and_random_runs_on_every_kind_of_volume() {
    for kind in KINDS {
        lawful(&format!("{kind}-soft"), "random", 4, 24);
    }
    for system in [
        "ufs2-soft-o0",
        "ufs1-soft-o1-c256",
        "ufs2be-soft-k8192-b16384-f2048-o7",
        "ufs1be-soft-b4096-f4096-s16",
        "ufs2-soft-b8192-f1024-k8192",
    ] {
        lawful(system, "random", 4, 24);
    }
}

#[test]
fn ufs_under_applications_and_on_full_volumes() {
    for family in ["writers", "postmark", "mail", "editor", "db", "brim", "inodes"] {
        lawful("ufs2-soft", family, half(2), 24);
    }
    lawful("ufs1-soft", "writers", 2, 24);
}

#[test]
fn without_order_ufs_is_found_corrupt() {
    for kind in KINDS {
        let outcome = run(&format!("{kind}-async"), "seq1", 40, LabOptions::default());
        assert!(!outcome.found.is_empty(), "{kind}");
    }
}

/// What the laboratory found first, as small as it gets: fragments that went on in the volume's next block, and a name that was cleared in a
/// fragment of a directory which had moved, but not yet for the medium.
#[test]
fn what_was_found_of_fragments_that_grow() {
    let long = |digit: u32| format!("/n{digit}{}", "x".repeat(110));
    let moved = format!(
        "|create {0};append {0} 1141;create /n3;create /n6;mkdir {1};truncate /n6 10712;mkdir {2};unlink /n3",
        long(13),
        long(0),
        long(6)
    );
    for (system, operations) in [
        (
            "ufs2be-soft-k8192-b16384-f2048",
            "|create /n7;create /n3;append /n7 4252;zero /n3 3339 7627;truncate /n3 23054",
        ),
        ("ufs2-soft", &*moved),
    ] {
        let options = LabOptions { choices_per_cut: 4096, ..LabOptions::default() };
        let outcome = run(system, &format!("ops/{operations}"), 1, options);
        assert_eq!(outcome.found, [], "{system}: {operations}");
        assert!(outcome.counts.generated > 10, "{:?}", outcome.counts);
    }
}

#[test]
fn names_of_ufs_systems_are_read_again() {
    for name in ["ufs2-soft", "ufs1be-sync-k8192", "ufs2be-async-b16384-f2048-o0"] {
        let system: UfsSystem = name.parse().unwrap();
        assert_eq!(system.to_string(), name);
    }
    for name in ["ufs2-ordered", "ufs3-soft", "ufs2-soft-b4097", "ufs2-soft-f8", "ufs2-soft-z1"] {
        assert!(name.parse::<UfsSystem>().is_err(), "{name}");
    }
    let made = fstitch_systems::system("ufs1be-soft").unwrap().format().unwrap();
    assert_eq!(Image::new(made).geometry().block_size, 512);
}
