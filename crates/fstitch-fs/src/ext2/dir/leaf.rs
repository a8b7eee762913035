//! The names of a leaf: in the order of their hashes, cut in two, and packed.

use fstitch_core::{BlockBuf, BlockNo, Result};

use super::Ext2;
use crate::ext2::layout::checksum::DIRECTORY_TAIL;
use crate::ext2::layout::dirent::{self, D_REC_LEN, ENTRY_MIN, HEADER, entry_size, rec_len_field};
use crate::ext2::layout::name_hash::Hasher;

/// A name of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) hash: u32,
    pub(super) ino: u32,
    /// Where its entry is.
    pub(super) offset: usize,
    /// Bytes of the name.
    pub(super) len: usize,
}

impl Named {
    pub(super) fn size(&self) -> usize {
        entry_size(self.len)
    }
}

/// Bytes that names take when they are packed.
pub(super) fn size_of(names: &[Named]) -> usize {
    names.iter().map(Named::size).sum()
}

/// Where two or more names, in the order of their hashes, are cut so that both parts are as alike in size as may be: the first name
/// of the upper part.
pub(super) fn cut(names: &[Named]) -> usize {
    let half = size_of(names) / 2;
    let mut lower = 0;
    for (at, name) in names.iter().enumerate() {
        // In the middle of this one.
        if lower + name.size() / 2 >= half {
            return at.clamp(1, names.len() - 1);
        }
        lower += name.size();
    }
    names.len() - 1
}

/// What the index says of the upper part of names that are cut at `at`: its lowest hash, with the mark that the lower part has names
/// of that hash as well.
pub(super) fn boundary(names: &[Named], at: usize) -> u32 {
    names[at].hash | u32::from(names[at - 1].hash == names[at].hash)
}

impl Ext2 {
    /// Bytes that a leaf has for entries.
    pub(super) fn leaf_len(&self) -> usize {
        self.block_size() - if self.sb.features.has_sums() { DIRECTORY_TAIL } else { 0 }
    }

    /// The names in `bytes`, the contents of `block`, from byte `from` on, in the order of their hashes.
    pub(super) fn leaf_names(
        &self,
        hasher: &Hasher,
        (block, bytes): (BlockNo, &[u8]),
        from: usize,
    ) -> Result<Vec<Named>> {
        let mut names = Vec::new();
        for entry in self.entries(bytes, block).from(from) {
            let entry = entry?;
            if entry.ino != 0 {
                let (hash, len) = (hasher.hash(entry.name), entry.name.len());
                names.push(Named { hash, ino: entry.ino, offset: entry.offset, len });
            }
        }
        names.sort_by_key(|name| (name.hash, name.offset));
        Ok(names)
    }

    /// A leaf with these names of the block `source`, and free space behind them.
    pub(super) fn packed_leaf(&self, source: &[u8], names: &[Named]) -> BlockBuf {
        let mut leaf = BlockBuf::zeroed(self.block_size());
        dirent::put_empty_leaf(&mut leaf, self.sb.features.has_sums());
        let len = self.leaf_len();
        let (mut at, mut last) = (0, 0);
        for name in names {
            let bytes = HEADER + name.len;
            // What the name leaves of its last word was zero, and is.
            leaf[at..at + bytes].copy_from_slice(&source[name.offset..name.offset + bytes]);
            D_REC_LEN.put(&mut leaf[at..], rec_len_field(name.size()));
            last = at;
            at += name.size();
        }
        match len - at {
            rest if at > 0 && rest >= ENTRY_MIN => dirent::put_entry(&mut leaf[at..], 0, rest, b"", None),
            _ if at > 0 => D_REC_LEN.put(&mut leaf[last..], rec_len_field(len - last)),
            _ => {}
        }
        leaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[(u32, usize)]) -> Vec<Named> {
        all.iter().map(|&(hash, len)| Named { hash, ino: 1, offset: 0, len }).collect()
    }

    #[test]
    fn both_parts_have_room_for_the_longest_name() {
        let mut dice = fstitch_core::Seed::new(1);
        for _ in 0..10_000 {
            let mut all = Vec::new();
            // As full as a leaf of 1 KiB with a sum, of names of all lengths or of long ones.
            let least = if dice.chance(1, 2) { 1 } else { 200 };
            while size_of(&all) <= 1012 * 3 / 4 {
                let len = least + usize::try_from(dice.below(256 - u64::try_from(least).unwrap())).unwrap();
                all.push(Named { hash: 0, ino: 1, offset: 0, len });
            }
            let at = cut(&all);
            assert!(at > 0 && at < all.len());
            for part in [&all[..at], &all[at..]] {
                assert!(size_of(part) + entry_size(255) <= 1012, "{all:?} at {at}");
            }
        }
    }

    #[test]
    fn names_of_one_hash_are_told_by_a_mark() {
        let all = names(&[(2, 10), (4, 10), (4, 10), (6, 10)]);
        assert_eq!((boundary(&all, 1), boundary(&all, 2), boundary(&all, 3)), (4, 5, 6));
        assert_eq!(cut(&all), 2);
        assert_eq!(cut(&names(&[(2, 1), (4, 255)])), 1);
        assert_eq!(cut(&names(&[(2, 255), (4, 1)])), 1);
    }
}
