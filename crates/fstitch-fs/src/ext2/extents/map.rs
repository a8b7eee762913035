//! Where a file block is.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{BlockKind, BlockNo, Result};
use fstitch_patch::Block;

use super::node::{ALL, child_for, damaged, index32};
use super::tree::{Found, found_in};
use crate::ext2::inode::Inode;
use crate::ext2::layout::extent::{
    EE_BLOCK, EE_LEN, EH_ENTRIES, EXTENT_ENTRY, EXTENT_HEADER, Entries, Expected, Extent, Node, WRITTEN_MAX,
    extent_start,
};
use crate::ext2::volume::Ext2;
use crate::uhfs;

/// The leaf that was met last, so that work on neighbouring blocks of a file does not walk down from the inode each time. It
/// is a leaf of the file's, validated, until nodes are given up: whoever does that forgets it, under the inode's lock, as whoever
/// looks holds that lock at least shared.
#[derive(Debug, Default)]
pub(in crate::ext2) struct NodeHint(AtomicU64);

impl NodeHint {
    pub(in crate::ext2) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    fn set(&self, block: u64) {
        self.0.store(block, Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&block| block != 0)
    }
}

impl Ext2 {
    /// The root of an inode's tree.
    pub(super) fn root_node(&self, inode: &Inode) -> Result<Node> {
        Node::parse_root(&inode.disk.block, inode.at.0, self.sb.blocks_count)
    }

    /// Reads a block that should be a node of the inode's tree.
    pub(super) fn read_node_block(&self, inode: &Inode, block: u64) -> Result<Block> {
        if !self.is_file_run(block, 1)? {
            return Err(inode.damaged(format!("its extent node {block} is outside the blocks for files")));
        }
        self.cache.read_owned(BlockNo(block), BlockKind::Indirect, inode.owner())
    }

    /// Reads a node with `depth` levels below that holds file blocks of `range`.
    pub(super) fn read_node(
        &self,
        inode: &Inode,
        block: u64,
        depth: u16,
        range: &Range<u64>,
    ) -> Result<Node> {
        let bytes = self.read_node_block(inode, block)?.snapshot();
        Node::parse(&bytes, &expected(self.sb.blocks_count, block, depth, range))
    }

    /// What the tree says of file block `index`.
    pub(super) fn find_extent(&self, inode: &Inode, index: u64) -> Result<Found> {
        if index >= ALL.end {
            return Ok(Found::HoleTo(u64::MAX));
        }
        if let Some(leaf) = inode.node_hint.get() {
            let bytes = self.read_node_block(inode, leaf)?.snapshot();
            if let Some(extent) = look_up(&bytes, index32(index)) {
                return Ok(Found::In(extent));
            }
        }
        let (mut node, mut range) = (self.root_node(inode)?, ALL);
        while let Some((_, child, below)) = child_for(&node, index, &range) {
            node = self.read_node(inode, child.node, node.depth - 1, &below)?;
            range = below;
            if node.depth == 0 {
                inode.node_hint.set(child.node);
            }
        }
        Ok(found_in(&node, index, range.end))
    }

    /// The run at file block `index`, at most `max` blocks long.
    pub(in crate::ext2) fn map_extent(&self, inode: &Inode, index: u64, max: u64) -> Result<uhfs::Extent> {
        let max = max.max(1);
        let extent = match self.find_extent(inode, index)? {
            Found::HoleTo(end) => return Ok(uhfs::Extent::hole((end - index).min(max))),
            Found::In(extent) => extent,
        };
        let (start, count) = (extent.at(index32(index)), (extent.end() - index).min(max));
        if !self.is_file_run(start, index32(count))? {
            return Err(inode.damaged(format!("file block {index} at {start}: outside the blocks for files")));
        }
        Ok(uhfs::Extent { start: Some(BlockNo(start)), count, written: !extent.unwritten })
    }

    /// The file block behind the last one that the file has.
    pub(in crate::ext2) fn extents_end(&self, inode: &Inode) -> Result<u64> {
        let (mut node, mut range) = (self.root_node(inode)?, ALL);
        loop {
            match &node.entries {
                Entries::Leaf(extents) => return Ok(extents.last().map_or(range.start, Extent::end)),
                Entries::Inner(_) => {
                    let Some((_, child, below)) = child_for(&node, ALL.end - 1, &range) else {
                        return Err(damaged(None, "a node without children"));
                    };
                    node = self.read_node(inode, child.node, node.depth - 1, &below)?;
                    range = below;
                }
            }
        }
    }
}

/// What is expected of a node below the root.
pub(in crate::ext2) fn expected(blocks_count: u64, block: u64, depth: u16, range: &Range<u64>) -> Expected {
    let at = BlockNo(block);
    Expected { at, depth: Some(depth), range: (index32(range.start), range.end), blocks_count }
}

/// The extent that holds `index`, if it is in this leaf, which was validated.
fn look_up(leaf: &[u8], index: u32) -> Option<Extent> {
    let count = usize::from(EH_ENTRIES.get(leaf));
    let raw = |at: usize| &leaf[EXTENT_HEADER + at * EXTENT_ENTRY..][..EXTENT_ENTRY];
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if EE_BLOCK.get(raw(middle)) <= index { low = middle + 1 } else { high = middle }
    }
    let raw = raw(low.checked_sub(1)?);
    let len = u32::from(EE_LEN.get(raw));
    let unwritten = len > WRITTEN_MAX;
    let len = if unwritten { len - WRITTEN_MAX } else { len };
    let extent = Extent { block: EE_BLOCK.get(raw), len, start: extent_start(raw), unwritten };
    (u64::from(index) < extent.end()).then_some(extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_searched_as_it_lies() {
        let extents: Vec<Extent> = (0..50_u32)
            .map(|at| Extent {
                block: 10 * at + 3,
                len: 1 + at % 7,
                start: u64::from(1000 + 10 * at),
                unwritten: at % 3 == 0,
            })
            .collect();
        let leaf = Node { depth: 0, max: 84, entries: Entries::Leaf(extents) };
        let mut bytes = vec![0; 1024];
        leaf.encode_into(&mut bytes);
        for index in 0..600 {
            let found = match found_in(&leaf, u64::from(index), ALL.end) {
                Found::In(extent) => Some(extent),
                Found::HoleTo(_) => None,
            };
            assert_eq!(look_up(&bytes, index), found, "{index}");
        }
    }
}
