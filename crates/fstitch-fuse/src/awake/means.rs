//! By what means processors are kept awake, and whether it is worth while: a decision over measurements.

use std::io::Result;
use std::time::Duration;

/// A thread that takes less than this to wake needs no help: so long takes the interrupt alone on processors that are awake, in a
/// virtual machine. Waking one that sleeps deeply or is halted takes 40 to 150 microseconds.
const SLOW: Duration = Duration::from_micros(16);

/// What keeps processors awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A latency of nothing is asked of `/dev/cpu_dma_latency`, which takes root.
    Latency,
    /// Threads of the idle class spin.
    Spinning,
}

/// What was found out, and what follows from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    /// By what means, if by any.
    pub means: Option<Means>,
    /// What a wake-up takes when nothing is done, where that was measured.
    pub wake_up: Option<Duration>,
    /// And with these means.
    pub shortened: Option<Duration>,
    /// Why, in words.
    pub why: &'static str,
}

/// Chooses for somebody who did not ask: nothing unless waking is slow, and then the first of `candidates` with which it takes no more
/// than half as long. `measure` does that, with means in force or none.
pub(super) fn judge(
    on_battery: bool,
    candidates: &[Means],
    mut measure: impl FnMut(Option<Means>) -> Result<Duration>,
) -> Verdict {
    let no = |why| Verdict { why, ..Verdict::default() };
    if on_battery {
        return no("on battery");
    }
    if candidates.is_empty() {
        return no(
            "no means: it takes two processors, and root, or at most eight and no limit of their time",
        );
    }
    let Ok(wake_up) = measure(None) else { return no("wake-ups could not be measured") };
    let found = Verdict { wake_up: Some(wake_up), ..Verdict::default() };
    if wake_up < SLOW {
        return Verdict { why: "processors wake quickly", ..found };
    }
    for means in candidates {
        if let Ok(shortened) = measure(Some(*means))
            && shortened <= wake_up / 2
        {
            let (means, shortened) = (Some(*means), Some(shortened));
            return Verdict { means, shortened, why: "processors wake slowly", ..found };
        }
    }
    Verdict { why: "processors wake slowly, and nothing that was tried shortens it", ..found }
}

/// Chooses for somebody who asked: means that help or, failing that, the first.
pub(super) fn obey(candidates: &[Means], measure: impl FnMut(Option<Means>) -> Result<Duration>) -> Verdict {
    let judged = judge(false, candidates, measure);
    match judged.means.or(candidates.first().copied()) {
        None => judged,
        means => Verdict { means, why: "asked for", ..judged },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wake-ups in microseconds: as it is, with a latency asked for, with spinning.
    fn measured(times: [u64; 3]) -> impl FnMut(Option<Means>) -> Result<Duration> {
        move |means| {
            let at = match means {
                None => 0,
                Some(Means::Latency) => 1,
                Some(Means::Spinning) => 2,
            };
            Ok(Duration::from_micros(times[at]))
        }
    }

    const BOTH: [Means; 2] = [Means::Latency, Means::Spinning];

    #[test]
    fn means_are_chosen_by_what_they_bring() {
        let chosen = |candidates: &[Means], times| judge(false, candidates, measured(times)).means;
        assert_eq!(chosen(&BOTH, [60, 3, 8]), Some(Means::Latency));
        assert_eq!(chosen(&BOTH, [60, 50, 8]), Some(Means::Spinning), "the halt exit is what costs");
        assert_eq!(chosen(&BOTH[1..], [60, 3, 8]), Some(Means::Spinning), "an ordinary user");
        assert_eq!(chosen(&BOTH, [60, 50, 40]), None, "nothing helps");
        assert_eq!(chosen(&BOTH, [6, 1, 1]), None, "quick by themselves");
        assert_eq!(chosen(&[], [60, 1, 1]), None);
    }

    #[test]
    fn nothing_is_measured_on_battery() {
        let verdict = judge(true, &BOTH, |_| panic!("it costs power"));
        assert_eq!((verdict.means, verdict.why), (None, "on battery"));
    }

    #[test]
    fn who_asks_gets_it() {
        assert_eq!(obey(&BOTH, measured([6, 5, 5])).means, Some(Means::Latency));
        assert_eq!(obey(&BOTH, measured([60, 55, 8])).means, Some(Means::Spinning));
        assert_eq!(obey(&BOTH, |_| Err(std::io::Error::other("no"))).means, Some(Means::Latency));
        let nothing = obey(&[], measured([60, 3, 8]));
        assert_eq!((nothing.means, nothing.why.starts_with("no means")), (None, true));
    }
}
