//! Who looks on is told of events, holding no lock.

use fstitch_core::lock::Mutex;
use fstitch_core::order::{Rank, assert_below, rank};
use fstitch_core::{Errno, Result};

use super::{Cache, Core, Shared};
use crate::graph::patch::Sx;
use crate::observer::{Event, Observer, Ring, What};

/// The place of an observer. Taken before the core lock, and never waited for.
pub(super) type Seat = Mutex<Option<Seated>, rank::Seat>;

/// An observer, and the buffer that takes the place of a full one.
pub(super) struct Seated {
    observer: Box<dyn Observer>,
    spare: Vec<Event>,
    /// It has been called and has not returned: whoever finds it so finds one that panicked, which is not called again.
    called: bool,
}

impl Cache {
    /// From now on `observer` is told of what becomes of patches, by whoever calls [`Cache::deliver`]. At most `capacity` events
    /// wait for that, and as many again may be on their way; there is room for them from the beginning. One observer at a time looks
    /// at all volumes of a device.
    ///
    /// # Errors
    /// `EBUSY` if there is one.
    pub fn set_observer(&self, observer: Box<dyn Observer>, capacity: usize) -> Result<()> {
        let Some(mut seat) = self.shared.observer.try_lock_mended(|_| ()) else {
            return Err(Errno::BUSY.into());
        };
        if seat.is_some() {
            return Err(Errno::BUSY.into());
        }
        let ring = Box::new(Ring::new(capacity));
        *seat = Some(Seated { observer, spare: Vec::with_capacity(capacity), called: false });
        self.shared.core().graph.watch(Some(ring));
        Ok(())
    }

    /// Tells the observer what has happened since the last time. To be called holding no lock of the cache or a file system; does
    /// nothing while somebody else does the same. Returns whether there is an observer.
    ///
    /// # Panics
    /// In debug builds, if this thread holds the core lock.
    pub fn deliver(&self) -> bool {
        assert_below(Rank::Core, "telling an observer");
        match self.shared.observer.try_lock_mended(|_| ()) {
            Some(mut seat) => seat.as_mut().is_some_and(|seated| seated.deliver(&self.shared)),
            None => true,
        }
    }

    /// Tells the observer the rest and takes it away. `None` if there is none, or somebody else is telling it something.
    pub fn take_observer(&self) -> Option<Box<dyn Observer>> {
        assert_below(Rank::Core, "telling an observer");
        let mut seat = self.shared.observer.try_lock_mended(|_| ())?;
        let mut seated = seat.take()?;
        // Not in the condition, where the lock would be held through the whole block.
        let ring = self.shared.core().graph.watch(None);
        if let Some(mut ring) = ring {
            let dropped = ring.swap(&mut seated.spare);
            seated.hand_over(dropped);
        }
        Some(seated.observer)
    }
}

impl Seated {
    /// Returns whether it can be told of events.
    fn deliver(&mut self, shared: &Shared) -> bool {
        if self.called {
            return false;
        }
        let dropped = match shared.core().graph.ring() {
            Some(ring) => ring.swap(&mut self.spare),
            None => 0,
        };
        self.hand_over(dropped);
        true
    }

    /// Tells the observer what is in its buffer. No lock of the cache is held.
    fn hand_over(&mut self, dropped: u64) {
        if !self.called && (!self.spare.is_empty() || dropped > 0) {
            self.called = true;
            self.observer.observe(&self.spare, dropped);
            self.called = false;
            self.spare.clear();
        }
    }
}

impl Core {
    /// The number of the epoch that is being written, or comes next.
    pub(super) fn epoch(&self) -> u64 {
        self.graph.stats.epochs + 1
    }

    /// An epoch of these blocks begins.
    pub(super) fn note_epoch(&mut self, blocks: &[Sx]) {
        self.launched_at = self.graph.now();
        // What has failed in an earlier one may be in flight still.
        let graph = &self.graph;
        self.launched.retain(|&sx| !graph.slot(sx).flying.is_empty());
        self.launched.extend_from_slice(blocks);
        let count = |n: usize| u32::try_from(n).expect("fewer than 2^32 blocks by the memory limit");
        self.tell(|core| What::Began {
            epoch: core.epoch(),
            blocks: count(blocks.len()),
            dirty: count(core.graph.dirty().len()),
            waiters: count(core.wanted.len()),
        });
    }

    /// Says what happens to the cache, if anybody wants to know.
    #[inline(always)]
    pub(super) fn tell(&mut self, what: impl FnOnce(&Self) -> What) {
        if self.graph.ring().is_some() {
            self.note(what);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, what: impl FnOnce(&Self) -> What) {
        let what = what(self);
        // Epochs are no changes: nobody has looked at the clock for them.
        self.graph.new_moment();
        self.graph.tell(|_| what);
    }
}
