//! One writer at a time.
//!
//! Three nets, because each catches what the others cannot:
//! - a lock on the volume's bytes, held by the open file description: exclusive for writers, shared for
//!   readers. It ends when the last copy of the descriptor is closed, however the process ends, survives a
//!   fork, and leaves other partitions of the same image free. It keeps out other instances of us and every
//!   program that honours record locks (QEMU, NFS clients).
//! - an exclusive claim (`O_EXCL`) on block devices, which the kernel's mounts, RAID and LVM respect.
//! - a look at the kernel's loop devices, which write to an image file without any lock.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use fstitch_core::{Error, Result};
use rustix::fs::{FlockOperation, Mode as Permissions, OFlags, Stat};

use crate::medium::{Kind, Medium, open_error};
use crate::sys::LockRange;
use crate::{DiskOptions, sys, users};

/// What to do when another process is in the way.
const ADVICE_PROCESS: &str = "unmount it there or end that process, then try again";

/// Why a volume cannot be had.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    /// Whether who has it lets go of it without being asked: the kernel gives back the lock of a killed process some moments after it
    /// has gone, because requests under way hold the file, and a process that we have just forked has what we had until it runs its
    /// program.
    pub(crate) passes: bool,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { error, passes: false }
    }
}

/// Protects the volume until the medium's descriptor and the returned claim are closed.
pub(crate) fn acquire(
    medium: &Medium,
    options: &DiskOptions,
) -> std::result::Result<Option<OwnedFd>, Refusal> {
    let range =
        LockRange { start: options.offset, len: options.size.unwrap_or(0), exclusive: !options.read_only };
    if options.read_only {
        // Reading beside the kernel is lawful, though what is read may be in the middle of a change.
        lock_range(medium, range)?;
        return Ok(None);
    }
    match medium.kind {
        Kind::File => {
            refuse_loop_device(medium)?;
            lock_range(medium, range)?;
            Ok(None)
        }
        Kind::BlockDevice { .. } => {
            // The lock comes first: its message names the process.
            lock_range(medium, range)?;
            Ok(claim(medium)?)
        }
    }
}

fn lock_range(medium: &Medium, range: LockRange) -> std::result::Result<(), Refusal> {
    let Err(error) = sys::lock(medium.file.as_fd(), range) else { return Ok(()) };
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(locked_by_process(medium, range)),
        Some(libc::EINVAL | libc::ENOLCK | libc::EOPNOTSUPP | libc::ENOSYS) => lock_whole(medium, range),
        _ => Err(open_error(&medium.name, error).into()),
    }
}

/// Some file systems know only locks of whole files.
fn lock_whole(medium: &Medium, range: LockRange) -> std::result::Result<(), Refusal> {
    let operation = if range.exclusive {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    match rustix::fs::flock(&medium.file, operation) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(locked_by_process(medium, range)),
        Err(errno) => {
            let error = io::Error::from(errno);
            let problem = format!("its file system cannot lock it against a second writer ({error})");
            Err(open_error(&medium.name, io::Error::new(error.kind(), problem)).into())
        }
    }
}

fn locked_by_process(medium: &Medium, range: LockRange) -> Refusal {
    let owner = sys::lock_owner(medium.file.as_fd(), range)
        .or_else(|| users::process_with(&medium.stat, range, medium.file.as_raw_fd()));
    let name = owner.map_or_else(|| "another process".to_owned(), users::describe);
    Refusal {
        error: in_use(&medium.name, &format!("{name} has it open"), ADVICE_PROCESS),
        passes: owner.is_none_or(users::is_passing),
    }
}

fn refuse_loop_device(medium: &Medium) -> Result<()> {
    let Some(device) = users::loop_device_over(&medium.stat, medium.file.as_raw_fd()) else { return Ok(()) };
    let path = device.path;
    Err(match device.mount_point {
        Some(point) => in_use(
            &medium.name,
            &format!("the kernel has mounted it on {point} through {path}"),
            &format!("run `umount {point}` first, or open it read-only"),
        ),
        None => in_use(
            &medium.name,
            &format!("the kernel has attached it to {path}"),
            &format!("run `losetup -d {path}` first, or open it read-only"),
        ),
    })
}

/// Claims a block device exclusively, through a second descriptor, so that descriptors opened by somebody
/// else can be claimed too.
fn claim(medium: &Medium) -> Result<Option<OwnedFd>> {
    let path = format!("/proc/self/fd/{}", medium.file.as_raw_fd());
    match rustix::fs::open(path, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Permissions::empty()) {
        Ok(claim) => Ok(Some(claim)),
        Err(rustix::io::Errno::BUSY) => Err(busy_device(&medium.name, &medium.stat)),
        // A passed descriptor may be all that a sandboxed process may use of the device; the mount table
        // is then the only other witness.
        Err(_) => match users::mount_point(medium.stat.st_rdev) {
            Some(_) => Err(busy_device(&medium.name, &medium.stat)),
            None => Ok(None),
        },
    }
}

/// The refusal of a block device that somebody has claimed.
pub(crate) fn busy_device(name: &str, stat: &Stat) -> Error {
    if let Some(point) = users::mount_point(stat.st_rdev) {
        let who = format!("the kernel has mounted it on {point}");
        return in_use(name, &who, &format!("run `umount {point}` first, or open it read-only"));
    }
    let who = "the kernel or another process has claimed it";
    in_use(name, who, "look for a mounted partition, RAID, LVM or swap on it and stop that first")
}

fn in_use(name: &str, who: &str, advice: &str) -> Error {
    Error::Locked(format!("{name} is in use: {who}; {advice}"))
}
