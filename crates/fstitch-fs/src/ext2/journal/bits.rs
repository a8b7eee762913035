//! Bits of blocks and inodes, and the counts that follow from them, of a volume that is changed in batches.

use std::collections::BTreeMap;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Result};

use super::pass::Pass;
use crate::ext2::layout::checksum::Sums;
use crate::ext2::layout::group::{
    BG_FLAGS, BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BG_ITABLE_UNUSED, BG_USED_DIRS_COUNT, BLOCK_UNINIT,
    INODE_UNINIT, INODE_ZEROED,
};
use crate::ext2::num::{idx, low16, low32, small};
use crate::ext2::offline::fill_unwritten;
use crate::ext2::runs::Runs;

impl Pass<'_, '_> {
    /// A group's block bitmap, whether it was written or not.
    pub(in crate::ext2) fn block_bits(&self, group: u32) -> Result<BlockBuf> {
        let (_, _, descriptor) = self.descriptor(group)?;
        if !descriptor.is_block_uninit() {
            return self.read(BlockNo(descriptor.block_bitmap), BlockKind::BlockBitmap);
        }
        let mut bits = BlockBuf::zeroed(self.volume.block_size());
        fill_unwritten(&mut bits, &self.shape, group, &descriptor);
        Ok(bits)
    }

    /// Sets or clears the bits of blocks, and counts them.
    pub(in crate::ext2) fn mark_blocks(&mut self, runs: &Runs, used: bool) -> Result<()> {
        let mut by_group: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for block in runs.blocks() {
            by_group.entry(self.shape.group_of(block)).or_default().push(block);
        }
        for (group, blocks) in by_group {
            let mut bits = self.block_bits(group)?;
            let start = self.shape.group_start(group);
            for &block in &blocks {
                let bit = low32(block - start);
                let (byte, mask) = (&mut bits[idx(bit / 8)], 1 << (bit % 8));
                if (*byte & mask != 0) == used {
                    let what = if used { "in use by another" } else { "free already" };
                    return Err(Error::corrupt(self.what, BlockNo(block), format!("it is {what}")));
                }
                *byte ^= mask;
            }
            self.put_block_bits(group, bits, (small(blocks.len()), used))?;
        }
        Ok(())
    }

    fn put_block_bits(&mut self, group: u32, bits: BlockBuf, (count, used): (u32, bool)) -> Result<()> {
        let (no, offset, descriptor) = self.descriptor(group)?;
        self.summed.groups.insert(group);
        *self.change(BlockNo(descriptor.block_bitmap), BlockKind::BlockBitmap)? = bits;
        let has_flags = self.shape.sums != Sums::None;
        let raw = &mut self.change(no, BlockKind::GroupDescriptor)?[offset..];
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
    pub(in crate::ext2) fn mark_inode(&mut self, ino: u32, is_directory: bool) -> Result<()> {
        let group = self.shape.group_of_inode(ino);
        let per_group = self.shape.inodes_per_group;
        let bit = (ino - 1) % per_group;
        let (no, offset, descriptor) = self.descriptor(group)?;
        self.summed.groups.insert(group);
        let bitmap = BlockNo(descriptor.inode_bitmap);
        let bits = self.change(bitmap, BlockKind::InodeBitmap)?;
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
        let has_flags = self.shape.sums != Sums::None;
        let raw = &mut self.change(no, BlockKind::GroupDescriptor)?[offset..];
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
        let (no, at) = self.place(ino)?;
        let size = usize::from(self.shape.inode_size);
        self.change(no, BlockKind::Inode)?[at..at + size].fill(0);
        Ok(())
    }

    /// Counts an inode that is a directory now or was one before.
    pub(super) fn count_directory(&mut self, group: u32, is: bool, was: bool) -> Result<()> {
        let (no, offset, _) = self.descriptor(group)?;
        self.summed.groups.insert(group);
        let raw = &mut self.change(no, BlockKind::GroupDescriptor)?[offset..];
        let count = BG_USED_DIRS_COUNT.get(raw).saturating_sub(u16::from(was)).saturating_add(u16::from(is));
        BG_USED_DIRS_COUNT.put(raw, count);
        Ok(())
    }
}
