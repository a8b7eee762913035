//! Races between threads, one after the other, that the thread laboratory must find; and its long run on the tree as it is.
//!
//! The list is `crates/fstitch-systems/tests/races.txt`, in the form of `orderings.rs`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::mutants::{PATIENCE, ask, is_found};
use crate::orderings::{check_list, copy_tree, without};

const RACES: &str = "crates/fstitch-systems/tests/races.txt";
/// The laboratory's threads are controlled in builds with debug assertions only.
const ASKED: (&str, &str) = ("races", "races");

/// Which races to put in.
#[derive(clap::Args)]
pub struct Options {
    /// Only the races whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Only check that every entry still fits the source
    #[arg(long)]
    fits: bool,
    /// Where the copy of the tree is kept
    #[arg(long, value_name = "DIRECTORY")]
    copy: Option<PathBuf>,
    /// Search the tree itself instead: more preemptions, finer, and so many samples of every system
    #[arg(long, value_name = "SAMPLES", conflicts_with_all = ["only", "fits", "copy"])]
    long: Option<u64>,
}

/// What a long run looks at, and how: before every lock, and with two preemptions at those that are held for long.
const SYSTEMS: [&str; 4] = ["ext2-soft", "ext3-ordered", "ext3-full", "ext2-sync"];
const PLANS: [&[&str]; 2] = [&["--fine", "--most", "20000"], &["--preemptions", "2", "--most", "20000"]];

/// Puts in one race after the other.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if let Some(samples) = options.long {
        return search_long(root, samples);
    }
    let mut races = check_list(root, RACES)?;
    if options.fits {
        return Ok(());
    }
    races.retain(|race| options.only.as_ref().is_none_or(|only| race.name.contains(only)));
    // By a path that holds from everywhere: what is built there is run from the copy.
    let usual = root.join("target/races");
    let copy = std::path::absolute(options.copy.as_deref().unwrap_or(&usual))?;
    copy_tree(root, &copy)?;
    if let Some(found) = ask(&copy, ASKED, &[], PATIENCE)? {
        bail!("the laboratory finds something in the tree as it is: {found}");
    }
    let mut survivors = Vec::new();
    for race in &races {
        let found = without(&copy, race, &|| ask(&copy, ASKED, &[], PATIENCE))?;
        println!("{}: {}", race.name, found.as_deref().unwrap_or("SURVIVED"));
        if !found.is_some_and(|said| is_found(&said)) {
            survivors.push(race.name.clone());
        }
    }
    ensure!(survivors.is_empty(), "not found: {}", survivors.join("; "));
    println!("all of {} races found", races.len());
    Ok(())
}

/// Searches the tree as it is, the quick plans first.
fn search_long(root: &Path, samples: u64) -> Result<()> {
    let program = crate::mutants::build_asked(root, &root.join("target"), ASKED)?;
    let search = |arguments: &[&str]| -> Result<()> {
        println!("races {}", arguments.join(" "));
        let status = Command::new(&program).args(arguments).status()?;
        ensure!(status.success(), "something was found");
        Ok(())
    };
    for plan in PLANS {
        search(plan)?;
    }
    for seed in 0..samples {
        for system in SYSTEMS {
            search(&["--system", system, "--random", &seed.to_string(), "--most", "1000"])?;
        }
    }
    Ok(())
}

/// Checks that every race still fits the source.
pub fn check_fits(root: &Path) -> Result<()> {
    check_list(root, RACES).map(drop)
}
