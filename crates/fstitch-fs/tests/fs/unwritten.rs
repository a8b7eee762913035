//! Unwritten blocks where there is no room for a node, and where one change needs many.
//!
//! What it prevents: contents of short extents that are refused although their blocks were kept, old bytes beside new ones where a whole extent had to be
//! filled, and "no space" on volumes that have plenty.

use fstitch_core::num::to_usize;
use fstitch_core::{Consistency, Errno, FallocateMode, FileSystem, InodeNo};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::uhfs::Uhfs;

use crate::extents::{ExtentMedium, create};
use crate::properties::cache_options;
use crate::rig::CALLER;

const BLOCK: u64 = 1024;

fn medium() -> Option<ExtentMedium> {
    ExtentMedium::new(1024, cache_options(64 << 20, 15), Consistency::Ordered)
}

fn write(fs: &Uhfs<Ext2>, ino: InodeNo, block: u64, blocks: u64, byte: u8) -> fstitch_core::Result<usize> {
    fs.write(&CALLER, ino, block * BLOCK, &vec![byte; to_usize(blocks * BLOCK)])
}

/// A file of two short extents and one of `kept` unwritten blocks between, on a volume without a free block: its four entries are in
/// use.
fn on_a_full_volume(fs: &Uhfs<Ext2>, kept: u64) -> InodeNo {
    let ino = create(fs, "kept");
    for block in [0, 2, 1000] {
        write(fs, ino, block, 1, 7).unwrap();
    }
    fs.fallocate(&CALLER, ino, 100 * BLOCK, kept * BLOCK, FallocateMode::Allocate).unwrap();
    fs.sync().unwrap();
    fill(fs);
    ino
}

/// Leaves no free block.
pub fn fill(fs: &Uhfs<Ext2>) {
    let filler = create(fs, "filler");
    for at in 0.. {
        match write(fs, filler, 16 * at, 16, 1) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                break;
            }
        }
    }
    // What was given back for want of a whole run.
    let crumbs = create(fs, "crumbs");
    for at in 0.. {
        if write(fs, crumbs, at, 1, 1).is_err() {
            break;
        }
    }
    fs.sync().unwrap();
}

fn contents(fs: &Uhfs<Ext2>, ino: InodeNo, block: u64, blocks: u64) -> Vec<u8> {
    let mut read = vec![9; to_usize(blocks * BLOCK)];
    assert_eq!(fs.read(ino, block * BLOCK, &mut read).unwrap(), read.len());
    read
}

#[test]
fn without_room_for_a_node_all_of_a_short_extent_is_filled() {
    let Some(medium) = medium() else { return };
    let fs = medium.opened();
    let ino = on_a_full_volume(&fs, 40);
    write(&fs, ino, 120, 1, 5).unwrap();
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let read = contents(&fs, ino, 100, 40);
    for (at, block) in read.chunks_exact(1024).enumerate() {
        let expected = if at == 20 { 5 } else { 0 };
        assert!(block.iter().all(|&byte| byte == expected), "block {at} of the kept ones");
    }
    fs.unmount().unwrap();
}

#[test]
fn without_room_for_a_node_a_long_extent_stays_as_it_was() {
    let Some(medium) = medium() else { return };
    let fs = medium.opened();
    let ino = on_a_full_volume(&fs, 100);
    let refused = write(&fs, ino, 150, 1, 5).unwrap_err();
    assert_eq!(refused.errno(), Errno::NOSPC);
    // At its beginning there is no room either.
    assert_eq!(write(&fs, ino, 100, 1, 5).unwrap_err().errno(), Errno::NOSPC);
    assert!(contents(&fs, ino, 100, 100).iter().all(|&byte| byte == 0), "nothing has changed");
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let ino = fs.walk(b"kept").unwrap().attr.ino;
    fs.unlink(&CALLER, fs.root(), b"crumbs").unwrap();
    fs.unlink(&CALLER, fs.root(), b"filler").unwrap();
    write(&fs, ino, 150, 1, 5).unwrap();
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    for (at, block) in (100..).zip(contents(&fs, ino, 100, 100).chunks_exact(1024)) {
        let expected = if at == 150 { 5 } else { 0 };
        assert!(block.iter().all(|&byte| byte == expected), "block {at}");
    }
    fs.unmount().unwrap();
}

/// There is room for the blocks behind the end, and none for the node that what is zeroed before it asks for.
#[test]
fn without_room_for_a_node_a_range_is_not_zeroed_at_all() {
    const GAP: u64 = 64;
    let Some(medium) = medium() else { return };
    let fs = medium.opened();
    let ino = create(&fs, "a");
    for (block, blocks) in [(0, 1), (2, 1), (10, 100)] {
        write(&fs, ino, block, blocks, 7).unwrap();
    }
    let gap = create(&fs, "gap");
    write(&fs, gap, 0, GAP, 1).unwrap();
    fs.sync().unwrap();
    fill(&fs);
    fs.unlink(&CALLER, fs.root(), b"gap").unwrap();
    fs.forget(gap, 1);
    fs.sync().unwrap();
    let free = || fs.statfs().unwrap().blocks_free;
    let (blocks, before) = (free(), contents(&fs, ino, 0, 110));
    assert_eq!(blocks, GAP);
    let (from, to) = (50 * BLOCK + 100, (110 + GAP) * BLOCK);
    let zero = |fs: &Uhfs<Ext2>, ino| fs.fallocate(&CALLER, ino, from, to - from, FallocateMode::ZeroRange);
    assert_eq!(zero(&fs, ino).unwrap_err().errno(), Errno::NOSPC);
    assert!(contents(&fs, ino, 0, 110) == before, "nothing has changed");
    fs.sync().unwrap();
    assert_eq!((fs.getattr(ino).unwrap().size, free()), (110 * BLOCK, blocks));
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let ino = fs.walk(b"a").unwrap().attr.ino;
    fs.unlink(&CALLER, fs.root(), b"crumbs").unwrap();
    fs.unlink(&CALLER, fs.root(), b"filler").unwrap();
    zero(&fs, ino).unwrap();
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let mut expected = before;
    expected[to_usize(from)..].fill(0);
    expected.resize(to_usize(to), 0);
    assert!(contents(&fs, ino, 0, 110 + GAP) == expected);
    fs.unmount().unwrap();
}

/// Three leaves without room for another entry, and a root with room for one more leaf: what is zeroed cuts an extent of the first
/// leaf and one of the last in two.
#[test]
fn both_ends_of_a_range_split_a_leaf_and_then_their_parent() {
    let Some(medium) = medium() else { return };
    let fs = medium.opened();
    let ino = create(&fs, "a");
    for at in 0..3 * 84 {
        write(&fs, ino, 3 * at, 2, 7).unwrap();
    }
    let (from, to) = (3 * 10 + 1, 3 * 240 + 1);
    fs.fallocate(&CALLER, ino, from * BLOCK, (to - from) * BLOCK, FallocateMode::ZeroRange).unwrap();
    fs.unmount().unwrap();
    medium.judge();
    let fs = medium.opened();
    let read = contents(&fs, ino, 0, 3 * 84 - 1);
    for (at, block) in (0..).zip(read.chunks_exact(1024)) {
        let expected = if at % 3 == 2 || (from..to).contains(&at) { 0 } else { 7 };
        assert!(block.iter().all(|&byte| byte == expected), "block {at}");
    }
    fs.unmount().unwrap();
}
