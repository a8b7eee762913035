//! Takes MinixLLD apart for as long as somebody has time: `explore M2 seq1 0 1360 4096` judges these workloads of the family, with at
//! most 4096 choices at a cut, and says what was looked at.

#![allow(clippy::unwrap_used, reason = "a wrong argument ends it")]

#[path = "../tests/minixlld/support/mod.rs"]
mod support;

use std::ops::ControlFlow;
use std::sync::Arc;

use fstitch_crashlab::{Lab, LabOptions, Limits, Selection, soak, workload};
use support::Minix;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [level, family, from, to, choices] = &words[..] else {
        panic!("explore LEVEL FAMILY FROM TO CHOICES, or `sample` and so many draws in place of FROM and TO");
    };
    let options = LabOptions {
        level: level.parse().unwrap(),
        choices_per_cut: choices.parse().unwrap(),
        ..LabOptions::default()
    };
    let lab = Lab::new(Arc::new(Minix::default()), options).unwrap();
    let (family, _) = workload::find(family).unwrap();
    let limits = Limits { states: u64::MAX, violations: 3, threads: 2 };
    let selection = match from.as_str() {
        "sample" => Selection::Sample { seed: 11, draws: 0..to.parse().unwrap() },
        from => Selection::Range(from.parse().unwrap()..to.parse().unwrap()),
    };
    let outcome = soak(&lab, &*family, &selection, limits, &|_| ControlFlow::Continue(()));
    for found in &outcome.found {
        println!("{}\n  {}", found.id, found.violation);
    }
    println!("{:?}", outcome.counts);
    let counts = &outcome.counts;
    println!(
        "{} programs, {} operations, {} cuts, {} states, of which {} were recovered and read",
        counts.workloads, counts.operations, counts.cuts, counts.generated, counts.checked
    );
    assert!(outcome.found.is_empty(), "{} violations", outcome.found.len());
}
