//! `resize`, settings by `tune`, and where files lie: what people type, and what they read.

use std::fs;

use super::harness::{Place, fstitch, needs, run};

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
        if kind == "ext2" {
            fstitch(&format!("resize {image} 40M")).refused(1, "fstitch tune --journal");
            fstitch(&format!("tune --journal {image}")).ok();
        }
        let said = fstitch(&format!("resize {image} 40M")).ok();
        assert!(said.contains("it has 40.0 MiB now") || said.contains("it has 40 MiB now"), "{said}");
        assert_eq!(fs::metadata(place.at("a.img")).unwrap().len(), 40 << 20, "the image is as short");
        run("e2fsck", ["-fn", &image]).ok();
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
    fstitch(&format!("tune -O ^metadata_csum {image}")).refused(1, "metadata_csum");
    fstitch(&format!("tune -m 51 {image}")).refused(2, "0..=50");
    fstitch(&format!("tune -e stop {image}")).refused(2, "remount-ro");
    fstitch(&format!("tune --policy laptop {image}")).refused(1, "only ext2 and ext3 can follow one yet");
    let said = fstitch(&format!("info --extents {image}:/file")).ok();
    assert!(said.contains("extents") && said.contains("98 blocks of 1024 bytes"), "{said}");
    fstitch(&format!("info --extents {image}")).refused(1, "IMAGE:/path");
}
