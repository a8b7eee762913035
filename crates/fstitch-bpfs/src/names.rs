//! Making inodes and names, removing and moving them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::num::to_u64;
use fstitch_core::{Attr, Caller, Entry, Errno, FileKind, InodeNo, RenameMode, Result};
use fstitch_posix::acl::{self, Acl};
use fstitch_posix::make::{self as rules, Heritage, Make};
use fstitch_posix::name::expect_open_directory;
use fstitch_posix::remove::{
    Renamed, check_link, check_remove, check_rmdir_name, check_target_exists, dots_as_target,
    target_is_ancestor,
};
use fstitch_posix::table::Header;

use crate::change::Change;
use crate::dir::{self, Found, Index};
use crate::inode::Inode;
use crate::layout::{Field, LINK_MAX, ROOT, SYMLINK_MAX, pack_flags, time_word};
use crate::state::State;
use crate::tree;
use crate::volume::{Bpfs, Node};
use crate::xattr;

/// A directory and a name in it.
pub(crate) type Side<'a> = (InodeNo, &'a [u8]);

impl Bpfs {
    /// An inode's attributes.
    pub(crate) fn attr(&self, state: &State, ino: u64) -> Result<Attr> {
        Ok(state.inode(ino)?.attr(state.inodes.names(ino), state.inodes.blocks(ino)))
    }

    pub(crate) fn do_symlink(
        &self,
        caller: &Caller,
        (parent, name): Side<'_>,
        target: &[u8],
    ) -> Result<Entry> {
        rules::check_target(target, SYMLINK_MAX)?;
        let kind = FileKind::Symlink;
        self.make(&Make { caller, parent, name: Some(name), kind, perm: 0o777, rdev: 0, target })
    }

    /// Makes an inode: itself, which nobody can see, then its name.
    pub(crate) fn make(&self, make: &Make<'_>) -> Result<Entry> {
        let mut core = self.alone()?;
        let state = &core.state;
        let dir = self.live(state, make.parent)?;
        if let Some(name) = make.name {
            self.check_name(&dir, name, Some(Errno::EXIST))?;
        }
        dir.seen(0).attr.expect_directory()?;
        let index = self.index(state, &dir)?;
        let find = |name: &[u8]| dir::find(&state.gate, &dir, &index, name, self.seed());
        let seen = dir.seen(state.inodes.names(dir.ino));
        rules::check_new_name(&seen, make.name.is_some_and(|name| find(name).is_some()))?;
        rules::check_room(&seen.attr, make.kind, LINK_MAX)?;
        let heritage = heritage(state, &dir, make)?;
        let parent_names = seen.attr.nlink + u32::from(make.kind == FileKind::Directory);
        let mut change = core.change(self.now())?;
        let ino = make_inode(&mut change, make, &heritage)?;
        let mut added = None;
        if let Some(name) = make.name {
            added = Some(dir::add(&mut change, dir.ino, (&index, None), (name, self.seed()), ino)?);
            change.touch_contents(dir.ino);
            if make.kind == FileKind::Directory {
                change.note_names(dir.ino, parent_names);
            }
        }
        let names = rules::first_links(make.kind, make.name.is_some());
        change.finish(|state| {
            state.inodes.set_names(ino, names);
            if make.kind == FileKind::Directory {
                state.inodes.set_parent(ino, dir.ino);
                state.inodes.set_names(dir.ino, parent_names);
            }
        })?;
        if let Some(added) = added {
            self.update_names(dir.ino, index, |index| added.follow(index));
        }
        let is_linkable = AtomicBool::new(make.name.is_none());
        let node = Arc::new(Node { header: Header::made(InodeNo(ino)), is_linkable });
        node.header.set_orphan(make.name.is_none());
        drop(self.table().insert(node));
        Ok(Entry { attr: self.attr(&core.state, ino)? })
    }

    pub(crate) fn do_link(&self, ino: InodeNo, (parent, name): Side<'_>) -> Result<Entry> {
        let mut core = self.alone()?;
        let state = &core.state;
        let inode = self.live(state, ino)?;
        if inode.is_dir() {
            return Err(Errno::PERM.into());
        }
        let dir = self.live(state, parent)?;
        self.check_name(&dir, name, Some(Errno::EXIST))?;
        let index = self.index(state, &dir)?;
        let exists = dir::find(&state.gate, &dir, &index, name, self.seed()).is_some();
        rules::check_new_name(&dir.seen(state.inodes.names(dir.ino)), exists)?;
        let node = self.node(state, ino, 0)?;
        let names = state.inodes.names(inode.ino);
        check_link(&inode.seen(names), node.is_linkable.load(Ordering::Relaxed), LINK_MAX)?;
        let mut change = core.change(self.now())?;
        let added = dir::add(&mut change, dir.ino, (&index, None), (name, self.seed()), inode.ino)?;
        change.touch_contents(dir.ino);
        change.touch(inode.ino);
        change.note_names(inode.ino, names + 1);
        change.finish(|state| state.inodes.set_names(inode.ino, names + 1))?;
        self.update_names(dir.ino, index, |index| added.follow(index));
        node.header.set_orphan(false);
        node.is_linkable.store(false, Ordering::Relaxed);
        self.node(&core.state, ino, 1)?;
        Ok(Entry { attr: self.attr(&core.state, inode.ino)? })
    }

    /// Removes a name: of a directory, or of anything else if `kind` is none.
    pub(crate) fn do_remove(&self, (parent, name): Side<'_>, kind: FileKind) -> Result<()> {
        let mut core = self.alone()?;
        let state = &core.state;
        let dir = self.live(state, parent)?;
        if kind == FileKind::Directory {
            check_rmdir_name(name)?;
        }
        self.check_name(&dir, name, Some(Errno::ISDIR))?;
        let index = self.index(state, &dir)?;
        let found = dir::find(&state.gate, &dir, &index, name, self.seed()).ok_or(Errno::NOENT)?;
        let victim = state.inode(found.ino)?;
        let is_empty = || self.is_empty(state, &victim);
        let seen = victim.seen(state.inodes.names(victim.ino));
        check_remove(&dir.seen(state.inodes.names(dir.ino)), &seen, kind, (false, is_empty))?;
        let is_last = index.is_last() && tree::leaves(dir.size) > 1;
        let loss = self.loss(state, dir.ino, &victim)?;
        let claimed = loss.claim(self);
        let mut change = core.change(self.now()).inspect_err(|_| loss.unclaim(claimed))?;
        let removed = if is_last {
            // All that is left is room for names: without it there are none either.
            change.cut_off(dir.ino, 0);
            None
        } else {
            let removed = dir::remove(&mut change, &dir, &found, (name, self.seed()), true);
            Some(removed.inspect_err(|_| loss.unclaim(claimed))?)
        };
        change.touch_contents(dir.ino);
        loss.change(&mut change, claimed);
        if let Some((dir, names)) = loss.parent {
            change.note_names(dir, names);
        }
        change.finish(|state| loss.happened(state, claimed)).inspect_err(|_| loss.unclaim(claimed))?;
        match removed {
            Some(removed) => self.update_names(dir.ino, index, |index| removed.follow(index)),
            None => {
                drop(index);
                self.forget_names(dir.ino);
            }
        }
        self.lost(loss, claimed);
        Ok(())
    }

    pub(crate) fn is_empty(&self, state: &State, dir: &Inode) -> Result<bool> {
        Ok(self.index(state, dir)?.is_empty())
    }

    /// What it means that an inode has one name less, which was in `dir`.
    fn loss(&self, state: &State, dir: u64, inode: &Inode) -> Result<Loss> {
        let names = state.inodes.names(inode.ino);
        let left = if inode.is_dir() { 0 } else { names.saturating_sub(1) };
        let node = self.node(state, InodeNo(inode.ino), 0)?;
        let parent = inode.is_dir().then(|| (dir, state.inodes.names(dir).saturating_sub(1)));
        Ok(Loss { inode: *inode, left, node, parent })
    }

    /// What is left to do when it has happened.
    fn lost(&self, loss: Loss, claimed: bool) {
        if loss.left > 0 {
            return;
        }
        if loss.inode.is_dir() {
            self.forget_names(loss.inode.ino);
        }
        if claimed {
            self.table().remove(&loss.node);
        } else {
            loss.node.header.set_orphan(true);
        }
    }

    /// Frees an inode that has neither names nor references, unless somebody else does. Nothing of that is on the medium.
    pub(crate) fn settle(&self, node: &Arc<Node>) {
        let Ok(mut core) = self.alone() else { return };
        if !self.table().claim_orphan(node) {
            return;
        }
        let ino = node.header.ino().get();
        let freed = core.state.inode(ino).and_then(|inode| {
            let mut change = core.change(self.now())?;
            change.free_contents(&inode);
            change.finish(|state| state.inodes.leave(ino))
        });
        match freed {
            Ok(()) => {
                // Somebody may have looked for names in it when it had none any more.
                self.forget_names(ino);
                self.table().remove(node);
            }
            Err(_) => node.header.unclaim(),
        }
    }

    pub(crate) fn do_forget(&self, ino: InodeNo, count: u64) {
        if let Some(node) = self.table().release(ino, count)
            && node.header.is_orphan()
        {
            self.settle(&node);
        }
        self.evict();
    }

    pub(crate) fn do_rename(&self, from: Side<'_>, to: Side<'_>, mode: RenameMode) -> Result<()> {
        let mut core = self.alone()?;
        let Some(moved) = self.look(&core.state, from, to, mode)? else { return Ok(()) };
        let Move { dirs, indexes, source, target, loss, .. } = &moved;
        let (from_dir, to_dir) = (dirs.0.ino, dirs.1.ino);
        let is_exchange = mode == RenameMode::Exchange;
        let goes = |inode: &Inode| inode.is_dir() && from_dir != to_dir;
        let mut change = core.change(self.now())?;
        change.expect_entries();
        let mut moves = Vec::new();
        match target {
            Some((target, _)) => change.set_entry(to_dir, target.at, target.word(source.0.ino)),
            None => {
                let near = (from_dir == to_dir).then_some(source.0.at);
                let name = (to.1, self.seed());
                moves.push((to_dir, dir::add(&mut change, to_dir, (&indexes.1, near), name, source.0.ino)?));
            }
        }
        match target.as_ref().filter(|_| is_exchange) {
            Some((target, _)) => change.set_entry(from_dir, source.0.at, source.0.word(target.ino)),
            None => {
                let name = (from.1, self.seed());
                moves.push((from_dir, dir::remove(&mut change, &dirs.0, &source.0, name, false)?));
            }
        }
        let claimed = loss.as_ref().is_some_and(|loss| loss.claim(self));
        change.touch_contents(from_dir);
        if to_dir != from_dir {
            change.touch_contents(to_dir);
        }
        change.touch(source.1.ino);
        let names = moved.names(&core_names(&change), is_exchange);
        names.iter().for_each(|(dir, names)| change.note_names(*dir, *names));
        if let (true, Some((_, inode))) = (is_exchange, target) {
            change.touch(inode.ino);
        }
        if let Some(loss) = loss {
            loss.change(&mut change, claimed);
        }
        let follow = |state: &mut State| {
            if goes(&source.1) {
                state.inodes.set_parent(source.1.ino, to_dir);
            }
            if let (true, Some((_, inode))) = (is_exchange, target)
                && goes(inode)
            {
                state.inodes.set_parent(inode.ino, from_dir);
            }
            names.iter().for_each(|(dir, names)| state.inodes.set_names(*dir, *names));
            if let Some(loss) = loss {
                loss.inode_happened(state, claimed);
            }
        };
        if let Err(error) = change.finish(follow) {
            if let Some(loss) = loss {
                loss.unclaim(claimed);
            }
            return Err(error);
        }
        self.moved(moved, moves, claimed);
        Ok(())
    }

    /// What is known of names follows a move.
    fn moved(&self, moved: Move, moves: Vec<(u64, dir::Moved)>, claimed: bool) {
        let Move { indexes, loss, .. } = moved;
        drop(indexes);
        let mut names = self.names();
        moves.into_iter().for_each(|(dir, moved)| names.update(dir, |index| moved.follow(index)));
        drop(names);
        if let Some(loss) = loss {
            self.lost(loss, claimed);
        }
    }

    /// Whether a rename may be, and what it is about. `None`: there is nothing to do.
    fn look(&self, state: &State, from: Side<'_>, to: Side<'_>, mode: RenameMode) -> Result<Option<Move>> {
        let (from_dir, to_dir) = (self.live(state, from.0)?, self.live(state, to.0)?);
        to_dir.seen(0).attr.expect_directory()?;
        from_dir.seen(0).attr.expect_directory()?;
        self.check_name(&to_dir, to.1, Some(dots_as_target(mode)))?;
        self.check_name(&from_dir, from.1, Some(Errno::BUSY))?;
        let indexes = (self.index(state, &from_dir)?, self.index(state, &to_dir)?);
        let source =
            dir::find(&state.gate, &from_dir, &indexes.0, from.1, self.seed()).ok_or(Errno::NOENT)?;
        let target = dir::find(&state.gate, &to_dir, &indexes.1, to.1, self.seed());
        check_target_exists(mode, target.is_some())?;
        let source = (source, state.inode(source.ino)?);
        let target = match target {
            Some(found) => Some((found, state.inode(found.ino)?)),
            None => None,
        };
        if from.0 != to.0 {
            refuse_loop(state, &source.1, to_dir.ino, Errno::INVAL)?;
            if let Some((_, target)) = &target {
                refuse_loop(state, target, from_dir.ino, target_is_ancestor(mode))?;
            }
        }
        let seen = |inode: &Inode| inode.seen(state.inodes.names(inode.ino));
        expect_open_directory(&seen(&from_dir).attr)?;
        expect_open_directory(&seen(&to_dir).attr)?;
        if target.as_ref().is_some_and(|(target, _)| target.ino == source.0.ino) {
            return Ok(None);
        }
        let dirs = (&seen(&from_dir), &seen(&to_dir));
        let target_seen = target.as_ref().map(|(_, inode)| seen(inode));
        let renamed = Renamed { dirs, source: &seen(&source.1), target: target_seen.as_ref(), mode };
        renamed.check(|| target.as_ref().map_or(Ok(true), |(_, inode)| self.is_empty(state, inode)))?;
        renamed.check_link_room(LINK_MAX)?;
        let loss = match (&target, mode) {
            (Some((_, inode)), RenameMode::Replace) => Some(self.loss(state, to_dir.ino, inode)?),
            _ => None,
        };
        Ok(Some(Move { dirs: (from_dir, to_dir), indexes, source, target, loss }))
    }
}

/// How many names a directory has now.
fn core_names<'c>(change: &'c Change<'_>) -> impl Fn(u64) -> u32 + use<'c> {
    let inodes = &change.state().inodes;
    |ino| inodes.names(ino)
}

/// A rename that was looked into.
struct Move {
    dirs: (Inode, Inode),
    indexes: (Arc<Index>, Arc<Index>),
    source: (Found, Inode),
    target: Option<(Found, Inode)>,
    /// Of what had the name before.
    loss: Option<Loss>,
}

impl Move {
    /// The names of the two directories afterwards, where they are others: their subdirectories count.
    fn names(&self, now: &impl Fn(u64) -> u32, is_exchange: bool) -> Vec<(u64, u32)> {
        let (from, to) = (self.dirs.0.ino, self.dirs.1.ino);
        let is_dir = |inode: &Inode| i64::from(inode.is_dir());
        let source = is_dir(&self.source.1);
        let target = self.target.as_ref().map_or(0, |(_, inode)| is_dir(inode));
        let (mut in_from, mut in_to) = (-source, source - target);
        if is_exchange {
            in_from += target;
        }
        if from == to {
            in_from += in_to;
            in_to = 0;
        }
        let new = |dir: u64, delta: i64| {
            let names = i64::from(now(dir)) + delta;
            (delta != 0).then(|| (dir, u32::try_from(names).unwrap_or(0)))
        };
        new(from, in_from).into_iter().chain(new(to, in_to)).collect()
    }
}

/// An inode loses a name.
struct Loss {
    inode: Inode,
    left: u32,
    node: Arc<Node>,
    /// The directory that has one subdirectory less, and its names then.
    parent: Option<(u64, u32)>,
}

impl Loss {
    /// What it means for the inode: it goes with its blocks if it was claimed.
    fn change(&self, change: &mut Change<'_>, claimed: bool) {
        if claimed {
            change.free_contents(&self.inode);
            return;
        }
        if self.left > 0 {
            change.touch(self.inode.ino);
            change.note_names(self.inode.ino, self.left);
        } else {
            change.touch_unnamed(self.inode.ino);
        }
    }

    /// Whether the inode goes with its last name.
    fn claim(&self, fs: &Bpfs) -> bool {
        self.left == 0 && fs.table().claim_unreferenced(&self.node)
    }

    fn unclaim(&self, claimed: bool) {
        if claimed {
            self.node.header.set_orphan(false);
            self.node.header.unclaim();
        }
    }

    fn happened(&self, state: &mut State, claimed: bool) {
        if let Some((dir, names)) = self.parent {
            state.inodes.set_names(dir, names);
        }
        self.inode_happened(state, claimed);
    }

    fn inode_happened(&self, state: &mut State, claimed: bool) {
        state.inodes.set_names(self.inode.ino, self.left);
        if claimed {
            state.inodes.leave(self.inode.ino);
        }
    }
}

/// Fails with `on_loop` if a directory is `dir` or one of its ancestors.
fn refuse_loop(state: &State, inode: &Inode, dir: u64, on_loop: Errno) -> Result<()> {
    let mut at = dir;
    while inode.is_dir() {
        if at == inode.ino {
            return Err(on_loop.into());
        }
        match state.inodes.parent(at) {
            Some(parent) if at != ROOT.get() => at = parent,
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Group, permissions, flags and access lists of a new inode.
fn heritage(state: &State, dir: &Inode, make: &Make<'_>) -> Result<Heritage> {
    let default = match make.kind {
        FileKind::Symlink => None,
        _ => match xattr::load(state, dir)?.get(acl::DEFAULT) {
            Some(value) => Acl::parse(value)?,
            None => None,
        },
    };
    Ok(rules::heritage(&dir.seen(0), make.caller, (make.kind, make.perm), default.as_ref()))
}

/// A new inode with all that it has but a name.
fn make_inode(change: &mut Change<'_>, make: &Make<'_>, heritage: &Heritage) -> Result<u64> {
    let (ino, generation) = change.make_inode()?;
    let mode = u64::from(make.kind.mode_bits() | heritage.perm) << 32;
    let now = time_word(change.now());
    let words = Field::ALL.map(|field| match field {
        Field::Mode => u64::from(generation) | mode | u64::from(pack_flags(heritage.flags.0)) << 48,
        Field::Owner => u64::from(make.caller.uid) | u64::from(heritage.gid) << 32,
        Field::Ctime | Field::Atime | Field::Crtime => now,
        Field::Device => u64::from(make.rdev),
        Field::Size | Field::Root | Field::Mtime | Field::Xattrs => 0,
    });
    change.set_born(ino, &words);
    change.note_names(ino, rules::first_links(make.kind, make.name.is_some()));
    change.put(ino, 0, make.target)?;
    let xattrs = heritage.xattrs.iter().cloned().collect();
    xattr::store(change, ino, &xattrs)?;
    debug_assert_eq!(change.field(ino, Field::Size), to_u64(make.target.len()));
    Ok(ino)
}
