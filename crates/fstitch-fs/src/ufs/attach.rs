//! Giving blocks to files.
//!
//! **Orderings** (arrows read "comes after").
//! - a pointer → contents and bits of what it points at;
//! - a pointer in the inode to a block behind the file's end: **one patch with the length** that needs it ([`super::attr`]). An inode with
//!   a pointer behind its length is one that a check clears;
//! - a pointer in a block of pointers to a block behind the end of a regular file: after the length ([`super::late`]); of a directory before it;
//! - a new block of pointers → contents and bits of what it points at, the end of its own earlier life; the pointer to it → that, its bits;
//! - the count of blocks: no order, a hint.
//!
//! **Crash cases.** Before the pointer: leaked fragments; behind the direct ones also a length behind the last block. A pointer in a
//! directory's block of pointers, before the length: one behind the end.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::alloc::{Near, Run};
use super::late::Late;
use super::layout::inode::{DIRECT, places, put_pointer};
use super::layout::superblock::Version;
use super::path::{Path, Reached};
use super::volume::{Inode, Ufs};
use crate::num::{idx, idx64};
use crate::uhfs::Allocation;

/// Bytes of the units in which storage is counted.
const SECTOR: u64 = 512;

/// A block of pointers that is made, with handles to its fragments.
struct Node {
    run: Run,
    blocks: Vec<Block>,
}

impl Ufs {
    /// Takes fragments for the hole of at least `want` at file fragment `index`: those, or all of the block that they are in.
    pub(super) fn allocate_run(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        index: u64,
        want: u64,
    ) -> Result<Allocation> {
        let per_block = self.per_block();
        let (block, inside) = (index / per_block, index % per_block);
        let path = self.path(block)?;
        if let Some((tail, count)) = inode.tail
            && count < per_block
        {
            if tail == block {
                let need = (inside + want).min(per_block);
                return self.allocate_in_tail(caller, inode, (tail, count), need);
            }
            if tail < block {
                self.fill_tail(caller, inode)?;
            }
        }
        let taken = self.allocate_blocks(caller, inode, &path, (block, inside + want));
        if taken.is_err() {
            self.unfill_tail(inode);
        }
        taken
    }

    /// Takes whole blocks for block `block` of the file and those behind it, or the first `need` fragments if it ends the file there.
    fn allocate_blocks(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        path: &Path,
        (block, need): (u64, u64),
    ) -> Result<Allocation> {
        let per_block = self.per_block();
        let covered = self.blocks_of(inode.disk.size);
        let is_inside = block < covered;
        let need = if block + 1 == covered { need.max(self.block_len(inode.disk.size, block)) } else { need };
        let is_whole = block >= to_u64(DIRECT) || need >= per_block || block + 1 < covered;
        let near = self.goal(inode, block)?;
        self.reserve_nodes(caller, inode, path)?;
        let taken = if is_whole {
            let most = path.first + path.len - block;
            let most = if is_inside { most.min((covered - 1 - block).max(1)) } else { most };
            let wanted = if path.levels > 0 { need.div_ceil(per_block) } else { need / per_block };
            self.take_blocks(caller, near, wanted.clamp(1, most))
        } else {
            self.take_fragments(caller, near, need)
        };
        let run = match taken {
            Ok(run) => run,
            Err(error) => {
                self.drop_reserved(inode);
                return Err(error);
            }
        };
        inode.last = Some(run.start + run.count);
        Ok(Allocation {
            index: block * per_block,
            start: BlockNo(run.start),
            count: run.count,
            reuse: run.reuse,
            bits: run.bits,
        })
    }

    /// Blocks that a file of so many bytes covers.
    pub(super) fn blocks_of(&self, size: u64) -> u64 {
        size.div_ceil(u64::from(self.sb.block_size))
    }

    /// Where a block of the file should lie: behind the one before it, else in the inode's group.
    fn goal(&self, inode: &Inode, block: u64) -> Result<Near> {
        if let Some(last) = inode.last {
            return Ok(Near::Fragment(last));
        }
        if let Some(before) = block.checked_sub(1)
            && let Some(start) = self.map_run(inode, before * self.per_block(), 1)?.start
        {
            return Ok(Near::Fragment(start.get() + self.per_block()));
        }
        Ok(self.near_inode(inode.ino))
    }

    /// Takes the blocks of pointers that are missing on `path`.
    fn reserve_nodes(&self, caller: &Caller, inode: &mut Inode, path: &Path) -> Result<()> {
        let Reached::Missing { depth, .. } = self.reach(inode, path)? else { return Ok(()) };
        for depth in depth..path.levels {
            let key = path.key(depth, self.pointers());
            if !inode.reserved.contains_key(&key) {
                let near = inode.last.map_or_else(|| self.near_inode(inode.ino), Near::Fragment);
                match self.take_blocks(caller, near, 1) {
                    Ok(run) => inode.reserved.insert(key, run),
                    Err(error) => {
                        self.drop_reserved(inode);
                        return Err(error);
                    }
                };
            }
        }
        Ok(())
    }

    fn drop_reserved(&self, inode: &mut Inode) {
        for run in std::mem::take(&mut inode.reserved).into_values() {
            self.give_back(run.start, run.count);
        }
    }

    /// Gives back an allocation that was not attached.
    pub(super) fn give_back_allocation(&self, inode: &mut Inode, allocation: &Allocation) {
        self.give_back(allocation.start.get(), allocation.count);
        self.drop_reserved(inode);
        self.unfill_tail(inode);
        inode.last = None;
    }

    /// Points the file at what was allocated, or gives that back. Returns what a length that covers it comes after.
    pub(super) fn attach_run(
        &self,
        inode: &mut Inode,
        allocation: &Allocation,
        contents: &[PatchId],
    ) -> Result<PatchIds> {
        let per_block = self.per_block();
        let (block, inside) = (allocation.index / per_block, allocation.index % per_block);
        let mut befores = PatchIds::from_slice(contents);
        befores.extend_from_slice(&allocation.bits);
        let (mut patches, nodes) = if inside > 0 {
            let (tail, count) = inode.tail.unwrap_or((block, inside));
            inode.tail = Some((tail, count + allocation.count));
            (befores, 0)
        } else {
            match self.point_at(inode, (block, allocation), &befores) {
                Ok(pointed) => pointed,
                Err(error) => {
                    self.give_back_allocation(inode, allocation);
                    return Err(error);
                }
            }
        };
        inode.filled_from = None;
        // They hold back until there is a length that has come after them: a hole may be filled first.
        patches.extend_from_slice(&inode.held);
        // Failing to read the inode again leaves a hint too small.
        let _hint = self.add_sectors(inode, allocation.count + nodes * per_block);
        self.remember(inode);
        Ok(patches)
    }

    /// Sets the pointers to new blocks from `block` on. Returns the patches, and how many blocks of pointers were made. Where it fails
    /// nothing has changed: all that is needed is read first.
    fn point_at(
        &self,
        inode: &mut Inode,
        (block, allocation): (u64, &Allocation),
        befores: &[PatchId],
    ) -> Result<(PatchIds, u64)> {
        let per_block = self.per_block();
        let (start, blocks) = (allocation.start.get(), allocation.count.div_ceil(per_block));
        let last_len = allocation.count - (blocks - 1) * per_block;
        let path = self.path(block)?;
        let is_behind = block >= self.blocks_of(inode.disk.size);
        let pointer = |at: u64| start + (at - block) * per_block;
        let pointed = match self.reach(inode, &path)? {
            Reached::Inode => {
                let inode_block = self.inode_block(inode)?;
                for at in block..block + blocks {
                    inode.disk.direct[idx64(at)] = pointer(at);
                }
                if is_behind {
                    inode.is_ahead = true;
                    (PatchIds::from_slice(befores), 0)
                } else {
                    let pointers = (0..idx64(blocks)).map(|at| pointer(block + to_u64(at)));
                    let bytes = self.pointer_bytes(pointers);
                    let at =
                        places(self.sb.version).pointers + idx64(block) * idx(self.sb.version.pointer_size());
                    let mut tx = self.cache.lock();
                    (PatchIds::from_slice(&[inode.put(&mut tx, &inode_block, (at, &bytes), befores)]), 0)
                }
            }
            Reached::Leaf(leaf) => {
                let (from, to) = (block - path.first, block - path.first + blocks);
                let places = self.pointer_blocks(leaf, from, to)?;
                if is_behind && inode.has_length_first() {
                    let (befores, below) = (PatchIds::from_slice(befores), Vec::new());
                    let length = befores.clone();
                    inode.add_late(Late {
                        node: leaf,
                        slot: from,
                        start,
                        count: blocks,
                        places,
                        befores,
                        below,
                    });
                    (length, 0)
                } else {
                    let mut links = self.memory.links(leaf);
                    let mut tx = self.cache.lock();
                    let set = |slot: u64| pointer(path.first + slot);
                    links.extend(self.put_pointers(&mut tx, inode, &places, set, befores));
                    (links, 0)
                }
            }
            Reached::Missing { depth, parent } => {
                let words: Vec<(u64, u64)> =
                    (block..block + blocks).map(|at| (at - path.first, pointer(at))).collect();
                self.point_by_new_nodes(inode, &path, (depth, parent), (&words, is_behind), befores)?
            }
        };
        if is_behind {
            inode.tail = (path.levels == 0).then_some((block + blocks - 1, last_len));
        }
        Ok(pointed)
    }

    /// Fills the missing blocks of pointers from the leaf up, and points at the topmost one.
    fn point_by_new_nodes(
        &self,
        inode: &mut Inode,
        path: &Path,
        (depth, parent): (usize, Option<u64>),
        (words, is_behind): (&[(u64, u64)], bool),
        contents: &[PatchId],
    ) -> Result<(PatchIds, u64)> {
        let place = match parent {
            Some(parent) => {
                let at = path.steps[depth - 1];
                Some((parent, at, self.pointer_blocks(parent, at, at + 1)?, self.memory.links(parent)))
            }
            None => None,
        };
        let inode_block = self.inode_block(inode)?;
        let mut nodes = self.new_nodes(inode, path, depth)?;
        let starts: Vec<u64> = nodes.iter().map(|node| node.run.start).collect();
        let count = to_u64(nodes.len());
        let mut tx = self.cache.lock();
        let (mut words, mut befores) = (words.to_vec(), PatchIds::from_slice(contents));
        let mut top = 0;
        for level in (depth..path.levels).rev() {
            let node = nodes.pop().expect("a node for each missing level");
            let filled = self.fill_node(&mut tx, inode, &node, &words, &befores);
            top = node.run.start;
            words = vec![(path.steps[level.saturating_sub(1)], top)];
            befores = filled;
            befores.extend_from_slice(&node.run.bits);
        }
        let patches = match place {
            Some((node, slot, places, _)) if is_behind && inode.has_length_first() => {
                let late = Late { node, slot, start: top, count: 1, places, befores, below: starts };
                inode.add_late(late);
                return Ok((PatchIds::from_slice(contents), count));
            }
            Some((_, at, blocks, mut links)) => {
                debug_assert_eq!(words[0].0, at);
                links.extend(self.put_pointers(&mut tx, inode, &blocks, |_| top, &befores));
                links
            }
            None => {
                let slot = path.root - DIRECT;
                inode.disk.indirect[slot] = top;
                if is_behind {
                    inode.is_ahead = true;
                    befores
                } else {
                    let bytes = self.pointer_bytes([top].into_iter());
                    let at = places(self.sb.version).pointers + path.root * bytes.len();
                    PatchIds::from_slice(&[inode.put(&mut tx, &inode_block, (at, &bytes), &befores)])
                }
            }
        };
        drop(tx);
        for start in starts {
            self.memory.set_links(start, patches.clone(), &self.cache);
        }
        Ok((patches, count))
    }

    /// The blocks of pointers that were taken for what is missing on `path`, from `depth` down.
    fn new_nodes(&self, inode: &mut Inode, path: &Path, depth: usize) -> Result<Vec<Node>> {
        let mut nodes = Vec::new();
        for depth in depth..path.levels {
            let key = path.key(depth, self.pointers());
            let run = inode.reserved.get(&key).cloned();
            let run = run.ok_or_else(|| inode.damaged("a block of pointers went while it was in use"))?;
            let fragments = run.start..run.start + run.count;
            let fresh = fragments.map(|at| self.cache.fresh(BlockNo(at), BlockKind::Indirect));
            nodes.push(Node { blocks: fresh.collect::<Result<_>>()?, run });
        }
        inode.reserved.clear();
        Ok(nodes)
    }

    /// Initialises a block of pointers that has `words`, after `befores`. Returns the patches of all of its fragments.
    fn fill_node(
        &self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        node: &Node,
        words: &[(u64, u64)],
        befores: &[PatchId],
    ) -> PatchIds {
        let mut contents: Vec<BlockBuf> =
            node.blocks.iter().map(|_| BlockBuf::zeroed(self.sb.fragment_len())).collect();
        let mut has_words = vec![false; contents.len()];
        for &(slot, pointer) in words {
            let (fragment, byte) = self.pointer_place(0, slot);
            put_pointer(&mut contents[idx64(fragment.get())], &self.sb, byte, 0, pointer);
            has_words[idx64(fragment.get())] = true;
        }
        let mut patches = PatchIds::new();
        for ((block, contents), has_words) in node.blocks.iter().zip(contents).zip(has_words) {
            let mut after = node.run.reuse.clone();
            if has_words {
                after.extend_from_slice(befores);
            }
            let init = tx.init(block, Arc::new(contents), &after);
            inode.gather(tx, init);
            patches.push(init);
        }
        patches
    }

    /// Adds so many fragments to the inode's storage.
    pub(super) fn add_sectors(&self, inode: &mut Inode, fragments: u64) -> Result<()> {
        inode.disk.sectors = inode.disk.sectors.saturating_add(self.sectors(fragments));
        self.put_sectors(inode)
    }

    /// Takes so many fragments from the inode's storage.
    pub(super) fn sub_sectors(&self, inode: &mut Inode, fragments: u64) -> Result<()> {
        inode.disk.sectors = inode.disk.sectors.saturating_sub(self.sectors(fragments));
        self.put_sectors(inode)
    }

    /// So many fragments in the units of an inode's storage.
    pub(super) fn sectors(&self, fragments: u64) -> u64 {
        fragments.saturating_mul(u64::from(self.sb.fragment_size) / SECTOR)
    }

    fn put_sectors(&self, inode: &mut Inode) -> Result<()> {
        let block = self.inode_block(inode)?;
        let (at, len) = match self.sb.version {
            Version::One => (places(self.sb.version).sectors, 4),
            Version::Two => (places(self.sb.version).sectors, 8),
        };
        let mut raw = vec![0; idx(self.sb.version.inode_size())];
        inode.disk.encode_sectors(&mut raw, &self.sb);
        let mut tx = self.cache.lock();
        inode.put(&mut tx, &block, (at, &raw[at..at + len]), &[]);
        Ok(())
    }

    /// Fails where storage would not fit its field.
    pub(super) fn expect_room(&self, inode: &Inode, fragments: u64) -> Result<()> {
        let after = inode.disk.sectors.saturating_add(self.sectors(fragments));
        let fits = self.sb.version == Version::Two || after <= u64::from(u32::MAX);
        if fits { Ok(()) } else { Err(Errno::FBIG.into()) }
    }
}
