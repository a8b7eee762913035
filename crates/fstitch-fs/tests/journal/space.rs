//! Space that was freed a moment ago and is needed now, under every mechanism.
//!
//! What it prevents: a short write, or `ENOSPC`, where all that is asked for would be free after a commit. Programs take the
//! first for success, and the second for a full volume.

use std::sync::Arc;

use fstitch_core::Consistency;
use fstitch_core::{
    Caller, Errno, FallocateMode, FileSystem, InodeNo, ManualClock, MemDevice, RenameMode, Seed, SetAttr,
    XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::mkfs::{MkfsJournal, MkfsOptions, mkfs};
use fstitch_fs::uhfs::Uhfs;

use super::NOW;

const ROUNDS: u64 = 24;
const BLOCKS: u64 = 8192;
const REGULAR: u16 = 0o100_644;

fn caller() -> Caller {
    Caller::default()
}

/// A volume without reserved blocks, with a journal of 1024 blocks.
fn volume(block_size: u32, inodes: Option<u32>, mechanism: Consistency) -> (Arc<MemDevice>, Uhfs<Ext2>) {
    let device = MemDevice::new(block_size, BLOCKS);
    let mut options = MkfsOptions::new([1; 16], [2; 16], NOW);
    options.block_size = Some(block_size);
    options.inodes = inodes;
    options.journal = MkfsJournal::Blocks(1024);
    options.reserved_percent = 0;
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    let device = Arc::new(device);
    let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
    let (fs, _) = open::<Ext2>(Arc::clone(&device) as _, &arrangement, Arc::new(ManualClock::new())).unwrap();
    (device, fs)
}

/// A full volume, of which some is freed and needed again.
struct Full {
    fs: Uhfs<Ext2>,
    block_size: u64,
    /// Takes all that nobody needs.
    ballast: InodeNo,
    ballast_end: u64,
    mechanism: Consistency,
}

impl Full {
    fn new(fs: Uhfs<Ext2>, block_size: u32, mechanism: Consistency) -> Self {
        let ballast = fs.mknod(&caller(), fs.root(), b"ballast", REGULAR, 0).unwrap().attr.ino;
        Self { fs, block_size: u64::from(block_size), ballast, ballast_end: 0, mechanism }
    }

    fn free(&self) -> u64 {
        self.fs.statfs().unwrap().blocks_free
    }

    /// Writes the ballast until nothing is free.
    fn fill(&mut self) {
        let block = vec![9; usize::try_from(self.block_size).unwrap() * 64];
        loop {
            match self.fs.write(&caller(), self.ballast, self.ballast_end, &block) {
                Ok(done) => self.ballast_end += u64::try_from(done).unwrap(),
                Err(error) if error.errno() == Errno::NOSPC => break,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn drop_name(&self, name: &[u8]) {
        self.fs.unlink(&caller(), self.fs.root(), name).unwrap();
    }

    /// Leaves files behind that can be freed in many ways, and a full volume.
    fn prepare(&mut self, blocks: u64) {
        let data = vec![5; usize::try_from(blocks * self.block_size).unwrap()];
        for name in [&b"whole"[..], b"end", b"middle", b"replaced"] {
            let ino = self.fs.mknod(&caller(), self.fs.root(), name, REGULAR, 0).unwrap().attr.ino;
            assert_eq!(self.fs.write(&caller(), ino, 0, &data).unwrap(), data.len());
            self.fs.forget(ino, 1);
        }
        let ino = self.fs.mknod(&caller(), self.fs.root(), b"replacing", REGULAR, 0).unwrap().attr.ino;
        self.fs.forget(ino, 1);
        self.fill();
        self.fs.sync().unwrap();
        self.fill();
    }

    /// Frees something in the way that `pick` says.
    fn free_some(&self, pick: u64, blocks: u64) {
        let root = self.fs.root();
        let known = |name: &[u8]| self.fs.lookup(root, name).unwrap().attr.ino;
        match pick {
            0 => self.drop_name(b"whole"),
            1 => {
                let ino = known(b"end");
                let set = SetAttr { size: Some(self.block_size + 1), ..SetAttr::default() };
                self.fs.setattr(&caller(), ino, &set).unwrap();
                self.fs.forget(ino, 1);
            }
            2 => {
                let ino = known(b"middle");
                let (from, len) = (self.block_size, (blocks - 2) * self.block_size);
                self.fs.fallocate(&caller(), ino, from, len, FallocateMode::PunchHole).unwrap();
                self.fs.forget(ino, 1);
            }
            _ => {
                let (from, to) = ((root, &b"replacing"[..]), (root, &b"replaced"[..]));
                self.fs.rename(&caller(), from, to, RenameMode::Replace).unwrap();
            }
        }
    }

    /// Asks for all that is free, or for a part, in the way that `pick` says: it must be had at once.
    fn need(&self, pick: u64, about: &str) {
        let (fs, root, free) = (&self.fs, self.fs.root(), self.free());
        let context =
            format!("{} at {} bytes a block, {about}, {free} free", self.mechanism, self.block_size);
        // Room for pointer blocks beside the data.
        let blocks = free - 3 - free / 200;
        let data = vec![1; usize::try_from(blocks * self.block_size).unwrap()];
        let make = || fs.mknod(&caller(), root, b"new", REGULAR, 0).expect(&context).attr.ino;
        match pick {
            0 => {
                let ino = make();
                assert_eq!(fs.write(&caller(), ino, 0, &data).expect(&context), data.len(), "{context}");
                fs.forget(ino, 1);
            }
            1 => {
                let ino = make();
                let len = blocks * self.block_size;
                fs.fallocate(&caller(), ino, 0, len, FallocateMode::Allocate).expect(&context);
                fs.forget(ino, 1);
            }
            2 => {
                let ino = make();
                assert_eq!(fs.write_back(ino, 0, &data, true).expect(&context), data.len(), "{context}");
                fs.forget(ino, 1);
            }
            3 => {
                fs.forget(fs.mkdir(&caller(), root, b"new", 0o755).expect(&context).attr.ino, 1);
                return fs.rmdir(&caller(), root, b"new").unwrap();
            }
            4 => {
                let target = vec![b't'; 200];
                fs.forget(fs.symlink(&caller(), root, b"new", &target).expect(&context).attr.ino, 1);
            }
            5 => {
                let ino = make();
                let value = vec![3; 700];
                fs.setxattr(&caller(), ino, b"user.large", &value, XattrSetMode::Set).expect(&context);
                fs.forget(ino, 1);
            }
            _ => {
                let ino = fs.tmpfile(&caller(), root, 0o600).expect(&context).attr.ino;
                assert_eq!(fs.write(&caller(), ino, 0, &data).expect(&context), data.len(), "{context}");
                fs.forget(ino, 1);
                return;
            }
        }
        self.drop_name(b"new");
    }

    fn clear(&mut self) {
        for name in [&b"whole"[..], b"end", b"middle", b"replaced", b"replacing"] {
            let _gone = self.fs.unlink(&caller(), self.fs.root(), name);
        }
        self.fs.setattr(&caller(), self.ballast, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
        self.ballast_end = 0;
    }
}

#[test]
fn what_was_freed_a_moment_ago_can_be_used_at_once() {
    for mechanism in Consistency::ALL {
        for block_size in [1024, 4096] {
            let (device, fs) = volume(block_size, None, mechanism);
            let mut full = Full::new(fs, block_size, mechanism);
            let mut seed = Seed::new(17);
            for round in 0..ROUNDS {
                let blocks = 20 + seed.below(300);
                full.prepare(blocks);
                let (first, second) = (seed.below(4), seed.below(4));
                full.free_some(first, blocks);
                // Some of it may be free on the medium already, when the rest is not.
                if first != second {
                    if seed.below(2) == 0 {
                        full.fs.sync().unwrap();
                    }
                    full.free_some(second, blocks);
                }
                let wish = seed.below(7);
                full.need(wish, &format!("round {round}: {first} and {second} freed, {wish} needed"));
                full.clear();
            }
            full.fs.forget(full.ballast, 1);
            full.fs.unmount().unwrap();
            let report = check_ext2(&*device).unwrap();
            assert!(report.is_clean(), "{mechanism}: {:?}", report.findings);
        }
    }
}

#[test]
fn inode_numbers_freed_a_moment_ago_can_be_used_at_once() {
    for mechanism in Consistency::ALL {
        let (device, fs) = volume(1024, Some(64), mechanism);
        let root = fs.root();
        let name = |no: u32| format!("file {no}").into_bytes();
        let mut made = 0;
        while let Ok(entry) = fs.mknod(&caller(), root, &name(made), REGULAR, 0) {
            fs.forget(entry.attr.ino, 1);
            made += 1;
        }
        assert!(made > 20 && fs.statfs().unwrap().inodes_free == 0);
        fs.sync().unwrap();
        for no in 0..made {
            fs.unlink(&caller(), root, &name(no)).unwrap();
            let context = format!("{mechanism}: file {no}");
            let entry = match no % 4 {
                0 => fs.mknod(&caller(), root, &name(no), REGULAR, 0),
                1 => fs.mkdir(&caller(), root, &name(no), 0o755),
                2 => fs.symlink(&caller(), root, &name(no), b"target"),
                _ => fs.tmpfile(&caller(), root, 0o600),
            };
            fs.forget(entry.expect(&context).attr.ino, 1);
            if no % 4 == 3 {
                fs.forget(fs.mknod(&caller(), root, &name(no), REGULAR, 0).expect(&context).attr.ino, 1);
            }
        }
        fs.unmount().unwrap();
        let report = check_ext2(&*device).unwrap();
        assert!(report.is_clean(), "{mechanism}: {:?}", report.findings);
    }
}
