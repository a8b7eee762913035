//! Joining patches.

use smallvec::SmallVec;

use super::create::Befores;
use super::patch::{Change, Px, Sx, Undo};
use super::{Graph, at};
use crate::observer::What;

impl Graph {
    /// Adds the befores of a change that joins `target`.
    pub(super) fn join(&mut self, target: Px, befores: &Befores) {
        for &before in befores {
            // What a soft patch waits for without an edge need not be stored.
            let redundant = before == target || self.implicit_before(target) == Some(before);
            if !redundant {
                self.add_edge(target, before);
            }
        }
    }

    /// Makes all uncommitted patches of a block one hard patch and returns it. Only lawful while nothing outside
    /// the block waits for it.
    pub(super) fn harden(&mut self, sx: Sx) -> Px {
        let slot = &self.slots[at(sx)];
        assert!(slot.external == 0, "block {} is waited for", slot.no);
        let holder = slot.hard.unwrap_or_else(|| slot.patches[0]);
        if slot.hard.is_some() && slot.patches.len() == 1 {
            return holder;
        }
        let others: Vec<Px> = slot.patches.iter().copied().filter(|&px| px != holder).collect();
        if !self.patch(holder).hard {
            self.make_hard(sx, holder);
        }
        for px in others {
            self.absorb(sx, holder, px);
        }
        holder
    }

    /// Drops the undo data of a soft patch that can never need it any more, and its befores on its own block,
    /// which are about to be absorbed into it.
    fn make_hard(&mut self, sx: Sx, px: Px) {
        let undo = self.patch_mut(px).set_undo(Undo::None);
        self.stats.undo_bytes_now -= undo.size();
        self.stats.patches_converted += 1;
        self.patch_mut(px).hard = true;
        self.slots[at(sx)].hard = Some(px);
    }

    /// Merges `px` away into the hard patch `holder` of the same block.
    fn absorb(&mut self, sx: Sx, holder: Px, px: Px) {
        let befores: SmallVec<[Px; 8]> = self.live_befores(px).collect();
        let afters = self.patch(px).afters.clone();
        let serial = self.patch(px).serial();
        self.patch_mut(holder).raise_serial(serial);
        for &before in &befores {
            let same_block = self.same_block(px, before);
            self.cut(px, before, same_block);
            if !same_block {
                self.add_edge(holder, before);
            }
        }
        for &after in &*afters {
            let same_block = self.same_block(px, after);
            self.cut(after, px, same_block);
            if !same_block {
                self.add_edge(after, holder);
            }
        }
        self.uncount(px);
        let slot = &mut self.slots[at(sx)];
        slot.patches.retain(|other| other != px);
        self.tell(|graph| What::Merged { patch: graph.arena.id(px), into: graph.arena.id(holder) });
        let gone = self.arena.forward(px, holder);
        self.stats.undo_bytes_now -= gone.undo().size();
        self.stats.patches_converted += 1;
        debug_assert!(gone.outer == 0 && gone.inner == 0, "all edges were moved");
    }

    /// Removes the edge `after -> before` completely.
    pub(super) fn cut(&mut self, after: Px, before: Px, same_block: bool) {
        self.satisfy(after, same_block);
        let id = self.arena.id(before);
        let aliases: SmallVec<[Px; 8]> = self.patch(before).aliases().into();
        let patch = self.patch_mut(after);
        patch.retain_befores(|other| other != id && !aliases.contains(&other.index));
        let gathers = patch.is_gather();
        let below = self.patch_mut(before);
        below.afters.remove(after);
        let (slot, flying) = (below.slot, below.in_flight);
        if slot != super::patch::NO_SLOT && !same_block && !gathers && !flying {
            self.slots[at(slot)].external -= 1;
        }
    }

    /// Makes the undo data of a soft patch cover a change that is about to join it: for places that it did not
    /// cover yet, the contents as they are now.
    pub(super) fn widen_undo(&mut self, target: Px, change: Change) {
        let patch = self.arena.get(target);
        if patch.hard {
            return;
        }
        let data = self.slots[at(patch.slot)].loaded();
        let (old_change, old_size) = (patch.change(), patch.undo().size());
        let (wide, undo) = match (patch.change(), change) {
            (Change::Bits { word, mask }, Change::Bits { mask: more, .. }) => {
                let now = fstitch_core::Le::u64(data, 8 * at(word));
                let &Undo::Bits(old) = patch.undo() else { unreachable!("bit patches keep bits") };
                (Change::Bits { word, mask: mask | more }, Undo::Bits(old | (now & more & !mask)))
            }
            (Change::Bytes { offset, len }, Change::Bytes { offset: o2, len: l2 }) => {
                let (start, end) = (offset.min(o2), (offset + len).max(o2 + l2));
                if start == offset && end == offset + len {
                    return;
                }
                let Undo::Bytes(old) = patch.undo() else { unreachable!("a whole block cannot be widened") };
                let mut bytes: SmallVec<[u8; 16]> = SmallVec::from_slice(&data[at(start)..at(end)]);
                bytes[at(offset - start)..at(offset - start) + at(len)].copy_from_slice(old);
                (Change::Bytes { offset: start, len: end - start }, Undo::Bytes(bytes))
            }
            _ => unreachable!("only like patches merge"),
        };
        let grown = undo.size() - old_size;
        debug_assert!(wide.overlaps(old_change));
        let patch = self.arena.get_mut(target);
        patch.set_change(wide);
        patch.set_undo(undo);
        let sx = patch.slot;
        self.slots[at(sx)].patches.widen(target, wide);
        self.note_undo_taken(grown);
    }
}
