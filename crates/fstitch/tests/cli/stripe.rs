//! Volumes that go around several disks: each command takes them, in any order, and none takes a part of them.

use std::fs;

use crate::harness::{Mounted, Place, fstitch, needs, run};

#[test]
fn a_volume_goes_around_its_disks() {
    let place = Place::new();
    let at = |name: &str| place.text(name);
    let all = format!("{},{},{}", at("a"), at("b"), at("c"));
    let said = fstitch(&format!("mkfs ext4 --stripe=16K {all} 20M")).ok();
    assert!(said.contains("it goes around 3 disks in units of 16.0 KiB"), "{said}");
    let other = format!("{},{},{}", at("c"), at("a"), at("b"));
    let info = fstitch(&format!("info {other}")).ok();
    assert!(info.contains("3 disks, in units of 16.0 KiB"), "{info}");
    let json: serde_json::Value = serde_json::from_str(&fstitch(&format!("info --json {all}")).ok()).unwrap();
    assert_eq!((json["stripe_disks"].as_u64(), json["stripe_unit_bytes"].as_u64()), (Some(3), Some(16_384)));
    let text: String = (0..400_000).map(|n| format!("{n}\n")).collect();
    fs::write(place.at("text"), &text).unwrap();
    fstitch(&format!("cp {} {other}:/text", at("text"))).ok();
    assert!(fstitch(&format!("cat {all}:/text")).ok() == text);
    fstitch(&format!("fsck -fn {other}")).ok();
    // Its bytes are where the labels say: other tools see the volume in rows of units.
    if needs("e2fsck") {
        let parts = ["a", "b", "c"].map(|name| fs::read(place.at(name)).unwrap()[65_536..].to_vec());
        let whole: Vec<u8> = (0..parts[0].len() / 16_384)
            .flat_map(|row| parts.each_ref().map(|part| part[row * 16_384..(row + 1) * 16_384].to_vec()))
            .flatten()
            .collect();
        fs::write(place.at("whole"), whole).unwrap();
        run("e2fsck", ["-fn", &at("whole")]).ok();
        assert!(fstitch(&format!("cat {}:/text", at("whole"))).ok() == text);
    }
    fstitch(&format!("info {}", at("b"))).refused(1, "is disk 1 of the 3 of stripe");
    fstitch(&format!("fsck -fn {},{}", at("a"), at("c"))).refused(8, "these are not named: 1");
    fs::copy(place.at("a"), place.at("copy")).unwrap();
    fstitch(&format!("ls {},{},{}:/", at("a"), at("copy"), at("c"))).refused(1, "one is a copy of the other");
    fstitch(&format!("mkfs ext4 -q {} 20M", at("a"))).refused(1, "a disk of a stripe");
    fstitch(&format!("mkfs ext4 --stripe {} 20M", at("d"))).refused(2, "several disks");
    fstitch(&format!("mkfs ext4 --stripe=5K {},{} 20M", at("d"), at("e"))).refused(2, "a power of two");
    fstitch(&format!("mkfs ext4 -b 8192 --stripe=4K {},{} 20M", at("d"), at("e")))
        .refused(2, "longer than a unit");
    assert!(!place.at("d").exists() && !place.at("e").exists(), "what was made for nothing is gone");
    let foreign = format!("{},{}", at("f"), at("g"));
    fstitch(&format!("mkfs waffle -q --stripe {foreign} 20M")).ok();
    fstitch(&format!("ls {},{}:/", at("a"), at("f"))).refused(1, "belongs to stripe");
}

/// Mounted by itself and in a stack, and killed in the middle.
#[test]
fn a_stripe_is_mounted() {
    let place = Place::new();
    let at = |name: &str| place.text(name);
    for name in ["m", "n"] {
        fs::create_dir(place.at(name)).unwrap();
    }
    let all = format!("{},{}", at("a"), at("b"));
    fstitch(&format!("mkfs ext2 -q --stripe {all} 32M")).ok();
    {
        let Some(mount) = Mounted::new("", &all, &at("m")) else { return };
        for n in 0..200_u32 {
            fs::write(mount.path().join(format!("f{n}")), n.to_le_bytes().repeat(2000)).unwrap();
        }
        fstitch(&format!("ls {}:/", all)).refused(1, "mounted");
    }
    fstitch(&format!("fsck -fn {all}")).ok();
    let stack = "[[device]]\nname = \"disks\"\npath = \"b,a\"\n[[volume]]\nname = \"v\"\ndevice = \"disks\"\nmount = \"n\"\n";
    fs::write(place.at("stack.toml"), stack).unwrap();
    fstitch(&format!("mount --stack {}", at("stack.toml"))).ok();
    let status: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("status --json {}", at("n"))).ok()).unwrap();
    assert_eq!(fs::read(place.at("n/f77")).unwrap(), 77_u32.to_le_bytes().repeat(2000));
    fs::write(place.at("n/more"), vec![7; 300_000]).unwrap();
    fs::File::open(place.at("n/more")).unwrap().sync_all().unwrap();
    run("kill", ["-9", &status[0]["pid"].to_string()]).ok();
    run("umount", ["-l", &at("n")]).ok();
    assert!(fstitch(&format!("fsck -p {all}")).code <= 1, "what soft updates leave is mended");
    assert_eq!(fstitch(&format!("cat {all}:/more")).ok().len(), 300_000);
    fstitch(&format!("fsck -fn {all}")).ok();
}
