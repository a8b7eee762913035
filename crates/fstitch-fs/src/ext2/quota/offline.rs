//! Charging owners for what a batch changes on a volume that nobody has open: recovery's, of orphans and of fast commits.
//!
//! What a batch changes of usage is the difference of the inodes that it has changed, before and after, so whoever works in batches has
//! nothing to do for it.
//!
//! **Crash cases.** Entries are in the batch's transaction.

use std::collections::BTreeMap;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, InodeNo, Result};
use fstitch_patch::journal::Area;

use super::tree::{Source, Tree};
use super::{Change, Graces, Limits, Usage, changed};
use crate::ext2::journal::{Pass, whole_file};
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::inode::{DiskInode, EA_INODE_FL};
use crate::ext2::layout::quota::{Dquot, ENTRY_SIZE, Header, QUOTA_BLOCK, QuotaKind, block_start};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::{idx, wide};
use crate::ext2::source::BlockSource;

/// How usage changes, by kind and id.
type Changes = [BTreeMap<u32, Change>; 3];

/// The blocks of a quota file.
pub(in crate::ext2) struct OfflineFile {
    area: Area,
    unit: usize,
    pub(in crate::ext2) len: u64,
}

impl OfflineFile {
    /// Those of the file whose inode this is.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if it is no file without holes.
    pub(in crate::ext2) fn of(
        volume: &dyn BlockSource,
        shape: &Superblock,
        (kind, disk): (QuotaKind, &DiskInode),
    ) -> Result<Self> {
        if disk.has_inline_data() {
            return Err(kind.damaged("it lies in its inode"));
        }
        let mut whole = disk.clone();
        whole.size = disk.size.next_multiple_of(u64::from(shape.block_size));
        let (area, _) = whole_file(volume, shape, kind.structure(), &whole)?;
        Ok(Self { area, unit: idx(shape.block_size), len: disk.size })
    }

    /// Where a block of 1 KiB is: the volume's block, and the byte in it.
    pub(in crate::ext2) fn place(&self, kind: QuotaKind, no: u32) -> Result<(BlockNo, usize)> {
        let start = block_start(no);
        let index = wide(start / self.unit);
        if index >= self.area.count() {
            return Err(kind.damaged(format!("its block {no} is behind its end")));
        }
        Ok((self.area.map(index)?, start % self.unit))
    }

    /// Bytes that the file may grow to without another block.
    fn room(&self) -> u64 {
        self.area.count() * wide(self.unit)
    }

    /// Blocks of the volume that it has.
    pub(in crate::ext2) fn blocks(&self) -> u64 {
        self.area.count()
    }

    /// Where its block `index` of the volume's is.
    pub(in crate::ext2) fn block(&self, index: u64) -> Result<BlockNo> {
        self.area.map(index)
    }
}

/// A file as a batch has changed it.
struct Batched<'p, 'a, 'd> {
    pass: &'p Pass<'a, 'd>,
    file: &'p OfflineFile,
    kind: QuotaKind,
}

impl Source for Batched<'_, '_, '_> {
    fn block(&self, no: u32) -> Result<Vec<u8>> {
        let (block, at) = self.file.place(self.kind, no)?;
        Ok(self.pass.read(block, BlockKind::Indirect)?[at..at + QUOTA_BLOCK].to_vec())
    }
}

impl Pass<'_, '_> {
    /// Blocks with entries that the batch will change at most, beside those that it has changed.
    pub(in crate::ext2) fn owner_blocks(&self) -> usize {
        if self.tables.is_empty() { 0 } else { QuotaKind::ALL.len() * (self.summed.inodes.len() + 1) }
    }

    /// Brings the entries of owners to what the batch has made of their inodes.
    pub(in crate::ext2) fn charge_owners(&mut self) -> Result<()> {
        if self.tables.is_empty() {
            return Ok(());
        }
        // No block of a quota file is a node.
        self.summed.nodes_of = None;
        let changes = self.usage_changes()?;
        for (kind, changes) in QuotaKind::ALL.into_iter().zip(changes) {
            let ino = self.shape.quota_inodes[kind.index()];
            if ino == 0 || changes.values().all(|change| change.is_none()) {
                continue;
            }
            let file = self.quota_file(kind)?;
            for (id, change) in changes.into_iter().filter(|(_, change)| !change.is_none()) {
                self.charge_owner((kind, &file), id, change)?;
            }
        }
        Ok(())
    }

    fn quota_file(&self, kind: QuotaKind) -> Result<OfflineFile> {
        let ino = self.shape.quota_inodes[kind.index()];
        let is_one = self.shape.is_quota_inode(kind, ino);
        let inode = if is_one { self.load_inode(ino)? } else { None };
        let inode = inode.ok_or_else(|| kind.damaged(format!("inode {ino} is not in use for it")))?;
        OfflineFile::of(&self.volume, &self.shape, (kind, &inode.disk))
    }

    /// Sets what somebody may have.
    pub(super) fn put_limits(&mut self, (kind, id): (QuotaKind, u32), limits: &Limits) -> Result<()> {
        let file = self.quota_file(kind)?;
        self.change_entry((kind, &file), id, &mut |before, graces, now| {
            let Limits { space_soft, space_hard, inodes_soft, inodes_hard } = *limits;
            let times = Dquot { space_time: 0, inodes_time: 0, ..*before };
            let entry = Dquot { space_soft, space_hard, inodes_soft, inodes_hard, ..times };
            changed(&entry, Change::default(), graces, now)
        })
    }

    fn charge_owner(
        &mut self,
        (kind, file): (QuotaKind, &OfflineFile),
        id: u32,
        change: Change,
    ) -> Result<()> {
        if change.inodes <= 0 && change.space <= 0 {
            let source = Batched { pass: self, file, kind };
            let header = Header::parse(&source.block(0)?, kind, file.room())?;
            // Who gives up what was not counted has nothing to be taken.
            if (Tree { source: &source, kind, header }).find(id)?.is_none() {
                return Ok(());
            }
        }
        self.change_entry((kind, file), id, &mut |before, graces, now| changed(before, change, graces, now))
    }

    /// Changes an entry, which is made if there is none.
    fn change_entry(
        &mut self,
        (kind, file): (QuotaKind, &OfflineFile),
        id: u32,
        change: &mut dyn FnMut(&Dquot, Graces, u64) -> Dquot,
    ) -> Result<()> {
        let source = Batched { pass: self, file, kind };
        let header = Header::parse(&source.block(0)?, kind, file.room())?;
        let tree = Tree { source: &source, kind, header };
        let (mut edits, mut blocks) = (Vec::new(), header.blocks);
        let place = match tree.find(id)? {
            Some(place) => place,
            None => {
                let insertion = tree.insert(id, &Dquot::default())?;
                if wide(block_start(insertion.header.blocks)) > file.room() {
                    let problem = format!("a {} without an entry in a quota file that is full", kind.name());
                    return Err(Error::Unsupported(problem));
                }
                (edits, blocks) = (insertion.edits, insertion.header.blocks);
                insertion.place
            }
        };
        if wide(block_start(blocks)) > file.len {
            let ino = self.shape.quota_inodes[kind.index()];
            let inode = self.load_inode(ino)?.filter(|inode| inode.disk.size < file.room());
            if let Some(mut inode) = inode {
                inode.disk.size = file.room();
                self.put_inode(&inode)?;
            }
        }
        for edit in edits {
            let (block, at) = file.place(kind, edit.block)?;
            let at = at + edit.at;
            self.change(block, BlockKind::Indirect)?[at..at + edit.bytes.len()].copy_from_slice(&edit.bytes);
        }
        let (block, at) = file.place(kind, place.block)?;
        let graces = Graces { space: header.block_grace, inodes: header.inode_grace };
        let now = self.now.secs.max(0).cast_unsigned();
        let raw = &mut self.change(block, BlockKind::Indirect)?[at + place.at..at + place.at + ENTRY_SIZE];
        let (_, before) = Dquot::parse(raw).unwrap_or_default();
        raw.copy_from_slice(&change(&before, graces, now).encode(id));
        Ok(())
    }

    /// How the usage of owners is another one than before the batch.
    fn usage_changes(&self) -> Result<Changes> {
        let mut changes = Changes::default();
        let mut before = BlockBuf::zeroed(self.volume.block_size());
        for (&no, (_, after)) in self.changed.iter().filter(|(_, (kind, _))| *kind == BlockKind::Inode) {
            let Some((group, first)) = self.inodes_in(no) else { continue };
            self.volume.read(no, BlockKind::Inode, &mut before)?;
            let used = (self.inode_bits(group, false)?, self.inode_bits(group, true)?);
            let size = usize::from(self.shape.inode_size);
            let pairs = before.chunks_exact(size).zip(after.chunks_exact(size));
            for (ino, (before, after)) in (first..).zip(pairs) {
                let bit = idx((ino - 1) % self.shape.inodes_per_group);
                let is_used = |bits: &[u8]| bits.get(bit / 8).is_some_and(|byte| byte & 1 << (bit % 8) != 0);
                if before == after && is_used(&used.0) == is_used(&used.1) {
                    continue;
                }
                for (raw, is_used, sign) in [(before, is_used(&used.0), -1), (after, is_used(&used.1), 1)] {
                    if is_used {
                        note(&mut changes, &self.shape, (ino, raw), sign);
                    }
                }
            }
        }
        Ok(changes)
    }

    /// The group of the inodes in a block of a table, and the number of the first one.
    fn inodes_in(&self, no: BlockNo) -> Option<(u32, u32)> {
        let (&table, &group) = self.tables.range(..=no.get()).next_back()?;
        let within = u32::try_from(no.get() - table).ok()?;
        let is_inside = within < self.shape.inode_table_blocks();
        let per_block = self.shape.inodes_per_block();
        is_inside.then(|| (group, group * self.shape.inodes_per_group + within * per_block + 1))
    }

    /// Which inodes of a group are in use, before the batch or with it; nothing where none is.
    fn inode_bits(&self, group: u32, with_batch: bool) -> Result<Vec<u8>> {
        let (no, offset) = self.shape.descriptor_place(group);
        let no = BlockNo(no);
        let read = |no, kind| {
            if with_batch {
                return self.read(no, kind);
            }
            let mut block = BlockBuf::zeroed(self.volume.block_size());
            self.volume.read(no, kind, &mut block)?;
            Ok(block)
        };
        let table = read(no, BlockKind::GroupDescriptor)?;
        let raw = &table[offset..offset + self.shape.descriptor_size()];
        let descriptor = GroupDescriptor::parse_unsummed(raw, group, &self.shape, no)?;
        if descriptor.is_inode_uninit() {
            return Ok(Vec::new());
        }
        Ok(read(BlockNo(descriptor.inode_bitmap), BlockKind::InodeBitmap)?.to_vec())
    }
}

/// Adds what an inode in use has to its owners' changes, or takes it from them. Values of attributes are charged to those who refer to
/// them, and the volume's own inodes to nobody.
fn note(changes: &mut Changes, shape: &Superblock, (ino, raw): (u32, &[u8]), sign: i64) {
    if !shape.is_files_inode(ino) {
        return;
    }
    let Ok(disk) = DiskInode::parse(raw, InodeNo(u64::from(ino)), BlockNo(0), shape) else { return };
    if disk.flags & EA_INODE_FL != 0 {
        return;
    }
    let Usage { inodes, space } = disk.usage();
    let change = Change {
        inodes: sign.saturating_mul(inodes.cast_signed()),
        space: sign.saturating_mul(space.cast_signed()),
    };
    for (changes, id) in changes.iter_mut().zip(disk.owners()) {
        changes.entry(id).or_default().add(change);
    }
}
