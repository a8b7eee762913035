//! One epoch: launch the ready blocks of a goal, write them, flush once, commit.

use std::time::Duration;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockNo, BlockWrite, Error, Result};

use super::medium::{self, Written};
use super::{Cache, Core, Shared};
use crate::graph::patch::{Sx, Vx};
use crate::graph::{Frozen, Mark, Readiness, Slot};
use crate::observer::What;
use crate::{Durability, PatchId};

/// The most bytes that an epoch without a waiting caller writes, so that a caller who comes meanwhile does not wait
/// for long.
const BACKGROUND_EPOCH_BYTES: usize = 32 << 20;

/// What an epoch is written for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal {
    /// Callers who wait for patches to become stable, all of them together.
    Wanted,
    /// Blocks that became dirty this long ago, and what they wait for.
    Age(Duration),
    /// Closed transactions.
    Commit,
    /// Whatever can be written, to make room.
    Room,
    /// All of it.
    Everything,
    /// The blocks of a volume, and what they wait for.
    Volume(Vx),
}

/// What an epoch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It wrote this many blocks.
    Wrote(usize),
    /// Nothing of the goal could be written.
    Idle,
}

impl Cache {
    /// Writes one epoch of everything that can be written now, and returns the number of blocks written: 0 if there
    /// is nothing. The flusher as a state machine, for tests and the laboratory.
    ///
    /// # Errors
    /// After a failed write or flush, now or earlier.
    pub fn step(&self) -> Result<usize> {
        self.step_blocks(&mut |_| true)
    }

    /// The same for the blocks that `choose` picks, whether or not patches must be undone for it: any lawful
    /// order of writing can be played.
    ///
    /// # Errors
    /// As for [`Cache::step`].
    pub fn step_blocks(&self, choose: &mut dyn FnMut(BlockNo) -> bool) -> Result<usize> {
        let shared = &*self.shared;
        let _epoch = shared.epoch();
        let batch = {
            let mut core = shared.core();
            Shared::check_poison(&core)?;
            let dirty = core.graph.dirty().iter().copied();
            let mut chosen: Vec<Sx> =
                dirty.filter(|&sx| core.graph.readiness(sx) != Readiness::None).collect();
            core.graph.sort(&mut chosen);
            chosen.retain(|&sx| choose(core.graph.slot(sx).no));
            Shared::launch(&mut core, chosen)
        };
        match shared.write_launched(batch)? {
            Progress::Wrote(blocks) => Ok(blocks),
            Progress::Idle => Ok(0),
        }
    }
}

impl Shared {
    /// Writes one epoch. Callers hold the `epoch` lock.
    pub(super) fn write_epoch(&self, goal: Goal) -> Result<Progress> {
        let batch = {
            let mut core = self.core();
            Self::check_poison(&core)?;
            let chosen = self.choose(&mut core, goal);
            Self::launch(&mut core, chosen)
        };
        self.write_launched(batch)
    }

    /// Writes one epoch of contents that have been dirty for so long, unless somebody waits for others or contents die young.
    pub(super) fn write_early(&self, age: Duration) -> Result<Progress> {
        let _epoch = self.epoch();
        let batch = {
            let mut core = self.core();
            Self::check_poison(&core)?;
            let Some(horizon) = self.clock.elapsed().checked_sub(age) else { return Ok(Progress::Idle) };
            if !core.wanted.is_empty() || !core.graph.contents_stay() {
                return Ok(Progress::Idle);
            }
            let chosen = core.graph.take_ripe_contents(horizon, self.early_blocks());
            core.graph.stats.blocks_written_early += to_u64(chosen.len());
            Self::launch(&mut core, chosen)
        };
        self.write_launched(batch)
    }

    /// Marks the blocks in flight, each of which has ready patches, and takes their images.
    fn launch(core: &mut Core, chosen: Vec<Sx>) -> Vec<Frozen> {
        if !chosen.is_empty() {
            core.note_epoch(&chosen);
        }
        let batch: Vec<Frozen> = chosen.iter().map(|&sx| core.graph.launch(sx)).collect();
        core.copies_in_flight = batch.iter().filter(|f| is_copy(core, f)).count();
        batch
    }

    /// Writes, flushes and commits a launched epoch.
    fn write_launched(&self, mut batch: Vec<Frozen>) -> Result<Progress> {
        if batch.is_empty() {
            return Ok(Progress::Idle);
        }
        self.seals.seal(&mut batch);
        let outcome = self.write_batch(&batch);
        let mut core = self.core();
        core.copies_in_flight = 0;
        if outcome.is_ok() {
            core.launched.clear();
        }
        core.tell(|core| What::Ended { epoch: core.epoch(), failed: outcome.is_err() });
        let result = self.settle(&mut core, batch, outcome);
        if core.poison.is_some() {
            core.tell(|_| What::Poisoned);
        }
        result
    }

    /// The blocks of the epoch in order of their numbers: those that need no undo, and only if there are none the
    /// others.
    fn choose(&self, core: &mut Core, goal: Goal) -> Vec<Sx> {
        let limit = match goal {
            Goal::Wanted | Goal::Everything | Goal::Volume(_) | Goal::Commit => usize::MAX,
            Goal::Age(_) | Goal::Room => BACKGROUND_EPOCH_BYTES / self.block_size,
        };
        let stamp = self.mark_goal(core, goal);
        let mark_of = |slot: &Slot| if matches!(goal, Goal::Age(_)) { slot.old } else { slot.wanted };
        let (mut whole, mut partial) = (Vec::new(), Vec::new());
        for &sx in core.graph.dirty() {
            let chosen = stamp.is_none_or(|stamp| mark_of(core.graph.slot(sx)) == stamp);
            if !chosen {
                continue;
            }
            match core.graph.readiness(sx) {
                Readiness::All => whole.push(sx),
                Readiness::Some if whole.is_empty() => partial.push(sx),
                _ => {}
            }
        }
        let mut chosen = if whole.is_empty() { partial } else { whole };
        core.graph.sort(&mut chosen);
        chosen.truncate(limit);
        chosen
    }

    /// Marks the blocks that the goal wants written; `None` for all.
    fn mark_goal(&self, core: &mut Core, goal: Goal) -> Option<u64> {
        let closure = match goal {
            Goal::Room | Goal::Everything => return None,
            Goal::Wanted => {
                if let Some(stamp) = core.marked {
                    return Some(stamp);
                }
                let targets: Vec<PatchId> = core.wanted.iter().flat_map(|(_, ids)| ids).copied().collect();
                let closure = core.graph.mark_closure(&targets);
                core.marked = Some(closure.stamp);
                closure
            }
            Goal::Commit => {
                let targets = Self::all_uncommitted(core);
                core.graph.mark_closure(&targets)
            }
            Goal::Volume(volume) => {
                let targets = core.graph.patches_of(volume);
                core.graph.mark_closure_of(targets, Mark::Wanted)
            }
            Goal::Age(age) => {
                if let Some(stamp) = core.marked_old {
                    return Some(stamp);
                }
                let since = |age| self.clock.elapsed().checked_sub(age);
                let home_age = self.options.checkpoint_age.max(age);
                let targets = core.graph.patches_born_until(since(age), since(home_age));
                let closure = core.graph.mark_closure_of(targets, Mark::Old);
                core.marked_old = Some(closure.stamp);
                closure
            }
        };
        Some(closure.stamp)
    }

    /// Writes and flushes, without any lock but `epoch`, and has what went elsewhere noted.
    fn write_batch(&self, batch: &[Frozen]) -> Result<Written> {
        let writes: Vec<BlockWrite<'_>> =
            batch.iter().map(|f| BlockWrite { block: f.no, kind: f.kind, data: &f.image }).collect();
        let exceptions = self.medium.store(&writes)?;
        if self.options.durability == Durability::Flush {
            self.medium.flush()?;
        }
        Ok(Written::new(&*self.medium, exceptions))
    }

    /// Commits the epoch, or poisons the cache.
    fn settle(&self, core: &mut Core, batch: Vec<Frozen>, outcome: Result<Written>) -> Result<Progress> {
        let slots = medium::places(&batch);
        drop(batch);
        let result = match outcome {
            Ok(written) => {
                let joined = slots.windows(2).filter(|pair| pair[0].0.get() + 1 == pair[1].0.get()).count();
                let count = |n: usize| to_u64(n);
                core.graph.stats.write_requests += count(slots.len() - joined);
                core.graph.stats.epochs += 1;
                core.graph.stats.flushes += u64::from(self.options.durability == Durability::Flush);
                Self::commit_written(core, &slots, written);
                Ok(Progress::Wrote(slots.len()))
            }
            Err(error) => {
                // The patches stay in flight for ever: nobody knows how much of them is on the medium.
                core.poison = Some(poison_of(&error, &slots));
                Err(error)
            }
        };
        for (_, sx) in slots {
            let slot = core.graph.slot(sx);
            if slot.is_clean() && slot.kind.is_journal() && !slot.is_pinned() {
                // Nobody reads the log.
                self.forget(core, sx);
            } else if slot.is_clean() {
                core.note_clean(sx);
            }
        }
        self.make_room(core, 0);
        self.changed.notify_all();
        result
    }
}

/// Whether a frozen image is memory of its own beside the cached block.
fn is_copy(core: &Core, frozen: &Frozen) -> bool {
    !std::sync::Arc::ptr_eq(&frozen.image, core.graph.slot(frozen.slot).loaded())
}

/// What later callers are told after a failed epoch.
fn poison_of(error: &Error, lost: &[(BlockNo, Sx)]) -> Error {
    let first: Vec<String> = lost.iter().take(8).map(|(no, _)| no.to_string()).collect();
    let more = if lost.len() > 8 { ", …" } else { "" };
    let text = format!("{error}; changes to {} blocks were lost ({}{more})", lost.len(), first.join(", "));
    Error::Poisoned(text.into())
}
