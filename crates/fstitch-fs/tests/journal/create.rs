//! A journal that other systems do not take for one, or that costs the volume blocks.

use fstitch_core::BlockDevice;
use fstitch_fs::check::check_ext2;
use fstitch_fs::ext2::journal::{AddOptions, add, default_blocks, needs_recovery, read_superblock, remove};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};

use super::NOW;
use super::support::{Scratch, SparseFile, e2fsck, have, run};

fn judged(device: &SparseFile, path: &std::path::Path, what: &str) {
    let report = check_ext2(device).unwrap();
    assert!(report.is_clean(), "{what}: {:?}", report.findings);
    if have("e2fsck") {
        let (code, said) = e2fsck(path);
        assert_eq!(code, 0, "{what}: {said}");
    }
}

#[test]
fn a_journal_comes_and_goes() {
    let scratch = Scratch::new("journal-create");
    // Maps of one, two and three levels; volumes of one group and of many.
    let cases =
        [(1024, 6 << 20, 1024), (1024, 160 << 20, 70_000), (2048, 64 << 20, 5000), (4096, 64 << 20, 1024)];
    for (block_size, bytes, blocks) in cases {
        let what = format!("{blocks} blocks of {block_size} bytes");
        let path = scratch.path("volume.img");
        let device = SparseFile::create(&path, block_size, bytes);
        let mut options = MkfsOptions::new([1; 16], [2; 16], NOW);
        options.block_size = Some(block_size);
        mkfs(&device, &options, &mut |_, _| {}).unwrap();
        let free = read_superblock(&device).unwrap().1.free_blocks;
        let asked = AddOptions { blocks: Some(blocks), now: NOW, is_zero: false };
        assert_eq!(add(&device, asked).unwrap(), blocks);
        judged(&device, &path, &what);
        assert!(!needs_recovery(&device).unwrap());
        assert!(add(&device, asked).is_err(), "one is enough");
        if have("dumpe2fs") {
            let (_, said) = run("dumpe2fs", &["-h", path.to_str().unwrap()]);
            assert!(said.contains(&format!("Total journal blocks:     {blocks}")), "{what}: {said}");
        }
        let with = read_superblock(&device).unwrap().1.free_blocks;
        assert!(with < free - blocks && with > free - blocks - blocks / 100 - 10, "{what}: {free} to {with}");
        remove(&device).unwrap();
        judged(&device, &path, &what);
        assert_eq!(read_superblock(&device).unwrap().1.free_blocks, free);
        remove(&device).unwrap();
        device.flush().unwrap();
    }
}

#[test]
fn what_cannot_have_a_journal_is_left_alone() {
    let scratch = Scratch::new("journal-refused");
    let path = scratch.path("volume.img");
    let device = SparseFile::create(&path, 1024, 1 << 20);
    mkfs(&device, &MkfsOptions::new([1; 16], [2; 16], NOW), &mut |_, _| {}).unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(default_blocks(1024), None);
    for blocks in [None, Some(1023), Some(1024), Some(u32::MAX)] {
        assert!(add(&device, AddOptions { blocks, now: NOW, is_zero: true }).is_err(), "{blocks:?}");
    }
    assert!(std::fs::read(&path).unwrap() == before);
}
