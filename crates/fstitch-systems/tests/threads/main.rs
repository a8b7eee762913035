//! File systems under several threads: a small sample of the interleavings, with cuts. `cargo run --profile races -p fstitch-systems
//! --example races` looks at more, `cargo xtask races` proves that it finds something.
//!
//! What it prevents: an fsync that returned while another thread moved the file away, a deadlock, an answer that no order of the
//! operations explains, an unmount that loses what came last.
#![cfg(debug_assertions)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

use std::ops::ControlFlow;

use fstitch_crashlab::Found;
use fstitch_crashlab::threads::{Grain, Plan, Program, Schedule, ThreadCounts, ThreadLab, ThreadOptions};

const COARSE: Plan = Plan::Bounded { preemptions: 1, grain: Grain::Coarse };

fn lab(system: &str) -> ThreadLab {
    ThreadLab::new(fstitch_systems::system(system).unwrap(), ThreadOptions::default()).unwrap()
}

/// Runs schedules of a program.
fn search(lab: &ThreadLab, program: &Program, plan: Plan, most: u64) -> (Option<Found>, ThreadCounts) {
    let mut prepared = lab.prepare(program).unwrap();
    let found = prepared.search(plan, most, &mut |_| ControlFlow::Continue(()));
    (found, prepared.counts())
}

/// Nothing is found in any of the programs.
fn lawful(system: &str, programs: &[&str], plan: Plan, most: u64) {
    let lab = lab(system);
    for name in programs {
        let (found, counts) = search(&lab, &Program::named(name).unwrap(), plan, most);
        println!("{system} {name}: {counts:?}");
        assert!(found.is_none(), "{} [{}]", found.as_ref().unwrap().violation, found.as_ref().unwrap().id);
        assert!(counts.pasts > 1 && counts.images > counts.pasts, "{name}: there is something to judge");
        assert!(counts.schedules == most || counts.is_complete, "{name}: as many as were asked for");
    }
}

/// Every place at which one thread can be interrupted, where races were met in real use.
#[test]
fn fsyncs_hold_while_names_move() {
    lawful("ext2-soft", &["climb", "inherit"], COARSE, 1000);
}

#[test]
fn every_program_is_lawful_under_a_few_schedules() {
    lawful("ext2-soft", &Program::names(), Plan::Random { seed: 1 }, 12);
}

#[test]
fn journals_are_lawful_under_a_few_schedules() {
    lawful("ext3-ordered", &["climb", "unmount", "names", "links"], Plan::Random { seed: 2 }, 12);
}

/// Appending is a look at the length and a write, so that two of them at once are no order of the two: the laboratory must see it, and
/// see it again.
#[test]
fn what_no_order_explains_is_found_and_replays() {
    let program = Program::parse("appends", "create /f | | append /f 100 | append /f 200; fsync /f").unwrap();
    let lab = lab("ext2-soft");
    let found = search(&lab, &program, COARSE, 1000).0.expect("one between look and write of the other");
    assert_eq!(found.violation.code, "no-order");
    let schedule = found.id.workload.strip_prefix("threads/appends/").unwrap().parse::<Schedule>().unwrap();
    assert_eq!(schedule.0.len(), 1, "the fewest preemptions come first");
    let again = lab.prepare(&program).unwrap().run(&schedule).1;
    assert_eq!(again, Some(found.clone()));
    assert_eq!(found.id.to_string().parse(), Ok(found.id), "the id is read as it is written");
}

/// A run is a function of its schedule: else nothing replays.
#[test]
fn the_same_schedule_is_the_same_run() {
    let lab = lab("ext2-soft");
    for name in ["reclaim", "rmdir"] {
        let program = Program::named(name).unwrap();
        let mut prepared = lab.prepare(&program).unwrap();
        for schedule in ["-", "0-1", "0-1.40-2"] {
            let schedule = schedule.parse().unwrap();
            let (first, _) = prepared.run(&schedule);
            let (second, _) = prepared.run(&schedule);
            assert!(!first.is_empty() && first == second, "{name} under {schedule}");
        }
        assert!(prepared.counts().pasts <= 3, "{name}: two runs of a schedule leave one past");
    }
}
