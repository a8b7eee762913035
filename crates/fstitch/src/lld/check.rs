//! `fstitch lld check`.

use std::path::PathBuf;

use anyhow::Result;
use fstitch_lld::Options;
use serde::Serialize;

use crate::output::{Outcome, json, spinner};

/// Arguments of `lld check`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 nothing is wrong, 1 something is, or it could not be checked, 2 wrong usage."
)]
pub struct Arguments {
    /// Do not read the contents of blocks
    #[arg(long)]
    maps_only: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image file or block device; nothing is written to it
    #[arg(value_name = "DISK")]
    disk: PathBuf,
}

/// What was found. Field names are a contract.
#[derive(Serialize)]
struct Report {
    disk: String,
    blocks: u64,
    /// What the log lacks that was stable, so that this is an older state.
    lost: Option<String>,
    problems: u64,
    found: Vec<Problem>,
}

#[derive(Serialize)]
struct Problem {
    code: &'static str,
    text: String,
}

/// Runs `lld check`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let read_only = Options { read_only: true, ..Options::default() };
    let (disk, recovered) = super::open(&arguments.disk, &read_only)?;
    let bar = spinner(arguments.json);
    let report = disk.check(!arguments.maps_only, &mut |at| {
        bar.set_message(format!("{} of {} blocks", at.blocks, at.all));
        bar.tick();
    })?;
    bar.finish_and_clear();
    let name = arguments.disk.display().to_string();
    let is_clean = report.is_clean() && recovered.damaged.is_none();
    let found =
        report.findings.into_iter().map(|found| Problem { code: found.code, text: found.text }).collect();
    let shown = Report {
        disk: name,
        blocks: disk.info().blocks,
        lost: recovered.damaged,
        problems: report.total,
        found,
    };
    if arguments.json {
        json(&shown)?;
    } else {
        shown.lost.iter().for_each(|lost| println!("{}: [lost] {lost}", shown.disk));
        shown.found.iter().for_each(|found| println!("{}: [{}] {}", shown.disk, found.code, found.text));
        match is_clean {
            true => println!("{}: {} blocks, nothing is wrong", shown.disk, shown.blocks),
            false => {
                println!("{}: {} problems", shown.disk, shown.problems + u64::from(shown.lost.is_some()))
            }
        }
    }
    Ok(if is_clean { Outcome::SUCCESS } else { Outcome::FAILURE })
}
