//! Chunks on their way to the medium, apart from how they are put together: who waits for the medium does not hold up the others.
//!
//! ```text
//!   stream (locked) ── seal ──► queue ── take ──► Medium (locked) ── write, flush ──► Reached
//! ```
//!
//! One thread at a time writes, with the queue as it found it and without the stream. Those who need the stream and the medium both, a
//! checkpoint or the cleaner, take the stream first and wait for the medium.
//!
//! **Invariants.** 1. Chunks are written in the order of their numbers. 2. Contents that are queued are read from memory. 3. After a
//! failure nothing is written any more.

use std::sync::Arc;

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::num::to_u64;
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, Error, Result};

use crate::chunk::DataKind;
use crate::log::Contents;

/// A summary and its data, which have their place.
pub(crate) struct Sealed {
    /// The chunk's number; 0 if it is no part of the log.
    pub(crate) number: u64,
    /// The block of the device where it begins.
    pub(crate) first: u64,
    pub(crate) summary: Vec<u8>,
    pub(crate) data: Vec<(DataKind, Contents)>,
}

impl Sealed {
    /// Bytes of all of it.
    pub(crate) fn bytes(&self) -> u64 {
        to_u64(self.summary.len()) + self.data.iter().map(|(_, data)| to_u64(data.len())).sum::<u64>()
    }

    fn writes(&self, unit: usize) -> impl Iterator<Item = BlockWrite<'_>> {
        let summary = self.summary.chunks(unit).map(|piece| (BlockKind::JournalDescriptor, piece));
        let data = self.data.iter().flat_map(move |(kind, data)| {
            let kind = match kind {
                DataKind::Page => BlockKind::Indirect,
                DataKind::Block | DataKind::Spilled | DataKind::Packed => BlockKind::Data,
            };
            data.chunks(unit).map(move |piece| (kind, piece))
        });
        let pieces = (self.first..).zip(summary.chain(data));
        pieces.map(|(block, (kind, data))| BlockWrite { block: BlockNo(block), kind, data })
    }
}

/// How far the medium is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reached {
    /// The last chunk that was written.
    pub(crate) written: u64,
    /// The last one that is stable.
    pub(crate) stable: u64,
    /// Something beside the log was written that is not stable.
    beside: bool,
    /// Flushes of the device.
    pub(crate) flushes: u64,
    failed: Option<Error>,
}

/// The device, as a disk writes it.
pub(crate) struct Medium {
    device: Arc<dyn BlockDevice>,
    unit: usize,
    reached: Mutex<Reached, rank::Seat>,
}

/// The right to write.
pub(crate) struct Writing<'a> {
    medium: &'a Medium,
    reached: MutexGuard<'a, Reached>,
}

impl Medium {
    /// One on which everything up to a chunk is stable.
    pub(crate) fn new(device: Arc<dyn BlockDevice>, unit: usize, stable: u64) -> Self {
        let reached = Reached { written: stable, stable, ..Reached::default() };
        Self { device, unit, reached: Mutex::new(reached) }
    }

    /// Waits for the right to write.
    pub(crate) fn hold(&self) -> Writing<'_> {
        let panicked = || Error::Poisoned("a thread panicked while it wrote".into());
        let reached = self.reached.lock_mended(|reached| {
            reached.failed.get_or_insert_with(panicked);
        });
        Writing { medium: self, reached }
    }
}

impl Writing<'_> {
    /// Writes what is queued.
    ///
    /// # Errors
    /// If the device fails; nobody knows then what is on it, and everything fails from then on.
    pub(crate) fn write(&mut self, sealed: &[Sealed]) -> Result<()> {
        let unit = self.medium.unit;
        let writes: Vec<BlockWrite<'_>> = sealed.iter().flat_map(|sealed| sealed.writes(unit)).collect();
        if writes.is_empty() {
            return self.check();
        }
        self.act(|device| device.write(&writes))?;
        for sealed in sealed {
            match sealed.number {
                0 => self.reached.beside = true,
                number => {
                    assert_eq!(number, self.reached.written + 1, "chunks are written in their order");
                    self.reached.written = number;
                }
            }
        }
        Ok(())
    }

    /// Makes everything stable that was written.
    ///
    /// # Errors
    /// As [`Writing::write`].
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.reached.stable == self.reached.written && !self.reached.beside {
            return self.check();
        }
        self.act(|device| device.flush())?;
        let written = self.reached.written;
        (self.reached.stable, self.reached.beside) = (written, false);
        self.reached.flushes += 1;
        Ok(())
    }

    /// How far the medium is.
    pub(crate) fn reached(&self) -> &Reached {
        &self.reached
    }

    fn check(&self) -> Result<()> {
        self.reached.failed.clone().map_or(Ok(()), Err)
    }

    fn act(&mut self, act: impl FnOnce(&dyn BlockDevice) -> Result<()>) -> Result<()> {
        self.check()?;
        act(&*self.medium.device).inspect_err(|error| {
            self.reached.failed = Some(Error::Poisoned(error.to_string().into()));
        })
    }
}
