//! Volumes that we make satisfy the reference checker, whatever their size and shape.

use fstitch_core::num::to_usize;
use fstitch_core::{MemDevice, Timestamp};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, mkfs};

use crate::support::{Scratch, SparseFile, e2fsck, e2fsck_image, have};

/// Options with a fixed identity.
fn options() -> MkfsOptions {
    MkfsOptions::new([0x5a; 16], [0xa5; 16], Timestamp { secs: 1_700_000_000, nanos: 123 })
}

/// Makes a volume of `kib` KiB in memory and has it judged.
fn judge(scratch: &Scratch, name: &str, kib: u64, options: &MkfsOptions) {
    let device = MemDevice::new(512, kib * 2);
    // Old contents must not shine through.
    let junk = vec![0xa7; to_usize(kib * 1024)];
    let device = if options.device_is_zero { device } else { MemDevice::from_image(512, junk) };
    let summary = mkfs(&device, options, &mut |_, _| {}).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(summary.free_blocks > 0, "{name}");
    let report = check_ext2(&device).expect("a readable volume");
    assert!(report.is_clean(), "{name}: {:?}", report.findings);
    let (code, text) = e2fsck_image(scratch, name, &device.image());
    assert_eq!(code, 0, "{name}: {summary:?}\n{text}");
}

#[test]
fn every_block_and_inode_size_at_many_volume_sizes() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs-matrix");
    let sizes = [64, 100, 257, 1000, 1441, 4096, 8193, 8200, 8300, 16_385, 20_000, 33_000, 140_003];
    for block_size in [1024, 2048, 4096] {
        for inode_size in [128, 256, 512] {
            for kib in sizes.into_iter().filter(|kib| kib * 1024 / u64::from(block_size) >= 60) {
                let mut options = options();
                options.block_size = Some(block_size);
                options.inode_size = Some(inode_size);
                judge(&scratch, &format!("b{block_size}-i{inode_size}-{kib}k"), kib, &options);
            }
        }
    }
}

#[test]
fn features_and_options() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs-features");
    for off in ["ext_attr", "resize_inode", "dir_index", "filetype", "sparse_super", "large_file", "none"] {
        let mut options = options();
        options.block_size = Some(1024);
        let list = if off == "none" { "none".to_owned() } else { format!("^{off}") };
        options.features.apply(&list).unwrap();
        judge(&scratch, off, 30_000, &options);
    }
    let mut options = options();
    options.revision = 0;
    options.block_size = Some(1024);
    judge(&scratch, "rev0", 30_000, &options);
    options.revision = 1;
    options.features = MkfsFeatures::default();
    options.label = b"sixteen bytes ok".to_vec();
    options.inodes = Some(80_000);
    options.reserved_percent = 0;
    options.root_owner = (100_000, 200_000);
    options.device_is_zero = true;
    options.apply_extended("stride=8,stripe_width=16,discard").unwrap();
    judge(&scratch, "options", 90_000, &options);
    options.inodes = None;
    options.bytes_per_inode = Some(1024);
    judge(&scratch, "ratio", 90_000, &options);
}

#[test]
fn journals_of_all_sizes_on_volumes_of_all_shapes() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs-journal");
    for block_size in [1024, 2048, 4096] {
        for (kib, mib) in [(8 << 10, 0), (16 << 10, 5), (70_000, 9), (140_003, 33)] {
            let mut options = options();
            options.block_size = Some(block_size);
            options.journal =
                if mib == 0 { MkfsJournal::Blocks(1024) } else { MkfsJournal::Bytes(mib << 20) };
            judge(&scratch, &format!("b{block_size}-{kib}k-j{mib}"), kib, &options);
        }
    }
    // What the crash laboratory uses.
    let mut options = options();
    options.block_size = Some(1024);
    options.journal = MkfsJournal::Blocks(1024);
    judge(&scratch, "laboratory", 4096, &options);
    options.journal = MkfsJournal::Suitable;
    options.device_is_zero = true;
    options.features = MkfsFeatures::NONE;
    judge(&scratch, "plain", 40_000, &options);
}

#[test]
fn a_journal_that_is_impossible_is_refused_before_anything_is_written() {
    let junk = vec![0xa7; 4 << 20];
    let device = MemDevice::from_image(512, junk.clone());
    let blocks = |blocks| MkfsOptions { journal: MkfsJournal::Blocks(blocks), ..options() };
    let old = MkfsOptions { revision: 0, ..blocks(1024) };
    let huge = MkfsOptions { journal: MkfsJournal::Bytes(u64::MAX), ..options() };
    let small = MkfsOptions {
        journal: MkfsJournal::Suitable,
        block_size: Some(1024),
        blocks: Some(2047),
        ..options()
    };
    for options in [blocks(1023), blocks(3900), blocks(u32::MAX), old, huge, small] {
        let made = mkfs(&device, &options, &mut |_, _| {});
        assert!(matches!(made, Err(fstitch_core::Error::Unsupported(_))), "{options:?}: {made:?}");
        assert!(device.image() == junk, "{options:?}");
    }
}

#[test]
fn large_sparse_volumes() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("mkfs-large");
    for (block_size, gib) in [(4096, 64), (2048, 17), (1024, 5)] {
        let path = scratch.path("large");
        let device = SparseFile::create(&path, 4096, gib << 30);
        let mut options = options();
        options.block_size = Some(block_size);
        options.device_is_zero = true;
        let mut calls = 0;
        let summary = mkfs(&device, &options, &mut |_, _| calls += 1).unwrap();
        assert_eq!(summary.groups, calls);
        let (code, text) = e2fsck(&path);
        assert_eq!(code, 0, "{block_size}: {summary:?}\n{text}");
        drop(device);
    }
}

#[test]
fn the_impossible_is_refused_before_anything_is_written() {
    let device = MemDevice::new(512, 200);
    let untouched = device.image();
    let mut cases = vec![options(); 5];
    cases[0].block_size = Some(131_072);
    cases[1].inode_size = Some(200);
    cases[2].blocks = Some(1 << 20);
    cases[3].label = vec![b'x'; 17];
    cases[4].inodes = Some(1_000_000);
    for case in cases {
        assert!(mkfs(&device, &case, &mut |_, _| {}).is_err(), "{case:?}");
        assert_eq!(device.image(), untouched);
    }
}
