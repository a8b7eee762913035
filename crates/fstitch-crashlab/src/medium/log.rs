//! What happened to a device, in order: the language in which the laboratory speaks about the past.

use std::ops::Range;

use fstitch_core::{BlockKind, Geometry};

use super::image::Bytes;

/// A request, counted from 0 in order of issue; its acknowledgement names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestNo(pub u32);

/// What a workload says about its own progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Operation number … of the workload begins.
    Begin(u32),
    /// It returned.
    End(u32),
    /// A sync, fsync or fdatasync returned: promise number … of the workload holds from here on.
    Promise(u32),
    /// Application-defined: the boundary of a patchgroup, an atomic unit, or a remark.
    Note(u64),
}

/// One line of the log. `docs/medium.md`, section 5, says what the lines mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A block's write was issued.
    Write {
        /// The request; all blocks of a batch are requests of their own.
        request: RequestNo,
        /// Where to.
        block: u64,
        /// What it is.
        kind: BlockKind,
        /// The bytes.
        data: Bytes,
        /// Stable once it is acknowledged (imported logs only).
        fua: bool,
    },
    /// The contents of blocks were given up.
    Discard {
        /// The request.
        request: RequestNo,
        /// The first block.
        start: u64,
        /// How many.
        count: u64,
    },
    /// A write or discard was acknowledged.
    Ack(RequestNo),
    /// A flush was issued.
    FlushIssued(RequestNo),
    /// A flush was acknowledged.
    FlushAcked(RequestNo),
    /// A flush failed: what was written so far may have been dropped, and no later flush proves otherwise.
    FlushFailed(RequestNo),
    /// Something happened to persistent memory.
    Memory(Access),
    /// The workload speaks.
    Mark(Mark),
}

/// What is done to persistent memory. A store is in the processor's cache at first; `clwb` and its like flush lines, and
/// `sfence` waits for these. A store past the cache is a store and a flush of its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Bytes of one line were stored.
    Store {
        /// The store, counted as requests are.
        request: RequestNo,
        /// Where to, in bytes from the beginning of the region.
        offset: u64,
        /// The bytes.
        data: Box<[u8]>,
    },
    /// The writing back of these cache lines began, with what they hold now.
    Flush {
        /// The lines' numbers.
        lines: Range<u64>,
    },
    /// A fence returned: what was flushed before it is durable.
    Fence,
}

impl Event {
    /// The blocks whose contents it changes, on a device of this shape.
    #[must_use]
    pub fn changes(&self, geometry: Geometry) -> Range<u64> {
        match self {
            Self::Write { block, .. } => *block..*block + 1,
            Self::Discard { start, count, .. } => *start..*start + *count,
            Self::Memory(Access::Store { offset, .. }) => {
                let line = *offset / u64::from(geometry.block_size);
                line..line + 1
            }
            _ => 0..0,
        }
    }
}

/// The history of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The device's shape.
    pub geometry: Geometry,
    /// What happened, in order.
    pub events: Vec<Event>,
}

impl Log {
    /// A device to which nothing has happened.
    #[must_use]
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry, events: Vec::new() }
    }

    /// Block writes in the log, and stores.
    #[must_use]
    pub fn writes(&self) -> usize {
        let writes =
            |event: &&Event| matches!(event, Event::Write { .. } | Event::Memory(Access::Store { .. }));
        self.events.iter().filter(writes).count()
    }
}
