//! The bytes of a new volume's structures. Offsets are those of `docs/spec/ext2.md`.

use fstitch_core::{Le, Timestamp};

use super::options::MkfsOptions;
use super::plan::{FIRST_INO, Plan};
use super::{index, narrow, short};

/// Bytes of the superblock.
pub(super) const SUPER_SIZE: usize = 1024;
/// Where the superblock is on the device.
pub(super) const SUPER_OFFSET: usize = 1024;
/// Bytes of a group descriptor.
pub(super) const DESC_SIZE: usize = 32;
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

/// The compatible, incompatible and read-only-compatible feature words.
fn feature_words(plan: &Plan) -> [u32; 3] {
    let f = plan.features;
    let compat =
        (u32::from(f.ext_attr) << 3) | (u32::from(f.resize_inode) << 4) | (u32::from(f.dir_index) << 5);
    let incompat = u32::from(f.filetype) << 1;
    let ro_compat = u32::from(f.sparse_super) | (u32::from(f.large_file) << 1);
    [compat, incompat, ro_compat]
}

/// The superblock; `free` counts free blocks and inodes of the whole volume, `group` holds this copy.
pub(super) fn superblock(plan: &Plan, options: &MkfsOptions, free: (u64, u64), group: u64) -> Vec<u8> {
    let mut raw = vec![0; SUPER_SIZE];
    let size_log = plan.block_size.trailing_zeros() - 10;
    for (at, value) in [
        (0x00, narrow(plan.inodes())),
        (0x04, narrow(plan.blocks)),
        (0x08, narrow(plan.reserved_blocks)),
        (0x0c, narrow(free.0)),
        (0x10, narrow(free.1)),
        (0x14, narrow(plan.first_data_block)),
        (0x18, size_log),
        (0x1c, size_log),
        (0x20, narrow(plan.blocks_per_group)),
        (0x24, narrow(plan.blocks_per_group)),
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
    }
    raw[0x68..0x78].copy_from_slice(&options.uuid);
    raw[0x78..0x78 + options.label.len()].copy_from_slice(&options.label);
    raw
}

/// The fields that only revision 1 has.
fn dynamic_fields(raw: &mut [u8], plan: &Plan, options: &MkfsOptions, group: u64) {
    Le::put_u32(raw, 0x54, FIRST_INO);
    Le::put_u16(raw, 0x58, short(plan.inode_size));
    // The field has 16 bits; readers of copies in higher groups do not look at it.
    Le::put_u16(raw, 0x5a, u16::try_from(group & 0xffff).expect("masked"));
    for (i, word) in feature_words(plan).into_iter().enumerate() {
        Le::put_u32(raw, 0x5c + 4 * i, word);
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

/// What a group's descriptor says of its use.
pub(super) struct GroupUse {
    pub(super) free_blocks: u64,
    pub(super) free_inodes: u64,
    pub(super) directories: u64,
}

/// The descriptor of `group`, written to `raw`.
pub(super) fn descriptor(raw: &mut [u8], plan: &Plan, group: u64, usage: &GroupUse) {
    let bitmaps = plan.group_start(group) + plan.bitmap_offset(group);
    Le::put_u32(raw, 0, narrow(bitmaps));
    Le::put_u32(raw, 4, narrow(bitmaps + 1));
    Le::put_u32(raw, 8, narrow(bitmaps + 2));
    Le::put_u16(raw, 12, short(usage.free_blocks));
    Le::put_u16(raw, 14, short(usage.free_inodes));
    Le::put_u16(raw, 16, short(usage.directories));
}

/// The fields of one of the first inodes.
pub(super) struct NewFile {
    pub(super) mode: u16,
    pub(super) links: u16,
    pub(super) owner: (u32, u32),
    pub(super) size: u64,
    pub(super) sectors: u32,
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
    Le::put_u16(raw, at + 4, u16::try_from(span).expect("blocks are at most 4 KiB"));
    raw[at + 6] = len;
    raw[at + 7] = if plan.features.filetype && ino != 0 { ENTRY_DIRECTORY } else { 0 };
    raw[at + 8..at + 8 + name.len()].copy_from_slice(name);
}

/// The first block of directory `ino`: itself, its parent, and perhaps one more name.
pub(super) fn directory(plan: &Plan, ino: u32, parent: u32, more: Option<(u32, &[u8])>) -> Vec<u8> {
    let size = index(plan.block_size);
    let mut raw = vec![0; size];
    entry(plan, &mut raw, 0, 12, ino, b".");
    match more {
        None => entry(plan, &mut raw, 12, size - 12, parent, b".."),
        Some((child, name)) => {
            entry(plan, &mut raw, 12, 12, parent, b"..");
            entry(plan, &mut raw, 24, size - 24, child, name);
        }
    }
    raw
}

/// A directory block without names: one empty entry that spans it.
pub(super) fn empty_directory_block(plan: &Plan) -> Vec<u8> {
    let size = index(plan.block_size);
    let mut raw = vec![0; size];
    entry(plan, &mut raw, 0, size, 0, b"");
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
