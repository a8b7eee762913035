//! `fstitch man` and `fstitch completions`: made from the same types that parse the arguments, with what these do not
//! know: examples, exit codes, what else to read.
//!
//! ```text
//!   Arguments (clap) ──► page ──► fstitch-*.1              examples: words that the parser of the arguments accepts
//!   mount::OPTIONS_HELP ──► mount8 ──► mount.fuse.fstitch.8
//!                      └──► completions: the values of -o
//! ```

mod completions;
mod examples;
mod mount8;
mod page;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::Arguments as Program;
use crate::output::{Outcome, text};
pub use completions::{Arguments as CompletionArguments, run as completions};

/// Arguments of `man`.
#[derive(clap::Args)]
pub struct ManArguments {
    /// Where to write one page per command, and those of the mount helper; without it, the main page goes to standard
    /// output
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Runs `man`.
pub fn man(arguments: &ManArguments) -> Result<Outcome> {
    let mut program = Program::command().disable_help_subcommand(true);
    program.build();
    let Some(directory) = &arguments.directory else {
        text(&page::of(&program, &[])?.1)?;
        return Ok(Outcome::SUCCESS);
    };
    std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    for (name, page) in page::all(&program)?.into_iter().chain(mount8::pages()?) {
        let path = directory.join(name);
        std::fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(Outcome::SUCCESS)
}
