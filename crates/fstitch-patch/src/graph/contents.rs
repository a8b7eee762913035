//! Contents of files that became dirty, the oldest first: what can be written before anybody asks for it.

use std::collections::VecDeque;
use std::time::Duration;

use fstitch_core::BlockKind;

use super::flight::Readiness;
use super::patch::Sx;
use super::{Graph, Slot, at};

/// The queue may have so many entries more than twice the dirty blocks before those that mean nothing any more are taken out.
const SLACK: usize = 1024;
/// For so many blocks that become dirty one may be freed: where more are, files live too short to be written early.
const MAY_DIE: u32 = 4;
/// Lives after which what was counted before weighs half.
const MEMORY: u32 = 4096;

/// Blocks of contents, by when they became dirty.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Places with the ticket that the block there drew when it became dirty: what stands there with another one was dirty again
    /// since, or is another block by now. The time would not do: all of that may happen within one tick of the clock.
    queue: VecDeque<(Sx, u64)>,
    /// The ticket that was drawn last. None is drawn twice.
    ticket: u64,
    /// Blocks that became dirty of late.
    dirtied: u32,
    /// Blocks in memory that were freed of late, written or not.
    died: u32,
}

impl Graph {
    /// A block got its first uncommitted patch.
    pub(super) fn note_contents(&mut self, sx: Sx) {
        if self.slots[at(sx)].kind != BlockKind::Data {
            return;
        }
        if self.contents.queue.len() > 2 * self.dirty.len() + SLACK {
            // One entry of a dirty block is valid, so that what is left is no more than these.
            let slots = &self.slots;
            self.contents.queue.retain(|&(sx, ticket)| is_dirty_since(&slots[at(sx)], ticket));
        }
        let contents = &mut self.contents;
        contents.ticket += 1;
        contents.queue.push_back((sx, contents.ticket));
        self.slots[at(sx)].ticket = contents.ticket;
        contents.dirtied += 1;
        if contents.dirtied > MEMORY {
            contents.dirtied /= 2;
            contents.died /= 2;
        }
    }

    /// A block was freed.
    pub(super) fn note_death(&mut self, sx: Sx) {
        let died = self.contents.died + u32::from(self.slots[at(sx)].kind == BlockKind::Data);
        self.contents.died = died.min(MEMORY);
    }

    /// Whether contents mostly stay: temporary files do not, and it would be in vain to write them early.
    pub(crate) fn contents_stay(&self) -> bool {
        self.contents.died <= self.contents.dirtied / MAY_DIE
    }

    /// So many blocks of contents, sorted, that became dirty at `horizon` or before and can be written as a whole; what cannot
    /// is passed over and left to its age. What is stable in a journal has time. None unless there are about as many as the
    /// lower bound.
    pub(crate) fn take_ripe_contents(&mut self, horizon: Duration, (least, most): (usize, usize)) -> Vec<Sx> {
        let mut ripe = Vec::new();
        let least = self.contents.queue.get(least).map(|&(sx, _)| self.slot(sx));
        if least.is_none_or(|slot| slot.dirtied_at > horizon) {
            return ripe;
        }
        while ripe.len() < most
            && let Some(&(sx, ticket)) = self.contents.queue.front()
        {
            let slot = self.slot(sx);
            let is_it = is_dirty_since(slot, ticket);
            if is_it && slot.dirtied_at > horizon {
                break;
            }
            let is_plain = slot.patches.iter().all(|&px| !self.patch(px).home);
            if is_it && is_plain && self.readiness(sx) == Readiness::All {
                ripe.push(sx);
            }
            self.contents.queue.pop_front();
        }
        self.sort(&mut ripe);
        ripe
    }
}

/// Whether the block holds contents that became dirty with this ticket, and have been since.
fn is_dirty_since(slot: &Slot, ticket: u64) -> bool {
    slot.kind == BlockKind::Data && !slot.patches.is_empty() && slot.ticket == ticket
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::{BlockBuf, BlockNo, ManualClock};

    use super::super::create::Contents as New;
    use super::super::patch::{Change, Site};
    use super::*;
    use crate::{Optimizations, PatchId};

    /// A graph with blocks that hold contents, and the time by which it lives.
    fn graph(blocks: u64) -> (Graph, Vec<Sx>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new());
        let mut graph = Graph::new(Optimizations::ALL, Arc::clone(&clock) as Arc<dyn fstitch_core::Clock>);
        let zeros = Arc::new(BlockBuf::zeroed(512));
        let add = |no| graph.add_slot(BlockNo(no), BlockKind::Data, Some(Arc::clone(&zeros)));
        let slots = (0..blocks).map(add).collect();
        (graph, slots, clock)
    }

    fn change(graph: &mut Graph, sx: Sx, befores: &[PatchId]) -> PatchId {
        let site = Site { volume: 0, slot: sx, no: graph.slot(sx).no };
        graph.new_moment();
        graph.change(site, Change::Bytes { offset: 0, len: 1 }, &New::Bytes(&[7]), befores)
    }

    fn write(graph: &mut Graph, blocks: &[Sx]) {
        blocks.iter().for_each(|&sx| drop(graph.launch(sx)));
        blocks.iter().for_each(|&sx| graph.commit(sx));
    }

    #[test]
    fn the_oldest_are_ripe_first_and_what_waits_is_passed_over() {
        let (mut graph, slots, clock) = graph(4);
        let first = change(&mut graph, slots[3], &[]);
        clock.advance(Duration::from_secs(1));
        change(&mut graph, slots[2], &[first]);
        change(&mut graph, slots[1], &[]);
        clock.advance(Duration::from_secs(1));
        change(&mut graph, slots[0], &[]);
        // Another change of what is dirty makes it no younger.
        change(&mut graph, slots[3], &[]);
        let since = |seconds| Duration::from_secs(seconds);
        assert!(graph.take_ripe_contents(since(1), (4, 9)).is_empty(), "too few");
        assert_eq!(graph.take_ripe_contents(since(0), (0, 9)), [slots[3]]);
        assert_eq!(graph.take_ripe_contents(since(1), (0, 9)), [slots[1]]);
        write(&mut graph, &[slots[3], slots[1]]);
        // The second one waits no more, but had its turn; the third was written and is dirty again.
        change(&mut graph, slots[1], &[]);
        assert_eq!(graph.take_ripe_contents(since(2), (0, 1)), [slots[0]]);
        assert_eq!(graph.take_ripe_contents(since(2), (0, 9)), [slots[1]]);
        assert!(graph.contents.queue.is_empty());
    }

    /// Prevents a queue that grows, and one that has a block twice, while a clock stands still.
    #[test]
    fn blocks_are_taken_once_however_often_they_were_written() {
        let (mut graph, slots, _clock) = graph(4);
        for _ in 0..SLACK {
            for &sx in &slots {
                change(&mut graph, sx, &[]);
            }
            write(&mut graph, &slots);
            assert!(graph.contents.queue.len() <= SLACK + 3 * slots.len());
        }
        change(&mut graph, slots[2], &[]);
        assert_eq!(graph.take_ripe_contents(Duration::from_secs(1), (0, 9)), [slots[2]]);
    }

    /// Prevents the panic of a flusher that took a block twice: what had its place before was written and forgotten within a tick.
    #[test]
    fn a_place_that_another_block_takes_at_once_is_taken_once() {
        let (mut graph, slots, _clock) = graph(1);
        let zeros = Arc::clone(graph.slot(slots[0]).loaded());
        for no in 1..4 {
            change(&mut graph, slots[0], &[]);
            write(&mut graph, &slots);
            graph.remove_slot(slots[0]);
            let again = graph.add_slot(BlockNo(no), BlockKind::Data, Some(Arc::clone(&zeros)));
            assert_eq!(again, slots[0], "the place is used again");
        }
        change(&mut graph, slots[0], &[]);
        assert_eq!(graph.take_ripe_contents(Duration::from_secs(1), (0, 9)), slots);
    }

    #[test]
    fn contents_that_die_young_are_noticed_and_forgotten() {
        let (mut graph, slots, clock) = graph(8);
        for round in 0..3 {
            for &sx in &slots {
                change(&mut graph, sx, &[]);
            }
            assert!(round > 0 || graph.contents_stay());
            for &sx in &slots {
                graph.drop_changes((0, graph.slot(sx).no), sx, &[]);
            }
        }
        assert!(!graph.contents_stay());
        for _ in 0..2 * MEMORY {
            clock.advance(Duration::from_millis(1));
            change(&mut graph, slots[0], &[]);
            write(&mut graph, &slots[..1]);
        }
        assert!(graph.contents_stay());
        assert!(graph.contents.queue.len() <= SLACK + 3, "{}", graph.contents.queue.len());
    }
}
