//! The volume in memory: its root, its trees, what has changed since the last commit, and how an operation is undone.
//!
//! **States** of an operation: [`State::begin`] → changes → [`State::check_room`] → [`State::apply`], or [`State::undo`] at any
//! point before. Nothing that can fail comes after `check_room`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Errno, Error, Result, Structure, Timestamp};
use fstitch_patch::{Cache, PatchId, PatchState};
use rustc_hash::FxHashMap;

use super::cluster::Clusters;
use super::known::{Known, Leaves};
use super::layout::BLOCK;
use super::layout::pointer::Fork;
use super::layout::record::{RECORD_BYTES, RECORDS_IN_BLOCK, RECORDS_MAX, Record, TreeKind};
use super::layout::root::Root;
use super::map::Map;
use super::tree::{Key, Node, Obj};
use super::volume::InUse;

/// The largest reserve, in blocks.
const RESERVE_MAX: u64 = 4096;
/// The smallest: a path of every kind that one operation changes.
const RESERVE_MIN: u64 = 24;
/// The share of the volume that it is.
const RESERVE_SHARE: u64 = 64;
/// Blocks that a commit may take beside those of the changed nodes: a path in the table of trees.
const COMMIT_SLACK: u64 = 6;
/// Blocks for each of which the counts of shared blocks, and what is above them, take one.
const COUNTS_SHARE: u64 = 1000;

/// What an operation does with the space that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It makes or fills something.
    Takes,
    /// It takes something away, or changes no more than an inode.
    Gives,
    /// It removes a snapshot.
    Last,
}

/// What is put back when an operation is undone.
#[derive(Default)]
struct Undo {
    nodes: BTreeMap<Key, Option<Node>>,
    head: Option<Record>,
    forks: Option<(Fork, Fork)>,
    incompat: Option<u64>,
    /// Inodes that were claimed to be freed.
    claimed: Vec<Arc<InUse>>,
}

/// The volume in memory.
pub(super) struct State {
    pub(super) cache: Arc<Cache>,
    /// The last root that was made, with the forks as they are now.
    pub(super) root: Root,
    /// All trees, by the numbers of their records.
    pub(super) trees: Vec<Option<Record>>,
    /// The record of the tree that is mounted.
    pub(super) head: usize,
    /// No block that is older may be given up: a snapshot has it.
    pub(super) kept: u64,
    pub(super) map: Map,
    /// Changed nodes.
    pub(super) nodes: FxHashMap<Key, Node>,
    /// Others that were looked at.
    pub(super) known: Known,
    /// Leaves of inodes that were looked at and are not in memory to be changed, as they are until the next commit.
    pub(super) leaves: Leaves,
    /// An inode was changed whose changes are to be stable at once.
    pub(super) has_marks: bool,
    pub(super) clusters: Clusters,
    undo: Undo,
    /// Contents of files that the operation under way has made.
    staged: Vec<(u64, Arc<BlockBuf>)>,
    /// Patches of this generation.
    pub(super) patches: Vec<PatchId>,
    /// The last root's patch.
    pub(super) last_root: PatchId,
    /// When the first change of this generation was made.
    pub(super) changed_at: Option<Duration>,
    /// The volume's time.
    pub(super) now: Timestamp,
}

impl State {
    /// A volume of which nothing is on the medium.
    pub(super) fn new(cache: Arc<Cache>, root: Root, head: Record) -> Self {
        let map = Map::empty(root.blocks);
        Self::of(cache, root, vec![Some(head)], map)
    }

    fn of(cache: Arc<Cache>, root: Root, trees: Vec<Option<Record>>, map: Map) -> Self {
        Self {
            cache,
            now: root.at,
            root,
            trees,
            head: 0,
            kept: 0,
            map,
            nodes: FxHashMap::default(),
            known: Known::default(),
            leaves: Leaves::default(),
            has_marks: false,
            clusters: Clusters::default(),
            undo: Undo::default(),
            staged: Vec::new(),
            patches: Vec::new(),
            last_root: PatchId::NONE,
            changed_at: None,
        }
    }

    /// The volume that a root is of, with the tree of this name (empty for the first one) mounted.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `ENOENT` if there is no such tree.
    pub(super) fn open(cache: Arc<Cache>, root: Root, name: &[u8]) -> Result<Self> {
        let map = Map::open(&cache, root.blocks, root.map, root.generation)?;
        Self::with_map(cache, root, map, name)
    }

    /// The same, with a map that says nothing where the one on the medium cannot be read.
    ///
    /// # Errors
    /// As [`State::open`].
    pub(super) fn open_damaged(cache: Arc<Cache>, root: Root) -> Result<Self> {
        let map = match Map::open(&cache, root.blocks, root.map, root.generation) {
            Err(Error::Corrupt(_)) => Map::lost(root.blocks),
            found => found?,
        };
        Self::with_map(cache, root, map, b"")
    }

    fn with_map(cache: Arc<Cache>, root: Root, map: Map, name: &[u8]) -> Result<Self> {
        if root.records > RECORDS_MAX {
            let problem = format!("it says that there are {} trees", root.records);
            return Err(Error::corrupt(Structure::Superblock, BlockNo(root.place()), problem));
        }
        let mut state = Self::of(cache, root, Vec::new(), map);
        for number in 0..state.root.records {
            let (leaf, at) = record_place(to_usize(number));
            let record = match state.node(0, Obj::Trees, 0, leaf)? {
                Some(bytes) => Record::decode(&bytes[at..at + RECORD_BYTES], number)?,
                None => None,
            };
            state.check_record(number, record.as_ref())?;
            state.trees.push(record);
        }
        let found = state.find_tree(name).ok_or(Errno::NOENT)?;
        if state.record(found)?.kind == TreeKind::Removed {
            return Err(Errno::NOENT.into());
        }
        state.head = found;
        state.note_kept();
        Ok(state)
    }

    fn check_record(&self, number: u32, record: Option<&Record>) -> Result<()> {
        let damaged = |problem: String| {
            let problem = format!("record {number}: {problem}");
            Err(Error::corrupt(Structure::Other("table of trees"), None, problem))
        };
        let Some(record) = record else {
            return if number == 0 { damaged("the first tree is missing".into()) } else { Ok(()) };
        };
        if record.id >= self.root.next_tree || record.generation > self.root.generation {
            return damaged(format!("tree {} of generation {}", record.id, record.generation));
        }
        match record.inodes.root.problem(self.data(), self.root.generation) {
            Some(problem) => damaged(format!("the reference to its inodes: {problem}")),
            None => Ok(()),
        }
    }

    /// The number of the record with this name, which may be being removed.
    pub(super) fn find_tree(&self, name: &[u8]) -> Option<usize> {
        self.trees.iter().position(|tree| tree.as_ref().is_some_and(|tree| tree.name == name))
    }

    /// Finds out which blocks snapshots keep.
    pub(super) fn note_kept(&mut self) {
        let head = self.head();
        let (id, generation) = (head.id, head.generation);
        let of_head = |tree: &&Record| tree.kind != TreeKind::Head && tree.head == id;
        let snapshots = self.trees.iter().flatten().filter(of_head).map(|tree| tree.generation);
        self.kept = snapshots.fold(generation, u64::max);
    }

    /// The tree that is mounted.
    pub(super) fn head(&self) -> &Record {
        self.trees[self.head].as_ref().expect("a tree that is mounted is there")
    }

    /// The same, to be changed.
    pub(super) fn head_mut(&mut self) -> &mut Record {
        self.trees[self.head].as_mut().expect("a tree that is mounted is there")
    }

    /// The generation that is being made.
    pub(super) fn generation(&self) -> u64 {
        self.root.generation + 1
    }

    /// The blocks that data may be in.
    pub(super) fn data(&self) -> (u64, u64) {
        (self.map.shape().end, self.root.blocks)
    }

    /// Whether anything has changed since the last commit.
    pub(super) fn is_changed(&self) -> bool {
        self.changed_at.is_some()
    }

    /// Whether the last root is stable.
    pub(super) fn is_settled(&self) -> bool {
        self.cache.state(self.last_root) == PatchState::Committed
    }

    /// Bytes of memory beside the cache.
    pub(super) fn memory(&self) -> usize {
        self.nodes.len() * BLOCK + self.map.memory()
    }

    // ---- operations ----

    /// An operation begins.
    pub(super) fn begin(&mut self, now: Timestamp) {
        debug_assert!(self.staged.is_empty() && self.undo.nodes.is_empty(), "one operation at a time");
        self.now = now;
        self.undo.head = Some(self.head().clone());
        self.undo.forks = Some((self.root.trees, self.root.shared));
        self.undo.incompat = Some(self.root.incompat);
        self.map.begin();
    }

    /// A node is about to be changed, made or taken away by the operation under way.
    pub(super) fn note(&mut self, key: Key) {
        let Self { undo, nodes, .. } = self;
        undo.nodes.entry(key).or_insert_with(|| nodes.get(&key).cloned());
    }

    /// An inode was claimed to be freed.
    pub(super) fn note_claim(&mut self, node: Arc<InUse>) {
        self.undo.claimed.push(node);
    }

    /// Everything is as it was when the operation began.
    pub(super) fn undo(&mut self) {
        self.staged.clear();
        let undo = std::mem::take(&mut self.undo);
        for (key, node) in undo.nodes {
            match node {
                Some(node) => drop(self.nodes.insert(key, node)),
                None => drop(self.nodes.remove(&key)),
            }
        }
        if let Some(head) = undo.head {
            *self.head_mut() = head;
        }
        if let Some((trees, shared)) = undo.forks {
            (self.root.trees, self.root.shared) = (trees, shared);
        }
        self.root.incompat = undo.incompat.unwrap_or(self.root.incompat);
        for node in undo.claimed {
            node.unclaim();
        }
        self.map.undo();
    }

    /// The blocks that an operation must leave free, beside those that the commit will take.
    pub(super) fn reserve(&self, class: Class) -> u64 {
        let all = (self.root.blocks / RESERVE_SHARE).clamp(RESERVE_MIN, RESERVE_MAX);
        // A snapshot that goes may change each count of the volume.
        let counts = if self.root.shared == Fork::default() { 0 } else { self.root.blocks / COUNTS_SHARE };
        match class {
            Class::Takes => all + counts,
            Class::Gives => all / 4 + counts,
            Class::Last => 0,
        }
    }

    /// Fails unless the commit can still be made, with what must be left.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(super) fn check_room(&self, class: Class) -> Result<()> {
        let wanted = to_u64(self.nodes.len()) + COMMIT_SLACK + self.reserve(class);
        if self.map.avail() >= wanted { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }

    /// Contents of a block of a file, which the operation under way has made.
    pub(super) fn stage(&mut self, block: u64, bytes: Arc<BlockBuf>) {
        self.staged.push((block, bytes));
    }

    /// The operation has happened: its contents go to the cache.
    ///
    /// # Errors
    /// None for blocks of the volume.
    pub(super) fn apply(&mut self) -> Result<()> {
        self.undo = Undo::default();
        self.note_change();
        self.write_staged()
    }

    /// Contents that were made go to the cache.
    ///
    /// # Errors
    /// None for blocks of the volume.
    pub(super) fn write_staged(&mut self) -> Result<()> {
        let staged = std::mem::take(&mut self.staged);
        self.write(BlockKind::Data, staged)
    }

    /// Contents that the operation under way has made of a block, which is not in the cache yet.
    pub(super) fn staged(&self, block: u64) -> Option<&Arc<BlockBuf>> {
        self.staged.iter().rev().find(|(other, _)| *other == block).map(|(_, bytes)| bytes)
    }

    /// There is something to commit.
    pub(super) fn note_change(&mut self) {
        if self.changed_at.is_none() {
            self.changed_at = Some(self.cache.clock().elapsed());
        }
    }

    /// Makes patches of blocks that no root reaches, after the last root.
    ///
    /// # Errors
    /// None for blocks of the volume.
    pub(super) fn write(&mut self, kind: BlockKind, blocks: Vec<(u64, Arc<BlockBuf>)>) -> Result<()> {
        let fresh = blocks
            .into_iter()
            .map(|(block, bytes)| self.cache.fresh(BlockNo(block), kind).map(|block| (block, bytes)));
        let fresh = fresh.collect::<Result<Vec<_>>>()?;
        // They may be where a block was that only the root before the last one reaches.
        let befores = [self.last_root];
        let mut tx = self.cache.lock();
        for (block, bytes) in fresh {
            let patch = tx.init(&block, bytes, &befores);
            self.patches.push(patch);
        }
        Ok(())
    }

    /// Nothing is to be undone: a commit is no operation.
    pub(super) fn discard_undo(&mut self) {
        self.undo = Undo::default();
    }
}

/// Where a record is: its leaf, and the byte there.
pub(super) fn record_place(number: usize) -> (u64, usize) {
    let number = to_u64(number);
    (number / RECORDS_IN_BLOCK, to_usize(number % RECORDS_IN_BLOCK) * RECORD_BYTES)
}
