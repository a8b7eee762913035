//! What workers and helpers share, and the operations that take more than one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::num::to_u64;
use fstitch_core::{
    Attr, Caller, Errno, Error, FallocateMode, FileSystem, InodeFlags, InodeNo, RenameMode, Result, SetAttr,
    SetTime, XattrSetMode,
};

use super::answer::ErrorLog;
use super::convert::{View, wide};
use super::privileges::{CAPABILITY, WithoutCapability};
use crate::scopes::{Order, Scopes, Work};

/// Shortening a file by more than this is done by a helper.
const LONG_TRUNCATION: u64 = 64 << 20;

/// How long a helper waits, step by step, for space that the kernel is about to give back.
const SPACE_PAUSES_MS: [u64; 6] = [1, 1, 2, 4, 8, 16];

/// A write of the page cache, whose author is not known.
const WRITE_CACHE: u32 = 1 << 0;
/// A write by somebody without `CAP_FSETID`.
const WRITE_KILL_SUIDGID: u32 = 1 << 2;

/// Shared between workers and helpers.
pub(super) struct Core {
    pub fs: Arc<dyn FileSystem>,
    pub view: View,
    /// Every change is made stable before it is answered.
    pub sync: bool,
    /// The kernel keeps writes back, and is right about lengths and times meanwhile.
    pub writes_late: bool,
    /// Set-id bits and capabilities are ours to take away; negotiated when the kernel greets.
    pub kills_privileges: AtomicBool,
    /// A name was removed since somebody last waited for space.
    pub removed: AtomicBool,
    pub errors: ErrorLog,
    pub without_capability: WithoutCapability,
    /// Which groups changes belong to.
    pub scopes: Arc<Scopes>,
}

/// A write, as it arrived.
#[derive(Clone, Copy)]
pub(super) struct Write<'a> {
    pub ino: InodeNo,
    pub offset: u64,
    pub data: &'a [u8],
    /// `FUSE_WRITE_…`.
    pub flags: u32,
    /// The thread that writes, 0 if nobody knows.
    pub tid: u32,
}

impl Write<'_> {
    /// Whether it comes from the kernel's page cache, which took it from whomever some time ago.
    pub(super) fn is_late(&self) -> bool {
        self.tid == 0 && self.flags & WRITE_CACHE != 0
    }
}

/// What must be stable before a write is answered.
pub(super) enum Durability {
    Volatile,
    Data,
    Everything,
    /// Only in order.
    Ordered(Order),
}

impl Core {
    pub(super) fn kills_privileges(&self) -> bool {
        self.kills_privileges.load(Ordering::Relaxed)
    }

    /// Remembers that a removed name may free space.
    pub(super) fn note_removal<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_ok() {
            self.removed.store(true, Ordering::Relaxed);
        }
        result
    }

    /// Tries again where space ran out: a removed file's blocks are free only when the kernel has forgotten its
    /// inode, and that message may still be on its way while the remover already writes the next file. Without
    /// a removal one short pause is enough. Only for helpers.
    pub(super) fn patiently<T>(&self, operation: impl Fn() -> Result<T>) -> Result<T> {
        let steps = if self.removed.swap(false, Ordering::Relaxed) { SPACE_PAUSES_MS.len() } else { 1 };
        let mut result = operation();
        for pause in &SPACE_PAUSES_MS[..steps] {
            if !lacks_space(&result) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(*pause));
            result = operation();
        }
        result
    }

    pub(super) fn write(&self, caller: &Caller, write: &Write<'_>) -> Result<u32> {
        // What comes late was looked at when it was written, and capabilities may have been set since.
        if self.kills_privileges() && !write.is_late() {
            let set_ids = write.flags & WRITE_KILL_SUIDGID != 0;
            self.drop_before_write(caller, write.ino, set_ids)?;
        }
        let written = if write.is_late() {
            self.write_late(write)?
        } else {
            self.fs.write(caller, write.ino, write.offset, write.data)?
        };
        Ok(u32::try_from(written).expect("requests are far shorter than 4 GiB"))
    }

    /// Writes what is left of a write that found too little space, of which `begun` is what came of its beginning. Only for
    /// helpers.
    pub(super) fn write_rest(
        &self,
        begun: Result<u32>,
        write: &Write<'_>,
        put: impl Fn(&Write<'_>) -> Result<u32>,
    ) -> Result<u32> {
        let mut done = begun.unwrap_or(0);
        while wide(done) < write.data.len() {
            let rest =
                Write { offset: write.offset + u64::from(done), data: &write.data[wide(done)..], ..*write };
            match self.patiently(|| put(&rest)) {
                Ok(more) if more > 0 => done += more,
                Err(error) if done == 0 => return Err(error),
                // What is written is written; the next call meets the same failure and reports it.
                _ => break,
            }
        }
        Ok(done)
    }

    pub(super) fn set_xattr(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<()> {
        let set = self.fs.setxattr(caller, ino, name, value, mode);
        if name == CAPABILITY {
            self.without_capability.forget(ino);
        }
        set
    }

    /// All of it or an error: the kernel does not look at how much of its pages was written. Where it keeps writes back it says
    /// itself when they were made.
    fn write_late(&self, write: &Write<'_>) -> Result<usize> {
        let stamps = !self.writes_late;
        let put = |from: usize| {
            let mut done = from;
            while done < write.data.len() {
                let at = write.offset + to_u64(done);
                match self.fs.write_back(write.ino, at, &write.data[done..], stamps) {
                    Ok(more) => done += more,
                    // A helper writes the rest.
                    Err(Error::WouldWait) if done > from => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(done)
        };
        let written: Result<usize> = put(0);
        if matches!(&written, Err(e) if e.errno() == Errno::PERM) {
            // Somebody changed what an append-only file has; what others appended came with it.
            let size = self.fs.getattr(write.ino)?.size;
            if let Ok(kept) = usize::try_from(size.saturating_sub(write.offset))
                && kept < write.data.len()
            {
                put(kept)?;
            }
        }
        written
    }

    /// What `O_SYNC` and `O_DSYNC` of the descriptor mean that a thread writes through.
    pub(super) fn durability(&self, tid: u32, open_flags: i32) -> Durability {
        let has = |flag: rustix::fs::OFlags| {
            let bits = i32::try_from(flag.bits()).unwrap_or(0);
            open_flags & bits == bits
        };
        let asked = if self.sync || has(rustix::fs::OFlags::SYNC) {
            Durability::Everything
        } else if has(rustix::fs::OFlags::DSYNC) {
            Durability::Data
        } else {
            return Durability::Volatile;
        };
        self.order(tid).map_or(asked, Durability::Ordered)
    }

    /// The order that stands for durability in what this thread asks for. Where it cannot be known, being durable is
    /// never wrong.
    pub(super) fn order(&self, tid: u32) -> Option<Order> {
        if self.sync { None } else { self.scopes.order_of(tid).unwrap_or(None) }
    }

    /// The groups of a write: where its author is not known, everybody's.
    pub(super) fn work_of_write(&self, write: &Write<'_>) -> Result<Work> {
        if write.is_late() {
            Ok(self.scopes.work_for_all())
        } else {
            self.scopes.work(write.tid, &[write.ino])
        }
    }

    /// Makes a file as stable as a write through its descriptor asks for.
    pub(super) fn settle(&self, ino: InodeNo, durability: &Durability) -> Result<()> {
        match durability {
            Durability::Volatile => Ok(()),
            Durability::Data => self.fs.fsync(ino, true),
            Durability::Everything => self.fs.fsync(ino, false),
            Durability::Ordered(order) => order.point(),
        }
    }

    /// Whether `set` shortens the file by so much that the workers should not do it.
    pub(super) fn is_long(&self, ino: InodeNo, set: &SetAttr) -> bool {
        let Some(size) = set.size else { return false };
        self.fs.getattr(ino).is_ok_and(|attr| attr.size.saturating_sub(size) > LONG_TRUNCATION)
    }

    /// With `kills_set_ids`, a new length takes set-id bits away.
    pub(super) fn setattr(
        &self,
        caller: &Caller,
        ino: InodeNo,
        set: &SetAttr,
        kills_set_ids: bool,
    ) -> Result<Attr> {
        let mut set = *set;
        if self.kills_privileges() {
            self.drop_before_setattr(caller, ino, &mut set, kills_set_ids)?;
        }
        (set.uid, set.gid) = self.view.owners.chown(set.uid, set.gid).ok_or(Errno::PERM)?;
        if let Some(told) = set.ctime {
            // The kernel does not know of changes by ioctl.
            set.ctime = Some(told.max(self.fs.getattr(ino)?.ctime));
        }
        match self.fs.setattr(caller, ino, &set) {
            Err(e) if e.errno() == Errno::PERM && self.writes_late => {
                self.set_times_of_appended(caller, ino, &set, e)
            }
            done => done,
        }
    }

    /// Append-only files take no times but the present one. Those of what was appended arrive as if somebody had set them: close(2)
    /// must not fail for them.
    fn set_times_of_appended(
        &self,
        caller: &Caller,
        ino: InodeNo,
        set: &SetAttr,
        refused: Error,
    ) -> Result<Attr> {
        let flags = self.fs.flags(ino)?;
        let is_of_now = set.ctime.is_some() && set.mtime == set.ctime.map(SetTime::At);
        if flags.has(InodeFlags::IMMUTABLE)
            || !flags.has(InodeFlags::APPEND)
            || !(is_of_now || is_times_of_writes(set))
        {
            return Err(refused);
        }
        self.fs.setattr(caller, ino, &SetAttr { mtime: Some(SetTime::Now), ctime: None, ..*set })
    }
}

/// Whether this is what a kernel that keeps writes back says of their times.
fn is_times_of_writes(set: &SetAttr) -> bool {
    set.ctime.is_some() && *set == SetAttr { mtime: set.mtime, ctime: set.ctime, ..SetAttr::default() }
}

pub(super) fn lacks_space<T>(result: &Result<T>) -> bool {
    matches!(result, Err(e) if e.errno() == Errno::NOSPC)
}

/// What the flags of `renameat2` mean.
pub(super) fn rename_mode(flags: u32) -> Result<RenameMode> {
    match flags {
        0 => Ok(RenameMode::Replace),
        1 => Ok(RenameMode::NoReplace),
        2 => Ok(RenameMode::Exchange),
        _ => Err(Errno::INVAL.into()),
    }
}

/// The operation for the mode bits of fallocate(2).
pub(super) fn fallocate_mode(bits: u32) -> Result<FallocateMode> {
    const KEEP_SIZE: u32 = 1;
    const PUNCH_HOLE: u32 = 2;
    const COLLAPSE: u32 = 8;
    const ZERO_RANGE: u32 = 0x10;
    const INSERT: u32 = 0x20;
    const PUNCH: u32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
    match bits {
        0 => Ok(FallocateMode::Allocate),
        KEEP_SIZE => Ok(FallocateMode::AllocateKeepSize),
        PUNCH => Ok(FallocateMode::PunchHole),
        ZERO_RANGE => Ok(FallocateMode::ZeroRange),
        ZERO_KEEP => Ok(FallocateMode::ZeroRangeKeepSize),
        // No kernel passes these on yet.
        COLLAPSE => Ok(FallocateMode::CollapseRange),
        INSERT => Ok(FallocateMode::InsertRange),
        _ => Err(Errno::OPNOTSUPP.into()),
    }
}
