//! What every layer does alike: pass on everything but names.

use std::time::Duration;

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, FallocateMode, FileSystem, InodeFlags, InodeNo, RenameMode,
    Result, SeekFrom, SetAttr, StatFs, XattrSetMode,
};

/// What a layer may do otherwise than the file system below: everything that has to do with names. As [`FileSystem`] unless it says
/// otherwise.
///
/// # Errors
/// Those of [`FileSystem`].
pub trait Layer: Send + Sync {
    /// The file system below.
    fn below(&self) -> &dyn FileSystem;

    /// See [`FileSystem::lookup`].
    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.below().lookup(parent, name)
    }
    /// See [`FileSystem::mknod`].
    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        self.below().mknod(caller, parent, name, mode, rdev)
    }
    /// See [`FileSystem::mkdir`].
    fn mkdir(&self, caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry> {
        self.below().mkdir(caller, parent, name, perm)
    }
    /// See [`FileSystem::symlink`].
    fn symlink(&self, caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry> {
        self.below().symlink(caller, parent, name, target)
    }
    /// See [`FileSystem::link`].
    fn link(&self, caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        self.below().link(caller, ino, parent, name)
    }
    /// See [`FileSystem::unlink`].
    fn unlink(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.below().unlink(caller, parent, name)
    }
    /// See [`FileSystem::rmdir`].
    fn rmdir(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.below().rmdir(caller, parent, name)
    }
    /// See [`FileSystem::rename`].
    fn rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.below().rename(caller, from, to, mode)
    }
    /// See [`FileSystem::readdir`].
    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.below().readdir(ino, cookie, sink)
    }
    /// See [`FileSystem::cache_timeout`].
    fn cache_timeout(&self) -> Duration {
        self.below().cache_timeout()
    }
}

/// A layer as a file system.
pub struct Layered<L>(pub L);

macro_rules! passed_on {
    ($to:ident: $($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $kind),*) -> $result {
            passed_on!(@ $to, self).$name($($arg),*)
        })*
    };
    (@ layer, $self:ident) => { $self.0 };
    (@ below, $self:ident) => { $self.0.below() };
}

impl<L: Layer> FileSystem for Layered<L> {
    passed_on! { layer:
        lookup(parent: InodeNo, name: &[u8]) -> Result<Entry>;
        mknod(caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry>;
        mkdir(caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry>;
        symlink(caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry>;
        link(caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry>;
        unlink(caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()>;
        rmdir(caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()>;
        rename(caller: &Caller, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), mode: RenameMode) -> Result<()>;
        readdir(ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
        cache_timeout() -> Duration;
    }

    passed_on! { below:
        root() -> InodeNo;
        forget(ino: InodeNo, count: u64) -> ();
        getattr(ino: InodeNo) -> Result<Attr>;
        setattr(caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr>;
        readlink(ino: InodeNo) -> Result<Vec<u8>>;
        tmpfile(caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry>;
        read(ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize>;
        write(caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize>;
        write_back(ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize>;
        expect(ino: InodeNo, size: u64) -> Result<()>;
        share(caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> Result<u64>;
        fallocate(caller: &Caller, ino: InodeNo, offset: u64, len: u64, mode: FallocateMode) -> Result<()>;
        seek(ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64>;
        fsync(ino: InodeNo, data_only: bool) -> Result<()>;
        sync() -> Result<()>;
        statfs() -> Result<StatFs>;
        getxattr(ino: InodeNo, name: &[u8]) -> Result<Vec<u8>>;
        setxattr(caller: &Caller, ino: InodeNo, name: &[u8], value: &[u8], mode: XattrSetMode) -> Result<()>;
        listxattr(ino: InodeNo) -> Result<Vec<Vec<u8>>>;
        removexattr(caller: &Caller, ino: InodeNo, name: &[u8]) -> Result<()>;
        flags(ino: InodeNo) -> Result<InodeFlags>;
        set_flags(caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()>;
        project(ino: InodeNo) -> Result<u32>;
        set_project(caller: &Caller, ino: InodeNo, project: u32) -> Result<()>;
        group(call: GroupCall) -> Result<GroupId>;
        check() -> Result<CheckReport>;
        unmount() -> Result<()>;
        abandon(why: &str) -> Result<()>;
    }
}
