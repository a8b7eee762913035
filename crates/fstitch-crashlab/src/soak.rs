//! Many workloads on all processors; a range of numbers can be resumed where it ended.

use std::ops::{ControlFlow, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fstitch_core::Seed;

use crate::lab::{Lab, Outcome};
use crate::workload::{Family, Workload};

/// Which workloads of a family are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those with these numbers.
    Range(Range<u64>),
    /// A sample: draws with these numbers of the sequence that `seed` starts.
    Sample {
        /// Where the sequence starts.
        seed: u64,
        /// Which draws.
        draws: Range<u64>,
    },
}

impl Selection {
    /// How many.
    #[must_use]
    pub fn len(&self) -> u64 {
        let range = self.range();
        range.end.saturating_sub(range.start)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn range(&self) -> &Range<u64> {
        match self {
            Self::Range(range) | Self::Sample { draws: range, .. } => range,
        }
    }

    /// The number in its family of the workload in `place` of the selection.
    #[must_use]
    pub fn index(&self, place: u64, family_len: u64) -> u64 {
        match self {
            Self::Range(range) => range.start + place,
            Self::Sample { seed, draws } => {
                let draw = (draws.start + place).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                Seed::new(seed ^ draw).below(family_len)
            }
        }
    }
}

/// When to stop before the end.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After so many states were visited.
    pub states: u64,
    /// After so many violations.
    pub violations: usize,
    /// Threads.
    pub threads: usize,
}

/// Runs the selected workloads. `progress` is told of every workload that ends, with the totals so far; a break ends the run.
pub fn soak(
    lab: &Lab,
    family: &dyn Family,
    selection: &Selection,
    limits: Limits,
    progress: &(dyn Fn(&Outcome) -> ControlFlow<()> + Sync),
) -> Outcome {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new(Outcome::default());
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let place = next.fetch_add(1, Ordering::Relaxed);
            if place >= selection.len() {
                break;
            }
            let index = selection.index(place, family.len());
            let Some(workload) = family.get(index) else { continue };
            let outcome = run_caught(lab, &workload, index);
            let mut total = total.lock().expect("panics of workloads are caught");
            total.counts.add(&outcome.counts);
            total.found.extend(outcome.found);
            let enough = total.counts.generated >= limits.states || total.found.len() >= limits.violations;
            let ends = progress(&total).is_break();
            stop.fetch_or(enough || ends, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..limits.threads {
            scope.spawn(work);
        }
        work();
    });
    let mut total = total.into_inner().expect("panics of workloads are caught");
    total.found.sort_by_key(|found| found.id.to_string());
    total
}

/// A panic in the system under test is a violation like any other.
fn run_caught(lab: &Lab, workload: &Workload, index: u64) -> Outcome {
    let run = std::panic::AssertUnwindSafe(|| lab.run(workload, index));
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        let mut outcome = Outcome::default();
        outcome.counts.workloads = 1;
        outcome.found.push(lab.panicked(workload, text));
        outcome
    })
}
