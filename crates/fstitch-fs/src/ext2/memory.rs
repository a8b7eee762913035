//! What must be remembered about patches that are not stable yet, longer than any loaded inode.
//!
//! **Invariants.**
//! 1. The last change of a directory block's structure, and the clearing of each of its entries, are listed
//!    until they are stable: later changes of the structure come after them.
//! 2. The clearing of each name is listed until it is stable: the same name, wherever in the directory it is made
//!    again, comes after it, so that the medium never holds it twice.
//! 3. The pointers to a directory or indirect block are listed until they are stable: what lies in the block is
//!    reachable only after them.
//! 4. The changes of pointers away from an attribute block that keeps others are listed until they are stable: whoever has
//!    the block alone changes or frees it after them.
//! 5. The last change of a node of an extent tree is listed until it is stable: whoever moves the node's entries elsewhere comes
//!    after it.
//! 6. Entries that became stable are dropped when a table has doubled since the last look; a stale entry would
//!    order nothing, so it costs only memory.

use std::hash::{BuildHasher, Hash};

use fstitch_core::BlockNo;
use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_patch::{Cache, PatchId, PatchIds, PatchState};
use rustc_hash::FxHashMap;

use super::dir::IndexCache;
use crate::gather::Gather;

/// How many entries a table holds before it is looked at for stable ones.
const PURGE_MIN: usize = 1024;
/// Entries that are looked at under one core lock.
const PURGE_STEP: usize = 256;
/// A table has become smaller by so much if its room is given back: a few entries in one made for a million are each a miss
/// of the processor's caches.
const SHRINK_FACTOR: usize = 4;

/// What [`NameMemory::vanished`] knows a name by. Two names of one hash only wait for each other.
pub(super) fn name_key(dir: u32, name: &[u8]) -> (u32, u64) {
    (dir, rustc_hash::FxBuildHasher.hash_one(name))
}

/// A directory entry's position.
pub(super) type Place = (BlockNo, usize);

/// A map whose entries are of use only while their patches are not stable.
#[derive(Debug)]
pub(super) struct Table<K, V> {
    entries: FxHashMap<K, V>,
    purge_at: usize,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { entries: FxHashMap::default(), purge_at: PURGE_MIN }
    }
}

/// What a table keeps: one patch or several.
pub(super) trait Patches: Default {
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
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(super) fn insert(&mut self, key: K, value: V, cache: &Cache) {
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
    fn settle(&mut self, cache: &Cache) {
        if self.entries.len() > PURGE_MIN {
            self.purge(cache);
        }
    }

    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        self.entries.remove(key)
    }
}

/// All tables of a volume. Each lock is held for moments, and only the core lock is taken inside.
#[derive(Debug)]
pub(super) struct Memory {
    names: Mutex<NameMemory, rank::Table>,
    links: Mutex<Table<u64, PatchIds>, rank::Table>,
    inodes: Mutex<InodeMemory, rank::Table>,
    pub(super) indexes: IndexCache,
}

/// About directory blocks.
#[derive(Debug, Default)]
pub(super) struct NameMemory {
    /// The last change of a block's structure: lengths, names, kinds.
    pub(super) structure: Table<BlockNo, PatchId>,
    /// The patch that made an entry name its inode.
    pub(super) created: Table<Place, PatchId>,
    /// The exchange that made an entry name its inode, which the medium may still hold under the other name.
    pub(super) exchanged: Table<Place, PatchId>,
    /// The patch that cleared an entry.
    pub(super) cleared: Table<Place, PatchId>,
    /// The patch that cleared a name, by directory and hash of the name.
    pub(super) vanished: Table<(u32, u64), PatchId>,
}

/// About inodes.
#[derive(Debug, Default)]
pub(super) struct InodeMemory {
    /// What gathers an inode's patches.
    pub(super) gathers: Table<u32, Gather>,
    /// The clearing of a directory's index flag.
    pub(super) unindexed: Table<u32, PatchId>,
    /// The pointers that were turned away from an attribute block which others share, by block.
    pub(super) turned_away: Table<u64, PatchIds>,
    /// The last change of a node of an extent tree, by its block, or by what stands for the root of an inode.
    pub(super) nodes: Table<u64, PatchId>,
}

impl Memory {
    pub(super) fn new(index_bytes_max: usize) -> Self {
        Self {
            names: Mutex::default(),
            links: Mutex::default(),
            inodes: Mutex::default(),
            indexes: IndexCache::new(index_bytes_max),
        }
    }

    pub(super) fn names(&self) -> MutexGuard<'_, NameMemory> {
        self.names.lock()
    }

    pub(super) fn inodes(&self) -> MutexGuard<'_, InodeMemory> {
        self.inodes.lock()
    }

    /// After much has become stable: gives back what was remembered about it.
    pub(super) fn settle(&self, cache: &Cache) {
        // One lock at a time, so that others get theirs between two tables.
        self.names().structure.settle(cache);
        self.names().created.settle(cache);
        self.names().exchanged.settle(cache);
        self.names().cleared.settle(cache);
        self.names().vanished.settle(cache);
        self.inodes().gathers.settle(cache);
        self.inodes().unindexed.settle(cache);
        self.inodes().turned_away.settle(cache);
        self.inodes().nodes.settle(cache);
        self.links.lock().settle(cache);
    }

    /// Lists the pointers to a directory or indirect block.
    pub(super) fn set_links(&self, block: u64, pointers: PatchIds, cache: &Cache) {
        self.links.lock().insert(block, pointers, cache);
    }

    /// The pointers to a block that may not be stable yet.
    pub(super) fn links(&self, block: u64) -> PatchIds {
        self.links.lock().get(&block).cloned().unwrap_or_default()
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
