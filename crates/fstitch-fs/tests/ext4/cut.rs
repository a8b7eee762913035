//! A medium whose power fails.

use std::sync::atomic::{AtomicUsize, Ordering};

use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, Result};

/// Whether `FSTITCH_CUTS` asks for all cuts instead of the sample that is taken by default: minutes, as each copies an image or four.
pub fn is_thorough() -> bool {
    std::env::var_os("FSTITCH_CUTS").is_some()
}

/// A device whose power fails after so many writes of a block.
pub struct Cut<'d> {
    below: &'d MemDevice,
    left: AtomicUsize,
}

impl BlockDevice for Cut<'_> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            let left =
                self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            if left.is_err() {
                return Err(Error::io(IoOp::Write, write.block, std::io::Error::other("no power")));
            }
            self.below.write(&[BlockWrite { block: write.block, kind: write.kind, data: write.data }])?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.below.discard(start, count)
    }
}

impl<'d> Cut<'d> {
    /// The device with so many writes left.
    pub fn after(below: &'d MemDevice, writes: usize) -> Self {
        Self { below, left: AtomicUsize::new(writes) }
    }
}
