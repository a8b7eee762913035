//! A short text for the terminal.

use std::fmt::Write;

use super::goals::{Checked, FOUND_TITLE, goals};
use crate::contender::Contender;
use crate::results::{Place, Results};

/// The ratios of the defaults on the machine as it is found, which come first.
fn found(results: &Results) -> String {
    let mut text = String::new();
    for goal in goals(results).iter().filter(|goal| goal.title == FOUND_TITLE && !goal.checked.is_empty()) {
        // A string cannot fail to be written to.
        let _ = writeln!(text, "{}:", goal.title);
        for checked in &goal.checked {
            let Checked { what, ratio, .. } = checked;
            let said = if checked.is_met() { "met" } else { "missed" };
            let _ = writeln!(
                text,
                "  {what}: {:.2} ({:.2}-{:.2}), {said}",
                ratio.median, ratio.least, ratio.most
            );
        }
        text.push('\n');
    }
    text
}

/// The defaults' ratios; then one line for each phase and contender: seconds, and how that compares with soft updates through FUSE; then
/// the tables.
#[must_use]
pub fn summary(results: &Results) -> String {
    let mut text = found(results);
    for (medium, workload, phase) in results.phases() {
        // A string cannot fail to be written to.
        let _ = writeln!(text, "{medium}: {workload}, {phase}");
        let at = Place { medium: &medium, workload: &workload, phase: &phase };
        for contender in Contender::ALL.into_iter().chain([Contender::Tmpfs]) {
            let Some(wall) = results.spread(at, contender, |sample| sample.wall_s) else { continue };
            let number = |pick: fn(&crate::meter::Sample) -> f64| {
                results.spread(at, contender, pick).map_or(0.0, |spread| spread.median)
            };
            let _ = write!(
                text,
                "  {:22} {:8.3} s ({:.3}-{:.3})  {:9.0}/s  processors {:6.2} + {:6.2} s of {:6.2}",
                contender.name(),
                wall.median,
                wall.least,
                wall.most,
                number(|sample| crate::meter::seconds(sample.operations) / sample.work_s),
                number(|sample| sample.client_s),
                number(|sample| sample.server_s),
                number(|sample| sample.machine_s),
            );
            if results.samples(at, contender).any(|(_, sample)| sample.device.is_some()) {
                let device = |pick: fn(&crate::meter::Device) -> u64| {
                    let of = |sample: &crate::meter::Sample| sample.device.as_ref().map_or(0, pick);
                    results
                        .spread(at, contender, |sample| crate::meter::seconds(of(sample)))
                        .map_or(0.0, |spread| spread.median)
                };
                let _ = write!(
                    text,
                    "  {:7.0} requests {:7.1} MiB {:5.0} flushes",
                    device(|device| device.write_requests),
                    device(|device| device.bytes_written) / f64::from(1 << 20),
                    device(|device| device.flushes),
                );
            }
            text.push('\n');
        }
    }
    for table in &results.tables {
        super::markdown::table(&mut text, table);
    }
    for gap in &results.gaps {
        let _ = writeln!(text, "not measured: {}: {}", gap.what, gap.why);
    }
    text
}
