//! What becomes of patches, for who looks on: small events, in the order in which things happened.
//!
//! ```text
//!   core lock: Graph ── note ──► Ring (bounded)        no lock: Cache::deliver ──► Observer::observe
//!                                  └──── the full buffer is changed for an empty one ────┘
//! ```
//!
//! An observer never runs under the core lock, so nothing that it does can wait for itself or keep others waiting: under the
//! lock an event is put into a buffer that has its room already, and whoever calls [`crate::Cache::deliver`] hands the buffer
//! over with no lock held. A buffer that is full takes no more until then, and what it did not take is counted. The newest are
//! left out and not the oldest, so that there is one gap, at a place that is known: behind the events that come with the count.

use std::time::Duration;

use fstitch_core::{BlockKind, BlockNo};

use crate::PatchId;
use crate::view::PatchRole;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, by the cache's clock. What happens in one moment under the lock has one time.
    pub at: Duration,
    /// What.
    pub what: What,
}

// As many as a buffer has room for are kept.
const _: () = assert!(size_of::<Event>() <= 56);

/// What can happen. Blocks have the numbers of the cache's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A change became a patch of its block.
    Made {
        /// The patch.
        patch: PatchId,
        /// Its block.
        block: BlockNo,
        /// What the block holds.
        kind: BlockKind,
        /// Whether it can be undone.
        role: PatchRole,
    },
    /// A patch without a block was made.
    MadeEmpty {
        /// The patch.
        patch: PatchId,
        /// What it is for.
        role: PatchRole,
    },
    /// A change joined a patch that was there.
    Joined {
        /// The patch.
        patch: PatchId,
    },
    /// One patch of a block became part of another.
    Merged {
        /// It is no more.
        patch: PatchId,
        /// It has all of it now.
        into: PatchId,
    },
    /// A patch came to wait for another one.
    Waits {
        /// It waits.
        patch: PatchId,
        /// It must be stable first, or with it.
        before: PatchId,
    },
    /// A held patch may commit from now on.
    Released {
        /// The patch.
        patch: PatchId,
    },
    /// A patch was taken out of its block, because it came to change nothing. It waits for what it waited for.
    Emptied {
        /// The patch.
        patch: PatchId,
    },
    /// A patch was dropped: nobody will ever see what it changed.
    Dropped {
        /// The patch.
        patch: PatchId,
    },
    /// An epoch begins; its blocks follow.
    Began {
        /// Its number.
        epoch: u64,
        /// Blocks of it.
        blocks: u32,
        /// Blocks with changes when it began, those of it among them.
        dirty: u32,
        /// Callers who wait for patches to be stable.
        waiters: u32,
    },
    /// A block is on its way to the medium, with all its patches but those that are [`What::Undone`].
    Launched {
        /// The block.
        block: BlockNo,
        /// What it holds.
        kind: BlockKind,
        /// Patches written with it.
        patches: u32,
        /// Patches undone for it, which follow.
        undone: u32,
    },
    /// A patch was undone in what is written of its block.
    Undone {
        /// The patch.
        patch: PatchId,
    },
    /// The write and the flush of an epoch came to their end. What it committed follows.
    Ended {
        /// Its number.
        epoch: u64,
        /// Whether they failed.
        failed: bool,
    },
    /// A patch is stable.
    Committed {
        /// The patch.
        patch: PatchId,
    },
    /// An operation waits for room.
    Stalled,
    /// Nothing is written any more, or changes of a volume are refused.
    Poisoned,
}

/// Looks on.
pub trait Observer: Send {
    /// These events happened, in this order; behind them so many others did, of which nothing is known but their number.
    ///
    /// Called by [`crate::Cache::deliver`] on the thread of its caller, which holds no lock of the cache: it may ask the cache
    /// whatever it likes, and takes as long as it likes, while events pile up behind it. It must not keep the cache alive.
    fn observe(&mut self, events: &[Event], dropped: u64);
}

/// Events that nobody has been told of yet. [core lock]
#[derive(Debug)]
pub(crate) struct Ring {
    events: Vec<Event>,
    capacity: usize,
    dropped: u64,
}

impl Ring {
    /// Has room for so many events.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { events: Vec::with_capacity(capacity), capacity, dropped: 0 }
    }

    /// One more, if there is room.
    pub(crate) fn push(&mut self, event: Event) {
        if self.events.len() < self.capacity {
            self.events.push(event);
        } else {
            self.dropped += 1;
        }
    }

    /// Changes its buffer for an empty one; returns how many events were dropped behind those that are in it.
    pub(crate) fn swap(&mut self, empty: &mut Vec<Event>) -> u64 {
        assert!(empty.is_empty(), "events would be lost");
        std::mem::swap(&mut self.events, empty);
        self.events.reserve_exact(self.capacity);
        std::mem::take(&mut self.dropped)
    }
}
