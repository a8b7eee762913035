//! The long forms of some crates' own tests, in pieces that are never done twice, and their results as a table of the page.
//!
//! Each piece is a test or an example in a release build that says at its end, in one line, what it has looked at; if it ends well nothing
//! was found. Results are for the sources of the crates that a subject names.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::mutants::LLD_SOURCES;
use crate::soak::{PAGE, commit_with, grouped, replace_between, sources_of};

/// What is proven by tests of its own.
pub struct Subject {
    /// What it is called in messages.
    name: &'static str,
    /// The file of results, below `proofs`.
    results: &'static str,
    /// Where the page has them.
    section: &'static str,
    /// The crates that results are of.
    sources: &'static [&'static str],
    jobs: &'static [Job],
}

/// The logical disk and what stands on it.
pub const LLD: Subject = Subject {
    name: "the logical disk",
    results: "lld-soak.jsonl",
    section: "lld",
    sources: &LLD_AND_MINIX,
    jobs: &LLD_JOBS,
};

/// The shepherd over one disk and over several.
pub const SHEPHERD: Subject = Subject {
    name: "the shepherd",
    results: "shepherd-soak.jsonl",
    section: "shepherd-soak",
    sources: &["fstitch-core", "fstitch-crashlab", "fstitch-shepherd"],
    jobs: &[
        Job {
            name: "one disk: random programs, cut everywhere and again in recovery, homes lost, spares worn out",
            package: "fstitch-shepherd",
            asked: Asked::Test(
                "shepherd",
                "crash::every_cut_leaves_versions_and_their_copies",
                &[SEEDS, CHOICES],
            ),
            total: 200,
            piece: 10,
        },
        Job {
            name: "one disk: a failure of every write and flush, once and for ever, cut everywhere",
            package: "fstitch-shepherd",
            asked: Asked::Test(
                "shepherd",
                "crash::a_fault_in_any_write_or_flush",
                &[SEEDS, CHOICES, ("FSTITCH_CRASH_EVERY", "1")],
            ),
            total: 64,
            piece: 4,
        },
        Job {
            name: "two to four disks: every death and failure at a write or flush of any of them, cut everywhere",
            package: "fstitch-shepherd",
            asked: Asked::Test(
                "shepherd",
                "arrays::every_cut_leaves_versions_on",
                &[SEEDS, ("FSTITCH_CRASH_EVERY", "1"), ("FSTITCH_CRASH_CHOICES", "24")],
            ),
            total: 15,
            piece: 1,
        },
    ],
};

/// File systems over the shepherd.
pub const VOLUMES: Subject = Subject {
    name: "volumes that follow policies",
    results: "volumes-soak.jsonl",
    section: "volumes-soak",
    sources: &[
        "fstitch-core",
        "fstitch-patch",
        "fstitch-fs",
        "fstitch-crashlab",
        "fstitch-shepherd",
        "fstitch-formats",
    ],
    jobs: &[
        // 29 and the 7 by which the share moves on from program to program have no divisor in common: in 29 programs each place in the row of requests is met.
        Job {
            name: "full, ordered and soft over remap, remap-mirror, parity, defence-in-depth and d-graid: a failure of every 29th write or flush, of another share in each program, cut everywhere and again in recovery",
            package: "fstitch-formats",
            asked: Asked::Test(
                "shepherded",
                "every_cut_after_a_fault",
                &[SEEDS, ("FSTITCH_CRASH_EVERY", "29"), ("FSTITCH_CRASH_CHOICES", "6")],
            ),
            total: 30,
            piece: 1,
        },
        Job {
            name: "one program under each of the same fifteen: a failure of every write and of every flush, cut everywhere and again in recovery",
            package: "fstitch-formats",
            asked: Asked::Test(
                "shepherded",
                "every_cut_after_a_fault",
                &[
                    ("FSTITCH_CRASH_SYSTEMS", "{first}..{end}"),
                    ("FSTITCH_CRASH_EVERY", "1"),
                    ("FSTITCH_CRASH_CHOICES", "6"),
                ],
            ),
            total: 15,
            piece: 1,
        },
    ],
};

/// BPFS in memory.
pub const BPFS: Subject = Subject {
    name: "BPFS",
    results: "bpfs-soak.jsonl",
    section: "bpfs-soak",
    sources: &["fstitch-core", "fstitch-posix", "fstitch-bpfs"],
    jobs: &[
        bpfs(
            "every operation, cut at every store",
            "crash::every_operation_survives_at",
            &[("FSTITCH_CRASH_STEP", "1")],
            1,
            1,
        ),
        bpfs(
            "every operation, subsets of every epoch",
            "crash::every_operation_survives_in",
            &[("FSTITCH_CRASH_STEP", "1")],
            1,
            1,
        ),
        bpfs("every two operations", "crash::pairs_of_operations", &[("FSTITCH_CRASH_STEP", "1")], 1, 1),
        bpfs("random programs", "crash::random_programs", &[SEEDS], 5300, 100),
    ],
};

const fn bpfs(
    name: &'static str,
    test: &'static str,
    variables: &'static [(&'static str, &'static str)],
    total: u64,
    piece: u64,
) -> Job {
    Job { name, package: "fstitch-bpfs", asked: Asked::Test("bpfs", test, variables), total, piece }
}

/// A long run: what it is called, what is run, how many of what there are and how many to a piece.
struct Job {
    name: &'static str,
    /// The package, and a test of it with a part of its name, or an example.
    package: &'static str,
    asked: Asked,
    total: u64,
    piece: u64,
}

/// What is run of a package.
enum Asked {
    /// A test by its file and a part of its name, and variables; in them `{first}`, `{end}` and `{count}` stand for the piece's numbers.
    Test(&'static str, &'static str, &'static [(&'static str, &'static str)]),
    /// An example, and its words.
    Example(&'static str, &'static str),
}

const SEEDS: (&str, &str) = ("FSTITCH_CRASH_SEEDS", "{first}..{end}");

const CHOICES: (&str, &str) = ("FSTITCH_CRASH_CHOICES", "200");

const LLD_AND_MINIX: [&str; LLD_SOURCES.len() + 1] = {
    let mut all = ["fstitch-minixlld"; LLD_SOURCES.len() + 1];
    let mut at = 0;
    while at < LLD_SOURCES.len() {
        all[at] = LLD_SOURCES[at];
        at += 1;
    }
    all
};

const LLD_JOBS: [Job; 12] = [
    Job {
        name: "raw interface: every operation and every two, with and without units",
        package: "fstitch-lld",
        asked: Asked::Test("lab", "sequences::", &[("FSTITCH_CRASH_SEQUENCES", "all")]),
        total: 1,
        piece: 1,
    },
    Job {
        name: "raw interface: random programs with units, spilling, cleaning and checkpoints",
        package: "fstitch-lld",
        asked: Asked::Test("lab", "random::", &[SEEDS, ("FSTITCH_CRASH_CHOICES", "96")]),
        total: 1500,
        piece: 25,
    },
    Job {
        name: "raw interface: failures during recovery",
        package: "fstitch-lld",
        asked: Asked::Test("lab", "recovery::", &[("FSTITCH_CRASH_CHOICES", "4096")]),
        total: 1,
        piece: 1,
    },
    Job {
        name: "model: concurrent units, all visibilities (operations, and a failure every 29)",
        package: "fstitch-lld",
        asked: Asked::Test("lld", "units::units_see", &[("FSTITCH_LLD_PROGRAMS", "{first}..{end}")]),
        total: 1800,
        piece: 600,
    },
    Job {
        name: "damaged images",
        package: "fstitch-lld",
        asked: Asked::Test("lld", "damage::damage_is", &[("FSTITCH_LLD_IMAGES", "{first}..{end}")]),
        total: 10_000,
        piece: 5_000,
    },
    Job {
        name: "SQLite: random transactions over several databases",
        package: "fstitch-lld-sqlite",
        asked: Asked::Test("vfs", "lab::", &[SEEDS, ("FSTITCH_CRASH_CHOICES", "48")]),
        total: 400,
        piece: 100,
    },
    minix("MinixLLD: every operation at M0", "M0 seq1 {first} {end} 4096", 1360, 1360),
    minix("MinixLLD: every operation at M1", "M1 seq1 {first} {end} 4096", 1360, 1360),
    minix("MinixLLD: every operation at M2", "M2 seq1 {first} {end} 4096", 1360, 1360),
    minix("MinixLLD: every operation at M3", "M3 seq1 {first} {end} 4096", 1360, 1360),
    minix("MinixLLD: two operations at M2, a sample", "M2 seq2 sample {count} 256", 20_000, 20_000),
    minix("MinixLLD: random programs at M3, a sample", "M3 random sample {count} 32", 100, 100),
];

const fn minix(name: &'static str, words: &'static str, total: u64, piece: u64) -> Job {
    Job { name, package: "fstitch-minixlld", asked: Asked::Example("explore", words), total, piece }
}

/// What a piece says that it has looked at.
const COLUMNS: [&str; 5] = ["programs", "operations", "cuts", "states", "recovered and read"];

/// Runs what is missing, for so many minutes, or publishes.
pub fn run(
    root: &Path,
    subject: &Subject,
    (only, minutes): (Option<&str>, Option<f64>),
    publishes: bool,
) -> Result<()> {
    let results = root.join("proofs").join(subject.results);
    let sources = sources_of(root, "HEAD", subject.sources)?;
    if publishes {
        return publish(root, subject, &results, &sources);
    }
    let mut seconds = 0.0;
    for job in subject.jobs.iter().filter(|job| only.is_none_or(|only| job.name.contains(only))) {
        for first in (0..job.total).step_by(usize::try_from(job.piece)?) {
            if minutes.is_some_and(|minutes| seconds >= minutes * 60.0) {
                println!("stopped; the same command goes on here");
                return Ok(());
            }
            if read(&results)?.iter().any(|line| is_of(line, job, &sources) && line["first"] == first) {
                continue;
            }
            let end = (first + job.piece).min(job.total);
            let mut line = run_piece(root, job, (first, end))?;
            line["sources"] = sources.as_str().into();
            println!(
                "{} {first}..{end}: {} states, {:.0} s",
                job.name,
                line["states"],
                line["seconds"].as_f64().unwrap_or(0.0)
            );
            seconds += line["seconds"].as_f64().unwrap_or(0.0);
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&results)?;
            writeln!(file, "{line}")?;
        }
    }
    publish(root, subject, &results, &sources)
}

fn read(results: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(results).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).context("a line of the results")).collect()
}

fn is_of(line: &Value, job: &Job, sources: &str) -> bool {
    line["job"] == job.name && line["sources"] == sources
}

#[expect(clippy::disallowed_methods, reason = "how long a run takes is no logic of a library")]
fn run_piece(root: &Path, job: &Job, (first, end): (u64, u64)) -> Result<Value> {
    let filled = |text: &str| {
        let text = text.replace("{first}", &first.to_string()).replace("{end}", &end.to_string());
        text.replace("{count}", &(end - first).to_string())
    };
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).stderr(std::process::Stdio::inherit());
    match &job.asked {
        Asked::Test(file, name, variables) => {
            command.args([
                "test",
                "-q",
                "--release",
                "-p",
                job.package,
                "--test",
                file,
                "--",
                name,
                "--nocapture",
            ]);
            command.envs(variables.iter().map(|(name, value)| (*name, filled(value))));
        }
        Asked::Example(name, words) => {
            command.args(["run", "-q", "--release", "-p", job.package, "--example", name, "--"]);
            command.args(filled(words).split_whitespace());
        }
    }
    let began = std::time::Instant::now();
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{} {first}..{end} found something:\n{said}", job.name);
    let counts = said.lines().rev().find_map(counts_of);
    let counts =
        counts.with_context(|| format!("{} does not say what it has looked at:\n{said}", job.name))?;
    let mut line = json!({ "job": job.name, "first": first, "seconds": began.elapsed().as_secs_f64() });
    for (column, count) in COLUMNS.iter().zip(counts) {
        line[*column] = count.into();
    }
    Ok(line)
}

/// The numbers of `5 programs, 7 operations, 9 cuts, 11 states, of which 13 were recovered and read`.
fn counts_of(line: &str) -> Option<[u64; 5]> {
    if !line.contains(" programs, ") || !line.contains(" states, of which ") {
        return None;
    }
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    numbers.try_into().ok()
}

fn publish(root: &Path, subject: &Subject, results: &Path, sources: &str) -> Result<()> {
    let lines = read(results)?;
    let commit = commit_with(root, sources, subject.sources)?;
    let mut table = format!(
        "Sources: those of {} at commit `{commit}`.\n\n| run | programs | operations | cuts | states | recovered and read | seconds |\n|---|---:|---:|---:|---:|---:|---:|\n",
        subject.sources.join(", ")
    );
    let (mut all, mut missing) = ([0; 5], Vec::new());
    for job in subject.jobs {
        let pieces: Vec<&Value> = lines.iter().filter(|line| is_of(line, job, sources)).collect();
        if u64::try_from(pieces.len())? < job.total.div_ceil(job.piece) {
            missing.push(job.name);
        }
        if pieces.is_empty() {
            continue;
        }
        let seconds: f64 = pieces.iter().filter_map(|line| line["seconds"].as_f64()).sum();
        write!(table, "| {} |", job.name)?;
        for (column, all) in COLUMNS.iter().zip(&mut all) {
            let sum: u64 = pieces.iter().filter_map(|line| line[*column].as_u64()).sum();
            *all += sum;
            write!(table, " {} |", grouped(sum))?;
        }
        writeln!(table, " {seconds:.0} |")?;
    }
    write!(table, "| **all** |")?;
    all.iter().try_for_each(|sum| write!(table, " {} |", grouped(*sum)))?;
    table.push_str(" |\n\nNo violation: a piece in which one is found is no result, and ends the run.");
    if !missing.is_empty() {
        write!(table, " Not run to the end: {}.", missing.join("; "))?;
    }
    table.push('\n');
    replace_between(&root.join(PAGE), subject.section, &table)?;
    println!("{PAGE}: {} states of {}", grouped(all[3]), subject.name);
    if lines.is_empty() { bail!("nothing has been run") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_piece_says_is_read() {
        let line = "5 programs, 7 operations, 9 cuts, 11 states, of which 13 were recovered and read";
        assert_eq!(counts_of(line), Some([5, 7, 9, 11, 13]));
        assert_eq!(counts_of("test result: ok. 3 passed; 0 failed"), None);
        assert_eq!(counts_of("5 programs, 11 states, of which 13 were read"), None);
    }
}
