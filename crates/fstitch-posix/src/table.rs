//! The inode table: which inodes are in memory, and who refers to them.
//!
//! The kernel may refer to any number of inodes for any time, so a reference alone keeps no node in memory: of
//! an inode whose changes are all stable and that nobody uses at the moment, only the *parked* number of its
//! references stays, with what the file system wants to know of it when it comes back ([`Node::Kept`]).
//!
//! What a node is beside its [`Header`] is the file system's business, and so are the medium, the inodes' own locks and the question
//! whose changes are stable.
//!
//! ```text
//!   lookup   get with a reference, which loads      make     insert, with one reference
//!   forget   release; the last reference to an orphan: claim_orphan, free the inode, remove
//!   unlink   the last name: set_orphan, claim_orphan; or claim_unreferenced before the name goes
//!   memory   evict beside operations, evict_older for those with time to spare
//! ```
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
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{InodeNo, Result};
use rustc_hash::FxHashMap;

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

/// An inode in memory, as a file system has it.
pub trait Node {
    /// What stays of it, beside its references, when it leaves memory.
    type Kept: Default;

    /// The node of an inode that is still to be read, of which so much was kept. Nobody but who loads it uses it before it is loaded.
    fn unloaded(header: Header, kept: Self::Kept) -> Self;

    /// What the table keeps in the node.
    fn header(&self) -> &Header;

    /// What is to be kept of a node that could not be loaded.
    fn kept(&self) -> Self::Kept;
}

/// What the table keeps in a node.
#[derive(Debug)]
pub struct Header {
    ino: InodeNo,
    /// References that the kernel (or another user of the file system) holds `[shard lock]`.
    refs: AtomicU64,
    /// Its place in the table's queue; 0 for none `[shard lock]`.
    ticket: AtomicU64,
    /// See [`Header::note_use`].
    used: AtomicBool,
    /// Its last name is gone: the last reference frees it.
    orphan: AtomicBool,
    /// Somebody has begun to free it.
    freeing: AtomicBool,
    loaded: AtomicBool,
    /// Loading failed; whoever waited for it starts again.
    failed: AtomicBool,
    loading: Mutex<(), rank::Inode>,
}

impl Header {
    /// That of a new inode's node, with its first reference.
    #[must_use]
    pub fn made(ino: InodeNo) -> Self {
        Self::new(ino, 1, true)
    }

    fn new(ino: InodeNo, refs: u64, loaded: bool) -> Self {
        Self {
            ino,
            refs: AtomicU64::new(refs),
            ticket: AtomicU64::new(0),
            used: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
            freeing: AtomicBool::new(false),
            loaded: AtomicBool::new(loaded),
            failed: AtomicBool::new(false),
            loading: Mutex::new(()),
        }
    }

    /// The number of its inode.
    #[must_use]
    pub fn ino(&self) -> InodeNo {
        self.ino
    }

    /// Whether its last name is gone: the last reference frees it.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Relaxed)
    }

    /// Says whether its last name is gone.
    pub fn set_orphan(&self, is_orphan: bool) {
        self.orphan.store(is_orphan, Ordering::Relaxed);
    }

    /// The node is dear to load, and of use since its turn to leave memory last came: it stays for one turn more.
    pub fn note_use(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Claims the freeing of an orphan although somebody still refers to it (the volume is being unmounted); otherwise see
    /// [`Table::claim_orphan`].
    #[must_use]
    pub fn claim_referred_orphan(&self) -> bool {
        self.is_orphan() && self.claim()
    }

    /// Gives back a claim that could not be carried out.
    pub fn unclaim(&self) {
        self.freeing.store(false, Ordering::Relaxed);
    }

    /// Whether nobody else has begun to free it.
    fn claim(&self) -> bool {
        !self.freeing.swap(true, Ordering::Relaxed)
    }

    fn refs(&self) -> u64 {
        self.refs.load(Ordering::Relaxed)
    }
}

/// The references to an inode that is not in memory.
#[derive(Default)]
struct Parked<K> {
    refs: u64,
    kept: K,
}

struct Shard<N: Node> {
    nodes: FxHashMap<InodeNo, Arc<N>>,
    parked: FxHashMap<InodeNo, Parked<N::Kept>>,
}

impl<N: Node> Shard<N> {
    /// Whether this is the node of its number.
    fn has(&self, node: &Arc<N>) -> bool {
        self.nodes.get(&node.header().ino).is_some_and(|found| Arc::ptr_eq(found, node))
    }

    /// Takes a node out of memory, but not the references to it.
    fn park(&mut self, ino: InodeNo, kept: N::Kept) {
        let refs = self.nodes.remove(&ino).map_or(0, |node| node.header().refs());
        if refs > 0 {
            self.parked.insert(ino, Parked { refs, kept });
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
pub struct Table<N: Node> {
    shards: Vec<Mutex<Shard<N>, rank::Shard>>,
    queue: Mutex<Queue, rank::Queue>,
    /// Calls of `evict` that are still passed over.
    rests: AtomicU32,
    nodes_max: usize,
}

/// What [`Table::evict_older`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Evicted {
    /// Nodes that are gone.
    pub left: usize,
    /// It stopped only because these were enough.
    pub may_be_more: bool,
}

/// What the table holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Population {
    /// Inodes in memory.
    pub nodes: usize,
    /// Inodes that are referred to, but not in memory.
    pub parked: usize,
}

impl<N: Node> Table<N> {
    /// A table that tries to hold no more than `nodes_max` nodes.
    pub fn new(nodes_max: usize) -> Self {
        let shard = || Mutex::new(Shard { nodes: FxHashMap::default(), parked: FxHashMap::default() });
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            queue: Mutex::default(),
            rests: AtomicU32::new(0),
            nodes_max,
        }
    }

    fn shard(&self, ino: InodeNo) -> MutexGuard<'_, Shard<N>> {
        let index = InodeNo(ino.get() % SHARDS).index();
        self.shards[index].lock()
    }

    /// The node of `ino` with `refs` more references; `load` fills it in if it is not in memory.
    ///
    /// # Errors
    /// Those of `load`: then nobody has got a reference, and none is lost.
    pub fn get(&self, ino: InodeNo, refs: u64, load: impl Fn(&N) -> Result<()>) -> Result<Arc<N>> {
        loop {
            let (node, counted) = self.find_or_add(ino, refs);
            if counted {
                return Ok(node);
            }
            if self.load_once(&node, &load)? {
                let shard = self.shard(ino);
                // Meanwhile the number may have got a new life, with a node of its own.
                if shard.has(&node) {
                    node.header().refs.fetch_add(refs, Ordering::Relaxed);
                    return Ok(node);
                }
            }
        }
    }

    /// The node of `ino`, and whether it has got the `refs`: they are counted only in a node that is loaded,
    /// because it must still be known, when loading fails, how many there were before.
    fn find_or_add(&self, ino: InodeNo, refs: u64) -> (Arc<N>, bool) {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.nodes.get(&ino) {
            let loaded = node.header().loaded.load(Ordering::Acquire);
            if loaded {
                node.header().refs.fetch_add(refs, Ordering::Relaxed);
            }
            return (Arc::clone(node), loaded);
        }
        let parked = shard.parked.remove(&ino).unwrap_or_default();
        let node = Arc::new(N::unloaded(Header::new(ino, parked.refs, false), parked.kept));
        self.enqueue(&node);
        shard.nodes.insert(ino, Arc::clone(&node));
        (node, false)
    }

    /// Loads a node unless somebody else does, and says whether that has succeeded.
    fn load_once(&self, node: &Arc<N>, load: &impl Fn(&N) -> Result<()>) -> Result<bool> {
        let header = node.header();
        let _loading = header.loading.lock();
        if header.failed.load(Ordering::Acquire) {
            return Ok(false);
        }
        if header.loaded.load(Ordering::Acquire) {
            return Ok(true);
        }
        match load(node) {
            Ok(()) => {
                header.loaded.store(true, Ordering::Release);
                Ok(true)
            }
            Err(error) => {
                header.failed.store(true, Ordering::Release);
                let kept = node.kept();
                let mut shard = self.shard(header.ino);
                // The node of a life that has begun meanwhile stays.
                if shard.has(node) {
                    shard.park(header.ino, kept);
                }
                Err(error)
            }
        }
    }

    /// Drops a node that nobody uses, and says whether the inode is out of memory and nobody refers to it.
    pub fn forget_idle(&self, ino: InodeNo) -> bool {
        let mut shard = self.shard(ino);
        let Some(node) = shard.nodes.get(&ino) else { return !shard.parked.contains_key(&ino) };
        let idle = node.header().refs() == 0 && is_unused(node);
        if idle {
            shard.nodes.remove(&ino);
        }
        idle
    }

    /// Enters a new inode's node, which holds one reference ([`Header::made`]). It takes the place of a dead node of the same number.
    pub fn insert(&self, node: Arc<N>) -> Arc<N> {
        let ino = node.header().ino;
        let mut shard = self.shard(ino);
        self.enqueue(&node);
        shard.parked.remove(&ino);
        shard.nodes.insert(ino, Arc::clone(&node));
        node
    }

    /// Takes a dead node out of the table.
    pub fn remove(&self, node: &Arc<N>) {
        let ino = node.header().ino;
        let mut shard = self.shard(ino);
        if shard.has(node) {
            shard.nodes.remove(&ino);
        }
    }

    /// Gives back `count` references and returns the node if they were the last ones; a parked inode has none.
    pub fn release(&self, ino: InodeNo, count: u64) -> Option<Arc<N>> {
        let mut shard = self.shard(ino);
        if let Some(node) = shard.nodes.get(&ino) {
            let left = node.header().refs().saturating_sub(count);
            node.header().refs.store(left, Ordering::Relaxed);
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
    pub fn claim_orphan(&self, node: &Arc<N>) -> bool {
        let header = node.header();
        let _shard = self.shard(header.ino);
        header.is_orphan() && header.refs() == 0 && header.claim()
    }

    /// Claims an inode that nobody refers to and that is about to lose its last name: its node's state is locked by the caller,
    /// who frees it at once.
    pub fn claim_unreferenced(&self, node: &Arc<N>) -> bool {
        let header = node.header();
        let _shard = self.shard(header.ino);
        let claimed = header.refs() == 0 && header.claim();
        if claimed {
            header.set_orphan(true);
        }
        claimed
    }

    /// All references that are held, by their inodes.
    pub fn references(&self) -> Vec<(InodeNo, u64)> {
        let mut references = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let of_nodes = shard.nodes.iter().map(|(&ino, node)| (ino, node.header().refs()));
            let of_parked = shard.parked.iter().map(|(&ino, parked)| (ino, parked.refs));
            references.extend(of_nodes.chain(of_parked).filter(|&(_, refs)| refs > 0));
        }
        references
    }

    /// How many inodes without a name are held by somebody who uses them.
    pub fn orphans_in_use(&self) -> usize {
        let is_used = |node: &&Arc<N>| node.header().is_orphan() && node.header().refs() > 0;
        self.shards.iter().map(|shard| shard.lock().nodes.values().filter(is_used).count()).sum()
    }

    /// How many inodes the table knows.
    pub fn population(&self) -> Population {
        let mut population = Population { nodes: 0, parked: 0 };
        for shard in &self.shards {
            let shard = shard.lock();
            population.nodes += shard.nodes.len();
            population.parked += shard.parked.len();
        }
        population
    }

    /// Bytes that one node takes with `heap` beside it.
    pub const fn node_bytes(heap: usize) -> usize {
        size_of::<N>() + heap
    }

    /// Bytes that the table takes with `heap` beside each node, and how many of them are for nodes beyond the limit,
    /// which wait for their changes to become stable.
    pub fn bytes(&self, heap: usize) -> (usize, usize) {
        let Population { nodes, parked } = self.population();
        let each = Self::node_bytes(heap);
        let all = nodes * each + parked * size_of::<(InodeNo, Parked<N::Kept>)>();
        (all, nodes.saturating_sub(self.nodes_max) * each)
    }

    /// All nodes, in the order of their numbers. Every orphan is among them.
    pub fn all(&self) -> Vec<Arc<N>> {
        let mut nodes = Vec::new();
        for shard in &self.shards {
            nodes.extend(shard.lock().nodes.values().map(Arc::clone));
        }
        nodes.sort_by_key(|node| node.header().ino);
        nodes
    }

    /// Called with the shard's lock held, for a node that has no place in the queue.
    fn enqueue(&self, node: &N) {
        let mut queue = self.queue.lock();
        queue.last_ticket += 1;
        let ticket = queue.last_ticket;
        node.header().ticket.store(ticket, Ordering::Relaxed);
        queue.nodes.push_back((node.header().ino, ticket));
    }

    /// Drops nodes beyond the limit, but not the references to them. `leave` tells what is kept of a node whose changes are all
    /// stable, and nothing of one that has to stay. It is called with the shard's lock held and must wait for no inode's lock, so that
    /// who calls this may hold some.
    ///
    /// The oldest come first. Once one of them has to stay, others of its age hardly fare better: it goes to the
    /// end, and a later operation goes on from there.
    pub fn evict(&self, leave: impl Fn(&N) -> Option<N::Kept>) {
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
            let left = oldest.is_some_and(|(ino, ticket)| self.evict_one(ino, ticket, &leave));
            if !left {
                self.rests.store(RESTS, Ordering::Relaxed);
                return;
            }
        }
    }

    /// The ticket of the node that came last: [`Table::evict_older`] of now takes all nodes that are there.
    pub fn last_ticket(&self) -> u64 {
        self.queue.lock().last_ticket
    }

    /// As [`Table::evict`], for somebody with time to spare: at most `most` nodes beyond the limit, of those that were there when
    /// `last` was the last ticket. Each is looked at once at most, and others get every lock between two. Gives up where too
    /// many have to stay.
    pub fn evict_older(&self, last: u64, most: usize, leave: impl Fn(&N) -> Option<N::Kept>) -> Evicted {
        let mut evicted = Evicted::default();
        let mut stayed = 0;
        while stayed <= evicted.left + STAYS_MAX {
            if evicted.left == most {
                evicted.may_be_more = true;
                return evicted;
            }
            match self.pop_older(last) {
                None => break,
                Some((ino, ticket)) if self.evict_one(ino, ticket, &leave) => evicted.left += 1,
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
    fn evict_one(&self, ino: InodeNo, ticket: u64, leave: &impl Fn(&N) -> Option<N::Kept>) -> bool {
        let mut shard = self.shard(ino);
        let has_ticket = |node: &&Arc<N>| node.header().ticket.load(Ordering::Relaxed) == ticket;
        let Some(node) = shard.nodes.get(&ino).filter(has_ticket) else { return true };
        let unused = !node.header().used.swap(false, Ordering::Relaxed) && is_unused(node);
        match if unused { leave(node) } else { None } {
            Some(kept) => {
                shard.park(ino, kept);
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
fn is_unused<N: Node>(node: &Arc<N>) -> bool {
    let header = node.header();
    Arc::strong_count(node) == 1 && !header.is_orphan() && header.loaded.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests;
