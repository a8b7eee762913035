//! The core lock, in which patches are created.

use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::waiting::note_change;
use fstitch_core::{BlockBuf, BlockNo};

use super::groups::Mine;
use super::{Block, Cache, Core, CoreGuard};
use crate::graph::ChangeContents as Contents;
use crate::graph::patch::{Change, Site, Vx};
use crate::{PatchId, PatchIds, PatchState};

/// The core lock. Everything done through one `Tx` is seen by others at once.
pub struct Tx<'a> {
    core: CoreGuard<'a>,
    cache: &'a Cache,
    /// The groups that this thread works for.
    pub(super) mine: Mine,
}

impl<'a> Tx<'a> {
    pub(super) fn new(core: CoreGuard<'a>, cache: &'a Cache) -> Self {
        core.graph.new_moment();
        let mine = if core.groups.is_empty() { Mine::new() } else { core.mine(cache.volume) };
        Self { core, cache, mine }
    }

    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    pub(super) fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The volume whose mechanism changes obey.
    pub(super) fn volume(&self) -> Vx {
        self.cache.volume
    }

    /// The block as the volume knows it whose mechanism its changes obey.
    fn site(&self, block: &Block) -> Site {
        Site { volume: self.cache.volume, slot: block.slot, no: self.cache.number_there(block.no) }
    }

    fn change(&mut self, block: &Block, change: Change, new: &Contents<'_>, befores: &[PatchId]) -> PatchId {
        note_change();
        let site = self.site(block);
        match self.mine.is_empty() {
            true => self.core.graph.change(site, change, new, befores),
            false => self.change_for_groups(site, change, new, befores),
        }
    }

    #[inline(never)]
    fn change_for_groups(
        &mut self,
        site: Site,
        change: Change,
        new: &Contents<'_>,
        befores: &[PatchId],
    ) -> PatchId {
        let heads = self.heads();
        let patch = self.core.graph.change_for_groups(site, change, new, (befores, &heads));
        self.enlist(patch);
        patch
    }

    /// The newest contents of a block.
    #[must_use]
    pub fn data(&self, block: &Block) -> &[u8] {
        self.core.graph.slot(block.slot).loaded()
    }

    /// Changes bytes `offset..offset + bytes.len()` of a block, after `befores`. Overlaps with earlier changes
    /// are ordered automatically.
    ///
    /// # Panics
    /// If the range is empty or lies outside the block.
    pub fn bytes(&mut self, block: &Block, offset: usize, bytes: &[u8], befores: &[PatchId]) -> PatchId {
        let change = Change::Bytes { offset: narrow(offset), len: narrow(bytes.len()) };
        self.change(block, change, &Contents::Bytes(bytes), befores)
    }

    /// Overwrites a whole block, after `befores`: `contents` becomes its data without being copied.
    ///
    /// # Panics
    /// If `contents` is not one block long.
    pub fn init(&mut self, block: &Block, contents: Arc<BlockBuf>, befores: &[PatchId]) -> PatchId {
        assert_eq!(contents.len(), self.cache.block_size(), "a block is overwritten by a block");
        self.core.graph.slot_mut(block.slot).stale = false;
        let change = Change::Bytes { offset: 0, len: narrow(self.cache.block_size()) };
        self.change(block, change, &Contents::Block(contents), befores)
    }

    /// As [`Tx::init`], of contents that were somewhere else before: where a journal is kept they are stable before the
    /// transaction under way, whatever goes through it.
    pub fn init_kept(&mut self, block: &Block, contents: Arc<BlockBuf>, befores: &[PatchId]) -> PatchId {
        assert_eq!(contents.len(), self.cache.block_size(), "a block is overwritten by a block");
        self.core.graph.slot_mut(block.slot).stale = false;
        let change = Change::Bytes { offset: 0, len: narrow(self.cache.block_size()) };
        note_change();
        self.change_for_groups(self.site(block), change, &Contents::Block(contents), befores)
    }

    /// Says that the step under way has made a block part of a file: before its transaction nobody sees what is in it. To be
    /// called before its contents are set.
    pub fn note_new(&mut self, block: &Block) {
        self.core.graph.note_new(self.cache.volume, block.slot);
    }

    /// Flips `count` bits of a block from bit `first` on (bit n is bit n % 8 of byte n / 8), after `befores`. All of
    /// them become `value`. One patch for each 64-bit word, fewer when they merge.
    ///
    /// # Panics
    /// If a bit has that value already, or lies outside the block.
    pub fn bits(
        &mut self,
        block: &Block,
        first: u32,
        count: u32,
        value: bool,
        befores: &[PatchId],
    ) -> PatchIds {
        let mut ids = PatchIds::new();
        let (mut at, end) = (first, first + count);
        while at < end {
            let (word, low) = (at / 64, at % 64);
            let run = (64 - low).min(end - at);
            let mask = (u64::MAX >> (64 - run)) << low;
            let index = to_usize(word) * 8;
            let now = fstitch_core::Le::u64(self.data(block), index) & mask;
            assert_eq!(now, if value { 0 } else { mask }, "bits {at}.. of block {} flip", block.no);
            let id = self.change(block, Change::Bits { word, mask }, &Contents::Flip, befores);
            if !ids.contains(&id) {
                ids.push(id);
            }
            at += run;
        }
        ids
    }

    /// A patch without a block that groups dependencies: it commits when all befores have.
    pub fn empty(&mut self, befores: &[PatchId]) -> PatchId {
        self.core.graph.empty(self.cache.volume, befores)
    }

    /// An empty patch that does not commit until [`Tx::release`], and to which befores may be added until then.
    pub fn hold(&mut self, befores: &[PatchId]) -> PatchId {
        self.core.graph.hold(self.cache.volume, befores)
    }

    /// Adds a before to a held patch.
    ///
    /// # Panics
    /// If it is not held, or the dependency would close a cycle.
    pub fn add_before(&mut self, held: PatchId, before: PatchId) {
        self.core.graph.add_before(held, before);
    }

    /// Lets a held patch commit as soon as its befores have.
    ///
    /// # Panics
    /// If it is not held.
    pub fn release(&mut self, held: PatchId) {
        self.core.graph.release(held);
    }

    /// An empty gathering patch: [`Tx::gather_add`] makes it on the first use.
    #[must_use]
    pub fn gather(&mut self) -> PatchId {
        PatchId::NONE
    }

    /// Adds to a gathering patch, on which nothing may depend and whose sync waits for all that was added.
    /// Returns the gather to use from now on. A patch that is alone gathers itself, and what it comes after: most
    /// gathers take no patch of their own.
    #[must_use]
    pub fn gather_add(&mut self, gather: PatchId, member: PatchId) -> PatchId {
        self.core.graph.gather(self.cache.volume, gather, member)
    }

    /// The same for several members at once.
    #[must_use]
    pub fn gather_all(&mut self, gather: PatchId, members: &[PatchId]) -> PatchId {
        self.core.graph.gather_all(self.cache.volume, gather, members)
    }

    /// A patch without a block that commits when everything has that was added to these gathers so far: unlike on a
    /// gather, others may depend on it.
    pub fn empty_after(&mut self, gathers: &[PatchId]) -> PatchId {
        self.core.graph.empty_after(self.cache.volume, gathers)
    }

    /// The changes of a block that are not stable yet: who copies its contents elsewhere, as they are now, comes after these.
    #[must_use]
    pub fn unstable(&self, block: &Block) -> PatchIds {
        self.core.graph.unstable(block.slot)
    }

    /// The state of a patch.
    #[must_use]
    pub fn state(&self, patch: PatchId) -> PatchState {
        self.core.graph.state(patch)
    }

    /// Whether `a` and `b` are uncommitted, not in flight and, after merging, one and the same patch.
    #[must_use]
    pub fn same(&self, a: PatchId, b: PatchId) -> bool {
        self.core.graph.same(a, b)
    }

    /// Says that a patch made and ended what the medium never held, and nothing need wait for it in its block: it leaves the block if it
    /// has come to change nothing there. Its id stands for what it waited for. Whether it has left.
    pub fn hollow(&mut self, patch: PatchId) -> bool {
        self.core.graph.hollow(patch)
    }

    /// Says that a block was freed: a journal then leaves its copies alone.
    pub fn forget(&mut self, block: BlockNo) {
        // To the journal of the volume below it stays part of a file.
        if self.cache.is_logged_below() || self.core.journal(self.cache.volume).is_none() {
            return;
        }
        let sx = self.cache.mapping.find(block).and_then(|spot| self.core.index.get(&spot.block).copied());
        self.core.graph.forget_freed(self.cache.volume, block, sx);
    }

    /// Whether `after` is known to come after `before`: such an edge is stored. Not all orders are.
    #[must_use]
    pub fn depends_on(&self, after: PatchId, before: PatchId) -> bool {
        self.core.graph.depends_on(after, before)
    }

    /// Whether `patch` goes through a journal.
    #[must_use]
    pub fn is_logged(&self, patch: PatchId) -> bool {
        self.core.graph.is_logged(patch)
    }

    /// Whether `patch` belongs to the running transaction of a journal, or waits for it.
    #[must_use]
    pub fn awaits_running(&self, patch: PatchId) -> bool {
        self.core.graph.awaits_running(self.cache.volume, patch)
    }

    /// Whether a block that `patch` has freed must not be used again yet, not even by contents that come after `patch`.
    #[must_use]
    pub fn bars_reuse(&self, patch: PatchId) -> bool {
        let logging = self.core.graph.logging(self.cache.volume);
        let orders_contents = logging.is_some_and(|logging| logging.mode == crate::JournalMode::Ordered);
        orders_contents && self.core.graph.awaits_running(self.cache.volume, patch)
    }

    /// Drops the unflown changes of a freed block to which nothing reachable refers. `unreachable` are the patches
    /// that cut it off from what the medium can reach (empty if the medium never reached it): whatever
    /// depended on the dropped changes depends on these as well. Drops nothing without the `elimination`
    /// optimisation; under a journal only for blocks that the running transaction has made part of a file. A block that is
    /// clean then leaves the cache. Returns whether anything was dropped.
    pub fn drop_changes(&mut self, block: BlockNo, unreachable: &[PatchId]) -> bool {
        let Some(spot) = self.cache.mapping.find(block) else { return false };
        let Some(&sx) = self.core.index.get(&spot.block) else { return false };
        let dropped = self.core.graph.drop_changes((self.cache.volume, block), sx, unreachable);
        let slot = self.core.graph.slot_mut(sx);
        if slot.data.is_some() && slot.is_clean() && !slot.is_pinned() {
            // What a free block holds is nobody's business any more; its memory is warm for the next one.
            self.cache.shared.forget(&mut self.core, sx);
        } else if dropped {
            slot.stale = true;
            self.core.note_clean(sx);
        }
        dropped
    }
}

fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("positions in a block fit 32 bits")
}
