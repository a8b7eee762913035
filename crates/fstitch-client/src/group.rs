//! Groups that close themselves and engagements that end themselves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::call::GroupNo;
use crate::volume::Volume;

/// A group, closed when it is dropped: the order that was asked for stays.
#[derive(Debug)]
pub struct Group<'v> {
    volume: &'v Volume,
    no: GroupNo,
}

impl<'v> Group<'v> {
    pub(crate) fn new(volume: &'v Volume) -> io::Result<Self> {
        Ok(Self { volume, no: volume.create()? })
    }

    /// Its number, for [`Volume`]'s own calls and for programs that this process starts.
    #[must_use]
    pub fn no(&self) -> GroupNo {
        self.no
    }

    /// Has all changes of this group come after those of `before`, which changes nothing any more from now on.
    ///
    /// # Errors
    /// `EINVAL` once this group was engaged or depended on; `EBUSY` while somebody has `before` engaged; `EXDEV` for
    /// groups of different volumes.
    pub fn depend_on(&self, before: &Group<'_>) -> io::Result<()> {
        if !std::ptr::eq(self.volume, before.volume) {
            return Err(rustix::io::Errno::XDEV.into());
        }
        self.volume.depend(self.no, before.no)
    }

    /// Has the changes of this process on this volume belong to the group, in all its threads and in programs that it
    /// starts, until the guard is dropped.
    ///
    /// # Errors
    /// `EBUSY` if this process has it engaged; `EINVAL` once another group depends on it.
    #[must_use = "dropping it ends the engagement"]
    pub fn engage(&self) -> io::Result<Engaged<'_>> {
        self.volume.engage(self.no)?;
        Ok(Engaged { group: self, ended: false })
    }

    /// Has this process's changes of one file, or of the names in one directory, belong to the group until the guard is
    /// dropped. The file must be on this volume.
    ///
    /// # Errors
    /// As of [`Group::engage`].
    #[must_use = "dropping it ends the engagement"]
    pub fn engage_file<'g>(&'g self, file: &'g impl AsFd) -> io::Result<EngagedFile<'g>> {
        let file = file.as_fd();
        self.volume.engage_file(self.no, file)?;
        Ok(EngagedFile { group: self, file, ended: false })
    }

    /// Waits until the group's changes are on the medium, with all that they come after.
    ///
    /// # Errors
    /// As of fsync.
    pub fn sync(&self) -> io::Result<()> {
        self.volume.sync(self.no)
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // It can only fail where the mount is gone, and the group with it.
        let _ = self.volume.close(self.no);
    }
}

/// As long as it lives, what this process changes belongs to a group.
#[derive(Debug)]
pub struct Engaged<'g> {
    group: &'g Group<'g>,
    ended: bool,
}

impl Engaged<'_> {
    /// Ends the engagement now, and says if that failed.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn end(mut self) -> io::Result<()> {
        self.ended = true;
        self.group.volume.disengage(self.group.no)
    }
}

impl Drop for Engaged<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // A failure shows at the next step: nothing can depend on a group that is still engaged.
            let _ = self.group.volume.disengage(self.group.no);
        }
    }
}

/// As long as it lives, what this process changes of one file belongs to a group.
#[derive(Debug)]
pub struct EngagedFile<'g> {
    group: &'g Group<'g>,
    file: BorrowedFd<'g>,
    ended: bool,
}

impl EngagedFile<'_> {
    /// Ends the engagement now, and says if that failed.
    ///
    /// # Errors
    /// Those of the mount.
    pub fn end(mut self) -> io::Result<()> {
        self.ended = true;
        self.group.volume.disengage_file(self.group.no, self.file)
    }
}

impl Drop for EngagedFile<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // As of `Engaged`.
            let _ = self.group.volume.disengage_file(self.group.no, self.file);
        }
    }
}
