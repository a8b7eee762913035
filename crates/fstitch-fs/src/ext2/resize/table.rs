//! What changes inside the volume: its last group, the table of descriptors, and the blocks reserved for more of these.

use fstitch_core::{BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure};

use super::groups;
use super::plan::Sizes;
use super::staged::Staged;
use crate::ext2::layout::checksum::put_block_bitmap_sum;
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::group::{
    BG_FLAGS, BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BLOCK_UNINIT, GroupDescriptor,
};
use crate::ext2::layout::inode::{self, DiskInode, I_BLOCKS, pointer_field};
use crate::ext2::layout::superblock::{RESIZE_INO, Superblock};
use crate::ext2::num::{idx, low16, pointer32};
use crate::ext2::offline::fill_unwritten;

/// Which of an inode's pointers leads to two levels of pointers.
pub(super) const DOUBLE_INDIRECT: usize = 13;

/// Gives the last group the blocks up to its full length; how many they are.
pub(super) fn extend_last(staged: &mut Staged<'_>, sizes: &Sizes) -> Result<u64> {
    let (old, new) = (&sizes.old, &sizes.new);
    let last = old.group_count() - 1;
    let (before, after) = (old.group_blocks(last), new.group_blocks(last));
    if before == after {
        return Ok(0);
    }
    mark(staged, old, last, &[(before, after)], false).map(u64::from)
}

/// Sets or clears runs of a group's bits and counts them; how many have changed. A bitmap that was never written is written.
pub(super) fn mark(
    staged: &mut Staged<'_>,
    shape: &Superblock,
    group: u32,
    runs: &[(u32, u32)],
    used: bool,
) -> Result<u32> {
    let descriptor = descriptor(staged, shape, group)?;
    let bits = staged.change(descriptor.block_bitmap, BlockKind::BlockBitmap)?;
    if descriptor.is_block_uninit() {
        bits.fill(0);
        fill_unwritten(bits, shape, group, &descriptor);
    }
    let mut changed = 0;
    for bit in runs.iter().flat_map(|&(start, end)| start..end) {
        let (byte, mask) = (&mut bits[idx(bit / 8)], 1 << (bit % 8));
        changed += u32::from((*byte & mask != 0) != used);
        *byte = if used { *byte | mask } else { *byte & !mask };
    }
    let sum = shape.sums.bitmap(bits, shape.blocks_per_group);
    let (no, offset) = shape.descriptor_place(group);
    let size = shape.descriptor_size();
    let raw = &mut staged.change(no, BlockKind::GroupDescriptor)?[offset..offset + size];
    let free = u32::from(BG_FREE_BLOCKS_COUNT.get(raw));
    let free = if used { free.saturating_sub(changed) } else { free + changed };
    BG_FREE_BLOCKS_COUNT.put(raw, low16(free));
    if shape.features.has_group_sums() {
        let flags = BG_FLAGS.get(raw) & !BLOCK_UNINIT;
        BG_FLAGS.put(raw, flags);
    }
    if let Some(sum) = sum {
        put_block_bitmap_sum(raw, sum);
    }
    shape.sums.seal_descriptor(group, raw);
    Ok(changed)
}

/// A group that goes has nothing free: a kernel that replays the log has counted it already, and must not give files what lies there. Behind
/// the last descriptor there may be older ones.
pub(super) fn retire_descriptor(staged: &mut Staged<'_>, shape: &Superblock, group: u32) -> Result<()> {
    let (no, offset) = shape.descriptor_place(group);
    let (size, is_last) = (shape.descriptor_size(), group + 1 == shape.group_count());
    let block = staged.change(no, BlockKind::GroupDescriptor)?;
    if is_last {
        block[offset + size..].fill(0);
    }
    let raw = &mut block[offset..offset + size];
    BG_FREE_BLOCKS_COUNT.put(raw, 0);
    BG_FREE_INODES_COUNT.put(raw, 0);
    shape.sums.seal_descriptor(group, raw);
    Ok(())
}

pub(super) fn descriptor(staged: &mut Staged<'_>, shape: &Superblock, group: u32) -> Result<GroupDescriptor> {
    let (no, offset) = shape.descriptor_place(group);
    let block = staged.change(no, BlockKind::GroupDescriptor)?;
    let raw = &block[offset..offset + shape.descriptor_size()];
    GroupDescriptor::parse(raw, group, shape, BlockNo(no))
}

/// Describes the new groups in the table.
pub(super) fn put_descriptors(
    staged: &mut Staged<'_>,
    sizes: &Sizes,
    made: &[(u32, GroupDescriptor)],
) -> Result<()> {
    let (old, new) = (&sizes.old, &sizes.new);
    for (group, descriptor) in made {
        let (no, offset) = new.descriptor_place(*group);
        let raw = groups::encode(new, *group, descriptor);
        let is_new = group / new.descriptors_per_block() >= old.descriptor_blocks();
        let block = if is_new {
            staged.fresh(no, BlockKind::GroupDescriptor)
        } else {
            staged.change(no, BlockKind::GroupDescriptor)?
        };
        block[offset..offset + raw.len()].copy_from_slice(&raw);
    }
    Ok(())
}

/// Brings the resize inode to what is reserved now: blocks that became descriptors are not its any more, and those that are left have
/// copies in more groups. All of it is made anew, so that it does not matter what a cut has left.
pub(super) fn put_resize_inode(staged: &mut Staged<'_>, sizes: &Sizes) -> Result<()> {
    let (old, new) = (&sizes.old, &sizes.new);
    if new.features.compat & compat::RESIZE_INODE == 0 {
        return Ok(());
    }
    let group = descriptor(staged, old, old.group_of_inode(RESIZE_INO))?;
    let (no, offset) = inode::place(old, group.inode_table, RESIZE_INO);
    let size = usize::from(old.inode_size);
    let raw = &staged.change(no.get(), BlockKind::Inode)?[offset..offset + size];
    let found = DiskInode::parse(raw, InodeNo(u64::from(RESIZE_INO)), no, old)?;
    let root = u64::from(found.block[DOUBLE_INDIRECT]);
    if !old.is_for_files(root) {
        let problem = format!("the resize inode's pointers are in block {root}: check the volume first");
        return Err(Error::corrupt(Structure::Inode(u64::from(RESIZE_INO)), no, problem));
    }
    let copies: Vec<u32> = (1..new.group_count()).filter(|&group| new.has_superblock(group)).collect();
    let (per_block, packed) = (new.pointers_per_block(), new.packed_descriptor_blocks());
    let reserved = u32::from(new.reserved_gdt_blocks);
    if copies.len() > idx(per_block) {
        return Err(Error::Unsupported(format!("{} copies of the superblock", copies.len())));
    }
    staged.change(root, BlockKind::Indirect)?.fill(0);
    for at in packed..packed + reserved {
        let primary = new.first_data_block() + 1 + u64::from(at);
        let list = staged.fresh(primary, BlockKind::Indirect);
        for (slot, group) in copies.iter().enumerate() {
            Le::put_u32(
                list,
                4 * slot,
                pointer32(primary + new.group_start(*group) - new.first_data_block()),
            );
        }
        Le::put_u32(staged.change(root, BlockKind::Indirect)?, 4 * idx(at % per_block), pointer32(primary));
    }
    let copies = u32::try_from(copies.len()).expect("at most as many as fit a block");
    let owned = 1 + reserved * (1 + copies);
    let raw = &mut staged.change(no.get(), BlockKind::Inode)?[offset..offset + size];
    debug_assert_eq!(u64::from(pointer_field(DOUBLE_INDIRECT).get(raw)), root, "the map begins where it did");
    I_BLOCKS.put(raw, owned * (new.block_size / 512));
    new.sums.seal_inode(RESIZE_INO, raw);
    Ok(())
}
