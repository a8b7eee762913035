//! A device in blocks of the volume's size, whatever its own.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, Result};

use super::layout::{BLOCK, BLOCK_SIZE};

/// Several blocks of a device as one.
struct Grouped {
    device: Arc<dyn BlockDevice>,
    /// Blocks of the device in one of ours.
    count: u64,
}

/// `device` in blocks of 4,096 bytes.
///
/// # Errors
/// `Unsupported` if its blocks are larger.
pub fn grouped(device: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>> {
    let own = device.geometry().block_size;
    match own {
        BLOCK_SIZE => Ok(device),
        1..BLOCK_SIZE => Ok(Arc::new(Grouped { device, count: u64::from(BLOCK_SIZE / own) })),
        _ => Err(Error::Unsupported(format!("blocks of {own} bytes: those of waffle have {BLOCK_SIZE}"))),
    }
}

impl Grouped {
    fn size(&self) -> usize {
        BLOCK / to_usize(self.count)
    }

    fn place(&self, block: BlockNo, part: usize) -> BlockNo {
        BlockNo(block.get() * self.count + to_u64(part))
    }
}

impl BlockDevice for Grouped {
    fn geometry(&self) -> Geometry {
        let own = self.device.geometry();
        Geometry { block_size: BLOCK_SIZE, block_count: own.block_count / self.count, ..own }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        let size = self.size();
        let mut parts = Vec::with_capacity(reads.len() * to_usize(self.count));
        for read in reads {
            let BlockRead { block, kind, data } = read;
            for (part, data) in data.chunks_exact_mut(size).enumerate() {
                parts.push(BlockRead { block: self.place(*block, part), kind: *kind, data });
            }
        }
        self.device.read(&mut parts)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let parts: Vec<BlockWrite<'_>> = writes
            .iter()
            .flat_map(|write| {
                let parts = write.data.chunks_exact(self.size()).enumerate();
                parts.map(|(part, data)| BlockWrite {
                    block: self.place(write.block, part),
                    kind: write.kind,
                    data,
                })
            })
            .collect();
        self.device.write(&parts)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(self.place(start, 0), count * self.count)
    }

    fn intact(&self) -> Result<()> {
        self.device.intact()
    }
}
