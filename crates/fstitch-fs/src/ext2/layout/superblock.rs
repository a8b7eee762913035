//! The superblock: the volume's shape, features, state and summary counters.
//!
//! **Layout.** 1024 bytes at byte 1024 of the volume, whatever the block size, so that a boot sector fits
//! before it; copies (for `e2fsck`) at the start of some groups. Our own offsets are checked below.

use fstitch_core::{Error, Le, Result, Structure};

use super::checksum::{CHECKSUM_CRC32C, Sums, is_superblock_right, seal_superblock};
use super::feature::{Features, compat, incompat, ro_compat};
use super::field::{Field, fields};
use super::group::DESCRIPTOR_SIZE;
use super::quota::QuotaKind;
use crate::ext2::num::{high32, idx, low32};

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

fields! {
    /// Inodes.
    S_INODES_COUNT: u32 @ 0x00;
    /// Blocks.
    S_BLOCKS_COUNT: u32 @ 0x04;
    /// Blocks reserved for the privileged user.
    S_R_BLOCKS_COUNT: u32 @ 0x08;
    /// Free blocks (summary).
    S_FREE_BLOCKS_COUNT: u32 @ 0x0c;
    /// Free inodes (summary).
    S_FREE_INODES_COUNT: u32 @ 0x10;
    /// The first block of the first group: 1 with 1 KiB blocks that are clusters of their own, else 0.
    S_FIRST_DATA_BLOCK: u32 @ 0x14;
    /// Block size as 1024 shifted left by this.
    S_LOG_BLOCK_SIZE: u32 @ 0x18;
    /// The size of a cluster, the same way: once that of a fragment, which was never other than a block's.
    S_LOG_FRAG_SIZE: u32 @ 0x1c;
    /// Blocks per group.
    S_BLOCKS_PER_GROUP: u32 @ 0x20;
    /// Clusters per group.
    S_FRAGS_PER_GROUP: u32 @ 0x24;
    /// Inodes per group.
    S_INODES_PER_GROUP: u32 @ 0x28;
    /// Last mount, seconds since the epoch.
    S_MTIME: u32 @ 0x2c;
    /// Last write.
    S_WTIME: u32 @ 0x30;
    /// Mounts since the last check.
    S_MNT_COUNT: u16 @ 0x34;
    /// Mounts after which a check is due; 0xffff for never.
    S_MAX_MNT_COUNT: u16 @ 0x36;
    /// [`MAGIC`].
    S_MAGIC: u16 @ 0x38;
    /// [`STATE_VALID`] and the others.
    S_STATE: u16 @ 0x3a;
    /// What to do on errors: 1 continue, 2 read-only, 3 panic.
    S_ERRORS: u16 @ 0x3c;
    /// Minor revision.
    S_MINOR_REV_LEVEL: u16 @ 0x3e;
    /// Last check.
    S_LASTCHECK: u32 @ 0x40;
    /// Seconds after which a check is due.
    S_CHECKINTERVAL: u32 @ 0x44;
    /// Who made the volume: 0 is Linux.
    S_CREATOR_OS: u32 @ 0x48;
    /// Revision.
    S_REV_LEVEL: u32 @ 0x4c;
    /// User who may use reserved blocks.
    S_DEF_RESUID: u16 @ 0x50;
    /// Group that may.
    S_DEF_RESGID: u16 @ 0x52;
    /// First inode for ordinary files.
    S_FIRST_INO: u32 @ 0x54;
    /// Bytes of an inode.
    S_INODE_SIZE: u16 @ 0x58;
    /// The group that holds this copy.
    S_BLOCK_GROUP_NR: u16 @ 0x5a;
    /// Compatible features.
    S_FEATURE_COMPAT: u32 @ 0x5c;
    /// Incompatible features.
    S_FEATURE_INCOMPAT: u32 @ 0x60;
    /// Read-only compatible features.
    S_FEATURE_RO_COMPAT: u32 @ 0x64;
    /// Descriptor blocks reserved for growing.
    S_RESERVED_GDT_BLOCKS: u16 @ 0xce;
    /// The journal's inode.
    S_JOURNAL_INUM: u32 @ 0xe0;
    /// The journal's device.
    S_JOURNAL_DEV: u32 @ 0xe4;
    /// Head of the list of unlinked inodes (ext3).
    S_LAST_ORPHAN: u32 @ 0xe8;
    /// Hash function of directory indexes.
    S_DEF_HASH_VERSION: u8 @ 0xfc;
    /// Whether the journal's pointers are copied here.
    S_JNL_BACKUP_TYPE: u8 @ 0xfd;
    /// Default mount options.
    S_DEFAULT_MOUNT_OPTS: u32 @ 0x100;
    /// Bytes of a group descriptor, with the feature `64bit`.
    S_DESC_SIZE: u16 @ 0xfe;
    /// The first group of descriptors that lies by the rules of `meta_bg`.
    S_FIRST_META_BG: u32 @ 0x104;
    /// When the volume was made.
    S_MKFS_TIME: u32 @ 0x108;
    /// Blocks, high half.
    S_BLOCKS_COUNT_HI: u32 @ 0x150;
    /// Reserved blocks, high half.
    S_R_BLOCKS_COUNT_HI: u32 @ 0x154;
    /// Free blocks, high half.
    S_FREE_BLOCKS_COUNT_HI: u32 @ 0x158;
    /// Bytes that all inodes have beyond the first 128.
    S_MIN_EXTRA_ISIZE: u16 @ 0x15c;
    /// Bytes that new inodes should have.
    S_WANT_EXTRA_ISIZE: u16 @ 0x15e;
    /// 1: directory hashes with signed characters, 2: unsigned.
    S_FLAGS: u32 @ 0x160;
    /// Seconds between two words that the volume is in use.
    S_MMP_INTERVAL: u16 @ 0x166;
    /// The block that holds these.
    S_MMP_BLOCK: u64 @ 0x168;
    /// How many groups have their bitmaps and tables together, as a power of two.
    S_LOG_GROUPS_PER_FLEX: u8 @ 0x174;
    /// How metadata are summed: 1 for CRC-32C.
    S_CHECKSUM_TYPE: u8 @ 0x175;
    /// What was written in all of the volume's life, in KiB.
    S_KBYTES_WRITTEN: u64 @ 0x178;
    /// The inode of the users' quotas.
    S_USR_QUOTA_INUM: u32 @ 0x240;
    /// The inode of the groups' quotas.
    S_GRP_QUOTA_INUM: u32 @ 0x244;
    /// Blocks that never hold files, if somebody has counted them.
    S_OVERHEAD_BLOCKS: u32 @ 0x248;
    /// The inode of the projects' quotas.
    S_PRJ_QUOTA_INUM: u32 @ 0x26c;
    /// The seed of all sums, with the feature `metadata_csum_seed`.
    S_CHECKSUM_SEED: u32 @ 0x270;
    /// The inode of the orphan file.
    S_ORPHAN_FILE_INUM: u32 @ 0x280;
    /// Ours, in bytes that the format reserves: a mount with soft updates is, or was, under way (`leftovers`).
    S_SESSION_MAGIC: u32 @ 0x3e8;
    /// Since when inodes may lack names, seconds since the epoch.
    S_SESSION_SINCE: u32 @ 0x3ec;
    /// `s_mtime` of that mount.
    S_SESSION_MTIME: u32 @ 0x3f0;
    /// `s_mnt_count` of that mount.
    S_SESSION_MOUNTS: u16 @ 0x3f4;
    /// The superblock's own sum.
    S_CHECKSUM: u32 @ 0x3fc;
}

/// A count of blocks in two halves, of which the high one means something with the feature `64bit` only.
#[derive(Clone, Copy, Debug)]
pub struct BlockCount {
    low: Field<u32>,
    high: Field<u32>,
}

/// Blocks.
pub const BLOCKS: BlockCount = BlockCount { low: S_BLOCKS_COUNT, high: S_BLOCKS_COUNT_HI };
/// Blocks reserved for the privileged user.
pub const RESERVED_BLOCKS: BlockCount = BlockCount { low: S_R_BLOCKS_COUNT, high: S_R_BLOCKS_COUNT_HI };
/// Free blocks (summary).
pub const FREE_BLOCKS: BlockCount = BlockCount { low: S_FREE_BLOCKS_COUNT, high: S_FREE_BLOCKS_COUNT_HI };

impl BlockCount {
    /// The fields with its halves.
    #[must_use]
    pub const fn halves(self) -> (Field<u32>, Field<u32>) {
        (self.low, self.high)
    }

    /// The count in a superblock.
    #[must_use]
    pub fn get(self, raw: &[u8]) -> u64 {
        let high = if is_large(raw) { u64::from(self.high.get(raw)) << 32 } else { 0 };
        u64::from(self.low.get(raw)) | high
    }

    /// Puts it into a superblock whose features say how many bits it has: the most that these can say, if it is more.
    pub fn put(self, raw: &mut [u8], count: u64) {
        if is_large(raw) {
            self.low.put(raw, low32(count));
            self.high.put(raw, high32(count));
        } else {
            self.low.put(raw, low32(count.min(u64::from(u32::MAX))));
        }
    }
}

/// Whether a superblock has the feature `64bit`.
fn is_large(raw: &[u8]) -> bool {
    S_REV_LEVEL.get(raw) >= REVISION_DYNAMIC && S_FEATURE_INCOMPAT.get(raw) & incompat::BIT64 != 0
}

/// The volume's identifier: 16 bytes from here.
pub const S_UUID: usize = 0x68;
/// The volume's name: 16 bytes from here.
pub const S_VOLUME_NAME: usize = 0x78;
/// Where it was mounted last: 64 bytes from here.
pub const S_LAST_MOUNTED: usize = 0x88;
/// The identifier of the external journal: 16 bytes from here.
pub const S_JOURNAL_UUID: usize = 0xd0;
/// The two groups with copies of the superblock, with the feature `sparse_super2`: two words from here.
pub const S_BACKUP_BGS: usize = 0x24c;
/// Seed of the directory hash: 16 bytes from here.
pub const S_HASH_SEED: usize = 0xec;

const _: () = {
    assert!(S_FEATURE_RO_COMPAT.end() == S_UUID);
    assert!(S_UUID + 16 == S_VOLUME_NAME && S_VOLUME_NAME + 16 == S_LAST_MOUNTED);
    assert!(S_RESERVED_GDT_BLOCKS.end() == S_JOURNAL_UUID && S_JOURNAL_UUID + 16 == S_JOURNAL_INUM.offset());
    assert!(S_LAST_ORPHAN.end() == S_HASH_SEED && S_HASH_SEED + 16 == S_DEF_HASH_VERSION.offset());
    assert!(S_FLAGS.end() == 0x164 && S_FLAGS.end() < S_ORPHAN_FILE_INUM.offset());
    assert!(S_ORPHAN_FILE_INUM.end() < S_SESSION_MAGIC.offset());
    assert!(S_SESSION_MOUNTS.end() <= S_CHECKSUM.offset() && S_CHECKSUM.end() == SUPERBLOCK_SIZE);
    assert!(S_OVERHEAD_BLOCKS.end() == S_BACKUP_BGS && S_CHECKSUM_SEED.end() < S_ORPHAN_FILE_INUM.offset());
};

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

const fn is_power(mut number: u32, base: u32) -> bool {
    while number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
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
