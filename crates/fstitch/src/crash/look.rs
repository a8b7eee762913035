//! `fstitch crash replay`, `show` and `minimise`: one state, again.

use std::path::PathBuf;

use anyhow::{Context, Result};
use fstitch_core::num::to_u64;
use fstitch_crashlab::{
    LabOptions, Needed, Replay, Row, StateId, minimise as smallest, story, svg, timeline,
};
use serde::Serialize;

use super::watch::Watch;
use crate::output::{Outcome, json, text};

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
    /// Also write a drawing there: time runs to the right, each block has a line, arrows lead from a write to what it needs, red
    /// ones to what was lost
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The state, as a failure prints it
    #[arg(value_name = "ID")]
    id: StateId,
}

/// Arguments of `crash minimise`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit codes: 0 a smallest violation was found, 1 the state is lawful, 130 interrupted (the smallest until \
                        then is printed)."
)]
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

/// What `crash show` prints. The field names are a contract.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    verdict: Verdict,
    /// The operations whose effect was on the medium before.
    before: Vec<String>,
    events: Vec<ShownEvent>,
    needs: Vec<ShownNeed>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
enum ShownEvent {
    Operation { number: u32, text: String, error: Option<String> },
    Promise,
    Write { at: usize, block: u64, kind: String, what: Option<String>, fate: String },
    Flush { at: usize },
}

/// The write `from` needs what the write `to` brings.
#[derive(Serialize)]
struct ShownNeed {
    from: usize,
    to: usize,
    why: String,
    broken: bool,
}

impl Shown {
    fn of(replay: &Replay) -> Self {
        let mut story = story(replay);
        let needs = std::mem::take(&mut story.needs).into_iter();
        let needs =
            needs.map(|Needed { from, to, why, broken }| ShownNeed { from, to, why, broken }).collect();
        let event = |row: Row| match row {
            Row::Operation { no, text, refused } => {
                ShownEvent::Operation { number: no, text, error: refused }
            }
            Row::Promise => ShownEvent::Promise,
            Row::Flush { at } => ShownEvent::Flush { at },
            Row::Write { at, block, kind, fate } => ShownEvent::Write {
                at,
                block,
                kind: format!("{kind:?}"),
                what: story.blocks.get(&block).cloned(),
                fate: fate.word().to_lowercase(),
            },
        };
        Self {
            verdict: Verdict::of(replay),
            before: replay.workload.setup.iter().map(ToString::to_string).collect(),
            events: std::mem::take(&mut story.rows).into_iter().map(event).collect(),
            needs,
        }
    }
}

/// The state, under the name by which the laboratory finds its workload.
fn spelled(id: &StateId) -> StateId {
    StateId { workload: fstitch_systems::workloads::spelled(&id.workload), ..id.clone() }
}

/// Runs `crash replay`.
pub fn replay(arguments: &ReplayArguments) -> Result<Outcome> {
    let replay = Replay::new(spelled(&arguments.id), LabOptions::default(), fstitch_systems::system)?;
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
    let replay = Replay::new(spelled(&arguments.id), LabOptions::default(), fstitch_systems::system)?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, svg(&replay)).with_context(|| format!("writing {}", path.display()))?;
    }
    if arguments.json {
        json(&Shown::of(&replay))?;
    } else {
        text(&timeline(&replay))?;
    }
    Ok(Outcome::SUCCESS)
}

/// Runs `crash minimise`.
pub fn minimise(arguments: &MinimiseArguments) -> Result<Outcome> {
    let options = LabOptions { choices_per_cut: arguments.states_per_cut.max(1), ..LabOptions::default() };
    let replay = Replay::new(spelled(&arguments.id), options, fstitch_systems::system)?;
    let operations = replay.workload.ops.len();
    let all = to_u64(operations);
    let watch = Watch::new(arguments.json, all, "operations can go")?;
    let found = smallest(&replay, &mut |left| {
        let gone = to_u64(operations - left);
        watch.tell(gone, all, &|| format!("{left} left"))
    });
    let outcome = watch.end(Outcome::SUCCESS);
    let Some(found) = found else {
        text("the search finds no such violation in this workload\n")?;
        return Ok(Outcome::FAILURE);
    };
    let smaller = Replay::new(found.id, LabOptions::default(), fstitch_systems::system)?;
    if arguments.json {
        json(&Verdict::of(&smaller))?;
    } else {
        text(&timeline(&smaller))?;
    }
    Ok(outcome)
}
