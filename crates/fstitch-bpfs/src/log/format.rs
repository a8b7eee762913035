//! What the log's blocks hold: two headers, and groups of lines.

use std::collections::BTreeMap;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Error, Le, Result, Structure};

use crate::pm::{BLOCK, BLOCK_BYTES, LINE};

/// Bytes of a line.
pub(crate) const LINE_LEN: usize = 64;
/// Lines of a block.
pub(crate) const LINES_IN_BLOCK: u64 = BLOCK_BYTES / LINE;
/// Blocks before those that groups are in: the headers.
pub(crate) const HEADERS: u64 = 2;
/// The smallest log, in blocks with its headers.
pub(crate) const LOG_MIN: u64 = 16;
/// The largest one.
pub(crate) const LOG_MAX: u64 = 1 << 20;
/// What a mount that nobody asked otherwise takes at most: 32 MiB.
const LOG_USUAL: u64 = 8192;

const HEADER_MAGIC: &[u8; 8] = b"FSTCHBPL";
const HEADER_SUM: usize = 36;
const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"BPLG");
/// Bytes before the runs of a group.
const GROUP: usize = 40;
const GROUP_SUM: usize = 32;
/// Bytes before the lines of a run.
const RUN: usize = 12;

/// Lines by number, as they are to be.
pub(crate) type Lines = BTreeMap<u64, [u8; LINE_LEN]>;

/// The blocks of a log that suit a medium of so many.
pub(crate) fn usual_log(blocks: u64) -> u64 {
    (blocks / 16).clamp(LOG_MIN, LOG_USUAL)
}

/// Where a volume's log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Its first block, which is the first one behind the volume's.
    pub(crate) first: u64,
    /// Blocks that groups are in.
    pub(crate) ring: u64,
}

impl Shape {
    /// The place of a header.
    pub(crate) fn header(&self, number: u64) -> u64 {
        self.first + number % HEADERS
    }

    /// The place of the block that is number `count` of all that were ever written.
    pub(crate) fn block(&self, count: u64) -> u64 {
        self.first + HEADERS + count % self.ring
    }

    /// Blocks of a group, at most: four of them and half of the ring must find room in it.
    pub(crate) fn group_blocks(&self) -> u64 {
        (self.ring / 8).clamp(2, 256)
    }

    /// Lines that a group has room for, however they lie.
    pub(crate) fn group_lines(&self) -> usize {
        (to_usize(self.group_blocks()) * BLOCK - GROUP) / (RUN + LINE_LEN)
    }
}

fn sum(parts: [&[u8]; 2]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(parts[0]), parts[1])
}

/// Blocks that so many lines need at most.
pub(crate) fn blocks_for(lines: usize) -> u64 {
    to_u64((GROUP + lines * (RUN + LINE_LEN)).div_ceil(BLOCK))
}

/// Where replay begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counts up: the newer of two counts.
    pub(crate) number: u64,
    /// Counts openings: groups of others are none.
    pub(crate) epoch: u64,
    /// The block, counted from the log's making, of the first group that is not home.
    pub(crate) tail: u64,
    /// Somebody has the volume open, or did not close it.
    pub(crate) is_open: bool,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(HEADER_MAGIC);
        Le::put_u64(&mut block, 8, self.number);
        Le::put_u64(&mut block, 16, self.epoch);
        Le::put_u64(&mut block, 24, self.tail);
        Le::put_u32(&mut block, 32, self.is_open.into());
        let sum = sum([&block[..HEADER_SUM], &[]]);
        Le::put_u32(&mut block, HEADER_SUM, sum);
        block
    }

    /// `None` for what is no header.
    pub(crate) fn decode(block: &[u8]) -> Option<Self> {
        let is_one =
            block.starts_with(HEADER_MAGIC) && sum([&block[..HEADER_SUM], &[]]) == Le::u32(block, HEADER_SUM);
        is_one.then(|| Self {
            number: Le::u64(block, 8),
            epoch: Le::u64(block, 16),
            tail: Le::u64(block, 24),
            is_open: Le::u32(block, 32) != 0,
        })
    }
}

/// The blocks of a group of lines, which begins at block `start` of all that were ever written.
pub(crate) fn encode(epoch: u64, start: u64, lines: &Lines) -> Vec<u8> {
    let mut bytes = vec![0; GROUP];
    let mut runs = 0;
    let mut run: Option<(u64, usize)> = None;
    for (line, contents) in lines {
        match run {
            Some((next, at)) if next == *line => {
                let count = Le::u32(&bytes, at) + 1;
                Le::put_u32(&mut bytes, at, count);
                run = Some((line + 1, at));
            }
            _ => {
                bytes.extend_from_slice(&line.to_le_bytes());
                run = Some((line + 1, bytes.len()));
                bytes.extend_from_slice(&1_u32.to_le_bytes());
                runs += 1;
            }
        }
        bytes.extend_from_slice(contents);
    }
    let body = u32::try_from(bytes.len() - GROUP).expect("a group is small");
    let blocks = u32::try_from(bytes.len().div_ceil(BLOCK)).expect("a group is small");
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    Le::put_u32(&mut bytes, 0, GROUP_MAGIC);
    Le::put_u32(&mut bytes, 4, blocks);
    Le::put_u64(&mut bytes, 8, epoch);
    Le::put_u64(&mut bytes, 16, start);
    Le::put_u32(&mut bytes, 24, body);
    Le::put_u32(&mut bytes, 28, runs);
    let sum = sum([&bytes[..GROUP_SUM], &bytes[GROUP..GROUP + to_usize(body)]]);
    Le::put_u32(&mut bytes, GROUP_SUM, sum);
    bytes
}

/// How many blocks the group has of which this is the first one, if it may be the one that is to be there.
pub(crate) fn group_len(shape: &Shape, epoch: u64, start: u64, first: &[u8]) -> Option<u64> {
    let blocks = u64::from(Le::u32(first, 4));
    let is_one = Le::u32(first, 0) == GROUP_MAGIC
        && Le::u64(first, 8) == epoch
        && Le::u64(first, 16) == start
        && (1..=shape.group_blocks()).contains(&blocks);
    is_one.then_some(blocks)
}

/// The lines of a group, if it is whole; of a volume of so many blocks.
///
/// # Errors
/// `Corrupt` for a whole group that says what no group says.
pub(crate) fn decode(blocks: u64, bytes: &[u8]) -> Result<Option<Lines>> {
    let body = to_usize(Le::u32(bytes, 24));
    if GROUP + body > bytes.len() {
        return Ok(None);
    }
    let body = &bytes[GROUP..GROUP + body];
    if sum([&bytes[..GROUP_SUM], body]) != Le::u32(bytes, GROUP_SUM) {
        return Ok(None);
    }
    let damaged =
        || Error::corrupt(Structure::Other("log"), None, "a group of lines leads out of the volume");
    let (mut left, mut lines) = (body, Lines::new());
    for _ in 0..Le::u32(bytes, 28) {
        let run = left.split_off(..RUN).ok_or_else(damaged)?;
        let (first, count) = (Le::u64(run, 0), to_usize(Le::u32(run, 8)));
        let end = first.checked_add(to_u64(count)).filter(|end| *end <= blocks * LINES_IN_BLOCK);
        end.ok_or_else(damaged)?;
        let len = count.checked_mul(LINE_LEN).ok_or_else(damaged)?;
        let contents = left.split_off(..len).ok_or_else(damaged)?;
        for (line, contents) in (first..).zip(contents.chunks_exact(LINE_LEN)) {
            lines.insert(line, contents.try_into().expect("a line has 64 bytes"));
        }
    }
    Ok(Some(lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { first: 100, ring: 30 };

    #[test]
    fn groups_are_read_as_they_are_written() {
        let lines = Lines::from([(0, [1; 64]), (1, [2; 64]), (2, [3; 64]), (99, [4; 64]), (6399, [5; 64])]);
        let mut bytes = encode(3, 77, &lines);
        assert_eq!(group_len(&SHAPE, 3, 77, &bytes), Some(1));
        assert_eq!(group_len(&SHAPE, 2, 77, &bytes), None);
        assert_eq!(group_len(&SHAPE, 3, 107, &bytes), None, "of an earlier lap");
        assert_eq!(decode(100, &bytes).unwrap(), Some(lines));
        assert!(decode(99, &bytes).is_err(), "it is outside");
        bytes[300] ^= 1;
        assert_eq!(decode(100, &bytes).unwrap(), None);
    }

    #[test]
    fn a_group_has_room_for_its_lines_however_they_lie() {
        for ring in [14, 30, 500, 8190] {
            let shape = Shape { ring, ..SHAPE };
            let lines: Lines = (0..to_u64(shape.group_lines())).map(|line| (2 * line, [1; 64])).collect();
            let blocks = to_u64(encode(1, 0, &lines).len() / BLOCK);
            assert!(blocks <= shape.group_blocks() && blocks == blocks_for(lines.len()));
            assert!(ring / 2 + 2 * shape.group_blocks() <= ring);
        }
    }

    #[test]
    fn headers_are_read_as_they_are_written() {
        let header = Header { number: 5, epoch: 6, tail: 7, is_open: true };
        let mut block = header.encode();
        assert_eq!(Header::decode(&block), Some(header));
        block[24] ^= 1;
        assert_eq!(Header::decode(&block), None);
    }
}
