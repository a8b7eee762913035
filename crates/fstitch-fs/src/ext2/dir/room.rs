//! Room for names: which blocks of a directory may have it, and where in a block it is.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::ext2::layout::dirent::{ENTRY_MIN, Slots};

/// Where a name can go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Free entries that follow each other, from `offset` on, `len` bytes together.
    Free { offset: usize, len: usize, parts: SmallVec<[usize; 4]> },
    /// The end of a used entry that is longer than it needs to be.
    Behind { entry: usize, offset: usize, len: usize },
}

impl Room {
    pub(super) const fn len(&self) -> usize {
        match self {
            Self::Free { len, .. } | Self::Behind { len, .. } => *len,
        }
    }

    /// Where the room starts.
    pub(super) const fn offset(&self) -> usize {
        match self {
            Self::Free { offset, .. } | Self::Behind { offset, .. } => *offset,
        }
    }

    /// Where the entry starts in which the room does.
    pub(super) fn entry(&self) -> usize {
        match self {
            Self::Free { offset, .. } => *offset,
            Self::Behind { entry, .. } => *entry,
        }
    }

    /// The free entries that it is made of.
    pub(super) fn parts(&self) -> &[usize] {
        match self {
            Self::Free { parts, .. } => parts,
            Self::Behind { .. } => &[],
        }
    }

    /// Whether the room is as it was found, in the block that `slots` walks from [`Room::entry`] on.
    pub(super) fn stands(&self, mut slots: Slots<'_>) -> bool {
        match self {
            Self::Free { offset, len, parts } => {
                let mut end = *offset;
                for &part in parts {
                    match slots.next() {
                        Some(slot) if slot.ino == 0 && slot.offset == part => end = slot.end(),
                        _ => return false,
                    }
                }
                end == offset + len
            }
            Self::Behind { entry, offset, len } => slots.next().is_some_and(|slot| {
                slot.ino != 0
                    && slot.offset == *entry
                    && slot.offset + slot.used() == *offset
                    && slot.rec_len - slot.used() == *len
            }),
        }
    }
}

/// Room that was found in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) room: Room,
    /// The largest room apart from it, or more.
    pub(super) others: u16,
}

impl Found {
    /// The slot of a name that has just been cleared, where all that there was before is `others`.
    pub(super) fn cleared(offset: usize, len: usize, others: u16) -> Self {
        Self { room: Room::Free { offset, len, parts: SmallVec::from_slice(&[offset]) }, others }
    }

    /// The end of a block that is full of entries up to `offset`.
    pub(super) fn behind_all(offset: usize, len: usize) -> Self {
        Self::cleared(offset, len, 0)
    }

    /// What a name may need at most to fit when all but `rest` of the room is taken: the rest may lie beside another one.
    pub(super) fn left(&self, rest: usize) -> u16 {
        self.others.saturating_add(narrow(rest))
    }
}

/// Blocks of a directory for which room is remembered at most.
const LAST_MAX: usize = 4096;

/// Room that was found last in blocks of a directory, or left by the last name there. Looked at again before it is used.
#[derive(Debug, Default)]
pub(super) struct Last {
    /// The block that got names last: where there is no index, all come to one.
    latest: Option<(usize, Found)>,
    others: FxHashMap<usize, Found>,
}

impl Last {
    pub(super) fn get(&self, block: usize) -> Option<&Found> {
        match &self.latest {
            Some((at, found)) if *at == block => Some(found),
            _ => self.others.get(&block),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.latest.is_none() && self.others.is_empty()
    }

    pub(super) fn put(&mut self, block: usize, found: Found) {
        match self.latest.replace((block, found)) {
            Some((at, earlier)) if at != block => {
                if self.others.len() >= LAST_MAX {
                    self.others.clear();
                }
                self.others.remove(&block);
                self.others.insert(at, earlier);
            }
            Some(_) => {}
            None => drop(self.others.remove(&block)),
        }
    }

    pub(super) fn take(&mut self, block: usize) -> Option<Found> {
        match self.latest.take_if(|(at, _)| *at == block) {
            Some((_, found)) => Some(found),
            None => self.others.remove(&block),
        }
    }

    pub(super) fn clear(&mut self) {
        self.latest = None;
        self.others.clear();
    }
}

/// Room as it is kept for blocks: never less.
pub(super) fn narrow(room: usize) -> u16 {
    u16::try_from(room).unwrap_or(u16::MAX)
}

/// The first room of at least `need` bytes among `slots`, or else the size of the largest there is. The first
/// entry of a directory's first block is `.`: nothing may come between it and `..`.
pub(super) fn find_room(slots: &mut Slots<'_>, need: usize, is_first: bool) -> Result<Found, u16> {
    let mut found = None;
    let mut best = 0;
    // Free entries one after the other: where the first of them starts, and which they are.
    let (mut start, mut parts) = (0, SmallVec::<[usize; 4]>::new());
    for slot in slots {
        if slot.ino == 0 {
            if parts.is_empty() {
                start = slot.offset;
            }
            parts.push(slot.offset);
            let len = slot.end() - start;
            if found.is_none() && len >= need {
                found = Some(Room::Free { offset: start, len, parts: std::mem::take(&mut parts) });
            } else {
                best = best.max(len);
            }
            continue;
        }
        parts.clear();
        let len = slot.rec_len - slot.used();
        if len >= ENTRY_MIN && !(is_first && slot.offset == 0) {
            if found.is_none() && len >= need {
                let offset = slot.offset + slot.used();
                found = Some(Room::Behind { entry: slot.offset, offset, len });
            } else {
                best = best.max(len);
            }
        }
    }
    let others = narrow(best);
    found.map(|room| Found { room, others }).ok_or(others)
}

/// For each block of a directory, what a name may need at most to fit: never too small. A tree of maxima, so that the
/// first block with room is found as fast in a large directory as in a small one.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    count: usize,
    /// The children of entry n are entries 2n and 2n + 1, the blocks are the last half; entry 0 is of no use.
    most: Vec<u16>,
}

impl Rooms {
    /// `count` blocks of which nothing is known.
    pub(super) fn unknown(count: usize) -> Self {
        let leaves = count.next_power_of_two();
        let mut rooms = Self { count, most: vec![0; 2 * leaves] };
        rooms.most[leaves..leaves + count].fill(u16::MAX);
        for at in (1..leaves).rev() {
            rooms.most[at] = rooms.most[2 * at].max(rooms.most[2 * at + 1]);
        }
        rooms
    }

    /// Another block, of which nothing is known.
    pub(super) fn push(&mut self) {
        if self.count >= self.most.len() / 2 {
            let leaves = (self.count + 1).next_power_of_two();
            let mut larger = Self { count: self.count, most: vec![0; 2 * leaves] };
            for at in 0..self.count {
                larger.set(at, self.most[self.most.len() / 2 + at]);
            }
            *self = larger;
        }
        self.count += 1;
        self.set(self.count - 1, u16::MAX);
    }

    pub(super) fn get(&self, block: usize) -> u16 {
        self.most[self.most.len() / 2 + block]
    }

    pub(super) fn set(&mut self, block: usize, room: u16) {
        let mut at = self.most.len() / 2 + block;
        self.most[at] = room;
        while at > 1 {
            let most = self.most[at].max(self.most[at ^ 1]);
            at /= 2;
            if self.most[at] == most {
                break;
            }
            self.most[at] = most;
        }
    }

    /// The first block in which `need` bytes, more than none, may be free.
    pub(super) fn first(&self, need: usize) -> Option<usize> {
        let fits = |at: usize| self.most.get(at).is_some_and(|&room| usize::from(room) >= need);
        if !fits(1) {
            return None;
        }
        let leaves = self.most.len() / 2;
        let mut at = 1;
        while at < leaves {
            at = if fits(2 * at) { 2 * at } else { 2 * at + 1 };
        }
        Some(at - leaves)
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::BlockNo;

    use super::*;
    use crate::ext2::layout::dirent::{Entries, put_entry};

    /// A block with entries of these inodes, lengths and names.
    fn block(entries: &[(u32, usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; entries.iter().map(|(_, len, _)| len).sum()];
        let mut at = 0;
        for &(ino, len, name) in entries {
            put_entry(&mut bytes[at..], ino, len, name, None);
            at += len;
        }
        bytes
    }

    fn slots(bytes: &[u8]) -> Slots<'_> {
        Entries::any(bytes, BlockNo(9)).slots()
    }

    #[test]
    fn free_neighbours_are_taken_together() {
        let bytes = block(&[(5, 12, b"a"), (0, 12, b"b"), (0, 16, b"c"), (6, 984, b"d")]);
        let room = find_room(&mut slots(&bytes), 28, false).unwrap();
        let parts = SmallVec::from_slice(&[12, 24]);
        assert_eq!(room, Found { room: Room::Free { offset: 12, len: 28, parts }, others: 972 });
        let room = find_room(&mut slots(&bytes), 12, false).unwrap();
        assert_eq!((room.room.parts(), room.others), (&[12][..], 972));
        let bytes = block(&[(5, 12, b"a"), (0, 12, b"b"), (0, 16, b"c"), (6, 12, b"d")]);
        let room = find_room(&mut slots(&bytes), 12, false).unwrap();
        assert_eq!(
            (room.others, room.left(0), room.left(12)),
            (16, 16, 28),
            "what is left may lie side by side"
        );
    }

    #[test]
    fn nothing_goes_behind_the_first_dot() {
        let bytes = block(&[(5, 512, b"."), (6, 512, b"..")]);
        let room = find_room(&mut slots(&bytes), 100, true).unwrap();
        assert_eq!(room, Found { room: Room::Behind { entry: 512, offset: 524, len: 500 }, others: 0 });
        assert_eq!(find_room(&mut slots(&bytes), 501, true), Err(500));
    }

    #[test]
    fn room_that_has_changed_does_not_stand() {
        let bytes = block(&[(5, 12, b"a"), (0, 12, b"b"), (0, 16, b"c"), (6, 984, b"d")]);
        let stands = |room: &Room, bytes: &[u8]| {
            room.stands(Entries::any(bytes, BlockNo(9)).from(room.entry()).slots())
        };
        let free = Room::Free { offset: 12, len: 28, parts: SmallVec::from_slice(&[12, 24]) };
        let behind = Room::Behind { entry: 40, offset: 52, len: 972 };
        assert!(stands(&free, &bytes) && stands(&behind, &bytes));
        let taken = block(&[(5, 12, b"a"), (7, 12, b"b"), (0, 16, b"c"), (0, 984, b"d")]);
        assert!(!stands(&free, &taken) && !stands(&behind, &taken));
        let shorter = block(&[(5, 12, b"a"), (0, 12, b"b"), (0, 12, b"c"), (6, 988, b"dd")]);
        assert!(!stands(&free, &shorter) && !stands(&behind, &shorter));
        let joined = block(&[(5, 12, b"a"), (0, 28, b"b"), (6, 100, b"d"), (8, 884, b"e")]);
        assert!(!stands(&free, &joined) && !stands(&behind, &joined));
    }

    #[test]
    fn the_first_block_with_room_is_found() {
        for count in [1, 2, 3, 7, 8, 100] {
            let mut rooms = Rooms::unknown(count);
            for block in 0..count {
                assert_eq!((rooms.first(255), rooms.get(block)), (Some(block), u16::MAX));
                rooms.set(block, 20);
            }
            assert_eq!((rooms.first(24), rooms.first(20)), (None, Some(0)));
            rooms.push();
            assert_eq!(rooms.first(24), Some(count));
            rooms.set(count / 2, 24);
            assert_eq!((rooms.first(24), rooms.first(28)), (Some(count / 2), Some(count)));
        }
        assert_eq!(Rooms::default().first(12), None);
        let mut none = Rooms::unknown(0);
        assert_eq!(none.first(12), None);
        none.push();
        assert_eq!(none.first(12), Some(0));
        let mut none = Rooms::default();
        none.push();
        assert_eq!(none.first(12), Some(0));
    }
}
