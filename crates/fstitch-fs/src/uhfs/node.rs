//! The inode table: which inodes are in memory, who refers to them, and what of them is not yet stable.
//!
//! # Invariants
//! 1. At most one live node per inode number: a node leaves the table only when its inode is free (dead), or
//!    when nobody refers to it and all its changes are stable, so that loading it again finds everything.
//! 2. `refs` changes only under the shard's lock.
//! 3. Nobody holds a node's state lock before the node is loaded, so loading never waits for a state lock.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fstitch_core::order::{Rank, Ranked};
use fstitch_core::{Errno, InodeNo, Result};
use fstitch_patch::{PatchId, PatchIds};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Which of an inode's changes a patch belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Contents, pointers, length; a directory's entries.
    Contents,
    /// Everything else in the inode, extended attributes included.
    Attributes,
    /// The inode's own names, in whatever directories they are.
    Names,
}

/// What fsync has to make stable.
#[derive(Debug)]
pub(super) struct Track {
    contents: PatchId,
    attributes: PatchId,
    names: PatchId,
    /// The patches of its names that may not be stable, for those that must come after its being reachable.
    pub(super) recent_names: PatchIds,
    /// Directories in which the inode was found or got names. Only for inodes that are not directories: those
    /// know their parent.
    pub(super) parents: SmallVec<[InodeNo; 1]>,
    /// The inode could be reached from the root on the medium, by its present path, after so many moves of
    /// directories.
    stable: Option<u64>,
    /// Counts the changes of names, so that an fsync does not declare stable what changed meanwhile.
    pub(super) version: u64,
}

impl Track {
    fn new() -> Self {
        Self {
            contents: PatchId::NONE,
            attributes: PatchId::NONE,
            names: PatchId::NONE,
            recent_names: PatchIds::new(),
            parents: SmallVec::new(),
            stable: None,
            version: 0,
        }
    }

    /// The gathering patch of a part.
    pub(super) fn part(&mut self, part: Part) -> &mut PatchId {
        match part {
            Part::Contents => &mut self.contents,
            Part::Attributes => &mut self.attributes,
            Part::Names => &mut self.names,
        }
    }

    /// The gathering patches of the given parts.
    pub(super) fn gathers(&self, parts: &[Part]) -> PatchIds {
        let of = |part: &Part| match part {
            Part::Contents => self.contents,
            Part::Attributes => self.attributes,
            Part::Names => self.names,
        };
        parts.iter().map(of).filter(|&patch| patch != PatchId::NONE).collect()
    }

    /// The inode got a name in `parent`.
    pub(super) fn named_in(&mut self, parent: InodeNo) {
        self.stable = None;
        self.version += 1;
        self.found_in(parent);
    }

    /// The inode has a name in `parent`.
    pub(super) fn found_in(&mut self, parent: InodeNo) {
        if !self.parents.contains(&parent) {
            self.parents.push(parent);
        }
    }

    /// Whether the inode is known to be reachable on the medium; directories were moved `moves` times so far.
    pub(super) fn is_stable(&self, moves: u64) -> bool {
        self.stable == Some(moves)
    }

    /// The inode is reachable on the medium.
    pub(super) fn set_stable(&mut self, moves: u64) {
        self.stable = Some(moves);
    }
}

/// How many departures a directory remembers before it is looked whether they are stable.
const DEPARTURES_MIN: usize = 16;

/// A loaded inode with what the order between micro-operations needs to remember.
#[derive(Debug)]
pub(super) struct State<I> {
    inode: Option<I>,
    /// The inode was freed.
    pub(super) dead: bool,
    /// An inode without a name that may get one (from `tmpfile`), unlike one whose names were removed.
    pub(super) linkable: bool,
    pub(super) track: Track,
    /// What a growth of the file must come after: the clearing of pointers behind its end, and the zeroing of
    /// its last block's tail.
    pub(super) growth: PatchId,
    /// There may be blocks behind the end of the file, left by a crash or by a truncation that failed.
    pub(super) trim: bool,
    /// The clearing of names, which the freeing of the inode must come after.
    pub(super) cleared: PatchIds,
    /// The inode's initialisation and its bit in the inode map, which every name must come after.
    pub(super) ready: PatchIds,
    /// Of a directory: what the clearing of names in it comes after, the other names of what had these. Its own name
    /// must not go before, or what is on its way would be reachable nowhere.
    departures: PatchIds,
}

impl<I> State<I> {
    /// The state of an inode that was read from the volume.
    pub(super) fn loaded(inode: I, trim: bool) -> Self {
        Self { inode: Some(inode), trim, ..Self::unloaded() }
    }

    fn unloaded() -> Self {
        Self {
            inode: None,
            dead: false,
            linkable: false,
            track: Track::new(),
            growth: PatchId::NONE,
            trim: false,
            cleared: PatchIds::new(),
            ready: PatchIds::new(),
            departures: PatchIds::new(),
        }
    }

    /// Remembers what clearings of names in this directory come after. `pending` tells what need not be remembered.
    pub(super) fn note_departures(&mut self, befores: &[PatchId], pending: impl Fn(PatchId) -> bool) {
        for &patch in befores {
            // Looked through whenever it has doubled, so that a stream of renames costs each a moment.
            if self.departures.len() >= DEPARTURES_MIN && self.departures.len().is_power_of_two() {
                self.departures.sort_unstable();
                self.departures.dedup();
                self.departures.retain(|patch| pending(*patch));
            }
            if !self.departures.contains(&patch) || self.departures.len() > DEPARTURES_MIN {
                self.departures.push(patch);
            }
        }
    }

    /// See `departures`.
    pub(super) fn departures(&self) -> &[PatchId] {
        &self.departures
    }

    pub(super) fn inode(&self) -> &I {
        self.inode.as_ref().expect("a node is loaded before anybody can lock it")
    }

    pub(super) fn inode_mut(&mut self) -> &mut I {
        self.inode.as_mut().expect("a node is loaded before anybody can lock it")
    }
}

/// An inode in memory.
#[derive(Debug)]
pub(super) struct Node<I> {
    pub(super) ino: InodeNo,
    /// References that the kernel (or another user of the trait) holds `[shard lock]`.
    refs: AtomicU64,
    /// In the queue of idle nodes `[shard lock]`.
    queued: AtomicBool,
    /// Its last name is gone: the last reference frees it.
    pub(super) orphan: AtomicBool,
    /// Somebody has begun to free it.
    freeing: AtomicBool,
    loaded: AtomicBool,
    /// Loaded from the volume, and not yet compared with the directory through which it was found.
    pub(super) fresh: AtomicBool,
    /// Loading failed; whoever waited for it starts again.
    failed: AtomicBool,
    loading: Mutex<()>,
    /// Serialises operations that change the file's length or blocks in several steps.
    pub(super) writer: Mutex<()>,
    /// Where a sequential reader would read next, in bytes.
    pub(super) read_next: AtomicU64,
    /// Up to where blocks were read ahead, in bytes.
    pub(super) read_ahead: AtomicU64,
    state: RwLock<State<I>>,
}

impl<I> Node<I> {
    fn new(ino: InodeNo, refs: u64, state: Option<State<I>>) -> Self {
        Self {
            ino,
            refs: AtomicU64::new(refs),
            queued: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            freeing: AtomicBool::new(false),
            loaded: AtomicBool::new(state.is_some()),
            fresh: AtomicBool::new(state.is_none()),
            failed: AtomicBool::new(false),
            loading: Mutex::new(()),
            writer: Mutex::new(()),
            read_next: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            state: RwLock::new(state.unwrap_or_else(State::unloaded)),
        }
    }

    /// The state, shared; `ESTALE` once the inode is free.
    pub(super) fn read(&self) -> Result<Shared<'_, I>> {
        let rank = Ranked::enter(Rank::Inode);
        let state = self.state.read().expect("no panic while held");
        if state.dead { Err(Errno::STALE.into()) } else { Ok(Shared { state, _rank: rank }) }
    }

    /// The state, exclusive; `ESTALE` once the inode is free.
    pub(super) fn write(&self) -> Result<Exclusive<'_, I>> {
        let rank = Ranked::enter(Rank::Inode);
        let state = self.state.write().expect("no panic while held");
        if state.dead { Err(Errno::STALE.into()) } else { Ok(Exclusive { state, _rank: rank }) }
    }

    /// The state, exclusive, if nobody else holds it.
    pub(super) fn try_write(&self) -> Option<Exclusive<'_, I>> {
        let rank = Ranked::enter(Rank::Inode);
        let state = self.state.try_write().ok()?;
        Some(Exclusive { state, _rank: rank })
    }

    /// Fills in the state of a node that nobody can have locked yet.
    fn set_loaded(&self, state: State<I>) {
        *self.state.write().expect("no panic while held") = state;
        self.loaded.store(true, Ordering::Release);
    }
}

/// A node's state, shared.
#[derive(Debug)]
pub(super) struct Shared<'a, I> {
    state: RwLockReadGuard<'a, State<I>>,
    _rank: Ranked,
}

/// A node's state, exclusive.
#[derive(Debug)]
pub(super) struct Exclusive<'a, I> {
    state: RwLockWriteGuard<'a, State<I>>,
    _rank: Ranked,
}

impl<I> Deref for Shared<'_, I> {
    type Target = State<I>;

    fn deref(&self) -> &State<I> {
        &self.state
    }
}

impl<I> Deref for Exclusive<'_, I> {
    type Target = State<I>;

    fn deref(&self) -> &State<I> {
        &self.state
    }
}

impl<I> DerefMut for Exclusive<'_, I> {
    fn deref_mut(&mut self) -> &mut State<I> {
        &mut self.state
    }
}

/// Number of shards: enough that two threads rarely meet.
const SHARDS: u64 = 16;
/// Idle nodes that are looked at whenever one becomes idle: more than one, so that the queue shrinks again
/// after a burst of nodes that were unstable.
const IDLE_SCAN: usize = 4;

type Shard<I> = FxHashMap<InodeNo, Arc<Node<I>>>;

/// All nodes.
pub(super) struct Table<I> {
    shards: Vec<Mutex<Shard<I>>>,
    /// Nodes that nobody refers to, oldest first; some have been referred to again since.
    idle: Mutex<VecDeque<InodeNo>>,
    idle_max: usize,
}

impl<I> Table<I> {
    pub(super) fn new(idle_max: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(Shard::default())).collect();
        Self { shards, idle: Mutex::new(VecDeque::new()), idle_max }
    }

    fn shard(&self, ino: InodeNo) -> MutexGuard<'_, Shard<I>> {
        let index = InodeNo(ino.get() % SHARDS).index();
        self.shards[index].lock().expect("no panic while held")
    }

    /// The node of `ino` with `refs` more references; `load` reads it if it is not in memory.
    pub(super) fn get(
        &self,
        ino: InodeNo,
        refs: u64,
        load: impl Fn() -> Result<State<I>>,
    ) -> Result<Arc<Node<I>>> {
        loop {
            let node = {
                let mut shard = self.shard(ino);
                let node = shard.entry(ino).or_insert_with(|| Arc::new(Node::new(ino, 0, None)));
                node.refs.fetch_add(refs, Ordering::Relaxed);
                self.queue_if_idle(node);
                Arc::clone(node)
            };
            if node.loaded.load(Ordering::Acquire) {
                return Ok(node);
            }
            let _loading = node.loading.lock().expect("no panic while held");
            if node.failed.load(Ordering::Acquire) {
                continue;
            }
            if node.loaded.load(Ordering::Acquire) {
                drop(_loading);
                return Ok(node);
            }
            match load() {
                Ok(state) => {
                    node.set_loaded(state);
                    drop(_loading);
                    return Ok(node);
                }
                Err(error) => {
                    node.failed.store(true, Ordering::Release);
                    self.remove(&node);
                    return Err(error);
                }
            }
        }
    }

    /// Drops a node that nobody uses, and says whether the inode is out of memory.
    pub(super) fn forget_idle(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino);
        let Some(node) = shard.get(&ino) else { return true };
        let idle = node.refs.load(Ordering::Relaxed) == 0
            && Arc::strong_count(node) == 1
            && !node.orphan.load(Ordering::Relaxed)
            && node.loaded.load(Ordering::Relaxed);
        if idle {
            shard.remove(&ino);
        }
        idle
    }

    /// A new inode's node, holding one reference. It takes the place of a dead node of the same number.
    pub(super) fn insert(&self, ino: InodeNo, state: State<I>) -> Arc<Node<I>> {
        let node = Arc::new(Node::new(ino, 1, Some(state)));
        self.shard(ino).insert(ino, Arc::clone(&node));
        node
    }

    /// Takes a dead node out of the table.
    pub(super) fn remove(&self, node: &Arc<Node<I>>) {
        let mut shard = self.shard(node.ino);
        if shard.get(&node.ino).is_some_and(|found| Arc::ptr_eq(found, node)) {
            shard.remove(&node.ino);
        }
    }

    /// Gives back `count` references and returns the node if they were the last ones.
    pub(super) fn release(&self, ino: InodeNo, count: u64) -> Option<Arc<Node<I>>> {
        let shard = self.shard(ino);
        let node = shard.get(&ino)?;
        let left = node.refs.load(Ordering::Relaxed).saturating_sub(count);
        node.refs.store(left, Ordering::Relaxed);
        self.queue_if_idle(node);
        (left == 0).then(|| Arc::clone(node))
    }

    /// Whether the caller shall free this node's inode: it has neither names nor references, and nobody else
    /// has begun.
    pub(super) fn claim_orphan(&self, node: &Arc<Node<I>>) -> bool {
        let _shard = self.shard(node.ino);
        node.orphan.load(Ordering::Relaxed)
            && node.refs.load(Ordering::Relaxed) == 0
            && !node.freeing.swap(true, Ordering::Relaxed)
    }

    /// Claims an orphan although somebody still refers to it (the volume is being unmounted).
    pub(super) fn claim_referred_orphan(node: &Node<I>) -> bool {
        node.orphan.load(Ordering::Relaxed) && !node.freeing.swap(true, Ordering::Relaxed)
    }

    /// Gives back a claim that could not be carried out.
    pub(super) fn unclaim(node: &Node<I>) {
        node.freeing.store(false, Ordering::Relaxed);
    }

    /// How many nodes there are.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().expect("no panic while held").len()).sum()
    }

    /// All nodes, in the order of their numbers.
    pub(super) fn all(&self) -> Vec<Arc<Node<I>>> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            nodes.extend(shard.lock().expect("no panic while held").values().map(Arc::clone));
        }
        nodes.sort_by_key(|node| node.ino);
        nodes
    }

    /// Called with the shard's lock held.
    fn queue_if_idle(&self, node: &Node<I>) {
        if node.refs.load(Ordering::Relaxed) == 0 && !node.queued.swap(true, Ordering::Relaxed) {
            self.idle.lock().expect("no panic while held").push_back(node.ino);
        }
    }

    /// Drops idle nodes beyond the limit whose changes are all stable, as `stable` tells. Called without locks.
    pub(super) fn evict(&self, stable: impl Fn(&State<I>) -> bool) {
        for _ in 0..IDLE_SCAN {
            let ino = {
                let mut idle = self.idle.lock().expect("no panic while held");
                if idle.len() <= self.idle_max {
                    return;
                }
                idle.pop_front()
            };
            if let Some(ino) = ino {
                self.evict_one(ino, &stable);
            }
        }
    }

    fn evict_one(&self, ino: InodeNo, stable: &impl Fn(&State<I>) -> bool) {
        let mut shard = self.shard(ino);
        let Some(node) = shard.get(&ino) else { return };
        node.queued.store(false, Ordering::Relaxed);
        if node.refs.load(Ordering::Relaxed) > 0 {
            return;
        }
        let unused = Arc::strong_count(node) == 1 && !node.orphan.load(Ordering::Relaxed);
        let evictable = unused
            && node.loaded.load(Ordering::Relaxed)
            && node.state.try_read().is_ok_and(|state| stable(&state));
        if evictable {
            shard.remove(&ino);
        } else {
            self.queue_if_idle(node);
        }
    }
}
