//! What operations cost, in instructions: counted by callgrind, so that the numbers are the same on a loaded machine, and
//! compared with `crates/fstitch-bench/counts.txt`.
//!
//! Each operation is run with two counts; the difference is the cost of the operations alone. A line of the list:
//! `OPERATION CONSISTENCY INSTRUCTIONS PATCHES`, the last being those in code of `fstitch-patch`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const LIST: &str = "crates/fstitch-bench/counts.txt";
/// The two counts of an operation.
const RUNS: [u64; 2] = [1_000, 3_000];
/// By how many percent a cost may exceed the list. The compiler's version matters that much.
const TOLERANCE: u64 = 8;

/// What is counted.
#[derive(clap::Args)]
pub struct Options {
    /// Write the list anew
    #[arg(long)]
    update: bool,
    /// Only these operations
    #[arg(long)]
    only: Option<String>,
}

/// An operation and its cost.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    operation: String,
    mode: String,
    cost: Cost,
}

/// Instructions for one operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    all: u64,
    patches: u64,
}

/// Counts every operation of the list and fails if one has become dearer.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: instruction counts: valgrind is not installed");
        return Ok(());
    }
    let text = std::fs::read_to_string(root.join(LIST)).with_context(|| LIST.to_owned())?;
    let program = build(root)?;
    let (mut list, mut dearer) = (String::new(), Vec::new());
    for line in text.lines() {
        let Some(known) = parse(line)? else {
            list.push_str(line);
            list.push('\n');
            continue;
        };
        if options.only.as_ref().is_some_and(|only| *only != known.operation) {
            writeln!(list, "{line}")?;
            continue;
        }
        let cost = measure(&program, &known)?;
        let Line { operation, mode, .. } = &known;
        println!(
            "{operation} {mode}: {} instructions ({} listed), {} of them for patches ({} %)",
            cost.all,
            known.cost.all,
            cost.patches,
            cost.patches * 100 / cost.all.max(1)
        );
        if cost.all * 100 > known.cost.all * (100 + TOLERANCE) {
            dearer.push(format!("{operation} {mode}: {} instead of {}", cost.all, known.cost.all));
        } else if cost.all * (100 + TOLERANCE) < known.cost.all * 100 {
            println!("  cheaper than listed: `cargo xtask counts --update` keeps it so");
        }
        writeln!(list, "{operation} {mode} {} {}", cost.all, cost.patches)?;
    }
    if options.update {
        return std::fs::write(root.join(LIST), list).with_context(|| LIST.to_owned());
    }
    ensure!(
        dearer.is_empty(),
        "operations cost more instructions than {LIST} has (if they must, `cargo xtask counts --update`):\n  {}",
        dearer.join("\n  ")
    );
    Ok(())
}

/// An operation of the list; `None` for remarks.
fn parse(line: &str) -> Result<Option<Line>> {
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let [operation, mode, all, patches] = words[..] else { bail!("{LIST}: not understood: {line}") };
    let cost = Cost { all: all.parse()?, patches: patches.parse()? };
    Ok(Some(Line { operation: operation.to_owned(), mode: mode.to_owned(), cost }))
}

/// Builds the program as users would run it.
fn build(root: &Path) -> Result<PathBuf> {
    let arguments = ["build", "--quiet", "--release", "--locked", "-p", "fstitch-bench", "--bin", "counted"];
    let status = Command::new(env!("CARGO")).args(arguments).current_dir(root).status()?;
    ensure!(status.success(), "building the program ended with {status}");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/counted"))
}

fn measure(program: &Path, line: &Line) -> Result<Cost> {
    let [few, many] = RUNS;
    let (less, more) = (count(program, line, few)?, count(program, line, many)?);
    let each = |less: u64, more: u64| more.saturating_sub(less) / (many - few);
    Ok(Cost { all: each(less.all, more.all), patches: each(less.patches, more.patches) })
}

/// Runs an operation so many times under callgrind.
fn count(program: &Path, line: &Line, times: u64) -> Result<Cost> {
    let out = std::env::temp_dir().join(format!("fstitch-counts-{}", std::process::id()));
    let done = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([&line.operation, &line.mode, &times.to_string()])
        .output()
        .context("running valgrind")?;
    let text = std::fs::read_to_string(&out).unwrap_or_default();
    // It is in the way of nobody if it stays.
    let _ = std::fs::remove_file(&out);
    if !done.status.success() || text.is_empty() {
        bail!("valgrind ended with {}: {}", done.status, String::from_utf8_lossy(&done.stderr));
    }
    Ok(sum(&text))
}

/// Sums the instructions of a profile in callgrind's format: those of calls are counted where they are executed.
fn sum(profile: &str) -> Cost {
    let (mut files, mut functions) = (HashMap::new(), HashMap::new());
    let (mut file_is_ours, mut function_is_ours) = (false, false);
    let (mut cost, mut is_call) = (Cost::default(), false);
    for line in profile.lines() {
        match line.split_once('=') {
            Some(("fl" | "fi" | "fe", name)) => file_is_ours = is_patches(&mut files, name),
            Some(("fn", name)) => function_is_ours = is_patches(&mut functions, name),
            // Names are given once, wherever they occur first.
            Some(("cfi" | "cfl", name)) => drop(is_patches(&mut files, name)),
            Some(("cfn", name)) => drop(is_patches(&mut functions, name)),
            Some(("calls", _)) => is_call = true,
            Some(_) => {}
            None if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) => {
                let instructions =
                    line.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok());
                if !std::mem::take(&mut is_call) {
                    let instructions = instructions.unwrap_or(0);
                    cost.all += instructions;
                    cost.patches += if file_is_ours || function_is_ours { instructions } else { 0 };
                }
            }
            None => {}
        }
    }
    cost
}

/// Whether a name, given in full or by its number, belongs to the patch layer.
fn is_patches(known: &mut HashMap<String, bool>, name: &str) -> bool {
    let (number, text) = name.split_once(' ').unwrap_or((name, ""));
    if !text.is_empty() {
        known.insert(number.to_owned(), text.contains("fstitch-patch") || text.contains("fstitch_patch"));
    }
    known.get(number).copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_where_they_are_executed() {
        let profile = "events: Ir\n\
            fl=(1) crates/fstitch-fs/src/a.rs\nfn=(1) fstitch_fs::a\n10 5\n\
            cfi=(2) crates/fstitch-patch/src/b.rs\ncfn=(2) fstitch_patch::b\ncalls=1 20\n11 100\n\
            fi=(2)\n12 7\nfe=(1)\n13 1\n\
            fl=(3) core.rs\nfn=(2)\n20 60\n\
            totals: 73\n";
        assert_eq!(sum(profile), Cost { all: 73, patches: 67 });
    }

    #[test]
    fn lines_are_operations_or_remarks() {
        assert_eq!(parse("# remark").unwrap(), None);
        let line = parse("create soft 8000 900").unwrap().unwrap();
        assert_eq!((line.operation.as_str(), line.cost.patches), ("create", 900));
        assert!(parse("create soft many few").is_err());
    }
}
