//! Trees of blocks: looking at them, and changing them in memory.
//!
//! A node is known by where it is: its object, its level and its index there. What has changed since the last commit is in memory, with
//! all nodes above it; what has not is found from the root down, and its sum is compared.

use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Errno, Error, IoOp, Le, Result, Structure};
use rustc_hash::FxHashSet;

use super::layout::inode::{INODE_BYTES, Inode, Slot, place};
use super::layout::pointer::{Fork, REF_BYTES, Ref, SHARED, covers, slot_of, span};
use super::layout::{BLOCK, FAN, HEIGHT_MAX, sum};
use super::marks::MARKS;
use super::state::{State, record_place};

/// What a tree of blocks is of. In the order in which a commit goes: what has references comes after what they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Obj {
    /// The contents of an inode.
    Data(u64),
    /// The attributes of an inode.
    Xattrs(u64),
    /// The table of shared blocks.
    Shared,
    /// The inodes.
    Inodes,
    /// The table of trees.
    Trees,
}

impl Obj {
    /// What its blocks hold, for the device.
    pub(super) fn kind(self, level: u8) -> BlockKind {
        match (level, self) {
            (1.., _) => BlockKind::Indirect,
            (0, Self::Data(_)) => BlockKind::Directory,
            (0, Self::Xattrs(_)) => BlockKind::Attribute,
            (0, Self::Inodes) => BlockKind::Inode,
            (0, Self::Shared | Self::Trees) => BlockKind::GroupDescriptor,
        }
    }

    /// What is damaged where its blocks are.
    pub(super) fn structure(self) -> Structure {
        match self {
            Self::Data(ino) | Self::Xattrs(ino) => Structure::Inode(ino),
            Self::Inodes => Structure::Other("inodes"),
            Self::Shared => Structure::Other("table of shared blocks"),
            Self::Trees => Structure::Other("table of trees"),
        }
    }
}

/// Where a node is.
pub(super) type Key = (Obj, u8, u64);

/// A node that has changed.
pub(super) type Node = Arc<BlockBuf>;

/// A walk over an object's leaves.
struct LeafWalk<'a> {
    tree: usize,
    range: (u64, u64),
    /// Blocks of nodes that have nodes below them: no tree has one of these twice.
    passed: FxHashSet<u64>,
    visit: &'a mut dyn FnMut(u64) -> bool,
}

/// Whether two references of a node lead to one block. Of contents files may share those, but never nodes.
pub(super) fn has_twice(node: &[u8]) -> bool {
    let mut blocks: Vec<u64> = (0..to_usize(FAN)).map(|slot| Ref::slot(node, slot).block).collect();
    blocks.retain(|&block| block != 0);
    blocks.sort_unstable();
    blocks.windows(2).any(|pair| pair[0] == pair[1])
}

/// Numbers in a leaf of the table of shared blocks.
pub(super) const COUNTS_IN_BLOCK: u64 = 1024;
/// References beyond the first that nobody has counted: the block is not given up, until a check counts them.
pub(super) const UNCOUNTED: u32 = u32::MAX;

impl State {
    /// Damage in a tree, or where a reference in it leads.
    pub(super) fn damaged(
        (obj, level, index): Key,
        block: impl Into<Option<u64>>,
        problem: impl std::fmt::Display,
    ) -> Error {
        let part = if matches!(obj, Obj::Xattrs(_)) { "attributes" } else { "contents" };
        let problem = format!("{part}, level {level}, index {index}: {problem}");
        Error::corrupt(obj.structure(), block.into().map(BlockNo), problem)
    }

    /// A block that a reference leads to, compared with its sum.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn load(&self, reference: Ref, key: Key, kind: BlockKind) -> Result<Arc<BlockBuf>> {
        match key {
            (Obj::Data(_), 0, _) => self.check_leaf(reference, key)?,
            _ => {
                if let Some(problem) = reference.problem(self.data(), self.generation()) {
                    return Err(Self::damaged(key, None, problem));
                }
            }
        }
        let (_, bytes) = self.cache.read_snapshot(BlockNo(reference.block), kind)?;
        self.compare(reference, key, &bytes)?;
        Ok(bytes)
    }

    /// # Errors
    /// `Corrupt` if a block is another one than a reference says.
    pub(super) fn compare(&self, reference: Ref, key: Key, bytes: &[u8]) -> Result<()> {
        let found = sum(bytes);
        if found == reference.sum {
            return Ok(());
        }
        let problem = format!("the sum is {found:#x}, and should be {:#x}", reference.sum);
        Err(Self::damaged(key, reference.block, problem))
    }

    /// The fork of an object in a tree.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub(super) fn fork(&self, tree: usize, obj: Obj) -> Result<Fork> {
        Ok(match obj {
            Obj::Data(ino) => self.inode_in_leaf(tree, ino)?.data,
            Obj::Xattrs(ino) => self.inode_in_leaf(tree, ino)?.xattrs,
            Obj::Shared => self.root.shared,
            Obj::Inodes => self.record(tree)?.inodes,
            Obj::Trees => self.root.trees,
        })
    }

    /// A tree's record.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    pub(super) fn record(&self, tree: usize) -> Result<&super::layout::record::Record> {
        self.trees.get(tree).and_then(Option::as_ref).ok_or_else(|| Errno::STALE.into())
    }

    /// Whether changes of an object in a tree are in memory.
    fn is_ours(&self, tree: usize, obj: Obj) -> bool {
        tree == self.head || matches!(obj, Obj::Shared | Obj::Trees)
    }

    /// A node of a tree that has changed since the last commit.
    pub(super) fn node_in_memory(&self, tree: usize, key: Key) -> Option<Node> {
        self.nodes.get(&key).filter(|_| self.is_ours(tree, key.0)).cloned()
    }

    /// A node of an object in a tree; `None` where there is none.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn node(&self, tree: usize, obj: Obj, level: u8, index: u64) -> Result<Option<Node>> {
        self.node_in(tree, obj, level, index, None)
    }

    /// The same of an object whose fork is known, if it is: looking for that takes as long as looking for the node.
    pub(super) fn node_in(
        &self,
        tree: usize,
        obj: Obj,
        level: u8,
        index: u64,
        fork: Option<Fork>,
    ) -> Result<Option<Node>> {
        if self.is_ours(tree, obj)
            && let Some(node) = self.nodes.get(&(obj, level, index))
        {
            return Ok(Some(Arc::clone(node)));
        }
        let reference = self.reference_in(tree, obj, level, index, fork)?;
        if reference.is_none() {
            return Ok(None);
        }
        if let Some(node) = self.known.get(reference) {
            return Ok(Some(node));
        }
        let node = self.load(reference, (obj, level, index), obj.kind(level))?;
        self.known.insert(reference, &node);
        Ok(Some(node))
    }

    /// The reference to a node; none also while the node is in memory only.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn reference(&self, tree: usize, obj: Obj, level: u8, index: u64) -> Result<Ref> {
        self.reference_in(tree, obj, level, index, None)
    }

    fn reference_in(&self, tree: usize, obj: Obj, level: u8, index: u64, fork: Option<Fork>) -> Result<Ref> {
        let parent = (obj, level + 1, index / FAN);
        if self.is_ours(tree, obj)
            && let Some(node) = self.nodes.get(&parent)
        {
            return Ok(Ref::slot(node, slot_of(index)));
        }
        let fork = match fork {
            Some(fork) => fork,
            None => self.fork(tree, obj)?,
        };
        if level > fork.height || !covers(fork.height - level, index) {
            return Ok(Ref::NONE);
        }
        if level == fork.height {
            return Ok(fork.root);
        }
        let above = self.node_in(tree, obj, level + 1, index / FAN, Some(fork))?;
        Ok(above.map_or(Ref::NONE, |node| Ref::slot(&node, slot_of(index))))
    }

    // ---- inodes in their leaves ----

    /// What an inode number stands for.
    ///
    /// # Errors
    /// `ESTALE` for numbers that no inode has; `Io`, `Corrupt`.
    pub(super) fn slot(&self, tree: usize, ino: u64) -> Result<Slot> {
        if ino == 0 || ino >= self.record(tree)?.ino_end {
            return Err(Errno::STALE.into());
        }
        self.slot_in_leaf(tree, ino)
    }

    /// The same, wherever the tree says that its inodes end: what is in a leaf has its blocks.
    fn slot_in_leaf(&self, tree: usize, ino: u64) -> Result<Slot> {
        let (leaf, at) = place(ino);
        if self.is_ours(tree, Obj::Inodes)
            && let Some(bytes) = self.nodes.get(&(Obj::Inodes, 0, leaf))
        {
            return Slot::decode(&bytes[at..at + INODE_BYTES], ino);
        }
        if let Some(bytes) = self.leaves.get(tree, leaf) {
            return Slot::decode(&bytes[at..at + INODE_BYTES], ino);
        }
        match self.node(tree, Obj::Inodes, 0, leaf)? {
            Some(bytes) => {
                self.leaves.insert(tree, leaf, &bytes);
                Slot::decode(&bytes[at..at + INODE_BYTES], ino)
            }
            None => Slot::decode(&[0; INODE_BYTES], ino),
        }
    }

    /// An inode that is in use.
    ///
    /// # Errors
    /// `ESTALE` if it is not; `Io`, `Corrupt`.
    pub(super) fn inode(&self, tree: usize, ino: u64) -> Result<Inode> {
        match self.slot(tree, ino)? {
            Slot::Used(inode) => Ok(inode),
            Slot::Free(_) => Err(Errno::STALE.into()),
        }
    }

    fn inode_in_leaf(&self, tree: usize, ino: u64) -> Result<Inode> {
        match self.slot_in_leaf(tree, ino)? {
            Slot::Used(inode) => Ok(inode),
            Slot::Free(_) => Err(Errno::STALE.into()),
        }
    }

    /// Changes an inode.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub(super) fn change_inode(&mut self, ino: u64, how: impl FnOnce(&mut Inode)) -> Result<()> {
        let mut inode = self.inode(self.head, ino)?;
        how(&mut inode);
        self.has_marks |= inode.flags & MARKS != 0;
        let (leaf, at) = place(ino);
        inode.write(&mut self.touch(Obj::Inodes, 0, leaf)?[at..at + INODE_BYTES]);
        Ok(())
    }

    // ---- changing ----

    /// What an object's fork is in is in memory, to be changed.
    fn anchor(&mut self, obj: Obj) -> Result<()> {
        match obj {
            Obj::Data(ino) | Obj::Xattrs(ino) => self.touch(Obj::Inodes, 0, place(ino).0).map(drop),
            Obj::Inodes => self.touch(Obj::Trees, 0, record_place(self.head).0).map(drop),
            Obj::Shared | Obj::Trees => Ok(()),
        }
    }

    /// Gives an object another fork.
    ///
    /// # Errors
    /// As [`State::inode`].
    pub(super) fn set_fork(&mut self, obj: Obj, fork: Fork) -> Result<()> {
        self.anchor(obj)?;
        match obj {
            Obj::Data(ino) => self.change_inode(ino, |inode| inode.data = fork)?,
            Obj::Xattrs(ino) => self.change_inode(ino, |inode| inode.xattrs = fork)?,
            Obj::Inodes => self.head_mut().inodes = fork,
            Obj::Shared => self.root.shared = fork,
            Obj::Trees => self.root.trees = fork,
        }
        Ok(())
    }

    /// A node in memory, to be changed; it is made if there is none.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `EFBIG` beyond the reach of trees.
    pub(super) fn touch(&mut self, obj: Obj, level: u8, index: u64) -> Result<&mut [u8]> {
        let key = (obj, level, index);
        if !self.nodes.contains_key(&key) {
            self.bring(key)?;
        }
        self.note(key);
        let node = self.nodes.get_mut(&key).expect("it was brought");
        Ok(&mut Arc::make_mut(node)[..])
    }

    fn bring(&mut self, key: Key) -> Result<()> {
        let (obj, level, index) = key;
        self.grow(obj, level, index)?;
        let fork = self.fork(self.head, obj)?;
        let reference = if level == fork.height {
            self.set_fork(obj, Fork { root: Ref::NONE, ..fork })?;
            fork.root
        } else {
            self.take_slot(obj, level + 1, index, Ref::NONE)?
        };
        let node = match reference.is_none() {
            true => Arc::new(BlockBuf::zeroed(BLOCK)),
            false => self.load(reference, key, obj.kind(level))?,
        };
        self.note(key);
        self.nodes.insert(key, node);
        // It may have the count of its own block.
        self.release(obj, reference)
    }

    /// Puts a reference in the place of the one to node `index` of the level below `level`, and returns that.
    fn take_slot(&mut self, obj: Obj, level: u8, index: u64, new: Ref) -> Result<Ref> {
        let node = self.touch(obj, level, index / FAN)?;
        let at = slot_of(index) * REF_BYTES;
        let old = Ref::read(node, at);
        new.write(node, at);
        Ok(old)
    }

    /// Makes an object so high that a node of this level is within its reach.
    fn grow(&mut self, obj: Obj, level: u8, index: u64) -> Result<()> {
        loop {
            let fork = self.fork(self.head, obj)?;
            if fork.height >= level && covers(fork.height - level, index) {
                return Ok(());
            }
            if fork.height == HEIGHT_MAX {
                return Err(Errno::FBIG.into());
            }
            let height = fork.height + 1;
            let has_top = !fork.root.is_none() || self.nodes.contains_key(&(obj, fork.height, 0));
            if has_top {
                let mut node = BlockBuf::zeroed(BLOCK);
                fork.root.write(&mut node, 0);
                let key = (obj, height, 0);
                self.note(key);
                self.nodes.insert(key, Arc::new(node));
            }
            self.set_fork(obj, Fork { root: Ref::NONE, height })?;
        }
    }

    /// The reference to leaf `index` of a file's contents.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn leaf(&self, tree: usize, obj: Obj, index: u64) -> Result<Ref> {
        self.reference(tree, obj, 0, index)
    }

    /// Gives a file's contents another leaf, and returns the one that was there: it is not given up.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `EFBIG`.
    pub(super) fn set_leaf(&mut self, obj: Obj, index: u64, new: Ref) -> Result<Ref> {
        self.grow(obj, 0, index)?;
        let fork = self.fork(self.head, obj)?;
        if fork.height > 0 {
            return self.take_slot(obj, 1, index, new);
        }
        self.set_fork(obj, Fork { root: new, ..fork })?;
        Ok(fork.root)
    }

    // ---- giving up ----

    /// Gives up what a reference of an object leads to, unless a snapshot or another file has it, too.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn release(&mut self, obj: Obj, reference: Ref) -> Result<()> {
        // Tables are of the volume, and in no snapshot.
        let is_kept = !matches!(obj, Obj::Shared | Obj::Trees) && reference.birth <= self.kept;
        if reference.is_none() || is_kept {
            return Ok(());
        }
        if matches!(obj, Obj::Shared | Obj::Trees) {
            self.check_leaf(reference, (obj, 0, 0))?;
            // Nor does anybody share them, but for damage. Then, or where nobody knows, it stays until a check has counted: lowering the
            // count would be another change of a table.
            return match self.shares(reference.block) {
                Ok(0) => {
                    let Self { map, cache, .. } = self;
                    map.give_up(cache, reference.block)
                }
                Ok(_) | Err(Error::Corrupt(_) | Error::Io { op: IoOp::Read, .. }) => Ok(()),
                Err(error) => Err(error),
            };
        }
        self.free(reference)
    }

    /// The same for who knows that no snapshot has it.
    pub(super) fn free(&mut self, reference: Ref) -> Result<()> {
        self.check_leaf(reference, (Obj::Inodes, 0, 0))?;
        match self.shares(reference.block)? {
            0 => {
                let Self { map, cache, .. } = self;
                map.give_up(cache, reference.block)
            }
            UNCOUNTED => Ok(()),
            count => self.set_shares(reference.block, count - 1),
        }
    }

    /// How many references beyond the first a block has.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn shares(&self, block: u64) -> Result<u32> {
        let (leaf, at) = shares_place(block);
        if self.root.shared == Fork::default() && !self.nodes.contains_key(&(Obj::Shared, 0, leaf)) {
            return Ok(0);
        }
        Ok(self.node(self.head, Obj::Shared, 0, leaf)?.map_or(0, |node| Le::u32(&node, at)))
    }

    /// Says how many.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn set_shares(&mut self, block: u64, count: u32) -> Result<()> {
        let (leaf, at) = shares_place(block);
        Le::put_u32(self.touch(Obj::Shared, 0, leaf)?, at, count);
        Ok(())
    }

    /// Whether contents that a reference leads to may be written where they are: nobody else has them, and no root.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn is_own(&self, reference: Ref) -> Result<bool> {
        let is_new =
            !reference.is_none() && reference.birth == self.generation() && reference.flags & SHARED == 0;
        Ok(is_new && self.shares(reference.block)? == 0)
    }

    /// Gives up the leaves `from..to` of an object, and the nodes that have no others; returns how many leaves of contents. With
    /// all of them, nothing is left.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn cut(&mut self, obj: Obj, from: u64, to: u64) -> Result<u64> {
        let fork = self.fork(self.head, obj)?;
        if from == 0 && to == u64::MAX {
            let leaves = self.drop_below((obj, fork.height, 0), fork.root, &mut FxHashSet::default())?;
            if fork != Fork::default() {
                self.set_fork(obj, Fork::default())?;
            }
            return Ok(leaves);
        }
        self.cut_below((obj, fork.height, 0), (from, to))
    }

    /// The same below a node that may have others.
    fn cut_below(&mut self, key: Key, (from, to): (u64, u64)) -> Result<u64> {
        let (obj, level, index) = key;
        let size = span(level);
        let (first, end) = (index * size, (index * size).saturating_add(size));
        if from >= end || to <= first {
            return Ok(0);
        }
        if from <= first && end <= to {
            let reference = if level == self.fork(self.head, obj)?.height {
                let fork = self.fork(self.head, obj)?;
                self.set_fork(obj, Fork { root: Ref::NONE, ..fork })?;
                fork.root
            } else {
                self.take_slot(obj, level + 1, index, Ref::NONE)?
            };
            return self.drop_below(key, reference, &mut FxHashSet::default());
        }
        if self.node(self.head, obj, level, index)?.is_none() {
            return Ok(0);
        }
        let step = span(level - 1);
        let mut leaves = 0;
        for slot in 0..FAN {
            let begin = first + slot * step;
            let child = (obj, level - 1, index * FAN + slot);
            if begin >= to || begin.saturating_add(step) <= from || !self.is_there(child)? {
                continue;
            }
            leaves += self.cut_below(child, (from, to))?;
        }
        Ok(leaves)
    }

    /// Whether there is a node, in memory or on the medium.
    fn is_there(&self, key: Key) -> Result<bool> {
        let (obj, level, index) = key;
        Ok(self.nodes.contains_key(&key) || !self.reference(self.head, obj, level, index)?.is_none())
    }

    /// Gives up a node, to which there is this reference unless it is in memory only, and all below it. What damage leads to from more than
    /// one node is passed once.
    fn drop_below(&mut self, key: Key, reference: Ref, passed: &mut FxHashSet<u64>) -> Result<u64> {
        let (obj, level, index) = key;
        let is_ours = self.nodes.contains_key(&key);
        let mut leaves = u64::from(level == 0 && (is_ours || !reference.is_none()));
        if level > 0 && (is_ours || !reference.is_none()) {
            let node = match self.nodes.get(&key) {
                Some(node) => Arc::clone(node),
                None => match self.load(reference, key, obj.kind(level)) {
                    // What is below a damaged node stays marked as used, until a check knows better: what has it can go all the same.
                    Err(Error::Corrupt(_)) => {
                        self.release_sound(obj, reference)?;
                        return Ok(leaves);
                    }
                    found => found?,
                },
            };
            for slot in 0..FAN {
                let child = (obj, level - 1, index * FAN + slot);
                let below = Ref::slot(&node, to_usize(slot));
                // Below what is not in memory nothing is.
                if !below.is_none() || is_ours && self.nodes.contains_key(&child) {
                    let is_again = level > 2 && !below.is_none() && !passed.insert(below.block);
                    if !is_again {
                        leaves += self.drop_below(child, below, passed)?;
                    }
                }
            }
        }
        if is_ours {
            self.note(key);
            self.nodes.remove(&key);
        }
        self.release_sound(obj, reference)?;
        Ok(leaves)
    }

    /// Calls `visit` with the leaves of an object in `from..to` that are there, in their order, until it says no.
    ///
    /// # Errors
    /// `Io`; `Corrupt` also where a node is in more than one place, by which few blocks would have leaves without end.
    pub(super) fn walk_leaves(
        &self,
        tree: usize,
        obj: Obj,
        range: (u64, u64),
        visit: &mut dyn FnMut(u64) -> bool,
    ) -> Result<()> {
        let fork = self.fork(tree, obj)?;
        let mut walk = LeafWalk { tree, range, passed: FxHashSet::default(), visit };
        self.walk_below(&mut walk, (obj, fork.height, 0)).map(drop)
    }

    fn walk_below(&self, walk: &mut LeafWalk<'_>, (obj, level, index): Key) -> Result<bool> {
        let (tree, (from, to)) = (walk.tree, walk.range);
        let first = index * span(level);
        if first >= to || first.saturating_add(span(level)) <= from {
            return Ok(true);
        }
        let is_ours = self.is_ours(tree, obj);
        if level == 0 {
            let is_there = is_ours && self.nodes.contains_key(&(obj, 0, index))
                || !self.reference(tree, obj, 0, index)?.is_none();
            return Ok(!is_there || (walk.visit)(index));
        }
        let Some(node) = self.node(tree, obj, level, index)? else { return Ok(true) };
        let step = span(level - 1);
        let begin = from.saturating_sub(first) / step;
        if level > 1 && has_twice(&node) {
            return Err(Self::damaged((obj, level, index), None, "two of its references lead to one node"));
        }
        for slot in begin..FAN {
            let child = (obj, level - 1, index * FAN + slot);
            let below = Ref::slot(&node, to_usize(slot));
            if level > 2 && !below.is_none() && !walk.passed.insert(below.block) {
                return Err(Self::damaged(child, below.block, "this node is elsewhere in the tree as well"));
            }
            let is_there = !below.is_none() || is_ours && self.nodes.contains_key(&child);
            if is_there && !self.walk_below(walk, child)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts a node in the place of one that cannot be read, or none. What that led to is in nobody's hands unless the new one has it.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn replace_node(&mut self, key: Key, new: Option<BlockBuf>) -> Result<()> {
        let (obj, level, index) = key;
        let fork = self.fork(self.head, obj)?;
        let old = if level == fork.height {
            self.set_fork(obj, Fork { root: Ref::NONE, ..fork })?;
            fork.root
        } else {
            self.take_slot(obj, level + 1, index, Ref::NONE)?
        };
        self.release_sound(obj, old)?;
        self.leaves.forget();
        self.note(key);
        match new {
            Some(node) => drop(self.nodes.insert(key, Arc::new(node))),
            None => drop(self.nodes.remove(&key)),
        }
        Ok(())
    }

    /// Gives up what a reference leads to, unless it leads nowhere that could be given up.
    fn release_sound(&mut self, obj: Obj, reference: Ref) -> Result<()> {
        match self.check_leaf(reference, (obj, 0, 0)) {
            Ok(()) => self.release(obj, reference),
            Err(_) => Ok(()),
        }
    }

    /// Takes a free block.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn take(&mut self, goal: Option<u64>) -> Result<u64> {
        let Self { map, cache, .. } = self;
        map.take(cache, goal)?.ok_or_else(|| Errno::NOSPC.into())
    }

    /// Checks that what has changed can be committed.
    ///
    /// # Panics
    /// If an invariant does not hold (`docs/design/waffle.md`).
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        self.map.check_invariants();
        for &(obj, level, index) in self.nodes.keys() {
            let fork = self.fork(self.head, obj).expect("the fork of what has changed");
            let is_anchored = match obj {
                Obj::Data(ino) | Obj::Xattrs(ino) => self.nodes.contains_key(&(Obj::Inodes, 0, place(ino).0)),
                _ => true,
            };
            let parent = (obj, level + 1, index / FAN);
            assert!(
                is_anchored && (level == fork.height || self.nodes.contains_key(&parent)),
                "{obj:?} {level} {index}"
            );
        }
        assert!(
            self.map.avail() >= fstitch_core::num::to_u64(self.nodes.len()),
            "blocks for what has changed"
        );
    }
}

/// Where the count of a block is.
pub(super) fn shares_place(block: u64) -> (u64, usize) {
    (block / COUNTS_IN_BLOCK, to_usize(block % COUNTS_IN_BLOCK) * 4)
}
