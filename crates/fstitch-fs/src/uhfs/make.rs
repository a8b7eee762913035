//! Making inodes and names. The order: (parent's raised count) → inode, complete → name; and for another name
//! of an existing inode: raised count → name.

use std::sync::Arc;

use fstitch_core::{Caller, Entry, Errno, FileKind, InodeNo, Result, SetTime};
use fstitch_patch::PatchIds;
use fstitch_posix::acl::{self, Acl};
use fstitch_posix::make::{self as rules, Heritage, Make};
use fstitch_posix::remove::check_link;

use super::locks::Locked;
use super::node::{Node, Part, State};
use super::{AttrChange, LowLevelFs, NewInode, Uhfs};

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_mknod(
        &self,
        caller: &Caller,
        (parent, name): (InodeNo, &[u8]),
        mode: u16,
        rdev: u32,
    ) -> Result<Entry> {
        let (kind, rdev) = rules::node_kind(mode, rdev)?;
        self.make(&Make { caller, parent, name: Some(name), kind, perm: mode & 0o7777, rdev, target: b"" })
    }

    pub(super) fn do_symlink(
        &self,
        caller: &Caller,
        (parent, name): (InodeNo, &[u8]),
        target: &[u8],
    ) -> Result<Entry> {
        rules::check_target(target, self.low.limits().symlink_max)?;
        let kind = FileKind::Symlink;
        self.make(&Make { caller, parent, name: Some(name), kind, perm: 0o777, rdev: 0, target })
    }

    /// Makes an inode: checks, room for the name, parent's count (directories), the inode, the name.
    pub(super) fn make(&self, make: &Make<'_>) -> Result<Entry> {
        if let Some(name) = make.name {
            self.check_name(make.parent, name)?;
            self.refuse_dots(make.parent, name, Errno::EXIST)?;
        }
        let _change = self.change(self.low.name_blocks() + self.low.owner_blocks())?;
        let parent = self.node(make.parent)?;
        parent.header.note_use();
        let mut dir = parent.write().map_err(|_| Errno::NOENT)?;
        self.check_new_name(&dir, make.name)?;
        if make.name.is_some() {
            self.ask_to_sync_names(&dir)?;
        }
        rules::check_room(&self.low.attr(dir.inode()), make.kind, self.low.limits().dir_link_max)?;
        let heritage = self.heritage(&dir, make)?;
        if let Some(name) = make.name {
            self.low.prepare_name(make.caller, dir.inode_mut(), name)?;
        }
        let (child, ready) = self.make_inode(&mut dir, make, &heritage)?;
        let attr = self.low.attr(&child);
        let mut state = State::loaded(child, false);
        state.ready = ready;
        match make.name {
            Some(name) => self.name_new_inode(&mut dir, &mut state, name)?,
            None => state.linkable = true,
        }
        let node = self.table.insert(Arc::new(Node::made(attr.ino, state)));
        node.header.set_orphan(make.name.is_none());
        drop(dir);
        self.evict_idle();
        Ok(Entry { attr })
    }

    /// Fails unless the directory can take the new name.
    fn check_new_name(&self, dir: &State<L::Inode>, name: Option<&[u8]>) -> Result<()> {
        self.expect_directory(dir)?;
        let exists = match name {
            Some(name) => self.low.find_name(dir.inode(), name)?.is_some(),
            None => false,
        };
        rules::check_new_name(&self.seen(dir), exists)
    }

    /// The new inode, after the parent's raised count if it is a directory, whose `..` counts there.
    fn make_inode(
        &self,
        dir: &mut State<L::Inode>,
        make: &Make<'_>,
        heritage: &Heritage,
    ) -> Result<(L::Inode, PatchIds)> {
        let is_dir = make.kind == FileKind::Directory;
        let raised = if is_dir { self.add_links(dir, 1, &[])? } else { PatchIds::new() };
        let nlink = rules::first_links(make.kind, make.name.is_some());
        let new = NewInode {
            mode: make.kind.mode_bits() | heritage.perm,
            uid: make.caller.uid,
            gid: heritage.gid,
            nlink,
            rdev: make.rdev,
            flags: heritage.flags,
            now: self.now(),
            target: make.target,
            xattrs: &heritage.xattrs,
        };
        let made = self.low.make_inode(make.caller, dir.inode(), &new, &raised);
        if made.is_err() && is_dir {
            self.add_links(dir, -1, &[])?;
        }
        made
    }

    /// Names a new inode, or frees it again if that fails.
    fn name_new_inode(
        &self,
        dir: &mut State<L::Inode>,
        child: &mut State<L::Inode>,
        name: &[u8],
    ) -> Result<()> {
        let attr = self.low.attr(child.inode());
        let named = match self.low.add_name(dir.inode_mut(), name, attr.ino, attr.kind, &child.ready) {
            Ok(named) => named,
            Err(error) => {
                self.low.free_inode(child.inode_mut(), &[])?;
                if attr.kind == FileKind::Directory {
                    self.add_links(dir, -1, &[])?;
                }
                return Err(error);
            }
        };
        self.note(dir, Part::Contents, &named);
        self.note(child, Part::Names, &named);
        child.track.named_in(self.low.attr(dir.inode()).id());
        self.touch(dir, true)
    }

    /// Changes the inode's count of names by `delta`, after `befores`.
    pub(super) fn add_links(
        &self,
        state: &mut State<L::Inode>,
        delta: i32,
        befores: &[fstitch_patch::PatchId],
    ) -> Result<PatchIds> {
        let attr = self.low.attr(state.inode());
        let nlink = match (attr.kind, attr.nlink) {
            // A directory of more subdirectories than can be counted, which others have made: it has 1 for good.
            (FileKind::Directory, 1) => 1,
            // A count that the medium holds too low must not wrap around.
            (_, nlink) => nlink.saturating_add_signed(delta),
        };
        let change = AttrChange { nlink: Some(nlink), ..AttrChange::default() };
        let patches = self.low.set_attr(state.inode_mut(), &change, befores)?;
        self.note(state, Part::Attributes, &patches);
        Ok(patches)
    }

    /// Raises the count of names, for a name about to be added. Returns what that name must come after: the
    /// raised count and, if the inode is that young, its initialisation and its bit in the inode map.
    pub(super) fn raise_links(&self, state: &mut State<L::Inode>) -> Result<PatchIds> {
        let mut befores = self.add_links(state, 1, &[])?;
        befores.extend(self.readiness(state));
        Ok(befores)
    }

    /// What every name of the inode must come after, apart from its count of names.
    pub(super) fn readiness(&self, state: &mut State<L::Inode>) -> PatchIds {
        state.ready.retain(|patch| self.pending(*patch));
        state.ready.clone()
    }

    /// Group, permissions, flags and access lists of a new inode.
    fn heritage(&self, dir: &State<L::Inode>, make: &Make<'_>) -> Result<Heritage> {
        let default = match make.kind {
            FileKind::Symlink => None,
            _ => self.read_acl(dir.inode(), acl::DEFAULT)?,
        };
        Ok(rules::heritage(&self.seen(dir), make.caller, (make.kind, make.perm), default.as_ref()))
    }

    /// A list of the inode; `None` if it has none, or if the format has no lists.
    pub(super) fn read_acl(&self, inode: &L::Inode, name: &[u8]) -> Result<Option<Acl>> {
        match self.low.get_xattr(inode, name) {
            Ok(value) => Acl::parse(&value),
            Err(error) if [Errno::NODATA, Errno::OPNOTSUPP].contains(&error.errno()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn do_link(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (parent, name): (InodeNo, &[u8]),
    ) -> Result<Entry> {
        if self.kind(&*self.node(ino)?.read()?) == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        self.check_name(parent, name)?;
        self.refuse_dots(parent, name, Errno::EXIST)?;
        let change = self.change(self.low.name_blocks())?;
        let dir = self.node(parent)?;
        let node = self.node_with(ino, 1)?;
        let linked = self.link_locked(caller, &node, (parent, name), Locked::all(&[&dir, &node]));
        if linked.is_err() {
            self.do_forget_in(&change, ino, 1);
        }
        linked
    }

    /// Fails where a directory's project keeps the inode from having a name there.
    pub(super) fn expect_project(
        &self,
        locked: &Locked<'_, L::Inode>,
        dir: InodeNo,
        ino: InodeNo,
    ) -> Result<()> {
        let (dir, inode) = locked.both(dir, ino);
        if self.low.may_enter(dir.inode(), inode.inode()) { Ok(()) } else { Err(Errno::XDEV.into()) }
    }

    fn link_locked(
        &self,
        caller: &Caller,
        node: &Node<L::Inode>,
        (parent, name): (InodeNo, &[u8]),
        locked: Result<Locked<'_, L::Inode>>,
    ) -> Result<Entry> {
        let ino = node.ino();
        let mut locked = locked.map_err(|_| Errno::NOENT)?;
        self.check_new_name(locked.of(parent), Some(name))?;
        self.ask_to_sync_names(locked.of(parent))?;
        let state = locked.of(ino);
        let attr = self.low.attr(state.inode());
        check_link(&self.seen(state), state.linkable, self.low.limits().link_max)?;
        self.expect_project(&locked, parent, ino)?;
        self.low.prepare_name(caller, locked.of(parent).inode_mut(), name)?;
        let state = locked.of(ino);
        let before_name = self.raise_links(state)?;
        let dir = locked.of(parent);
        let named = self.low.add_name(dir.inode_mut(), name, ino, attr.kind, &before_name);
        if named.is_err() {
            self.add_links(locked.of(ino), -1, &[])?;
        }
        let named = named?;
        let dir = locked.of(parent);
        self.note(dir, Part::Contents, &named);
        self.touch(dir, true)?;
        let parent = self.low.attr(dir.inode()).id();
        let state = locked.of(ino);
        self.note(state, Part::Names, &named);
        state.track.named_in(parent);
        state.linkable = false;
        // Under the lock, so that it cannot hide that another thread takes the last name afterwards.
        node.header.set_orphan(false);
        self.touch(state, false)?;
        Ok(Entry { attr: self.low.attr(state.inode()) })
    }

    /// Sets the time of last attribute change, and with `contents` that of the contents too, to now. Times
    /// order nothing and wait for nothing.
    pub(super) fn touch(&self, state: &mut State<L::Inode>, contents: bool) -> Result<()> {
        let now = self.now();
        let change = AttrChange { mtime: contents.then_some(now), ctime: Some(now), ..AttrChange::default() };
        let patches = self.low.set_attr(state.inode_mut(), &change, &[])?;
        self.note(state, Part::Attributes, &patches);
        Ok(())
    }

    /// The point in time that `time` names.
    pub(super) fn time_of(&self, time: SetTime) -> fstitch_core::Timestamp {
        match time {
            SetTime::Now => self.now(),
            SetTime::At(at) => at,
        }
    }
}
