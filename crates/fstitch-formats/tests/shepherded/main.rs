//! Whole volumes that follow a policy in the crash laboratory: a file system under `full`, `ordered` or `soft` over the shepherd, over one disk or several
//! of which a write or a flush fails, and the power cut at every later moment, and again in recovery.
//!
//! What it prevents: a fault that the policy answers and the mechanism above suffers for, or the reverse; an fsync that promised what is not there; damage that
//! the checker finds after a crash; copies that are not there after recovery and a scrub.
//!
//! `FSTITCH_CRASH_SEEDS=first..end` says which programs are cut, `FSTITCH_CRASH_SYSTEMS=first..end` under which of the policies and mechanisms,
//! `FSTITCH_CRASH_EVERY=N` which share of the faults is met (1: all), `FSTITCH_CRASH_CHOICES=N` how many states are looked at after each cut.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

#[path = "../formats/asked.rs"]
mod asked;
#[path = "../../../fstitch-shepherd/tests/shepherd/machine/mod.rs"]
mod machine;
mod opened;
mod programs;
mod rack;
mod recorded;
mod reopened;
mod system;

use std::ops::Range;

use fstitch_core::num::to_u64;
use fstitch_core::{Consistency, IoOp};
use fstitch_crashlab::{Counts, LabOptions, Level, Outcome, Past};

use crate::opened::Shown;
use crate::rack::{Fault, Lasting};
use crate::recorded::{Run, record};
use crate::reopened::{Reopened, Trees};
use crate::system::{Made, System};

/// Policies that answer a fault, and the disks that they are followed on.
const POLICIES: [(&str, usize); 5] =
    [("remap", 1), ("remap-mirror", 1), ("parity", 1), ("defence-in-depth", 1), ("d-graid", 3)];

const MECHANISMS: [Consistency; 3] = [Consistency::Full, Consistency::Ordered, Consistency::Soft];

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |given| given.parse().expect("a number"))
}

fn range(name: &str, otherwise: Range<usize>) -> Range<usize> {
    let Ok(given) = std::env::var(name) else { return otherwise };
    let (first, end) = given.split_once("..").expect("first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// What cuts may leave of a run with a fault, or without one.
fn judge(made: &Made, run: Run, fault: Option<Fault>, (level, choices): (Level, u64)) -> Outcome {
    let names = (made.system.to_string(), run.name.clone());
    let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
    let subject = Reopened { made, fault, cut_after: run.cut_after };
    let oracle = Trees { ledger: &run.ledger, promise: made.system.promise() };
    Past { names, base: run.base, log: run.log, subject: &subject, oracle: &oracle }.judge(options)
}

/// One program under one system: without a fault, and with each that is chosen.
fn explore(made: &Made, program: u64, (every, choices): (u64, u64)) -> (Counts, u64) {
    let base: Shown = made.base(program);
    let healthy = record(made, &base, program, None);
    let faults = healthy.faults();
    let mut total = Counts::default();
    let mut met = 0;
    let chosen = (0_u64..)
        .zip(faults)
        .filter(|(at, _)| (at + 7 * program + made.system.number()).is_multiple_of(every));
    let runs = std::iter::once((0, None)).chain(chosen.map(|(at, fault)| (at, Some(fault))));
    for (at, fault) in runs {
        let run = record(made, &base, program, fault);
        assert!(fault.is_none() || run.has_struck, "{} {program}: {fault:?} struck nothing", made.system);
        met += u64::from(fault.is_some());
        let level = [Level::M2, Level::M1, Level::M2, Level::M0][usize::try_from(at % 4).unwrap()];
        let outcome = judge(made, run, fault, (level, choices));
        assert_eq!(outcome.found, [], "{} {program}: {fault:?} at {level}", made.system);
        total.add(&outcome.counts);
    }
    (total, met)
}

fn systems() -> Vec<System> {
    let of = |(policy, disks)| MECHANISMS.map(|consistency| System { policy, disks, consistency });
    POLICIES.into_iter().flat_map(of).collect()
}

#[test]
fn every_cut_after_a_fault_leaves_what_was_promised_and_its_copies() {
    let (every, choices) = (number("FSTITCH_CRASH_EVERY", 499), number("FSTITCH_CRASH_CHOICES", 2));
    let mut total = Counts::default();
    let mut faults = 0;
    let systems = systems();
    for system in &systems[range("FSTITCH_CRASH_SYSTEMS", 0..systems.len())] {
        let made = Made::new(*system);
        for program in range("FSTITCH_CRASH_SEEDS", 0..1).map(to_u64) {
            let (counts, met) = explore(&made, program, (every, choices));
            total.add(&counts);
            faults += met;
        }
    }
    println!("{faults} faults");
    machine::said::say(&total);
    assert!(faults > 0 && total.checked > total.cuts / 4, "{total:?}");
}

/// The same laboratory finds what a disk that lies takes: promises, and what a journal had committed.
#[test]
fn a_disk_whose_flushes_do_nothing_is_found_out() {
    for consistency in MECHANISMS {
        let made = Made::new(System { policy: "remap-mirror", disks: 1, consistency });
        let base = made.base(2);
        let fault = Some(Fault::Lie { nth: 9 });
        let outcome = judge(&made, record(&made, &base, 2, fault), fault, (Level::M2, 24));
        assert_ne!(outcome.found, [], "{}", made.system);
        println!("{}", outcome.found[0].violation);
    }
}

/// What was found once: a copy that was given up before the one in its place was named, a copy that was written without its run in doubt, and
/// groups that had lost their parity, because a block or its spare could not be written, and got none from a scrub.
#[test]
fn what_was_found_stays_mended() {
    let on = |nth| Fault::Request(IoOp::Flush, nth, Lasting::On);
    let worn = |block, nth| Fault::Worn { block, nth };
    let found = [
        ("remap-mirror", Consistency::Ordered, 0, worn(5514, 2), Level::M1),
        ("remap-mirror", Consistency::Soft, 1, worn(5554, 1), Level::M1),
        ("remap-mirror", Consistency::Full, 2, on(4), Level::M0),
        ("remap-mirror", Consistency::Ordered, 4, on(5), Level::M1),
        ("remap-mirror", Consistency::Full, 5, worn(5514, 4), Level::M0),
        ("parity", Consistency::Soft, 3, worn(548, 1), Level::M2),
        ("parity", Consistency::Soft, 0, worn(5602, 1), Level::M2),
    ];
    for (policy, consistency, program, fault, level) in found {
        let made = Made::new(System { policy, disks: 1, consistency });
        let run = record(&made, &made.base(program), program, Some(fault));
        let outcome = judge(&made, run, Some(fault), (level, 6));
        assert_eq!(outcome.found, [], "{} {program}: {fault:?} at {level}", made.system);
    }
}
