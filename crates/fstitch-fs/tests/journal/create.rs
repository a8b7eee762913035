//! A journal that other systems do not take for one, or that costs the volume blocks.

use std::path::Path;
use std::sync::Arc;

use fstitch_core::{BlockDevice, MemDevice, Result, Seed};
use fstitch_core::{RepairMode, RepairOptions};
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::journal::{
    AddOptions, add, default_blocks, locate, needs_recovery, read_superblock, remove,
};
use fstitch_fs::ext2::mkfs::{MkfsOptions, mkfs};

use super::NOW;
use super::support::{Scratch, SparseFile, e2fsck, have, run};
use super::volatile::{Changes, Volatile};

fn judged(device: &SparseFile, path: &Path, what: &str) {
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
        assert!(
            with < free - u64::from(blocks) && with > free - u64::from(blocks) - u64::from(blocks / 100) - 10,
            "{what}: {free} to {with}"
        );
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

/// A volume of two groups, the second of which has a copy of the superblock.
fn two_groups() -> MemDevice {
    let device = MemDevice::new(1024, 12 << 10);
    let mut options = MkfsOptions::new([1; 16], [2; 16], NOW);
    options.block_size = Some(1024);
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    device
}

const ASKED: AddOptions = AddOptions { blocks: Some(1024), now: NOW, is_zero: true };

/// What a superblock says of the journal: feature, inode, and what is kept in case that is lost.
fn said_of_journal(image: &[u8], at: usize) -> Vec<u8> {
    let raw = &image[at..at + 1024];
    [&[raw[0x5c] & 4], &raw[0xd0..0xe8], &[raw[0xfd]], &raw[0x10c..0x150]].concat()
}

#[test]
fn the_copies_of_the_superblock_know_the_journal() {
    let device = two_groups();
    let copy = 8193 * 1024;
    let without = said_of_journal(&device.image(), copy);
    add(&device, ASKED).unwrap();
    let image = device.image();
    let with = said_of_journal(&image, copy);
    assert_eq!(with, said_of_journal(&image, 1024));
    assert!(with[0] == 4 && with != without);
    let scratch = Scratch::new("journal-copies");
    if have("e2fsck") {
        // The primary is lost; who repairs the volume with the copy finds a journal.
        let mut lost = image;
        lost[1024..2048].fill(0);
        let path = scratch.path("lost.img");
        std::fs::write(&path, lost).unwrap();
        let (code, said) = run("e2fsck", &["-fy", "-b", "8193", "-B", "1024", path.to_str().unwrap()]);
        assert!(code == 0 || code == 1, "{said}");
        let repaired = MemDevice::from_image(1024, std::fs::read(&path).unwrap());
        let (raw, shape) = read_superblock(&repaired).unwrap();
        assert!(locate(&shape, &raw).unwrap().is_some(), "{said}");
        judged_image(&path);
    }
    remove(&device).unwrap();
    assert_eq!(said_of_journal(&device.image(), copy), without);
    // What is in the place of a copy but is none stays what it is.
    let mut image = device.image();
    image[copy + 0x68] ^= 1;
    let before = image[copy..copy + 1024].to_vec();
    let device = MemDevice::from_image(1024, image);
    add(&device, ASKED).unwrap();
    assert!(device.image()[copy..copy + 1024] == before);
}

fn judged_image(path: &Path) {
    let (code, said) = e2fsck(path);
    assert_eq!(code, 0, "{said}");
}

/// Cuts the power at every write of `change`: a check that asks nothing mends what is left, and `change` can be made.
fn cut_everywhere(name: &str, base: MemDevice, change: fn(&dyn BlockDevice) -> Result<()>) {
    let scratch = Scratch::new(name);
    let path = scratch.path("cut.img");
    let name = path.to_str().unwrap();
    let base = Arc::new(base);
    let device = Volatile::new(&base, Changes::new(), u64::MAX);
    change(&device).unwrap();
    let writes = device.writes();
    let mut seed = Seed::new(5);
    let mut ends = [0, 0];
    for (cut, _) in (0..=writes).flat_map(|cut| [(cut, 0), (cut, 1), (cut, 2), (cut, 3)]) {
        let device = Volatile::new(&base, Changes::new(), cut);
        assert!(change(&device).is_err(), "cut after {cut} of {writes} writes");
        let mut image = base.image();
        for (no, block) in device.survivors(&mut seed) {
            image[no.index() * 1024..no.index() * 1024 + 1024].copy_from_slice(&block);
        }
        let ours = MemDevice::from_image(1024, image.clone());
        let report = repair_ext2(&ours, RepairOptions { mode: RepairMode::Preen, now: NOW }).unwrap();
        assert!(report.left.is_clean(), "cut after {cut} of {writes}: {:?}", report.left.findings);
        std::fs::write(&path, &image).unwrap();
        for (arguments, codes) in [(["-p", name], &[0, 1][..]), (["-fn", name], &[0])] {
            let (code, said) = run("e2fsck", &arguments);
            assert!(
                codes.contains(&code),
                "cut after {cut} of {writes}, e2fsck {arguments:?}: {code} {said}"
            );
        }
        let mended = MemDevice::from_image(1024, std::fs::read(&path).unwrap());
        let report = check_ext2(&mended).unwrap();
        assert!(report.is_clean(), "cut after {cut} of {writes}: {:?}", report.findings);
        let (raw, shape) = read_superblock(&mended).unwrap();
        let has_journal = locate(&shape, &raw).unwrap().is_some();
        ends[usize::from(has_journal)] += 1;
        // With a journal, adding one has nothing left to do; without one, removing it has not.
        let again = change(&mended);
        assert!(again.is_ok() || has_journal, "cut after {cut} of {writes}: {again:?}");
    }
    assert!(ends.iter().all(|&count| count > 0), "both ends were met: {ends:?}");
}

#[test]
fn an_addition_that_is_cut_is_mended() {
    if have("e2fsck") {
        cut_everywhere("journal-add-cut", two_groups(), |device| add(device, ASKED).map(drop));
    }
}

#[test]
fn a_removal_that_is_cut_is_mended() {
    if have("e2fsck") {
        let device = two_groups();
        add(&device, ASKED).unwrap();
        cut_everywhere("journal-remove-cut", device, remove);
    }
}
