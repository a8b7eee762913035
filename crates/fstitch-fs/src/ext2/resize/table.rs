//! What changes inside the volume: its last group, the table of descriptors, and the blocks reserved for more of these.

use fstitch_core::{BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure};

use super::groups;
use super::plan::Growth;
use super::staged::Staged;
use crate::ext2::layout::checksum::put_block_bitmap_sum;
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::group::{BG_FREE_BLOCKS_COUNT, GroupDescriptor};
use crate::ext2::layout::inode::{self, DiskInode, I_BLOCKS, pointer_field};
use crate::ext2::layout::superblock::{RESIZE_INO, Superblock};
use crate::ext2::num::{idx, low16};

/// Which of an inode's pointers leads to two levels of pointers.
const DOUBLE_INDIRECT: usize = 13;

/// Gives the last group the blocks up to its full length; how many they are.
pub(super) fn extend_last(staged: &mut Staged<'_>, growth: &Growth) -> Result<u64> {
    let (old, new) = (&growth.old, &growth.new);
    let last = old.group_count() - 1;
    let (before, after) = (old.group_blocks(last), new.group_blocks(last));
    if before == after {
        return Ok(0);
    }
    let descriptor = descriptor(staged, old, last)?;
    if descriptor.is_block_uninit() {
        let problem = "the last group's bitmap was never written";
        return Err(Error::corrupt(Structure::BlockBitmap(u64::from(last)), None, problem));
    }
    let bits = staged.change(descriptor.block_bitmap, BlockKind::BlockBitmap)?;
    for bit in before..after {
        bits[idx(bit / 8)] &= !(1 << (bit % 8));
    }
    let sum = new.sums.bitmap(bits, new.blocks_per_group);
    let (no, offset) = new.descriptor_place(last);
    let size = new.descriptor_size();
    let raw = &mut staged.change(no, BlockKind::GroupDescriptor)?[offset..offset + size];
    let free = u32::from(BG_FREE_BLOCKS_COUNT.get(raw)) + (after - before);
    BG_FREE_BLOCKS_COUNT.put(raw, low16(free));
    if let Some(sum) = sum {
        put_block_bitmap_sum(raw, sum);
    }
    new.sums.seal_descriptor(last, raw);
    Ok(u64::from(after - before))
}

fn descriptor(staged: &mut Staged<'_>, shape: &Superblock, group: u32) -> Result<GroupDescriptor> {
    let (no, offset) = shape.descriptor_place(group);
    let block = staged.change(no, BlockKind::GroupDescriptor)?;
    let raw = &block[offset..offset + shape.descriptor_size()];
    GroupDescriptor::parse(raw, group, shape, BlockNo(u64::from(no)))
}

/// Describes the new groups in the table.
pub(super) fn put_descriptors(
    staged: &mut Staged<'_>,
    growth: &Growth,
    made: &[(u32, GroupDescriptor)],
) -> Result<()> {
    let (old, new) = (&growth.old, &growth.new);
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
pub(super) fn put_resize_inode(staged: &mut Staged<'_>, growth: &Growth) -> Result<()> {
    let (old, new) = (&growth.old, &growth.new);
    if new.features.compat & compat::RESIZE_INODE == 0 {
        return Ok(());
    }
    let group = descriptor(staged, old, old.group_of_inode(RESIZE_INO))?;
    let (no, offset) = inode::place(old, group.inode_table, RESIZE_INO);
    let no32 = |no: BlockNo| u32::try_from(no.get()).expect("volumes have fewer than 2^32 blocks");
    let size = usize::from(old.inode_size);
    let raw = &staged.change(no32(no), BlockKind::Inode)?[offset..offset + size];
    let found = DiskInode::parse(raw, InodeNo(u64::from(RESIZE_INO)), no, old)?;
    let root = found.block[DOUBLE_INDIRECT];
    if root <= old.first_data_block() || root >= old.blocks_count {
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
        let primary = new.first_data_block() + 1 + at;
        let list = staged.fresh(primary, BlockKind::Indirect);
        for (slot, group) in copies.iter().enumerate() {
            Le::put_u32(list, 4 * slot, primary + group * new.blocks_per_group);
        }
        Le::put_u32(staged.change(root, BlockKind::Indirect)?, 4 * idx(at % per_block), primary);
    }
    let copies = u32::try_from(copies.len()).expect("at most as many as fit a block");
    let owned = 1 + reserved * (1 + copies);
    let raw = &mut staged.change(no32(no), BlockKind::Inode)?[offset..offset + size];
    debug_assert_eq!(pointer_field(DOUBLE_INDIRECT).get(raw), root, "the map begins where it did");
    I_BLOCKS.put(raw, owned * (new.block_size / 512));
    new.sums.seal_inode(RESIZE_INO, raw);
    Ok(())
}
