//! Size, settings and file maps of ext2, ext3 and ext4.

use fstitch_core::{BlockDevice, Error, Result, Timestamp};
use fstitch_fs::ext2::layout::quota::QuotaKind;
use fstitch_fs::ext2::{file_map, journal, quota, resize, tuning};

use super::Ext;
use crate::resize::{
    Account, CountsUsage, FileMap, Limits, MapsFiles, Quotas, Resized, Resizes, Run, Tunes, Tuning,
};

impl Resizes for Ext {
    fn size(&self, device: &dyn BlockDevice) -> Result<u64> {
        let shape = journal::read_superblock(device)?.1;
        Ok(shape.blocks_count * u64::from(shape.block_size))
    }

    fn resize(
        &self,
        device: &dyn BlockDevice,
        bytes: u64,
        now: Timestamp,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Resized> {
        let block_size = journal::read_superblock(device)?.1.block_size;
        let done = resize::resize(device, bytes / u64::from(block_size), now, progress)?;
        Ok(Resized { block_size_bytes: done.block_size, blocks_before: done.before, blocks: done.after })
    }
}

impl Tunes for Ext {
    fn tune(&self, device: &dyn BlockDevice, asked: &Tuning, now: Timestamp) -> Result<()> {
        tuning::tune(device, asked, now)
    }
}

impl CountsUsage for Ext {
    fn quotas(&self, device: &dyn BlockDevice) -> Result<Vec<Quotas>> {
        let account = |found: &quota::Account| Account {
            id: found.id,
            space_bytes: found.usage.space,
            space_soft_kib: found.limits.space_soft,
            space_hard_kib: found.limits.space_hard,
            space_until: found.space_time,
            inodes: found.usage.inodes,
            inodes_soft: found.limits.inodes_soft,
            inodes_hard: found.limits.inodes_hard,
            inodes_until: found.inodes_time,
        };
        let quotas = |report: &quota::Report| Quotas {
            kind: report.kind.name(),
            space_grace_seconds: report.space_grace,
            inodes_grace_seconds: report.inodes_grace,
            accounts: report.accounts.iter().map(account).collect(),
        };
        Ok(quota::report(device)?.iter().map(quotas).collect())
    }

    fn set_limits(
        &self,
        device: &dyn BlockDevice,
        (kind, id): (&str, u32),
        limits: Limits,
        now: Timestamp,
    ) -> Result<()> {
        let known = QuotaKind::ALL.into_iter().find(|known| known.name() == kind);
        let known = known.ok_or_else(|| Error::Unsupported(format!("quotas of a {kind}")))?;
        let limits = quota::Limits {
            space_soft: limits.space.0,
            space_hard: limits.space.1,
            inodes_soft: limits.inodes.0,
            inodes_hard: limits.inodes.1,
        };
        quota::set_limits(device, (known, id), limits, now)
    }
}

impl MapsFiles for Ext {
    fn file_map(&self, device: &dyn BlockDevice, ino: u64) -> Result<FileMap> {
        let found = file_map::read(device, ino)?;
        let map = match (found.is_inline, found.by_extents) {
            (true, _) => "inode",
            (false, true) => "extents",
            (false, false) => "pointers",
        };
        let run = |run: &file_map::Run| Run {
            logical: run.logical,
            physical: run.physical,
            blocks: run.blocks,
            unwritten: run.unwritten,
        };
        Ok(FileMap {
            map,
            depth: found.depth,
            map_blocks: found.map_blocks,
            block_size_bytes: found.block_size,
            extents: found.runs.iter().map(run).collect(),
        })
    }
}
