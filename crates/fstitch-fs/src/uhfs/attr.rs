//! Attributes and `chattr` flags.

use fstitch_core::{Attr, Caller, Errno, FileKind, InodeFlags, InodeNo, Result, SetAttr, SetTime};

use super::acl;
use super::node::State;
use super::volume::{ATTR_CHANGE_BLOCKS, Change};
use super::write::without_set_ids;
use super::{AttrChange, LowLevelFs, Uhfs};

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_getattr(&self, ino: InodeNo) -> Result<Attr> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok(self.low.attr(state.inode()))
    }

    pub(super) fn do_setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let change = self.change(ATTR_CHANGE_BLOCKS)?;
        let node = self.node(ino)?;
        self.check_setattr(&*node.read()?, set)?;
        if let Some(size) = set.size {
            self.truncate(&change, &node, caller, size)?;
            self.reserve_attributes(&change)?;
        }
        let mut state = node.write()?;
        self.change_attributes(caller, &mut state, set)?;
        Ok(self.low.attr(state.inode()))
    }

    fn reserve_attributes(&self, change: &Change<'_>) -> Result<()> {
        change.reserve(0, ATTR_CHANGE_BLOCKS)
    }

    /// What an immutable file refuses entirely, an append-only one allows only for times set to now.
    fn check_setattr(&self, state: &State<L::Inode>, set: &SetAttr) -> Result<()> {
        self.refuse_flags(state, InodeFlags::IMMUTABLE)?;
        let explicit = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let owned = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
        if owned || explicit(set.atime) || explicit(set.mtime) {
            self.refuse_flags(state, InodeFlags::APPEND)?;
        }
        Ok(())
    }

    /// Everything but the size. None of it orders anything.
    fn change_attributes(&self, caller: &Caller, state: &mut State<L::Inode>, set: &SetAttr) -> Result<()> {
        let attr = self.low.attr(state.inode());
        let mut perm = set.perm.map(|perm| perm & 0o7777);
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        if changes_owner && perm.is_none() && attr.kind != FileKind::Directory {
            let kept = without_set_ids(attr.perm);
            perm = (kept != attr.perm).then_some(kept);
        }
        if let Some(perm) = set.perm
            && attr.kind != FileKind::Symlink
        {
            self.change_acl_mode(caller, state, perm)?;
        }
        let other = self.low.attr(state.inode());
        let change = AttrChange {
            perm: perm.filter(|&perm| perm != other.perm),
            uid: set.uid.filter(|&uid| uid != attr.uid),
            gid: set.gid.filter(|&gid| gid != attr.gid),
            atime: set.atime.map(|time| self.time_of(time)),
            mtime: set.mtime.map(|time| self.time_of(time)),
            ctime: Some(set.ctime.unwrap_or_else(|| self.now())),
            ..AttrChange::default()
        };
        self.set_plain(state, &change)
    }

    /// `chmod` changes the access list too, if there is one.
    fn change_acl_mode(&self, caller: &Caller, state: &mut State<L::Inode>, perm: u16) -> Result<()> {
        let Some(mut list) = self.read_acl(state.inode(), acl::ACCESS)? else { return Ok(()) };
        let before = list.clone();
        list.chmod(perm);
        if list == before {
            return Ok(());
        }
        self.store_xattr(caller, state, acl::ACCESS, &list.encode())
    }

    pub(super) fn do_flags(&self, ino: InodeNo) -> Result<InodeFlags> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok(self.low.flags(state.inode()))
    }

    pub(super) fn do_set_flags(&self, caller: &Caller, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        let _change = self.change(ATTR_CHANGE_BLOCKS)?;
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let attr = self.low.attr(state.inode());
        let old = self.low.flags(state.inode());
        let restricted = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if caller.uid != 0 && (caller.uid != attr.uid || (old.0 ^ flags.0) & restricted != 0) {
            return Err(Errno::PERM.into());
        }
        let change = AttrChange { flags: Some(flags), ctime: Some(self.now()), ..AttrChange::default() };
        self.set_plain(&mut state, &change)
    }
}
