//! The file system of a mount whose policy has `full-check` or `remount`: it stays while what is below it is checked, or opened anew.
//!
//! ```text
//!   requests ──► Gate ──► Opening 1 (file system, cache, Era) ──► Shepherd ──► disk
//!                  │                 ✗ ended: nothing of it reaches the disk any more
//!                  └────► Opening 2 …
//! ```
//!
//! # States and transitions
//!
//! *open* → a remedy begins, and new operations wait → *open* again, on the same opening or a new one [`remedy`]; or *gone*, where everything answers
//! `EIO`, because the volume could not be opened again, or the mount has ended. Operations that were begun before are not waited for: one of them
//! may be what waits for the remedy. What they find out from an opening that has ended is believed by nobody: looking is done again, a change that
//! failed is as well, and one that seemed to succeed answers `EIO`.
//!
//! # Invariants
//!
//! - **G1.** Who was told that something is stable finds it: an opening ends without taking back what it has flushed.
//! - **G2.** Who changed something that was given up is told by the next fsync of that inode, once [`Owed`]. A change is noted after it was made and
//!   before it is looked whether its opening is still the one; and an opening is over before its notes are read. So none is missed.
//! - **G3.** A number that the kernel knows for an inode that is gone, or is another one now, answers `ESTALE` until the kernel has been told of the
//!   one that has it now, as another life of the number.
//! - **G4.** A remedy waits for no operation: only for the lock on the current opening, which is held as long as it takes to copy a pointer.
//!
//! Without a fault an operation costs that lock, shared, and a change a note of its inode.

mod owed;
mod remedy;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};
use std::time::Duration;

use anyhow::{Result as Outcome, ensure};
use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::waiting::Waiting;
use fstitch_core::{
    Attr, Caller, CheckReport, Consistency, DirEntry, Entry, Errno, Error, FallocateMode, FileSystem,
    InodeFlags, InodeNo, RenameMode, Result, SeekFrom, SetAttr, StatFs, SystemClock, XattrSetMode,
};
use fstitch_formats::{self as formats, Health, References};
use fstitch_fs::uhfs::Reclaimed;
use fstitch_fuse::Invalidator;
use fstitch_patch::Cache;
use fstitch_shepherd::{Era, Remedy, Shepherd};

use self::owed::{Owed, Touched};
use crate::open::{Options, Volume};
use crate::shepherd::Kept;

/// Openings that one operation may see the end of before it fails.
const ANEW_MAX: u32 = 8;
/// Notes that an opening keeps before everything is made stable, so that they can be forgotten.
const TOUCHED_MAX: usize = 1 << 16;

/// The volume as it is open for a while.
struct Opening {
    fs: Arc<dyn formats::Volume>,
    era: Arc<Era>,
    shepherd: Arc<Shepherd>,
    /// Another one has taken its place, or is about to.
    is_over: AtomicBool,
    /// What was changed since it was made stable as a whole.
    touched: Mutex<Touched>,
}

/// What it takes to open the volume anew.
struct Parts {
    name: String,
    kept: Arc<Kept>,
    options: Options,
    format: &'static dyn formats::Format,
    /// What a crash has left is reclaimed.
    reclaims: bool,
}

/// How often remedies were carried out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// The volume was checked while in use.
    pub full_checks: u64,
    /// It was opened anew.
    pub remounts: u64,
}

/// A file system that may be replaced by the same one opened anew.
pub struct Gate {
    root: InodeNo,
    /// `None` when everything fails.
    current: RwLock<Option<Arc<Opening>>>,
    /// What was given up, until those are told whom it concerns.
    owed: Owed,
    /// Held by a remedy; `None` when there will be none any more.
    parts: Mutex<Option<Parts>>,
    /// The mount is being ended, or the volume is gone: no remedy begins.
    has_ended: AtomicBool,
    /// When remedies began, in the last while.
    recent: Mutex<VecDeque<Duration>>,
    clock: SystemClock,
    full_checks: AtomicU64,
    remounts: AtomicU64,
    /// How the kernel is told, once it is there.
    kernel: OnceLock<Invalidator>,
}

/// What becomes of an operation whose opening has ended meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Does {
    /// It is done again.
    Looks,
    /// It is done again if it has failed, because then it has changed nothing.
    Changes,
    /// It has failed.
    Syncs,
}

impl Opening {
    fn new(fs: Arc<dyn formats::Volume>, era: Arc<Era>, kept: &Kept) -> Self {
        let shepherd = Arc::clone(kept.shepherd());
        Self { fs, era, shepherd, is_over: AtomicBool::new(false), touched: Mutex::default() }
    }

    fn touched(&self) -> MutexGuard<'_, Touched> {
        self.touched.lock().unpoisoned()
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }
}

/// Puts a gate before a volume whose policy needs one; from then on its faults ask for remedies.
///
/// # Errors
/// For what cannot outlive an opening.
pub fn before(
    volume: Volume,
    name: String,
    options: &Options,
    reclaims: bool,
) -> Outcome<(Volume, Option<Arc<Gate>>)> {
    let (Some(era), Some(kept)) = (volume.era.clone(), volume.kept.clone()) else {
        return Ok((volume, None));
    };
    ensure!(
        options.journal.is_none(),
        "{name}: the volume's policy has it opened anew after a fault, and its journal is on a device of its own, which cannot be; \
         `fstitch tune --policy` gives it another policy"
    );
    let format = fstitch_formats::by_name(volume.fs.format_name());
    ensure!(format.is_some(), "no format `{}`", volume.fs.format_name());
    let opening = Arc::new(Opening::new(Arc::clone(&volume.fs), Arc::clone(&era), &kept));
    let gate = Arc::new(Gate {
        root: volume.fs.root(),
        current: RwLock::new(Some(opening)),
        owed: Owed::default(),
        parts: Mutex::new(format.map(|format| Parts {
            name,
            kept: Arc::clone(&kept),
            options: options.clone(),
            format,
            reclaims,
        })),
        has_ended: AtomicBool::new(false),
        recent: Mutex::default(),
        clock: SystemClock::new(),
        full_checks: AtomicU64::new(0),
        remounts: AtomicU64::new(0),
        kernel: OnceLock::new(),
    });
    let remedy: Arc<dyn Remedy> = Arc::clone(&gate) as _;
    kept.attended_by(Arc::downgrade(&remedy));
    era.settled();
    let fs = Arc::clone(&gate) as Arc<dyn formats::Volume>;
    Ok((Volume { fs, era: None, ..volume }, Some(gate)))
}

impl Gate {
    /// The kernel can be told of what is not so any more.
    pub fn connect(&self, kernel: Invalidator) {
        self.kernel.get_or_init(|| kernel);
    }

    /// How often the volume was checked and opened anew.
    pub fn carried(&self) -> Carried {
        Carried {
            full_checks: self.full_checks.load(Ordering::Relaxed),
            remounts: self.remounts.load(Ordering::Relaxed),
        }
    }

    /// Lets go of the volume, when no remedy is under way any more.
    pub fn close(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        *self.parts.lock().unpoisoned() = None;
        *self.current.write().unpoisoned() = None;
    }

    /// The volume as it is open now; waits while a remedy is under way.
    fn enter(&self) -> Result<Arc<Opening>> {
        let current = match self.current.try_read() {
            Ok(current) => current,
            Err(std::sync::TryLockError::Poisoned(current)) => current.into_inner(),
            Err(std::sync::TryLockError::WouldBlock) => {
                let _waiting = Waiting::ask()?;
                self.current.read().unpoisoned()
            }
        };
        current.clone().ok_or_else(|| Errno::IO.into())
    }

    /// The same for who need not be right: nothing if the volume is gone.
    fn now(&self) -> Option<Arc<dyn formats::Volume>> {
        let current = self.current.read().unpoisoned();
        current.as_ref().map(|opening| Arc::clone(&opening.fs))
    }

    /// Does an operation that concerns some inodes.
    fn pass<T>(
        &self,
        does: Does,
        inodes: &[InodeNo],
        operation: impl FnMut(&Opening) -> Result<T>,
    ) -> Result<T> {
        let mut operation = operation;
        for _ in 0..ANEW_MAX {
            let opening = self.enter()?;
            self.owed.refuse_strangers(inodes)?;
            let done = operation(&opening);
            // There a change is made, and fails when it cannot be made stable: it cannot be done again.
            let is_made = does == Does::Changes && opening.fs.consistency() == Consistency::Sync;
            if !is_made && matches!(&done, Err(Error::Io { .. } | Error::Poisoned(_))) {
                // A remedy may be about to begin. One that nobody can wait for here is waited for by somebody else, who does it all again.
                let _waiting = Waiting::ask()?;
                opening.shepherd.await_remedy();
            }
            if !opening.is_over() || matches!(done, Err(Error::WouldWait)) {
                return done;
            }
            match (does, done) {
                (Does::Syncs, _) | (Does::Changes, Ok(_)) => return Err(Errno::IO.into()),
                (_, failed) if is_made => return failed,
                _ => {}
            }
        }
        Err(Errno::IO.into())
    }

    /// Does a change, and notes what it has touched, whether it has succeeded or not.
    fn change<T>(
        &self,
        inodes: &[InodeNo],
        names: &[(InodeNo, &[u8])],
        operation: impl Fn(&dyn formats::Volume) -> Result<T>,
    ) -> Result<T> {
        self.pass(Does::Changes, inodes, |opening| {
            let done = operation(&*opening.fs);
            let mut touched = opening.touched();
            inodes.iter().for_each(|ino| touched.inode(*ino));
            names.iter().for_each(|(parent, name)| touched.name(*parent, name));
            done
        })
    }

    /// The same for what makes an inode.
    fn make(
        &self,
        parent: InodeNo,
        name: Option<&[u8]>,
        operation: impl Fn(&dyn formats::Volume) -> Result<Entry>,
    ) -> Result<Entry> {
        let made = self.pass(Does::Changes, &[parent], |opening| {
            let made = operation(&*opening.fs);
            let mut touched = opening.touched();
            touched.inode(parent);
            if let Some(name) = name {
                touched.name(parent, name);
            }
            if let Ok(entry) = &made {
                touched.made(&entry.attr);
            }
            made
        })?;
        self.owed.is_new(made.attr.ino);
        Ok(self.owed.introduce(made))
    }
}

macro_rules! looks {
    ($($name:ident($ino:ident: InodeNo $(, $arg:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self, $ino: InodeNo $(, $arg: $kind)*) -> Result<$result> {
            self.pass(Does::Looks, &[$ino], |opening| opening.fs.$name($ino $(, $arg)*))
        })*
    };
}

macro_rules! changes {
    ($($name:ident($caller:ident: &Caller, $ino:ident: InodeNo $(, $arg:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self, $caller: &Caller, $ino: InodeNo $(, $arg: $kind)*) -> Result<$result> {
            self.change(&[$ino], &[], |fs| fs.$name($caller, $ino $(, $arg)*))
        })*
    };
}

macro_rules! makes {
    ($($name:ident($($arg:ident: $kind:ty),*);)*) => {
        $(fn $name(&self, caller: &Caller, parent: InodeNo, name: &[u8] $(, $arg: $kind)*) -> Result<Entry> {
            self.make(parent, Some(name), |fs| fs.$name(caller, parent, name $(, $arg)*))
        })*
    };
}

impl FileSystem for Gate {
    looks! {
        getattr(ino: InodeNo) -> Attr;
        readlink(ino: InodeNo) -> Vec<u8>;
        seek(ino: InodeNo, offset: u64, whence: SeekFrom) -> u64;
        getxattr(ino: InodeNo, name: &[u8]) -> Vec<u8>;
        listxattr(ino: InodeNo) -> Vec<Vec<u8>>;
        flags(ino: InodeNo) -> InodeFlags;
        project(ino: InodeNo) -> u32;
    }

    changes! {
        setattr(caller: &Caller, ino: InodeNo, set: &SetAttr) -> Attr;
        write(caller: &Caller, ino: InodeNo, offset: u64, data: &[u8]) -> usize;
        fallocate(caller: &Caller, ino: InodeNo, offset: u64, len: u64, mode: FallocateMode) -> ();
        setxattr(caller: &Caller, ino: InodeNo, name: &[u8], value: &[u8], mode: XattrSetMode) -> ();
        removexattr(caller: &Caller, ino: InodeNo, name: &[u8]) -> ();
        set_flags(caller: &Caller, ino: InodeNo, flags: InodeFlags) -> ();
        set_project(caller: &Caller, ino: InodeNo, project: u32) -> ();
    }

    makes! {
        mknod(mode: u16, rdev: u32);
        mkdir(perm: u16);
        symlink(target: &[u8]);
    }

    fn tmpfile(&self, caller: &Caller, parent: InodeNo, perm: u16) -> Result<Entry> {
        self.make(parent, None, |fs| fs.tmpfile(caller, parent, perm))
    }

    fn root(&self) -> InodeNo {
        self.root
    }

    fn lookup(&self, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let found = self.pass(Does::Looks, &[parent], |opening| opening.fs.lookup(parent, name))?;
        Ok(self.owed.introduce(found))
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let count = self.owed.forget(ino, count);
        if count > 0
            && let Some(fs) = self.now()
        {
            fs.forget(ino, count);
        }
    }

    fn link(&self, caller: &Caller, ino: InodeNo, parent: InodeNo, name: &[u8]) -> Result<Entry> {
        let linked =
            self.change(&[ino, parent], &[(parent, name)], |fs| fs.link(caller, ino, parent, name))?;
        Ok(self.owed.introduce(linked))
    }

    fn unlink(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.change(&[parent], &[(parent, name)], |fs| fs.unlink(caller, parent, name))
    }

    fn rmdir(&self, caller: &Caller, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.change(&[parent], &[(parent, name)], |fs| fs.rmdir(caller, parent, name))
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.change(&[from.0, to.0], &[from, to], |fs| fs.rename(caller, from, to, mode))
    }

    fn share(&self, caller: &Caller, from: (InodeNo, u64), to: (InodeNo, u64), len: u64) -> Result<u64> {
        self.change(&[from.0, to.0], &[], |fs| fs.share(caller, from, to, len))
    }

    fn read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.pass(Does::Looks, &[ino], |opening| opening.fs.read(ino, offset, buf))
    }

    fn write_back(&self, ino: InodeNo, offset: u64, data: &[u8], stamps: bool) -> Result<usize> {
        self.change(&[ino], &[], |fs| fs.write_back(ino, offset, data, stamps))
    }

    fn readdir(&self, ino: InodeNo, cookie: u64, sink: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        // What was listed stays listed: the rest is listed from there.
        let mut from = cookie;
        let mut is_full = false;
        self.pass(Does::Looks, &[ino], |opening| {
            if is_full {
                return Ok(());
            }
            opening.fs.readdir(ino, from, &mut |entry| {
                let next = entry.next;
                let is_taken = sink(entry);
                if is_taken {
                    from = next;
                }
                is_full |= !is_taken;
                is_taken
            })
        })
    }

    fn fsync(&self, ino: InodeNo, data_only: bool) -> Result<()> {
        let done = self.pass(Does::Syncs, &[ino], |opening| {
            let was = opening.touched().take(ino);
            let done = opening.fs.fsync(ino, data_only);
            if done.is_err() {
                opening.touched().put_back(ino, was);
            }
            done
        });
        self.owed.tell(ino, done)
    }

    fn sync(&self) -> Result<()> {
        let done = self.pass(Does::Syncs, &[], settle);
        self.owed.tell_all(done)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.pass(Does::Looks, &[], |opening| opening.fs.statfs())
    }

    /// Orders do not outlive an opening, and a program that relies on one is to hear of it at once.
    fn group(&self, _: GroupCall) -> Result<GroupId> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn check(&self) -> Result<CheckReport> {
        self.pass(Does::Looks, &[], |opening| opening.fs.check())
    }

    fn abandon(&self, why: &str) -> Result<()> {
        self.has_ended.store(true, Ordering::SeqCst);
        self.now().ok_or(Errno::IO)?.abandon(why)
    }

    fn unmount(&self) -> Result<()> {
        // What fails from now on is for the next mount to recover.
        self.has_ended.store(true, Ordering::SeqCst);
        let fs = self.now().ok_or(Errno::IO)?;
        // What was in use when it was reclaimed is not any more, so the volume can be left clean.
        if self.remounts.load(Ordering::Relaxed) > 0
            && fs.was_unclean()
            && let Err(error) = fs.reclaim()
        {
            tracing::warn!("reclaiming what was given up has failed: {error}");
        }
        fs.unmount()
    }
}

/// Makes all of an opening stable, so that its notes can be forgotten.
fn settle(opening: &Opening) -> Result<()> {
    // What is noted from now on may not be among what is made stable.
    let before = std::mem::take(&mut *opening.touched());
    let done = opening.fs.sync();
    if done.is_err() {
        opening.touched().add(before);
    }
    done
}

impl formats::Volume for Gate {
    fn format_name(&self) -> &'static str {
        self.now().map_or("", |fs| fs.format_name())
    }

    fn consistency(&self) -> Consistency {
        self.now().map_or(Consistency::Async, |fs| fs.consistency())
    }

    fn was_unclean(&self) -> bool {
        self.now().is_some_and(|fs| fs.was_unclean())
    }

    fn cache(&self) -> Option<Arc<Cache>> {
        self.now()?.cache()
    }

    fn start(&self) -> Result<()> {
        self.now().ok_or(Errno::IO)?.start()
    }

    fn health(&self) -> Health {
        match self.now() {
            Some(fs) => fs.health(),
            None => Health { failure: Some(Error::Poisoned(remedy::GONE.into())), ..Health::default() },
        }
    }

    fn reclaim(&self) -> Result<Reclaimed> {
        self.pass(Does::Looks, &[], |opening| opening.fs.reclaim())
    }

    fn let_go(&self) -> bool {
        let Ok(opening) = self.enter() else { return false };
        if opening.touched().len() > TOUCHED_MAX
            && let Err(error) = settle(&opening)
        {
            tracing::debug!("a sync to forget what was changed: {error}");
        }
        opening.fs.let_go()
    }

    fn references(&self) -> References {
        self.now().map(|fs| fs.references()).unwrap_or_default()
    }

    fn take_over(&self, references: &References) {
        if let Some(fs) = self.now() {
            fs.take_over(references);
        }
    }
}
