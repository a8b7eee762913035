//! System calls for which no safe wrapper exists.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use fstitch_core::num::to_u64;
use rustix::ioctl::{Getter, Setter, opcode};

use crate::plan::{Direction, Plan, Request};

/// `BLKGETSIZE64` of linux/fs.h: `_IOR(0x12, 114, size_t)`.
const BLKGETSIZE64: rustix::ioctl::Opcode = opcode::read::<usize>(0x12, 114);
/// `BLKDISCARD` of linux/fs.h: `_IO(0x12, 119)`, although it takes two numbers.
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Moves the blocks of one request and returns how many bytes were moved.
pub(crate) fn transfer(fd: BorrowedFd<'_>, plan: &Plan<'_>, request: Request) -> io::Result<usize> {
    let vectors = plan.vectors(request);
    let count = libc::c_int::try_from(vectors.len()).map_err(io::Error::other)?;
    let position = libc::off_t::try_from(plan.position(request)).map_err(io::Error::other)?;
    let moved = match plan.direction() {
        // SAFETY: the plan borrows the memory of every vector mutably for as long as it lives, and the
        // kernel is done with it when the call returns.
        Direction::Read => unsafe { libc::preadv(fd.as_raw_fd(), vectors.as_ptr(), count, position) },
        // SAFETY: as above; the kernel only reads the memory.
        Direction::Write => unsafe { libc::pwritev(fd.as_raw_fd(), vectors.as_ptr(), count, position) },
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// The size of a block device in bytes.
pub(crate) fn block_device_bytes(fd: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    // SAFETY: BLKGETSIZE64 stores one 64-bit number, which on the 64-bit machines we support is a `usize`.
    let bytes = unsafe { rustix::ioctl::ioctl(fd, Getter::<BLKGETSIZE64, usize>::new()) }?;
    Ok(to_u64(bytes))
}

/// Tells a block device that `len` bytes from `start` are not needed.
pub(crate) fn block_device_discard(fd: BorrowedFd<'_>, start: u64, len: u64) -> rustix::io::Result<()> {
    // SAFETY: BLKDISCARD reads two 64-bit numbers, start and length, from the address that Setter passes.
    unsafe { rustix::ioctl::ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([start, len])) }
}

/// Puts the calling thread into the scheduling class of those who get what nobody else wants (`SCHED_IDLE`). Anybody may enter it.
///
/// # Errors
/// When the kernel refuses.
pub fn enter_idle_class() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameters, which live until the call returns; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A range of bytes to lock: `len` 0 means up to the end, wherever that will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockRange {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) exclusive: bool,
}

impl LockRange {
    fn flock(self) -> io::Result<libc::flock> {
        let kind = if self.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
        Ok(libc::flock {
            l_type: libc::c_short::try_from(kind).map_err(io::Error::other)?,
            l_whence: libc::c_short::try_from(libc::SEEK_SET).map_err(io::Error::other)?,
            l_start: libc::off_t::try_from(self.start).map_err(io::Error::other)?,
            l_len: libc::off_t::try_from(self.len).map_err(io::Error::other)?,
            // The kernel demands zero for locks of open file descriptions.
            l_pid: 0,
        })
    }
}

/// Locks a range for the open file description, without waiting.
pub(crate) fn lock(fd: BorrowedFd<'_>, range: LockRange) -> io::Result<()> {
    let flock = range.flock()?;
    // SAFETY: F_OFD_SETLK reads one `struct flock`, which lives across the call.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const flock) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The process that holds a lock in the way of `range`. The kernel knows none for locks of open file
/// descriptions.
pub(crate) fn lock_owner(fd: BorrowedFd<'_>, range: LockRange) -> Option<u32> {
    let mut flock = range.flock().ok()?;
    // SAFETY: F_OFD_GETLK reads and overwrites one `struct flock`, which lives across the call.
    let answer = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut flock) };
    if answer != 0 || i32::from(flock.l_type) == libc::F_UNLCK {
        return None;
    }
    u32::try_from(flock.l_pid).ok().filter(|&pid| pid > 0)
}
