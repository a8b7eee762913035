//! Removing, adding and moving names of inodes that exist.

use fstitch_core::{Errno, FileKind, InodeFlags, RenameMode, Result};

use crate::{FIXED, Inode};

/// What removing the name `.` or `..` as a directory answers.
///
/// # Errors
/// `EINVAL` for `.`, `ENOTEMPTY` for `..`.
pub fn check_rmdir_name(name: &[u8]) -> Result<()> {
    match name {
        b"." => Err(Errno::INVAL.into()),
        b".." => Err(Errno::NOTEMPTY.into()),
        _ => Ok(()),
    }
}

/// Whether a name of `victim` in `dir` may go, by `rmdir` if `kind` is a directory and else by `unlink`; `is_empty` looks into a
/// directory.
///
/// # Errors
/// `EPERM`, `ENOTDIR`, `EISDIR`, `EBUSY` for the root, `ENOTEMPTY`, and as `is_empty`.
pub fn check_remove(
    dir: &Inode,
    victim: &Inode,
    kind: FileKind,
    (is_root, is_empty): (bool, impl FnOnce() -> Result<bool>),
) -> Result<()> {
    dir.refuse(FIXED)?;
    victim.refuse(FIXED)?;
    match (kind == FileKind::Directory, victim.is_dir()) {
        (true, false) => Err(Errno::NOTDIR.into()),
        (false, true) => Err(Errno::ISDIR.into()),
        (true, true) if is_root => Err(Errno::BUSY.into()),
        (true, true) if !is_empty()? => Err(Errno::NOTEMPTY.into()),
        _ => Ok(()),
    }
}

/// Whether an inode may get another name; one without any only if it `is_linkable`.
///
/// # Errors
/// `EPERM`, `ENOENT`, `EMLINK`.
pub fn check_link(inode: &Inode, is_linkable: bool, link_max: u32) -> Result<()> {
    inode.refuse(FIXED)?;
    if inode.attr.nlink == 0 && !is_linkable {
        return Err(Errno::NOENT.into());
    }
    if inode.attr.nlink >= link_max { Err(Errno::MLINK.into()) } else { Ok(()) }
}

/// What a rename answers for `.` and `..` where the name goes.
#[must_use]
pub fn dots_as_target(mode: RenameMode) -> Errno {
    if mode == RenameMode::NoReplace { Errno::EXIST } else { Errno::BUSY }
}

/// Whether the name may go where something is, or is not.
///
/// # Errors
/// `EEXIST`, `ENOENT`.
pub fn check_target_exists(mode: RenameMode, exists: bool) -> Result<()> {
    match (mode, exists) {
        (RenameMode::NoReplace, true) => Err(Errno::EXIST.into()),
        (RenameMode::Exchange, false) => Err(Errno::NOENT.into()),
        _ => Ok(()),
    }
}

/// What a rename answers if the directory that goes away is an ancestor of where the other one is.
#[must_use]
pub fn target_is_ancestor(mode: RenameMode) -> Errno {
    if mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY }
}

/// The inodes of a rename.
#[derive(Clone, Copy, Debug)]
pub struct Renamed<'a> {
    /// The directories from which and into which the name moves.
    pub dirs: (&'a Inode, &'a Inode),
    /// What moves.
    pub source: &'a Inode,
    /// What has the name already.
    pub target: Option<&'a Inode>,
    /// What becomes of that.
    pub mode: RenameMode,
}

impl Renamed<'_> {
    /// Flags and kinds; `is_empty` looks into the target if that is a directory.
    ///
    /// # Errors
    /// `EPERM`, `ENOTDIR`, `EISDIR`, `ENOTEMPTY`, and as `is_empty`.
    pub fn check(&self, is_empty: impl FnOnce() -> Result<bool>) -> Result<()> {
        self.dirs.0.refuse(FIXED)?;
        self.source.refuse(FIXED)?;
        let Some(target) = self.target else {
            return self.dirs.1.refuse(InodeFlags::IMMUTABLE);
        };
        self.dirs.1.refuse(FIXED)?;
        target.refuse(FIXED)?;
        if self.mode == RenameMode::Exchange {
            return Ok(());
        }
        match (self.source.is_dir(), target.is_dir()) {
            (true, false) => Err(Errno::NOTDIR.into()),
            (false, true) => Err(Errno::ISDIR.into()),
            (true, true) if !is_empty()? => Err(Errno::NOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// A count of names that the move raises, for a moment or for good, must have room.
    ///
    /// # Errors
    /// `EMLINK`.
    pub fn check_link_room(&self, link_max: u32) -> Result<()> {
        if self.mode == RenameMode::Exchange && self.target.is_some() {
            return Ok(());
        }
        let raises_parent =
            self.source.is_dir() && self.dirs.0.attr.ino != self.dirs.1.attr.ino && self.target.is_none();
        let full = |inode: &Inode| inode.attr.nlink >= link_max;
        if full(self.source) || (raises_parent && full(self.dirs.1)) {
            return Err(Errno::MLINK.into());
        }
        Ok(())
    }
}
