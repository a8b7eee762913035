//! Chunks of a directory: 512 bytes, which no entry crosses.
//!
//! Stricter than what reads directories: a name ends with a zero, the next entry begins behind that, and a chunk's entries add up to it.

use super::state::DIRECTORY;
use crate::ufs::layout::dirent::{CHUNK, HEADER, Manner, NAME_MAX};

/// What a name of no file is: its inode and its kind.
pub(super) const WHITEOUT: (u32, u8) = (1, 14);
/// The highest code of a kind.
const KIND_MAX: u8 = 15;
/// Entries begin at multiples of this.
const ALIGN: usize = 4;
/// The bytes of `.` or `..`.
pub(super) const DOT: usize = 12;

const LEN_AT: usize = 4;
const KIND_AT: usize = 6;
const NAME_LEN_AT: usize = 7;

/// An entry: where it begins, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) ino: u32,
    /// 0 on old volumes.
    pub(super) kind: u8,
    name_len: usize,
}

impl Entry {
    /// Its name in the chunk `bytes`.
    pub(super) fn name<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        &bytes[self.at + HEADER..self.at + HEADER + self.name_len]
    }
}

/// The bytes that an entry with such a name needs.
pub(super) const fn needed(name_len: usize) -> usize {
    HEADER + (name_len + 1).next_multiple_of(ALIGN)
}

fn head(bytes: &[u8], at: usize, manner: Manner) -> Entry {
    let order = manner.order;
    let (kind, name_len) = match manner.is_old {
        true => (0, usize::from(order.u16(bytes, at + KIND_AT))),
        false => (bytes[at + KIND_AT], usize::from(bytes[at + NAME_LEN_AT])),
    };
    Entry { at, len: usize::from(order.u16(bytes, at + LEN_AT)), ino: order.u32(bytes, at), kind, name_len }
}

/// Whether the name of an entry at byte `at` can be one, whatever its length says.
fn has_name(bytes: &[u8], entry: &Entry) -> bool {
    let end = entry.at + HEADER + entry.name_len;
    (1..=NAME_MAX).contains(&entry.name_len)
        && entry.kind <= KIND_MAX
        && end < bytes.len()
        && bytes[end] == 0
        && !entry.name(bytes).iter().any(|&byte| byte == 0 || byte == b'/')
}

/// The entry at byte `at`, if there is a sound one.
fn entry(bytes: &[u8], at: usize, manner: Manner) -> Option<Entry> {
    if !at.is_multiple_of(ALIGN) || bytes.len() - at < needed(0) {
        return None;
    }
    let entry = head(bytes, at, manner);
    let fits = entry.len.is_multiple_of(ALIGN)
        && entry.len <= bytes.len() - at
        && entry.len >= needed(entry.name_len);
    (fits && (entry.ino == 0 || has_name(bytes, &entry))).then_some(entry)
}

/// The chunk's entries, free ones included; `Err` with those before the place where the chain of them breaks.
pub(super) fn entries(bytes: &[u8], manner: Manner) -> Result<Vec<Entry>, (Vec<Entry>, usize)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let Some(next) = entry(bytes, at, manner) else { return Err((found, at)) };
        at += next.len;
        found.push(next);
    }
    Ok(found)
}

/// Whether a chunk begins as the first one of directory `ino`.
pub(super) fn begins_directory(bytes: &[u8], ino: u32, manner: Manner) -> bool {
    entry(bytes, 0, manner).is_some_and(|first| first.ino == ino && first.name(bytes) == b".")
}

/// Whether a chunk begins with `.`, or has `..` behind where that would be.
pub(super) fn has_dots(bytes: &[u8], manner: Manner) -> bool {
    let named = |at, name: &[u8]| {
        entry(bytes, at, manner).is_some_and(|found| found.ino != 0 && found.name(bytes) == name)
    };
    named(0, b".") || named(DOT, b"..")
}

/// Makes a chain of a chunk whose chain breaks: sound entries behind the break are found again by trying where they may begin; what
/// is between becomes free.
pub(super) fn salvage(bytes: &mut [u8], manner: Manner, inodes: u32) {
    // Each turn mends the first break, and the chain then reaches further.
    while let Err((before, at)) = entries(bytes, manner) {
        let broken = (bytes.len() - at >= needed(0)).then(|| head(bytes, at, manner));
        let own = broken.filter(|entry| {
            // An entry whose name is whole keeps it; its length is what leads to the next one.
            let is_ours = entry.ino > 1 && entry.ino < inodes && has_name(bytes, entry);
            is_ours && at + needed(entry.name_len) <= bytes.len()
        });
        let from = own.map_or(at + ALIGN, |entry| at + needed(entry.name_len));
        let next = resume(bytes, from, manner, inodes);
        match (own, before.last()) {
            (Some(_), _) => put_len(bytes, at, next - at, manner),
            (None, Some(last)) => {
                bytes[at..next].fill(0);
                put_len(bytes, last.at, next - last.at, manner);
            }
            (None, None) if next - at >= needed(0) => {
                bytes[at..next].fill(0);
                put_len(bytes, at, next - at, manner);
            }
            (None, None) => empty(bytes, manner),
        }
    }
}

/// Where from byte `from` on entries begin that lead to the end of the chunk, and name something; that end if they do nowhere.
fn resume(bytes: &[u8], from: usize, manner: Manner, inodes: u32) -> usize {
    let leads = |start: usize| {
        let (mut at, mut names) = (start, 0);
        while at < bytes.len() {
            let Some(next) = entry(bytes, at, manner) else { return false };
            if next.ino >= inodes {
                return false;
            }
            names += usize::from(next.ino > 1);
            at += next.len;
        }
        names > 0
    };
    (from..bytes.len()).step_by(ALIGN).find(|&start| leads(start)).unwrap_or(bytes.len())
}

fn put_len(bytes: &mut [u8], at: usize, len: usize, manner: Manner) {
    manner.order.put_u16(bytes, at + LEN_AT, u16::try_from(len).unwrap_or(0));
}

/// Makes the entry at byte `at` name another inode, or none.
pub(super) fn put_ino(bytes: &mut [u8], at: usize, ino: u32, manner: Manner) {
    manner.order.put_u32(bytes, at, ino);
}

/// Gives the entry at byte `at` a kind.
pub(super) fn put_kind(bytes: &mut [u8], at: usize, kind: u8) {
    bytes[at + KIND_AT] = kind;
}

/// A name to be written: inode, kind, name.
pub(super) type Name<'n> = (u32, u8, &'n [u8]);

fn put(bytes: &mut [u8], (at, len): (usize, usize), (ino, kind, name): Name<'_>, manner: Manner) {
    bytes[at..at + len].fill(0);
    put_ino(bytes, at, ino, manner);
    put_len(bytes, at, len, manner);
    match (manner.is_old, u8::try_from(name.len())) {
        (false, Ok(name_len)) => {
            put_kind(bytes, at, kind);
            bytes[at + NAME_LEN_AT] = name_len;
        }
        _ => manner.order.put_u16(bytes, at + KIND_AT, u16::try_from(name.len()).unwrap_or(0)),
    }
    bytes[at + HEADER..at + HEADER + name.len()].copy_from_slice(name);
}

/// Makes a chunk one without names.
pub(super) fn empty(bytes: &mut [u8], manner: Manner) {
    bytes.fill(0);
    put_len(bytes, 0, bytes.len(), manner);
}

/// Makes all chunks of `bytes` such without names, and the first one that of directory `ino` in `parent`, if it is that.
pub(super) fn fill(bytes: &mut [u8], first_of: Option<(u32, u32)>, manner: Manner) {
    bytes.chunks_mut(CHUNK).for_each(|chunk| empty(chunk, manner));
    if let Some((ino, parent)) = first_of {
        put(bytes, (0, DOT), (ino, DIRECTORY, b"."), manner);
        put(bytes, (DOT, CHUNK - DOT), (parent, DIRECTORY, b".."), manner);
    }
}

/// Adds a name to a sound chunk; false when it has no room.
pub(super) fn insert(bytes: &mut [u8], name: Name<'_>, manner: Manner) -> bool {
    let needs = needed(name.2.len());
    for entry in entries(bytes, manner).unwrap_or_default() {
        let own = if entry.ino == 0 { 0 } else { needed(entry.name_len) };
        if entry.len - own >= needs {
            if own > 0 {
                put_len(bytes, entry.at, own, manner);
            }
            put(bytes, (entry.at + own, entry.len - own), name, manner);
            return true;
        }
    }
    false
}

/// A name that had to leave its chunk.
pub(super) type Displaced = (u32, u8, Vec<u8>);

/// Writes `.` and `..` before all other names of a sound chunk; those for which there is no room any more.
pub(super) fn rebuild_first(bytes: &mut [u8], (ino, parent): (u32, u32), manner: Manner) -> Vec<Displaced> {
    let kept: Vec<Displaced> = entries(bytes, manner)
        .unwrap_or_default()
        .iter()
        .filter(|entry| entry.ino != 0 && !matches!(entry.name(bytes), b"." | b".."))
        .map(|entry| (entry.ino, entry.kind, entry.name(bytes).to_vec()))
        .collect();
    fill(bytes, Some((ino, parent)), manner);
    kept.into_iter().filter(|(ino, kind, name)| !insert(bytes, (*ino, *kind, name), manner)).collect()
}

#[cfg(test)]
mod tests {
    use fstitch_core::num::to_usize;

    use super::*;
    use crate::ufs::order::Order;

    const MANNER: Manner = Manner { order: Order::Big, is_old: false };

    fn chunk() -> Vec<u8> {
        let mut bytes = vec![0; CHUNK];
        fill(&mut bytes, Some((7, 2)), MANNER);
        for (ino, name) in [(20, "first"), (21, "second"), (22, "third"), (23, "a-longer-name")] {
            assert!(insert(&mut bytes, (ino, 8, name.as_bytes()), MANNER));
        }
        bytes
    }

    fn names(bytes: &[u8]) -> Vec<String> {
        let found = entries(bytes, MANNER).expect("a chain");
        let used = found.iter().filter(|entry| entry.ino != 0);
        used.map(|entry| String::from_utf8_lossy(entry.name(bytes)).into_owned()).collect()
    }

    #[test]
    fn what_is_sound_behind_a_break_is_kept() {
        let all = [".", "..", "first", "second", "third", "a-longer-name"];
        assert_eq!(names(&chunk()), all);
        for (at, value, kept) in [
            // The length of `second`: its name is whole.
            (45, 3, vec![0, 1, 2, 3, 4, 5]),
            (44, 9, vec![0, 1, 2, 3, 4, 5]),
            // Its name gets a slash.
            (49, b'/', vec![0, 1, 2, 4, 5]),
            // The length of its name.
            (47, 200, vec![0, 1, 2, 4, 5]),
            (5, 0, vec![0, 1, 2, 3, 4, 5]),
        ] {
            let mut bytes = chunk();
            bytes[at] = value;
            assert!(entries(&bytes, MANNER).is_err(), "{at}");
            salvage(&mut bytes, MANNER, 100);
            assert_eq!(names(&bytes), kept.iter().map(|&at: &usize| all[at]).collect::<Vec<_>>(), "{at}");
        }
    }

    #[test]
    fn any_bytes_become_a_chain() {
        let mut seed = fstitch_core::Seed::new(5);
        for turn in 0..2000 {
            let mut bytes = chunk();
            for _ in 0..=seed.below(40) {
                let at = to_usize(seed.below(512));
                bytes[at] = u8::try_from(seed.below(256)).expect("a byte");
            }
            if turn % 3 == 0 {
                bytes.iter_mut().for_each(|byte| *byte = u8::try_from(seed.below(256)).expect("a byte"));
            }
            salvage(&mut bytes, MANNER, 100);
            assert!(entries(&bytes, MANNER).is_ok(), "{turn}");
            rebuild_first(&mut bytes, (7, 2), MANNER);
            assert_eq!(names(&bytes)[..2], [".", ".."], "{turn}");
        }
    }

    #[test]
    fn a_full_chunk_gives_names_away_for_its_first_two() {
        let mut bytes = vec![0; CHUNK];
        empty(&mut bytes, MANNER);
        let mut count = 0;
        while insert(&mut bytes, (50 + count, 8, b"some-name"), MANNER) {
            count += 1;
        }
        let displaced = rebuild_first(&mut bytes, (7, 2), MANNER);
        assert_eq!((names(&bytes).len() + displaced.len(), displaced.len()), (to_usize(count) + 2, 1));
    }
}
