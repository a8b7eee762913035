//! Giving blocks to files.
//!
//! **Orderings** (arrows read "comes after").
//! - data pointer → contents, bits in the free map: an uninitialised or free block is never reachable;
//! - new indirect block (initialised in one patch, with the pointers known then) → contents and bits of those
//!   blocks, end of its own earlier life;
//! - pointer to a new indirect block → that initialisation, its bit in the free map;
//! - the count of blocks: no order, a hint;
//! - the length comes after the pointers that are returned: the caller's part.
//!
//! **Crash cases.** Before the pointer: the blocks are marked as used and unreachable (leaked). After the pointer,
//! before the length: blocks beyond the end.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::alloc::{Goal, Run, Wish};
use super::blockmap::{Path, Reached};
use super::inode::Inode;
use super::layout::inode::pointer_field;
use super::num::{idx, idx64, pointer32, small};
use super::volume::Ext2;
use crate::uhfs::Allocation;

/// How far behind the last allocation of a file a block may lie to be placed after it.
const NEAR: u64 = 1 << 15;

/// A new indirect block with the patch that fills it.
struct Node {
    run: Run,
    init: PatchId,
}

impl Ext2 {
    /// Takes 1 to `want` blocks for the hole of at least so many at file block `index`, and the indirect blocks they need.
    pub(super) fn allocate_run(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        index: u64,
        want: u64,
    ) -> Result<Allocation> {
        if inode.has_extents() {
            return self.allocate_extent(caller, inode, index, want);
        }
        let path = self.path(index)?;
        let room = path.leaf_first + path.leaf_len - index;
        let want = want.min(room);
        let taken_sectors = inode.disk.sectors + (want + 3) * self.sectors_per_block();
        if taken_sectors > u64::from(u32::MAX) {
            return Err(Errno::FBIG.into());
        }
        if self.is_in_line(inode, index) {
            // Where all blocks of the file lie together, an indirect block lies before what it points at.
            self.reserve_indirect(caller, inode, &path)?;
        }
        let run = self.take_data(caller, inode, index, small(idx64(want)))?;
        if let Err(error) = self.reserve_indirect(caller, inode, &path) {
            self.give_back_run(&run);
            self.drop_reserved(inode);
            return Err(error);
        }
        inode.outstanding += 1;
        inode.last = Some((index + u64::from(run.count), run.start + u64::from(run.count)));
        Ok(Allocation {
            index,
            start: BlockNo(run.start),
            count: u64::from(run.count),
            reuse: run.reuse,
            bits: run.bits,
        })
    }

    /// Takes 1 to `want` blocks for the file blocks from `index` on.
    pub(super) fn take_data(&self, caller: &Caller, inode: &mut Inode, index: u64, want: u32) -> Result<Run> {
        if let Some(run) = self.take_preallocated(inode, index, want) {
            return Ok(run);
        }
        self.give_back_preallocated_of(inode.ino);
        let goal = self.data_goal(inode, index)?;
        if let Some(run) = self.take_expected(caller, inode, (index, want), goal)? {
            return Ok(run);
        }
        if self.cache.goes_through_journal() {
            return self.take_growing(caller, inode, (index, want), goal);
        }
        let more = self.preallocation_for(inode, index);
        let wish = Wish::new(goal, want.saturating_add(more)).low(self.maps_low(inode));
        let mut run = self.take_wish(caller, wish)?;
        self.keep_preallocated(inode, &mut run, want);
        Ok(run)
    }

    /// Where the block at `index` should lie: behind the file's previous block, else in the inode's group.
    fn data_goal(&self, inode: &Inode, index: u64) -> Result<Goal> {
        if let Some((next, block)) = inode.last
            && index >= next
            && index - next < NEAR
        {
            return Ok(Goal::Block(block));
        }
        if index > 0
            && let Some(before) = self.block_at(inode, index - 1)?
        {
            return Ok(Goal::Block(before + 1));
        }
        Ok(Goal::Group(self.sb.group_of_inode(inode.ino)))
    }

    /// Takes the indirect blocks that are missing on `path` and not taken yet.
    fn reserve_indirect(&self, caller: &Caller, inode: &mut Inode, path: &Path) -> Result<()> {
        if path.levels == 0 || inode.leaf.get(path).is_some() {
            return Ok(());
        }
        let Reached::Missing { depth, .. } = self.follow(inode, path)? else { return Ok(()) };
        for level in depth..path.levels {
            let key = (level, path.subtree(level, self.pointers()).0);
            if !inode.reserved.contains_key(&key) {
                let run = match self.take_in_line(inode) {
                    Some(run) => run,
                    None => {
                        let group = self.sb.group_of_inode(inode.ino);
                        self.take_wish(caller, Wish::new(Goal::Apart(group), 1).low(true))?
                    }
                };
                inode.reserved.insert(key, run);
            }
        }
        Ok(())
    }

    /// Gives back indirect blocks that no allocation under way needs any more.
    fn drop_reserved(&self, inode: &mut Inode) {
        if inode.outstanding == 0 {
            for run in std::mem::take(&mut inode.reserved).into_values() {
                self.give_back_run(&run);
            }
        }
    }

    /// Gives back an allocation that was not attached.
    pub(super) fn give_back_allocation(&self, inode: &mut Inode, allocation: Allocation) {
        let start = allocation.start.get();
        let count = small(idx64(allocation.count));
        self.give_back_run(&Run { start, count, bits: allocation.bits, reuse: allocation.reuse });
        inode.outstanding = inode.outstanding.saturating_sub(1);
        self.close_window(inode);
        inode.last = None;
        self.drop_reserved(inode);
        self.drop_spare_nodes(inode);
    }

    /// Points the file at the allocated blocks. Returns the patches that make them reachable.
    pub(super) fn attach_run(
        &self,
        inode: &mut Inode,
        allocation: Allocation,
        contents: &[PatchId],
    ) -> Result<PatchIds> {
        if inode.has_extents() {
            return self.attach_extent(inode, allocation, contents);
        }
        let path = self.path(allocation.index)?;
        let inode_block = self.inode_block(inode)?;
        let reached = self.follow(inode, &path)?;
        let nodes = self.new_nodes(inode, &path, &reached)?;
        let start = pointer32(allocation.start.get());
        let count = small(idx64(allocation.count));
        let words = Self::pointer_words(start, count);
        // Pointer after contents, so that nothing uninitialised is reachable, and after the bits in the free map,
        // so that nothing reachable is free.
        let mut befores = PatchIds::from_slice(contents);
        befores.extend_from_slice(&allocation.bits);
        let leaf_place = Self::pointer_place(allocation.index - path.leaf_first);
        let new_nodes = small(nodes.len());
        // What the block that holds the pointer is reachable through, as far as that is not stable.
        let mut patches = match &reached {
            Reached::Leaf(block) | Reached::Missing { parent: Some(block), .. } => {
                self.memory.links(block_no(block))
            }
            _ => PatchIds::new(),
        };
        let mut new_blocks = Vec::new();
        let mut tx = self.cache.lock();
        expect_hole(&tx, inode, (&path, &reached), allocation.index, idx(count))?;
        let (pointer, reachable) = match &reached {
            Reached::Direct => {
                let first = pointer_field(path.root);
                let patch = inode.put_bytes(&mut tx, &inode_block, (first.offset(), &words), &befores);
                for (at, block) in (path.root..).zip(start..start + count) {
                    inode.disk.block[at] = block;
                }
                (patch, patch)
            }
            Reached::Leaf(leaf) => {
                let patch = tx.bytes(leaf, leaf_place, &words, &befores);
                inode.gather(&mut tx, patch);
                (patch, patch)
            }
            Reached::Missing { depth, parent } => {
                new_blocks.extend(nodes.iter().map(|(_, run)| run.start));
                let place =
                    Place { path: &path, depth: *depth, parent: parent.as_ref(), inode_block: &inode_block };
                let leaf = Leaf { place: leaf_place, words: &words, befores: &befores };
                self.attach_nodes(&mut tx, inode, &place, &leaf, nodes)
            }
        };
        patches.push(reachable);
        inode.attached.insert(u64::from(start), count, pointer);
        self.add_sectors(&mut tx, inode, &inode_block, count + new_nodes);
        drop(tx);
        for block in new_blocks {
            // Everything under the topmost new block is reachable through its pointer.
            self.memory.set_links(block, patches.clone(), &self.cache);
        }
        inode.outstanding = inode.outstanding.saturating_sub(1);
        self.drop_reserved(inode);
        self.remember(inode);
        Ok(patches)
    }

    /// Handles to the indirect blocks that are missing on `path`, from the topmost down, out of the reserve.
    fn new_nodes(&self, inode: &mut Inode, path: &Path, reached: &Reached) -> Result<Vec<(Block, Run)>> {
        let Reached::Missing { depth, .. } = reached else { return Ok(Vec::new()) };
        let keys: Vec<_> =
            (*depth..path.levels).map(|level| (level, path.subtree(level, self.pointers()).0)).collect();
        let mut nodes = Vec::with_capacity(keys.len());
        for key in &keys {
            let run = inode.reserved.get(key).expect("allocating has reserved the indirect blocks").clone();
            nodes.push((self.cache.fresh(BlockNo(run.start), BlockKind::Indirect)?, run));
        }
        for key in keys {
            inode.reserved.remove(&key);
        }
        Ok(nodes)
    }

    /// Fills new indirect blocks from the leaf up and points at the topmost one. Returns the patch that holds the
    /// data pointers and the one that makes everything reachable.
    fn attach_nodes(
        &self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        place: &Place<'_>,
        leaf: &Leaf<'_>,
        nodes: Vec<(Block, Run)>,
    ) -> (PatchId, PatchId) {
        let path = place.path;
        let mut innermost: Option<PatchId> = None;
        let mut below: Option<Node> = None;
        for (level, (block, run)) in (place.depth..path.levels).zip(nodes).rev() {
            let mut contents = BlockBuf::zeroed(self.block_size());
            // After the end of this block's earlier life, like all contents.
            let mut befores = run.reuse.clone();
            match &below {
                None => {
                    contents[leaf.place..leaf.place + leaf.words.len()].copy_from_slice(leaf.words);
                    befores.extend(leaf.befores.iter().copied());
                }
                Some(node) => {
                    let at = path.step(level) * 4;
                    contents[at..at + 4].copy_from_slice(&pointer32(node.run.start).to_le_bytes());
                    befores.push(node.init);
                    befores.extend(node.run.bits.iter().copied());
                }
            }
            let init = tx.init(&block, Arc::new(contents), &befores);
            inode.gather(tx, init);
            innermost.get_or_insert(init);
            if let Some(node) = below.replace(Node { run, init }) {
                inode.attached.insert(node.run.start, 1, init);
            }
        }
        let top = below.expect("a path with a missing block has at least one new one");
        // Pointer after the indirect block's contents and its bit in the free map.
        let mut befores = PatchIds::from_slice(&[top.init]);
        befores.extend(top.run.bits.iter().copied());
        let patch = match place.parent {
            None => {
                inode.disk.block[path.root] = pointer32(top.run.start);
                let field = pointer_field(path.root);
                inode.put(tx, place.inode_block, (field, pointer32(top.run.start)), &befores)
            }
            Some(parent) => {
                let at = path.step(place.depth - 1) * 4;
                let patch = tx.bytes(parent, at, &pointer32(top.run.start).to_le_bytes(), &befores);
                inode.gather(tx, patch);
                patch
            }
        };
        inode.attached.insert(top.run.start, 1, patch);
        (innermost.expect("at least one new block"), patch)
    }

    /// Adds to the inode's count of blocks: a hint, without dependencies.
    pub(super) fn add_sectors(&self, tx: &mut Tx<'_>, inode: &mut Inode, block: &Block, blocks: u32) {
        self.watch.inode(inode.ino);
        inode.disk.sectors = inode.disk.sectors.saturating_add(u64::from(blocks) * self.sectors_per_block());
        self.put_sectors(tx, inode, block);
    }

    /// Takes from the inode's count of blocks.
    pub(super) fn sub_sectors(&self, tx: &mut Tx<'_>, inode: &mut Inode, block: &Block, blocks: u32) {
        self.watch.inode(inode.ino);
        inode.disk.sectors = inode.disk.sectors.saturating_sub(u64::from(blocks) * self.sectors_per_block());
        self.put_sectors(tx, inode, block);
    }
}

/// Makes sure that nobody has given the file blocks from `index` on since they were looked at: whoever holds the inode's
/// lock is alone with its holes, unless another file of a damaged volume has the same pointers.
fn expect_hole(
    tx: &Tx<'_>,
    inode: &Inode,
    (path, reached): (&Path, &Reached),
    index: u64,
    count: usize,
) -> Result<()> {
    let first = idx64(index - path.leaf_first);
    let is_hole = match reached {
        Reached::Missing { .. } => true,
        Reached::Direct => inode.disk.block[first..first + count].iter().all(|&block| block == 0),
        Reached::Leaf(leaf) => tx.data(leaf)[first * 4..(first + count) * 4].iter().all(|&byte| byte == 0),
    };
    match is_hole {
        true => Ok(()),
        false => Err(inode.damaged(format!("file block {index} was a hole, and another file has filled it"))),
    }
}

/// Where the topmost new indirect block hangs.
struct Place<'a> {
    path: &'a Path,
    depth: usize,
    parent: Option<&'a Block>,
    inode_block: &'a Block,
}

/// What the new leaf holds.
struct Leaf<'a> {
    place: usize,
    words: &'a [u8],
    befores: &'a [PatchId],
}

/// A block's number as ext2 writes it.
pub(super) fn block_no(block: &Block) -> u64 {
    block.no().get()
}
