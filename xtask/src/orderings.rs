//! Proof that every ordering is tested: each dependency of the soft-updates tables is removed in a copy of the
//! tree, and some test must fail.
//!
//! The list stands in `crates/fstitch-fs/tests/orderings.txt`. An entry:
//!
//! ```text
//! [name of the ordering]
//! file: path from the root
//! <<<<
//! text that occurs exactly once in the file
//! ====
//! the same text without the dependency
//! >>>>
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const LIST: &str = "crates/fstitch-fs/tests/orderings.txt";

/// Which orderings to remove, and how hard to look for the damage.
#[derive(clap::Args)]
pub struct Options {
    /// Only the orderings whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Seeds of the crash test, as first..end
    #[arg(long, default_value = "0..160")]
    seeds: String,
    /// Only check that every entry still fits the source
    #[arg(long)]
    fits: bool,
}

/// One dependency and how to remove it.
#[derive(Debug, PartialEq, Eq)]
struct Ordering {
    name: String,
    file: String,
    with: String,
    without: String,
}

/// Removes one dependency after the other and expects the crash tests to fail each time.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let text = std::fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let mut orderings = parse(&text)?;
    for ordering in &orderings {
        check_fit(root, ordering)?;
    }
    println!("{} orderings fit the source", orderings.len());
    if options.fits {
        return Ok(());
    }
    if let Some(only) = &options.only {
        orderings.retain(|ordering| ordering.name.contains(only));
    }
    let copy = root.join("target/orderings");
    copy_tree(root, &copy)?;
    ensure!(crash_tests(&copy, &options.seeds)?, "the crash tests fail with every ordering in place");
    let mut survivors = Vec::new();
    for ordering in &orderings {
        let file = copy.join(&ordering.file);
        let source = std::fs::read_to_string(&file)?;
        std::fs::write(&file, source.replacen(&ordering.with, &ordering.without, 1))?;
        let passed = crash_tests(&copy, &options.seeds);
        std::fs::write(&file, source)?;
        let passed = passed?;
        println!("{:8} {}", if passed { "SURVIVED" } else { "caught" }, ordering.name);
        if passed {
            survivors.push(ordering.name.clone());
        }
    }
    if survivors.is_empty() {
        println!("{} orderings removed, each one missed by a test", orderings.len());
        return Ok(());
    }
    bail!("no test misses these orderings: {}", survivors.join("; "))
}

fn check_fit(root: &Path, ordering: &Ordering) -> Result<()> {
    let source = std::fs::read_to_string(root.join(&ordering.file))
        .with_context(|| format!("{}: reading {}", ordering.name, ordering.file))?;
    let found = source.matches(&ordering.with).count();
    ensure!(found == 1, "{}: its text occurs {found} times in {}", ordering.name, ordering.file);
    ensure!(ordering.with != ordering.without, "{}: nothing is removed", ordering.name);
    Ok(())
}

/// Copies what git tracks, so that the tree itself is never in a broken state.
fn copy_tree(root: &Path, copy: &Path) -> Result<()> {
    let listing = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    ensure!(listing.status.success(), "git ls-files ended with {}", listing.status);
    for name in String::from_utf8(listing.stdout)?.split('\0').filter(|name| !name.is_empty()) {
        let target = copy.join(name);
        std::fs::create_dir_all(target.parent().context("files have folders")?)?;
        std::fs::copy(root.join(name), &target).with_context(|| format!("copying {name}"))?;
    }
    Ok(())
}

/// Whether the crash tests pass in `copy`. A copy that does not compile is an error, not a finding.
fn crash_tests(copy: &Path, seeds: &str) -> Result<bool> {
    let test = ["test", "-q", "-p", "fstitch-fs", "--test", "crash"];
    let target: PathBuf = copy.join("target");
    let cargo = || {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(copy).env("CARGO_TARGET_DIR", &target).env("FSTITCH_CRASH_SEEDS", seeds);
        command
    };
    let built = cargo().args(test).arg("--no-run").output()?;
    ensure!(built.status.success(), "it does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
    Ok(cargo().args(test).output()?.status.success())
}

fn parse(text: &str) -> Result<Vec<Ordering>> {
    let mut orderings = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
            ensure!(line.is_empty() || line.starts_with('#'), "not an entry: {line}");
            continue;
        };
        let file = lines.next().and_then(|line| line.strip_prefix("file: "));
        let file = file.with_context(|| format!("{name}: no file"))?.to_owned();
        ensure!(lines.next() == Some("<<<<"), "{name}: <<<< is missing");
        let mut until = |end: &str| -> Result<String> {
            let mut block = Vec::new();
            for line in lines.by_ref() {
                if line == end {
                    return Ok(block.join("\n"));
                }
                block.push(line);
            }
            bail!("{name}: {end} is missing")
        };
        let (with, without) = (until("====")?, until(">>>>")?);
        orderings.push(Ordering { name: name.to_owned(), file, with, without });
    }
    Ok(orderings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_gaps_refused() {
        let text = "# a remark\n[a]\nfile: x.rs\n<<<<\none\ntwo\n====\n>>>>\n";
        let expected = Ordering {
            name: "a".into(),
            file: "x.rs".into(),
            with: "one\ntwo".into(),
            without: String::new(),
        };
        assert_eq!(parse(text).unwrap(), [expected]);
        assert!(parse("[a]\nfile: x.rs\n<<<<\none\n").is_err());
        assert!(parse("[a]\n<<<<\n").is_err());
        assert!(parse("anything\n").is_err());
    }
}
