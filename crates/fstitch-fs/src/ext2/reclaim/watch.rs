//! What changed since a pass of the scan began, so that the scan never judges what was in motion.

use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use rustc_hash::{FxHashMap, FxHashSet};

use super::super::num::{idx64, small};

/// Changes since a pass began. Costs one atomic load where no scan runs.
#[derive(Debug, Default)]
pub(in super::super) struct Watch {
    active: AtomicBool,
    changes: Mutex<Changes, rank::Leaf>,
}

#[derive(Debug, Default)]
struct Changes {
    /// Inodes whose names, count of names or blocks changed.
    inodes: FxHashSet<u32>,
    /// Blocks that were taken or freed, as one bitmap for each 32768 of them.
    blocks: FxHashMap<u64, Box<[u64; 512]>>,
}

/// Blocks in one bitmap.
const CHUNK: u64 = 512 * 64;

impl Watch {
    /// Forgets everything and watches from now on.
    pub(super) fn start(&self) {
        *self.changes.lock() = Changes::default();
        self.active.store(true, Ordering::SeqCst);
    }

    /// Watches no longer.
    pub(super) fn stop(&self) {
        self.active.store(false, Ordering::SeqCst);
        *self.changes.lock() = Changes::default();
    }

    /// Names, count of names or blocks of an inode are about to change.
    pub(in super::super) fn inode(&self, ino: u32) {
        if self.active.load(Ordering::SeqCst) {
            self.changes.lock().inodes.insert(ino);
        }
    }

    /// Blocks are about to be taken or freed.
    pub(in super::super) fn blocks(&self, start: u64, count: u32) {
        if !self.active.load(Ordering::SeqCst) {
            return;
        }
        let mut changes = self.changes.lock();
        for block in start..start + u64::from(count) {
            let chunk = changes.blocks.entry(block / CHUNK).or_insert_with(|| Box::new([0; 512]));
            chunk[idx64(block % CHUNK / 64)] |= 1 << (block % 64);
        }
    }

    pub(super) fn inode_changed(&self, ino: u32) -> bool {
        self.changes.lock().inodes.contains(&ino)
    }

    /// Whether any inode of `first..end` changed.
    pub(super) fn any_inode_in(&self, first: u32, end: u32) -> bool {
        let changes = self.changes.lock();
        changes.inodes.iter().any(|ino| (first..end).contains(ino))
    }

    pub(super) fn block_changed(&self, block: u64) -> bool {
        let changes = self.changes.lock();
        let chunk = changes.blocks.get(&(block / CHUNK));
        chunk.is_some_and(|chunk| chunk[idx64(block % CHUNK / 64)] >> (block % 64) & 1 == 1)
    }
}

/// A set of numbers from a range, one bit each.
#[derive(Debug)]
pub(super) struct BitSet {
    start: u64,
    words: Vec<u64>,
}

impl BitSet {
    /// An empty set over `start..end`.
    pub(super) fn new(start: u64, end: u64) -> Self {
        Self { start, words: vec![0; idx64((end - start).div_ceil(64))] }
    }

    /// Adds a number; those outside the range are ignored.
    pub(super) fn insert(&mut self, n: u64) {
        if let Some(at) = n.checked_sub(self.start)
            && let Some(word) = self.words.get_mut(idx64(at / 64))
        {
            *word |= 1 << (at % 64);
        }
    }

    pub(super) fn contains(&self, n: u64) -> bool {
        let at = n.checked_sub(self.start);
        at.is_some_and(|at| self.words.get(idx64(at / 64)).is_some_and(|word| word >> (at % 64) & 1 == 1))
    }

    /// How many numbers fit into so many bytes.
    pub(super) fn numbers_in(bytes: usize) -> u32 {
        small(bytes.min(1 << 28)) * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_changes_while_watching_is_known() {
        let watch = Watch::default();
        watch.inode(3);
        watch.start();
        watch.inode(4);
        watch.blocks(32_760, 20);
        assert!(!watch.inode_changed(3) && watch.inode_changed(4));
        assert!(!watch.block_changed(32_759) && watch.block_changed(32_760) && watch.block_changed(32_779));
        assert!(!watch.block_changed(32_780));
        watch.stop();
        assert!(!watch.inode_changed(4));
    }

    #[test]
    fn sets_keep_to_their_range() {
        let mut set = BitSet::new(100, 300);
        [5, 100, 250, 4_000].into_iter().for_each(|n| set.insert(n));
        assert!(set.contains(100) && set.contains(250));
        assert!(!set.contains(5) && !set.contains(101) && !set.contains(4_000));
    }
}
