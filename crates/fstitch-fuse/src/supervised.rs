//! A file system whose panics end neither a worker nor the mount.
//!
//! ```text
//!   Sound ── a panic in an operation ──► Failed: changes EROFS, syncs EIO, reading goes on
//!     │                                     │
//!     └────────── shut down ────────────────┴──► ShutDown: everything EIO
//! ```
//!
//! A panic may leave the file system's memory half changed, so nothing of it may reach the medium any more:
//! [`FileSystem::abandon`] sees to that, and where a file system cannot abandon, it is not even asked to unmount.
//! What is on the medium is then what a crash would have left, which is what every format here is made for.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{
    Attr, Caller, CheckReport, DirEntry, Entry, Errno, Error, FallocateMode, FileSystem, InodeFlags, InodeNo,
    RenameMode, Result, SeekFrom, SetAttr, StatFs, XattrSetMode, waiting,
};

use crate::awake::Awake;

/// All is well.
const SOUND: u8 = 0;
/// An operation has panicked.
const FAILED: u8 = 1;
/// Somebody asked for an end as by a power cut.
const SHUT_DOWN: u8 = 2;

/// What an operation does, which decides what a failed file system answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Looks,
    Changes,
    Syncs,
}

/// A file system behind a wall that panics do not pass.
pub(crate) struct Supervised {
    fs: Arc<dyn FileSystem>,
    state: AtomicU8,
    /// Nothing more is written: the file system itself has said so.
    abandoned: AtomicBool,
    /// Why the state is no longer `SOUND`.
    reason: Mutex<Arc<str>>,
    /// Is told of every operation.
    awake: Option<Awake>,
}

impl Supervised {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, awake: Option<Awake>) -> Self {
        let reason = Mutex::new(Arc::from(""));
        Self { fs, state: AtomicU8::new(SOUND), abandoned: AtomicBool::new(false), reason, awake }
    }

    /// Forgets everything that is not stable, and answers `EIO` to everything from now on.
    ///
    /// # Errors
    /// What [`FileSystem::abandon`] answers; nothing has changed then.
    pub(crate) fn shut_down(&self, why: &str) -> Result<()> {
        if !self.abandoned.load(Ordering::Acquire) {
            self.abandon_quietly(why)?;
        }
        self.enter(SHUT_DOWN, why);
        tracing::warn!("{why}");
        Ok(())
    }

    /// Refuses what the state no longer allows.
    fn admit(&self, class: Class) -> Result<()> {
        match (self.state.load(Ordering::Acquire), class) {
            (SOUND, _) | (FAILED, Class::Looks) => Ok(()),
            (FAILED, Class::Changes) => Err(Errno::ROFS.into()),
            _ => Err(Errno::IO.into()),
        }
    }

    /// Does one operation; `what` says which, if it panics.
    fn guard<T>(
        &self,
        class: Class,
        operation: impl FnOnce() -> Result<T>,
        what: impl FnOnce() -> String,
    ) -> Result<T> {
        self.admit(class)?;
        if let Some(awake) = &self.awake {
            awake.note();
        }
        let operation = || waiting::checked(operation);
        catch_unwind(AssertUnwindSafe(operation)).unwrap_or_else(|panic| {
            self.fail(&format!("a panic in {}: {}", what(), message(&*panic)));
            Err(Errno::IO.into())
        })
    }

    /// After a panic: no change of memory may reach the medium any more.
    fn fail(&self, why: &str) {
        if self.state.load(Ordering::Acquire) != SOUND {
            // What the first panic left behind brings more of them; they add nothing.
            tracing::debug!("{why}");
            return;
        }
        tracing::error!("{why}; the volume accepts no more changes");
        self.enter(FAILED, why);
        if let Err(error) = self.abandon_quietly(why) {
            tracing::error!("the file system could not be abandoned: {error}");
        }
    }

    fn abandon_quietly(&self, why: &str) -> Result<()> {
        match catch_unwind(AssertUnwindSafe(|| self.fs.abandon(why))) {
            Ok(Ok(())) => {
                self.abandoned.store(true, Ordering::Release);
                Ok(())
            }
            Ok(refused) => refused,
            Err(_) => Err(Errno::IO.into()),
        }
    }

    /// States only go up, and the first reason stays.
    fn enter(&self, state: u8, why: &str) {
        let mut reason = self.reason.lock().unpoisoned();
        if self.state.fetch_max(state, Ordering::AcqRel) == SOUND {
            *reason = Arc::from(why);
        }
    }

    /// Ends the file system; one that could not abandon its memory is left alone.
    fn end(&self) -> Result<()> {
        let sound = self.state.load(Ordering::Acquire) == SOUND;
        let ended = if sound || self.abandoned.load(Ordering::Acquire) {
            catch_unwind(AssertUnwindSafe(|| self.fs.unmount())).unwrap_or_else(|panic| {
                self.fail(&format!("a panic while unmounting: {}", message(&*panic)));
                Err(Errno::IO.into())
            })
        } else {
            Err(Errno::IO.into())
        };
        match (ended, self.state.load(Ordering::Acquire)) {
            (ended, SOUND) | (ended @ Ok(()), SHUT_DOWN) => ended,
            _ => {
                let reason = self.reason.lock().unpoisoned();
                Err(Error::Poisoned(Arc::clone(&reason)))
            }
        }
    }
}

/// What a panic said.
pub(crate) fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// An argument, as a log shows it.
trait Shown {
    fn shown(&self) -> String;
}

macro_rules! shown_by_debug {
    ($($kind:ty)*) => {
        $(impl Shown for $kind {
            fn shown(&self) -> String {
                format!("{self:?}")
            }
        })*
    };
}

shown_by_debug!(GroupCall InodeNo u16 u32 u64 bool RenameMode FallocateMode SeekFrom XattrSetMode InodeFlags &SetAttr);

impl Shown for &Caller {
    fn shown(&self) -> String {
        format!("uid {}", self.uid)
    }
}

impl Shown for &[u8] {
    fn shown(&self) -> String {
        match self.len() {
            0..=255 => format!("\"{}\"", self.escape_ascii()),
            long => format!("{long} bytes"),
        }
    }
}

impl Shown for (InodeNo, u64) {
    fn shown(&self) -> String {
        format!("{} from byte {}", self.0.shown(), self.1)
    }
}

impl Shown for (InodeNo, &[u8]) {
    fn shown(&self) -> String {
        format!("{}/{}", self.0.shown(), self.1.shown())
    }
}

macro_rules! supervised {
    ($($class:ident $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($arg: $kind),*) -> Result<$result> {
            self.guard(
                Class::$class,
                || self.fs.$name($($arg),*),
                || {
                    let arguments: Vec<String> = vec![$(Shown::shown(&$arg)),*];
                    format!("{}({})", stringify!($name), arguments.join(", "))
                },
            )
        })*
    };
}

impl FileSystem for Supervised {
    supervised! {
        Looks lookup(parent: InodeNo, name: &[u8]) -> Entry;
        Looks getattr(ino: InodeNo) -> Attr;
        Changes setattr(caller: &Caller, ino: InodeNo, set: &SetAttr) -> Attr;
        Looks readlink(ino: InodeNo) -> Vec<u8>;
        Changes mknod(caller: &Caller, parent: InodeNo, name: &[u8], mode: u16, rdev: u32) -> Entry;
        Changes mkdir(caller: &Caller, parent: InodeNo, name: &[u8], perm: u16) -> Entry;
        Changes symlink(caller: &Caller, parent: InodeNo, name: &[u8], target: &[u8]) -> Entry;
        Changes link(caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Entry;
        Changes tmpfile(caller: &Caller, parent: InodeNo, perm: u16) -> Entry;
        Changes unlink(caller: &Caller, parent: InodeNo, name: &[u8]) -> ();
        Changes rmdir(caller: &Caller, parent: InodeNo, name: &[u8]) -> ();
        Changes rename(caller: &Caller, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), mode: RenameMode) -> ();
        Changes write(caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> usize;
        Changes write_back(ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> usize;
        Changes share(caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> u64;
        Changes fallocate(caller: &Caller, ino: InodeNo, offset: u64, len: u64, mode: FallocateMode) -> ();
        Looks seek(ino: InodeNo, offset: u64, whence: SeekFrom) -> u64;
        Syncs fsync(ino: InodeNo, data_only: bool) -> ();
        Syncs sync() -> ();
        Looks statfs() -> StatFs;
        Looks getxattr(ino: InodeNo, name: &[u8]) -> Vec<u8>;
        Changes setxattr(caller: &Caller, ino: InodeNo, name: &[u8], value: &[u8], mode: XattrSetMode) -> ();
        Looks listxattr(ino: InodeNo) -> Vec<Vec<u8>>;
        Changes removexattr(caller: &Caller, ino: InodeNo, name: &[u8]) -> ();
        Looks flags(ino: InodeNo) -> InodeFlags;
        Changes set_flags(caller: &Caller, ino: InodeNo, flags: InodeFlags) -> ();
        Looks project(ino: InodeNo) -> u32;
        Changes set_project(caller: &Caller, ino: InodeNo, project: u32) -> ();
        Changes group(call: GroupCall) -> GroupId;
        Looks check() -> CheckReport;
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = buf.len();
        self.guard(
            Class::Looks,
            || self.fs.read(ino, offset, buf),
            || format!("read({ino:?}, {offset}, {len} bytes)"),
        )
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let read = || self.fs.readdir(ino, cookie, sink);
        self.guard(Class::Looks, read, || format!("readdir({ino:?}, {cookie})"))
    }

    fn root(&self) -> InodeNo {
        self.fs.root()
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let forget = || {
            self.fs.forget(ino, count);
            Ok(())
        };
        // The last reference frees an unlinked inode, which is a change; where there are none any more, memory
        // goes with the process. A panic has been told, and nobody waits for an answer.
        let _ = self.guard(Class::Changes, forget, || format!("forget({ino:?}, {count})"));
    }

    fn abandon(&self, why: &str) -> Result<()> {
        self.shut_down(why)
    }

    fn unmount(&self) -> Result<()> {
        self.end()
    }

    fn cache_timeout(&self) -> Duration {
        self.fs.cache_timeout()
    }
}
