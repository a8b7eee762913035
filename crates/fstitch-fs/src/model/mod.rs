//! A file system in memory: the reference that every other one is compared with.
//!
//! It owns the rules of POSIX and Linux for each operation of [`FileSystem`], stated as plainly as possible:
//! one lock, ordered maps, no order on any medium. Property tests run the same operations on it and on a real
//! file system and compare answers and trees; the FUSE front end is tested with it.
//!
//! What it leaves open, because real formats differ: inode numbers are never used twice, directories keep one
//! block's size whatever they hold and use no storage, `generation` is 0. `fsync` and `sync` have nothing to
//! do. Who may do what is the caller's business, as the contract says; a change of contents by anybody but root
//! takes set-id bits away.
//!
//! ```text
//!   mod.rs    options, the FileSystem trait        names.rs   create, link, rename, unlink, listing
//!   state.rs  inodes and their tables              attrs.rs   attributes, xattrs, chattr flags
//!   sparse.rs bytes with holes                     data.rs    read, write, fallocate, seek
//!   acl.rs    access lists                         verify.rs  the checker
//! ```

mod acl;
mod attrs;
mod data;
mod names;
mod sparse;
mod state;
#[cfg(test)]
mod tests;
mod verify;

use std::sync::Arc;

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{
    Attr, Caller, CheckReport, Clock, DirEntry, Entry, FallocateMode, FileKind, FileSystem, InodeFlags,
    InodeNo, RenameMode, Result, SeekFrom, SetAttr, StatFs, SystemClock, XattrSetMode,
};

use state::{NewNode, State};

/// The root directory's number, as in ext2.
const ROOT: InodeNo = InodeNo(2);

/// What a [`Model`] cannot exceed, and how it treats access times. The defaults are those of ext2 with 4 KiB
/// blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelOptions {
    /// Bytes per block: the unit of storage, holes and `st_blocks`; a multiple of 512.
    pub block_size: u32,
    /// Bytes of which ranges that come and go in a file are multiples, if that is not a block.
    pub shift_unit: Option<u32>,
    /// Blocks for contents.
    pub blocks: u64,
    /// Inodes, the root included.
    pub inodes: u64,
    /// Longest name in bytes.
    pub name_max: usize,
    /// Most names of an inode (for a directory: `.` and the `..` of its children count).
    pub link_max: u32,
    /// Longest file in bytes.
    pub size_max: u64,
    /// Longest target of a symbolic link in bytes.
    pub symlink_max: usize,
    /// Bytes for all extended attributes of an inode together, names included.
    pub xattrs_max: usize,
    /// Whether reading updates access times (by the relatime rule).
    pub atime: bool,
    /// Whether blocks can be allocated and not written: they are holes to who looks for data, and stay behind a file's end.
    pub unwritten: bool,
    /// Whether ranges can be taken out of files and put in.
    pub shifts: bool,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            block_size: 4096,
            shift_unit: None,
            blocks: 1 << 20,
            inodes: 1 << 20,
            name_max: 255,
            link_max: 32_000,
            size_max: (12 + (1 << 10) + (1 << 20) + (1 << 30)) << 12,
            symlink_max: 4095,
            xattrs_max: 4000,
            atime: true,
            unwritten: false,
            shifts: false,
        }
    }
}

/// The reference file system.
pub struct Model {
    clock: Arc<dyn Clock>,
    state: Mutex<State, rank::Leaf>,
}

impl Model {
    /// An empty file system whose root belongs to root, on the machine's clock.
    #[must_use]
    pub fn new() -> Self {
        Self::with(ModelOptions::default(), Arc::new(SystemClock::new()))
    }

    /// An empty file system with these limits and this clock.
    #[must_use]
    pub fn with(options: ModelOptions, clock: Arc<dyn Clock>) -> Self {
        let state = Mutex::new(State::new(options, clock.now()));
        Self { clock, state }
    }

    /// The tables, with the operation's time in them.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        state.now = self.clock.now();
        state
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").finish_non_exhaustive()
    }
}

impl FileSystem for Model {
    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.lock().lookup(parent, name)
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        self.lock().forget(ino, count);
    }

    fn getattr(&self, ino: InodeNo) -> Result<Attr> {
        self.lock().node(ino).map(|node| node.attr)
    }

    fn setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.lock().setattr(caller, ino, set)
    }

    fn readlink(&self, ino: InodeNo) -> Result<Vec<u8>> {
        self.lock().readlink(ino)
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        self.lock().mknod(caller, parent, name, mode, rdev)
    }

    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        let new = NewNode { kind: FileKind::Directory, perm, rdev: 0, target: b"" };
        self.lock().create(caller, parent, name, &new)
    }

    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.lock().symlink(caller, parent, name, target)
    }

    fn link(&self, _caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.lock().link(ino, parent, name)
    }

    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        self.lock().tmpfile(caller, parent, perm)
    }

    fn unlink(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.lock().unlink(parent, name)
    }

    fn rmdir(&self, _caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.lock().rmdir(parent, name)
    }

    fn rename(
        &self,
        _caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.lock().rename(from, to, mode)
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.lock().read(ino, offset, buf)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        self.lock().write(caller, ino, offset, data)
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        self.lock().write_back(ino, offset, data, stamps)
    }

    fn fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Result<()> {
        self.lock().fallocate(caller, ino, (offset, len), mode)
    }

    fn seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        self.lock().seek(ino, offset, whence)
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        // The sink may call back (to look entries up), so it runs without the lock, batch by batch.
        let mut from = cookie;
        loop {
            let batch = self.lock().listing(ino, from)?;
            let Some((last, _)) = batch.last() else { return Ok(()) };
            from = last.cookie;
            for (named, name) in &batch {
                let entry = DirEntry { ino: named.ino, kind: Some(named.kind), name, next: named.cookie };
                if !sink(entry) {
                    return Ok(());
                }
            }
        }
    }

    fn fsync(&self, ino: InodeNo, _data_only: bool) -> Result<()> {
        self.lock().node(ino).map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.lock().statfs())
    }

    fn getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.lock().getxattr(ino, name)
    }

    fn setxattr(
        &self,
        _caller: &Caller,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        mode: XattrSetMode,
    ) -> Result<()> {
        self.lock().setxattr(ino, name, value, mode)
    }

    fn listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        Ok(self.lock().node(ino)?.xattrs.keys().cloned().collect())
    }

    fn removexattr(&self, _caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.lock().removexattr(ino, name)
    }

    fn flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        Ok(self.lock().node(ino)?.flags)
    }

    fn set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.lock().set_flags(caller, ino, flags)
    }

    fn check(&self) -> Result<CheckReport> {
        Ok(self.lock().verify())
    }

    fn unmount(&self) -> Result<()> {
        self.lock().unmounted = true;
        Ok(())
    }
}
