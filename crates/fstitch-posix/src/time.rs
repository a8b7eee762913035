//! When reading changes the time of last access.

use fstitch_core::{InodeFlags, Timestamp};

use crate::Inode;

/// A relative access time is brought up to date after this many seconds even if nothing changed.
const RELATIME_SECS: i64 = 86_400;

/// When reading changes the time of last access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AtimePolicy {
    /// Never.
    NoAtime,
    /// When it is not later than the last change, or a day old.
    #[default]
    RelAtime,
    /// Always.
    StrictAtime,
}

impl AtimePolicy {
    /// Whether reading the inode now changes its time of last access.
    #[must_use]
    pub fn wants(self, inode: &Inode, now: Timestamp) -> bool {
        if inode.flags.has(InodeFlags::NOATIME) {
            return false;
        }
        let attr = &inode.attr;
        match self {
            Self::NoAtime => false,
            Self::StrictAtime => attr.atime != now,
            Self::RelAtime => {
                let behind = attr.atime <= attr.mtime || attr.atime <= attr.ctime;
                (behind || now.secs.saturating_sub(attr.atime.secs) >= RELATIME_SECS) && attr.atime != now
            }
        }
    }
}
