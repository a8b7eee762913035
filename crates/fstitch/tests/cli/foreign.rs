//! A repair of something that is no ext2 volume at all, and messages that do not say what it is.

use std::fs;

use crate::harness::{Place, fstitch, needs, needs_root, run};

/// A file of `len` bytes with `signature` at byte `at`.
fn signed(place: &Place, at: usize, signature: &[u8], len: usize) -> String {
    let mut bytes = vec![0x5a; len];
    bytes[at..at + signature.len()].copy_from_slice(signature);
    fs::write(place.at("foreign.img"), bytes).unwrap();
    place.text("foreign.img")
}

/// What every command that wants a volume must say of the image, which none of them may change.
fn judge(image: &str, said: &str) {
    let before = fs::read(image).unwrap();
    for options in ["", "-n", "-p", "-y", "-fy"] {
        let ran = fstitch(&format!("fsck {options} {image}"));
        assert!(!ran.err.contains("repair") && !ran.out.contains("-y"), "{}{}", ran.out, ran.err);
        ran.refused(8, said);
    }
    fstitch(&format!("info {image}")).refused(1, said);
    fstitch(&format!("ls {image}:/")).refused(1, said);
    assert!(fs::read(image).unwrap() == before, "{said}");
}

#[test]
fn what_is_no_volume_of_ours_is_named_and_left_alone() {
    let place = Place::new();
    let cases: [(usize, &[u8], &str); 12] = [
        (54, b"FAT16   ", "a FAT volume"),
        (0, b"hsqs", "a squashfs image"),
        (65_600, b"_BHRfS_M", "a Btrfs volume"),
        (0, b"XFSB", "an XFS volume"),
        (4086, b"SWAPSPACE2", "swap space"),
        (3, b"NTFS    ", "an NTFS volume"),
        (32_769, b"CD001", "an ISO 9660 image"),
        (
            0,
            b"QFI\xfb",
            "a qcow2 image, not ext2, ext3, ext4, minixlld, bpfs, ufs1, ufs2 or waffle: `qemu-img convert",
        ),
        (
            0,
            b"\x1f\x8b\x08",
            "compressed by gzip, not ext2, ext3, ext4, minixlld, bpfs, ufs1, ufs2 or waffle: decompress",
        ),
        (0, b"\xfd7zXZ\0", "compressed by xz"),
        (0, b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        (0, b"LUKS\xba\xbe", "`cryptsetup open`"),
    ];
    for (at, signature, said) in cases {
        judge(&signed(&place, at, signature, 1 << 20), said);
    }
    fs::write(place.at("text"), "#!/bin/sh\n# No volume.\n".repeat(100)).unwrap();
    judge(&place.text("text"), "holds text");
    fs::write(place.at("zeros"), vec![0; 1 << 20]).unwrap();
    fstitch(&format!("fsck -y {}", place.text("zeros"))).refused(8, "nor is there a superblock");
    fs::write(place.at("empty"), "").unwrap();
    fstitch(&format!("fsck -y {}", place.text("empty"))).refused(8, "is empty");
}

#[test]
fn what_other_makers_make_is_named() {
    let place = Place::new();
    let makers = [
        ("mkfs.vfat", "", "a FAT"),
        ("mkswap", "", "swap space"),
        ("mkfs.xfs", "-q", "an XFS"),
        ("mkfs.btrfs", "-q", "a Btrfs"),
    ];
    for (maker, options, said) in makers.into_iter().filter(|(maker, ..)| needs(maker)) {
        // It looks for the file among loop devices first, which only root may ask.
        if maker == "mkfs.btrfs" && !needs_root() {
            continue;
        }
        let image = place.text(maker);
        fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        run(maker, options.split_whitespace().chain([image.as_str()])).ok();
        fstitch(&format!("fsck -y {image}")).refused(8, said);
    }
}

#[test]
fn a_volume_without_its_first_superblock_is_still_one() {
    let place = Place::new();
    let image = place.text("volume.img");
    fstitch(&format!("mkfs ext2 -q -b 1024 {image} 20M")).ok();
    let mut bytes = fs::read(&image).unwrap();
    bytes[1024..2048].fill(0);
    fs::write(&image, &bytes).unwrap();
    fstitch(&format!("ls {image}:/")).refused(1, "`fstitch fsck` can use a backup");
    let ran = fstitch(&format!("fsck -y {image}"));
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    fstitch(&format!("fsck -f {image}")).ok();
    // What was made over it since then is what counts.
    bytes[..4].copy_from_slice(b"hsqs");
    fs::write(&image, &bytes).unwrap();
    judge(&image, "a squashfs image");
}

#[test]
fn blocks_larger_than_a_page_are_read_checked_and_written() {
    if !needs("mke2fs") || !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    fs::write(place.at("file"), vec![b'x'; 300_000]).unwrap();
    for kib in [8, 16, 32, 64] {
        let image = place.text(&format!("{kib}.img"));
        let made = format!("-Fq -t ext3 -J size={} -b {} {image} {}M", kib * 2, kib << 10, kib * 6);
        run("mke2fs", made.split(' ')).ok();
        assert!(fstitch(&format!("info {image}")).ok().contains(&format!("blocks of {} bytes", kib << 10)));
        fstitch(&format!("cp {} {image}:/copy", place.text("file"))).ok();
        assert_eq!(fstitch(&format!("cat {image}:/copy")).ok().len(), 300_000);
        fstitch(&format!("fsck -f {image}")).ok();
        run("e2fsck", ["-fn", &image]).ok();
    }
}
