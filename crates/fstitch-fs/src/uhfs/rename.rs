//! Moving and exchanging names. Rule 3: the new name is on the medium before the old one is cleared.
//!
//! ```text
//!   file:       count + 1 → new name (or the replaced one) → old name cleared → count − 1
//!   directory:  count + 1, new parent's count + 1 → new name → `..` → old name cleared → count − 1,
//!               old parent's count − 1
//!   target:     replaced name → target's count − 1 or its freeing
//! ```

use std::sync::Arc;

use fstitch_core::{Caller, Errno, FileKind, InodeNo, RenameMode, Result};
use fstitch_patch::PatchIds;
use fstitch_posix::name::expect_open_directory;
use fstitch_posix::remove::{Renamed, check_target_exists, dots_as_target, target_is_ancestor};

use super::locks::Locked;
use super::node::{Node, Part};
use super::remove::OtherNames;
use super::{ClearedName, FreedName, LowLevelFs, NameSlot, Uhfs};

/// One side of a rename: a directory and a name in it.
#[derive(Clone, Copy)]
struct Side<'a> {
    dir: InodeNo,
    name: &'a [u8],
}

/// A rename with everything that it needs found.
struct Move<'a> {
    caller: &'a Caller,
    from: Side<'a>,
    to: Side<'a>,
    source: InodeNo,
    target: Option<InodeNo>,
    mode: RenameMode,
    /// What makes the old parent reachable, and the new one, as far as that may not be stable.
    reach: (PatchIds, PatchIds),
    /// The names that the replaced inode keeps.
    others: Option<OtherNames>,
}

/// No path is deeper: a volume with a longer chain of `..` is damaged and may have a loop of them.
const DEPTH_MAX: u32 = 1 << 20;

/// Whether an attempt with locks found what the look without locks had found.
enum Outcome {
    Done,
    Retry,
}

type NodeRef<L> = Arc<Node<<L as LowLevelFs>::Inode>>;

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_rename(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        self.check_names(from, to, mode)?;
        self.retry_settled(|| self.rename_once(caller, from, to, mode))
    }

    fn rename_once(
        &self,
        caller: &Caller,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        mode: RenameMode,
    ) -> Result<()> {
        let change = self.change(0)?;
        change.reserve_whole(0, 3 * self.low.name_blocks())?;
        let renames = (from.0 != to.0).then(|| self.lock_renames()).transpose()?;
        let from = Side { dir: from.0, name: from.1 };
        let to = Side { dir: to.0, name: to.1 };
        let (from_dir, to_dir) = (self.node(from.dir)?, self.node(to.dir)?);
        loop {
            let source = self.find_node(&from_dir, from.name, 0)?.ok_or(Errno::NOENT)?;
            let target = self.find_node(&to_dir, to.name, 0)?;
            check_target_exists(mode, target.is_some())?;
            if from.dir != to.dir {
                self.check_ancestry(&source, &to_dir, Errno::INVAL)?;
                if let Some(target) = &target {
                    self.check_ancestry(target, &from_dir, target_is_ancestor(mode))?;
                }
            }
            let reach = (self.reach(&from_dir, to.dir)?, self.reach(&to_dir, from.dir)?);
            let target_ino = target.as_ref().map(|node| node.ino());
            let others = match &target {
                Some(node) => match self.other_names(node, to.dir, renames.is_some())? {
                    None => continue,
                    others => others,
                },
                None => None,
            };
            let moved =
                Move { caller, from, to, source: source.ino(), target: target_ino, mode, reach, others };
            let nodes = [Some(&from_dir), Some(&to_dir), Some(&source), target.as_ref()];
            if let Outcome::Retry = self.rename_locked(&nodes, &moved)? {
                continue;
            }
            // Freeing begins a step of its own, which waits with no lock held.
            drop(renames);
            if let Some(target) = target.filter(|_| mode != RenameMode::Exchange) {
                self.settle(&change, &target);
            }
            self.evict_idle();
            return Ok(());
        }
    }

    /// Both must be names in directories, and neither `.` or `..`.
    fn check_names(&self, from: (InodeNo, &[u8]), to: (InodeNo, &[u8]), mode: RenameMode) -> Result<()> {
        for (dir, _) in [to, from] {
            self.expect_directory(&*self.node(dir)?.read()?)?;
        }
        for ((dir, name), on_dots) in [(to, dots_as_target(mode)), (from, Errno::BUSY)] {
            self.check_name(dir, name)?;
            self.refuse_dots(dir, name, on_dots)?;
        }
        Ok(())
    }

    /// Fails with `on_loop` if the directory `moved` is `dir` or one of its ancestors. The rename lock keeps the
    /// answer true; each ancestor is locked alone.
    fn check_ancestry(&self, moved: &Node<L::Inode>, dir: &NodeRef<L>, on_loop: Errno) -> Result<()> {
        let is_dir = moved.read().is_ok_and(|state| self.kind(&state) == FileKind::Directory);
        if !is_dir {
            return Ok(());
        }
        let mut at = Arc::clone(dir);
        for _ in 0..DEPTH_MAX {
            if at.ino() == moved.ino() {
                return Err(on_loop.into());
            }
            if at.ino() == self.low.root() {
                return Ok(());
            }
            let state = at.read().map_err(|_| Errno::NOENT)?;
            let parent = self.parent_of(&state)?.ok_or(Errno::NOENT)?;
            drop(state);
            at = parent;
        }
        Err(Errno::LOOP.into())
    }

    /// The patches through which `dir` can be reached from the root, as far as they may not be stable. Nothing if the
    /// name moves inside one directory, which is then as reachable after as before. The rename lock keeps the
    /// answer true. `ENOENT` once `dir` was removed.
    pub(super) fn reach(&self, dir: &NodeRef<L>, other: InodeNo) -> Result<PatchIds> {
        let mut patches = PatchIds::new();
        let mut at = Arc::clone(dir);
        for _ in 0..DEPTH_MAX {
            if dir.ino() == other || at.ino() == self.low.root() {
                return Ok(patches);
            }
            let state = at.read().map_err(|_| Errno::NOENT)?;
            if state.track.is_stable(self.moves()) {
                return Ok(patches);
            }
            patches.extend(state.track.recent_names.iter().copied().filter(|&patch| self.pending(patch)));
            let parent = self.parent_of(&state)?.ok_or(Errno::NOENT)?;
            drop(state);
            at = parent;
        }
        Err(Errno::LOOP.into())
    }

    fn rename_locked(&self, nodes: &[Option<&NodeRef<L>>; 4], moved: &Move<'_>) -> Result<Outcome> {
        let nodes: Vec<&NodeRef<L>> = nodes.iter().copied().flatten().collect();
        // A dead inode means that its name is gone, which the next look tells exactly.
        let Ok(mut locked) = Locked::all(&nodes) else { return Ok(Outcome::Retry) };
        for side in [moved.from, moved.to] {
            expect_open_directory(&self.low.attr(locked.of(side.dir).inode()))?;
            self.ask_to_sync_names(locked.of(side.dir))?;
        }
        let mut find = |side: Side<'_>| self.low.find_name(locked.of(side.dir).inode(), side.name);
        let (source, target) = (find(moved.from)?, find(moved.to)?);
        let unchanged = source.as_ref().is_some_and(|slot| slot.ino == moved.source)
            && target.as_ref().map(|slot| slot.ino) == moved.target;
        let (Some(source), true) = (source, unchanged) else { return Ok(Outcome::Retry) };
        if let (Some(target), Some(others)) = (moved.target, &moved.others)
            && locked.of(target).track.version != others.version
        {
            return Ok(Outcome::Retry);
        }
        if moved.target == Some(moved.source) {
            return Ok(Outcome::Done);
        }
        self.check_rename(&mut locked, moved)?;
        match (moved.mode, target) {
            (RenameMode::Exchange, Some(target)) => self.exchange(&mut locked, moved, (&source, &target))?,
            (_, target) => self.move_name(&mut locked, moved, (source, target))?,
        }
        Ok(Outcome::Done)
    }

    /// Kinds, flags and limits.
    fn check_rename(&self, locked: &mut Locked<'_, L::Inode>, moved: &Move<'_>) -> Result<()> {
        let seen = |locked: &mut Locked<'_, L::Inode>, ino| self.seen(locked.of(ino));
        let dirs = (seen(locked, moved.from.dir), seen(locked, moved.to.dir));
        let source = seen(locked, moved.source);
        let target = moved.target.map(|target| seen(locked, target));
        let mode = moved.mode;
        let renamed = Renamed { dirs: (&dirs.0, &dirs.1), source: &source, target: target.as_ref(), mode };
        renamed.check(|| match moved.target {
            Some(target) => self.low.is_empty_dir(locked.of(target).inode()),
            None => Ok(true),
        })?;
        if let Some(target) = moved.target.filter(|_| mode != RenameMode::Exchange)
            && source.is_dir()
        {
            self.refuse_second_name(locked.of(target))?;
        }
        self.expect_project(locked, moved.to.dir, moved.source)?;
        if let Some(target) = moved.target.filter(|_| mode == RenameMode::Exchange) {
            self.expect_project(locked, moved.from.dir, target)?;
        }
        renamed.check_link_room(self.low.limits().dir_link_max)
    }

    /// Moves a name: the operation as its ordering.
    fn move_name(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        (mut source, target): (NameSlot, Option<NameSlot>),
    ) -> Result<()> {
        let kind = self.kind(locked.of(moved.source));
        let switches = kind == FileKind::Directory && moved.from.dir != moved.to.dir;
        if target.is_none() {
            let dir = locked.of(moved.to.dir).inode_mut();
            self.low.prepare_name(moved.caller, dir, moved.to.name)?;
            // Growing a directory may have changed how it is laid out.
            let again = self.low.find_name(locked.of(moved.from.dir).inode(), moved.from.name)?;
            source = again.ok_or(Errno::NOENT)?;
        }
        let raises_parent = switches && target.is_none();
        // A count that is one too high says on the medium that there may be a second name.
        let mut raised = self.raise_links(locked.of(moved.source))?;
        if kind == FileKind::Directory {
            let befores = &mut raised;
            // Two names at most: the one that an earlier rename has cleared is gone before a third one comes.
            befores.extend(self.pending_clearings(locked.of(moved.source)));
            if switches {
                // Until `..` is switched the name in the old directory is the valid one: it must be there when
                // the new one comes.
                befores.extend(self.low.name_patches(&source));
                befores.extend(moved.reach.0.iter().copied());
            }
            if let Some(target) = moved.target {
                // A directory that was moved there loses that name after its own old one, and one from which names
                // were moved after these.
                befores.extend(self.pending_clearings(locked.of(target)));
                befores.extend(self.pending_departures(locked.of(target)));
            }
            if raises_parent {
                befores.extend(self.add_links(locked.of(moved.to.dir), 1, &[])?);
            }
        }
        raised.extend(moved.others.iter().flat_map(|others| others.patches.iter().copied()));
        let named = self.place(locked, moved, (kind, target.as_ref()), &raised);
        if named.is_err() {
            self.lower_again(locked, moved, raises_parent)?;
        }
        let (mut placed, replaced) = named?;
        if moved.target.is_some() {
            locked.of(moved.to.dir).note_departures(&raised, |patch| self.pending(patch));
        }
        // What `..` names, and what stays when the old name goes, can be reached from the root.
        placed.extend(moved.reach.1.iter().copied());
        if switches {
            let state = locked.of(moved.source);
            let parent = self.low.set_parent(state.inode_mut(), moved.to.dir, &placed)?;
            self.note(state, Part::Names, &[parent]);
            placed.push(parent);
        }
        if kind == FileKind::Directory {
            self.moves.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
        }
        let cleared = self.clear_old(locked, moved, &source, &placed)?;
        self.settle_counts(locked, moved, switches, (&cleared.freed, &placed))?;
        if let (Some(target), Some(replaced)) = (moved.target, replaced) {
            let was_dir = self.kind(locked.of(target)) == FileKind::Directory;
            let cleared = self.lose_name(locked, target, &replaced.freed)?;
            if was_dir && !switches {
                self.add_links(locked.of(moved.to.dir), -1, &cleared)?;
            }
        }
        self.touch(locked.of(moved.source), false)
    }

    /// Takes back what was raised for a name that could not be placed.
    fn lower_again(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        raised_parent: bool,
    ) -> Result<()> {
        self.add_links(locked.of(moved.source), -1, &[])?;
        if raised_parent {
            self.add_links(locked.of(moved.to.dir), -1, &[])?;
        }
        Ok(())
    }

    /// Adds the new name, or makes the existing one name the moved inode.
    fn place(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        (kind, target): (FileKind, Option<&NameSlot>),
        befores: &PatchIds,
    ) -> Result<(PatchIds, Option<ClearedName>)> {
        let dir = locked.of(moved.to.dir);
        let (placed, replaced) = match target {
            Some(slot) => {
                let mut placed = self.low.name_patches(slot);
                let replaced = self.low.replace_name(dir.inode_mut(), slot, moved.source, kind, befores)?;
                placed.push(replaced.patch);
                (placed, Some(replaced))
            }
            None => (self.low.add_name(dir.inode_mut(), moved.to.name, moved.source, kind, befores)?, None),
        };
        self.note(dir, Part::Contents, &placed);
        self.touch(dir, true)?;
        let to = self.low.attr(dir.inode()).id();
        let state = locked.of(moved.source);
        self.note(state, Part::Names, &placed);
        state.track.named_in(to);
        Ok((placed, replaced))
    }

    /// Clears the old name after the new one.
    fn clear_old(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        source: &NameSlot,
        placed: &PatchIds,
    ) -> Result<ClearedName> {
        let dir = locked.of(moved.from.dir);
        let cleared = self.low.clear_name(dir.inode_mut(), source, placed)?;
        if moved.from.dir != moved.to.dir {
            dir.note_departures(placed, |patch| self.pending(patch));
        }
        self.note(dir, Part::Contents, &[cleared.patch]);
        self.touch(dir, true)?;
        locked.of(moved.source).cleared.extend(cleared.freed.befores());
        // A file's fsync after its rename makes the whole rename stable, so that the old name is gone too.
        self.note(locked.of(moved.source), Part::Names, &[cleared.patch]);
        if moved.from.dir != moved.to.dir && self.kind(locked.of(moved.source)) == FileKind::Directory {
            // So does an fsync of its new parent: of the new name alone, without `..`, recovery would make nothing.
            self.note(locked.of(moved.to.dir), Part::Contents, &[cleared.patch]);
        }
        Ok(cleared)
    }

    /// Lowers what the move raised, after the old name was cleared. Where the old name never reached the
    /// medium this waits for nothing, except that an old parent is counted by the moved directory's `..` until
    /// that is switched.
    fn settle_counts(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        switches: bool,
        (freed, placed): (&FreedName, &PatchIds),
    ) -> Result<()> {
        let mut befores = freed.befores();
        self.add_links(locked.of(moved.source), -1, &befores)?;
        if switches {
            befores.extend_from_slice(placed);
            self.add_links(locked.of(moved.from.dir), -1, &befores)?;
        }
        Ok(())
    }

    /// Exchanges two names of one directory in one patch. Between directories, or between blocks, no order of
    /// two patches keeps rule 3 without a third durable name: `EINVAL`, unless a journal takes both as one.
    fn exchange(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        (source, target): (&NameSlot, &NameSlot),
    ) -> Result<()> {
        if self.cache().is_journaled() {
            return self.exchange_in_transaction(locked, moved, (source, target));
        }
        if moved.from.dir != moved.to.dir || source.block != target.block {
            return Err(Errno::INVAL.into());
        }
        let mut befores = self.readiness(locked.of(source.ino));
        befores.extend(self.readiness(locked.of(target.ino)));
        let dir = locked.of(moved.from.dir);
        let patch = self.low.exchange_names(dir.inode_mut(), source, target, &befores)?;
        self.note(dir, Part::Contents, &[patch]);
        self.touch(dir, true)?;
        let parent = self.low.attr(dir.inode()).id();
        for ino in [source.ino, target.ino] {
            let state = locked.of(ino);
            if self.kind(state) == FileKind::Directory {
                self.moves.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            }
            self.note(state, Part::Names, &[patch]);
            state.track.named_in(parent);
            self.touch(state, false)?;
        }
        Ok(())
    }

    /// Exchanges two names wherever they are. The step is one transaction, so its changes need no order among themselves.
    fn exchange_in_transaction(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        moved: &Move<'_>,
        (source, target): (&NameSlot, &NameSlot),
    ) -> Result<()> {
        let (from, to) = (moved.from.dir, moved.to.dir);
        let is_dir = [source.ino, target.ino].map(|ino| self.kind(locked.of(ino)) == FileKind::Directory);
        // The parent that gets a directory for something else gets the name of its `..`.
        let raised = match is_dir {
            [true, false] if from != to => Some((to, from)),
            [false, true] if from != to => Some((from, to)),
            _ => None,
        };
        if let Some((gains, _)) = raised
            && self.low.attr(locked.of(gains).inode()).nlink >= self.low.limits().dir_link_max
        {
            return Err(Errno::MLINK.into());
        }
        for (dir, slot, ino, old) in [(to, target, source.ino, from), (from, source, target.ino, to)] {
            self.rename_slot(locked, (dir, slot), (ino, old))?;
        }
        if let Some((gains, loses)) = raised {
            self.add_links(locked.of(gains), 1, &[])?;
            self.add_links(locked.of(loses), -1, &[])?;
        }
        Ok(())
    }

    /// Makes a name stand for another inode, whose name was in the directory `old` until now.
    fn rename_slot(
        &self,
        locked: &mut Locked<'_, L::Inode>,
        (dir, slot): (InodeNo, &NameSlot),
        (ino, old): (InodeNo, InodeNo),
    ) -> Result<()> {
        let kind = self.kind(locked.of(ino));
        let befores = self.readiness(locked.of(ino));
        let state = locked.of(dir);
        let replaced = self.low.replace_name(state.inode_mut(), slot, ino, kind, &befores)?;
        self.note(state, Part::Contents, &[replaced.patch]);
        self.touch(state, true)?;
        let parent = self.low.attr(state.inode()).id();
        if dir != old {
            locked.of(old).note_departures(&[replaced.patch], |patch| self.pending(patch));
        }
        locked.of(slot.ino).cleared.extend(replaced.freed.befores());
        let state = locked.of(ino);
        if kind == FileKind::Directory {
            self.moves.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
            if dir != old {
                let patch = self.low.set_parent(state.inode_mut(), dir, &[replaced.patch])?;
                self.note(state, Part::Names, &[patch]);
            }
        }
        self.note(state, Part::Names, &[replaced.patch]);
        state.track.named_in(parent);
        self.touch(state, false)
    }
}
