//! Where the checker's fragments come from: a device, or the cache of a mounted volume.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, Error, Result};
use fstitch_patch::Cache;

use crate::view::BlockView;

/// A volume in its fragments.
pub(super) trait Source {
    /// How many there are room for.
    fn fragments(&self) -> u64;

    /// Reads consecutive fragments from `at` on; `into` is a whole number of them long.
    fn read(&self, at: u64, kind: BlockKind, into: &mut [u8]) -> Result<()>;

    /// Writes consecutive fragments from `at` on.
    fn write(&self, at: u64, kind: BlockKind, bytes: &[u8]) -> Result<()>;

    /// Makes everything written stable.
    fn flush(&self) -> Result<()>;
}

impl Source for BlockView<'_> {
    fn fragments(&self) -> u64 {
        self.block_count()
    }

    fn read(&self, at: u64, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        BlockView::read(self, BlockNo(at), kind, into)
    }

    fn write(&self, at: u64, kind: BlockKind, bytes: &[u8]) -> Result<()> {
        BlockView::write(self, BlockNo(at), kind, bytes)
    }

    fn flush(&self) -> Result<()> {
        BlockView::flush(self)
    }
}

/// A cache, whose blocks are fragments; it is only read.
impl Source for Cache {
    fn fragments(&self) -> u64 {
        self.block_count()
    }

    fn read(&self, at: u64, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        let size = self.block_size();
        for (no, part) in into.chunks_mut(size).enumerate() {
            let block = Cache::read(self, BlockNo(at + to_u64(no)), kind)?;
            part.copy_from_slice(&block.snapshot());
        }
        Ok(())
    }

    fn write(&self, _at: u64, _kind: BlockKind, _bytes: &[u8]) -> Result<()> {
        Err(Error::Unsupported("mending a UFS volume that is in use".into()))
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }
}
