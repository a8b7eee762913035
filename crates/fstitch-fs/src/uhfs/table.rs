//! The inode table: which inodes are in memory, and who refers to them.
//!
//! The kernel may refer to any number of inodes for any time, so a reference alone keeps no node in memory: of
//! an inode whose changes are all stable and that nobody uses at the moment, only the *parked* number of its
//! references stays, with what `fsync` needs to find its directories.
//!
//! # Invariants
//! 1. At most one live node per inode number: a node leaves the table only when its inode is free (dead), or
//!    when no thread holds it, it has names, and all its changes are stable, so that loading it again finds
//!    everything.
//! 2. References are in the node, or parked if there is none: never both. They change hands only under the
//!    shard's lock.
//! 3. A parked inode has names: whoever takes one away loads its node first, and an orphan's node stays. So the
//!    last reference to a parked inode has nothing to free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{InodeNo, Result};
use rustc_hash::FxHashMap;

use super::node::{Node, State, Whereabouts};

/// Number of shards: enough that two threads rarely meet.
const SHARDS: u64 = 16;
/// Nodes that may leave whenever one comes: more than one, so that the queue shrinks again after a burst of nodes
/// that were unstable; and few, because each is looked at where no processor's cache has it: who comes after a sync of a
/// million new files should not pay for all of them.
const LEAVE_MAX: usize = 4;

/// Calls of [`Table::evict`] that are passed over when a node had to stay: fewer than may leave in the next one.
const RESTS: u32 = 3;

/// Nodes more than have left that may have had to stay before [`Table::evict_older`] gives up.
const STAYS_MAX: usize = 64;
/// A table gives back room when it has so many times the room that its entries take, of which there are at least so many.
const SHRINK_FACTOR: usize = 8;
const SHRINK_MIN: usize = 64;

/// The references to an inode that is not in memory.
#[derive(Default)]
struct Parked {
    refs: u64,
    whereabouts: Whereabouts,
}

struct Shard<I> {
    nodes: FxHashMap<InodeNo, Arc<Node<I>>>,
    parked: FxHashMap<InodeNo, Parked>,
}

impl<I> Shard<I> {
    /// Whether this is the node of its number.
    fn has(&self, node: &Arc<Node<I>>) -> bool {
        self.nodes.get(&node.ino).is_some_and(|found| Arc::ptr_eq(found, node))
    }

    /// Takes a node out of memory, but not the references to it.
    fn park(&mut self, ino: InodeNo, whereabouts: Whereabouts) {
        let refs = self.nodes.remove(&ino).map_or(0, |node| node.refs.load(Ordering::Relaxed));
        if refs > 0 {
            self.parked.insert(ino, Parked { refs, whereabouts });
        }
    }
}

/// Nodes in the order in which they came into memory or were last found to be needed there.
#[derive(Default)]
struct Queue {
    /// Numbers of inodes, each with its node's ticket: another one means that the node is another one.
    nodes: VecDeque<(InodeNo, u64)>,
    last_ticket: u64,
}

/// All nodes.
pub(super) struct Table<I> {
    shards: Vec<Mutex<Shard<I>, rank::Shard>>,
    queue: Mutex<Queue, rank::Queue>,
    /// Calls of `evict` that are still passed over.
    rests: AtomicU32,
    nodes_max: usize,
}

/// What [`Table::evict_older`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Evicted {
    /// Nodes that are gone.
    pub(super) left: usize,
    /// It stopped only because these were enough.
    pub(super) may_be_more: bool,
}

/// What the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Population {
    /// Inodes in memory.
    pub(super) nodes: usize,
    /// Inodes that are referred to, but not in memory.
    pub(super) parked: usize,
}

impl<I> Table<I> {
    /// A table that tries to hold no more than `nodes_max` nodes.
    pub(super) fn new(nodes_max: usize) -> Self {
        let shard = || Mutex::new(Shard { nodes: FxHashMap::default(), parked: FxHashMap::default() });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            queue: Mutex::default(),
            rests: AtomicU32::new(0),
            nodes_max,
        }
    }

    fn shard(&self, ino: InodeNo) -> MutexGuard<'_, Shard<I>> {
        let index = InodeNo(ino.get() % SHARDS).index();
        self.shards[index].lock()
    }

    /// The node of `ino` with `refs` more references; `load` reads it if it is not in memory, and tells whether there may be
    /// blocks behind its end.
    pub(super) fn get(
        &self,
        ino: InodeNo,
        refs: u64,
        load: impl Fn() -> Result<(I, bool)>,
    ) -> Result<Arc<Node<I>>> {
        loop {
            let (node, counted) = self.find_or_add(ino, refs);
            if counted {
                return Ok(node);
            }
            if self.load_once(&node, &load)? {
                let shard = self.shard(ino);
                // Meanwhile the number may have got a new life, with a node of its own.
                if shard.has(&node) {
                    node.refs.fetch_add(refs, Ordering::Relaxed);
                    return Ok(node);
                }
            }
        }
    }

    /// The node of `ino`, and whether it has got the `refs`: they are counted only in a node that is loaded,
    /// because it must still be known, when loading fails, how many there were before.
    fn find_or_add(&self, ino: InodeNo, refs: u64) -> (Arc<Node<I>>, bool) {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.nodes.get(&ino) {
            let loaded = node.loaded.load(Ordering::Acquire);
            if loaded {
                node.refs.fetch_add(refs, Ordering::Relaxed);
            }
            return (Arc::clone(node), loaded);
        }
        let parked = shard.parked.remove(&ino).unwrap_or_default();
        let node = Arc::new(Node::unloaded(ino, parked.refs, parked.whereabouts));
        self.enqueue(&node);
        shard.nodes.insert(ino, Arc::clone(&node));
        (node, false)
    }

    /// Loads a node unless somebody else does, and says whether that has succeeded.
    fn load_once(&self, node: &Arc<Node<I>>, load: &impl Fn() -> Result<(I, bool)>) -> Result<bool> {
        let _loading = node.loading.lock();
        if node.failed.load(Ordering::Acquire) {
            return Ok(false);
        }
        if node.loaded.load(Ordering::Acquire) {
            return Ok(true);
        }
        match load() {
            Ok((inode, trim)) => {
                node.set_loaded(inode, trim);
                Ok(true)
            }
            Err(error) => {
                node.failed.store(true, Ordering::Release);
                let known = node.state.read().track.whereabouts();
                let mut shard = self.shard(node.ino);
                // The node of a life that has begun meanwhile stays.
                if shard.has(node) {
                    shard.park(node.ino, known);
                }
                Err(error)
            }
        }
    }

    /// Drops a node that nobody uses, and says whether the inode is out of memory and nobody refers to it.
    pub(super) fn forget_idle(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino);
        let Some(node) = shard.nodes.get(&ino) else { return !shard.parked.contains_key(&ino) };
        let idle = node.refs.load(Ordering::Relaxed) == 0 && is_unused(node);
        if idle {
            shard.nodes.remove(&ino);
        }
        idle
    }

    /// A new inode's node, holding one reference. It takes the place of a dead node of the same number.
    pub(super) fn insert(&self, ino: InodeNo, state: State<I>) -> Arc<Node<I>> {
        let node = Arc::new(Node::made(ino, state));
        let mut shard = self.shard(ino);
        self.enqueue(&node);
        shard.parked.remove(&ino);
        shard.nodes.insert(ino, Arc::clone(&node));
        node
    }

    /// Takes a dead node out of the table.
    pub(super) fn remove(&self, node: &Arc<Node<I>>) {
        let mut shard = self.shard(node.ino);
        if shard.has(node) {
            shard.nodes.remove(&node.ino);
        }
    }

    /// Gives back `count` references and returns the node if they were the last ones; a parked inode has none.
    pub(super) fn release(&self, ino: InodeNo, count: u64) -> Option<Arc<Node<I>>> {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.nodes.get(&ino) {
            let left = node.refs.load(Ordering::Relaxed).saturating_sub(count);
            node.refs.store(left, Ordering::Relaxed);
            return (left == 0).then(|| Arc::clone(node));
        }
        let parked = shard.parked.get_mut(&ino)?;
        parked.refs = parked.refs.saturating_sub(count);
        if parked.refs == 0 {
            shard.parked.remove(&ino);
        }
        None
    }

    /// Whether the caller shall free this node's inode: it has neither names nor references, and nobody else
    /// has begun.
    pub(super) fn claim_orphan(&self, node: &Arc<Node<I>>) -> bool {
        let _shard = self.shard(node.ino);
        node.orphan.load(Ordering::Relaxed)
            && node.refs.load(Ordering::Relaxed) == 0
            && !node.freeing.swap(true, Ordering::Relaxed)
    }

    /// Claims an inode that nobody refers to and that is about to lose its last name: its node's state is locked by the caller,
    /// who frees it at once.
    pub(super) fn claim_unreferenced(&self, node: &Arc<Node<I>>) -> bool {
        let _shard = self.shard(node.ino);
        let claimed = node.refs.load(Ordering::Relaxed) == 0 && !node.freeing.swap(true, Ordering::Relaxed);
        if claimed {
            node.orphan.store(true, Ordering::Relaxed);
        }
        claimed
    }

    /// Claims an orphan although somebody still refers to it (the volume is being unmounted).
    pub(super) fn claim_referred_orphan(node: &Node<I>) -> bool {
        node.orphan.load(Ordering::Relaxed) && !node.freeing.swap(true, Ordering::Relaxed)
    }

    /// Gives back a claim that could not be carried out.
    pub(super) fn unclaim(node: &Node<I>) {
        node.freeing.store(false, Ordering::Relaxed);
    }

    /// All references that are held, by their inodes.
    pub(super) fn references(&self) -> Vec<(InodeNo, u64)> {
        let mut references = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let of_nodes = shard.nodes.iter().map(|(&ino, node)| (ino, node.refs.load(Ordering::Relaxed)));
            let of_parked = shard.parked.iter().map(|(&ino, parked)| (ino, parked.refs));
            references.extend(of_nodes.chain(of_parked).filter(|&(_, refs)| refs > 0));
        }
        references
    }

    /// How many inodes the table knows.
    pub(super) fn population(&self) -> Population {
        let mut population = Population { nodes: 0, parked: 0 };
        for shard in &self.shards {
            let shard = shard.lock();
            population.nodes += shard.nodes.len();
            population.parked += shard.parked.len();
        }
        population
    }

    /// Bytes that one node takes with `heap` beside it.
    pub(super) const fn node_bytes(heap: usize) -> usize {
        size_of::<Node<I>>() + heap
    }

    /// Bytes that the table takes with `heap` beside each node, and how many of them are for nodes beyond the limit,
    /// which wait for their changes to become stable.
    pub(super) fn bytes(&self, heap: usize) -> (usize, usize) {
        let Population { nodes, parked } = self.population();
        let each = Self::node_bytes(heap);
        let all = nodes * each + parked * size_of::<(InodeNo, Parked)>();
        (all, nodes.saturating_sub(self.nodes_max) * each)
    }

    /// All nodes, in the order of their numbers. Every orphan is among them.
    pub(super) fn all(&self) -> Vec<Arc<Node<I>>> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            nodes.extend(shard.lock().nodes.values().map(Arc::clone));
        }
        nodes.sort_by_key(|node| node.ino);
        nodes
    }

    /// Called with the shard's lock held, for a node that has no place in the queue.
    fn enqueue(&self, node: &Node<I>) {
        let mut queue = self.queue.lock();
        queue.last_ticket += 1;
        let ticket = queue.last_ticket;
        node.ticket.store(ticket, Ordering::Relaxed);
        queue.nodes.push_back((node.ino, ticket));
    }

    /// Drops nodes beyond the limit whose changes are all stable, as `stable` tells, but not the references to
    /// them. Waits for no inode's lock, so that the caller may hold some.
    ///
    /// The oldest come first. Once one of them has to stay, others of its age hardly fare better: it goes to the
    /// end, and a later operation goes on from there.
    pub(super) fn evict(&self, stable: impl Fn(&State<I>) -> bool) {
        let rests = self.rests.load(Ordering::Relaxed);
        if rests > 0 {
            // Two threads may pass over one call between them: nothing hangs on the number.
            self.rests.store(rests - 1, Ordering::Relaxed);
            return;
        }
        for _ in 0..LEAVE_MAX {
            let oldest = {
                let mut queue = self.queue.lock();
                if queue.nodes.len() <= self.nodes_max {
                    return;
                }
                queue.nodes.pop_front()
            };
            let left = oldest.is_some_and(|(ino, ticket)| self.evict_one(ino, ticket, &stable));
            if !left {
                self.rests.store(RESTS, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The ticket of the node that came last: [`Table::evict_older`] of now takes all nodes that are there.
    pub(super) fn last_ticket(&self) -> u64 {
        self.queue.lock().last_ticket
    }

    /// As [`Table::evict`], for somebody with time to spare: at most `most` nodes beyond the limit, of those that were there when
    /// `last` was the last ticket. Each is looked at once at most, and others get every lock between two. Gives up where too
    /// many have to stay.
    pub(super) fn evict_older(&self, last: u64, most: usize, stable: impl Fn(&State<I>) -> bool) -> Evicted {
        let mut evicted = Evicted::default();
        let mut stayed = 0;
        while stayed <= evicted.left + STAYS_MAX {
            if evicted.left == most {
                evicted.may_be_more = true;
                return evicted;
            }
            match self.pop_older(last) {
                None => break,
                Some((ino, ticket)) if self.evict_one(ino, ticket, &stable) => evicted.left += 1,
                Some(_) => stayed += 1,
            }
        }
        self.shrink();
        evicted
    }

    /// Takes the oldest node out of the queue if there are too many and it is not younger than `last`.
    fn pop_older(&self, last: u64) -> Option<(InodeNo, u64)> {
        let mut queue = self.queue.lock();
        let is_older = |&(_, ticket): &(InodeNo, u64)| ticket <= last;
        if queue.nodes.len() <= self.nodes_max || !queue.nodes.front().is_some_and(is_older) {
            return None;
        }
        queue.nodes.pop_front()
    }

    /// Gives back the room of many nodes that have left: a few in tables made for a million are each a miss of the
    /// processor's caches.
    fn shrink(&self) {
        let is_wide = |capacity: usize, len: usize| capacity > SHRINK_FACTOR * len.max(SHRINK_MIN);
        for shard in &self.shards {
            let Shard { nodes, parked } = &mut *shard.lock();
            if is_wide(nodes.capacity(), nodes.len()) {
                nodes.shrink_to(2 * nodes.len());
            }
            if is_wide(parked.capacity(), parked.len()) {
                parked.shrink_to(2 * parked.len());
            }
        }
        let Queue { nodes, .. } = &mut *self.queue.lock();
        if is_wide(nodes.capacity(), nodes.len()) {
            nodes.shrink_to(2 * nodes.len());
        }
    }

    /// Drops a node, if it is still the one of that ticket and may leave. Returns whether it is gone.
    fn evict_one(&self, ino: InodeNo, ticket: u64, stable: &impl Fn(&State<I>) -> bool) -> bool {
        let mut shard = self.shard(ino);
        let Some(node) = shard.nodes.get(&ino).filter(|node| node.ticket.load(Ordering::Relaxed) == ticket)
        else {
            return true;
        };
        let unused = !node.used.swap(false, Ordering::Relaxed) && is_unused(node);
        let leaving = match node.state.try_read() {
            Some(state) if unused && stable(&state) => Some(state.track.whereabouts()),
            _ => None,
        };
        match leaving {
            Some(whereabouts) => {
                shard.park(ino, whereabouts);
                true
            }
            None => {
                self.enqueue(node);
                false
            }
        }
    }
}

/// Whether no thread holds the node and it is not needed to free its inode. Called with the shard's lock held,
/// which every thread needs that wants to hold it.
fn is_unused<I>(node: &Arc<Node<I>>) -> bool {
    Arc::strong_count(node) == 1
        && !node.orphan.load(Ordering::Relaxed)
        && node.loaded.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
