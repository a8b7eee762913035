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
//! 6. The change that took the last node from an extent tree is listed until it is stable: till then the medium has a tree with nodes.
//! 7. Entries that became stable are dropped when a table has doubled since the last look; a stale entry would
//!    order nothing, so it costs only memory.

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_patch::{Cache, PatchId, PatchIds};

use super::dir::IndexCache;
use crate::gather::Gather;
use crate::unstable::{NameMemory, Table};

/// All tables of a volume. Each lock is held for moments, and only the core lock is taken inside.
#[derive(Debug)]
pub(super) struct Memory {
    names: Mutex<NameMemory, rank::Table>,
    links: Mutex<Table<u64, PatchIds>, rank::Table>,
    inodes: Mutex<InodeMemory, rank::Table>,
    pub(super) indexes: IndexCache,
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
    /// The change with which an extent tree has no nodes any more, by its inode.
    pub(super) folded: Table<u32, PatchId>,
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
        self.inodes().folded.settle(cache);
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
