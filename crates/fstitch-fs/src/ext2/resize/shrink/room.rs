//! Free blocks before the new end.

use std::collections::BTreeMap;

use fstitch_core::{Errno, Result};

use crate::ext2::bitmap;
use crate::ext2::journal::Pass;
use crate::ext2::num::low32;

/// Runs of free blocks. What is freed while blocks are moved is not among them: nobody may write there before the batch is home.
pub(super) struct Room {
    /// Where runs begin, by their length.
    by_length: BTreeMap<u64, Vec<u64>>,
    /// Blocks in all of them.
    pub(super) free: u64,
}

impl Room {
    /// What is free before block `end`.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn before(pass: &Pass<'_, '_>, end: u64) -> Result<Self> {
        let mut room = Self { by_length: BTreeMap::new(), free: 0 };
        for group in 0..=pass.shape.group_of(end - 1) {
            let (_, _, descriptor) = pass.descriptor(group)?;
            if descriptor.free_blocks == 0 {
                continue;
            }
            let bits = pass.block_bits(group)?;
            let start = pass.shape.group_start(group);
            let len = low32((end - start).min(u64::from(pass.shape.group_blocks(group))));
            for (from, count) in bitmap::runs(&bits, false, 0, len) {
                let (mut at, until) = (start + u64::from(from), start + u64::from(from) + u64::from(count));
                // A bitmap that was never written says nothing of what other groups have there.
                for (own, own_end) in pass.own.within(at, until) {
                    room.give_back(at, own - at);
                    at = own_end;
                }
                room.give_back(at, until - at);
            }
        }
        Ok(room)
    }

    /// A run is free, or was taken and not used.
    pub(super) fn give_back(&mut self, start: u64, len: u64) {
        if len > 0 {
            self.by_length.entry(len).or_default().push(start);
            self.free += len;
        }
    }

    /// Up to `wanted` blocks that lie together: the whole from the shortest run that has them, else the longest run.
    ///
    /// # Errors
    /// `ENOSPC` if nothing is left.
    pub(super) fn take(&mut self, wanted: u64) -> Result<(u64, u64)> {
        let fitting = self.by_length.range(wanted..).next().map(|(&len, _)| len);
        let len = fitting.or_else(|| self.by_length.last_key_value().map(|(&len, _)| len));
        let len = len.ok_or(Errno::NOSPC)?;
        let starts = self.by_length.get_mut(&len).expect("just found");
        let start = starts.pop().expect("no length is kept without a run");
        if starts.is_empty() {
            self.by_length.remove(&len);
        }
        self.free -= len;
        let count = len.min(wanted);
        self.give_back(start + count, len - count);
        Ok((start, count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_run_that_fits_is_taken() {
        let mut room = Room { by_length: BTreeMap::new(), free: 0 };
        [(10, 4), (20, 8), (40, 2)].into_iter().for_each(|(start, len)| room.give_back(start, len));
        assert_eq!(room.take(3).unwrap(), (10, 3));
        assert_eq!(room.take(1).unwrap(), (13, 1));
        assert_eq!(room.take(100).unwrap(), (20, 8));
        assert_eq!(room.free, 2);
        assert_eq!(room.take(1).unwrap(), (40, 1));
        room.give_back(40, 1);
        assert_eq!(room.take(9).unwrap().1, 1);
        assert_eq!(room.take(9).unwrap().1, 1);
        assert!(room.take(1).is_err());
    }
}
