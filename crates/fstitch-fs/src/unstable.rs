//! Tables of patches that are of use only while these are not stable, and what of directories is kept in such.
//!
//! Entries that became stable are dropped when a table has doubled since the last look; a stale entry would order nothing, so it
//! costs only memory.

use std::hash::{BuildHasher, Hash};

use fstitch_core::BlockNo;
use fstitch_patch::{Cache, PatchId, PatchIds, PatchState};
use rustc_hash::FxHashMap;

use crate::gather::Gather;

/// How many entries a table holds before it is looked at for stable ones.
const PURGE_MIN: usize = 1024;
/// Entries that are looked at under one core lock.
const PURGE_STEP: usize = 256;
/// A table has become smaller by so much if its room is given back: a few entries in one made for a million are each a miss
/// of the processor's caches.
const SHRINK_FACTOR: usize = 4;

/// What [`NameMemory::vanished`] knows a name by. Two names of one hash only wait for each other.
pub(crate) fn name_key(dir: u32, name: &[u8]) -> (u32, u64) {
    (dir, rustc_hash::FxBuildHasher.hash_one(name))
}

/// A directory entry's position.
pub(crate) type Place = (BlockNo, usize);

/// A map whose entries are of use only while their patches are not stable.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    entries: FxHashMap<K, V>,
    purge_at: usize,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { entries: FxHashMap::default(), purge_at: PURGE_MIN }
    }
}

/// What a table keeps: one patch or several.
pub(crate) trait Patches: Default {
    /// Whether any of them is not stable.
    fn any(&self, unstable: &dyn Fn(PatchId) -> bool) -> bool;
}

impl Patches for PatchId {
    fn any(&self, unstable: &dyn Fn(PatchId) -> bool) -> bool {
        unstable(*self)
    }
}

impl Patches for Gather {
    fn any(&self, unstable: &dyn Fn(PatchId) -> bool) -> bool {
        self.patches().any(unstable)
    }
}

impl Patches for PatchIds {
    fn any(&self, unstable: &dyn Fn(PatchId) -> bool) -> bool {
        self.iter().any(|&patch| unstable(patch))
    }
}

impl<K: Eq + Hash, V: Patches + Clone> Table<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V, cache: &Cache) {
        if self.entries.len() >= self.purge_at {
            self.purge(cache);
        }
        self.entries.insert(key, value);
    }

    /// Drops entries that became stable, and the room that they took.
    fn purge(&mut self, cache: &Cache) {
        let mut seen = 0;
        let mut tx = None;
        self.entries.retain(|_, value| {
            seen += 1;
            if seen % PURGE_STEP == 0 {
                // Others have waited.
                tx = None;
            }
            let tx = tx.get_or_insert_with(|| cache.lock());
            value.any(&|patch| tx.state(patch) != PatchState::Committed)
        });
        self.purge_at = (self.entries.len() * 2).max(PURGE_MIN);
        if self.entries.capacity() > SHRINK_FACTOR * self.purge_at {
            self.entries.shrink_to(self.purge_at);
        }
    }

    /// Drops what has become stable if that may be much.
    pub(crate) fn settle(&mut self, cache: &Cache) {
        if self.entries.len() > PURGE_MIN {
            self.purge(cache);
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key)
    }
}

/// About directory blocks.
#[derive(Debug, Default)]
pub(crate) struct NameMemory {
    /// The last change of a block's structure: lengths, names, kinds.
    pub(crate) structure: Table<BlockNo, PatchId>,
    /// The patch that made an entry name its inode.
    pub(crate) created: Table<Place, PatchId>,
    /// The exchange that made an entry name its inode, which the medium may still hold under the other name.
    pub(crate) exchanged: Table<Place, PatchId>,
    /// The patch that cleared an entry.
    pub(crate) cleared: Table<Place, PatchId>,
    /// The patch that cleared a name, by directory and hash of the name.
    pub(crate) vanished: Table<(u32, u64), PatchId>,
}

impl NameMemory {
    /// Gives back what was remembered about changes that are stable.
    pub(crate) fn settle(&mut self, cache: &Cache) {
        self.structure.settle(cache);
        self.created.settle(cache);
        self.exchanged.settle(cache);
        self.cleared.settle(cache);
        self.vanished.settle(cache);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{ManualClock, MemDevice};
    use fstitch_patch::CacheOptions;

    use super::*;

    #[test]
    fn what_is_stable_is_forgotten_with_its_room() {
        let cache = Cache::new(
            Arc::new(MemDevice::new(1024, 8)),
            CacheOptions::default(),
            Arc::new(ManualClock::new()),
        );
        let held = cache.lock().hold(&[]);
        let released = cache.lock().hold(&[]);
        let mut table: Table<u32, PatchId> = Table::default();
        for key in 0..100_000 {
            table.insert(key, if key % 1000 == 0 { held } else { released }, &cache);
        }
        let (len, room) = (table.entries.len(), table.entries.capacity());
        table.settle(&cache);
        assert_eq!((table.entries.len(), table.entries.capacity()), (len, room), "nothing is stable");
        cache.lock().release(released);
        table.settle(&cache);
        assert_eq!(table.entries.len(), 100);
        assert!(table.entries.capacity() < 10_000);
        assert!((0..100).all(|key| table.get(&(key * 1000)) == Some(&held)));
        cache.lock().release(held);
    }
}
