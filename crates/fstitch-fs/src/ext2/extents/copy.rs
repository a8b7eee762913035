//! Nodes are copied where they cannot change together.
//!
//! Without a journal the medium may have one block of a change and not the next. So an operation changes nodes that the medium
//! reaches only where each change is right alone: what is put in, taken out or marked within one node, below the same first file block.
//! A node that gives entries to another one, or begins with another file block than its parent says, stays as it is. Its
//! entries go to a new block, and the node above points there instead: one change of one node, which is again right alone, or
//! makes that one a node to be copied, up to the root, which lies in the inode.
//!
//! **Orderings** (arrows read "comes after").
//! - the change of a node in place → what the caller says, the contents and bits of the new nodes that it points at, and the last change of
//!   every node whose entries are in these: with the entries come what they waited for;
//! - the change of a node in place → the changes by which the medium comes to it, while they are not stable: till then the
//!   medium has the file's blocks in the node that was copied, and nothing may be freed that is still there;
//! - an extent is put into a leaf → the last changes of the nodes above, which may have given the leaf the file blocks of another one;
//! - the bit of a node that was copied is cleared → the change that points past it;
//! - a size → all that has changed on the way to the new end; a lower one → the extent that crosses the new end is two, and the last nodes are gone
//!   from a tree that has none any more: no extent of a node crosses a place where the file may end on the medium
//!   ([`Ends`](super::ends::Ends)).
//!
//! **Invariants.** 1. All changes of a node in place overlap, in its header: the cache keeps their order, and the last one stands for all.
//! 2. No first file block of a node ever differs from what its parent says, on the medium either.
//!
//! **Crash cases.** New nodes that nothing points at yet, and copied ones that nothing points at any more: leaked blocks.

use std::sync::Arc;

use fstitch_core::{Errno, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::change::{Changed, Image, Root};
use super::ends::Walls;
use super::node::{children_mut, key};
use super::tree::{At, Found, Held, Nodes, Tree, is_across};
use crate::ext2::detach::Removal;
use crate::ext2::inode::Inode;
use crate::ext2::layout::extent::{Entries, Node};
use crate::ext2::volume::Ext2;

/// The root of inode `ino` among the numbers of nodes, which are blocks.
fn place(at: At, ino: u32) -> u64 {
    at.map_or(1 << 32 | u64::from(ino), u64::from)
}

impl<N: Nodes> Tree<N> {
    /// Has the nodes copied that cannot change in place, if they are to be.
    pub(super) fn copy_moved(&mut self) -> Result<()> {
        if self.copies { self.copy_below(None) } else { Ok(()) }
    }

    /// Recursion is as deep as the tree.
    fn copy_below(&mut self, at: At) -> Result<()> {
        let Entries::Inner(children) = &self.node(at).entries else { return Ok(()) };
        for (slot, child) in children.clone().into_iter().enumerate() {
            let Some(held) = self.nodes.get(&child.node) else { continue };
            let copied = !held.is_new && (held.is_changed || self.copies_all) && {
                self.copies_all || self.moved.contains(&Some(child.node)) || key(&held.node, 0) != held.first
            };
            let below = if copied { self.copy(at, slot, child.node)? } else { child.node };
            self.copy_below(Some(below))?;
        }
        Ok(())
    }

    /// Copies the node in `block`, at which entry `slot` of node `at` points.
    fn copy(&mut self, at: At, slot: usize, block: u64) -> Result<u64> {
        let copy = self.source.take()?;
        let node = Node { max: self.source.room(), ..self.node(Some(block)).clone() };
        self.give_up(block, self.origin(at));
        self.moved.insert(Some(block));
        self.nodes.insert(copy, Held::new(node, Some(block)));
        children_mut(self.change(at))[slot].node = copy;
        Ok(copy)
    }
}

impl Ext2 {
    /// Whether nodes are copied.
    pub(in crate::ext2) fn copies_nodes(&self) -> bool {
        !self.has_journal_in_use()
    }

    /// Where no written extent of the inode's tree may be across.
    pub(in crate::ext2) fn walls(&self, inode: &Inode) -> Walls {
        if self.copies_nodes() {
            inode.ends.walls(&self.cache, self.blocks_of(inode.disk.size))
        } else {
            Walls::new()
        }
    }

    /// Whether an inode's extents may not be across its end.
    #[inline]
    pub(in crate::ext2) fn orders_ends(&self, inode: &Inode) -> bool {
        inode.has_extents() && self.copies_nodes()
    }

    fn blocks_of(&self, size: u64) -> u64 {
        size.div_ceil(u64::from(self.sb.block_size))
    }

    /// The size will be `size` by a patch that comes after these, and after what is added to them.
    #[inline]
    pub(in crate::ext2) fn before_end(
        &self,
        inode: &mut Inode,
        size: u64,
        befores: &mut PatchIds,
    ) -> Result<()> {
        if self.orders_ends(inode) {
            befores.extend_from_slice(&self.parted_at(inode, size)?);
        }
        Ok(())
    }

    fn parted_at(&self, inode: &mut Inode, size: u64) -> Result<PatchIds> {
        let (wall, now) = (self.blocks_of(size), self.blocks_of(inode.disk.size));
        // Nothing can lie across a file's start.
        if wall == now || wall == 0 {
            return Ok(PatchIds::new());
        }
        if self.root_node(inode)?.depth == 0 {
            return Ok(self.memory.inodes().folded.get(&inode.ino).copied().into_iter().collect());
        }
        // What was there may be gone in memory alone: a leaf as the medium has it may reach across.
        let mut befores = self.changes_on_way(inode, wall)?;
        if wall > now {
            return Ok(befores);
        }
        if !matches!(self.find_extent(inode, wall)?, Found::In(extent) if is_across(&extent, wall)) {
            return Ok(befores);
        }
        match self.reserve_for_edits_adding(inode, &[wall], 1) {
            // Cutting must be possible on a volume that is full to the last block.
            Err(error) if error.errno() == Errno::NOSPC => return Ok(befores),
            reserved => reserved?,
        }
        let changed = self.change_tree(inode, &[], |tree| tree.part_at(wall));
        let changed = changed.inspect_err(|_| self.drop_spare_nodes(inode))?;
        let mut removal = Removal::new(0, 0, &[]);
        self.finish_change(inode, (&changed, 0), &mut removal)?;
        befores.extend_from_slice(&changed.patches);
        removal.failed.map_or(Ok(befores), Err)
    }

    /// The last changes of the nodes on the way to a file block, as far as they may not be stable.
    pub(super) fn changes_on_way(&self, inode: &Inode, index: u64) -> Result<PatchIds> {
        let way = self.tree(inode)?.way_to(index)?;
        Ok(self.last_changes(inode, way))
    }

    /// The size has become another one by a patch.
    #[inline]
    pub(in crate::ext2) fn note_end(&self, tx: &Tx<'_>, inode: &mut Inode, (old, patch): (u64, PatchId)) {
        if self.orders_ends(inode) {
            let ends = (self.blocks_of(old), self.blocks_of(inode.disk.size));
            inode.ends.note(tx, patch, ends);
        }
    }

    /// The last changes of nodes, as far as they may not be stable.
    pub(super) fn last_changes(&self, inode: &Inode, nodes: impl IntoIterator<Item = At>) -> PatchIds {
        let memory = self.memory.inodes();
        nodes.into_iter().filter_map(|at| memory.nodes.get(&place(at, inode.ino)).copied()).collect()
    }

    /// Makes the new nodes, and after them and `befores` changes the others in place.
    pub(super) fn put_apart(
        &self,
        inode: &mut Inode,
        (images, inode_block, root): (Vec<Image>, &Block, &Root),
        mut befores: PatchIds,
        changed: &mut Changed,
    ) {
        let (new, others): (Vec<_>, Vec<_>) = images.into_iter().partition(|image| image.new.is_some());
        let ways: Vec<PatchIds> = others.iter().map(|image| self.memory.links(image.no)).collect();
        let mut tx = self.cache.lock();
        let mut made = Vec::new();
        for Image { block, no, bytes, new, .. } in new {
            let run = new.expect("a new node is a block that was taken");
            // After the end of the block's earlier life, like all contents.
            let init = tx.init(&block, Arc::new(bytes), &run.reuse);
            befores.push(init);
            befores.extend(run.bits.iter().copied());
            inode.gather(&mut tx, init);
            changed.by_node.insert(Some(no), init);
            changed.patches.push(init);
            changed.made += 1;
            made.push(no);
        }
        let mut in_place = PatchIds::new();
        for (Image { block, no, bytes, differs, .. }, ways) in others.into_iter().zip(ways) {
            let mut befores = befores.clone();
            befores.extend(ways);
            let patch = tx.bytes(&block, 0, &bytes[..differs.end], &befores);
            inode.gather(&mut tx, patch);
            changed.by_node.insert(Some(no), patch);
            changed.patches.push(patch);
            in_place.push(patch);
        }
        let has_nodes = |inode: &Inode| self.root_node(inode).is_ok_and(|root| root.depth > 0);
        let had_nodes = has_nodes(inode);
        self.put_root(&mut tx, inode, (inode_block, root), changed, &befores);
        drop(tx);
        if let Some(&folded) = changed.by_node.get(&None).filter(|_| had_nodes && !has_nodes(inode)) {
            self.memory.inodes().folded.insert(inode.ino, folded, &self.cache);
        }
        in_place.extend(changed.by_node.get(&None).copied());
        debug_assert!(made.is_empty() || !in_place.is_empty(), "something points at new nodes");
        for no in made {
            self.memory.set_links(no, in_place.clone(), &self.cache);
        }
        let mut memory = self.memory.inodes();
        for (&at, &patch) in &changed.by_node {
            memory.nodes.insert(place(at, inode.ino), patch, &self.cache);
        }
    }
}
