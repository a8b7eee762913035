//! The laboratory: runs a program under many schedules, and judges what it sees and what cuts leave.

use std::ops::ControlFlow;
use std::sync::Arc;

use fstitch_core::Seed;
use fstitch_core::num::to_u64;
use rustc_hash::FxHashSet;
use twox_hash::xxhash3_128::Hasher;

use super::judge::{Past, Serial};
use super::plan::{Plan, Tried};
use super::program::Program;
use super::run::{Ran, Start, orders, run_serially, run_threads, set_up};
use super::schedule::Schedule;
use super::turns::Step;
use crate::explore::{Explorer, Known};
use crate::id::StateId;
use crate::lab::Found;
use crate::medium::{Base, Event, History, Level, for_each_choice, for_each_cut};
use crate::oracle::Violation;
use crate::system::System;

/// How hard to look.
#[derive(Clone, Copy, Debug)]
pub struct ThreadOptions {
    /// How badly the medium behaves.
    pub level: Level,
    /// Choices visited at a cut, at most.
    pub choices_per_cut: u64,
    /// Serial orders that answers are compared with, at most.
    pub orders: usize,
}

impl Default for ThreadOptions {
    fn default() -> Self {
        Self { level: Level::M2, choices_per_cut: 64, orders: 128 }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadCounts {
    /// Schedules run.
    pub schedules: u64,
    /// Steps of them all.
    pub steps: u64,
    /// Different pasts of the medium among them, which were judged at every cut.
    pub pasts: u64,
    /// Images judged.
    pub images: u64,
    /// All schedules of the plan were run.
    pub is_complete: bool,
}

/// A laboratory for programs of several threads.
pub struct ThreadLab {
    system: Arc<dyn System>,
    base: Arc<Base>,
    known: Known,
    options: ThreadOptions,
}

/// Images that are kept in mind.
const KNOWN_IMAGES: usize = 50_000;

impl ThreadLab {
    /// Makes a fresh volume.
    ///
    /// # Errors
    /// When the system's parameters fit no volume.
    ///
    /// # Panics
    /// In builds without debug assertions: there nobody can control threads.
    pub fn new(system: Arc<dyn System>, options: ThreadOptions) -> fstitch_core::Result<Self> {
        assert!(
            fstitch_core::schedule::can_control(),
            "threads are controlled in builds with debug assertions"
        );
        let base = system.format()?;
        Ok(Self { system, base, known: Known::new(KNOWN_IMAGES), options })
    }

    /// Prepares a program: its set-up, and what its operations do one after the other.
    ///
    /// # Errors
    /// When that fails already.
    pub fn prepare<'a>(&'a self, program: &'a Program) -> Result<Prepared<'a>, Violation> {
        let start = set_up(&*self.system, &self.base, program);
        let start = start.map_err(|error| Violation::new("set-up-failed", error.to_string()))?;
        let mut serial = Serial::default();
        for order in orders(program, self.options.orders, 1) {
            serial.add(&run_serially(&*self.system, &self.base, &start, (program, &order))?);
        }
        Ok(Prepared {
            lab: self,
            program,
            start,
            serial,
            pasts: FxHashSet::default(),
            counts: ThreadCounts::default(),
        })
    }
}

/// A program that is ready to be run.
pub struct Prepared<'a> {
    lab: &'a ThreadLab,
    program: &'a Program,
    start: Start,
    serial: Serial,
    /// Hashes of the pasts that were judged.
    pasts: FxHashSet<u128>,
    counts: ThreadCounts,
}

impl Prepared<'_> {
    /// What was looked at so far.
    #[must_use]
    pub fn counts(&self) -> ThreadCounts {
        self.counts
    }

    /// Runs the program under one schedule and judges it. Returns the steps, and what is wrong.
    pub fn run(&mut self, schedule: &Schedule) -> (Vec<Step>, Option<Found>) {
        let lab = self.lab;
        let (ran, steps) = run_threads(&*lab.system, &lab.base, &self.start, (self.program, schedule));
        self.counts.schedules += 1;
        self.counts.steps += to_u64(steps.len());
        let verdict = ran.map_err(|violation| (0, Vec::new(), violation)).and_then(|ran| {
            self.serial.judge(&ran).map_err(|violation| (0, Vec::new(), violation))?;
            self.judge_cuts(&ran)
        });
        let found = verdict.err().map(|(cut, choice, violation)| {
            let workload = format!("threads/{}/{schedule}", self.program.name);
            let id = StateId { system: lab.system.name(), workload, level: lab.options.level, cut, choice };
            Found { id, violation }
        });
        (steps, found)
    }

    fn judge_cuts(&mut self, ran: &Ran) -> Result<(), (usize, Vec<u8>, Violation)> {
        if !self.pasts.insert(fingerprint(ran)) {
            return Ok(());
        }
        self.counts.pasts += 1;
        let Ok(tree) = &ran.tree else { return Ok(()) };
        let lab = self.lab;
        let past = Past::new(ran);
        let mut explorer =
            Explorer::new(&*lab.system, &lab.known, &ran.log, (Some(Arc::new(tree.clone())), 1));
        let history = History::from_stable(Arc::clone(&lab.base), self.start.clone(), lab.options.level);
        let mut dice = Seed::new(1);
        let mut found = None;
        for_each_cut(history, &ran.log, &mut |cut| {
            if found.is_some() {
                return;
            }
            let mut images = explorer.at(cut);
            for_each_choice(cut, lab.options.choices_per_cut, &mut dice, &mut |choice| {
                self.counts.images += 1;
                let (facts, _) = images.facts(choice);
                let verdict = facts.shown.as_ref().map_err(Violation::clone);
                if let Err(violation) = verdict.and_then(|tree| past.judge(cut.at, tree)) {
                    found = Some((cut.at, choice.to_vec(), violation));
                }
                found.is_none()
            });
        });
        found.map_or(Ok(()), Err)
    }

    /// Runs schedules of `plan`, at most so many, until one shows something or `progress` ends it.
    pub fn search(
        &mut self,
        plan: Plan,
        most: u64,
        progress: &mut dyn FnMut(&ThreadCounts) -> ControlFlow<()>,
    ) -> Option<Found> {
        let enough = self.counts.schedules + most;
        let searched = plan.search(&mut |schedule| {
            if self.counts.schedules == enough || progress(&self.counts).is_break() {
                return Tried::Enough;
            }
            match self.run(schedule) {
                (_, Some(found)) => Tried::Wrong(found),
                (steps, None) => Tried::Fine(steps),
            }
        });
        self.counts.is_complete = searched.as_ref().is_ok_and(|&all| all);
        searched.err()
    }
}

/// Tells pasts apart: what happened to the medium, and what was done when.
fn fingerprint(ran: &Ran) -> u128 {
    let mut hash = Hasher::new();
    for event in &ran.log.events {
        match event {
            Event::Write { block, data, .. } => {
                hash.write(&block.to_le_bytes());
                hash.write(data);
            }
            other => hash.write(format!("{other:?}").as_bytes()),
        }
    }
    for deed in &ran.deeds {
        hash.write(deed.answer.as_bytes());
        hash.write(deed.sync.as_ref().map_or(&[][..], |sync| &sync.contents));
    }
    hash.finish_128()
}
