//! The blocks of a transaction: descriptors with tags, revoke blocks, commit blocks, and copies.
//!
//! **Layout.** A descriptor is a header and tags, one for each copy in the blocks behind it, in order. A tag has
//! one of four shapes:
//!
//! ```text
//!   plain        block 4 │ checksum 2 │ flags 2 │ (64-bit: block's high half 4) │ (checksums v2: 2 unused)
//!   checksums v3 block 4 │ flags 4 │ block's high half 4 │ checksum 4
//! ```
//!
//! and is followed by 16 bytes of identifier unless it says that the identifier is the one before. Descriptors and
//! revoke blocks with checksums end with four bytes of it.

use fstitch_core::num::to_usize;
use fstitch_core::{Be, Timestamp};

use super::checksum::{START, crc32c};
use super::format::{BlockType, Checksums, HEADER_SIZE, Header, MAGIC, Sequence, Superblock};

/// Tag flag: the copy starts with the journal's magic number, which was replaced by zero.
pub const TAG_ESCAPE: u32 = 1;
/// Tag flag: no identifier follows.
pub const TAG_SAME_UUID: u32 = 2;
/// Tag flag: the block was deleted by this transaction. Nobody writes it; the copy is there all the same.
pub const TAG_DELETED: u32 = 4;
/// Tag flag: the last tag of the descriptor.
pub const TAG_LAST: u32 = 8;

/// `r_count`: bytes of a revoke block in use, the sixteen up to here included.
const R_COUNT: usize = HEADER_SIZE;
/// Where the entries of a revoke block start.
const REVOKES: usize = 16;
const H_CHKSUM_TYPE: usize = 0x0c;
const H_CHKSUM_SIZE: usize = 0x0d;
const H_CHKSUM: usize = 0x10;
const H_COMMIT_SEC: usize = 0x30;
const H_COMMIT_NSEC: usize = 0x38;
/// `h_chksum_type` of the CRC-32 over a transaction.
const CHECKSUM_CRC32: u8 = 1;
/// Bytes of an identifier.
const UUID_SIZE: usize = 16;
/// Bytes of the checksum at the end of a block.
const TAIL_SIZE: usize = 4;

/// A tag: where a copy belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// The copy's home.
    pub block: u64,
    /// [`TAG_ESCAPE`] and the others.
    pub flags: u32,
    /// The copy's checksum, in journals that have it: 16 bits of it in version 2.
    pub checksum: u32,
}

impl Tag {
    /// The copy's first four bytes were replaced.
    #[must_use]
    pub const fn is_escaped(&self) -> bool {
        self.flags & TAG_ESCAPE != 0
    }
}

/// What a commit block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// When the transaction was committed.
    pub time: Timestamp,
    /// The CRC-32 over the transaction's descriptors and copies, if it has one.
    pub transaction_sum: Option<u32>,
}

/// How the blocks of one journal are shaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    block_size: usize,
    is_wide: bool,
    checksums: Checksums,
    /// The checksum of the journal's identifier, from which those of its blocks start.
    seed: u32,
    uuid: [u8; 16],
}

impl Shape {
    /// The shape of blocks in a journal with this superblock.
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        Self {
            block_size: to_usize(superblock.block_size),
            is_wide: superblock.features.is_wide(),
            checksums: superblock.features.checksums(),
            seed: crc32c(START, &superblock.uuid),
            uuid: superblock.uuid,
        }
    }

    /// Bytes per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// The checksums in use.
    #[must_use]
    pub const fn checksums(&self) -> Checksums {
        self.checksums
    }

    const fn sums_blocks(&self) -> bool {
        matches!(self.checksums, Checksums::V2 | Checksums::V3)
    }

    /// Bytes of a tag without its identifier.
    const fn tag_size(&self) -> usize {
        match (self.checksums, self.is_wide) {
            (Checksums::V3, _) => 16,
            (Checksums::V2, true) => 14,
            (Checksums::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Where the part of a block that ends with a checksum ends.
    const fn end(&self) -> usize {
        if self.sums_blocks() { self.block_size - TAIL_SIZE } else { self.block_size }
    }

    /// How many tags a descriptor holds, its one identifier included.
    #[must_use]
    pub const fn tags_max(&self) -> usize {
        (self.end() - HEADER_SIZE - UUID_SIZE) / self.tag_size()
    }

    const fn entry_size(&self) -> usize {
        if self.is_wide { 8 } else { 4 }
    }

    /// How many entries a revoke block holds.
    #[must_use]
    pub const fn revokes_max(&self) -> usize {
        (self.end() - REVOKES) / self.entry_size()
    }

    // ---- reading ----

    /// The tags of a descriptor: up to the last one, or as many as there is room for.
    #[must_use]
    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let mut tags = Vec::new();
        let mut at = HEADER_SIZE;
        while at + self.tag_size() <= self.end() {
            let tag = self.tag(&block[at..]);
            tags.push(tag);
            at += self.tag_size();
            if tag.flags & TAG_SAME_UUID == 0 {
                at += UUID_SIZE;
            }
            if tag.flags & TAG_LAST != 0 {
                break;
            }
        }
        tags
    }

    fn tag(&self, bytes: &[u8]) -> Tag {
        let low = u64::from(Be::u32(bytes, 0));
        let high = if self.is_wide { u64::from(Be::u32(bytes, 8)) } else { 0 };
        let (flags, checksum) = match self.checksums {
            Checksums::V3 => (Be::u32(bytes, 4), Be::u32(bytes, 12)),
            _ => (u32::from(Be::u16(bytes, 6)), u32::from(Be::u16(bytes, 4))),
        };
        Tag { block: low | high << 32, flags, checksum }
    }

    /// The block numbers of a revoke block; `None` if it claims to have more than it can, or less than nothing.
    #[must_use]
    pub fn revokes(&self, block: &[u8]) -> Option<Vec<u64>> {
        let used = usize::try_from(Be::u32(block, R_COUNT)).ok()?;
        if used < REVOKES || used > self.end() {
            return None;
        }
        let entries = block[REVOKES..used].chunks_exact(self.entry_size());
        Some(
            entries
                .map(|entry| if self.is_wide { Be::u64(entry, 0) } else { u64::from(Be::u32(entry, 0)) })
                .collect(),
        )
    }

    /// What a commit block says. Without checksums over transactions, that part of it means nothing.
    #[must_use]
    pub fn commit(&self, block: &[u8]) -> Commit {
        let secs = i64::try_from(Be::u64(block, H_COMMIT_SEC)).unwrap_or(i64::MAX);
        // Nanoseconds beyond a second would be damage, but no more than a shown time depends on them.
        let nanos = Be::u32(block, H_COMMIT_NSEC).min(999_999_999);
        let summed = self.checksums == Checksums::Commit && block[H_CHKSUM_TYPE] != 0;
        Commit { time: Timestamp { secs, nanos }, transaction_sum: summed.then(|| Be::u32(block, H_CHKSUM)) }
    }

    /// Whether the checksum of a descriptor or revoke block is right, if it has one.
    #[must_use]
    pub fn tail_is_right(&self, block: &[u8]) -> bool {
        !self.sums_blocks() || Be::u32(block, self.end()) == self.sum_without(block, self.end())
    }

    /// Whether the checksum of a commit block itself is right, if it has one.
    #[must_use]
    pub fn commit_is_right(&self, block: &[u8]) -> bool {
        !self.sums_blocks() || Be::u32(block, H_CHKSUM) == self.sum_without(block, H_CHKSUM)
    }

    /// Whether `copy`, as it is in the journal, is the one that `tag` was written for, if tags say so.
    #[must_use]
    pub fn copy_is_right(&self, tag: &Tag, sequence: Sequence, copy: &[u8]) -> bool {
        !self.sums_blocks() || tag.checksum == self.tag_sum(sequence, copy)
    }

    /// The checksum of `block` as if the four bytes at `at` were zero.
    fn sum_without(&self, block: &[u8], at: usize) -> u32 {
        let sum = crc32c(crc32c(self.seed, &block[..at]), &[0; 4]);
        crc32c(sum, &block[at + 4..])
    }

    /// The checksum of a copy as it is in the journal, in the width that tags have.
    fn tag_sum(&self, sequence: Sequence, copy: &[u8]) -> u32 {
        let sum = crc32c(crc32c(self.seed, &sequence.0.to_be_bytes()), copy);
        if self.checksums == Checksums::V3 { sum } else { sum & 0xffff }
    }

    // ---- writing ----

    /// The tag for `copy`, as it is in the journal (see [`escape`]), which belongs to `home`.
    #[must_use]
    pub fn tag_for(&self, home: u64, is_escaped: bool, sequence: Sequence, copy: &[u8]) -> Tag {
        Tag {
            block: home,
            flags: if is_escaped { TAG_ESCAPE } else { 0 },
            checksum: if self.sums_blocks() { self.tag_sum(sequence, copy) } else { 0 },
        }
    }

    /// Fills `block` with a descriptor. The flags for the identifier and the last tag are set as their places ask.
    ///
    /// # Panics
    /// If there is no tag, there are more than [`Shape::tags_max`], or `block` is not one block long.
    pub fn put_descriptor(&self, block: &mut [u8], sequence: Sequence, tags: &[Tag]) {
        assert!(!tags.is_empty() && tags.len() <= self.tags_max(), "{} tags in a descriptor", tags.len());
        self.begin(block, BlockType::Descriptor, sequence);
        let mut at = HEADER_SIZE;
        for (index, tag) in tags.iter().enumerate() {
            let mut flags = tag.flags & TAG_ESCAPE;
            if index > 0 {
                flags |= TAG_SAME_UUID;
            }
            if index + 1 == tags.len() {
                flags |= TAG_LAST;
            }
            self.put_tag(&mut block[at..], &Tag { flags, ..*tag });
            at += self.tag_size();
            if index == 0 {
                block[at..at + UUID_SIZE].copy_from_slice(&self.uuid);
                at += UUID_SIZE;
            }
        }
        self.put_tail(block);
    }

    fn put_tag(&self, bytes: &mut [u8], tag: &Tag) {
        let (low, high) = halves(tag.block);
        assert!(self.is_wide || high == 0, "block {} in a journal of 32 bits", tag.block);
        Be::put_u32(bytes, 0, low);
        if self.checksums == Checksums::V3 {
            Be::put_u32(bytes, 4, tag.flags);
            Be::put_u32(bytes, 8, high);
            Be::put_u32(bytes, 12, tag.checksum);
            return;
        }
        let narrow = |word: u32| u16::try_from(word & 0xffff).expect("masked to 16 bits");
        Be::put_u16(bytes, 4, narrow(tag.checksum));
        Be::put_u16(bytes, 6, narrow(tag.flags));
        if self.is_wide {
            Be::put_u32(bytes, 8, high);
        }
    }

    /// Fills `block` with a revoke block.
    ///
    /// # Panics
    /// If there are more than [`Shape::revokes_max`] numbers, or `block` is not one block long.
    pub fn put_revoke(&self, block: &mut [u8], sequence: Sequence, revoked: &[u64]) {
        assert!(revoked.len() <= self.revokes_max(), "{} entries in a revoke block", revoked.len());
        self.begin(block, BlockType::Revoke, sequence);
        let used = REVOKES + revoked.len() * self.entry_size();
        Be::put_u32(block, R_COUNT, u32::try_from(used).expect("a position in a block"));
        for (entry, &no) in block[REVOKES..used].chunks_exact_mut(self.entry_size()).zip(revoked) {
            let (low, high) = halves(no);
            if self.is_wide {
                Be::put_u64(entry, 0, no);
            } else {
                assert!(high == 0, "block {no} in a journal of 32 bits");
                Be::put_u32(entry, 0, low);
            }
        }
        self.put_tail(block);
    }

    /// Fills `block` with a commit block. `transaction_sum` is the CRC-32 over the transaction's descriptors and
    /// copies ([`super::checksum::crc32`] from [`START`]), for journals with [`Checksums::Commit`].
    pub fn put_commit(&self, block: &mut [u8], sequence: Sequence, time: Timestamp, transaction_sum: u32) {
        self.begin(block, BlockType::Commit, sequence);
        Be::put_u64(block, H_COMMIT_SEC, time.secs.max(0).cast_unsigned());
        Be::put_u32(block, H_COMMIT_NSEC, time.nanos);
        match self.checksums {
            Checksums::None => {}
            Checksums::Commit => {
                block[H_CHKSUM_TYPE] = CHECKSUM_CRC32;
                block[H_CHKSUM_SIZE] = 4;
                Be::put_u32(block, H_CHKSUM, transaction_sum);
            }
            Checksums::V2 | Checksums::V3 => {
                let sum = self.sum_without(block, H_CHKSUM);
                Be::put_u32(block, H_CHKSUM, sum);
            }
        }
    }

    fn begin(&self, block: &mut [u8], kind: BlockType, sequence: Sequence) {
        assert_eq!(block.len(), self.block_size, "one whole block");
        block.fill(0);
        Header::put(block, kind, sequence);
    }

    fn put_tail(&self, block: &mut [u8]) {
        if self.sums_blocks() {
            let sum = self.sum_without(block, self.end());
            Be::put_u32(block, self.end(), sum);
        }
    }
}

/// Hides the magic number at the start of a copy; whether there was one. A copy that started with it would be taken
/// for a block of the journal's own.
#[must_use]
pub fn escape(copy: &mut [u8]) -> bool {
    let starts = Be::u32(copy, 0) == MAGIC;
    if starts {
        Be::put_u32(copy, 0, 0);
    }
    starts
}

/// Gives a copy whose tag says [`TAG_ESCAPE`] its first four bytes back.
pub fn unescape(copy: &mut [u8]) {
    Be::put_u32(copy, 0, MAGIC);
}

fn halves(number: u64) -> (u32, u32) {
    let half = |half: u64| u32::try_from(half & 0xffff_ffff).expect("masked to 32 bits");
    (half(number), half(number >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::format::{
        COMPAT_CHECKSUM, INCOMPAT_64BIT, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3, INCOMPAT_REVOKE,
    };

    fn shapes() -> Vec<(Shape, u32)> {
        let mut shapes = Vec::new();
        for block_size in [1024, 2048, 4096] {
            for sums in [0, INCOMPAT_CSUM_V2, INCOMPAT_CSUM_V3] {
                for wide in [0, INCOMPAT_64BIT] {
                    let mut superblock = Superblock::new(block_size, 1024, 1, [9; 16]);
                    superblock.features.incompat = INCOMPAT_REVOKE | sums | wide;
                    shapes.push((Shape::new(&superblock), wide));
                }
            }
            let mut superblock = Superblock::new(block_size, 1024, 1, [9; 16]);
            superblock.features.compat = COMPAT_CHECKSUM;
            shapes.push((Shape::new(&superblock), 0));
        }
        shapes
    }

    #[test]
    fn descriptors_of_all_shapes_and_fillings_round_trip() {
        for (shape, wide) in shapes() {
            let copy = vec![3; shape.block_size()];
            for count in [1, 2, shape.tags_max()] {
                let home = |i: usize| u64::try_from(i).unwrap() * 7 + if wide == 0 { 0 } else { 1 << 40 };
                let tags: Vec<Tag> =
                    (0..count).map(|i| shape.tag_for(home(i), i % 3 == 0, Sequence(5), &copy)).collect();
                let mut block = vec![0xee; shape.block_size()];
                shape.put_descriptor(&mut block, Sequence(5), &tags);
                assert!(shape.tail_is_right(&block));
                let found = shape.tags(&block);
                assert_eq!(found.len(), count);
                for (found, tag) in found.iter().zip(&tags) {
                    assert_eq!((found.block, found.is_escaped()), (tag.block, tag.is_escaped()));
                    assert!(shape.copy_is_right(found, Sequence(5), &copy));
                    assert_eq!(shape.copy_is_right(found, Sequence(6), &copy), !shape.sums_blocks());
                }
                block[40] ^= 1;
                assert_eq!(shape.tail_is_right(&block), !shape.sums_blocks());
            }
        }
    }

    #[test]
    fn revoke_blocks_round_trip() {
        for (shape, _) in shapes() {
            for count in [0, 1, shape.revokes_max()] {
                let revoked: Vec<u64> = (0..u64::try_from(count).unwrap()).map(|i| i * 3).collect();
                let mut block = vec![0xee; shape.block_size()];
                shape.put_revoke(&mut block, Sequence(5), &revoked);
                assert!(shape.tail_is_right(&block));
                assert_eq!(shape.revokes(&block).unwrap(), revoked);
            }
            let mut block = vec![0; shape.block_size()];
            for count in [0, 15, u32::try_from(shape.block_size()).unwrap() + 1, u32::MAX] {
                Be::put_u32(&mut block, R_COUNT, count);
                assert_eq!(shape.revokes(&block), None);
            }
        }
    }

    #[test]
    fn commit_blocks_round_trip() {
        let time = Timestamp { secs: 1_700_000_000, nanos: 5 };
        for (shape, _) in shapes() {
            let mut block = vec![0xee; shape.block_size()];
            shape.put_commit(&mut block, Sequence(5), time, 77);
            let commit = shape.commit(&block);
            assert_eq!(commit.time, time);
            assert_eq!(commit.transaction_sum, (shape.checksums() == Checksums::Commit).then_some(77));
            assert!(shape.commit_is_right(&block));
            block[H_COMMIT_SEC + 7] ^= 1;
            assert_eq!(shape.commit_is_right(&block), !shape.sums_blocks());
        }
    }

    #[test]
    fn copies_never_look_like_blocks_of_the_journal() {
        let mut copy = vec![1; 1024];
        assert!(!escape(&mut copy));
        Be::put_u32(&mut copy, 0, MAGIC);
        let original = copy.clone();
        assert!(escape(&mut copy) && Header::parse(&copy).is_none());
        unescape(&mut copy);
        assert_eq!(copy, original);
    }

    #[test]
    fn no_bytes_make_the_parsers_panic_or_loop() {
        let mut seed = fstitch_core::Seed::new(4);
        for (shape, _) in shapes() {
            for _ in 0..200 {
                let random = |_| u8::try_from(seed.below(256)).unwrap();
                let block: Vec<u8> = (0..shape.block_size()).map(random).collect();
                assert!(shape.tags(&block).len() <= shape.block_size() / 8);
                let _ = (shape.revokes(&block), shape.commit(&block));
            }
        }
    }
}
