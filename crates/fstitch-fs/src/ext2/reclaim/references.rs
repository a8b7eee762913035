//! Attribute blocks that count more inodes than point at them.
//!
//! This implementation never makes an inode share a block that has another owner, so the pointers to a block only become
//! fewer, and each that goes is noted by the watch with the block.

use std::collections::BTreeMap;

use fstitch_core::{BlockKind, BlockNo, Result};

use super::super::inode::Inode;
use super::super::layout::xattr::{H_MAGIC, H_REFCOUNT, XATTR_MAGIC};
use super::super::volume::Ext2;
use crate::uhfs::{ReclaimHooks, Reclaimed};

impl Ext2 {
    /// Lowers the counts of shared attribute blocks that are too high. One that falls waits for what its earlier fall in
    /// the same bytes waits for: the pointers that are gone from the medium then.
    pub(super) fn recount_references(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        done: &mut Reclaimed,
    ) -> Result<()> {
        self.start_pass(hooks)?;
        let mut shared: BTreeMap<u64, u32> = BTreeMap::new();
        self.scan_used_inodes((1, self.sb.inodes_count + 1), hooks, &mut |found| {
            let block = found.disk.as_ref().map_or(0, |disk| disk.xattr_block);
            if block != 0 && (shared.contains_key(&block) || self.references(block)? > 1) {
                *shared.entry(block).or_default() += 1;
            }
            Ok(())
        })?;
        for (block, pointers) in shared {
            if hooks.stop() {
                return Ok(());
            }
            if self.references(block)? <= pointers {
                continue;
            }
            let handle = self.cache.read(BlockNo(block), BlockKind::Attribute)?;
            // When nothing is under way: who has turned a pointer away is about to lower the count.
            hooks.quiesced(self.block_size(), &mut || {
                if self.watch.block_changed(block) {
                    done.busy += 1;
                    return;
                }
                let mut tx = self.cache.lock();
                tx.bytes(&handle, H_REFCOUNT.offset(), &pointers.to_le_bytes(), &[]);
                done.counts += 1;
            })?;
        }
        Ok(())
    }

    /// How many inodes an attribute block counts.
    fn references(&self, block: u64) -> Result<u32> {
        if !self.is_file_run(block, 1)? {
            return Ok(0);
        }
        let handle = self.cache.read(BlockNo(block), BlockKind::Attribute)?;
        let tx = self.cache.lock();
        let bytes = tx.data(&handle);
        // Whatever else is there is not to be written into.
        Ok(if H_MAGIC.get(bytes) == XATTR_MAGIC { H_REFCOUNT.get(bytes) } else { 0 })
    }
}
