//! Records: what the committed stream did, in the order in which it was done. Recovery does it again.
//!
//! A record is a byte that says what it is and its numbers, each in as few bytes as it needs (seven bits a byte, the lowest first).

/// A block's number.
pub type BlockId = u64;
/// A list's number.
pub type ListId = u64;
/// A block's place in its list: labels ascend along it.
pub type Label = u64;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// What follows happens as a whole, with `Commit`.
    Begin,
    /// It has happened.
    Commit,
    /// The block's contents are the chunk's data of this number.
    Write { block: BlockId, data: u32 },
    /// The block's contents are where an earlier chunk has them.
    Found { block: BlockId, place: u64, len: u32, sum: u32 },
    /// A list is made.
    NewList { list: ListId, sparse: bool },
    /// A list goes, with its blocks.
    DeleteList { list: ListId },
    /// A block is made, in a list.
    Insert { block: BlockId, list: ListId, label: Label },
    /// A block goes.
    Delete { block: BlockId },
    /// The blocks of a list go whose labels are not below `from` and not above `last`.
    DeleteRange { list: ListId, from: Label, last: Label },
    /// The labels of `count` blocks, from that with the label `from` on, are `label` and those `step` behind each other.
    Relabel { list: ListId, from: Label, count: u64, label: Label, step: u64 },
}

impl Record {
    /// Writes it behind `bytes`.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        let mut record = |kind: u8, numbers: &[u64]| {
            bytes.push(kind);
            numbers.iter().for_each(|&number| put_number(number, bytes));
        };
        match *self {
            Self::Begin => record(1, &[]),
            Self::Commit => record(2, &[]),
            Self::Write { block, data } => record(3, &[block, data.into()]),
            Self::Found { block, place, len, sum } => record(4, &[block, place, len.into(), sum.into()]),
            Self::NewList { list, sparse } => record(5, &[list, sparse.into()]),
            Self::DeleteList { list } => record(6, &[list]),
            Self::Insert { block, list, label } => record(7, &[block, list, label]),
            Self::Delete { block } => record(8, &[block]),
            Self::DeleteRange { list, from, last } => record(10, &[list, from, last]),
            Self::Relabel { list, from, count, label, step } => record(9, &[list, from, count, label, step]),
        }
    }

    /// Takes the first record off `bytes`; `None` where there is none that is whole.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let kind = bytes.split_off_first()?;
        let mut next = || take_number(bytes);
        let small = |number: u64| u32::try_from(number).ok();
        Some(match kind {
            1 => Self::Begin,
            2 => Self::Commit,
            3 => Self::Write { block: next()?, data: small(next()?)? },
            4 => Self::Found { block: next()?, place: next()?, len: small(next()?)?, sum: small(next()?)? },
            5 => Self::NewList {
                list: next()?,
                sparse: match next()? {
                    0 => false,
                    1 => true,
                    _ => return None,
                },
            },
            6 => Self::DeleteList { list: next()? },
            7 => Self::Insert { block: next()?, list: next()?, label: next()? },
            8 => Self::Delete { block: next()? },
            9 => {
                Self::Relabel { list: next()?, from: next()?, count: next()?, label: next()?, step: next()? }
            }
            10 => Self::DeleteRange { list: next()?, from: next()?, last: next()? },
            _ => return None,
        })
    }
}

fn put_number(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit, and nothing is longer than it need be.
        if (shift == 63 && bits > 1) || (shift > 0 && byte == 0) {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let ids = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), 0_u8..10);
        ids.prop_map(|(a, b, c, d, e, kind)| {
            let small = |number: u64| u32::try_from(number >> 32).unwrap();
            match kind {
                0 => Record::Begin,
                1 => Record::Commit,
                2 => Record::Write { block: a, data: small(b) },
                3 => Record::Found { block: a, place: b, len: small(c), sum: small(d) },
                4 => Record::NewList { list: a, sparse: b % 2 == 0 },
                5 => Record::DeleteList { list: a },
                6 => Record::Insert { block: a, list: b, label: c },
                7 => Record::Delete { block: a },
                8 => Record::DeleteRange { list: a, from: b, last: c },
                _ => Record::Relabel { list: a, from: b, count: c, label: d, step: e },
            }
        })
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(records in prop::collection::vec(any_record(), 0..20)) {
            let mut bytes = Vec::new();
            records.iter().for_each(|record| record.put(&mut bytes));
            let mut rest = &bytes[..];
            for record in &records {
                prop_assert_eq!(Record::take(&mut rest), Some(*record));
            }
            prop_assert!(rest.is_empty() && Record::take(&mut rest).is_none());
        }

        #[test]
        fn any_bytes_are_records_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut rest = &bytes[..];
            while let Some(record) = Record::take(&mut rest) {
                // There is one way to write a record.
                let mut again = Vec::new();
                record.put(&mut again);
                let taken = bytes.len() - rest.len();
                prop_assert_eq!(&again[..], &bytes[taken - again.len()..taken]);
            }
        }
    }
}
