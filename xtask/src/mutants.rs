//! The mutation score of the crash laboratory: seeded bugs, one after the other, that it must find.
//!
//! The bugs are every dependency of the soft-updates tables that does not follow from others (`orderings.txt`) and those
//! of the patch graph, the cache and the syncs (`mutants.txt`). The form of the lists is that of `orderings.rs`; an entry
//! under `# survives: why` follows from others on ext2; it is no bug there, and is left out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::orderings::{LIST, Ordering, check_list, copy_tree, without};

const MUTANTS: &str = "crates/fstitch-systems/tests/mutants.txt";

/// The least share of the bugs that must be found, in percent.
const SCORE: usize = 95;

/// Which bugs to seed.
#[derive(clap::Args)]
pub struct Options {
    /// Only the bugs whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Only every N-th bug, beginning with the K-th (from 0), as K/N: to share the work
    #[arg(long, value_name = "K/N", value_parser = share)]
    share: Option<(usize, usize)>,
    /// Only check that every entry still fits the source
    #[arg(long)]
    fits: bool,
    /// Where the copy of the tree is kept
    #[arg(long, value_name = "DIRECTORY")]
    copy: Option<PathBuf>,
    /// Append what becomes of each bug to this file, and leave out those that it has already
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Only write what the file of results says into docs/crash-results.md
    #[arg(long, requires = "results")]
    publish: bool,
}

fn share(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|(k, n)| k < n).ok_or_else(|| format!("`{text}`: expected K/N with K below N"))
}

/// Seeds one bug after the other.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut bugs = check_list(root, MUTANTS)?;
    bugs.extend(check_list(root, LIST)?.into_iter().filter(|ordering| !ordering.redundant));
    // No image differs without these: they would be no bugs on the volumes that the laboratory has.
    bugs.retain(|bug| !bug.survives);
    if options.fits {
        return Ok(());
    }
    if let (true, Some(results)) = (options.publish, &options.results) {
        return publish(root, &bugs, results);
    }
    bugs.retain(|bug| options.only.as_ref().is_none_or(|only| bug.name.contains(only)));
    let (k, n) = options.share.unwrap_or((0, 1));
    let known =
        options.results.as_ref().and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let done = |bug: &Ordering| known.lines().any(|line| line.starts_with(&format!("{}: ", bug.name)));
    let bugs: Vec<Ordering> = bugs
        .into_iter()
        .enumerate()
        .filter(|(at, bug)| at % n == k && !done(bug))
        .map(|(_, bug)| bug)
        .collect();
    let copy = options.copy.clone().unwrap_or_else(|| root.join("target/mutants"));
    copy_tree(root, &copy)?;
    if options.only.is_none()
        && let Some(found) = hunt(&copy)?
    {
        bail!("the laboratory finds something in the tree as it is: {found}");
    }
    let mut survivors = Vec::new();
    for bug in &bugs {
        let found = without(&copy, bug, &|| hunt(&copy))?;
        let fate: Option<String> = found.as_ref().map(|found| found.chars().take(160).collect());
        let line = format!("{}: {}", bug.name, fate.as_deref().unwrap_or("SURVIVED"));
        println!("{line}");
        note(options, &line)?;
        if found.is_none() {
            survivors.push(bug.name.clone());
        }
    }
    let found = bugs.len() - survivors.len();
    println!("{found} of {} seeded bugs found", bugs.len());
    ensure!(found * 100 >= bugs.len() * SCORE, "fewer than {SCORE} %: {}", survivors.join("; "));
    Ok(())
}

/// Checks that every seeded bug still fits the source.
pub fn check_fits(root: &Path) -> Result<()> {
    check_list(root, MUTANTS).map(drop)
}

/// Writes the score and what found each bug into the page.
fn publish(root: &Path, bugs: &[Ordering], results: &Path) -> Result<()> {
    let known = std::fs::read_to_string(results).with_context(|| format!("reading {}", results.display()))?;
    let fate = |bug: &Ordering| {
        let line = known.lines().rev().find_map(|line| line.strip_prefix(&format!("{}: ", bug.name)));
        line.map(|line| line.replace('|', "\\|"))
    };
    let judged: Vec<(&Ordering, String)> = bugs.iter().filter_map(|bug| Some((bug, fate(bug)?))).collect();
    let survived = judged.iter().filter(|(_, fate)| fate == "SURVIVED").count();
    let mut table = format!(
        "{} of {} seeded bugs were found; {} of the list were not run.\n\n| bug | found as |\n|---|---|\n",
        judged.len() - survived,
        judged.len(),
        bugs.len() - judged.len()
    );
    for (bug, fate) in &judged {
        table.push_str(&format!("| {} | {fate} |\n", bug.name.replace('|', "\\|")));
    }
    crate::soak::replace_between(&root.join(crate::soak::PAGE), "mutants", &table)
}

fn note(options: &Options, line: &str) -> Result<()> {
    use std::io::Write;
    let Some(path) = &options.results else { return Ok(()) };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    writeln!(file, "{line}").with_context(|| format!("writing {}", path.display()))
}

/// How long the search may take: a bug may also make everything wait for ever.
const PATIENCE: Duration = Duration::from_secs(400);

/// Builds the copy and asks the laboratory (`crates/fstitch-systems/examples/hunt.rs`); what it found.
fn hunt(copy: &Path) -> Result<Option<String>> {
    ask(copy, ("hunt", "hunt"), &[])
}

/// Builds an example of `fstitch-systems` by a profile. Returns the program.
pub(crate) fn build_asked(root: &Path, target: &Path, (example, profile): (&str, &str)) -> Result<PathBuf> {
    let built = Command::new(env!("CARGO"))
        .args(["build", "-q", "--profile", profile, "-p", "fstitch-systems", "--example", example])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", "--cap-lints warn")
        .output()?;
    ensure!(built.status.success(), "it does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
    Ok(target.join(profile).join("examples").join(example))
}

/// Builds an example in the copy, and asks it; what it found.
pub(crate) fn ask(copy: &Path, asked: (&str, &str), arguments: &[&str]) -> Result<Option<String>> {
    let program = build_asked(copy, &copy.join("target"), asked)?;
    let output =
        Command::new("timeout").arg(PATIENCE.as_secs().to_string()).arg(program).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(None),
        Some(1) if !said.is_empty() => Ok(Some(said.trim().replace('\n', " "))),
        Some(124) => Ok(Some(format!("no end within {} s", PATIENCE.as_secs()))),
        _ => bail!("the question ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}
