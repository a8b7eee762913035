//! `resize`, settings by `tune`, and where files lie: what people type, and what they read.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::harness::{Mounted, Place, fstitch, needs, run};

#[test]
fn a_volume_grows_and_shrinks_with_its_image() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let (image, file) = (place.text("a.img"), place.text("file"));
    fs::write(place.at("file"), vec![7_u8; 300_000]).unwrap();
    for (kind, before, after) in [("ext4", "32M", "200M"), ("ext2", "32M", "150M"), ("ext3", "64M", "65M")] {
        fstitch(&format!("mkfs {kind} -F -q {image} {before}")).ok();
        fstitch(&format!("cp {file} {image}:/file")).ok();
        let map = fstitch(&format!("info --json {image}:/file")).ok();
        let said = fstitch(&format!("resize {image} {after}")).ok();
        assert!(said.contains("now, in"), "{said}");
        assert_eq!(crate_size(after), fs::metadata(place.at("a.img")).unwrap().len());
        run("e2fsck", ["-fn", &image]).ok();
        assert_eq!(fstitch(&format!("info --json {image}:/file")).ok(), map, "it has not moved");
        let again = fstitch(&format!("resize --json {image}")).ok();
        let shown: serde_json::Value = serde_json::from_str(&again).unwrap();
        assert_eq!(shown["blocks"], shown["blocks_before"]);
        let said = fstitch(&format!("resize {image} 40M")).ok();
        assert!(said.contains("it has 40.0 MiB now") || said.contains("it has 40 MiB now"), "{said}");
        assert_eq!(fs::metadata(place.at("a.img")).unwrap().len(), 40 << 20, "the image is as short");
        run("e2fsck", ["-fn", &image]).ok();
        let shown = fstitch(&format!("info --json {image}")).ok();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["format"], kind, "it has as many journals as before");
        let back = place.text("back");
        fstitch(&format!("cp {image}:/file {back}")).ok();
        assert_eq!(fs::read(place.at("back")).unwrap(), vec![7_u8; 300_000]);
        fs::remove_file(place.at("back")).unwrap();
        fstitch(&format!("resize {image} 300K")).refused(1, "a volume of");
        assert_eq!(fs::metadata(place.at("a.img")).unwrap().len(), 40 << 20);
        fs::remove_file(place.at("a.img")).unwrap();
    }
    // What is refused leaves the image as long as it was.
    fstitch(&format!("mkfs ext4 -F -q -O ^resize_inode {image} 32M")).ok();
    fstitch(&format!("resize {image} 4G")).refused(1, "0 are reserved for that");
    assert_eq!(fs::metadata(place.at("a.img")).unwrap().len(), 32 << 20);
    fstitch(&format!("resize {image} 1x")).refused(2, "`x` is not a unit");
}

fn crate_size(text: &str) -> u64 {
    text.trim_end_matches('M').parse::<u64>().unwrap() << 20
}

#[test]
fn settings_change_and_files_are_found() {
    let place = Place::new();
    let (image, file) = (place.text("a.img"), place.text("file"));
    fs::write(place.at("file"), vec![7_u8; 100_000]).unwrap();
    fstitch(&format!("mkfs ext4 -q {image} 32M")).ok();
    fstitch(&format!("cp {file} {image}:/file")).ok();
    fstitch(&format!("tune -m 2 -e panic -c 30 -i 2w {image}")).ok();
    fstitch(&format!("tune -U random {image}")).refused(1, "fstitch tune -O metadata_csum_seed");
    fstitch(&format!("tune -O metadata_csum_seed -U random {image}")).ok();
    fstitch(&format!("tune -O uninit_bg {image}")).refused(1, "^metadata_csum,uninit_bg is possible");
    fstitch(&format!("tune -m 51 {image}")).refused(2, "0..=50");
    fstitch(&format!("tune -e stop {image}")).refused(2, "remount-ro");
    fstitch(&format!("tune --policy laptop {image}")).refused(1, "only ext2 and ext3 can follow one yet");
    let said = fstitch(&format!("info --extents {image}:/file")).ok();
    assert!(said.contains("extents") && said.contains("98 blocks of 1024 bytes"), "{said}");
    fstitch(&format!("info --extents {image}")).refused(1, "IMAGE:/path");
}

#[test]
fn sums_and_quotas_come_to_a_volume_that_is_made() {
    let place = Place::new();
    let (image, file) = (place.text("a.img"), place.text("file"));
    fs::write(place.at("file"), vec![7_u8; 100_000]).unwrap();
    fstitch(&format!("mkfs ext4 -q -O ^metadata_csum {image} 32M")).ok();
    fstitch(&format!("cp {file} {image}:/file")).ok();
    for list in ["metadata_csum,quota,project", "^metadata_csum,uninit_bg"] {
        let said = fstitch(&format!("tune -O {list} {image}")).ok();
        assert!(said.contains("its settings are changed"), "{said}");
        fstitch(&format!("fsck -n {image}")).ok();
    }
    assert!(fstitch(&format!("quota {image}")).ok().contains("project"));
    fstitch(&format!("resize {image} 24M"))
        .refused(1, "`fstitch tune -O ^quota` before, and `-O quota` behind it");
    fstitch(&format!("tune -O ^quota {image}")).ok();
    fstitch(&format!("resize {image} 24M")).ok();
    fstitch(&format!("tune -O quota {image}")).ok();
    fstitch(&format!("fsck -n {image}")).ok();
    fstitch(&format!("tune -O ^64bit {image}")).refused(1, "changing feature 64bit of a volume that is made");
    fstitch(&format!("mkfs ext2 -F -q {image} 32M")).ok();
    fstitch(&format!("tune --policy laptop {image}")).ok();
    fstitch(&format!("tune -O metadata_csum {image}"))
        .refused(1, "follows a policy: `fstitch tune --policy none`");
    fstitch(&format!("tune --policy none {image}")).ok();
    fstitch(&format!("tune -O metadata_csum {image}")).ok();
    fstitch(&format!("fsck -n {image}")).ok();
}

/// Has a volume of 32 MiB grow to 96 while somebody writes files, which fill half of it at most; how many.
fn grown_under_a_writer(mount: &Mounted, image: &str) -> usize {
    const MOST: usize = 1500;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            while !is_over.load(Ordering::Relaxed) {
                fs::write(mount.path().join(format!("w{}", written % MOST)), vec![7; 5000]).unwrap();
                written += 1;
            }
            written.min(MOST)
        });
        let said = fstitch(&format!("resize --json {} 96M", mount.path().display())).ok();
        let shown: serde_json::Value = serde_json::from_str(&said).unwrap();
        let unit = shown["block_size_bytes"].as_u64().unwrap();
        assert!(shown["blocks_before"].as_u64().unwrap() * unit == 32 << 20, "{said}");
        assert!(shown["blocks"].as_u64().unwrap() * unit > 88 << 20, "{said}");
        // By the image's name, and without a size: there is nothing more.
        assert!(fstitch(&format!("resize {image}")).ok().contains("already"));
        std::thread::sleep(std::time::Duration::from_millis(100));
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    })
}

/// Programs go on over it: one that writes, one that holds a file open, and one in the middle of a directory.
#[test]
fn a_mounted_volume_grows_under_those_who_use_it() {
    for (kind, options) in [("ext4", ""), ("ext4", "-b 4096"), ("ext3", ""), ("ext2", "")] {
        let place = Place::new();
        let (image, at) = (place.text("a.img"), place.text("at"));
        fs::create_dir(place.at("at")).unwrap();
        fstitch(&format!("mkfs {kind} -q {options} {image} 32M")).ok();
        let Some(mount) = Mounted::new("", &image, &at) else { return };
        for n in 0..300 {
            fs::write(mount.path().join(format!("f{n}")), format!("{n}")).unwrap();
        }
        let mut held = fs::OpenOptions::new().read(true).append(true).open(mount.path().join("f7")).unwrap();
        let mut listed = fs::read_dir(mount.path()).unwrap();
        let first: Vec<_> = listed.by_ref().take(20).map(|entry| entry.unwrap().file_name()).collect();

        fstitch(&format!("resize {at} 16M")).refused(1, "gets smaller when it is not mounted");
        let gone = fs::File::create(mount.path().join("gone")).unwrap();
        fs::remove_file(mount.path().join("gone")).unwrap();
        fstitch(&format!("resize {at} 96M")).refused(1, "open that have been deleted");
        drop(gone);
        assert_eq!(
            fs::metadata(place.at("a.img")).unwrap().len(),
            32 << 20,
            "what is refused changes nothing"
        );

        let written = grown_under_a_writer(&mount, &image);
        let room = rustix::fs::statvfs(mount.path()).unwrap();
        assert!(room.f_bavail * room.f_frsize > 50 << 20, "{} blocks", room.f_bavail);
        fs::write(mount.path().join("large"), vec![9; 50 << 20]).unwrap();
        held.write_all(b" and more").unwrap();
        let rest: Vec<_> = listed.map(|entry| entry.unwrap().file_name()).collect();
        for n in 0..300 {
            let name = format!("f{n}");
            let seen = first.iter().chain(&rest).filter(|found| **found == *name).count();
            assert_eq!(seen, 1, "{kind}: {name}");
        }
        assert_eq!(fs::read_to_string(mount.path().join("f7")).unwrap(), "7 and more");
        drop(held);
        mount.end();
        if needs("e2fsck") {
            run("e2fsck", ["-fn", &image]).ok();
        }
        let Some(mount) = Mounted::new("-o ro", &image, &at) else { return };
        for n in 0..written {
            assert_eq!(fs::read(mount.path().join(format!("w{n}"))).unwrap(), vec![7; 5000], "{kind}: w{n}");
        }
        assert_eq!(fs::metadata(mount.path().join("large")).unwrap().len(), 50 << 20);
        fstitch(&format!("resize {at}")).refused(1, "for reading only");
        mount.end();
    }
}

/// A disk with a table of partitions: in sectors, where they start and how long they are.
fn disk(place: &Place, name: &str, partitions: &[(u32, u32)]) {
    let mut table = [0_u8; 512];
    for (entry, (start, len)) in table[446..].chunks_exact_mut(16).zip(partitions) {
        entry[4] = 0x83;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..16].copy_from_slice(&len.to_le_bytes());
    }
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open(place.at(name)).unwrap();
    file.set_len(80 << 20).unwrap();
    file.write_all_at(&table, 0).unwrap();
}

/// What has a partition of its own grows as far as that goes, and what has only an offset not without being told how far.
#[test]
fn a_mounted_partition_grows_as_far_as_it_goes() {
    let place = Place::new();
    let (image, at) = (place.text("disk"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    disk(&place, "disk", &[(2048, 98_304), (100_352, 40_960)]);
    fstitch(&format!("mkfs ext4 -F -q --partition 1 {image} 20M")).ok();
    fstitch(&format!("mkfs ext4 -F -q --partition 2 {image}")).ok();
    let Some(mount) = Mounted::new("--partition 1", &image, &at) else { return };
    fstitch(&format!("resize {at} 60M")).refused(1, "in a partition of 50331648");
    let said = fstitch(&format!("resize --partition 1 {image}")).ok();
    assert!(said.contains("now, in") && said.contains("48"), "{said}");
    mount.end();
    fstitch(&format!("fsck -n --partition 1 {image}")).ok();
    fstitch(&format!("fsck -n --partition 2 {image}")).ok();
    // The same with a table that does not know of it.
    disk(&place, "disk", &[(100_352, 40_960)]);
    let Some(mount) = Mounted::new("--offset 1M", &image, &at) else { return };
    fstitch(&format!("resize {at}")).refused(1, "say how large");
    mount.end();
}
