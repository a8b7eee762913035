//! A file system that counts what reaches it, to show what the kernel caches and what is made stable when,
//! and that breaks on demand.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::groups::{GroupCall, GroupId, with_engaged};
use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, Errno, FallocateMode, FileSystem, InodeFlags, InodeNo,
    RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode, waiting,
};
use fstitch_fs::model::Model;

use crate::table::Table;

#[derive(Debug, Default)]
pub struct Spy {
    model: Model,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    pub unmount_fails: AtomicBool,
    /// It can abandon what is not stable.
    pub abandons: AtomicBool,
    /// The operation that panics, if any.
    pub broken: Mutex<Option<&'static str>>,
    /// Writes would have to wait.
    pub waits: AtomicBool,
    pub groups: Mutex<Table>,
    /// The groups that files were made for, by name.
    made: Mutex<BTreeMap<Vec<u8>, Vec<GroupId>>>,
    /// The groups of writes, in their order.
    pub written: Mutex<Vec<Vec<GroupId>>>,
    /// Whose they are: user and thread.
    pub writers: Mutex<Vec<(u32, u32)>>,
}

impl Spy {
    pub fn count(&self, operation: &str) -> u64 {
        self.counts.lock().unwrap().get(operation).copied().unwrap_or(0)
    }

    /// The groups that a file was made for.
    pub fn made_for(&self, name: &str) -> Vec<GroupId> {
        self.made.lock().unwrap().get(name.as_bytes()).cloned().expect("the file was made")
    }

    fn note(&self, operation: &'static str) -> &Model {
        *self.counts.lock().unwrap().entry(operation).or_default() += 1;
        let broken = *self.broken.lock().unwrap();
        assert!(broken != Some(operation), "{operation} is broken on purpose");
        &self.model
    }
}

macro_rules! counted {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $kind),*) -> $result {
            self.note(stringify!($name)).$name($($arg),*)
        })*
    };
}

impl FileSystem for Spy {
    counted! {
        root() -> InodeNo;
        lookup(parent: InodeNo, name: &[u8]) -> Result<Entry>;
        forget(ino: InodeNo, count: u64) -> ();
        getattr(ino: InodeNo) -> Result<Attr>;
        setattr(caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr>;
        readlink(ino: InodeNo) -> Result<Vec<u8>>;
        mkdir(caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Result<Entry>;
        symlink(caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Result<Entry>;
        link(caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry>;
        tmpfile(caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry>;
        unlink(caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()>;
        rmdir(caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()>;
        rename(caller: &Caller, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), mode: RenameMode) -> Result<()>;
        read(ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize>;
        share(caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> Result<u64>;
        fallocate(caller: &Caller, ino: InodeNo, offset: u64, len: u64, mode: FallocateMode) -> Result<()>;
        seek(ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64>;
        readdir(ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()>;
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
        check() -> Result<CheckReport>;
    }

    fn mknod(&self, caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Result<Entry> {
        let groups = with_engaged(<[GroupId]>::to_vec);
        self.made.lock().unwrap().insert(name.to_vec(), groups);
        self.note("mknod").mknod(caller, parent, name, mode, rdev)
    }

    fn write(&self, caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> Result<usize> {
        if self.waits.load(Ordering::Relaxed) {
            self.note("write that may wait");
            waiting::ask()?;
        }
        self.written.lock().unwrap().push(with_engaged(<[GroupId]>::to_vec));
        self.writers.lock().unwrap().push((caller.uid, caller.tid));
        self.note("write").write(caller, ino, offset, data)
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        self.written.lock().unwrap().push(with_engaged(<[GroupId]>::to_vec));
        self.note("write_back").write_back(ino, offset, data, stamps)
    }

    fn group(&self, call: GroupCall) -> Result<GroupId> {
        self.groups.lock().unwrap().call(call)
    }

    fn abandon(&self, _why: &str) -> Result<()> {
        self.note("abandon");
        if self.abandons.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::OPNOTSUPP.into()) }
    }

    fn unmount(&self) -> Result<()> {
        self.note("unmount").unmount()?;
        if self.unmount_fails.load(Ordering::Relaxed) { Err(Errno::IO.into()) } else { Ok(()) }
    }
}
