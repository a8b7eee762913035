//! A directory's index goes: its blocks become ordinary ones.
//!
//! Without sums nothing has to change but the flag: to who walks along the entries an index's blocks are empty, or hold `.` and
//! `..`. Where blocks have sums, an ordinary one ends with a tail that an index's has not, so all of them change with the flag:
//! in one transaction, or without a journal by new blocks in their places, to which one patch of the inode turns with the
//! flag ([`replace_blocks`](Ext2::replace_blocks)).
//!
//! **Orderings** (arrows read "comes after"). The flag → without a journal: the new blocks, their bits, and what `..` waited for where it
//! was. Structure and names → the flag, until it is stable.

use std::collections::BTreeSet;

use fstitch_core::{BlockBuf, Errno, InodeFlags, Le, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::room::Rooms;
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::checksum::{DIRECTORY_TAIL, INDEX_INFO, index_counts, put_directory_tail};
use crate::ext2::layout::dirent::{D_REC_LEN, ENTRY_MIN, put_empty_leaf, rec_len_field};
use crate::ext2::layout::inode::I_FLAGS;
use crate::ext2::num::{idx, small};

/// Which byte of an index's description is its number of levels above the last.
const LEVELS: usize = INDEX_INFO + 6;
/// Levels that an index can have above the last.
const LEVELS_MAX: u8 = 2;
/// The bits of a block's position in an entry of an index.
const POSITION: u32 = 0x0fff_ffff;

impl Ext2 {
    /// Clears the flag of a hash-tree index that a change makes stale; what the change must come after.
    pub(super) fn drop_index_flag(&self, dir: &mut Inode) -> Result<PatchId> {
        if dir.disk.flags & InodeFlags::INDEX == 0 {
            return Ok(self.memory.inodes().unindexed.get(&dir.ino).copied().unwrap_or_default());
        }
        let summed = self.sb.features.has_sums();
        let nodes = if summed { self.index_nodes(dir)? } else { BTreeSet::new() };
        let flags = dir.disk.flags & !InodeFlags::INDEX;
        if !nodes.is_empty() && !self.has_journal_in_use() {
            return self.drop_index_apart(dir, &nodes, flags);
        }
        let block = self.inode_block(dir)?;
        let mut tx = self.cache.lock();
        let patch = dir.put(&mut tx, &block, (I_FLAGS, flags), &[]);
        dir.disk.flags = flags;
        drop(tx);
        for at in nodes {
            self.make_leaf(dir, at)?;
        }
        let mut memory = self.dir_memory(dir)?;
        // Room is looked for in all blocks again.
        memory.rooms = Rooms::unknown(memory.list().len());
        memory.sought = None;
        drop(memory);
        self.memory.inodes().unindexed.insert(dir.ino, patch, &self.cache);
        self.remember(dir);
        Ok(patch)
    }

    /// Puts ordinary blocks in place of those of an index.
    fn drop_index_apart(&self, dir: &mut Inode, nodes: &BTreeSet<usize>, flags: u32) -> Result<PatchId> {
        if !dir.has_extents() {
            // Pointers to them lie in several blocks.
            return Err(Errno::OPNOTSUPP.into());
        }
        let memory = self.dir_memory(dir)?;
        let (owner, blocks) = (memory.owner, memory.list().to_vec());
        drop(memory);
        let (mut contents, mut befores) = (Vec::new(), PatchIds::new());
        for &at in nodes {
            let no = blocks[at];
            let block = self.dir_block(owner, no)?;
            befores.extend(self.memory.links(no));
            let names = self.memory.names();
            befores.extend(names.structure.get(&block.no()).copied());
            for place in [0, ENTRY_MIN] {
                befores.extend(names.created.get(&(block.no(), place)).copied());
                befores.extend(names.exchanged.get(&(block.no(), place)).copied());
            }
            drop(names);
            let mut bytes = BlockBuf::copy_of(&block.snapshot());
            put_leaf(&mut bytes, at);
            contents.push((small(at), bytes));
        }
        let (patch, new) = self.replace_blocks(dir, contents, flags, &befores)?;
        for no in &new {
            self.memory.set_links(*no, PatchIds::from_slice(&[patch]), &self.cache);
        }
        let mut memory = self.dir_memory(dir)?;
        for (&at, no) in nodes.iter().zip(new) {
            if let Some(blocks) = &mut memory.blocks {
                blocks[at] = no;
            }
            memory.rooms.set(at, u16::MAX);
        }
        memory.last.clear();
        drop(memory);
        self.memory.inodes().unindexed.insert(dir.ino, patch, &self.cache);
        self.remember(dir);
        Ok(patch)
    }

    /// The positions of the blocks that a directory's index is in. Where it is damaged, what cannot be reached stays as it is.
    fn index_nodes(&self, dir: &Inode) -> Result<BTreeSet<usize>> {
        let memory = self.dir_memory(dir)?;
        let mut nodes = BTreeSet::new();
        if memory.list().is_empty() {
            return Ok(nodes);
        }
        let Some(root) = self.index_entries(&memory, 0)? else { return Ok(nodes) };
        nodes.insert(0);
        let levels = root.levels.min(LEVELS_MAX);
        let mut level = root.below;
        for _ in 0..levels {
            let mut next = Vec::new();
            for at in std::mem::take(&mut level) {
                if at < memory.list().len()
                    && !nodes.contains(&at)
                    && let Some(node) = self.index_entries(&memory, at)?
                {
                    nodes.insert(at);
                    next.extend(node.below);
                }
            }
            level = next;
        }
        Ok(nodes)
    }

    /// What block `at` of a directory says as a part of its index; `None` if it is none.
    fn index_entries(&self, memory: &DirMemory, at: usize) -> Result<Option<IndexNode>> {
        let Some((_, bytes)) = self.dir_bytes(memory, at)? else { return Ok(None) };
        let Some(counts) = index_counts(&bytes) else { return Ok(None) };
        let count = usize::from(Le::u16(&bytes, counts + 2)).min((bytes.len() - counts) / 8);
        let below = (0..count).map(|entry| idx(Le::u32(&bytes, counts + 8 * entry + 4) & POSITION)).collect();
        let levels = if at == 0 { bytes[LEVELS] } else { 0 };
        Ok(Some(IndexNode { levels, below }))
    }

    /// Makes a block of an index one that ends with a tail: the first keeps `.` and `..`, the others are empty.
    fn make_leaf(&self, dir: &mut Inode, at: usize) -> Result<()> {
        let mut memory = self.dir_memory(dir)?;
        let (owner, no) = (memory.owner, memory.list()[at]);
        memory.rooms.set(at, u16::MAX);
        memory.last.clear();
        drop(memory);
        let block = self.dir_block(owner, no)?;
        let mut bytes = block.snapshot().to_vec();
        put_leaf(&mut bytes, at);
        let mut tx = self.cache.lock();
        let patch = tx.bytes(&block, 0, &bytes, &[]);
        dir.gather(&mut tx, patch);
        Ok(())
    }
}

/// Makes block `at` of an index an ordinary one, in memory.
fn put_leaf(bytes: &mut [u8], at: usize) {
    if at == 0 {
        let len = bytes.len() - ENTRY_MIN - DIRECTORY_TAIL;
        D_REC_LEN.put(&mut bytes[ENTRY_MIN..], rec_len_field(len));
        bytes[INDEX_INFO..].fill(0);
        put_directory_tail(bytes);
    } else {
        put_empty_leaf(bytes, true);
    }
}

/// A block of an index.
struct IndexNode {
    /// Levels of blocks of the index below it, if it is the first.
    levels: u8,
    /// The positions of the blocks that it leads to.
    below: Vec<usize>,
}
