//! Events become epochs: what was written, what was undone for it, and what had waited.

use std::collections::{BTreeMap, HashMap};

use fstitch_core::num::to_u64;
use serde::Serialize;

use crate::control::kind::Kind;
use crate::control::trace::{Happened, TraceEvent};

/// Of what was undone and of what had waited, so many are named for each epoch; the others are counted.
const NAMED: usize = 5;

/// An epoch.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Epoch {
    /// Its number; 0 for what came after the last one.
    pub epoch: u64,
    /// When it began, in microseconds from the beginning of the trace.
    pub at_us: u64,
    /// How long it was written and flushed; null if the trace ends before it did.
    pub took_us: Option<u64>,
    /// It failed.
    pub failed: bool,
    /// Blocks written, and how many of them of which kind.
    pub blocks: u64,
    pub kinds: BTreeMap<Kind, u64>,
    /// Blocks with changes when it began, these among them.
    pub dirty: u64,
    /// Callers who waited for something to be stable.
    pub waiters: u64,
    /// Patches that it made stable, those without a block among them.
    pub committed: u64,
    /// The age of the oldest change that was written with it.
    pub oldest_us: u64,
    /// Patches undone in what was written, some of them named in `undone`.
    pub undone_count: u64,
    pub undone: Vec<Undone>,
    /// Blocks that had to wait for an earlier epoch of the trace, some of them named in `waited`.
    pub waited_count: u64,
    pub waited: Vec<Waited>,
    /// Operations that waited for room since the epoch before began.
    pub stalled: u64,
    /// Events that are missing since then.
    pub lost: u64,
}

/// A patch that was undone.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Undone {
    pub patch: u64,
    /// Its block.
    pub block: u64,
    /// The patch that it waited for and its block, as far as the trace knows.
    pub before: Option<u64>,
    pub before_block: Option<u64>,
}

/// A block that had waited.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Waited {
    pub block: u64,
    /// The epoch that it had waited for, and the block of that epoch.
    pub epoch: u64,
    pub before_block: Option<u64>,
}

/// Sums over all epochs.
#[derive(Clone, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Summary {
    /// From the first to the last event, in microseconds.
    pub lasted_us: u64,
    pub events: u64,
    /// Events that are missing.
    pub lost: u64,
    pub epochs: u64,
    pub epochs_failed: u64,
    pub blocks_written: u64,
    /// Time in epochs, all and the longest.
    pub writing_us: u64,
    pub longest_epoch_us: u64,
    pub patches_made: u64,
    /// Changes that joined a patch.
    pub changes_joined: u64,
    pub patches_merged: u64,
    pub patches_dropped: u64,
    pub patches_committed: u64,
    pub patches_undone: u64,
    pub blocks_waited: u64,
    /// Operations that waited for room.
    pub stalled: u64,
    /// Patches that the trace knows and that were not stable at its end.
    pub patches_left: u64,
    /// Nothing was written any more at the end.
    pub poisoned: bool,
}

/// A patch that is not stable.
#[derive(Debug, Default)]
struct Live {
    block: Option<u64>,
    made_us: u64,
    befores: Vec<u64>,
    afters: Vec<u64>,
    /// The last epoch that it had to wait for, and the block of it.
    waited: Option<(u64, Option<u64>)>,
}

/// Follows a trace.
#[derive(Debug, Default)]
pub struct Timeline {
    begun_us: u64,
    live: HashMap<u64, Live>,
    of_block: HashMap<u64, Vec<u64>>,
    epoch: Epoch,
    pub summary: Summary,
}

impl Timeline {
    /// A trace that began at this time of its clock.
    pub fn new(begun_us: u64) -> Self {
        Self { begun_us, ..Self::default() }
    }

    /// Follows one event. Returns the epoch before, when another begins.
    pub fn follow(&mut self, happened: &Happened) -> Option<Epoch> {
        let at_us = happened.at_us.saturating_sub(self.begun_us);
        self.summary.lasted_us = self.summary.lasted_us.max(at_us);
        self.summary.events += 1;
        match happened.event {
            TraceEvent::Began { epoch, blocks, dirty, waiters } => {
                let next = Epoch {
                    epoch,
                    at_us,
                    dirty: dirty.into(),
                    waiters: waiters.into(),
                    blocks: blocks.into(),
                    ..Epoch::default()
                };
                return self.begin(next);
            }
            TraceEvent::Launched { block, kind, .. } => self.launch(block, kind, at_us),
            TraceEvent::Undone { patch } => self.undo(patch),
            TraceEvent::Ended { failed, .. } => self.end(at_us, failed),
            TraceEvent::Committed { patch } => self.commit(patch),
            TraceEvent::Stalled => {
                self.epoch.stalled += 1;
                self.summary.stalled += 1;
            }
            TraceEvent::Poisoned => self.summary.poisoned = true,
            TraceEvent::Lost { events } => self.lose(events),
            other => self.change(&other, at_us),
        }
        None
    }

    /// The last epoch, when there are no more events.
    pub fn finish(&mut self) -> Option<Epoch> {
        self.summary.patches_left = count(self.live.len());
        self.begin(Epoch::default())
    }

    fn begin(&mut self, next: Epoch) -> Option<Epoch> {
        let before = std::mem::replace(&mut self.epoch, next);
        if before.epoch == 0 {
            // What happened before the first epoch of a trace is the first one's.
            (self.epoch.stalled, self.epoch.lost) = (before.stalled, before.lost);
            return None;
        }
        self.summary.epochs += 1;
        self.summary.blocks_written += before.blocks;
        Some(before)
    }

    /// What happens to patches between epochs.
    fn change(&mut self, event: &TraceEvent, at_us: u64) {
        match *event {
            TraceEvent::Made { patch, block, .. } => {
                self.summary.patches_made += 1;
                self.of_block.entry(block).or_default().push(patch);
                self.live.insert(patch, Live { block: Some(block), made_us: at_us, ..Live::default() });
            }
            TraceEvent::MadeEmpty { patch, .. } => {
                self.summary.patches_made += 1;
                self.live.insert(patch, Live { made_us: at_us, ..Live::default() });
            }
            TraceEvent::Waits { patch, before } => self.wait(patch, before),
            TraceEvent::Joined { .. } => self.summary.changes_joined += 1,
            TraceEvent::Merged { patch, into } => {
                self.summary.patches_merged += 1;
                let gone = self.take(patch);
                if let (Some(gone), Some(into)) = (gone, self.live.get_mut(&into)) {
                    into.made_us = into.made_us.min(gone.made_us);
                    into.waited = into.waited.max(gone.waited);
                }
            }
            TraceEvent::Dropped { patch } => {
                self.summary.patches_dropped += 1;
                self.take(patch);
            }
            TraceEvent::Emptied { patch } => {
                let block = self.live.get_mut(&patch).and_then(|live| live.block.take());
                self.forget(block, patch);
            }
            _ => {}
        }
    }

    fn wait(&mut self, patch: u64, before: u64) {
        // Said twice it is no other: who waits for many is not looked through.
        let Some(lower) = self.live.get_mut(&before) else { return };
        lower.afters.push(patch);
        if let Some(upper) = self.live.get_mut(&patch) {
            upper.befores.push(before);
        }
    }

    /// A block is written.
    fn launch(&mut self, block: u64, kind: Kind, at_us: u64) {
        *self.epoch.kinds.entry(kind).or_default() += 1;
        let patches = self.of_block.get(&block).map_or(&[][..], Vec::as_slice);
        let patches = || patches.iter().filter_map(|patch| self.live.get(patch));
        let oldest = patches().map(|live| live.made_us).min().unwrap_or(at_us);
        let waited = patches().filter_map(|live| live.waited).max();
        self.epoch.oldest_us = self.epoch.oldest_us.max(at_us.saturating_sub(oldest));
        let Some((epoch, before_block)) = waited else { return };
        self.epoch.waited_count += 1;
        self.summary.blocks_waited += 1;
        if self.epoch.waited.len() < NAMED {
            self.epoch.waited.push(Waited { block, epoch, before_block });
        }
    }

    fn undo(&mut self, patch: u64) {
        self.epoch.undone_count += 1;
        self.summary.patches_undone += 1;
        let Some(live) = self.live.get(&patch) else { return };
        let own = live.block;
        let elsewhere = |before: &&u64| self.live.get(before).is_some_and(|lower| lower.block != own);
        let before = live.befores.iter().find(elsewhere).copied();
        if self.epoch.undone.len() < NAMED {
            self.epoch.undone.push(Undone {
                patch,
                block: own.unwrap_or_default(),
                before,
                before_block: before.and_then(|before| self.live.get(&before)?.block),
            });
        }
    }

    fn end(&mut self, at_us: u64, failed: bool) {
        let took = at_us.saturating_sub(self.epoch.at_us);
        (self.epoch.took_us, self.epoch.failed) = (Some(took), failed);
        self.summary.epochs_failed += u64::from(failed);
        self.summary.writing_us += took;
        self.summary.longest_epoch_us = self.summary.longest_epoch_us.max(took);
    }

    /// A patch is stable: whoever waited for it had to wait for this epoch.
    fn commit(&mut self, patch: u64) {
        self.epoch.committed += 1;
        self.summary.patches_committed += 1;
        let Some(gone) = self.take(patch) else { return };
        let now = match gone.block {
            Some(block) => Some((self.epoch.epoch, Some(block))),
            // What waited for a patch without a block had waited for what that one did.
            None => gone.waited,
        };
        for after in &gone.afters {
            if let Some(upper) = self.live.get_mut(after)
                && upper.block.is_none_or(|block| gone.block != Some(block))
            {
                upper.waited = upper.waited.max(now);
            }
        }
    }

    /// Nothing is known of what was there: names of it may mean anything.
    fn lose(&mut self, events: u64) {
        self.summary.events -= 1;
        self.summary.lost += events;
        self.epoch.lost += events;
        self.live.clear();
        self.of_block.clear();
    }

    fn take(&mut self, patch: u64) -> Option<Live> {
        let gone = self.live.remove(&patch)?;
        self.forget(gone.block, patch);
        Some(gone)
    }

    fn forget(&mut self, block: Option<u64>, patch: u64) {
        let Some(block) = block else { return };
        if let Some(patches) = self.of_block.get_mut(&block) {
            patches.retain(|other| *other != patch);
            if patches.is_empty() {
                self.of_block.remove(&block);
            }
        }
    }
}

fn count(n: usize) -> u64 {
    to_u64(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::graph::Role;

    fn made(patch: u64, block: u64) -> TraceEvent {
        TraceEvent::Made { patch, block, kind: Kind::Data, role: Role::Soft }
    }

    fn began(epoch: u64, blocks: u32) -> TraceEvent {
        TraceEvent::Began { epoch, blocks, dirty: 4, waiters: 1 }
    }

    fn launched(block: u64) -> TraceEvent {
        TraceEvent::Launched { block, kind: Kind::Data, patches: 1, undone: 0 }
    }

    /// The epochs of events that come a millisecond one after the other.
    fn epochs(events: &[TraceEvent]) -> (Vec<Epoch>, Summary) {
        let mut timeline = Timeline::new(1000);
        let happened = (1..).zip(events).map(|(n, &event)| Happened { at_us: n * 1000, event });
        let mut epochs: Vec<Epoch> = happened.filter_map(|it| timeline.follow(&it)).collect();
        epochs.extend(timeline.finish());
        (epochs, timeline.summary)
    }

    #[test]
    fn what_waited_and_what_was_undone_is_named() {
        let (epochs, summary) = epochs(&[
            made(1, 10),
            made(2, 20),
            TraceEvent::Waits { patch: 2, before: 1 },
            made(3, 20),
            TraceEvent::MadeEmpty { patch: 4, role: Role::Empty },
            TraceEvent::Waits { patch: 4, before: 1 },
            made(5, 30),
            TraceEvent::Waits { patch: 5, before: 4 },
            TraceEvent::Joined { patch: 5 },
            began(7, 2),
            launched(10),
            launched(20),
            TraceEvent::Undone { patch: 2 },
            TraceEvent::Ended { epoch: 7, failed: false },
            TraceEvent::Committed { patch: 1 },
            TraceEvent::Committed { patch: 3 },
            TraceEvent::Committed { patch: 4 },
            began(8, 2),
            launched(20),
            launched(30),
        ]);
        let [first, second] = &epochs[..] else { panic!("{epochs:?}") };
        assert_eq!((first.epoch, first.at_us, first.took_us, first.committed), (7, 9000, Some(4000), 3));
        assert_eq!((first.oldest_us, first.waited_count), (10_000, 0));
        assert_eq!(first.undone, [Undone { patch: 2, block: 20, before: Some(1), before_block: Some(10) }]);
        let waited = |block| Waited { block, epoch: 7, before_block: Some(10) };
        assert_eq!(
            second.waited,
            [waited(20), waited(30)],
            "directly, and by way of a patch without a block"
        );
        assert_eq!((second.took_us, second.kinds[&Kind::Data]), (None, 2));
        assert_eq!((summary.epochs, summary.patches_left, summary.patches_made), (2, 2, 5));
        assert_eq!((summary.changes_joined, summary.patches_undone, summary.blocks_waited), (1, 1, 2));
    }

    #[test]
    fn merged_and_dropped_patches_are_waited_for_no_more() {
        let (epochs, summary) = epochs(&[
            made(1, 10),
            made(2, 10),
            TraceEvent::Merged { patch: 2, into: 1 },
            made(3, 11),
            TraceEvent::Dropped { patch: 3 },
            made(4, 12),
            TraceEvent::Emptied { patch: 4 },
            TraceEvent::Stalled,
            began(1, 1),
            launched(10),
            TraceEvent::Ended { epoch: 1, failed: true },
            TraceEvent::Poisoned,
        ]);
        assert_eq!((epochs[0].stalled, epochs[0].failed, summary.poisoned), (1, true, true));
        assert_eq!((summary.patches_left, summary.patches_merged, summary.patches_dropped), (2, 1, 1));
    }

    #[test]
    fn a_gap_is_told_of_and_nothing_is_concluded_across_it() {
        let (epochs, summary) = epochs(&[
            made(1, 10),
            made(2, 20),
            TraceEvent::Waits { patch: 2, before: 1 },
            TraceEvent::Lost { events: 30 },
            began(3, 1),
            launched(20),
            TraceEvent::Ended { epoch: 3, failed: false },
            TraceEvent::Committed { patch: 2 },
        ]);
        assert_eq!((epochs[0].lost, epochs[0].waited_count, summary.lost, summary.events), (30, 0, 30, 7));
        assert_eq!(
            (epochs[0].oldest_us, summary.patches_left),
            (0, 0),
            "what was there may be gone, or stable"
        );
    }
}
