//! The long runs of the crash laboratory, in pieces that are never done twice, and their results as a page.
//!
//! `cargo xtask soak` appends one line of JSON for every finished piece to `proofs/soak.jsonl`; it can be stopped at
//! any time and goes on with the next piece. A piece counts for the sources of the libraries that it was run on: when
//! they change, everything is run again. `--publish` writes the totals into `docs/crash-results.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::Value;

use crate::soak_tests::{self, BPFS, LLD, SHEPHERD, VOLUMES};

/// Where the totals are published.
pub const PAGE: &str = "docs/crash-results.md";

/// The crates whose sources results are of.
/// The last two were parts of others before.
pub const SOURCES: [&str; 6] =
    ["fstitch-core", "fstitch-patch", "fstitch-fs", "fstitch-crashlab", "fstitch-posix", "fstitch-systems"];

/// A long run: what it is called, the family, how its workloads are selected, how many there are, how many to a piece,
/// and what else is said to `fstitch crash run`.
struct Job {
    name: String,
    family: &'static str,
    select: &'static str,
    total: u64,
    piece: u64,
    more: String,
}

/// The runs of soft updates, each by its fields in the order of [`Job`]'s. The last one takes longest.
const SOFT: [(&str, &str, &str, u64, u64, &str); 14] = [
    ("seq1, all", "seq1", "--range", 1_360, 1_360, "--states-per-cut 65536 --aftermath 8 --e2fsck 50"),
    ("rare1, all", "rare1", "--range", 680, 680, "--states-per-cut 4096 --aftermath 8 --e2fsck 50"),
    ("untar", "untar", "--range", 4, 1, "--states-per-cut 64 --e2fsck 500"),
    ("rm", "rm", "--range", 4, 1, "--states-per-cut 64 --e2fsck 500"),
    ("postmark", "postmark", "--range", 20, 10, "--states-per-cut 64 --e2fsck 500"),
    ("mail", "mail", "--range", 20, 10, "--states-per-cut 64 --e2fsck 500"),
    ("editor", "editor", "--range", 20, 10, "--states-per-cut 64 --e2fsck 500"),
    ("db", "db", "--range", 20, 10, "--states-per-cut 64 --e2fsck 500"),
    ("writers", "writers", "--range", 400, 200, "--states-per-cut 48 --e2fsck 1000"),
    ("inodes", "inodes", "--range", 40, 20, "--states-per-cut 32"),
    ("random", "random", "--range", 6_000, 1_000, "--states-per-cut 32 --e2fsck 2000"),
    (
        "random, no optimisation",
        "random",
        "--range",
        2_000,
        1_000,
        "--states-per-cut 32 --optimizations 0 --e2fsck 2000",
    ),
    ("seq2, all", "seq2", "--range", 462_400, 23_120, "--states-per-cut 48 --e2fsck 5000"),
    ("seq3, sample", "seq3", "--sample", 1_000_000, 25_000, "--states-per-cut 16 --e2fsck 20000"),
];

/// The runs of waffle, whose promise is *exact*.
const WAFFLE: [(&str, &str, &str, u64, u64, &str); 19] = [
    ("waffle: seq1, all", "seq1", "--range", 1_360, 1_360, "--fs waffle --states-per-cut 4096 --aftermath 8"),
    ("waffle: rare1, all", "rare1", "--range", 680, 680, "--fs waffle --states-per-cut 4096 --aftermath 8"),
    ("waffle: untar", "untar", "--range", 4, 1, "--fs waffle --states-per-cut 64"),
    ("waffle: rm", "rm", "--range", 4, 1, "--fs waffle --states-per-cut 64"),
    ("waffle: postmark", "postmark", "--range", 20, 10, "--fs waffle --states-per-cut 64"),
    ("waffle: mail", "mail", "--range", 20, 10, "--fs waffle --states-per-cut 64"),
    ("waffle: editor", "editor", "--range", 20, 10, "--fs waffle --states-per-cut 64"),
    ("waffle: db", "db", "--range", 20, 10, "--fs waffle --states-per-cut 64"),
    ("waffle: writers", "writers", "--range", 400, 200, "--fs waffle --states-per-cut 48"),
    ("waffle: shares", "shares", "--range", 3_000, 1_000, "--fs waffle --states-per-cut 32"),
    ("waffle: random", "random", "--range", 6_000, 1_000, "--fs waffle --states-per-cut 32"),
    (
        "waffle, compressed: seq1, all",
        "seq1",
        "--range",
        1_360,
        1_360,
        "--fs waffle --compressed --states-per-cut 4096",
    ),
    (
        "waffle, compressed: postmark",
        "postmark",
        "--range",
        20,
        10,
        "--fs waffle --compressed --states-per-cut 64",
    ),
    ("waffle, compressed: db", "db", "--range", 20, 10, "--fs waffle --compressed --states-per-cut 64"),
    (
        "waffle, compressed: writers",
        "writers",
        "--range",
        400,
        200,
        "--fs waffle --compressed --states-per-cut 48",
    ),
    (
        "waffle, compressed: shares",
        "shares",
        "--range",
        3_000,
        1_000,
        "--fs waffle --compressed --states-per-cut 32",
    ),
    (
        "waffle, compressed: random",
        "random",
        "--range",
        6_000,
        1_000,
        "--fs waffle --compressed --states-per-cut 32",
    ),
    ("waffle: seq2, all", "seq2", "--range", 462_400, 23_120, "--fs waffle --states-per-cut 48"),
    ("waffle: seq3, sample", "seq3", "--sample", 100_000, 25_000, "--fs waffle --states-per-cut 16"),
];

/// Workloads of the family `ends`.
const ENDS: u64 = 1_204;

/// How many workloads of a volume are drawn, how many of them to a piece, and what is said of each.
struct Volume<'a> {
    pairs: (u64, u64),
    random: u64,
    /// For all sequences of one operation, the pairs, the random runs, and operations where a transaction ends; empty for none.
    more: [&'a str; 4],
}

const EXT3: Volume<'_> = Volume {
    pairs: (20_000, 10_000),
    random: 1_000,
    more: [
        "--states-per-cut 64 --e2fsck 100",
        "--states-per-cut 16 --e2fsck 5000",
        "--states-per-cut 16 --e2fsck 2000",
        "--states-per-cut 16 --e2fsck 500",
    ],
};
const EXTERNAL: Volume<'_> = Volume {
    pairs: (5_000, 5_000),
    random: 300,
    more: [
        "--states-per-cut 64 --e2fsck 100",
        "--states-per-cut 16 --e2fsck 1000",
        "--states-per-cut 16 --e2fsck 1000",
        "",
    ],
};
const INSIDE: Volume<'_> = Volume {
    pairs: (5_000, 5_000),
    random: 300,
    more: ["--states-per-cut 48", "--states-per-cut 12", "--states-per-cut 16", ""],
};
const INSIDE_SHORT: Volume<'_> = Volume { more: ["--states-per-cut 48", "", "", ""], ..INSIDE };

/// Volumes of UFS, which has one mechanism that keeps orders.
const UFS: Volume<'_> = Volume {
    pairs: (20_000, 10_000),
    random: 1_000,
    more: ["--states-per-cut 4096 --aftermath 8", "--states-per-cut 16", "--states-per-cut 16", ""],
};

/// A peculiar volume: what it is called, how it is made, its directed family and how many workloads that has, its random family, and
/// the mechanisms that it has.
type Peculiar = (&'static str, &'static str, (&'static str, u64), &'static str, &'static [&'static str]);

const CROWDED: (&str, u64) = ("crowded", 640);
const QUOTAS: (&str, u64) = ("quotas", 480);

/// Volumes that are nearly full, and those that count what several owners have.
const PECULIAR: [Peculiar; 6] = [
    (
        "ext4, nearly full",
        "--fs ext4 --peculiar 64 --size 1600 --inodes 32",
        CROWDED,
        "crowded-random",
        &["ordered", "metadata", "full"],
    ),
    (
        "ext4, nearly full",
        "--fs ext4 --peculiar 64 --size 512 --inodes 32",
        CROWDED,
        "crowded-random",
        &["soft"],
    ),
    (
        "ext4, nearly full, clusters",
        "--fs ext4 --peculiar 96 --size 1800 --inodes 32",
        CROWDED,
        "crowded-random",
        &["ordered", "metadata", "full"],
    ),
    (
        "ext3, nearly full",
        "--fs ext3 --peculiar 64 --size 1600 --inodes 32",
        CROWDED,
        "crowded-random",
        &["ordered", "metadata", "full"],
    ),
    ("ext4, quotas", "--fs ext4 --peculiar 128", QUOTAS, "quotas-random", &["ordered", "metadata", "full"]),
    (
        "ext4, quotas, nearly full",
        "--fs ext4 --peculiar 192 --size 1600 --inodes 48",
        QUOTAS,
        "quotas-random",
        &["ordered"],
    ),
];

/// Volumes that all pairs of operations are run on too, apart from those of soft updates on ext2.
const PAIRED: [(&str, &str); 4] = [
    ("ext4 ordered", "--fs ext4 --consistency ordered"),
    ("ext4 soft", "--fs ext4 --consistency soft"),
    ("ufs1, little-endian", "--fs ufs1"),
    ("ufs2, little-endian", "--fs ufs2"),
];

/// The runs of all pairs.
fn paired_jobs() -> impl Iterator<Item = Job> {
    PAIRED.iter().map(|(name, system)| Job {
        name: format!("{name}: seq2, all"),
        family: "seq2",
        select: "--range",
        total: 462_400,
        piece: 23_120,
        more: format!("{system} --states-per-cut 16 --e2fsck 5000"),
    })
}

/// The runs on peculiar volumes.
fn peculiar_jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (volume, system, (directed, all), random, mechanisms) in PECULIAR {
        for mechanism in mechanisms {
            let job = |what: &str, family, total, more: &str| Job {
                name: format!("{volume}, {mechanism}: {what}"),
                family,
                select: "--range",
                total,
                piece: total,
                more: format!("{system} --consistency {mechanism} {more}"),
            };
            jobs.push(job(
                &format!("{directed}, all"),
                directed,
                all,
                "--states-per-cut 128 --aftermath 8 --e2fsck 100",
            ));
            jobs.push(job(random, random, 2_000, "--states-per-cut 16 --e2fsck 1000"));
        }
    }
    jobs
}

impl Volume<'_> {
    /// The runs on a volume that `system` makes.
    fn jobs(&self, name: &str, system: &str) -> Vec<Job> {
        let kinds = [
            ("seq1, all", "seq1", "--range", (1_360, 1_360)),
            ("seq2, sample", "seq2", "--sample", self.pairs),
            ("random", "random", "--range", (self.random, self.random)),
            ("ends, all", "ends", "--range", (ENDS, ENDS)),
        ];
        let job = |((what, family, select, (total, piece)), more): (_, &&str)| {
            let (name, more) = (format!("{name}: {what}"), format!("{system} {more}"));
            Job { name, family, select, total, piece, more }
        };
        kinds.into_iter().zip(&self.more).filter(|(_, more)| !more.is_empty()).map(job).collect()
    }
}

/// All of them, the longest last.
fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for mode in ["ordered", "full", "metadata"] {
        jobs.extend(EXT3.jobs(&format!("ext3 {mode}"), &format!("--fs ext3 --consistency {mode}")));
    }
    for mode in ["ordered", "full", "metadata", "soft"] {
        jobs.extend(EXT3.jobs(&format!("ext4 {mode}"), &format!("--fs ext4 --consistency {mode}")));
    }
    for mode in ["ordered", "full", "metadata"] {
        let system = format!("--fs ext3 --consistency {mode} --external-journal");
        jobs.extend(EXTERNAL.jobs(&format!("ext3 {mode}, external journal"), &system));
    }
    for (volume, name, system) in [
        (&INSIDE, "soft in a file of soft", "--inside ext2-soft+sparse"),
        (&INSIDE, "soft in a file of ext3 metadata", "--inside ext3-metadata+sparse"),
        (
            &INSIDE,
            "ext3 ordered with its journal in files of soft",
            "--fs ext3 --consistency ordered --external-journal --inside ext2-soft+sparse",
        ),
        (&INSIDE_SHORT, "soft in a file of async", "--inside ext2-async"),
        (&INSIDE_SHORT, "soft in a file of ext3 full", "--inside ext3-full+sparse"),
        (
            &INSIDE_SHORT,
            "ext3 full in a file of ext3 ordered",
            "--fs ext3 --consistency full --inside ext3-ordered+sparse",
        ),
        (
            &INSIDE,
            "ext4 ordered in a file of ext4 ordered, both with checksums",
            "--fs ext4 --consistency ordered --inside ext4-ordered+sparse",
        ),
        (
            &INSIDE_SHORT,
            "ext4 soft in a file of ext4 soft, both with checksums",
            "--fs ext4 --consistency soft --inside ext4-soft+sparse",
        ),
        (
            &INSIDE_SHORT,
            "ext4 async in a file of ext4 full, both with checksums",
            "--fs ext4 --consistency async --inside ext4-full",
        ),
    ] {
        jobs.extend(volume.jobs(name, system));
    }
    jobs.extend(peculiar_jobs());
    for (name, system) in [
        ("ufs1, little-endian", "--fs ufs1"),
        ("ufs1, big-endian", "--fs ufs1be"),
        ("ufs2, little-endian", "--fs ufs2"),
        ("ufs2, big-endian", "--fs ufs2be"),
        ("ufs2, blocks of 16 KiB", "--fs ufs2 --block-size 16384 --fragment-size 2048 --size 8192"),
    ] {
        jobs.extend(UFS.jobs(name, system));
    }
    let job =
        |&(name, family, select, total, piece, more): &(&str, &'static str, &'static str, u64, u64, &str)| {
            let (name, more) = (name.to_owned(), more.to_owned());
            Job { name, family, select, total, piece, more }
        };
    jobs.extend(WAFFLE.iter().map(job));
    jobs.extend(paired_jobs());
    let mut all: Vec<Job> = SOFT.iter().map(job).collect();
    all.splice(SOFT.len() - 1..SOFT.len() - 1, jobs);
    all
}

/// What to run.
#[derive(clap::Args)]
pub struct Options {
    /// Only the runs whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// The long forms of the logical disk's tests instead of the file systems' runs
    #[arg(long)]
    lld: bool,
    /// The same of the shepherd's
    #[arg(long, conflicts_with = "lld")]
    shepherd: bool,
    /// The same of volumes that follow policies
    #[arg(long, conflicts_with_all = ["lld", "shepherd"])]
    policies: bool,
    /// The same of BPFS's
    #[arg(long, conflicts_with_all = ["lld", "shepherd", "policies"])]
    bpfs: bool,
    /// Stop after so many minutes, at the end of a piece
    #[arg(long, value_name = "MINUTES")]
    minutes: Option<f64>,
    /// Only write the results so far into the page
    #[arg(long)]
    publish: bool,
}

/// Runs what is missing, or publishes.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let own =
        [(options.lld, LLD), (options.shepherd, SHEPHERD), (options.policies, VOLUMES), (options.bpfs, BPFS)];
    if let Some((_, subject)) = own.iter().find(|(is_asked, _)| *is_asked) {
        let bounds = (options.only.as_deref(), options.minutes);
        return soak_tests::run(root, subject, bounds, options.publish);
    }
    let results = root.join("proofs/soak.jsonl");
    let sources = sources(root, "HEAD")?;
    if options.publish {
        return publish(root, &results, &sources);
    }
    let program = build(root)?;
    let mut seconds = 0.0;
    for job in jobs().iter().filter(|job| options.only.as_ref().is_none_or(|only| job.name.contains(only))) {
        for first in (0..job.total).step_by(usize::try_from(job.piece)?) {
            if options.minutes.is_some_and(|minutes| seconds >= minutes * 60.0) {
                println!("stopped; the same command goes on here");
                return Ok(());
            }
            let end = (first + job.piece).min(job.total);
            if !read(&results)?.iter().any(|line| is_piece(line, job, first, &sources)) {
                seconds += run_piece(&program, job, (first, end), (&results, &sources))?;
            }
        }
    }
    publish(root, &results, &sources)
}

/// What the results hold for: the sources of the libraries at a commit, by git's hashes of their folders, as far as it has them.
pub fn sources(root: &Path, commit: &str) -> Result<String> {
    sources_of(root, commit, &SOURCES)
}

/// The same of some crates, or of files and folders in them, which are told by their paths.
pub fn sources_of(root: &Path, commit: &str, crates: &[&str]) -> Result<String> {
    let found = sources_of_each(root, &[commit], crates)?.pop().flatten();
    found.with_context(|| format!("{commit} has none of our sources"))
}

/// Digits of a hash of ours.
const HASH: usize = 12;

/// The same of several commits, `None` for one that has none of these crates. It is one question for all: there are thousands of folders.
fn sources_of_each(root: &Path, commits: &[&str], crates: &[&str]) -> Result<Vec<Option<String>>> {
    let mut git = Command::new("git")
        .args(["cat-file", "--batch-check=%(objectname)"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut asked = String::new();
    for commit in commits {
        for folder in crates {
            let below = if folder.contains('/') { "" } else { "/src" };
            let _ = writeln!(asked, "{commit}:crates/{folder}{below}");
        }
    }
    let mut input = git.stdin.take().context("git takes no questions")?;
    let asking = std::thread::spawn(move || input.write_all(asked.as_bytes()));
    let output = git.wait_with_output()?;
    ensure!(output.status.success(), "git cat-file ended with {}", output.status);
    asking.join().map_err(|_| anyhow!("asking git"))??;
    let answers = String::from_utf8(output.stdout)?;
    let answers: Vec<&str> = answers.lines().collect();
    ensure!(answers.len() == commits.len() * crates.len(), "git answers {} times", answers.len());
    let hashes = answers.chunks(crates.len()).map(|folders| {
        // What is not there is answered with its name and a word.
        let there = folders.iter().filter(|answer| !answer.contains(' '));
        let hashes: Vec<&str> = there.filter_map(|answer| answer.get(..HASH)).collect();
        (!hashes.is_empty()).then(|| hashes.join(" "))
    });
    Ok(hashes.collect())
}

/// The commit that comes first with these sources, for people who want to see them.
fn commit_of(root: &Path, sources: &str) -> Result<String> {
    commit_with(root, sources, &SOURCES)
}

/// The same of some crates.
pub fn commit_with(root: &Path, sources: &str, crates: &[&str]) -> Result<String> {
    let output = Command::new("git").args(["rev-list", "--reverse", "HEAD"]).current_dir(root).output()?;
    ensure!(output.status.success(), "git rev-list ended with {}", output.status);
    let commits = String::from_utf8(output.stdout)?;
    let commits: Vec<&str> = commits.lines().collect();
    let found = sources_of_each(root, &commits, crates)?;
    if let Some(at) = found.iter().position(|found| found.as_deref() == Some(sources)) {
        return Ok(commits[at].get(..HASH).unwrap_or(commits[at]).to_owned());
    }
    bail!("no commit of this history has the sources {sources}")
}

fn build(root: &Path) -> Result<std::path::PathBuf> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "fstitch"])
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "the build ended with {status}");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    Ok(target.join("release/fstitch"))
}

fn read(results: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(results).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).context("a line of the results")).collect()
}

fn is_piece(line: &Value, job: &Job, first: u64, sources: &str) -> bool {
    line["job"] == job.name && line["first"] == first && line["sources"] == sources
}

/// Runs a piece and returns how many seconds it took.
fn run_piece(
    program: &Path,
    job: &Job,
    (first, end): (u64, u64),
    (results, sources): (&Path, &str),
) -> Result<f64> {
    let output = Command::new(program)
        .args([
            "crash",
            "run",
            job.family,
            job.select,
            &format!("{first}..{end}"),
            "--violations",
            "10",
            "--json",
        ])
        .args(job.more.split_whitespace())
        .stderr(std::process::Stdio::inherit())
        .output()?;
    ensure!(matches!(output.status.code(), Some(0 | 1)), "{}: ended with {}", job.name, output.status);
    let mut line: Value = serde_json::from_slice(&output.stdout)?;
    line["job"] = job.name.as_str().into();
    line["first"] = first.into();
    line["sources"] = sources.into();
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(results)?;
    writeln!(file, "{line}")?;
    let count = |key: &str| line[key].as_u64().unwrap_or_default();
    println!(
        "{} {first}..{end}: {} states, {} checked, {} a second",
        job.name,
        count("states_generated"),
        count("states_checked"),
        count("states_per_second")
    );
    for violation in line["violations"].as_array().into_iter().flatten() {
        println!("  {} {} {}", violation["code"], violation["text"], violation["id"]);
    }
    Ok(line["seconds"].as_f64().unwrap_or_default())
}

/// The columns of the page: heading and key.
const COLUMNS: [(&str, &str); 9] = [
    ("workloads", "workloads"),
    ("cuts", "cuts"),
    ("… exhausted", "cuts_exhausted"),
    ("states", "states_generated"),
    ("checked", "states_checked"),
    ("pruned", "states_pruned"),
    ("aftermaths", "aftermaths"),
    ("during recovery", "states_during_recovery"),
    ("e2fsck", "reference_checks"),
];

/// The results of a job that the page shows: those for the sources at `HEAD` if all pieces are there, and else the newest
/// for which they are, or what there is for those at `HEAD`. With the sources.
fn shown<'v>(lines: &'v [Value], job: &Job, head: &str) -> (String, Vec<&'v Value>) {
    let of = |sources: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["job"] == job.name && line["sources"] == sources).collect()
    };
    let is_whole =
        |pieces: &[&Value]| u64::try_from(pieces.len()).is_ok_and(|n| n == job.total.div_ceil(job.piece));
    let older = lines.iter().rev().filter_map(|line| line["sources"].as_str());
    let whole = std::iter::once(head).chain(older).find(|sources| is_whole(&of(sources))).unwrap_or(head);
    (whole.to_owned(), of(whole))
}

fn publish(root: &Path, results: &Path, head: &str) -> Result<()> {
    let lines = read(results)?;
    let mut rows = String::new();
    let mut sources: Vec<String> = Vec::new();
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    let mut violations = 0;
    for job in &jobs() {
        let (of, pieces) = shown(&lines, job, head);
        if pieces.is_empty() {
            println!("{}: not run yet, so it is not on the page", job.name);
            continue;
        }
        let at = sources.iter().position(|known| *known == of).unwrap_or_else(|| {
            sources.push(of);
            sources.len() - 1
        });
        let sum = |key: &str| pieces.iter().filter_map(|line| line[key].as_u64()).sum::<u64>();
        let seconds: f64 = pieces.iter().filter_map(|line| line["seconds"].as_f64()).sum();
        let found: usize = pieces.iter().filter_map(|line| line["violations"].as_array()).map(Vec::len).sum();
        violations += found;
        let _ = write!(rows, "| {} | `{}` | {} |", job.name, job.more, at + 1);
        for (_, key) in COLUMNS {
            *all.entry(key).or_default() += sum(key);
            let _ = write!(rows, " {} |", grouped(sum(key)));
        }
        let _ = writeln!(rows, " {seconds:.0} | {found} |");
    }
    let mut table = String::from(
        "Sources (the first commit with them; git's hashes of core, patch, fs, crashlab, posix, systems):\n\n",
    );
    for (at, sources) in sources.iter().enumerate() {
        let _ = writeln!(table, "{}. commit `{}`: `{sources}`", at + 1, commit_of(root, sources)?);
    }
    let older = sources.iter().filter(|of| *of != head).count();
    println!("{older} of {} sources are older than HEAD's", sources.len());
    table.push_str("\n| run | options | sources |");
    COLUMNS.iter().for_each(|(heading, _)| table.push_str(&format!(" {heading} |")));
    table.push_str(" seconds | violations |\n|---|---|---:|");
    table.push_str(&"---:|".repeat(COLUMNS.len() + 2));
    table.push('\n');
    table.push_str(&rows);
    let _ = write!(table, "| **all** | | |");
    COLUMNS.iter().for_each(|(_, key)| table.push_str(&format!(" {} |", grouped(all[key]))));
    let _ = writeln!(table, " | {violations} |");
    replace_between(&root.join(PAGE), "soak", &table)?;
    println!("{PAGE}: {} states, {violations} violations", grouped(all["states_generated"]));
    if violations > 0 { bail!("{violations} violations") } else { Ok(()) }
}

/// Replaces what stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
pub fn replace_between(page: &Path, name: &str, table: &str) -> Result<()> {
    let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
    let text = std::fs::read_to_string(page).with_context(|| format!("reading {}", page.display()))?;
    let marks = text.split_once(&begin).and_then(|(head, rest)| Some((head, rest.split_once(&end)?.1)));
    let (head, tail) = marks.with_context(|| format!("{} has no `{begin}` … `{end}`", page.display()))?;
    Ok(std::fs::write(page, format!("{head}{begin}\n\n{table}\n{end}{tail}"))?)
}

/// A number with commas.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn only_what_stands_between_the_marks_is_replaced() {
        let page = std::env::temp_dir().join(format!("soak-{}.md", std::process::id()));
        std::fs::write(&page, "a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n").unwrap();
        replace_between(&page, "x", "new\n").unwrap();
        let expected = "a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n";
        assert_eq!(std::fs::read_to_string(&page).unwrap(), expected);
        std::fs::remove_file(page).unwrap();
    }
}
