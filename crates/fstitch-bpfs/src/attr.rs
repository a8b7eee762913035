//! Attributes and `chattr` flags.

use fstitch_core::{Attr, Caller, FileKind, InodeFlags, InodeNo, Result, SetAttr, SetTime};
use fstitch_posix::change as rules;

use crate::data::{drop_privileges, set_perm};
use crate::layout::{Field, SIZE_MAX, pack_flags, time_word};
use crate::volume::Bpfs;
use crate::xattr;

/// Flags that users may change.
const SETTABLE: u32 = InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC
    | InodeFlags::TOPDIR;

impl Bpfs {
    pub(crate) fn attr_of(&self, ino: InodeNo) -> Result<Attr> {
        let core = self.share();
        self.live(&core.state, ino)?;
        self.attr(&core.state, ino.get())
    }

    pub(crate) fn do_setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let mut core = self.alone()?;
        let inode = self.live(&core.state, ino)?;
        rules::check_setattr(inode.flags, set)?;
        if let Some(size) = set.size {
            rules::check_truncate(&inode.seen(1), size, SIZE_MAX)?;
        }
        let xattrs = match set.perm {
            Some(perm) if inode.kind != FileKind::Symlink => xattr::after_chmod(&core.state, &inode, perm)?,
            _ => None,
        };
        let mut change = core.change(self.now())?;
        if let Some(size) = set.size {
            if size < inode.size {
                change.cut_off(inode.ino, size);
            } else if size > inode.size {
                change.extend(inode.ino, size)?;
            }
            drop_privileges(&mut change, &inode, caller);
            change.touch_contents(inode.ino);
        }
        if let Some(xattrs) = xattrs {
            xattr::store(&mut change, inode.ino, &xattrs)?;
        }
        let now = change.now();
        // The permissions as a truncation has left them.
        let perm = rules::perm_after(&change.inode(inode.ino)?.attr(1, 0), set);
        if let Some(perm) = perm {
            set_perm(&mut change, &inode, perm);
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.unwrap_or(inode.uid), set.gid.unwrap_or(inode.gid));
            change.set_field(inode.ino, Field::Owner, u64::from(uid) | u64::from(gid) << 32);
        }
        let at = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let is_more = set.size.is_none() || set.ctime.is_some();
        if is_more {
            change.set_ctime(inode.ino, set.ctime.unwrap_or(now));
        }
        if let Some(time) = set.atime {
            change.set_time(inode.ino, Field::Atime, time_word(at(time)));
        }
        let is_cut = set.size.is_some() && set.ctime.is_some();
        if let Some(time) = set.mtime.or(is_cut.then_some(SetTime::Now)) {
            change.set_time(inode.ino, Field::Mtime, time_word(at(time)));
        }
        change.finish(|_| ())?;
        self.attr(&core.state, inode.ino)
    }

    pub(crate) fn do_flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        let core = self.share();
        Ok(self.live(&core.state, ino)?.flags)
    }

    pub(crate) fn do_set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        let mut core = self.alone()?;
        let inode = self.live(&core.state, ino)?;
        let wanted = InodeFlags(inode.flags.0 & !SETTABLE | flags.0 & SETTABLE);
        rules::check_set_flags(caller, &inode.seen(1), wanted)?;
        let allowed = match inode.kind {
            FileKind::Directory => SETTABLE,
            FileKind::Regular => SETTABLE & !(InodeFlags::DIRSYNC | InodeFlags::TOPDIR),
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        };
        let flags = inode.flags.0 & !SETTABLE | flags.0 & allowed;
        let mut change = core.change(self.now())?;
        let mode = change.field(inode.ino, Field::Mode);
        change.set_field(inode.ino, Field::Mode, mode & !(0xffff << 48) | u64::from(pack_flags(flags)) << 48);
        change.touch(inode.ino);
        change.finish(|_| ())
    }
}
