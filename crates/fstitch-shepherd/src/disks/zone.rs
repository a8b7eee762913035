//! The zone: every disk has it, and it is made like that again where it may not be.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, Result};

use super::array::Array;

/// Blocks of the zone that are copied at once.
const AT_ONCE: u64 = 256;

impl Array {
    /// Pieces of the zone in the order in which they are copied, and whether a half ends with each.
    fn pieces(&self) -> impl Iterator<Item = (Range<u64>, bool)> + use<> {
        let zone = self.layout.zone;
        [0..zone / 2, zone / 2..zone].into_iter().flat_map(|half| {
            let starts = half.clone().step_by(to_usize(AT_ONCE));
            starts.map(move |start| {
                let end = half.end.min(start + AT_ONCE);
                (start..end, end == half.end)
            })
        })
    }

    /// A piece of the zone as one disk has it. In place of a block that cannot be read, its twin in the other half; an error if that cannot
    /// either.
    fn piece_of(&self, device: &dyn BlockDevice, range: &Range<u64>) -> Result<Vec<Vec<u8>>> {
        let (first, zone) = (self.layout.first, self.layout.zone);
        if let Ok(all) = self.read_piece(device, first + range.start..first + range.end) {
            return Ok(all);
        }
        let one = |at: u64| self.read_piece(device, first + at..first + at + 1);
        let each = range.clone().map(|at| one(at).or_else(|_| one((at + zone / 2) % zone)));
        Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    fn read_piece(&self, device: &dyn BlockDevice, range: Range<u64>) -> Result<Vec<Vec<u8>>> {
        let size = to_usize(self.layout.block_size);
        let mut found: Vec<Vec<u8>> = range.clone().map(|_| vec![0; size]).collect();
        let pairs = range.zip(&mut found);
        let mut reads: Vec<BlockRead<'_>> = pairs
            .map(|(block, data)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
            .collect();
        device.read(&mut reads)?;
        Ok(found)
    }

    /// Writes the blocks of a piece that differ.
    fn write_piece(&self, right: &[Vec<u8>], to: &dyn BlockDevice, range: &Range<u64>) -> Result<()> {
        let range = self.layout.first + range.start..self.layout.first + range.end;
        let there = self.read_piece(to, range.clone()).unwrap_or_default();
        let writes: Vec<BlockWrite<'_>> = range
            .zip(right)
            .enumerate()
            .filter(|(no, (_, data))| there.get(*no) != Some(data))
            .map(|(_, (block, data))| BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data })
            .collect();
        if writes.is_empty() { Ok(()) } else { to.write(&writes) }
    }

    /// Writes the zone, which all disks have alike, to another one: the first half of it is stable before the second is begun.
    pub(super) fn copy_zone(&self, to: &Arc<dyn BlockDevice>) -> Result<()> {
        for (range, ends_a_half) in self.pieces() {
            let now = self.now();
            let sources = (0..self.disks()).filter_map(|disk| now.taking(disk));
            let mut read = sources.map(|from| self.piece_of(&**from, &range));
            let found = read.find_map(std::result::Result::ok).ok_or_else(|| self.no_zone())?;
            self.write_piece(&found, &**to, &range)?;
            if ends_a_half {
                to.flush()?;
            }
        }
        Ok(())
    }

    fn no_zone(&self) -> Error {
        let reason = std::io::Error::other("no disk of the array has maps that can be read");
        Error::io(IoOp::Read, BlockNo(self.layout.volume), reason)
    }

    /// After a crash: the zones of all disks are alike again [D5], as the first has it of which all can be read. Nobody else uses the array yet.
    pub(crate) fn make_alike(&self) -> Result<()> {
        let now = self.now();
        // Pieces of two disks would be of two moments.
        let is_readable = |disk: &usize| {
            let Some(device) = now.taking(*disk) else { return false };
            let is_all_there = self.pieces().all(|(range, _)| self.piece_of(&**device, &range).is_ok());
            if !is_all_there {
                self.put_out_if_dead(*disk);
            }
            is_all_there
        };
        let from = (0..self.disks()).find(is_readable).ok_or_else(|| self.no_zone())?;
        let source = now.taking(from).ok_or_else(|| self.no_zone())?;
        for disk in 0..self.disks() {
            let Some(device) = self.now().taking(disk).cloned() else { continue };
            let written = self.pieces().try_for_each(|(range, ends_a_half)| {
                let right = self.piece_of(&**source, &range).map_err(|error| (true, error))?;
                self.write_piece(&right, &*device, &range).map_err(|error| (false, error))?;
                if ends_a_half { device.flush().map_err(|error| (false, error)) } else { Ok(()) }
            });
            match written {
                Ok(()) => {}
                // Who has been put out is the one that all others were to be made like.
                Err((true, _)) if self.put_out(from) => return self.make_alike(),
                // Who cannot write it is put out, whatever else it can do.
                Err((false, _)) if self.put_out(disk) => {}
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }
}
