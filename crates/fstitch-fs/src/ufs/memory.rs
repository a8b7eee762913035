//! What must be remembered about patches that are not stable yet, longer than any loaded inode.
//!
//! **Invariants.** Until they are stable are listed:
//! 1. of a directory's fragment the last change of its structure and the clearing of each entry: later changes of the structure come
//!    after them; and the clearing of each name, which comes before the same name wherever it is made again;
//! 2. the pointers to a fragment of a directory or a block of pointers, and the length that covers it: what lies there is reachable
//!    only after these;
//! 3. what an inode's `fsync` waits for.

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_patch::{Cache, PatchIds};

use super::names::DirMemory;
use crate::gather::Gather;
use crate::name_index::IndexCache;
use crate::unstable::{NameMemory, Table};

/// All tables of a volume. Each lock is held for moments, and only the core lock is taken inside.
#[derive(Debug)]
pub(super) struct Memory {
    names: Mutex<NameMemory, rank::Table>,
    links: Mutex<Table<u64, PatchIds>, rank::Table>,
    gathers: Mutex<Table<u32, Gather>, rank::Table>,
    pub(super) indexes: IndexCache<DirMemory>,
}

impl Memory {
    /// Nothing yet; indexes of directories may take so many bytes together.
    pub(super) fn new(index_bytes_max: usize) -> Self {
        Self {
            names: Mutex::default(),
            links: Mutex::default(),
            gathers: Mutex::default(),
            indexes: IndexCache::new(index_bytes_max),
        }
    }

    pub(super) fn names(&self) -> MutexGuard<'_, NameMemory> {
        self.names.lock()
    }

    pub(super) fn gathers(&self, ino: u32) -> Gather {
        self.gathers.lock().get(&ino).copied().unwrap_or_default()
    }

    pub(super) fn set_gathers(&self, ino: u32, gather: Gather, cache: &Cache) {
        self.gathers.lock().insert(ino, gather, cache);
    }

    /// Lists the pointers to a fragment.
    pub(super) fn set_links(&self, fragment: u64, pointers: PatchIds, cache: &Cache) {
        self.links.lock().insert(fragment, pointers, cache);
    }

    /// The pointers to a fragment that may not be stable yet.
    pub(super) fn links(&self, fragment: u64) -> PatchIds {
        self.links.lock().get(&fragment).cloned().unwrap_or_default()
    }

    /// After much has become stable: gives back what was remembered about it.
    pub(super) fn settle(&self, cache: &Cache) {
        // One lock at a time, so that others get theirs between two tables.
        self.names().settle(cache);
        self.links.lock().settle(cache);
        self.gathers.lock().settle(cache);
    }
}
