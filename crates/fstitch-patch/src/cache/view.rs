//! One moment of the cache, for people: see [`crate::view`].

use fstitch_core::groups::GroupId;
use rustc_hash::FxHashMap;

use super::{Cache, Core};
use crate::graph::patch::{Px, Sx, Vx};
use crate::graph::{Obstacle, Root};
use crate::patchgroup::{Group, State};
use crate::view::{
    BlockView, Cause, ClosedView, EpochView, GroupState, GroupView, JournalView, LeftOut, Ready, RunningView,
    Standing, Totals, View,
};
use crate::{PatchId, PatchState};

/// The patchgroups that stand behind empty patches.
type Behind = FxHashMap<PatchId, GroupId>;

impl Cache {
    /// What the cache of the whole device is doing at this moment: at most `limit` blocks, as many patches of them, patches without
    /// a block and patchgroups each, and why the blocks are not written. The core lock is held for about a microsecond for each.
    #[must_use]
    pub fn view(&self, limit: usize) -> View {
        let now = self.shared.clock.elapsed();
        let core = self.shared.core();
        let in_flight: Vec<Sx> = core.in_flight().collect();
        let kept = core.graph.resting().iter().copied().chain(core.failures.blocks());
        let sent: Vec<Sx> = kept.chain(in_flight.iter().copied()).collect();
        let picked = core.graph.pick(&sent, now, limit);
        let mut groups: Vec<(GroupId, &Group)> =
            core.groups.iter().take(limit).map(|(&id, group)| (id, group)).collect();
        groups.sort_unstable_by_key(|&(id, _)| id);
        let behind = behind(&groups);
        let explain =
            |(sx, block): (Sx, BlockView)| BlockView { why: core.why(sx, &block, &behind), ..block };
        let journals = core.journaled().map(|volume| core.view_journal(volume, now, limit));
        View {
            at: now,
            journals: journals.collect(),
            groups: groups.iter().map(|&(id, group)| core.view_group(id, group)).collect(),
            blocks: picked.blocks.into_iter().map(explain).collect(),
            empties: picked.empties,
            edges: picked.edges,
            epoch: (!in_flight.is_empty()).then(|| EpochView {
                number: core.graph.stats.epochs + 1,
                age: now.saturating_sub(core.launched_at),
                blocks: in_flight.len(),
            }),
            failure: core
                .poison
                .clone()
                .or_else(|| core.volumes.iter().find_map(|volume| volume.poison.clone())),
            totals: Totals { groups: core.groups.len(), ..picked.totals },
            left_out: LeftOut { groups: core.groups.len() - groups.len(), ..picked.left_out },
        }
    }
}

/// Which groups have given an order by way of which patches: what comes after a group's head or tail does so because of it.
fn behind(groups: &[(GroupId, &Group)]) -> Behind {
    let ends = groups.iter().flat_map(|(id, group)| [(group.tail, *id), (group.head, *id)]);
    ends.filter(|(patch, _)| *patch != PatchId::NONE).collect()
}

impl Core {
    /// The blocks that are being written, or were when everything ended.
    fn in_flight(&self) -> impl Iterator<Item = Sx> + '_ {
        self.launched.iter().copied().filter(|&sx| !self.graph.slot(sx).flying.is_empty())
    }

    fn why(&self, sx: Sx, block: &BlockView, behind: &Behind) -> Option<Cause> {
        if block.is_in_flight {
            return Some(self.why_not_stable(sx));
        }
        if block.ready == Ready::Whole {
            return None;
        }
        let Obstacle { patch, by_way_of, root } = self.graph.obstacle(sx)?;
        let patch_id = self.graph.id(patch);
        let group = self.graph.ids(&by_way_of).find_map(|id| behind.get(&id).copied());
        Some(match root {
            Root::Patch(px) => {
                let (slot, before) = (self.graph.slot_of(px), self.graph.id(px));
                Cause::Patch {
                    patch: patch_id,
                    before,
                    block: slot.no,
                    kind: slot.kind,
                    standing: self.standing_of(px),
                    group,
                    others: self.graph.waits_outside(patch).saturating_sub(1),
                }
            }
            Root::Held(px) => self.held(patch_id, px, group),
            Root::Chain(px) => Cause::Chain { patch: patch_id, empty: self.graph.id(px) },
        })
    }

    /// Why a block that was sent is not stable.
    fn why_not_stable(&self, sx: Sx) -> Cause {
        if let Some(error) = self.failures.of(sx) {
            return Cause::Failed { error: error.to_string() };
        }
        match self.graph.record_of(sx) {
            Some((patch, record)) => {
                Cause::Elsewhere { patch: self.graph.id(patch), record: self.graph.id(record) }
            }
            None => Cause::InFlight,
        }
    }

    fn standing_of(&self, px: Px) -> Standing {
        match self.graph.standing_of(px) {
            Standing::InFlight if self.failures.blocks().any(|sx| sx == self.graph.place_of(px)) => {
                Standing::Failed
            }
            standing => standing,
        }
    }

    /// Who holds a patch: a transaction that takes changes, or an operation.
    fn held(&self, patch: PatchId, held: Px, group: Option<GroupId>) -> Cause {
        let held = self.graph.id(held);
        let of = self.journaled().find(|&volume| {
            let running = self.graph.logging(volume).and_then(|logging| logging.running.as_ref());
            running.is_some_and(|running| [running.held, running.data].contains(&held))
        });
        match of.and_then(|volume| Some((volume, self.journal(volume)?))) {
            Some((volume, journal)) => Cause::Transaction {
                patch,
                volume,
                sequence: journal.next_sequence(),
                operations: journal.operations(),
                is_closing: journal.is_closing(),
            },
            None => Cause::Held { patch, held, group },
        }
    }

    fn view_journal(&self, volume: Vx, now: std::time::Duration, limit: usize) -> JournalView {
        let journal = self.journal(volume).expect("it is among those that are kept");
        let running = self.graph.logging(volume).and_then(|logging| logging.running.as_ref());
        let is_stable = |held: PatchId| self.graph.state(held) == PatchState::Committed;
        let closed = journal.closed().map(|(sequence, blocks, held)| ClosedView {
            sequence,
            blocks,
            is_stable: is_stable(held),
        });
        let all = closed.len();
        JournalView {
            volume,
            mode: journal.mode(),
            running: running.map(|running| RunningView {
                sequence: journal.next_sequence(),
                blocks: running.homes.len(),
                age: now.saturating_sub(running.born),
                operations: journal.operations(),
                is_closing: journal.is_closing(),
            }),
            closed: closed.take(limit).collect(),
            closed_left_out: all.saturating_sub(limit),
        }
    }

    fn view_group(&self, id: GroupId, group: &Group) -> GroupView {
        let is_stable = |patch: PatchId| self.graph.state(patch) == PatchState::Committed;
        GroupView {
            id,
            volume: group.volume,
            state: match group.state {
                State::New => GroupState::New,
                State::Engaged(scopes) => GroupState::Engaged(scopes),
                State::Idle => GroupState::Idle,
                State::Sealed => GroupState::Sealed,
            },
            is_waiting: !is_stable(group.head) || !group.befores.iter().all(|&patch| is_stable(patch)),
            is_stable: is_stable(group.gather),
        }
    }
}
