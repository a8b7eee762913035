//! What follows from the records: bits of blocks and inodes, counts, and which inodes are freed.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Errno, Result};

use super::super::orphans::{Orphan, Pass};
use super::{Apply, damaged, has_map};
use crate::ext2::layout::checksum::Sums;
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::group::{
    BG_FLAGS, BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BG_ITABLE_UNUSED, BG_USED_DIRS_COUNT, BLOCK_UNINIT,
    INODE_UNINIT, INODE_ZEROED,
};
use crate::ext2::layout::inode::POINTERS;
use crate::ext2::num::{idx, low16, small};
use crate::ext2::offline::fill_unwritten;
use crate::ext2::runs::Runs;

/// Free blocks for what records do not mention: nodes of trees, blocks of directories.
pub(super) struct Space {
    /// What records give to files, and what was taken here.
    claimed: Runs,
    taken: BTreeSet<u32>,
}

impl Space {
    pub(super) const fn new(claimed: Runs) -> Self {
        Self { claimed, taken: BTreeSet::new() }
    }

    /// A block that is free, was free before the records, and is not used by any of them. From `near` on, and around.
    pub(super) fn take(&mut self, pass: &Pass<'_, '_>, near: u32) -> Result<u32> {
        let groups = pass.shape.group_count();
        let first = pass.shape.group_of(near);
        for group in (first..groups).chain(0..first) {
            let bits = pass.block_bits(group)?;
            let start = pass.shape.group_start(group);
            let mut at = start;
            while at < start + pass.shape.group_blocks(group) {
                let bit = at - start;
                if let Some(end) = self.claimed.holds(at) {
                    at = end;
                } else if bits[idx(bit / 8)] & 1 << (bit % 8) == 0 && !self.taken.contains(&at) {
                    self.taken.insert(at);
                    return Ok(at);
                } else {
                    at += 1;
                }
            }
        }
        Err(Errno::NOSPC.into())
    }
}

impl Pass<'_, '_> {
    /// A group's block bitmap, whether it was written or not.
    fn block_bits(&self, group: u32) -> Result<BlockBuf> {
        let (_, _, descriptor) = self.descriptor(group)?;
        if !descriptor.is_block_uninit() {
            return self.read(BlockNo(u64::from(descriptor.block_bitmap)), BlockKind::BlockBitmap);
        }
        let mut bits = BlockBuf::zeroed(self.volume.block_size());
        fill_unwritten(&mut bits, &self.shape, group, &descriptor);
        Ok(bits)
    }
}

impl Apply<'_, '_, '_> {
    /// Brings bits, counts and storage to what the records have made.
    pub(super) fn settle(&mut self) -> Result<()> {
        let known: Vec<u32> = self.known.keys().copied().collect();
        let mut has = Vec::new();
        for ino in known {
            let Some(mut orphan) = self.load(ino)? else { continue };
            let is_dead = self.known.get(&ino).is_some_and(|known| known.is_dead);
            if is_dead && !self.listed.contains(&ino) {
                self.free(orphan)?;
                continue;
            }
            if is_dead {
                orphan.disk.nlink = 0;
            }
            if has_map(&orphan, self.pass.shape.block_size) {
                has.extend(self.count_storage(&mut orphan)?);
            }
            self.put(&orphan)?;
        }
        let (had, has) = (Runs::of(std::mem::take(&mut self.had)), Runs::of(has));
        self.mark_blocks(&had.without(&has), false)?;
        self.mark_blocks(&has.without(&had), true)
    }

    /// Sets the inode's count of blocks to what its map has; its runs.
    fn count_storage(&self, orphan: &mut Orphan) -> Result<Vec<(u32, u32)>> {
        let (mut runs, mut count) = (Vec::new(), u64::from(orphan.disk.xattr_block != 0));
        self.each_run(orphan, &mut |first, len| {
            runs.push((first, first + len));
            count += u64::from(len);
        })?;
        orphan.disk.sectors = count * u64::from(self.pass.shape.block_size / 512);
        Ok(runs)
    }

    /// Frees an inode without names, whose blocks by extents are in [`Apply::had`] and not found again.
    fn free(&mut self, mut orphan: Orphan) -> Result<()> {
        if orphan.disk.has_blocks(self.pass.shape.block_size) && !orphan.disk.has_extents() {
            let finished = self.pass.free_from(&mut orphan, 0)?;
            debug_assert!(finished, "a pass without a limit is never full");
        }
        if orphan.disk.xattr_block != 0 {
            self.pass.free_attributes(orphan.disk.xattr_block)?;
        }
        self.pass.free_inode(&orphan)?;
        if orphan.disk.has_blocks(self.pass.shape.block_size) {
            let is_tree = orphan.disk.has_extents();
            orphan.disk.block = if is_tree { Node::empty_root().root_words() } else { [0; POINTERS] };
        }
        (orphan.disk.nlink, orphan.disk.size, orphan.disk.sectors, orphan.disk.xattr_block) = (0, 0, 0, 0);
        orphan.disk.dtime = self.pass.deletion_time()?;
        self.put(&orphan)
    }

    /// Sets or clears the bits of blocks, and counts them.
    fn mark_blocks(&mut self, runs: &Runs, used: bool) -> Result<()> {
        let mut by_group: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for block in runs.blocks() {
            by_group.entry(self.pass.shape.group_of(block)).or_default().push(block);
        }
        for (group, blocks) in by_group {
            let mut bits = self.pass.block_bits(group)?;
            let start = self.pass.shape.group_start(group);
            for &block in &blocks {
                let bit = block - start;
                let (byte, mask) = (&mut bits[idx(bit / 8)], 1 << (bit % 8));
                if (*byte & mask != 0) == used {
                    let what = if used { "in use by another" } else { "free already" };
                    return Err(damaged(format!("block {block} is {what}")));
                }
                *byte ^= mask;
            }
            self.put_block_bits(group, bits, (small(blocks.len()), used))?;
        }
        Ok(())
    }

    fn put_block_bits(&mut self, group: u32, bits: BlockBuf, (count, used): (u32, bool)) -> Result<()> {
        let (no, offset, descriptor) = self.pass.descriptor(group)?;
        self.pass.summed.groups.insert(group);
        *self.pass.change(BlockNo(u64::from(descriptor.block_bitmap)), BlockKind::BlockBitmap)? = bits;
        let has_flags = self.pass.shape.sums != Sums::None;
        let raw = &mut self.pass.change(no, BlockKind::GroupDescriptor)?[offset..];
        let free = u32::from(BG_FREE_BLOCKS_COUNT.get(raw));
        let free = if used { free.saturating_sub(count) } else { free + count };
        BG_FREE_BLOCKS_COUNT.put(raw, low16(free));
        if has_flags {
            let flags = BG_FLAGS.get(raw) & !BLOCK_UNINIT;
            BG_FLAGS.put(raw, flags);
        }
        Ok(())
    }

    /// Sets the bit of an inode that comes into use, and counts it.
    pub(super) fn mark_inode(&mut self, ino: u32, is_directory: bool) -> Result<()> {
        let group = self.pass.shape.group_of_inode(ino);
        let per_group = self.pass.shape.inodes_per_group;
        let bit = (ino - 1) % per_group;
        let (no, offset, descriptor) = self.pass.descriptor(group)?;
        self.pass.summed.groups.insert(group);
        let bitmap = BlockNo(u64::from(descriptor.inode_bitmap));
        let bits = self.pass.change(bitmap, BlockKind::InodeBitmap)?;
        if descriptor.is_inode_uninit() {
            bits.fill(0);
            for bit in per_group..small(bits.len()) * 8 {
                bits[idx(bit / 8)] |= 1 << (bit % 8);
            }
        }
        bits[idx(bit / 8)] |= 1 << (bit % 8);
        let used = per_group - u32::from(descriptor.itable_unused);
        if descriptor.flags & INODE_ZEROED == 0 {
            let first = ino - bit;
            for unused in first + used..ino {
                self.clear_inode(unused)?;
            }
        }
        let has_flags = self.pass.shape.sums != Sums::None;
        let raw = &mut self.pass.change(no, BlockKind::GroupDescriptor)?[offset..];
        if has_flags {
            let flags = BG_FLAGS.get(raw) & !INODE_UNINIT;
            BG_FLAGS.put(raw, flags);
            BG_ITABLE_UNUSED.put(raw, low16(per_group - used.max(bit + 1)));
        }
        let free = BG_FREE_INODES_COUNT.get(raw).saturating_sub(1);
        BG_FREE_INODES_COUNT.put(raw, free);
        self.count_directory(group, is_directory, false)
    }

    /// Zeroes an inode in a part of the table that was never used.
    fn clear_inode(&mut self, ino: u32) -> Result<()> {
        let (no, at) = self.pass.place(ino)?;
        let size = usize::from(self.pass.shape.inode_size);
        self.pass.change(no, BlockKind::Inode)?[at..at + size].fill(0);
        Ok(())
    }

    /// Counts an inode that is a directory now or was one before.
    pub(super) fn count_directory(&mut self, group: u32, is: bool, was: bool) -> Result<()> {
        let (no, offset, _) = self.pass.descriptor(group)?;
        self.pass.summed.groups.insert(group);
        let raw = &mut self.pass.change(no, BlockKind::GroupDescriptor)?[offset..];
        let count = BG_USED_DIRS_COUNT.get(raw).saturating_sub(u16::from(was)).saturating_add(u16::from(is));
        BG_USED_DIRS_COUNT.put(raw, count);
        Ok(())
    }
}
