//! A block device in memory, for tests, the laboratory and programs that embed a file system.

use std::sync::RwLock;

use crate::lock::Unpoisoned;
use crate::num::{to_u64, to_usize};
use crate::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

/// A device whose blocks live in memory; `flush` does nothing because nothing is ever volatile.
#[derive(Debug)]
pub struct MemDevice {
    geometry: Geometry,
    bytes: RwLock<Vec<u8>>,
}

impl MemDevice {
    /// A zeroed device.
    #[must_use]
    pub fn new(block_size: u32, block_count: u64) -> Self {
        let geometry = Geometry { block_size, block_count, atomic_size: block_size };
        let len = usize::try_from(geometry.bytes()).expect("a memory device fits memory");
        Self { geometry, bytes: RwLock::new(vec![0; len]) }
    }

    /// A device that holds `image`; bytes after the last whole block are dropped.
    #[must_use]
    pub fn from_image(block_size: u32, mut image: Vec<u8>) -> Self {
        let unit = to_usize(block_size);
        let block_count = image.len() / unit;
        image.truncate(block_count * unit);
        let block_count = to_u64(block_count);
        let geometry = Geometry { block_size, block_count, atomic_size: block_size };
        Self { geometry, bytes: RwLock::new(image) }
    }

    /// A copy of the contents.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        self.bytes.read().unpoisoned().clone()
    }

    fn range(&self, op: IoOp, block: BlockNo, len: usize) -> Result<std::ops::Range<usize>> {
        let unit = to_usize(self.geometry.block_size);
        if block.get() >= self.geometry.block_count || len != unit {
            let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the device");
            return Err(Error::io(op, block, reason));
        }
        let start = block.index() * unit;
        Ok(start..start + unit)
    }
}

impl BlockDevice for MemDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let bytes = self.bytes.read().unpoisoned();
        for read in reads {
            let range = self.range(IoOp::Read, read.block, read.data.len())?;
            read.data.copy_from_slice(&bytes[range]);
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut bytes = self.bytes.write().unpoisoned();
        for write in writes {
            let range = self.range(IoOp::Write, write.block, write.data.len())?;
            bytes[range].copy_from_slice(write.data);
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}
