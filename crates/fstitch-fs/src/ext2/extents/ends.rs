//! Where a file may end on the medium: nothing there may be one extent across such a place, in a tree with nodes.
//!
//! e2fsck bounds the extents of a tree with nodes by the inode's length, and clears one that reaches beyond it, with all of the file
//! that it maps (1.47, pass 1). Without a journal length and map reach the medium one after the other. So an extent ends where the
//! file may end, until that is overtaken.
//!
//! **States.** The length on the medium, and the lengths that patches under way bring, in their order. Patches that became one bring
//! the last length alone. What is stable overtakes what was before.
//!
//! **Invariant.** The list has every length that an image of the inode may have; an empty one stands for the inode's own.

use fstitch_patch::{Cache, PatchId, PatchState, Tx};
use smallvec::SmallVec;

/// File blocks where a file may end.
pub(in crate::ext2) type Walls = SmallVec<[u64; 4]>;

/// So many lengths may wait one for the other.
const WAITING_MAX: usize = 16;

/// The lengths, in blocks, with the patches that bring them; the first may be there already.
#[derive(Debug, Default)]
pub(in crate::ext2) struct Ends(SmallVec<[(PatchId, u64); 2]>);

impl Ends {
    /// A file of `old` blocks gets `new` ones by `patch`.
    pub(in crate::ext2) fn note(&mut self, tx: &Tx<'_>, patch: PatchId, (old, new): (u64, u64)) {
        if self.0.is_empty() {
            self.0.push((PatchId::NONE, old));
        }
        let overtaken = self.first(|patch| tx.state(patch));
        self.0.drain(..overtaken);
        match self.0.last_mut() {
            Some((last, end)) if tx.same(*last, patch) => *end = new,
            _ => self.0.push((patch, new)),
        }
    }

    /// A length that should be stable before one more is to wait. Each one waits for the one before, with two writes of a leaf in between.
    pub(in crate::ext2) fn overdue(&self) -> Option<PatchId> {
        (self.0.len() > WAITING_MAX).then(|| self.0[self.0.len() / 2].0)
    }

    /// Where a file of `now` blocks may end.
    pub(in crate::ext2) fn walls(&self, cache: &Cache, now: u64) -> Walls {
        if self.0.is_empty() {
            return Walls::from_slice(&[now]);
        }
        let tx = cache.lock();
        self.0[self.first(|patch| tx.state(patch))..].iter().map(|&(_, end)| end).collect()
    }

    /// The position of the length that is on the medium.
    fn first(&self, state: impl Fn(PatchId) -> PatchState) -> usize {
        self.0.iter().rposition(|&(patch, _)| state(patch) == PatchState::Committed).unwrap_or(0)
    }
}

/// How many blocks from `index` on lie before the next of these places.
pub(in crate::ext2) fn up_to_wall(walls: &[u64], index: u64) -> u64 {
    walls.iter().filter_map(|wall| wall.checked_sub(index)).filter(|&room| room > 0).min().unwrap_or(u64::MAX)
}
