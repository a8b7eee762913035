//! A group's block bitmap and descriptor while nobody has the volume open: read, changed and written with their sums.
//!
//! **Crash cases.** Bitmap, sum and counter are three writes in two blocks. Who changes them has taken away the mark of a clean volume
//! before, so that a check looks at all of them.

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Result, Structure};

use super::layout::checksum::{block_bitmap_sum, kept_of_bitmap_sum, put_block_bitmap_sum};
use super::layout::group::{BG_FLAGS, BG_FREE_BLOCKS_COUNT, BLOCK_UNINIT, GroupDescriptor};
use super::layout::superblock::Superblock;
use super::num::idx;
use super::source::BlockSource;
use crate::view::BlockView;

/// A group's block bitmap and the block with its descriptor.
pub(crate) struct OfflineGroup<'a> {
    shape: &'a Superblock,
    group: u32,
    bits: BlockBuf,
    bits_at: BlockNo,
    table: BlockBuf,
    table_at: BlockNo,
    offset: usize,
}

impl<'a> OfflineGroup<'a> {
    /// Reads both and verifies their sums. A bitmap that was never written is known without reading.
    ///
    /// # Errors
    /// `Io`; `Corrupt` for a descriptor that cannot be and for wrong sums.
    pub(crate) fn read(volume: &dyn BlockSource, shape: &'a Superblock, group: u32) -> Result<Self> {
        let (table_at, offset) = shape.descriptor_place(group);
        let table_at = BlockNo(table_at);
        let mut table = BlockBuf::zeroed(volume.block_size());
        volume.read(table_at, BlockKind::GroupDescriptor, &mut table)?;
        let raw = &table[offset..offset + shape.descriptor_size()];
        let descriptor = GroupDescriptor::parse(raw, group, shape, table_at)?;
        let bits_at = BlockNo(descriptor.block_bitmap);
        let mut bits = BlockBuf::zeroed(volume.block_size());
        if descriptor.is_block_uninit() {
            fill_unwritten(&mut bits, shape, group, &descriptor);
        } else {
            volume.read(bits_at, BlockKind::BlockBitmap, &mut bits)?;
            let sum = shape.sums.bitmap(&bits, shape.clusters_per_group());
            let kept = sum.map(|sum| kept_of_bitmap_sum(sum, raw.len()));
            if kept.is_some_and(|sum| sum != block_bitmap_sum(raw)) {
                let problem = format!("checksum {:#010x}", block_bitmap_sum(raw));
                return Err(Error::corrupt(Structure::BlockBitmap(u64::from(group)), bits_at, problem));
            }
        }
        Ok(Self { shape, group, bits, bits_at, table, table_at, offset })
    }

    /// The bitmap. Bits behind the group's last cluster mean nothing.
    pub(crate) fn bits(&self) -> &[u8] {
        &self.bits
    }

    /// Marks the clusters of blocks of the group as used or free, counts them, and writes everything.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn mark(mut self, volume: &BlockView<'_>, blocks: &[u64], used: bool) -> Result<()> {
        let mut bits: Vec<u32> = blocks.iter().map(|&block| self.shape.bit_of(block)).collect();
        bits.sort_unstable();
        bits.dedup();
        for &bit in &bits {
            let (byte, mask) = (&mut self.bits[idx(bit / 8)], 1 << (bit % 8));
            debug_assert!((*byte & mask != 0) != used, "bit {bit} changes");
            if used {
                *byte |= mask;
            } else {
                *byte &= !mask;
            }
        }
        volume.write(self.bits_at, BlockKind::BlockBitmap, &self.bits)?;
        let raw = &mut self.table[self.offset..self.offset + self.shape.descriptor_size()];
        let count = u16::try_from(bits.len()).expect("a group has fewer clusters than 2^16");
        let free = BG_FREE_BLOCKS_COUNT.get(raw);
        let free = if used { free.saturating_sub(count) } else { free.saturating_add(count) };
        BG_FREE_BLOCKS_COUNT.put(raw, free);
        if self.shape.features.has_group_sums() {
            let flags = BG_FLAGS.get(raw) & !BLOCK_UNINIT;
            BG_FLAGS.put(raw, flags);
        }
        if let Some(sum) = self.shape.sums.bitmap(&self.bits, self.shape.clusters_per_group()) {
            put_block_bitmap_sum(raw, sum);
        }
        self.shape.sums.seal_descriptor(self.group, raw);
        volume.write(self.table_at, BlockKind::GroupDescriptor, &self.table)
    }
}

/// Makes `bits` the bitmap of a group whose bitmap was never written: only the group's own metadata are in use, as far as they
/// lie in it.
pub(crate) fn fill_unwritten(bits: &mut [u8], shape: &Superblock, group: u32, descriptor: &GroupDescriptor) {
    let (start, len) = (shape.group_start(group), shape.group_blocks(group));
    let own = [
        (start, shape.group_overhead(group)),
        (descriptor.block_bitmap, 1),
        (descriptor.inode_bitmap, 1),
        (descriptor.inode_table, shape.inode_table_blocks()),
    ];
    let end = start + u64::from(len);
    let inside = |(at, count): (u64, u32)| at.max(start)..(at + u64::from(count)).min(end);
    let padding = shape.clusters(len)..shape.block_size * 8;
    let own = own.into_iter().flat_map(inside).map(|block| shape.bit_of(block));
    for bit in own.chain(padding) {
        bits[idx(bit / 8)] |= 1 << (bit % 8);
    }
}
