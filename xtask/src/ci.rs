//! The gate: format, lints, tidy, tests, documentation, and that no test was skipped in silence.

mod io_uring;
mod programs;
mod report;
mod user;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use programs::Program;

/// What a run leaves out.
#[derive(clap::Args)]
pub struct Options {
    /// Leave out the documentation and the proof scripts: what to run before every commit
    #[arg(long)]
    quick: bool,
    /// Only the tests that compute, of what is built already; this file says that they have begun
    #[arg(long, hide = true)]
    computing: Option<PathBuf>,
}

/// Runs every step and stops at the first that fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if let Some(begun) = &options.computing {
        return computing(root, begun);
    }
    step("format", || cargo(root, &["fmt", "--all", "--check"]))?;
    step("tidy", || crate::run_tidy(root))?;
    step("orderings fit", || crate::orderings::check_fits(root).map(drop))?;
    step("mutants fit", || crate::mutants::check_fits(root))?;
    step("races fit", || crate::races::check_fits(root))?;
    step("lints", || {
        let all = ["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"];
        cargo(root, &all)
    })?;
    if !options.quick {
        step("documentation", || documentation(root))?;
        step("fuzz targets", || fuzz_targets(root))?;
    }
    let programs = step("building the tests", || programs::build(root))?;
    step("examples in the documentation", || documented_examples(root))?;
    // Some compute all the time, the others wait for media, mounts and programs most of it: side by side.
    let mut computing = begin_computing(root)?;
    let mounted = mounted(root, options, &programs).and_then(|()| {
        // Here they end sooner than where the others compute.
        if options.quick { Ok(()) } else { step("instruction counts", || counts(root)) }
    });
    if let Err(error) = &mounted {
        println!("{error:#}");
    }
    let status = computing.wait()?;
    ensure!(status.success(), "the tests that compute ended with {status}");
    mounted
}

/// The tests that compute.
fn computing(root: &Path, begun: &Path) -> Result<()> {
    File::create(begun).with_context(|| format!("creating {}", begun.display()))?;
    let programs = programs::build(root)?;
    step("tests that compute", || tests(root, programs.iter().filter(|program| !program.mounts())))
}

/// Begins with the tests that compute in a mount table of their own, where one may be had. What has a copy of another one's table, as
/// tests of the other kind make, holds what is mounted in it: the kernel's mounts of an image would live on when they were ended here,
/// and the image would be read before all is in it.
fn begin_computing(root: &Path) -> Result<Child> {
    let begun = root.join("target/ci/computing");
    std::fs::create_dir_all(root.join("target/ci"))?;
    if begun.exists() {
        std::fs::remove_file(&begun)?;
    }
    let apart = ["--mount", "--propagation", "slave"];
    let probe = Command::new("unshare").args(apart).arg("true").output();
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = if probe.is_ok_and(|probe| probe.status.success()) {
        let mut command = Command::new("unshare");
        command.args(apart).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(["ci", "--computing"]).arg(&begun);
    let mut child = command.current_dir(root).spawn()?;
    // Its table is a copy of this one, so nothing is mounted here before it has that.
    while !begun.exists() && child.try_wait()?.is_none() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(child)
}

/// The tests of programs and mounts, also in other ways, and the proof scripts.
fn mounted(root: &Path, options: &Options, programs: &[Program]) -> Result<()> {
    let mounting = programs.iter().filter(|program| program.mounts());
    step("tests that mount", || leaving_no_mounts(|| tests(root, mounting)))?;
    // These depend on who runs them and how.
    step("mounts over io_uring", || leaving_no_mounts(|| mounts_over_io_uring(root, programs)))?;
    step("tests as a user", || leaving_no_mounts(|| tests_as_a_user(root, programs)))?;
    if options.quick { Ok(()) } else { step("proofs", || leaving_no_mounts(|| proofs(root))) }
}

/// Does `work`, and fails when a mount of ours is left that was not there before. One that is dead already is named first: tests that
/// look at all mounts see it.
fn leaving_no_mounts(work: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = mounts()?;
    for mountpoint in &before {
        println!("mounted before: {mountpoint}");
    }
    work()?;
    let left: Vec<String> = mounts()?.into_iter().filter(|mountpoint| !before.contains(mountpoint)).collect();
    ensure!(left.is_empty(), "mounts were left over: {}", left.join(", "));
    Ok(())
}

/// Where volumes of ours are mounted.
fn mounts() -> Result<Vec<String>> {
    let table = std::fs::read_to_string("/proc/self/mounts").context("reading the table of mounts")?;
    Ok(our_mounts(&table))
}

fn our_mounts(table: &str) -> Vec<String> {
    let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&"fuse.fstitch"))
        .map(|fields| fields[1].to_owned())
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "how long the machine takes is no logic of a library")]
fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    println!("== {name}");
    std::io::stdout().flush()?;
    let begin = Instant::now();
    let done = work().with_context(|| format!("the step `{name}` failed"))?;
    println!("   {name}: {} s", begin.elapsed().as_secs());
    Ok(done)
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<()> {
    let status = Command::new(env!("CARGO")).args(arguments).current_dir(root).status()?;
    ensure!(status.success(), "cargo {} ended with {status}", arguments.join(" "));
    Ok(())
}

fn documentation(root: &Path) -> Result<()> {
    let status = Command::new(env!("CARGO"))
        .args(["doc", "--workspace", "--no-deps", "--locked", "--quiet"])
        .env("RUSTDOCFLAGS", "-D warnings")
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "cargo doc ended with {status}");
    Ok(())
}

/// The fuzz targets are a workspace of their own, which nobody builds who does not fuzz: that they fit the rest, and their lock file them.
fn fuzz_targets(root: &Path) -> Result<()> {
    let target = root.join("target/fuzz");
    let check = ["check", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml", "--target-dir"];
    let status = Command::new(env!("CARGO")).args(check).arg(target).current_dir(root).status()?;
    ensure!(status.success(), "cargo check of the fuzz targets ended with {status}");
    Ok(())
}

/// Runs programs one after the other, all of them whatever fails, with what passing tests print, because that is where they say
/// `skipped:`.
fn tests<'a>(root: &Path, programs: impl IntoIterator<Item = &'a Program>) -> Result<()> {
    let mut failed = Vec::new();
    for program in programs {
        let (mut filter, mut result) = (report::Tests::default(), String::new());
        let ran = watched(root, &format!("tests-{program}"), &mut program.command(), |line| {
            let ends = line.starts_with("test result:");
            if ends {
                line.clone_into(&mut result);
            }
            filter.shows(line) && !ends
        });
        // In one piece, as others print at the same time.
        println!("{program}\n{result}");
        if let Err(error) = ran {
            println!("{program}: {error:#}");
            failed.push(program.to_string());
        }
    }
    ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

/// The examples in the documentation.
fn documented_examples(root: &Path) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--doc", "--workspace", "--locked", "--no-fail-fast"]);
    let mut filter = report::Tests::default();
    watched(root, "examples", &mut command, |line| filter.shows(line))
}

/// The tests of mounts once more, with requests that come through io_uring.
fn mounts_over_io_uring(root: &Path, programs: &[Program]) -> Result<()> {
    let Some(_on) = io_uring::switch_on()? else { return Ok(()) };
    let mut command = programs::find(programs, "fstitch-fuse", "mounted")?.command();
    command.env("FSTITCH_TRANSPORT", "io_uring");
    let mut filter = report::Tests::default();
    watched(root, "io_uring", &mut command, |line| filter.shows(line))
}

/// The tests of the program and of mounts as nobody, who is not allowed everything: what is root's alone is skipped there, and nothing else.
fn tests_as_a_user(root: &Path, programs: &[Program]) -> Result<()> {
    for suite in user::SUITES {
        match user::command(root, programs::find(programs, suite.0, suite.1)?)? {
            Ok(mut command) => {
                let mut filter = report::Tests::default();
                let name = format!("user-{}", suite.0);
                let skipped = run_watched(root, &name, &mut command, |line| filter.shows(line))?;
                let (roots, others): (Vec<_>, Vec<_>) =
                    skipped.into_iter().partition(|line| line.starts_with(ROOTS));
                println!("{} tests are root's alone", roots.len());
                judge_skips(root, &others)?;
            }
            Err(why) => println!("left out: {why}"),
        }
    }
    Ok(())
}

/// How tests say that they are root's alone.
const ROOTS: &str = "skipped: only root may";

/// Instructions by operation, never seconds. A process of its own, so that a missing valgrind is judged like a skipped test.
fn counts(root: &Path) -> Result<()> {
    let program = std::env::current_exe().context("the path of this program")?;
    watched(root, "counts", Command::new(program).arg("counts"), |_| true)
}

/// The short form of each proof script that a change must not break.
fn proofs(root: &Path) -> Result<()> {
    let script = root.join("scripts/ci-proofs.sh");
    // The program is there, for the tests have run it; asking for it alone would build all of it again, with fewer features.
    watched(root, "proofs", &mut Command::new(script), report::proof_shows)
}

/// Runs `command`, in the root unless it says where, writes all that it prints to a log, shows the lines that `shows` picks, and fails
/// when it failed or skipped something that it must not. What failed is shown once more at the end, where people look first.
fn watched(root: &Path, name: &str, command: &mut Command, shows: impl FnMut(&str) -> bool) -> Result<()> {
    judge_skips(root, &run_watched(root, name, command, shows)?)
}

/// The same, and returns what was skipped.
fn run_watched(
    root: &Path,
    name: &str,
    command: &mut Command,
    mut shows: impl FnMut(&str) -> bool,
) -> Result<Vec<String>> {
    let path = root.join(format!("target/ci/{name}.log"));
    std::fs::create_dir_all(root.join("target/ci"))?;
    let mut log =
        BufWriter::new(File::create(&path).with_context(|| format!("creating {}", path.display()))?);
    if command.get_current_dir().is_none() {
        command.current_dir(root);
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut skipped = Vec::new();
    let mut failures = report::Failures::default();
    let read = for_each_line(&mut child, SILENCE_MAX, |line| {
        writeln!(log, "{line}")?;
        if shows(&line) {
            println!("{line}");
        }
        failures.take(&line);
        if line.starts_with("skipped:") {
            skipped.push(line);
        }
        Ok(())
    });
    log.flush()?;
    read.with_context(|| format!("{command:?}"))?;
    let status = child.wait()?;
    if !status.success() {
        println!("-- what failed in the step `{name}` (all of it: {})\n{failures}", path.display());
        bail!("{command:?} ended with {status}");
    }
    Ok(skipped)
}

/// How long a step may say nothing: what waits for ever is ended, and named, before the whole run is cut off from outside.
const SILENCE_MAX: Duration = Duration::from_secs(30 * 60);

/// Hands on the lines that a program prints, and ends it when it says nothing for so long.
fn for_each_line(
    child: &mut Child,
    silence: Duration,
    mut each: impl FnMut(String) -> Result<()>,
) -> Result<()> {
    let output = child.stdout.take().context("the output was piped")?;
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        // Nobody listens any more when the program was ended.
        BufReader::new(output).split(b'\n').try_for_each(|line| sender.send(line))
    });
    let mut long = report::Long::default();
    loop {
        match lines.recv_timeout(silence) {
            Ok(line) => {
                let line = String::from_utf8_lossy(&line?).into_owned();
                long.take(&line);
                each(line)?;
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                bail!("it said nothing for {} s{long}", silence.as_secs());
            }
        }
    }
}

/// On a machine that can run everything, a skipped test is a failure unless `.ci/allowed-skips` lists it.
fn judge_skips(root: &Path, skipped: &[String]) -> Result<()> {
    let allowed = std::fs::read_to_string(root.join(".ci/allowed-skips")).unwrap_or_default();
    let unexpected = unexpected_skips(skipped, &allowed);
    if unexpected.is_empty() {
        return Ok(());
    }
    for line in &unexpected {
        println!("not run: {line}");
    }
    if std::env::var("CI").is_ok_and(|ci| ci == "true") && can_mount() {
        bail!("{} tests were skipped on a machine that can run them", unexpected.len());
    }
    Ok(())
}

/// The skipped tests that no line of the list (prefixes; `#` starts a comment) allows.
fn unexpected_skips<'a>(skipped: &'a [String], allowed: &str) -> Vec<&'a str> {
    let allowed: Vec<&str> =
        allowed.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    skipped.iter().map(String::as_str).filter(|line| !allowed.iter().any(|ok| line.starts_with(ok))).collect()
}

/// Whether this process may mount: root, and a FUSE device.
fn can_mount() -> bool {
    let root = std::fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status.lines().any(|line| {
            line.strip_prefix("Uid:").is_some_and(|ids| ids.split_whitespace().nth(1) == Some("0"))
        })
    });
    root && Path::new("/dev/fuse").exists()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{for_each_line, our_mounts, unexpected_skips};

    #[test]
    fn what_says_nothing_any_more_is_ended_and_named() {
        let mut said = Vec::new();
        let mut run = |script: &str| {
            let mut child =
                Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().expect("a shell");
            let ended = for_each_line(&mut child, Duration::from_secs(2), |line| {
                said.push(line);
                Ok(())
            });
            child.wait().expect("it ends");
            ended.map_err(|error| error.to_string())
        };
        assert_eq!(run("echo one"), Ok(()));
        let waits = "test a::waits has been running for over 60 seconds";
        let error = run(&format!("echo {waits}; exec sleep 1000")).expect_err("it waits");
        assert_eq!(error, "it said nothing for 2 s; under way: a::waits");
        assert_eq!(said, ["one", waits]);
    }

    #[test]
    fn mounts_of_ours_are_told_from_others() {
        let table = "/dev/vda / ext4 rw 0 0\nbpfs /tmp/b fuse.fstitch rw 0 0\nx /mnt fuse.sshfs rw 0 0\n";
        assert_eq!(our_mounts(table), ["/tmp/b"]);
    }

    #[test]
    fn a_skip_that_is_not_listed_is_reported() {
        let skipped = ["skipped: no FUSE".to_owned(), "skipped: no KVM".to_owned()];
        assert_eq!(unexpected_skips(&skipped, "# why\nskipped: no KVM\n"), ["skipped: no FUSE"]);
        assert_eq!(unexpected_skips(&skipped, "").len(), 2);
    }
}
