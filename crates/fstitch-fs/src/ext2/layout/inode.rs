//! Inodes: a file's attributes and the roots of its block map.
//!
//! **Layout.** `s_inode_size` bytes each in the group's table. The first 128 bytes are the original inode;
//! larger ones continue with `i_extra_isize` bytes of fixed fields and then with extended attributes.

use fstitch_core::{BlockNo, Error, FileKind, InodeNo, Result, Structure, Timestamp};

use super::feature::{Features, incompat, ro_compat};
use super::field::fields;
use super::superblock::Superblock;
use crate::ext2::num::{high16, high32, idx, low16, low32, wide};
use crate::ext2::{device, times};

/// Bytes of the original inode.
pub const GOOD_OLD_SIZE: usize = 128;
/// Block pointers in an inode.
pub const POINTERS: usize = 15;
/// Direct block pointers.
pub const DIRECT: usize = 12;
/// Symbolic links shorter than this are kept in the pointers.
pub const FAST_SYMLINK: usize = POINTERS * 4;
/// Names that an inode can have.
pub const LINK_MAX: u32 = 32_000;
/// Links that others give a directory at most; with more subdirectories it counts 1 (feature `dir_nlink`).
pub const DIRECTORY_LINK_MAX: u32 = 65_000;
/// Bytes of fixed fields that we give new large inodes.
pub const EXTRA_ISIZE: u16 = 32;
/// `i_flags`: the contents are encrypted.
pub const ENCRYPT_FL: u32 = 0x800;
/// `i_flags`: the directory has an index.
pub const INDEX_FL: u32 = 0x1000;
/// `i_flags`: storage is counted in blocks, not in units of 512 bytes.
pub const HUGE_FILE_FL: u32 = 0x4_0000;
/// `i_flags`: the 60 bytes of the map are the root of an extent tree.
pub const EXTENTS_FL: u32 = 0x8_0000;
/// `i_flags`: the file is sealed with a tree of hashes.
pub const VERITY_FL: u32 = 0x10_0000;
/// `i_flags`: the contents are the value of an attribute of other inodes.
pub const EA_INODE_FL: u32 = 0x20_0000;
/// `i_flags`: the contents lie in the inode.
pub const INLINE_DATA_FL: u32 = 0x1000_0000;
/// `i_flags`: what is made in the directory belongs to its project.
pub const PROJINHERIT_FL: u32 = 0x2000_0000;
/// `i_flags`: names in the directory are looked up whatever their case.
pub const CASEFOLD_FL: u32 = 0x4000_0000;
/// `i_flags` with meanings that no feature of ext2 and ext3 has: compressed blocks, encryption, a size counted in
/// blocks, extents, an attribute's value, inline data.
pub const FLAGS_UNKNOWN: u32 = 0x200 | ENCRYPT_FL | HUGE_FILE_FL | EXTENTS_FL | EA_INODE_FL | INLINE_DATA_FL;

/// The `i_flags` of [`FLAGS_UNKNOWN`] that no feature of the volume allows.
#[must_use]
pub const fn foreign_flags(features: &Features) -> u32 {
    let mut foreign = FLAGS_UNKNOWN;
    let allowed = [
        (features.has_incompat(incompat::ENCRYPT), ENCRYPT_FL),
        (features.has_ro_compat(ro_compat::HUGE_FILE), HUGE_FILE_FL),
        (features.has_incompat(incompat::EXTENTS), EXTENTS_FL),
        (features.has_incompat(incompat::EA_INODE), EA_INODE_FL),
        (features.has_incompat(incompat::INLINE_DATA), INLINE_DATA_FL),
    ];
    let mut at = 0;
    while at < allowed.len() {
        if allowed[at].0 {
            foreign &= !allowed[at].1;
        }
        at += 1;
    }
    foreign
}

fields! {
    /// Kind and permissions.
    I_MODE: u16 @ 0x00;
    /// Owner, low half.
    I_UID: u16 @ 0x02;
    /// Length, low half.
    I_SIZE: u32 @ 0x04;
    /// Last access.
    I_ATIME: u32 @ 0x08;
    /// Last change of attributes.
    I_CTIME: u32 @ 0x0c;
    /// Last change of contents.
    I_MTIME: u32 @ 0x10;
    /// Deletion.
    I_DTIME: u32 @ 0x14;
    /// Group, low half.
    I_GID: u16 @ 0x18;
    /// Names.
    I_LINKS_COUNT: u16 @ 0x1a;
    /// Storage in units of 512 bytes.
    I_BLOCKS: u32 @ 0x1c;
    /// `chattr` flags.
    I_FLAGS: u32 @ 0x20;
    /// How often it was changed; of the value of an attribute, who refers to it.
    I_VERSION: u32 @ 0x24;
    /// First of 15 block pointers.
    I_BLOCK: u32 @ 0x28;
    /// Tells lives of an inode number apart.
    I_GENERATION: u32 @ 0x64;
    /// Block of extended attributes.
    I_FILE_ACL: u32 @ 0x68;
    /// Length, high half (regular files; with the feature `large_dir` directories, too).
    I_SIZE_HIGH: u32 @ 0x6c;
    /// Storage, bits 32 to 47 (feature `huge_file`).
    I_BLOCKS_HIGH: u16 @ 0x74;
    /// Block of extended attributes, high half (feature `64bit`).
    I_FILE_ACL_HIGH: u16 @ 0x76;
    /// Owner, high half.
    I_UID_HIGH: u16 @ 0x78;
    /// Group, high half.
    I_GID_HIGH: u16 @ 0x7a;
    /// Sum of the inode, low half.
    I_CHECKSUM_LO: u16 @ 0x7c;
    /// Bytes of fixed fields from 0x80 on.
    I_EXTRA_ISIZE: u16 @ 0x80;
    /// Sum of the inode, high half.
    I_CHECKSUM_HI: u16 @ 0x82;
    /// Nanoseconds and epoch bits of `I_CTIME`.
    I_CTIME_EXTRA: u32 @ 0x84;
    /// Those of `I_MTIME`.
    I_MTIME_EXTRA: u32 @ 0x88;
    /// Those of `I_ATIME`.
    I_ATIME_EXTRA: u32 @ 0x8c;
    /// Creation.
    I_CRTIME: u32 @ 0x90;
    /// Nanoseconds and epoch bits of it.
    I_CRTIME_EXTRA: u32 @ 0x94;
    /// The project that it belongs to.
    I_PROJID: u32 @ 0x9c;
}

const _: () = {
    assert!(I_FLAGS.end() + 4 == I_BLOCK.offset());
    assert!(I_BLOCK.offset() + 4 * POINTERS == I_GENERATION.offset());
    assert!(I_GID_HIGH.end() + 4 == GOOD_OLD_SIZE && I_EXTRA_ISIZE.offset() == GOOD_OLD_SIZE);
    assert!(I_CRTIME_EXTRA.end() == 0x98);
};

/// An inode's fixed fields, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInode {
    /// What it is.
    pub kind: FileKind,
    /// The 12 permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project, 0 where the volume has none.
    pub projid: u32,
    /// Names.
    pub nlink: u16,
    /// Length in bytes.
    pub size: u64,
    /// Storage in units of 512 bytes, whatever units the inode is kept in.
    pub sectors: u64,
    /// `chattr` flags.
    pub flags: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Creation, in large inodes.
    pub crtime: Option<Timestamp>,
    /// Deletion, seconds.
    pub dtime: u32,
    /// Tells lives of this number apart.
    pub generation: u32,
    /// Block of extended attributes, or 0.
    pub xattr_block: u64,
    /// Block pointers, a short symbolic link's target or a device number.
    pub block: [u32; POINTERS],
    /// Bytes of fixed fields beyond the first 128.
    pub extra_isize: u16,
    /// Where values of attributes may have inodes of their own, or blocks are taken in clusters, a symbolic link's storage does not say where
    /// its target is.
    pub has_values: bool,
}

/// Whether the inode's bytes have room for a field that ends at `end`.
#[must_use]
pub fn has_extra(extra_isize: u16, end: usize) -> bool {
    end <= GOOD_OLD_SIZE + usize::from(extra_isize)
}

impl DiskInode {
    /// Reads and checks inode `ino` from its bytes, all `s_inode_size` of them. Block pointers are checked when
    /// they are followed. `block` is where the inode lies.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(raw: &[u8], ino: InodeNo, block: BlockNo, volume: &Superblock) -> Result<Self> {
        let damaged = |problem: String| Error::corrupt(Structure::Inode(ino.get()), block, problem);
        let mode = I_MODE.get(raw);
        let kind = FileKind::from_mode(mode).ok_or_else(|| damaged(format!("mode {mode:#o}")))?;
        let extra_isize = if raw.len() > GOOD_OLD_SIZE { I_EXTRA_ISIZE.get(raw) } else { 0 };
        if usize::from(extra_isize) > raw.len() - GOOD_OLD_SIZE || !extra_isize.is_multiple_of(4) {
            return Err(damaged(format!("{extra_isize} bytes of extra fields in {} bytes", raw.len())));
        }
        let inode = Self::decode(raw, kind, mode, extra_isize).of(volume);
        if inode.flags & foreign_flags(&volume.features) != 0 {
            return Err(damaged(format!(
                "flags {:#x} belong to features that the volume lacks",
                inode.flags
            )));
        }
        if kind == FileKind::Directory
            && !inode.has_inline_data()
            && !inode.size.is_multiple_of(u64::from(volume.block_size))
        {
            return Err(damaged(format!("directory of {} bytes, expected whole blocks", inode.size)));
        }
        if inode.size > inode.size_max(volume.block_size) {
            return Err(damaged(format!("{} bytes are more than a block map reaches", inode.size)));
        }
        if kind == FileKind::Symlink && inode.size > u64::from(volume.block_size) {
            return Err(damaged(format!("symbolic link of {} bytes", inode.size)));
        }
        Ok(inode)
    }

    fn decode(raw: &[u8], kind: FileKind, mode: u16, extra_isize: u16) -> Self {
        let high = match kind {
            FileKind::Regular | FileKind::Directory => I_SIZE_HIGH.get(raw),
            _ => 0,
        };
        let extra = |field: super::Field<u32>| {
            if has_extra(extra_isize, field.end()) { field.get(raw) } else { 0 }
        };
        let time = |secs: super::Field<u32>, more| times::decode(secs.get(raw), extra(more));
        let mut block = [0; POINTERS];
        for (at, pointer) in block.iter_mut().enumerate() {
            *pointer = pointer_field(at).get(raw);
        }
        Self {
            kind,
            perm: mode & 0o7777,
            uid: u32::from(I_UID.get(raw)) | u32::from(I_UID_HIGH.get(raw)) << 16,
            gid: u32::from(I_GID.get(raw)) | u32::from(I_GID_HIGH.get(raw)) << 16,
            projid: extra(I_PROJID),
            nlink: I_LINKS_COUNT.get(raw),
            size: u64::from(I_SIZE.get(raw)) | u64::from(high) << 32,
            sectors: u64::from(I_BLOCKS.get(raw)) | u64::from(I_BLOCKS_HIGH.get(raw)) << 32,
            flags: I_FLAGS.get(raw),
            atime: time(I_ATIME, I_ATIME_EXTRA),
            ctime: time(I_CTIME, I_CTIME_EXTRA),
            mtime: time(I_MTIME, I_MTIME_EXTRA),
            crtime: has_extra(extra_isize, I_CRTIME_EXTRA.end())
                .then(|| times::decode(I_CRTIME.get(raw), I_CRTIME_EXTRA.get(raw))),
            dtime: I_DTIME.get(raw),
            generation: I_GENERATION.get(raw),
            xattr_block: u64::from(I_FILE_ACL.get(raw)) | u64::from(I_FILE_ACL_HIGH.get(raw)) << 32,
            block,
            extra_isize,
            has_values: false,
        }
    }

    /// The inode as fields without a meaning on `volume` leave it.
    fn of(mut self, volume: &Superblock) -> Self {
        if self.kind == FileKind::Directory && !volume.features.has_incompat(incompat::LARGE_DIR) {
            self.size &= u64::from(u32::MAX);
        }
        if !volume.features.has_ro_compat(ro_compat::HUGE_FILE) {
            self.sectors &= u64::from(u32::MAX);
        } else if self.flags & HUGE_FILE_FL != 0 {
            self.sectors *= u64::from(volume.block_size / 512);
        }
        if !volume.features.has_ro_compat(ro_compat::PROJECT) {
            self.projid = 0;
        }
        if !volume.features.has_incompat(incompat::BIT64) {
            self.xattr_block &= u64::from(u32::MAX);
        }
        self.has_values = volume.features.has_incompat(incompat::EA_INODE) || volume.has_clusters();
        self
    }

    /// The two fields that hold its storage, in the units that its flags say.
    #[must_use]
    pub fn storage_fields(&self, block_size: u32) -> (u32, u16) {
        let unit = if self.flags & HUGE_FILE_FL == 0 { 1 } else { u64::from(block_size / 512) };
        let stored = self.sectors / unit;
        (low32(stored), low16(low32(stored >> 32)))
    }

    /// Writes all fields into the inode's bytes but its sum; bytes behind the extra fields (extended attributes) and
    /// fields that we do not model are kept.
    pub fn encode_into(&self, raw: &mut [u8], block_size: u32) {
        I_MODE.put(raw, self.kind.mode_bits() | self.perm);
        I_UID.put(raw, low16(self.uid));
        I_UID_HIGH.put(raw, high16(self.uid));
        I_GID.put(raw, low16(self.gid));
        I_GID_HIGH.put(raw, high16(self.gid));
        I_SIZE.put(raw, low32(self.size));
        // A directory of less than 4 GiB has 0 there: what other formats keep in these bytes is not for directories.
        if self.kind == FileKind::Regular || self.size > u64::from(u32::MAX) {
            I_SIZE_HIGH.put(raw, low32(self.size >> 32));
        }
        I_DTIME.put(raw, self.dtime);
        I_LINKS_COUNT.put(raw, self.nlink);
        let (low, high) = self.storage_fields(block_size);
        I_BLOCKS.put(raw, low);
        I_BLOCKS_HIGH.put(raw, high);
        I_FLAGS.put(raw, self.flags);
        for (at, &pointer) in self.block.iter().enumerate() {
            pointer_field(at).put(raw, pointer);
        }
        I_GENERATION.put(raw, self.generation);
        I_FILE_ACL.put(raw, low32(self.xattr_block));
        // Who has no feature `64bit` has no meaning for these bytes, and 0 in them.
        I_FILE_ACL_HIGH.put(raw, low16(high32(self.xattr_block)));
        if raw.len() > GOOD_OLD_SIZE {
            I_EXTRA_ISIZE.put(raw, self.extra_isize);
        }
        // Where there are no projects, what others may have in these bytes stays.
        if self.projid != 0 && has_extra(self.extra_isize, I_PROJID.end()) {
            I_PROJID.put(raw, self.projid);
        }
        self.encode_times(raw);
    }

    /// Writes what says where its contents are: length, storage, flags and map.
    pub fn put_map(&self, raw: &mut [u8], block_size: u32) {
        I_SIZE.put(raw, low32(self.size));
        I_BLOCKS.put(raw, self.storage_fields(block_size).0);
        I_FLAGS.put(raw, self.flags);
        for (at, &pointer) in self.block.iter().enumerate() {
            pointer_field(at).put(raw, pointer);
        }
    }

    fn encode_times(&self, raw: &mut [u8]) {
        let mut put = |time, secs: super::Field<u32>, more: super::Field<u32>| {
            let extra = has_extra(self.extra_isize, more.end());
            let (low, high) = times::encode(time, extra);
            secs.put(raw, low);
            if extra {
                more.put(raw, high);
            }
        };
        put(self.atime, I_ATIME, I_ATIME_EXTRA);
        put(self.ctime, I_CTIME, I_CTIME_EXTRA);
        put(self.mtime, I_MTIME, I_MTIME_EXTRA);
        if let Some(crtime) = self.crtime
            && has_extra(self.extra_isize, I_CRTIME_EXTRA.end())
        {
            put(crtime, I_CRTIME, I_CRTIME_EXTRA);
        }
    }

    /// Whether this is a symbolic link whose target is kept in the pointers.
    #[must_use]
    pub fn is_fast_symlink(&self, block_size: u32) -> bool {
        let attributes = if self.xattr_block == 0 { 0 } else { u64::from(block_size / 512) };
        self.kind == FileKind::Symlink
            && self.flags & (EXTENTS_FL | INLINE_DATA_FL) == 0
            && (self.has_values || self.sectors == attributes)
            && self.size < 60
    }

    /// Whether its map is an extent tree.
    #[must_use]
    pub const fn has_extents(&self) -> bool {
        self.flags & (EXTENTS_FL | INLINE_DATA_FL) == EXTENTS_FL
    }

    /// Whether its contents lie in the inode itself.
    #[must_use]
    pub const fn has_inline_data(&self) -> bool {
        self.flags & INLINE_DATA_FL != 0
    }

    /// How long it may become with the map that it has.
    #[must_use]
    pub fn size_max(&self, block_size: u32) -> u64 {
        if self.flags & EXTENTS_FL == 0 { size_max(block_size) } else { size_max_extents(block_size) }
    }

    /// Whether the pointers point at blocks (of data or indirect).
    #[must_use]
    pub fn has_blocks(&self, block_size: u32) -> bool {
        match self.kind {
            FileKind::Regular | FileKind::Directory => !self.has_inline_data(),
            FileKind::Symlink if self.has_inline_data() => false,
            FileKind::Symlink => !self.is_fast_symlink(block_size),
            _ => false,
        }
    }

    /// The device number of a device inode in Linux's 32-bit encoding, 0 for others.
    #[must_use]
    pub fn rdev(&self) -> u32 {
        match self.kind {
            FileKind::CharDevice | FileKind::BlockDevice => device::decode(self.block[0], self.block[1]),
            _ => 0,
        }
    }
}

/// The position of block pointer `at` (0 to 14).
#[must_use]
pub const fn pointer_field(at: usize) -> super::Field<u32> {
    super::Field::at(I_BLOCK.offset() + 4 * at)
}

/// The bytes of the pointers, which hold a short symbolic link's target.
#[must_use]
pub fn pointer_bytes(block: &[u32; POINTERS]) -> [u8; FAST_SYMLINK] {
    let mut bytes = [0; FAST_SYMLINK];
    for (at, pointer) in block.iter().enumerate() {
        bytes[at * 4..at * 4 + 4].copy_from_slice(&pointer.to_le_bytes());
    }
    bytes
}

/// The pointers that hold `target`, which must be shorter than [`FAST_SYMLINK`].
#[must_use]
pub fn symlink_pointers(target: &[u8]) -> [u32; POINTERS] {
    let mut bytes = [0; FAST_SYMLINK];
    bytes[..target.len()].copy_from_slice(target);
    words(&bytes)
}

/// The 60 bytes of an inode's map as pointers.
#[must_use]
pub fn words(bytes: &[u8; FAST_SYMLINK]) -> [u32; POINTERS] {
    let mut block = [0; POINTERS];
    for (at, pointer) in block.iter_mut().enumerate() {
        *pointer = fstitch_core::Le::u32(bytes, at * 4);
    }
    block
}

/// The longest file that extents map, in bytes: 2^32 - 1 blocks, so that a count of them has 32 bits.
#[must_use]
pub fn size_max_extents(block_size: u32) -> u64 {
    u64::from(u32::MAX) * u64::from(block_size)
}

/// The longest file, in bytes: what three levels of indirect blocks reach, and at most what the 32-bit count
/// of 512-byte units can express with all indirect blocks counted.
#[must_use]
pub fn size_max(block_size: u32) -> u64 {
    let pointers = u64::from(block_size / 4);
    let size = u64::from(block_size);
    let reach = 12 + pointers + pointers * pointers + pointers * pointers * pointers;
    // 2^32 - 1 units of 512 bytes; the indirect blocks of a file that long take less than 1/200 of it.
    let units = u64::from(u32::MAX) * 512;
    let data = (units - units / pointers - units / pointers / pointers - 4 * size) / size * size;
    (reach * size).min(data)
}

/// The group, block and byte where inode `ino` lies, given its group's inode table.
#[must_use]
pub fn place(volume: &Superblock, table: u64, ino: u32) -> (BlockNo, usize) {
    let index = (ino - 1) % volume.inodes_per_group;
    let per_block = volume.inodes_per_block();
    let offset = idx(index % per_block) * usize::from(volume.inode_size);
    (BlockNo(table + u64::from(index / per_block)), offset)
}

/// How many bytes of fixed fields a new inode of `volume` gets.
#[must_use]
pub fn new_extra_isize(volume: &Superblock) -> u16 {
    let room = volume.inode_size - u16::try_from(GOOD_OLD_SIZE).expect("128");
    let want = volume.extra_isize_want.max(EXTRA_ISIZE);
    if want <= room && want.is_multiple_of(4) { want } else { EXTRA_ISIZE.min(room) }
}

const _: () = assert!(FAST_SYMLINK == 60);

/// Storage in units of 512 bytes that `blocks` blocks take.
#[must_use]
pub fn sectors(blocks: usize, block_size: u32) -> u64 {
    wide(blocks) * u64::from(block_size / 512)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(extra_isize: u16) -> DiskInode {
        let time = |secs| Timestamp { secs, nanos: if extra_isize > 0 { 5 } else { 0 } };
        DiskInode {
            kind: FileKind::Regular,
            perm: 0o4755,
            uid: 0x1_2345,
            gid: 0x2_3456,
            projid: 0,
            nlink: 3,
            size: 0x1_0000_0007,
            sectors: 0x1_0000_0008,
            flags: 0x80,
            atime: time(1),
            ctime: time(2),
            mtime: time(3),
            crtime: (extra_isize > 0).then(|| time(4)),
            dtime: 0,
            generation: 9,
            xattr_block: 10,
            block: [7; POINTERS],
            extra_isize,
            has_values: false,
        }
    }

    #[test]
    fn inodes_round_trip() {
        for (size, extra) in [(128, 0), (256, 32), (256, 28), (512, 32)] {
            let inode = sample(extra);
            let mut raw = vec![0; size];
            inode.encode_into(&mut raw, 4096);
            let mode = I_MODE.get(&raw);
            assert_eq!(DiskInode::decode(&raw, FileKind::Regular, mode, extra), inode, "{size} {extra}");
        }
    }

    #[test]
    fn storage_counted_in_blocks_stays_so() {
        let inode = DiskInode { flags: HUGE_FILE_FL, ..sample(0) };
        assert_eq!(inode.storage_fields(4096), (0x2000_0001, 0));
        assert_eq!(sample(0).storage_fields(4096), (8, 1));
    }

    #[test]
    fn features_allow_flags() {
        let extents = Features { incompat: incompat::EXTENTS, ..Features::default() };
        assert_eq!(foreign_flags(&Features::default()), FLAGS_UNKNOWN);
        assert_eq!(foreign_flags(&extents), FLAGS_UNKNOWN & !EXTENTS_FL);
    }

    #[test]
    fn the_longest_file_depends_on_the_block_size() {
        assert_eq!(size_max(1024), (12 + 256 + 65_536 + 16_777_216) * 1024);
        assert!(size_max(4096) > 2_000_000_000_000 && size_max(4096) < u64::from(u32::MAX) * 512);
    }

    #[test]
    fn short_targets_live_in_the_pointers() {
        let block = symlink_pointers(b"some/where");
        assert_eq!(&pointer_bytes(&block)[..11], b"some/where\0");
    }
}
