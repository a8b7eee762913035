//! One ordering at a time: everything is written but one block, and the power fails.
//!
//! What it prevents: orderings that random crashes meet too seldom, because both sides mostly lie in one block.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Caller, Errno, FallocateMode, FileKind, FileSystem,
    Geometry, InodeNo, MemDevice, RepairMode, SystemClock, Timestamp, XattrSetMode,
};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::{Superblock, Version, flag};
use fstitch_fs::ufs::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};
use fstitch_patch::{CacheOptions, Optimizations};

use super::opened;
use super::repair::repaired;
use super::written::writable;

const BLOCK: u64 = 4096;
const FRAGMENT: u64 = 512;

/// Mounts a volume without the optimisations of the patch graph: patches that became one would wait together.
pub fn unmerged(medium: &Arc<MemDevice>) -> Uhfs<Ufs> {
    let cache = CacheOptions { optimizations: Optimizations::combination(0), ..CacheOptions::default() };
    let arrangement = Arrangement { cache, ..Arrangement::default() };
    let device = Arc::<MemDevice>::clone(medium);
    arrange::open::<Ufs>(device, &arrangement, Arc::new(SystemClock::new())).unwrap().0
}

/// A new volume of 8 MiB.
struct Rig {
    medium: Arc<MemDevice>,
    fs: Uhfs<Ufs>,
}

impl Rig {
    fn new() -> Self {
        Self::with(Version::Two, false)
    }

    fn with(version: Version, soft_updates: bool) -> Self {
        let mut options = MkfsOptions::new(version, [7, 9], Timestamp { secs: 1_700_000_000, nanos: 0 });
        (options.block_size, options.fragment_size) = (Some(4096), Some(512));
        options.soft_updates = soft_updates;
        let medium = Arc::new(MemDevice::new(512, 16_384));
        mkfs(&*medium, &options, &mut |_, _| {}).unwrap();
        let fs = unmerged(&medium);
        Self { medium, fs }
    }

    /// Unmounts and mounts it.
    fn again(self) -> Self {
        self.fs.unmount().unwrap();
        let fs = unmerged(&self.medium);
        Self { medium: self.medium, fs }
    }

    fn file(&self, dir: InodeNo, name: &str) -> InodeNo {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        self.fs.mknod(&Caller::default(), dir, name.as_bytes(), mode, 0).unwrap().attr.ino
    }

    fn write(&self, ino: InodeNo, at: u64, byte: u8, len: usize) -> fstitch_core::Result<usize> {
        self.fs.write(&Caller::default(), ino, at, &vec![byte; len])
    }

    fn unlink(&self, dir: InodeNo, name: &str, ino: InodeNo) {
        self.fs.unlink(&Caller::default(), dir, name.as_bytes()).unwrap();
        self.fs.forget(ino, 1);
    }

    fn resize(&self, ino: InodeNo, size: u64) {
        let set = fstitch_core::SetAttr { size: Some(size), ..Default::default() };
        self.fs.setattr(&Caller::default(), ino, &set).unwrap();
    }

    /// Where block `block` of a file begins.
    fn place(&self, ino: InodeNo, block: u64) -> u64 {
        let inode = self.fs.format().load(ino).unwrap();
        self.fs.format().map(&inode, block * (BLOCK / FRAGMENT), 1).unwrap().start.unwrap().get()
    }

    /// Writes a file block by block until the volume is full, or its next block lies behind fragment `until`; its length.
    fn fill(&self, ino: InodeNo, until: u64) -> u64 {
        for block in 0.. {
            match self.write(ino, block * BLOCK, b'f', 4096) {
                Ok(done) => assert_eq!(done, 4096),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC);
                    return block * BLOCK;
                }
            }
            if self.place(ino, block) > until {
                return (block + 1) * BLOCK;
            }
        }
        unreachable!("the volume has an end")
    }

    fn inode_block(&self, ino: InodeNo) -> u64 {
        self.fs.format().superblock().inode_place(u32::try_from(ino.0).unwrap()).0.get()
    }

    /// The first block of a group's description.
    fn group_at(&self, group: u32) -> u64 {
        let shape = self.fs.format().superblock();
        shape.group_start(group) + u64::from(shape.parts[1])
    }

    /// The blocks of all groups' descriptions, which have their maps.
    fn maps(&self) -> Vec<Range<u64>> {
        let shape = self.fs.format().superblock();
        let len = u64::from(shape.parts[2] - shape.parts[1]);
        (0..shape.groups).map(|group| self.group_at(group)..self.group_at(group) + len).collect()
    }

    /// The block of a map that has a fragment's bit.
    fn map_of(&self, fragment: u64) -> u64 {
        let (group, at) = self.fs.format().superblock().group_of(fragment);
        let first = self.group_at(group);
        let start = usize::try_from(first * FRAGMENT).unwrap();
        let image = self.medium.image();
        let map = u64::from(u32::from_le_bytes(image[start + 96..start + 100].try_into().unwrap()));
        first + (map + u64::from(at) / 8) / FRAGMENT
    }

    /// Writes everything but some blocks and what comes after these; what a mount finds after a crash then.
    fn crash_without(&self, kept: impl Fn(u64) -> bool) -> Uhfs<Ufs> {
        let cache = self.fs.format().cache();
        while cache.step_blocks(&mut |BlockNo(block)| !kept(block)).unwrap() > 0 {}
        let (mended, report) = repaired(&self.medium.image(), RepairMode::Preen);
        assert_eq!(report.found.corrupt, 0, "{:#?}", report.found.findings);
        // Where FreeBSD's `fsck -p` would not go on.
        assert!(
            report.found.findings.iter().all(|found| found.code != "inode-truncated"),
            "{:#?}",
            report.found
        );
        assert!(report.left.is_clean(), "{:#?}", report.left.findings);
        opened(&mended).unwrap()
    }
}

fn contents(fs: &Uhfs<Ufs>, name: &str) -> Option<Vec<u8>> {
    let attr = fs.lookup(fs.root(), name.as_bytes()).ok()?.attr;
    let mut bytes = vec![0; usize::try_from(attr.size).unwrap()];
    let mut at = 0;
    while at < bytes.len() {
        at += fs.read(attr.ino, u64::try_from(at).unwrap(), &mut bytes[at..]).unwrap();
    }
    Some(bytes)
}

/// The fragments of the block of pointers of block `block` of a file, and of that above it, if there is one.
fn nodes(rig: &Rig, ino: InodeNo, block: u64) -> Vec<u64> {
    let image = rig.medium.image();
    let pointer = |at: u64| {
        let at = usize::try_from(at).unwrap();
        u64::from_le_bytes(image[at..at + 8].try_into().unwrap())
    };
    let (first, byte) = rig.fs.format().superblock().inode_place(u32::try_from(ino.0).unwrap());
    // The inode's pointers behind the direct ones.
    let inode = first.get() * FRAGMENT + u64::try_from(byte).unwrap() + 112 + 12 * 8;
    let mut tops = vec![pointer(inode)];
    if block > 12 + 512 {
        let above = pointer(inode + 8);
        tops = vec![above, pointer(above * FRAGMENT)];
    }
    tops.into_iter().filter(|&top| top != 0).flat_map(|top| top..top + 8).collect()
}

#[test]
fn a_length_beyond_the_last_block_comes_after_the_bits_of_what_that_lacked() {
    let rig = Rig::new();
    let (file, rest) = (rig.file(rig.fs.root(), "file"), rig.file(rig.fs.root(), "rest"));
    // In a block of its own, where it can grow.
    rig.write(file, 0, b'a', 4096).unwrap();
    rig.resize(file, 700);
    rig.fill(rest, 9000);
    // What it has lost is free for good.
    let rig = rig.again();
    let file = rig.fs.lookup(rig.fs.root(), b"file").unwrap().attr.ino;
    rig.write(file, BLOCK, b'b', 4096).unwrap();
    let (low, high) = (rig.map_of(rig.place(file, 0)), rig.map_of(rig.place(file, 1)));
    assert_ne!(low, high);
    let after = rig.crash_without(|block| block == low);
    assert_eq!(contents(&after, "file").unwrap(), vec![b'a'; 700]);
}

#[test]
fn a_pointer_to_a_block_of_pointers_comes_after_its_bits() {
    let rig = Rig::new();
    let (first, rest) = (rig.file(rig.fs.root(), "first"), rig.file(rig.fs.root(), "rest"));
    rig.write(first, 0, b'f', 4096).unwrap();
    rig.fill(rest, 9000);
    let file = rig.file(rig.fs.root(), "file");
    for block in 0..12 {
        rig.write(file, block * BLOCK, b'a', 4096).unwrap();
    }
    rig.unlink(rig.fs.root(), "first", first);
    // Where the last block was taken is forgotten: pointers go to the group's beginning, contents behind those that there are.
    let rig = rig.again();
    let file = rig.fs.lookup(rig.fs.root(), b"file").unwrap().attr.ino;
    let free = rig.fs.statfs().unwrap().blocks_free;
    rig.write(file, 12 * BLOCK, b'b', 4096).unwrap();
    assert_eq!(free - rig.fs.statfs().unwrap().blocks_free, 16, "a block and one of pointers");
    let low = rig.map_of(1000);
    assert_ne!(low, rig.map_of(rig.place(file, 12)));
    let after = rig.crash_without(|block| block == low);
    assert_eq!(contents(&after, "file").unwrap(), vec![b'a'; 12 * 4096]);
}

/// A volume on which all is used but what a file has lost whose name is on the medium.
fn full_but_for_a_file_that_ends(prepare: impl Fn(&Rig)) -> Rig {
    let rig = Rig::new();
    prepare(&rig);
    let (gone, rest) = (rig.file(rig.fs.root(), "gone"), rig.file(rig.fs.root(), "rest"));
    let ends: Vec<InodeNo> = (0..60).map(|no| rig.file(rig.fs.root(), &format!("end-{no}"))).collect();
    for block in 0..3 {
        rig.write(gone, block * BLOCK, b'g', 4096).unwrap();
    }
    rig.fill(rest, u64::MAX);
    // Parts of blocks that are left as well: nobody would take what that file has otherwise.
    let full = ends.into_iter().any(|ino| rig.write(ino, 0, b'e', 512).is_err());
    assert!(full && rig.fs.statfs().unwrap().blocks_free == 0);
    rig.fs.sync().unwrap();
    rig.unlink(rig.fs.root(), "gone", gone);
    rig
}

#[test]
fn what_moves_to_where_others_were_comes_after_their_end() {
    let rig = full_but_for_a_file_that_ends(|rig| {
        let (file, next) = (rig.file(rig.fs.root(), "file"), rig.file(rig.fs.root(), "next"));
        rig.write(file, 0, b'a', 512).unwrap();
        rig.write(next, 0, b'n', 512).unwrap();
    });
    let file = rig.fs.lookup(rig.fs.root(), b"file").unwrap().attr.ino;
    let before = rig.place(file, 0);
    rig.write(file, 512, b'a', 512).unwrap();
    assert_ne!(rig.place(file, 0), before);
    let name = rig.place(rig.fs.root(), 0);
    let after = rig.crash_without(|block| block == name);
    assert!(contents(&after, "gone").unwrap() == vec![b'g'; 3 * 4096], "what others have written");
    assert!(contents(&after, "file").unwrap().iter().all(|&byte| byte == b'a'));
}

#[test]
fn pointers_where_others_were_come_after_their_end() {
    let rig = full_but_for_a_file_that_ends(|rig| {
        let file = rig.file(rig.fs.root(), "file");
        for block in 0..12 {
            rig.write(file, block * BLOCK, b'a', 4096).unwrap();
        }
    });
    let file = rig.fs.lookup(rig.fs.root(), b"file").unwrap().attr.ino;
    rig.write(file, 12 * BLOCK, b'a', 4096).unwrap();
    let name = rig.place(rig.fs.root(), 0);
    let after = rig.crash_without(|block| block == name);
    assert!(contents(&after, "gone").unwrap() == vec![b'g'; 3 * 4096], "what others have written");
    assert!(contents(&after, "file").unwrap().iter().all(|&byte| byte == b'a'));
}

#[test]
fn a_name_in_a_fragment_that_has_moved_is_gone_with_the_pointer_to_its_place() {
    let rig = Rig::new();
    let dir = rig.fs.mkdir(&Caller::default(), rig.fs.root(), b"dir", 0o755).unwrap().attr.ino;
    // In the directory's group, behind its first fragment.
    let next = rig.file(dir, "next");
    rig.write(next, 0, b'n', 512).unwrap();
    let names: Vec<String> = (0..5).map(|no| format!("{no}{}", "x".repeat(80))).collect();
    let inodes: Vec<InodeNo> = names.iter().map(|name| rig.file(dir, name)).collect();
    rig.fs.sync().unwrap();
    let before = rig.place(dir, 0);
    rig.file(dir, &"y".repeat(200));
    assert_ne!(rig.place(dir, 0), before, "it has moved");
    rig.unlink(dir, &names[4], inodes[4]);
    let pointer = rig.inode_block(dir);
    assert_ne!(pointer, rig.inode_block(inodes[4]));
    rig.crash_without(|block| block == pointer);
}

#[test]
fn what_moves_comes_after_what_it_waited_for_in_its_old_place() {
    let rig = Rig::new();
    let dir = rig.fs.mkdir(&Caller::default(), rig.fs.root(), b"dir", 0o755).unwrap().attr.ino;
    // In the directory's group, behind its first fragment.
    let next = rig.file(dir, "next");
    rig.write(next, 0, b'n', 512).unwrap();
    for no in 0..4 {
        rig.file(dir, &format!("{no}{}", "x".repeat(80)));
    }
    rig.fs.sync().unwrap();
    // A name that waits for its inode, in a fragment that then moves.
    let waits = rig.file(dir, "waits");
    let before = rig.place(dir, 0);
    rig.file(dir, &"y".repeat(200));
    assert_ne!(rig.place(dir, 0), before, "it has moved");
    let inode = rig.inode_block(waits);
    assert_ne!(inode, rig.inode_block(dir));
    let after = rig.crash_without(|block| block == inode);
    let dir = after.lookup(after.root(), b"dir").unwrap().attr.ino;
    assert_eq!(after.lookup(dir, b"waits").unwrap_err().errno(), Errno::NOENT);
}

#[test]
fn a_length_within_a_fragment_comes_after_the_pointer_to_where_that_has_moved() {
    let rig = Rig::new();
    let (file, next) = (rig.file(rig.fs.root(), "file"), rig.file(rig.fs.root(), "next"));
    rig.write(file, 0, b'a', 300).unwrap();
    rig.write(next, 0, b'n', 512).unwrap();
    let rest = rig.file(rig.fs.root(), "rest");
    let size = rig.fill(rest, u64::MAX);
    // One whole block is free: the end moves there, and nothing is left for what made it do so.
    rig.resize(rest, size - BLOCK);
    rig.fs.sync().unwrap();
    let before = rig.place(file, 0);
    let written = rig.write(file, 3 * BLOCK, b'x', 20_000);
    assert!(written.is_err_and(|error| error.errno() == Errno::NOSPC));
    assert_ne!(rig.place(file, 0), before, "it has moved");
    rig.write(file, 300, b'b', 100).unwrap();
    let maps = rig.maps();
    let after = rig.crash_without(|block| maps.iter().any(|maps| maps.contains(&block)));
    let bytes = contents(&after, "file").unwrap();
    assert!(bytes == [b'a'; 300] || bytes == [&[b'a'; 300][..], &[b'b'; 100]].concat(), "{}", bytes.len());
}

#[test]
fn first_contents_where_others_were_come_after_their_end() {
    let made: [fn(&Rig); 2] = [
        |rig| {
            rig.fs.mkdir(&Caller::default(), rig.fs.root(), b"dir", 0o755).unwrap();
        },
        |rig| {
            let file = rig.fs.lookup(rig.fs.root(), b"file").unwrap().attr.ino;
            rig.fs.setxattr(&Caller::default(), file, b"user.a", &[7; 3000], XattrSetMode::Set).unwrap();
        },
    ];
    for make in made {
        let rig = full_but_for_a_file_that_ends(|rig| {
            rig.file(rig.fs.root(), "file");
        });
        make(&rig);
        let name = rig.place(rig.fs.root(), 0);
        let after = rig.crash_without(|block| block == name);
        assert!(contents(&after, "gone").unwrap() == vec![b'g'; 3 * 4096], "what others have written");
    }
}

#[test]
fn an_inode_comes_after_the_bits_of_its_first_contents() {
    let rig = Rig::new();
    let rest = rig.file(rig.fs.root(), "rest");
    rig.fill(rest, 3000);
    rig.fs.sync().unwrap();
    let link = rig.fs.symlink(&Caller::default(), rig.fs.root(), b"link", &[b't'; 900]).unwrap().attr.ino;
    let map = rig.map_of(rig.place(link, 0));
    assert_ne!(map, rig.group_at(0), "the bitmap of inodes is in another block");
    rig.crash_without(|block| block == map);
}

#[test]
fn a_name_comes_after_the_number_of_inodes_that_were_written() {
    let rig = Rig::new();
    let mut last = InodeNo(0);
    let per_block = 16;
    for no in 0..2 * per_block {
        if last.0 + 1 == 2 * per_block {
            rig.fs.sync().unwrap();
        }
        if last.0 < 2 * per_block {
            last = rig.file(rig.fs.root(), &format!("file-{no}"));
        }
    }
    assert_eq!(last.0, 2 * per_block, "the first inode of a block that was never written");
    // Zeros in the block's other fragments are not written, so the number is not.
    let first = rig.inode_block(last);
    rig.crash_without(|block| (first + 1..first + 8).contains(&block));
    // Nor is the mark of what would lie behind it: a check would believe what an earlier volume has left there.
    let group = usize::try_from(rig.group_at(0) * FRAGMENT).unwrap();
    let image = rig.medium.image();
    let word = |at: usize| u32::from_le_bytes(image[group + at..group + at + 4].try_into().unwrap());
    let (map, written) = (usize::try_from(word(92)).unwrap(), word(120));
    let used = |ino: u32| image[group + map + usize::try_from(ino / 8).unwrap()] >> (ino % 8) & 1 == 1;
    assert_eq!(written, 2 * 16);
    assert!(used(written - 1) && !used(written), "{last:?}");
}

/// A file behind the direct blocks: what comes to the medium first of its growth and of its shortening is such that every BSD's check goes on.
#[test]
fn no_pointer_is_behind_the_end_in_blocks_of_pointers() {
    let leaf = 12 + 512;
    // Blocks before and after; the second way is through a new block of pointers below another one.
    let changes =
        [(15, 21), (leaf + 500, leaf + 520), (100, 15), (leaf + 100, leaf + 3), (leaf + 520, leaf + 30)];
    for (before, after) in changes {
        let mut kept = 0;
        loop {
            let rig = Rig::new();
            let file = rig.file(rig.fs.root(), "file");
            rig.write(file, 0, b'a', 4096 * usize::try_from(before).unwrap()).unwrap();
            rig.fs.sync().unwrap();
            let nodes = nodes(&rig, file, before);
            if after < before {
                rig.resize(file, after * BLOCK);
            }
            for block in before..after {
                rig.write(file, block * BLOCK, b'a', 4096).unwrap();
            }
            // Its inode stays as it was, or one of the fragments that have its pointers.
            let one = if kept == 0 { rig.inode_block(file) } else { nodes[kept - 1] };
            let found = contents(&rig.crash_without(|block| block == one), "file").unwrap();
            let blocks = u64::try_from(found.len()).unwrap().div_ceil(BLOCK);
            let what = format!("{before} to {after} blocks, all but {kept}");
            assert!((before.min(after)..=before.max(after)).contains(&blocks), "{what}: {blocks}");
            assert!(found.iter().all(|&byte| byte == b'a'), "{what}: a hole");
            // Who looks before that is mended sees the same.
            let raw = opened(&rig.medium.image()).unwrap();
            assert!(contents(&raw, "file").unwrap() == found, "{what}: before it is mended");
            kept += 1;
            if kept > nodes.len() {
                break;
            }
        }
    }
}

#[test]
fn a_hole_behind_the_direct_blocks_is_filled_after_its_contents() {
    let rig = Rig::new();
    let rest = rig.file(rig.fs.root(), "rest");
    rig.fill(rest, u64::MAX);
    rig.fs.sync().unwrap();
    rig.unlink(rig.fs.root(), "rest", rest);
    let rig = rig.again();
    let file = rig.file(rig.fs.root(), "file");
    for block in [13, 20] {
        rig.write(file, block * BLOCK, b'a', 4096).unwrap();
    }
    rig.fs.sync().unwrap();
    rig.write(file, 15 * BLOCK, b'h', 4096).unwrap();
    let place = rig.place(file, 15);
    let after = rig.crash_without(|block| (place..place + BLOCK / FRAGMENT).contains(&block));
    let found = contents(&after, "file").unwrap();
    assert!(found[15 * 4096..16 * 4096].iter().all(|&byte| byte == 0), "what others have written");
}

/// No check goes on at a hole in a directory.
#[test]
fn a_directory_has_what_its_length_says_also_behind_the_direct_blocks() {
    let rig = Rig::new();
    let dir = rig.fs.mkdir(&Caller::default(), rig.fs.root(), b"dir", 0o755).unwrap().attr.ino;
    let name = |no: u32| format!("{no:04}{}", "x".repeat(230));
    for no in 0..260 {
        rig.file(dir, &name(no));
    }
    rig.fs.sync().unwrap();
    assert!(rig.fs.getattr(dir).unwrap().size > 14 * BLOCK);
    for no in 260..400 {
        rig.file(dir, &name(no));
    }
    let nodes = nodes(&rig, dir, 14);
    let cache = rig.fs.format().cache();
    while cache.step_blocks(&mut |BlockNo(block)| !nodes.contains(&block)).unwrap() > 0 {}
    let report = super::checked(&rig.medium.image()).unwrap();
    assert_eq!(report.corrupt, 0, "{:#?}", report.findings);
}

#[test]
fn what_a_hole_had_is_free_after_the_pointer() {
    let rig = Rig::new();
    let file = rig.file(rig.fs.root(), "file");
    for block in 0..20 {
        rig.write(file, block * BLOCK, b'a', 4096).unwrap();
    }
    rig.fs.sync().unwrap();
    // Behind the twelfth block lies that of the pointers.
    let pointers = rig.place(file, 12) - 8;
    rig.fs.fallocate(&Caller::default(), file, 14 * BLOCK, 3 * BLOCK, FallocateMode::PunchHole).unwrap();
    rig.crash_without(|block| (pointers - 16..pointers + 24).contains(&block));
}

/// The last block was filled for others for which there was no room then.
#[test]
fn what_was_taken_for_nothing_is_given_back() {
    let rig = Rig::new();
    let file = rig.file(rig.fs.root(), "file");
    // In a block of its own, of which the rest is free for good.
    rig.write(file, 0, b'a', 4096).unwrap();
    rig.resize(file, 300);
    let rig = rig.again();
    let (file, rest) =
        (rig.fs.lookup(rig.fs.root(), b"file").unwrap().attr.ino, rig.file(rig.fs.root(), "rest"));
    rig.fill(rest, u64::MAX);
    rig.fs.sync().unwrap();
    let free = rig.fs.statfs().unwrap().blocks_free;
    assert!(free >= 7, "{free}: room for its last block, and in parts of others");
    assert!(rig.write(file, 3 * BLOCK, b'x', 20_000).is_err());
    assert_eq!(rig.fs.statfs().unwrap().blocks_free, free);
    rig.fs.unmount().unwrap();
    let report = super::checked(&rig.medium.image()).unwrap();
    assert!(report.is_clean(), "{:#?}", report.findings);
}

#[test]
fn the_mark_of_use_comes_before_the_first_change() {
    for (version, at) in [(Version::One, 8192), (Version::Two, 65_536)] {
        for soft_updates in [false, true] {
            let rig = Rig::with(version, soft_updates);
            let marks = at / FRAGMENT..at / FRAGMENT + 4;
            for no in 0..3 {
                let file = rig.file(rig.fs.root(), &format!("file-{no}"));
                rig.write(file, 0, b'a', 9000).unwrap();
            }
            let cache = rig.fs.format().cache();
            while cache.step_blocks(&mut |BlockNo(block)| !marks.contains(&block)).unwrap() > 0 {}
            let shape = Superblock::read(&*rig.medium).unwrap();
            // What believes soft updates must not; NetBSD neither checks nor mounts what has flags that it does not know.
            let asks = flag::UNCLEAN | flag::NEEDS_FSCK;
            let flags = if soft_updates { flag::SOFTDEP | asks } else { 0 };
            assert_eq!((shape.is_clean, shape.flags), (false, flags), "{version:?}");
        }
    }
}

/// A device that takes so many blocks, and no more.
struct Full {
    below: Arc<MemDevice>,
    left: AtomicU64,
}

impl BlockDevice for Full {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> fstitch_core::Result<()> {
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> fstitch_core::Result<()> {
        for write in writes {
            let left = self.left.load(Ordering::SeqCst);
            self.left.store(left.checked_sub(1).ok_or(Errno::IO)?, Ordering::SeqCst);
            self.below.write(&[BlockWrite { block: write.block, kind: write.kind, data: write.data }])?;
        }
        Ok(())
    }

    fn flush(&self) -> fstitch_core::Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> fstitch_core::Result<()> {
        self.below.discard(start, count)
    }
}

/// Whoever finds a mark of a clean volume looks no further, neither at counts.
#[test]
fn the_marks_of_a_clean_volume_come_after_the_counts() {
    for asks in [false, true] {
        marks_come_after_counts(asks);
    }
}

/// The same of a volume that `asks` for a check while it is in use, or one that is not clean, and no more.
fn marks_come_after_counts(asks: bool) {
    let (mut cut, mut ends) = (0, 0);
    for left in 0..200 {
        let fresh = Rig::with(Version::Two, asks);
        fresh.fs.unmount().unwrap();
        let full = Arc::new(Full { below: fresh.medium, left: AtomicU64::new(u64::MAX) });
        let fs = writable(Arc::<Full>::clone(&full) as Arc<dyn BlockDevice>);
        let caller = Caller::default();
        let made = fs.mknod(&caller, fs.root(), b"file", FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
        fs.write(&caller, made.attr.ino, 0, &[b'a'; 9000]).unwrap();
        fs.sync().unwrap();
        full.left.store(left, Ordering::SeqCst);
        let ended = fs.unmount();
        let image = full.below.image();
        let shape = Superblock::read(&*full.below).unwrap();
        let report = super::checked(&image).unwrap();
        let others = report.findings.iter().filter(|found| found.code != "superblock-not-clean").count();
        if shape.is_clean || asks && shape.flags & (flag::UNCLEAN | flag::NEEDS_FSCK) == 0 {
            assert_eq!(others, 0, "{left} blocks: {:#?}", report.findings);
        }
        match ended {
            Ok(()) => {
                assert!(report.is_clean());
                ends += 1;
                break;
            }
            Err(_) => cut += 1,
        }
    }
    assert!(cut > 2 && ends == 1, "{cut} cuts");
}

/// Whatever is written, cut, synced and written out in between: what an fsync has promised of a file that is longer than its direct blocks is
/// there, before anybody mends the volume as well.
#[test]
fn what_an_fsync_promised_behind_the_direct_blocks_is_there() {
    for turn in 0..12_u64 {
        let mut seed = fstitch_core::Seed::new(turn);
        let version = if turn % 2 == 0 { Version::One } else { Version::Two };
        let mut options = MkfsOptions::new(version, [7, 9], Timestamp { secs: 1_700_000_000, nanos: 0 });
        (options.block_size, options.fragment_size) = (Some(4096), Some(512));
        let medium = Arc::new(MemDevice::new(512, 16_384));
        mkfs(&*medium, &options, &mut |_, _| {}).unwrap();
        let combination = u8::try_from(seed.below(32)).unwrap();
        let cache = CacheOptions {
            optimizations: Optimizations::combination(combination),
            cache_size: if turn % 3 == 0 { 1 << 20 } else { 16 << 20 },
            ..CacheOptions::default()
        };
        let arrangement = Arrangement { cache, ..Arrangement::default() };
        let device = Arc::<MemDevice>::clone(&medium);
        let (fs, _) = arrange::open::<Ufs>(device, &arrangement, Arc::new(SystemClock::new())).unwrap();
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let file = fs.mknod(&Caller::default(), fs.root(), b"file", mode, 0).unwrap().attr.ino;
        fs.sync().unwrap();
        let mut expected = Vec::new();
        for step in 0..60_u8 {
            match seed.below(12) {
                0..=5 => {
                    let bytes = vec![step + 1; usize::try_from(1 + seed.below(60_000)).unwrap()];
                    let at = if seed.below(4) == 0 {
                        seed.below(1 + expected.len() as u64)
                    } else {
                        expected.len() as u64
                    };
                    let done = fs.write(&Caller::default(), file, at, &bytes).unwrap();
                    let at = usize::try_from(at).unwrap();
                    expected.resize(expected.len().max(at + done), 0);
                    expected[at..at + done].copy_from_slice(&bytes[..done]);
                }
                6 => {
                    let size = seed.below(1 + expected.len() as u64);
                    let set = fstitch_core::SetAttr { size: Some(size), ..Default::default() };
                    fs.setattr(&Caller::default(), file, &set).unwrap();
                    expected.truncate(usize::try_from(size).unwrap());
                }
                7 | 8 => {
                    let odd = seed.below(5);
                    let wanted = &mut |BlockNo(block)| block % 5 != odd;
                    let _ = fs.format().cache().step_blocks(wanted).unwrap();
                }
                _ => {
                    fs.fsync(file, seed.below(2) == 0).unwrap();
                    let image = medium.image();
                    for what in [image.clone(), repaired(&image, RepairMode::Preen).0] {
                        let found = contents(&opened(&what).unwrap(), "file").unwrap();
                        assert!(
                            found == expected,
                            "turn {turn}, step {step}: {} of {}",
                            found.len(),
                            expected.len()
                        );
                    }
                }
            }
        }
    }
}
