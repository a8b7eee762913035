//! The report.

use std::fmt::Write;

use super::goals::{Goal, Wanted, goals};
use crate::contender::{Contender, Kernel};
use crate::meter::{Device, Sample, seconds};
use crate::results::{Place, Results, Table};
use crate::workload::ALL;

/// Begins what was raced, behind the goals.
pub(super) const RACE: &str = "## The race\n";
/// Begins the tables that no goal is about.
pub(super) const PAPERS: &str = "## The papers' tables\n";
/// With what the tables of the race compare.
const BASE: Contender = Contender::Kernel(Kernel::Ext3Ordered);

/// The whole report; plots are in the directory `beside`.
#[must_use]
pub fn report(results: &Results, beside: &str) -> String {
    let mut out = String::from(
        "# Benchmarks\n\nWritten by `make bench` (`fstitch bench --report docs/benchmarks.md`), not by hand; why some goals are missed \
         is in [performance.md](performance.md). Every contender ran on this machine in this run, in turns, each on a \
         freshly made image. First come the **defaults on the machine as it is found** (the workloads that end in `-found`): `fstitch mount` without \
         options, no parameter of the kernel changed, no processor kept awake by the bench; `defaults-asleep` is the same with `awake=off`. \
         Everything after that is a machine tuned for measuring. The last phase of each workload and every other one end when everything is stable (`syncfs`, then \
         `fsync` of the root directory). Times are medians, with the least and the most; ratios are taken within a \
         repetition, then their median. On the tuned machine all processors may be used, and idle ones \
         stay awake (a latency of 0 is asked of `/dev/cpu_dma_latency`), because waking one through a hypervisor takes longer than most requests; \
         in `small-pinned` client and server share one, and in those called `-halted` idle ones are left to the machine; `device-soft` and `device-memory` are \
         `fuse-soft` and `fuse-memory` with requests through `/dev/fuse`, and `cached-soft` and `cached-ordered` are mounts with the kernel's write-back \
         cache (`-o writeback_cache`), where writes cannot be ordered by programs. Memory that a \
         workload takes is touched right before.\n\n",
    );
    let failures = results.gaps.iter().filter(|gap| gap.is_failure).count();
    // A string cannot fail to be written to.
    let _ = writeln!(
        out,
        "Scale `{}`, {} repetitions{}, {:.0} minutes, {} measurements, {failures} failed.\n\n| | |\n|---|---|",
        results.scale,
        results.repetitions,
        match &results.repeated[..] {
            [] => String::new(),
            repeated => format!(" (one more of {})", repeated.join(", ")),
        },
        results.seconds / 60.0,
        results.cells.len()
    );
    for (name, fact) in &results.machine.facts {
        let _ = writeln!(out, "| {name} | {fact} |");
    }
    out.push_str("\n## Goals\n\n");
    for goal in goals(results) {
        goal_table(&mut out, &goal);
    }
    for table in results.tables.iter().filter(|table| table.is_goal) {
        self::table(&mut out, table);
    }
    out.push_str(RACE);
    out.push_str("\nRatios are to the kernel's ext3 with `data=ordered`. Names: `fuse-` mounted through FUSE, `in-` in the \
         process that uses it; `fuse-memory` is a file system in memory behind the same front end. Bold: survives a power cut at \
         any moment.\n\n");
    for workload in ALL {
        race(&mut out, results, (workload.name, workload.about), beside);
    }
    out.push_str(PAPERS);
    out.push('\n');
    for table in results.tables.iter().filter(|table| !table.is_goal) {
        self::table(&mut out, table);
    }
    if !results.gaps.is_empty() {
        out.push_str("## Not measured\n\n");
        for gap in &results.gaps {
            let _ = writeln!(out, "- {}: {}", gap.what, gap.why);
        }
    }
    out
}

fn goal_table(out: &mut String, goal: &Goal) {
    if goal.checked.is_empty() {
        return;
    }
    let met = goal.checked.iter().filter(|checked| checked.is_met()).count();
    let _ = writeln!(
        out,
        "### {}\n\n{met} of {} met.\n\n| | ratio | spread | wanted | |\n|---|---|---|---|---|",
        goal.title,
        goal.checked.len()
    );
    for checked in &goal.checked {
        let (ratio, wanted) = (
            checked.ratio,
            match checked.wanted {
                Wanted::AtMost(limit) => format!("<= {limit:.2}"),
                Wanted::AtLeast(limit) => format!(">= {limit:.2}"),
            },
        );
        let said = if checked.is_met() { "met" } else { "**missed**" };
        let _ = writeln!(
            out,
            "| {} | {:.2} | {:.2}-{:.2} | {wanted} | {said} |",
            checked.what, ratio.median, ratio.least, ratio.most
        );
    }
    out.push('\n');
}

fn race(out: &mut String, results: &Results, (workload, about): (&str, &str), beside: &str) {
    let phases = results.phases();
    let mut phases = phases.iter().filter(|(_, name, _)| name == workload).peekable();
    if phases.peek().is_none() {
        return;
    }
    let _ = writeln!(out, "### {workload}: {about}\n\n![{workload}]({beside}/{workload}.svg)\n");
    for (medium, _, phase) in phases {
        let at = Place { medium, workload, phase };
        let _ = writeln!(
            out,
            "#### {phase} ({medium})\n\n| | ratio | seconds | per second | processor s, client + server | machine | \
             MiB written | requests | flushes |\n|---|---|---|---|---|---|---|---|---|",
        );
        for contender in Contender::ALL.into_iter().chain([Contender::Tmpfs]) {
            row(out, results, at, contender);
        }
        out.push('\n');
    }
}

fn row(out: &mut String, results: &Results, at: Place<'_>, contender: Contender) {
    let Some(wall) = results.spread(at, contender, |sample| sample.wall_s) else { return };
    let median = |number: &dyn Fn(&Sample) -> f64| {
        results.spread(at, contender, number).map_or(0.0, |spread| spread.median)
    };
    let name = if contender.is_safe() { format!("**{}**", contender.name()) } else { contender.name() };
    let ratio = results.ratio(at, contender, &[BASE], |sample| sample.wall_s);
    let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.2}", ratio.median));
    let _ = write!(
        out,
        "| {name} | {ratio} | {:.3} ({:.3}-{:.3}) | {:.0} | {:.2} + {:.2} | {:.2} |",
        wall.median,
        wall.least,
        wall.most,
        median(&|sample| seconds(sample.operations) / sample.work_s),
        median(&|sample| sample.client_s),
        median(&|sample| sample.server_s),
        median(&|sample| sample.machine_s),
    );
    if results.samples(at, contender).all(|(_, sample)| sample.device.is_none()) {
        out.push_str(" - | - | - |\n");
        return;
    }
    let device = |pick: fn(&Device) -> u64| median(&|sample| seconds(sample.device.as_ref().map_or(0, pick)));
    let _ = writeln!(
        out,
        " {:.1} | {:.0} | {:.0} |",
        device(|device| device.bytes_written) / f64::from(1 << 20),
        device(|device| device.write_requests),
        device(|device| device.flushes),
    );
}

/// A table, with what is said of it.
pub(super) fn table(out: &mut String, table: &Table) {
    let _ = writeln!(out, "### {}\n\n{}\n", table.title, table.about);
    let _ = writeln!(out, "| {} |\n|{}", table.columns.join(" | "), "---|".repeat(table.columns.len()));
    for row in &table.rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out.push('\n');
}
