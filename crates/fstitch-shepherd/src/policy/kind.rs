//! Kinds of blocks as policies name them.

use fstitch_core::BlockKind;

/// What a block of the shepherd's own holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MapKind {
    /// Sums and places of copies.
    Sums,
    /// Where moved blocks are.
    Remap,
    /// Parity of a group of blocks.
    Parity,
}

/// What a block holds: a file system's, or the shepherd's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A block of the file system.
    Block(BlockKind),
    /// A block of a map.
    Map(MapKind),
}

/// Kinds for which one table of a policy speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// What leads to contents.
    Metadata,
    /// Contents of files.
    Data,
    /// A journal's own blocks.
    Journal,
    /// The shepherd's own blocks.
    Maps,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Metadata, Self::Data, Self::Journal, Self::Maps];

    /// Its name in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metadata => "metadata",
            Self::Data => "data",
            Self::Journal => "journal",
            Self::Maps => "maps",
        }
    }

    /// Whether a change of a map cannot be asked for here, because it would need what has just failed (\[C\] §4.1.5).
    #[must_use]
    pub const fn is_restricted(self) -> bool {
        matches!(self, Self::Journal | Self::Maps)
    }
}

impl Kind {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 17] = [
        Self::Block(BlockKind::Superblock),
        Self::Block(BlockKind::GroupDescriptor),
        Self::Block(BlockKind::BlockBitmap),
        Self::Block(BlockKind::InodeBitmap),
        Self::Block(BlockKind::Inode),
        Self::Block(BlockKind::Directory),
        Self::Block(BlockKind::Indirect),
        Self::Block(BlockKind::Attribute),
        Self::Block(BlockKind::Data),
        Self::Block(BlockKind::JournalSuperblock),
        Self::Block(BlockKind::JournalDescriptor),
        Self::Block(BlockKind::JournalRevoke),
        Self::Block(BlockKind::JournalData),
        Self::Block(BlockKind::JournalCommit),
        Self::Map(MapKind::Sums),
        Self::Map(MapKind::Remap),
        Self::Map(MapKind::Parity),
    ];

    /// Its place in [`Kind::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Self::Block(BlockKind::Superblock) => 0,
            Self::Block(BlockKind::GroupDescriptor) => 1,
            Self::Block(BlockKind::BlockBitmap) => 2,
            Self::Block(BlockKind::InodeBitmap) => 3,
            Self::Block(BlockKind::Inode) => 4,
            Self::Block(BlockKind::Directory) => 5,
            Self::Block(BlockKind::Indirect) => 6,
            Self::Block(BlockKind::Attribute) => 7,
            Self::Block(BlockKind::Data) => 8,
            Self::Block(BlockKind::JournalSuperblock) => 9,
            Self::Block(BlockKind::JournalDescriptor) => 10,
            Self::Block(BlockKind::JournalRevoke) => 11,
            Self::Block(BlockKind::JournalData) => 12,
            Self::Block(BlockKind::JournalCommit) => 13,
            Self::Map(MapKind::Sums) => 14,
            Self::Map(MapKind::Remap) => 15,
            Self::Map(MapKind::Parity) => 16,
        }
    }

    /// Its name in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block(BlockKind::Superblock) => "superblock",
            Self::Block(BlockKind::GroupDescriptor) => "group-descriptor",
            Self::Block(BlockKind::BlockBitmap) => "block-bitmap",
            Self::Block(BlockKind::InodeBitmap) => "inode-bitmap",
            Self::Block(BlockKind::Inode) => "inode",
            Self::Block(BlockKind::Directory) => "directory",
            Self::Block(BlockKind::Indirect) => "indirect",
            Self::Block(BlockKind::Attribute) => "attribute",
            Self::Block(BlockKind::Data) => "data",
            Self::Block(BlockKind::JournalSuperblock) => "journal-superblock",
            Self::Block(BlockKind::JournalDescriptor) => "journal-descriptor",
            Self::Block(BlockKind::JournalRevoke) => "journal-revoke",
            Self::Block(BlockKind::JournalData) => "journal-data",
            Self::Block(BlockKind::JournalCommit) => "journal-commit",
            Self::Map(MapKind::Sums) => "sum-map",
            Self::Map(MapKind::Remap) => "remap-map",
            Self::Map(MapKind::Parity) => "parity",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// The group whose table speaks for it.
    #[must_use]
    pub const fn group(self) -> Group {
        match self {
            Self::Map(_) => Group::Maps,
            Self::Block(BlockKind::Data) => Group::Data,
            Self::Block(kind) if kind.is_journal() => Group::Journal,
            Self::Block(_) => Group::Metadata,
        }
    }

    /// Whether the format has rules by which a block of this kind is judged and repaired.
    #[must_use]
    pub const fn has_rules(self) -> bool {
        matches!(self.group(), Group::Metadata)
    }
}

/// Which requests a chain is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    pub(super) const fn index(self) -> usize {
        match self {
            Self::Read => 0,
            Self::Write => 1,
        }
    }

    /// Its name in policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}
