//! The volume behind its source: inodes by number, pointers, and what a pointer may be.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, Result};

use super::raw::RawInode;
use super::source::Source;
use crate::ufs::hashes;
use crate::ufs::layout::dirent::Manner;
use crate::ufs::layout::inode::{DIRECT, flag as inode_flag};
use crate::ufs::layout::superblock::{
    READ, ROOT_INO, SUPERBLOCK_MAX, Superblock, Version, at as field, hashed,
};
use crate::ufs::order::Order;

/// Fields of the superblock that only the checker reads or writes, by their bytes.
pub(super) mod at {
    pub(in super::super) const OLD_TIME: usize = 32;
    pub(in super::super) const OLD_CPG: usize = 180;
    pub(in super::super) const OLD_TOTALS: usize = 192;
    pub(in super::super) const MODIFIED: usize = 208;
    pub(in super::super) const CLEAN: usize = 209;
    pub(in super::super) const READ_ONLY: usize = 210;
    pub(in super::super) const OLD_FLAGS: usize = 211;
    pub(in super::super) const JOURNAL_INODE: usize = 896;
    pub(in super::super) const QUOTA_INODES: [usize; 2] = [912, 920];
    pub(in super::super) const PRIMARY: usize = 1000;
    pub(in super::super) const TOTALS: usize = 1008;
    pub(in super::super) const TIME: usize = 1072;
    pub(in super::super) const PENDING_BLOCKS: usize = 1104;
    pub(in super::super) const PENDING_INODES: usize = 1112;
    pub(in super::super) const SNAPSHOTS: usize = 1116;
    pub(in super::super) const MOUNTED: usize = 1208;
    pub(in super::super) const UNLINKED: usize = 1216;
    pub(in super::super) const HASHES: usize = 1308;
    pub(in super::super) const FLAGS: usize = 1312;
    pub(in super::super) const CLUSTERS: usize = 1316;
    pub(in super::super) const OLD_POSITIONS: usize = 1360;
}

/// The bit of the old flags that says that the new places of fields are used.
pub(super) const FLAGS_UPDATED: u8 = 0x80;
/// Among flags that are where they once were: it was not unmounted in an orderly way, or a check is due.
pub(super) const OLD_UNCLEAN: u8 = 5;
/// Check hashes on FreeBSD, quotas on NetBSD.
pub(super) const HASHES_OR_QUOTA: u32 = 0x200;
/// NFSv4 ACLs on FreeBSD, a journal in use on NetBSD.
pub(super) const ACLS_OR_JOURNAL: u32 = 0x100;
/// How many snapshots there may be.
const SNAPSHOTS: usize = 20;
/// NetBSD's journal lies inside the volume, in an inode without a name.
const JOURNAL_INSIDE: u8 = 2;

/// A volume.
pub(super) struct Volume<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) shape: Superblock,
    /// The superblock's bytes.
    pub(super) raw: Vec<u8>,
}

impl Volume<'_> {
    pub(super) fn order(&self) -> Order {
        self.shape.order
    }

    pub(super) fn is_two(&self) -> bool {
        self.shape.version == Version::Two
    }

    /// Whether the superblock uses the places that are wide enough.
    pub(super) fn is_updated(&self) -> bool {
        self.is_two() || self.raw[at::OLD_FLAGS] & FLAGS_UPDATED != 0
    }

    pub(super) fn manner(&self) -> Manner {
        Manner { order: self.shape.order, is_old: self.shape.is_old }
    }

    /// A number of the superblock, of 4 bytes.
    pub(super) fn word(&self, at: usize) -> u32 {
        self.order().u32(&self.raw, at)
    }

    /// The same of 8 bytes.
    pub(super) fn long(&self, at: usize) -> u64 {
        self.order().u64(&self.raw, at)
    }

    /// Bytes of a fragment.
    pub(super) fn fragment(&self) -> u64 {
        self.shape.fragment_size.into()
    }

    /// Bytes of a block.
    pub(super) fn block(&self) -> u64 {
        self.shape.block_size.into()
    }

    /// Fragments of a block.
    pub(super) fn per_block(&self) -> u64 {
        self.shape.fragments_per_block().into()
    }

    /// Pointers in a block.
    pub(super) fn pointers(&self) -> u64 {
        self.shape.pointers_per_block().into()
    }

    /// The first fragment of a group.
    pub(super) fn group_first(&self, group: u32) -> u64 {
        u64::from(group) * u64::from(self.shape.group_fragments)
    }

    /// Where part `part` of a group's metadata begins, as [`Superblock::parts`] lists them.
    pub(super) fn part(&self, group: u32, part: usize) -> u64 {
        self.shape.group_start(group) + u64::from(self.shape.parts[part])
    }

    /// 512-byte units of a fragment.
    pub(super) fn sectors_per_fragment(&self) -> u64 {
        self.fragment() / 512
    }

    /// Reads `count` fragments.
    pub(super) fn read(&self, at: u64, count: u64, kind: BlockKind) -> Result<Vec<u8>> {
        let mut bytes = vec![0; to_usize(count * self.fragment())];
        self.source.read(at, kind, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn write(&self, at: u64, kind: BlockKind, bytes: &[u8]) -> Result<()> {
        self.source.write(at, kind, bytes)
    }

    /// Reads an inode that the volume has.
    pub(super) fn read_inode(&self, ino: u32) -> Result<RawInode> {
        let (block, offset) = self.shape.inode_place(ino);
        let bytes = self.read(block.get(), 1, BlockKind::Inode)?;
        let len = to_usize(self.shape.version.inode_size());
        Ok(RawInode::new(bytes[offset..offset + len].to_vec(), &self.shape))
    }

    pub(super) fn write_inode(&self, ino: u32, inode: &RawInode) -> Result<()> {
        let (block, offset) = self.shape.inode_place(ino);
        let mut bytes = self.read(block.get(), 1, BlockKind::Inode)?;
        let raw = &mut bytes[offset..offset + inode.bytes.len()];
        raw.copy_from_slice(&inode.bytes);
        if self.hashes_inodes() {
            hashes::seal_inode(self.order(), raw);
        }
        self.write(block.get(), BlockKind::Inode, &bytes)
    }

    /// Pointer `index` of those in `bytes`.
    pub(super) fn pointer(&self, bytes: &[u8], index: u64) -> u64 {
        let at = to_usize(index * u64::from(self.shape.version.pointer_size()));
        match self.shape.version {
            Version::One => self.order().u32(bytes, at).into(),
            Version::Two => self.order().u64(bytes, at),
        }
    }

    pub(super) fn put_pointer(&self, bytes: &mut [u8], index: u64, pointer: u64) {
        let at = to_usize(index * u64::from(self.shape.version.pointer_size()));
        match self.shape.version {
            Version::One => self.order().put_u32(bytes, at, u32::try_from(pointer).unwrap_or(0)),
            Version::Two => self.order().put_u64(bytes, at, pointer),
        }
    }

    /// Whether fragments can be a file's: they are the volume's, in one block, and no metadata of a group.
    pub(super) fn is_valid(&self, start: u64, count: u64) -> bool {
        let Some(end) = start.checked_add(count).filter(|&end| end <= self.shape.fragments) else {
            return false;
        };
        let in_block = count > 0 && start % self.per_block() + count <= self.per_block();
        let Ok(group) = u32::try_from(start / u64::from(self.shape.group_fragments)) else { return false };
        // In UFS1 the metadata may begin later than the group; what is before them there is contents as well.
        let is_before = group > 0 && end <= self.part(group, 0);
        in_block && start != 0 && (is_before || start >= self.part(group, 3))
    }

    /// How many fragments block `block` of a file of `size` bytes has: the last one ends with the file, if it is one of the first.
    pub(super) fn block_len(&self, size: u64, block: u64) -> u64 {
        if block >= to_u64(DIRECT) {
            return self.per_block();
        }
        let here = size.saturating_sub(block * self.block());
        here.div_ceil(self.fragment()).clamp(1, self.per_block())
    }

    /// Where the superblock's bytes lie: fragments, their number, and the byte in the first one.
    fn super_place(&self, byte: u64) -> (u64, u64, usize) {
        let inside = byte % self.fragment();
        let count = (inside + to_u64(READ)).div_ceil(self.fragment());
        (byte / self.fragment(), count, to_usize(inside))
    }

    /// The superblock's or a copy's bytes at byte `byte`.
    pub(super) fn read_super(&self, byte: u64) -> Result<Vec<u8>> {
        let (at, count, inside) = self.super_place(byte);
        let bytes = self.read(at, count, BlockKind::Superblock)?;
        Ok(bytes[inside..inside + READ].to_vec())
    }

    /// Changes the superblock or a copy at byte `byte`.
    pub(super) fn edit_super(&self, byte: u64, edit: impl FnOnce(&mut [u8])) -> Result<()> {
        let (at, count, inside) = self.super_place(byte);
        let mut bytes = self.read(at, count, BlockKind::Superblock)?;
        edit(&mut bytes[inside..inside + READ]);
        self.write(at, BlockKind::Superblock, &bytes)
    }

    /// The flags, from where they are.
    pub(super) fn flags(&self) -> u32 {
        self.shape.flags
    }

    /// There are snapshots inside. The list may have what is none any more.
    pub(super) fn has_snapshots(&self) -> Result<bool> {
        if !self.is_updated() {
            return Ok(false);
        }
        for no in 0..SNAPSHOTS {
            let ino = self.word(at::SNAPSHOTS + no * 4);
            let may_be = (ROOT_INO + 1..self.shape.inodes()).contains(&ino);
            if may_be && self.read_inode(ino)?.flags() & inode_flag::SNAPSHOT != 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether inodes have check hashes.
    pub(super) fn hashes_inodes(&self) -> bool {
        self.shape.kept_hashes() & hashed::INODE != 0
    }

    /// Whether something has check hashes that are not made again with each change.
    pub(super) fn has_other_hashes(&self) -> bool {
        self.shape.says_hashed() && self.shape.hashes != hashes::in_use(self.shape.kept_hashes())
    }

    /// Whether the superblock has the check hash that it should, if any.
    pub(super) fn is_super_right(&self) -> Result<bool> {
        if self.shape.kept_hashes() & hashed::SUPERBLOCK == 0 {
            return Ok(true);
        }
        let (byte, fragment) = (self.shape.at, self.fragment());
        let end = (byte + to_u64(SUPERBLOCK_MAX)).div_ceil(fragment).min(self.shape.fragments);
        let first = byte / fragment;
        let bytes = self.read(first, end.saturating_sub(first), BlockKind::Superblock)?;
        Ok(hashes::is_super_right(self.order(), &bytes[to_usize(byte % fragment)..]))
    }

    /// NetBSD counts quotas, in files without names.
    pub(super) fn has_quotas(&self) -> bool {
        self.is_updated() && self.flags() & HASHES_OR_QUOTA != 0 && self.word(at::HASHES) == 0
    }

    /// NetBSD's journal is somewhere.
    fn has_journal(&self) -> bool {
        self.is_updated() && self.shape.has_log
    }

    /// NetBSD's journal is in use.
    pub(super) fn is_journaled(&self) -> bool {
        self.flags() & ACLS_OR_JOURNAL != 0 && self.has_journal()
    }

    /// Inodes that NetBSD keeps without names: its journal and quotas.
    pub(super) fn hidden(&self) -> Vec<u32> {
        let mut found = Vec::new();
        let mut add = |at: usize| found.extend(u32::try_from(self.long(at)).ok().filter(|&ino| ino > 2));
        if self.has_journal() && self.raw[field::JOURNAL_LOCATION] == JOURNAL_INSIDE {
            add(at::JOURNAL_INODE);
        }
        if self.has_quotas() {
            at::QUOTA_INODES.into_iter().for_each(add);
        }
        found
    }
}
