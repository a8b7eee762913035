//! Sums: what the checker reads is compared with them, what it writes gets them. All metadata that a repair writes goes
//! through here.
//!
//! On a volume without sums the same functions write the same bytes without any, and everything matches. While the volume is
//! in use nothing is compared: images in the cache get their sums when they are written, and were verified when they were read.

use fstitch_core::{BlockKind, BlockNo, Result};

use super::state::Volume;
use crate::bits::{put_bit, set_from};
use crate::ext2::layout::checksum::{
    self, DIRECTORY_TAIL, InodeSums, has_directory_tail, is_placed, place, seal_superblock,
};
use crate::ext2::layout::dirent::{D_INODE, rec_len};
use crate::ext2::layout::group::{BG_FLAGS, BG_ITABLE_UNUSED, BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT};
use crate::ext2::layout::inode::{self, I_GENERATION};
use crate::ext2::layout::superblock::SUPERBLOCK_SIZE;
use crate::ext2::num::{idx, low32};

/// Where the numbers of entries are in the root of an index, and in its other blocks.
const ROOT_COUNTS: usize = 32;
const NODE_COUNTS: usize = 8;

/// Which of a group's bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    /// Of its blocks.
    Blocks,
    /// Of its inodes.
    Inodes,
}

impl Map {
    /// The flag of a descriptor that says that it was never written.
    const fn uninit(self) -> u16 {
        match self {
            Self::Blocks => BLOCK_UNINIT,
            Self::Inodes => INODE_UNINIT,
        }
    }
}

/// Where the counts are, if the directory block `bytes` looks like one of an index: a node, or a root behind `.` and `..`.
fn counts(bytes: &[u8]) -> Option<usize> {
    if is_index_node(bytes) {
        return Some(NODE_COUNTS);
    }
    is_index_root(bytes).then_some(ROOT_COUNTS)
}

/// Whether a directory block is the root of an index: `..` hides it.
pub(super) fn is_index_root(bytes: &[u8]) -> bool {
    let spans = rec_len(bytes, bytes.len()) == 12 && rec_len(&bytes[12..], bytes.len()) == bytes.len() - 12;
    spans && bytes[24..28] == [0; 4] && bytes[29] == 8
}

/// Whether a directory block is one of an index, other than its root: one free entry hides it.
pub(super) fn is_index_node(bytes: &[u8]) -> bool {
    D_INODE.get(bytes) == 0 && rec_len(bytes, bytes.len()) == bytes.len()
}

impl Volume<'_> {
    /// Whether all metadata have sums.
    pub(super) fn has_sums(&self) -> bool {
        self.shape.sums.seed().is_some()
    }

    /// Whether sums are to be compared.
    pub(super) fn compares(&self) -> bool {
        !self.source.is_in_use()
    }

    /// How the blocks of inode `ino`, whose bytes are `raw`, are summed.
    pub(super) fn owner(&self, ino: u32, raw: &[u8]) -> InodeSums {
        self.shape.sums.of_inode(ino, I_GENERATION.get(raw))
    }

    /// Whether the inode's sum is right.
    pub(super) fn inode_sum_matches(&self, ino: u32, raw: &[u8]) -> bool {
        // An inode of zeros was never used and has no sum.
        let unused = || raw.iter().all(|&byte| byte == 0);
        !self.compares() || self.shape.sums.is_inode_right(ino, raw) || unused()
    }

    /// Whether the sum of the extent node in `bytes` is right. Its header is sound.
    pub(super) fn node_sum_matches(&self, owner: InodeSums, bytes: &[u8]) -> bool {
        !self.compares() || owner.extent_node(bytes).is_none_or(|sum| is_placed(bytes, sum))
    }

    /// Whether the sum of an attribute block is right.
    pub(super) fn attribute_sum_matches(&self, block: u64, bytes: &[u8]) -> bool {
        !self.compares() || self.shape.sums.are_attributes_right(block, bytes)
    }

    /// Whether the sum of a block of the orphan file is right: 0 where there are none, for others compare the whole block.
    pub(super) fn orphan_sum_matches(&self, owner: InodeSums, block: u64, bytes: &[u8]) -> bool {
        !self.compares() || is_placed(bytes, owner.orphan_block(block, bytes).unwrap_or((bytes.len() - 4, 0)))
    }

    /// Whether the sum of a leaf is right; a leaf without a tail has a wrong one.
    pub(super) fn leaf_sum_matches(&self, owner: InodeSums, bytes: &[u8]) -> bool {
        let right = |sum| has_directory_tail(bytes) && is_placed(bytes, sum);
        !self.compares() || owner.directory_leaf(bytes).is_none_or(right)
    }

    /// Whether the sum of an index's block is right; one that has no place for a sum has a wrong one.
    pub(super) fn index_sum_matches(&self, owner: InodeSums, bytes: &[u8]) -> bool {
        let sum = counts(bytes).and_then(|counts| owner.directory_index(bytes, counts));
        !self.compares() || !self.has_sums() || sum.is_some_and(|sum| is_placed(bytes, sum))
    }

    /// Whether the sum of the descriptor of `group` is right.
    pub(super) fn descriptor_sum_matches(&self, group: u32, raw: &[u8]) -> bool {
        !self.compares() || self.shape.sums.is_descriptor_right(group, raw)
    }

    /// Whether the sum that the descriptor of `group` has of a bitmap is right.
    pub(super) fn bitmap_sum_matches(&self, group: u32, map: Map, bytes: &[u8]) -> Result<bool> {
        let Some(sum) = self.bitmap_sum(map, bytes).filter(|_| self.compares()) else { return Ok(true) };
        let raw = self.read_descriptor(group)?;
        let found = match map {
            Map::Blocks => checksum::block_bitmap_sum(&raw),
            Map::Inodes => checksum::inode_bitmap_sum(&raw),
        };
        Ok(checksum::kept_of_bitmap_sum(sum, raw.len()) == found)
    }

    pub(super) fn bitmap_sum(&self, map: Map, bytes: &[u8]) -> Option<u32> {
        let bits = match map {
            Map::Blocks => self.shape.clusters_per_group(),
            Map::Inodes => self.shape.inodes_per_group,
        };
        self.shape.sums.bitmap(bytes, bits)
    }

    /// How many of the bitmaps that `places` names have the sums that the descriptor in `raw` has.
    pub(super) fn bitmaps_summed(&self, raw: &[u8], places: &GroupDescriptor) -> Result<usize> {
        let mut bytes = vec![0; self.block_size()];
        let mut count = 0;
        for (map, block, kind, found) in [
            (Map::Blocks, places.block_bitmap, BlockKind::BlockBitmap, checksum::block_bitmap_sum(raw)),
            (Map::Inodes, places.inode_bitmap, BlockKind::InodeBitmap, checksum::inode_bitmap_sum(raw)),
        ] {
            self.read(block, kind, &mut bytes)?;
            let sum = self.bitmap_sum(map, &bytes);
            count +=
                usize::from(sum.is_some_and(|sum| checksum::kept_of_bitmap_sum(sum, raw.len()) == found));
        }
        Ok(count)
    }

    /// Replaces the bytes of inode `ino`.
    pub(super) fn write_inode(&self, ino: u32, raw: &[u8]) -> Result<()> {
        let (block, offset) = self.place(ino);
        let mut bytes = vec![0; self.block_size()];
        self.read(block, BlockKind::Inode, &mut bytes)?;
        let sealed = &mut bytes[offset..offset + raw.len()];
        sealed.copy_from_slice(raw);
        // An inode of zeros was never used and has no sum.
        if raw.iter().any(|&byte| byte != 0) {
            self.shape.sums.seal_inode(ino, sealed);
        }
        self.write(block, BlockKind::Inode, &bytes)
    }

    /// Writes the primary superblock from `raw_super`.
    pub(super) fn write_super(&self) -> Result<()> {
        self.write_super_bytes(&self.raw_super)
    }

    /// Writes these bytes as the primary superblock.
    pub(super) fn write_super_bytes(&self, raw: &[u8]) -> Result<()> {
        let block = self.shape.superblock_no();
        let offset = self.shape.offset_in_block();
        let mut bytes = vec![0; self.block_size()];
        self.read(block, BlockKind::Superblock, &mut bytes)?;
        let sealed = &mut bytes[offset..offset + SUPERBLOCK_SIZE];
        sealed.copy_from_slice(raw);
        seal_superblock(sealed);
        self.write(block, BlockKind::Superblock, &bytes)
    }

    /// The bytes of the primary descriptor of `group`.
    pub(super) fn read_descriptor(&self, group: u32) -> Result<Vec<u8>> {
        let (block, offset) = self.shape.descriptor_place(group);
        let mut bytes = vec![0; self.block_size()];
        self.read(block, BlockKind::GroupDescriptor, &mut bytes)?;
        Ok(bytes[offset..offset + self.shape.descriptor_size()].to_vec())
    }

    /// Changes the primary descriptor of `group` on the medium. What is known of it in memory stays as it was: only a later
    /// run sees the change, but for bitmaps, which are read by what the medium says.
    pub(super) fn change_descriptor(&self, group: u32, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let (block, offset) = self.shape.descriptor_place(group);
        let mut bytes = vec![0; self.block_size()];
        self.read(block, BlockKind::GroupDescriptor, &mut bytes)?;
        let raw = &mut bytes[offset..offset + self.shape.descriptor_size()];
        change(raw);
        self.shape.sums.seal_descriptor(group, raw);
        self.write(block, BlockKind::GroupDescriptor, &bytes)
    }

    /// Whether the bitmap of `group` was never written.
    pub(super) fn is_uninit(&self, group: u32, map: Map) -> Result<bool> {
        if !self.shape.features.has_group_sums() {
            return Ok(false);
        }
        Ok(BG_FLAGS.get(&self.read_descriptor(group)?) & map.uninit() != 0)
    }

    /// The bitmap of `group`: what it holds, or what one that was never written means: of blocks, metadata of this group are in
    /// use, for who makes the bitmap does not look at others; of inodes none.
    pub(super) fn read_bitmap(&self, group: u32, map: Map, bytes: &mut [u8]) -> Result<()> {
        let (block, kind) = self.bitmap_place(group, map);
        if !self.is_uninit(group, map)? {
            return self.read(block, kind, bytes);
        }
        bytes.fill(0);
        let count = match map {
            Map::Blocks => {
                let (start, count) = (self.shape.group_start(group), self.shape.group_blocks(group));
                let at = &self.groups[idx(group)];
                let table = at.inode_table..at.inode_table + u64::from(self.shape.inode_table_blocks());
                let parts = [at.block_bitmap, at.inode_bitmap].into_iter().chain(table);
                let here = parts.filter(|block| (start..start + u64::from(count)).contains(block));
                let overhead = 0..self.shape.group_overhead(group).min(count);
                let here = here.map(|block| low32(block - start));
                let bits = overhead.chain(here).map(|at| at >> self.shape.log_cluster);
                bits.for_each(|at| put_bit(bytes, idx(at), true));
                self.shape.group_clusters(group)
            }
            Map::Inodes => self.shape.inodes_per_group,
        };
        set_from(bytes, idx(count));
        Ok(())
    }

    /// Writes a bitmap, which is one that was written from now on, and its sum.
    pub(super) fn write_bitmap(&self, group: u32, map: Map, bytes: &[u8]) -> Result<()> {
        let (block, kind) = self.bitmap_place(group, map);
        self.write(block, kind, bytes)?;
        if self.is_uninit(group, map)? {
            // Whoever is told to look must find it.
            self.source.flush()?;
        }
        if !self.shape.features.has_group_sums() {
            return Ok(());
        }
        let sum = self.bitmap_sum(map, bytes);
        self.change_descriptor(group, |raw| {
            BG_FLAGS.put(raw, BG_FLAGS.get(raw) & !map.uninit());
            match (map, sum) {
                (_, None) => {}
                (Map::Blocks, Some(sum)) => checksum::put_block_bitmap_sum(raw, sum),
                (Map::Inodes, Some(sum)) => checksum::put_inode_bitmap_sum(raw, sum),
            }
        })
    }

    /// Makes the first `count` inodes of `group` ones that are looked at. Those that were not hold anything, and become
    /// unused ones.
    pub(super) fn use_table(&self, group: u32, count: u32) -> Result<()> {
        let used = self.table_used(group);
        if count <= used {
            return Ok(());
        }
        let zeros = vec![0; usize::from(self.shape.inode_size)];
        for at in used..count {
            self.write_inode(group * self.shape.inodes_per_group + at + 1, &zeros)?;
        }
        let mut bytes = vec![0; self.block_size()];
        self.read_bitmap(group, Map::Inodes, &mut bytes)?;
        let (block, kind) = self.bitmap_place(group, Map::Inodes);
        self.write(block, kind, &bytes)?;
        // Whoever is told to look must find it.
        self.source.flush()?;
        let unused = self.shape.inodes_per_group - count;
        let sum = self.bitmap_sum(Map::Inodes, &bytes);
        self.change_descriptor(group, |raw| {
            BG_ITABLE_UNUSED.put(raw, u16::try_from(unused).unwrap_or(0));
            BG_FLAGS.put(raw, BG_FLAGS.get(raw) & !INODE_UNINIT);
            if let Some(sum) = sum {
                checksum::put_inode_bitmap_sum(raw, sum);
            }
        })
    }

    /// Has all inodes of the group of inode `ino` looked at from the next run on.
    pub(super) fn use_whole_table(&self, ino: u32) -> Result<()> {
        let group = self.shape.group_of_inode(ino);
        let mut bytes = vec![0; self.block_size()];
        self.read_bitmap(group, Map::Inodes, &mut bytes)?;
        self.write_bitmap(group, Map::Inodes, &bytes)?;
        self.change_descriptor(group, |raw| BG_ITABLE_UNUSED.put(raw, 0))
    }

    /// How many inodes of the table of `group` may be in use.
    pub(super) fn table_used(&self, group: u32) -> u32 {
        let descriptor = &self.groups[idx(group)];
        if descriptor.is_inode_uninit() {
            return 0;
        }
        self.shape.inodes_per_group - u32::from(descriptor.itable_unused)
    }

    /// Whether inode `ino` lies in a part of its table that was never used.
    pub(super) fn is_never_used(&self, ino: u32) -> bool {
        (ino - 1) % self.shape.inodes_per_group >= self.table_used(self.shape.group_of_inode(ino))
    }

    pub(super) fn bitmap_place(&self, group: u32, map: Map) -> (u64, BlockKind) {
        let descriptor = &self.groups[idx(group)];
        match map {
            Map::Blocks => (descriptor.block_bitmap, BlockKind::BlockBitmap),
            Map::Inodes => (descriptor.inode_bitmap, BlockKind::InodeBitmap),
        }
    }

    /// Writes an extent node.
    pub(super) fn write_node(&self, block: u64, owner: InodeSums, bytes: &mut [u8]) -> Result<()> {
        if let Some(sum) = owner.extent_node(bytes) {
            place(bytes, sum);
        }
        self.write(block, BlockKind::Indirect, bytes)
    }

    /// Writes a block of a directory: a leaf has a tail already, if there are sums.
    pub(super) fn write_leaf(&self, block: u64, owner: InodeSums, bytes: &mut [u8]) -> Result<()> {
        if let Some(sum) = owner.directory_leaf(bytes) {
            debug_assert!(has_directory_tail(bytes), "a leaf has a tail");
            place(bytes, sum);
        }
        self.write(block, BlockKind::Directory, bytes)
    }

    /// Writes a block of a directory's index.
    pub(super) fn write_index(&self, block: u64, owner: InodeSums, bytes: &mut [u8]) -> Result<()> {
        if let Some(sum) = counts(bytes).and_then(|counts| owner.directory_index(bytes, counts)) {
            place(bytes, sum);
        }
        self.write(block, BlockKind::Directory, bytes)
    }

    /// Writes a block of the orphan file.
    pub(super) fn write_orphans(&self, block: u64, owner: InodeSums, bytes: &mut [u8]) -> Result<()> {
        if let Some(sum) = owner.orphan_block(block, bytes) {
            place(bytes, sum);
        }
        self.write(block, BlockKind::Data, bytes)
    }

    /// Writes an attribute block.
    pub(super) fn write_attributes(&self, block: u64, bytes: &mut [u8]) -> Result<()> {
        self.shape.sums.seal_attributes(block, bytes);
        self.write(block, BlockKind::Attribute, bytes)
    }

    /// Bytes at the end of a leaf that hold no entries.
    pub(super) fn tail_len(&self) -> usize {
        if self.has_sums() { DIRECTORY_TAIL } else { 0 }
    }

    fn place(&self, ino: u32) -> (u64, usize) {
        let group = idx(self.shape.group_of_inode(ino));
        let (block, offset) = inode::place(&self.shape, self.groups[group].inode_table, ino);
        (block.get(), offset)
    }

    /// The bytes of inode `ino`, which must exist.
    pub(super) fn read_inode(&self, ino: u32) -> Result<Vec<u8>> {
        let (block, offset) = self.place(ino);
        let mut bytes = vec![0; self.block_size()];
        self.read(block, BlockKind::Inode, &mut bytes)?;
        Ok(bytes[offset..offset + usize::from(self.shape.inode_size)].to_vec())
    }

    pub(super) fn read(&self, block: u64, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        self.source.read(BlockNo(block), kind, into)
    }

    /// Writes what has no sum of its own, or has it already.
    pub(super) fn write(&self, block: u64, kind: BlockKind, data: &[u8]) -> Result<()> {
        self.source.write(BlockNo(block), kind, data)
    }
}
