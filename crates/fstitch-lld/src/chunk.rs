//! Chunks: what is written to the log in one piece, and how it is told from everything else that may lie there.
//!
//! ```text
//!    0  magic "LDCH"    4  version        6  zero         8  number          16  epoch        20  link
//!   24  stable         32  next segment  40  descriptors  44  record bytes   48  data blocks  52  summary blocks  56 zero  60  sum
//!   64  descriptors: kind (1 byte), 3 zero, length in blocks of the device (4), owner (8), sum (4), 4 zero
//!    …  records, zeros to the end of the block; data, in the order of their descriptors
//! ```

use fstitch_core::Le;
use fstitch_core::num::{to_u64, to_usize};

use crate::record::Record;

const MAGIC: u32 = u32::from_le_bytes(*b"LDCH");
const VERSION: u16 = 1;
const HEAD: usize = 64;
const DESCRIPTOR: usize = 24;
const SUM_AT: usize = 60;

/// What data are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataKind {
    /// Contents of a block, which a record refers to.
    Block,
    /// A page of a tree.
    Page,
    /// Contents of a block that take fewer blocks of the device than a block of the disk has.
    Packed,
    /// Contents of a block in a unit that has not ended: nothing refers to them but that unit.
    Spilled,
}

/// Data of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) kind: DataKind,
    /// The block's number, or the tree's.
    pub(crate) owner: u64,
    /// Blocks of the device.
    pub(crate) len: u32,
    /// CRC-32C of its bytes.
    pub(crate) sum: u32,
}

/// What leads from one chunk to the next, and what a chunk says of all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Chunks of the log are numbered from 1. One with number 0 is no part of it: what the cleaner has written.
    pub(crate) number: u64,
    /// How often the disk has been opened for writing.
    pub(crate) epoch: u32,
    /// The sum of the chunk before.
    pub(crate) link: u32,
    /// Up to this chunk everything was stable when this one was put together.
    pub(crate) stable: u64,
    /// The segment after this one.
    pub(crate) next_segment: u64,
}

/// A chunk's summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) chain: Chain,
    pub(crate) data: Vec<Descriptor>,
    /// Records as bytes, of which all can be taken.
    pub(crate) records: Vec<u8>,
    /// CRC-32C of the summary.
    pub(crate) sum: u32,
    /// Blocks of the device that it takes.
    pub(crate) blocks: u32,
}

/// What summaries of one disk have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// Bytes of a block of the device.
    pub(crate) unit: usize,
    /// With what sums begin: chunks of another disk that was on the medium before are no chunks.
    pub(crate) seed: u32,
}

/// Blocks of so many bytes that a summary takes.
pub(crate) fn summary_blocks(descriptors: usize, record_bytes: usize, block_size: usize) -> usize {
    (HEAD + descriptors * DESCRIPTOR + record_bytes).div_ceil(block_size)
}

impl Summary {
    /// Writes the summary of a chunk into at least so many blocks. Returns it, and its sum.
    pub(crate) fn encode(
        form: Form,
        chain: &Chain,
        data: &[Descriptor],
        records: &[u8],
        at_least: usize,
    ) -> (Vec<u8>, u32) {
        let small = |number: usize| u32::try_from(number).expect("a chunk is within a segment");
        let blocks = summary_blocks(data.len(), records.len(), form.unit).max(at_least);
        let mut bytes = vec![0; blocks * form.unit];
        Le::put_u32(&mut bytes, 0, MAGIC);
        Le::put_u16(&mut bytes, 4, VERSION);
        Le::put_u64(&mut bytes, 8, chain.number);
        Le::put_u32(&mut bytes, 16, chain.epoch);
        Le::put_u32(&mut bytes, 20, chain.link);
        Le::put_u64(&mut bytes, 24, chain.stable);
        Le::put_u64(&mut bytes, 32, chain.next_segment);
        Le::put_u32(&mut bytes, 40, small(data.len()));
        Le::put_u32(&mut bytes, 44, small(records.len()));
        Le::put_u32(&mut bytes, 48, data.iter().map(|data| data.len).sum());
        Le::put_u32(&mut bytes, 52, small(blocks));
        let (descriptors, rest) = bytes[HEAD..].split_at_mut(data.len() * DESCRIPTOR);
        for (bytes, data) in descriptors.chunks_mut(DESCRIPTOR).zip(data) {
            bytes[0] = match data.kind {
                DataKind::Block => 1,
                DataKind::Page => 2,
                DataKind::Spilled => 3,
                DataKind::Packed => 4,
            };
            Le::put_u32(bytes, 4, data.len);
            Le::put_u64(bytes, 8, data.owner);
            Le::put_u32(bytes, 16, data.sum);
        }
        rest[..records.len()].copy_from_slice(records);
        let sum = crc32c::crc32c_append(form.seed, &bytes);
        Le::put_u32(&mut bytes, SUM_AT, sum);
        (bytes, sum)
    }

    /// How many blocks the summary takes that begins with this one, if it looks like one.
    pub(crate) fn probe(first: &[u8], segment_blocks: u32) -> Option<u32> {
        let (count, records) = (Le::u32(first, 40), Le::u32(first, 44));
        let blocks = Le::u32(first, 52);
        let needed = to_u64(HEAD) + u64::from(count) * to_u64(DESCRIPTOR) + u64::from(records);
        let fits = needed.div_ceil(to_u64(first.len())) <= u64::from(blocks) && blocks <= segment_blocks;
        (Le::u32(first, 0) == MAGIC && Le::u16(first, 4) == VERSION && fits).then_some(blocks)
    }

    /// Reads a summary from its blocks, of which there are as many as [`Summary::probe`] says. `None` if it is none, or damaged.
    pub(crate) fn decode(form: Form, bytes: &[u8]) -> Option<Self> {
        let blocks = Self::probe(&bytes[..form.unit], u32::MAX)?;
        let sum = Le::u32(bytes, SUM_AT);
        if to_usize(blocks) * form.unit != bytes.len() || sum_of(form.seed, bytes) != sum {
            return None;
        }
        let (count, records) = (to_usize(Le::u32(bytes, 40)), to_usize(Le::u32(bytes, 44)));
        let (descriptors, rest) = bytes[HEAD..].split_at(count * DESCRIPTOR);
        let data: Vec<Descriptor> = descriptors.chunks(DESCRIPTOR).map(descriptor).collect::<Option<_>>()?;
        let total = data.iter().try_fold(0_u32, |total, data| total.checked_add(data.len))?;
        if total != Le::u32(bytes, 48) || data.iter().any(|data| data.len == 0) {
            return None;
        }
        let chain = Chain {
            number: Le::u64(bytes, 8),
            epoch: Le::u32(bytes, 16),
            link: Le::u32(bytes, 20),
            stable: Le::u64(bytes, 24),
            next_segment: Le::u64(bytes, 32),
        };
        let records = rest[..records].to_vec();
        are_records(&records, data.len()).then_some(Self { chain, data, records, sum, blocks })
    }

    /// Blocks of the device that all data take.
    pub(crate) fn data_blocks(&self) -> u32 {
        self.data.iter().map(|data| data.len).sum()
    }

    /// The records, in their order.
    pub(crate) fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let mut rest = &self.records[..];
        std::iter::from_fn(move || Record::take(&mut rest))
    }
}

/// The sum that a summary should have.
fn sum_of(seed: u32, bytes: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(seed, &bytes[..SUM_AT]);
    let sum = crc32c::crc32c_append(sum, &[0; 4]);
    crc32c::crc32c_append(sum, &bytes[SUM_AT + 4..])
}

fn descriptor(bytes: &[u8]) -> Option<Descriptor> {
    let kind = match bytes[0] {
        1 => DataKind::Block,
        2 => DataKind::Page,
        3 => DataKind::Spilled,
        4 => DataKind::Packed,
        _ => return None,
    };
    Some(Descriptor { kind, owner: Le::u64(bytes, 8), len: Le::u32(bytes, 4), sum: Le::u32(bytes, 16) })
}

/// Whether bytes are records to their end, none of which refers to data that are not there.
fn are_records(mut bytes: &[u8], data: usize) -> bool {
    while !bytes.is_empty() {
        let refers = match Record::take(&mut bytes) {
            None => return false,
            Some(Record::Write { data, .. }) => Some(to_usize(data)),
            Some(_) => None,
        };
        if refers.is_some_and(|refers| refers >= data) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHAIN: Chain = Chain { number: 7, epoch: 3, link: 0x1234_5678, stable: 5, next_segment: 9 };
    const BLOCK: usize = 512;
    const FORM: Form = Form { unit: BLOCK, seed: 99 };

    fn example(writes: u32) -> (Vec<u8>, u32, Vec<Descriptor>, Vec<u8>) {
        let data: Vec<Descriptor> = (0..writes)
            .map(|n| Descriptor { kind: DataKind::Block, owner: u64::from(n) + 100, len: 8, sum: n ^ 0xaaaa })
            .collect();
        let mut records = Vec::new();
        for n in 0..writes {
            Record::Write { block: u64::from(n) + 100, data: n }.put(&mut records);
        }
        let (bytes, sum) = Summary::encode(FORM, &CHAIN, &data, &records, 0);
        (bytes, sum, data, records)
    }

    #[test]
    fn a_summary_is_read_as_it_was_written() {
        for writes in [0, 1, 10, 100] {
            let (bytes, sum, data, records) = example(writes);
            let blocks = Summary::probe(&bytes[..BLOCK], 1000).unwrap();
            assert_eq!(to_usize(blocks) * BLOCK, bytes.len());
            let read = Summary::decode(FORM, &bytes).unwrap();
            assert_eq!((read.chain, &read.data, &read.records, read.sum), (CHAIN, &data, &records, sum));
            assert_eq!(read.data_blocks(), 8 * writes);
            assert_eq!(read.records().count(), to_usize(writes));
        }
    }

    #[test]
    fn no_damage_passes() {
        let (bytes, ..) = example(20);
        for at in 0..bytes.len() {
            for bit in [0, 7] {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                let blocks = Summary::probe(&damaged[..BLOCK], 1000);
                let is_whole = blocks.is_some_and(|blocks| to_usize(blocks) * BLOCK == damaged.len());
                assert!(!is_whole || Summary::decode(FORM, &damaged).is_none(), "byte {at}");
            }
        }
        // Half of it is an older one.
        let mut torn = bytes.clone();
        torn[BLOCK..].fill(0);
        assert!(Summary::decode(FORM, &torn).is_none());
        // It is another disk's.
        assert!(Summary::decode(Form { seed: 98, ..FORM }, &bytes).is_none());
    }

    #[test]
    fn a_record_of_data_that_are_not_there_is_refused() {
        let mut records = Vec::new();
        Record::Write { block: 1, data: 0 }.put(&mut records);
        let (bytes, _) = Summary::encode(FORM, &CHAIN, &[], &records, 0);
        assert!(Summary::decode(FORM, &bytes).is_none());
        let (bytes, _) = Summary::encode(FORM, &CHAIN, &[], &[77], 0);
        assert!(Summary::decode(FORM, &bytes).is_none(), "no record");
    }
}
