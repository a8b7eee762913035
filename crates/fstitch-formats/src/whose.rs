//! What the blocks of a volume belong to, for people who are told that some of them are damaged.

use std::collections::BTreeSet;
use std::fmt;

use fstitch_core::{BlockDevice, BlockNo, InodeNo, Result};

/// What a block is to whom it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The superblock; of another group than the first, a copy of it.
    Superblock,
    /// Group descriptors, or a copy of them.
    Descriptors,
    /// Which blocks of a group are in use.
    BlockBitmap,
    /// Which inodes of a group are.
    InodeBitmap,
    /// A group's inodes.
    InodeTable,
    /// The inode of a file or directory.
    Inode,
    /// What is in a file.
    Contents,
    /// Entries of a directory.
    Entries,
    /// Where a file's contents are.
    Pointers,
    /// Extended attributes, or the target of a symbolic link.
    Attributes,
    /// The journal's.
    Journal,
    /// Some inodes, in a format whose inodes have no table.
    Inodes,
    /// The root of a volume, and the tables that are not of one file system in it.
    Tables,
    /// Which blocks are in use, in a format without groups.
    Map,
    /// The shepherd's.
    Maps,
    /// What the format keeps for itself: room to grow, bad blocks, a boot loader.
    Reserved,
    /// It belongs to nobody, and may be given away.
    Free,
    /// It is marked as in use, and nobody was found who has it.
    Nobody,
}

impl Role {
    /// A word for programs. It is a contract.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Descriptors => "group-descriptors",
            Self::BlockBitmap => "block-bitmap",
            Self::InodeBitmap => "inode-bitmap",
            Self::InodeTable => "inode-table",
            Self::Inode => "inode",
            Self::Contents => "contents",
            Self::Entries => "directory",
            Self::Pointers => "pointers",
            Self::Attributes => "attributes",
            Self::Journal => "journal",
            Self::Inodes => "inodes",
            Self::Tables => "tables",
            Self::Map => "map",
            Self::Maps => "maps",
            Self::Reserved => "reserved",
            Self::Free => "free",
            Self::Nobody => "nobody",
        }
    }
}

/// Whom blocks belong to, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// What they are to it.
    pub role: Role,
    /// The group, of what a group has.
    pub group: Option<u32>,
    /// The inode, of what a file or directory has.
    pub inode: Option<InodeNo>,
    /// Its names, from the root on; none if none was found.
    pub paths: Vec<Vec<u8>>,
    /// How many of the blocks.
    pub blocks: u64,
    /// The first of them.
    pub first: BlockNo,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = match self.role {
            Role::Contents => "",
            Role::Inode if self.paths.is_empty() => "",
            Role::Entries => "directory ",
            Role::Inode => "the inode of ",
            Role::Pointers => "the pointers of ",
            Role::Attributes => "the attributes of ",
            Role::Inodes if self.paths.is_empty() => return write!(f, "inodes"),
            Role::Inodes => "inodes of ",
            role => return in_groups(role, self.group.unwrap_or(0), f),
        };
        write!(f, "{of}")?;
        match (self.paths.as_slice(), self.inode) {
            ([], Some(ino)) => write!(f, "inode {ino}, whose name was not found")?,
            ([], None) => write!(f, "a file")?,
            ([first, others @ ..], _) => {
                write!(f, "{}", shown(first))?;
                others.iter().try_for_each(|path| write!(f, ", that is {}", shown(path)))?;
            }
        }
        Ok(())
    }
}

/// What has no path.
fn in_groups(role: Role, group: u32, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (role, group) {
        (Role::Superblock, 0) => write!(f, "the superblock"),
        (Role::Superblock, _) => write!(f, "the copy of the superblock in group {group}"),
        (Role::Descriptors, 0) => write!(f, "the group descriptors"),
        (Role::Descriptors, _) => write!(f, "the copy of the group descriptors in group {group}"),
        (Role::BlockBitmap, _) => write!(f, "the block bitmap of group {group}"),
        (Role::InodeBitmap, _) => write!(f, "the inode bitmap of group {group}"),
        (Role::InodeTable, _) => write!(f, "the inode table of group {group}"),
        (Role::Journal, _) => write!(f, "the journal"),
        (Role::Maps, _) => write!(f, "the maps of the policy"),
        (Role::Tables, _) => write!(f, "the tables of the volume"),
        (Role::Map, _) => write!(f, "the map of what is in use"),
        (Role::Reserved, _) => write!(f, "what the format keeps for itself"),
        (Role::Free, _) => write!(f, "nobody: free"),
        _ => write!(f, "nobody, though in use"),
    }
}

/// A path as people and terminals can bear it.
#[must_use]
pub fn shown(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => path.escape_ascii().to_string(),
    }
}

/// Whom some blocks belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// In the order of the volume's structures, then of inodes.
    pub owners: Vec<Owner>,
    /// Blocks of others, who are too many to be named.
    pub others: u64,
    /// Blocks that could not be read on the way: who is named there is not found.
    pub unread: u64,
}

/// A format that can say what a block belongs to.
pub trait NamesBlocks: Send + Sync {
    /// Whom some blocks of a volume belong to; at most `owners_max` are named. What cannot be read is passed over. It reads all inodes, and
    /// if files are among the owners, directories until all names are found; it needs memory for `blocks`, the owners, and one directory at each depth.
    ///
    /// # Errors
    /// Where the volume cannot be made out at all.
    fn whose(
        &self,
        device: &dyn BlockDevice,
        blocks: &BTreeSet<BlockNo>,
        owners_max: usize,
    ) -> Result<Owners>;
}
