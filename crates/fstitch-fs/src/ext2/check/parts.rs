//! The parts of a directory that hold entries: its blocks, or pieces of its inode.
//!
//! ```text
//!   block of a volume without sums   entries over the whole block
//!   with sums                        entries | tail (12 bytes that look like a free entry)
//!   of an index, with sums           an entry that hides the index | tail (8 bytes)
//!   inline, in the inode             number of the parent | entries, 56 bytes
//!   inline, in an attribute          entries
//! ```
//!
//! In a part the lengths of the entries add up to the part without its tail. An inline directory has no entries `.` and
//! `..`; the number of the parent stands for them.

use std::ops::Range;

use fstitch_core::{BlockKind, Result};

use super::state::{State, Volume};
use super::walk::{Pointer, Verdict, Visit, walk};
use super::{extents, salvage, seals, xattrs};
use crate::ext2::layout::checksum::{InodeSums, has_directory_tail, put_directory_tail};
use crate::ext2::layout::dirent::{D_INODE, put_empty_block, put_first_block};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::inode::{EXTENTS_FL, I_FLAGS, INLINE_DATA_FL};
use crate::ext2::num::{idx64, wide};

/// Bytes of the parent's number at the start of an inline directory.
const PARENT: usize = 4;

/// A directory's inode, and where its entries are.
pub(super) struct Parts {
    pub(super) ino: u32,
    pub(super) raw: Vec<u8>,
    owner: InodeSums,
    place: Place,
}

enum Place {
    /// By file block number; 0 where there is none.
    Blocks(Vec<u64>),
    /// Bytes of the inode.
    Inode(Vec<Range<usize>>),
}

/// What a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Entries, and behind them what `tail` bytes hold.
    Leaf,
    /// A block of an index.
    Index,
}

impl Parts {
    /// The parts of directory `ino`.
    pub(super) fn of(volume: &Volume<'_>, state: &State, ino: u32) -> Result<Self> {
        let raw = volume.read_inode(ino)?;
        let owner = volume.owner(ino, &raw);
        let place = if I_FLAGS.get(&raw) & INLINE_DATA_FL == 0 {
            Place::Blocks(blocks(volume, state, (ino, &raw))?)
        } else {
            let root = extents::ROOT;
            let rest = xattrs::inline_value(&raw).filter(|range| !range.is_empty());
            let ranges = std::iter::once(root.start + PARENT..root.end).chain(rest).collect();
            Place::Inode(ranges)
        };
        Ok(Self { ino, raw, owner, place })
    }

    /// How many there are, holes included.
    pub(super) fn count(&self) -> usize {
        match &self.place {
            Place::Blocks(blocks) => blocks.len(),
            Place::Inode(ranges) => ranges.len(),
        }
    }

    /// Whether the entries are in the inode.
    pub(super) fn is_inline(&self) -> bool {
        matches!(self.place, Place::Inode(_))
    }

    /// The block of part `at`; 0 where there is none.
    pub(super) fn block(&self, at: usize) -> u64 {
        match &self.place {
            Place::Blocks(blocks) => blocks.get(at).copied().unwrap_or(0),
            Place::Inode(_) => 0,
        }
    }

    /// The blocks, by file block number.
    pub(super) fn blocks(&self) -> &[u64] {
        match &self.place {
            Place::Blocks(blocks) => blocks,
            Place::Inode(_) => &[],
        }
    }

    /// The parent that an inline directory names.
    pub(super) fn inline_parent(&self) -> Option<u32> {
        self.is_inline().then(|| D_INODE.get(&self.raw[extents::ROOT]))
    }

    /// Names another parent in an inline directory.
    pub(super) fn put_inline_parent(&mut self, volume: &Volume<'_>, parent: u32) -> Result<()> {
        D_INODE.put(&mut self.raw[extents::ROOT], parent);
        volume.write_inode(self.ino, &self.raw)
    }

    /// Reads part `at`, tail included; false for a hole.
    pub(super) fn read(&self, volume: &Volume<'_>, at: usize, bytes: &mut Vec<u8>) -> Result<bool> {
        match &self.place {
            Place::Blocks(blocks) => {
                bytes.resize(volume.block_size(), 0);
                if blocks[at] != 0 {
                    volume.read(blocks[at], BlockKind::Directory, bytes)?;
                }
                Ok(blocks[at] != 0)
            }
            Place::Inode(ranges) => {
                bytes.clear();
                bytes.extend_from_slice(&self.raw[ranges[at].clone()]);
                Ok(true)
            }
        }
    }

    /// Whether part `at` belongs to an index, by the flag of the directory and its contents.
    pub(super) fn shape(&self, at: usize, bytes: &[u8]) -> Shape {
        let indexed = I_FLAGS.get(&self.raw) & super::inodes::INDEX != 0 && !self.is_inline();
        // What is inside an inode may be shorter than any of an index.
        let like_one = || if at == 0 { seals::is_index_root(bytes) } else { seals::is_index_node(bytes) };
        if indexed && like_one() { Shape::Index } else { Shape::Leaf }
    }

    /// How many bytes of part `at` hold entries.
    pub(super) fn entries_end(&self, volume: &Volume<'_>, at: usize, bytes: &[u8]) -> usize {
        self.entries_len(volume, self.shape(at, bytes), bytes)
    }

    /// The same of a part of this shape.
    pub(super) fn entries_len(&self, volume: &Volume<'_>, shape: Shape, bytes: &[u8]) -> usize {
        let tailed = !self.is_inline() && shape == Shape::Leaf;
        bytes.len() - if tailed { volume.tail_len() } else { 0 }
    }

    /// Writes part `at`. A leaf has a tail: what was mended so that it is none of an index any more gets one.
    pub(super) fn write(&mut self, volume: &Volume<'_>, at: usize, bytes: &mut [u8]) -> Result<()> {
        match &self.place {
            Place::Blocks(blocks) if self.shape(at, bytes) == Shape::Leaf => {
                if volume.has_sums() && !has_directory_tail(bytes) {
                    salvage::end_before_tail(bytes, volume.tail_len());
                    put_directory_tail(bytes);
                }
                volume.write_leaf(blocks[at], self.owner, bytes)
            }
            Place::Blocks(blocks) => volume.write_index(blocks[at], self.owner, bytes),
            Place::Inode(ranges) => {
                self.raw[ranges[at].clone()].copy_from_slice(bytes);
                volume.write_inode(self.ino, &self.raw)
            }
        }
    }

    /// Whether the sum of a part is that of its bytes.
    pub(super) fn sum_matches(&self, volume: &Volume<'_>, shape: Shape, bytes: &[u8]) -> bool {
        match shape {
            _ if self.is_inline() => true,
            Shape::Leaf => volume.leaf_sum_matches(self.owner, bytes),
            Shape::Index => volume.index_sum_matches(self.owner, bytes),
        }
    }

    /// A block of entries for this directory that has none yet, tail included; the first one begins with `.` and `..`.
    pub(super) fn empty_block(volume: &Volume<'_>, first_of: Option<(u32, u32)>) -> Vec<u8> {
        let mut bytes = vec![0; volume.block_size()];
        let end = bytes.len() - volume.tail_len();
        match first_of {
            Some((ino, parent)) => {
                put_first_block(&mut bytes[..end], ino, parent, volume.shape.has_filetype());
            }
            None => put_empty_block(&mut bytes[..end]),
        }
        if volume.has_sums() {
            put_directory_tail(&mut bytes);
        }
        bytes
    }
}

/// File blocks that a directory can have: what its length can say, and no more than the volume has.
pub(super) fn blocks_max(volume: &Volume<'_>) -> u64 {
    let most = if volume.shape.features.has_incompat(incompat::LARGE_DIR) { u64::MAX } else { 1 << 31 };
    (most / wide(volume.block_size())).min(volume.blocks())
}

/// The blocks of a directory by file block number; 0 where there is none.
fn blocks(volume: &Volume<'_>, state: &State, (ino, raw): (u32, &[u8])) -> Result<Vec<u64>> {
    let limit = blocks_max(volume);
    let mut list = Vec::new();
    if I_FLAGS.get(raw) & EXTENTS_FL != 0 {
        extents::list(volume, state, (ino, raw), &mut |extent| {
            let end = extent.end().min(limit);
            for logical in u64::from(extent.block)..end {
                put(&mut list, logical, extent.at(idx_block(logical)));
            }
        })?;
        return Ok(list);
    }
    let mut raw = raw.to_vec();
    walk(volume, &mut raw, &mut Pointers { state, list: &mut list, limit })?;
    Ok(list)
}

fn idx_block(logical: u64) -> u32 {
    u32::try_from(logical).expect("file blocks of extents have 32 bits")
}

fn put(list: &mut Vec<u64>, logical: u64, block: u64) {
    let at = idx64(logical);
    list.resize(list.len().max(at + 1), 0);
    list[at] = block;
}

struct Pointers<'a> {
    state: &'a State,
    list: &'a mut Vec<u64>,
    limit: u64,
}

impl Visit for Pointers<'_> {
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict> {
        if !volume.is_valid(pointer.block) {
            return Ok(Verdict::Skip);
        }
        if pointer.level > 0 {
            // A shared indirect block is damage that pass 1 reported; following it each time would let a
            // hostile volume make us walk for ever.
            let shared = self.state.is_shared(pointer.block);
            return Ok(if shared { Verdict::Skip } else { Verdict::Follow });
        }
        if pointer.logical < self.limit {
            put(self.list, pointer.logical, pointer.block);
        }
        Ok(Verdict::Skip)
    }
}
