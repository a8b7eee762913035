//! Counting what reaches a device.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::num::{to_u64, to_usize};
use crate::{BlockDevice, BlockNo, BlockRead, BlockWrite, Geometry, Result};

/// A number that only grows, shared between threads.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: usize) {
        self.0.fetch_add(to_u64(n), Ordering::Relaxed);
    }

    /// The number now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What passed through a [`StatsDevice`].
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Blocks read.
    pub blocks_read: Counter,
    /// Blocks written.
    pub blocks_written: Counter,
    /// Runs of neighbouring blocks in the order of each batch: what a device sees as write requests.
    pub write_requests: Counter,
    /// Flushes.
    pub flushes: Counter,
    /// Blocks discarded.
    pub blocks_discarded: Counter,
}

/// A layer that counts.
#[derive(Debug)]
pub struct StatsDevice<D> {
    below: D,
    stats: DeviceStats,
}

impl<D: BlockDevice> StatsDevice<D> {
    /// Counts what passes to `below`.
    pub fn new(below: D) -> Self {
        Self { below, stats: DeviceStats::default() }
    }

    /// The counts so far.
    pub fn stats(&self) -> &DeviceStats {
        &self.stats
    }
}

impl<D: BlockDevice> BlockDevice for StatsDevice<D> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.stats.blocks_read.add(reads.len());
        self.below.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let joined = writes.windows(2).filter(|pair| pair[0].block.get() + 1 == pair[1].block.get()).count();
        self.stats.blocks_written.add(writes.len());
        self.stats.write_requests.add(writes.len() - joined);
        self.below.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.stats.flushes.add(1);
        self.below.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.stats.blocks_discarded.add(to_usize(count));
        self.below.discard(start, count)
    }

    fn prefetch(&self, start: BlockNo, count: u64) {
        self.below.prefetch(start, count);
    }

    fn intact(&self) -> Result<()> {
        self.below.intact()
    }
}
