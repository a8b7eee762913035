//! What would be left of the volume without a disk.

use fstitch_core::BlockNo;

use super::make::Stretch;
use super::{Shepherd, State};
use crate::map::sums::LOST;

/// Blocks that are looked at while nobody else uses the maps.
const AT_ONCE: usize = 1024;

impl Shepherd {
    /// Of blocks that hold something, those that nobody could read if this disk were out as well: neither home nor copy is on a disk that has
    /// them and is there. Without a disk, those that nobody can read as it is.
    #[must_use]
    pub fn lost_without(&self, blocks: &[Stretch], disk: Option<usize>) -> Vec<BlockNo> {
        if self.disks().is_none() {
            return Vec::new();
        }
        let all: Vec<BlockNo> = blocks.iter().flat_map(|stretch| stretch.blocks()).collect();
        let mut lost = Vec::new();
        for some in all.chunks(AT_ONCE) {
            let mut state = self.state();
            lost.extend(some.iter().copied().filter(|block| self.is_lost_without(&mut state, *block, disk)));
        }
        lost
    }

    fn is_lost_without(&self, state: &mut State, block: BlockNo, disk: Option<usize>) -> bool {
        let Some(array) = self.disks() else { return false };
        if state.head.lost > 0 && state.sums.get(&self.area, block) == LOST {
            return true;
        }
        let has = |at: BlockNo| array.serves(at) && (disk.is_none() || array.disk_of(at) != disk);
        let copies = state.owners.of(block).iter().map(|spare| self.area.spare(*spare));
        ![self.area.device.place(block)].into_iter().chain(copies).any(has)
    }
}
