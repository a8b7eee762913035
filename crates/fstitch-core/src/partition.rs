//! A part of a device, as a device.

use crate::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

/// Blocks `start..start + count` of the device below, numbered from 0.
#[derive(Debug)]
pub struct Partition<D> {
    below: D,
    start: u64,
    count: u64,
}

impl<D: BlockDevice> Partition<D> {
    /// A window onto `below`.
    ///
    /// # Errors
    /// [`Error::Io`] when the window does not lie inside the device.
    pub fn new(below: D, start: BlockNo, count: u64) -> Result<Self> {
        let whole = below.geometry().block_count;
        if start.get().checked_add(count).is_none_or(|end| end > whole) {
            let reason = format!("a partition of {count} blocks does not fit a device of {whole}");
            return Err(Error::io(IoOp::Open, start, std::io::Error::other(reason)));
        }
        Ok(Self { below, start: start.get(), count })
    }

    fn shift(&self, op: IoOp, block: BlockNo) -> Result<BlockNo> {
        if block.get() >= self.count {
            return Err(Error::io(op, block, std::io::Error::other("outside the partition")));
        }
        Ok(BlockNo(self.start + block.get()))
    }
}

impl<D: BlockDevice> BlockDevice for Partition<D> {
    fn geometry(&self) -> Geometry {
        Geometry { block_count: self.count, ..self.below.geometry() }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let mut moved = Vec::with_capacity(reads.len());
        for read in reads {
            let block = self.shift(IoOp::Read, read.block)?;
            moved.push(BlockRead { block, kind: read.kind, data: &mut *read.data });
        }
        self.below.read(&mut moved)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut moved = Vec::with_capacity(writes.len());
        for write in writes {
            moved.push(BlockWrite { block: self.shift(IoOp::Write, write.block)?, ..*write });
        }
        self.below.write(&moved)
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        if start.get().checked_add(count).is_none_or(|end| end > self.count) {
            return Err(Error::io(IoOp::Discard, start, std::io::Error::other("outside the partition")));
        }
        self.below.discard(BlockNo(self.start + start.get()), count)
    }

    fn prefetch(&self, start: BlockNo, count: u64) {
        let count = count.min(self.count.saturating_sub(start.get()));
        if count > 0 {
            self.below.prefetch(BlockNo(self.start + start.get()), count);
        }
    }

    fn intact(&self) -> Result<()> {
        self.below.intact()
    }
}
