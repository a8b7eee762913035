//! `fstitch crash groups`: the ordering oracle of patchgroups.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use fstitch_core::lock::Unpoisoned;
use fstitch_crashlab::{GroupCounts, GroupOptions, judge_group_program};
use serde::Serialize;

use super::SystemArguments;
use super::run::{range, rate};
use super::watch::Watch;
use crate::output::{Outcome, json, text};

/// Arguments of `crash groups`.
#[derive(clap::Args)]
#[command(
    after_help = "A program makes groups, lets some come after others, and does operations while groups are engaged, all \
                  chosen by its number. On every image that a power cut could have left it is looked at which operations \
                  are there, and how much of each: where something of a group is there, everything of the groups that it \
                  comes after must be.\n\n\
                  Exit codes: 0 nothing found, 1 a violation (with the number of its program), 2 wrong usage, 130 interrupted (what \
                  was found until then is printed)."
)]
pub struct Arguments {
    #[command(flatten)]
    system: SystemArguments,
    /// The programs, as FIRST..END
    #[arg(long, default_value = "0..200", value_name = "RANGE", value_parser = range)]
    programs: Range<u64>,
    /// States visited at each moment of a power cut, at most
    #[arg(long, default_value_t = 24, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    states_per_cut: u64,
    /// Do not tell the file system which operations belong to groups: must be found
    #[arg(long)]
    canary: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    system: String,
    level: String,
    programs: u64,
    effects: u64,
    dependencies: u64,
    cuts: u64,
    states: u64,
    /// States in which a dependent group had begun.
    states_telling: u64,
    states_per_second: u64,
    /// Not all programs were run.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
    violations: Vec<String>,
}

/// Runs `crash groups`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let system = arguments.system.system()?;
    let programs = &arguments.programs;
    let options = GroupOptions {
        level: arguments.system.level,
        choices_per_cut: arguments.states_per_cut,
        is_deaf: arguments.canary,
    };
    let len = programs.end.saturating_sub(programs.start);
    let watch = Watch::new(arguments.json, len, "programs")?;
    let next = AtomicU64::new(programs.start);
    let total = Mutex::new((GroupCounts::default(), Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= programs.end || !total.lock().unpoisoned().1.is_empty() {
                        return;
                    }
                    let judged = judge_group_program(&*system, number, options);
                    let mut total = total.lock().unpoisoned();
                    match judged {
                        Ok(counts) => total.0.add(&counts),
                        Err(violation) => total.1.push(violation.to_string()),
                    }
                    let message = || format!("{} states", total.0.states);
                    if watch.tell(total.0.programs, len, &message).is_break() {
                        return;
                    }
                }
            });
        }
    });
    let (counts, violations) = total.into_inner().unpoisoned();
    let report = Report {
        system: system.name(),
        level: options.level.to_string(),
        programs: counts.programs,
        effects: counts.effects,
        dependencies: counts.dependencies,
        cuts: counts.cuts,
        states: counts.states,
        states_telling: counts.telling,
        states_per_second: rate(counts.states, watch.seconds()),
        interrupted: watch.is_interrupted(),
        violations,
    };
    let outcome = if report.violations.is_empty() { Outcome::SUCCESS } else { Outcome::FAILURE };
    let outcome = watch.end(outcome);
    if arguments.json {
        json(&report)?
    } else {
        text(&table(&report))?
    }
    Ok(outcome)
}

fn table(report: &Report) -> String {
    let mut out = format!(
        "{} at {}: {} programs, {} operations, {} dependencies between groups\n{} cuts, {} states ({} a second), a dependent group \
         had begun in {}\n",
        report.system,
        report.level,
        report.programs,
        report.effects,
        report.dependencies,
        report.cuts,
        report.states,
        report.states_per_second,
        report.states_telling
    );
    for violation in &report.violations {
        out.push_str(violation);
        out.push('\n');
    }
    out.push_str(&format!("{} violations\n", report.violations.len()));
    out
}
