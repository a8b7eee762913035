//! Walks along dependencies: the bounded one of the merge conditions, and the closure of a sync.

use smallvec::SmallVec;

use super::patch::{NO_SLOT, Px, Sx};
use super::{Graph, at};
use crate::PatchId;

/// How many edges a merge condition looks at, from either end, before it gives up.
const WALK_LIMIT: usize = 128;

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

    /// Walks from both ends, always on where less was looked at so far: mostly one of them is nearly alone, such as a name that
    /// few wait for, in front of an inode that waits for thousands.
    fn walk_reaches(&mut self, starts: &[Px], target: Px, limit: usize) -> bool {
        if starts.contains(&target) {
            return true;
        }
        let [down, up] = self.next_marks();
        let (mut down, mut up) = (End::new(down), End::new(up));
        for &px in starts {
            if self.leads_on(px) {
                self.patch_mut(px).mark = down.mark;
                down.todo.push(px);
            }
        }
        self.patch_mut(target).mark = up.mark;
        up.todo.push(target);
        while let (Some(&lower), Some(&upper)) = (down.todo.last(), up.todo.last()) {
            let next_down = down.seen.saturating_add(1 + self.patch(lower).befores().len());
            let next_up = up.seen.saturating_add(1 + self.afters_len(upper));
            if next_down.min(next_up) > limit {
                return true;
            }
            let met = if next_down <= next_up {
                down.seen = next_down;
                self.go_down(&mut down, up.mark)
            } else {
                up.seen = next_up;
                self.go_up(&mut up, down.mark)
            };
            if met {
                return true;
            }
        }
        false
    }

    /// Looks at what the next patch waits for. True if the other walk has been there.
    fn go_down(&mut self, walk: &mut End, other: u32) -> bool {
        let Some(px) = walk.todo.pop() else { return false };
        for n in 0..=self.patch(px).befores().len() {
            let Some(before) = self.nth_before(px, n) else { continue };
            let mark = self.patch(before).mark;
            if mark == other {
                return true;
            }
            if mark != walk.mark && self.leads_on(before) {
                self.patch_mut(before).mark = walk.mark;
                walk.todo.push(before);
            }
        }
        false
    }

    /// Looks at what waits for the next patch. True if the other walk has been there.
    fn go_up(&mut self, walk: &mut End, other: u32) -> bool {
        let Some(px) = walk.todo.pop() else { return false };
        for n in 0..self.afters_len(px) {
            let Some(after) = self.nth_after(px, n) else { continue };
            let mark = self.patch(after).mark;
            if mark == other {
                return true;
            }
            if mark != walk.mark {
                self.patch_mut(after).mark = walk.mark;
                walk.todo.push(after);
            }
        }
        false
    }

    /// How many positions [`Graph::nth_after`] has.
    fn afters_len(&self, px: Px) -> usize {
        self.patch(px).afters.len() + self.implicit_afters(px).len()
    }

    /// What waits for a patch: those with a stored edge, then, if it is its block's hard one, all patches of the block.
    fn nth_after(&self, px: Px, n: usize) -> Option<Px> {
        let stored = &self.patch(px).afters;
        match stored.get(n) {
            Some(&after) => Some(after),
            None => self.implicit_afters(px).get(n - stored.len()).copied().filter(|&after| after != px),
        }
    }

    /// The patches of a hard patch's block, itself among them.
    fn implicit_afters(&self, px: Px) -> &[Px] {
        let patch = self.patch(px);
        if patch.slot == NO_SLOT || self.slots[at(patch.slot)].hard != Some(px) {
            return &[];
        }
        &self.slots[at(patch.slot)].patches
    }

    /// Whether a walk can go on from here: not from patches that wait for nothing, and not from those in flight,
    /// which wait only for others on their block that are in flight as well, unless they are stored elsewhere.
    fn leads_on(&self, px: Px) -> bool {
        let patch = self.patch(px);
        (!patch.in_flight || patch.outer > 0)
            && (!patch.befores().is_empty() || self.implicit_before(px).is_some())
    }

    /// The before at position `n`; behind the last stored one the implicit edge to the block's hard patch.
    fn nth_before(&self, px: Px, n: usize) -> Option<Px> {
        match self.patch(px).befores().get(n) {
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
        self.arena.resolve(id).is_some_and(|px| self.patch(px).mark == closure.mark)
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
        let (stamp, [mark, _]) = (self.next_stamp(), self.next_marks());
        let mut closure = Closure { stamp, mark, pending: false, held: false, flying: None };
        for &px in &targets {
            self.patch_mut(px).mark = mark;
        }
        let mut todo = targets;
        while let Some(px) = todo.pop() {
            self.stats.patches_walked += 1;
            closure.pending = true;
            let patch = self.patch(px);
            closure.held |= patch.role == super::patch::Role::Held;
            let (slot, in_flight) = (patch.slot, patch.in_flight);
            if in_flight && patch.outer == 0 {
                closure.flying = Some(slot);
            }
            if slot != NO_SLOT && !in_flight {
                match as_what {
                    Mark::Wanted => self.slots[at(slot)].wanted = stamp,
                    Mark::Old => self.slots[at(slot)].old = stamp,
                }
            }
            for n in 0..=self.patch(px).befores().len() {
                let Some(before) = self.nth_before(px, n) else { continue };
                let patch = self.patch_mut(before);
                if patch.mark != mark {
                    patch.mark = mark;
                    todo.push(before);
                }
            }
        }
        closure
    }
}

/// A walk from one end.
struct End {
    mark: u32,
    todo: SmallVec<[Px; 32]>,
    /// Edges looked at, and patches.
    seen: usize,
}

impl End {
    fn new(mark: u32) -> Self {
        Self { mark, todo: SmallVec::new(), seen: 0 }
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
    /// The mark of the patches that the walk came to, until the next walk.
    mark: u32,
    /// Some target is not committed yet.
    pub(crate) pending: bool,
    /// A held patch must be released first.
    pub(crate) held: bool,
    /// A block in flight that is not stored elsewhere: between two epochs one that has failed.
    pub(crate) flying: Option<Sx>,
}
