//! The quota files of a volume in use.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, FileKind, InodeNo, Result};

use super::Graces;
use super::tree::{Edit, Insertion, Source, Tree};
use crate::ext2::inode::Inode;
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::inode::DiskInode;
use crate::ext2::layout::quota::{Dquot, Header, QUOTA_BLOCK, QuotaKind, block_start};
use crate::ext2::num::{idx64, wide};
use crate::ext2::volume::Ext2;
use crate::gather::Gather;
use crate::uhfs::AttrChange;

/// Those of all kinds.
pub(in crate::ext2) struct Quotas {
    files: [Option<QuotaFile>; 3],
}

/// One of them.
pub(super) struct QuotaFile {
    pub(super) kind: QuotaKind,
    pub(super) graces: Graces,
    state: Mutex<State, rank::Quota>,
}

struct State {
    inode: Inode,
    header: Header,
    /// Where the entries are that were looked for: block and byte.
    places: BTreeMap<u32, (BlockNo, usize)>,
}

/// The file's blocks in the cache.
struct Cached<'v> {
    volume: &'v Ext2,
    inode: &'v Inode,
    kind: QuotaKind,
}

impl Source for Cached<'_> {
    fn block(&self, no: u32) -> Result<Vec<u8>> {
        let (block, at) = self.volume.quota_place(self.kind, self.inode, no)?;
        let bytes = self.volume.cache.read(block, BlockKind::Indirect)?.snapshot();
        Ok(bytes[at..at + QUOTA_BLOCK].to_vec())
    }
}

impl Quotas {
    /// The file of a kind, if usage is counted for it.
    pub(super) fn of(&self, kind: QuotaKind) -> Option<&QuotaFile> {
        self.files[kind.index()].as_ref()
    }

    /// How many kinds there are.
    pub(in crate::ext2) fn kinds(&self) -> usize {
        self.files.iter().flatten().count()
    }
}

impl Ext2 {
    /// Opens the quota files of a volume that will be changed; `None` if it has none.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if one cannot be used.
    pub(in crate::ext2) fn open_quotas(&self) -> Result<Option<Box<Quotas>>> {
        if self.cache.options().read_only || !self.sb.features.has_ro_compat(ro_compat::QUOTA) {
            return Ok(None);
        }
        let mut files = [None, None, None];
        for (kind, &ino) in QuotaKind::ALL.into_iter().zip(&self.sb.quota_inodes) {
            if ino != 0 {
                files[kind.index()] = Some(self.open_quota(kind, ino)?);
            }
        }
        Ok(Some(Box::new(Quotas { files })))
    }

    fn open_quota(&self, kind: QuotaKind, ino: u32) -> Result<QuotaFile> {
        if !self.sb.is_quota_inode(kind, ino) {
            return Err(kind.damaged(format!("it is inode {ino}")));
        }
        let at = self.inode_place(ino)?;
        let bytes = self.cache.read(at.0, BlockKind::Inode)?.snapshot();
        if let Some(seal) = &self.seal {
            seal.check_inode(ino, at.0)?;
        }
        let raw = &bytes[at.1..at.1 + usize::from(self.sb.inode_size)];
        let disk = DiskInode::parse(raw, InodeNo(u64::from(ino)), at.0, &self.sb)?;
        if disk.kind != FileKind::Regular || disk.nlink == 0 || disk.has_inline_data() {
            return Err(kind.damaged(format!("inode {ino} is no file")));
        }
        let inode = Inode::new(ino, at, disk, Gather::default());
        let raw = Cached { volume: self, inode: &inode, kind }.block(0)?;
        let header = Header::parse(&raw, kind, inode.disk.size)?;
        let graces = Graces { space: header.block_grace, inodes: header.inode_grace };
        let state = Mutex::new(State { inode, header, places: BTreeMap::new() });
        Ok(QuotaFile { kind, graces, state })
    }

    /// Where a block of 1 KiB is: the volume's block, and the byte in it.
    fn quota_place(&self, kind: QuotaKind, inode: &Inode, no: u32) -> Result<(BlockNo, usize)> {
        let start = wide(block_start(no));
        let unit = u64::from(self.sb.block_size);
        let hole = || kind.damaged(format!("there is a hole at byte {start}"));
        let block = self.map_run(inode, start / unit, 1)?.contents().ok_or_else(hole)?;
        if !self.is_file_run(block.get(), 1)? {
            return Err(kind.damaged(format!("its block {block} is outside the blocks for files")));
        }
        Ok((block, idx64(start % unit)))
    }

    /// Where the entry of `id` is, which gets one if it has none: block and byte.
    ///
    /// # Errors
    /// `ENOSPC` without a block for it, `Io`, `Corrupt`; nothing has changed then but the file's length.
    pub(super) fn quota_entry(&self, file: &QuotaFile, id: u32) -> Result<(BlockNo, usize)> {
        let mut state = file.state.lock();
        if let Some(&place) = state.places.get(&id) {
            return Ok(place);
        }
        let (inode, header) = (&state.inode, state.header);
        let source = Cached { volume: self, inode, kind: file.kind };
        let tree = Tree { source: &source, kind: file.kind, header };
        let place = match tree.find(id)? {
            Some(place) => place,
            None => {
                let insertion = tree.insert(id, &Dquot::default())?;
                self.put_insertion(file.kind, &mut state, insertion)?
            }
        };
        let (block, within) = self.quota_place(file.kind, &state.inode, place.block)?;
        let found = (block, within + place.at);
        state.places.insert(id, found);
        Ok(found)
    }

    /// Makes an entry as it was worked out.
    fn put_insertion(
        &self,
        kind: QuotaKind,
        state: &mut State,
        insertion: Insertion,
    ) -> Result<super::tree::Place> {
        while wide(block_start(insertion.header.blocks)) > state.inode.disk.size {
            self.grow_quota(&mut state.inode)?;
        }
        let blocks = |edit: Edit| {
            let (no, at) = self.quota_place(kind, &state.inode, edit.block)?;
            Ok((self.cache.read(no, BlockKind::Indirect)?, at + edit.at, edit.bytes))
        };
        let edits: Vec<_> = insertion.edits.into_iter().map(blocks).collect::<Result<_>>()?;
        let mut tx = self.cache.lock();
        for (block, at, bytes) in &edits {
            tx.bytes(block, *at, bytes, &[]);
        }
        drop(tx);
        state.header = insertion.header;
        Ok(insertion.place)
    }

    /// Gives a quota file another block of zeros.
    fn grow_quota(&self, inode: &mut Inode) -> Result<()> {
        let unit = u64::from(self.sb.block_size);
        let index = inode.disk.size.div_ceil(unit);
        // Who makes the last file of a full volume may have its owner counted.
        let superuser = Caller::default();
        if self.map_run(inode, index, 1)?.start.is_none() && inode.disk.size.is_multiple_of(unit) {
            let allocation = self.allocate_run(&superuser, inode, index, 1)?;
            let block = match self.cache.fresh(allocation.start, BlockKind::Indirect) {
                Ok(block) => block,
                Err(error) => {
                    self.give_back_allocation(inode, allocation);
                    return Err(error);
                }
            };
            let zeros = Arc::new(BlockBuf::zeroed(self.block_size()));
            let init = self.cache.lock().init(&block, zeros, &allocation.reuse);
            self.attach_run(inode, allocation, &[init])?;
        }
        let size = (inode.disk.size / unit + 1) * unit;
        self.change_attr(inode, &AttrChange { size: Some(size), ..AttrChange::default() }, &[])?;
        Ok(())
    }
}
