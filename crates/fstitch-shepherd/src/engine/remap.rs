//! Blocks that cannot be written at home go to a spare.
//!
//! The spare holds the block, stably, before a map names it; the map is stable before the write that failed is answered. So whoever waits
//! for that write (another block, a transaction's end, a caller of fsync) waits for the map as well, whatever mechanism is in force, and
//! nothing is left to be done later that could fail ([C] §4.1.2).

use fstitch_core::{BlockNo, BlockWrite, Result};

use super::{Shepherd, State, Trouble};
use crate::map::owners::{Elsewhere, mark_of};
use crate::policy::Kind;

/// Spares that are tried.
const TRIED: usize = 4;

impl Shepherd {
    /// Writes a block to a spare, and has it found there from now on; whether that worked.
    pub(super) fn move_home(&self, write: &BlockWrite<'_>) -> bool {
        let was = self.area.read_home(write.block, write.kind).map_or(0, |contents| mark_of(&contents));
        let mut guard = self.state();
        let state = &mut *guard;
        for _ in 0..TRIED {
            let pick = |this: &Self, state: &mut State| this.pick_for_move(state, write.block);
            let Some(spare) = self.pick_or_wait(state, pick) else { return false };
            let failed = self.area.write_each(&[self.area.spare(spare)], &[write.data]);
            if !self.spare_takes(spare) {
                // Its disk has gone out meanwhile.
                state.owners.release(spare);
                continue;
            }
            if !failed.is_empty() {
                state.owners.condemn(&self.area, spare);
                continue;
            }
            return self.note_move(state, write.block, Elsewhere { spare, was }).is_ok();
        }
        false
    }

    /// The maps learn where a block is, and then everybody.
    fn note_move(&self, state: &mut State, block: BlockNo, there: Elsewhere) -> Result<()> {
        let before = state.owners.move_to(&self.area, block, there);
        // First: if the medium cannot be told now it is later, and may know of it by then.
        self.area.device.put(block, Some(self.area.spare(there.spare)));
        self.tell_owners(state)?;
        self.found_in_a_spare(state, block)?;
        if let Some(before) = before {
            // The spare that it had could not be written either. It is given up only now: of two that are named one counts, of none none.
            state.owners.condemn(&self.area, before.spare);
            self.tell_owners(state)?;
        }
        Ok(())
    }

    /// After somebody else has written to the volume, who knew nothing of blocks that were moved: where a home is not what it was, that
    /// counts, else the spare does. Returns those of the first kind, and of the second.
    pub(super) fn judge_moved(&self, state: &mut State) -> Result<(Vec<BlockNo>, Vec<BlockNo>)> {
        let (mut at_home, mut kept) = (Vec::new(), Vec::new());
        let moved: Vec<(BlockNo, Elsewhere)> = state.owners.moved().collect();
        for (block, there) in moved {
            let home = self.area.read_home(block, fstitch_core::BlockKind::Data);
            if home.is_ok_and(|contents| mark_of(&contents) != there.was) {
                state.owners.bring_home(&self.area, block);
                self.area.device.put(block, None);
                at_home.push(block);
            } else {
                kept.push(block);
            }
        }
        if state.owners.has_news() {
            self.tell_owners(state)?;
        }
        Ok((at_home, kept))
    }

    /// Writes blocks that were moved to their homes again, and reads them back; those that cannot be. For who takes the maps away.
    ///
    /// # Errors
    /// When the maps cannot be written.
    pub fn bring_home(&self) -> Result<Vec<BlockNo>> {
        let mut guard = self.state();
        let state = &mut *guard;
        let mut left = Vec::new();
        let moved: Vec<BlockNo> = state.owners.moved().map(|(block, _)| block).collect();
        let kind = fstitch_core::BlockKind::Data;
        for block in moved {
            let Ok(contents) = self.area.read_at(block, kind) else {
                left.push(block);
                continue;
            };
            let below = self.area.device.below();
            let is_home = below.write(&[BlockWrite { block, kind, data: &contents }]).is_ok()
                && below.flush().is_ok()
                && self.area.read_home(block, kind).is_ok_and(|home| home == contents);
            if is_home {
                state.owners.bring_home(&self.area, block);
                self.area.device.put(block, None);
            } else {
                left.push(block);
            }
        }
        if state.owners.has_news() {
            self.tell_owners(state)?;
        }
        self.health_of_moved(left.len());
        Ok(left)
    }

    fn health_of_moved(&self, left: usize) {
        use fstitch_core::lock::Unpoisoned;
        let kind = Kind::Block(fstitch_core::BlockKind::Data);
        self.health.lock().unpoisoned().add(kind, Trouble::NotRenewed, fstitch_core::num::to_u64(left));
    }
}
