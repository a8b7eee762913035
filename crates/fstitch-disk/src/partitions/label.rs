//! BSD disklabels: the partitions inside a slice of an MBR, or of a disk without one.
//!
//! **Layout.** In the slice's second sector; the magic number at its bytes 0 and 132, the number of partitions at 138, and from 148 on
//! 16 bytes of each: sectors, first sector, bytes of a fragment, kind. First sectors are the disk's, or, where the third partition, which
//! is the whole slice, begins with 0, the slice's. In the byte order of the machine; the sum at 136 makes all words up to the last
//! partition zero together.

use fstitch_core::{Be, Le};

use super::{SECTOR, TableEntry};

/// Types of slices that have a label: FreeBSD, OpenBSD, NetBSD.
pub(super) const SLICES: [u8; 3] = [0xa5, 0xa6, 0xa9];
/// The most partitions that a label has.
const COUNT_MAX: usize = 22;
const MAGIC: u32 = 0x8256_4557;
const COUNT_AT: usize = 138;
const ENTRIES_AT: usize = 148;
const ENTRY: usize = 16;
/// The partition that is the whole slice.
const WHOLE: usize = 2;

/// The partitions of the slice that begins at byte `slice` of the disk and has `len` bytes, by the label in its second sector `raw`, numbered from `first` on.
/// Empty ones, those that leave the slice, and the one that is all of it have no number. None without a label.
pub(super) fn partitions(raw: &[u8], (slice, len): (u64, u64), first: u32) -> Vec<TableEntry> {
    let Some(label) = Label::of(raw) else { return Vec::new() };
    let base = if label.entry(WHOLE).1 == 0 { slice } else { 0 };
    let inside = |&(at, count): &(u64, u64)| {
        let start = base + at * SECTOR;
        count > 0 && start >= slice && start + count * SECTOR <= slice.saturating_add(len)
    };
    let entries = (0..label.count).filter(|&at| at != WHOLE).filter_map(|at| {
        let (count, start) = label.entry(at);
        let name = char::from(b'a' + u8::try_from(at).unwrap_or(0));
        Some((start, count)).filter(inside).map(|place| (place, name))
    });
    let numbered = (first..).zip(entries);
    numbered
        .map(|(number, ((start, count), name))| TableEntry {
            number,
            start: base + start * SECTOR,
            len: count * SECTOR,
            name: name.to_string(),
        })
        .collect()
}

struct Label<'a> {
    raw: &'a [u8],
    is_big: bool,
    count: usize,
}

impl<'a> Label<'a> {
    fn of(raw: &'a [u8]) -> Option<Self> {
        let raw = raw.get(..512)?;
        let is = |word: fn(&[u8], usize) -> u32| word(raw, 0) == MAGIC && word(raw, 132) == MAGIC;
        let is_big = is(Be::u32);
        if !is_big && !is(Le::u32) {
            return None;
        }
        let word = if is_big { Be::u16 } else { Le::u16 };
        let count = usize::from(word(raw, COUNT_AT));
        let end = ENTRIES_AT + count * ENTRY;
        let is_summed = || (0..end).step_by(2).fold(0, |sum, at| sum ^ word(raw, at)) == 0;
        (count <= COUNT_MAX && is_summed()).then_some(Self { raw, is_big, count })
    }

    /// Sectors, and the first one.
    fn entry(&self, at: usize) -> (u64, u64) {
        let word = if self.is_big { Be::u32 } else { Le::u32 };
        let place = ENTRIES_AT + at * ENTRY;
        if at >= self.count {
            return (0, 0);
        }
        (u64::from(word(self.raw, place)), u64::from(word(self.raw, place + 4)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(entries: &[(u32, u32)], is_big: bool) -> Vec<u8> {
        let mut raw = vec![0; 512];
        let (put, half) = if is_big {
            (Be::put_u32 as fn(&mut [u8], usize, u32), Be::put_u16 as fn(&mut [u8], usize, u16))
        } else {
            (Le::put_u32 as _, Le::put_u16 as _)
        };
        put(&mut raw, 0, MAGIC);
        put(&mut raw, 132, MAGIC);
        half(&mut raw, COUNT_AT, u16::try_from(entries.len()).unwrap());
        for (at, &(count, start)) in entries.iter().enumerate() {
            put(&mut raw, ENTRIES_AT + at * ENTRY, count);
            put(&mut raw, ENTRIES_AT + at * ENTRY + 4, start);
        }
        let read = if is_big { Be::u16 } else { Le::u16 };
        let sum = (0..512).step_by(2).fold(0, |sum, at| sum ^ read(&raw, at));
        half(&mut raw, 136, sum);
        raw
    }

    fn found(raw: &[u8], slice: (u64, u64)) -> Vec<(u32, u64, u64, String)> {
        let found = partitions(raw, slice, 5);
        found.into_iter().map(|e| (e.number, e.start / SECTOR, e.len / SECTOR, e.name)).collect()
    }

    #[test]
    fn first_sectors_are_the_slices_or_the_disks() {
        let slice = (63 * SECTOR, 1000 * SECTOR);
        for is_big in [false, true] {
            let own = label(&[(400, 16), (100, 416), (1000, 0), (0, 0), (200, 516)], is_big);
            let expected = [(5, 79, 400, "a".into()), (6, 479, 100, "b".into()), (7, 579, 200, "e".into())];
            assert_eq!(found(&own, slice), expected);
            let disks = label(&[(400, 79), (100, 479), (1000, 63), (0, 0), (200, 579)], is_big);
            assert_eq!(found(&disks, slice), expected);
        }
    }

    #[test]
    fn what_leaves_the_slice_or_has_a_wrong_sum_is_none() {
        let slice = (63 * SECTOR, 1000 * SECTOR);
        let mut raw = label(&[(985, 16), (100, 930), (1000, 0)], false);
        assert_eq!(found(&raw, slice), []);
        raw = label(&[(400, 16), (0, 0), (1000, 0)], false);
        assert_eq!(found(&raw, slice).len(), 1);
        raw[ENTRIES_AT] ^= 1;
        assert_eq!(found(&raw, slice), []);
        assert_eq!(found(&[0; 512], slice), []);
    }
}
