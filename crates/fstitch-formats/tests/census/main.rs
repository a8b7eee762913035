//! A census of errors under every policy: the n-th read, write or flush of the disk below a shepherd fails, once or from then on. What it prevents:
//! an error that neither the policy has masked nor a call, an fsync or the unmount has answered with; and one that is said to be masked where something
//! is not what was written.
//!
//! `FSTITCH_CENSUS=all` goes through every n; without it some of each kind are taken.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

#[path = "../formats/asked.rs"]
mod asked;
mod volume;
mod work;

use fstitch_core::IoOp;
use fstitch_crashlab::{Defect, Fault, FaultPlan, Requests, Times};
use fstitch_shepherd::policy::SHIPPED;

use crate::volume::{Run, base, follows, run};

/// Requests of each operation that are made to fail, where not all are.
const SAMPLES: u64 = 4;

/// An operation, and how often it was asked for.
type Counted = (IoOp, fn(Requests) -> u64);

const OPERATIONS: [Counted; 3] = [
    (IoOp::Read, |requests| requests.reads),
    (IoOp::Write, |requests| requests.writes),
    (IoOp::Flush, |requests| requests.flushes),
];

/// Which requests of so many fail; `cell` has the samples of one policy differ from those of another.
fn chosen(total: u64, cell: u64) -> Vec<u64> {
    if std::env::var_os("FSTITCH_CENSUS").is_some_and(|all| all == "all") {
        return (1..=total).collect();
    }
    let step = (total / SAMPLES).max(1);
    (0..SAMPLES).map(|sample| (1 + sample * step + (cell * 7 + sample * 3) % step).min(total)).collect()
}

/// Every error is masked, and then all is right; or somebody was told.
fn judge(healthy: &Run, op: IoOp, plan: FaultPlan, run: &Run) -> bool {
    assert!(run.struck > 0, "{plan}: it struck nothing");
    for (path, promised) in &run.promises {
        // What comes later makes one of them longer.
        let is_kept = run.left.get(path).is_some_and(|found| found.starts_with(promised));
        assert!(is_kept, "{plan}: {path} was synced, and is not what it was");
    }
    if !run.errors.is_empty() {
        return false;
    }
    assert!(op != IoOp::Flush, "{plan} of {:?}: a flush that failed was swallowed", healthy.requests);
    assert!(run.left == healthy.left, "{plan}: nobody was told, and {:?}", run.differs(healthy));
    assert!(run.is_clean, "{plan}: nobody was told, and a check finds damage");
    true
}

/// How many errors were masked, and how many answered with.
fn census(kind: &'static str) -> (u64, u64) {
    let (mut masked, mut told) = (0, 0);
    for (cell, shipped) in (0..).zip(SHIPPED.iter().filter(|shipped| follows(shipped.text))) {
        let base = base(kind, shipped.text);
        let healthy = run(&base, FaultPlan::default());
        assert!(healthy.errors.is_empty() && healthy.is_clean, "{}: {:?}", shipped.name, healthy.errors);
        assert_eq!(healthy.promises.len(), work::FILES_SYNCED);
        for (op, count) in OPERATIONS {
            for times in [Times::Transient(1), Times::Sticky] {
                for nth in chosen(count(healthy.requests), cell) {
                    let plan =
                        FaultPlan::one(Fault { op: Some(op), nth, times, ..Fault::new(Defect::Error) });
                    println!("{kind} {}: {plan}", shipped.name);
                    if judge(&healthy, op, plan.clone(), &run(&base, plan)) {
                        masked += 1;
                    } else {
                        told += 1;
                    }
                }
            }
        }
    }
    println!("{kind}: {masked} errors were masked, {told} answered with");
    (masked, told)
}

#[test]
fn every_error_under_ext2_is_masked_or_answered_with() {
    let (masked, told) = census("ext2");
    assert!(masked > 40 && told > 100, "{masked} masked, {told} told");
}

#[test]
fn every_error_under_ext3_is_masked_or_answered_with() {
    let (masked, told) = census("ext3");
    assert!(masked > 40 && told > 100, "{masked} masked, {told} told");
}
