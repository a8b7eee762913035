//! The ratios of the defaults, where people look first: between two marks of the README.

use std::fmt::Write;

use super::goals::{FOUND_TITLE, goals};
use crate::contender::Contender;
use crate::results::Results;

const BEGIN: &str = "<!-- defaults: written by `make bench` -->\n";
const END: &str = "<!-- /defaults -->";

/// `readme` with the ratios of this run between its marks; `None` where there are no marks or nothing was measured.
#[must_use]
pub fn with_ratios(readme: &str, results: &Results) -> Option<String> {
    let (before, rest) = readme.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    let goals = goals(results);
    let found = goals.iter().find(|goal| goal.title == FOUND_TITLE && !goal.checked.is_empty())?;
    let fact = |name: &str| {
        let mut facts = results.machine.facts.iter();
        facts.find(|(known, _)| known == name).map_or("?", |(_, fact)| fact.as_str())
    };
    let mut table = format!(
        "Without any option, on a machine as it is found ({}, Linux {}, {} scale, {}, {}):\n\n\
         | | time, as a ratio |\n|---|---|\n",
        fact("processors"),
        fact("kernel"),
        results.scale,
        runs(results),
        fact("who ran it"),
    );
    for checked in &found.checked {
        // A string cannot fail to be written to.
        let _ = writeln!(
            table,
            "| {} | {:.2} ({:.2}-{:.2}) |",
            checked.what, checked.ratio.median, checked.ratio.least, checked.ratio.most
        );
    }
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

/// How often the defaults were raced, for people.
fn runs(results: &Results) -> String {
    let found = results.cells.iter().filter(|cell| cell.contender == Contender::Defaults.name());
    match found.map(|cell| cell.repetition + 1).max() {
        Some(most @ 2..) => format!("medians of up to {most} runs"),
        _ => "one run".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Sample;
    use crate::results::Cell;

    fn results() -> Results {
        let cell = |contender: Contender, wall_s| {
            let sample = Sample {
                phase: "untar".into(),
                operations: 10,
                work_s: wall_s,
                wall_s,
                client_s: 0.0,
                server_s: 0.0,
                machine_s: 0.0,
                device: None,
            };
            let (medium, workload) = ("disk".to_owned(), "tree-found".to_owned());
            Cell { medium, workload, contender: contender.name(), repetition: 0, sample }
        };
        let cells = vec![cell(Contender::Defaults, 1.0), cell(Contender::Fuse2fs, 4.0)];
        Results { cells, ..Results::default() }
    }

    #[test]
    fn what_is_between_the_marks_is_replaced() {
        let readme = format!("a\n{BEGIN}old\n{END}\nb\n");
        let new = with_ratios(&readme, &results()).unwrap();
        assert!(new.starts_with("a\n") && new.ends_with("\nb\n") && !new.contains("old"), "{new}");
        assert!(new.contains("| disk: tree-found, untar: defaults / fuse2fs | 0.25 (0.25-0.25) |"), "{new}");
        assert!(new.contains(", one run, "), "{new}");
        assert_eq!(with_ratios(&new, &results()).as_ref(), Some(&new));
    }

    #[test]
    fn without_marks_or_measurements_nothing_is() {
        assert_eq!(with_ratios("a", &results()), None);
        assert_eq!(with_ratios(&format!("{BEGIN}{END}"), &Results::default()), None);
    }
}
