//! The superblock: the volume's shape, features, state and summary counters.
//!
//! **Layout.** 1024 bytes at byte 1024 of the volume, whatever the block size, so that a boot sector fits
//! before it; copies (for `e2fsck`) at the start of some groups. Our own offsets are checked below.

use fstitch_core::{Error, Le, Result, Structure};

use super::checksum::{CHECKSUM_CRC32C, Sums, is_superblock_right, seal_superblock};
use super::feature::{Features, compat, incompat, ro_compat};
use super::group::DESCRIPTOR_SIZE;
use super::quota::QuotaKind;
use crate::ext2::num::low32;

mod fields;
mod geometry;

pub use fields::*;

/// Where the superblock starts, in bytes from the volume's start.
pub const SUPERBLOCK_OFFSET: usize = 1024;
/// Bytes of the superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// What `s_magic` holds.
pub const MAGIC: u16 = 0xef53;
/// `s_state`: cleanly unmounted.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were seen.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: orphans are being recovered.
pub const STATE_ORPHAN: u16 = 4;
/// A cluster has at most so many blocks, as a power of two: the blocks of a group are counted with 32 bits.
const LOG_CLUSTER_MAX: u32 = 12;
/// Revision 0: fixed inode size, no features.
pub const REVISION_OLD: u32 = 0;
/// Revision 1: features, inode sizes.
pub const REVISION_DYNAMIC: u32 = 1;
/// Blocks that extents can name: 48 bits.
pub const BLOCKS_MAX: u64 = 1 << 48;
/// Groups whose inodes, eight at least in each, can have 32-bit numbers.
const GROUPS_MAX: u64 = 1 << 29;
/// The first inode for ordinary files in revision 0.
pub const OLD_FIRST_INO: u32 = 11;
/// The root directory's inode.
pub const ROOT_INO: u32 = 2;
/// The inode of the users' quotas.
pub const USER_QUOTA_INO: u32 = 3;
/// The inode of the groups' quotas.
pub const GROUP_QUOTA_INO: u32 = 4;
/// The inode that holds blocks for growing the descriptor table.
pub const RESIZE_INO: u32 = 7;
/// The journal's inode.
pub const JOURNAL_INO: u32 = 8;

/// A validated superblock: every derived number below is free of overflow and inside the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Inodes.
    pub inodes_count: u32,
    /// Blocks.
    pub blocks_count: u64,
    /// Blocks reserved for privileged callers.
    pub reserved_blocks: u64,
    /// Free blocks (summary).
    pub free_blocks: u64,
    /// Free inodes (summary).
    pub free_inodes: u32,
    /// Bytes per block: a power of two from 1024 to 65536.
    pub block_size: u32,
    /// Blocks per group.
    pub blocks_per_group: u32,
    /// How many blocks are taken together, as a power of two: 0 without the feature `bigalloc`.
    pub log_cluster: u8,
    /// Inodes per group.
    pub inodes_per_group: u32,
    /// Last mount, seconds since the epoch.
    pub mount_time: u32,
    /// Last write.
    pub write_time: u32,
    /// Mounts since the last check.
    pub mount_count: u16,
    /// Mounts after which a check is due; 0xffff for never.
    pub mount_count_max: u16,
    /// [`STATE_VALID`] and the others.
    pub state: u16,
    /// What to do on errors.
    pub errors: u16,
    /// Last check.
    pub check_time: u32,
    /// Seconds after which a check is due.
    pub check_interval: u32,
    /// Who made the volume.
    pub creator_os: u32,
    /// [`REVISION_OLD`] or [`REVISION_DYNAMIC`].
    pub revision: u32,
    /// User who may use reserved blocks.
    pub reserved_uid: u16,
    /// Group that may.
    pub reserved_gid: u16,
    /// First inode for ordinary files.
    pub first_ino: u32,
    /// Bytes of an inode.
    pub inode_size: u16,
    /// Features.
    pub features: Features,
    /// The volume's identifier.
    pub uuid: [u8; 16],
    /// The volume's name, padded with NUL.
    pub name: [u8; 16],
    /// Descriptor blocks reserved for growing, behind the descriptors in use.
    pub reserved_gdt_blocks: u16,
    /// Seed of the directory hash.
    pub hash_seed: [u8; 16],
    /// Hash function of directory indexes.
    pub hash_version: u8,
    /// Default mount options.
    pub default_mount_opts: u32,
    /// When the volume was made.
    pub mkfs_time: u32,
    /// Bytes that all inodes have beyond the first 128.
    pub extra_isize_min: u16,
    /// Bytes that new inodes should have.
    pub extra_isize_want: u16,
    /// Signedness of characters in directory hashes.
    pub flags: u32,
    /// The inode of the orphan file, 0 without the feature.
    pub orphan_file: u32,
    /// Bytes of a group descriptor: 32, or a power of two from 64 on with the feature `64bit`.
    pub desc_size: u16,
    /// The first block of the descriptor table that lies by the rules of `meta_bg`; all before it lie behind each other.
    pub first_meta_bg: u32,
    /// How many groups have their bitmaps and tables together, as a power of two; 0 without `flex_bg`.
    pub log_groups_per_flex: u8,
    /// The two groups with copies of the superblock, with the feature `sparse_super2` (0 for none).
    pub backup_groups: [u32; 2],
    /// The inodes of the quotas of users, groups and projects, 0 for those that there are not.
    pub quota_inodes: [u32; 3],
    /// The block that tells whether the volume is in use elsewhere, 0 without the feature `mmp`.
    pub mmp_block: u64,
    /// How metadata are summed.
    pub sums: Sums,
}

impl Superblock {
    /// Reads and checks the superblock in `raw` (1024 bytes) of a device of `device_bytes`.
    ///
    /// # Errors
    /// `Unsupported` for incompatible features and block sizes; `Corrupt` for impossible values and a wrong sum.
    pub fn parse(raw: &[u8], device_bytes: u64) -> Result<Self> {
        let parsed = Self::parse_unsummed(raw, device_bytes)?;
        parsed.check_sum(raw)?;
        Ok(parsed)
    }

    /// Fails if the superblock's own sum is wrong. Apart from the rest, for who looks at a superblock with a flag changed.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn check_sum(&self, raw: &[u8]) -> Result<()> {
        if is_superblock_right(raw) {
            return Ok(());
        }
        Err(damaged(format!("checksum {:#010x}", S_CHECKSUM.get(raw))))
    }

    /// Reads and checks a superblock whose own sum is looked at elsewhere.
    ///
    /// # Errors
    /// As [`Superblock::parse`].
    pub fn parse_unsummed(raw: &[u8], device_bytes: u64) -> Result<Self> {
        if S_MAGIC.get(raw) != MAGIC {
            let found = S_MAGIC.get(raw);
            return Err(damaged(format!("magic {found:#06x}, expected {MAGIC:#06x}: not an ext2 volume")));
        }
        let revision = S_REV_LEVEL.get(raw);
        if revision > REVISION_DYNAMIC {
            return Err(Error::Unsupported(format!("ext2 revision {revision}")));
        }
        let dynamic = revision == REVISION_DYNAMIC;
        let words = [S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT];
        if !dynamic && words.iter().any(|word| word.get(raw) != 0) {
            // Without its features the volume would be read as another one.
            return Err(damaged("it has features, but its revision knows none".into()));
        }
        let parsed = Self::decode(raw, dynamic, parse_block_size(raw)?);
        parsed.features.check_incompat()?;
        parsed.check_later(raw)?;
        parsed.check_shape(raw, device_bytes)?;
        Ok(parsed)
    }

    fn decode(raw: &[u8], dynamic: bool, block_size: u32) -> Self {
        let features = Features {
            compat: S_FEATURE_COMPAT.get(raw),
            incompat: S_FEATURE_INCOMPAT.get(raw),
            ro_compat: S_FEATURE_RO_COMPAT.get(raw),
        };
        Self {
            inodes_count: S_INODES_COUNT.get(raw),
            blocks_count: BLOCKS.get(raw),
            reserved_blocks: RESERVED_BLOCKS.get(raw),
            free_blocks: FREE_BLOCKS.get(raw),
            free_inodes: S_FREE_INODES_COUNT.get(raw),
            block_size,
            blocks_per_group: S_BLOCKS_PER_GROUP.get(raw),
            log_cluster: if dynamic && features.has_ro_compat(ro_compat::BIGALLOC) {
                u8::try_from(log_cluster(raw).unwrap_or(0)).expect("at most the bits of a byte count")
            } else {
                0
            },
            inodes_per_group: S_INODES_PER_GROUP.get(raw),
            mount_time: S_MTIME.get(raw),
            write_time: S_WTIME.get(raw),
            mount_count: S_MNT_COUNT.get(raw),
            mount_count_max: S_MAX_MNT_COUNT.get(raw),
            state: S_STATE.get(raw),
            errors: S_ERRORS.get(raw),
            check_time: S_LASTCHECK.get(raw),
            check_interval: S_CHECKINTERVAL.get(raw),
            creator_os: S_CREATOR_OS.get(raw),
            revision: S_REV_LEVEL.get(raw),
            reserved_uid: S_DEF_RESUID.get(raw),
            reserved_gid: S_DEF_RESGID.get(raw),
            first_ino: if dynamic { S_FIRST_INO.get(raw) } else { OLD_FIRST_INO },
            inode_size: if dynamic { S_INODE_SIZE.get(raw) } else { 128 },
            features: if dynamic { features } else { Features::default() },
            uuid: array(raw, S_UUID),
            name: array(raw, S_VOLUME_NAME),
            reserved_gdt_blocks: if dynamic { S_RESERVED_GDT_BLOCKS.get(raw) } else { 0 },
            hash_seed: array(raw, S_HASH_SEED),
            hash_version: S_DEF_HASH_VERSION.get(raw),
            default_mount_opts: S_DEFAULT_MOUNT_OPTS.get(raw),
            mkfs_time: S_MKFS_TIME.get(raw),
            extra_isize_min: S_MIN_EXTRA_ISIZE.get(raw),
            extra_isize_want: S_WANT_EXTRA_ISIZE.get(raw),
            flags: S_FLAGS.get(raw),
            desc_size: match S_DESC_SIZE.get(raw) {
                size if dynamic && features.has_incompat(incompat::BIT64) => size,
                _ => u16::try_from(DESCRIPTOR_SIZE).expect("32"),
            },
            first_meta_bg: if dynamic && features.has_incompat(incompat::META_BG) {
                S_FIRST_META_BG.get(raw)
            } else {
                u32::MAX
            },
            log_groups_per_flex: if dynamic && features.has_incompat(incompat::FLEX_BG) {
                S_LOG_GROUPS_PER_FLEX.get(raw)
            } else {
                0
            },
            backup_groups: [Le::u32(raw, S_BACKUP_BGS), Le::u32(raw, S_BACKUP_BGS + 4)],
            quota_inodes: [S_USR_QUOTA_INUM.get(raw), S_GRP_QUOTA_INUM.get(raw), S_PRJ_QUOTA_INUM.get(raw)],
            mmp_block: if dynamic && features.has_incompat(incompat::MMP) { S_MMP_BLOCK.get(raw) } else { 0 },
            sums: if dynamic { Sums::of(raw, &features) } else { Sums::None },
            orphan_file: if dynamic && features.compat & compat::ORPHAN_FILE != 0 {
                S_ORPHAN_FILE_INUM.get(raw)
            } else {
                0
            },
        }
    }

    /// What the features of ext4 allow and we do not know.
    fn check_later(&self, raw: &[u8]) -> Result<()> {
        let features = &self.features;
        if features.has_sums() && S_CHECKSUM_TYPE.get(raw) != CHECKSUM_CRC32C {
            let kind = S_CHECKSUM_TYPE.get(raw);
            return Err(Error::Unsupported(format!("checksums of kind {kind} (feature metadata_csum)")));
        }
        if features.has_ro_compat(ro_compat::BIGALLOC) {
            self.check_clusters(raw)?;
        }
        let size = usize::from(self.desc_size);
        let large = features.has_incompat(incompat::BIT64);
        if size != DESCRIPTOR_SIZE && !(large && size.is_power_of_two() && (64..=1024).contains(&size)) {
            return Err(damaged(format!("descriptors of {size} bytes")));
        }
        if self.log_groups_per_flex > 31 {
            return Err(damaged(format!("2^{} groups in a flexible one", self.log_groups_per_flex)));
        }
        Ok(())
    }

    /// What the superblock says of clusters goes together.
    fn check_clusters(&self, raw: &[u8]) -> Result<()> {
        let (cluster, block) = (S_LOG_FRAG_SIZE.get(raw), S_LOG_BLOCK_SIZE.get(raw));
        if log_cluster(raw).is_none() {
            return Err(damaged(format!("clusters of 2^{cluster} KiB, blocks of 2^{block} KiB")));
        }
        let (count, blocks) = (S_FRAGS_PER_GROUP.get(raw), self.blocks_per_group);
        if u64::from(count) << self.log_cluster != u64::from(blocks) {
            let ratio = self.cluster_blocks();
            return Err(damaged(format!("{count} clusters of {ratio} blocks in a group of {blocks} blocks")));
        }
        Ok(())
    }

    fn check_shape(&self, raw: &[u8], device_bytes: u64) -> Result<()> {
        let bits = self.block_size * 8;
        if !self.inode_size.is_power_of_two()
            || self.inode_size < 128
            || u32::from(self.inode_size) > self.block_size
        {
            return Err(damaged(format!("inode size {}", self.inode_size)));
        }
        let first = u64::from(S_FIRST_DATA_BLOCK.get(raw));
        if first != self.first_data_block() {
            return Err(damaged(format!("first data block {first}, expected {}", self.first_data_block())));
        }
        let per_group = self.blocks_per_group;
        let clusters = self.clusters_per_group();
        if clusters < 8 || clusters > bits || !per_group.is_multiple_of(8 << self.log_cluster) {
            let most = u64::from(bits) << self.log_cluster;
            return Err(damaged(format!(
                "{per_group} blocks per group, expected a multiple of {} up to {most}",
                8_u64 << self.log_cluster
            )));
        }
        let inodes = self.inodes_per_group;
        if inodes < self.inodes_per_block() || inodes > bits {
            return Err(damaged(format!("{inodes} inodes per group, expected at most {bits}")));
        }
        if self.blocks_count <= self.first_data_block() || self.blocks_count > BLOCKS_MAX {
            return Err(damaged(format!("{} blocks", self.blocks_count)));
        }
        let groups = (self.blocks_count - self.first_data_block()).div_ceil(u64::from(per_group));
        if groups > GROUPS_MAX {
            return Err(damaged(format!("{groups} groups")));
        }
        if self.blocks_count > device_bytes / u64::from(self.block_size) {
            return Err(damaged(format!(
                "{} blocks of {} bytes, but the device has only {device_bytes} bytes",
                self.blocks_count, self.block_size
            )));
        }
        let expected = u64::from(self.group_count()) * u64::from(inodes);
        if u64::from(self.inodes_count) != expected {
            return Err(damaged(format!("{} inodes, expected {expected}", self.inodes_count)));
        }
        if self.first_meta_bg != u32::MAX && self.first_meta_bg > self.descriptor_blocks() {
            let (first, blocks) = (self.first_meta_bg, self.descriptor_blocks());
            return Err(damaged(format!("meta groups from {first} on, of {blocks} blocks of descriptors")));
        }
        if self.first_ino < OLD_FIRST_INO || self.first_ino > self.inodes_count {
            return Err(damaged(format!("first ordinary inode {}", self.first_ino)));
        }
        if u64::from(self.group_overhead(0)) + u64::from(self.inode_table_blocks()) + 2
            > u64::from(self.group_blocks(0))
        {
            return Err(damaged("the first group is too small for its own metadata".into()));
        }
        Ok(())
    }

    /// The revision 1 fields are meaningful.
    #[must_use]
    pub const fn is_dynamic(&self) -> bool {
        self.revision >= REVISION_DYNAMIC
    }

    /// Whether inode `ino` is the volume's own, in use though no directory names it: a reserved one other than the
    /// root, the orphan file's, or that of the projects' quotas.
    #[must_use]
    pub const fn is_own_inode(&self, ino: u32) -> bool {
        let hidden = ino == self.orphan_file || ino == self.quota_inodes[2];
        (ino < self.first_ino && ino != ROOT_INO) || (hidden && ino != 0)
    }

    /// Whether inode `ino` can be the quota file of a kind.
    #[must_use]
    pub const fn is_quota_inode(&self, kind: QuotaKind, ino: u32) -> bool {
        match kind {
            QuotaKind::User => ino == USER_QUOTA_INO,
            QuotaKind::Group => ino == GROUP_QUOTA_INO,
            QuotaKind::Project => ino >= self.first_ino && ino <= self.inodes_count,
        }
    }

    /// Whether inode `ino` has somebody's quotas.
    #[must_use]
    pub fn has_quotas_in(&self, ino: u32) -> bool {
        self.features.has_ro_compat(ro_compat::QUOTA) && ino != 0 && self.quota_inodes.contains(&ino)
    }

    /// Whether an inode `ino` can be a file's, the root's among them: what names another number is damaged.
    #[must_use]
    pub const fn is_files_inode(&self, ino: u32) -> bool {
        ino >= ROOT_INO && ino <= self.inodes_count && !self.is_own_inode(ino)
    }

    /// Whether it has a journal.
    #[must_use]
    pub const fn has_journal(&self) -> bool {
        self.features.compat & compat::HAS_JOURNAL != 0
    }

    /// Directory entries carry the kind of the inode.
    #[must_use]
    pub const fn has_filetype(&self) -> bool {
        self.features.incompat & incompat::FILETYPE != 0
    }

    /// Writes the fields into the superblock's 1024 bytes, its own sum included; the ones that we do not model or that only
    /// ext4 has are kept. `group` is the group that holds this copy.
    pub fn encode_into(&self, raw: &mut [u8], group: u32) {
        self.encode_shape(raw);
        S_MTIME.put(raw, self.mount_time);
        S_WTIME.put(raw, self.write_time);
        S_MNT_COUNT.put(raw, self.mount_count);
        S_MAX_MNT_COUNT.put(raw, self.mount_count_max);
        S_MAGIC.put(raw, MAGIC);
        S_STATE.put(raw, self.state);
        S_ERRORS.put(raw, self.errors);
        S_LASTCHECK.put(raw, self.check_time);
        S_CHECKINTERVAL.put(raw, self.check_interval);
        S_CREATOR_OS.put(raw, self.creator_os);
        S_REV_LEVEL.put(raw, self.revision);
        S_DEF_RESUID.put(raw, self.reserved_uid);
        S_DEF_RESGID.put(raw, self.reserved_gid);
        raw[S_UUID..S_UUID + 16].copy_from_slice(&self.uuid);
        raw[S_VOLUME_NAME..S_VOLUME_NAME + 16].copy_from_slice(&self.name);
        S_MKFS_TIME.put(raw, self.mkfs_time);
        if self.is_dynamic() {
            self.encode_dynamic(raw, group);
        }
        // The features say how many bits these have.
        BLOCKS.put(raw, self.blocks_count);
        RESERVED_BLOCKS.put(raw, self.reserved_blocks);
        FREE_BLOCKS.put(raw, self.free_blocks);
        if self.is_dynamic() {
            seal_superblock(raw);
        }
    }

    fn encode_shape(&self, raw: &mut [u8]) {
        let log_size = self.block_size.trailing_zeros() - 10;
        S_INODES_COUNT.put(raw, self.inodes_count);
        S_FREE_INODES_COUNT.put(raw, self.free_inodes);
        S_FIRST_DATA_BLOCK.put(raw, low32(self.first_data_block()));
        S_LOG_BLOCK_SIZE.put(raw, log_size);
        S_LOG_FRAG_SIZE.put(raw, log_size + u32::from(self.log_cluster));
        S_BLOCKS_PER_GROUP.put(raw, self.blocks_per_group);
        S_FRAGS_PER_GROUP.put(raw, self.clusters_per_group());
        S_INODES_PER_GROUP.put(raw, self.inodes_per_group);
    }

    fn encode_dynamic(&self, raw: &mut [u8], group: u32) {
        S_FIRST_INO.put(raw, self.first_ino);
        S_INODE_SIZE.put(raw, self.inode_size);
        // The copy's group is informative only; groups beyond 16 bits have none to tell.
        S_BLOCK_GROUP_NR.put(raw, u16::try_from(group).unwrap_or(u16::MAX));
        S_FEATURE_COMPAT.put(raw, self.features.compat);
        S_FEATURE_INCOMPAT.put(raw, self.features.incompat);
        S_FEATURE_RO_COMPAT.put(raw, self.features.ro_compat);
        S_RESERVED_GDT_BLOCKS.put(raw, self.reserved_gdt_blocks);
        raw[S_HASH_SEED..S_HASH_SEED + 16].copy_from_slice(&self.hash_seed);
        S_DEF_HASH_VERSION.put(raw, self.hash_version);
        S_DEFAULT_MOUNT_OPTS.put(raw, self.default_mount_opts);
        S_MIN_EXTRA_ISIZE.put(raw, self.extra_isize_min);
        S_WANT_EXTRA_ISIZE.put(raw, self.extra_isize_want);
        S_FLAGS.put(raw, self.flags);
    }
}

/// Blocks larger than 4 KiB are beyond what most kernels mount, but the format has them.
fn parse_block_size(raw: &[u8]) -> Result<u32> {
    match S_LOG_BLOCK_SIZE.get(raw) {
        log @ 0..=6 => Ok(1024 << log),
        log => Err(damaged(format!("block size 2^{}", u64::from(log) + 10))),
    }
}

/// How many blocks a cluster has, as a power of two, if that can be.
fn log_cluster(raw: &[u8]) -> Option<u32> {
    let log = S_LOG_FRAG_SIZE.get(raw).checked_sub(S_LOG_BLOCK_SIZE.get(raw))?;
    (log <= LOG_CLUSTER_MAX).then_some(log)
}

fn array(raw: &[u8], at: usize) -> [u8; 16] {
    let mut out = [0; 16];
    out.copy_from_slice(&raw[at..at + 16]);
    out
}

fn damaged(problem: String) -> Error {
    Error::corrupt(Structure::Superblock, None, problem)
}

#[cfg(test)]
pub(in crate::ext2) mod tests;
