//! A file's bytes with holes: blocks that were never written have no storage and read as zeros.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::SeekFrom;
use fstitch_core::num::{to_u64, to_usize};

/// Sparse contents in blocks of one size. It knows nothing of the file's length: bytes behind it are zero
/// because whoever shortens a file calls [`SparseBytes::truncate`].
#[derive(Clone, Debug)]
pub(super) struct SparseBytes {
    block_size: usize,
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// Blocks with storage that have no contents.
    unwritten: BTreeSet<u64>,
}

/// The part of one block that a byte range touches.
struct Piece {
    block: u64,
    start: usize,
    len: usize,
}

impl SparseBytes {
    pub(super) fn new(block_size: u32) -> Self {
        let block_size = to_usize(block_size);
        Self { block_size, blocks: BTreeMap::new(), unwritten: BTreeSet::new() }
    }

    fn unit(&self) -> u64 {
        wide(self.block_size)
    }

    /// Number of blocks with storage.
    pub(super) fn allocated(&self) -> u64 {
        wide(self.blocks.len() + self.unwritten.len())
    }

    /// Number of blocks that writing `len` bytes at `offset` would add.
    pub(super) fn missing(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / self.unit(), (offset + len - 1) / self.unit());
        let there = self.blocks.range(first..=last).count() + self.unwritten.range(first..=last).count();
        last - first + 1 - wide(there)
    }

    fn piece(&self, offset: u64, len: usize) -> Piece {
        let start = usize::try_from(offset % self.unit()).expect("below a block's size");
        Piece { block: offset / self.unit(), start, len: len.min(self.block_size - start) }
    }

    pub(super) fn read(&self, mut offset: u64, mut buf: &mut [u8]) {
        while !buf.is_empty() {
            let piece = self.piece(offset, buf.len());
            let (now, rest) = buf.split_at_mut(piece.len);
            match self.blocks.get(&piece.block) {
                Some(bytes) => now.copy_from_slice(&bytes[piece.start..piece.start + piece.len]),
                None => now.fill(0),
            }
            offset += wide(piece.len);
            buf = rest;
        }
    }

    fn block_mut(&mut self, block: u64) -> &mut [u8] {
        let block_size = self.block_size;
        self.unwritten.remove(&block);
        self.blocks.entry(block).or_insert_with(|| vec![0; block_size].into_boxed_slice())
    }

    pub(super) fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let piece = self.piece(offset, data.len());
            let (now, rest) = data.split_at(piece.len);
            self.block_mut(piece.block)[piece.start..piece.start + piece.len].copy_from_slice(now);
            offset += wide(piece.len);
            data = rest;
        }
    }

    /// Gives storage to every block that the range touches.
    pub(super) fn allocate(&mut self, offset: u64, len: u64, written: bool) {
        let (first, end) = (offset / self.unit(), (offset + len).div_ceil(self.unit()));
        for block in first..end {
            if self.blocks.contains_key(&block) {
                continue;
            }
            if written {
                self.block_mut(block);
            } else {
                self.unwritten.insert(block);
            }
        }
    }

    /// Zeroes the range; blocks that lie in it completely lose their contents.
    pub(super) fn empty(&mut self, offset: u64, end: u64) {
        for block in self.whole_blocks(offset, end) {
            if self.blocks.remove(&block).is_some() {
                self.unwritten.insert(block);
            }
        }
        self.zero_edges(offset, end);
    }

    /// Blocks with storage that lie in the range completely.
    fn whole_blocks(&self, offset: u64, end: u64) -> Vec<u64> {
        let whole = offset.div_ceil(self.unit())..end / self.unit();
        if whole.is_empty() {
            return Vec::new();
        }
        self.blocks
            .range(whole.clone())
            .map(|(block, _)| *block)
            .chain(self.unwritten.range(whole).copied())
            .collect()
    }

    /// Zeroes the range; blocks that lie in it completely lose their storage.
    pub(super) fn punch(&mut self, offset: u64, end: u64) {
        for block in self.whole_blocks(offset, end) {
            self.blocks.remove(&block);
            self.unwritten.remove(&block);
        }
        self.zero_edges(offset, end);
    }

    /// Zeroes what the range covers of its first and last block, where they have storage.
    fn zero_edges(&mut self, offset: u64, end: u64) {
        for at in [offset, (end / self.unit() * self.unit()).max(offset)] {
            let left = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX);
            let piece = self.piece(at, left);
            if let Some(bytes) = self.blocks.get_mut(&piece.block) {
                bytes[piece.start..piece.start + piece.len].fill(0);
            }
        }
    }

    /// Takes whole blocks out: those behind come in their place.
    pub(super) fn take_out(&mut self, offset: u64, len: u64) {
        self.punch(offset, offset + len);
        let (from, by) = ((offset + len) / self.unit(), len / self.unit());
        self.renumber(from, |block| block - by);
    }

    /// Puts a hole of whole blocks in: those from there on move behind it.
    pub(super) fn put_in(&mut self, offset: u64, len: u64) {
        let (from, by) = (offset / self.unit(), len / self.unit());
        self.renumber(from, |block| block + by);
    }

    /// Gives the blocks from `from` on other places.
    fn renumber(&mut self, from: u64, place: impl Fn(u64) -> u64) {
        let moved = self.blocks.split_off(&from);
        self.blocks.extend(moved.into_iter().map(|(block, bytes)| (place(block), bytes)));
        let moved = self.unwritten.split_off(&from);
        self.unwritten.extend(moved.into_iter().map(place));
    }

    /// Forgets everything from `size` on.
    pub(super) fn truncate(&mut self, size: u64) {
        self.blocks.split_off(&size.div_ceil(self.unit()));
        self.unwritten.split_off(&size.div_ceil(self.unit()));
        if let Some(bytes) = self.blocks.get_mut(&(size / self.unit())) {
            let start = usize::try_from(size % wide(self.block_size)).expect("below a block's size");
            bytes[start..].fill(0);
        }
    }

    /// The first byte of data or of a hole at or after `offset` in a file of `size` bytes; the end of the file
    /// counts as a hole.
    pub(super) fn seek(&self, offset: u64, size: u64, whence: SeekFrom) -> Option<u64> {
        let unit = self.unit();
        let from = offset / unit;
        match whence {
            SeekFrom::Data => {
                let (block, _) = self.blocks.range(from..).next()?;
                Some((block * unit).max(offset)).filter(|at| *at < size)
            }
            SeekFrom::Hole => {
                let run = self.blocks.range(from..).zip(from..).take_while(|((block, _), at)| *block == at);
                let hole = from + wide(run.count());
                Some((hole * unit).max(offset).min(size))
            }
        }
    }
}

/// A length in memory as a length in a file.
pub(super) fn wide(len: usize) -> u64 {
    to_u64(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled() -> SparseBytes {
        let mut bytes = SparseBytes::new(4);
        bytes.write(0, &[1; 16]);
        bytes
    }

    fn all(bytes: &SparseBytes, len: usize) -> Vec<u8> {
        let mut buf = vec![9; len];
        bytes.read(0, &mut buf);
        buf
    }

    #[test]
    fn punching_frees_whole_blocks_and_zeroes_the_rest() {
        let mut bytes = filled();
        bytes.punch(2, 14);
        assert_eq!(all(&bytes, 16), [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(bytes.allocated(), 2);
    }

    #[test]
    fn punching_inside_one_block_keeps_it() {
        let mut bytes = filled();
        bytes.punch(5, 7);
        assert_eq!(all(&bytes, 9), [1, 1, 1, 1, 1, 0, 0, 1, 1]);
        assert_eq!(bytes.allocated(), 4);
    }

    #[test]
    fn what_is_behind_a_range_moves_with_it() {
        let mut bytes = SparseBytes::new(4);
        (0..4_u8).for_each(|block| bytes.write(4 * u64::from(block), &[block + 1; 4]));
        bytes.allocate(16, 4, false);
        bytes.put_in(4, 8);
        assert_eq!(all(&bytes, 17)[..], [&[1; 4][..], &[0; 8], &[2; 4], &[3]].concat());
        bytes.take_out(8, 8);
        assert_eq!(all(&bytes, 17)[..], [&[1; 4][..], &[0; 4], &[3; 4], &[4; 4], &[0]].concat());
        assert_eq!((bytes.allocated(), bytes.missing(16, 4)), (4, 0));
    }

    #[test]
    fn truncation_leaves_zeros_behind() {
        let mut bytes = filled();
        bytes.truncate(5);
        assert_eq!(bytes.allocated(), 2);
        assert_eq!(all(&bytes, 8), [1, 1, 1, 1, 1, 0, 0, 0]);
        bytes.truncate(0);
        assert_eq!(bytes.allocated(), 0);
    }

    #[test]
    fn seeking_finds_data_and_holes() {
        let mut bytes = SparseBytes::new(4);
        bytes.write(8, &[1; 4]);
        assert_eq!(bytes.seek(0, 20, SeekFrom::Data), Some(8));
        assert_eq!(bytes.seek(9, 20, SeekFrom::Data), Some(9));
        assert_eq!(bytes.seek(12, 20, SeekFrom::Data), None);
        assert_eq!(bytes.seek(9, 20, SeekFrom::Hole), Some(12));
        assert_eq!(bytes.seek(9, 11, SeekFrom::Hole), Some(11));
        assert_eq!(bytes.missing(6, 8), 2);
    }
}
