//! Several devices, one after the other, as one device.

use crate::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

/// The concatenation of devices of one block size.
#[derive(Debug)]
pub struct Concat<D> {
    /// The parts, with the number of blocks before each.
    parts: Vec<(u64, D)>,
    geometry: Geometry,
}

impl<D: BlockDevice> Concat<D> {
    /// Joins `parts` in this order.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no part or block sizes differ.
    pub fn new(parts: Vec<D>) -> Result<Self> {
        let refuse = |why: &str| Error::io(IoOp::Open, BlockNo(0), std::io::Error::other(why.to_owned()));
        let first = parts.first().ok_or_else(|| refuse("a concatenation of no devices"))?.geometry();
        let mut geometry = Geometry { block_count: 0, ..first };
        let mut placed = Vec::with_capacity(parts.len());
        for part in parts {
            let own = part.geometry();
            if own.block_size != geometry.block_size {
                return Err(refuse("a concatenation of devices with different block sizes"));
            }
            placed.push((geometry.block_count, part));
            geometry.block_count += own.block_count;
            geometry.atomic_size = geometry.atomic_size.min(own.atomic_size);
        }
        Ok(Self { parts: placed, geometry })
    }

    /// The part that holds `block`, and the block's number there.
    fn locate(&self, op: IoOp, block: BlockNo) -> Result<(usize, BlockNo)> {
        if block.get() >= self.geometry.block_count {
            return Err(Error::io(op, block, std::io::Error::other("outside the concatenation")));
        }
        let part = self.parts.partition_point(|(start, _)| *start <= block.get()) - 1;
        Ok((part, BlockNo(block.get() - self.parts[part].0)))
    }
}

impl<D: BlockDevice> BlockDevice for Concat<D> {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let mut split: Vec<Vec<BlockRead<'_>>> = self.parts.iter().map(|_| Vec::new()).collect();
        for read in reads {
            let (part, block) = self.locate(IoOp::Read, read.block)?;
            split[part].push(BlockRead { block, kind: read.kind, data: &mut *read.data });
        }
        let pairs = self.parts.iter().zip(&mut split).filter(|(_, batch)| !batch.is_empty());
        pairs.into_iter().try_for_each(|((_, device), batch)| device.read(batch))
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut split: Vec<Vec<BlockWrite<'_>>> = self.parts.iter().map(|_| Vec::new()).collect();
        for write in writes {
            let (part, block) = self.locate(IoOp::Write, write.block)?;
            split[part].push(BlockWrite { block, ..*write });
        }
        let mut pairs = self.parts.iter().zip(&split).filter(|(_, batch)| !batch.is_empty());
        pairs.try_for_each(|((_, device), batch)| device.write(batch))
    }

    fn flush(&self) -> Result<()> {
        self.parts.iter().try_for_each(|(_, device)| device.flush())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        for no in start.get()..start.get().saturating_add(count) {
            let (part, block) = self.locate(IoOp::Discard, BlockNo(no))?;
            self.parts[part].1.discard(block, 1)?;
        }
        Ok(())
    }

    fn intact(&self) -> Result<()> {
        self.parts.iter().try_for_each(|(_, device)| device.intact())
    }
}
