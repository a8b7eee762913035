//! Rows of tables that have goals, and what a table says about how it was measured.

use std::path::Path;

use anyhow::{Context, Result};

use super::strings;
use crate::report::Wanted;
use crate::results::{BUILD, Spread};

/// What a file system in memory says that it is.
const TMPFS: u64 = 0x0102_1994;

/// The columns of tables of goals.
pub(super) fn columns() -> Vec<String> {
    strings(["", "measured", "least to most", "wanted", "to the goal", ""])
}

/// A row of a table of goals: the median counts.
pub(super) fn goal_row(what: &str, unit: &str, measured: Spread, wanted: Wanted) -> Vec<String> {
    let (limit, sign) = match wanted {
        Wanted::AtMost(limit) => (limit, "<="),
        Wanted::AtLeast(limit) => (limit, ">="),
    };
    let is_met = match wanted {
        Wanted::AtMost(limit) => measured.median <= limit,
        Wanted::AtLeast(limit) => measured.median >= limit,
    };
    vec![
        what.to_owned(),
        format!("{}{unit}", short(measured.median)),
        format!("{}-{}", short(measured.least), short(measured.most)),
        format!("{sign} {limit}{unit}"),
        format!("{:.2}", measured.median / limit),
        if is_met { "met" } else { "**missed**" }.to_owned(),
    ]
}

/// A row for which nothing is wanted: it shows where others come from.
pub(super) fn plain_row(what: &str, unit: &str, measured: Spread) -> Vec<String> {
    let spread = format!("{}-{}", short(measured.least), short(measured.most));
    let [what, measured] = [what.to_owned(), format!("{}{unit}", short(measured.median))];
    vec![what, measured, spread, "-".to_owned(), "-".to_owned(), String::new()]
}

/// Four digits of small numbers, and large ones without parts.
pub(super) fn short(number: f64) -> String {
    match number.abs() {
        small if small < 10.0 => format!("{number:.3}"),
        middle if middle < 1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// The build, the media and the repeats, for what a table says about itself.
pub(super) fn circumstances(media: &[(&str, &Path)], repeats: usize) -> String {
    let build = if cfg!(debug_assertions) {
        "**A DEBUG BUILD: THESE NUMBERS SAY NOTHING ABOUT SPEED.**".to_owned()
    } else {
        format!("Measured in {BUILD}.")
    };
    let media: Vec<String> =
        media.iter().map(|(name, directory)| format!("`{name}` is {}", medium(directory))).collect();
    let often = match repeats {
        1 => "measured once".to_owned(),
        _ => format!("medians of {repeats}"),
    };
    let media = if media.is_empty() { "In this process".to_owned() } else { media.join(", ") };
    format!("{build} {media}; {often}.")
}

/// Whether files in a directory are in memory.
pub(super) fn is_memory(directory: &Path) -> bool {
    let found = rustix::fs::statfs(directory);
    found.is_ok_and(|found| u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS))
}

/// What files in a directory are.
fn medium(directory: &Path) -> &'static str {
    match rustix::fs::statfs(directory) {
        Ok(_) if is_memory(directory) => "a file in memory, through the kernel's pages",
        Ok(_) => "a file on a disk, past the kernel's pages where its file system allows that",
        Err(_) => "a file on something that does not say what it is",
    }
}

/// The middle of what was measured.
pub(super) fn spread(numbers: Vec<f64>) -> Result<Spread> {
    Spread::of(numbers).context("nothing was measured")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_met_on_its_side_of_the_limit() {
        let of = |median| Spread { median, least: 0.5, most: 2.0 };
        let said = |median, wanted| goal_row("x", " ns", of(median), wanted).pop().unwrap();
        assert_eq!(said(0.9, Wanted::AtLeast(0.9)), "met");
        assert_eq!(said(0.89, Wanted::AtLeast(0.9)), "**missed**");
        assert_eq!(said(200.0, Wanted::AtMost(200.0)), "met");
        assert_eq!(said(201.0, Wanted::AtMost(200.0)), "**missed**");
        let row = goal_row("x", " ns", of(400.0), Wanted::AtMost(200.0));
        assert_eq!(row[1..5], ["400.0 ns", "0.500-2.000", "<= 200 ns", "2.00"]);
        assert_eq!(row.len(), columns().len());
        assert_eq!(plain_row("x", "", of(1.0)).len(), columns().len());
    }

    #[test]
    fn a_table_says_how_it_was_measured() {
        let directory = tempfile::tempdir().unwrap();
        let said = circumstances(&[("disk", directory.path())], 5);
        assert_eq!(said.contains("A DEBUG BUILD"), cfg!(debug_assertions), "{said}");
        assert!(said.contains("medians of 5") && said.contains("`disk` is a file"), "{said}");
    }
}
