//! One cached block, as the graph sees it.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockBuf, BlockKind, BlockNo};
use smallvec::SmallVec;

use super::patch::{Change, Px, Vx};
use crate::PatchId;

/// Patches of a block: of most there is one.
pub(crate) type OfBlock = SmallVec<[Px; 2]>;

/// How many ranges are compared at once: they fit two vector registers.
const CHUNK: usize = 16;

/// The uncommitted patches of a block in creation order, with the bytes that each changes beside it: a directory's block
/// has hundreds, and every change of it asks which of them it overlaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uncommitted {
    places: OfBlock,
    /// The first byte that each changes, and the last one.
    first: SmallVec<[u16; 4]>,
    last: SmallVec<[u16; 4]>,
}

impl std::ops::Deref for Uncommitted {
    type Target = [Px];

    fn deref(&self) -> &[Px] {
        &self.places
    }
}

impl Uncommitted {
    pub(crate) fn push(&mut self, px: Px, change: Change) {
        let (first, last) = change.ends();
        self.places.push(px);
        self.first.push(first);
        self.last.push(last);
    }

    /// A patch changes more than it did.
    pub(crate) fn widen(&mut self, px: Px, change: Change) {
        let at = self.places.iter().position(|&other| other == px).expect("a patch of the block");
        (self.first[at], self.last[at]) = change.ends();
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(Px) -> bool) {
        for ends in [&mut self.first, &mut self.last] {
            let mut kept = self.places.iter().map(|&px| keep(px));
            ends.retain(|_| kept.next().expect("a range for each patch"));
        }
        self.places.retain(|px| keep(*px));
    }

    /// All of them, and there are none any more.
    pub(crate) fn take(&mut self) -> OfBlock {
        self.first.clear();
        self.last.clear();
        std::mem::take(&mut self.places)
    }

    /// Whether each patch stands beside the bytes that it changes.
    pub(crate) fn are_beside(&self, changes: impl ExactSizeIterator<Item = Change>) -> bool {
        let beside = self.first.iter().copied().zip(self.last.iter().copied());
        changes.len() == self.places.len() && changes.map(Change::ends).eq(beside)
    }

    /// Those that change a byte which `change` changes, too, from the newest back to the first one that `is_enough`.
    pub(crate) fn touching(&self, change: Change, is_enough: impl Fn(Px) -> bool) -> SmallVec<[Px; 8]> {
        let (first, last) = change.ends();
        let touches = |from: u16, to: u16| (from <= last) & (first <= to);
        let (firsts, lasts, places) = (&self.first[..], &self.last[..], &self.places[..]);
        let mut found = SmallVec::new();
        let mut end = places.len();
        while end > 0 {
            // Without a branch for each: most blocks of a directory are looked through in vain.
            if let Some((before, from)) = firsts[..end].split_last_chunk::<CHUNK>()
                && let Some((_, to)) = lasts[..end].split_last_chunk::<CHUNK>()
                && !(0..CHUNK).fold(false, |any, i| any | touches(from[i], to[i]))
            {
                end = before.len();
                continue;
            }
            let start = end.saturating_sub(CHUNK);
            for at in (start..end).rev().filter(|&at| touches(firsts[at], lasts[at])) {
                found.push(places[at]);
                if is_enough(places[at]) {
                    return found;
                }
            }
            end = start;
        }
        found
    }
}

/// Which cache a block has its kind, its owner and its seal from, by its number: 0 for the whole device's, the others in the order in
/// which they were made.
pub(crate) type Holder = u16;

/// A block and its patches.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) no: BlockNo,
    pub(crate) kind: BlockKind,
    /// Whose it is, as a word that only the volume's format understands; 0 while nobody has said.
    pub(crate) owner: u64,
    /// Who says what it holds: kind, owner and seal.
    pub(crate) holder: Holder,
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
    /// Which of the contents to be written early it is, the last time that it became dirty; 0 if never.
    pub(crate) ticket: u64,
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
            owner: 0,
            holder: 0,
            data,
            patches: Uncommitted::default(),
            hard: None,
            flying: OfBlock::new(),
            external: 0,
            blocked: 0,
            roots: 0,
            dirty_place: 0,
            dirtied_at: Duration::ZERO,
            ticket: 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_change_touches_is_found_from_the_newest_back() {
        // Ranges in no order, some of the whole block, as many as fill some chunks and a part of one.
        let changes: Vec<Change> = (0_u32..75)
            .map(|no| match no % 19 {
                7 => Change::Bytes { offset: 0, len: 65_536 },
                _ => Change::Bytes { offset: no * 7_919 % 65_000, len: 1 + no * 31 % 500 },
            })
            .collect();
        let mut block = Uncommitted::default();
        for (px, &change) in (0..).zip(&changes) {
            block.push(px, change);
        }
        assert!(block.are_beside(changes.iter().copied()));
        for wanted in &changes {
            let touching: Vec<Px> =
                (0..).zip(&changes).filter(|(_, c)| c.overlaps(*wanted)).map(|(px, _)| px).collect();
            let found = block.touching(*wanted, |_| false);
            assert!(found.iter().rev().eq(&touching), "{wanted:?}: {found:?}");
            let until = touching[touching.len() / 2];
            let found = block.touching(*wanted, |px| px == until);
            assert!(found.iter().rev().eq(&touching[touching.len() / 2..]), "{wanted:?}: {found:?}");
        }
    }
}
