//! The volume that is nearly full: what a file gives up is at once what the next one gets.
//!
//! `/a` and `/b` are files of 24 KiB, `/s` has ten pieces with holes between, `/u` is 16 KiB allocated and not written, `/o` one block; `/x` and
//! `/y` have attributes in a block, `/l` is a symbolic link with a target in one. `/d` has six long names of `/x`, `/e` none. All of
//! it, and the inodes and blocks that are the rest, are there before any workload: a few blocks and inodes are free.

use fstitch_core::num::to_u64;
use fstitch_core::{Caller, Errno, Error, FallocateMode, FileSystem, InodeNo, Result, SetAttr, XattrSetMode};
use fstitch_crashlab::workload::fill;

/// Inodes that stay free.
const FREE_INODES: u64 = 3;
/// Clusters that stay free, or blocks.
const FREE_BLOCKS: u64 = 3;
const FREE_CLUSTERS: u64 = 1;
/// Bytes of a cluster: who fills in larger pieces does not hit the mark.
const CLUSTER_BLOCKS: u64 = 4;
/// What the files hold is numbered from here, as operations of a set-up are.
const FIRST: u32 = (1 << 20) + 500;

/// Bytes that no workload writes.
fn contents(no: u32, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(FIRST + no, offset, &mut bytes);
    bytes
}

struct Making<'a> {
    fs: &'a dyn FileSystem,
    caller: Caller,
}

impl Making<'_> {
    fn file(&self, name: &str) -> Result<InodeNo> {
        let entry = self.fs.mknod(&self.caller, self.fs.root(), name.as_bytes(), 0o100_644, 0)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(entry.attr.ino)
    }

    fn directory(&self, name: &str) -> Result<InodeNo> {
        let entry = self.fs.mkdir(&self.caller, self.fs.root(), name.as_bytes(), 0o755)?;
        self.fs.forget(entry.attr.ino, 1);
        Ok(entry.attr.ino)
    }

    fn write(&self, ino: InodeNo, no: u32, offset: u64, len: usize) -> Result<()> {
        let bytes = contents(no, offset, len);
        let mut done = 0;
        while done < len {
            done += self.fs.write(&self.caller, ino, offset + to_u64(done), &bytes[done..])?;
        }
        Ok(())
    }

    fn attribute(&self, ino: InodeNo, no: u32, len: usize) -> Result<()> {
        self.fs.setxattr(&self.caller, ino, b"user.a", &contents(no, 0, len), XattrSetMode::Set)
    }

    fn allocate(&self, ino: InodeNo, offset: u64, len: u64) -> Result<()> {
        self.fs.fallocate(&self.caller, ino, offset, len, FallocateMode::Allocate)
    }

    fn files(&self) -> Result<()> {
        for (name, no) in [("a", 1), ("b", 2)] {
            let ino = self.file(name)?;
            self.write(ino, no, 0, 24 << 10)?;
        }
        let sparse = self.file("s")?;
        (0..10).try_for_each(|piece| self.write(sparse, 3, piece << 11, 1024))?;
        let unwritten = self.file("u")?;
        self.allocate(unwritten, 0, 16 << 10)?;
        let one = self.file("o")?;
        self.write(one, 4, 0, 1024)?;
        let named = self.file("x")?;
        self.attribute(named, 5, 600)?;
        let other = self.file("y")?;
        self.write(other, 6, 0, 100)?;
        self.attribute(other, 7, 300)?;
        let link = self.fs.symlink(&self.caller, self.fs.root(), b"l", &contents(8, 0, 200))?;
        self.fs.forget(link.attr.ino, 1);
        let dir = self.directory("d")?;
        for no in 0..6 {
            let name = format!("{}{no}", "n".repeat(200));
            let entry = self.fs.link(&self.caller, named, dir, name.as_bytes())?;
            self.fs.forget(entry.attr.ino, 1);
        }
        self.directory("e").map(drop)
    }

    /// Uses up the inodes, and then the blocks, but for those that stay free.
    fn fill_up(&self, free_blocks: u64) -> Result<()> {
        let ballast = self.file("rest")?;
        let inodes = self.fs.statfs()?.inodes_free.saturating_sub(FREE_INODES);
        (0..inodes).try_for_each(|no| self.file(&format!("i{no}")).map(drop))?;
        self.fs.sync()?;
        let (mut at, mut largest) = (0_u64, u64::MAX);
        loop {
            let stat = self.fs.statfs()?;
            let unit = u64::from(stat.block_size);
            if stat.blocks_free < free_blocks {
                // Blocks of pointers came with the last ones; what goes with these is left free.
                at = at.checked_sub(unit).ok_or(Errno::NOSPC)?;
                largest = 0;
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                self.fs.setattr(&self.caller, ballast, &set)?;
                self.fs.sync()?;
                continue;
            }
            let over = (stat.blocks_free - free_blocks).min(largest);
            if over == 0 {
                return Ok(());
            }
            let len = over * unit;
            match self.allocate(ballast, at, len) {
                Ok(()) => at += len,
                Err(Error::Errno(Errno::NOSPC)) => largest = over / 2,
                Err(error) => return Err(error),
            }
            self.fs.sync()?;
        }
    }
}

/// Makes the files, and uses up the rest.
///
/// # Errors
/// Those of the file system.
pub(crate) fn populate(fs: &dyn FileSystem, clusters: bool) -> Result<()> {
    let making = Making { fs, caller: Caller::default() };
    making.files()?;
    making.fill_up(if clusters { FREE_CLUSTERS * CLUSTER_BLOCKS } else { FREE_BLOCKS })
}
