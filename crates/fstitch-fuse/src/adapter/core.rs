//! What workers and helpers share, and the operations that take more than one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::{Attr, Caller, Errno, FallocateMode, FileSystem, InodeNo, Result, SetAttr};
use fuser::{RenameFlags, WriteFlags};

use super::answer::ErrorLog;
use super::convert::View;
use super::privileges::WithoutCapability;

/// Shortening a file by more than this is done by a helper.
const LONG_TRUNCATION: u64 = 64 << 20;

/// Shared between workers and helpers.
pub(super) struct Core {
    pub fs: Arc<dyn FileSystem>,
    pub view: View,
    /// Every change is made stable before it is answered.
    pub sync: bool,
    /// Set-id bits and capabilities are ours to take away; negotiated when the kernel greets.
    pub kills_privileges: AtomicBool,
    pub errors: ErrorLog,
    pub without_capability: WithoutCapability,
}

/// A write, as it arrived.
pub(super) struct Write<'a> {
    pub ino: InodeNo,
    pub offset: u64,
    pub data: &'a [u8],
    pub flags: WriteFlags,
}

/// What must be stable before a write is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    Volatile,
    Data,
    Everything,
}

impl Core {
    pub(super) fn kills_privileges(&self) -> bool {
        self.kills_privileges.load(Ordering::Relaxed)
    }

    pub(super) fn write(&self, caller: &Caller, write: &Write<'_>) -> Result<u32> {
        if self.kills_privileges() {
            let set_ids = write.flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
            self.drop_before_write(caller, write.ino, set_ids)?;
        }
        let written = self.fs.write(caller, write.ino, write.offset, write.data)?;
        Ok(u32::try_from(written).expect("requests are far shorter than 4 GiB"))
    }

    /// `O_SYNC` and `O_DSYNC` of the descriptor that is written through.
    pub(super) fn durability(&self, open_flags: i32) -> Durability {
        let has = |flag: rustix::fs::OFlags| {
            let bits = i32::try_from(flag.bits()).unwrap_or(0);
            open_flags & bits == bits
        };
        if self.sync || has(rustix::fs::OFlags::SYNC) {
            Durability::Everything
        } else if has(rustix::fs::OFlags::DSYNC) {
            Durability::Data
        } else {
            Durability::Volatile
        }
    }

    /// Whether `set` shortens the file by so much that the workers should not do it.
    pub(super) fn is_long(&self, ino: InodeNo, set: &SetAttr) -> bool {
        let Some(size) = set.size else { return false };
        self.fs.getattr(ino).is_ok_and(|attr| attr.size.saturating_sub(size) > LONG_TRUNCATION)
    }

    /// `uid` is the caller's as the kernel names it, before the mapping of owners.
    pub(super) fn setattr(&self, caller: &Caller, uid: u32, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let mut set = *set;
        if self.kills_privileges() {
            self.drop_before_setattr(caller, uid, ino, &mut set)?;
        }
        (set.uid, set.gid) = self.view.owners.chown(set.uid, set.gid).ok_or(Errno::PERM)?;
        self.fs.setattr(caller, ino, &set)
    }
}

pub(super) fn rename_mode(flags: RenameFlags) -> Result<fstitch_core::RenameMode> {
    if flags.is_empty() {
        Ok(fstitch_core::RenameMode::Replace)
    } else if flags == RenameFlags::RENAME_NOREPLACE {
        Ok(fstitch_core::RenameMode::NoReplace)
    } else if flags == RenameFlags::RENAME_EXCHANGE {
        Ok(fstitch_core::RenameMode::Exchange)
    } else {
        Err(Errno::INVAL.into())
    }
}

/// The operation for the mode bits of fallocate(2).
pub(super) fn fallocate_mode(bits: i32) -> Result<FallocateMode> {
    const KEEP_SIZE: i32 = 1;
    const PUNCH_HOLE: i32 = 2;
    const ZERO_RANGE: i32 = 0x10;
    const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO_KEEP: i32 = ZERO_RANGE | KEEP_SIZE;
    match bits {
        0 => Ok(FallocateMode::Allocate),
        KEEP_SIZE => Ok(FallocateMode::AllocateKeepSize),
        PUNCH => Ok(FallocateMode::PunchHole),
        ZERO_RANGE => Ok(FallocateMode::ZeroRange),
        ZERO_KEEP => Ok(FallocateMode::ZeroRangeKeepSize),
        _ => Err(Errno::OPNOTSUPP.into()),
    }
}
