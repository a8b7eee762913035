//! Snapshots: a record with the inodes of a root that is stable; clones, trees that begin with a snapshot's inodes; and what becomes free
//! when one of either goes.
//!
//! **States**: *there* → *being removed* (it is in no list any more; with the next commit) → *gone*, with its blocks, in one commit. A
//! cut leaves one of these; what is being removed goes on with the next mount.
//!
//! **Invariants.** 1. No block of a snapshot is younger than its generation, and none of those is given up while it is there. 2. A block
//! that two trees of one history share is at the same place in both, so that a removal needs no more than its neighbours. 3. A snapshot stays as
//! long as a clone comes from it, and a tree as long as it has snapshots: what a clone shares with others, its origin has.

use fstitch_core::{Errno, Error, Result, Timestamp};
use rustc_hash::FxHashSet;

use super::layout::inode::{INODE_BYTES, INODES_IN_BLOCK, Slot, place};
use super::layout::pointer::{Fork, Ref};
use super::layout::record::{RECORDS_MAX, Record, Source, TREE_END, TreeKind, is_tree_name};
use super::layout::{FAN, NAME_MAX};
use super::state::{Class, State};
use super::tree::{Key, Obj};
use super::volume::{Waffle, is_of_reading, when_full};

/// Blocks that a removal looks at without a pause for others.
const AHEAD: usize = 64;

/// A snapshot or a clone, for who lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: Vec<u8>,
    /// What it comes from: a snapshot's tree (empty for the first one), or a clone's snapshot (empty for a tree that receives).
    pub of: Vec<u8>,
    /// Whether it is a clone, or a tree that receives snapshots.
    pub is_clone: bool,
    /// Whether it was being received and is not whole.
    pub is_receiving: bool,
    /// The root that it keeps; of a clone that of its snapshot.
    pub generation: u64,
    /// When it was made.
    pub made: Timestamp,
    /// Inodes that it has.
    pub inodes: u64,
}

/// The tree that a tree shares blocks with that were there before it, and the last generation of those.
pub(super) fn before(trees: &[Option<Record>], tree: &Record) -> Option<(usize, u64)> {
    let candidates = trees.iter().enumerate().filter_map(|(number, other)| Some((number, other.as_ref()?)));
    let of_same = candidates.clone().filter(|(_, other)| {
        let is_older = tree.kind == TreeKind::Head || other.generation < tree.generation;
        other.kind != TreeKind::Head && other.head == tree.head && other.id != tree.id && is_older
    });
    let last = of_same.max_by_key(|(_, other)| other.generation);
    let origin = |head: u64| {
        // A clone that is being removed is no `Head` any more.
        let head = trees.iter().flatten().find(|other| other.id == head)?;
        trees
            .iter()
            .position(|other| head.origin != 0 && other.as_ref().is_some_and(|other| other.id == head.origin))
    };
    match last {
        Some((number, other)) => Some((number, other.generation)),
        None => origin(tree.head).and_then(|number| Some((number, trees[number].as_ref()?.generation))),
    }
}

/// Whether this tree is being removed.
fn is_removed(tree: &Option<Record>, id: u64) -> bool {
    tree.as_ref().is_some_and(|tree| tree.kind == TreeKind::Removed && tree.id == id)
}

/// The tree that comes after a snapshot: the next one, or the tree that it is of.
fn after(trees: &[Option<Record>], snapshot: &Record) -> Option<usize> {
    let all = trees.iter().enumerate().filter_map(|(number, tree)| Some((number, tree.as_ref()?)));
    let later = all.clone().filter(|(_, tree)| {
        tree.kind != TreeKind::Head && tree.head == snapshot.head && tree.generation > snapshot.generation
    });
    let next = later.min_by_key(|(_, tree)| tree.generation).map(|(number, _)| number);
    let is_head = |tree: &Record| tree.kind == TreeKind::Head && tree.id == snapshot.head;
    next.or_else(|| all.clone().find(|(_, tree)| is_head(tree)).map(|(number, _)| number))
}

impl State {
    /// Notes a snapshot of what is stable; the next commit has it.
    ///
    /// # Errors
    /// `EINVAL`, `EEXIST`, `ENOSPC`.
    fn note_snapshot(&mut self, name: &[u8], now: Timestamp) -> Result<()> {
        self.add_tree(Record {
            kind: TreeKind::Snapshot,
            generation: self.root.generation,
            origin: 0,
            made: now,
            source: Source { uuid: self.root.uuid, generation: self.root.generation },
            name: name.to_vec(),
            ..self.head().clone()
        })
    }

    /// The same of what was received from a snapshot of another volume.
    pub(super) fn note_received(&mut self, name: &[u8], made: Timestamp, source: Source) -> Result<()> {
        self.note_snapshot(name, made)?;
        let snapshot = self.trees.iter_mut().flatten().find(|tree| tree.name == name);
        snapshot.ok_or(Errno::STALE)?.source = source;
        Ok(())
    }

    /// A tree is again what its last snapshot is.
    pub(super) fn roll_back(&mut self, tree: usize, last: &Record, now: Timestamp) -> Result<()> {
        let changed = self.record(tree)?.inodes;
        self.begin(now);
        let only = Only { kept: last.generation, after: None };
        let done = self.give_up_fork(only, Obj::Inodes, changed).and_then(|()| self.check_room(Class::Last));
        if done.is_err() {
            self.undo();
            return done;
        }
        self.apply()?;
        self.leaves.forget();
        let Record { inodes, ino_end, free_ino, orphan, used, orphans, .. } = *last;
        if let Some(tree) = &mut self.trees[tree] {
            (tree.inodes, tree.ino_end, tree.free_ino) = (inodes, ino_end, free_ino);
            (tree.orphan, tree.used, tree.orphans) = (orphan, used, orphans);
        }
        Ok(())
    }

    /// Notes a clone of a snapshot.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot; as [`State::note_snapshot`].
    fn note_clone(&mut self, snapshot: &[u8], name: &[u8], now: Timestamp) -> Result<()> {
        let is_it = |tree: &&Record| tree.kind == TreeKind::Snapshot && tree.name == snapshot;
        let snapshot = self.trees.iter().flatten().find(is_it).ok_or(Errno::NOENT)?;
        self.add_tree(Record {
            kind: TreeKind::Head,
            origin: snapshot.id,
            head: self.root.next_tree,
            made: now,
            source: Source::default(),
            name: name.to_vec(),
            ..snapshot.clone()
        })
    }

    /// A tree is being removed from now on, and others may be called so.
    fn mark_removed(&mut self, tree: usize) {
        let Some(id) = self.trees[tree].as_ref().map(|tree| tree.id) else { return };
        let mut name = format!("(removed {id})").into_bytes();
        while self.find_tree(&name).is_some() && name.len() < NAME_MAX {
            name.push(b'\'');
        }
        if let Some(tree) = &mut self.trees[tree] {
            (tree.kind, tree.name) = (TreeKind::Removed, name);
        }
    }

    /// Whether a tree is being removed.
    pub(super) fn has_removed(&self) -> bool {
        self.trees.iter().flatten().any(|tree| tree.kind == TreeKind::Removed)
    }

    /// Adds a tree, which gets the next number.
    pub(super) fn add_tree(&mut self, tree: Record) -> Result<()> {
        if !is_tree_name(&tree.name) {
            return Err(Errno::INVAL.into());
        }
        if self.find_tree(&tree.name).is_some() {
            return Err(Errno::EXIST.into());
        }
        self.check_room(Class::Takes)?;
        let free = self.trees.iter().position(Option::is_none);
        let most = fstitch_core::num::to_usize(RECORDS_MAX);
        if self.root.next_tree >= TREE_END || free.is_none() && self.trees.len() >= most {
            return Err(Errno::NOSPC.into());
        }
        let tree = Record { id: self.root.next_tree, ..tree };
        self.root.next_tree += 1;
        match free {
            Some(number) => self.trees[number] = Some(tree),
            None => self.trees.push(Some(tree)),
        }
        self.note_kept();
        Ok(())
    }

    /// Gives up the blocks that only a snapshot or clone has that is being removed. Nothing else has changed.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    fn give_up_tree(&mut self, number: usize) -> Result<()> {
        let only = self.only(number)?;
        let fork = self.record(number)?.inodes;
        self.give_up_fork(only, Obj::Inodes, fork)
    }

    fn give_up_fork(&mut self, only: Only, obj: Obj, fork: Fork) -> Result<()> {
        let mut left = Left::of(obj, fork);
        while let Some(next) = left.stack.pop() {
            if let Some(alone) = self.pass(only, next, &mut left)? {
                self.free(alone)?;
            }
        }
        Ok(())
    }

    /// What a tree that is being removed has alone.
    fn only(&self, number: usize) -> Result<Only> {
        let tree = self.record(number)?;
        let kept = before(&self.trees, tree).map_or(0, |(_, generation)| generation);
        let is_clone = tree.head == tree.id;
        let after = if is_clone { None } else { Some(after(&self.trees, tree).ok_or(Errno::STALE)?) };
        Ok(Only { kept, after })
    }

    /// Looks at what a reference leads to that a tree may have alone, and adds what is below it to what is left to look at. Returns the
    /// reference if its block can go.
    fn pass(&self, only: Only, (key, reference): (Key, Ref), left: &mut Left) -> Result<Option<Ref>> {
        let (obj, level, index) = key;
        if reference.is_none() || reference.birth <= only.kept {
            return Ok(None);
        }
        let theirs = match only.after.map(|after| self.reference(after, obj, level, index)) {
            None | Some(Err(Error::Errno(Errno::STALE))) => Ref::NONE,
            // Nobody knows whether that one has it: it stays marked as used.
            Some(Err(Error::Corrupt(_))) => return Ok(None),
            Some(found) => found?,
        };
        if theirs == reference || level > 1 && !left.passed.insert(reference.block) {
            return Ok(None);
        }
        let sound = || Ok(self.check_leaf(reference, key).is_ok().then_some(reference));
        // What is below a damaged node stays marked as used, as in `drop_below`.
        let is_leading = level > 0 || obj == Obj::Inodes;
        let node = match is_leading.then(|| self.load(reference, key, obj.kind(level))) {
            Some(Err(Error::Corrupt(_))) => return sound(),
            found => found.transpose()?,
        };
        // What is pushed last is looked at first.
        if let Some(node) = node.as_ref().filter(|_| level > 0) {
            for slot in (0..FAN).rev() {
                let below = Ref::slot(node, fstitch_core::num::to_usize(slot));
                if !below.is_none() {
                    left.stack.push(((obj, level - 1, index * FAN + slot), below));
                }
            }
        } else if let Some(leaf) = &node {
            for ino in (index * INODES_IN_BLOCK..(index + 1) * INODES_IN_BLOCK).rev() {
                let (_, at) = place(ino);
                if let Ok(Slot::Used(inode)) = Slot::decode(&leaf[at..at + INODE_BYTES], ino) {
                    left.push(Obj::Xattrs(ino), inode.xattrs);
                    left.push(Obj::Data(ino), inode.data);
                }
            }
        }
        sound()
    }
}

/// What a removal still looks at.
#[derive(Default)]
struct Left {
    stack: Vec<(Key, Ref)>,
    /// Blocks of nodes that have nodes below them: what damage leads to from more than one is looked at once.
    passed: FxHashSet<u64>,
}

impl Left {
    fn of(obj: Obj, fork: Fork) -> Self {
        let mut left = Self::default();
        left.push(obj, fork);
        left
    }

    fn push(&mut self, obj: Obj, fork: Fork) {
        if !fork.root.is_none() {
            self.stack.push(((obj, fork.height, 0), fork.root));
        }
    }
}

/// What a tree has alone: what is younger than the one before, and elsewhere in the tree after it. None comes after a clone.
#[derive(Clone, Copy)]
struct Only {
    kept: u64,
    after: Option<usize>,
}

impl Waffle {
    /// Makes a snapshot of everything as it is now, which is stable then.
    ///
    /// # Errors
    /// `EEXIST`; `EINVAL` for what is no name; `EROFS`, `ENOSPC`; those of a commit.
    pub fn make_snapshot(&self, name: &[u8]) -> Result<()> {
        self.change_trees(|state, now| state.note_snapshot(name, now))
    }

    /// Makes a clone of a snapshot, which can be mounted and changed by itself.
    ///
    /// # Errors
    /// `ENOENT` if there is no such snapshot; as [`Waffle::make_snapshot`].
    pub fn make_clone(&self, snapshot: &[u8], name: &[u8]) -> Result<()> {
        self.change_trees(|state, now| state.note_clone(snapshot, name, now))
    }

    /// All snapshots and clones, in the order in which they were made.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Snapshot> {
        let core = self.share();
        let trees = &core.state.trees;
        let name = |id: u64| trees.iter().flatten().find(|tree| tree.id == id).map(|tree| tree.name.clone());
        let is_listed = |tree: &&Record| {
            tree.kind == TreeKind::Snapshot || tree.kind == TreeKind::Head && !tree.name.is_empty()
        };
        let mut all: Vec<&Record> = trees.iter().flatten().filter(is_listed).collect();
        all.sort_by_key(|tree| tree.id);
        let shown = |tree: &Record| {
            let is_clone = tree.kind == TreeKind::Head;
            Snapshot {
                name: tree.name.clone(),
                of: name(if is_clone { tree.origin } else { tree.head }).unwrap_or_default(),
                is_clone,
                is_receiving: tree.is_receiving,
                generation: tree.generation,
                made: tree.made,
                inodes: tree.used,
            }
        };
        all.into_iter().map(shown).collect()
    }

    /// Removes a snapshot. It is in no list any more when this returns; its blocks become free in the background, or at once where
    /// nothing is done there.
    ///
    /// # Errors
    /// `ENOENT`; `EBUSY` while a clone comes from it; `EROFS`; those of a commit.
    pub fn remove_snapshot(&self, name: &[u8]) -> Result<()> {
        self.remove_tree(|state| {
            let found = state.find_tree(name).ok_or(Errno::NOENT)?;
            let id = state.record(found)?.id;
            if state.trees.iter().flatten().any(|tree| tree.origin == id) {
                return Err(Errno::BUSY.into());
            }
            if state.record(found)?.kind != TreeKind::Snapshot {
                return Err(Errno::NOENT.into());
            }
            state.mark_removed(found);
            Ok(())
        })
    }

    /// Removes a clone with all that was changed in it, in the same way.
    ///
    /// # Errors
    /// `ENOENT`; `EBUSY` while it is mounted or has snapshots; `EROFS`; those of a commit.
    pub fn remove_clone(&self, name: &[u8]) -> Result<()> {
        self.remove_tree(|state| {
            let found = state.find_tree(name).ok_or(Errno::NOENT)?;
            let tree = state.record(found)?;
            if tree.kind != TreeKind::Head || tree.name.is_empty() {
                return Err(Errno::NOENT.into());
            }
            let id = tree.id;
            let has_snapshots = state.trees.iter().flatten().any(|other| other.head == id && other.id != id);
            if found == state.head || has_snapshots {
                return Err(Errno::BUSY.into());
            }
            state.mark_removed(found);
            Ok(())
        })
    }

    /// Lets `mark` say that a tree is being removed. What keeps it may itself be about to go.
    fn remove_tree(&self, mark: impl Fn(&mut State) -> Result<()>) -> Result<()> {
        match self.change_trees(|state, _| mark(state)) {
            Err(error) if error.errno() == Errno::BUSY && self.share().state.has_removed() => {
                self.purge()?;
                self.change_trees(|state, _| mark(state))?;
            }
            done => done?,
        }
        // It has gone from the list; what has no room to become free now does so later.
        if self.has_ager() { Ok(()) } else { self.purge().or_else(when_full) }
    }

    /// Frees the blocks of snapshots and clones that are being removed, one after the other, each in one commit. One that cannot be read
    /// does not keep the others.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; those of a commit.
    pub fn purge(&self) -> Result<()> {
        let mut done = Ok(());
        for id in self.removed() {
            match self.purge_tree(id) {
                Err(error) if is_of_reading(&error) => done = done.and(Err(error)),
                purged => purged?,
            }
        }
        done
    }

    /// The trees that are being removed, by what never changes of them.
    fn removed(&self) -> Vec<u64> {
        if self.options().read_only {
            return Vec::new();
        }
        let is_removed = |tree: &&Record| tree.kind == TreeKind::Removed;
        self.share().state.trees.iter().flatten().filter(is_removed).map(|tree| tree.id).collect()
    }

    fn purge_tree(&self, id: u64) -> Result<()> {
        self.change_trees(|state, now| {
            let Some(number) = state.trees.iter().position(|tree| is_removed(tree, id)) else {
                return Ok(());
            };
            state.begin(now);
            let done = state.give_up_tree(number).and_then(|()| state.check_room(Class::Last));
            if done.is_err() {
                state.undo();
                return done;
            }
            state.apply()?;
            state.trees[number] = None;
            state.note_kept();
            Ok(())
        })
    }

    /// The same where nobody asks for it: where damage or what cannot be read keeps a snapshot from going, it stays until it is asked for
    /// again; where there is no room to note what becomes free, until there is some. The volume is used all the same.
    ///
    /// # Errors
    /// Those after which nothing changes any more.
    pub(super) fn purge_beside(&self) -> Result<()> {
        if self.is_stuck() { Ok(()) } else { self.or_stuck(self.purge()) }
    }

    fn or_stuck(&self, purged: Result<()>) -> Result<()> {
        match purged.or_else(when_full) {
            Err(_) if !self.has_ended() => {
                self.note_stuck();
                Ok(())
            }
            done => done,
        }
    }

    /// The same in the background, each after a look that keeps nobody waiting, between whose pieces `meanwhile` is done: an error of it,
    /// or that it says no, puts the removal off.
    ///
    /// # Errors
    /// As [`Waffle::purge_beside`], and those of `meanwhile`.
    pub(super) fn purge_slowly(&self, meanwhile: &dyn Fn() -> Result<bool>) -> Result<()> {
        if self.is_stuck() {
            return Ok(());
        }
        for id in self.removed() {
            if !self.read_ahead(id, meanwhile)? {
                return Ok(());
            }
            self.or_stuck(self.purge_tree(id))?;
        }
        Ok(())
    }

    /// Brings into memory what removing a tree looks at, a piece after the other: nobody waits for the medium then while it has the tree
    /// to itself. What cannot be read is left to the removal to tell. Returns whether it may begin.
    fn read_ahead(&self, id: u64, meanwhile: &dyn Fn() -> Result<bool>) -> Result<bool> {
        let mut left = None;
        while meanwhile()? {
            let core = self.share();
            let state = &core.state;
            let Some(number) = state.trees.iter().position(|tree| is_removed(tree, id)) else {
                return Ok(true);
            };
            let (Ok(only), Ok(tree)) = (state.only(number), state.record(number)) else { return Ok(true) };
            let left = left.get_or_insert_with(|| Left::of(Obj::Inodes, tree.inodes));
            for _ in 0..AHEAD {
                let Some(next) = left.stack.pop() else { return Ok(true) };
                let looked = state.pass(only, next, left).and_then(|alone| match alone {
                    Some(alone) => state.shares(alone.block).map(drop),
                    None => Ok(()),
                });
                if looked.is_err() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Changes the table of trees when everything is stable, and makes that stable.
    pub(super) fn change_trees(&self, work: impl Fn(&mut State, Timestamp) -> Result<()>) -> Result<()> {
        if self.options().read_only {
            return Err(Errno::ROFS.into());
        }
        let now = self.now();
        self.at_rest(|state| {
            let (trees, next) = (state.trees.clone(), state.root.next_tree);
            work(state, now).inspect_err(|_| {
                (state.trees, state.root.next_tree) = (trees, next);
                state.note_kept();
            })?;
            state.note_change();
            Ok(())
        })?;
        self.sync_all()
    }
}
