//! One patch.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockNo};
use smallvec::SmallVec;

use crate::PatchId;

/// A patch's place in the arena.
pub(crate) type Px = u32;
/// A block's place among the slots.
pub(crate) type Sx = u32;
/// A volume's place among those that share the graph: each has its own mechanism. 0 is the whole device.
pub(crate) type Vx = u8;
/// Stands for "no block" in [`Patch::slot`].
pub(crate) const NO_SLOT: Sx = u32::MAX;

/// A block as one of the volumes knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    pub(crate) volume: Vx,
    pub(crate) slot: Sx,
    /// Its number in the volume.
    pub(crate) no: BlockNo,
}

/// What a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Bytes `offset..offset + len`.
    Bytes { offset: u32, len: u32 },
    /// Bits of one 64-bit little-endian word; bits of one word have independent dependencies.
    Bits { word: u32, mask: u64 },
    /// Nothing: groups dependencies.
    Empty,
}

impl Change {
    /// The bytes touched, as `start..end`.
    pub(crate) fn range(self) -> (u32, u32) {
        match self {
            Self::Bytes { offset, len } => (offset, offset + len),
            Self::Bits { word, .. } => (word * 8, word * 8 + 8),
            Self::Empty => (0, 0),
        }
    }

    /// Whether both change a common byte, or for two bit patches a common bit.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        if let (Self::Bits { word: w1, mask: m1 }, Self::Bits { word: w2, mask: m2 }) = (self, other) {
            return w1 == w2 && m1 & m2 != 0;
        }
        let ((s1, e1), (s2, e2)) = (self.range(), other.range());
        s1 < e2 && s2 < e1
    }

    /// Whether every place that both `self` and `other` change lies where `cover` changes.
    pub(crate) fn overlap_within(self, other: Self, cover: Self) -> bool {
        if let (Self::Bits { mask: m1, .. }, Self::Bits { mask: m2, .. }, Self::Bits { mask, .. }) =
            (self, other, cover)
        {
            return m1 & m2 & !mask == 0;
        }
        let ((s1, e1), (s2, e2), (s, e)) = (self.range(), other.range(), cover.range());
        s <= s1.max(s2) && e1.min(e2) <= e && !matches!(cover, Self::Bits { .. })
    }
}

/// What stood in the place of a soft patch's change before.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// A hard or empty patch.
    None,
    /// The bytes of the range.
    Bytes(SmallVec<[u8; 16]>),
    /// The values of the masked bits.
    Bits(u64),
    /// The whole old block.
    Block(Arc<BlockBuf>),
}

impl Undo {
    /// Bytes of undo data held, bits counted as their word.
    pub(crate) fn size(&self) -> u64 {
        let len = match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Bits(_) => 8,
            Self::Block(block) => block.len(),
        };
        u64::try_from(len).expect("64-bit machine")
    }
}

/// How an empty patch behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Orders patches.
    Ordinary,
    /// Cannot commit until released; befores may be added.
    Held,
    /// Nothing may depend on it; befores may be added.
    Gather,
}

/// One uncommitted or in-flight patch.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) generation: u64,
    /// The block, or [`NO_SLOT`] for empty patches.
    pub(crate) slot: Sx,
    pub(crate) change: Change,
    /// The volume through which the change was made.
    pub(crate) volume: Vx,
    pub(crate) role: Role,
    pub(crate) hard: bool,
    pub(crate) in_flight: bool,
    /// When it was created; what joins it does not make it younger.
    pub(crate) born: std::time::Duration,
    /// Uncommitted befores on other blocks, and empty ones.
    pub(crate) outer: u32,
    /// Uncommitted befores on the same block.
    pub(crate) inner: u32,
    /// Holds what a transaction changed in its block: durable when the transaction is.
    pub(crate) home: bool,
    /// The last transaction of its volume that it belongs to or waits for; 0 for none.
    pub(crate) serial: u64,
    /// Stamp of the last walk that came here.
    pub(crate) mark: u64,
    pub(crate) undo: Undo,
    /// What must be stable first; may hold ids that committed meanwhile.
    pub(crate) befores: SmallVec<[PatchId; 2]>,
    /// What waits for this one; exact.
    pub(crate) afters: SmallVec<[Px; 4]>,
    /// Arena places of ids that were merged into this patch.
    pub(crate) aliases: Vec<Px>,
}

impl Patch {
    pub(crate) fn is_gather(&self) -> bool {
        self.role == Role::Gather
    }
}
