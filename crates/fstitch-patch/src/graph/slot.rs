//! One cached block, as the graph sees it.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockBuf, BlockKind, BlockNo};
use smallvec::SmallVec;

use super::patch::{Px, Vx};
use crate::PatchId;

/// Patches of a block: of most there is one.
pub(crate) type OfBlock = SmallVec<[Px; 2]>;

/// A block and its patches.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) no: BlockNo,
    pub(crate) kind: BlockKind,
    /// The newest contents (invariant 4); `None` while the first read is under way.
    pub(crate) data: Option<Arc<BlockBuf>>,
    /// Uncommitted patches in creation order, the hard one included.
    pub(crate) patches: OfBlock,
    /// The uncommitted hard patch.
    pub(crate) hard: Option<Px>,
    /// Patches being written.
    pub(crate) flying: OfBlock,
    /// Edges from other blocks' patches and from empty patches (gathers excepted) onto `patches`.
    pub(crate) external: u32,
    /// How many of `patches` have outer befores.
    pub(crate) blocked: u32,
    /// How many of `patches` have no befores at all.
    pub(crate) roots: u32,
    /// Where it is among the dirty blocks, if it is one.
    pub(crate) dirty_place: u32,
    /// When the oldest of `patches` was created.
    pub(crate) dirtied_at: Duration,
    /// Stamp of the last walk that wanted this block written.
    pub(crate) wanted: u64,
    /// Stamp of the last walk that found it old.
    pub(crate) old: u64,
    /// Handles count themselves here: one strong reference each beside ours.
    pub(crate) pin: Arc<()>,
    /// Neighbours in the list of clean blocks, by place; the cache's business.
    pub(crate) older: u32,
    pub(crate) newer: u32,
    pub(crate) in_clean_list: bool,
    /// What makes the block part of the file that its volume is in: changes of that volume come after it.
    pub(crate) reach: PatchId,
    /// The transaction that has made it part of a file, and whose volume's: nobody can see it unless that is there. 0 for
    /// none.
    pub(crate) new_in: (Vx, u64),
    /// Its changes were dropped: the contents are neither the medium's nor anybody's.
    pub(crate) stale: bool,
    /// Used since the list last looked.
    pub(crate) referenced: bool,
}

impl Slot {
    pub(crate) fn new(no: BlockNo, kind: BlockKind, data: Option<Arc<BlockBuf>>) -> Self {
        Self {
            no,
            kind,
            data,
            patches: OfBlock::new(),
            hard: None,
            flying: OfBlock::new(),
            external: 0,
            blocked: 0,
            roots: 0,
            dirty_place: 0,
            dirtied_at: Duration::ZERO,
            wanted: 0,
            old: 0,
            pin: Arc::new(()),
            older: u32::MAX,
            newer: u32::MAX,
            in_clean_list: false,
            reach: PatchId::NONE,
            new_in: (0, 0),
            stale: false,
            referenced: false,
        }
    }

    /// Neither changed nor being written.
    pub(crate) fn is_clean(&self) -> bool {
        self.patches.is_empty() && self.flying.is_empty()
    }

    pub(crate) fn is_pinned(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }

    /// The newest contents.
    pub(crate) fn loaded(&self) -> &Arc<BlockBuf> {
        self.data.as_ref().expect("handles exist only for loaded blocks")
    }
}
