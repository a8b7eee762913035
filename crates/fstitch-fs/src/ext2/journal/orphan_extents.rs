//! Orphans whose block map is extents.
//!
//! **Crash cases.** As for pointers: from the end forward, a part of an extent at a time, so that after each batch the map
//! points at all blocks that are not free. Unwritten blocks go like others.

use std::ops::Range;

use fstitch_core::{BlockKind, BlockNo, Errno, Error, Result, Structure};

use super::pass::{Loaded, Pass};
use crate::ext2::extents::tree::{Found, Nodes, Tree};
use crate::ext2::extents::{expected_node, root_over};
use crate::ext2::layout::extent::{Extent, Node};
use crate::ext2::num::idx64;

/// Nodes as a pass has changed them.
struct PassNodes<'p, 'a, 'd>(&'p Pass<'a, 'd>);

impl Nodes for PassNodes<'_, '_, '_> {
    fn read(&mut self, block: u64, depth: u16, range: &Range<u64>) -> Result<Node> {
        let shape = &self.0.shape;
        if block <= shape.first_data_block() || block >= shape.blocks_count {
            return Err(Error::corrupt(Structure::Orphan, None, format!("its extent node {block}")));
        }
        let bytes = self.0.read(BlockNo(block), BlockKind::Indirect)?;
        Node::parse(&bytes, &expected_node(shape.blocks_count, block, depth, range))
    }

    fn take(&mut self) -> Result<u64> {
        // What only gets shorter at its end needs no new nodes.
        Err(Errno::NOSPC.into())
    }

    fn room(&self) -> u16 {
        crate::ext2::layout::extent::block_max(self.0.volume.block_size())
    }
}

impl<'a, 'd> Pass<'a, 'd> {
    fn tree(&self, orphan: &Loaded) -> Result<Tree<PassNodes<'_, 'a, 'd>>> {
        let root = Node::parse_root(&orphan.disk.block, orphan.at.0, self.shape.blocks_count)?;
        Ok(Tree::new(root, PassNodes(self)))
    }

    /// Frees the inode's blocks from the end to file block `keep`; whether that is finished.
    pub(super) fn free_extents(&mut self, orphan: &mut Loaded, keep: u64) -> Result<bool> {
        loop {
            let last = self.tree(orphan)?.last()?.filter(|last| last.end() > keep);
            let Some(last) = last else { return Ok(true) };
            if self.is_full() {
                return Ok(false);
            }
            self.free_end(orphan, last, keep)?;
        }
    }

    /// Frees the end of the last extent, as far as it may lie in two groups.
    fn free_end(&mut self, orphan: &mut Loaded, last: Extent, keep: u64) -> Result<()> {
        let from = keep.max(u64::from(last.block));
        let from = from.max(last.end().saturating_sub(u64::from(self.shape.blocks_per_group)));
        let mut tree = self.tree(orphan)?;
        tree.remove(&(from..last.end()))?;
        let Tree { root, nodes, freed, lost, .. } = tree;
        orphan.disk.block = root_over(&root, &orphan.disk.block);
        for (block, held) in nodes.into_iter().filter(|(_, held)| held.is_changed) {
            let bytes = self.change(BlockNo(block), BlockKind::Indirect)?;
            held.node.encode_into(bytes);
        }
        let mut count = 0;
        for block in lost.iter().flat_map(|lost| lost.start..lost.start + u64::from(lost.count)) {
            self.free_block(block)?;
            count += 1;
        }
        for &block in freed.keys() {
            self.free_block(block)?;
            // What it held before is as good as anything.
            self.forget(BlockNo(block));
            count += 1;
        }
        self.lose_sectors(orphan, count);
        Ok(())
    }

    /// Where file block `index` is, if it has contents.
    pub(super) fn extent_at(&self, orphan: &Loaded, index: u64) -> Result<Option<BlockNo>> {
        let Found::In(extent) = self.tree(orphan)?.find(index)? else { return Ok(None) };
        let no = extent.start + index - u64::from(extent.block);
        debug_assert!(idx64(no) > 0, "an extent lies inside the volume");
        Ok((!extent.unwritten).then_some(BlockNo(no)))
    }
}
