//! Making inodes and names, removing and moving them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::num::to_u64;
use fstitch_core::{
    Caller, Entry, Errno, Error, FileKind, InodeFlags, InodeNo, RenameMode, Result, Structure,
};
use fstitch_posix::acl::{self, Acl};
use fstitch_posix::make::{self as rules, Heritage, Make};
use fstitch_posix::name::expect_open_directory;
use fstitch_posix::remove::{check_link, check_remove, check_rmdir_name};
use fstitch_posix::table::Header;
use rustc_hash::FxHashSet;

use super::layout::inode::{INLINE, Inode};
use super::layout::{LINK_MAX, ROOT_INO, SYMLINK_MAX};
use super::state::{Class, State};
use super::volume::{InUse, SNAPSHOTS, Waffle, is_long};
use super::xattr;

/// A directory and a name in it.
pub(super) type Side<'a> = (InodeNo, &'a [u8]);

/// Whether a name is taken in a directory, by an inode or by what is in no tree.
pub(super) fn is_taken(state: &State, dir: &Inode, name: &[u8]) -> Result<bool> {
    Ok(dir.ino == ROOT_INO && name == SNAPSHOTS || state.find(state.head, dir, name)?.is_some())
}

impl Waffle {
    pub(super) fn do_symlink(
        &self,
        caller: &Caller,
        (parent, name): Side<'_>,
        target: &[u8],
    ) -> Result<Entry> {
        rules::check_target(target, SYMLINK_MAX)?;
        let kind = FileKind::Symlink;
        self.make(&Make { caller, parent, name: Some(name), kind, perm: 0o777, rdev: 0, target })
    }

    /// Makes an inode and its name.
    pub(super) fn make(&self, make: &Make<'_>) -> Result<Entry> {
        let (core, inode) = self.change(Class::Takes, make.target.len(), |state| {
            let dir = self.ours(state, make.parent)?;
            self.in_use(state, make.parent, 0)?;
            if let Some(name) = make.name {
                Self::check_name(&dir, name, Some(Errno::EXIST))?;
            }
            dir.seen().attr.expect_directory()?;
            let exists = make.name.map_or(Ok(false), |name| is_taken(state, &dir, name))?;
            rules::check_new_name(&dir.seen(), exists)?;
            rules::check_room(&dir.seen().attr, make.kind, LINK_MAX)?;
            let heritage = heritage(state, &dir, make)?;
            let ino = make_inode(state, make, &heritage)?;
            match make.name {
                Some(name) => {
                    state.add_name(dir.ino, name, ino, make.kind)?;
                    let links = u32::from(make.kind == FileKind::Directory);
                    touch_contents(state, dir.ino, |dir| dir.nlink = dir.nlink.saturating_add(links))?;
                }
                None => state.add_orphan(ino)?,
            }
            state.inode(state.head, ino)
        })?;
        let header = Header::made(InodeNo(inode.ino));
        let node = Arc::new(InUse { header, is_linkable: AtomicBool::new(make.name.is_none()) });
        node.header.set_orphan(make.name.is_none());
        drop(self.table().insert(node));
        drop(core);
        self.evict();
        Ok(Entry { attr: inode.attr(InodeNo(inode.ino)) })
    }

    pub(super) fn do_link(&self, ino: InodeNo, (parent, name): Side<'_>) -> Result<Entry> {
        let (core, (node, inode)) = self.change(Class::Takes, 0, |state| {
            let inode = self.ours(state, ino)?;
            let node = self.in_use(state, ino, 0)?;
            if inode.is_dir() {
                return Err(Errno::PERM.into());
            }
            let dir = self.ours(state, parent)?;
            Self::check_name(&dir, name, Some(Errno::EXIST))?;
            rules::check_new_name(&dir.seen(), is_taken(state, &dir, name)?)?;
            check_link(&inode.seen(), node.is_linkable.load(Ordering::Relaxed), LINK_MAX)?;
            if inode.nlink == 0 {
                state.remove_orphan(inode.ino)?;
            }
            state.add_name(dir.ino, name, inode.ino, inode.kind)?;
            touch_contents(state, dir.ino, |_| ())?;
            touch(state, inode.ino, |inode| inode.nlink = inode.nlink.saturating_add(1))?;
            Ok((node, state.inode(state.head, inode.ino)?))
        })?;
        node.header.set_orphan(false);
        node.is_linkable.store(false, Ordering::Relaxed);
        self.in_use(&core.state, ino, 1)?;
        Ok(Entry { attr: inode.attr(ino) })
    }

    /// Removes a name: of a directory, or of anything else if `kind` is none.
    pub(super) fn do_remove(&self, (parent, name): Side<'_>, kind: FileKind) -> Result<()> {
        let (core, lost) = self.change(Class::Gives, 0, |state| {
            let dir = self.ours(state, parent)?;
            if kind == FileKind::Directory {
                check_rmdir_name(name)?;
            }
            Self::check_name(&dir, name, Some(Errno::ISDIR))?;
            if dir.ino == ROOT_INO && name == SNAPSHOTS {
                return Err(Errno::BUSY.into());
            }
            let found = state.find(state.head, &dir, name)?.ok_or(Errno::NOENT)?;
            let victim = state.inode(state.head, found.ino)?;
            check_remove(&dir.seen(), &victim.seen(), kind, (false, || Ok(victim.size == 0)))?;
            state.remove_name(dir.ino, name)?;
            let links = u32::from(victim.is_dir());
            touch_contents(state, dir.ino, |dir| dir.nlink = dir.nlink.saturating_sub(links))?;
            self.lose(state, &victim)
        })?;
        let left = self.lost(lost);
        drop(core);
        self.settle_left(left);
        Ok(())
    }

    /// An inode loses a name. Without any, it goes unless somebody uses it.
    pub(super) fn lose(&self, state: &mut State, victim: &Inode) -> Result<Option<Lost>> {
        let left = if victim.is_dir() { 0 } else { victim.nlink.saturating_sub(1) };
        if left > 0 {
            touch(state, victim.ino, |inode| inode.nlink = left)?;
            return Ok(None);
        }
        let node = self.in_use(state, InodeNo(victim.ino), 0)?;
        let is_claimed = !is_long(victim) && self.table().claim_unreferenced(&node);
        if is_claimed {
            state.note_claim(Arc::clone(&node));
            state.free_inode(victim.ino)?;
        } else {
            touch(state, victim.ino, |inode| inode.nlink = 0)?;
            state.add_orphan(victim.ino)?;
        }
        Ok(Some(Lost { node, is_claimed }))
    }

    /// What is left to do when it has happened.
    pub(super) fn lost(&self, lost: Option<Lost>) -> Option<Arc<InUse>> {
        let Lost { node, is_claimed } = lost?;
        if is_claimed {
            self.table().remove(&node);
            return None;
        }
        node.header.set_orphan(true);
        Some(node)
    }

    /// A file without names that nobody uses goes: a long one, in several operations.
    fn settle_left(&self, left: Option<Arc<InUse>>) {
        if let Some(node) = left {
            self.settle(&node);
        }
    }

    pub(super) fn do_forget(&self, ino: InodeNo, count: u64) {
        if let Some(node) = self.table().release(ino, count)
            && node.header.is_orphan()
        {
            self.settle(&node);
        }
        self.evict();
    }

    /// Frees an inode that has neither names nor references, unless somebody else does. What cannot be freed now is when the volume is
    /// closed, or opened.
    fn settle(&self, node: &Arc<InUse>) {
        if !self.table().claim_orphan(node) {
            return;
        }
        let ino = node.header.ino().get();
        let freed = self.shorten(ino).and_then(|()| {
            self.change(Class::Gives, 0, |state| {
                state.remove_orphan(ino)?;
                state.free_inode(ino)
            })
        });
        match freed {
            Ok((core, ())) => {
                self.table().remove(node);
                drop(core);
            }
            Err(_) => node.header.unclaim(),
        }
    }

    pub(super) fn do_rename(&self, from: Side<'_>, to: Side<'_>, mode: RenameMode) -> Result<()> {
        let (core, lost) = self.change(Class::Gives, 0, |state| {
            let Some(moved) = super::moves::look(self, state, from, to, mode)? else { return Ok(None) };
            moved.carry_out(self, state, (from.1, to.1), mode)
        })?;
        let left = self.lost(lost);
        drop(core);
        self.settle_left(left);
        Ok(())
    }
}

/// An inode that has lost its last name.
pub(super) struct Lost {
    node: Arc<InUse>,
    is_claimed: bool,
}

/// Changes an inode, whose attributes have changed now.
pub(super) fn touch(state: &mut State, ino: u64, how: impl FnOnce(&mut Inode)) -> Result<()> {
    let now = state.now;
    state.change_inode(ino, |inode| {
        how(inode);
        inode.ctime = now;
    })
}

/// The same, and its contents.
pub(super) fn touch_contents(state: &mut State, ino: u64, how: impl FnOnce(&mut Inode)) -> Result<()> {
    let now = state.now;
    touch(state, ino, |inode| {
        how(inode);
        inode.mtime = now;
    })
}

/// Fails with `on_loop` if a directory is `dir` or one of its ancestors.
pub(super) fn refuse_loop(state: &State, inode: &Inode, dir: u64, on_loop: Errno) -> Result<()> {
    let mut at = dir;
    let mut seen = FxHashSet::default();
    while inode.is_dir() && at != ROOT_INO {
        if at == inode.ino {
            return Err(on_loop.into());
        }
        if !seen.insert(at) {
            let problem = "it is above itself";
            return Err(Error::corrupt(Structure::Inode(at), None, problem));
        }
        at = state.inode(state.head, at)?.parent;
    }
    if inode.is_dir() && inode.ino == ROOT_INO { Err(on_loop.into()) } else { Ok(()) }
}

/// Fails unless names may be added to a directory.
pub(super) fn expect_open(dir: &Inode) -> Result<()> {
    expect_open_directory(&dir.seen().attr)
}

/// Group, permissions, flags and access lists of a new inode.
fn heritage(state: &State, dir: &Inode, make: &Make<'_>) -> Result<Heritage> {
    let default = match make.kind {
        FileKind::Symlink => None,
        _ => match xattr::load(state, state.head, dir)?.get(acl::DEFAULT) {
            Some(value) => Acl::parse(value)?,
            None => None,
        },
    };
    let mut heritage = rules::heritage(&dir.seen(), make.caller, (make.kind, make.perm), default.as_ref());
    if matches!(make.kind, FileKind::Directory | FileKind::Regular) {
        heritage.flags.0 |= dir.flags & InodeFlags::COMPR;
    }
    Ok(heritage)
}

/// A new inode with all that it has but a name.
fn make_inode(state: &mut State, make: &Make<'_>, heritage: &Heritage) -> Result<u64> {
    let (ino, generation) = state.take_ino()?;
    let now = state.now;
    let mut inline = [0; INLINE];
    let is_inline = make.target.len() <= INLINE;
    if is_inline {
        inline[..make.target.len()].copy_from_slice(make.target);
    }
    let parent = if make.kind == FileKind::Directory { make.parent.get() } else { 0 };
    state.put_new(&Inode {
        nlink: rules::first_links(make.kind, make.name.is_some()),
        uid: make.caller.uid,
        gid: heritage.gid,
        rdev: make.rdev,
        generation,
        flags: heritage.flags.0,
        size: to_u64(make.target.len()),
        parent,
        inline,
        ..Inode::bare(ino, make.kind, heritage.perm, now)
    })?;
    if !is_inline {
        state.put(ino, 0, make.target)?;
    }
    if !heritage.xattrs.is_empty() {
        let xattrs = heritage.xattrs.iter().cloned().collect();
        xattr::store(state, ino, &xattrs)?;
    }
    Ok(ino)
}
