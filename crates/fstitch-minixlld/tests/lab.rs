//! MinixLLD in the crash laboratory: after a power cut at any moment the tree is what it was after some of its operations, one behind
//! the other, and not before the last sync.
//!
//! What it prevents: half an operation, a lost sync, an inode that belongs to nobody, a volume that cannot be mounted.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;

use fstitch_crashlab::{Counts, Lab, LabOptions, Level, Limits, Selection, soak, workload};
use support::Minix;

/// Runs a sample of a family at every level.
fn run(family: &str, draws: u64, choices: u64) -> Counts {
    let mut counts = Counts::default();
    for (seed, level) in (1..).zip(Level::ALL) {
        let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
        let lab = Lab::new(Arc::new(Minix::default()), options).unwrap();
        let (family, _) = workload::find(family).unwrap();
        let limits = Limits { states: u64::MAX, violations: 1, threads: 2 };
        let selection = Selection::Sample { seed, draws: 0..draws };
        let outcome = soak(&lab, &*family, &selection, limits, &|_| ControlFlow::Continue(()));
        let found: Vec<String> =
            outcome.found.iter().map(|found| format!("{}: {}", found.id, found.violation)).collect();
        assert_eq!(found, [""; 0], "at {level}");
        counts.add(&outcome.counts);
    }
    counts
}

#[test]
fn single_operations_survive() {
    let counts = run("seq1", 40, 64);
    assert!(counts.checked > 500, "{counts:?}");
    assert!(counts.aftermaths > 0, "{counts:?}");
}

#[test]
fn pairs_of_operations_survive() {
    let counts = run("seq2", 15, 32);
    assert!(counts.checked > 200, "{counts:?}");
}

#[test]
fn rare_operations_and_held_files_survive() {
    run("rare1", 10, 32);
    run("rare2", 5, 32);
}

#[test]
fn random_programs_survive() {
    let counts = run("random", 1, 16);
    assert!(counts.cuts > 100, "{counts:?}");
}
