//! The rules of POSIX and Linux for each operation of a file system, without a medium: what a name may be, who inherits
//! what, which change is refused and with which errno, which bits a change takes away, which time moves. And the table of the
//! inodes that are in memory, which every file system needs that is mounted.
//!
//! ```text
//!   Uhfs (over patches)      file systems without a cache
//!        └──────────┬──────────────┘
//!                   ▼
//!   name    what a name may be              make     what a new inode is and inherits
//!   change  attributes, flags, contents     remove   unlinking, linking, renaming
//!   xattr   extended attributes and lists   acl      access lists        time   access times
//!   table   inodes in memory and the references to them
//! ```
//!
//! All of these are functions of values: an inode is an [`Inode`], its attributes and flags as they are now. Who calls holds the
//! locks that keep them so. The reference model of the tests knows the same rules a second time, on purpose; nothing else may.
//!
//! The one thing with a state of its own is the [`table`]: which inodes are in memory, how often the kernel refers to each, and who
//! frees one that has lost its last name. It knows neither what an inode is nor where it is kept.
#![forbid(unsafe_code)]

pub mod acl;
pub mod change;
pub mod make;
pub mod name;
pub mod remove;
pub mod table;
pub mod time;
pub mod xattr;
pub mod xattrs;

use fstitch_core::{Attr, Errno, FileKind, InodeFlags, Result};

/// An inode as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Its attributes.
    pub attr: Attr,
    /// Its `chattr` flags.
    pub flags: InodeFlags,
}

/// Flags under which names and contents stay as they are.
pub const FIXED: u32 = InodeFlags::IMMUTABLE | InodeFlags::APPEND;

impl Inode {
    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.attr.kind == FileKind::Directory
    }

    /// Fails if one of `flags` is set.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn refuse(&self, flags: u32) -> Result<()> {
        refuse(self.flags, flags)
    }
}

/// Fails if one of the flags `refused` is among `flags`.
///
/// # Errors
/// `EPERM`.
pub fn refuse(flags: InodeFlags, refused: u32) -> Result<()> {
    if flags.0 & refused == 0 { Ok(()) } else { Err(Errno::PERM.into()) }
}

/// Fails unless an inode is a regular file, whose contents can be read and written.
///
/// # Errors
/// `EISDIR`, `EINVAL`.
pub fn expect_regular(kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::ISDIR.into()),
        _ => Err(Errno::INVAL.into()),
    }
}
