//! The library as C and Python programs have it: compiled, linked and installed as their users do. What it prevents: calls that the header
//! describes and the library lacks, wrong use that is followed, and units that a kill leaves in pieces.
#![expect(clippy::unwrap_used, reason = "these are tests, their helpers included")]

mod names;
mod python;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// How a program is linked.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Shared,
    Static,
}

/// Whether a program is installed; if not, says that the test is skipped.
fn needs(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap();
    if !found.status.success() {
        println!("skipped: {program} is not installed");
    }
    found.status.success()
}

/// Runs a command and returns what it printed.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{command:?}: {}: {out}{err}", output.status);
    out
}

/// A directory with the library in both kinds.
fn library() -> TempDir {
    let place = tempfile::tempdir().unwrap();
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "-p", "fstitch-lld-c"]).current_dir(CRATE);
    run(cargo.env("CARGO_TARGET_DIR", target));
    for (from, to) in [("libfstitch_lld.so", "libfstitch_lld.so.0"), ("libfstitch_lld.a", "libfstitch_lld.a")]
    {
        fs::copy(target.join("debug").join(from), place.path().join(to)).unwrap();
    }
    place
}

/// A program that is linked with the library, in a directory with it.
struct Built {
    place: TempDir,
    program: PathBuf,
}

impl Built {
    /// `None`, said aloud, where there is no compiler.
    fn new(program: &str, kind: Kind) -> Option<Self> {
        if !needs("cc") {
            return None;
        }
        let place = library();
        let output = place.path().join(program);
        let mut cc = Command::new("cc");
        cc.args(["-std=c99", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]);
        cc.args([&format!("-I{CRATE}"), &format!("{CRATE}/tests/clients/{program}.c"), "-o"]).arg(&output);
        match kind {
            Kind::Shared => cc.arg(place.path().join("libfstitch_lld.so.0")),
            Kind::Static => cc.arg(place.path().join("libfstitch_lld.a")).args(["-lm", "-ldl"]),
        };
        run(cc.arg("-lpthread"));
        Some(Self { place, program: output })
    }

    fn disk(&self) -> PathBuf {
        self.place.path().join("d.lld")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", self.place.path());
        command
    }
}

/// Runs a program of this directory with each kind of the library.
#[track_caller]
fn says(program: &str, said: &str) {
    for kind in [Kind::Shared, Kind::Static] {
        let Some(built) = Built::new(program, kind) else { return };
        assert_eq!(run(built.command().arg(built.disk())).trim(), said, "{kind:?}");
    }
}

#[test]
fn every_call_does_what_the_header_says() {
    says("every_call", "all as it should be");
}

#[test]
fn wrong_use_is_told_and_not_followed() {
    says("misuse", "all told");
}

/// No byte is read or written beside the caller's memory, whatever it hands over.
#[test]
fn memory_is_used_as_it_was_given() {
    for program in ["every_call", "misuse"] {
        let Some(built) = Built::new(program, Kind::Shared).filter(|_| needs("valgrind")) else { return };
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["-q", "--error-exitcode=9"]).arg(&built.program).arg(built.disk());
        run(valgrind.env("LD_LIBRARY_PATH", built.place.path()));
    }
}

#[test]
fn damage_is_told() {
    says("damaged", "all found");
}

/// What a killed program had said of one of its threads: the last unit that was durable, and the bytes that units had spilled.
type Said = (u64, u64);

/// Has the program work until it has said something so many times, and kills it.
fn killed_after(built: &Built, lines: usize) -> [Said; 2] {
    let mut child = built.command().arg("work").arg(built.disk()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = [(0, 0); 2];
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut hear = |line: &str| {
        let words: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
        said[usize::try_from(words[0]).unwrap()] = (words[1], words[2]);
    };
    let mut line = String::new();
    for _ in 0..lines {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "it ended by itself");
        hear(&line);
    }
    child.kill().unwrap();
    // What it has said until then counts, too; it has not seen the kill coming.
    output.lines().for_each(|line| hear(&line.unwrap()));
    let status = child.wait().unwrap();
    assert!(!status.success() && status.code().is_none(), "{status}");
    said
}

#[test]
fn a_kill_leaves_whole_units_and_all_that_are_durable() {
    let Some(built) = Built::new("killed", Kind::Shared) else { return };
    run(built.command().arg("make").arg(built.disk()));
    let (mut durable, mut spilled, mut redone) = ([0; 2], 0, 0);
    for lines in [1, 2, 7, 20, 3, 40, 11] {
        let said = killed_after(&built, lines);
        for (durable, said) in durable.iter_mut().zip(said) {
            *durable = said.0.max(*durable);
            spilled += said.1;
        }
        let mut look = built.command();
        look.arg("look").arg(built.disk()).args(durable.map(|unit: u64| unit.to_string()));
        let told = run(&mut look);
        let chunks: Vec<&str> = told.split_whitespace().collect();
        println!("after {lines} lines, durable {durable:?}: {}", told.trim());
        redone += chunks[4].parse::<u64>().unwrap();
    }
    assert!(durable.iter().all(|unit| *unit > 20), "both threads have worked: {durable:?}");
    assert!(
        spilled > 0 && redone > 20,
        "units of which something was written before their end: {spilled}, {redone}"
    );
}
