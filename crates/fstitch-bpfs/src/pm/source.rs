//! Where a medium's bytes come from that nobody has looked at yet: a device, some blocks at a time.

use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, Error, Result};

use super::BLOCK_BYTES;
use crate::log::Pages;

/// Pages that come at once.
const CHUNK: u64 = 16;

/// A device, and which chunks of it are in memory.
pub(super) struct Source {
    pages: Pages,
    count: u64,
    /// A bit for each chunk, which is set behind its bytes.
    loaded: Vec<AtomicU64>,
    loading: Mutex<(), rank::Epoch>,
    failed: Mutex<Option<Error>, rank::Leaf>,
}

impl Source {
    /// So many pages of a device, of which none is in memory.
    pub(super) fn new(pages: Pages, count: u64) -> Self {
        let words = count.div_ceil(CHUNK).div_ceil(64);
        let loaded = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { pages, count, loaded, loading: Mutex::new(()), failed: Mutex::new(None) }
    }

    fn has(&self, chunk: u64) -> bool {
        self.loaded[to_usize(chunk / 64)].load(Ordering::Acquire) >> (chunk % 64) & 1 == 1
    }

    /// Brings the chunks of some bytes to memory by `put`, each once.
    ///
    /// # Errors
    /// Those of the device.
    pub(super) fn load(&self, at: u64, len: usize, mut put: impl FnMut(u64, &[u8])) -> Result<()> {
        let each = CHUNK * BLOCK_BYTES;
        for chunk in at / each..(at + to_u64(len)).div_ceil(each) {
            if self.has(chunk) {
                continue;
            }
            let _alone = self.loading.lock();
            if self.has(chunk) {
                continue;
            }
            let first = chunk * CHUNK;
            let pages = CHUNK.min(self.count - first);
            let mut bytes = vec![0; to_usize(pages * BLOCK_BYTES)];
            self.pages.read(first, BlockKind::Data, &mut bytes)?;
            // Memory is zeros, and stays without pages of its own where the device is zeros.
            for (page, bytes) in (first..).zip(bytes.chunks_exact(to_usize(BLOCK_BYTES))) {
                if bytes.iter().any(|byte| *byte != 0) {
                    put(page * BLOCK_BYTES, bytes);
                }
            }
            self.loaded[to_usize(chunk / 64)].fetch_or(1 << (chunk % 64), Ordering::Release);
        }
        Ok(())
    }

    /// Something could not be read.
    pub(super) fn failed(&self, error: Error) {
        self.failed.lock().get_or_insert(error);
    }

    /// What could not be read since this was asked before.
    pub(super) fn take_failure(&self) -> Option<Error> {
        self.failed.lock().take()
    }
}
