//! From a tree that was changed in memory to patches: one for each node, over its bytes that differ.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::map::expected;
use super::node::{damaged, difference};
use super::tree::{At, Lost, Nodes, Tree};
use crate::ext2::alloc::{Goal, Run};
use crate::ext2::inode::Inode;
use crate::ext2::layout::extent::{Node, block_max};
use crate::ext2::layout::inode::{I_FLAGS, POINTERS, pointer_bytes, pointer_field, words};
use crate::ext2::volume::Ext2;

/// Nodes of an inode's tree in the cache, and blocks for new ones.
pub(super) struct CachedNodes<'a> {
    volume: &'a Ext2,
    inode: &'a Inode,
    /// Blocks that were taken before and are not used yet.
    spare: Vec<Run>,
    /// Those that are.
    used: Vec<Run>,
}

impl Nodes for CachedNodes<'_> {
    fn read(&mut self, block: u64, depth: u16, range: &Range<u64>) -> Result<Node> {
        if self.used.iter().any(|run| run.start == block) {
            return Err(damaged(Some(block), "it is in a tree, and was free"));
        }
        let bytes = self.volume.read_node_block(self.inode, block)?.snapshot();
        Node::parse(&bytes, &expected(self.volume.sb.blocks_count, block, depth, range))
    }

    fn take(&mut self) -> Result<u64> {
        let run = self.spare.pop().ok_or(Errno::NOSPC)?;
        let block = run.start;
        self.used.push(run);
        Ok(block)
    }

    fn room(&self) -> u16 {
        block_max(self.volume.block_size())
    }
}

/// A changed node.
pub(super) struct Image {
    pub(super) block: Block,
    pub(super) no: u64,
    /// Its bytes, and those of them that differ. A new one is all of a block.
    pub(super) bytes: BlockBuf,
    pub(super) differs: Range<usize>,
    /// What a new one is: the block that was taken.
    pub(super) new: Option<Run>,
}

/// A changed root, and the inode's flags if they change with it.
pub(super) struct Root {
    node: Node,
    flags: Option<u32>,
}

/// What a change of a tree has come to.
#[derive(Debug, Default)]
pub(super) struct Changed {
    /// All patches.
    pub(super) patches: PatchIds,
    /// By node.
    pub(super) by_node: BTreeMap<At, PatchId>,
    /// Nodes given up, with those that pointed at them.
    pub(super) freed: BTreeMap<u64, At>,
    pub(super) lost: Vec<Lost>,
    /// Nodes made.
    pub(super) made: u32,
}

impl Changed {
    /// The patch by which what node `from` pointed at is not pointed at any more.
    pub(super) fn clearing(&self, from: At) -> Option<PatchId> {
        let mut at = from;
        while let Some(parent) = at.and_then(|block| self.freed.get(&block)) {
            at = *parent;
        }
        self.by_node.get(&at).copied()
    }
}

impl Ext2 {
    /// The inode's tree, for looking at it.
    pub(super) fn tree<'a>(&'a self, inode: &'a Inode) -> Result<Tree<CachedNodes<'a>>> {
        let nodes = CachedNodes { volume: self, inode, spare: Vec::new(), used: Vec::new() };
        let (copies, walls) = (self.copies_nodes(), self.walls(inode));
        Ok(Tree { copies, walls, ..Tree::new(self.root_node(inode)?, nodes) })
    }

    /// Takes blocks for new nodes until `count` are there.
    pub(super) fn reserve_nodes(&self, caller: &Caller, inode: &mut Inode, count: usize) -> Result<()> {
        let before = inode.spare_nodes.len();
        while inode.spare_nodes.len() < count {
            let group = self.sb.group_of_inode(inode.ino);
            match self.take_blocks(caller, Goal::Apart(group), 1) {
                Ok(run) => inode.spare_nodes.push(run),
                Err(error) => {
                    // Nobody uses some of them.
                    inode.spare_nodes.drain(before..).for_each(|run| self.give_back_run(&run));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Gives back blocks for nodes that nothing under way needs any more.
    pub(in crate::ext2) fn drop_spare_nodes(&self, inode: &mut Inode) {
        if inode.outstanding == 0 {
            for run in std::mem::take(&mut inode.spare_nodes) {
                self.give_back_run(&run);
            }
        }
    }

    /// Changes the inode's tree by `work`, after `befores`. An error has changed nothing.
    pub(super) fn change_tree(
        &self,
        inode: &mut Inode,
        befores: &[PatchId],
        work: impl FnOnce(&mut Tree<CachedNodes<'_>>) -> Result<()>,
    ) -> Result<Changed> {
        self.change_tree_and(inode, (befores, None), work)
    }

    /// The same; with `flags`, without a journal, one patch of the inode changes all of the map, and its flags to these.
    pub(super) fn change_tree_and(
        &self,
        inode: &mut Inode,
        (befores, flags): (&[PatchId], Option<u32>),
        work: impl FnOnce(&mut Tree<CachedNodes<'_>>) -> Result<()>,
    ) -> Result<Changed> {
        let inode_block = self.inode_block(inode)?;
        let spare = std::mem::take(&mut inode.spare_nodes);
        let mut tree = self.tree(inode)?;
        tree.source.spare = spare;
        tree.copies_all = flags.is_some();
        let worked = work(&mut tree).and_then(|()| tree.copy_moved()).and_then(|()| self.images(&mut tree));
        let Tree { source: CachedNodes { spare, used, .. }, root, freed, lost, moved, .. } = tree;
        inode.spare_nodes = spare;
        let images = match worked {
            Ok(images) => images,
            Err(error) => {
                inode.spare_nodes.extend(used);
                return Err(error);
            }
        };
        if !freed.is_empty() {
            inode.node_hint.forget();
        }
        self.watch.inode(inode.ino);
        let mut changed = Changed { freed, lost, ..Changed::default() };
        let root = Root { node: root, flags };
        if self.copies_nodes() {
            // What the entries waited for where they were.
            let mut befores = PatchIds::from_slice(befores);
            befores.extend(self.last_changes(inode, moved));
            self.put_apart(inode, (images, &inode_block, &root), befores, &mut changed);
        } else {
            let mut tx = self.cache.lock();
            self.put_images(&mut tx, inode, (images, befores), &mut changed);
            let mut befores = PatchIds::from_slice(befores);
            befores.extend_from_slice(&changed.patches);
            self.put_root(&mut tx, inode, (&inode_block, &root), &mut changed, &befores);
        }
        self.remember(inode);
        Ok(changed)
    }

    /// The blocks of changed nodes as they will be.
    fn images(&self, tree: &mut Tree<CachedNodes<'_>>) -> Result<Vec<Image>> {
        let mut images = Vec::new();
        for (&no, held) in tree.nodes.iter().filter(|(_, held)| held.is_changed) {
            let at = BlockNo(no);
            if held.is_new {
                let mut bytes = BlockBuf::zeroed(self.block_size());
                held.node.encode_into(&mut bytes);
                let block = self.cache.fresh_owned(at, BlockKind::Indirect, tree.source.inode.owner())?;
                let run = tree.source.used.iter().find(|run| run.start == no).cloned();
                let differs = 0..bytes.len();
                images.push(Image { block, no, bytes, differs, new: run });
                continue;
            }
            let block = self.read_node_block(tree.source.inode, no)?;
            let before = block.snapshot();
            let mut bytes = BlockBuf::copy_of(&before);
            held.node.encode_into(&mut bytes);
            if let Some(differs) = difference(&before, &bytes) {
                images.push(Image { block, no, bytes, differs, new: None });
            }
        }
        // New ones first: others point at them.
        images.sort_by_key(|image| image.new.is_none());
        Ok(images)
    }

    fn put_images(
        &self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        (images, befores): (Vec<Image>, &[PatchId]),
        changed: &mut Changed,
    ) {
        let mut befores = PatchIds::from_slice(befores);
        for Image { block, no, bytes, differs, new } in images {
            let patch = match new {
                Some(run) => {
                    // After the end of the block's earlier life, like all contents.
                    let mut after = befores.clone();
                    after.extend(run.reuse.iter().copied());
                    let init = tx.init(&block, Arc::new(bytes), &after);
                    // Whatever points at it comes after it and its bit in the free map.
                    befores.push(init);
                    befores.extend(run.bits.iter().copied());
                    changed.made += 1;
                    init
                }
                None => tx.bytes(&block, differs.start, &bytes[differs], &befores),
            };
            inode.gather(tx, patch);
            changed.by_node.insert(Some(no), patch);
            changed.patches.push(patch);
        }
    }

    /// Changes the root: from its header on, where all changes of it are to overlap.
    pub(super) fn put_root(
        &self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        (inode_block, root): (&Block, &Root),
        changed: &mut Changed,
        befores: &[PatchId],
    ) {
        let words = root_over(&root.node, &inode.disk.block);
        let (before, after) = (pointer_bytes(&inode.disk.block), pointer_bytes(&words));
        if let Some(differs) = difference(&before, &after) {
            let differs = if self.copies_nodes() { 0..differs.end } else { differs };
            let at = pointer_field(0).offset() + differs.start;
            let patch = match root.flags {
                None => inode.put_bytes(tx, inode_block, (at, &after[differs]), befores),
                Some(flags) => {
                    // With what lies between them: the flags are before the map.
                    let from = I_FLAGS.offset();
                    let mut bytes = tx.data(inode_block)[inode.at.1..][from..at + differs.len()].to_vec();
                    bytes[..4].copy_from_slice(&flags.to_le_bytes());
                    bytes[at - from..].copy_from_slice(&after[differs]);
                    inode.disk.flags = flags;
                    inode.put_bytes(tx, inode_block, (from, &bytes), befores)
                }
            };
            inode.disk.block = words;
            changed.by_node.insert(None, patch);
            changed.patches.push(patch);
        }
    }

    /// Adds to the inode's storage the clusters that it got, and takes those that it lost.
    pub(super) fn count_blocks_of(&self, inode: &mut Inode, got: u32, lost: u32) -> Result<()> {
        if got == lost {
            return Ok(());
        }
        let inode_block = self.inode_block(inode)?;
        let mut tx = self.cache.lock();
        if got > lost {
            self.add_sectors(&mut tx, inode, &inode_block, got - lost);
        } else {
            self.sub_sectors(&mut tx, inode, &inode_block, lost - got);
        }
        Ok(())
    }
}

/// The inode's words with a changed root.
pub(in crate::ext2) fn root_over(root: &Node, before: &[u32; POINTERS]) -> [u32; POINTERS] {
    let mut bytes = pointer_bytes(before);
    root.encode_into(&mut bytes);
    words(&bytes)
}

/// A block's number as a file's map has it.
pub(super) fn no32(block: BlockNo) -> u64 {
    block.get()
}
