//! Attributes and `chattr` flags.

use fstitch_core::{Attr, Caller, FileKind, InodeFlags, InodeNo, Result, SetAttr, SetTime, Timestamp};
use fstitch_posix::change;

use crate::blocks::Blocks;
use crate::data::stamp;
use crate::extent::set_size;
use crate::inode::Inode;
use crate::layout::SIZE_MAX;
use crate::volume::MinixLld;
use crate::xattr;

/// Flags that users may change.
const SETTABLE: u32 = InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC
    | InodeFlags::TOPDIR;

impl MinixLld {
    /// An inode's attributes, as everybody sees them.
    pub(crate) fn attr_of(&self, ino: InodeNo) -> Result<Attr> {
        let _tree = self.share();
        let inode = self.live(self, ino)?;
        self.attr(&inode)
    }

    /// The same under the lock of the tree.
    pub(crate) fn attr(&self, inode: &Inode) -> Result<Attr> {
        let blocks = self.disk().list_len(inode.ino.get())?.saturating_sub(1);
        Ok(inode.attr(blocks, u32::try_from(self.block_size()).expect("a block has at most 64 KiB")))
    }

    pub(crate) fn do_setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        if let Some(size) = set.size {
            {
                let _tree = self.share();
                let inode = self.live(self, ino)?;
                change::check_setattr(inode.flags, set)?;
                change::check_truncate(&inode.seen(), size, SIZE_MAX)?;
            }
            self.shorten(caller, ino, size)?;
        }
        let mut change = self.change()?;
        let mut inode = self.live(&change, ino)?;
        change::check_setattr(inode.flags, set)?;
        let now = change.now();
        if let Some(size) = set.size {
            change::check_truncate(&inode.seen(), size, SIZE_MAX)?;
            set_size(&change, &mut inode, size)?;
            stamp(&mut inode, caller, now);
        }
        if let Some(perm) = set.perm
            && inode.kind != FileKind::Symlink
        {
            xattr::chmod(&mut change, &mut inode, perm)?;
        }
        set_plain(&mut inode, set, now);
        change.put(inode);
        let attr = self.attr_in(&change, ino)?;
        change.commit(|| attr)
    }

    pub(crate) fn do_flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        let _tree = self.share();
        Ok(self.live(self, ino)?.flags)
    }

    pub(crate) fn do_set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        let mut change = self.change()?;
        let inode = self.live(&change, ino)?;
        let wanted = InodeFlags(inode.flags.0 & !SETTABLE | flags.0 & SETTABLE);
        change::check_set_flags(caller, &inode.seen(), wanted)?;
        let allowed = match inode.kind {
            FileKind::Directory => SETTABLE,
            FileKind::Regular => SETTABLE & !(InodeFlags::DIRSYNC | InodeFlags::TOPDIR),
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        };
        let flags = InodeFlags(inode.flags.0 & !SETTABLE | flags.0 & allowed);
        let ctime = change.now();
        change.put(Inode { flags, ctime, ..inode });
        change.commit(|| ())
    }
}

/// Everything but the length.
fn set_plain(inode: &mut Inode, set: &SetAttr, now: Timestamp) {
    let at = |time: SetTime| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    inode.perm = change::perm_after(&inode.seen().attr, set).unwrap_or(inode.perm);
    inode.uid = set.uid.unwrap_or(inode.uid);
    inode.gid = set.gid.unwrap_or(inode.gid);
    inode.atime = set.atime.map_or(inode.atime, at);
    inode.mtime = set.mtime.map_or(inode.mtime, at);
    inode.ctime = set.ctime.unwrap_or(now);
}
