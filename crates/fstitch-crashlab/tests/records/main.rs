//! Systems without trees in the laboratory: a log of records in persistent memory, and a journaled list of blocks on a disk.
//!
//! What it prevents: a laboratory that takes nothing apart but file systems on disks, and one that misses what goes wrong
//! elsewhere. Each system is explored whole, and then with seeded mistakes, each of which must be found and replay.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

use fstitch_crashlab::{LabOptions, Level, Outcome, Past, StateId, Subject};

mod list;
mod log;

fn options(level: Level) -> LabOptions {
    LabOptions { level, choices_per_cut: u64::MAX, ..LabOptions::default() }
}

/// Every image of every cut was visited, and nothing found.
fn lawful<S: Subject>(past: &Past<'_, S>, level: Level) -> Outcome {
    let outcome = past.judge(options(level));
    assert_eq!(outcome.found, [], "{level}");
    assert_eq!(outcome.counts.cuts, outcome.counts.cuts_exhausted, "{level}: all of it");
    outcome
}

/// Something is found, with this code and by the name that it is told with.
fn found<S: Subject>(past: &Past<'_, S>, level: Level) -> &'static str {
    let outcome = past.judge(options(level));
    let found = outcome.found.first().unwrap_or_else(|| panic!("{level}: nothing of {:?}", outcome.counts));
    let id: StateId = found.id.to_string().parse().unwrap();
    let (_, verdict) = past.replay(&id).unwrap();
    assert_eq!(verdict, Err(found.violation.clone()), "{id}");
    found.violation.code
}
