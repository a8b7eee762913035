//! A directory's index goes: its blocks become ordinary ones.
//!
//! Without sums nothing has to change but the flag: to who walks along the entries an index's blocks are empty, or hold `.` and
//! `..`. Where blocks have sums, an ordinary one ends with a tail that an index's has not, so all of them change with the flag,
//! in one transaction: volumes with sums are written through their journal.

use std::collections::BTreeSet;

use fstitch_core::{InodeFlags, Le, Result};
use fstitch_patch::PatchId;

use super::room::Rooms;
use super::{DirMemory, Ext2, Inode};
use crate::ext2::layout::checksum::{DIRECTORY_TAIL, INDEX_INFO, index_counts, put_directory_tail};
use crate::ext2::layout::dirent::{D_REC_LEN, ENTRY_MIN, put_empty_leaf, rec_len_field};
use crate::ext2::layout::inode::I_FLAGS;
use crate::ext2::num::idx;

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
        let block = self.inode_block(dir)?;
        let flags = dir.disk.flags & !InodeFlags::INDEX;
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
        memory.room = None;
        drop(memory);
        let block = self.dir_block(owner, no)?;
        let mut bytes = block.snapshot().to_vec();
        if at == 0 {
            let len = bytes.len() - ENTRY_MIN - DIRECTORY_TAIL;
            D_REC_LEN.put(&mut bytes[ENTRY_MIN..], rec_len_field(len));
            bytes[INDEX_INFO..].fill(0);
            put_directory_tail(&mut bytes);
        } else {
            put_empty_leaf(&mut bytes, true);
        }
        let mut tx = self.cache.lock();
        let patch = tx.bytes(&block, 0, &bytes, &[]);
        dir.gather(&mut tx, patch);
        Ok(())
    }
}

/// A block of an index.
struct IndexNode {
    /// Levels of blocks of the index below it, if it is the first.
    levels: u8,
    /// The positions of the blocks that it leads to.
    below: Vec<usize>,
}
