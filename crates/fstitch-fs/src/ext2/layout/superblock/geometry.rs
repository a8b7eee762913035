//! Where everything lies that the shape of a volume tells: groups, clusters, descriptors, tables.

use super::{SUPERBLOCK_OFFSET, Superblock};
use crate::ext2::layout::feature::{compat, ro_compat};
use crate::ext2::num::{idx, low32};

impl Superblock {
    /// The first block of the first group. With clusters of several blocks that is block 0 always, since a group begins with a cluster.
    #[must_use]
    pub const fn first_data_block(&self) -> u64 {
        if self.block_size == 1024 && self.log_cluster == 0 { 1 } else { 0 }
    }

    /// The block that holds the superblock.
    #[must_use]
    pub const fn superblock_no(&self) -> u64 {
        if self.block_size == 1024 { 1 } else { 0 }
    }

    /// Blocks of a cluster: as many as a bit of a block bitmap stands for.
    #[must_use]
    pub const fn cluster_blocks(&self) -> u32 {
        1 << self.log_cluster
    }

    /// Whether several blocks are taken together.
    #[must_use]
    pub const fn has_clusters(&self) -> bool {
        self.log_cluster > 0
    }

    /// Clusters of a group: the bits of its block bitmap.
    #[must_use]
    pub const fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group >> self.log_cluster
    }

    /// So many blocks in clusters, the last of which may be needed in part.
    #[must_use]
    pub const fn clusters(&self, blocks: u32) -> u32 {
        blocks.div_ceil(self.cluster_blocks())
    }

    /// Clusters of `group`; the last one of a volume may lie beyond its end in part.
    #[must_use]
    pub fn group_clusters(&self, group: u32) -> u32 {
        self.clusters(self.group_blocks(group))
    }

    /// The cluster that holds `block`, counted from the first group's first one: the bits of all block bitmaps in a row.
    #[must_use]
    pub const fn cluster_of(&self, block: u64) -> u64 {
        (block - self.first_data_block()) >> self.log_cluster
    }

    /// The run of whole clusters of the volume in which the blocks `start..end` are, as far as the volume reaches.
    #[must_use]
    pub fn whole_clusters(&self, (start, end): (u64, u64)) -> (u64, u64) {
        if !self.has_clusters() || start >= end {
            return (start, end);
        }
        // The first one begins with block 0.
        let whole = end.next_multiple_of(u64::from(self.cluster_blocks()));
        let end = whole.min(self.blocks_count.max(end));
        (start >> self.log_cluster << self.log_cluster, end)
    }

    /// The bit of `block` in its group's block bitmap.
    #[must_use]
    pub fn bit_of(&self, block: u64) -> u32 {
        low32(block - self.group_start(self.group_of(block))) >> self.log_cluster
    }

    /// So many bits of a block bitmap as blocks.
    #[must_use]
    pub const fn blocks_of(&self, bits: u32) -> u64 {
        (bits as u64) << self.log_cluster
    }

    /// The first block of cluster `cluster`.
    #[must_use]
    pub const fn cluster_start(&self, cluster: u64) -> u64 {
        self.first_data_block() + (cluster << self.log_cluster)
    }

    /// Where the superblock starts inside its block, in bytes.
    #[must_use]
    pub const fn offset_in_block(&self) -> usize {
        if self.block_size == 1024 { 0 } else { SUPERBLOCK_OFFSET }
    }

    /// Groups.
    #[must_use]
    pub fn group_count(&self) -> u32 {
        low32((self.blocks_count - self.first_data_block()).div_ceil(u64::from(self.blocks_per_group)))
    }

    /// The first block of `group`, which must exist.
    #[must_use]
    pub fn group_start(&self, group: u32) -> u64 {
        self.first_data_block() + u64::from(group) * u64::from(self.blocks_per_group)
    }

    /// Whether a file may have `block`, as far as the volume's ends tell.
    #[must_use]
    pub const fn is_for_files(&self, block: u64) -> bool {
        block > self.first_data_block() && block < self.blocks_count
    }

    /// Blocks of `group`: the last one may be short.
    #[must_use]
    pub fn group_blocks(&self, group: u32) -> u32 {
        low32(u64::from(self.blocks_per_group).min(self.blocks_count - self.group_start(group)))
    }

    /// The group that `block` lies in, which must be a block from the first data block on.
    #[must_use]
    pub fn group_of(&self, block: u64) -> u32 {
        low32((block - self.first_data_block()) / u64::from(self.blocks_per_group))
    }

    /// The group that inode `ino` (from 1) lies in.
    #[must_use]
    pub const fn group_of_inode(&self, ino: u32) -> u32 {
        (ino - 1) / self.inodes_per_group
    }

    /// Whether `group` starts with a copy of the superblock (and, without `meta_bg`, of the descriptors).
    #[must_use]
    pub const fn has_superblock(&self, group: u32) -> bool {
        if group == 0 {
            return true;
        }
        if self.features.compat & compat::SPARSE_SUPER2 != 0 {
            return group == self.backup_groups[0] || group == self.backup_groups[1];
        }
        if self.features.ro_compat & ro_compat::SPARSE_SUPER == 0 || group == 1 {
            return true;
        }
        is_power(group, 3) || is_power(group, 5) || is_power(group, 7)
    }

    /// Bytes of a group descriptor.
    #[must_use]
    pub fn descriptor_size(&self) -> usize {
        usize::from(self.desc_size)
    }

    /// Blocks of the descriptor table in use, wherever they lie.
    #[must_use]
    pub fn descriptor_blocks(&self) -> u32 {
        self.group_count().div_ceil(self.descriptors_per_block())
    }

    /// Blocks of the descriptor table that lie behind each copy of the superblock: all of them without `meta_bg`.
    #[must_use]
    pub fn packed_descriptor_blocks(&self) -> u32 {
        self.descriptor_blocks().min(self.first_meta_bg)
    }

    /// Descriptors per block.
    #[must_use]
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size / u32::from(self.desc_size)
    }

    /// Where block `index` of the descriptor table lies.
    #[must_use]
    pub fn descriptor_block(&self, index: u32) -> u64 {
        if index < self.packed_descriptor_blocks() {
            return self.superblock_no() + 1 + u64::from(index);
        }
        let group = index * self.descriptors_per_block();
        self.head_of(group) + u64::from(self.has_superblock(group))
    }

    /// Where `group` has its copies of the superblock and of descriptors, if it has any: at its start, but for a boot block before
    /// the superblock itself.
    #[must_use]
    pub fn head_of(&self, group: u32) -> u64 {
        if group == 0 { self.superblock_no() } else { self.group_start(group) }
    }

    /// All blocks of the descriptor table, in order.
    pub fn all_descriptor_blocks(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.descriptor_blocks()).map(|index| self.descriptor_block(index))
    }

    /// The block and the byte in it where the descriptor of `group` starts.
    #[must_use]
    pub fn descriptor_place(&self, group: u32) -> (u64, usize) {
        let per_block = self.descriptors_per_block();
        (self.descriptor_block(group / per_block), idx(group % per_block) * self.descriptor_size())
    }

    /// Whether `group` holds a block of the descriptor table, or a copy of one, by the rules of `meta_bg`: the first, second
    /// and last of the groups that it describes do.
    #[must_use]
    pub fn has_own_descriptors(&self, group: u32) -> bool {
        let per_block = self.descriptors_per_block();
        let within = group % per_block;
        group / per_block >= self.first_meta_bg && (within <= 1 || within == per_block - 1)
    }

    /// Blocks at the start of `group` taken by copies of the superblock and descriptors, the ones reserved
    /// for growing included.
    #[must_use]
    pub fn group_overhead(&self, group: u32) -> u32 {
        let copied = self.has_superblock(group);
        // A boot block, where the first group begins before the superblock.
        let before = low32(self.head_of(group) - self.group_start(group));
        if group / self.descriptors_per_block() >= self.first_meta_bg {
            return before + u32::from(copied) + u32::from(self.has_own_descriptors(group));
        }
        let reserved = u32::from(self.reserved_gdt_blocks);
        if copied { before + 1 + self.packed_descriptor_blocks() + reserved } else { 0 }
    }

    /// Blocks of a group's inode table.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Inodes per block.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / u32::from(self.inode_size)
    }

    /// Block pointers in an indirect block.
    #[must_use]
    pub const fn pointers_per_block(&self) -> u32 {
        self.block_size / 4
    }
}

const fn is_power(mut number: u32, base: u32) -> bool {
    while number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}
