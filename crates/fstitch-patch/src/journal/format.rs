//! The journal's superblock, the header of its blocks, and what its features mean for the others.
//!
//! **Layout.** All integers are big-endian. Every block of the log but the copies starts with a header of
//! twelve bytes: magic, type, sequence. The superblock is 1024 bytes at the start of its block; version 1 ends
//! behind `s_errno`. Every field: `docs/spec/jbd.md`.

use fstitch_core::{Be, Error, Result, Structure};

use super::checksum::{START, crc32c};

/// What every block of the journal but the copies starts with.
pub const MAGIC: u32 = 0xc03b_3998;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 12;
/// Bytes of the superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// File systems that can share an external journal.
pub const USERS_MAX: u32 = 48;

/// Offsets in the header and the superblock, with the names of the format.
pub mod offset {
    #![allow(missing_docs)]
    pub const H_MAGIC: usize = 0;
    pub const H_BLOCKTYPE: usize = 4;
    pub const H_SEQUENCE: usize = 8;
    pub const S_BLOCKSIZE: usize = 0x0c;
    pub const S_MAXLEN: usize = 0x10;
    pub const S_FIRST: usize = 0x14;
    pub const S_SEQUENCE: usize = 0x18;
    pub const S_START: usize = 0x1c;
    pub const S_ERRNO: usize = 0x20;
    pub const S_FEATURE_COMPAT: usize = 0x24;
    pub const S_FEATURE_INCOMPAT: usize = 0x28;
    pub const S_FEATURE_RO_COMPAT: usize = 0x2c;
    pub const S_UUID: usize = 0x30;
    pub const S_NR_USERS: usize = 0x40;
    pub const S_DYNSUPER: usize = 0x44;
    pub const S_MAX_TRANSACTION: usize = 0x48;
    pub const S_MAX_TRANS_DATA: usize = 0x4c;
    pub const S_CHECKSUM_TYPE: usize = 0x50;
    pub const S_NUM_FC_BLKS: usize = 0x54;
    pub const S_HEAD: usize = 0x58;
    pub const S_CHECKSUM: usize = 0xfc;
    pub const S_USERS: usize = 0x100;

    const _: () = {
        assert!(H_SEQUENCE + 4 == super::HEADER_SIZE && S_BLOCKSIZE == super::HEADER_SIZE);
        assert!(S_FEATURE_RO_COMPAT + 4 == S_UUID && S_UUID + 16 == S_NR_USERS);
        assert!(S_CHECKSUM + 4 == S_USERS && S_USERS + 16 * 48 == super::SUPERBLOCK_SIZE);
    };
}

/// The number of a transaction. Numbers wrap around, so they are compared by their distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sequence(pub u32);

impl Sequence {
    /// The number of the following transaction.
    #[must_use]
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// The number of the transaction that is `count` further on.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }

    /// Whether this transaction comes after `other`: the shorter way around leads forward from `other`.
    #[must_use]
    pub const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }
}

impl std::fmt::Display for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a block of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// Tags: where the copies behind it belong.
    Descriptor,
    /// The end of a transaction.
    Commit,
    /// The superblock without features.
    SuperblockV1,
    /// The superblock with features.
    SuperblockV2,
    /// Blocks whose older copies must not be replayed.
    Revoke,
}

impl BlockType {
    const ALL: [(u32, Self); 5] = [
        (1, Self::Descriptor),
        (2, Self::Commit),
        (3, Self::SuperblockV1),
        (4, Self::SuperblockV2),
        (5, Self::Revoke),
    ];

    /// The number on the medium.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }

    /// What the number on the medium stands for.
    #[must_use]
    pub fn of(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == code).map(|(_, kind)| kind)
    }
}

/// The header of a block of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type's number; [`BlockType::of`] knows the valid ones.
    pub code: u32,
    /// The transaction that the block belongs to.
    pub sequence: Sequence,
}

impl Header {
    /// The header of `block`; `None` if the block does not start with [`MAGIC`].
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<Self> {
        (Be::u32(block, offset::H_MAGIC) == MAGIC).then(|| Self {
            code: Be::u32(block, offset::H_BLOCKTYPE),
            sequence: Sequence(Be::u32(block, offset::H_SEQUENCE)),
        })
    }

    /// Writes a header at the start of `block`.
    pub fn put(block: &mut [u8], kind: BlockType, sequence: Sequence) {
        Be::put_u32(block, offset::H_MAGIC, MAGIC);
        Be::put_u32(block, offset::H_BLOCKTYPE, kind.code());
        Be::put_u32(block, offset::H_SEQUENCE, sequence.0);
    }
}

/// Compatible feature: commit blocks have a checksum over the transaction.
pub const COMPAT_CHECKSUM: u32 = 0x1;
/// Incompatible feature: there are revoke blocks.
pub const INCOMPAT_REVOKE: u32 = 0x1;
/// Incompatible feature: block numbers have 64 bits.
pub const INCOMPAT_64BIT: u32 = 0x2;
/// Incompatible feature: commit blocks do not wait for what is before them.
pub const INCOMPAT_ASYNC_COMMIT: u32 = 0x4;
/// Incompatible feature: checksums of blocks, 16 bits of them in tags.
pub const INCOMPAT_CSUM_V2: u32 = 0x8;
/// Incompatible feature: checksums of blocks, whole ones in larger tags.
pub const INCOMPAT_CSUM_V3: u32 = 0x10;
/// Incompatible feature: a second log of a format of its own behind the first ([`super::fast`]).
pub const INCOMPAT_FAST_COMMIT: u32 = 0x20;

const COMPAT_NAMES: [(u32, &str); 1] = [(COMPAT_CHECKSUM, "journal_checksum")];
const INCOMPAT_NAMES: [(u32, &str); 6] = [
    (INCOMPAT_REVOKE, "journal_incompat_revoke"),
    (INCOMPAT_64BIT, "journal_64bit"),
    (INCOMPAT_ASYNC_COMMIT, "journal_async_commit"),
    (INCOMPAT_CSUM_V2, "journal_checksum_v2"),
    (INCOMPAT_CSUM_V3, "journal_checksum_v3"),
    (INCOMPAT_FAST_COMMIT, "fast_commit"),
];
const INCOMPAT_KNOWN: u32 = INCOMPAT_REVOKE
    | INCOMPAT_64BIT
    | INCOMPAT_ASYNC_COMMIT
    | INCOMPAT_CSUM_V2
    | INCOMPAT_CSUM_V3
    | INCOMPAT_FAST_COMMIT;
/// Blocks for fast commits where the superblock does not say how many.
const FAST_BLOCKS: u32 = 256;

/// The three feature words of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// Compatible.
    pub compat: u32,
    /// Incompatible.
    pub incompat: u32,
    /// Read-only compatible.
    pub ro_compat: u32,
}

/// The first block that a journal without the feature `64bit` cannot name.
pub const NARROW_END: u64 = 1 << 32;

/// How a journal protects its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// Not at all: ext3.
    None,
    /// A CRC-32 over a transaction's descriptors and copies, in its commit block.
    Commit,
    /// CRC-32C everywhere, 16 bits of it in tags.
    V2,
    /// CRC-32C everywhere.
    V3,
}

impl Features {
    const fn has(self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    /// Block numbers have 64 bits.
    #[must_use]
    pub const fn is_wide(self) -> bool {
        self.has(INCOMPAT_64BIT)
    }

    /// The checksums in use.
    #[must_use]
    pub const fn checksums(self) -> Checksums {
        if self.has(INCOMPAT_CSUM_V3) {
            Checksums::V3
        } else if self.has(INCOMPAT_CSUM_V2) {
            Checksums::V2
        } else if self.compat & COMPAT_CHECKSUM != 0 {
            Checksums::Commit
        } else {
            Checksums::None
        }
    }

    /// The names of all features, as `dumpe2fs` prints them.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        let mut names = names(self.compat, &COMPAT_NAMES);
        names.extend(names_of_incompat(self.incompat));
        names.extend(names_unknown(self.ro_compat));
        names
    }

    /// Refuses journals that cannot be replayed in full.
    ///
    /// # Errors
    /// `Unsupported`, by name; `Corrupt` for two formats of tags at once.
    pub fn check(self) -> Result<()> {
        let unknown = self.incompat & !INCOMPAT_KNOWN;
        if unknown != 0 {
            let names = names_of_incompat(unknown).join(", ");
            return Err(Error::Unsupported(format!("a journal with feature {names}")));
        }
        if self.ro_compat != 0 {
            let names = names_unknown(self.ro_compat).join(", ");
            return Err(Error::Unsupported(format!("a journal with read-only compatible feature {names}")));
        }
        if self.has(INCOMPAT_CSUM_V2) && self.has(INCOMPAT_CSUM_V3) {
            return Err(damaged("checksums of version 2 and of version 3 at once".into()));
        }
        if self.has(INCOMPAT_ASYNC_COMMIT) && self.checksums() == Checksums::None {
            // Nothing would tell a whole transaction from one whose copies never arrived.
            let text = "a journal with feature journal_async_commit and without checksums";
            return Err(Error::Unsupported(text.into()));
        }
        Ok(())
    }
}

fn names(word: u32, table: &[(u32, &str)]) -> Vec<String> {
    let name = |bit: u32| match table.iter().find(|(known, _)| *known == bit) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("{bit:#x}"),
    };
    (0..u32::BITS).map(|shift| 1 << shift).filter(|bit| word & bit != 0).map(name).collect()
}

fn names_of_incompat(word: u32) -> Vec<String> {
    names(word, &INCOMPAT_NAMES)
}

fn names_unknown(word: u32) -> Vec<String> {
    names(word, &[])
}

/// A validated superblock of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Version 2: there are features, an identifier and users.
    pub is_v2: bool,
    /// Bytes per block of the journal.
    pub block_size: u32,
    /// Blocks of the journal, the superblock included.
    pub len: u32,
    /// The first block of the circular log.
    pub first: u32,
    /// Blocks behind the log that are for fast commits; 0 without the feature.
    pub fast_blocks: u32,
    /// The first transaction that is in the log, or would be.
    pub sequence: Sequence,
    /// The block where that transaction starts; 0 if the log is empty.
    pub start: u32,
    /// The error that the last user met, as a negative errno; 0 for none.
    pub errno: i32,
    /// Features.
    pub features: Features,
    /// The journal's identifier.
    pub uuid: [u8; 16],
    /// File systems that use the journal, if it is external.
    pub user_count: u32,
}

impl Superblock {
    /// Has block numbers of 64 bits from now on. Nothing may be in the log: who reads it must know which they have.
    ///
    /// # Panics
    /// If there is something in the log.
    pub fn widen(&mut self) {
        assert!(self.start == 0, "a log that is in use keeps its numbers");
        self.is_v2 = true;
        self.features.incompat |= INCOMPAT_64BIT;
    }

    /// The superblock of an empty journal of version 2 without features: `len` blocks of `block_size` bytes, whose
    /// log starts at block `first`.
    #[must_use]
    pub const fn new(block_size: u32, len: u32, first: u32, uuid: [u8; 16]) -> Self {
        Self {
            is_v2: true,
            block_size,
            len,
            first,
            fast_blocks: 0,
            sequence: Sequence(1),
            start: 0,
            errno: 0,
            features: Features { compat: 0, incompat: 0, ro_compat: 0 },
            uuid,
            user_count: 1,
        }
    }

    /// Reads and checks the superblock in the first 1024 bytes of `raw`. `blocks` is how many blocks there are for
    /// the journal, `block_size` how large they are.
    ///
    /// # Errors
    /// `Corrupt` for impossible values; `Unsupported` for features and for blocks of another size.
    pub fn parse(raw: &[u8], block_size: u32, blocks: u64) -> Result<Self> {
        let superblock = Self::decode(raw)?;
        superblock.features.check()?;
        if superblock.block_size != block_size {
            let found = superblock.block_size;
            return Err(damaged(format!("blocks of {found} bytes, expected {block_size}")));
        }
        superblock.check_checksum(raw)?;
        superblock.check_shape(blocks)?;
        Ok(superblock)
    }

    /// Reads the superblock and checks nothing but that it is one. For tools that show damaged ones.
    ///
    /// # Errors
    /// `Corrupt` if it is none.
    pub fn decode(raw: &[u8]) -> Result<Self> {
        let Some(header) = Header::parse(raw) else {
            let found = Be::u32(raw, offset::H_MAGIC);
            return Err(damaged(format!("magic {found:#010x}, expected {MAGIC:#010x}")));
        };
        let is_v2 = match BlockType::of(header.code) {
            Some(BlockType::SuperblockV1) => false,
            Some(BlockType::SuperblockV2) => true,
            _ => return Err(damaged(format!("a block of type {}", header.code))),
        };
        // What is behind the fields of version 1 means nothing there.
        let v2 = |at| if is_v2 { Be::u32(raw, at) } else { 0 };
        let mut uuid = [0; 16];
        if is_v2 {
            uuid.copy_from_slice(&raw[offset::S_UUID..offset::S_UUID + 16]);
        }
        let features = Features {
            compat: v2(offset::S_FEATURE_COMPAT),
            incompat: v2(offset::S_FEATURE_INCOMPAT),
            ro_compat: v2(offset::S_FEATURE_RO_COMPAT),
        };
        let fast_blocks = match v2(offset::S_NUM_FC_BLKS) {
            _ if !features.has(INCOMPAT_FAST_COMMIT) => 0,
            0 => FAST_BLOCKS,
            blocks => blocks,
        };
        Ok(Self {
            is_v2,
            block_size: Be::u32(raw, offset::S_BLOCKSIZE),
            len: Be::u32(raw, offset::S_MAXLEN),
            first: Be::u32(raw, offset::S_FIRST),
            fast_blocks,
            sequence: Sequence(Be::u32(raw, offset::S_SEQUENCE)),
            start: Be::u32(raw, offset::S_START),
            errno: Be::u32(raw, offset::S_ERRNO).cast_signed(),
            features,
            uuid,
            user_count: v2(offset::S_NR_USERS),
        })
    }

    fn check_shape(&self, blocks: u64) -> Result<()> {
        let Self { len, first, start, fast_blocks, .. } = *self;
        if u64::from(len) > blocks {
            return Err(damaged(format!("{len} blocks, but there are only {blocks} for the journal")));
        }
        let end = len.saturating_sub(fast_blocks);
        // A transaction of one block takes three: descriptor, copy, commit.
        if first == 0 || end.saturating_sub(first) < 3 {
            return Err(damaged(format!("a log of blocks {first}..{end}")));
        }
        if start != 0 && !(first..end).contains(&start) {
            return Err(damaged(format!("the log starts at block {start}, expected {first}..{end}")));
        }
        Ok(())
    }

    fn check_checksum(&self, raw: &[u8]) -> Result<()> {
        if !matches!(self.features.checksums(), Checksums::V2 | Checksums::V3) {
            return Ok(());
        }
        let kind = raw[offset::S_CHECKSUM_TYPE];
        if kind != CHECKSUM_CRC32C {
            return Err(Error::Unsupported(format!("a journal with checksums of type {kind}")));
        }
        let (found, expected) = (Be::u32(raw, offset::S_CHECKSUM), superblock_sum(raw));
        if found == expected {
            return Ok(());
        }
        Err(damaged(format!("checksum {found:#010x}, expected {expected:#010x}")))
    }

    /// Writes the fields into the superblock's 1024 bytes; what we do not model is kept.
    pub fn encode_into(&self, raw: &mut [u8]) {
        let kind = if self.is_v2 { BlockType::SuperblockV2 } else { BlockType::SuperblockV1 };
        // The header's own sequence is never used.
        let header_sequence = Sequence(Be::u32(raw, offset::H_SEQUENCE));
        Header::put(raw, kind, header_sequence);
        Be::put_u32(raw, offset::S_BLOCKSIZE, self.block_size);
        Be::put_u32(raw, offset::S_MAXLEN, self.len);
        Be::put_u32(raw, offset::S_FIRST, self.first);
        Be::put_u32(raw, offset::S_SEQUENCE, self.sequence.0);
        Be::put_u32(raw, offset::S_START, self.start);
        Be::put_u32(raw, offset::S_ERRNO, self.errno.cast_unsigned());
        if !self.is_v2 {
            return;
        }
        Be::put_u32(raw, offset::S_FEATURE_COMPAT, self.features.compat);
        Be::put_u32(raw, offset::S_FEATURE_INCOMPAT, self.features.incompat);
        Be::put_u32(raw, offset::S_FEATURE_RO_COMPAT, self.features.ro_compat);
        raw[offset::S_UUID..offset::S_UUID + 16].copy_from_slice(&self.uuid);
        Be::put_u32(raw, offset::S_NR_USERS, self.user_count);
        if matches!(self.features.checksums(), Checksums::V2 | Checksums::V3) {
            raw[offset::S_CHECKSUM_TYPE] = CHECKSUM_CRC32C;
            let sum = superblock_sum(raw);
            Be::put_u32(raw, offset::S_CHECKSUM, sum);
        }
    }

    /// Blocks of the circular log.
    #[must_use]
    pub const fn log_blocks(&self) -> u32 {
        self.log_end() - self.first
    }

    /// The block behind the circular log's last.
    const fn log_end(&self) -> u32 {
        self.len - self.fast_blocks
    }

    /// The blocks that fast commits may lie in. The first one behind the log is not used.
    #[must_use]
    pub fn fast_area(&self) -> std::ops::Range<u32> {
        if self.fast_blocks == 0 { 0..0 } else { self.log_end() + 1..self.len }
    }

    /// The block that is `count` after `at` in the circular log; `count` is at most [`Superblock::log_blocks`].
    #[must_use]
    pub fn advance(&self, at: u32, count: u32) -> u32 {
        debug_assert!((self.first..self.log_end()).contains(&at) && count <= self.log_blocks());
        let left = self.log_end() - at;
        if count < left { at + count } else { self.first + (count - left) }
    }
}

/// `s_checksum_type` of CRC-32C.
const CHECKSUM_CRC32C: u8 = 4;

/// The superblock's checksum, taken as if its field were zero.
fn superblock_sum(raw: &[u8]) -> u32 {
    let sum = crc32c(START, &raw[..offset::S_CHECKSUM]);
    crc32c(crc32c(sum, &[0; 4]), &raw[offset::S_USERS..SUPERBLOCK_SIZE])
}

fn damaged(problem: String) -> Error {
    Error::corrupt(Structure::JournalSuperblock, None, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(superblock: &Superblock) -> Vec<u8> {
        let mut raw = vec![0; SUPERBLOCK_SIZE];
        superblock.encode_into(&mut raw);
        raw
    }

    #[test]
    fn superblocks_of_all_versions_and_checksums_round_trip() {
        for (is_v2, incompat) in [(false, 0), (true, 0), (true, 1), (true, 3), (true, 9), (true, 0x12)] {
            let mut superblock = Superblock::new(1024, 4096, 1, [7; 16]);
            superblock.is_v2 = is_v2;
            superblock.features.incompat = incompat;
            if !is_v2 {
                superblock.uuid = [0; 16];
                superblock.user_count = 0;
            }
            superblock.start = 77;
            superblock.sequence = Sequence(u32::MAX);
            superblock.errno = -5;
            let raw = encoded(&superblock);
            assert_eq!(Superblock::parse(&raw, 1024, 4096).unwrap(), superblock);
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        type Change = fn(&mut Superblock);
        let cases: [(Change, &str); 8] = [
            (|s| s.len = 4097, "only 4096"),
            (|s| s.len = 3, "1..3"),
            (|s| s.first = 0, "0..4096"),
            (|s| s.start = 4096, "starts at block 4096"),
            (|s| s.block_size = 2048, "2048"),
            (|s| s.features.incompat = 0x8000, "0x8000"),
            (|s| s.features.incompat = INCOMPAT_ASYNC_COMMIT, "journal_async_commit"),
            (|s| s.features.incompat = INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3, "at once"),
        ];
        for (change, text) in cases {
            let mut superblock = Superblock::new(1024, 4096, 1, [0; 16]);
            change(&mut superblock);
            let error = Superblock::parse(&encoded(&superblock), 1024, 4096).unwrap_err().to_string();
            assert!(error.contains(text), "{error}: expected {text}");
        }
        let error = Superblock::parse(&[0; SUPERBLOCK_SIZE], 1024, 4096).unwrap_err().to_string();
        assert!(error.contains("magic"), "{error}");
    }

    #[test]
    fn a_damaged_checksum_is_seen() {
        let mut superblock = Superblock::new(1024, 4096, 1, [0; 16]);
        superblock.features.incompat = INCOMPAT_CSUM_V3;
        let mut raw = encoded(&superblock);
        raw[offset::S_USERS + 5] ^= 1;
        assert!(Superblock::parse(&raw, 1024, 4096).unwrap_err().to_string().contains("checksum"));
    }

    #[test]
    fn the_log_ends_where_fast_commits_begin() {
        let parsed = |len: u32, said: u32, start: u32| {
            let mut superblock = Superblock::new(1024, len, 1, [0; 16]);
            superblock.features.incompat = INCOMPAT_FAST_COMMIT;
            superblock.start = start;
            let mut raw = encoded(&superblock);
            Be::put_u32(&mut raw, offset::S_NUM_FC_BLKS, said);
            Superblock::parse(&raw, 1024, u64::from(len))
        };
        let superblock = parsed(2000, 0, 5).unwrap();
        assert_eq!((superblock.log_blocks(), superblock.fast_area()), (1743, 1745..2000));
        assert_eq!(superblock.advance(1743, 1), 1);
        let superblock = parsed(2000, 100, 1899).unwrap();
        assert_eq!((superblock.log_blocks(), superblock.fast_area()), (1899, 1901..2000));
        for (len, said, start) in [(2000, 100, 1900), (200, 0, 0), (2000, 1997, 0), (2000, u32::MAX, 0)] {
            let error = parsed(len, said, start).unwrap_err().to_string();
            assert!(error.contains("log"), "{error}");
        }
        assert_eq!(Superblock::new(1024, 2000, 1, [0; 16]).fast_area(), 0..0);
    }

    #[test]
    fn sequences_wrap_around() {
        let last = Sequence(u32::MAX);
        assert!(last.next().is_after(last) && !last.is_after(last.next()) && !last.is_after(last));
        assert!(Sequence(5).is_after(Sequence(u32::MAX - 5)));
    }

    #[test]
    fn the_log_is_circular() {
        let superblock = Superblock::new(1024, 10, 2, [0; 16]);
        assert_eq!(superblock.log_blocks(), 8);
        let ways = [(2, 1, 3), (9, 1, 2), (5, 8, 5), (8, 5, 5), (2, 7, 9)];
        for (at, count, to) in ways {
            assert_eq!(superblock.advance(at, count), to, "{at} + {count}");
        }
    }
}
