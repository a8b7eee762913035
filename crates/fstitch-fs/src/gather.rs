//! What somebody may wait for until it is stable: the patches of one inode, or of one part of its changes.
//!
//! Most inodes have few unstable patches at a time, and one that is changed often is changed by the same patches over and
//! over, since changes of one block merge. So the first few are kept as they are, and only what is beyond them goes into
//! a gathering patch, which costs an edge for each.

use fstitch_patch::{PatchId, PatchIds, PatchState, Tx};

/// Patches that are kept as they are.
const FEW: usize = 3;

/// Patches to wait for. It orders nothing: it only answers whether all of them are stable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Gather {
    few: [PatchId; FEW],
    /// Gathers all others.
    others: PatchId,
}

impl Gather {
    /// Adds a patch. One that goes through a journal is gathered at once: it is to be waited for as long as its transaction
    /// is not there, and the same patch may be part of a later one afterwards.
    pub(crate) fn add(&mut self, tx: &mut Tx<'_>, patch: PatchId) {
        if tx.is_logged(patch) {
            self.others = tx.gather_add(self.others, patch);
            return;
        }
        if self.few.contains(&patch) {
            return;
        }
        let stable = |kept: &PatchId| *kept == PatchId::NONE || tx.state(*kept) == PatchState::Committed;
        if let Some(free) = self.few.iter().position(stable) {
            self.few[free] = patch;
            return;
        }
        // The oldest makes room: what is changed now will be changed again.
        self.others = tx.gather_add(self.others, self.few[0]);
        self.few.rotate_left(1);
        self.few[FEW - 1] = patch;
    }

    /// Adds several patches: many at once are not worth keeping, and those that others of them come after need not be gathered.
    pub(crate) fn add_all(&mut self, tx: &mut Tx<'_>, patches: &[PatchId]) {
        if patches.len() > FEW || patches.iter().any(|&patch| tx.is_logged(patch)) {
            self.others = tx.gather_all(self.others, patches);
        } else {
            patches.iter().for_each(|&patch| self.add(tx, patch));
        }
    }

    /// The gathering patch of those that are not kept here, for those who add to it themselves.
    pub(crate) fn others(&mut self) -> &mut PatchId {
        &mut self.others
    }

    /// All patches: whoever waits for them waits for everything that was added.
    pub(crate) fn patches(&self) -> impl Iterator<Item = PatchId> + '_ {
        self.few.iter().copied().chain([self.others]).filter(|&patch| patch != PatchId::NONE)
    }

    /// The same as a list.
    pub(crate) fn ids(&self) -> PatchIds {
        self.patches().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{BlockKind, BlockNo, ManualClock, MemDevice};
    use fstitch_patch::{Cache, CacheOptions};

    use super::*;

    #[test]
    fn everything_added_is_waited_for() {
        let device = Arc::new(MemDevice::new(1024, 64));
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        let blocks: Vec<_> =
            (0..10).map(|no| cache.read(BlockNo(no), BlockKind::Data).expect("a device in memory")).collect();
        let mut gather = Gather::default();
        let mut all = Vec::new();
        for round in [1, 2] {
            for block in &blocks {
                let mut tx = cache.lock();
                let patch = tx.bytes(block, 7, &[round], &[]);
                gather.add(&mut tx, patch);
                gather.add(&mut tx, patch);
                all.push(patch);
            }
            assert!(gather.patches().count() <= FEW + 1);
            cache.sync_patches(&gather.ids()).unwrap();
            assert!(all.iter().all(|&patch| cache.state(patch) == PatchState::Committed));
        }
        assert!(gather.patches().all(|patch| cache.state(patch) == PatchState::Committed));
    }

    #[test]
    fn the_same_patch_is_kept_once() {
        let device = Arc::new(MemDevice::new(1024, 64));
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        let block = cache.read(BlockNo(1), BlockKind::Data).expect("a device in memory");
        let mut gather = Gather::default();
        for at in 0..100 {
            let mut tx = cache.lock();
            let patch = tx.bytes(&block, at, &[1], &[]);
            gather.add(&mut tx, patch);
        }
        assert_eq!(gather.ids().len(), 1, "changes of one block merge");
    }
}
