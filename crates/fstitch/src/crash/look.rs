//! `fstitch crash replay`, `show` and `minimise`: one state, again.

use std::path::PathBuf;

use anyhow::{Context, Result};
use fstitch_crashlab::{LabOptions, Replay, StateId, minimise as smallest, svg, timeline};
use serde::Serialize;

use crate::output::{Outcome, json, spinner, text};

/// Arguments of `crash replay`.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 the state is lawful, 1 it is not.")]
pub struct ReplayArguments {
    /// Write the image there: to mount it, or to ask other programs
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The state, as a failure prints it
    #[arg(value_name = "ID")]
    id: StateId,
}

/// Arguments of `crash show`.
#[derive(clap::Args)]
pub struct ShowArguments {
    /// Also write a drawing there
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The state, as a failure prints it
    #[arg(value_name = "ID")]
    id: StateId,
}

/// Arguments of `crash minimise`.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 a smallest violation was found, 1 the state is lawful.")]
pub struct MinimiseArguments {
    /// States visited at each moment of a power cut while searching
    #[arg(long, default_value_t = 4096, value_name = "N")]
    states_per_cut: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The state, as a failure prints it
    #[arg(value_name = "ID")]
    id: StateId,
}

/// A state and what is wrong with it. The field names are a contract.
#[derive(Serialize)]
struct Verdict {
    id: String,
    lawful: bool,
    code: Option<&'static str>,
    text: Option<String>,
    operations: usize,
    atoms_undecided: usize,
    atoms_lost: usize,
}

impl Verdict {
    fn of(replay: &Replay) -> Self {
        let violation = replay.verdict.as_ref().err();
        Self {
            id: replay.id.to_string(),
            lawful: violation.is_none(),
            code: violation.map(|violation| violation.code),
            text: violation.map(|violation| violation.text.clone()),
            operations: replay.workload.ops.len(),
            atoms_undecided: replay.cut.atoms.len(),
            atoms_lost: replay.lost().count(),
        }
    }
}

/// Runs `crash replay`.
pub fn replay(arguments: &ReplayArguments) -> Result<Outcome> {
    let replay = Replay::new(arguments.id.clone(), LabOptions::default())?;
    if let Some(path) = &arguments.output {
        std::fs::write(path, replay.image().bytes())
            .with_context(|| format!("writing {}", path.display()))?;
    }
    let verdict = Verdict::of(&replay);
    match (arguments.json, &replay.verdict) {
        (true, _) => json(&verdict)?,
        (false, Ok(())) => text("lawful\n")?,
        (false, Err(violation)) => text(&format!("{violation}\n"))?,
    }
    Ok(if verdict.lawful { Outcome::SUCCESS } else { Outcome::FAILURE })
}

/// Runs `crash show`.
pub fn show(arguments: &ShowArguments) -> Result<Outcome> {
    let replay = Replay::new(arguments.id.clone(), LabOptions::default())?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, svg(&replay)).with_context(|| format!("writing {}", path.display()))?;
    }
    text(&timeline(&replay))?;
    Ok(Outcome::SUCCESS)
}

/// Runs `crash minimise`.
pub fn minimise(arguments: &MinimiseArguments) -> Result<Outcome> {
    let options = LabOptions { choices_per_cut: arguments.states_per_cut.max(1), ..LabOptions::default() };
    let replay = Replay::new(arguments.id.clone(), options)?;
    let bar = spinner(arguments.json);
    let found = smallest(&replay, &mut |operations| {
        bar.set_message(format!("{operations} operations left"));
        bar.tick();
    });
    bar.finish_and_clear();
    let Some(found) = found else {
        text("the search finds no such violation in this workload\n")?;
        return Ok(Outcome::FAILURE);
    };
    let smaller = Replay::new(found.id, LabOptions::default())?;
    if arguments.json {
        json(&Verdict::of(&smaller))?;
    } else {
        text(&timeline(&smaller))?;
    }
    Ok(Outcome::SUCCESS)
}
