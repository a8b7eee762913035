//! Files whose map is extents.

use std::ops::Range;

use fstitch_core::{BlockKind, BlockNo, Result};

use super::Mover;
use super::room::Room;
use crate::ext2::extents::expected_node;
use crate::ext2::extents::tree::{Found, Nodes, Tree};
use crate::ext2::journal::{Loaded, Pass};
use crate::ext2::layout::extent::{Entries, Extent, LOGICAL_END, Node, block_max};
use crate::ext2::num::low32;

/// Blocks of an extent that are moved at once.
const AT_ONCE: u32 = 8192;
/// Blocks that an edit may change or make: two on each level, and a new root's.
const EDIT_MAX: usize = 12;
/// Behind the last file block.
const END: u64 = LOGICAL_END;

/// Nodes as a batch has changed them, and blocks for new ones.
struct MovedNodes<'w, 'a, 'd> {
    pass: &'w Pass<'a, 'd>,
    room: &'w mut Room,
}

impl Nodes for MovedNodes<'_, '_, '_> {
    fn read(&mut self, block: u64, depth: u16, range: &Range<u64>) -> Result<Node> {
        let bytes = self.pass.read(BlockNo(block), BlockKind::Indirect)?;
        Node::parse(&bytes, &expected_node(self.pass.shape.blocks_count, block, depth, range))
    }

    fn take(&mut self) -> Result<u64> {
        Ok(self.room.take(1)?.0)
    }

    fn room(&self) -> u16 {
        block_max(self.pass.volume.block_size())
    }
}

impl<'a, 'd> Mover<'a, 'd> {
    /// Moves the blocks of a file, nodes first, as far as the batch has room; whether that is all.
    pub(super) fn move_extents(&mut self, inode: &mut Loaded) -> Result<bool> {
        let sums = self.pass.shape.sums.of_inode(inode.ino, inode.disk.generation);
        self.pass.summed.nodes_of = Some(sums);
        let moved = self.move_tree(inode);
        self.pass.summed.nodes_of = None;
        moved
    }

    fn move_tree(&mut self, inode: &mut Loaded) -> Result<bool> {
        let mut root = Node::parse_root(&inode.disk.block, inode.at.0, self.pass.shape.blocks_count)?;
        let all_nodes = self.move_nodes(inode, None, &mut root, &(0..END))?;
        if !all_nodes {
            return Ok(false);
        }
        let mut at = self.resume;
        while at < END {
            self.resume = at;
            let extent = match self.tree(inode)?.find(at)? {
                Found::HoleTo(next) => {
                    at = next;
                    continue;
                }
                Found::In(extent) => extent,
            };
            if extent.start + u64::from(extent.len) <= self.limits.end {
                at = extent.end();
                continue;
            }
            if !self.has_room(EDIT_MAX) {
                return Ok(false);
            }
            at = self.move_part(inode, extent)?;
        }
        Ok(true)
    }

    fn tree(&mut self, inode: &Loaded) -> Result<Tree<MovedNodes<'_, 'a, 'd>>> {
        let root = Node::parse_root(&inode.disk.block, inode.at.0, self.pass.shape.blocks_count)?;
        Ok(Tree::new(root, MovedNodes { pass: &self.pass, room: &mut self.room }))
    }

    /// Moves nodes below `node`, which is in block `at` or the root. In their places others point at them; nothing else of them changes.
    fn move_nodes(
        &mut self,
        inode: &mut Loaded,
        at: Option<u64>,
        node: &mut Node,
        range: &Range<u64>,
    ) -> Result<bool> {
        let depth = node.depth;
        let Entries::Inner(children) = node.entries.clone() else { return Ok(true) };
        for (slot, child) in children.iter().enumerate() {
            let mut here = child.node;
            if here >= self.limits.end {
                if !self.has_room(3) {
                    return Ok(false);
                }
                let bytes = self.pass.read(BlockNo(child.node), BlockKind::Indirect)?;
                here = self.room.take(1)?.0;
                self.pass.put_new(BlockNo(here), BlockKind::Indirect, bytes);
                self.pass.forget(BlockNo(child.node));
                let Entries::Inner(entries) = &mut node.entries else { unreachable!("it was one above") };
                entries[slot].node = here;
                match at {
                    None => inode.disk.block = crate::ext2::extents::root_over(node, &inode.disk.block),
                    Some(at) => node.encode_into(self.pass.change(BlockNo(at), BlockKind::Indirect)?),
                }
                self.moved(child.node, here, 1);
            }
            if depth > 1 {
                let end = children.get(slot + 1).map_or(range.end, |next| u64::from(next.block));
                let below = u64::from(child.block)..end;
                let bytes = self.pass.read(BlockNo(here), BlockKind::Indirect)?;
                let expected = expected_node(self.pass.shape.blocks_count, here, depth - 1, &below);
                let mut next = Node::parse(&bytes, &expected)?;
                if !self.move_nodes(inode, Some(here), &mut next, &below)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Moves some of an extent, as much as lies together where it goes; the file block behind it.
    fn move_part(&mut self, inode: &mut Loaded, extent: Extent) -> Result<u64> {
        let kept = low32(self.limits.end.saturating_sub(extent.start));
        let (block, from) = (extent.block + kept, extent.start + u64::from(kept));
        let (start, count) = self.room.take(u64::from((extent.len - kept).min(AT_ONCE)))?;
        let len = low32(count);
        let placed = Extent { block, len, start, unwritten: extent.unwritten };
        if !extent.unwritten {
            self.move_contents(inode, (from, start, count))?;
        }
        let mut tree = self.tree(inode)?;
        tree.remove(&(u64::from(block)..placed.end()))?;
        tree.insert(placed)?;
        let Tree { root, nodes, freed, .. } = tree;
        let made: Vec<u64> = nodes.iter().filter(|(_, held)| held.is_new).map(|(&block, _)| block).collect();
        let gone: Vec<u64> = freed.keys().copied().collect();
        self.pass.put_tree(inode, &root, nodes)?;
        let sums = self.pass.shape.sums.of_inode(inode.ino, inode.disk.generation);
        self.pass.summed.nodes_of = Some(sums);
        self.moved(from, start, count);
        let sectors = u64::from(self.pass.shape.block_size / 512);
        for block in made {
            self.take_in(block, 1);
            inode.disk.sectors += sectors;
        }
        for block in gone {
            self.pass.forget(BlockNo(block));
            self.leave(block, 1);
            inode.disk.sectors = inode.disk.sectors.saturating_sub(sectors);
        }
        Ok(placed.end())
    }
}
