//! Why a block cannot be written as a whole: the nearest cause, found by a walk of bounded length.

use smallvec::SmallVec;

use super::flight::Readiness;
use super::patch::{NO_SLOT, Px, Role, Sx};
use super::{Graph, Slot, at};
use crate::PatchId;
use crate::view::Standing;

/// Of the patches that one waits for so many are looked at.
const LOOKED_AT: usize = 16;
/// Patches without a block that are followed one behind the other.
const FOLLOWED: usize = 64;

/// What keeps a block from being written as a whole.
#[derive(Debug)]
pub(crate) struct Obstacle {
    /// The patch of the block that waits.
    pub(crate) patch: Px,
    /// Patches without a block that lead from it to the root.
    pub(crate) by_way_of: SmallVec<[Px; 4]>,
    /// Where they lead.
    pub(crate) root: Root,
}

/// What a block waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Root {
    /// A patch of another block.
    Patch(Px),
    /// A held patch.
    Held(Px),
    /// More patches without blocks than are followed.
    Chain(Px),
}

impl Graph {
    /// What keeps a block from being written as a whole, if its patches wait for anything outside it.
    pub(crate) fn obstacle(&self, sx: Sx) -> Option<Obstacle> {
        let slot = self.slot(sx);
        let waits = |px: &Px| self.patch(*px).outer > 0;
        // Nothing is written without the hard patch, so that it counts before all others.
        let patch = slot.hard.filter(waits).or_else(|| slot.patches.iter().copied().find(waits))?;
        let mut by_way_of = SmallVec::new();
        let mut above = patch;
        loop {
            let next = self.longest_wait(above)?;
            let root = match (self.patch(next).slot, self.patch(next).role) {
                (NO_SLOT, Role::Held) => Root::Held(next),
                (NO_SLOT, _) if by_way_of.len() == FOLLOWED => Root::Chain(next),
                (NO_SLOT, _) => {
                    by_way_of.push(next);
                    above = next;
                    continue;
                }
                _ => Root::Patch(next),
            };
            return Some(Obstacle { patch, by_way_of, root });
        }
    }

    /// Of a block that is stored elsewhere, one of its patches and what says where it is.
    pub(crate) fn record_of(&self, sx: Sx) -> Option<(Px, Px)> {
        if !self.is_resting(sx) {
            return None;
        }
        let outside = |px: Px| self.live_befores(px).find(|&before| !self.same_block(px, before));
        self.slot(sx).flying.iter().find_map(|&px| Some((px, outside(px)?)))
    }

    /// Of what a patch waits for outside its block, that which is likely to take longest.
    fn longest_wait(&self, px: Px) -> Option<Px> {
        let outside = self.live_befores(px).filter(|&before| !self.same_block(px, before));
        let waits = |&before: &Px| {
            let patch = self.patch(before);
            match (patch.slot, patch.role) {
                (NO_SLOT, Role::Held) => 4,
                (NO_SLOT, _) => 3,
                _ => match self.standing_of(before) {
                    Standing::Failed => 5,
                    Standing::Waits | Standing::Elsewhere => 2,
                    Standing::Ready | Standing::Behind => 1,
                    Standing::InFlight => 0,
                },
            }
        };
        // Of equals the last one counts, which was asked for last.
        outside.take(LOOKED_AT).max_by_key(waits)
    }

    /// How a patch of a block is doing.
    pub(crate) fn standing_of(&self, px: Px) -> Standing {
        let patch = self.patch(px);
        if patch.in_flight {
            return if self.is_resting(patch.slot) { Standing::Elsewhere } else { Standing::InFlight };
        }
        if !self.slot(patch.slot).flying.is_empty() {
            return Standing::Behind;
        }
        if self.would_be_written(px) { Standing::Ready } else { Standing::Waits }
    }

    /// Whether a patch would be part of a write of its block now. Of blocks with long chains inside, "no" may be wrong.
    fn would_be_written(&self, px: Px) -> bool {
        let sx = self.patch(px).slot;
        if self.readiness(sx) == Readiness::All {
            return true;
        }
        if self.slots[at(sx)].hard.is_some_and(|hard| self.patch(hard).outer > 0) {
            return false;
        }
        let mut below: SmallVec<[Px; LOOKED_AT]> = SmallVec::from_slice(&[px]);
        let mut looked_at = 0;
        while let Some(&next) = below.get(looked_at) {
            let patch = self.patch(next);
            if patch.outer > 0 || looked_at == FOLLOWED {
                return false;
            }
            looked_at += 1;
            for before in self.live_befores(next) {
                if !below.contains(&before) {
                    below.push(before);
                }
            }
        }
        true
    }

    /// How many patches outside its block a patch waits for.
    pub(crate) fn waits_outside(&self, px: Px) -> u32 {
        self.patch(px).outer
    }

    /// The block of a patch that has one.
    pub(crate) fn slot_of(&self, px: Px) -> &Slot {
        self.slot(self.patch(px).slot)
    }

    /// The place of the block of a patch that has one.
    pub(crate) fn place_of(&self, px: Px) -> Sx {
        self.patch(px).slot
    }

    /// The id of a patch.
    pub(crate) fn id(&self, px: Px) -> PatchId {
        self.arena.id(px)
    }

    /// The ids of patches.
    pub(crate) fn ids<'a>(&'a self, places: &'a [Px]) -> impl Iterator<Item = PatchId> + 'a {
        places.iter().map(|&px| self.arena.id(px))
    }
}
