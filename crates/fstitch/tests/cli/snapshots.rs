//! `fstitch snapshot` and `.snapshots`, on volumes that are mounted and on others.

use std::fs;

use super::harness::{Mounted, Place, fstitch};

/// Names of snapshots that `snapshot list --json` shows.
fn names(of: &str) -> Vec<String> {
    let shown: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("snapshot list --json {of}")).ok()).unwrap();
    let all = shown["snapshots"].as_array().unwrap();
    all.iter().map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn snapshots_of_a_volume_that_is_not_mounted() {
    let place = Place::new();
    let (image, file) = (place.text("a.img"), place.text("file"));
    fs::write(place.at("file"), vec![7_u8; 100_000]).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 32M")).ok();
    fstitch(&format!("cp {file} {image}:/file")).ok();
    let said = fstitch(&format!("snapshot create {image} one")).ok();
    assert!(said.contains("snapshot `one` was made"), "{said}");
    fstitch(&format!("snapshot create {image} one")).refused(1, "there is a snapshot `one`");
    fstitch(&format!("rm {image}:/file")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/.snapshots/one/file")).ok().len(), 100_000);
    assert_eq!(names(&image), ["one"]);
    fstitch(&format!("snapshot remove {image} two")).refused(1, "there is no snapshot `two`");
    fstitch(&format!("snapshot remove {image} one")).ok();
    assert!(names(&image).is_empty());
    fstitch(&format!("fsck -fn {image}")).ok();
    fstitch(&format!("mkfs ext4 -F -q {image} 32M")).ok();
    fstitch(&format!("snapshot create {image} one")).refused(1, "volumes of this format have no snapshots");
}

/// Under programs that write: what a snapshot has stays as it was when that was made, file by file.
#[test]
fn snapshots_of_a_mounted_volume() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 64M")).ok();
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    let path = |name: &str| mount.path().join(name);
    for round in 0..5_u8 {
        for n in 0..20 {
            fs::write(path(&format!("f{n}")), vec![round; 10_000 + 100 * n]).unwrap();
        }
        // By the mount point and by the image's name in turns.
        let of = if round % 2 == 0 { &at } else { &image };
        fstitch(&format!("snapshot create {of} s{round}")).ok();
        assert_eq!(names(of).len(), usize::from(round) + 1);
    }
    for n in 0..20 {
        fs::write(path(&format!("f{n}")), b"other").unwrap();
    }
    fs::remove_file(path("f3")).unwrap();
    fstitch(&format!("snapshot create {at} s2")).refused(1, "there is a snapshot `s2`");
    fstitch(&format!("snapshot create {at} a/b")).refused(1, "no name for a snapshot");
    fstitch(&format!("snapshot remove {at} s1")).ok();
    assert!(fs::metadata(path(".snapshots/s1")).is_err());
    let is_as_it_was = |top: &std::path::Path| {
        for round in [0, 2, 3, 4_u8] {
            for n in 0..20 {
                let found = fs::read(top.join(format!(".snapshots/s{round}/f{n}"))).unwrap();
                assert_eq!(found, vec![round; 10_000 + 100 * n], "s{round}/f{n}");
            }
        }
    };
    is_as_it_was(mount.path());
    assert!(fs::write(path(".snapshots/s2/f1"), b"no").is_err(), "a snapshot does not change");
    mount.end();
    fstitch(&format!("fsck -fn {image}")).ok();
    let Some(mount) = Mounted::new("-o ro", &image, &at) else { return };
    is_as_it_was(mount.path());
    fstitch(&format!("snapshot create {at} late")).refused(1, "mounted for reading only");
    assert_eq!(names(&at), ["s0", "s2", "s3", "s4"]);
    mount.end();
}
