//! Quotas for people: what everybody has, and setting limits, on a volume that nobody has open.

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, InodeNo, Result, Timestamp};

use super::Usage;
use super::offline::OfflineFile;
use super::tree::{Source, Tree};
use crate::ext2::journal::{in_batches, needs_recovery, read_superblock};
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::inode::{self, DiskInode};
use crate::ext2::layout::quota::{Dquot, Header, QUOTA_BLOCK, QuotaKind};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::idx;
use crate::view::BlockView;

/// What somebody may have; 0 for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// KiB that may be passed for some time.
    pub space_soft: u64,
    /// KiB that are never passed.
    pub space_hard: u64,
    /// Inodes that may be passed for some time.
    pub inodes_soft: u64,
    /// Inodes that are never passed.
    pub inodes_hard: u64,
}

/// What somebody has and may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Who.
    pub id: u32,
    /// What he has.
    pub usage: Usage,
    /// What he may have.
    pub limits: Limits,
    /// When the soft limit of storage becomes a hard one, in seconds; 0 while it is not passed.
    pub space_time: u64,
    /// The same for inodes.
    pub inodes_time: u64,
}

/// A quota file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whose.
    pub kind: QuotaKind,
    /// Seconds that a soft limit of storage may be passed for.
    pub space_grace: u32,
    /// The same for inodes.
    pub inodes_grace: u32,
    /// Everybody who has or had something, or limits, in order.
    pub accounts: Vec<Account>,
}

/// A file of a volume that nobody writes.
struct Viewed<'v> {
    view: BlockView<'v>,
    file: OfflineFile,
    kind: QuotaKind,
}

impl Source for Viewed<'_> {
    fn block(&self, no: u32) -> Result<Vec<u8>> {
        let (block, at) = self.file.place(self.kind, no)?;
        let mut bytes = BlockBuf::zeroed(self.view.block_size());
        self.view.read(block, BlockKind::Indirect, &mut bytes)?;
        Ok(bytes[at..at + QUOTA_BLOCK].to_vec())
    }
}

/// What the quota files of the volume on `device` say, which needs no recovery; nothing without the feature `quota`.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn report(device: &dyn BlockDevice) -> Result<Vec<Report>> {
    let (_, shape) = read_superblock(device)?;
    let mut reports = Vec::new();
    for (kind, &ino) in QuotaKind::ALL.into_iter().zip(&shape.quota_inodes) {
        if ino == 0 || !shape.features.has_ro_compat(ro_compat::QUOTA) {
            continue;
        }
        let disk = read_inode(device, &shape, (kind, ino))?;
        let view = BlockView::new(device, idx(shape.block_size));
        let file = OfflineFile::of(&view, &shape, (kind, &disk))?;
        let len = file.len;
        let source = Viewed { view, file, kind };
        let header = Header::parse(&source.block(0)?, kind, len)?;
        let mut accounts = Vec::new();
        Tree { source: &source, kind, header }.each(&mut |id, entry| accounts.push(account(id, &entry)))?;
        let (space_grace, inodes_grace) = (header.block_grace, header.inode_grace);
        reports.push(Report { kind, space_grace, inodes_grace, accounts });
    }
    Ok(reports)
}

fn account(id: u32, entry: &Dquot) -> Account {
    Account {
        id,
        usage: Usage { inodes: entry.inodes, space: entry.space },
        limits: Limits {
            space_soft: entry.space_soft,
            space_hard: entry.space_hard,
            inodes_soft: entry.inodes_soft,
            inodes_hard: entry.inodes_hard,
        },
        space_time: entry.space_time,
        inodes_time: entry.inodes_time,
    }
}

fn read_inode(
    device: &dyn BlockDevice,
    shape: &Superblock,
    (kind, ino): (QuotaKind, u32),
) -> Result<DiskInode> {
    if !shape.is_quota_inode(kind, ino) {
        return Err(kind.damaged(format!("it is inode {ino}")));
    }
    let view = BlockView::new(device, idx(shape.block_size));
    let mut block = BlockBuf::zeroed(view.block_size());
    let group = shape.group_of_inode(ino);
    let (no, offset) = shape.descriptor_place(group);
    let no = BlockNo(no);
    view.read(no, BlockKind::GroupDescriptor, &mut block)?;
    let raw = &block[offset..offset + shape.descriptor_size()];
    let table = GroupDescriptor::parse(raw, group, shape, no)?.inode_table;
    let (at, offset) = inode::place(shape, table, ino);
    view.read(at, BlockKind::Inode, &mut block)?;
    let raw = &block[offset..offset + usize::from(shape.inode_size)];
    DiskInode::parse(raw, InodeNo(u64::from(ino)), at, shape)
}

/// Sets the limits of somebody on the volume on `device`, which nobody has open, through its journal.
///
/// # Errors
/// `Unsupported`, with nothing changed: without the feature, for a volume that must be recovered first, for features that cannot be kept
/// valid, and for somebody who has no entry where the file is full. `Io`, `Corrupt`.
pub fn set_limits(
    device: &dyn BlockDevice,
    (kind, id): (QuotaKind, u32),
    limits: Limits,
    now: Timestamp,
) -> Result<()> {
    let (_, shape) = read_superblock(device)?;
    let refuse = |what: String| Err(Error::Unsupported(what));
    let read_only = shape.features.read_only_because();
    if !read_only.is_empty() {
        return refuse(format!("limits on a volume with feature {}", read_only.join(", ")));
    }
    if !shape.features.has_ro_compat(ro_compat::QUOTA) || shape.quota_inodes[kind.index()] == 0 {
        return refuse(format!("limits of a {} on a volume that counts nothing for any", kind.name()));
    }
    if needs_recovery(device)? {
        return refuse("limits on a volume that must be recovered first".into());
    }
    in_batches(device, (&shape, kind.structure()), (now, usize::MAX), |mut pass| {
        pass.put_limits((kind, id), &limits)?;
        pass.send()
    })
}
