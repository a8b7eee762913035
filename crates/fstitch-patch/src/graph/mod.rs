//! The graph of patches: one for a stack of mounts on one device.
//!
//! It owns patches, edges and the newest contents of cached blocks; it never does I/O and never waits. The
//! invariants are those of `docs/design/patch.md`, which also proves the merge conditions used here.
//!
//! ```text
//!   create.rs   a change becomes a patch, or joins one        walk.rs       who reaches whom; what a sync needs
//!   merge.rs    joining patches                               flight.rs     ready sets, images, commit, failure
//!   edges.rs    edges and the counts that they keep           eliminate.rs  dropping what will never be seen
//!   empty.rs    empty, held and gathering patches             invariants.rs the checks of debug builds and tests
//!   logged.rs   changes where a journal is kept              moment.rs     when it is
//!   contents.rs contents of files, the oldest first          watch.rs      events for who looks on
//!   view.rs     a part of the graph as plain values          why.rs        why a block cannot be written
//! ```
//!
//! `Px`, `Sx` and `Vx` are the places of a **p**atch, of a **s**lot (a cached block) and of a **v**olume among theirs.
//!
//! # Invariants (numbers of `docs/design/patch.md`)
//!
//! 1. What a committed patch depends on is committed.
//! 2. What an in-flight patch of a block depends on is committed or in flight on that block; one version of a block is in flight
//!    at a time.
//! 3. The graph has no cycle.
//! 4. A slot holds the newest data.
//! 5. Every write-out of a block commits at least one patch.
//! 6. A `PatchId` never dangles.
//! 7. Undo is exact.
//!
//! # States and transitions of a patch
//! *made* [`change_plain`, `change_logged`, `empty`, `hold`, `gather`] → *waiting*, until its befores are committed or in flight with
//! it; or *joined* to another at once, which holds its data from then on [`create`, `merge`] → *in flight* [`launch`] → *committed*
//! [`commit`, `commit_empties`]: its place is free, its id answers "committed". What went elsewhere stays in flight until its record has
//! committed [`rest`]. A patch that nobody will ever see is *dropped*
//! while it is not in flight [`drop_changes`, `hollow`]; a held one waits to be *released* [`release`]. What fails in flight stays there.

mod arena;
mod contents;
pub(crate) mod create;
mod edges;
mod eliminate;
mod empty;
mod flight;
mod invariants;
mod logged;
mod merge;
mod moment;
pub(crate) mod patch;
pub(crate) mod slot;
#[cfg(test)]
mod tests;
mod view;
mod walk;
mod watch;
mod why;

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Clock};

use crate::observer::Ring;
use crate::{Optimizations, PatchId, PatchIds, PatchState, Stats};
use arena::Arena;
use contents::Contents;
pub(crate) use create::Contents as ChangeContents;
pub(crate) use flight::{Frozen, Readiness};
pub(crate) use logged::{Arrangement, Home, Logging, Running};
use patch::{Patch, Px, Sx, Vx};
pub(crate) use slot::{Holder, Slot};
pub(crate) use walk::{Closure, Mark};
pub(crate) use why::{Obstacle, Root};

/// Patches, edges and blocks.
#[derive(Debug)]
pub(crate) struct Graph {
    arena: Arena,
    slots: Vec<Slot>,
    free_slots: Vec<Sx>,
    /// Blocks with uncommitted patches, in no order; each knows its place.
    dirty: Vec<Sx>,
    /// Those of them that hold contents, the oldest first.
    contents: Contents,
    optimizations: Optimizations,
    /// By volume.
    pub(crate) arrangements: Vec<Arrangement>,
    /// The stamp of the last walk that has marked blocks.
    stamp: u64,
    /// The last mark of a walk among patches.
    mark: u32,
    /// How long others may join a patch that still waits: see `is_overdue`.
    pub(crate) join_age: Duration,
    /// The time that new patches are born at.
    moment: moment::Moment,
    /// A home patch was made: where no journal was ever kept nobody looks for one.
    has_homes: bool,
    /// Blocks stored elsewhere, those of them whose record has just committed, and those that have committed for that.
    resting: Vec<Sx>,
    landing: Vec<Sx>,
    landed: Vec<Sx>,
    /// Where events are put while somebody looks on.
    ring: Option<Box<Ring>>,
    pub(crate) stats: Stats,
}

impl Graph {
    pub(crate) fn new(optimizations: Optimizations, clock: Arc<dyn Clock>) -> Self {
        Self {
            arena: Arena::default(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            dirty: Vec::new(),
            contents: Contents::default(),
            optimizations,
            arrangements: vec![Arrangement::Given],
            stamp: 0,
            mark: 0,
            join_age: Duration::MAX,
            moment: moment::Moment::new(clock),
            has_homes: false,
            resting: Vec::new(),
            landing: Vec::new(),
            landed: Vec::new(),
            ring: None,
            stats: Stats::default(),
        }
    }

    /// Adds a block; `None` for data while it is being read.
    pub(crate) fn add_slot(&mut self, no: BlockNo, kind: BlockKind, data: Option<Arc<BlockBuf>>) -> Sx {
        let slot = Slot::new(no, kind, data);
        if let Some(sx) = self.free_slots.pop() {
            self.slots[at(sx)] = slot;
            return sx;
        }
        let sx = Sx::try_from(self.slots.len()).expect("fewer than 2^32 blocks by the memory limit");
        self.slots.push(slot);
        sx
    }

    /// Forgets a clean block.
    pub(crate) fn remove_slot(&mut self, sx: Sx) {
        let slot = &mut self.slots[at(sx)];
        assert!(slot.is_clean(), "block {} still has changes", slot.no);
        slot.data = None;
        self.free_slots.push(sx);
    }

    pub(crate) fn slot(&self, sx: Sx) -> &Slot {
        &self.slots[at(sx)]
    }

    pub(crate) fn slot_mut(&mut self, sx: Sx) -> &mut Slot {
        &mut self.slots[at(sx)]
    }

    /// Blocks with uncommitted patches, in no order.
    pub(crate) fn dirty(&self) -> &[Sx] {
        &self.dirty
    }

    /// Sorts blocks by their numbers.
    pub(crate) fn sort(&self, blocks: &mut [Sx]) {
        blocks.sort_unstable_by_key(|&sx| self.slot(sx).no);
    }

    /// A block got its first uncommitted patch.
    fn enlist_dirty(&mut self, sx: Sx) {
        let place = u32::try_from(self.dirty.len()).expect("fewer than 2^32 blocks by the memory limit");
        self.slots[at(sx)].dirty_place = place;
        self.dirty.push(sx);
    }

    /// A block has no uncommitted patch any more.
    fn strike_dirty(&mut self, sx: Sx) {
        let place = self.slots[at(sx)].dirty_place;
        self.dirty.swap_remove(at(place));
        if let Some(&moved) = self.dirty.get(at(place)) {
            self.slots[at(moved)].dirty_place = place;
        }
    }

    /// The state of a patch.
    pub(crate) fn state(&self, id: PatchId) -> PatchState {
        match self.arena.resolve(id).and_then(|px| self.standing(px)) {
            None => PatchState::Committed,
            Some(px) if self.arena.get(px).in_flight => PatchState::InFlight,
            Some(_) => PatchState::Uncommitted,
        }
    }

    /// Whether both are uncommitted and, merges followed, one patch.
    pub(crate) fn same(&self, a: PatchId, b: PatchId) -> bool {
        let (pa, pb) = (self.arena.resolve(a), self.arena.resolve(b));
        pa.is_some() && pa == pb && pa.is_some_and(|px| !self.arena.get(px).in_flight)
    }

    /// The uncommitted patches of a block, those under way to the medium included.
    pub(crate) fn unstable(&self, sx: Sx) -> PatchIds {
        let slot = self.slot(sx);
        slot.flying.iter().chain(slot.patches.iter()).map(|&px| self.arena.id(px)).collect()
    }

    /// The generation of the next patch: patches below it existed before.
    pub(crate) fn next_generation(&self) -> u64 {
        self.arena.next_generation()
    }

    /// The uncommitted patches of blocks that became dirty at `horizon` or before, and those home patches that did at
    /// `home_horizon` or before: these are stable in the log.
    pub(crate) fn patches_born_until(
        &self,
        horizon: Option<Duration>,
        home_horizon: Option<Duration>,
    ) -> Vec<Px> {
        let mut old = Vec::new();
        for slot in self.dirty.iter().map(|&sx| self.slot(sx)) {
            let is_old = |limit: Option<Duration>| limit.is_some_and(|limit| slot.dirtied_at <= limit);
            let chosen = |&&px: &&Px| is_old(if self.patch(px).home { home_horizon } else { horizon });
            old.extend(slot.patches.iter().filter(chosen));
        }
        old
    }

    /// The uncommitted patches of a volume's blocks.
    pub(crate) fn patches_of(&self, volume: Vx) -> Vec<Px> {
        let of_volume = |(px, patch): (Px, &Patch)| {
            (patch.slot != patch::NO_SLOT && patch.volume == volume).then_some(px)
        };
        self.arena.iter().filter_map(of_volume).collect()
    }

    /// Whether a patch of a block is left that existed when `generation` was the next one.
    pub(crate) fn has_patch_before(&self, generation: u64) -> bool {
        self.arena.iter().any(|(_, patch)| patch.slot != patch::NO_SLOT && patch.generation < generation)
    }

    /// Memory of patches and undo data, in bytes; edges are estimated at 16 bytes a patch beyond the inline ones.
    pub(crate) fn patch_bytes(&self) -> usize {
        let undo = to_usize(self.stats.undo_bytes_now);
        self.arena.bytes() + 16 * self.arena.live() + undo
    }

    /// When it is now.
    pub(crate) fn now(&self) -> Duration {
        self.moment.pass();
        self.moment.at()
    }

    /// Time has passed since the last change.
    pub(crate) fn new_moment(&self) {
        self.moment.pass();
    }

    fn note_live(&mut self) {
        self.stats.patches_live = to_u64(self.arena.live());
        self.stats.patches_peak = self.stats.patches_peak.max(self.stats.patches_live);
    }

    fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Two marks that no patch has. Patches have room for 32 bits, so from time to time all are wiped.
    fn next_marks(&mut self) -> [u32; 2] {
        if self.mark > u32::MAX - 2 {
            self.arena.wipe_marks();
            self.mark = 0;
        }
        self.mark += 2;
        [self.mark - 1, self.mark]
    }

    fn patch(&self, px: Px) -> &Patch {
        self.arena.get(px)
    }

    fn patch_mut(&mut self, px: Px) -> &mut Patch {
        self.arena.get_mut(px)
    }
}

/// A place as an index.
fn at(place: u32) -> usize {
    to_usize(place)
}
