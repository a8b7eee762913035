//! The open volume, and its inodes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{
    Attr, BlockDevice, BlockKind, BlockNo, Errno, Error, FileKind, InodeFlags, InodeNo, Result, StatFs,
    Structure,
};
use fstitch_patch::{Block, Cache, PatchId, PatchIds, Tx};

use super::alloc::Run;
use super::damaged_inode;
use super::groups::Groups;
use super::hashes::{self, Hasher};
use super::late::LatePointers;
use super::layout::dirent::{Manner, NAME_MAX};
use super::layout::inode::{DIRECT, DiskInode, flag as inode_flag};
use super::layout::superblock::{READ, ROOT_INO, Superblock, flag, hashed};
use super::memory::Memory;
use super::names::DirMemory;
use crate::gather::Gather;
use crate::uhfs::Limits;

/// The longest target of a symbolic link, in bytes: that of a path.
const SYMLINK_MAX: usize = 1023;

/// Bytes of a group's counts among those of all groups.
const SUMMARY_LEN: u64 = 16;
/// The part of the cache's size that indexes of directories may take.
const INDEX_SHARE: usize = 8;

/// An open UFS volume.
pub struct Ufs {
    pub(super) cache: Arc<Cache>,
    /// As found: counts and flags are not kept up to date.
    pub(super) sb: Superblock,
    pub(super) groups: Groups,
    pub(super) memory: Memory,
    /// Of a volume whose inodes have check hashes.
    pub(super) hasher: Option<Arc<Hasher>>,
    /// Free fragments, those of whole blocks included, and free inodes.
    free_fragments: AtomicI64,
    free_inodes: AtomicI64,
}

impl std::fmt::Debug for Ufs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ufs({} fragments of {} bytes)", self.sb.fragments, self.sb.fragment_size)
    }
}

/// A loaded inode.
pub struct Inode {
    pub(super) ino: u32,
    /// Where it lies: block and byte.
    pub(super) at: (BlockNo, usize),
    /// Its fields, always the newest.
    pub(super) disk: DiskInode,
    /// The block in which it ends and how many fragments that has, unless all of its blocks are whole: those that are allocated, which
    /// are more than its length says while it grows.
    pub(super) tail: Option<(u64, u64)>,
    /// What a larger length must come after besides what its caller knows.
    pub(super) held: PatchIds,
    /// There are pointers behind its end in memory that come to the medium with the length that needs them.
    pub(super) is_ahead: bool,
    /// Pointers behind its end in blocks of pointers, of a file that has had some.
    pub(super) late: Option<Box<LatePointers>>,
    /// How it was before its last block was made whole for an allocation that is not attached yet.
    pub(super) filled_from: Option<(u64, u64)>,
    /// Blocks of pointers taken for allocations that are not attached yet, by level and first block of the file.
    pub(super) reserved: BTreeMap<(usize, u64), Run>,
    /// The fragment behind the last allocation.
    pub(super) last: Option<u64>,
    gather: Gather,
    gather_listed: Gather,
    /// Of directories.
    pub(super) dir: OnceLock<Arc<Mutex<DirMemory, rank::Names>>>,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({}, {:?})", self.ino, self.disk)
    }
}

impl Inode {
    pub(super) fn new(ino: u32, at: (BlockNo, usize), disk: DiskInode, gather: Gather) -> Self {
        Self {
            ino,
            at,
            disk,
            tail: None,
            held: PatchIds::new(),
            filled_from: None,
            is_ahead: false,
            late: None,
            reserved: BTreeMap::new(),
            last: None,
            gather,
            gather_listed: gather,
            dir: OnceLock::new(),
        }
    }

    /// Patches bytes of the inode in `block`, its block, from its byte `at` on, after `befores`.
    pub(super) fn put(
        &mut self,
        tx: &mut Tx<'_>,
        block: &Block,
        (at, bytes): (usize, &[u8]),
        befores: &[PatchId],
    ) -> PatchId {
        let patch = tx.bytes(block, self.at.1 + at, bytes, befores);
        self.gather(tx, patch);
        patch
    }

    /// Makes the inode's `fsync` wait for `patch`.
    pub(super) fn gather(&mut self, tx: &mut Tx<'_>, patch: PatchId) {
        self.gather.add(tx, patch);
    }

    /// What its `fsync` waits for.
    pub(super) fn gathered(&self) -> PatchIds {
        self.gather.ids()
    }

    /// Whether it has blocks, and not something else in place of the pointers.
    pub(super) fn has_blocks(&self, volume: &Superblock) -> bool {
        match self.disk.kind {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => !self.disk.is_target_inside(volume),
            _ => false,
        }
    }

    /// Damage in this inode.
    pub(super) fn damaged(&self, problem: impl Into<String>) -> Error {
        damaged_inode(self.ino, problem.into())
    }
}

impl Ufs {
    /// Opens the volume in `cache`, whose blocks must be its fragments. Changes nothing.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if it is no such volume; `Unsupported` in a cache that is not read-only, if there is something on the volume that
    /// cannot be kept right.
    pub fn open_in(cache: Arc<Cache>) -> Result<Self> {
        let sb = read_superblock(&cache)?;
        if sb.fragment_len() != cache.block_size() {
            let problem =
                format!("fragments of {} bytes, opened with {}", sb.fragment_size, cache.block_size());
            return Err(Error::corrupt(Structure::Superblock, None, problem));
        }
        if !cache.options().read_only {
            check_writable(&sb)?;
            check_summaries(&sb)?;
        }
        let hasher = Hasher::of(&sb).map(Arc::new);
        if let Some(hasher) = &hasher {
            cache.set_seal(Arc::<Hasher>::clone(hasher))?;
        }
        let blocks = sb.totals.blocks.saturating_mul(u64::from(sb.fragments_per_block()));
        let fragments = blocks.saturating_add(sb.totals.fragments).min(sb.data_fragments);
        let inodes = sb.totals.inodes.min(u64::from(sb.inodes()));
        let volume = Self {
            groups: Groups::new(&sb),
            memory: Memory::new(cache.options().cache_size / INDEX_SHARE),
            free_fragments: AtomicI64::new(fragments.cast_signed()),
            free_inodes: AtomicI64::new(inodes.cast_signed()),
            hasher,
            cache,
            sb,
        };
        if !volume.cache.options().read_only && !volume.is_superblock_right()? {
            return Err(wrong_superblock());
        }
        Ok(volume)
    }

    /// The superblock as found when the volume was opened.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// What people call a volume like this.
    #[must_use]
    pub const fn version_name(&self) -> &'static str {
        self.sb.version.name()
    }

    /// Whether it had not been unmounted in an orderly way.
    #[must_use]
    pub const fn is_unclean(&self) -> bool {
        self.sb.is_unclean()
    }

    pub(super) const fn manner(&self) -> Manner {
        Manner { order: self.sb.order, is_old: self.sb.is_old }
    }

    pub(super) fn format_limits(&self) -> Limits {
        Limits {
            name_max: NAME_MAX,
            link_max: 32_767,
            dir_link_max: 32_767,
            size_max: self.sb.file_max(),
            symlink_max: SYMLINK_MAX,
            block_size: self.sb.fragment_len(),
            shift_unit: self.sb.fragment_len(),
            hole_unit: to_usize(self.sb.block_size),
        }
    }

    pub(super) fn space(&self) -> StatFs {
        let sb = &self.sb;
        let free = self.free_fragments().min(sb.data_fragments);
        let kept = sb.kept_fragments();
        let inodes = u64::from(sb.inodes() - ROOT_INO);
        StatFs {
            block_size: sb.fragment_size,
            blocks: sb.data_fragments,
            blocks_free: free,
            blocks_available: free.saturating_sub(kept),
            inodes,
            inodes_free: self.free_inodes().min(inodes),
            name_max: u32::try_from(NAME_MAX).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn load_inode(&self, no: InodeNo) -> Result<Inode> {
        let ino = u32::try_from(no.0).ok().filter(|ino| (ROOT_INO..self.sb.inodes()).contains(ino));
        let ino = ino.ok_or(Errno::STALE)?;
        let raw = self.inode_bytes(ino)?;
        let disk = DiskInode::parse(&raw, ino, &self.sb)?.ok_or(Errno::STALE)?;
        let mut inode = self.inode_of(ino, disk);
        if self.is_unclean() {
            self.end_at_last_block(&mut inode);
        }
        Ok(inode)
    }

    /// An inode with the fields that were read.
    pub(super) fn inode_of(&self, ino: u32, disk: DiskInode) -> Inode {
        let gather = self.memory.gathers(ino);
        let mut inode = Inode::new(ino, self.sb.inode_place(ino), disk, gather);
        inode.tail = self.tail_of(&inode);
        inode
    }

    /// The block in which an inode of its length ends, and its fragments, if it may be a part of one.
    pub(super) fn tail_of(&self, inode: &Inode) -> Option<(u64, u64)> {
        let size = inode.disk.size;
        let block = size.checked_sub(1)? / u64::from(self.sb.block_size);
        (inode.has_blocks(&self.sb) && block < to_u64(DIRECT)).then(|| (block, self.block_len(size, block)))
    }

    /// Lists what gathers the inode's patches, so that it is found again when the inode was forgotten.
    pub(super) fn remember(&self, inode: &mut Inode) {
        if inode.gather != inode.gather_listed {
            inode.gather_listed = inode.gather;
            self.memory.set_gathers(inode.ino, inode.gather, &self.cache);
        }
    }

    /// The block that has the inode.
    pub(super) fn inode_block(&self, inode: &Inode) -> Result<Block> {
        self.cache.read(inode.at.0, BlockKind::Inode)
    }

    /// Free fragments.
    pub(super) fn free_fragments(&self) -> u64 {
        self.free_fragments.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// Free inodes.
    pub(super) fn free_inodes(&self) -> u64 {
        self.free_inodes.load(Ordering::Relaxed).max(0).cast_unsigned()
    }

    /// There are so many more free fragments.
    pub(super) fn add_free(&self, fragments: i64) {
        self.free_fragments.fetch_add(fragments, Ordering::Relaxed);
    }

    /// There are so many more free inodes.
    pub(super) fn add_free_inodes(&self, inodes: i64) {
        self.free_inodes.fetch_add(inodes, Ordering::Relaxed);
    }

    /// Reports damage found while the volume is in use: nothing is written any more.
    pub(super) fn found_damage(&self, error: &Error) {
        if !self.cache.options().read_only {
            self.cache.poison(&error.to_string());
        }
    }

    /// The first fragment of a group's block.
    pub(super) fn group_block(&self, no: u32) -> Result<u64> {
        let sb = &self.sb;
        let at = sb.group_start(no) + u64::from(sb.parts[1]);
        let count = u64::from(sb.group_size).div_ceil(u64::from(sb.fragment_size));
        if at + count > sb.fragments {
            let problem = format!("it would lie in fragment {at} of {}", sb.fragments);
            return Err(Error::corrupt(Structure::Descriptor(u64::from(no)), None, problem));
        }
        Ok(at)
    }

    /// The bytes of an inode that the volume has.
    pub(super) fn inode_bytes(&self, ino: u32) -> Result<Vec<u8>> {
        let (block, offset) = self.sb.inode_place(ino);
        if block.get() >= self.sb.fragments {
            return Err(damaged_inode(ino, format!("it would lie in fragment {block}")));
        }
        let len = to_usize(self.sb.version.inode_size());
        let held = self.cache.read(block, BlockKind::Inode)?;
        if self.hasher.as_ref().is_some_and(|hasher| hasher.is_bad((block, offset))) {
            return Err(damaged_inode(ino, "its check hash does not match".into()));
        }
        Ok(held.snapshot()[offset..offset + len].to_vec())
    }

    pub(super) fn attributes(&self, inode: &Inode) -> Attr {
        let disk = &inode.disk;
        Attr {
            ino: InodeNo(u64::from(inode.ino)),
            kind: disk.kind,
            perm: disk.perm,
            nlink: u32::from(disk.nlink),
            uid: disk.uid,
            gid: disk.gid,
            rdev: disk.rdev(),
            size: disk.size,
            blocks: disk.sectors,
            blksize: self.sb.block_size,
            atime: disk.atime,
            mtime: disk.mtime,
            ctime: disk.ctime,
            crtime: disk.crtime,
            generation: disk.generation,
        }
    }

    pub(super) fn inode_flags(inode: &Inode) -> InodeFlags {
        let pairs = [
            (inode_flag::NODUMP, InodeFlags::NODUMP),
            (inode_flag::IMMUTABLE, InodeFlags::IMMUTABLE),
            (inode_flag::APPEND, InodeFlags::APPEND),
        ];
        let has = |flag: u32| inode.disk.flags & flag != 0;
        InodeFlags(pairs.into_iter().filter(|(theirs, _)| has(*theirs)).fold(0, |all, (_, ours)| all | ours))
    }

    pub(super) fn read_symlink(&self, inode: &Inode) -> Result<Vec<u8>> {
        let disk = &inode.disk;
        if disk.kind != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        let len = usize::try_from(disk.size).unwrap_or(usize::MAX);
        if disk.is_target_inside(&self.sb) {
            let target = disk.inside.get(..len);
            let target =
                target.ok_or_else(|| damaged_inode(inode.ino, format!("a target of {len} bytes")))?;
            return Ok(target.to_vec());
        }
        if len == 0 || len > SYMLINK_MAX {
            return Err(damaged_inode(inode.ino, format!("a target of {len} bytes")));
        }
        let mut target = Vec::new();
        let mut index = 0;
        while target.len() < len {
            let extent = self.map_run(inode, index, 1)?;
            let block = extent.contents();
            let block = block.ok_or_else(|| damaged_inode(inode.ino, "a target in a hole".into()))?;
            target.extend_from_slice(&self.cache.read(block, BlockKind::Attribute)?.snapshot());
            index += 1;
        }
        target.truncate(len);
        Ok(target)
    }

    /// Fails unless the fragments from `start` on are the volume's.
    pub(super) fn check_range(&self, ino: u32, start: u64, count: u64) -> Result<()> {
        // What is before the first group's contents is no file's; a pointer of 0 is a hole, and none.
        let sb = &self.sb;
        let per_block = u64::from(sb.fragments_per_block());
        let is_sound = start.checked_add(count).is_some_and(|end| {
            let meets = |group: u32| {
                let own = sb.metadata_of(group);
                start < own.end && own.start < end
            };
            end <= sb.fragments
                // A part of a block is of one; whole ones begin where one does.
                && (start.is_multiple_of(per_block) || start % per_block + count <= per_block)
                && !(sb.group_of(start).0..=sb.group_of(end.saturating_sub(1)).0).any(meets)
        });
        if is_sound { Ok(()) } else { Err(damaged_inode(ino, format!("a pointer to fragment {start}"))) }
    }
}

/// Fails if the volume on `device` may not be written, by name and with what to do about it.
///
/// # Errors
/// `Unsupported`, `Corrupt`, `Io`.
pub fn may_be_written(device: &dyn BlockDevice) -> Result<()> {
    let sb = Superblock::read(device)?;
    check_writable(&sb)?;
    check_summaries(&sb)?;
    if sb.kept_hashes() & hashed::SUPERBLOCK == 0 || hashes::is_super_right(sb.order, &sb.bytes(device)?) {
        return Ok(());
    }
    Err(wrong_superblock())
}

/// Who does not see what is wrong would write over it.
pub(super) fn wrong_superblock() -> Error {
    let problem = "its check hash does not match: `fstitch fsck` looks at it, or mount it read-only";
    Error::corrupt(Structure::Superblock, None, problem)
}

/// Refuses to write a volume of which something could not be kept right, by name, with what to do about it.
pub(super) fn check_writable(sb: &Superblock) -> Result<()> {
    let name = sb.version.name();
    let has = |flag: u32| sb.flags & flag != 0;
    let why = if sb.has_snapshots {
        "there are snapshots inside, which would have to keep what changes: remove them with the system that made them"
    } else if has(flag::GJOURNAL) {
        "its flag `gjournal` says that a journal below it is replayed instead of a check: switch it off (`tunefs -J disable`)"
    } else if has(flag::SUJ) && sb.is_unclean() {
        "it was not unmounted and its journal of soft updates is not replayed here: let the system that made it check it"
    } else if has(flag::NFS4_ACLS_OR_WAPBL) && sb.has_log {
        // NetBSD takes the flag away when the log ends.
        "its journal (WAPBL) is in use, and not replayed here: let NetBSD mount or check it (`fsck_ffs`)"
    } else if has(flag::HASHES_OR_QUOTA) && sb.hashes == 0 {
        "it counts quotas as NetBSD does, which are not kept here: switch them off (`tunefs -q nouser -q nogroup`)"
    } else if sb.is_unclean() {
        "it was not unmounted: a check that mends what that leaves comes first (`fstitch fsck -p`)"
    } else if sb.is_old {
        "its format is that of 4.3BSD, whose names have no kinds: mount read-only"
    } else if !sb.is_updated {
        "its superblock is of before FreeBSD 5, and NetBSD keeps the tables of rotational positions in the groups of such a volume, which are not kept here: FreeBSD gives them up when it mounts it for writing"
    } else {
        return Ok(());
    };
    Err(Error::Unsupported(format!("writing this {name} volume: {why}; it can be mounted read-only")))
}

/// Fails unless the counts of all groups lie where they may be written.
fn check_summaries(sb: &Superblock) -> Result<()> {
    let (at, bytes) = sb.summaries;
    let end = at.checked_add(u64::from(bytes).div_ceil(u64::from(sb.fragment_size)));
    let has_room = u64::from(bytes) >= u64::from(sb.groups) * SUMMARY_LEN;
    if has_room && at >= u64::from(sb.parts[3]) && end.is_some_and(|end| end <= sb.fragments) {
        return Ok(());
    }
    let problem = format!("the counts of {} groups in {bytes} bytes at fragment {at}", sb.groups);
    Err(Error::corrupt(Structure::Superblock, None, problem))
}

/// Reads the superblock through a cache of any block size.
fn read_superblock(cache: &Cache) -> Result<Superblock> {
    let size = to_u64(cache.block_size());
    Superblock::read_by(cache.block_count() * size, |at| {
        let skip = to_usize(at % size);
        let mut found = Vec::new();
        for block in at / size..(at + to_u64(READ)).div_ceil(size) {
            found.extend_from_slice(&cache.read(BlockNo(block), BlockKind::Superblock)?.snapshot());
        }
        Ok(found[skip..skip + READ].to_vec())
    })
}
