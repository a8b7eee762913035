//! `fstitch crash run` and `list`.

use std::fmt::Write;
use std::num::NonZero;
use std::ops::Range;

use anyhow::{Result, ensure};
use fstitch_crashlab::workload::Family;
use fstitch_crashlab::{Counts, Found, Lab, LabOptions, Limits, Outcome as Judged, Selection, soak};
use fstitch_systems::workloads::{families, find};
use serde::Serialize;

use super::SystemArguments;
use super::watch::Watch;
use crate::output::{Outcome, json, text, usage};

/// Arguments of `crash run`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing found, 1 violations found, 2 wrong usage, 130 interrupted (what was found until then is \
                  printed). `fstitch crash list` names the workloads."
)]
pub struct Arguments {
    #[command(flatten)]
    system: SystemArguments,
    /// Seeds what is sampled
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// Stop after so many states
    #[arg(long, value_name = "N")]
    states: Option<u64>,
    /// States visited at each moment of a power cut, at most; up to 65536 all of them are visited where that suffices
    #[arg(long, default_value_t = 1 << 16, value_name = "N")]
    states_per_cut: u64,
    /// Only the workloads with these numbers, as FIRST..END: a long run resumes where it ended
    #[arg(long, value_parser = range, conflicts_with = "sample")]
    range: Option<Range<u64>>,
    /// A sample of so many workloads, drawn by the seed; FIRST..END resumes
    #[arg(long, value_parser = count_or_range)]
    sample: Option<Range<u64>>,
    /// Of the images checked, one in N is also recovered (with power cuts meanwhile), repaired, used and emptied
    #[arg(long, default_value_t = 64, value_name = "N")]
    aftermath: u64,
    /// Of the images checked, one in N is also judged by e2fsck; 0 for none
    #[arg(long, default_value_t = 0, value_name = "N")]
    e2fsck: u64,
    /// Power cuts during recovery nest so deep
    #[arg(long, default_value_t = 2, value_name = "N")]
    depth: u32,
    /// Stop after so many violations
    #[arg(long, default_value_t = 1, value_name = "N")]
    violations: usize,
    /// Threads; by default one for each processor
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A family of workloads, such as seq2, or one of them, such as seq2/4711
    #[arg(value_name = "WORKLOAD")]
    workload: String,
}

/// Arguments of `crash list`.
#[derive(clap::Args)]
pub struct ListArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `crash run` prints. The field names are a contract.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) system: String,
    pub(super) workload: String,
    pub(super) level: String,
    pub(super) seed: u64,
    pub(super) workloads: u64,
    pub(super) operations: u64,
    pub(super) operations_refused: u64,
    /// Moments of a power cut that a recorded log has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) moments: Option<u64>,
    pub(super) cuts: u64,
    pub(super) cuts_exhausted: u64,
    pub(super) states_generated: u64,
    pub(super) states_checked: u64,
    pub(super) states_pruned: u64,
    pub(super) states_pruned_same_image: u64,
    pub(super) states_pruned_same_reads: u64,
    pub(super) states_control: u64,
    pub(super) states_judged: u64,
    pub(super) aftermaths: u64,
    pub(super) states_during_recovery: u64,
    pub(super) reference_checks: u64,
    pub(super) seconds: f64,
    pub(super) states_per_second: u64,
    /// An interrupt ended the run before its time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) interrupted: bool,
    pub(super) violations: Vec<Violation>,
    /// Different trees that a program was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asked: Option<u64>,
    /// Lawful states of a recorded log, for `--cut`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) samples: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Violation {
    pub(super) id: String,
    pub(super) code: &'static str,
    pub(super) text: String,
    /// The command that makes this state again.
    pub(super) replay: String,
}

pub(super) fn range(text: &str) -> Result<Range<u64>, String> {
    let parsed = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    parsed
        .filter(|range: &Range<u64>| !range.is_empty())
        .ok_or_else(|| format!("`{text}`: expected FIRST..END"))
}

fn count_or_range(text: &str) -> Result<Range<u64>, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(0..count),
        _ => range(text),
    }
}

/// Workloads of a seeded family that run when nothing else is said.
const SEEDED_WORKLOADS: u64 = 16;

fn selection(arguments: &Arguments, family: &dyn Family, index: Option<u64>) -> Result<Selection> {
    if let Some(index) = index {
        if arguments.range.is_some() || arguments.sample.is_some() {
            return Err(usage(format!(
                "{} is one workload: --range and --sample select among the workloads of a family",
                arguments.workload
            )));
        }
        return Ok(Selection::Range(index..index + 1));
    }
    if let Some(draws) = &arguments.sample {
        return Ok(Selection::Sample { seed: arguments.seed, draws: draws.clone() });
    }
    let all = if family.len() == u64::MAX { SEEDED_WORKLOADS } else { family.len() };
    Ok(Selection::Range(arguments.range.clone().unwrap_or(0..all)))
}

/// Runs `crash run`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let (family, index) = find(&arguments.workload).map_err(usage)?;
    let selection = selection(arguments, &*family, index)?;
    let system = arguments.system.system()?;
    let options = LabOptions {
        level: arguments.system.level,
        choices_per_cut: arguments.states_per_cut.max(1),
        aftermath_every: arguments.aftermath,
        reference_every: arguments.e2fsck,
        depth: arguments.depth,
        seed: arguments.seed,
        max_violations: arguments.violations.max(1),
    };
    ensure!(
        arguments.e2fsck == 0 || system.reference().is_none_or(|checker| checker.is_installed()),
        "e2fsck is not installed; without --e2fsck only our own checker judges"
    );
    let lab = Lab::new(system, options)?;
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let limits = Limits {
        states: arguments.states.unwrap_or(u64::MAX),
        violations: arguments.violations.max(1),
        threads: arguments.threads.unwrap_or(processors).max(1),
    };
    let watch = Watch::new(arguments.json, selection.len(), "workloads")?;
    let judged = soak(&lab, &*family, &selection, limits, &|total| {
        let message = || so_far(&total.counts, watch.seconds());
        watch.tell(total.counts.workloads, selection.len(), &message)
    });
    let outcome = if judged.found.is_empty() { Outcome::SUCCESS } else { Outcome::FAILURE };
    let outcome = watch.end(outcome);
    let report =
        Report { interrupted: watch.is_interrupted(), ..report(arguments, &lab, &judged, watch.seconds()) };
    if arguments.json {
        json(&report)?
    } else {
        text(&table(&report))?
    }
    Ok(outcome)
}

/// What is shown while a search runs.
pub(super) fn so_far(counts: &Counts, seconds: f64) -> String {
    let rate = rate(counts.checked + counts.control, seconds);
    format!("{} states, {rate} checked a second", counts.generated)
}

pub(super) fn rate(states: u64, seconds: f64) -> u64 {
    let milliseconds = std::time::Duration::from_secs_f64(seconds).as_millis().max(1);
    u64::try_from(u128::from(states) * 1000 / milliseconds).unwrap_or(u64::MAX)
}

fn report(arguments: &Arguments, lab: &Lab, judged: &Judged, seconds: f64) -> Report {
    Report {
        system: lab.system().name(),
        workload: arguments.workload.clone(),
        level: lab.options().level.to_string(),
        seed: arguments.seed,
        violations: judged.found.iter().map(violation).collect(),
        ..Report::of(&judged.counts, seconds)
    }
}

impl Report {
    /// The numbers, without a name for what was run.
    pub(super) fn of(counts: &Counts, seconds: f64) -> Self {
        let &Counts { checked, control, same_image, same_reads, generated, .. } = counts;
        Self {
            system: String::new(),
            workload: String::new(),
            level: String::new(),
            seed: 0,
            workloads: counts.workloads,
            operations: counts.operations,
            operations_refused: counts.refused,
            moments: None,
            asked: None,
            cuts: counts.cuts,
            cuts_exhausted: counts.cuts_exhausted,
            states_generated: generated,
            states_checked: checked,
            states_pruned: same_image + same_reads + control,
            states_pruned_same_image: same_image,
            states_pruned_same_reads: same_reads,
            states_control: control,
            states_judged: counts.judged,
            aftermaths: counts.aftermaths,
            states_during_recovery: counts.during_recovery,
            reference_checks: counts.reference,
            seconds,
            states_per_second: rate(checked + control, seconds),
            interrupted: false,
            violations: Vec::new(),
            samples: Vec::new(),
        }
    }
}

fn violation(found: &Found) -> Violation {
    let Found { id, violation } = found;
    let replay = format!("fstitch crash replay '{id}'");
    Violation { id: id.to_string(), code: violation.code, text: violation.text.clone(), replay }
}

pub(super) fn table(report: &Report) -> String {
    let mut out = String::new();
    let mut row = |name: &str, value: u64, remark: &str| {
        let _ = writeln!(out, "{name:<18} {value:>12}  {remark}");
    };
    let of = format!("{}, {}, {}", report.workload, report.system, report.level);
    // Of a log nobody knows what was done and promised, so nothing can be compared.
    let compared = if let Some(moments) = report.moments {
        row("moments", moments, &format!("of a power cut in {of}"));
        row("writes", report.operations, "blocks written in it");
        "recovered, checked, every file read; no contents or names compared"
    } else {
        row("workloads", report.workloads, &of);
        row("operations", report.operations, &format!("{} of them refused", report.operations_refused));
        "recovered, checked, every file compared"
    };
    let cuts = if report.moments.is_some() { "moments visited" } else { "moments of a power cut" };
    row("cuts", report.cuts, &format!("{cuts}; every state at {} of them", report.cuts_exhausted));
    row("states", report.states_generated, "");
    row("  checked", report.states_checked, compared);
    row("  pruned, equal", report.states_pruned_same_image, "the same image as one checked");
    row("  pruned, alike", report.states_pruned_same_reads, "differ only where nothing reads");
    row("  control", report.states_control, "pruned, checked all the same: no difference");
    row("aftermaths", report.aftermaths, "recovered twice, repaired, used, emptied");
    row("  during recovery", report.states_during_recovery, "states of a cut while recovering");
    row("e2fsck", report.reference_checks, "states judged by the reference checker");
    if let Some(asked) = report.asked {
        row("asked", asked, "different trees that the question was put to");
    }
    row("per second", report.states_per_second, &format!("states checked, in {:.1} s", report.seconds));
    row("violations", u64::try_from(report.violations.len()).unwrap_or(u64::MAX), "");
    for violation in &report.violations {
        let _ = writeln!(out, "\n{}: {}", violation.code, violation.text);
        let _ = writeln!(out, "  replay: {}", violation.replay);
    }
    out
}

#[derive(Serialize)]
struct Listed {
    name: String,
    about: String,
    /// `null` where any number is a seed.
    workloads: Option<u64>,
}

/// Runs `crash list`.
pub fn list(arguments: &ListArguments) -> Result<Outcome> {
    let listed: Vec<Listed> = families()
        .iter()
        .map(|family| Listed {
            name: family.name().to_owned(),
            about: family.about().to_owned(),
            workloads: Some(family.len()).filter(|&len| len != u64::MAX),
        })
        .collect();
    if arguments.json {
        json(&listed)?;
        return Ok(Outcome::SUCCESS);
    }
    let mut out = String::new();
    for Listed { name, about, workloads } in &listed {
        let workloads = workloads.map_or_else(|| "seeded".into(), |n| n.to_string());
        let _ = writeln!(out, "{name:<14} {workloads:>12}  {about}");
    }
    text(&out)?;
    Ok(Outcome::SUCCESS)
}
