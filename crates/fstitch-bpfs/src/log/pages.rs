//! A device as pages of 4 KiB, whatever its own blocks are.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Result};

use crate::pm::{BLOCK, BLOCK_BYTES};

/// A page that is to be written: its number, what it is, what it holds.
pub(crate) type Page<'a> = (u64, BlockKind, &'a [u8]);

/// A device whose blocks make up pages.
#[derive(Clone)]
pub(crate) struct Pages {
    device: Arc<dyn BlockDevice>,
    unit: usize,
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pages({:?})", self.device.geometry())
    }
}

impl Pages {
    /// # Errors
    /// `Unsupported` for a device whose blocks are larger than a page.
    pub(crate) fn new(device: Arc<dyn BlockDevice>) -> Result<Self> {
        let unit = to_usize(device.geometry().block_size);
        if unit > BLOCK {
            let what = format!("BPFS on a device with blocks of {unit} bytes: 4096 are the most");
            return Err(Error::Unsupported(what));
        }
        Ok(Self { device, unit })
    }

    /// Whole pages.
    pub(crate) fn count(&self) -> u64 {
        self.device.geometry().bytes() / BLOCK_BYTES
    }

    /// Reads pages from `first` on, as many as there is room for.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn read(&self, first: u64, kind: BlockKind, into: &mut [u8]) -> Result<()> {
        let start = first * to_u64(BLOCK / self.unit);
        let mut reads: Vec<_> = (start..)
            .zip(into.chunks_exact_mut(self.unit))
            .map(|(block, data)| BlockRead { block: BlockNo(block), kind, data })
            .collect();
        self.device.read(&mut reads)
    }

    /// Writes pages, which are all different.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn write(&self, pages: &[Page<'_>]) -> Result<()> {
        let in_page = to_u64(BLOCK / self.unit);
        let mut writes: Vec<_> = pages
            .iter()
            .flat_map(|(page, kind, data)| {
                let blocks = (page * in_page..).zip(data.chunks_exact(self.unit));
                blocks.map(|(block, data)| BlockWrite { block: BlockNo(block), kind: *kind, data })
            })
            .collect();
        writes.sort_unstable_by_key(|write| write.block);
        self.device.write(&writes)
    }

    /// Everything that was written is stable.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    /// # Errors
    /// When the medium is no longer what was opened.
    pub(crate) fn intact(&self) -> Result<()> {
        self.device.intact()
    }
}
