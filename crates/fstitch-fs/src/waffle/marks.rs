//! `chattr +S` and `+D`: a change that was reported is on the medium.
//!
//! A sync is a commit, so nothing is kept of what belongs to which inode. Who changes an inode with such a mark is told once that there are
//! any, and looks from then on.

use fstitch_core::{Error, InodeFlags, InodeNo, Result, waiting};

use super::volume::Waffle;

/// The marks of an inode, and of a directory for its names.
pub(super) const MARKS: u32 = InodeFlags::SYNC | InodeFlags::DIRSYNC;

impl Waffle {
    /// Changes an inode other than its names; it is stable then, if it is marked.
    pub(super) fn of_inode<T>(&self, ino: InodeNo, change: impl FnOnce() -> Result<T>) -> Result<T> {
        self.marked(&[ino], InodeFlags::SYNC, change)
    }

    /// Changes names in directories; they are stable then, if one of those is marked.
    pub(super) fn of_names<T>(&self, dirs: &[InodeNo], change: impl FnOnce() -> Result<T>) -> Result<T> {
        self.marked(dirs, MARKS, change)
    }

    fn marked<T>(&self, inodes: &[InodeNo], marks: u32, change: impl FnOnce() -> Result<T>) -> Result<T> {
        if waiting::refuses() && self.has_mark(inodes, marks) {
            return Err(Error::WouldWait);
        }
        let done = change()?;
        if self.has_marks() && self.has_mark(inodes, marks) {
            self.make_stable()?;
        }
        Ok(done)
    }

    fn has_mark(&self, inodes: &[InodeNo], marks: u32) -> bool {
        let core = self.share();
        // One that is gone or damaged has none.
        inodes
            .iter()
            .any(|&ino| self.inode_of(&core.state, ino).is_ok_and(|(_, inode)| inode.flags & marks != 0))
    }
}
