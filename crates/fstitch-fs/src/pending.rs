//! What was freed in memory while the pointer to it may still be on the medium.
//!
//! **Invariants.**
//! 1. A freed bit is listed with the patch that cleared the last pointer to it until that patch is stable.
//! 2. A new life of a listed bit leaves the entry in place: if that life ends before it ever reached the
//!    medium, its freeing waits for nothing, and the next life still waits for the first one's pointer.
//! 3. Entries do not overlap; a later freeing replaces an earlier one, which its patch depends on.

use std::collections::BTreeMap;

use fstitch_patch::{PatchId, PatchIds, PatchState, Tx};

/// How many entries a list holds before committed ones are looked for.
const PURGE_MIN: usize = 64;

/// The pending runs of one group's bitmap.
#[derive(Clone, Debug)]
pub(crate) struct Pending {
    /// Start of a run to its end and the clearing of its pointer.
    runs: BTreeMap<u32, (u32, PatchId)>,
    /// Number of runs at which the next purge is due.
    purge_at: usize,
    /// How often runs were purged: until the next time no bit leaves the list.
    purges: u64,
}

impl Default for Pending {
    fn default() -> Self {
        Self { runs: BTreeMap::new(), purge_at: PURGE_MIN, purges: 0 }
    }
}

impl Pending {
    /// Lists `start..end` as waiting for `patch`.
    pub(crate) fn insert(&mut self, start: u32, end: u32, patch: PatchId, tx: &Tx<'_>) {
        if self.runs.len() >= self.purge_at {
            self.purge(tx);
        }
        let overlaps = self.runs.range(..end).next_back().is_some_and(|(_, &(last, _))| last > start);
        if overlaps {
            self.remove(start, end);
        }
        let before = self.runs.range(..start).next_back().map(|(&first, &run)| (first, run));
        match before {
            Some((first, (last, same))) if last == start && same == patch => {
                self.runs.insert(first, (end, patch));
            }
            _ => {
                self.runs.insert(start, (end, patch));
            }
        }
    }

    /// Takes `start..end` out, splitting runs that reach beyond it.
    fn remove(&mut self, start: u32, end: u32) {
        let overlapping: Vec<_> = self
            .runs
            .range(..end)
            .rev()
            .map(|(&first, &(last, patch))| (first, last, patch))
            .take_while(|&(_, last, _)| last > start)
            .collect();
        for (first, last, patch) in overlapping {
            self.runs.remove(&first);
            if first < start {
                self.runs.insert(first, (start, patch));
            }
            if last > end {
                self.runs.insert(end, (last, patch));
            }
        }
    }

    /// Forgets what is stable.
    pub(crate) fn purge(&mut self, tx: &Tx<'_>) {
        self.runs.retain(|_, (_, patch)| tx.state(*patch) != PatchState::Committed);
        self.purge_at = (self.runs.len() * 2).max(PURGE_MIN);
        self.purges += 1;
    }

    /// The runs that no new life may use at all yet: a journal's running transaction has freed them, and new contents would
    /// have to be stable both before its end and after it.
    pub(crate) fn out_of_reach(&self, tx: &Tx<'_>) -> Self {
        let runs = self.runs.iter().filter(|(_, (_, patch))| tx.bars_reuse(*patch));
        Self { runs: runs.map(|(&start, &run)| (start, run)).collect(), ..Self::default() }
    }

    /// A number that changes whenever bits leave the list.
    #[must_use]
    pub(crate) const fn purges(&self) -> u64 {
        self.purges
    }

    /// The first listed run that ends behind `at`, as start and end.
    #[must_use]
    pub(crate) fn next_from(&self, at: u32) -> Option<(u32, u32)> {
        let around = self.runs.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
        let (&start, &(end, _)) = around.or_else(|| self.runs.range(at..).next())?;
        Some((start, end))
    }

    /// What a new life of `start..end` must come after.
    #[must_use]
    pub(crate) fn reuse(&self, start: u32, end: u32) -> PatchIds {
        let mut patches = PatchIds::new();
        let overlapping = self.runs.range(..end).rev().take_while(|(_, (last, _))| *last > start);
        for (_, (_, patch)) in overlapping {
            if !patches.contains(patch) {
                patches.push(*patch);
            }
        }
        patches
    }

    /// Whether nothing is listed.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fstitch_core::{ManualClock, MemDevice};
    use fstitch_patch::{Cache, CacheOptions};
    use std::sync::Arc;

    #[test]
    fn runs_join_split_and_replace() {
        let device = Arc::new(MemDevice::new(1024, 8));
        let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
        let mut tx = cache.lock();
        let held = tx.hold(&[]);
        let other = tx.hold(&[]);
        let mut pending = Pending::default();
        pending.insert(10, 20, held, &tx);
        pending.insert(20, 30, held, &tx);
        assert_eq!(pending.next_from(0), Some((10, 30)));
        pending.insert(15, 17, other, &tx);
        assert_eq!(pending.next_from(12), Some((10, 15)));
        assert_eq!(pending.next_from(17), Some((17, 30)));
        assert_eq!(pending.reuse(14, 18).len(), 2);
        assert!(pending.reuse(30, 40).is_empty());
        pending.purge(&tx);
        assert!(!pending.is_empty());
        tx.release(held);
        tx.release(other);
        pending.purge(&tx);
        assert!(pending.is_empty());
    }
}
