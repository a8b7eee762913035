//! Attributes and `chattr` flags.

use fstitch_core::{Attr, Caller, Errno, FileKind, InodeFlags, InodeNo, Result, SetAttr, waiting};
use fstitch_posix::xattr::list_after_chmod;
use fstitch_posix::{acl, change};

use super::node::State;
use super::volume::ATTR_CHANGE_BLOCKS;
use super::{AttrChange, LowLevelFs, Uhfs};

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_getattr(&self, ino: InodeNo) -> Result<Attr> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok(self.low.attr(state.inode()))
    }

    pub(super) fn do_setattr(&self, caller: &Caller, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        // A new length makes room for itself.
        let change = self.change(0)?;
        let node = self.node(ino)?;
        {
            let state = node.read()?;
            change::check_setattr(self.low.flags(state.inode()), set)?;
            self.ask_to_sync(&state)?;
        }
        if let Some(size) = set.size {
            self.truncate(&change, &node, caller, size)?;
        }
        let owners = if set.uid.is_some() || set.gid.is_some() { self.low.owner_blocks() } else { 0 };
        let mut state = self.reserve_xattr(&change, &node, owners, |state| self.acl_len(state, set))?;
        self.change_attributes(caller, &mut state, set)?;
        Ok(self.low.attr(state.inode()))
    }

    /// The length of the access list that `set` changes, if it may lie where that takes room.
    fn acl_len(&self, state: &State<L::Inode>, set: &SetAttr) -> Result<Option<usize>> {
        let Some(perm) = set.perm else { return Ok(None) };
        if self.kind(state) == FileKind::Symlink || self.low.xattr_blocks(state.inode(), 1)? == 0 {
            return Ok(None);
        }
        let list = self.read_acl(state.inode(), acl::ACCESS)?;
        Ok(list.and_then(|list| list_after_chmod(&list, perm)).map(|list| list.len()))
    }

    /// Everything but the size. None of it orders anything.
    fn change_attributes(&self, caller: &Caller, state: &mut State<L::Inode>, set: &SetAttr) -> Result<()> {
        let attr = self.low.attr(state.inode());
        let perm = change::perm_after(&attr, set);
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
            is_limited: caller.uid != 0,
            ..AttrChange::default()
        };
        self.set_plain(state, &change)
    }

    /// `chmod` changes the access list too, if there is one.
    fn change_acl_mode(&self, caller: &Caller, state: &mut State<L::Inode>, perm: u16) -> Result<()> {
        let list = self.read_acl(state.inode(), acl::ACCESS)?;
        match list.and_then(|list| list_after_chmod(&list, perm)) {
            Some(list) => self.store_xattr(caller, state, acl::ACCESS, &list),
            None => Ok(()),
        }
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
        change::check_set_flags(caller, &self.seen(&state), flags)?;
        if flags.has(InodeFlags::SYNC) {
            waiting::ask()?;
        }
        let change = AttrChange { flags: Some(flags), ctime: Some(self.now()), ..AttrChange::default() };
        self.set_plain(&mut state, &change)
    }

    pub(super) fn do_project(&self, ino: InodeNo) -> Result<u32> {
        let node = self.node(ino)?;
        let state = node.read()?;
        Ok(self.low.project(state.inode()).unwrap_or(0))
    }

    pub(super) fn do_set_project(&self, caller: &Caller, ino: InodeNo, project: u32) -> Result<()> {
        let _change = self.change(ATTR_CHANGE_BLOCKS + self.low.owner_blocks())?;
        let node = self.node(ino)?;
        let mut state = node.write()?;
        let flags = self.low.flags(state.inode());
        change::check_set_flags(caller, &self.seen(&state), flags)?;
        if self.low.project(state.inode()).is_none() {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (project, is_limited) = (Some(project), caller.uid != 0);
        let change = AttrChange { project, is_limited, ctime: Some(self.now()), ..AttrChange::default() };
        self.set_plain(&mut state, &change)
    }
}
