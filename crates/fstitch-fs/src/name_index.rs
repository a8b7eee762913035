//! An index of a directory's names, in memory only.
//!
//! It maps a name's hash to where its entry is; the entry itself is always looked at, so a collision or an adversary
//! costs time, never a wrong answer. All indexes together stay below a limit: the ones used longest ago go.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::Hasher;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_patch::Cache;
use rustc_hash::{FxHashMap, FxHasher};

/// A name that is found, or missed, within so many entries is found at once.
const FEW: usize = 24;
/// Bytes that one name takes in a table, its share of empty room included.
const NAME_BYTES: usize = 32;
/// Names that the smallest table has room for; each larger one has room for twice as many.
const NAMES_MIN: usize = 32;
/// Indexes listed before those of directories that are forgotten are looked for.
const LISTED_MIN: usize = 64;

/// Where names are: positions are byte offsets in the directory, divided by 4.
pub(crate) struct NameIndex {
    first: FxHashMap<u64, u32>,
    /// Names whose hash another name has.
    collisions: Vec<(u64, u32)>,
    memory: Account,
}

impl std::fmt::Debug for NameIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NameIndex({} names)", self.len())
    }
}

/// Memory told to the cache and to the limit over all indexes.
struct Account {
    cache: Arc<Cache>,
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Account {
    fn set(&mut self, bytes: usize) {
        let signed = |n: usize| isize::try_from(n).expect("memory sizes fit isize");
        self.total.fetch_add(bytes, Ordering::Relaxed);
        self.total.fetch_sub(self.bytes, Ordering::Relaxed);
        self.cache.account_external(signed(bytes) - signed(self.bytes));
        self.bytes = bytes;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A name's hash.
fn hash(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish()
}

impl NameIndex {
    fn len(&self) -> usize {
        self.first.len() + self.collisions.len()
    }

    fn bytes(&self) -> usize {
        self.len().next_power_of_two().max(NAMES_MIN) * NAME_BYTES
    }

    /// Adds a name that is at `position`.
    pub(crate) fn insert(&mut self, name: &[u8], position: u32) {
        let hash = hash(name);
        match self.first.entry(hash) {
            Entry::Occupied(_) => self.collisions.push((hash, position)),
            Entry::Vacant(free) => {
                free.insert(position);
            }
        }
        if self.bytes() != self.memory.bytes {
            self.memory.set(self.bytes());
        }
    }

    /// Removes the name that was at `position`.
    pub(crate) fn remove(&mut self, name: &[u8], position: u32) {
        let hash = hash(name);
        if self.first.get(&hash) == Some(&position) {
            self.first.remove(&hash);
            if let Some(at) = self.collisions.iter().position(|(other, _)| *other == hash) {
                let (_, position) = self.collisions.swap_remove(at);
                self.first.insert(hash, position);
            }
        } else {
            self.collisions.retain(|&entry| entry != (hash, position));
        }
    }

    /// Where entries with this name's hash are.
    pub(crate) fn candidates(&self, name: &[u8]) -> impl Iterator<Item = u32> + '_ {
        let hash = hash(name);
        let others = self.collisions.iter().filter(move |(other, _)| *other == hash).map(|(_, at)| *at);
        self.first.get(&hash).copied().into_iter().chain(others)
    }
}

/// Entries passed in search of names, those few that cost nothing not counted. An index takes a walk along all entries to make, so it pays
/// when as many were passed as a directory of some size has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Passed(usize);

impl Passed {
    /// A directory of some size.
    const SOME: usize = 512;

    /// A search has passed so many.
    pub(crate) fn note(&mut self, entries: usize) {
        self.0 = self.0.saturating_add(entries.saturating_sub(FEW));
    }

    /// Whether an index pays in a directory of `all` entries.
    pub(crate) fn pays(self, all: usize) -> bool {
        self.0 > all.max(Self::SOME)
    }
}

/// What keeps an index of a directory's names.
pub(crate) trait Indexed {
    /// Does without it.
    fn drop_index(&mut self);
}

/// All indexes of a volume, which are kept in `D`.
#[derive(Debug)]
pub(crate) struct IndexCache<D> {
    bytes_max: usize,
    total: Arc<AtomicUsize>,
    listed: Mutex<Listed<D>, rank::Indexes>,
}

/// Directories with an index, the one that got it first in front.
#[derive(Debug)]
struct Listed<D> {
    queue: VecDeque<Weak<Mutex<D, rank::Names>>>,
    /// The length at which forgotten ones are looked for.
    tidy_at: usize,
}

impl<D: Indexed> IndexCache<D> {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let listed = Listed { queue: VecDeque::new(), tidy_at: LISTED_MIN };
        Self { bytes_max, total: Arc::default(), listed: Mutex::new(listed) }
    }

    /// The most names that one index may hold.
    pub(crate) fn names_max(&self) -> usize {
        self.bytes_max / NAME_BYTES
    }

    /// An empty index.
    pub(crate) fn start(&self, cache: &Arc<Cache>) -> NameIndex {
        NameIndex {
            first: FxHashMap::default(),
            collisions: Vec::new(),
            memory: Account { cache: Arc::clone(cache), total: Arc::clone(&self.total), bytes: 0 },
        }
    }

    /// Lists a directory that has just got an index, and drops the oldest indexes while there are too many.
    /// Indexes in use at the moment are left alone.
    pub(crate) fn admit(&self, dir: &Arc<Mutex<D, rank::Names>>) {
        let mut listed = self.listed.lock();
        let Listed { queue, tidy_at } = &mut *listed;
        queue.push_back(Arc::downgrade(dir));
        let mut tries = queue.len();
        while self.total.load(Ordering::Relaxed) > self.bytes_max && tries > 0 {
            tries -= 1;
            let Some(oldest) = queue.pop_front() else { break };
            let Some(memory) = oldest.upgrade() else { continue };
            let dropped = memory.try_lock().map(|mut memory| memory.drop_index()).is_some();
            if !dropped {
                queue.push_back(oldest);
            }
        }
        if queue.len() >= *tidy_at {
            queue.retain(|listed| listed.strong_count() > 0);
            *tidy_at = (2 * queue.len()).max(LISTED_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fstitch_core::{ManualClock, MemDevice};
    use fstitch_patch::CacheOptions;

    #[derive(Default)]
    struct DirMemory {
        index: Option<NameIndex>,
    }

    impl Indexed for DirMemory {
        fn drop_index(&mut self) {
            self.index = None;
        }
    }

    fn cache() -> Arc<Cache> {
        let device = Arc::new(MemDevice::new(1024, 8));
        Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()))
    }

    #[test]
    fn names_are_found_until_removed() {
        let all = IndexCache::<DirMemory>::new(1 << 20);
        let mut index = all.start(&cache());
        for at in 0..3000_u32 {
            index.insert(format!("name{at}").as_bytes(), at);
        }
        assert!(all.total.load(Ordering::Relaxed) >= 3000 * NAME_BYTES);
        assert!(index.candidates(b"name7").any(|at| at == 7));
        index.remove(b"name7", 7);
        assert!(!index.candidates(b"name7").any(|at| at == 7));
        drop(index);
        assert_eq!(all.total.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn colliding_names_are_all_kept() {
        let mut index = IndexCache::<DirMemory>::new(1 << 20).start(&cache());
        for at in [1, 2, 3] {
            index.insert(b"same", at);
        }
        index.remove(b"same", 1);
        index.remove(b"same", 3);
        assert_eq!(index.candidates(b"same").collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn the_oldest_indexes_go_first() {
        let all = IndexCache::<DirMemory>::new(NAMES_MIN * NAME_BYTES);
        let cache = cache();
        let dirs: Vec<Arc<Mutex<DirMemory, rank::Names>>> = (0..3).map(|_| Arc::default()).collect();
        for dir in &dirs {
            let mut index = all.start(&cache);
            index.insert(b"x", 1);
            dir.lock().index = Some(index);
            all.admit(dir);
        }
        let kept: Vec<bool> = dirs.iter().map(|dir| dir.lock().index.is_some()).collect();
        assert_eq!(kept, [false, false, true]);
    }

    #[test]
    fn directories_that_are_forgotten_do_not_stay_listed() {
        let all = IndexCache::<DirMemory>::new(1 << 20);
        let cache = cache();
        let kept: Vec<Arc<Mutex<DirMemory, rank::Names>>> = (0..100).map(|_| Arc::default()).collect();
        for dir in &kept {
            dir.lock().index = Some(all.start(&cache));
            all.admit(dir);
        }
        for _ in 0..5_000 {
            all.admit(&Arc::default());
        }
        let listed = all.listed.lock();
        assert!(listed.queue.len() <= 2 * kept.len() + 1, "{}", listed.queue.len());
        let is_listed = |dir: &Arc<Mutex<DirMemory, rank::Names>>| {
            listed.queue.iter().any(|one| one.ptr_eq(&Arc::downgrade(dir)))
        };
        assert!(kept.iter().all(is_listed));
    }
}
