//! Where everything of a new volume goes: pure arithmetic, no device.

use fstitch_core::num::to_u64;
use fstitch_core::{Error, Result};

use super::features::MkfsFeatures;
use super::options::{MkfsJournal, MkfsOptions};
use crate::ext2::layout::superblock::{BLOCKS_MAX, GROUP_QUOTA_INO, USER_QUOTA_INO};

/// The first inode that is not reserved; it becomes lost+found.
pub(super) const FIRST_INO: u32 = 11;
/// Blocks of a new volume's quota file at most: of 1024 bytes.
const QUOTA_BLOCKS_MAX: u64 = 10;
/// Groups whose bitmaps and tables lie together, unless another number was asked for.
const GROUPS_PER_FLEX: u64 = 16;
/// The most of them: more has no use, and the format counts them in its own way.
const GROUPS_PER_FLEX_MAX: u64 = 1 << 20;
/// A last group with fewer free blocks than this is not worth its metadata.
const LAST_GROUP_MIN: u64 = 50;
/// Bytes that lost+found has from the start, so that a repair need not allocate.
const LOST_FOUND_BYTES: u64 = 16 * 1024;
/// Blocks of the smallest and of the largest orphan file.
const ORPHAN_BLOCKS: [u64; 2] = [32, 512];
/// The orphan file has one block for so many of a volume that is neither small nor large.
const ORPHAN_RATIO: u64 = 4096;
/// Blocks of a cluster, unless another size was asked for, and at most; as powers of two.
const LOG_CLUSTER: [u32; 2] = [4, 12];
/// Sizes of blocks. Few systems use volumes whose blocks are larger than a page.
const BLOCK_SIZES: std::ops::RangeInclusive<u64> = 1024..=65_536;
/// Clusters of a group at most: what counts the free ones has 16 bits.
const GROUP_MAX: u64 = (1 << 16) - 8;
/// Blocks that an inode names directly.
pub(super) const DIRECT_BLOCKS: u64 = 12;

/// The numbers that shape a volume.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) block_size: u64,
    pub(super) blocks: u64,
    pub(super) first_data_block: u64,
    pub(super) blocks_per_group: u64,
    /// How many blocks are taken together, as a power of two.
    pub(super) log_cluster: u32,
    pub(super) groups: u64,
    pub(super) inode_size: u64,
    pub(super) inodes_per_group: u64,
    pub(super) table_blocks: u64,
    pub(super) desc_size: u64,
    /// Blocks of all descriptors.
    pub(super) desc_blocks: u64,
    pub(super) reserved_desc_blocks: u64,
    pub(super) reserved_blocks: u64,
    pub(super) lost_found_blocks: u64,
    /// Groups whose structures lie together: 1 without `flex_bg`.
    pub(super) groups_per_flex: u64,
    pub(super) features: MkfsFeatures,
    /// For whom usage is counted.
    pub(super) quotas: [bool; 3],
    pub(super) revision: u32,
}

/// A request that the format cannot satisfy.
fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Unsupported(why.into()))
}

/// Whether `n` is a power of `base`.
fn is_power_of(mut n: u64, base: u64) -> bool {
    while n > 1 && n.is_multiple_of(base) {
        n /= base;
    }
    n == 1
}

/// Whether group `group` holds copies of the superblock and the descriptors.
fn has_super(group: u64, sparse: bool) -> bool {
    !sparse || group <= 1 || [3, 5, 7].iter().any(|&base| is_power_of(group, base))
}

/// The block size that `mke2fs` would choose for a device of `bytes`.
fn default_block_size(bytes: u64) -> u64 {
    if bytes < 512 << 20 { 1024 } else { 4096 }
}

/// Bytes per inode that `mke2fs` would choose for a device of `bytes`.
fn default_ratio(bytes: u64) -> u64 {
    match bytes >> 20 {
        0..3 => 8192,
        3..512 => 4096,
        512..0x40_0000 => 16_384,
        0x40_0000..0x100_0000 => 32_768,
        _ => 65_536,
    }
}

impl Plan {
    /// Plans a volume on a device of `device_bytes`.
    pub(super) fn new(options: &MkfsOptions, device_bytes: u64) -> Result<Self> {
        let bytes = match (options.blocks, options.block_size) {
            (Some(blocks), Some(size)) => blocks.saturating_mul(u64::from(size)),
            _ => device_bytes,
        };
        let block_size = options.block_size.map_or_else(|| default_block_size(bytes), u64::from);
        if !block_size.is_power_of_two() || !BLOCK_SIZES.contains(&block_size) {
            let (least, most) = (BLOCK_SIZES.start(), BLOCK_SIZES.end());
            return refuse(format!("block size {block_size}; a power of two from {least} to {most}"));
        }
        let blocks = options.blocks.unwrap_or(device_bytes / block_size);
        if blocks > device_bytes / block_size {
            return refuse(format!("{blocks} blocks on a device of {}", device_bytes / block_size));
        }
        let (features, inode_size) = Self::features(options, block_size)?;
        if blocks > u64::from(u32::MAX) && !(features.bit64 && features.extent) {
            return refuse(format!(
                "{blocks} blocks without features 64bit and extent, which count them with 32 bits"
            ));
        }
        if blocks > BLOCKS_MAX {
            return refuse(format!("{blocks} blocks: at most {BLOCKS_MAX} have numbers"));
        }
        let log_cluster = Self::log_cluster(options, &features, block_size)?;
        let mut plan = Self {
            block_size,
            // Whole clusters.
            blocks: blocks >> log_cluster << log_cluster,
            first_data_block: u64::from(block_size == 1024 && log_cluster == 0),
            blocks_per_group: (block_size * 8).min(GROUP_MAX) << log_cluster,
            log_cluster,
            groups: 0,
            inode_size,
            inodes_per_group: 0,
            table_blocks: 0,
            desc_size: if features.bit64 { 64 } else { 32 },
            desc_blocks: 0,
            reserved_desc_blocks: 0,
            reserved_blocks: 0,
            lost_found_blocks: 0,
            groups_per_flex: Self::groups_per_flex(options, &features)?,
            features,
            quotas: Self::quotas(options, &features)?,
            revision: options.revision,
        };
        // As mke2fs: no more inodes than clusters, unless somebody wants so.
        let default = || default_ratio(blocks * block_size).max(block_size << log_cluster);
        let ratio = options.bytes_per_inode.unwrap_or_else(default);
        if ratio < 1024 {
            return refuse(format!("{ratio} bytes per inode; at least 1024"));
        }
        match options.inodes {
            Some(inodes) => plan.fit(u64::from(inodes), true)?,
            None => plan.fit(blocks * block_size / ratio, false)?,
        }
        plan.reserved_blocks = plan.blocks * u64::from(options.reserved_percent.min(50)) / 100;
        Ok(plan)
    }

    /// The features and inode size, checked against each other.
    fn features(options: &MkfsOptions, block_size: u64) -> Result<(MkfsFeatures, u64)> {
        if options.label.len() > 16 {
            return refuse("a label of more than 16 bytes");
        }
        if options.reserved_percent > 50 {
            return refuse(format!("{}% reserved blocks; at most 50", options.reserved_percent));
        }
        let default = if options.revision == 0 { 128 } else { 256 };
        let inode_size = u64::from(options.inode_size.unwrap_or(default));
        match options.revision {
            0 if inode_size != 128 => return refuse("revision 0 with inodes of other than 128 bytes"),
            0 => return Ok((MkfsFeatures::NONE, 128)),
            1 => {}
            other => return refuse(format!("revision {other}; 0 and 1 exist")),
        }
        if !inode_size.is_power_of_two() || inode_size < 128 || inode_size > block_size {
            return refuse(format!("inodes of {inode_size} bytes; a power of two from 128 to {block_size}"));
        }
        let mut features = options.features;
        features.has_journal |= options.journal != MkfsJournal::None;
        Ok((features.settled(inode_size)?, inode_size))
    }

    /// How many blocks a cluster has, as a power of two.
    fn log_cluster(options: &MkfsOptions, features: &MkfsFeatures, block_size: u64) -> Result<u32> {
        let [usual, most] = LOG_CLUSTER;
        match options.cluster_size.map(u64::from) {
            Some(_) if !features.bigalloc => refuse("a size of clusters without feature bigalloc"),
            Some(size) if size.is_power_of_two() && (block_size..=block_size << most).contains(&size) => {
                Ok((size / block_size).ilog2())
            }
            Some(size) => {
                let most = block_size << most;
                refuse(format!("clusters of {size} bytes; a power of two from {block_size} to {most}"))
            }
            None => Ok(if features.bigalloc { usual } else { 0 }),
        }
    }

    /// For whom usage is counted.
    fn quotas(options: &MkfsOptions, features: &MkfsFeatures) -> Result<[bool; 3]> {
        match (features.quota, options.quota_types) {
            (false, Some(_)) => refuse("types of quotas without feature quota"),
            (false, None) => Ok([false; 3]),
            (true, None) => Ok([true, true, features.project]),
            (true, Some([_, _, true])) if !features.project => {
                refuse("quotas of projects without feature project")
            }
            (true, Some(types)) => Ok(types),
        }
    }

    fn groups_per_flex(options: &MkfsOptions, features: &MkfsFeatures) -> Result<u64> {
        match options.groups_per_flex.map(u64::from) {
            _ if !features.flex_bg && options.groups_per_flex.is_some() => {
                refuse("groups that lie together without feature flex_bg")
            }
            Some(groups) if !groups.is_power_of_two() || groups > GROUPS_PER_FLEX_MAX => {
                refuse(format!("{groups} groups together; a power of two up to {GROUPS_PER_FLEX_MAX}"))
            }
            Some(groups) => Ok(groups),
            None => Ok(if features.flex_bg { GROUPS_PER_FLEX } else { 1 }),
        }
    }

    /// Finds the numbers of groups and inodes, dropping a last group that is too small for its metadata.
    /// Unless the number of inodes is `exact`, there are fewer where so many are impossible.
    fn fit(&mut self, wanted_inodes: u64, exact: bool) -> Result<()> {
        loop {
            if self.blocks <= self.first_data_block {
                return refuse(format!("a volume of {} blocks", self.blocks));
            }
            self.groups = (self.blocks - self.first_data_block).div_ceil(self.blocks_per_group);
            self.desc_blocks = (self.groups * self.desc_size).div_ceil(self.block_size);
            self.reserved_desc_blocks = self.reserved_descs();
            if self.desc_blocks + self.reserved_desc_blocks > self.blocks_per_group / 4 * 3
                && self.features.bit64
            {
                // Behind each copy they would leave little of a group. So does mke2fs.
                (self.features.meta_bg, self.reserved_desc_blocks) = (true, 0);
            }
            self.fit_inodes(wanted_inodes, exact)?;
            let last = self.groups - 1;
            let room = self.group_len(last);
            let needed = self.meta_len(last);
            if last > 0 && room < needed + LAST_GROUP_MIN {
                self.blocks -= room;
                continue;
            }
            break;
        }
        let is_too_full = |group| self.meta_len(group) >= self.group_len(group);
        // Where tables may lie in other groups, who lays them out finds out.
        if !self.features.flex_bg && (0..self.groups.min(2)).any(is_too_full) {
            return refuse(format!("{} blocks, too few for the metadata of so many inodes", self.blocks));
        }
        let free = self.free_without_files();
        // The orphan file's map may take a block as well.
        let orphans = if self.features.orphan_file { self.orphan_blocks() + 1 } else { 0 };
        let kinds = to_u64(self.quotas.iter().filter(|&&counted| counted).count());
        let quotas = kinds * (QUOTA_BLOCKS_MAX * 1024).div_ceil(self.block_size);
        let fixed = 1 + u64::from(self.features.resize_inode) + orphans + quotas;
        if free <= fixed {
            return refuse(format!("a volume of {} blocks is too small", self.blocks));
        }
        let wanted = (LOST_FOUND_BYTES / self.block_size).clamp(1, DIRECT_BLOCKS);
        // mke2fs makes one without blocks where clusters make groups so large that there are none to reserve.
        self.features.resize_inode &= self.reserved_desc_blocks > 0 || self.log_cluster > 0;
        self.lost_found_blocks = wanted.min((free - fixed).div_ceil(4));
        Ok(())
    }

    /// Descriptor blocks to reserve so that the volume can grow by a factor of 1024.
    fn reserved_descs(&self) -> u64 {
        // The list of them has pointers of 32 bits.
        if !self.features.resize_inode || self.features.meta_bg || self.blocks > u64::from(u32::MAX) {
            return 0;
        }
        let target = (self.blocks * 1024).min(u64::from(u32::MAX));
        let groups = (target - self.first_data_block).div_ceil(self.blocks_per_group);
        let wanted = (groups * self.desc_size).div_ceil(self.block_size);
        wanted.saturating_sub(self.desc_blocks).min(self.block_size / 4)
    }

    fn fit_inodes(&mut self, wanted: u64, exact: bool) -> Result<()> {
        let per_block = self.block_size / self.inode_size;
        let step = per_block.max(8);
        // Bounds: the reserved inodes and lost+found must exist; a group's bitmap is one block; and all
        // inodes together are counted with 32 bits.
        let total_max = u64::from(u32::MAX) / self.groups / step * step;
        let max = (self.block_size * 8).min(65_536 - per_block) / step * step;
        let per_group = wanted.max(self.used_inodes() + 1).div_ceil(self.groups);
        if per_group > max && exact {
            return refuse(format!("{wanted} inodes in {} groups; at most {max} in each", self.groups));
        }
        self.inodes_per_group = per_group.next_multiple_of(step).min(max).min(total_max);
        self.table_blocks = self.inodes_per_group * self.inode_size / self.block_size;
        Ok(())
    }

    /// The two groups with copies that there are with `sparse_super2`; 0 for one that there is not.
    pub(super) fn two_backups(&self) -> [u64; 2] {
        let last = self.groups - 1;
        [last.min(1), if last > 1 { last } else { 0 }]
    }

    /// Whether `group` holds copies of the superblock and, but with `meta_bg`, the descriptors.
    pub(super) fn has_super(&self, group: u64) -> bool {
        if self.features.sparse_super2 {
            return group == 0 || self.two_backups().contains(&group);
        }
        has_super(group, self.features.sparse_super)
    }

    /// Descriptors in a block.
    pub(super) fn descs_per_block(&self) -> u64 {
        self.block_size / self.desc_size
    }

    /// The descriptor blocks that `group` holds: the first one's number and how many.
    pub(super) fn descs_in(&self, group: u64) -> (u64, u64) {
        if !self.features.meta_bg {
            return (0, if self.has_super(group) { self.desc_blocks } else { 0 });
        }
        let (block, at) = (group / self.descs_per_block(), group % self.descs_per_block());
        (block, u64::from(at < 2 || at == self.descs_per_block() - 1))
    }

    /// The first block of `group`.
    pub(super) fn group_start(&self, group: u64) -> u64 {
        self.first_data_block + group * self.blocks_per_group
    }

    /// Blocks of `group`; the last may have fewer than the others.
    pub(super) fn group_len(&self, group: u64) -> u64 {
        (self.blocks - self.group_start(group)).min(self.blocks_per_group)
    }

    /// The block of the superblock.
    pub(super) fn super_block(&self) -> u64 {
        u64::from(self.block_size == 1024)
    }

    /// Where `group` has its copies, if it has any: in the first a boot block may come before them.
    pub(super) fn head(&self, group: u64) -> u64 {
        if group == 0 { self.super_block() } else { self.group_start(group) }
    }

    /// Blocks of `group` before everything else: copies, and what is reserved for more descriptors.
    pub(super) fn overhead(&self, group: u64) -> u64 {
        let reserved = if self.has_super(group) { 1 + self.reserved_desc_blocks } else { 0 };
        self.head(group) - self.group_start(group) + reserved + self.descs_in(group).1
    }

    /// Blocks of a cluster.
    pub(super) fn cluster(&self) -> u64 {
        1 << self.log_cluster
    }

    /// Whole clusters in which blocks `from..to` are, as blocks.
    pub(super) fn whole(&self, (from, to): (u64, u64)) -> (u64, u64) {
        if self.log_cluster == 0 {
            return (from, to);
        }
        (from >> self.log_cluster << self.log_cluster, to.next_multiple_of(self.cluster()))
    }

    /// Blocks of metadata that belong to `group`, wherever they lie.
    fn meta_len(&self, group: u64) -> u64 {
        self.overhead(group) + 2 + self.table_blocks
    }

    /// Blocks that no group's metadata takes.
    pub(super) fn free_without_files(&self) -> u64 {
        let metadata: u64 = (0..self.groups).map(|group| self.meta_len(group)).sum();
        (self.blocks - self.first_data_block).saturating_sub(metadata)
    }

    /// Blocks of the orphan file, as mke2fs has it; 0 if there is none.
    pub(super) fn orphan_blocks(&self) -> u64 {
        let [least, most] = ORPHAN_BLOCKS;
        if self.features.orphan_file { (self.blocks / ORPHAN_RATIO).clamp(least, most) } else { 0 }
    }

    /// How many of the first inodes are in use.
    pub(super) fn used_inodes(&self) -> u64 {
        u64::from(self.project_quota_ino()) + u64::from(self.features.orphan_file)
    }

    /// The inode of the projects' quotas, or the last one before it.
    fn project_quota_ino(&self) -> u32 {
        FIRST_INO + u32::from(self.quotas[2])
    }

    /// The inode of the orphan file, where there is one.
    pub(super) fn orphan_ino(&self) -> u32 {
        self.project_quota_ino() + 1
    }

    /// The inodes of quotas, 0 for those that there are not.
    pub(super) fn quota_inodes(&self) -> [u32; 3] {
        let inodes = [USER_QUOTA_INO, GROUP_QUOTA_INO, self.project_quota_ino()];
        std::array::from_fn(|kind| if self.quotas[kind] { inodes[kind] } else { 0 })
    }

    /// All inodes.
    pub(super) fn inodes(&self) -> u64 {
        self.groups * self.inodes_per_group
    }
}
