//! Checking a mounted volume: the checker reads what the cache holds, changes that are not on the medium yet
//! included.

use fstitch_core::{BlockKind, BlockNo, CheckReport, Error, IoOp, Result};
use fstitch_patch::Cache;

use super::layout::feature::incompat;
use super::layout::superblock::{S_FEATURE_INCOMPAT, S_LAST_ORPHAN, S_STATE, STATE_VALID, SUPERBLOCK_SIZE};
use super::volume::Ext2;
use crate::check::{BlockSource, check_source};

/// A mount's blocks as they are now.
struct Cached<'a>(&'a Cache);

impl BlockSource for Cached<'_> {
    fn block_size(&self) -> usize {
        self.0.block_size()
    }

    fn block_count(&self) -> u64 {
        self.0.block_count()
    }

    fn read(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        for (no, part) in (block.get()..).zip(into.chunks_mut(self.block_size())) {
            if no >= self.block_count() {
                let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the volume");
                return Err(Error::io(IoOp::Read, BlockNo(no), reason));
            }
            part.copy_from_slice(&self.0.read(BlockNo(no), kind)?.snapshot());
        }
        Ok(())
    }
}

impl Ext2 {
    /// Checks the volume as it is in the cache. The caller keeps it from changing meanwhile.
    pub(super) fn check_mounted(&self) -> Result<CheckReport> {
        self.give_back_ahead();
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
        check_source(&Cached(&self.cache), &raw)
    }
}
