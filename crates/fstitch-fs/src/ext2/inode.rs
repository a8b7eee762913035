//! Inodes in memory, and the patches on their bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{
    Attr, BlockKind, BlockNo, Errno, Error, FileKind, InodeFlags, InodeNo, Result, Structure,
};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::alloc::Run;
use super::blockmap::LeafHint;
use super::clusters::Claims;
use super::dir::DirMemory;
use super::extents::{Ends, NodeHint};
use super::layout::feature::ro_compat;
use super::layout::inode::{self as raw, DiskInode};
use super::layout::xattr::XattrSet;
use super::layout::{Field, FieldInt};
use super::num::idx64;
use super::quota::Usage;
use super::seal;
use super::volume::Ext2;
use super::xattr::body_range;
use crate::gather::Gather;

/// How many attachments an inode remembers.
const ATTACHED_MAX: usize = 256;

/// A loaded inode.
pub struct Inode {
    pub(super) ino: u32,
    /// Where it lies: block and byte.
    pub(super) at: (BlockNo, usize),
    /// Its fields, always the newest.
    pub(super) disk: DiskInode,
    /// The patch that initialised it, if this life of it began in memory.
    pub(super) born: PatchId,
    pub(super) attached: Attached,
    /// Gathers the patches on the inode's bytes and its pointers.
    gather: Gather,
    gather_listed: Gather,
    /// Indirect blocks taken for allocations not attached yet, by level and first file block.
    pub(super) reserved: BTreeMap<(usize, u64), Run>,
    /// Blocks taken for new nodes of its extent tree.
    pub(super) spare_nodes: Vec<Run>,
    /// Allocations not attached or given back yet.
    pub(super) outstanding: u32,
    /// Clusters of allocations not attached or given back yet.
    pub(super) claims: Claims,
    /// The indirect block that was met last.
    pub(super) leaf: LeafHint,
    /// The leaf of its extent tree that was met last.
    pub(super) node_hint: NodeHint,
    /// The last allocation: the file block and the volume's block behind it.
    pub(super) last: Option<(u64, u64)>,
    /// Blocks that are kept free for it behind that.
    pub(super) window: u32,
    /// Where it may end on the medium.
    pub(super) ends: Ends,
    /// How many file blocks somebody has said that it will have, all of them; 0 if nobody has.
    pub(super) expected: u64,
    /// It may have attributes in its own bytes.
    pub(super) body_attributes: bool,
    /// Blocks of allocations not attached or given back yet.
    pub(super) ahead: u64,
    /// What its owners were charged for.
    pub(super) charged: Usage,
    /// It was freed.
    pub(super) has_ended: bool,
    /// The patch that has moved its contents out of its own bytes.
    pub(super) moved: PatchId,
    /// Of directories.
    pub(super) dir: OnceLock<Arc<Mutex<DirMemory, rank::Names>>>,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({}, {:?})", self.ino, self.disk)
    }
}

/// Which patches made blocks reachable, as long as these may be unflown. Forgetting an entry is safe: freeing
/// the block then waits for its pointer.
#[derive(Debug, Default)]
pub(super) struct Attached(BTreeMap<u64, (u64, PatchId)>);

impl Attached {
    /// Blocks `start..start + count` of the volume are reachable through `patch`.
    pub(super) fn insert(&mut self, start: u64, count: u32, patch: PatchId) {
        if self.0.len() >= ATTACHED_MAX {
            self.0.pop_first();
        }
        if let Some((_, (before, same))) = self.0.range_mut(..start).next_back()
            && *same == patch
            && *before == start
        {
            *before = start + u64::from(count);
            return;
        }
        self.0.insert(start, (start + u64::from(count), patch));
    }

    /// Blocks `start..end` are not the inode's any more. Entries that reach beyond them go entirely.
    pub(super) fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, &(last, _))) = self.0.range(..end).next_back() {
            if last <= start {
                break;
            }
            self.0.remove(&first);
        }
    }

    /// What made `block` reachable, and up to where the same holds.
    pub(super) fn covering(&self, block: u64) -> Option<(u64, PatchId)> {
        self.0.range(..=block).next_back().map(|(_, &entry)| entry).filter(|&(end, _)| end > block)
    }

    /// The first remembered block behind `block`.
    pub(super) fn next_after(&self, block: u64) -> Option<u64> {
        self.0.range(block.saturating_add(1)..).next().map(|(&start, _)| start)
    }
}

impl Inode {
    pub(super) fn new(ino: u32, at: (BlockNo, usize), disk: DiskInode, gather: Gather) -> Self {
        Self {
            ino,
            at,
            disk,
            born: PatchId::NONE,
            attached: Attached::default(),
            gather,
            gather_listed: gather,
            reserved: BTreeMap::new(),
            spare_nodes: Vec::new(),
            outstanding: 0,
            claims: Claims::new(),
            leaf: LeafHint::default(),
            node_hint: NodeHint::default(),
            last: None,
            window: 0,
            ends: Ends::default(),
            expected: 0,
            body_attributes: true,
            ahead: 0,
            charged: Usage::default(),
            has_ended: false,
            moved: PatchId::NONE,
            dir: OnceLock::new(),
        }
    }

    /// Patches a field of the inode in `block`, its block, after `befores`.
    pub(super) fn put<T: FieldInt>(
        &mut self,
        tx: &mut Tx<'_>,
        block: &Block,
        (field, value): (Field<T>, T),
        befores: &[PatchId],
    ) -> PatchId {
        self.put_bytes(tx, block, (field.offset(), value.encode().as_ref()), befores)
    }

    /// Patches bytes of the inode, from its start on.
    pub(super) fn put_bytes(
        &mut self,
        tx: &mut Tx<'_>,
        block: &Block,
        (offset, bytes): (usize, &[u8]),
        befores: &[PatchId],
    ) -> PatchId {
        let patch = tx.bytes(block, self.at.1 + offset, bytes, befores);
        self.gather(tx, patch);
        patch
    }

    /// `befores`, and what has moved the inode's contents out of its bytes.
    pub(super) fn with_move(&self, befores: &[PatchId]) -> PatchIds {
        let mut befores = PatchIds::from_slice(befores);
        if self.moved != PatchId::NONE {
            befores.push(self.moved);
        }
        befores
    }

    /// Makes the inode's `fsync` wait for `patch`.
    pub(super) fn gather(&mut self, tx: &mut Tx<'_>, patch: PatchId) {
        self.gather.add(tx, patch);
    }

    pub(super) fn has_blocks(&self, volume: &Ext2) -> bool {
        self.disk.has_blocks(volume.sb.block_size)
    }

    /// The inode as the word that tells seals whose a block is.
    pub(super) fn owner(&self) -> u64 {
        seal::owner(self.ino, self.disk.generation)
    }

    /// Whether its block map is extents.
    pub(super) fn has_extents(&self) -> bool {
        self.disk.has_extents()
    }

    /// Its number of blocks, for directories.
    pub(super) fn dir_blocks(&self, volume: &Ext2) -> u64 {
        self.disk.size / u64::from(volume.sb.block_size)
    }

    /// Damage in this inode.
    pub(super) fn damaged(&self, problem: impl Into<String>) -> Error {
        Error::corrupt(Structure::Inode(u64::from(self.ino)), self.at.0, problem)
    }

    pub(super) fn no(&self) -> InodeNo {
        InodeNo(u64::from(self.ino))
    }
}

impl Ext2 {
    /// Where inode `ino` lies.
    pub(super) fn inode_place(&self, ino: u32) -> Result<(BlockNo, usize)> {
        let table = self.group(self.sb.group_of_inode(ino))?.at.inode_table;
        Ok(super::layout::inode::place(&self.sb, table, ino))
    }

    /// The block of the inode table that holds the inode.
    pub(super) fn inode_block(&self, inode: &Inode) -> Result<Block> {
        self.cache.read(inode.at.0, BlockKind::Inode)
    }

    /// Patches the fields that hold the inode's storage: a hint, without dependencies.
    pub(super) fn put_sectors(&self, tx: &mut Tx<'_>, inode: &mut Inode, block: &Block) {
        let (low, high) = inode.disk.storage_fields(self.sb.block_size);
        inode.put(tx, block, (raw::I_BLOCKS, low), &[]);
        let counted_high = self.sb.features.has_ro_compat(ro_compat::HUGE_FILE);
        if counted_high && raw::I_BLOCKS_HIGH.get(&tx.data(block)[inode.at.1..]) != high {
            inode.put(tx, block, (raw::I_BLOCKS_HIGH, high), &[]);
        }
    }

    /// Reads an inode that has names.
    pub(super) fn load_inode(&self, ino: InodeNo) -> Result<Inode> {
        let inode = self.load_any(ino)?;
        if inode.disk.nlink == 0 { Err(Errno::STALE.into()) } else { Ok(inode) }
    }

    /// Reads an inode that is in use, even if it has no name any more: for reclaiming what a crash has left.
    ///
    /// # Errors
    /// `ESTALE` if it is not in use, [`Error::Corrupt`] if it is damaged.
    pub fn load_any(&self, ino: InodeNo) -> Result<Inode> {
        let number = u32::try_from(ino.get()).unwrap_or(0);
        if number == 0 || number > self.sb.inodes_count || self.sb.is_own_inode(number) {
            return Err(Errno::STALE.into());
        }
        let at = self.inode_place(number)?;
        let block = self.cache.read(at.0, BlockKind::Inode)?;
        let bytes = block.snapshot();
        let raw = &bytes[at.1..at.1 + usize::from(self.sb.inode_size)];
        let free = super::layout::inode::I_LINKS_COUNT.get(raw) == 0
            && (super::layout::inode::I_MODE.get(raw) == 0 || super::layout::inode::I_DTIME.get(raw) != 0);
        if free {
            return Err(Errno::STALE.into());
        }
        if let Some(seal) = &self.seal {
            seal.check_inode(number, at.0)?;
        }
        let disk = DiskInode::parse(raw, ino, at.0, &self.sb)?;
        let gather = self.memory.inodes().gathers.get(&number).copied().unwrap_or_default();
        let body = &raw[body_range(self.sb.inode_size, disk.extra_isize)];
        let body_attributes = XattrSet::is_in_body(body);
        let charged = disk.usage();
        Ok(Inode { body_attributes, charged, ..Inode::new(number, at, disk, gather) })
    }

    /// Lists what gathers the inode's patches, so that it is found again when the inode was forgotten.
    pub(super) fn remember(&self, inode: &mut Inode) {
        if inode.gather != inode.gather_listed {
            inode.gather_listed = inode.gather;
            self.memory.inodes().gathers.insert(inode.ino, inode.gather, &self.cache);
        }
    }

    pub(super) fn gathered(inode: &Inode) -> PatchIds {
        inode.gather.ids()
    }

    #[inline]
    pub(super) fn attributes(&self, inode: &Inode) -> Attr {
        let disk = &inode.disk;
        Attr {
            ino: inode.no(),
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
        InodeFlags(inode.disk.flags)
    }

    pub(super) fn read_symlink(&self, inode: &Inode) -> Result<Vec<u8>> {
        if inode.disk.kind != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        if inode.disk.has_inline_data() {
            return self.inline_bytes(inode);
        }
        let len = idx64(inode.disk.size);
        if inode.disk.is_fast_symlink(self.sb.block_size) {
            return Ok(super::layout::inode::pointer_bytes(&inode.disk.block)[..len].to_vec());
        }
        let Some(block) = self.map_run(inode, 0, 1)?.contents() else {
            return Err(inode.damaged("a symbolic link without a target"));
        };
        let bytes = self.cache.read(block, BlockKind::Attribute)?.snapshot();
        Ok(bytes[..len.min(bytes.len())].to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_join_and_are_found() {
        let mut attached = Attached::default();
        attached.insert(10, 5, PatchId::NONE);
        attached.insert(15, 5, PatchId::NONE);
        assert_eq!(attached.covering(12), Some((20, PatchId::NONE)));
        assert_eq!(attached.covering(20), None);
        assert_eq!(attached.next_after(3), Some(10));
        assert_eq!(attached.next_after(10), None);
        attached.insert(30, 5, PatchId::NONE);
        attached.remove(19, 31);
        assert_eq!(attached.next_after(0), None);
    }
}
