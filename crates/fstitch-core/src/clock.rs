//! Time enters the libraries here, so that tests and the laboratory can hold it still.

use crate::lock::Unpoisoned;
use std::sync::Mutex;
use std::time::Duration;

/// A point in wall-clock time: seconds and nanoseconds since 1970-01-01T00:00:00Z; seconds may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Timestamp {
    /// Whole seconds since the epoch.
    pub secs: i64,
    /// Nanoseconds within the second, below 1,000,000,000.
    pub nanos: u32,
}

/// A source of time.
pub trait Clock: Send + Sync {
    /// The wall clock, for time stamps on files.
    fn now(&self) -> Timestamp;
    /// Time since some fixed start, never going back, for ages and intervals.
    fn elapsed(&self) -> Duration;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: std::time::Instant,
}

impl SystemClock {
    /// Nanoseconds in a step of the wall clock, as in Linux's time stamps on files (a tick of 250 Hz): hundreds of changes of a
    /// directory in a moment change its times once, and overwriting twice within a step changes no inode the second time.
    pub const STEP_NANOS: u32 = 4_000_000;

    /// A clock whose elapsed time starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place where the machine's time enters")]
    pub fn new() -> Self {
        Self { start: std::time::Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the one place where the machine's time enters")]
    fn now(&self) -> Timestamp {
        let exact = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(d) => {
                Timestamp { secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nanos: d.subsec_nanos() }
            }
            Err(before) => {
                let d = before.duration();
                let whole = i64::try_from(d.as_secs()).unwrap_or(i64::MAX);
                match d.subsec_nanos() {
                    0 => Timestamp { secs: -whole, nanos: 0 },
                    n => Timestamp { secs: -whole - 1, nanos: 1_000_000_000 - n },
                }
            }
        };
        Timestamp { secs: exact.secs, nanos: exact.nanos - exact.nanos % Self::STEP_NANOS }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that moves only when told.
#[derive(Debug, Default)]
pub struct ManualClock {
    elapsed: Mutex<Duration>,
}

impl ManualClock {
    /// A clock that stands at the epoch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *self.elapsed.lock().unpoisoned() += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let at = self.elapsed();
        Timestamp { secs: i64::try_from(at.as_secs()).unwrap_or(i64::MAX), nanos: at.subsec_nanos() }
    }

    fn elapsed(&self) -> Duration {
        *self.elapsed.lock().unpoisoned()
    }
}
