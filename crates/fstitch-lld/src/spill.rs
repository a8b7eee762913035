//! What a unit has written, and memory has no room for, goes beside the log: nothing refers to it but the unit.
//!
//! At the end of the unit a record says where it is, and a failure before that leaves it as garbage in a segment that counts as
//! free. Nobody's count of what is in use knows of it but [`Stream::spilled`].

use fstitch_core::Result;
use fstitch_core::num::to_u64;

use crate::chunk::{DataKind, Descriptor};
use crate::cleaner::Beside;
use crate::log::Contents;
use crate::record::BlockId;
use crate::segments::Run;
use crate::stream::Stream;

/// Of what may be in memory, the part that is for units.
const SHARE: usize = 4;

impl Stream {
    /// Makes sure that units can have so many more bytes in memory: the one that has most spills.
    ///
    /// # Errors
    /// `ENOSPC`, and those of the device: nothing has changed then.
    pub(crate) fn make_memory(&mut self, bytes: usize) -> Result<()> {
        if self.units.memory() + bytes <= self.cache_size / SHARE {
            return Ok(());
        }
        let largest = self.units.open.iter().max_by_key(|(id, unit)| (unit.memory, **id)).map(|(id, _)| *id);
        largest.map_or(Ok(()), |largest| self.spill(largest))
    }

    /// Writes all that a unit has in memory.
    fn spill(&mut self, unit: u64) -> Result<()> {
        self.check_poison()?;
        let Some(open) = self.units.open.get(&unit) else { return Ok(()) };
        let mut contents = open.in_memory();
        let units = to_u64(contents.len()) * u64::from(self.shape.block_units());
        self.make_space(units)?;
        self.make_free(units.div_ceil(u64::from(self.shape.usable_units())) + 1)?;
        while !contents.is_empty() {
            let (_, room) = self.room_beside(Beside::Spilled)?;
            let later = contents.split_off(room.min(contents.len()));
            let blocks = contents.into_iter().map(|(_, block, contents)| (block, contents)).collect();
            self.spill_run(unit, blocks)?;
            contents = later;
        }
        Ok(())
    }

    fn spill_run(&mut self, unit: u64, contents: Vec<(BlockId, Contents)>) -> Result<()> {
        let len = self.shape.block_units();
        let descriptor = |(block, contents): &(BlockId, Contents)| Descriptor {
            kind: DataKind::Spilled,
            owner: *block,
            len,
            sum: crc32c::crc32c(contents),
        };
        let descriptors: Vec<Descriptor> = contents.iter().map(descriptor).collect();
        let data = contents.into_iter().map(|(_, contents)| (DataKind::Spilled, contents)).collect();
        let mut place = self.write_beside(Beside::Spilled, &descriptors, data)?;
        let now = self.log.position().number;
        self.segments.aged(place, now);
        for Descriptor { owner, len, sum, .. } in descriptors {
            self.set_spilled(unit, owner, Run { place, len, sum });
            self.log.counters.spilled_bytes += u64::from(len) * to_u64(self.shape.unit_bytes());
            place += u64::from(len);
        }
        Ok(())
    }

    /// Contents of a unit are there now.
    pub(crate) fn set_spilled(&mut self, unit: u64, block: BlockId, run: Run) {
        let open = self.units.open.get_mut(&unit).expect("it has not ended");
        let old = open.set_spilled(block, run);
        self.units.spilled.insert(run.place, (unit, block));
        self.spilled.used(self.segment_of(run.place), run.len);
        old.into_iter().for_each(|old| self.leave_spilled(old));
    }

    /// Nobody needs what is spilled there.
    pub(crate) fn leave_spilled(&mut self, run: Run) {
        self.units.spilled.remove(&run.place);
        self.spilled.left(self.segment_of(run.place), run.len);
    }

    /// A unit is no more, and nothing of it happens.
    pub(crate) fn forget_unit(&mut self, unit: u64) {
        let Some(unit) = self.units.open.remove(&unit) else { return };
        unit.runs().for_each(|run| self.leave_spilled(run));
    }

    fn segment_of(&self, place: u64) -> u64 {
        self.shape.segment_of(place).expect("what is spilled is in segments")
    }

    /// Blocks of the device that are spilled in a segment.
    pub(crate) fn spilled_in(&self, segment: u64) -> u32 {
        self.spilled.of(segment)
    }

    /// What is spilled at a place of a descriptor, if anything is.
    pub(crate) fn spilled_at(&self, place: u64) -> Option<(u64, BlockId)> {
        self.units.spilled.get(&place).copied()
    }
}
