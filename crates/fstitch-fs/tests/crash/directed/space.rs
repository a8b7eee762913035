//! Blocks that are scarce: used again at once, or taken from another group than their neighbours.

use fstitch_core::FileSystem;

use super::rig::{Raw, Rig, contents, kept};
use super::{Judgement, Script};

const KIB: u64 = 1024;

/// Everything that can take a block takes one that a removed file may still point at.
#[test]
fn freed_blocks_are_filled_after_their_pointers_are_gone() {
    let prepare = |rig: &Rig| {
        rig.create("/a", 1, 20 << 10);
        rig.spacer("s");
        rig.mkdir("/d");
        (0..4).for_each(|n| rig.create(&format!("/d/{n:0>200}"), 2, 0));
        rig.create("/b", 3, 0);
        rig.create("/x", 4, 0);
        rig.create("/y", 4, 0);
        rig.fill_up("/filler");
    };
    let reuse: [&dyn Fn(&Rig); 6] = [
        &|rig| rig.create(&format!("/d/{:0>200}", 9), 2, 0),
        &|rig| rig.mkdir("/e"),
        &|rig| rig.symlink("/slow", 200),
        &|rig| rig.set_xattr("/x", "user.x", &[7; 600]),
        &|rig| rig.write("/b", 0, 3, 5 << 10),
        &|rig| rig.write("/b", 12 * KIB, 3, 1 << 10),
    ];
    // The old name goes last: as long as it is there, it shows what it showed.
    let expect: Judgement<'_> = &|fs, _| match contents(fs, "/a") {
        Some(found) if !found.is_empty() => kept(fs, &["/a"], 1, 20 << 10),
        _ => Ok(()),
    };
    for take in reuse {
        let work = |rig: &Rig| {
            rig.unlink("/a");
            take(rig);
        };
        Script { blocks: 400, inode_size: 128, prepare: &prepare, work: &work, expect, ..Script::default() }
            .play();
    }
}

/// The data take the last free block, so that only the indirect block is one that a removed file may point at.
#[test]
fn a_freed_block_becomes_an_indirect_one() {
    let prepare = |rig: &Rig| {
        rig.create("/a", 1, 10 << 10);
        rig.spacer("s");
        rig.create("/b", 3, 0);
        rig.create("/one", 2, 1 << 10);
        rig.fill_up("/filler");
        rig.unlink("/one");
    };
    let work = |rig: &Rig| {
        rig.unlink("/a");
        rig.write("/b", 12 * KIB, 3, 1 << 10);
    };
    let expect: Judgement<'_> = &|fs, _| match contents(fs, "/a") {
        Some(_) => kept(fs, &["/a"], 1, 10 << 10),
        None => Ok(()),
    };
    Script { blocks: 400, prepare: &prepare, work: &work, expect, ..Script::default() }.play();
}

/// An inode number is used again while its earlier life may still be on the medium.
#[test]
fn numbers_are_used_again_after_their_earlier_life() {
    let prepare = |rig: &Rig| {
        rig.create("/a", 1, 3000);
        rig.mkdir("/d");
        let mut n = 0;
        while rig.fs.statfs().unwrap().inodes_free > 0 {
            rig.create(&format!("/d/{n}"), 2, 0);
            n += 1;
        }
    };
    let work = |rig: &Rig| {
        rig.unlink("/a");
        rig.create("/b", 3, 2000);
        rig.link("/b", "/c");
        rig.unlink("/b");
        rig.unlink("/c");
        rig.symlink("/s", 100);
    };
    let expect: Judgement<'_> = &|fs, _| match contents(fs, "/a") {
        Some(_) => kept(fs, &["/a"], 1, 3000),
        None => Ok(()),
    };
    Script { blocks: 600, prepare: &prepare, work: &work, expect, ..Script::default() }.play();
}

/// Marks all but so many blocks of the first group as used: those that are left are the first free ones.
fn leave_free(raw: &Raw<'_>, count: usize) {
    let no = raw.block_bitmap(0);
    let mut map = raw.block(no);
    let free: Vec<usize> = (0..8192).filter(|bit| map[bit / 8] >> (bit % 8) & 1 == 0).collect();
    for bit in &free[count..] {
        map[bit / 8] |= 1 << (bit % 8);
    }
    raw.put_block(no, &map);
}

/// A file's data in one group, its indirect blocks in another, so that their bits lie in different blocks.
#[test]
fn indirect_blocks_in_another_group() {
    for (free, index) in [(1, 12), (1, 300), (2, 300), (2, 66_000), (3, 66_000)] {
        let work = |rig: &Rig| rig.write("/a", index * KIB, 1, 1 << 10);
        Script {
            blocks: 9000,
            prepare: &|rig| rig.create("/a", 1, 0),
            edit: &|raw| leave_free(raw, free),
            work: &work,
            read: false,
            ..Script::default()
        }
        .play();
    }
}
