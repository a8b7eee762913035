//! Bytes on the blocks of a volume.
//!
//! A part of a block is read, changed and written again. Nobody else writes to a volume of the disk meanwhile: who changes a part has the
//! lock alone, who writes whole blocks shares it.
#![forbid(unsafe_code)]

use std::sync::{PoisonError, RwLock};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_lld::{Aru, BlockId, Disk, ListId, Visibility};

use crate::failure::{Failure, Result};
use crate::handles::Opened;

/// The blocks of a list by their positions, as everybody sees them or as a unit does.
pub(crate) trait Positions {
    const IS_UNIT: bool;
    fn block_at(&self, list: ListId, position: u64) -> fstitch_core::Result<Option<BlockId>>;
    fn read_at(&self, list: ListId, position: u64, into: &mut [u8]) -> fstitch_core::Result<()>;
    fn write_at(&self, list: ListId, position: u64, contents: &[u8]) -> fstitch_core::Result<()>;
    fn delete_range(&self, list: ListId, from: u64, last: u64) -> fstitch_core::Result<u64>;
}

macro_rules! positions {
    ($($of:ty, $is_unit:literal;)*) => {$(
        impl Positions for $of {
            const IS_UNIT: bool = $is_unit;

            fn block_at(&self, list: ListId, position: u64) -> fstitch_core::Result<Option<BlockId>> {
                <$of>::block_at(self, list, position)
            }

            fn read_at(&self, list: ListId, position: u64, into: &mut [u8]) -> fstitch_core::Result<()> {
                <$of>::read_at(self, list, position, into)
            }

            fn write_at(&self, list: ListId, position: u64, contents: &[u8]) -> fstitch_core::Result<()> {
                <$of>::write_at(self, list, position, contents)
            }

            fn delete_range(&self, list: ListId, from: u64, last: u64) -> fstitch_core::Result<u64> {
                <$of>::delete_range(self, list, from, last)
            }
        }
    )*};
}

positions! {
    Disk, false;
    Aru<'_>, true;
}

/// The bytes of a volume.
pub(crate) struct Bytes<'a, P> {
    blocks: &'a P,
    list: ListId,
    size: u64,
    unit: u64,
    visibility: Visibility,
    parts: &'a RwLock<()>,
}

/// What a request has of one block.
struct Piece {
    position: u64,
    start: usize,
    len: usize,
}

impl<'a, P: Positions> Bytes<'a, P> {
    /// Those of a volume of this size.
    pub(crate) fn new(on: &'a Opened, blocks: &'a P, list: ListId, size: u64) -> Self {
        let unit = to_u64(on.disk.block_size());
        Self { blocks, list, size, unit, visibility: on.visibility, parts: &on.parts }
    }

    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<P> {
        let (unit, end) = (self.unit, offset + len);
        let mut at = offset;
        std::iter::from_fn(move || {
            let stop = (at - at % unit + unit).min(end);
            let piece = Piece { position: at / unit, start: to_usize(at % unit), len: to_usize(stop - at) };
            at = stop;
            (piece.len > 0).then_some(piece)
        })
    }

    fn is_whole(&self, piece: &Piece) -> bool {
        to_u64(piece.len) == self.unit
    }

    /// Fails if bytes are not all there.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        let end = offset.checked_add(len);
        if end.is_some_and(|end| end <= self.size) {
            return Ok(());
        }
        Err(Failure::invalid(format!("beyond the volume's end at {}", self.size)))
    }

    /// Reads what there is of so many bytes; returns how many.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let len = self.size.saturating_sub(offset).min(to_u64(into.len()));
        let mut rest = &mut into[..to_usize(len)];
        let mut block = Vec::new();
        for piece in self.pieces(offset.min(self.size), len) {
            let (place, behind) = rest.split_at_mut(piece.len);
            rest = behind;
            if self.is_whole(&piece) {
                self.blocks.read_at(self.list, piece.position, place)?;
            } else {
                self.read_block(piece.position, &mut block)?;
                place.copy_from_slice(&block[piece.start..piece.start + piece.len]);
            }
        }
        Ok(to_usize(len))
    }

    fn read_block(&self, position: u64, block: &mut Vec<u8>) -> Result<()> {
        block.resize(to_usize(self.unit), 0);
        Ok(self.blocks.read_at(self.list, position, block)?)
    }

    /// Writes bytes, all or none of which are in the volume.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let len = to_u64(bytes.len());
        self.check(offset, len)?;
        self.changing(offset, len, |bytes_at| {
            let (mut block, mut rest) = (Vec::new(), bytes);
            for piece in bytes_at {
                let (new, behind) = rest.split_at(piece.len);
                rest = behind;
                if self.is_whole(&piece) {
                    self.blocks.write_at(self.list, piece.position, new)?;
                } else {
                    self.change(&piece, &mut block, |part| part.copy_from_slice(new))?;
                }
            }
            Ok(())
        })
    }

    /// Gives the blocks back that bytes take; all of them read as zeros then.
    pub(crate) fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.check(offset, len)?;
        let end = offset + len;
        let (first, behind) = (offset.div_ceil(self.unit), end / self.unit);
        let edges = if first > behind {
            [(offset, len), (end, 0)]
        } else {
            let (first, behind) = (first * self.unit, behind * self.unit);
            [(offset, first - offset), (behind, end - behind)]
        };
        self.changing(offset, len, |_| {
            let mut block = Vec::new();
            for piece in edges.into_iter().flat_map(|(offset, len)| self.pieces(offset, len)) {
                if self.blocks.block_at(self.list, piece.position)?.is_some() {
                    self.change(&piece, &mut block, |part| part.fill(0))?;
                }
            }
            if first < behind {
                self.blocks.delete_range(self.list, first, behind - 1)?;
            }
            Ok(())
        })
    }

    fn change(&self, piece: &Piece, block: &mut Vec<u8>, change: impl FnOnce(&mut [u8])) -> Result<()> {
        self.read_block(piece.position, block)?;
        change(&mut block[piece.start..piece.start + piece.len]);
        Ok(self.blocks.write_at(self.list, piece.position, block)?)
    }

    /// Changes bytes, with the lock that this needs.
    fn changing(
        &self,
        offset: u64,
        len: u64,
        work: impl FnOnce(&mut dyn Iterator<Item = Piece>) -> Result<()>,
    ) -> Result<()> {
        let pieces = &mut self.pieces(offset, len);
        if offset.is_multiple_of(self.unit) && len.is_multiple_of(self.unit) {
            let _shared = self.parts.read().unwrap_or_else(PoisonError::into_inner);
            return work(pieces);
        }
        self.may_change_parts()?;
        let _alone = self.parts.write().unwrap_or_else(PoisonError::into_inner);
        work(pieces)
    }

    /// Who changes a part of a block must read what he will write, and not what somebody else may still take back.
    fn may_change_parts(&self) -> Result<()> {
        match (self.visibility, P::IS_UNIT) {
            (Visibility::Own, _) | (Visibility::Committed, false) => Ok(()),
            _ => Err(Failure::new(
                libc::EOPNOTSUPP,
                "a part of a block cannot be changed where readers do not see what they would write (LLD_SEE_OWN does)",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fstitch_core::MemDevice;
    use fstitch_lld::{FormatOptions, Options};

    use super::*;

    const SIZE: u64 = 8 * 512;

    fn opened(visibility: Visibility) -> (Arc<Opened>, ListId) {
        let device = Arc::new(MemDevice::new(512, 65_536));
        let format = FormatOptions { block_size: 512, segment_size: 64 << 10, ..FormatOptions::default() };
        Disk::format(device.clone(), &format).unwrap();
        let options = Options { visibility, ..Options::default() };
        let disk = Disk::open(device, &options).unwrap().0;
        let list = disk.new_list(true).unwrap();
        (Opened::new(disk, visibility, false), list)
    }

    /// Every stretch of a few blocks, written and trimmed, against an array.
    fn agrees<P: Positions>(bytes: &Bytes<'_, P>) {
        bytes.trim(0, SIZE).unwrap();
        let mut model = vec![0; to_usize(SIZE)];
        let places = [0, 1, 511, 512, 513, 1024, 1500, 2048, 4095, 4096];
        let mut byte = 0_u8;
        for (from, to) in places.iter().flat_map(|from| places.iter().map(move |to| (*from, *to))) {
            if from > to {
                continue;
            }
            for trims in [false, true] {
                byte = byte % 250 + 1;
                let stretch = from..to;
                if trims {
                    bytes.trim(to_u64(from), to_u64(to - from)).unwrap();
                } else {
                    bytes.write(to_u64(from), &vec![byte; to - from]).unwrap();
                }
                model[stretch].fill(if trims { 0 } else { byte });
                let mut all = vec![9; model.len() + 7];
                assert_eq!(bytes.read(0, &mut all).unwrap(), model.len());
                assert!(all[..model.len()] == model, "{from}..{to} {trims}");
                let mut some = vec![9; to - from];
                assert_eq!(bytes.read(to_u64(from), &mut some).unwrap(), to - from);
                assert!(some == model[from..to]);
            }
        }
        bytes.write(0, &vec![7; to_usize(SIZE)]).unwrap();
    }

    #[test]
    fn it_is_an_array_of_bytes() {
        let (on, list) = opened(Visibility::Own);
        agrees(&Bytes::new(&on, &*on.disk, list, SIZE));
        let unit = on.disk.begin();
        agrees(&Bytes::new(&on, &unit, list, SIZE));
        let outside = Bytes::new(&on, &*on.disk, list, SIZE);
        outside.trim(0, SIZE).unwrap();
        assert_eq!(on.disk.list_len(list).unwrap(), 0);
        // What is trimmed and was never written takes nothing either.
        outside.trim(100, 1000).unwrap();
        assert_eq!(on.disk.list_len(list).unwrap(), 0);
    }

    #[test]
    fn beyond_the_end_nothing_is_written_and_nothing_read() {
        let (on, list) = opened(Visibility::Own);
        let bytes = Bytes::new(&on, &*on.disk, list, SIZE);
        for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX, 2)] {
            assert!(
                bytes.write(offset, &vec![1; to_usize(len)]).is_err() && bytes.trim(offset, len).is_err()
            );
            let mut byte = [9, 9];
            assert_eq!(bytes.read(offset.saturating_add(1), &mut byte).unwrap(), 0);
        }
        assert_eq!(on.disk.list_len(list).unwrap(), 0);
        bytes.write(SIZE, &[]).unwrap();
    }

    /// What a unit has not ended is not written by somebody else beside his own bytes.
    #[test]
    fn parts_are_refused_where_the_whole_is_somebody_elses() {
        for (visibility, outside, inside) in [
            (Visibility::Own, true, true),
            (Visibility::Committed, true, false),
            (Visibility::Latest, false, false),
        ] {
            let (on, list) = opened(visibility);
            let unit = on.disk.begin();
            unit.write_at(list, 0, &[1; 512]).unwrap();
            let bytes = Bytes::new(&on, &*on.disk, list, SIZE);
            assert_eq!(bytes.write(0, &[2]).is_ok(), outside, "{visibility:?}");
            assert_eq!(Bytes::new(&on, &unit, list, SIZE).trim(0, 1).is_ok(), inside, "{visibility:?}");
            bytes.write(512, &[2; 512]).unwrap();
            Bytes::new(&on, &unit, list, SIZE).write(1024, &[2; 512]).unwrap();
        }
    }

    /// Blocks that know who may be at them meanwhile.
    struct Watched<'a>(&'a Opened);

    impl Watched<'_> {
        fn is_alone(&self) -> bool {
            self.0.parts.try_read().is_err()
        }
    }

    impl Positions for Watched<'_> {
        const IS_UNIT: bool = false;

        fn block_at(&self, list: ListId, position: u64) -> fstitch_core::Result<Option<BlockId>> {
            assert!(self.is_alone());
            self.0.disk.block_at(list, position)
        }

        fn read_at(&self, list: ListId, position: u64, into: &mut [u8]) -> fstitch_core::Result<()> {
            assert!(self.is_alone(), "what is read here is written again");
            self.0.disk.read_at(list, position, into)
        }

        fn write_at(&self, list: ListId, position: u64, contents: &[u8]) -> fstitch_core::Result<()> {
            assert!(self.0.parts.try_write().is_err(), "somebody may change a part of this block");
            assert_eq!(self.is_alone(), position < 2);
            self.0.disk.write_at(list, position, contents)
        }

        fn delete_range(&self, list: ListId, from: u64, last: u64) -> fstitch_core::Result<u64> {
            assert!(self.0.parts.try_write().is_err(), "somebody may change a part of this block");
            self.0.disk.delete_range(list, from, last)
        }
    }

    #[test]
    fn nobody_else_writes_while_a_part_is_changed() {
        let (on, list) = opened(Visibility::Own);
        let watched = Watched(&on);
        let bytes = Bytes::new(&on, &watched, list, SIZE);
        bytes.write(500, &[1; 524]).unwrap();
        bytes.write(0, &[2; 100]).unwrap();
        bytes.write(1024, &[3; 1024]).unwrap();
        bytes.trim(10, 600).unwrap();
        bytes.trim(1024, 512).unwrap();
    }

    #[test]
    fn parts_of_one_block_are_not_lost() {
        let (on, list) = opened(Visibility::Own);
        std::thread::scope(|scope| {
            for at in 0..4_u8 {
                let bytes = Bytes::new(&on, &*on.disk, list, SIZE);
                scope.spawn(move || {
                    for round in 1..=200 {
                        let place = u64::from(at) * 300;
                        bytes.write(place, &[round; 300]).unwrap();
                        let mut read = [0; 300];
                        bytes.read(place, &mut read).unwrap();
                        assert!(read == [round; 300], "{at}, round {round}");
                    }
                });
            }
        });
    }
}
