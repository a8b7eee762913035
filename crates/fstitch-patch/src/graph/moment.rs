//! The time at which changes are made: one look at the clock for all that is done in one moment, and none if nobody asks.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::Clock;

/// A moment under the core lock.
pub(super) struct Moment {
    clock: Arc<dyn Clock>,
    at: Cell<Option<Duration>>,
}

impl Moment {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, at: Cell::new(None) }
    }

    /// Time has passed.
    pub(super) fn pass(&self) {
        self.at.set(None);
    }

    /// When it is.
    pub(super) fn at(&self) -> Duration {
        self.at.get().unwrap_or_else(|| {
            let now = self.clock.elapsed();
            self.at.set(Some(now));
            now
        })
    }
}

impl std::fmt::Debug for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Moment({:?})", self.at.get())
    }
}
