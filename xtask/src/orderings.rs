//! Proof that every ordering is tested: each dependency of the soft-updates tables is removed in a copy of the
//! tree, and some test must fail.
//!
//! The list stands in `crates/fstitch-fs/tests/orderings.txt`, that of the journal's dependencies in
//! `crates/fstitch-patch/tests/journal-orderings.txt`, that of UFS in `crates/fstitch-fs/tests/ufs-orderings.txt`. An entry:
//!
//! ```text
//! # redundant: why (only where the ordering follows from others; then every test must pass without it)
//! # survives: why (only where it follows from others on ext2: a test of the format-independent half must fail without
//! it, the crash laboratory has nothing to find)
//! # test: package, binary and names (which tests should miss it, where the list has many: they are asked first)
//! [name of the ordering]
//! file: path from the root
//! <<<<
//! text that occurs exactly once in the file
//! ====
//! the same text without the dependency
//! >>>>
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

pub(crate) const LIST: &str = "crates/fstitch-fs/tests/orderings.txt";
const JOURNAL_LIST: &str = "crates/fstitch-patch/tests/journal-orderings.txt";
const UFS_LIST: &str = "crates/fstitch-fs/tests/ufs-orderings.txt";

/// Tests that are asked one after the other, the quick ones first: package, binary and names.
pub(crate) type Tests = [(&'static str, &'static str, &'static str)];
/// In place of a binary: the tests beside the code.
pub(crate) const LIBRARY: &str = "lib";
const TESTS: &Tests = &[
    ("fstitch-fs", "fs", "orders"),
    ("fstitch-fs", "fs", "moves"),
    ("fstitch-fs", "crash", "directed"),
    ("fstitch-fs", "crash", "every_image"),
];
const JOURNAL_TESTS: &Tests = &[
    ("fstitch-patch", "patch", "journaled::"),
    ("fstitch-patch", "patch", "volumes::"),
    ("fstitch-patch", "patch", "seal::"),
    ("fstitch-patch", "patch", "seal_owners::"),
    ("fstitch-patch", "patch", "sealed_crashes::"),
    ("fstitch-patch", "patch", "fast::"),
    ("fstitch-patch", "patch", "groups::"),
    ("fstitch-patch", "patch", "medium::"),
    ("fstitch-fs", "journal", "kept"),
    ("fstitch-fs", "journal", "groups"),
    ("fstitch-fs", "fs", "loopback"),
    ("fstitch-fs", "fs", "groups"),
    ("fstitch-systems", "lab", "loopback"),
    ("fstitch-systems", "lab", "groups"),
];

const UFS_TESTS: &Tests = &[
    ("fstitch-fs", "ufs", "ordered"),
    ("fstitch-fs", "ufs", "held"),
    ("fstitch-fs", "ufs", "placed"),
    ("fstitch-systems", "lab", "ufs"),
    ("fstitch-fs", "fs", "ufs"),
];

/// Seconds after which a test has stopped for good: some removals make the engine wait for itself.
const PATIENCE: &str = "600";

/// Which orderings to remove, and how hard to look for the damage.
#[derive(clap::Args)]
pub struct Options {
    /// Only the orderings whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Seeds of the random crash test, as first..end
    #[arg(long, default_value = "0..160")]
    seeds: String,
    /// Only check that every entry still fits the source
    #[arg(long)]
    fits: bool,
    /// The journal's dependencies instead of the soft-updates ones
    #[arg(long)]
    journal: bool,
    /// Those of UFS
    #[arg(long, conflicts_with = "journal")]
    ufs: bool,
    #[command(flatten)]
    work: Work,
}

/// How long work is shared, and goes on where it was stopped.
#[derive(clap::Args)]
pub struct Work {
    /// Only every N-th entry, beginning with the K-th (from 0), as K/N: to share the work
    #[arg(long, value_name = "K/N", value_parser = share)]
    share: Option<(usize, usize)>,
    /// Where the copy of the tree is kept
    #[arg(long, value_name = "DIRECTORY")]
    copy: Option<PathBuf>,
    /// Append what becomes of each entry to this file, and leave out those that went well already, on the same sources
    #[arg(long, value_name = "FILE")]
    pub(crate) results: Option<PathBuf>,
}

fn share(text: &str) -> Result<(usize, usize), String> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    parsed.filter(|(k, n)| k < n).ok_or_else(|| format!("`{text}`: expected K/N with K below N"))
}

impl Work {
    /// Where the copy is kept, by a path that holds from everywhere.
    pub(crate) fn copy_at(&self, usual: &Path) -> Result<PathBuf> {
        let given = self.copy.as_deref().unwrap_or(usual);
        std::path::absolute(given).with_context(|| given.display().to_string())
    }

    /// The entries of this share that did not go well yet on `sources`: what went wrong in an earlier part is run again, so that the
    /// verdict at the end is of all of them.
    pub(crate) fn left(
        &self,
        entries: Vec<Ordering>,
        sources: &str,
        went_well: impl Fn(&str) -> bool,
    ) -> Result<Vec<Ordering>> {
        let (k, n) = self.share.unwrap_or((0, 1));
        let known = self.known(sources)?;
        let done = |entry: &Ordering| {
            let name = format!("{}: ", entry.name);
            known.lines().filter_map(|line| line.strip_prefix(&name)).next_back().is_some_and(&went_well)
        };
        let mine = entries.into_iter().enumerate().filter(|(at, entry)| at % n == k && !done(entry));
        Ok(mine.map(|(_, entry)| entry).collect())
    }

    /// The results so far. Their first line says of which sources they are; a new file gets it here.
    fn known(&self, sources: &str) -> Result<String> {
        let Some(path) = &self.results else { return Ok(String::new()) };
        let first = format!("sources: {sources}");
        match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.note(&first).map(|()| String::new())
            }
            Ok(known) if known.lines().next() == Some(&first) => Ok(known),
            Ok(_) => bail!("{} is of other sources than `{sources}`", path.display()),
            Err(error) => Err(error).with_context(|| format!("reading {}", path.display())),
        }
    }

    /// Writes down what became of an entry.
    pub(crate) fn note(&self, line: &str) -> Result<()> {
        use std::io::Write;
        let Some(path) = &self.results else { return Ok(()) };
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        writeln!(file, "{line}").with_context(|| format!("writing {}", path.display()))
    }
}

/// One dependency and how to remove it.
#[derive(Debug, PartialEq, Eq)]
pub struct Ordering {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) with: String,
    pub(crate) without: String,
    /// It follows from others: nothing can miss it.
    pub(crate) redundant: bool,
    /// It follows from others on ext2: the crash laboratory cannot miss it.
    pub(crate) survives: bool,
    /// Which tests should miss it: package, binary and names.
    pub(crate) test: Option<[String; 3]>,
}

/// What is said of a test that was ended because it took too long.
pub(crate) const ENDLESS: &str = "it never ends";

/// What became of one removal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// This test failed.
    Caught(String),
    Survived,
}

/// Removes one dependency after the other and expects a test to fail each time.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let soft = check_fits(root)?;
    if options.fits {
        return Ok(());
    }
    let (mut orderings, tests) = match (options.journal, options.ufs) {
        (true, _) => (check_list(root, JOURNAL_LIST)?, JOURNAL_TESTS),
        (_, true) => (check_list(root, UFS_LIST)?, UFS_TESTS),
        _ => (soft, TESTS),
    };
    if let Some(only) = &options.only {
        orderings.retain(|ordering| ordering.name.contains(only));
    }
    let went_well = |said: &str| said == "redundant" || said.starts_with("caught by");
    let orderings = options.work.left(orderings, &crate::soak::sources(root, "HEAD")?, went_well)?;
    let copy = options.work.copy_at(&root.join("target/orderings"))?;
    copy_tree(root, &copy)?;
    if let Verdict::Caught(test) = judge(&copy, tests, &options.seeds)? {
        bail!("{test} fails with every ordering in place");
    }
    let mut wrong = Vec::new();
    for ordering in &orderings {
        let verdict = without(&copy, ordering, &|| judge(&copy, tests, &options.seeds))?;
        let said = match (&verdict, ordering.redundant) {
            (Verdict::Caught(test), false) => format!("caught by {test}"),
            (Verdict::Survived, true) => "redundant".to_owned(),
            (Verdict::Caught(test), true) => format!("NOT REDUNDANT, caught by {test}"),
            (Verdict::Survived, false) => "SURVIVED".to_owned(),
        };
        let line = format!("{}: {said}", ordering.name);
        println!("{line}");
        options.work.note(&line)?;
        if (verdict == Verdict::Survived) != ordering.redundant {
            wrong.push(ordering.name.clone());
        }
    }
    if wrong.is_empty() {
        println!("{} orderings removed, each as the list says", orderings.len());
        return Ok(());
    }
    bail!("not as the list says: {}", wrong.join("; "))
}

/// Runs `work` while the dependency is removed from the copy.
pub(crate) fn without<T>(copy: &Path, ordering: &Ordering, work: &dyn Fn() -> Result<T>) -> Result<T> {
    let file = copy.join(&ordering.file);
    let source = std::fs::read_to_string(&file)?;
    std::fs::write(&file, source.replacen(&ordering.with, &ordering.without, 1))?;
    let outcome = work().with_context(|| ordering.name.clone());
    std::fs::write(&file, source)?;
    outcome
}

/// Reads the lists and checks that every entry still fits the source. Returns the soft-updates orderings.
pub fn check_fits(root: &Path) -> Result<Vec<Ordering>> {
    check_list(root, JOURNAL_LIST)?;
    check_list(root, UFS_LIST)?;
    check_list(root, LIST)
}

/// The same for any list in this form.
pub(crate) fn check_list(root: &Path, list: &str) -> Result<Vec<Ordering>> {
    let text = std::fs::read_to_string(root.join(list)).with_context(|| format!("reading {list}"))?;
    let orderings = parse(&text)?;
    let misfits = orderings.iter().filter_map(|ordering| check_fit(root, ordering).err());
    let misfits: Vec<String> = misfits.map(|misfit| format!("{misfit:#}")).collect();
    ensure!(misfits.is_empty(), "{list} does not fit the source:\n{}", misfits.join("\n"));
    println!("{list}: {} entries fit the source", orderings.len());
    Ok(orderings)
}

fn check_fit(root: &Path, ordering: &Ordering) -> Result<()> {
    let source = std::fs::read_to_string(root.join(&ordering.file))
        .with_context(|| format!("{}: reading {}", ordering.name, ordering.file))?;
    let found = source.matches(&ordering.with).count();
    ensure!(found == 1, "{}: its text occurs {found} times in {}", ordering.name, ordering.file);
    ensure!(ordering.with != ordering.without, "{}: nothing is removed", ordering.name);
    Ok(())
}

/// Copies what git tracks, so that the tree itself is never in a broken state. What is as it was stays, so that little is built
/// again; sources that are no more go.
pub(crate) fn copy_tree(root: &Path, copy: &Path) -> Result<()> {
    let listing = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output()?;
    ensure!(listing.status.success(), "git ls-files ended with {}", listing.status);
    let listing = String::from_utf8(listing.stdout)?;
    let names: BTreeSet<&str> = listing.split('\0').filter(|name| root.join(name).is_file()).collect();
    for name in &names {
        let target = copy.join(name);
        let contents = std::fs::read(root.join(name)).with_context(|| format!("reading {name}"))?;
        if std::fs::read(&target).is_ok_and(|there| there == contents) {
            continue;
        }
        std::fs::create_dir_all(target.parent().context("files have folders")?)?;
        std::fs::copy(root.join(name), &target).with_context(|| format!("copying {name}"))?;
    }
    remove_others(copy, &copy.join("crates"), &names)
}

/// Removes the files below `at` that are not among `names`, which are told from `copy` on.
fn remove_others(copy: &Path, at: &Path, names: &BTreeSet<&str>) -> Result<()> {
    for entry in std::fs::read_dir(at)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_others(copy, &path, names)?;
        } else if !path.strip_prefix(copy)?.to_str().is_some_and(|name| names.contains(name)) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Runs the tests in `copy` until one fails. A copy that does not compile is an error, not a finding.
pub(crate) fn judge(copy: &Path, tests: &[(&str, &str, &str)], seeds: &str) -> Result<Verdict> {
    judge_by(copy, tests, &[("FSTITCH_CRASH_SEEDS", seeds)])
}

/// The same, with these words of the environment.
pub(crate) fn judge_by(copy: &Path, tests: &[(&str, &str, &str)], words: &[(&str, &str)]) -> Result<Verdict> {
    let target: PathBuf = copy.join("target");
    let cargo = |mut command: Command, package: &str, binary: &str| {
        command.args(["test", "-q", "-p", package]);
        match binary {
            LIBRARY => command.arg("--lib"),
            binary => command.args(["--test", binary]),
        };
        command.current_dir(copy).env("CARGO_TARGET_DIR", &target).envs(words.iter().copied());
        command
    };
    for &(package, binary, names) in tests {
        let built = cargo(Command::new(env!("CARGO")), package, binary).arg("--no-run").output()?;
        ensure!(built.status.success(), "it does not compile:\n{}", String::from_utf8_lossy(&built.stderr));
        let mut patient = Command::new("timeout");
        patient.args([PATIENCE, env!("CARGO")]);
        let output = cargo(patient, package, binary).args(["--", names]).output()?;
        if output.status.code() == Some(124) {
            return Ok(Verdict::Caught(format!("{binary} {names}: {ENDLESS}")));
        }
        if !output.status.success() {
            let test = failed_test(&String::from_utf8_lossy(&output.stdout));
            return Ok(Verdict::Caught(test.unwrap_or_else(|| format!("{binary} {names}"))));
        }
    }
    Ok(Verdict::Survived)
}

/// The first test that failed, by the output of a test binary.
fn failed_test(output: &str) -> Option<String> {
    let names = output.lines().filter_map(|line| line.strip_prefix("---- ")?.strip_suffix(" stdout ----"));
    names.map(str::to_owned).next()
}

fn parse(text: &str) -> Result<Vec<Ordering>> {
    let mut orderings = Vec::new();
    let mut lines = text.lines();
    let (mut redundant, mut survives, mut test) = (false, false, None);
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
            ensure!(line.is_empty() || line.starts_with('#'), "not an entry: {line}");
            redundant |= line.starts_with("# redundant: ");
            survives |= line.starts_with("# survives: ");
            if let Some(named) = line.strip_prefix("# test: ") {
                test = Some(named_test(named).with_context(|| format!("not a test: {named}"))?);
            }
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
                // The next entry's: without this one's end it would be swallowed, and never run.
                ensure!(!["<<<<", "====", ">>>>"].contains(&line), "{name}: {line} where {end} should be");
                block.push(line);
            }
            bail!("{name}: {end} is missing")
        };
        let (with, without) = (until("====")?, until(">>>>")?);
        let name = name.to_owned();
        let (redundant, survives) = (std::mem::take(&mut redundant), std::mem::take(&mut survives));
        orderings.push(Ordering { name, file, with, without, redundant, survives, test: test.take() });
    }
    Ok(orderings)
}

/// Package, binary and names of tests.
fn named_test(text: &str) -> Option<[String; 3]> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    words.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_and_gaps_refused() {
        let text = "# a remark\n# redundant: it follows\n# test: p lib tree\n[a]\nfile: x.rs\n<<<<\none\ntwo\n====\n>>>>\n";
        let expected = Ordering {
            name: "a".into(),
            file: "x.rs".into(),
            with: "one\ntwo".into(),
            without: String::new(),
            redundant: true,
            survives: false,
            test: Some(["p", "lib", "tree"].map(str::to_owned)),
        };
        assert_eq!(parse(text).unwrap(), [expected]);
        assert!(parse("[a]\nfile: x.rs\n<<<<\none\n").is_err());
        assert!(parse("[a]\n<<<<\n").is_err());
        let swallowed = "[a]\nfile: x\n<<<<\n1\n====\n2\n\n[b]\nfile: x\n<<<<\n3\n====\n>>>>\n";
        assert!(parse(swallowed).unwrap_err().to_string().contains(">>>> should be"));
        assert!(parse("anything\n").is_err());
        assert!(parse("# test: p lib\n").is_err(), "a test has three words");
    }

    #[test]
    fn work_is_shared_and_goes_on() {
        let entries = || {
            let text = "[a]\nfile: x\n<<<<\n1\n====\n>>>>\n[b]\nfile: x\n<<<<\n2\n====\n>>>>\n";
            parse(&format!("{text}[c]\nfile: x\n<<<<\n3\n====\n>>>>\n")).unwrap()
        };
        let results = std::env::temp_dir().join(format!("orderings-{}.txt", std::process::id()));
        let names = |share: &str| -> Vec<String> {
            let share = self::share(share).ok();
            let work = Work { share, copy: None, results: Some(results.clone()) };
            let left = work.left(entries(), "s", |said| said.starts_with("caught")).unwrap();
            left.into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names("0/2"), ["a", "c"]);
        assert_eq!(names("1/2"), ["b"]);
        assert!(self::share("2/2").is_err() && self::share("1").is_err());
        let work = Work { share: None, copy: None, results: Some(results.clone()) };
        work.note("a: caught by a test").unwrap();
        work.note("b: SURVIVED").unwrap();
        assert_eq!(names("0/1"), ["b", "c"], "what went wrong is run again");
        work.note("b: caught by another").unwrap();
        assert_eq!(names("0/1"), ["c"]);
        assert!(work.left(entries(), "others", |_| true).is_err(), "results of other sources are none");
        std::fs::remove_file(results).unwrap();
    }

    #[test]
    fn the_test_that_failed_is_named() {
        let output = "running 2 tests\n.F\nfailures:\n\n---- orders::removing stdout ----\n\nthread panicked";
        assert_eq!(failed_test(output).as_deref(), Some("orders::removing"));
        assert_eq!(failed_test("running 2 tests\n..\n"), None);
    }
}
