//! The blocks of a directory's hash-tree index.
//!
//! ```text
//!   root   "." (12 bytes) | ".." over the rest | info: 0 (4), hash version (1), 8 (1), levels below (1), flags (1) | entries
//!   node   an empty entry as long as the block (8 bytes)                                                          | entries
//!   entry  lowest hash (4), block of the directory (4). The first has no hash: in its place are limit and count of entries (2 + 2)
//!   tail   behind `limit` entries, where metadata have sums: 0 (4), sum (4)
//! ```
//!
//! An entry's lowest hash has its lowest bit set if names of that hash may also be in the leaf before.

use fstitch_core::Le;

use super::checksum::{INDEX_INFO, INDEX_TAIL};
use super::dirent::{self, D_INODE, D_NAME_LEN, D_REC_LEN, ENTRY_MIN, HEADER};
use super::feature::incompat;
use super::name_hash::Hasher;
use super::superblock::Superblock;
use crate::ext2::num::idx;

/// Where the root's entries start.
pub const ROOT_ENTRIES: usize = INDEX_INFO + INFO_LENGTH;
/// Where a node's entries start.
pub const NODE_ENTRIES: usize = HEADER;
/// Bytes of an entry.
pub const ENTRY: usize = 8;
/// Bytes of the root's info.
const INFO_LENGTH: usize = 8;
/// Where the root says by what names are hashed, how long this info is, how many levels of nodes there are, and flags.
const VERSION_AT: usize = INDEX_INFO + 4;
const LENGTH_AT: usize = INDEX_INFO + 5;
const LEVELS_AT: usize = INDEX_INFO + 6;
const FLAGS_AT: usize = INDEX_INFO + 7;
/// The bits of an entry that say which block.
const POSITION: u32 = 0x0fff_ffff;
/// `s_flags`: hashes take characters as unsigned.
const UNSIGNED: u32 = 2;

/// An entry of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The lowest hash of the names below it, with the mark that others of that hash are before it. Of no meaning in the first
    /// entry of a block.
    pub hash: u32,
    /// A block of the directory.
    pub at: usize,
}

/// What the first block of an indexed directory says of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// By what names are hashed.
    pub version: u8,
    /// Levels of nodes below the root.
    pub levels: u8,
}

/// The entries of one block, of which there is at least one.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    bytes: &'a [u8],
    at: usize,
    count: usize,
}

/// What is wrong with a block of an index.
pub type Problem = String;

impl Superblock {
    /// What hashes names by `version`, if there is such a one.
    pub(crate) fn name_hasher(&self, version: u8) -> Option<Hasher> {
        Hasher::new(version, self.flags & UNSIGNED != 0, self.hash_seed)
    }

    /// Entries that a block has room for whose entries start at byte `at`.
    pub(crate) fn index_limit(&self, at: usize) -> usize {
        let tail = if self.features.has_sums() { INDEX_TAIL } else { 0 };
        (idx(self.block_size) - at - tail) / ENTRY
    }

    /// Levels of nodes that an index may have below its root.
    pub(crate) fn index_levels_max(&self) -> u8 {
        if self.features.has_incompat(incompat::LARGE_DIR) { 2 } else { 1 }
    }
}

/// Reads what the root `bytes` says of the index.
///
/// # Errors
/// What is wrong with it.
pub fn read_root(bytes: &[u8], volume: &Superblock) -> Result<Root, Problem> {
    let reaches = bytes.len() - ENTRY_MIN;
    let is_root = usize::from(D_REC_LEN.get(bytes)) == ENTRY_MIN
        && usize::from(D_REC_LEN.get(&bytes[ENTRY_MIN..])) == reaches
        && D_NAME_LEN.get(bytes) == 1
        && D_NAME_LEN.get(&bytes[ENTRY_MIN..]) == 2;
    if !is_root || Le::u32(bytes, INDEX_INFO) != 0 {
        return Err("the first block is no root".to_owned());
    }
    if usize::from(bytes[LENGTH_AT]) != INFO_LENGTH || bytes[FLAGS_AT] & 1 != 0 {
        return Err("the root has unknown information".to_owned());
    }
    let root = Root { version: bytes[VERSION_AT], levels: bytes[LEVELS_AT] };
    if root.levels > volume.index_levels_max() {
        return Err(format!(
            "{} levels of nodes, expected at most {}",
            root.levels,
            volume.index_levels_max()
        ));
    }
    Ok(root)
}

/// Reads the entries of `bytes`, a node's block.
///
/// # Errors
/// What is wrong with it.
pub fn read_node<'a>(bytes: &'a [u8], volume: &Superblock) -> Result<Node<'a>, Problem> {
    if D_INODE.get(bytes) != 0 || dirent::rec_len(bytes, bytes.len()) != bytes.len() {
        return Err("a node has names".to_owned());
    }
    Node::read(bytes, NODE_ENTRIES, volume)
}

impl<'a> Node<'a> {
    /// Reads the entries that start at byte `at` of a block.
    ///
    /// # Errors
    /// What is wrong with their numbers.
    pub fn read(bytes: &'a [u8], at: usize, volume: &Superblock) -> Result<Self, Problem> {
        let (limit, count) = (usize::from(Le::u16(bytes, at)), usize::from(Le::u16(bytes, at + 2)));
        let expected = volume.index_limit(at);
        if limit != expected {
            return Err(format!("limit {limit}, expected {expected}"));
        }
        if count == 0 || count > limit {
            return Err(format!("{count} entries of at most {limit}"));
        }
        Ok(Self { bytes, at, count })
    }

    /// How many there are.
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Entry `no`.
    pub fn entry(&self, no: usize) -> IndexEntry {
        let at = self.at + no * ENTRY;
        let hash = if no == 0 { 0 } else { Le::u32(self.bytes, at) };
        IndexEntry { hash, at: idx(Le::u32(self.bytes, at + 4) & POSITION) }
    }

    /// All of them.
    pub fn entries(&self) -> Vec<IndexEntry> {
        (0..self.count).map(|no| self.entry(no)).collect()
    }

    /// The last entry below which names of this hash may begin.
    pub fn find(&self, hash: u32) -> usize {
        let (mut low, mut high) = (0, self.count);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.entry(middle).hash <= hash {
                low = middle;
            } else {
                high = middle;
            }
        }
        low
    }
}

/// Writes `entries` to a block in which they start at byte `at`, with the limit of a volume's blocks.
///
/// # Panics
/// If there are too many.
pub fn put_entries(bytes: &mut [u8], at: usize, entries: &[IndexEntry], volume: &Superblock) {
    let limit = volume.index_limit(at);
    assert!(!entries.is_empty() && entries.len() <= limit, "{} entries of at most {limit}", entries.len());
    for (no, entry) in entries.iter().enumerate() {
        let place = at + no * ENTRY;
        Le::put_u32(bytes, place, entry.hash);
        Le::put_u32(bytes, place + 4, u32::try_from(entry.at).expect("directories have fewer blocks"));
    }
    // What is behind them is free.
    bytes[at + entries.len() * ENTRY..at + limit * ENTRY].fill(0);
    let narrow = |number: usize| u16::try_from(number).expect("a block has fewer entries");
    Le::put_u16(bytes, at, narrow(limit));
    Le::put_u16(bytes, at + 2, narrow(entries.len()));
}

/// Makes a block of zeros a node.
pub fn put_node(bytes: &mut [u8], entries: &[IndexEntry], volume: &Superblock) {
    D_REC_LEN.put(bytes, dirent::rec_len_field(bytes.len()));
    put_entries(bytes, NODE_ENTRIES, entries, volume);
}

/// Makes a directory's first block, which starts with `.` and `..`, the root of an index.
pub fn put_root(bytes: &mut [u8], root: Root, entries: &[IndexEntry], volume: &Superblock) {
    let reaches = bytes.len() - ENTRY_MIN;
    D_REC_LEN.put(&mut bytes[ENTRY_MIN..], dirent::rec_len_field(reaches));
    bytes[INDEX_INFO..].fill(0);
    bytes[VERSION_AT] = root.version;
    bytes[LENGTH_AT] = u8::try_from(INFO_LENGTH).expect("8");
    put_levels(bytes, root.levels);
    put_entries(bytes, ROOT_ENTRIES, entries, volume);
}

/// Writes how many levels of nodes there are below the root `bytes`.
pub fn put_levels(bytes: &mut [u8], levels: u8) {
    bytes[LEVELS_AT] = levels;
}
