//! Inodes of both versions.

use fstitch_core::{FileKind, Result, Timestamp};

use super::superblock::{Superblock, Version};
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

/// Where the fields are.
struct Places {
    uid: usize,
    gid: usize,
    size: usize,
    /// Access, modification, change.
    seconds: [usize; 3],
    nanos: [usize; 3],
    pointers: usize,
    flags: usize,
    generation: usize,
}

const ONE: Places = Places {
    uid: 112,
    gid: 116,
    size: 8,
    seconds: [16, 24, 32],
    nanos: [20, 28, 36],
    pointers: 40,
    flags: 100,
    generation: 108,
};

const TWO: Places = Places {
    uid: 4,
    gid: 8,
    size: 16,
    seconds: [32, 40, 48],
    nanos: [68, 64, 72],
    pointers: 112,
    flags: 88,
    generation: 80,
};

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
        let places = if is_two { TWO } else { ONE };
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
            extra_size: if is_two { word(92) } else { 0 },
            extra: std::array::from_fn(|at| if is_two { long(96 + at * 8) } else { 0 }),
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
        let (major, minor) = ((raw >> 8) & 0xff, (raw & 0xff) | ((raw >> 16) << 8));
        (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
    }
}
