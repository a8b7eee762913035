//! BPFS on a device, in the crash laboratory: after a power cut at any moment, with writes between flushes in any order and torn, the tree
//! is what it was after one of its operations, and not before the last that has returned.
//!
//! What it prevents: half an operation, a lost one that had returned, lines of an earlier lap, a home before its group, a volume that
//! cannot be mounted.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::on_device::OnDevice;
use fstitch_bpfs::Durability;
use fstitch_crashlab::{Counts, Lab, LabOptions, Level, Limits, Selection, soak, workload};

/// Programs of a family by environment, as `FSTITCH_BPFS_LAB=10` for ten times as many.
fn times() -> u64 {
    std::env::var("FSTITCH_BPFS_LAB").map_or(1, |times| times.parse().unwrap())
}

/// Runs a sample of a family at every level.
fn run(system: OnDevice, family: &str, draws: u64, choices: u64) -> Counts {
    let mut counts = Counts::default();
    for (seed, level) in (1..).zip(Level::ALL) {
        let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
        let lab = Lab::new(Arc::new(system), options).unwrap();
        let (family, _) = workload::find(family).unwrap();
        let limits = Limits { states: u64::MAX, violations: 1, threads: 2 };
        let selection = Selection::Sample { seed, draws: 0..draws * times() };
        let outcome = soak(&lab, &*family, &selection, limits, &|_| ControlFlow::Continue(()));
        let found: Vec<String> =
            outcome.found.iter().map(|found| format!("{}: {}", found.id, found.violation)).collect();
        assert_eq!(found, [""; 0], "at {level}");
        counts.add(&outcome.counts);
    }
    println!("{family}: {counts:?}");
    counts
}

#[test]
fn single_operations_survive() {
    let counts = run(OnDevice::default(), "seq1", 30, 64);
    assert!(counts.checked > 500, "{counts:?}");
}

#[test]
fn pairs_of_operations_survive() {
    let counts = run(OnDevice::default(), "seq2", 10, 32);
    assert!(counts.checked > 200, "{counts:?}");
}

#[test]
fn rare_operations_and_held_files_survive() {
    run(OnDevice::default(), "rare1", 8, 32);
    run(OnDevice::default(), "rare2", 4, 32);
}

#[test]
fn random_programs_survive() {
    let counts = run(OnDevice::default(), "random", 2, 16);
    assert!(counts.cuts > 100, "{counts:?}");
}

#[test]
fn a_mount_without_flushes_leaves_a_prefix() {
    let system = OnDevice { durability: Durability::Process, ..OnDevice::default() };
    run(system, "seq1", 10, 32);
    run(system, "seq2", 5, 32);
    let counts = run(system, "random", 2, 16);
    assert!(counts.cuts > 100, "{counts:?}");
}
