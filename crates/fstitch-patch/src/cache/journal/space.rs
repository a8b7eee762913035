//! The log's blocks as a ring, and its tail.

use std::collections::VecDeque;

use super::{Closed, Core, Journal, Passed, Shared};
use crate::graph::patch::{Change, Site, Vx};
use crate::graph::{ChangeContents as Contents, Logging};
use crate::journal::format::SUPERBLOCK_SIZE;
use crate::{PatchId, PatchState};

/// Which part of the log is given back at least where that takes writing blocks home.
const WAITED_SHARE: u32 = 16;

/// The free part of the log. What is written into a block depends on the tail patch that gave it back.
#[derive(Debug)]
pub(super) struct Ring {
    first: u32,
    len: u32,
    head: u32,
    /// Free blocks from `head` on: how many, and the patch that gave them back.
    free: VecDeque<(u32, PatchId)>,
}

impl Ring {
    pub(super) fn new(first: u32, len: u32) -> Self {
        Self { first, len, head: first, free: VecDeque::from([(len, PatchId::NONE)]) }
    }

    /// Free blocks.
    pub(super) fn free(&self) -> u32 {
        self.free.iter().map(|&(count, _)| count).sum()
    }

    /// The block that is taken next.
    pub(super) fn head(&self) -> u32 {
        self.head
    }

    /// Takes the next block: its number in the journal, and what its contents must come after.
    pub(super) fn take(&mut self) -> (u32, PatchId) {
        let (count, after) = self.free.front_mut().expect("the caller has counted");
        let after = *after;
        *count -= 1;
        if *count == 0 {
            self.free.pop_front();
        }
        let taken = self.head;
        self.head = if taken + 1 == self.first + self.len { self.first } else { taken + 1 };
        (taken, after)
    }

    /// Gives the oldest taken blocks back.
    fn give_back(&mut self, count: u32, tail: PatchId) {
        self.free.push_back((count, tail));
    }
}

impl Journal {
    /// Forgets which blocks had copies in transactions that a stable tail has passed.
    fn purge_passed(&mut self, logging: &mut Logging, stable: usize) {
        for passed in self.passed.drain(..stable) {
            for block in passed.blocks {
                for copies in [&mut logging.copies, &mut logging.contents] {
                    if copies.get(&block) == Some(&passed.serial) {
                        copies.remove(&block);
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Makes room for `need` blocks in the log: the tail passes the oldest transactions, those that are home
    /// and, where that is not enough, others, once they will be.
    pub(super) fn make_log_room(&self, core: &mut Core, volume: Vx, need: u32) {
        let Some(mut journal) = core.take_journal(volume) else { return };
        let stable = journal
            .passed
            .iter()
            .take_while(|passed| core.graph.state(passed.tail) == PatchState::Committed)
            .count();
        if let Some(logging) = core.graph.logging_mut(volume) {
            journal.purge_passed(logging, stable);
        }
        // A quarter stays free, so that the tail moves in few large steps and seldom stands in a commit's way.
        let comfort = need.max(journal.superblock.log_blocks() / 4);
        let mut released: Vec<Closed> = Vec::new();
        let mut free = journal.ring.free();
        let mut least = need;
        while free < comfort {
            let Some(oldest) = journal.closed.front() else { break };
            if core.graph.state(oldest.done) != PatchState::Committed {
                if free >= least {
                    break;
                }
                // Whoever has to wait for home blocks and the tail does so for many to come.
                least = need.max(journal.superblock.log_blocks() / WAITED_SHARE);
            }
            free += oldest.len;
            released.extend(journal.closed.pop_front());
        }
        core.put_journal(volume, journal);
        if released.is_empty() {
            return;
        }
        let done: Vec<PatchId> = released.iter().map(|closed| closed.done).collect();
        let tail = self.put_tail(core, volume, &done);
        let journal = core.journal_mut(volume).expect("put back");
        for closed in released {
            journal.ring.give_back(closed.len, tail);
            journal.passed.push_back(Passed { tail, serial: closed.serial, blocks: closed.blocks });
        }
    }

    /// Points the log's superblock at the oldest transaction that is left, after `befores`.
    pub(super) fn put_tail(&self, core: &mut Core, volume: Vx, befores: &[PatchId]) -> PatchId {
        let journal = core.journal_mut(volume).expect("a journal is kept");
        (journal.superblock.start, journal.superblock.sequence) = match journal.closed.front() {
            Some(oldest) => (oldest.start, oldest.sequence),
            None => (journal.ring.head(), journal.next),
        };
        Self::put_superblock(core, volume, befores)
    }

    /// Writes the log's superblock, after `befores`.
    pub(super) fn put_superblock(core: &mut Core, volume: Vx, befores: &[PatchId]) -> PatchId {
        let journal = core.journal(volume).expect("a journal is kept");
        let (sx, no) = (journal.superblock_block.slot, journal.superblock_block.no);
        let mut raw = core.graph.slot(sx).loaded()[..SUPERBLOCK_SIZE].to_vec();
        journal.superblock.encode_into(&mut raw);
        let len = u32::try_from(SUPERBLOCK_SIZE).expect("a small constant");
        let (site, change) = (Site { volume, slot: sx, no }, Change::Bytes { offset: 0, len });
        core.graph.change_plain(site, change, &Contents::Bytes(&raw), befores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_goes_around_and_remembers_who_gave_back() {
        let mut ring = Ring::new(1, 5);
        let taken: Vec<u32> = (0..5).map(|_| ring.take().0).collect();
        assert_eq!((taken, ring.free(), ring.head()), (vec![1, 2, 3, 4, 5], 0, 1));
        let tail = PatchId { generation: 7, index: 3 };
        ring.give_back(2, tail);
        ring.give_back(1, PatchId::NONE);
        assert_eq!(ring.free(), 3);
        assert_eq!((ring.take(), ring.take(), ring.take()), ((1, tail), (2, tail), (3, PatchId::NONE)));
    }
}
