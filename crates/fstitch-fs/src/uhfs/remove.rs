//! Removing names and freeing inodes. The order: the inode's other names → name cleared → count of names lowered, or
//! inode freed, each pointer before the bit that it frees (in the format).

use std::sync::Arc;

use fstitch_core::{Errno, FileKind, InodeId, InodeNo, Result, waiting};
use fstitch_patch::PatchIds;
use fstitch_posix::remove::{check_remove, check_rmdir_name};
use smallvec::SmallVec;

use super::locks::Locked;
use super::node::{Node, Part, State};
use super::volume::{ATTR_CHANGE_BLOCKS, Change, NAME_CHANGE_BLOCKS};
use super::{AttrChange, FreedName, LowLevelFs, NameSlot, Uhfs};

/// A name and the inode that it was found to name, both locked.
struct Victim<'a, I> {
    parent: InodeNo,
    ino: InodeNo,
    node: &'a Arc<Node<I>>,
    slot: NameSlot,
    others: &'a OtherNames,
}

/// The names that an inode keeps when it loses one: whoever makes a second name and removes the first wants the file
/// to have a name at every moment.
pub(super) struct OtherNames {
    /// [`Track::version`](super::node::Track::version) when they were looked at.
    pub(super) version: u64,
    /// What must be stable before the one name goes.
    pub(super) patches: PatchIds,
}

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_unlink(&self, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.check_name(parent, name)?;
        self.refuse_dots(parent, name, Errno::ISDIR)?;
        self.remove_name(parent, name, FileKind::Regular)
    }

    pub(super) fn do_rmdir(&self, parent: InodeNo, name: &[u8]) -> Result<()> {
        self.check_name(parent, name)?;
        check_rmdir_name(name)?;
        self.retry_settled(|| self.remove_name(parent, name, FileKind::Directory))
    }

    /// Removes a name of a directory, or of anything else when `kind` is not a directory.
    fn remove_name(&self, parent: InodeNo, name: &[u8], kind: FileKind) -> Result<()> {
        let change = self.change(0)?;
        // Of a small file, name and blocks go in one step.
        change.reserve_whole(0, 2 * NAME_CHANGE_BLOCKS)?;
        let dir = self.node(parent)?;
        let node = loop {
            let (node, found) = self.find_slot(&dir, name, 0)?.ok_or(Errno::NOENT)?;
            let Some(others) = self.other_names(&node, parent, false)? else { continue };
            let mut locked = match Locked::all(&[&dir]) {
                Ok(locked) => locked,
                Err(_) => return Err(Errno::NOENT.into()),
            };
            // Most often nobody else holds the inode; otherwise both are locked again in order.
            if !locked.attempt(&node).unwrap_or(false) {
                drop(locked);
                let Ok(in_order) = Locked::all(&[&dir, &node]) else { continue };
                locked = in_order;
            }
            let dir_state = locked.of(parent);
            let slot = match found {
                // Nobody has changed the directory since.
                Some((slot, changes)) if changes == dir_state.changes() => slot,
                _ => self.low.find_name(dir_state.inode(), name)?.ok_or(Errno::NOENT)?,
            };
            if slot.ino != node.ino() || locked.of(node.ino()).track.version != others.version {
                continue;
            }
            let victim = Victim { parent, ino: node.ino(), node: &node, slot, others: &others };
            let ended = self.remove_locked(&mut locked, &victim, kind)?;
            drop(locked);
            break (!ended).then_some(node);
        };
        if let Some(node) = node {
            self.settle(&change, &node);
        }
        self.evict_idle();
        Ok(())
    }

    /// What makes the names reachable that `node` keeps when it loses one in `parent`, as far as that may not be stable:
    /// names made recently, and the way from the root to their directories. `None` if the inode is gone. Called without
    /// inode locks; `renames` says whether the rename lock is held.
    pub(super) fn other_names(
        &self,
        node: &Node<L::Inode>,
        parent: InodeNo,
        renames: bool,
    ) -> Result<Option<OtherNames>> {
        let alone = |state: &State<L::Inode>| {
            let attr = self.low.attr(state.inode());
            attr.kind == FileKind::Directory || attr.nlink < 2
        };
        let Ok(state) = node.read() else { return Ok(None) };
        if alone(&state) {
            return Ok(Some(OtherNames { version: state.track.version, patches: PatchIds::new() }));
        }
        drop(state);
        let _renames = (!renames).then(|| self.lock_renames()).transpose()?;
        let Ok(state) = node.read() else { return Ok(None) };
        let track = &state.track;
        let mut others = OtherNames { version: track.version, patches: PatchIds::new() };
        others.patches.extend(track.recent_names.iter().copied().filter(|&patch| self.pending(patch)));
        let parents = track.parents.clone();
        drop(state);
        let mut gone: SmallVec<[InodeId; 4]> = SmallVec::new();
        for id in parents {
            let Some(dir) = self.still(id)? else {
                gone.push(id);
                continue;
            };
            match self.reach(&dir, parent) {
                Ok(patches) => others.patches.extend(patches),
                // It has been removed this moment, after the name in it.
                Err(error) if error.errno() == Errno::NOENT => {}
                Err(error) => return Err(error),
            }
        }
        if !gone.is_empty()
            && let Ok(mut state) = node.write()
        {
            // Or a file that goes through many directories would remember all of them.
            state.track.outlived(&gone);
        }
        Ok(Some(others))
    }

    /// Removes a name. Returns whether the inode has had its end as well.
    fn remove_locked(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        victim: &Victim<'_, L::Inode>,
        kind: FileKind,
    ) -> Result<bool> {
        let dir = self.seen(locked.of(victim.parent));
        let state = locked.of(victim.ino);
        let seen = self.seen(state);
        let is_empty = || self.low.is_empty_dir(state.inode());
        check_remove(&dir, &seen, kind, (victim.ino == self.low.root(), is_empty))?;
        self.ask_to_sync_names(locked.of(victim.parent))?;
        let is_dir = seen.is_dir();
        if is_dir {
            self.refuse_second_name(locked.of(victim.ino))?;
        }
        // A directory that was moved: were this name gone before the old one, the old one would be back, and wrong.
        let earlier = self.pending_clearings(locked.of(victim.ino));
        let mut befores = if is_dir { earlier } else { victim.others.patches.clone() };
        befores.extend(self.pending_departures(locked.of(victim.ino)));
        let dir = locked.of(victim.parent);
        let cleared = self.low.clear_name(dir.inode_mut(), &victim.slot, &befores)?;
        dir.note_departures(&befores, |patch| self.pending(patch));
        self.note(dir, Part::Contents, &[cleared.patch]);
        self.touch(dir, true)?;
        if !is_dir && self.end_at_once(locked.of(victim.ino), victim.node, &cleared.freed)? {
            return Ok(true);
        }
        let cleared = self.lose_name(locked, victim.ino, &cleared.freed)?;
        if is_dir {
            self.add_links(locked.of(victim.parent), -1, &cleared)?;
        }
        Ok(false)
    }

    /// Frees an inode whose only name was cleared, if nobody refers to it and it is small, and says whether that was so. Its
    /// count of names is not lowered first: its end, which comes after the same clearings, takes it to 0.
    fn end_at_once(
        &self,
        state: &mut State<L::Inode>,
        node: &Arc<Node<L::Inode>>,
        freed: &FreedName,
    ) -> Result<bool> {
        let attr = self.low.attr(state.inode());
        let blocks = if attr.kind == FileKind::Regular { self.size_and_end(state)?.1 } else { 0 };
        let is_small = self.freeing(blocks).is_some_and(|blocks| blocks <= NAME_CHANGE_BLOCKS);
        // With a journal it enters the list of orphans with its name.
        if attr.nlink != 1 || !is_small || self.cache().is_journaled() {
            return Ok(false);
        }
        // Out of the order of locks: whoever has it may wait for the inode.
        let Some(_writer) = node.writer.try_lock() else { return Ok(false) };
        if !self.table.claim_unreferenced(node) {
            return Ok(false);
        }
        state.cleared.extend(freed.befores());
        let clearings = self.pending_clearings(state);
        state.track.version += 1;
        match self.low.free_inode(state.inode_mut(), &clearings) {
            Ok(()) => {
                state.dead = true;
                self.table.remove(node);
                Ok(true)
            }
            Err(error) => {
                // As when it is freed later. What has ended in memory is not ended twice.
                node.header.unclaim();
                self.keep_error(error);
                Ok(self.low.attr(state.inode()).nlink == 0)
            }
        }
    }

    /// Lowers the count of names after one of them was cleared or replaced. A directory loses its `.` with its
    /// name. The caller lowers the parent's count and frees the inode (see [`Uhfs::settle`]), both after what is
    /// returned: the clearings of all its names that may still be on the medium.
    pub(super) fn lose_name(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        ino: InodeNo,
        freed: &FreedName,
    ) -> Result<PatchIds> {
        let state = locked.of(ino);
        let attr = self.low.attr(state.inode());
        let nlink = match attr.kind {
            FileKind::Directory => 0,
            _ => attr.nlink.saturating_sub(1),
        };
        state.cleared.extend(freed.befores());
        // All clearings, not this one alone: an earlier rename's old name may still be on the medium.
        let befores = self.pending_clearings(state);
        state.track.version += 1;
        // The time waits for nothing, the count does.
        let change = AttrChange { nlink: Some(nlink), ctime: Some(self.now()), ..AttrChange::default() };
        let patches = self.low.set_attr(state.inode_mut(), &change, &befores)?;
        self.note(state, Part::Attributes, &patches);
        Ok(befores)
    }

    /// What must be stable before the directory's name may go: see [`State::departures`].
    pub(super) fn pending_departures(&self, state: &State<L::Inode>) -> PatchIds {
        state.departures().iter().copied().filter(|&patch| self.pending(patch)).collect()
    }

    /// The clearings of the inode's names that are not stable yet.
    pub(super) fn pending_clearings(&self, state: &mut State<L::Inode>) -> PatchIds {
        state.cleared.retain(|patch| self.pending(*patch));
        state.cleared.clone()
    }

    /// Frees the inode if it has neither names nor references left. Called without inode locks.
    pub(super) fn settle(&self, change: &Change<'_>, node: &Arc<Node<L::Inode>>) {
        let Ok(state) = node.read() else { return };
        if self.low.attr(state.inode()).nlink == 0 {
            node.header.set_orphan(true);
            drop(state);
            self.free_orphan(change, node);
        }
    }

    /// Frees an orphan that nobody refers to, unless somebody else does already.
    fn free_orphan(&self, change: &Change<'_>, node: &Arc<Node<L::Inode>>) {
        if self.table.claim_orphan(node)
            && let Err(error) = self.free(change, node)
        {
            node.header.unclaim();
            self.keep_error(error);
        }
    }

    /// Frees all orphans, those that somebody refers to included: the volume is being unmounted.
    pub(super) fn free_all_orphans(&self, change: &Change<'_>) -> Result<()> {
        for node in self.table.all() {
            if node.header.claim_referred_orphan() {
                self.free(change, &node)?;
            }
        }
        Ok(())
    }

    /// Frees a claimed inode: its blocks in steps, then what is left of it, all after the clearing of its names.
    fn free(&self, change: &Change<'_>, node: &Arc<Node<L::Inode>>) -> Result<()> {
        let _writer = self.writer(change, node)?;
        let (cleared, blocks): (PatchIds, u64) = {
            let state = node.read()?;
            let attr = self.low.attr(state.inode());
            let blocks = match attr.kind {
                FileKind::Regular => self.size_and_end(&state)?.1,
                _ => 0,
            };
            (state.cleared.clone(), blocks)
        };
        self.shed_xattrs(change, node)?;
        if self.freeing(blocks).is_none_or(|blocks| blocks > NAME_CHANGE_BLOCKS) {
            // More than the step has room for in which the last name went.
            change.pause();
        }
        if blocks > self.detach_step() {
            self.detach_in_steps(change, node, (0, blocks), &cleared)?;
        }
        let left = if blocks > self.detach_step() { 0 } else { blocks };
        let ending = self.low.end_blocks(node.read()?.inode())?;
        if ending > 0 {
            change.pause();
        }
        change.reserve(0, self.freeing(left).unwrap_or(self.step_blocks) + ending)?;
        let mut state = node.write()?;
        if self.low.attr(state.inode()).nlink == 0 {
            self.low.free_inode(state.inode_mut(), &cleared)?;
            state.dead = true;
            drop(state);
            self.table.remove(node);
        } else {
            // It got a name again before its turn came.
            node.header.unclaim();
        }
        Ok(())
    }

    /// Frees attributes of a claimed inode that take steps of their own.
    fn shed_xattrs(&self, change: &Change<'_>, node: &Arc<Node<L::Inode>>) -> Result<()> {
        loop {
            let blocks = self.low.xattr_blocks(node.read()?.inode(), 0)?;
            if blocks == 0 {
                return Ok(());
            }
            change.pause();
            change.reserve(0, ATTR_CHANGE_BLOCKS + blocks)?;
            let mut state = node.write()?;
            let is_nameless = self.low.attr(state.inode()).nlink == 0;
            if !is_nameless || !self.low.shed_xattr(state.inode_mut())? {
                return Ok(());
            }
        }
    }

    pub(super) fn do_forget(&self, ino: InodeNo, count: u64) {
        if let Some(node) = self.table.release(ino, count)
            && node.header.is_orphan()
        {
            // Nobody forgets it a second time.
            let _waits = waiting::allow();
            match self.change(0) {
                Ok(change) => self.free_orphan(&change, &node),
                Err(error) => self.keep_error(error),
            }
        }
        self.evict_idle();
    }

    /// Gives back references in the course of a change.
    pub(super) fn do_forget_in(&self, change: &Change<'_>, ino: InodeNo, count: u64) {
        if let Some(node) = self.table.release(ino, count) {
            self.free_orphan(change, &node);
        }
    }
}
