//! The calls of the papers, on the volume that a path is on.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;

use crate::call::{Call, Calls, GroupNo, OrderUsers};
use crate::fsync::Fsync;
use crate::group::Group;
use crate::kernel::{self, Kernel};

/// A mounted volume on which changes can be ordered. Numbers of groups are those of this process: threads share them,
/// and programs that it starts begin with copies.
#[derive(Debug)]
pub struct Volume {
    place: OwnedFd,
    calls: Box<dyn Calls>,
}

/// Whether an error says that there are no patchgroups here: another file system, or a volume that keeps no order.
#[must_use]
pub fn is_unsupported(error: &io::Error) -> bool {
    let unsupported = [Errno::NOTTY, Errno::NOSYS, Errno::OPNOTSUPP];
    Errno::from_io_error(error).is_some_and(|errno| unsupported.contains(&errno))
}

impl Volume {
    /// Opens the volume that a file or directory is on. It stays busy for umount until this is dropped.
    ///
    /// # Errors
    /// Those of open; one for which [`is_unsupported`] holds where there are no patchgroups.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::of(File::open(path)?.into())
    }

    /// The same for something that is open already, though not with `O_PATH`.
    ///
    /// # Errors
    /// One for which [`is_unsupported`] holds where there are no patchgroups.
    pub fn of(place: OwnedFd) -> io::Result<Self> {
        match kernel::features(place.as_fd()) {
            Ok(0) => Err(Errno::OPNOTSUPP.into()),
            Ok(_) => Ok(Self { place, calls: Box::new(Kernel) }),
            // So some file systems answer to numbers that they do not know.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                Err(Errno::NOTTY.into())
            }
            Err(error) => Err(error),
        }
    }

    /// Opens the volume that a file or directory is on; where there are no patchgroups, order is kept by waiting:
    /// [`Volume::depend`] and [`Volume::sync`] then make everything on that file system stable.
    ///
    /// # Errors
    /// Those of open; `EOPNOTSUPP` on file systems in user space, which the kernel does not tell to make all stable.
    pub fn open_or_fsync(path: impl AsRef<Path>) -> io::Result<Self> {
        let place = OwnedFd::from(File::open(path)?);
        match Self::of(place.try_clone()?) {
            Err(error) if is_unsupported(&error) => {
                let calls = Box::new(Fsync::on(place.as_fd())?);
                Ok(Self { place, calls })
            }
            opened => opened,
        }
    }

    #[cfg(test)]
    pub(crate) fn with(place: OwnedFd, calls: Box<dyn Calls>) -> Self {
        Self { place, calls }
    }

    /// A new group with guards.
    ///
    /// # Errors
    /// As of [`Volume::create`].
    pub fn group(&self) -> io::Result<Group<'_>> {
        Group::new(self)
    }

    /// Makes a group and returns its number.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE` and `ENOSPC` when this process, or all, have as many as there may be.
    pub fn create(&self) -> io::Result<GroupNo> {
        self.calls.create(self.place.as_fd())
    }

    /// Has all changes of `after` come after those of `before`, which is sealed by it.
    ///
    /// # Errors
    /// `EINVAL` once `after` was engaged or depended on; `EBUSY` while somebody has `before` engaged; `EBADF` for
    /// numbers of no group, here and below.
    pub fn depend(&self, after: GroupNo, before: GroupNo) -> io::Result<()> {
        self.call(Call::Depend { after, before })
    }

    /// Has this process's changes belong to the group from now on.
    ///
    /// # Errors
    /// `EBUSY` if it has it engaged; `EINVAL` once another group depends on it; `EMFILE` for too many at once.
    pub fn engage(&self, group: GroupNo) -> io::Result<()> {
        self.call(Call::Engage(group))
    }

    /// Has them belong to it no longer.
    ///
    /// # Errors
    /// `EINVAL` if it is not engaged.
    pub fn disengage(&self, group: GroupNo) -> io::Result<()> {
        self.call(Call::Disengage(group))
    }

    /// Has this process's changes of one file belong to the group, or of a directory, the names in it.
    ///
    /// # Errors
    /// As of [`Volume::engage`].
    pub fn engage_file(&self, group: GroupNo, file: BorrowedFd<'_>) -> io::Result<()> {
        self.same_volume(file)?;
        self.calls.call(file, Call::EngageFile(group))
    }

    /// Has them belong to it no longer.
    ///
    /// # Errors
    /// As of [`Volume::disengage`].
    pub fn disengage_file(&self, group: GroupNo, file: BorrowedFd<'_>) -> io::Result<()> {
        self.same_volume(file)?;
        self.calls.call(file, Call::DisengageFile(group))
    }

    /// Waits until the group's changes are on the medium, with all that they come after.
    ///
    /// # Errors
    /// As of fsync.
    pub fn sync(&self, group: GroupNo) -> io::Result<()> {
        self.call(Call::Sync(group))
    }

    /// Gives the number back; ends what is engaged in this process. The order that was asked for stays.
    ///
    /// # Errors
    /// `EBADF` for numbers of no group.
    pub fn close(&self, group: GroupNo) -> io::Result<()> {
        self.call(Call::Close(group))
    }

    /// Has fsync of this process, and of those that it starts, order and not wait. With a bound, what they change is made
    /// stable that often; at least 10 ms. Where order is kept by waiting, nothing changes.
    ///
    /// # Errors
    /// `EBUSY` where it holds already; `EINVAL` for a bound out of range; `EOPNOTSUPP` where the volume keeps no order.
    pub fn order_begin(&self, durable_every: Option<Duration>) -> io::Result<()> {
        self.begin_order(durable_every, false)
    }

    /// The same, and every change comes after the one before, for programs that never call fsync. Changes that are asked for
    /// at the same time have no order.
    ///
    /// # Errors
    /// As of [`Volume::order_begin`]; `EOPNOTSUPP` also where order is kept by waiting.
    pub fn order_every_change(&self, durable_every: Option<Duration>) -> io::Result<()> {
        self.begin_order(durable_every, true)
    }

    fn begin_order(&self, durable_every: Option<Duration>, every_change: bool) -> io::Result<()> {
        let millis = durable_every
            .map_or(Some(0), |bound| u32::try_from(bound.as_millis()).ok().filter(|&millis| millis > 0));
        let durable_every_ms = millis.ok_or_else(|| io::Error::from(Errno::INVAL))?;
        self.call(Call::OrderBegin { every_change, durable_every_ms })
    }

    /// Has fsync of this process wait again, and of those that it starts from now on.
    ///
    /// # Errors
    /// `EINVAL` if it did not begin.
    pub fn order_end(&self) -> io::Result<()> {
        self.call(Call::OrderEnd)
    }

    /// Who has ordered fsync on this volume.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn order_users(&self) -> io::Result<OrderUsers> {
        self.calls.order_users(self.place.as_fd())
    }

    fn call(&self, call: Call) -> io::Result<()> {
        self.calls.call(self.place.as_fd(), call)
    }

    /// Numbers mean other groups elsewhere.
    fn same_volume(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let device = |fd| rustix::fs::fstat(fd).map(|stat| stat.st_dev);
        if device(file)? == device(self.place.as_fd())? { Ok(()) } else { Err(Errno::XDEV.into()) }
    }
}

#[cfg(test)]
mod tests;
