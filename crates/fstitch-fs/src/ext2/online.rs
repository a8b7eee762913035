//! Checking a mounted volume: the checker reads what the cache holds, changes that are not on the medium yet
//! included.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, CheckReport, Error, IoOp, Result};
use fstitch_patch::Cache;

use super::check::check_source;
use super::layout::checksum::seal_superblock;
use super::layout::feature::incompat;
use super::layout::superblock::{S_FEATURE_INCOMPAT, S_LAST_ORPHAN, S_STATE, STATE_VALID, SUPERBLOCK_SIZE};
use super::source::BlockSource;
use super::volume::Ext2;

/// A mount's blocks as they are now.
pub(super) struct Cached<'a>(pub(super) &'a Cache);

impl BlockSource for Cached<'_> {
    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn block_count(&self) -> u64 {
        self.0.block_count()
    }

    fn read(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        let count = to_u64(into.len() / self.block_size());
        if count > 1 {
            let end = (block.get() + count).min(self.block_count());
            let wanted: Vec<_> = (block.get()..end).map(|no| (BlockNo(no), kind)).collect();
            self.0.prefetch(&wanted);
        }
        for (no, part) in (block.get()..).zip(into.chunks_mut(self.block_size())) {
            if no >= self.block_count() {
                let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the volume");
                return Err(Error::io(IoOp::Read, BlockNo(no), reason));
            }
            part.copy_from_slice(&self.0.read(BlockNo(no), kind)?.snapshot());
        }
        Ok(())
    }

    fn is_in_use(&self) -> bool {
        true
    }
}

impl Ext2 {
    /// Checks the volume as it is in the cache. The caller keeps it from changing meanwhile.
    pub(super) fn check_mounted(&self) -> Result<CheckReport> {
        self.give_back_preallocated();
        let report = check_source(&Cached(&self.cache), &self.current_superblock())?;
        if report.corrupt > 0 {
            self.set_unchecked();
        }
        Ok(report)
    }

    /// The superblock's bytes as they would be if the volume was not in use.
    pub(super) fn current_superblock(&self) -> Vec<u8> {
        let at = self.sb.offset_in_block();
        let mut raw = self.sb_block.snapshot()[at..at + SUPERBLOCK_SIZE].to_vec();
        // A volume in use is rightly not marked clean.
        let state = S_STATE.get(&raw);
        S_STATE.put(&mut raw, state | STATE_VALID);
        // Nor is it to be recovered while its journal is kept, and orphans are in the list as long as they are used.
        if self.cache.is_journaled() {
            let word = S_FEATURE_INCOMPAT.get(&raw) & !incompat::RECOVER;
            S_FEATURE_INCOMPAT.put(&mut raw, word);
            S_LAST_ORPHAN.put(&mut raw, 0);
        }
        // In memory its sum means nothing.
        seal_superblock(&mut raw);
        raw
    }
}
