//! `fstitch man` and `fstitch completions`: made from the same types that parse the arguments.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::Arguments as Program;
use crate::output::Outcome;

/// Arguments of `man`.
#[derive(clap::Args)]
pub struct ManArguments {
    /// Where to write one page per command; without it, the main page goes to standard output
    #[arg(value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

/// Arguments of `completions`.
#[derive(clap::Args)]
pub struct CompletionArguments {
    /// The shell
    shell: clap_complete::Shell,
}

/// Runs `man`.
pub fn man(arguments: &ManArguments) -> Result<Outcome> {
    let mut program = Program::command();
    program.build();
    match &arguments.directory {
        None => clap_mangen::Man::new(program).render(&mut std::io::stdout().lock())?,
        Some(directory) => {
            std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
            clap_mangen::generate_to(Program::command(), directory)
                .with_context(|| format!("writing to {}", directory.display()))?;
        }
    }
    Ok(Outcome::SUCCESS)
}

/// Runs `completions`.
pub fn completions(arguments: &CompletionArguments) -> Outcome {
    clap_complete::generate(arguments.shell, &mut Program::command(), "fstitch", &mut std::io::stdout());
    Outcome::SUCCESS
}
