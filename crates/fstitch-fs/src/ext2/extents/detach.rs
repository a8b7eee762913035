//! Taking blocks from files whose map is extents.
//!
//! **Orderings.** As for pointers: a node's change → what the caller says; the bits in the free map of what it pointed at → the
//! change. Nodes that become empty go with it, and the journal revokes what it has of them, as it does for indirect
//! blocks.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::{BlockBuf, Caller, Error, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::change::Changed;
use super::map::expected;
use super::node::{ALL, child_for, damaged};
use super::tree::Found;
use crate::ext2::alloc::FreedAfter;
use crate::ext2::detach::{Freed, Removal};
use crate::ext2::inode::Inode;
use crate::ext2::layout::extent::{Entries, Node};
use crate::ext2::layout::inode::POINTERS;
use crate::ext2::volume::Ext2;

impl Ext2 {
    /// Takes file blocks `from..to` out of the map after `befores`, and frees them with the nodes that become empty. Returns the
    /// patches of the map.
    pub(in crate::ext2) fn detach_extents(
        &self,
        inode: &mut Inode,
        (from, to): (u64, u64),
        befores: &[PatchId],
    ) -> Result<PatchIds> {
        let range = from..to.min(ALL.end);
        if !self.has_extents_in(inode, &range)? {
            return Ok(PatchIds::new());
        }
        if self.is_cut_in_two(inode, &range)? {
            self.reserve_for_edits(inode, &[from])?;
        } else {
            let copied = self.tree(inode)?.copied_by_cutting(&range)?;
            self.reserve_nodes(&Caller::default(), inode, copied)?;
        }
        let changed = self.change_tree(inode, befores, |tree| tree.remove(&range));
        let changed = match changed {
            Ok(changed) => changed,
            Err(error) => {
                self.drop_spare_nodes(inode);
                return Err(error);
            }
        };
        let mut removal = Removal::new(range.start, range.end, befores);
        self.free_lost(inode, &changed, &mut removal);
        self.finish_change(inode, (&changed, 0), &mut removal)?;
        self.close_window(inode);
        inode.last = None;
        self.give_back_preallocated_of(inode.ino);
        self.remember(inode);
        removal.failed.map_or(Ok(changed.patches), Err)
    }

    /// Frees the blocks that the file has lost by a change.
    pub(super) fn free_lost(&self, inode: &mut Inode, changed: &Changed, removal: &mut Removal<'_>) {
        for lost in &changed.lost {
            if let Some(clearing) = expect_clearing(changed.clearing(lost.from), removal) {
                let mut freed = Freed { start: lost.start, count: lost.count };
                self.free_run(inode, &mut freed, clearing, removal);
            }
        }
    }

    /// Frees the nodes that a change has made superfluous, of which joining leaves some as well, and counts what the inode got beside
    /// `got` blocks of data, and lost. Blocks for nodes that were not needed are given back.
    pub(super) fn finish_change(
        &self,
        inode: &mut Inode,
        (changed, got): (&Changed, u32),
        removal: &mut Removal<'_>,
    ) -> Result<()> {
        for &node in changed.freed.keys() {
            if let Some(clearing) = expect_clearing(changed.clearing(Some(node)), removal) {
                let mut freed = Freed { start: node, count: 1 };
                self.free_data(&mut freed, FreedAfter::Pointer(clearing), removal);
            }
        }
        self.drop_spare_nodes(inode);
        self.count_blocks_of(inode, changed.made + got, removal.freed)
    }

    /// Whether any of the file blocks is there.
    fn has_extents_in(&self, inode: &Inode, range: &Range<u64>) -> Result<bool> {
        if range.is_empty() {
            return Ok(false);
        }
        Ok(match self.find_extent(inode, range.start)? {
            Found::In(_) => true,
            Found::HoleTo(_) => self.extents_end(inode)? > range.start,
        })
    }

    /// Whether both ends of one extent stay.
    fn is_cut_in_two(&self, inode: &Inode, range: &Range<u64>) -> Result<bool> {
        Ok(match self.find_extent(inode, range.start)? {
            Found::In(extent) => u64::from(extent.block) < range.start && range.end < extent.end(),
            Found::HoleTo(_) => false,
        })
    }

    /// Frees all that the map in an inode's words points at, which `after` has cut off.
    pub(in crate::ext2) fn free_all_extents(
        &self,
        inode: &Inode,
        words: &[u32; POINTERS],
        after: FreedAfter,
    ) -> Result<()> {
        let root = Node::parse_root(words, inode.at.0, self.sb.blocks_count)?;
        let mut removal = Removal::new(ALL.start, ALL.end, &[]);
        self.free_node(inode, (&root, &ALL), after, &mut removal);
        removal.failed.map_or(Ok(()), Err)
    }

    /// Reads a node for the last time and frees it, unless it is free already: damage may have two trees share it.
    fn leave_node(&self, inode: &Inode, block: u64, after: FreedAfter) -> Result<Arc<BlockBuf>> {
        let bytes = self.read_node_block(inode, block)?.snapshot();
        if !self.is_used(block)? {
            return Err(damaged(Some(block), "it is marked as free"));
        }
        self.free_blocks(block, 1, after)?;
        Ok(bytes)
    }

    fn free_node(
        &self,
        inode: &Inode,
        (node, range): (&Node, &Range<u64>),
        after: FreedAfter,
        removal: &mut Removal<'_>,
    ) {
        let nodes = match &node.entries {
            Entries::Leaf(extents) => {
                for extent in extents {
                    self.free_data(&mut Freed { start: extent.start, count: extent.len }, after, removal);
                }
                return;
            }
            Entries::Inner(nodes) => nodes,
        };
        for entry in nodes {
            let Some((_, child, below)) = child_for(node, u64::from(entry.block), range) else { continue };
            let read = self.leave_node(inode, child.node, after).and_then(|bytes| {
                removal.freed += 1;
                let expected = expected(self.sb.blocks_count, child.node, node.depth - 1, &below);
                Node::parse(&bytes, &expected)
            });
            match read {
                Ok(child) => self.free_node(inode, (&child, &below), after, removal),
                Err(error) => drop(removal.failed.get_or_insert(error)),
            }
        }
    }
}

/// The patch after which blocks are free. A node that loses an entry has always changed, unless the tree is damaged.
fn expect_clearing(clearing: Option<PatchId>, removal: &mut Removal<'_>) -> Option<PatchId> {
    if clearing.is_none() {
        let error: Error = damaged(None, "an extent that two nodes have");
        removal.failed.get_or_insert(error);
    }
    clearing
}
