//! The superblock: where everything is.

pub(in crate::ufs) mod at;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result, Structure};

use crate::num::low32;
use crate::ufs::order::Order;
use crate::view::BlockView;

/// Bytes of a superblock.
pub const SUPERBLOCK_SIZE: usize = 1376;
/// Bytes that a superblock may take on the medium.
pub(in crate::ufs) const SUPERBLOCK_MAX: usize = 8192;
/// Where superblocks are looked for, in bytes.
pub const PLACES: [u64; 4] = [65_536, 8192, 0, 262_144];
/// Bytes that are read of each place: the next multiple of a sector.
pub(in crate::ufs) const READ: usize = 1536;
/// Bytes of the smallest unit that a device is read in here.
const SECTOR: usize = 512;
/// The root directory's inode.
pub const ROOT_INO: u32 = 2;

/// The magic number of UFS1.
pub(in crate::ufs) const MAGIC_1: u32 = 0x0001_1954;
/// The magic number of UFS2.
pub(in crate::ufs) const MAGIC_2: u32 = 0x1954_0119;
const MAGIC_UNFINISHED: u32 = 0x1996_0408;
/// Bytes of the label.
pub(in crate::ufs) const LABEL: std::ops::Range<usize> = at::VOLNAME..at::VOLNAME + 32;
/// How many snapshots there may be.
const SNAPSHOTS: usize = 20;
/// Blocks of the longest file of UFS1 that all systems take.
const BLOCKS_ONE: u64 = 0x4000_0000;
/// The bit that says that it was unmounted: NetBSD and OpenBSD shift it to the left while the volume is in use.
const IS_CLEAN: u8 = 1;
/// Where NetBSD's journal may lie.
const LOG_PLACES: std::ops::RangeInclusive<u8> = 1..=2;
/// The bit of the old flags that says that there are new ones.
pub(in crate::ufs) const FLAGS_UPDATED: u8 = 0x80;
/// Those that both have.
pub(in crate::ufs) const OLD_FLAGS: u32 = 0x7f;

/// What a volume was doing, and has.
pub mod flag {
    /// It was not unmounted.
    pub const UNCLEAN: u32 = 1;
    /// Soft updates.
    pub const SOFTDEP: u32 = 2;
    /// A check is due.
    pub const NEEDS_FSCK: u32 = 4;
    /// A journal of soft updates.
    pub const SUJ: u32 = 8;
    /// POSIX ACLs.
    pub const ACLS: u32 = 0x10;
    /// A journal below the volume.
    pub const GJOURNAL: u32 = 0x40;
    /// NFSv4 ACLs on FreeBSD, a journal (WAPBL) on NetBSD.
    pub const NFS4_ACLS_OR_WAPBL: u32 = 0x100;
    /// Check hashes on FreeBSD, quotas on NetBSD.
    pub const HASHES_OR_QUOTA: u32 = 0x200;
}

/// Which structures have check hashes.
pub mod hashed {
    /// The superblock.
    pub const SUPERBLOCK: u32 = 1;
    /// Cylinder groups.
    pub const GROUP: u32 = 2;
    /// Inodes; of UFS2.
    pub const INODE: u32 = 4;
}

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// UFS1: 32-bit addresses.
    One,
    /// UFS2: 64-bit addresses.
    Two,
}

impl Version {
    /// Bytes of an inode.
    #[must_use]
    pub const fn inode_size(self) -> u32 {
        match self {
            Self::One => 128,
            Self::Two => 256,
        }
    }

    /// Bytes of a pointer.
    #[must_use]
    pub const fn pointer_size(self) -> u32 {
        match self {
            Self::One => 4,
            Self::Two => 8,
        }
    }

    /// What a volume is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::One => "ufs1",
            Self::Two => "ufs2",
        }
    }
}

/// Counts of what is free, and of directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Directories.
    pub directories: u64,
    /// Whole free blocks.
    pub blocks: u64,
    /// Free inodes.
    pub inodes: u64,
    /// Free fragments that are not in whole free blocks.
    pub fragments: u64,
}

/// A volume's shape, and what its superblock says beside that.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// Which of the two.
    pub version: Version,
    /// The order of bytes.
    pub order: Order,
    /// Where it was found, in bytes.
    pub at: u64,
    /// Bytes of a block, and of a fragment.
    pub block_size: u32,
    /// Bytes of a fragment.
    pub fragment_size: u32,
    /// Fragments of the volume.
    pub fragments: u64,
    /// Those that can be contents.
    pub data_fragments: u64,
    /// Cylinder groups.
    pub groups: u32,
    /// Fragments of a group.
    pub group_fragments: u32,
    /// Inodes of a group.
    pub group_inodes: u32,
    /// Where the parts of a group are, in fragments from the beginning of its metadata: superblock, group, inodes, contents.
    pub parts: [u32; 4],
    /// Bytes of a group's block.
    pub group_size: u32,
    /// Percent that are kept free.
    pub reserved: u32,
    /// Symbolic links shorter than this are in their inodes; 0 where those are that have no blocks.
    pub symlink_inside: u32,
    /// Names have 16-bit lengths and owners 16 bits.
    pub is_old: bool,
    /// What it was doing, and has: [`flag`].
    pub flags: u32,
    /// It was unmounted in an orderly way.
    pub is_clean: bool,
    /// The label.
    pub label: Vec<u8>,
    /// The identifier.
    pub id: [u32; 2],
    /// What is free in all.
    pub totals: Totals,
    /// Where the counts of all groups begin, and their bytes.
    pub summaries: (u64, u32),
    /// The longest run of free blocks that groups count apart; 0 where none is counted.
    pub cluster_max: u32,
    /// NetBSD has a place for its journal (WAPBL): behind the volume or inside.
    pub has_log: bool,
    /// There is a snapshot inside.
    pub has_snapshots: bool,
    /// Which structures have check hashes, if the flag says that there are any.
    pub hashes: u32,
    /// The longest file, as the volume says.
    pub says_max: u64,
    /// The new places of flags and counts are used.
    pub is_updated: bool,
    shift: (u32, u32),
}

fn damaged(problem: String) -> Error {
    Error::corrupt(Structure::Superblock, None, problem)
}

/// Version and order of the superblock in `raw`, if it is one.
fn kind(raw: &[u8]) -> Option<(Version, Order)> {
    [Order::Little, Order::Big].into_iter().find_map(|order| match order.u32(raw, at::MAGIC) {
        MAGIC_1 => Some((Version::One, order)),
        MAGIC_2 => Some((Version::Two, order)),
        _ => None,
    })
}

/// Whether the superblock in `raw` has a place for NetBSD's journal.
pub(in crate::ufs) fn has_log(raw: &[u8]) -> bool {
    raw[at::JOURNAL_VERSION] == 1 && LOG_PLACES.contains(&raw[at::JOURNAL_LOCATION])
}

/// Whether making the volume was not finished.
fn is_unfinished(raw: &[u8]) -> bool {
    [Order::Little, Order::Big].iter().any(|order| order.u32(raw, at::MAGIC) == MAGIC_UNFINISHED)
}

/// Whether the superblock in `raw`, found at byte `at`, is the volume's first one and not a copy.
fn is_first(raw: &[u8], at: u64, (version, order): (Version, Order)) -> bool {
    match version {
        Version::Two => order.u64(raw, 1000) == at,
        // With blocks of 64 KiB that is where the first copy is.
        Version::One => at != PLACES[0],
    }
}

/// Whether `raw`, which lies at byte `at`, is a volume's first superblock, or one of a volume that was never finished.
fn is_superblock(raw: &[u8], at: u64) -> bool {
    is_unfinished(raw) || kind(raw).is_some_and(|kind| is_first(raw, at, kind))
}

/// The superblock of the medium that begins with `head`.
#[must_use]
pub fn find(head: &[u8]) -> Option<&[u8]> {
    PLACES.into_iter().find_map(|at| {
        let start = usize::try_from(at).ok()?;
        head.get(start..start + SUPERBLOCK_SIZE).filter(|raw| is_superblock(raw, at))
    })
}

/// Bytes of the fragments of the volume whose superblock is `raw`, or why it cannot be one.
///
/// # Errors
/// The reason, in words.
pub fn fragment_size(raw: &[u8]) -> std::result::Result<u32, String> {
    let Some((_, order)) = kind(raw) else { return Err("was never finished".into()) };
    let (block, fragment) = (order.u32(raw, 48), order.u32(raw, 52));
    let is_sound = block.is_power_of_two()
        && (4096..=65_536).contains(&block)
        && fragment.is_power_of_two()
        && (512..=block).contains(&fragment)
        && block / fragment <= 8;
    if is_sound {
        Ok(fragment)
    } else {
        Err(format!("says that its blocks have {block} bytes and its fragments {fragment}"))
    }
}

impl Superblock {
    /// Reads the superblock of the volume on a device of any block size.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if there is none, or none that can be.
    pub fn read(device: &dyn BlockDevice) -> Result<Self> {
        let view = BlockView::new(device, SECTOR);
        Self::read_by(device.geometry().bytes(), |at| {
            let mut raw = vec![0; READ];
            view.read(BlockNo(at / to_u64(SECTOR)), BlockKind::Superblock, &mut raw)?;
            Ok(raw)
        })
    }

    /// The same of a medium of so many bytes, of which `read` has [`READ`] from a byte on.
    pub(in crate::ufs) fn read_by(bytes: u64, read: impl Fn(u64) -> Result<Vec<u8>>) -> Result<Self> {
        for at in PLACES.into_iter().filter(|at| at + to_u64(READ) <= bytes) {
            let raw = read(at)?;
            if is_superblock(&raw, at) {
                return Self::parse(&raw, at, bytes);
            }
        }
        Err(damaged("no UFS volume".into()))
    }

    /// All bytes that it may take on a device, as far as there are so many.
    pub(in crate::ufs) fn bytes(&self, device: &dyn BlockDevice) -> Result<Vec<u8>> {
        let view = BlockView::new(device, SECTOR);
        let left = device.geometry().bytes().saturating_sub(self.at);
        let len = SUPERBLOCK_MAX.min(usize::try_from(left).unwrap_or(usize::MAX)) / SECTOR * SECTOR;
        let mut raw = vec![0; len];
        view.read(BlockNo(self.at / to_u64(SECTOR)), BlockKind::Superblock, &mut raw)?;
        Ok(raw)
    }

    /// What the superblock in `raw` says, which lies at byte `at` of a device of so many bytes.
    ///
    /// # Errors
    /// `Corrupt`, with what cannot be.
    pub fn parse(raw: &[u8], at: u64, device_bytes: u64) -> Result<Self> {
        if is_unfinished(raw) {
            return Err(damaged("the volume was never finished".into()));
        }
        let (version, order) = kind(raw).ok_or_else(|| damaged("no magic number".into()))?;
        let fragment_size = fragment_size(raw).map_err(damaged)?;
        let word = |at: usize| order.u32(raw, at);
        let long = |at: usize| order.u64(raw, at);
        let is_two = version == Version::Two;
        let (flags_old, block_size) = (raw[211], word(48));
        let totals = match is_two {
            true => [1008, 1016, 1024, 1032].map(long),
            false => [192, 196, 200, 204].map(|at| u64::from(word(at))),
        };
        let shape = Self {
            version,
            order,
            at,
            block_size,
            fragment_size,
            fragments: if is_two { long(1080) } else { u64::from(word(36)) },
            data_fragments: if is_two { long(1088) } else { u64::from(word(40)) },
            groups: word(44),
            group_fragments: word(188),
            group_inodes: word(184),
            parts: [8, 12, 16, 20].map(word),
            group_size: word(160),
            reserved: word(60).min(100),
            symlink_inside: word(1320),
            is_old: !is_two && order.u32(raw, 1324) < 2,
            flags: if flags_old & FLAGS_UPDATED != 0 { word(1312) } else { u32::from(flags_old) },
            is_clean: raw[at::CLEAN] & IS_CLEAN != 0,
            has_log: has_log(raw),
            label: raw[LABEL].iter().copied().take_while(|&byte| byte != 0).collect(),
            id: [word(144), word(148)],
            totals: Totals {
                directories: totals[0],
                blocks: totals[1],
                inodes: totals[2],
                fragments: totals[3],
            },
            summaries: (if is_two { long(1096) } else { u64::from(word(152)) }, word(156)),
            cluster_max: word(at::CONTIGSUMSIZE),
            has_snapshots: (0..SNAPSHOTS).any(|slot| word(at::SNAPINUM + slot * 4) != 0),
            hashes: word(at::METACKHASH),
            says_max: long(at::MAXFILESIZE),
            is_updated: is_two || flags_old & FLAGS_UPDATED != 0,
            shift: if is_two { (0, u32::MAX) } else { (word(24), word(28)) },
        };
        shape.validate(raw, device_bytes)?;
        Ok(shape)
    }

    fn validate(&self, raw: &[u8], device_bytes: u64) -> Result<()> {
        let fail = |problem: String| Err(damaged(problem));
        let word = |at: usize| self.order.u32(raw, at);
        if word(56) != self.fragments_per_block() {
            return fail(format!("{} fragments in a block of {}", word(56), self.fragments_per_block()));
        }
        let inodes_per_block = self.block_size / self.version.inode_size();
        if word(120) != inodes_per_block || word(116) != self.pointers_per_block() {
            return fail(format!("{} inodes and {} pointers in a block", word(120), word(116)));
        }
        let [superblock, group, inodes, data] = self.parts;
        let behind = |part: u32, bytes: u64| u64::from(part) + bytes.div_ceil(self.fragment_size.into());
        // A group that reaches into its inodes would be written over them.
        let in_order = behind(superblock, to_u64(SUPERBLOCK_SIZE)) <= group.into()
            && behind(group, self.group_size.into()) <= inodes.into()
            && group < inodes
            && inodes < data
            && data <= self.group_fragments;
        let table = u64::from(self.group_inodes) * u64::from(self.version.inode_size());
        let table_end = u64::from(inodes) + table.div_ceil(u64::from(self.fragment_size));
        if !in_order || self.group_inodes == 0 || table_end > u64::from(data) {
            return fail(format!(
                "the parts of a group of {} fragments and {} inodes begin at {:?}",
                self.group_fragments, self.group_inodes, self.parts
            ));
        }
        if !self.group_fragments.is_multiple_of(self.fragments_per_block())
            || !self.group_inodes.is_multiple_of(inodes_per_block)
        {
            return fail(format!(
                "groups of {} fragments and {} inodes, which are no whole blocks",
                self.group_fragments, self.group_inodes
            ));
        }
        let room = device_bytes / u64::from(self.fragment_size);
        if self.fragments == 0 || self.fragments > room {
            return fail(format!("{} fragments on a device of {room}", self.fragments));
        }
        if u64::from(self.groups) != self.fragments.div_ceil(u64::from(self.group_fragments)) {
            return fail(format!("{} groups for {} fragments", self.groups, self.fragments));
        }
        if self.groups.checked_mul(self.group_inodes).is_none() {
            return fail(format!("{} groups of {} inodes", self.groups, self.group_inodes));
        }
        if self.group_size > self.block_size || self.symlink_inside > self.symlink_room() {
            return fail(format!(
                "{} bytes for a group, {} for a symbolic link in an inode",
                self.group_size, self.symlink_inside
            ));
        }
        Ok(())
    }

    /// Whether it was not unmounted in an orderly way, or says that a check is due.
    #[must_use]
    pub const fn is_unclean(&self) -> bool {
        !self.is_clean || self.flags & (flag::UNCLEAN | flag::NEEDS_FSCK) != 0
    }

    /// Fragments of a block.
    #[must_use]
    pub const fn fragments_per_block(&self) -> u32 {
        self.block_size / self.fragment_size
    }

    /// Pointers in a block.
    #[must_use]
    pub const fn pointers_per_block(&self) -> u32 {
        self.block_size / self.version.pointer_size()
    }

    /// Bytes of an inode's pointers.
    #[must_use]
    pub const fn symlink_room(&self) -> u32 {
        15 * self.version.pointer_size()
    }

    /// Inodes of the volume, 0 and 1 included.
    #[must_use]
    pub const fn inodes(&self) -> u32 {
        self.groups * self.group_inodes
    }

    /// The group that fragment `at` belongs to, and where in it that is.
    #[must_use]
    pub fn group_of(&self, at: u64) -> (u32, u32) {
        let size = u64::from(self.group_fragments);
        (low32(at / size), low32(at % size))
    }

    /// A group's first fragment.
    #[must_use]
    pub fn group_first(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.group_fragments)
    }

    /// Fragments that are kept for the superuser.
    #[must_use]
    pub fn kept_fragments(&self) -> u64 {
        self.data_fragments / 100 * u64::from(self.reserved)
    }

    /// The first fragment of a group's metadata, as far as that may move from its beginning.
    #[must_use]
    pub fn group_start(&self, group: u32) -> u64 {
        let (offset, mask) = self.shift;
        u64::from(group) * u64::from(self.group_fragments) + u64::from(offset) * u64::from(group & !mask)
    }

    /// The fragment and the byte in it where inode `ino` begins.
    #[must_use]
    pub fn inode_place(&self, ino: u32) -> (BlockNo, usize) {
        let (group, at) = (ino / self.group_inodes, ino % self.group_inodes);
        let byte = u64::from(at) * u64::from(self.version.inode_size());
        let fragment = u64::from(self.fragment_size);
        let block = self.group_start(group) + u64::from(self.parts[2]) + byte / fragment;
        (BlockNo(block), usize::try_from(byte % fragment).expect("below a fragment's size"))
    }

    /// The longest file, in bytes: that which all pointers reach.
    #[must_use]
    pub fn size_max(&self) -> u64 {
        let pointers = u64::from(self.pointers_per_block());
        let blocks = 12 + pointers + pointers.pow(2) + pointers.pow(3);
        blocks.saturating_mul(u64::from(self.block_size)).min(i64::MAX.unsigned_abs())
    }

    /// The longest file that may be made: the systems that the volume comes from take a longer one for damage.
    #[must_use]
    pub fn file_max(&self) -> u64 {
        let longest = self.longest();
        if self.says_max == 0 { longest } else { self.says_max.min(longest) }
    }

    /// The same by the volume's shape alone.
    #[must_use]
    pub fn longest(&self) -> u64 {
        let reached = self.size_max() - 1;
        match self.version {
            Version::One => reached.min(u64::from(self.block_size) * BLOCKS_ONE - 1),
            Version::Two => reached,
        }
    }

    /// The fragments of a group that are metadata; of the first one all that come before its contents.
    #[must_use]
    pub fn metadata_of(&self, group: u32) -> std::ops::Range<u64> {
        let start = self.group_start(group);
        let first = if group == 0 { 0 } else { start + u64::from(self.parts[0]) };
        first..start + u64::from(self.parts[3])
    }

    /// Which structures may have check hashes: [`hashed`]. FreeBSD has none on UFS1.
    #[must_use]
    pub const fn all_hashes(&self) -> u32 {
        match self.version {
            Version::One => 0,
            Version::Two => hashed::SUPERBLOCK | hashed::GROUP | hashed::INODE,
        }
    }

    /// Which have them.
    #[must_use]
    pub const fn kept_hashes(&self) -> u32 {
        if self.is_updated && self.flags & flag::HASHES_OR_QUOTA != 0 {
            self.hashes & self.all_hashes()
        } else {
            0
        }
    }

    /// Whether the superblock says that there are some, known ones or not.
    #[must_use]
    pub const fn says_hashed(&self) -> bool {
        self.is_updated && self.flags & flag::HASHES_OR_QUOTA != 0 && self.hashes != 0
    }

    /// Bytes of a fragment, as a length.
    #[must_use]
    pub fn fragment_len(&self) -> usize {
        to_usize(self.fragment_size)
    }
}
