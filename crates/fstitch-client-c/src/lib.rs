//! `libpatchgroup`: patchgroups for C programs, in the papers' names (\[D\] §2.3.1). `patchgroup.h` describes them.
//!
//! ```text
//!   pg_t ──► volume and number (this crate) ──► fstitch-client ──► ioctl
//! ```
//!
//! This crate owns what C lacks: one table of the volumes that a process has opened, and errno. It never has behaviour
//! that `fstitch-client` lacks. Its entry points carry unsafe attributes, because a C name may mean something else in
//! another library; what they get from C is checked here, as far as that is possible.
#![allow(unsafe_code)]

mod volumes;

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;

use volumes::{Place, errno, in_use, open, place, volume};

/// `PG_FALLBACK_FSYNC` of the header.
const FALLBACK_FSYNC: c_int = 1;

/// Sets errno, and makes an answer of C.
fn answer(result: io::Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| {
        let number = error.raw_os_error().unwrap_or(libc::EIO);
        // SAFETY: the C library gives every thread an errno that lives as long as the thread.
        unsafe { *libc::__errno_location() = number };
        -1
    })
}

/// Opens a volume and uses it.
///
/// # Safety
/// `path` is null or a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pg_open(path: *const c_char, flags: c_int) -> c_int {
    if path.is_null() {
        return answer(Err(errno(libc::EFAULT)));
    }
    // SAFETY: the caller's promise, above; it is not kept beyond this call.
    let path = unsafe { CStr::from_ptr(path) };
    let path = OsStr::from_bytes(path.to_bytes());
    answer(match flags {
        0 | FALLBACK_FSYNC => open(path, flags == FALLBACK_FSYNC),
        _ => Err(errno(libc::EINVAL)),
    })
}

/// Has groups made on this volume from now on; answers the one before.
#[unsafe(no_mangle)]
pub extern "C" fn pg_use(volume: c_int) -> c_int {
    answer(volumes::switch(volume))
}

/// Makes a group.
#[unsafe(no_mangle)]
pub extern "C" fn pg_create() -> c_int {
    answer(in_use().and_then(|(index, volume)| {
        let group = volume.create()?;
        Place { index, group }.number().inspect_err(|_| {
            // Nobody could name it.
            let _ = volume.close(group);
        })
    }))
}

/// Has all changes of `after` come after those of `before`.
#[unsafe(no_mangle)]
pub extern "C" fn pg_depend(after: c_int, before: c_int) -> c_int {
    answer(place(after).and_then(|after| {
        let before = place(before)?;
        if after.index != before.index {
            return Err(errno(libc::EXDEV));
        }
        volume(after.index)?.depend(after.group, before.group).map(|()| 0)
    }))
}

/// Has the process's changes belong to the group.
#[unsafe(no_mangle)]
pub extern "C" fn pg_engage(group: c_int) -> c_int {
    with(group, |volume, group| volume.engage(group))
}

/// Has them belong to it no longer.
#[unsafe(no_mangle)]
pub extern "C" fn pg_disengage(group: c_int) -> c_int {
    with(group, |volume, group| volume.disengage(group))
}

/// Has the process's changes of one file belong to the group.
#[unsafe(no_mangle)]
pub extern "C" fn pg_engage_fd(group: c_int, fd: c_int) -> c_int {
    with_file(fd, |fd| with(group, |volume, group| volume.engage_file(group, fd)))
}

/// Has them belong to it no longer.
#[unsafe(no_mangle)]
pub extern "C" fn pg_disengage_fd(group: c_int, fd: c_int) -> c_int {
    with_file(fd, |fd| with(group, |volume, group| volume.disengage_file(group, fd)))
}

/// Waits until the group's changes are on the medium.
#[unsafe(no_mangle)]
pub extern "C" fn pg_sync(group: c_int) -> c_int {
    with(group, |volume, group| volume.sync(group))
}

/// Gives the number back.
#[unsafe(no_mangle)]
pub extern "C" fn pg_close(group: c_int) -> c_int {
    with(group, |volume, group| volume.close(group))
}

/// Makes a call on the volume that a group is on.
fn with(
    group: c_int,
    call: impl FnOnce(&fstitch_client::Volume, fstitch_client::GroupNo) -> io::Result<()>,
) -> c_int {
    answer(place(group).and_then(|place| call(&*volume(place.index)?, place.group).map(|()| 0)))
}

/// Lends a descriptor of the caller's.
fn with_file(fd: c_int, call: impl FnOnce(BorrowedFd<'_>) -> c_int) -> c_int {
    if fd < 0 {
        return answer(Err(errno(libc::EBADF)));
    }
    // SAFETY: it is not negative. One that is closed, or closed meanwhile by another thread, is answered by the kernel
    // with EBADF, as everywhere in C; it is not kept beyond this call.
    call(unsafe { BorrowedFd::borrow_raw(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_errno() -> c_int {
        io::Error::last_os_error().raw_os_error().expect("a number of the system")
    }

    /// What C hands over is looked at before it is used: these calls touch nothing that they may not.
    #[test]
    fn what_is_wrong_is_told_by_errno() {
        // SAFETY: null is allowed.
        assert_eq!((unsafe { pg_open(std::ptr::null(), 0) }, last_errno()), (-1, libc::EFAULT));
        // SAFETY: the strings end with zero bytes.
        let open = |path: &CStr, flags| unsafe { pg_open(path.as_ptr(), flags) };
        assert_eq!((open(c"/there/is/no/such/path", 0), last_errno()), (-1, libc::ENOENT));
        assert_eq!((open(c"/", 7), last_errno()), (-1, libc::EINVAL));
        assert_eq!((pg_engage_fd(1, -1), last_errno()), (-1, libc::EBADF));
        assert_eq!((pg_sync(-1), last_errno()), (-1, libc::EBADF));
    }
}
