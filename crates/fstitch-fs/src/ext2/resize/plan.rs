//! What a larger or smaller volume looks like: arithmetic on superblocks, no device.

use fstitch_core::{Error, Result};

use crate::ext2::layout::feature::{compat, incompat};
use crate::ext2::layout::superblock::{
    BLOCKS, BLOCKS_MAX, FREE_BLOCKS, RESERVED_BLOCKS, S_FIRST_META_BG, S_FREE_INODES_COUNT, S_INODES_COUNT,
    S_OVERHEAD_BLOCKS, S_RESERVED_GDT_BLOCKS, Superblock,
};
use crate::ext2::num::low16;

/// A last group with fewer free blocks than this is not worth its metadata.
const LAST_GROUP_MIN: u32 = 50;

/// A volume before and after.
#[derive(Debug)]
pub(super) struct Sizes {
    pub(super) old: Superblock,
    pub(super) new: Superblock,
    /// The new superblock, but for the counts of what is free.
    raw: Vec<u8>,
}

impl Sizes {
    /// Plans a volume of `wanted` blocks, larger or smaller.
    pub(super) fn planned(raw: &[u8], old: Superblock, wanted: u64, bytes: u64) -> Result<Option<Self>> {
        match wanted < old.blocks_count {
            true => Self::smaller(raw, old, wanted, bytes),
            false => Self::larger(raw, old, wanted, bytes),
        }
    }

    /// Plans a larger volume of `wanted` blocks on a device of `bytes`. `None` if it has them, or so few less that no more are worth while.
    pub(super) fn larger(raw: &[u8], old: Superblock, wanted: u64, bytes: u64) -> Result<Option<Self>> {
        let refuse = |what: String| Err(Error::Unsupported(what));
        let room = bytes / u64::from(old.block_size);
        if wanted > room {
            return refuse(format!("{wanted} blocks on a device of {room}"));
        }
        let mut blocks = wanted;
        let most = if old.features.has_incompat(incompat::BIT64) { BLOCKS_MAX } else { u64::from(u32::MAX) };
        if blocks > most {
            return refuse(format!("{wanted} blocks: at most {most} are possible"));
        }
        if blocks > u64::from(u32::MAX) && old.features.compat & compat::RESIZE_INODE != 0 {
            // Its blocks in the copies are named with 32 bits.
            return refuse(format!(
                "{wanted} blocks with feature resize_inode: fewer than 2^32 are possible"
            ));
        }
        let mut trial = Superblock { blocks_count: blocks, ..old.clone() };
        let last = trial.group_count() - 1;
        let needs = trial.group_overhead(last) + 2 + trial.inode_table_blocks() + LAST_GROUP_MIN;
        if last >= old.group_count() && trial.group_blocks(last) < needs {
            blocks = trial.group_start(last);
            trial.blocks_count = blocks;
        }
        if blocks <= old.blocks_count {
            return Ok(None);
        }
        let inodes = u64::from(trial.group_count()) * u64::from(old.inodes_per_group);
        let Ok(inodes) = u32::try_from(inodes) else {
            return refuse(format!("{inodes} inodes on a volume of {blocks} blocks"));
        };
        let more = trial.packed_descriptor_blocks() - old.packed_descriptor_blocks();
        let reserved = u32::from(old.reserved_gdt_blocks);
        let has_reserve = old.features.compat & compat::RESIZE_INODE != 0;
        if more > 0 && (!has_reserve || more >= reserved) {
            let reserved = if has_reserve { reserved } else { 0 };
            return refuse(format!(
                "a volume of {blocks} blocks: its descriptors take {more} blocks more, and {reserved} are reserved for that"
            ));
        }
        let mut new = sized(raw, &old, blocks, inodes);
        if let Ok(left) = u16::try_from(reserved - more.min(reserved)) {
            S_RESERVED_GDT_BLOCKS.put(&mut new, left);
        }
        let shape = Superblock::parse_unsummed(&new, bytes)?;
        Ok(Some(Self { old, new: shape, raw: new }))
    }

    /// Plans a volume of `wanted` blocks, or of a few less: as many as there are in whole groups where the last one would hold little more
    /// than its own metadata. `None` if it has them.
    pub(super) fn smaller(raw: &[u8], old: Superblock, wanted: u64, bytes: u64) -> Result<Option<Self>> {
        let refuse = |what: String| Err(Error::Unsupported(what));
        let mut blocks = wanted.min(old.blocks_count);
        if blocks <= old.first_data_block() {
            return refuse(format!("a volume of {blocks} blocks"));
        }
        let mut trial = Superblock { blocks_count: blocks, ..old.clone() };
        // Copies of superblock and descriptors are never longer than they were, but for what is reserved in their place.
        let last = trial.group_count() - 1;
        let needs = old.group_overhead(last) + 2 + old.inode_table_blocks() + LAST_GROUP_MIN;
        if trial.group_blocks(last) < needs && blocks < old.blocks_count {
            if last == 0 {
                return refuse(format!("a volume of {blocks} blocks: {needs} are the fewest"));
            }
            blocks = trial.group_start(last);
            trial.blocks_count = blocks;
        }
        if blocks == old.blocks_count {
            return Ok(None);
        }
        let mut new = sized(raw, &old, blocks, trial.group_count() * old.inodes_per_group);
        if old.first_meta_bg != u32::MAX {
            S_FIRST_META_BG.put(&mut new, old.first_meta_bg.min(trial.descriptor_blocks()));
        }
        if old.features.compat & compat::RESIZE_INODE != 0 {
            // What were descriptors is reserved for some; a list of pointers has so many.
            let less = old.packed_descriptor_blocks() - trial.packed_descriptor_blocks();
            let reserved = (u32::from(old.reserved_gdt_blocks) + less).min(old.pointers_per_block());
            S_RESERVED_GDT_BLOCKS.put(&mut new, low16(reserved));
        }
        let shape = Superblock::parse_unsummed(&new, bytes)?;
        Ok(Some(Self { old, new: shape, raw: new }))
    }

    /// The new superblock, with so many free blocks and inodes.
    pub(super) fn superblock(&self, blocks: u64, inodes: u64) -> Vec<u8> {
        let mut raw = self.raw.clone();
        FREE_BLOCKS.put(&mut raw, blocks);
        S_FREE_INODES_COUNT.put(&mut raw, u32::try_from(inodes).unwrap_or(u32::MAX));
        raw
    }
}

/// The superblock of a volume with so many blocks and inodes, and its share of them reserved.
fn sized(raw: &[u8], old: &Superblock, blocks: u64, inodes: u32) -> Vec<u8> {
    let mut new = raw.to_vec();
    BLOCKS.put(&mut new, blocks);
    S_INODES_COUNT.put(&mut new, inodes);
    let share = u128::from(old.reserved_blocks) * u128::from(blocks) / u128::from(old.blocks_count);
    RESERVED_BLOCKS.put(&mut new, u64::try_from(share).unwrap_or(u64::MAX).min(blocks / 2));
    // Whoever mounts the volume counts them.
    S_OVERHEAD_BLOCKS.put(&mut new, 0);
    new
}
