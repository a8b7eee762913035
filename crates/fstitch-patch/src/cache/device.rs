//! A volume as a block device, for those that know no patches: recovery, probing, checking.

use std::sync::Arc;

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{BlockBuf, BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

use super::Cache;
use crate::PatchId;

/// The blocks of a volume ([`Cache::volume`]). What is written orders nothing until a flush, as on every device; a
/// flush makes it stable, and nothing else that does not share its blocks.
pub struct VolumeDevice {
    cache: Arc<Cache>,
    /// What was written since the last flush.
    written: Mutex<Vec<PatchId>, rank::Leaf>,
}

impl VolumeDevice {
    /// The blocks of `cache`'s volume.
    #[must_use]
    pub fn new(cache: Arc<Cache>) -> Self {
        Self { cache, written: Mutex::new(Vec::new()) }
    }

    fn check(&self, no: BlockNo) -> Result<()> {
        if no.get() < self.cache.block_count() {
            return Ok(());
        }
        Err(Error::io(IoOp::Write, no, std::io::Error::other("the block lies outside the volume")))
    }
}

impl BlockDevice for VolumeDevice {
    fn geometry(&self) -> Geometry {
        Geometry { block_count: self.cache.block_count(), ..self.cache.shared.geometry }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads {
            self.check(read.block)?;
            if self.cache.find(read.block).is_none() {
                // To look at a hole does not fill it.
                read.data.fill(0);
                continue;
            }
            let block = self.cache.read(read.block, read.kind)?;
            read.data.copy_from_slice(&block.snapshot());
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            self.check(write.block)?;
            self.cache.reserve(write.data.len())?;
            let _step = self.cache.begin(write.data.len(), 0)?;
            let block = self.cache.fresh(write.block, write.kind)?;
            let contents = Arc::new(BlockBuf::copy_of(write.data));
            let patch = self.cache.lock().init(&block, contents, &[]);
            self.written.lock().push(patch);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let written = std::mem::take(&mut *self.written.lock());
        self.cache.sync_patches(&written)
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        // The blocks stay the file's.
        Ok(())
    }

    fn intact(&self) -> Result<()> {
        self.cache.intact()
    }
}
