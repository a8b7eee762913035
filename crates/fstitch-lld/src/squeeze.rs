//! Making space where there is none, on a disk that compresses: what is alive is packed before anybody is refused.
//!
//! The cleaner packs what it moves, and it does not move what is alive as a whole. Nobody knows of a segment whether what is in it could
//! be packed, other than by looking: so each is looked at once, and not again before it is written anew.

use fstitch_core::num::to_u64;
use fstitch_core::{Error, Result};

use crate::pack::Compression;
use crate::stream::Stream;

/// Bytes that are looked at before somebody is refused: he is not kept waiting for all that a disk holds.
const LOOK_BYTES: u64 = 256 << 20;
/// Bytes that are looked at at once.
const PASS_BYTES: u64 = 8 << 20;
/// A segment is packed if that gives back one part in so many of it.
const WORTH: u64 = 8;

impl Stream {
    /// Packs what has not been looked at, until no more than `limit` blocks of the device are taken or enough was looked at.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn squeeze(&mut self, limit: u64) -> Result<()> {
        if self.shape.compression == Compression::None {
            return Ok(());
        }
        let mut left = LOOK_BYTES / u64::from(self.shape.unit);
        while left > 0 && self.space_used() > limit {
            match self.squeeze_some() {
                Ok(0) => break,
                Ok(looked) => left = left.saturating_sub(looked),
                Err(error) if error.errno() == fstitch_core::Errno::NOSPC => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Packs some segments. Returns how many blocks of the device it has looked at.
    fn squeeze_some(&mut self) -> Result<u64> {
        let written = self.log.write_queue();
        self.noted(written)?;
        let (mut looked, mut worthwhile, mut age) = (0, Vec::new(), 0);
        for segment in self.unpacked(PASS_BYTES / u64::from(self.shape.unit)) {
            self.segments.packed.insert(segment);
            let mut alive = match self.alive_in(segment) {
                Ok(alive) => alive,
                Err(Error::Io { .. } | Error::Corrupt(_)) => {
                    self.leave_unreadable(segment);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let units = |alive: &[crate::cleaner::Alive]| -> u64 {
                alive.iter().map(|alive| u64::from(alive.run.len)).sum()
            };
            let before = units(&alive);
            self.pack(&mut alive);
            looked += before.max(1);
            if (before - units(&alive)) * WORTH >= before.max(1) {
                age = age.max(self.age_of(segment));
                worthwhile.extend(alive);
            }
        }
        if !worthwhile.is_empty() {
            self.move_in_order(worthwhile, age)?;
            self.save()?;
        }
        Ok(looked)
    }

    /// Segments with something alive that nobody has tried to pack, so many blocks of the device at most and what is free has room for.
    fn unpacked(&self, most: u64) -> Vec<u64> {
        let (taken, usable) = (self.taken(), u64::from(self.shape.usable_units()));
        let (free, pages) = (to_u64(self.segments.free.len()), self.pages + self.changed_pages());
        let (block, page) = (u64::from(self.shape.block_units()), u64::from(self.page_units()));
        let (mut found, mut all) = (Vec::new(), 0);
        for segment in 0..self.shape.segments {
            let live = u64::from(self.alive_units(segment));
            let may = live > 0 && !taken.contains(&segment) && !self.unreadable.contains(&segment);
            if !may || self.segments.packed.contains(&segment) {
                continue;
            }
            let moved = all + live;
            let changes = (moved / block.min(page)).min(pages);
            let fits = moved.div_ceil(usable) + self.checkpoint_segments(changes) <= free;
            if !fits || (all > 0 && moved > most) {
                break;
            }
            all = moved;
            found.push(segment);
        }
        found
    }
}
