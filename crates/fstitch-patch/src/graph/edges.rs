//! Edges, and the counts that they keep.

use super::patch::{NO_SLOT, Px};
use super::{Graph, at};

impl Graph {
    /// Makes `after` depend on `before`. Nothing happens if it already does, or if both are one patch.
    pub(super) fn add_edge(&mut self, after: Px, before: Px) {
        if after != before && !self.has_edge(after, before) {
            self.add_new_edge(after, before);
        }
    }

    /// The same where there is none yet, of two patches.
    pub(super) fn add_new_edge(&mut self, after: Px, before: Px) {
        let same_block = self.same_block(after, before);
        let id = self.arena.id(before);
        // Transactions are numbered by volume. What comes after those of another one is its creator's business.
        let same_volume = self.patch(before).volume == self.patch(after).volume;
        let serial = if same_volume { self.patch(before).serial() } else { 0 };
        self.compact_befores(after);
        let slot = self.patch(after).slot;
        let counted = !self.patch(after).in_flight && slot != NO_SLOT;
        if counted {
            self.uncount(after);
        }
        let patch = self.patch_mut(after);
        patch.add_before(id);
        patch.raise_serial(serial);
        if same_block {
            patch.inner += 1;
        } else {
            patch.outer += 1;
        }
        if counted {
            self.count(after);
        }
        let gathers = self.patch(after).is_gather();
        let below = self.patch_mut(before);
        below.afters.push(after);
        let (block, flying) = (below.slot, below.in_flight);
        if block != NO_SLOT && !same_block && !gathers && !flying {
            self.slots[at(block)].external += 1;
        }
        self.tell_waits(after, before);
    }

    /// Removes the edge as if `before` had committed; the id stays in `befores`, where it is a no-op once
    /// `before` is gone.
    pub(super) fn satisfy(&mut self, after: Px, same_block: bool) {
        let counted = !self.patch(after).in_flight && self.patch(after).slot != NO_SLOT;
        if counted {
            self.uncount(after);
        }
        let patch = self.patch_mut(after);
        if same_block {
            patch.inner -= 1;
        } else {
            patch.outer -= 1;
        }
        if counted {
            self.count(after);
        }
    }

    /// Whether an edge between two patches stays inside one block.
    pub(super) fn same_block(&self, a: Px, b: Px) -> bool {
        let slot = self.patch(a).slot;
        slot != NO_SLOT && slot == self.patch(b).slot
    }

    /// How many edges onto `px` make its block wait for others: see `Slot::external`.
    pub(super) fn external_edges(&self, px: Px) -> u32 {
        let outside = |&&after: &&Px| !self.same_block(after, px) && !self.patch(after).is_gather();
        u32::try_from(self.patch(px).afters.iter().filter(outside).count()).expect("fewer than 2^32 patches")
    }

    /// Takes an uncommitted patch out of its block's `blocked` and `roots`.
    pub(super) fn uncount(&mut self, px: Px) {
        let patch = self.arena.get(px);
        let slot = &mut self.slots[at(patch.slot)];
        slot.blocked -= u32::from(patch.outer > 0);
        slot.roots -= u32::from(patch.outer == 0 && patch.inner == 0);
    }

    /// Puts an uncommitted patch into its block's `blocked` and `roots`.
    pub(super) fn count(&mut self, px: Px) {
        let patch = self.arena.get(px);
        let slot = &mut self.slots[at(patch.slot)];
        slot.blocked += u32::from(patch.outer > 0);
        slot.roots += u32::from(patch.outer == 0 && patch.inner == 0);
    }

    /// The befores that are still uncommitted or in flight, merges followed.
    pub(super) fn live_befores(&self, px: Px) -> impl Iterator<Item = Px> + '_ {
        self.patch(px).befores().iter().filter_map(|&id| self.arena.resolve(id))
    }

    pub(super) fn has_edge(&self, after: Px, before: Px) -> bool {
        let (upper, lower) = (self.patch(after), self.patch(before));
        // Places are compared many at once, ids are looked up one by one.
        if lower.afters.len() <= 8 * upper.befores().len() {
            return lower.afters.contains(&after);
        }
        upper.befores().iter().any(|&id| self.arena.resolve(id) == Some(before))
    }

    /// Drops committed ids from a list that has grown to twice what is live.
    fn compact_befores(&mut self, px: Px) {
        let patch = self.arena.get(px);
        if patch.befores().len() <= 2 * at(patch.outer + patch.inner) + 8 {
            return;
        }
        let mut befores = self.arena.get_mut(px).take_befores();
        befores.retain(|id| self.arena.resolve(*id).is_some());
        self.arena.get_mut(px).put_befores(befores);
    }
}
