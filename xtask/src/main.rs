//! Automation of this repository: `cargo xtask ci` is the one gate, `cargo xtask tidy` a part of it.
#![forbid(unsafe_code)]

mod ci;
mod counts;
mod mutants;
mod orderings;
mod races;
mod soak;
mod soak_tests;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Automation of the Featherstitch repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that must pass before a change lands: format, lints, tidy, tests, documentation
    Ci(ci::Options),
    /// The rules of the house that no other tool knows
    Tidy,
    /// Removes each soft-updates dependency in a copy of the tree; some crash test must miss each one
    Orderings(orderings::Options),
    /// Puts seeded bugs into a copy of the tree, one after the other; the crash laboratory must find them
    Mutants(mutants::Options),
    /// Puts races between threads into a copy of the tree, one after the other; the thread laboratory must find them all
    Races(races::Options),
    /// Counts the instructions of operations; none may cost more than the list says
    Counts(counts::Options),
    /// The long runs of the crash laboratory, in pieces, and their results in docs/crash-results.md
    Soak(soak::Options),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = workspace_root()?;
    match Arguments::parse().task {
        Task::Ci(options) => ci::run(&root, &options),
        Task::Tidy => run_tidy(&root),
        Task::Orderings(options) => orderings::run(&root, &options),
        Task::Mutants(options) => mutants::run(&root, &options),
        Task::Races(options) => races::run(&root, &options),
        Task::Counts(options) => counts::run(&root, &options),
        Task::Soak(options) => soak::run(&root, &options),
    }
}

/// The directory that holds the workspace's manifest.
fn workspace_root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("the xtask crate lies inside the workspace")?.to_path_buf())
}

fn run_tidy(root: &Path) -> Result<()> {
    let report = tidy::check(root)?;
    for warning in &report.warnings {
        println!("tidy: warning: {warning}");
    }
    for violation in &report.violations {
        println!("tidy: error: {violation}");
    }
    println!(
        "tidy: {} files, {} warnings, {} errors",
        report.files,
        report.warnings.len(),
        report.violations.len()
    );
    if report.violations.is_empty() {
        return Ok(());
    }
    bail!("the tree breaks {} of the rules above", report.violations.len())
}
