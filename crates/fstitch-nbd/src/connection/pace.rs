//! How long requests take, by kind: a short one is done at once by the thread that reads, a long one must not keep others waiting.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::proto::numbers::flag;
use crate::proto::request::{Command, Request};
use crate::stats::Kind;

/// Handing the reading over costs some 5 µs of processor, and so does waking: below several of these it is not worth it.
const QUICK_MAX_NANOS: u32 = 30_000;
/// A request counts for no more than that, so that one that had bad luck is forgotten after a dozen others.
const COUNTED_MAX_NANOS: u32 = 1_000_000;
/// Reads and writes up to this length are of a kind; longer ones are never short.
const SMALL_MAX: u64 = 1 << 16;

/// Average durations, each in nanoseconds; [`UNKNOWN`] before the first one.
#[derive(Debug)]
pub(super) struct Pace([AtomicU32; 16]);

/// Of a kind of which none has been seen. Long, for all that is known.
const UNKNOWN: u32 = u32::MAX;

/// A kind of requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(usize);

impl Slot {
    /// The kind of a request; `None` for those that are long in any case.
    pub(super) fn of(request: &Request) -> Option<Self> {
        let has_data = matches!(request.command, Command::Read | Command::Write);
        let is_large = if has_data { request.len > SMALL_MAX } else { request.payload > 0 };
        let index = 2 * Kind::from(request.command).index() + usize::from(request.has(flag::FUA));
        (!is_large).then_some(Self(index))
    }
}

impl Pace {
    pub(super) fn new() -> Self {
        Self([const { AtomicU32::new(UNKNOWN) }; 16])
    }

    /// Whether requests of this kind are short.
    pub(super) fn is_quick(&self, slot: Slot) -> bool {
        self.0[slot.0].load(Ordering::Relaxed) <= QUICK_MAX_NANOS
    }

    /// One took so long. That two threads may note theirs at once, and one is lost, does no harm.
    pub(super) fn note(&self, slot: Slot, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(UNKNOWN).min(COUNTED_MAX_NANOS);
        let average = &self.0[slot.0];
        let new = match average.load(Ordering::Relaxed) {
            UNKNOWN => took,
            old => old - old / 8 + took / 8,
        };
        average.store(new, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_long_until_it_is_known_and_forgets_bad_luck() {
        let (pace, slot) = (Pace::new(), Slot(3));
        assert!(!pace.is_quick(slot));
        pace.note(slot, Duration::from_micros(3));
        assert!(pace.is_quick(slot));
        pace.note(slot, Duration::from_secs(5));
        assert!(!pace.is_quick(slot));
        let needed = (1..).find(|_| {
            pace.note(slot, Duration::from_micros(3));
            pace.is_quick(slot)
        });
        assert!(needed.unwrap() < 16);
        assert!(!pace.is_quick(Slot(4)), "kinds are apart");
    }
}
