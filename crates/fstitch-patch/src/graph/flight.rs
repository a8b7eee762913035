//! Write-out: which patches of a block are ready, what is written, and what happens then.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo};

use super::patch::{Change, NO_SLOT, Px, Role, Sx, Undo, Vx};
use super::slot::OfBlock;
use super::{Graph, Holder, Slot, at};
use crate::PatchId;
use crate::observer::What;

/// A block's image on its way to the medium.
#[derive(Clone, Debug)]
pub(crate) struct Frozen {
    pub(crate) slot: Sx,
    pub(crate) no: BlockNo,
    pub(crate) kind: BlockKind,
    pub(crate) owner: u64,
    pub(crate) holder: Holder,
    /// Its volume keeps a journal: what is sealed there was sealed as its transaction closed.
    pub(crate) is_logged: bool,
    pub(crate) image: Arc<BlockBuf>,
}

/// How much of a block can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Nothing.
    None,
    /// Some patches; the others would be undone.
    Some,
    /// Everything.
    All,
}

impl Graph {
    /// How much of a dirty block can be written now.
    pub(crate) fn readiness(&self, sx: Sx) -> Readiness {
        let slot = &self.slots[at(sx)];
        if !slot.flying.is_empty() || slot.patches.is_empty() {
            return Readiness::None;
        }
        if !self.optimizations.ready_lists {
            return match self.ready_set(sx).len() {
                0 => Readiness::None,
                n if n == slot.patches.len() => Readiness::All,
                _ => Readiness::Some,
            };
        }
        if slot.blocked == 0 {
            return Readiness::All;
        }
        let some = match slot.hard {
            Some(hard) => self.patch(hard).outer == 0,
            None => slot.roots > 0,
        };
        if some { Readiness::Some } else { Readiness::None }
    }

    /// The patches of a block that can be written now, in creation order: those whose befores are committed or
    /// in the set themselves.
    pub(super) fn ready_set(&self, sx: Sx) -> OfBlock {
        let slot = &self.slots[at(sx)];
        if slot.hard.is_some_and(|hard| !self.is_free_of_outer(hard)) {
            return OfBlock::new();
        }
        let mut ready: OfBlock = OfBlock::with_capacity(slot.patches.len());
        let mut members = BTreeSet::new();
        // Inner befores stand earlier in the list, but for the few that came with a merge: hence the repetition.
        loop {
            let before = members.len();
            for &px in &*slot.patches {
                let inner_ready =
                    || self.live_befores(px).all(|b| self.patch(b).slot != sx || members.contains(&b));
                if !members.contains(&px) && self.is_free_of_outer(px) && inner_ready() {
                    members.insert(px);
                }
            }
            if members.len() == before {
                break;
            }
        }
        ready.extend(slot.patches.iter().copied().filter(|px| members.contains(px)));
        ready
    }

    /// Whether all befores outside the patch's block are committed: from the count, or with `ready_lists` off by
    /// looking.
    fn is_free_of_outer(&self, px: Px) -> bool {
        if self.optimizations.ready_lists {
            return self.patch(px).outer == 0;
        }
        let slot = self.patch(px).slot;
        self.live_befores(px).all(|before| self.patch(before).slot == slot)
    }

    /// Marks the ready patches of a block in flight and returns the image to write.
    ///
    /// # Panics
    /// If nothing is ready.
    pub(crate) fn launch(&mut self, sx: Sx) -> Frozen {
        let whole = self.readiness(sx) == Readiness::All;
        let ready = if whole { self.take_all(sx) } else { self.take_ready(sx) };
        assert!(!ready.is_empty(), "nothing of block {} is ready", self.slots[at(sx)].no);
        self.tell_launched(sx, ready.len());
        let is_logged = ready.last().is_some_and(|&px| self.logging(self.patch(px).volume).is_some());
        self.slots[at(sx)].flying = ready;
        self.stats.blocks_written += 1;
        self.stats.blocks_written_undone += u64::from(!whole);
        let image = if whole { Arc::clone(self.slots[at(sx)].loaded()) } else { self.image_with_undo(sx) };
        let slot = &self.slots[at(sx)];
        let &Slot { no, kind, owner, holder, .. } = slot;
        Frozen { slot: sx, no, kind, owner, holder, is_logged, image }
    }

    /// Marks all patches of a block in flight, out of its list and its counts.
    fn take_all(&mut self, sx: Sx) -> OfBlock {
        let slot = &mut self.slots[at(sx)];
        (slot.external, slot.blocked, slot.roots, slot.hard) = (0, 0, 0, None);
        let all = slot.patches.take();
        self.strike_dirty(sx);
        for &px in &all {
            self.patch_mut(px).in_flight = true;
        }
        all
    }

    /// The same for those that are ready.
    fn take_ready(&mut self, sx: Sx) -> OfBlock {
        let ready = self.ready_set(sx);
        for &px in &ready {
            self.uncount(px);
            self.slots[at(sx)].external -= self.external_edges(px);
            self.patch_mut(px).in_flight = true;
        }
        let (arena, slot) = (&self.arena, &mut self.slots[at(sx)]);
        slot.patches.retain(|px| !arena.get(px).in_flight);
        if slot.hard.is_some_and(|hard| ready.contains(&hard)) {
            slot.hard = None;
        }
        ready
    }

    /// The newest contents with all uncommitted patches undone, the newest first.
    fn image_with_undo(&self, sx: Sx) -> Arc<BlockBuf> {
        let slot = &self.slots[at(sx)];
        let mut image = BlockBuf::clone(slot.loaded());
        for &px in slot.patches.iter().rev() {
            let patch = self.patch(px);
            assert!(!patch.hard, "a hard patch of block {} cannot be undone", slot.no);
            match (patch.undo(), patch.change()) {
                (Undo::Bytes(old), Change::Bytes { offset, len }) => {
                    image[at(offset)..at(offset) + at(len)].copy_from_slice(old);
                }
                (Undo::Bits(old), Change::Bits { word, mask }) => {
                    let now = fstitch_core::Le::u64(&image, 8 * at(word));
                    fstitch_core::Le::put_u64(&mut image, 8 * at(word), (now & !mask) | old);
                }
                (Undo::Block(old), Change::Bytes { .. }) => image.copy_from_slice(old),
                _ => unreachable!("undo data fits its change"),
            }
        }
        Arc::new(image)
    }

    /// The write of a block is stable: its patches commit, and so do empty patches that waited only for them.
    pub(crate) fn commit(&mut self, sx: Sx) {
        let flying = std::mem::take(&mut self.slots[at(sx)].flying);
        let mut empties = Vec::new();
        for &px in &flying {
            debug_assert!(
                self.live_befores(px).all(|b| flying.contains(&b)),
                "in-flight safety: befores are committed or on the same block, the record of where it went included"
            );
            self.settle(px, &mut empties);
        }
        for px in flying {
            self.tell(|graph| What::Committed { patch: graph.arena.id(px) });
            let gone = self.arena.remove(px);
            self.stats.undo_bytes_now -= gone.undo().size();
        }
        self.commit_empties(empties);
        self.note_live();
    }

    /// Tells everything that waits for `px` that it is stable.
    fn settle(&mut self, px: Px, empties: &mut Vec<Px>) {
        let afters = std::mem::take(&mut self.patch_mut(px).afters);
        for &after in &*afters {
            let same_block = self.same_block(after, px);
            self.satisfy(after, same_block);
            let patch = self.patch(after);
            if patch.slot == NO_SLOT && patch.outer == 0 && patch.role != Role::Held {
                empties.push(after);
            } else if patch.in_flight && patch.outer == 0 && !same_block {
                self.landing.push(patch.slot);
            }
        }
    }

    /// Commits empty patches that wait for nothing, and what that sets free.
    pub(super) fn commit_empties(&mut self, mut empties: Vec<Px>) {
        while let Some(px) = empties.pop() {
            self.settle(px, &mut empties);
            self.tell(|graph| What::Committed { patch: graph.arena.id(px) });
            self.arena.remove(px);
        }
        while let Some(sx) = self.landing.pop() {
            // Each of its patches told that it can.
            if let Some(place) = self.resting.iter().position(|&resting| resting == sx) {
                self.resting.swap_remove(place);
                self.commit(sx);
                self.landed.push(sx);
            }
        }
    }

    /// A block in flight is stored elsewhere: it commits with `record`, the change that says where. False if that waits for
    /// something that is in flight itself, such as this block.
    pub(crate) fn rest(&mut self, sx: Sx, record: PatchId) -> bool {
        let Some(record) = self.arena.resolve(record).and_then(|px| self.standing(px)) else {
            self.commit(sx);
            return true;
        };
        if self.waits_for_flight(record) {
            return false;
        }
        for px in self.slots[at(sx)].flying.clone() {
            self.add_edge(px, record);
        }
        self.resting.push(sx);
        true
    }

    /// The blocks that are stored elsewhere and not found there yet.
    pub(crate) fn resting(&self) -> &[Sx] {
        &self.resting
    }

    /// Whether a block is one of them.
    pub(super) fn is_resting(&self, sx: Sx) -> bool {
        self.resting.contains(&sx)
    }

    /// Whether a patch waits, directly or not, for one that is in flight.
    fn waits_for_flight(&self, px: Px) -> bool {
        let (mut todo, mut seen) = (vec![px], BTreeSet::from([px]));
        while let Some(px) = todo.pop() {
            if self.patch(px).in_flight {
                return true;
            }
            let befores = self.live_befores(px).chain(self.implicit_before(px));
            todo.extend(befores.filter(|&before| seen.insert(before)));
        }
        false
    }

    /// The blocks that have committed because a change elsewhere has, since this was asked last.
    pub(crate) fn take_landed(&mut self) -> Vec<Sx> {
        std::mem::take(&mut self.landed)
    }

    /// Whether there are any.
    pub(crate) fn has_landed(&self) -> bool {
        !self.landed.is_empty()
    }

    /// The volumes through which the patches were made that are in flight on a block.
    pub(crate) fn volumes_in_flight(&self, sx: Sx) -> Vec<Vx> {
        let mut volumes: Vec<Vx> =
            self.slots[at(sx)].flying.iter().map(|&px| self.patch(px).volume).collect();
        volumes.dedup();
        volumes
    }
}
