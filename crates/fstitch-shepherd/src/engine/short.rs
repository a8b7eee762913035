//! Which blocks are not as the policy wants them, for those who say what that means.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo};

use super::{Shepherd, Stretch};
use crate::map::sums::sum_of;
use crate::policy::Direction;

/// Blocks, of which the first are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// All of them.
    pub count: u64,
    /// The first of them, in order.
    pub first: Vec<BlockNo>,
}

impl Shepherd {
    /// Those of some blocks that have fewer copies than their chains ask for, because spares could not be had or written, or because a disk
    /// is out; the first `max` of them are named.
    #[must_use]
    pub fn short_of_copies(&self, blocks: &[Stretch], max: usize) -> Counted {
        let disks = self.disks().map_or(1, |array| array.disks());
        let mut short = Counted::default();
        for stretch in blocks {
            let asked = self.chain(stretch.kind, Direction::Write).copies(disks);
            if asked == 0 {
                continue;
            }
            let end = stretch.start.get().saturating_add(stretch.count).min(self.blocks());
            for block in (stretch.start.get()..end).map(BlockNo) {
                let copies = self.state().owners.of(block).to_vec();
                let there = copies.iter().filter(|spare| self.serves(self.area.spare(**spare))).count();
                if there < asked || !self.serves(block) {
                    short.count += 1;
                    if short.first.len() < max {
                        short.first.push(block);
                    }
                }
            }
        }
        short
    }

    /// Whether a block can be read, at home or from a copy, and fits its sum if it has one. Whoever asks this hears of no fault, and nothing
    /// is counted or mended.
    #[must_use]
    pub fn is_whole(&self, block: BlockNo) -> bool {
        if block.get() >= self.blocks() || self.is_lost(block) {
            return false;
        }
        let (sum, copies) = {
            let mut state = self.state();
            (state.sums.get(&self.area, block), state.owners.of(block).to_vec())
        };
        let sum = if self.keeps_sums { sum } else { 0 };
        let fits = |at: BlockNo| {
            let found = self.serves(at).then(|| self.area.read_at(at, BlockKind::Data).ok()).flatten();
            found.is_some_and(|data| sum == 0 || sum == sum_of(&self.area.uuid, block, &data))
        };
        fits(block) || copies.into_iter().any(|spare| fits(self.area.spare(spare)))
    }

    /// Blocks of which nothing is left, because the only disk that had them has failed; the first `max` are named.
    #[must_use]
    pub fn lost_with_a_disk(&self, max: usize) -> Counted {
        let mut lost = Counted { count: u64::from(self.state().head.lost), first: Vec::new() };
        let wanted = to_usize(lost.count.min(to_u64(max)));
        lost.first =
            (0..self.blocks()).map(BlockNo).filter(|block| self.is_lost(*block)).take(wanted).collect();
        lost
    }
}
