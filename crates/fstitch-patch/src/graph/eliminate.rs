//! Dropping changes that nobody will ever see ([D] §2.2.5).

use fstitch_core::{BlockKind, BlockNo};
use smallvec::SmallVec;

use super::create::Befores;
use super::patch::{Afters, Change, NO_SLOT, Px, Sx, Undo, Vx};
use super::slot::OfBlock;
use super::{Graph, at};
use crate::PatchId;
use crate::observer::What;

/// How many edges one dropped patch may turn into.
const EDGE_LIMIT: usize = 256;

impl Graph {
    /// Drops the uncommitted patches of a freed block. What depended on them depends afterwards on their befores and
    /// on `unreachable`. Does nothing and returns false if the optimisation is off, the block is in flight, or an edge
    /// would close a cycle; and where a journal is kept, unless the running transaction both made and ends the block: on the
    /// medium nobody ever sees it then, whether the transaction is there or not.
    ///
    /// A gather for which one of them stands alone is over with it, and with what it had left out because this one came after it.
    /// That is only what the block's patches came after: contents below a freed block of pointers, which are freed with it.
    pub(crate) fn drop_changes(
        &mut self,
        (volume, no): (Vx, BlockNo),
        sx: Sx,
        unreachable: &[PatchId],
    ) -> bool {
        self.note_death(sx);
        let slot = &self.slots[at(sx)];
        let may_not = self.is_shared(sx, volume) || !self.optimizations.elimination;
        if may_not || !slot.flying.is_empty() || slot.patches.is_empty() {
            return false;
        }
        let cut_off = match self.logging(volume) {
            None => self.live(unreachable, None),
            Some(_) if self.is_of_running(volume, sx) => {
                self.forget_freed(volume, no, Some(sx));
                Befores::new()
            }
            Some(_) => return false,
        };
        if !self.may_drop(sx, &cut_off) {
            return false;
        }
        // Newest first, so that the hard patch, which the others wait for without an edge, goes last.
        let patches: OfBlock = self.slots[at(sx)].patches.iter().copied().collect();
        let named: SmallVec<[PatchId; 4]> = cut_off.iter().map(|&px| self.arena.id(px)).collect();
        for px in patches.into_iter().rev() {
            // An empty patch may have waited for this block alone.
            let cut_off = named.iter().filter_map(|&id| self.arena.resolve(id)).collect();
            self.bypass(px, &cut_off);
        }
        true
    }

    /// Takes a patch that has come to change nothing out of its block: the medium never held what it made, and what it ended is gone.
    /// It stays as an empty patch that waits for all that it waited for, because others may stand on that; no later change of its
    /// block comes after it. Does nothing and returns false where the patch is not of that kind.
    pub(crate) fn hollow(&mut self, id: PatchId) -> bool {
        let Some(px) = self.arena.resolve(id).filter(|&px| self.changes_nothing(px)) else { return false };
        let sx = self.patch(px).slot;
        let below: Befores = self.live_befores(px).filter(|&before| self.same_block(px, before)).collect();
        let implicit = self.implicit_before(px);
        self.uncount(px);
        let outside = self.external_edges(px);
        let slot = &mut self.slots[at(sx)];
        slot.external -= outside;
        slot.patches.retain(|other| other != px);
        self.slots[at(sx)].external += u32::try_from(below.len()).expect("fewer than 2^32 patches");
        let patch = self.arena.get_mut(px);
        (patch.outer, patch.inner) = (patch.outer + patch.inner, 0);
        self.make_empty(px);
        if let Some(hard) = implicit {
            self.add_edge(px, hard);
        }
        if self.patch(px).outer == 0 {
            self.commit_empties(vec![px]);
        }
        self.note_live();
        true
    }

    /// Takes what it changes from a patch that has left its block's list.
    fn make_empty(&mut self, px: Px) {
        let patch = self.arena.get_mut(px);
        patch.slot = NO_SLOT;
        patch.set_change(Change::Empty);
        let undo = patch.set_undo(Undo::None);
        self.stats.undo_bytes_now -= undo.size();
        self.stats.patches_eliminated += 1;
        self.tell(|graph| What::Emptied { patch: graph.arena.id(px) });
    }

    /// Whether a soft patch of bytes leaves in its place what it found, and no patch of its block comes after it: so none has
    /// changed the place since.
    fn changes_nothing(&self, px: Px) -> bool {
        let patch = self.patch(px);
        let (Change::Bytes { offset, len }, Undo::Bytes(undo)) = (patch.change(), patch.undo()) else {
            return false;
        };
        let sx = patch.slot;
        if !self.optimizations.elimination || patch.home || self.logging(patch.volume).is_some() {
            return false;
        }
        let slot = self.slot(sx);
        // A block that is dirty stays so. What is under way to the medium is waited for by not being written again, which an
        // empty patch is not.
        let is_special = slot.patches.len() == 1 || !slot.flying.is_empty();
        let is_awaited_here = || patch.afters.iter().any(|&after| self.same_block(after, px));
        !is_special && slot.loaded()[at(offset)..at(offset + len)] == undo[..] && !is_awaited_here()
    }

    /// Whether the running transaction has made the block part of a file, and no earlier one has changes of it.
    fn is_of_running(&self, volume: Vx, sx: Sx) -> bool {
        let Some(serial) = self.running_serial(volume) else { return false };
        let slot = &self.slots[at(sx)];
        let is_now = |&px: &super::patch::Px| {
            let patch = self.patch(px);
            patch.volume == volume && (!patch.home || patch.serial() == serial)
        };
        slot.new_in == (volume, serial) && slot.patches.iter().all(is_now)
    }

    /// Whether no patch that waits for the block is waited for by `cut_off`, and the edges stay few.
    fn may_drop(&mut self, sx: Sx, cut_off: &Befores) -> bool {
        let patches: OfBlock = self.slots[at(sx)].patches.iter().copied().collect();
        for px in patches {
            let patch = self.patch(px);
            let afters: SmallVec<[Px; 8]> = patch.afters.iter().copied().collect();
            if afters.len() * (patch.befores().len() + cut_off.len()) > EDGE_LIMIT {
                return false;
            }
            for &after in &*afters {
                if cut_off.len() > 1 && cut_off.contains(&after) {
                    // It would have to wait for the others of which one might come to wait for it.
                    return false;
                }
                let others: Befores = cut_off.iter().copied().filter(|&other| other != after).collect();
                if self.patch(after).slot != sx && self.may_reach(&others, after) {
                    return false;
                }
            }
        }
        true
    }

    /// Takes away an edge onto a patch that is about to be removed. The id of one that is gone then stays where it is, as that of a committed
    /// patch would: a transaction waits for tens of thousands of contents, and looking each up in its list would take minutes.
    fn let_go(&mut self, after: Px, px: Px, same_block: bool) {
        self.satisfy(after, same_block);
        let (slot, gathers) = (self.patch(px).slot, self.patch(after).is_gather());
        if !same_block && !gathers {
            self.slots[at(slot)].external -= 1;
        }
    }

    /// Removes one patch, tying what waits for it to what it waited for and to `cut_off`.
    ///
    /// Of a change of metadata others may know the id: that of the clearing of a pointer, which the next life of what it pointed at comes after.
    /// It stays as an empty patch until that is so on the medium: what it did is done there when the block is cut off, or the transaction ends.
    fn bypass(&mut self, px: Px, cut_off: &Befores) {
        let befores: SmallVec<[Px; 8]> = self.live_befores(px).chain(self.implicit_before(px)).collect();
        let afters = self.patch(px).afters.clone();
        let known = self.known_until(px, cut_off);
        let mut set_free = Vec::new();
        for &after in &*afters {
            let same_block = self.same_block(after, px);
            let gathers = self.patch(after).is_gather();
            self.let_go(after, px, same_block);
            if !known.is_empty() {
                self.forget_before(after, px);
            }
            for &before in befores.iter().chain(cut_off.iter().filter(|_| !same_block && !gathers)) {
                self.add_edge(after, before);
            }
            let patch = self.patch(after);
            if patch.slot == NO_SLOT && patch.outer == 0 && patch.role != super::patch::Role::Held {
                set_free.push(after);
            }
        }
        let stored: SmallVec<[Px; 8]> = self.live_befores(px).collect();
        for before in stored {
            let same_block = self.same_block(px, before);
            self.cut(px, before, same_block);
        }
        self.uncount(px);
        let sx = self.arena.get(px).slot;
        let slot = &mut self.slots[at(sx)];
        slot.patches.retain(|other| other != px);
        slot.hard = slot.hard.filter(|&hard| hard != px);
        if slot.patches.is_empty() {
            self.strike_dirty(sx);
        }
        if known.is_empty() {
            self.tell(|graph| What::Dropped { patch: graph.arena.id(px) });
            let gone = self.arena.remove(px);
            self.stats.undo_bytes_now -= gone.undo().size();
            self.stats.patches_eliminated += 1;
        } else {
            let patch = self.arena.get_mut(px);
            (patch.outer, patch.inner, patch.home, patch.hard, patch.afters) =
                (0, 0, false, false, Afters::None);
            self.make_empty(px);
            known.into_iter().for_each(|before| self.add_edge(px, before));
        }
        self.commit_empties(set_free);
        self.note_live();
    }

    /// Takes the ids of `px` out of what `after` waited for.
    fn forget_before(&mut self, after: Px, px: Px) {
        let id = self.arena.id(px);
        let aliases: SmallVec<[Px; 8]> = self.patch(px).aliases().into();
        let patch = self.patch_mut(after);
        patch.retain_befores(|other| other != id && !aliases.contains(&other.index));
    }

    /// What somebody who knows the id of a change has to wait for when the change is dropped; nothing for contents, which nobody's next life
    /// waits for.
    fn known_until(&self, px: Px, cut_off: &Befores) -> Befores {
        let patch = self.patch(px);
        if self.slot(patch.slot).kind == BlockKind::Data {
            return Befores::new();
        }
        match self.logging(patch.volume) {
            None => {
                let mut known = cut_off.clone();
                known.extend(self.live_befores(px).filter(|&before| !self.same_block(px, before)));
                known.sort_unstable();
                known.dedup();
                known
            }
            Some(logging) => {
                let held = logging.running.as_ref().and_then(|running| self.arena.resolve(running.held));
                held.into_iter().collect()
            }
        }
    }
}
