//! A leaf of a directory: entries in the order of their keys, as the bytes of a block.
//!
//! **Layout.** `LEAF`, entries (32 bits at 4), bytes in use (32 at 8); from 16 on the entries: key (64), inode (64), kind (8), length
//! of the name (8), name. A **key** is the entry's *slot*, the name's place in the directory, and a number that tells names apart
//! that share one (8 bits): it stays while the entry is there, wherever it moves, and is what listings go on from.

use fstitch_core::{Error, FileKind, InodeNo, Le, Result, Structure};

use crate::layout::LEAF_LAST;

const MAGIC: &[u8; 4] = b"LEAF";
const HEAD: usize = 16;
const ENTRY: usize = 18;
const KIND_SHIFT: u16 = 12;

/// A name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Named<'a> {
    pub(crate) key: u64,
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
}

impl Named<'_> {
    /// Its place in the directory.
    pub(crate) fn slot(&self) -> u64 {
        self.key >> 8
    }

    fn len(&self) -> usize {
        ENTRY + self.name.len()
    }
}

/// The place of a name in the directories of a volume, from 1 to [`LEAF_LAST`].
pub(crate) fn slot(name: &[u8], seed: u64) -> u64 {
    (twox_hash::XxHash3_64::oneshot_with_seed(seed, name) >> 10) + 1
}

/// The key of a slot and a number.
pub(crate) fn key(slot: u64, number: u8) -> u64 {
    slot << 8 | u64::from(number)
}

/// Bytes that entries take.
pub(crate) fn bytes_of(entries: &[Named<'_>]) -> usize {
    entries.iter().map(Named::len).sum()
}

/// Bytes for entries in a block.
pub(crate) fn room(block_size: usize) -> usize {
    block_size - HEAD
}

/// The entries of a leaf.
///
/// # Errors
/// [`Error::Corrupt`] where the bytes are none.
pub(crate) fn decode(block: &[u8]) -> Result<Vec<Named<'_>>> {
    let damaged = |at: usize, what: &str| Error::corrupt(Structure::DirectoryEntry(Some(at)), None, what);
    if !block.starts_with(MAGIC) {
        return Err(damaged(0, "the block is no leaf of a directory"));
    }
    let used = usize::try_from(Le::u32(block, 8)).unwrap_or(usize::MAX);
    let mut rest = block.get(HEAD..used).ok_or_else(|| damaged(8, "more bytes are in use than there are"))?;
    let mut entries = Vec::new();
    let mut last = 0;
    while !rest.is_empty() {
        let at = used - rest.len();
        let len = rest.get(ENTRY - 1).map_or(usize::MAX, |&len| ENTRY + usize::from(len));
        let entry = rest.split_off(..len).ok_or_else(|| damaged(at, "it ends behind its leaf"))?;
        let kind = FileKind::from_mode(u16::from(entry[16]) << KIND_SHIFT);
        let named = Named {
            key: Le::u64(entry, 0),
            ino: InodeNo(Le::u64(entry, 8)),
            kind: kind.ok_or_else(|| damaged(at, "it is of no kind"))?,
            name: &entry[ENTRY..],
        };
        if named.key <= last || named.slot() == 0 || named.slot() > LEAF_LAST || named.name.is_empty() {
            return Err(damaged(at, "it is out of order"));
        }
        last = named.key;
        entries.push(named);
    }
    match usize::try_from(Le::u32(block, 4)) {
        Ok(count) if count == entries.len() => Ok(entries),
        _ => Err(damaged(4, "it counts other entries than it has")),
    }
}

/// A leaf with these entries, which must fit.
pub(crate) fn encode(entries: &[Named<'_>], block_size: usize) -> Vec<u8> {
    assert!(bytes_of(entries) <= room(block_size), "whoever fills a leaf asks for its room");
    let mut block = vec![0; block_size];
    let mut at = HEAD;
    for named in entries {
        Le::put_u64(&mut block, at, named.key);
        Le::put_u64(&mut block, at + 8, named.ino.get());
        block[at + 16] = (named.kind.mode_bits() >> KIND_SHIFT).to_le_bytes()[0];
        block[at + 17] = u8::try_from(named.name.len()).expect("names were checked");
        block[at + ENTRY..at + named.len()].copy_from_slice(named.name);
        at += named.len();
    }
    let word = |number: usize| u32::try_from(number).expect("a block has fewer bytes");
    block[..4].copy_from_slice(MAGIC);
    Le::put_u32(&mut block, 4, word(entries.len()));
    Le::put_u32(&mut block, 8, word(at));
    block
}

/// Entries in pieces that fit into leaves of so much room, each with all names of its slots; `None` if one slot has too many.
pub(crate) fn split<'a, 'b>(entries: &'b [Named<'a>], room: usize) -> Option<Vec<&'b [Named<'a>]>> {
    let total = bytes_of(entries);
    if total <= room {
        return Some(vec![entries]);
    }
    let mut best = None;
    let mut before = 0;
    for (at, pair) in (1..).zip(entries.windows(2)) {
        before += pair[0].len();
        let larger = before.max(total - before);
        if pair[0].slot() != pair[1].slot() && best.is_none_or(|(_, least)| larger < least) {
            best = Some((at, larger));
        }
    }
    let (low, high) = entries.split_at(best?.0);
    let mut pieces = split(low, room)?;
    pieces.extend(split(high, room)?);
    Some(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(slot: u64, number: u8, name: &[u8]) -> Named<'_> {
        Named { key: key(slot, number), ino: InodeNo(slot + 10), kind: FileKind::Socket, name }
    }

    #[test]
    fn a_leaf_is_read_as_it_is_written() {
        let long = [b'x'; 255];
        let entries = [named(1, 0, b"a"), named(1, 1, b"b"), named(LEAF_LAST, 255, &long)];
        assert_eq!(decode(&encode(&entries, 512)).unwrap(), entries);
        assert_eq!(decode(&encode(&[], 512)).unwrap(), []);
    }

    #[test]
    fn every_damaged_byte_is_found_or_harmless() {
        let good = encode(&[named(1, 0, b"first"), named(3, 0, b"second")], 512);
        for at in 0..80 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                let _ = decode(&bad);
            }
        }
        let mut bad = good.clone();
        bad[8] = 255;
        bad[9] = 255;
        assert!(decode(&bad).is_err());
        bad = good;
        bad[HEAD + 1] = 0xff;
        assert!(decode(&bad).is_err(), "the first key is behind the second");
    }

    #[test]
    fn pieces_fit_and_are_everything() {
        let (a, b, c) = ([b'a'; 232], [b'b'; 255], [b'c'; 228]);
        let entries = [named(1, 0, &a), named(5, 0, &b), named(9, 0, &c)];
        let pieces = split(&entries, room(512)).unwrap();
        assert_eq!(pieces.concat(), entries);
        assert!(pieces.iter().all(|piece| bytes_of(piece) <= room(512)));
    }

    #[test]
    fn one_slot_cannot_be_split() {
        let long = [b'x'; 255];
        let entries = [named(1, 0, &long), named(1, 1, &long)];
        assert_eq!(split(&entries, room(512)), None);
    }

    #[test]
    fn slots_are_in_their_range_and_differ_between_volumes() {
        let slots: Vec<u64> = (0..1000_u32).map(|n| slot(&n.to_le_bytes(), 1)).collect();
        assert!(slots.iter().all(|slot| (1..=LEAF_LAST).contains(slot)));
        assert_ne!(slot(b"name", 1), slot(b"name", 2));
    }
}
