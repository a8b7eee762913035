//! Quota files: what each user, group or project has, and may have.
//!
//! **Layout.** Blocks of 1024 bytes, whatever the volume's are. Block 0 is the header. From block 1 on a tree leads from an id, eight
//! bits in each of four levels, to a leaf, which has up to 14 entries of any ids. Leaves with room are in a list, and so are
//! blocks that are not in use. All numbers are little-endian (`docs/spec/ext4.md`).

use fstitch_core::{Error, Result, Structure};

use super::field::fields;
use crate::ext2::num::{idx, wide};

/// Bytes of a quota file's block.
pub const QUOTA_BLOCK: usize = 1024;
/// The root of the tree.
pub const TREE_ROOT: u32 = 1;
/// Levels of the tree above leaves.
pub const TREE_LEVELS: u32 = 4;
/// References in a block of the tree.
pub const TREE_REFS: usize = QUOTA_BLOCK / 4;
/// Bytes before a leaf's entries.
pub const LEAF_HEADER: usize = 16;
/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 72;
/// Entries of a leaf.
pub const LEAF_ENTRIES: usize = (QUOTA_BLOCK - LEAF_HEADER) / ENTRY_SIZE;
/// Seconds that a soft limit may be passed for, unless something else was said.
pub const GRACE_DEFAULT: u32 = 7 * 24 * 3600;
/// Bytes that limits of storage are counted in.
pub const LIMIT_UNIT: u64 = 1024;
/// The version that the header names.
const VERSION: u32 = 1;
/// The time of an entry in use whose bytes would all be 0 else.
const USED_MARK: u64 = 1;

fields! {
    /// What kind of file this is.
    QH_MAGIC: u32 @ 0;
    /// Its version.
    QH_VERSION: u32 @ 4;
    /// Seconds that a soft limit of storage may be passed for.
    DQI_BGRACE: u32 @ 8;
    /// The same for inodes.
    DQI_IGRACE: u32 @ 12;
    /// Flags, none of them ours.
    DQI_FLAGS: u32 @ 16;
    /// Blocks of the file in use or in the list of free ones.
    DQI_BLOCKS: u32 @ 20;
    /// The first block of the list of free ones; 0 for none.
    DQI_FREE_BLK: u32 @ 24;
    /// The first leaf with room; 0 for none.
    DQI_FREE_ENTRY: u32 @ 28;
    /// The next block of a leaf's list.
    DQDH_NEXT_FREE: u32 @ 0;
    /// The one before it.
    DQDH_PREV_FREE: u32 @ 4;
    /// Entries in use.
    DQDH_ENTRIES: u16 @ 8;
    /// Whose an entry is.
    DQB_ID: u32 @ 0;
    /// No more inodes than these; 0 for any number.
    DQB_IHARDLIMIT: u64 @ 8;
    /// No more than these for long.
    DQB_ISOFTLIMIT: u64 @ 16;
    /// Inodes.
    DQB_CURINODES: u64 @ 24;
    /// No more storage than this, in KiB.
    DQB_BHARDLIMIT: u64 @ 32;
    /// No more than this for long.
    DQB_BSOFTLIMIT: u64 @ 40;
    /// Storage in bytes.
    DQB_CURSPACE: u64 @ 48;
    /// When the soft limit of storage becomes a hard one; 0 while it is not passed.
    DQB_BTIME: u64 @ 56;
    /// The same for inodes.
    DQB_ITIME: u64 @ 64;
}

const _: () = {
    assert!(DQB_ITIME.end() == ENTRY_SIZE && LEAF_ENTRIES == 14);
    assert!(TREE_REFS == 256 && DQI_FREE_ENTRY.end() <= QUOTA_BLOCK);
};

/// Whose usage a quota file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaKind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

impl QuotaKind {
    /// All of them, in the order of the superblock's fields.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    /// Its place in [`QuotaKind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::User => 0,
            Self::Group => 1,
            Self::Project => 2,
        }
    }

    /// What its file begins with.
    #[must_use]
    pub const fn magic(self) -> u32 {
        match self {
            Self::User => 0xd9c0_1f11,
            Self::Group => 0xd9c0_1927,
            Self::Project => 0xd9c0_3f14,
        }
    }

    /// Whose it is, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }

    /// Its file, for errors.
    #[must_use]
    pub const fn structure(self) -> Structure {
        Structure::Other(match self {
            Self::User => "quota file of users",
            Self::Group => "quota file of groups",
            Self::Project => "quota file of projects",
        })
    }

    /// Damage in its file.
    #[must_use]
    pub fn damaged(self, problem: impl Into<String>) -> Error {
        Error::corrupt(self.structure(), None, problem.into())
    }
}

/// What a quota file's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Seconds that a soft limit of storage may be passed for.
    pub block_grace: u32,
    /// The same for inodes.
    pub inode_grace: u32,
    /// Flags that are kept.
    pub flags: u32,
    /// Blocks of the file, of 1024 bytes.
    pub blocks: u32,
    /// The first block that is not in use, 0 for none.
    pub free_block: u32,
    /// The first leaf with room, 0 for none.
    pub free_entry: u32,
}

impl Header {
    /// That of a file without entries.
    pub const EMPTY: Self = Self {
        block_grace: GRACE_DEFAULT,
        inode_grace: GRACE_DEFAULT,
        flags: 0,
        blocks: TREE_ROOT + 1,
        free_block: 0,
        free_entry: 0,
    };

    /// Reads and checks the header of a file of `len` bytes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(raw: &[u8], kind: QuotaKind, len: u64) -> Result<Self> {
        let (magic, version) = (QH_MAGIC.get(raw), QH_VERSION.get(raw));
        if magic != kind.magic() || version != VERSION {
            let problem =
                format!("magic {magic:#010x}, version {version}; expected {:#010x}, {VERSION}", kind.magic());
            return Err(kind.damaged(problem));
        }
        let header = Self {
            block_grace: DQI_BGRACE.get(raw),
            inode_grace: DQI_IGRACE.get(raw),
            flags: DQI_FLAGS.get(raw),
            blocks: DQI_BLOCKS.get(raw),
            free_block: DQI_FREE_BLK.get(raw),
            free_entry: DQI_FREE_ENTRY.get(raw),
        };
        if header.blocks <= TREE_ROOT || u64::from(header.blocks) * wide(QUOTA_BLOCK) > len {
            return Err(kind.damaged(format!("{} blocks of 1 KiB in {len} bytes", header.blocks)));
        }
        for (what, block) in [("free block", header.free_block), ("free leaf", header.free_entry)] {
            if block != 0 && !header.holds(block) {
                return Err(kind.damaged(format!("the first {what} is {block} of {}", header.blocks)));
            }
        }
        Ok(header)
    }

    /// Whether something may refer to this block.
    #[must_use]
    pub const fn holds(&self, block: u32) -> bool {
        block > TREE_ROOT && block < self.blocks
    }

    /// Writes it to the start of the file.
    pub fn encode_into(&self, kind: QuotaKind, raw: &mut [u8]) {
        QH_MAGIC.put(raw, kind.magic());
        QH_VERSION.put(raw, VERSION);
        DQI_BGRACE.put(raw, self.block_grace);
        DQI_IGRACE.put(raw, self.inode_grace);
        DQI_FLAGS.put(raw, self.flags);
        DQI_BLOCKS.put(raw, self.blocks);
        DQI_FREE_BLK.put(raw, self.free_block);
        DQI_FREE_ENTRY.put(raw, self.free_entry);
    }
}

/// What somebody has and may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dquot {
    /// No more inodes than these; 0 for any number.
    pub inodes_hard: u64,
    /// No more than these for long; 0 for any number.
    pub inodes_soft: u64,
    /// Inodes.
    pub inodes: u64,
    /// No more storage than this, in KiB; 0 for any amount.
    pub space_hard: u64,
    /// No more than this for long, in KiB; 0 for any amount.
    pub space_soft: u64,
    /// Storage in bytes.
    pub space: u64,
    /// When the soft limit of storage becomes a hard one, in seconds; 0 while it is not passed.
    pub space_time: u64,
    /// The same for inodes.
    pub inodes_time: u64,
}

impl Dquot {
    /// Reads an entry, and whose it is; `None` if it is not in use.
    #[must_use]
    pub fn parse(raw: &[u8]) -> Option<(u32, Self)> {
        if raw[..ENTRY_SIZE].iter().all(|&byte| byte == 0) {
            return None;
        }
        let id = DQB_ID.get(raw);
        let mut found = Self {
            inodes_hard: DQB_IHARDLIMIT.get(raw),
            inodes_soft: DQB_ISOFTLIMIT.get(raw),
            inodes: DQB_CURINODES.get(raw),
            space_hard: DQB_BHARDLIMIT.get(raw),
            space_soft: DQB_BSOFTLIMIT.get(raw),
            space: DQB_CURSPACE.get(raw),
            space_time: DQB_BTIME.get(raw),
            inodes_time: DQB_ITIME.get(raw),
        };
        if id == 0 && found == (Self { inodes_time: USED_MARK, ..Self::default() }) {
            found.inodes_time = 0;
        }
        Some((id, found))
    }

    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self, id: u32) -> [u8; ENTRY_SIZE] {
        let mut raw = [0; ENTRY_SIZE];
        DQB_ID.put(&mut raw, id);
        DQB_IHARDLIMIT.put(&mut raw, self.inodes_hard);
        DQB_ISOFTLIMIT.put(&mut raw, self.inodes_soft);
        DQB_CURINODES.put(&mut raw, self.inodes);
        DQB_BHARDLIMIT.put(&mut raw, self.space_hard);
        DQB_BSOFTLIMIT.put(&mut raw, self.space_soft);
        DQB_CURSPACE.put(&mut raw, self.space);
        DQB_BTIME.put(&mut raw, self.space_time);
        let is_blank = id == 0 && *self == Self::default();
        DQB_ITIME.put(&mut raw, if is_blank { USED_MARK } else { self.inodes_time });
        raw
    }

    /// Whether it limits anything.
    #[must_use]
    pub const fn has_limits(&self) -> bool {
        self.inodes_hard | self.inodes_soft | self.space_hard | self.space_soft != 0
    }
}

/// Which reference of a tree's block, `level` levels below the root, leads to an id.
#[must_use]
pub const fn step(id: u32, level: u32) -> usize {
    ((id >> (8 * (TREE_LEVELS - 1 - level))) & 0xff) as usize
}

/// Where entry `at` of a leaf begins.
#[must_use]
pub const fn entry_at(at: usize) -> usize {
    LEAF_HEADER + at * ENTRY_SIZE
}

/// Where a block of the file begins, in bytes.
#[must_use]
pub fn block_start(block: u32) -> usize {
    idx(block) * QUOTA_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_an_empty_one_of_id_0_is_in_use() {
        let full = Dquot {
            inodes_hard: 1,
            inodes_soft: 2,
            inodes: 3,
            space_hard: 4,
            space_soft: 5,
            space: 6 << 40,
            space_time: 7,
            inodes_time: 8,
        };
        for (id, entry) in [(0, full), (7, full), (0, Dquot::default()), (7, Dquot::default())] {
            assert_eq!(Dquot::parse(&entry.encode(id)), Some((id, entry)));
        }
        assert_eq!(Dquot::parse(&[0; ENTRY_SIZE]), None);
        assert!(full.has_limits() && !Dquot { inodes: 9, ..Dquot::default() }.has_limits());
    }

    #[test]
    fn ids_have_their_ways() {
        assert_eq!([0, 1, 2, 3].map(|level| step(0x1234_5678, level)), [0x12, 0x34, 0x56, 0x78]);
        assert_eq!([0, 1, 2, 3].map(|level| step(u32::MAX, level)), [255; 4]);
    }

    #[test]
    fn headers_are_checked() {
        let mut raw = [0; QUOTA_BLOCK];
        let header = Header { blocks: 6, free_entry: 5, ..Header::EMPTY };
        header.encode_into(QuotaKind::Group, &mut raw);
        assert_eq!(Header::parse(&raw, QuotaKind::Group, 6144).unwrap(), header);
        assert!(Header::parse(&raw, QuotaKind::User, 6144).is_err());
        assert!(Header::parse(&raw, QuotaKind::Group, 6143).is_err());
        for (field, value) in [(DQI_BLOCKS, 1), (DQI_FREE_BLK, 6), (DQI_FREE_ENTRY, 1), (QH_VERSION, 0)] {
            let mut bad = raw;
            field.put(&mut bad, value);
            assert!(Header::parse(&bad, QuotaKind::Group, 6144).is_err());
        }
    }
}
