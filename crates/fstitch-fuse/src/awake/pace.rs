//! When requests come fast enough to keep processors awake, and when that is over: numbers only, no clock and no thread.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How fast is fast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    /// So many requests ...
    pub fast: u32,
    /// ... within this time begin a spell.
    pub window: Duration,
    /// A spell is looked at this often ...
    pub tick: Duration,
    /// ... and ends when fewer requests came since it was looked at last.
    pub stay: u32,
}

impl Pace {
    /// Nobody asked for it: only what would wait thousands of times in a second is worth a processor's sleep. Over within 10 ms.
    pub(super) const UNASKED: Self =
        Self { fast: 12, window: Duration::from_millis(4), tick: Duration::from_millis(5), stay: 4 };
    /// Somebody asked for it: from the first request on, and 20 to 40 ms longer than the last.
    pub(super) const ASKED: Self =
        Self { fast: 1, window: Duration::from_millis(4), tick: Duration::from_millis(20), stay: 1 };

    /// Whether a spell goes on in which `requests` came since it was looked at last.
    pub(super) fn goes_on(&self, requests: u32) -> bool {
        requests >= self.stay
    }
}

/// Requests that come outside of a spell. Several threads count at once; a request that is counted in the wrong window, or not at
/// all, only begins a spell a moment later.
#[derive(Debug, Default)]
pub(super) struct Burst {
    /// Microseconds at which the window began.
    since: AtomicU64,
    seen: AtomicU32,
}

impl Burst {
    /// A request comes at `now`; whether a spell begins with it.
    pub(super) fn note(&self, pace: &Pace, now: Duration) -> bool {
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let window = u64::try_from(pace.window.as_micros()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.since.load(Ordering::Relaxed)) > window {
            self.since.store(now, Ordering::Relaxed);
            self.seen.store(1, Ordering::Relaxed);
            return pace.fast <= 1;
        }
        self.seen.fetch_add(1, Ordering::Relaxed).saturating_add(1) >= pace.fast
    }

    /// A spell has ended: counting begins anew.
    pub(super) fn forget(&self) {
        self.seen.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requests out of `gap`-spaced ones after which a spell begins, if one does within 1,000.
    fn begins(pace: &Pace, gap: Duration) -> Option<u32> {
        let burst = Burst::default();
        (1..=1000).find(|no| burst.note(pace, Duration::from_secs(9) + gap * *no))
    }

    #[test]
    fn a_spell_begins_when_requests_come_fast() {
        let pace = Pace::UNASKED;
        assert_eq!(begins(&pace, Duration::from_micros(20)), Some(12));
        assert_eq!(
            begins(&pace, Duration::from_micros(200)),
            Some(12),
            "as slow as halted processors make them"
        );
        assert_eq!(begins(&pace, Duration::from_millis(1)), None);
        assert_eq!(begins(&pace, Duration::from_secs(1)), None);
        assert_eq!(begins(&Pace::ASKED, Duration::from_secs(1)), Some(1));
    }

    #[test]
    fn a_spell_ends_with_the_requests() {
        let pace = Pace::UNASKED;
        assert!(pace.goes_on(4) && !pace.goes_on(3) && !pace.goes_on(0));
        assert!(Pace::ASKED.goes_on(1) && !Pace::ASKED.goes_on(0));
        assert!(2 * pace.tick <= Duration::from_millis(10), "within 10 ms of the last request");
    }

    #[test]
    fn after_a_spell_counting_begins_anew() {
        let (burst, pace) = (Burst::default(), Pace::UNASKED);
        let at = Duration::from_secs(1);
        assert!((0..pace.fast).any(|_| burst.note(&pace, at)));
        burst.forget();
        assert!((1..pace.fast).all(|_| !burst.note(&pace, at)));
        assert!(burst.note(&pace, at));
    }
}
