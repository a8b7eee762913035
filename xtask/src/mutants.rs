//! The mutation score of the crash laboratory: seeded bugs, one after the other, that it must find.
//!
//! The bugs are every dependency of the soft-updates tables that does not follow from others (`orderings.txt`) and those
//! of the patch graph, the cache and the syncs (`mutants.txt`). The form of the lists is that of `orderings.rs`; an entry
//! under `# survives: why` follows from others on ext2; it is no bug there, and is left out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::orderings::{
    ENDLESS, LIBRARY, LIST, Ordering, Tests, Verdict, Work, check_list, copy_tree, judge_by, without,
};
use crate::soak::{PAGE, SOURCES, replace_between, sources_of};

const MUTANTS: &str = "crates/fstitch-systems/tests/mutants.txt";
const LLD_MUTANTS: &str = "crates/fstitch-lld/tests/mutants.txt";
/// The crates that results of the logical disk are of.
pub const LLD_SOURCES: [&str; 5] =
    ["fstitch-core", "fstitch-crashlab", "fstitch-lld", "fstitch-lld-sqlite", "fstitch-nbd"];
/// What finds its bugs, the quick ones first.
const LLD_TESTS: &Tests = &[
    ("fstitch-lld", LIBRARY, ""),
    ("fstitch-lld", "lld", "disk::"),
    ("fstitch-lld", "lld", "format::"),
    ("fstitch-lld", "lld", "units::"),
    ("fstitch-lld", "lld", "sparse::"),
    ("fstitch-lld", "lld", "walk::"),
    ("fstitch-lld", "lld", "volumes::"),
    ("fstitch-lld", "lab", ""),
    ("fstitch-lld", "lld", "threads::"),
    ("fstitch-lld", "lld", "damage::"),
    ("fstitch-lld", "lld", "cleaner::"),
    ("fstitch-nbd", "stable", ""),
    ("fstitch-lld-sqlite", LIBRARY, ""),
    ("fstitch-lld-sqlite", "vfs", ""),
];

const SHEPHERD_MUTANTS: &str = "crates/fstitch-shepherd/tests/mutants.txt";
const SHEPHERD_TESTS: &Tests = &[
    ("fstitch-shepherd", "shepherd", "degraded::"),
    ("fstitch-shepherd", "shepherd", "directed::"),
    ("fstitch-shepherd", "shepherd", "moved::"),
    ("fstitch-shepherd", "shepherd", "meanwhile::"),
    ("fstitch-shepherd", "shepherd", "parity::"),
    ("fstitch-shepherd", "shepherd", "remedies::"),
    ("fstitch-shepherd", "shepherd", "disks::"),
    ("fstitch-shepherd", "shepherd", "maps::"),
    ("fstitch-shepherd", "shepherd", "search::"),
    ("fstitch-shepherd", "shepherd", "matrix::"),
    ("fstitch-shepherd", "shepherd", "matrix_disks::"),
    ("fstitch-shepherd", LIBRARY, ""),
    ("fstitch-formats", "lost", ""),
    ("fstitch-formats", "shepherded", "what_was_found"),
    ("fstitch-shepherd", "shepherd", "crash::"),
    ("fstitch-shepherd", "shepherd", "arrays::"),
];

const BPFS_MUTANTS: &str = "crates/fstitch-bpfs/tests/mutants.txt";
const BPFS_TESTS: &Tests = &[
    ("fstitch-bpfs", LIBRARY, ""),
    ("fstitch-bpfs", "bpfs", "figure::"),
    ("fstitch-bpfs", "bpfs", "directed::"),
    ("fstitch-bpfs", "bpfs", "damage::"),
    ("fstitch-bpfs", "bpfs", "model::"),
    ("fstitch-bpfs", "bpfs", "library::"),
    ("fstitch-bpfs", "bpfs", "log::"),
    ("fstitch-bpfs", "bpfs", "fsck::"),
    ("fstitch-bpfs", "bpfs", "lab::"),
    ("fstitch-bpfs", "bpfs", "crash::"),
];

const EXT4_MUTANTS: &str = "crates/fstitch-fs/tests/ext4-mutants.txt";
/// What finds bugs of ext4 that the tests which the list names do not find.
const EXT4_TESTS: &Tests = &[
    ("fstitch-fs", LIBRARY, ""),
    ("fstitch-patch", LIBRARY, ""),
    ("fstitch-patch", "patch", "journal::"),
    ("fstitch-patch", "patch", "fast::"),
    ("fstitch-patch", "patch", "seal::"),
    ("fstitch-fs", "check", "ext4"),
    ("fstitch-fs", "check", "mkfs4"),
    ("fstitch-fs", "fs", "extents"),
    ("fstitch-systems", "lab", "ext4"),
    ("fstitch-systems", "lab", "no_extent_of_a_node"),
    ("fstitch-fs", "ext4", ""),
];

const UFS_MUTANTS: &str = "crates/fstitch-fs/tests/ufs-mutants.txt";
/// What finds bugs of UFS that the tests which the list names do not find.
const UFS_TESTS: &Tests = &[
    ("fstitch-fs", LIBRARY, "ufs"),
    ("fstitch-fs", "ufs", ""),
    ("fstitch-fs", "fs", "ufs"),
    ("fstitch-systems", "lab", "ufs"),
];

const WAFFLE_MUTANTS: &str = "crates/fstitch-fs/tests/waffle-mutants.txt";
/// What finds bugs of waffle that the tests which the list names do not find.
const WAFFLE_TESTS: &Tests = &[
    ("fstitch-fs", LIBRARY, "waffle"),
    ("fstitch-fs", "waffle", ""),
    ("fstitch-fs", "fs", "waffle"),
    ("fstitch-systems", "lab", "waffle"),
];

/// Bugs that the tests of some crates must find.
struct Own {
    list: &'static str,
    /// The crates that results are of.
    sources: &'static [&'static str],
    tests: &'static Tests,
    /// Where the page has them.
    section: &'static str,
}

const LLD: Own = Own { list: LLD_MUTANTS, sources: &LLD_SOURCES, tests: LLD_TESTS, section: "lld-mutants" };
const SHEPHERD: Own = Own {
    list: SHEPHERD_MUTANTS,
    sources: &["fstitch-core", "fstitch-crashlab", "fstitch-shepherd"],
    tests: SHEPHERD_TESTS,
    section: "shepherd-mutants",
};

const BPFS: Own = Own {
    list: BPFS_MUTANTS,
    sources: &["fstitch-core", "fstitch-posix", "fstitch-bpfs"],
    tests: BPFS_TESTS,
    section: "bpfs-mutants",
};

const EXT4: Own = Own {
    list: EXT4_MUTANTS,
    // What another format does is nothing to it.
    sources: &[
        "fstitch-core",
        "fstitch-patch",
        "fstitch-fs/src/ext2",
        "fstitch-fs/src/uhfs",
        "fstitch-fs/src/appended.rs",
        "fstitch-fs/src/arrange.rs",
        "fstitch-fs/src/bits.rs",
        "fstitch-fs/src/gather.rs",
        "fstitch-fs/src/name_index.rs",
        "fstitch-fs/src/num.rs",
        "fstitch-fs/src/pending.rs",
        "fstitch-fs/src/unstable.rs",
        "fstitch-crashlab",
    ],
    tests: EXT4_TESTS,
    section: "ext4-mutants",
};

const UFS: Own = Own {
    list: UFS_MUTANTS,
    sources: &[
        "fstitch-core",
        "fstitch-patch",
        "fstitch-posix",
        "fstitch-fs/src/ufs",
        "fstitch-fs/src/uhfs",
        "fstitch-fs/src/appended.rs",
        "fstitch-fs/src/arrange.rs",
        "fstitch-fs/src/bits.rs",
        "fstitch-fs/src/gather.rs",
        "fstitch-fs/src/name_index.rs",
        "fstitch-fs/src/num.rs",
        "fstitch-fs/src/pending.rs",
        "fstitch-fs/src/unstable.rs",
        "fstitch-fs/src/view.rs",
        "fstitch-crashlab",
        "fstitch-systems",
    ],
    tests: UFS_TESTS,
    section: "ufs-mutants",
};

const WAFFLE: Own = Own {
    list: WAFFLE_MUTANTS,
    sources: &[
        "fstitch-core",
        "fstitch-patch",
        "fstitch-posix",
        "fstitch-fs/src/waffle",
        "fstitch-crashlab",
        "fstitch-systems",
    ],
    tests: WAFFLE_TESTS,
    section: "waffle-mutants",
};

/// The least share of the bugs that must be found, in percent.
const SCORE: usize = 95;

/// Which bugs to seed.
#[derive(clap::Args)]
pub struct Options {
    /// Only the bugs whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Only check that every entry still fits the source
    #[arg(long)]
    fits: bool,
    /// The bugs of the logical disk, which its tests must find, instead of those of the file systems
    #[arg(long)]
    lld: bool,
    /// The same of the shepherd
    #[arg(long, conflicts_with = "lld")]
    shepherd: bool,
    /// The same of BPFS
    #[arg(long, conflicts_with_all = ["lld", "shepherd"])]
    bpfs: bool,
    /// The same of ext4
    #[arg(long, conflicts_with_all = ["lld", "shepherd", "bpfs"])]
    ext4: bool,
    /// The same of UFS
    #[arg(long, conflicts_with_all = ["lld", "shepherd", "bpfs", "ext4"])]
    ufs: bool,
    /// The same of waffle
    #[arg(long, conflicts_with_all = ["lld", "shepherd", "bpfs", "ext4", "ufs"])]
    waffle: bool,
    /// Ask only the test that the list names for each: a look at whether the names are right, before the long run
    #[arg(long)]
    named: bool,
    #[command(flatten)]
    work: Work,
    /// Only write what the file of results says into docs/crash-results.md
    #[arg(long, requires = "results")]
    publish: bool,
}

impl Options {
    /// Whose bugs; `None` for those of the file systems, which the laboratory must find.
    fn own(&self) -> Option<&'static Own> {
        if self.lld {
            return Some(&LLD);
        }
        if self.bpfs {
            return Some(&BPFS);
        }
        if self.ext4 {
            return Some(&EXT4);
        }
        if self.ufs {
            return Some(&UFS);
        }
        if self.waffle {
            return Some(&WAFFLE);
        }
        self.shepherd.then_some(&SHEPHERD)
    }
}

/// Seeds one bug after the other.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    ensure!(!options.named || options.own().is_some(), "the bugs of the file systems name no tests");
    let mut bugs = listed(root, options.own())?;
    if options.fits {
        return Ok(());
    }
    if let (true, Some(results)) = (options.publish, &options.work.results) {
        return publish(root, &bugs, results, options.own().map_or("mutants", |own| own.section));
    }
    bugs.retain(|bug| options.only.as_ref().is_none_or(|only| bug.name.contains(only)));
    let sources = sources_of(root, "HEAD", options.own().map_or(&SOURCES, |own| own.sources))?;
    let bugs = options.work.left(bugs, &sources, is_found)?;
    let copy = options.work.copy_at(&root.join("target/mutants"))?;
    copy_tree(root, &copy)?;
    let hunt = |copy: &Path, bug: Option<&Ordering>, patience| match options.own() {
        Some(own) => hunt_own(copy, bug, if options.named && bug.is_some() { &[] } else { own.tests }),
        None => hunt(copy, patience),
    };
    let mut patience = PATIENCE;
    if options.only.is_none() {
        #[expect(clippy::disallowed_methods, reason = "how long the machine takes is no logic of a library")]
        let began = Instant::now();
        if let Some(found) = hunt(&copy, None, CLEAN_PATIENCE)? {
            bail!("the laboratory finds something in the tree as it is: {found}");
        }
        // A busy machine is no bug: the tree as it is needs as long there.
        patience = patience.max(3 * began.elapsed());
    }
    let mut survivors = Vec::new();
    for bug in &bugs {
        let found = without(&copy, bug, &|| hunt(&copy, Some(bug), patience))?;
        let missed = if options.named { MISSED } else { SURVIVED };
        let said = found.as_deref().unwrap_or(missed);
        let line = format!("{}: {said}", bug.name);
        println!("{line}");
        options.work.note(&line)?;
        if !is_found(said) {
            survivors.push(bug.name.clone());
        }
    }
    let found = bugs.len() - survivors.len();
    println!("{found} of {} seeded bugs found", bugs.len());
    ensure!(found * 100 >= bugs.len() * SCORE, "fewer than {SCORE} %: {}", survivors.join("; "));
    Ok(())
}

/// The bugs of the file systems, or of some crates of their own.
fn listed(root: &Path, own: Option<&Own>) -> Result<Vec<Ordering>> {
    let mut bugs = if let Some(own) = own {
        check_list(root, own.list)?
    } else {
        let mut bugs = check_list(root, MUTANTS)?;
        bugs.extend(check_list(root, LIST)?);
        bugs
    };
    bugs.retain(|bug| !bug.redundant);
    // No image differs without these: they would be no bugs on the volumes that the laboratory has.
    bugs.retain(|bug| !bug.survives);
    Ok(bugs)
}

/// The tests that are to find seeded bugs are there: one that a merge has lost would only be missed by who runs the whole list.
fn are_there(root: &Path, tests: &[(&str, &str, &str)]) -> Result<()> {
    for (package, binary, _) in tests.iter().filter(|test| test.1 != LIBRARY) {
        let tests = root.join("crates").join(package).join("tests");
        let is_there =
            tests.join(format!("{binary}.rs")).exists() || tests.join(binary).join("main.rs").exists();
        ensure!(is_there, "{package} has no test `{binary}`, which is to find seeded bugs");
    }
    Ok(())
}

/// Checks that every seeded bug still fits the source.
pub fn check_fits(root: &Path) -> Result<()> {
    [LLD, SHEPHERD, BPFS, EXT4, UFS, WAFFLE].iter().try_for_each(|own| are_there(root, own.tests))?;
    check_list(root, MUTANTS)?;
    check_list(root, SHEPHERD_MUTANTS)?;
    check_list(root, BPFS_MUTANTS)?;
    for list in [EXT4_MUTANTS, UFS_MUTANTS, WAFFLE_MUTANTS] {
        for bug in check_list(root, list)? {
            let [package, binary, _] = bug.test.as_ref().with_context(|| format!("{}: no test", bug.name))?;
            are_there(root, &[(package, binary, "")])?;
        }
    }
    check_list(root, LLD_MUTANTS).map(drop)
}

/// Writes the score and what found each bug into the page.
fn publish(root: &Path, bugs: &[Ordering], results: &Path, name: &str) -> Result<()> {
    let known = std::fs::read_to_string(results).with_context(|| format!("reading {}", results.display()))?;
    let fate = |bug: &Ordering| {
        let line = known.lines().rev().find_map(|line| line.strip_prefix(&format!("{}: ", bug.name)));
        line.map(|line| line.replace('|', "\\|"))
    };
    let judged: Vec<(&Ordering, String)> = bugs.iter().filter_map(|bug| Some((bug, fate(bug)?))).collect();
    let survived = judged.iter().filter(|(_, fate)| !is_found(fate)).count();
    let mut table = format!(
        "{} of {} seeded bugs were found; {} of the list were not run.\n\n| bug | found as |\n|---|---|\n",
        judged.len() - survived,
        judged.len(),
        bugs.len() - judged.len()
    );
    for (bug, fate) in &judged {
        table.push_str(&format!("| {} | {fate} |\n", bug.name.replace('|', "\\|")));
    }
    replace_between(&root.join(PAGE), name, &table)
}

/// How long the search may take at least: a bug may also make everything wait for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(400);
/// How long it may take in the tree as it is.
const CLEAN_PATIENCE: Duration = Duration::from_secs(3600);
/// What is said of a search that took longer.
const NO_END: &str = "no end within";
/// What is said of a bug that was not found.
const SURVIVED: &str = "SURVIVED";
/// The same where only the test was asked that the list names.
const MISSED: &str = "not found by the test that is named for it, the others were not asked";

/// Whether a bug was found of which this is said: a search without an end has found nothing.
pub(crate) fn is_found(said: &str) -> bool {
    said != SURVIVED && said != MISSED && !said.starts_with(NO_END)
}

/// Builds the copy and asks the laboratory (`crates/fstitch-systems/examples/hunt.rs`); what it found.
fn hunt(copy: &Path, patience: Duration) -> Result<Option<String>> {
    let said = ask(copy, ("hunt", "hunt"), &[], patience)?;
    Ok(said.map(|said| said.chars().take(160).collect()))
}

/// Runs tests in the copy, first those that should find the bug; which of them failed. Each has a patience of its own.
fn hunt_own(copy: &Path, bug: Option<&Ordering>, tests: &Tests) -> Result<Option<String>> {
    let named = bug.and_then(|bug| bug.test.as_ref());
    let named = named.map(|[package, binary, names]| (&**package, &**binary, &**names));
    let named: Vec<_> = named.into_iter().collect();
    let seeds = ("FSTITCH_CRASH_SEEDS", "0..16");
    // What the test that is named takes a sample of by default it goes through then, before all the others. That may take longer than
    // anybody waits without any bug, so that it says nothing there.
    let all = [seeds, ("FSTITCH_CUTS", "all")];
    for (tests, words, ends) in
        [(&named[..], &[seeds][..], true), (&named, &all, false), (tests, &[seeds], true)]
    {
        match judge_by(copy, tests, words)? {
            Verdict::Caught(test) if ends || !test.ends_with(ENDLESS) => return Ok(Some(test)),
            _ => {}
        }
    }
    Ok(None)
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
pub(crate) fn ask(
    copy: &Path,
    asked: (&str, &str),
    arguments: &[&str],
    patience: Duration,
) -> Result<Option<String>> {
    let program = build_asked(copy, &copy.join("target"), asked)?;
    let limit = patience.as_secs().to_string();
    let output = Command::new("timeout").arg(limit).arg(program).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(None),
        Some(1) if !said.is_empty() => Ok(Some(said.trim().replace('\n', " "))),
        Some(124) => Ok(Some(format!("{NO_END} {} s", patience.as_secs()))),
        _ => bail!("the question ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_without_an_end_has_found_nothing() {
        assert!(is_found("lost: /d was stable [ext2-soft:names/0:M2:65:0x13]"));
        assert!(!is_found(SURVIVED) && !is_found(MISSED) && !is_found(&format!("{NO_END} 400 s")));
    }
}
