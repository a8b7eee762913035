//! Sums of metadata: which bytes of each structure they cover, and where they lie.
//!
//! With the feature `metadata_csum` every structure has a CRC-32C, which starts from a seed of the volume's and covers where
//! the structure belongs (group, inode and generation, block), so that a block in the wrong place is found, too. With the
//! older `uninit_bg` only descriptors have one, a CRC-16. The CRCs are used without the final inversion that other formats
//! have.
//!
//! | structure | covers | lies in |
//! |---|---|---|
//! | superblock | its bytes up to the sum, without the volume's seed | its last word |
//! | descriptor | seed, group, its bytes without the sum | `bg_checksum`, low half |
//! | bitmap | seed, the bytes that have a group's bits | its group's descriptor, in two halves |
//! | inode | seed, number, generation, its bytes without the sum | two halves; the high one in large inodes only |
//! | directory leaf | as an inode's, its bytes up to the tail | the tail: an entry of 12 bytes without a name |
//! | directory index | as an inode's, its bytes up to the last entry in use, the tail's first word | behind the last possible entry |
//! | extent node | as an inode's, its bytes up to the sum | behind the last possible entry |
//! | attribute block | seed, its block, its bytes without the sum | its header |
//! | orphan file | as an inode's, its block, its numbers | its last word |
//! | multiple-mount block | seed, its bytes up to the sum | its last word |
//!
//! Each structure has a function that says what the sum must be, so that callers may compare it or put it in place.

use fstitch_core::Le;

use super::dirent::{self, D_FILE_TYPE, D_INODE, D_NAME_LEN, D_REC_LEN};
use super::extent;
use super::feature::{Features, incompat, ro_compat};
use super::field::fields;
use super::group::{
    BG_BLOCK_BITMAP_CSUM_HI, BG_BLOCK_BITMAP_CSUM_LO, BG_CHECKSUM, BG_INODE_BITMAP_CSUM_HI,
    BG_INODE_BITMAP_CSUM_LO, DESCRIPTOR_SIZE, LARGE_DESCRIPTOR_SIZE,
};
use super::inode::{GOOD_OLD_SIZE, I_CHECKSUM_HI, I_CHECKSUM_LO, I_EXTRA_ISIZE, I_GENERATION, has_extra};
use super::superblock::{
    REVISION_DYNAMIC, S_CHECKSUM, S_CHECKSUM_SEED, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT, S_REV_LEVEL,
    S_UUID, SUPERBLOCK_SIZE,
};
use super::xattr::H_CHECKSUM;
use crate::ext2::num::{high16, idx, low16};

/// What `s_checksum_type` holds: CRC-32C. There is no other.
pub const CHECKSUM_CRC32C: u8 = 1;
/// Bytes of the entry that ends a directory leaf with a sum.
pub const DIRECTORY_TAIL: usize = 12;
/// The kind of that entry, which no inode has.
pub const DIRECTORY_TAIL_KIND: u8 = 0xde;
/// Where the first block of an indexed directory says what index it is.
pub const INDEX_INFO: usize = 24;
/// Which byte of that says how long it is.
const INDEX_INFO_LENGTH: usize = 5;
/// Bytes behind the entries of a directory index: a reserved word and the sum.
pub const INDEX_TAIL: usize = 8;
/// What the orphan file's blocks hold before their sums.
pub const ORPHAN_MAGIC: u32 = 0x0b10_ca04;
/// Bytes behind the numbers in a block of the orphan file: the magic number and the sum.
pub const ORPHAN_TAIL: usize = 8;

fields! {
    /// The sum of a directory leaf, from the tail's start on.
    T_CHECKSUM: u32 @ 8;
}

const _: () = assert!(T_CHECKSUM.end() == DIRECTORY_TAIL);

/// CRC-32C without inversions, from `seed` on.
#[must_use]
pub fn crc(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 with the polynomial 0x8005, bits reversed, from `seed` on.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |mut crc, &byte| {
        crc ^= u16::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xa001 };
        }
        crc
    })
}

/// The sum that the superblock `raw` must have in [`S_CHECKSUM`]; `None` if it has none.
#[must_use]
pub fn superblock(raw: &[u8]) -> Option<u32> {
    let summed = S_REV_LEVEL.get(raw) >= REVISION_DYNAMIC
        && S_FEATURE_RO_COMPAT.get(raw) & ro_compat::METADATA_CSUM != 0;
    summed.then(|| crc(u32::MAX, &raw[..S_CHECKSUM.offset()]))
}

/// Puts the superblock's own sum in place, if it has one. For whoever writes a superblock past the cache.
pub fn seal_superblock(raw: &mut [u8]) {
    if let Some(sum) = superblock(raw) {
        S_CHECKSUM.put(raw, sum);
    }
}

/// Whether the superblock's own sum is right, or it has none.
#[must_use]
pub fn is_superblock_right(raw: &[u8]) -> bool {
    superblock(raw).is_none_or(|sum| sum == S_CHECKSUM.get(raw))
}

/// How a volume sums its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sums {
    /// It does not.
    #[default]
    None,
    /// Descriptors only, by CRC-16 from this seed: the sum of the volume's identifier.
    Groups(u16),
    /// Everything, by CRC-32C from this seed.
    All(u32),
}

impl Sums {
    /// As the superblock `raw`, with these features, says.
    #[must_use]
    pub fn of(raw: &[u8], features: &Features) -> Self {
        let uuid = &raw[S_UUID..S_UUID + 16];
        if features.has_sums() {
            let seeded = features.has_incompat(incompat::CSUM_SEED);
            Self::All(if seeded { S_CHECKSUM_SEED.get(raw) } else { crc(u32::MAX, uuid) })
        } else if features.has_group_sums() {
            Self::Groups(crc16(u16::MAX, uuid))
        } else {
            Self::None
        }
    }

    /// As the superblock `raw` says, whose features are its own.
    #[must_use]
    pub fn of_superblock(raw: &[u8]) -> Self {
        let features = Features {
            compat: 0,
            incompat: S_FEATURE_INCOMPAT.get(raw),
            ro_compat: S_FEATURE_RO_COMPAT.get(raw),
        };
        if S_REV_LEVEL.get(raw) >= REVISION_DYNAMIC { Self::of(raw, &features) } else { Self::None }
    }

    /// The seed of all sums, where everything has one.
    #[must_use]
    pub const fn seed(self) -> Option<u32> {
        match self {
            Self::All(seed) => Some(seed),
            Self::None | Self::Groups(_) => None,
        }
    }

    /// What [`BG_CHECKSUM`] of the descriptor of `group` must be. `raw` is all of the descriptor.
    #[must_use]
    pub fn descriptor(self, group: u32, raw: &[u8]) -> Option<u16> {
        let (head, rest) = (&raw[..BG_CHECKSUM.offset()], &raw[BG_CHECKSUM.end()..]);
        match self {
            Self::None => None,
            Self::Groups(seed) => {
                Some([&group.to_le_bytes(), head, rest].iter().fold(seed, |sum, part| crc16(sum, part)))
            }
            Self::All(seed) => {
                let parts = [&group.to_le_bytes(), head, &[0, 0], rest];
                Some(low16(parts.iter().fold(seed, |sum, part| crc(sum, part))))
            }
        }
    }

    /// Puts the sum of the descriptor of `group` in place, if it has one.
    pub fn seal_descriptor(self, group: u32, raw: &mut [u8]) {
        if let Some(sum) = self.descriptor(group, raw) {
            BG_CHECKSUM.put(raw, sum);
        }
    }

    /// Whether the descriptor's sum is right, or it has none.
    #[must_use]
    pub fn is_descriptor_right(self, group: u32, raw: &[u8]) -> bool {
        self.descriptor(group, raw).is_none_or(|sum| sum == BG_CHECKSUM.get(raw))
    }

    /// The sum of a group's bitmap, of which `bits` bits count. Put into the descriptor by [`put_block_bitmap_sum`] or
    /// [`put_inode_bitmap_sum`].
    #[must_use]
    pub fn bitmap(self, bitmap: &[u8], bits: u32) -> Option<u32> {
        self.seed().map(|seed| crc(seed, &bitmap[..idx(bits / 8)]))
    }

    /// The seed of everything that belongs to inode `ino` of this generation.
    #[must_use]
    pub fn of_inode(self, ino: u32, generation: u32) -> InodeSums {
        InodeSums(self.seed().map(|seed| crc(crc(seed, &ino.to_le_bytes()), &generation.to_le_bytes())))
    }

    /// The sum of inode `ino`, of which `raw` is all: 32 bits, of which [`has_checksum_high`] says whether both halves are
    /// kept.
    #[must_use]
    pub fn inode(self, ino: u32, raw: &[u8]) -> Option<u32> {
        let InodeSums(seed) = self.of_inode(ino, I_GENERATION.get(raw));
        let seed = seed?;
        let low = I_CHECKSUM_LO.offset();
        let sum = crc(crc(crc(seed, &raw[..low]), &[0, 0]), &raw[low + 2..GOOD_OLD_SIZE]);
        let rest = &raw[GOOD_OLD_SIZE..];
        if !has_checksum_high(raw) {
            return Some(crc(sum, rest));
        }
        let high = I_CHECKSUM_HI.offset() - GOOD_OLD_SIZE;
        Some(crc(crc(crc(sum, &rest[..high]), &[0, 0]), &rest[high + 2..]))
    }

    /// Puts the inode's sum in place, if it has one.
    pub fn seal_inode(self, ino: u32, raw: &mut [u8]) {
        if let Some(sum) = self.inode(ino, raw) {
            I_CHECKSUM_LO.put(raw, low16(sum));
            if has_checksum_high(raw) {
                I_CHECKSUM_HI.put(raw, high16(sum));
            }
        }
    }

    /// Whether the inode's sum is right, or it has none.
    #[must_use]
    pub fn is_inode_right(self, ino: u32, raw: &[u8]) -> bool {
        self.inode(ino, raw).is_none_or(|sum| {
            I_CHECKSUM_LO.get(raw) == low16(sum)
                && (!has_checksum_high(raw) || I_CHECKSUM_HI.get(raw) == high16(sum))
        })
    }

    /// What [`H_CHECKSUM`] of the attribute block `raw` in `block` must be.
    #[must_use]
    pub fn attributes(self, block: u64, raw: &[u8]) -> Option<u32> {
        let parts = [&block.to_le_bytes(), &raw[..H_CHECKSUM.offset()], &[0; 4], &raw[H_CHECKSUM.end()..]];
        self.seed().map(|seed| parts.iter().fold(seed, |sum, part| crc(sum, part)))
    }

    /// Puts the sum of an attribute block in place, if it has one.
    pub fn seal_attributes(self, block: u64, raw: &mut [u8]) {
        if let Some(sum) = self.attributes(block, raw) {
            H_CHECKSUM.put(raw, sum);
        }
    }

    /// Whether the sum of an attribute block is right, or it has none.
    #[must_use]
    pub fn are_attributes_right(self, block: u64, raw: &[u8]) -> bool {
        self.attributes(block, raw).is_none_or(|sum| sum == H_CHECKSUM.get(raw))
    }

    /// What the last word of the multiple-mount block's structure must be.
    #[must_use]
    pub fn multiple_mount(self, raw: &[u8]) -> Option<u32> {
        self.seed().map(|seed| crc(seed, &raw[..SUPERBLOCK_SIZE - 4]))
    }
}

/// Whether the inode has room for the high half of its sum.
#[must_use]
pub fn has_checksum_high(raw: &[u8]) -> bool {
    raw.len() > GOOD_OLD_SIZE && has_extra(I_EXTRA_ISIZE.get(raw), I_CHECKSUM_HI.end())
}

/// The sum of a block bitmap, as the descriptor `raw` holds it: the high half is 0 in small descriptors, and `None` of what
/// is compared.
#[must_use]
pub fn block_bitmap_sum(raw: &[u8]) -> u32 {
    let high = if raw.len() >= LARGE_DESCRIPTOR_SIZE { BG_BLOCK_BITMAP_CSUM_HI.get(raw) } else { 0 };
    u32::from(BG_BLOCK_BITMAP_CSUM_LO.get(raw)) | u32::from(high) << 16
}

/// The same of an inode bitmap.
#[must_use]
pub fn inode_bitmap_sum(raw: &[u8]) -> u32 {
    let high = if raw.len() >= LARGE_DESCRIPTOR_SIZE { BG_INODE_BITMAP_CSUM_HI.get(raw) } else { 0 };
    u32::from(BG_INODE_BITMAP_CSUM_LO.get(raw)) | u32::from(high) << 16
}

/// As much of a bitmap's sum as a descriptor of `size` bytes keeps.
#[must_use]
pub const fn kept_of_bitmap_sum(sum: u32, size: usize) -> u32 {
    if size >= LARGE_DESCRIPTOR_SIZE { sum } else { sum & 0xffff }
}

/// Puts the sum of a block bitmap into its descriptor.
pub fn put_block_bitmap_sum(raw: &mut [u8], sum: u32) {
    BG_BLOCK_BITMAP_CSUM_LO.put(raw, low16(sum));
    if raw.len() >= LARGE_DESCRIPTOR_SIZE {
        BG_BLOCK_BITMAP_CSUM_HI.put(raw, high16(sum));
    }
}

/// Puts the sum of an inode bitmap into its descriptor.
pub fn put_inode_bitmap_sum(raw: &mut [u8], sum: u32) {
    BG_INODE_BITMAP_CSUM_LO.put(raw, low16(sum));
    if raw.len() >= LARGE_DESCRIPTOR_SIZE {
        BG_INODE_BITMAP_CSUM_HI.put(raw, high16(sum));
    }
}

const _: () = assert!(BG_CHECKSUM.end() == DESCRIPTOR_SIZE);

/// How the blocks of one inode are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InodeSums(Option<u32>);

/// A sum and the byte of its block where it lies.
pub type Placed = (usize, u32);

impl InodeSums {
    /// The seed, where there are sums; for what keeps it as a block's owner.
    #[must_use]
    pub const fn seed(self) -> Option<u32> {
        self.0
    }

    /// The sums that start from a seed that [`InodeSums::seed`] gave.
    #[must_use]
    pub const fn from_seed(seed: u32) -> Self {
        Self(Some(seed))
    }

    /// The sum of the directory leaf `raw`, which ends with a tail ([`has_directory_tail`]).
    #[must_use]
    pub fn directory_leaf(self, raw: &[u8]) -> Option<Placed> {
        let tail = raw.len() - DIRECTORY_TAIL;
        self.0.map(|seed| (tail + T_CHECKSUM.offset(), crc(seed, &raw[..tail])))
    }

    /// The sum of the block `raw` of a directory's index, whose count and limit of entries are at byte `counts`. `None` where
    /// these numbers cannot be right.
    #[must_use]
    pub fn directory_index(self, raw: &[u8], counts: usize) -> Option<Placed> {
        let (limit, count) = (usize::from(Le::u16(raw, counts)), usize::from(Le::u16(raw, counts + 2)));
        let tail = counts + limit * 8;
        if count > limit || tail + INDEX_TAIL > raw.len() {
            return None;
        }
        let parts = [&raw[..counts + count * 8], &raw[tail..tail + 4], &[0; 4]];
        self.0.map(|seed| (tail + 4, parts.iter().fold(seed, |sum, part| crc(sum, part))))
    }

    /// The sum of the extent node in the block `raw`; `None` also where its header leaves no room for one.
    #[must_use]
    pub fn extent_node(self, raw: &[u8]) -> Option<Placed> {
        let at = extent::tail_offset(raw)?;
        self.0.map(|seed| (at, crc(seed, &raw[..at])))
    }

    /// The sum of the block `raw` of the orphan file, which lies in `block`.
    #[must_use]
    pub fn orphan_block(self, block: u64, raw: &[u8]) -> Option<Placed> {
        let tail = raw.len() - ORPHAN_TAIL;
        self.0.map(|seed| (tail + 4, crc(crc(seed, &block.to_le_bytes()), &raw[..tail])))
    }
}

/// Whether the sum in its place is the one that it must be.
#[must_use]
pub fn is_placed(raw: &[u8], (at, sum): Placed) -> bool {
    Le::u32(raw, at) == sum
}

/// Puts a sum in its place.
pub fn place(raw: &mut [u8], (at, sum): Placed) {
    Le::put_u32(raw, at, sum);
}

/// Where the count and the limit of entries are in a block of a directory's index; `None` if it is none. The first block of an
/// indexed directory has `.` and `..` before them, the others an empty entry as long as the block.
#[must_use]
pub fn index_counts(raw: &[u8]) -> Option<usize> {
    let first = dirent::rec_len(raw, raw.len());
    if first == raw.len() && D_INODE.get(raw) == 0 {
        return Some(dirent::HEADER);
    }
    let second = &raw[dirent::ENTRY_MIN..];
    let info = &raw[INDEX_INFO..];
    let rooted = first == dirent::ENTRY_MIN
        && D_NAME_LEN.get(raw) == 1
        && usize::from(D_REC_LEN.get(second)) == raw.len() - dirent::ENTRY_MIN
        && D_NAME_LEN.get(second) == 2
        && Le::u32(info, 0) == 0
        && info[INDEX_INFO_LENGTH] == 8;
    rooted.then_some(INDEX_INFO + 8)
}

/// Whether the directory block `raw` ends with a tail.
#[must_use]
pub fn has_directory_tail(raw: &[u8]) -> bool {
    let tail = &raw[raw.len() - DIRECTORY_TAIL..];
    D_INODE.get(tail) == 0
        && usize::from(D_REC_LEN.get(tail)) == DIRECTORY_TAIL
        && D_NAME_LEN.get(tail) == 0
        && D_FILE_TYPE.get(tail) == DIRECTORY_TAIL_KIND
}

/// Writes a tail without its sum to the end of the directory block `raw`.
pub fn put_directory_tail(raw: &mut [u8]) {
    let at = raw.len() - DIRECTORY_TAIL;
    let tail = &mut raw[at..];
    tail.fill(0);
    D_REC_LEN.put(tail, u16::try_from(DIRECTORY_TAIL).expect("12"));
    D_FILE_TYPE.put(tail, DIRECTORY_TAIL_KIND);
}

#[cfg(test)]
mod tests;
