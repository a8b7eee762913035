//! What a cache was doing at one moment, for people who want to know why something is not written yet: [`crate::Cache::view`].
//!
//! Plain values without a life of their own. Blocks have the numbers of the cache's device, volumes those in which they came.

use std::time::Duration;

use fstitch_core::groups::GroupId;
use fstitch_core::{BlockKind, BlockNo, Error};

use crate::{JournalMode, PatchId, PatchState};

/// One moment of a cache, all of it seen under one lock.
#[derive(Clone, Debug)]
pub struct View {
    /// When, by the cache's clock.
    pub at: Duration,
    /// Blocks with changes that are not stable: those in flight first, then those that have waited longest, among as many as were
    /// looked at.
    pub blocks: Vec<BlockView>,
    /// Patches without a block.
    pub empties: Vec<PatchView>,
    /// What the patches above wait for. What they wait for may be among what was left out.
    pub edges: Vec<Edge>,
    /// The epoch that is being written.
    pub epoch: Option<EpochView>,
    /// The journals that are kept.
    pub journals: Vec<JournalView>,
    /// The patchgroups that are open, in the order of their names.
    pub groups: Vec<GroupView>,
    /// Why nothing is written any more.
    pub failure: Option<Error>,
    /// All that there is.
    pub totals: Totals,
    /// What of it is not above.
    pub left_out: LeftOut,
}

/// A block with changes that are not stable.
#[derive(Clone, Debug)]
pub struct BlockView {
    /// Its number.
    pub no: BlockNo,
    /// What it holds.
    pub kind: BlockKind,
    /// The volume through which it was changed last.
    pub volume: u8,
    /// It has changes that are on their way nowhere yet.
    pub is_dirty: bool,
    /// It is being written; or was, and is not stable for the cause that is given.
    pub is_in_flight: bool,
    /// Somebody has a handle to it.
    pub is_pinned: bool,
    /// How long its oldest change has waited.
    pub age: Duration,
    /// How much of it could be written now.
    pub ready: Ready,
    /// Why that is not all of it.
    pub why: Option<Cause>,
    /// Its patches in the order in which they were made, those in flight first.
    pub patches: Vec<PatchView>,
    /// Patches of it that are not among them.
    pub patches_left_out: usize,
}

/// How much of a block could be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Everything.
    Whole,
    /// Some of its patches; the others would be undone, and it would have to be written again.
    Partly,
    /// Nothing.
    No,
}

/// Why a block cannot be written as a whole: the nearest cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is being written; what was changed since follows later.
    InFlight,
    /// It is stored elsewhere, and found there when a patch is stable that says where. What was changed since follows later.
    Elsewhere {
        /// The patch of the block that waits.
        patch: PatchId,
        /// The one that says where it is, or a patch without a block in front of that.
        record: PatchId,
    },
    /// Writing it has failed, and it will never be stable, nor will what comes after it.
    Failed {
        /// What was said of that.
        error: String,
    },
    /// It waits for a patch of another block, or by way of patches without a block for an earlier one of its own.
    Patch {
        /// The patch that waits.
        patch: PatchId,
        /// The one that it waits for.
        before: PatchId,
        /// Whose block this is.
        block: BlockNo,
        /// What that holds.
        kind: BlockKind,
        /// How that one is doing.
        standing: Standing,
        /// The patchgroup that asked for this order.
        group: Option<GroupId>,
        /// How many other patches it waits for.
        others: u32,
    },
    /// It belongs to a transaction that takes changes, or waits for one.
    Transaction {
        /// The patch that waits.
        patch: PatchId,
        /// The volume whose journal it is.
        volume: u8,
        /// The number that the transaction gets in the log.
        sequence: u32,
        /// Operations under way that keep it open.
        operations: usize,
        /// It closes as soon as these have ended.
        is_closing: bool,
    },
    /// It waits for something that an operation under way holds back until it has said all that must come first.
    Held {
        /// The patch that waits.
        patch: PatchId,
        /// The one that is held.
        held: PatchId,
        /// The patchgroup that asked for this order.
        group: Option<GroupId>,
    },
    /// It waits for patches without blocks, one behind the other, and more of them than are followed.
    Chain {
        /// The patch that waits.
        patch: PatchId,
        /// The last one that was looked at.
        empty: PatchId,
    },
}

/// How a patch is doing that somebody waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is being written.
    InFlight,
    /// It is stored elsewhere, and waits for the change by which it is found there.
    Elsewhere,
    /// Writing it has failed: it will never be stable.
    Failed,
    /// It could be written now.
    Ready,
    /// An earlier version of its block is being written.
    Behind,
    /// It waits itself.
    Waits,
}

/// A patch.
#[derive(Clone, Debug)]
pub struct PatchView {
    /// Its name.
    pub id: PatchId,
    /// Whether it is being written.
    pub state: PatchState,
    /// What it is.
    pub role: PatchRole,
    /// It is what a transaction changed in its block.
    pub is_home: bool,
    /// The volume through which the change was made.
    pub volume: u8,
    /// The first byte that it changes, and how many; none of a patch without a block.
    pub bytes: Option<(u32, u32)>,
    /// Bytes kept to undo it.
    pub undo_bytes: u64,
    /// How long ago it was made; unknown of those without a block.
    pub age: Option<Duration>,
    /// Patches on other blocks, and without one, that it waits for.
    pub outer: u32,
    /// Patches of its block that it waits for, by stored edges.
    pub inner: u32,
    /// Patches that wait for it, by stored edges.
    pub afters: usize,
}

/// What a patch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchRole {
    /// Without undo data: part of every write of its block.
    Hard,
    /// With undo data.
    Soft,
    /// Without a block: groups dependencies.
    Empty,
    /// Without a block, and cannot commit yet.
    Held,
    /// Without a block, and only answers whether others are stable.
    Gather,
}

/// One patch waits for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// It waits.
    pub after: PatchId,
    /// It must be stable first, or with it in one write of their block.
    pub before: PatchId,
    /// Both are of one block.
    pub is_inner: bool,
    /// It is not stored: the second is the hard patch of their block.
    pub is_implicit: bool,
}

/// An epoch that is being written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochView {
    /// Its number, counted from the start of the cache.
    pub number: u64,
    /// How long it has been under way.
    pub age: Duration,
    /// How many blocks it has.
    pub blocks: usize,
}

/// A journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalView {
    /// The volume whose it is.
    pub volume: u8,
    /// What goes through it.
    pub mode: JournalMode,
    /// The transaction that takes changes.
    pub running: Option<RunningView>,
    /// Those that are closed and not all home, the oldest first, as many as are shown.
    pub closed: Vec<ClosedView>,
    /// How many more there are.
    pub closed_left_out: usize,
}

/// A transaction that takes changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningView {
    /// The number that it gets in the log.
    pub sequence: u32,
    /// Blocks that it has changed.
    pub blocks: usize,
    /// How long it has been running.
    pub age: Duration,
    /// Operations under way that keep it open.
    pub operations: usize,
    /// It closes as soon as these have ended.
    pub is_closing: bool,
}

/// A closed transaction that is not all home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClosedView {
    /// Its number in the log.
    pub sequence: u32,
    /// Blocks that it has copies of.
    pub blocks: usize,
    /// Its commit record is stable: what it changed is there after a crash.
    pub is_stable: bool,
}

/// A patchgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// Its name.
    pub id: GroupId,
    /// The volume whose changes it may have.
    pub volume: u8,
    /// Where it is in its life.
    pub state: GroupState,
    /// What comes before it is not stable yet.
    pub is_waiting: bool,
    /// All that was changed for it so far is stable.
    pub is_stable: bool,
}

/// Where a patchgroup is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupState {
    /// It has no changes, and may come after others.
    New,
    /// So many scopes have it engaged.
    Engaged(u32),
    /// It was engaged and may be again.
    Idle,
    /// Others come after it: it never changes again.
    Sealed,
}

/// All that there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks with changes that are on their way nowhere yet.
    pub dirty: usize,
    /// Blocks that are being written.
    pub in_flight: usize,
    /// Patches.
    pub patches: usize,
    /// Patchgroups.
    pub groups: usize,
}

/// What a view does not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Blocks with changes.
    pub blocks: usize,
    /// Patches, those of the blocks left out among them.
    pub patches: usize,
    /// Edges of patches that are shown.
    pub edges: usize,
    /// Patchgroups.
    pub groups: usize,
}

impl LeftOut {
    /// Whether the view shows everything.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}
