//! Records of ranges: the map of a file by extents.

use std::ops::Range;

use fstitch_core::{BlockKind, BlockNo, Error, Result};
use fstitch_patch::journal::fast;

use super::super::pass::{Loaded, Pass};
use super::settle::Space;
use super::{Apply, damaged, within};
use crate::ext2::extents::expected_node;
use crate::ext2::extents::tree::{Nodes, Tree};
use crate::ext2::layout::extent::{Extent, Node, block_max};

/// Nodes as records have changed them, and blocks for new ones.
pub(super) struct RecordNodes<'w, 'a, 'd> {
    pass: &'w Pass<'a, 'd>,
    space: &'w mut Space,
    /// Where new nodes should lie near.
    near: u64,
}

impl Nodes for RecordNodes<'_, '_, '_> {
    fn read(&mut self, block: u64, depth: u16, range: &Range<u64>) -> Result<Node> {
        let bytes = self.pass.read(BlockNo(block), BlockKind::Indirect)?;
        Node::parse(&bytes, &expected_node(self.pass.shape.blocks_count, block, depth, range))
    }

    fn take(&mut self) -> Result<u64> {
        self.space.take(self.pass, self.near)
    }

    fn room(&self) -> u16 {
        block_max(self.pass.volume.block_size())
    }
}

impl Apply<'_, '_, '_> {
    /// These blocks are in the file there, whatever was before.
    pub(super) fn add_range(&mut self, ino: u32, extent: fast::Extent) -> Result<()> {
        let (start, end) = within(extent.physical, u64::from(extent.count))?;
        if start <= self.pass.shape.first_data_block() || self.pass.own.meet(start, end) {
            return Err(damaged(format!("blocks {start}..{end} are the volume's own")));
        }
        let (block, unwritten) = (extent.logical, extent.is_unwritten);
        let extent = Extent { block, len: u32::from(extent.count), start, unwritten };
        self.change_map(ino, |tree| {
            tree.remove(&(u64::from(extent.block)..extent.end()))?;
            tree.insert(extent)
        })
    }

    /// Nothing is in the file there.
    pub(super) fn drop_range(&mut self, ino: u32, first: u32, count: u32) -> Result<()> {
        let range = u64::from(first)..u64::from(first) + u64::from(count);
        self.change_map(ino, |tree| tree.remove(&range))
    }

    /// Changes the map of an inode. One that is not in use has none: it was freed, or a later record makes it.
    fn change_map(
        &mut self,
        ino: u32,
        edit: impl FnOnce(&mut Tree<RecordNodes<'_, '_, '_>>) -> Result<()>,
    ) -> Result<()> {
        let Some(mut orphan) = self.load(ino)? else { return Ok(()) };
        if !orphan.disk.has_extents() {
            return Err(Error::Unsupported("fast commits with blocks of a file without extents".into()));
        }
        self.lift(&orphan)?;
        self.edit_tree(&mut orphan, edit)?;
        self.put(&orphan)
    }

    /// Edits the tree of extents of an inode, which gets its new root.
    pub(super) fn edit_tree(
        &mut self,
        orphan: &mut Loaded,
        edit: impl FnOnce(&mut Tree<RecordNodes<'_, '_, '_>>) -> Result<()>,
    ) -> Result<()> {
        let shape = &self.pass.shape;
        let root = Node::parse_root(&orphan.disk.block, orphan.at.0, shape.blocks_count)?;
        let near = shape.group_start(orphan.group);
        let mut tree = Tree::new(root, RecordNodes { pass: self.pass, space: &mut self.space, near });
        edit(&mut tree)?;
        let Tree { root, nodes, freed, .. } = tree;
        self.pass.put_tree(orphan, &root, nodes)?;
        for &block in freed.keys() {
            self.pass.forget(BlockNo(block));
        }
        Ok(())
    }
}
