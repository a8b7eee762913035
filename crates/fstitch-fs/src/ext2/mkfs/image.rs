//! The bytes of a new volume's structures. Offsets are those of `docs/spec/ext2.md`.

use fstitch_core::{Le, Timestamp};

use super::layout::Places;
use super::options::MkfsOptions;
use super::plan::{FIRST_INO, Plan};
use super::{index, narrow, short};
use crate::ext2::layout::checksum::{
    CHECKSUM_CRC32C, DIRECTORY_TAIL, InodeSums, ORPHAN_MAGIC, ORPHAN_TAIL, Sums, crc, place,
    put_block_bitmap_sum, put_directory_tail, put_inode_bitmap_sum, seal_superblock,
};
use crate::ext2::layout::dirent::rec_len_field;
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::inode::I_FLAGS;
use crate::ext2::layout::superblock::{
    BLOCKS, FREE_BLOCKS, RESERVED_BLOCKS, S_BACKUP_BGS, S_CHECKSUM_SEED, S_CHECKSUM_TYPE, S_DESC_SIZE,
    S_GRP_QUOTA_INUM, S_LOG_GROUPS_PER_FLEX, S_ORPHAN_FILE_INUM, S_PRJ_QUOTA_INUM, S_USR_QUOTA_INUM,
};

/// Bytes of the superblock.
pub(super) const SUPER_SIZE: usize = 1024;
/// Where the superblock is on the device.
pub(super) const SUPER_OFFSET: usize = 1024;
/// Bytes of the fixed part of an inode.
const GOOD_OLD_INODE: usize = 128;
/// Bytes of the known fields after the fixed part.
const EXTRA_SIZE: u16 = 32;
/// The inode marks of a directory entry that names a directory.
const ENTRY_DIRECTORY: u8 = 2;

/// The low 32 bits of a time, which is all that the fixed fields hold.
fn low(time: Timestamp) -> u32 {
    u32::try_from(time.secs.rem_euclid(1 << 32)).expect("reduced modulo 2^32")
}

/// Nanoseconds and the two bits that extend the seconds beyond 2038.
fn extra(time: Timestamp) -> u32 {
    let signed = i64::from(low(time)) - if low(time) >> 31 == 1 { 1 << 32 } else { 0 };
    let epoch = ((time.secs - signed) >> 32) & 3;
    (time.nanos << 2) | u32::try_from(epoch).expect("two bits")
}

/// The superblock; `free` counts free blocks and inodes of the whole volume, `group` holds this copy.
pub(super) fn superblock(plan: &Plan, options: &MkfsOptions, free: (u64, u64), group: u64) -> Vec<u8> {
    let mut raw = vec![0; SUPER_SIZE];
    let size_log = plan.block_size.trailing_zeros() - 10;
    for (at, value) in [
        (0x00, narrow(plan.inodes())),
        (0x10, narrow(free.1)),
        (0x14, narrow(plan.first_data_block)),
        (0x18, size_log),
        (0x1c, size_log + plan.log_cluster),
        (0x20, narrow(plan.blocks_per_group)),
        (0x24, narrow(plan.blocks_per_group >> plan.log_cluster)),
        (0x28, narrow(plan.inodes_per_group)),
        (0x30, low(options.now)),
        (0x40, low(options.now)),
        (0x4c, plan.revision),
        (0x108, low(options.now)),
    ] {
        Le::put_u32(&mut raw, at, value);
    }
    Le::put_u16(&mut raw, 0x36, u16::MAX);
    Le::put_u16(&mut raw, 0x38, 0xef53);
    Le::put_u16(&mut raw, 0x3a, 1);
    Le::put_u16(&mut raw, 0x3c, 1);
    if plan.revision > 0 {
        dynamic_fields(&mut raw, plan, options, group);
        later_fields(&mut raw, plan);
    }
    BLOCKS.put(&mut raw, plan.blocks);
    RESERVED_BLOCKS.put(&mut raw, plan.reserved_blocks);
    FREE_BLOCKS.put(&mut raw, free.0);
    raw[0x68..0x78].copy_from_slice(&options.uuid);
    raw[0x78..0x78 + options.label.len()].copy_from_slice(&options.label);
    if plan.features.metadata_csum_seed {
        // What the UUID gives, as long as it is this one.
        let seed = crc(u32::MAX, &options.uuid);
        S_CHECKSUM_SEED.put(&mut raw, seed);
    }
    seal_superblock(&mut raw);
    raw
}

/// The fields that only revision 1 has.
fn dynamic_fields(raw: &mut [u8], plan: &Plan, options: &MkfsOptions, group: u64) {
    Le::put_u32(raw, 0x54, FIRST_INO);
    Le::put_u16(raw, 0x58, short(plan.inode_size));
    // The field has 16 bits; readers of copies in higher groups do not look at it.
    Le::put_u16(raw, 0x5a, u16::try_from(group & 0xffff).expect("masked"));
    let words = plan.features.words();
    for (at, word) in [(0x5c, words.compat), (0x60, words.incompat), (0x64, words.ro_compat)] {
        Le::put_u32(raw, at, word);
    }
    Le::put_u16(raw, 0xce, short(plan.reserved_desc_blocks));
    raw[0xec..0xfc].copy_from_slice(&options.hash_seed);
    // Half MD4, with names as signed characters: what x86 kernels have always done.
    raw[0xfc] = 1;
    Le::put_u32(raw, 0x160, 1);
    // user_xattr and acl are on without mount options.
    Le::put_u32(raw, 0x100, if plan.features.ext_attr { 0x0c } else { 0 });
    if plan.inode_size > 128 {
        Le::put_u16(raw, 0x15c, EXTRA_SIZE);
        Le::put_u16(raw, 0x15e, EXTRA_SIZE);
    }
    Le::put_u16(raw, 0x164, options.stride);
    Le::put_u32(raw, 0x170, options.stripe_width);
}

/// The fields that only features of ext4 give a meaning.
fn later_fields(raw: &mut [u8], plan: &Plan) {
    if plan.features.bit64 {
        S_DESC_SIZE.put(raw, short(plan.desc_size));
    }
    if plan.features.flex_bg {
        let log = u8::try_from(plan.groups_per_flex.ilog2()).expect("a small power of two");
        S_LOG_GROUPS_PER_FLEX.put(raw, log);
    }
    if plan.features.metadata_csum {
        S_CHECKSUM_TYPE.put(raw, CHECKSUM_CRC32C);
    }
    if plan.features.sparse_super2 {
        for (i, group) in plan.two_backups().into_iter().enumerate() {
            Le::put_u32(raw, S_BACKUP_BGS + 4 * i, narrow(group));
        }
    }
    let fields = [S_USR_QUOTA_INUM, S_GRP_QUOTA_INUM, S_PRJ_QUOTA_INUM];
    for (field, ino) in fields.into_iter().zip(plan.quota_inodes()) {
        field.put(raw, ino);
    }
    if plan.features.orphan_file {
        S_ORPHAN_FILE_INUM.put(raw, plan.orphan_ino());
    }
}

/// What a group's descriptor says of its use.
pub(super) struct GroupUse {
    /// In clusters.
    pub(super) free_blocks: u64,
    pub(super) free_inodes: u64,
    pub(super) directories: u64,
    /// What was left uninitialised, and what was not.
    pub(super) flags: u16,
    /// The sums of its bitmaps, where they were written.
    pub(super) sums: [Option<u32>; 2],
}

/// The descriptor of `group`, written to `raw`, which is all of it.
pub(super) fn descriptor(raw: &mut [u8], sums: Sums, (group, places): (u64, &Places), usage: &GroupUse) {
    let is_summed = sums != Sums::None;
    let descriptor = GroupDescriptor {
        block_bitmap: places.block_bitmap,
        inode_bitmap: places.inode_bitmap,
        inode_table: places.inode_table,
        free_blocks: short(usage.free_blocks),
        free_inodes: short(usage.free_inodes),
        used_dirs: short(usage.directories),
        flags: usage.flags,
        // The first inodes are in use, all others never were.
        itable_unused: short(usage.free_inodes),
    };
    descriptor.encode_into(raw, is_summed);
    let [blocks, inodes] = usage.sums;
    if let Some(sum) = blocks {
        put_block_bitmap_sum(raw, sum);
    }
    if let Some(sum) = inodes {
        put_inode_bitmap_sum(raw, sum);
    }
    sums.seal_descriptor(narrow(group), raw);
}

/// The fields of one of the first inodes.
pub(super) struct NewFile {
    pub(super) mode: u16,
    pub(super) links: u16,
    pub(super) owner: (u32, u32),
    pub(super) size: u64,
    pub(super) sectors: u32,
    /// [`EXTENTS_FL`](crate::ext2::layout::inode::EXTENTS_FL), or nothing.
    pub(super) flags: u32,
    pub(super) pointers: [u32; 15],
}

/// The bytes of an inode.
pub(super) fn inode(plan: &Plan, now: Timestamp, file: &NewFile) -> Vec<u8> {
    let mut raw = vec![0; index(plan.inode_size)];
    let (uid, gid) = file.owner;
    let halves = |id: u32| {
        let low = u16::try_from(id & 0xffff).expect("masked");
        (low, u16::try_from(id >> 16).expect("shifted"))
    };
    Le::put_u16(&mut raw, 0, file.mode);
    Le::put_u16(&mut raw, 2, halves(uid).0);
    Le::put_u32(&mut raw, 4, u32::try_from(file.size & 0xffff_ffff).expect("masked"));
    for at in [8, 12, 16] {
        Le::put_u32(&mut raw, at, low(now));
    }
    Le::put_u16(&mut raw, 24, halves(gid).0);
    Le::put_u16(&mut raw, 26, file.links);
    Le::put_u32(&mut raw, 28, file.sectors);
    I_FLAGS.put(&mut raw, file.flags);
    for (i, &pointer) in file.pointers.iter().enumerate() {
        Le::put_u32(&mut raw, 40 + 4 * i, pointer);
    }
    Le::put_u32(&mut raw, 108, u32::try_from(file.size >> 32).expect("sizes are below 2^64"));
    Le::put_u16(&mut raw, 120, halves(uid).1);
    Le::put_u16(&mut raw, 122, halves(gid).1);
    if raw.len() > GOOD_OLD_INODE {
        Le::put_u16(&mut raw, 128, EXTRA_SIZE);
        for at in [132, 136, 140, 148] {
            Le::put_u32(&mut raw, at, extra(now));
        }
        Le::put_u32(&mut raw, 144, low(now));
    }
    raw
}

/// One entry, spanning `span` bytes of `raw` from `at`.
fn entry(plan: &Plan, raw: &mut [u8], at: usize, span: usize, ino: u32, name: &[u8]) {
    let len = u8::try_from(name.len()).expect("names here are short");
    Le::put_u32(raw, at, ino);
    Le::put_u16(raw, at + 4, rec_len_field(span));
    raw[at + 6] = len;
    raw[at + 7] = if plan.features.filetype && ino != 0 { ENTRY_DIRECTORY } else { 0 };
    raw[at + 8..at + 8 + name.len()].copy_from_slice(name);
}

/// Bytes of a directory block that entries may take: where blocks have sums, an entry without a name holds that.
fn entries_end(plan: &Plan) -> usize {
    index(plan.block_size) - if plan.features.metadata_csum { DIRECTORY_TAIL } else { 0 }
}

/// Ends a directory block with its sum, if it has one.
fn sealed(mut raw: Vec<u8>, sums: InodeSums) -> Vec<u8> {
    if sums.seed().is_some() {
        put_directory_tail(&mut raw);
        if let Some(sum) = sums.directory_leaf(&raw) {
            place(&mut raw, sum);
        }
    }
    raw
}

/// The first block of directory `ino`: itself, its parent, and perhaps one more name.
pub(super) fn directory(
    plan: &Plan,
    sums: Sums,
    (ino, parent): (u32, u32),
    more: Option<(u32, &[u8])>,
) -> Vec<u8> {
    let end = entries_end(plan);
    let mut raw = vec![0; index(plan.block_size)];
    entry(plan, &mut raw, 0, 12, ino, b".");
    match more {
        None => entry(plan, &mut raw, 12, end - 12, parent, b".."),
        Some((child, name)) => {
            entry(plan, &mut raw, 12, 12, parent, b"..");
            entry(plan, &mut raw, 24, end - 24, child, name);
        }
    }
    sealed(raw, sums.of_inode(ino, 0))
}

/// A block without names of directory `ino`: one empty entry that spans it.
pub(super) fn empty_directory_block(plan: &Plan, sums: Sums, ino: u32) -> Vec<u8> {
    let mut raw = vec![0; index(plan.block_size)];
    entry(plan, &mut raw, 0, entries_end(plan), 0, b"");
    sealed(raw, sums.of_inode(ino, 0))
}

/// The block of the orphan file that lies in `block`, without any orphan.
pub(super) fn orphan_block(plan: &Plan, sums: Sums, block: u64) -> Vec<u8> {
    let mut raw = vec![0; index(plan.block_size)];
    let at = raw.len() - ORPHAN_TAIL;
    Le::put_u32(&mut raw, at, ORPHAN_MAGIC);
    if let Some(sum) = sums.of_inode(plan.orphan_ino(), 0).orphan_block(block, &raw) {
        place(&mut raw, sum);
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_2038_take_the_extra_bits() {
        let at = |secs| Timestamp { secs, nanos: 5 };
        assert_eq!((low(at(-1)), extra(at(-1))), (u32::MAX, 5 << 2));
        assert_eq!((low(at(0x8000_0000)), extra(at(0x8000_0000))), (0x8000_0000, (5 << 2) | 1));
        assert_eq!((low(at(0x1_0000_0000)), extra(at(0x1_0000_0000))), (0, (5 << 2) | 1));
    }
}
