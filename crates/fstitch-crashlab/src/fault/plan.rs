//! What goes wrong, and when.

use std::ops::Range;

use fstitch_core::{BlockKind, BlockNo, IoOp};

/// A way of doing wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Defect {
    /// The request fails, and does nothing. The rest of its batch is carried out.
    Error,
    /// A write is acknowledged, but only some of the block's sectors are written.
    Torn,
    /// A write is acknowledged and forgotten.
    Lost,
    /// A write lands at another block; a read returns another block.
    Misdirected,
    /// Some bits of a block flip on their way to the medium or from it.
    Corrupted {
        /// How many.
        bits: u32,
    },
    /// A read returns what the block held before it was written last.
    Stale,
    /// The request takes longer, and is carried out.
    Slow {
        /// By how many milliseconds.
        ms: u64,
    },
    /// This request and all later ones of any kind fail.
    Dead,
    /// A flush is acknowledged and does nothing.
    Lying,
}

impl Defect {
    /// The defect's name in plans and counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Torn => "torn",
            Self::Lost => "lost",
            Self::Misdirected => "misdirected",
            Self::Corrupted { .. } => "corrupted",
            Self::Stale => "stale",
            Self::Slow { .. } => "slow",
            Self::Dead => "dead",
            Self::Lying => "lying",
        }
    }

    /// The operations that can go wrong in this way.
    #[must_use]
    pub const fn operations(self) -> &'static [IoOp] {
        match self {
            Self::Error | Self::Slow { .. } | Self::Dead => {
                &[IoOp::Read, IoOp::Write, IoOp::Flush, IoOp::Discard]
            }
            Self::Misdirected | Self::Corrupted { .. } => &[IoOp::Read, IoOp::Write],
            Self::Torn | Self::Lost => &[IoOp::Write],
            Self::Stale => &[IoOp::Read],
            Self::Lying => &[IoOp::Flush],
        }
    }
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// So often, then never again.
    Transient(u64),
    /// Whenever it can.
    Sticky,
}

/// One defect and the requests that it befalls.
///
/// A request is one block of a read or a write, a flush, or a discard. Requests that match the operation, the blocks
/// and the kind are counted; of these the fault befalls number `nth`, and from there on each `every`-th.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What goes wrong.
    pub defect: Defect,
    /// With which operation; any that can, if it is not said.
    pub op: Option<IoOp>,
    /// At which blocks; flushes have none and match only if this is not said.
    pub blocks: Option<Range<u64>>,
    /// With which kind of block; flushes and discards have none and match only if this is not said.
    pub kind: Option<BlockKind>,
    /// The first matching request that it befalls, counted from 1.
    pub nth: u64,
    /// The distance to the next one, at least 1.
    pub every: u64,
    /// How often in all.
    pub times: Times,
}

impl Fault {
    /// The defect, once, at the first request that can have it.
    #[must_use]
    pub const fn new(defect: Defect) -> Self {
        Self { defect, op: None, blocks: None, kind: None, nth: 1, every: 1, times: Times::Transient(1) }
    }

    /// Whether a request is one of those that are counted.
    pub(super) fn matches(&self, request: &Request) -> bool {
        let op = self.defect.operations().contains(&request.op) && self.op.is_none_or(|op| op == request.op);
        let block = self.blocks.as_ref().is_none_or(|blocks| {
            request.blocks.is_some_and(|(start, end)| start < blocks.end && blocks.start < end)
        });
        op && block && (self.kind.is_none() || self.kind == request.kind)
    }

    /// Whether the fault befalls the matching request number `count`, having struck `struck` times before.
    pub(super) fn strikes(&self, count: u64, struck: u64) -> bool {
        let left = match self.times {
            Times::Transient(times) => struck < times,
            Times::Sticky => true,
        };
        left && count >= self.nth && (count - self.nth).is_multiple_of(self.every.max(1))
    }
}

/// A request as faults see it.
pub(super) struct Request {
    pub(super) op: IoOp,
    /// The first block and the one after the last.
    pub(super) blocks: Option<(u64, u64)>,
    pub(super) kind: Option<BlockKind>,
}

impl Request {
    pub(super) fn block(op: IoOp, block: BlockNo, kind: BlockKind) -> Self {
        Self { op, blocks: Some((block.get(), block.get().saturating_add(1))), kind: Some(kind) }
    }
}

/// Everything that a device does wrong. Of several faults that befall one request the first one named wins; slowness
/// comes in addition.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// Chooses bits, sectors and wrong addresses.
    pub seed: u64,
    /// The faults.
    pub faults: Vec<Fault>,
}

impl FaultPlan {
    /// A plan with one fault.
    #[must_use]
    pub fn one(fault: Fault) -> Self {
        Self { seed: 0, faults: vec![fault] }
    }
}
