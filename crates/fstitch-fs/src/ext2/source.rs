//! Where the checker's blocks come from: a device, or the cache of a mounted volume.

use fstitch_core::{BlockKind, BlockNo, Error, Result};

use crate::view::BlockView;

/// Blocks of the volume's size. A source for checking only need not be writable.
pub trait BlockSource {
    /// Bytes per block.
    fn block_size(&self) -> usize;
    /// Blocks that can be read.
    fn block_count(&self) -> u64;
    /// Reads consecutive blocks from `block` on; `into` is a whole number of blocks long.
    ///
    /// # Errors
    /// When the medium fails.
    fn read(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()>;
    /// A hint: consecutive blocks from `block` on will be read soon.
    fn prefetch(&self, _block: BlockNo, _count: u64) {}
    /// Whether the inode's names, blocks or counts have changed since the check began. Nothing is found about such an inode.
    fn inode_moves(&self, _ino: u32) -> bool {
        false
    }
    /// Whether the block was taken or freed since the check began.
    fn block_moves(&self, _block: u64) -> bool {
        false
    }
    /// Writes consecutive blocks from `block` on.
    ///
    /// # Errors
    /// When the medium fails, or the source cannot be written.
    fn write(&self, _block: BlockNo, _kind: BlockKind, _data: &[u8]) -> Result<()> {
        Err(Error::Unsupported("repairing through a source that can only be read".into()))
    }
    /// Whether somebody uses the volume, who has found its journal and writes it past this source.
    fn is_in_use(&self) -> bool {
        false
    }
    /// Makes everything written stable.
    ///
    /// # Errors
    /// When the medium fails.
    fn flush(&self) -> Result<()> {
        Ok(())
    }
}

impl BlockSource for BlockView<'_> {
    fn block_size(&self) -> usize {
        BlockView::block_size(self)
    }

    fn block_count(&self) -> u64 {
        BlockView::block_count(self)
    }

    fn read(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        BlockView::read(self, block, kind, into)
    }

    fn prefetch(&self, block: BlockNo, count: u64) {
        BlockView::prefetch(self, block, count);
    }

    fn write(&self, block: BlockNo, kind: BlockKind, data: &[u8]) -> Result<()> {
        BlockView::write(self, block, kind, data)
    }

    fn flush(&self) -> Result<()> {
        BlockView::flush(self)
    }
}
