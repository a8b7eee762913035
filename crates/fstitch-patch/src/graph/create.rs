//! How a change becomes a patch, or joins one.

use std::sync::Arc;

use fstitch_core::BlockBuf;
use smallvec::SmallVec;

use super::patch::{Birth, Change, NO_SLOT, Patch, Px, Site, Sx, Undo, Vx};
use super::{Graph, at};
use crate::PatchId;
use crate::observer::What;

/// The new contents that come with a change.
pub(crate) enum Contents<'a> {
    /// Replace the change's byte range.
    Bytes(&'a [u8]),
    /// Flip the masked bits.
    Flip,
    /// Become the whole block.
    Block(Arc<BlockBuf>),
}

/// How many befores the quick way looks at.
const JOIN_AT_ONCE: usize = 8;

/// Befores of a new patch, as live places.
pub(super) type Befores = SmallVec<[Px; 8]>;

impl Graph {
    /// Changes a block after `befores`, as they are, and returns the patch that holds the change.
    ///
    /// # Panics
    /// If the change lies outside the block, or a before is a gather.
    #[inline]
    pub(crate) fn change_plain(
        &mut self,
        site: Site,
        change: Change,
        new: &Contents<'_>,
        befores: &[PatchId],
    ) -> PatchId {
        if let Some(hard) = self.joins_at_once(site, befores) {
            self.tell_joined(hard);
            self.assert_inside(site.slot, change);
            self.apply(site.slot, change, new);
            return self.arena.id(hard);
        }
        self.change_at_length(site, change, new, befores)
    }

    /// The way of all changes that do not join a patch at once.
    #[inline(never)]
    fn change_at_length(
        &mut self,
        site: Site,
        change: Change,
        new: &Contents<'_>,
        befores: &[PatchId],
    ) -> PatchId {
        let sx = site.slot;
        let mut befores = self.live(befores, Some(sx));
        let reach = self.slots[at(sx)].reach;
        if reach != PatchId::NONE {
            for reach in self.live(&[reach], Some(sx)) {
                if !befores.contains(&reach) {
                    befores.push(reach);
                }
            }
        }
        self.assert_inside(sx, change);
        let slot = &self.slots[at(sx)];
        let overdue = slot.hard.is_some_and(|hard| self.is_overdue(hard))
            && (slot.patches.len() > 1 || befores.iter().any(|&px| self.patch(px).slot != sx));
        let has_home = self.has_homes && slot.patches.iter().any(|&px| self.patch(px).home);
        let alone = slot.external == 0 && !has_home && !self.is_shared(sx, site.volume);
        let px = if self.optimizations.hard_patches && alone && !overdue {
            self.change_hard(site, change, new, &befores)
        } else {
            self.change_soft(site, change, new, &befores)
        };
        self.inherit_serial(px);
        self.note_live();
        self.arena.id(px)
    }

    /// The quick way of most changes: the block has one patch, which is hard, and what the change waits for either this
    /// waits for already, or it leads nowhere. Then the change joins it, by either of the conditions of
    /// `docs/design/patch.md`: if anything waits for the block there is nothing to lead from the change's befores to the
    /// patch.
    fn joins_at_once(&mut self, site: Site, befores: &[PatchId]) -> Option<Px> {
        let slot = &self.slots[at(site.slot)];
        let (&[px], true) = (&slot.patches[..], slot.reach == PatchId::NONE) else { return None };
        let patch = self.patch(px);
        if !patch.hard || patch.home || patch.volume != site.volume || befores.len() > JOIN_AT_ONCE {
            return None;
        }
        let is_known = |&id: &PatchId| match self.arena.resolve(id) {
            Some(before) => self.waits_already(px, before),
            None => true,
        };
        if !befores.iter().all(is_known) {
            return self.joins_and_waits(px, befores);
        }
        self.note_joined(px)?;
        Some(px)
    }

    /// The same where the change waits for more than the block's patch does.
    fn joins_and_waits(&mut self, px: Px, befores: &[PatchId]) -> Option<Px> {
        let sx = self.patch(px).slot;
        let mut more: SmallVec<[Px; JOIN_AT_ONCE]> = SmallVec::new();
        for &id in befores {
            let Some(before) = self.arena.resolve(id) else { continue };
            if self.waits_already(px, before) {
                continue;
            }
            if !self.is_bottom(before) || self.patch(before).slot == sx {
                return None;
            }
            more.push(before);
        }
        if self.is_overdue(px) {
            return None;
        }
        self.note_joined(px)?;
        for before in more {
            self.add_edge(px, before);
        }
        Some(px)
    }

    /// Whether a patch is the other one or waits for it: not for a home patch, which stands for others.
    fn waits_already(&self, px: Px, before: Px) -> bool {
        before == px || (!self.patch(before).home && self.has_edge(px, before))
    }

    /// Counts a change that joins its block's only patch; `None` if that is not allowed.
    fn note_joined(&mut self, px: Px) -> Option<()> {
        let is_awaited = self.slots[at(self.patch(px).slot)].external > 0;
        match is_awaited {
            false if self.optimizations.hard_patches => self.stats.patches_merged_hard += 1,
            _ if self.optimizations.overlap_merging => self.stats.patches_merged_overlap += 1,
            _ => return None,
        }
        Some(())
    }

    /// Whether a patch is an ordinary one of its block that waits for nothing but, if it is in flight, for its write.
    fn is_bottom(&self, px: Px) -> bool {
        let patch = self.patch(px);
        let plain = patch.slot != NO_SLOT && !patch.home;
        plain && patch.befores().is_empty() && self.implicit_before(px).is_none()
    }

    /// Whether a block has patches of other volumes than this one, with which its own never merge: they would wait for
    /// transactions of both.
    pub(super) fn is_shared(&self, sx: Sx, volume: Vx) -> bool {
        let has_others = self.arrangements.len() > 1;
        has_others && self.slots[at(sx)].patches.iter().any(|&px| self.patch(px).volume != volume)
    }

    /// What waits for a patch that waits for a transaction waits for that transaction. For stored edges `add_edge` sees to
    /// it; this is for the edge to the block's hard patch.
    fn inherit_serial(&mut self, px: Px) {
        if let Some(hard) = self.implicit_before(px) {
            let (volume, serial) = (self.patch(hard).volume, self.patch(hard).serial());
            let patch = self.patch_mut(px);
            if patch.volume == volume {
                patch.raise_serial(serial);
            }
        }
    }

    /// Resolves befores, leaving out committed ones and those in flight on the patch's own block, which is not
    /// written again before they commit.
    pub(super) fn live(&self, befores: &[PatchId], own: Option<Sx>) -> Befores {
        let mut live = Befores::new();
        // A commit record has thousands.
        let are_many = befores.len() > 4 * live.inline_size();
        for &id in befores {
            let Some(px) = self.arena.resolve(id).and_then(|px| self.standing(px)) else { continue };
            let patch = self.patch(px);
            assert!(!patch.is_gather(), "nothing may depend on a gather");
            let settled = patch.in_flight && Some(patch.slot) == own;
            if !settled && (are_many || !live.contains(&px)) {
                live.push(px);
            }
        }
        if are_many {
            live.sort_unstable();
            live.dedup();
        }
        live
    }

    /// No chain can come back to the block: the change joins its hard patch, or starts one.
    fn change_hard(&mut self, site: Site, change: Change, new: &Contents<'_>, befores: &Befores) -> Px {
        let sx = site.slot;
        if self.slots[at(sx)].patches.is_empty() {
            let px = self.insert(site, change, Undo::None, true);
            for &before in befores {
                self.add_edge(px, before);
            }
            self.apply(sx, change, new);
            return px;
        }
        // Befores on this very block become part of the hard patch themselves.
        let outside: Befores = befores.iter().copied().filter(|&px| self.patch(px).slot != sx).collect();
        let hard = self.harden(sx);
        self.stats.patches_merged_hard += 1;
        self.tell_joined(hard);
        self.join(hard, &outside);
        self.apply(sx, change, new);
        hard
    }

    /// Something waits for the block: the change joins a patch that it overlaps, or becomes a soft patch.
    fn change_soft(&mut self, site: Site, change: Change, new: &Contents<'_>, befores: &Befores) -> Px {
        let sx = site.slot;
        let overlapped = self.overlapped(sx, change);
        if let Some(target) = self.overlap_target(site, change, &overlapped, befores) {
            self.stats.patches_merged_overlap += 1;
            self.tell_joined(target);
            self.widen_undo(target, change);
            self.join(target, befores);
            self.apply(sx, change, new);
            return target;
        }
        let undo = self.take_undo(sx, change, matches!(new, Contents::Block(_)));
        let px = self.insert(site, change, undo, false);
        for before in befores.iter().copied().chain(self.topmost(change, &overlapped)) {
            self.add_edge(px, before);
        }
        self.apply(sx, change, new);
        px
    }

    /// The soft patches that a change overlaps, in creation order. Those before one that has all of it are left out: they
    /// are below that one.
    fn overlapped(&self, sx: Sx, change: Change) -> SmallVec<[Px; 8]> {
        let slot = &self.slots[at(sx)];
        let has_all = |px: Px| {
            let cover = self.patch(px).change();
            Some(px) != slot.hard && is_alike(cover, change) && change.overlap_within(change, cover)
        };
        let mut found = slot.patches.touching(change, has_all);
        found.retain(|px| Some(*px) != slot.hard && self.patch(*px).change().overlaps(change));
        found.reverse();
        found
    }

    /// Of the patches that a change overlaps, in creation order, those that no later one of them covers: the
    /// others are below these.
    pub(super) fn topmost(&self, change: Change, overlapped: &[Px]) -> Befores {
        let mut top = Befores::new();
        for &px in overlapped.iter().rev() {
            let below = |&above: &Px| {
                let cover = self.patch(above).change();
                is_alike(cover, change) && self.patch(px).change().overlap_within(change, cover)
            };
            if !top.iter().any(below) {
                top.push(px);
            }
        }
        top
    }

    /// Whether a patch has waited so long that nothing more it would have to wait for may join it. Without this a
    /// stream of changes, each joined to the one before, could keep a block from the medium for ever.
    pub(super) fn is_overdue(&self, px: Px) -> bool {
        let patch = self.patch(px);
        patch.outer > 0 && patch.born.age(self.moment.at()) >= self.join_age
    }

    /// The patch that the change may join, by the conditions of `docs/design/patch.md`.
    fn overlap_target(
        &mut self,
        site: Site,
        change: Change,
        overlapped: &[Px],
        befores: &Befores,
    ) -> Option<Px> {
        if !self.optimizations.overlap_merging {
            return None;
        }
        let target = match overlapped.last() {
            None => self.slots[at(site.slot)].hard?,
            Some(&newest) => {
                let cover = self.patch(newest).change();
                let covered = |&px: &Px| self.patch(px).change().overlap_within(change, cover);
                if !is_alike(cover, change) || !overlapped.iter().all(covered) {
                    return None;
                }
                newest
            }
        };
        if self.patch(target).home || self.patch(target).volume != site.volume {
            // It would count as durable with the home patch's transaction, or wait for transactions of two volumes.
            return None;
        }
        if self.is_overdue(target) && befores.iter().any(|&px| !self.same_block(px, target)) {
            return None;
        }
        // What the target waits for already cannot lead to it.
        let others: Befores =
            befores.iter().copied().filter(|&px| px != target && !self.has_edge(target, px)).collect();
        (!self.may_reach(&others, target)).then_some(target)
    }

    /// Adds a patch to its block.
    pub(super) fn insert(&mut self, site: Site, change: Change, undo: Undo, hard: bool) -> Px {
        match change {
            Change::Bytes { .. } => self.stats.patches_created_byte += 1,
            Change::Bits { .. } => self.stats.patches_created_bit += 1,
            Change::Empty => unreachable!("empty patches have no block"),
        }
        self.stats.patches_hard += u64::from(hard);
        self.note_undo_taken(undo.size());
        let born = self.moment.at();
        let mut patch = Patch::new(site, change);
        patch.set_undo(undo);
        patch.hard = hard;
        patch.born = Birth::at(born);
        let px = self.arena.insert(patch);
        self.tell(|graph| {
            let slot = graph.slot(site.slot);
            What::Made { patch: graph.arena.id(px), block: slot.no, kind: slot.kind, role: graph.role_of(px) }
        });
        let slot = &mut self.slots[at(site.slot)];
        if slot.patches.is_empty() {
            slot.dirtied_at = born;
            self.enlist_dirty(site.slot);
            self.note_contents(site.slot);
        }
        let slot = &mut self.slots[at(site.slot)];
        slot.patches.push(px, change);
        if hard {
            assert!(slot.hard.is_none(), "block {} has a hard patch already", slot.no);
            slot.hard = Some(px);
        }
        self.count(px);
        px
    }

    /// What the change replaces.
    fn take_undo(&self, sx: Sx, change: Change, whole: bool) -> Undo {
        let data = self.slots[at(sx)].loaded();
        match change {
            Change::Bytes { .. } if whole => Undo::Block(Arc::clone(data)),
            Change::Bytes { offset, len } => {
                Undo::Bytes(SmallVec::from_slice(&data[at(offset)..at(offset) + at(len)]))
            }
            Change::Bits { word, mask } => Undo::Bits(fstitch_core::Le::u64(data, 8 * at(word)) & mask),
            Change::Empty => Undo::None,
        }
    }

    /// Puts the new contents into the block, copying it first if somebody else still looks at it.
    pub(super) fn apply(&mut self, sx: Sx, change: Change, new: &Contents<'_>) {
        let slot = &mut self.slots[at(sx)];
        let data = slot.data.as_mut().expect("changed blocks are loaded");
        if let Contents::Block(contents) = new {
            *data = Arc::clone(contents);
            return;
        }
        self.stats.copies_on_write += u64::from(Arc::strong_count(data) > 1);
        let data = Arc::make_mut(data);
        match (change, new) {
            (Change::Bytes { offset, len }, Contents::Bytes(bytes)) => {
                data[at(offset)..at(offset) + at(len)].copy_from_slice(bytes);
            }
            (Change::Bits { word, mask }, Contents::Flip) => {
                let old = fstitch_core::Le::u64(data, 8 * at(word));
                fstitch_core::Le::put_u64(data, 8 * at(word), old ^ mask);
            }
            _ => unreachable!("contents fit their change"),
        }
    }

    pub(super) fn assert_inside(&self, sx: Sx, change: Change) {
        let slot = &self.slots[at(sx)];
        let (start, end) = change.range();
        let fits = start < end && at(end) <= slot.loaded().len();
        assert!(fits, "a change of bytes {start}..{end} does not fit block {}", slot.no);
    }

    pub(super) fn note_undo_taken(&mut self, bytes: u64) {
        self.stats.undo_bytes_total += bytes;
        self.stats.undo_bytes_now += bytes;
        self.stats.undo_bytes_peak = self.stats.undo_bytes_peak.max(self.stats.undo_bytes_now);
    }
}

/// Whether both changes are of bytes, or both of bits.
fn is_alike(one: Change, other: Change) -> bool {
    matches!(one, Change::Bits { .. }) == matches!(other, Change::Bits { .. })
}
