//! Where the fields are.

use super::{REVISION_DYNAMIC, SUPERBLOCK_SIZE};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::field::{Field, fields};
use crate::ext2::num::{high32, low32};

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
    /// [`MAGIC`](super::MAGIC).
    S_MAGIC: u16 @ 0x38;
    /// [`STATE_VALID`](super::STATE_VALID) and the others.
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
