//! New groups, behind the end of the volume as it was.

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Result};

use crate::ext2::layout::checksum::{put_block_bitmap_sum, put_inode_bitmap_sum};
use crate::ext2::layout::group::{GroupDescriptor, INODE_UNINIT, INODE_ZEROED};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::{idx, low16, small};
use crate::view::BlockView;

/// Blocks that are looked at at once.
const AT_ONCE: u64 = 256;

/// A new group: its bitmaps and its table follow its copies of superblock and descriptors.
pub(super) fn describe(new: &Superblock, group: u32) -> GroupDescriptor {
    let first = new.group_start(group) + u64::from(new.group_overhead(group));
    let own = new.group_overhead(group) + 2 + new.inode_table_blocks();
    let summed = new.features.has_group_sums();
    GroupDescriptor {
        block_bitmap: first,
        inode_bitmap: first + 1,
        inode_table: first + 2,
        free_blocks: low16(new.group_blocks(group) - own),
        free_inodes: low16(new.inodes_per_group),
        used_dirs: 0,
        flags: if summed { INODE_UNINIT | INODE_ZEROED } else { 0 },
        itable_unused: if summed { low16(new.inodes_per_group) } else { 0 },
    }
}

/// A group's bitmaps, of blocks and of inodes.
fn bitmaps(new: &Superblock, group: u32) -> [BlockBuf; 2] {
    let size = idx(new.block_size);
    let own = new.group_overhead(group) + 2 + new.inode_table_blocks();
    let mut blocks = BlockBuf::zeroed(size);
    set(&mut blocks, 0..own);
    set(&mut blocks, new.group_blocks(group)..small(size) * 8);
    let mut inodes = BlockBuf::zeroed(size);
    set(&mut inodes, new.inodes_per_group..small(size) * 8);
    [blocks, inodes]
}

fn set(bits: &mut [u8], range: std::ops::Range<u32>) {
    for bit in range {
        bits[idx(bit / 8)] |= 1 << (bit % 8);
    }
}

/// The bytes of a new group's descriptor, with all sums.
pub(super) fn encode(new: &Superblock, group: u32, descriptor: &GroupDescriptor) -> Vec<u8> {
    let mut raw = vec![0; new.descriptor_size()];
    descriptor.encode_into(&mut raw, new.features.has_group_sums());
    let [blocks, inodes] = bitmaps(new, group);
    if let Some(sum) = new.sums.bitmap(&blocks, new.blocks_per_group) {
        put_block_bitmap_sum(&mut raw, sum);
    }
    if let Some(sum) = new.sums.bitmap(&inodes, new.inodes_per_group) {
        put_inode_bitmap_sum(&mut raw, sum);
    }
    new.sums.seal_descriptor(group, &mut raw);
    raw
}

/// Writes new groups and makes them stable. No part of the volume as it was is touched.
pub(super) fn write(
    volume: &BlockView<'_>,
    new: &Superblock,
    groups: &[(u32, GroupDescriptor)],
) -> Result<()> {
    for (group, descriptor) in groups {
        let [blocks, inodes] = bitmaps(new, *group);
        let at = |no: u64| BlockNo(no);
        volume.write(at(descriptor.block_bitmap), BlockKind::BlockBitmap, &blocks)?;
        volume.write(at(descriptor.inode_bitmap), BlockKind::InodeBitmap, &inodes)?;
        let table = descriptor.inode_table;
        clear(volume, table..table + u64::from(new.inode_table_blocks()))?;
        let start = new.group_start(*group);
        clear(volume, start..start + u64::from(new.group_overhead(*group)))?;
    }
    volume.flush()
}

/// Makes blocks zero; what is zero already is not written.
fn clear(volume: &BlockView<'_>, blocks: std::ops::Range<u64>) -> Result<()> {
    let zeros = vec![0; volume.block_size() * idx(low_count(AT_ONCE))];
    let mut bytes = zeros.clone();
    let mut at = blocks.start;
    while at < blocks.end {
        let count = (blocks.end - at).min(AT_ONCE);
        let len = idx(low_count(count)) * volume.block_size();
        volume.read(BlockNo(at), BlockKind::Inode, &mut bytes[..len])?;
        if bytes[..len].iter().any(|&byte| byte != 0) {
            volume.write(BlockNo(at), BlockKind::Inode, &zeros[..len])?;
        }
        at += count;
    }
    Ok(())
}

fn low_count(count: u64) -> u32 {
    u32::try_from(count).expect("at most a few blocks at once")
}
