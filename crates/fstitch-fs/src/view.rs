//! A device seen in blocks of the volume's size, whatever the device's own block size is.
//!
//! Tools that work on a whole device (making, checking, repairing) learn the volume's block size only from
//! its superblock. Where the device's blocks are larger, a write reads the rest of the device block first.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result,
};

/// How many bytes one request moves at most.
const REQUEST_MAX: usize = 1 << 20;

/// A device in blocks of another size.
#[derive(Clone, Copy)]
pub struct BlockView<'d> {
    device: &'d dyn BlockDevice,
    block_size: usize,
    unit: usize,
    blocks: u64,
}

impl std::fmt::Debug for BlockView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockView({} blocks of {} bytes)", self.blocks, self.block_size)
    }
}

/// A length or count as a block number's difference.
fn wide(n: usize) -> u64 {
    to_u64(n)
}

impl<'d> BlockView<'d> {
    /// Sees `device` in blocks of `block_size` bytes, a power of two of at least 512.
    ///
    /// # Panics
    /// If `block_size` is not such a number: callers validate it.
    #[must_use]
    pub fn new(device: &'d dyn BlockDevice, block_size: usize) -> Self {
        assert!(block_size.is_power_of_two() && block_size >= 512, "block size {block_size}");
        let geometry = device.geometry();
        let unit = to_usize(geometry.block_size);
        let blocks = geometry.bytes() / wide(block_size);
        Self { device, block_size, unit, blocks }
    }

    /// Bytes per block of the view.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Whole blocks on the device.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.blocks
    }

    fn check(&self, op: IoOp, block: BlockNo, len: usize) -> Result<()> {
        let count = wide(len / self.block_size);
        let inside = block.get().checked_add(count).is_some_and(|end| end <= self.blocks);
        if inside && len.is_multiple_of(self.block_size) {
            return Ok(());
        }
        let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the device");
        Err(Error::io(op, block, reason))
    }

    /// The device block and the offset within it where `block` starts.
    fn locate(&self, block: BlockNo) -> (BlockNo, usize) {
        let at = block.get() * wide(self.block_size);
        let unit = wide(self.unit);
        let offset = usize::try_from(at % unit).expect("below the device's block size");
        (BlockNo(at / unit), offset)
    }

    /// Reads consecutive blocks from `block` on; `into` is a whole number of blocks long.
    ///
    /// # Errors
    /// When the range leaves the device or the device fails.
    pub fn read(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        self.check(IoOp::Read, block, into.len())?;
        if self.unit > self.block_size {
            return self.read_small(block, kind, into);
        }
        let (mut first, _) = self.locate(block);
        for part in into.chunks_mut(REQUEST_MAX.max(self.block_size)) {
            let mut reads = Vec::with_capacity(part.len() / self.unit);
            for data in part.chunks_mut(self.unit) {
                reads.push(BlockRead { block: first, kind, data });
                first = BlockNo(first.get() + 1);
            }
            self.device.read(&mut reads)?;
        }
        Ok(())
    }

    fn read_small(&self, block: BlockNo, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        let mut whole = BlockBuf::zeroed(self.unit);
        let mut held = None;
        for (i, part) in into.chunks_mut(self.block_size).enumerate() {
            let (at, offset) = self.locate(BlockNo(block.get() + wide(i)));
            if held != Some(at) {
                self.device.read(&mut [BlockRead { block: at, kind, data: &mut whole }])?;
                held = Some(at);
            }
            part.copy_from_slice(&whole[offset..offset + self.block_size]);
        }
        Ok(())
    }

    /// Writes consecutive blocks from `block` on; `data` is a whole number of blocks long.
    ///
    /// # Errors
    /// When the range leaves the device or the device fails.
    pub fn write(&self, block: BlockNo, kind: BlockKind, data: &[u8]) -> Result<()> {
        self.check(IoOp::Write, block, data.len())?;
        if self.unit > self.block_size {
            return self.write_small(block, kind, data);
        }
        let (mut first, _) = self.locate(block);
        for part in data.chunks(REQUEST_MAX.max(self.block_size)) {
            let mut writes = Vec::with_capacity(part.len() / self.unit);
            for data in part.chunks(self.unit) {
                writes.push(BlockWrite { block: first, kind, data });
                first = BlockNo(first.get() + 1);
            }
            self.device.write(&writes)?;
        }
        Ok(())
    }

    fn write_small(&self, block: BlockNo, kind: BlockKind, data: &[u8]) -> Result<()> {
        let mut whole = BlockBuf::zeroed(self.unit);
        for (i, part) in data.chunks(self.block_size).enumerate() {
            let (at, offset) = self.locate(BlockNo(block.get() + wide(i)));
            self.device.read(&mut [BlockRead { block: at, kind, data: &mut whole }])?;
            whole[offset..offset + self.block_size].copy_from_slice(part);
            self.device.write(&[BlockWrite { block: at, kind, data: &whole }])?;
        }
        Ok(())
    }

    /// Says that consecutive blocks from `block` on will be read soon.
    pub fn prefetch(&self, block: BlockNo, count: u64) {
        let count = count.min(self.blocks.saturating_sub(block.get()));
        if count > 0 {
            let (size, unit) = (wide(self.block_size), wide(self.unit));
            let (first, end) = (block.get() * size / unit, ((block.get() + count) * size).div_ceil(unit));
            self.device.prefetch(BlockNo(first), end - first);
        }
    }

    /// Makes everything written so far stable.
    ///
    /// # Errors
    /// When the device fails.
    pub fn flush(&self) -> Result<()> {
        self.device.flush()
    }
}

/// The view as a device of its own, for what wants one with blocks of that size.
impl BlockDevice for BlockView<'_> {
    fn geometry(&self) -> Geometry {
        let below = self.device.geometry();
        let block_size = u32::try_from(self.block_size).expect("checked when the view was made");
        let atomic_size = below.atomic_size.min(block_size);
        Geometry { block_size, block_count: self.blocks, atomic_size }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        if self.unit == self.block_size {
            return self.device.read(reads);
        }
        if self.unit > self.block_size {
            return reads.iter_mut().try_for_each(|read| Self::read(self, read.block, read.kind, read.data));
        }
        let mut parts = Vec::with_capacity(reads.len() * (self.block_size / self.unit));
        for read in reads {
            self.check(IoOp::Read, read.block, read.data.len())?;
            let (first, kind) = (self.locate(read.block).0.get(), read.kind);
            let pieces = read.data.chunks_mut(self.unit).zip(first..);
            parts.extend(pieces.map(|(data, block)| BlockRead { block: BlockNo(block), kind, data }));
        }
        self.device.read(&mut parts)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if self.unit == self.block_size {
            return self.device.write(writes);
        }
        if self.unit > self.block_size {
            return writes
                .iter()
                .try_for_each(|write| Self::write(self, write.block, write.kind, write.data));
        }
        let mut parts = Vec::with_capacity(writes.len() * (self.block_size / self.unit));
        for write in writes {
            self.check(IoOp::Write, write.block, write.data.len())?;
            let (first, kind) = (self.locate(write.block).0.get(), write.kind);
            let pieces = write.data.chunks(self.unit).zip(first..);
            parts.extend(pieces.map(|(data, block)| BlockWrite { block: BlockNo(block), kind, data }));
        }
        self.device.write(&parts)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn prefetch(&self, start: BlockNo, count: u64) {
        Self::prefetch(self, start, count);
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::MemDevice;

    use super::*;

    #[test]
    fn views_agree_whatever_the_device_block_size() {
        for unit in [512_u32, 1024, 4096] {
            let device = MemDevice::new(unit, u64::from(65_536 / unit));
            let view = BlockView::new(&device, 1024);
            assert_eq!(view.block_count(), 64);
            let data: Vec<u8> = (0..3072_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
            view.write(BlockNo(3), BlockKind::Data, &data).unwrap();
            let mut back = vec![0; 3072];
            view.read(BlockNo(3), BlockKind::Data, &mut back).unwrap();
            assert_eq!(back, data);
            assert_eq!(device.image()[3072..6144], data[..]);
            assert!(view.read(BlockNo(63), BlockKind::Data, &mut back).is_err());
            let mut one = vec![0; 1024];
            let kind = BlockKind::Data;
            BlockDevice::read(&view, &mut [BlockRead { block: BlockNo(4), kind, data: &mut one }]).unwrap();
            assert_eq!(one, data[1024..2048]);
            BlockDevice::write(&view, &[BlockWrite { block: BlockNo(9), kind, data: &one }]).unwrap();
            assert_eq!(device.image()[9216..10_240], one[..]);
            assert!(
                BlockDevice::write(&view, &[BlockWrite { block: BlockNo(64), kind, data: &one }]).is_err()
            );
        }
    }
}
