//! Inodes of both versions.

use fstitch_core::{FileKind, Result, Timestamp};

use super::superblock::{Superblock, Version};
use crate::num::{low16, low32};
use crate::ufs::damaged_inode;

/// Pointers to blocks that are in the inode.
pub const DIRECT: usize = 12;
/// Pointers to blocks of pointers.
pub const INDIRECT: usize = 3;
/// Blocks of extended attributes.
pub const EXTRA: usize = 2;
/// The kind of a whiteout: a name that hides another one below.
const WHITEOUT: u16 = 0o160_000;

/// Flags of an inode.
pub mod flag {
    /// Left out by dump programs.
    pub const NODUMP: u32 = 1;
    /// May not change, by its owner or by the superuser.
    pub const IMMUTABLE: u32 = 0x0002_0002;
    /// May only grow.
    pub const APPEND: u32 = 0x0004_0004;
    /// The owner's of these two.
    pub const USER_IMMUTABLE: u32 = 2;
    /// The owner's of these two.
    pub const USER_APPEND: u32 = 4;
    /// A snapshot of the volume.
    pub const SNAPSHOT: u32 = 0x0020_0000;
}

/// An inode in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInode {
    /// What it is.
    pub kind: FileKind,
    /// The 12 permission bits.
    pub perm: u16,
    /// Names.
    pub nlink: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Storage in units of 512 bytes.
    pub sectors: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Option<Timestamp>,
    /// Which life of the number this is.
    pub generation: u32,
    /// [`flag`].
    pub flags: u32,
    /// Fragments where its first blocks begin; 0 for holes.
    pub direct: [u64; DIRECT],
    /// Those of blocks of pointers: one level, two, three.
    pub indirect: [u64; INDIRECT],
    /// Bytes of extended attributes.
    pub extra_size: u32,
    /// Where these begin.
    pub extra: [u64; EXTRA],
    /// The bytes of the pointers, where a short symbolic link's target is.
    pub inside: Vec<u8>,
}

/// Where the kind and the permissions are, and the number of names.
pub(in crate::ufs) const MODE_AT: usize = 0;
/// The number of names.
pub(in crate::ufs) const LINKS_AT: usize = 2;
/// Seconds and nanoseconds of the creation, in UFS2.
const CREATED_AT: (usize, usize) = (56, 76);
/// The bytes of attributes in UFS2, and where their blocks are.
pub(in crate::ufs) const EXTRA_SIZE_AT: usize = 92;
/// The blocks of attributes in UFS2.
pub(in crate::ufs) const EXTRA_AT: usize = 96;
/// Bytes of a block in UFS2, which programs read who do not look into the superblock.
const BLOCK_SIZE_AT: usize = 12;

/// Where the fields are.
pub(in crate::ufs) struct Places {
    pub(in crate::ufs) uid: usize,
    pub(in crate::ufs) gid: usize,
    pub(in crate::ufs) size: usize,
    /// Storage, 4 bytes or 8.
    pub(in crate::ufs) sectors: usize,
    /// Access, modification, change.
    pub(in crate::ufs) seconds: [usize; 3],
    pub(in crate::ufs) nanos: [usize; 3],
    pub(in crate::ufs) pointers: usize,
    pub(in crate::ufs) flags: usize,
    pub(in crate::ufs) generation: usize,
}

/// Where the fields of a version's inodes are.
pub(in crate::ufs) fn places(version: Version) -> &'static Places {
    match version {
        Version::One => &ONE,
        Version::Two => &TWO,
    }
}

static ONE: Places = Places {
    uid: 112,
    gid: 116,
    size: 8,
    sectors: 104,
    seconds: [16, 24, 32],
    nanos: [20, 28, 36],
    pointers: 40,
    flags: 100,
    generation: 108,
};

static TWO: Places = Places {
    uid: 4,
    gid: 8,
    size: 16,
    sectors: 24,
    seconds: [32, 40, 48],
    nanos: [68, 64, 72],
    pointers: 112,
    flags: 88,
    generation: 80,
};

/// Owner and group on volumes whose owners have 16 bits.
pub(in crate::ufs) const OLD_OWNERS: [usize; 2] = [4, 6];

/// Writes a time into the bytes of an inode; one that does not fit becomes the nearest that does.
pub(in crate::ufs) fn put_time(
    raw: &mut [u8],
    volume: &Superblock,
    (secs, nanos): (usize, usize),
    time: Timestamp,
) {
    let order = volume.order;
    match volume.version {
        Version::One => {
            let fits = i32::try_from(time.secs).unwrap_or(if time.secs < 0 { i32::MIN } else { i32::MAX });
            order.put_u32(raw, secs, fits.cast_unsigned());
        }
        Version::Two => order.put_u64(raw, secs, time.secs.cast_unsigned()),
    }
    order.put_u32(raw, nanos, time.nanos);
}

/// Writes pointer `slot` of an array of them that begins at byte `at`.
pub(in crate::ufs) fn put_pointer(raw: &mut [u8], volume: &Superblock, at: usize, slot: usize, pointer: u64) {
    match volume.version {
        // A volume of this version has no fragment beyond.
        Version::One => volume.order.put_u32(raw, at + slot * 4, low32(pointer)),
        Version::Two => volume.order.put_u64(raw, at + slot * 8, pointer),
    }
}

/// Linux's number of a device.
pub(in crate::ufs) const fn decode_device(raw: u32) -> u32 {
    let (major, minor) = ((raw >> 8) & 0xff, (raw & 0xff) | ((raw >> 16) << 8));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// What of Linux's number of a device comes into a pointer.
pub(in crate::ufs) const fn encode_device(rdev: u32) -> u32 {
    let (major, minor) = ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & !0xff));
    (minor & 0xff) | ((major & 0xff) << 8) | ((minor >> 8) << 16)
}

impl DiskInode {
    /// What the inode in `raw` says; `None` for one that is not in use.
    ///
    /// # Errors
    /// `Corrupt`, with what cannot be.
    pub fn parse(raw: &[u8], ino: u32, volume: &Superblock) -> Result<Option<Self>> {
        let order = volume.order;
        let (word, long) = (|at| order.u32(raw, at), |at| order.u64(raw, at));
        let mode = order.u16(raw, 0);
        if mode == 0 {
            return Ok(None);
        }
        let kind = FileKind::from_mode(mode).filter(|_| mode & 0o170_000 != WHITEOUT);
        let kind = kind.ok_or_else(|| damaged_inode(ino, format!("mode {mode:#o}")))?;
        let is_two = volume.version == Version::Two;
        let places = places(volume.version);
        let time = |seconds: usize, nanos: usize| Timestamp {
            secs: match is_two {
                true => long(seconds).cast_signed(),
                false => i64::from(word(seconds).cast_signed()),
            },
            // Old systems kept something else there.
            nanos: if word(nanos) < 1_000_000_000 { word(nanos) } else { 0 },
        };
        let pointer = |at: usize| match is_two {
            true => long(places.pointers + at * 8),
            false => u64::from(word(places.pointers + at * 4)),
        };
        let owner = |new: usize, old: usize| match volume.is_old {
            true => u32::from(order.u16(raw, old)),
            false => word(new),
        };
        let inside = places.pointers..places.pointers + usize::try_from(volume.symlink_room()).unwrap_or(0);
        let inode = Self {
            kind,
            perm: mode & 0o7777,
            nlink: order.u16(raw, 2),
            uid: owner(places.uid, 4),
            gid: owner(places.gid, 6),
            size: long(places.size),
            sectors: if is_two { long(24) } else { u64::from(word(104)) },
            atime: time(places.seconds[0], places.nanos[0]),
            mtime: time(places.seconds[1], places.nanos[1]),
            ctime: time(places.seconds[2], places.nanos[2]),
            crtime: is_two.then(|| time(56, 76)),
            generation: word(places.generation),
            flags: word(places.flags),
            direct: std::array::from_fn(pointer),
            indirect: std::array::from_fn(|at| pointer(DIRECT + at)),
            extra_size: if is_two { word(EXTRA_SIZE_AT) } else { 0 },
            extra: std::array::from_fn(|at| if is_two { long(EXTRA_AT + at * 8) } else { 0 }),
            inside: raw[inside].to_vec(),
        };
        if inode.size > volume.size_max() {
            return Err(damaged_inode(ino, format!("size {}", inode.size)));
        }
        if u64::from(inode.extra_size) > EXTRA as u64 * u64::from(volume.block_size) {
            return Err(damaged_inode(ino, format!("{} bytes of attributes", inode.extra_size)));
        }
        Ok(Some(inode))
    }

    /// Writes all fields into `raw`, the bytes of an inode that is zero; `inside`, if there is any, in place of the pointers.
    pub(in crate::ufs) fn encode_into(&self, raw: &mut [u8], volume: &Superblock) {
        let (order, places) = (volume.order, places(volume.version));
        let is_two = volume.version == Version::Two;
        order.put_u16(raw, MODE_AT, self.kind.mode_bits() | self.perm);
        order.put_u16(raw, LINKS_AT, self.nlink);
        if volume.is_old {
            order.put_u16(raw, OLD_OWNERS[0], low16(self.uid));
            order.put_u16(raw, OLD_OWNERS[1], low16(self.gid));
        } else {
            order.put_u32(raw, places.uid, self.uid);
            order.put_u32(raw, places.gid, self.gid);
        }
        order.put_u64(raw, places.size, self.size);
        self.encode_sectors(raw, volume);
        for (at, time) in [self.atime, self.mtime, self.ctime].into_iter().enumerate() {
            put_time(raw, volume, (places.seconds[at], places.nanos[at]), time);
        }
        if is_two {
            order.put_u32(raw, BLOCK_SIZE_AT, volume.block_size);
            put_time(raw, volume, CREATED_AT, self.crtime.unwrap_or(self.ctime));
        }
        order.put_u32(raw, places.flags, self.flags);
        order.put_u32(raw, places.generation, self.generation);
        if self.inside.is_empty() {
            self.encode_pointers(raw, volume);
        } else {
            raw[places.pointers..places.pointers + self.inside.len()].copy_from_slice(&self.inside);
        }
    }

    /// Writes the storage into the bytes of an inode.
    pub(in crate::ufs) fn encode_sectors(&self, raw: &mut [u8], volume: &Superblock) {
        let at = places(volume.version).sectors;
        match volume.version {
            Version::One => volume.order.put_u32(raw, at, low32(self.sectors)),
            Version::Two => volume.order.put_u64(raw, at, self.sectors),
        }
    }

    /// Writes the pointers into the bytes of an inode.
    pub(in crate::ufs) fn encode_pointers(&self, raw: &mut [u8], volume: &Superblock) {
        let at = places(volume.version).pointers;
        for (slot, &pointer) in self.direct.iter().chain(&self.indirect).enumerate() {
            put_pointer(raw, volume, at, slot, pointer);
        }
    }

    /// Whether it is a symbolic link whose target is in the inode.
    #[must_use]
    pub fn is_target_inside(&self, volume: &Superblock) -> bool {
        let is_short = match volume.symlink_inside {
            0 => self.sectors == 0,
            most => self.size < u64::from(most),
        };
        self.kind == FileKind::Symlink && is_short
    }

    /// The device number, as Linux encodes it. BSDs write theirs into the first pointer, in 32 bits.
    #[must_use]
    pub fn rdev(&self) -> u32 {
        if !matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            return 0;
        }
        let raw = u32::try_from(self.direct[0] & 0xffff_ffff).unwrap_or(0);
        decode_device(raw)
    }
}
