//! The hash tree of an indexed directory.
//!
//! ```text
//!   block 0    "." | ".." over the rest: info (hash version, levels) and entries (hash, block)
//!   node       an empty entry over the whole block, hiding entries (hash, block)      [with two levels, three if large_dir]
//!   leaf       an ordinary directory block whose names' hashes lie between its entry's hash and the next's
//! ```

use fstitch_core::{BlockKind, Le, Result};

use super::state::Volume;
use crate::ext2::layout::checksum::INDEX_TAIL;
use crate::ext2::layout::dirent::{D_INODE, rec_len};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::name_hash::Hasher;
use crate::ext2::num::{idx, wide};

/// Where the root's info starts.
const INFO: usize = 24;
/// Where a node's entries start.
const NODE_ENTRIES: usize = 8;
/// Bytes of an entry.
const ENTRY: usize = 8;
/// `s_flags`: hashes take characters as unsigned.
const UNSIGNED: u32 = 2;

/// What is known of a block that an index covers.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Bounds by the index.
    low: u32,
    high: u32,
    /// Bounds by the names.
    seen: Option<(u32, u32)>,
    /// How many index entries point here.
    references: u32,
}

/// An index, and the hashes met in the blocks that it covers.
pub(super) struct Tree {
    hasher: Hasher,
    blocks: Vec<Block>,
    /// Trouble that was found while names were noted.
    stray: bool,
}

/// Entries of one index block: (hash, block), with the lower bound of the whole for the first.
fn read_entries(
    bytes: &[u8],
    at: usize,
    low: u32,
    (blocks, tail): (usize, usize),
) -> std::result::Result<Vec<(u32, usize)>, String> {
    let expected = (bytes.len() - at - tail) / ENTRY;
    let limit = usize::from(Le::u16(bytes, at));
    let count = usize::from(Le::u16(bytes, at + 2));
    if limit != expected {
        return Err(format!("limit {limit}, expected {expected}"));
    }
    if count == 0 || count > limit {
        return Err(format!("{count} entries of at most {limit}"));
    }
    let mut entries = Vec::with_capacity(count);
    let mut last = low;
    for i in 0..count {
        let hash = if i == 0 { low } else { Le::u32(bytes, at + ENTRY * i) };
        let block = idx(Le::u32(bytes, at + ENTRY * i + 4) & 0x0fff_ffff);
        if hash < last {
            return Err(format!("hash {hash:#x} after {last:#x}"));
        }
        if block == 0 || block >= blocks {
            return Err(format!("block {block} of {blocks}"));
        }
        entries.push((hash, block));
        last = hash;
    }
    Ok(entries)
}

impl Tree {
    /// Reads the index of a directory with these blocks.
    pub(super) fn read(volume: &Volume<'_>, blocks: &[u64]) -> std::result::Result<Self, Result<String>> {
        let problem = |text: String| Ok(text);
        let mut bytes = vec![0; volume.block_size()];
        let root = blocks.first().copied().filter(|&block| block != 0);
        let Some(root) = root else {
            return Err(problem("no root block".into()));
        };
        volume.read(root, BlockKind::Directory, &mut bytes).map_err(Err)?;
        let spans =
            rec_len(&bytes, bytes.len()) == 12 && rec_len(&bytes[12..], bytes.len()) == bytes.len() - 12;
        let (version, info_len, levels) = (bytes[INFO + 4], bytes[INFO + 5], bytes[INFO + 6]);
        let unsigned = Le::u32(&volume.raw_super, 0x160) & UNSIGNED != 0;
        let Some(hasher) = Hasher::new(version, unsigned, volume.shape.hash_seed) else {
            return Err(problem(format!("unknown hash {version}")));
        };
        if !spans || Le::u32(&bytes, INFO) != 0 || info_len != 8 || bytes[INFO + 7] & 1 != 0 {
            return Err(problem("the root is damaged".into()));
        }
        if levels > if volume.shape.features.has_incompat(incompat::LARGE_DIR) { 2 } else { 1 } {
            return Err(problem(format!("{levels} levels of nodes")));
        }
        let unknown = Block { low: 0, high: u32::MAX, seen: None, references: 0 };
        let mut tree = Self { hasher, blocks: vec![unknown; blocks.len()], stray: false };
        tree.blocks[0].references = 1;
        let sizes = (blocks.len(), if volume.has_sums() { INDEX_TAIL } else { 0 });
        let entries = read_entries(&bytes, INFO + usize::from(info_len), 0, sizes).map_err(problem)?;
        tree.enter(volume, blocks, &entries, (levels, u32::MAX))?;
        Ok(tree)
    }

    /// Notes what these entries refer to, with so many levels of nodes below and hashes up to `high`. Recursion is as deep as
    /// the index; a node is entered once.
    fn enter(
        &mut self,
        volume: &Volume<'_>,
        blocks: &[u64],
        entries: &[(u32, usize)],
        (levels, high): (u8, u32),
    ) -> std::result::Result<(), Result<String>> {
        for (i, &(low, at)) in entries.iter().enumerate() {
            let high = entries.get(i + 1).map_or(high, |next| next.0);
            if levels == 0 {
                self.refer(at, low, high);
                continue;
            }
            self.blocks[at].references += 1;
            let below = self.read_node(volume, blocks, at, low)?;
            self.enter(volume, blocks, &below, (levels - 1, high))?;
        }
        Ok(())
    }

    fn read_node(
        &self,
        volume: &Volume<'_>,
        blocks: &[u64],
        at: usize,
        low: u32,
    ) -> std::result::Result<Vec<(u32, usize)>, Result<String>> {
        if blocks[at] == 0 || self.blocks[at].references > 1 {
            return Err(Ok(format!("node {at} is missing or used twice")));
        }
        let mut bytes = vec![0; volume.block_size()];
        volume.read(blocks[at], BlockKind::Directory, &mut bytes).map_err(Err)?;
        if D_INODE.get(&bytes) != 0 || rec_len(&bytes, bytes.len()) != bytes.len() {
            return Err(Ok(format!("node {at} has names")));
        }
        let sizes = (blocks.len(), if volume.has_sums() { INDEX_TAIL } else { 0 });
        read_entries(&bytes, NODE_ENTRIES, low, sizes).map_err(|problem| Ok(format!("node {at}: {problem}")))
    }

    fn refer(&mut self, at: usize, low: u32, high: u32) {
        let block = &mut self.blocks[at];
        block.references += 1;
        block.low = low;
        block.high = high;
    }

    /// Whether the names fit the index.
    pub(super) fn verify(&self) -> std::result::Result<(), String> {
        if self.stray {
            return Err("a name outside the index".into());
        }
        for (at, block) in self.blocks.iter().enumerate() {
            if block.references != 1 {
                return Err(format!("block {at} has {} index entries, expected 1", block.references));
            }
            if let Some((low, high)) = block.seen
                && (low < block.low & !1 || high > block.high)
            {
                let (from, to) = (block.low, block.high);
                return Err(format!(
                    "block {at} has hashes {low:#x}..{high:#x}, expected {from:#x}..{to:#x}"
                ));
            }
        }
        Ok(())
    }
}

/// Notes a name met in block `logical`.
pub(super) fn note(tree: &mut Tree, logical: usize, name: &[u8]) {
    let hash = tree.hasher.hash(name);
    match tree.blocks.get_mut(logical) {
        Some(block) if wide(logical) > 0 => {
            let (low, high) = block.seen.unwrap_or((hash, hash));
            block.seen = Some((low.min(hash), high.max(hash)));
        }
        _ => tree.stray = true,
    }
}
