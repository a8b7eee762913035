//! Walks along dependencies: the bounded one of the merge conditions, and the closure of a sync.

use super::patch::{NO_SLOT, Px};
use super::{Graph, at};
use crate::PatchId;

/// How many edges a merge condition looks at before it gives up.
const WALK_LIMIT: usize = 2048;

impl Graph {
    /// Whether a chain of stored and implicit edges leads from one of `starts` to `target`, `starts` themselves
    /// included. Answers true when it cannot tell within [`WALK_LIMIT`] edges.
    pub(super) fn may_reach(&mut self, starts: &[Px], target: Px) -> bool {
        self.walk_reaches(starts, target, WALK_LIMIT)
    }

    /// The same without a limit, for checks.
    pub(super) fn reaches(&mut self, starts: &[Px], target: Px) -> bool {
        self.walk_reaches(starts, target, usize::MAX)
    }

    fn walk_reaches(&mut self, starts: &[Px], target: Px, limit: usize) -> bool {
        let stamp = self.next_stamp();
        let mut todo: smallvec::SmallVec<[Px; 32]> = smallvec::SmallVec::new();
        let mut seen: usize = 0;
        for &px in starts {
            if px == target {
                return true;
            }
            if self.leads_on(px) {
                self.patch_mut(px).mark = stamp;
                todo.push(px);
            }
        }
        while let Some(px) = todo.pop() {
            seen = seen.saturating_add(1 + self.patch(px).befores.len());
            if seen > limit {
                return true;
            }
            for at_before in 0..=self.patch(px).befores.len() {
                let Some(before) = self.nth_before(px, at_before) else { continue };
                if before == target {
                    return true;
                }
                if self.patch(before).mark != stamp && self.leads_on(before) {
                    self.patch_mut(before).mark = stamp;
                    todo.push(before);
                }
            }
        }
        false
    }

    /// Whether a walk can go on from here: not from patches that wait for nothing, and not from those in flight,
    /// which wait only for others on their block that are in flight as well.
    fn leads_on(&self, px: Px) -> bool {
        let patch = self.patch(px);
        !patch.in_flight && (!patch.befores.is_empty() || self.implicit_before(px).is_some())
    }

    /// The before at position `n`; behind the last stored one the implicit edge to the block's hard patch.
    fn nth_before(&self, px: Px, n: usize) -> Option<Px> {
        match self.patch(px).befores.get(n) {
            Some(&id) => self.arena.resolve(id),
            None => self.implicit_before(px),
        }
    }

    /// The hard patch below a soft patch of the same block.
    pub(super) fn implicit_before(&self, px: Px) -> Option<Px> {
        let patch = self.patch(px);
        if patch.hard || patch.slot == NO_SLOT || patch.in_flight {
            return None;
        }
        self.slots[at(patch.slot)].hard
    }

    /// Whether the walk came to this patch.
    pub(crate) fn is_marked(&self, id: PatchId, closure: Closure) -> bool {
        self.arena.resolve(id).is_some_and(|px| self.patch(px).mark == closure.stamp)
    }

    /// Marks the blocks that must be written for `targets` to commit with the stamp that is returned, and says
    /// whether anything is left to wait for. `held` is set when a held patch stands in the way.
    pub(crate) fn mark_closure(&mut self, targets: &[PatchId]) -> Closure {
        let resolve = |&id: &PatchId| self.arena.resolve(id).and_then(|px| self.standing(px));
        let targets: Vec<Px> = targets.iter().filter_map(resolve).collect();
        self.mark_closure_of(targets, Mark::Wanted)
    }

    /// The same for these very patches, home patches included.
    pub(crate) fn mark_closure_of(&mut self, targets: Vec<Px>, as_what: Mark) -> Closure {
        let stamp = self.next_stamp();
        let mut closure = Closure { stamp, pending: false, held: false };
        for &px in &targets {
            self.patch_mut(px).mark = stamp;
        }
        let mut todo = targets;
        while let Some(px) = todo.pop() {
            self.stats.patches_walked += 1;
            closure.pending = true;
            let patch = self.patch(px);
            closure.held |= patch.role == super::patch::Role::Held;
            let (slot, in_flight) = (patch.slot, patch.in_flight);
            if slot != NO_SLOT && !in_flight {
                match as_what {
                    Mark::Wanted => self.slots[at(slot)].wanted = stamp,
                    Mark::Old => self.slots[at(slot)].old = stamp,
                }
            }
            for n in 0..=self.patch(px).befores.len() {
                let Some(before) = self.nth_before(px, n) else { continue };
                let patch = self.patch_mut(before);
                if patch.mark != stamp {
                    patch.mark = stamp;
                    todo.push(before);
                }
            }
        }
        closure
    }
}

/// What a block is marked as: who waits and the flusher do not undo each other's marks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mark {
    Wanted,
    Old,
}

/// What [`Graph::mark_closure`] found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closure {
    /// The stamp in `Slot::wanted` of the blocks to write.
    pub(crate) stamp: u64,
    /// Some target is not committed yet.
    pub(crate) pending: bool,
    /// A held patch must be released first.
    pub(crate) held: bool,
}
