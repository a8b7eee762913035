//! `fstitch mount --stack`: several volumes with one patch graph, served by one process. Design: `docs/stack.md`.
//!
//! ```text
//!   file ──► check ──► settle ──► look ──► open ──► serve ◄─► running
//!   text     names     paths      inside   engine   sessions  states and ends
//! ```

mod check;
mod file;
mod look;
mod open;
mod running;
mod serve;
mod settle;

use std::path::Path;

use anyhow::Result;

use super::{Arguments, run_in_background};
use crate::mount::daemon::Place;
use crate::output::{Outcome, json, text};

/// Runs `mount --stack`.
pub fn run(file: &Path, arguments: &Arguments) -> Result<Outcome> {
    let stack = check::Stack::new(&file::Source::read(file)?)?;
    let plan = settle::Plan::new(stack)?;
    if arguments.check {
        let planned = look::planned(&plan)?;
        if arguments.json {
            json(&planned)?;
        } else {
            text(&planned.draw())?;
        }
        return Ok(Outcome::SUCCESS);
    }
    if arguments.foreground {
        serve::serve(&plan, Place::Foreground)?;
        return Ok(Outcome::SUCCESS);
    }
    run_in_background(|place| serve::serve(&plan, place))
}
