//! One cached block, as the graph sees it.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockBuf, BlockKind, BlockNo};
use smallvec::SmallVec;

use super::patch::{Change, Px, Vx};
use crate::PatchId;

/// Patches of a block: of most there is one.
pub(crate) type OfBlock = SmallVec<[Px; 2]>;

/// How many ranges are compared at once.
const CHUNK: usize = 32;

/// The uncommitted patches of a block in creation order, with the bytes that each changes beside it: a directory's block
/// has hundreds, and every change of it asks which of them it overlaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uncommitted {
    places: OfBlock,
    ranges: SmallVec<[(u32, u32); 2]>,
}

impl std::ops::Deref for Uncommitted {
    type Target = [Px];

    fn deref(&self) -> &[Px] {
        &self.places
    }
}

impl Uncommitted {
    pub(crate) fn push(&mut self, px: Px, change: Change) {
        self.places.push(px);
        self.ranges.push(change.range());
    }

    /// A patch changes more than it did.
    pub(crate) fn widen(&mut self, px: Px, change: Change) {
        let at = self.places.iter().position(|&other| other == px).expect("a patch of the block");
        self.ranges[at] = change.range();
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(Px) -> bool) {
        let mut kept = self.places.iter().map(|&px| keep(px));
        self.ranges.retain(|_| kept.next().expect("a range for each patch"));
        self.places.retain(|px| keep(*px));
    }

    /// All of them, and there are none any more.
    pub(crate) fn take(&mut self) -> OfBlock {
        self.ranges.clear();
        std::mem::take(&mut self.places)
    }

    /// The bytes that each changes, as `start..end`.
    pub(crate) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// Those that change a byte which `change` changes, too.
    pub(crate) fn touching(&self, change: Change) -> SmallVec<[Px; 8]> {
        let (start, end) = change.range();
        // Without a branch for each: most blocks of a directory are looked through in vain.
        let touches = |&(from, to): &(u32, u32)| (from < end) & (start < to);
        let mut found = SmallVec::new();
        for (ranges, places) in self.ranges.chunks(CHUNK).zip(self.places.chunks(CHUNK)) {
            if ranges.iter().fold(false, |any, range| any | touches(range)) {
                let both = ranges.iter().zip(places);
                found.extend(both.filter(|(range, _)| touches(range)).map(|(_, &px)| px));
            }
        }
        found
    }
}

/// A block and its patches.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) no: BlockNo,
    pub(crate) kind: BlockKind,
    /// The newest contents (invariant 4); `None` while the first read is under way.
    pub(crate) data: Option<Arc<BlockBuf>>,
    /// Uncommitted patches in creation order, the hard one included.
    pub(crate) patches: Uncommitted,
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
            patches: Uncommitted::default(),
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
