//! A volume that is opened anew while it is mounted: with what the kernel remembers of its inodes, whose numbers stay what they are
//! and whose references are carried over. Requests wait meanwhile.
//!
//! - Mounted for reading only, and `mount -o remount,rw` opens it for writing: its image was locked for reading, its journal replayed
//!   in memory, and nothing of it can be written. Where it cannot be opened for writing it is opened for reading as before.
//! - Mounted, and given another size: it is unmounted as far as the medium knows, grown like one that nobody uses, and opened again,
//!   whether it has grown or not. What does not outlive that (files that have lost their names and are still open, patchgroups) makes it
//!   refused before.

use std::sync::{Arc, RwLock, RwLockReadGuard};
use std::time::Duration;

use anyhow::{Context, Error as Refusal, Result as Outcome};
use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::waiting::Waiting;
use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, Errno, FallocateMode, FileSystem, InodeFlags, InodeNo,
    RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode,
};
use fstitch_formats as formats;

use crate::open::{Access, Volume};

/// How often it is tried to open a volume anew, and the pause between: what has just failed may fail for a while, and others may look at
/// it meanwhile. Ten seconds are what a disk takes to be reset, and less than most programs' patience; after them the volume is given up,
/// and nobody waits any more.
const OPENED_MAX: u32 = 40;
const PAUSE: Duration = Duration::from_millis(250);

/// Opens a volume anew, if not at once then a little later; the last error.
pub fn insist<T>(open: impl Fn() -> Outcome<T>) -> Outcome<T> {
    for _ in 1..OPENED_MAX {
        match open() {
            Ok(opened) => return Ok(opened),
            Err(error) => tracing::warn!("{}", crate::output::reasons(&error)),
        }
        std::thread::sleep(PAUSE);
    }
    open()
}

/// What became of a volume that was to be closed for a while.
pub enum Between<T> {
    /// It was not closed.
    Refused(Volume, Refusal),
    /// It is open again, and what was done meanwhile.
    Done(Volume, Outcome<T>),
    /// It could not be opened again, and everything fails.
    Gone(Refusal),
}

/// The file system of a mount, which may be replaced by the same one opened in another way.
pub struct Reopenable {
    root: InodeNo,
    cache_timeout: Duration,
    /// Held by operations, and by who opens the volume anew. What the kernel forgets passes meanwhile.
    turn: RwLock<()>,
    /// `None` when it could not be opened again, and everything fails.
    current: RwLock<Option<Arc<dyn formats::Volume>>>,
}

impl Reopenable {
    /// Begins with `fs`.
    pub fn new(fs: Arc<dyn formats::Volume>) -> Self {
        let (root, cache_timeout) = (fs.root(), fs.cache_timeout());
        Self { root, cache_timeout, turn: RwLock::new(()), current: RwLock::new(Some(fs)) }
    }

    /// Lets the volume not be opened anew as long as what it returns lives; waits while it is.
    fn turn(&self) -> RwLockReadGuard<'_, ()> {
        self.turn.try_read().unwrap_or_else(|_| {
            let _waiting = Waiting::begin();
            self.turn.read().unpoisoned()
        })
    }

    /// The file system as it is open now.
    fn current(&self) -> RwLockReadGuard<'_, Option<Arc<dyn formats::Volume>>> {
        self.current.try_read().unwrap_or_else(|_| {
            let _waiting = Waiting::begin();
            self.current.read().unpoisoned()
        })
    }

    /// Lets go of the file system: the mount has ended.
    pub fn close(&self) {
        *self.current.write().unpoisoned() = None;
    }

    /// Closes `volume` and returns what `open` opens when it is told to write, or else to read, with the reason.
    pub fn reopen(
        &self,
        volume: Volume,
        open: impl Fn(Access) -> Outcome<Volume>,
    ) -> Outcome<(Volume, Option<Refusal>)> {
        let _turn = self.turn.write().unpoisoned();
        let mut current = self.current.write().unpoisoned();
        let references = current.take().map(|fs| fs.references()).unwrap_or_default();
        // The lock on the image goes with the last of it.
        drop(volume);
        let (volume, refused) = match open(Access::ReadWrite) {
            Ok(volume) => (Ok(volume), None),
            Err(error) => (open(Access::ReadOnly), Some(error)),
        };
        let volume = volume.context("it could not even be opened for reading again; unmount it")?;
        volume.fs.take_over(&references);
        *current = Some(Arc::clone(&volume.fs));
        Ok((volume, refused))
    }

    /// Closes `volume` if nothing speaks against that, which is asked when no operation is under way, does `work` on its medium, and opens it again.
    pub fn between<T>(
        &self,
        volume: Volume,
        speaks_against: impl FnOnce(&dyn formats::Volume) -> Outcome<()>,
        work: impl FnOnce() -> Outcome<T>,
        open: impl Fn() -> Outcome<Volume>,
    ) -> Between<T> {
        let _turn = self.turn.write().unpoisoned();
        if let Err(why) = speaks_against(&*volume.fs) {
            return Between::Refused(volume, why);
        }
        let mut current = self.current.write().unpoisoned();
        let references = volume.fs.references();
        *current = None;
        // The lock on the image goes with the last of it.
        if let Err(error) = volume.fs.unmount().map_err(Refusal::from).and_then(|()| volume.finish()) {
            return Between::Gone(error.context("it could not be closed"));
        }
        let done = work();
        match insist(open) {
            Ok(volume) => {
                volume.fs.take_over(&references);
                *current = Some(Arc::clone(&volume.fs));
                Between::Done(volume, done)
            }
            Err(error) => Between::Gone(error.context("it could not be opened again")),
        }
    }
}

macro_rules! passed_on {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $kind),*) -> Result<$result> {
            let _turn = self.turn();
            self.current().as_ref().ok_or(Errno::IO)?.$name($($arg),*)
        })*
    };
}

impl FileSystem for Reopenable {
    passed_on! {
        lookup(parent: InodeNo, name: &[u8]) -> Entry;
        getattr(ino: InodeNo) -> Attr;
        setattr(caller: &Caller, ino: InodeNo, set: &SetAttr) -> Attr;
        readlink(ino: InodeNo) -> Vec<u8>;
        mknod(caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Entry;
        mkdir(caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Entry;
        symlink(caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Entry;
        link(caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Entry;
        tmpfile(caller: &Caller, parent: InodeNo, perm: u16) -> Entry;
        unlink(caller: &Caller, parent: InodeNo, name: &[u8]) -> ();
        rmdir(caller: &Caller, parent: InodeNo, name: &[u8]) -> ();
        rename(caller: &Caller, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), mode: RenameMode) -> ();
        read(ino: InodeNo, offset: u64, buf: &mut [u8]) -> usize;
        write(caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> usize;
        write_back(ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> usize;
        share(caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> u64;
        fallocate(caller: &Caller, ino: InodeNo, offset: u64, len: u64, mode: FallocateMode) -> ();
        seek(ino: InodeNo, offset: u64, whence: SeekFrom) -> u64;
        readdir(ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> ();
        expect(ino: InodeNo, size: u64) -> ();
        walk(path: &[u8]) -> Entry;
        fsync(ino: InodeNo, data_only: bool) -> ();
        sync() -> ();
        statfs() -> StatFs;
        getxattr(ino: InodeNo, name: &[u8]) -> Vec<u8>;
        setxattr(caller: &Caller, ino: InodeNo, name: &[u8], value: &[u8], mode: XattrSetMode) -> ();
        listxattr(ino: InodeNo) -> Vec<Vec<u8>>;
        removexattr(caller: &Caller, ino: InodeNo, name: &[u8]) -> ();
        flags(ino: InodeNo) -> InodeFlags;
        set_flags(caller: &Caller, ino: InodeNo, flags: InodeFlags) -> ();
        project(ino: InodeNo) -> u32;
        set_project(caller: &Caller, ino: InodeNo, project: u32) -> ();
        group(call: GroupCall) -> GroupId;
        check() -> CheckReport;
        abandon(why: &str) -> ();
        unmount() -> ();
    }

    fn root(&self) -> InodeNo {
        self.root
    }

    fn cache_timeout(&self) -> Duration {
        self.cache_timeout
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        if let Some(fs) = &*self.current() {
            fs.forget(ino, count);
        }
    }
}
