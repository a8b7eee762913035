//! The open volume, and its inodes.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    Attr, BlockKind, BlockNo, Errno, Error, FileKind, InodeFlags, InodeNo, Result, StatFs, Structure,
};
use fstitch_patch::Cache;

use super::damaged_inode;
use super::layout::dirent::{Manner, NAME_MAX};
use super::layout::inode::{DiskInode, flag as inode_flag};
use super::layout::superblock::{READ, ROOT_INO, Superblock};
use crate::uhfs::Limits;

/// The longest target of a symbolic link, in bytes: that of a path.
const SYMLINK_MAX: usize = 1023;

/// An open UFS volume.
pub struct Ufs {
    pub(super) cache: Arc<Cache>,
    pub(super) sb: Superblock,
}

impl std::fmt::Debug for Ufs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ufs({} fragments of {} bytes)", self.sb.fragments, self.sb.fragment_size)
    }
}

/// A loaded inode.
#[derive(Debug)]
pub struct Inode {
    pub(super) ino: u32,
    pub(super) disk: DiskInode,
}

impl Ufs {
    /// Opens the volume in `cache`, whose blocks must be its fragments. Changes nothing.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if it is no such volume; `Unsupported` in a cache that is not read-only.
    pub fn open_in(cache: Arc<Cache>) -> Result<Self> {
        let sb = read_superblock(&cache)?;
        if sb.fragment_len() != cache.block_size() {
            let problem =
                format!("fragments of {} bytes, opened with {}", sb.fragment_size, cache.block_size());
            return Err(Error::corrupt(Structure::Superblock, None, problem));
        }
        if !cache.options().read_only {
            return Err(Error::Unsupported(format!(
                "writing {} volumes: mount read-only",
                sb.version.name()
            )));
        }
        Ok(Self { cache, sb })
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
            size_max: self.sb.size_max(),
            symlink_max: SYMLINK_MAX,
            block_size: self.sb.fragment_len(),
            shift_unit: self.sb.fragment_len(),
        }
    }

    pub(super) fn space(&self) -> StatFs {
        let (sb, totals) = (&self.sb, self.sb.totals);
        let free = totals.blocks.saturating_mul(u64::from(sb.fragments_per_block()));
        let free = free.saturating_add(totals.fragments).min(sb.data_fragments);
        let kept = sb.data_fragments / 100 * u64::from(sb.reserved);
        let inodes = u64::from(sb.inodes() - ROOT_INO);
        StatFs {
            block_size: sb.fragment_size,
            blocks: sb.data_fragments,
            blocks_free: free,
            blocks_available: free.saturating_sub(kept),
            inodes,
            inodes_free: totals.inodes.min(inodes),
            name_max: u32::try_from(NAME_MAX).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn load_inode(&self, no: InodeNo) -> Result<Inode> {
        let ino = u32::try_from(no.0).ok().filter(|ino| (ROOT_INO..self.sb.inodes()).contains(ino));
        let ino = ino.ok_or(Errno::STALE)?;
        let raw = self.inode_bytes(ino)?;
        let disk = DiskInode::parse(&raw, ino, &self.sb)?.ok_or(Errno::STALE)?;
        Ok(Inode { ino, disk })
    }

    /// The bytes of an inode that the volume has.
    pub(super) fn inode_bytes(&self, ino: u32) -> Result<Vec<u8>> {
        let (block, offset) = self.sb.inode_place(ino);
        if block.get() >= self.sb.fragments {
            return Err(damaged_inode(ino, format!("it would lie in fragment {block}")));
        }
        let len = to_usize(self.sb.version.inode_size());
        Ok(self.cache.read(block, BlockKind::Inode)?.snapshot()[offset..offset + len].to_vec())
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
        match start.checked_add(count) {
            Some(end) if end <= self.sb.fragments && start >= u64::from(self.sb.parts[3]) => Ok(()),
            _ => Err(damaged_inode(ino, format!("a pointer to fragment {start}"))),
        }
    }
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
