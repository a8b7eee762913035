//! A device whose changes stay in memory: what could be, without touching what is.

use std::collections::BTreeMap;
use std::sync::RwLock;

use crate::lock::Unpoisoned;
use crate::num::to_usize;
use crate::{BlockBuf, BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result};

/// The device below as it would be after the writes that were made here, none of which reaches it. Memory: every
/// block that was ever written.
pub struct Overlay<D> {
    below: D,
    written: RwLock<BTreeMap<BlockNo, BlockBuf>>,
}

impl<D> std::fmt::Debug for Overlay<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Overlay({} blocks written)", self.written())
    }
}

impl<D> Overlay<D> {
    /// A device that looks like `below` and leaves it alone.
    #[must_use]
    pub const fn new(below: D) -> Self {
        Self { below, written: RwLock::new(BTreeMap::new()) }
    }

    /// How many blocks differ, or may differ, from the device below.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written.read().unpoisoned().len()
    }
}

impl<D: BlockDevice> BlockDevice for Overlay<D> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let written = self.written.read().unpoisoned();
        let mut below = Vec::with_capacity(reads.len());
        for read in reads {
            match written.get(&read.block) {
                Some(block) if block.len() == read.data.len() => read.data.copy_from_slice(block),
                _ => below.push(BlockRead { block: read.block, kind: read.kind, data: &mut *read.data }),
            }
        }
        if below.is_empty() { Ok(()) } else { self.below.read(&mut below) }
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let Geometry { block_size, block_count, .. } = self.geometry();
        let unit = to_usize(block_size);
        let mut written = self.written.write().unpoisoned();
        for write in writes {
            if write.block.get() >= block_count || write.data.len() != unit {
                let reason = std::io::Error::new(std::io::ErrorKind::InvalidInput, "outside the device");
                return Err(Error::io(IoOp::Write, write.block, reason));
            }
            written.insert(write.block, BlockBuf::copy_of(write.data));
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }

    fn intact(&self) -> Result<()> {
        self.below.intact()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockKind, MemDevice};

    #[test]
    fn writes_are_seen_here_and_not_below() {
        let below = std::sync::Arc::new(MemDevice::new(512, 4));
        let above = Overlay::new(std::sync::Arc::clone(&below));
        let block = |no| BlockWrite { block: BlockNo(no), kind: BlockKind::Data, data: &[7; 512] };
        above.write(&[block(2)]).unwrap();
        let (mut one, mut two) = ([9; 512], [9; 512]);
        let kind = BlockKind::Data;
        above
            .read(&mut [
                BlockRead { block: BlockNo(1), kind, data: &mut one },
                BlockRead { block: BlockNo(2), kind, data: &mut two },
            ])
            .unwrap();
        assert_eq!((one, two), ([0; 512], [7; 512]));
        assert!(below.image().iter().all(|&byte| byte == 0));
        assert!(above.write(&[block(4)]).is_err());
        assert_eq!(above.written(), 1);
    }
}
