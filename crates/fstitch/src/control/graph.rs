//! The answer to `graph`: one moment of a mount's cache, as [`fstitch_patch::View`] has it.

use std::time::Duration;

use fstitch_patch::view;
use fstitch_patch::{JournalMode, PatchState, View};
use serde::{Deserialize, Serialize};

use super::kind::Kind;

/// One moment of a mount's cache. Patches are named by numbers that no two of them ever share.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Graph {
    /// Blocks with changes that are not on their way to the medium.
    pub dirty_blocks: usize,
    /// Blocks that are being written.
    pub in_flight_blocks: usize,
    /// All patches in memory.
    pub patches: usize,
    /// All patchgroups that are open.
    pub groups: usize,
    /// What of all that is not below.
    pub left_out: LeftOut,
    /// Why nothing is written any more; empty while all is well.
    pub failure: String,
    /// The epoch that is being written.
    pub epoch: Option<Epoch>,
    /// Blocks, those in flight first, then those that have waited longest.
    pub blocks: Vec<Block>,
    /// Patches without a block.
    pub empties: Vec<Patch>,
    /// Which patch waits for which.
    pub edges: Vec<Edge>,
    /// Journals that are kept.
    pub journals: Vec<Journal>,
    /// Patchgroups.
    pub patchgroups: Vec<Group>,
}

/// What is not shown.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct LeftOut {
    pub blocks: usize,
    pub patches: usize,
    pub edges: usize,
    pub groups: usize,
}

/// An epoch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Epoch {
    pub number: u64,
    pub age_ms: u64,
    pub blocks: usize,
}

/// A block.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Block {
    pub block: u64,
    pub kind: Kind,
    pub volume: u8,
    pub dirty: bool,
    pub in_flight: bool,
    pub pinned: bool,
    pub age_ms: u64,
    pub ready: Ready,
    pub why: Option<Why>,
    pub patches: Vec<Patch>,
    pub patches_left_out: usize,
}

/// How much of a block could be written now.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Ready {
    /// All of it.
    Whole,
    /// Some of its patches.
    Partly,
    /// Nothing.
    #[default]
    No,
}

/// Why a block cannot be written as a whole.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case", tag = "cause")]
pub enum Why {
    /// It is being written.
    InFlight,
    /// It is stored elsewhere, and waits for the patch by which it is found there.
    Elsewhere { patch: u64, record: u64 },
    /// Writing it has failed.
    Failed { error: String },
    /// It waits for a patch of a block.
    Patch {
        patch: u64,
        before: u64,
        block: u64,
        kind: Kind,
        standing: Standing,
        group: Option<u64>,
        others: u32,
    },
    /// It waits for a transaction that is not closed.
    Transaction { patch: u64, volume: u8, sequence: u32, operations: usize, closing: bool },
    /// An operation under way holds it back.
    Held { patch: u64, held: u64, group: Option<u64> },
    /// It waits for a long chain of patches without blocks.
    Chain { patch: u64, empty: u64 },
    /// A cause that this program does not know.
    #[serde(other)]
    Other,
}

/// How a patch is doing that a block waits for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It is being written.
    InFlight,
    /// It is stored elsewhere, and not found there yet.
    Elsewhere,
    /// Writing it has failed.
    Failed,
    /// It could be written now.
    Ready,
    /// An earlier version of its block is being written.
    Behind,
    /// It waits itself.
    #[default]
    Waits,
}

/// A patch.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Patch {
    pub patch: u64,
    pub in_flight: bool,
    pub role: Role,
    pub home: bool,
    pub volume: u8,
    pub offset: Option<u32>,
    pub len: Option<u32>,
    pub undo_bytes: u64,
    pub age_ms: Option<u64>,
    pub waits_outside: u32,
    pub waits_inside: u32,
    pub waited_for_by: usize,
}

/// What a patch is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Hard,
    Soft,
    Empty,
    Held,
    Gather,
    /// One that this program does not know.
    #[default]
    #[serde(other)]
    Other,
}

/// One patch waits for another.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Edge {
    pub after: u64,
    pub before: u64,
    pub inner: bool,
    pub implicit: bool,
}

/// A journal.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Journal {
    pub volume: u8,
    pub mode: String,
    pub running: Option<Running>,
    pub closed: Vec<Closed>,
    pub closed_left_out: usize,
}

/// A transaction that takes changes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Running {
    pub sequence: u32,
    pub blocks: usize,
    pub age_ms: u64,
    pub operations: usize,
    pub closing: bool,
}

/// A transaction that is closed and not all home.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Closed {
    pub sequence: u32,
    pub blocks: usize,
    pub stable: bool,
}

/// A patchgroup.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Group {
    pub group: u64,
    pub volume: u8,
    pub state: String,
    pub scopes: u32,
    pub waiting: bool,
    pub stable: bool,
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl From<View> for Graph {
    fn from(view: View) -> Self {
        let view::LeftOut { blocks, patches, edges, groups } = view.left_out;
        Self {
            dirty_blocks: view.totals.dirty,
            in_flight_blocks: view.totals.in_flight,
            patches: view.totals.patches,
            groups: view.totals.groups,
            left_out: LeftOut { blocks, patches, edges, groups },
            failure: view.failure.map(|error| error.to_string()).unwrap_or_default(),
            epoch: view.epoch.map(|epoch| Epoch {
                number: epoch.number,
                age_ms: millis(epoch.age),
                blocks: epoch.blocks,
            }),
            blocks: view.blocks.into_iter().map(Into::into).collect(),
            empties: view.empties.iter().map(Into::into).collect(),
            edges: view.edges.iter().map(Into::into).collect(),
            journals: view.journals.into_iter().map(Into::into).collect(),
            patchgroups: view.groups.iter().map(Into::into).collect(),
        }
    }
}

impl From<view::BlockView> for Block {
    fn from(block: view::BlockView) -> Self {
        Self {
            block: block.no.get(),
            kind: block.kind.into(),
            volume: block.volume,
            dirty: block.is_dirty,
            in_flight: block.is_in_flight,
            pinned: block.is_pinned,
            age_ms: millis(block.age),
            ready: match block.ready {
                view::Ready::Whole => Ready::Whole,
                view::Ready::Partly => Ready::Partly,
                view::Ready::No => Ready::No,
            },
            why: block.why.map(Into::into),
            patches: block.patches.iter().map(Into::into).collect(),
            patches_left_out: block.patches_left_out,
        }
    }
}

impl From<view::Cause> for Why {
    fn from(cause: view::Cause) -> Self {
        match cause {
            view::Cause::InFlight => Self::InFlight,
            view::Cause::Elsewhere { patch, record } => {
                Self::Elsewhere { patch: patch.number(), record: record.number() }
            }
            view::Cause::Failed { error } => Self::Failed { error },
            view::Cause::Patch { patch, before, block, kind, standing, group, others } => Self::Patch {
                patch: patch.number(),
                before: before.number(),
                block: block.get(),
                kind: kind.into(),
                standing: standing.into(),
                group: group.map(|group| group.0),
                others,
            },
            view::Cause::Transaction { patch, volume, sequence, operations, is_closing } => {
                Self::Transaction { patch: patch.number(), volume, sequence, operations, closing: is_closing }
            }
            view::Cause::Held { patch, held, group } => {
                let group = group.map(|group| group.0);
                Self::Held { patch: patch.number(), held: held.number(), group }
            }
            view::Cause::Chain { patch, empty } => {
                Self::Chain { patch: patch.number(), empty: empty.number() }
            }
        }
    }
}

impl From<view::Standing> for Standing {
    fn from(standing: view::Standing) -> Self {
        match standing {
            view::Standing::InFlight => Self::InFlight,
            view::Standing::Elsewhere => Self::Elsewhere,
            view::Standing::Failed => Self::Failed,
            view::Standing::Ready => Self::Ready,
            view::Standing::Behind => Self::Behind,
            view::Standing::Waits => Self::Waits,
        }
    }
}

impl From<&view::PatchView> for Patch {
    fn from(patch: &view::PatchView) -> Self {
        Self {
            patch: patch.id.number(),
            in_flight: patch.state == PatchState::InFlight,
            role: patch.role.into(),
            home: patch.is_home,
            volume: patch.volume,
            offset: patch.bytes.map(|(offset, _)| offset),
            len: patch.bytes.map(|(_, len)| len),
            undo_bytes: patch.undo_bytes,
            age_ms: patch.age.map(millis),
            waits_outside: patch.outer,
            waits_inside: patch.inner,
            waited_for_by: patch.afters,
        }
    }
}

impl From<view::PatchRole> for Role {
    fn from(role: view::PatchRole) -> Self {
        match role {
            view::PatchRole::Hard => Self::Hard,
            view::PatchRole::Soft => Self::Soft,
            view::PatchRole::Empty => Self::Empty,
            view::PatchRole::Held => Self::Held,
            view::PatchRole::Gather => Self::Gather,
        }
    }
}

impl From<&view::Edge> for Edge {
    fn from(edge: &view::Edge) -> Self {
        Self {
            after: edge.after.number(),
            before: edge.before.number(),
            inner: edge.is_inner,
            implicit: edge.is_implicit,
        }
    }
}

impl From<view::JournalView> for Journal {
    fn from(journal: view::JournalView) -> Self {
        let mode = match journal.mode {
            JournalMode::Full => "full",
            JournalMode::Ordered => "ordered",
            JournalMode::Metadata => "metadata",
        };
        let closed = journal.closed.into_iter();
        Self {
            volume: journal.volume,
            mode: mode.to_owned(),
            running: journal.running.map(|running| Running {
                sequence: running.sequence,
                blocks: running.blocks,
                age_ms: millis(running.age),
                operations: running.operations,
                closing: running.is_closing,
            }),
            closed: closed
                .map(|it| Closed { sequence: it.sequence, blocks: it.blocks, stable: it.is_stable })
                .collect(),
            closed_left_out: journal.closed_left_out,
        }
    }
}

impl From<&view::GroupView> for Group {
    fn from(group: &view::GroupView) -> Self {
        let (state, scopes) = match group.state {
            view::GroupState::New => ("new", 0),
            view::GroupState::Engaged(scopes) => ("engaged", scopes),
            view::GroupState::Idle => ("idle", 0),
            view::GroupState::Sealed => ("sealed", 0),
        };
        Self {
            group: group.id.0,
            volume: group.volume,
            state: state.to_owned(),
            scopes,
            waiting: group.is_waiting,
            stable: group.is_stable,
        }
    }
}
