//! The gate: format, lints, tidy, tests, documentation, and that no test was skipped in silence.

mod io_uring;
mod report;
mod user;

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// What a run leaves out.
#[derive(clap::Args)]
pub struct Options {
    /// Leave out the documentation and the proof scripts: what to run before every commit
    #[arg(long)]
    quick: bool,
}

/// Runs every step and stops at the first that fails.
pub fn run(root: &Path, options: &Options) -> Result<()> {
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
    }
    step("tests", || leaving_no_mounts(|| tests(root)))?;
    if options.quick {
        return tests_again(root);
    }
    // The one computes all the time, the others wait for media most of it.
    std::thread::scope(|scope| {
        let counted = scope.spawn(|| step("instruction counts", || counts(root)));
        let tested = tests_again(root);
        let proved = tested.and_then(|()| step("proofs", || leaving_no_mounts(|| proofs(root))));
        counted.join().expect("counting does not panic").and(proved)
    })
}

/// The tests that depend on who runs them and how, once more in other ways.
fn tests_again(root: &Path) -> Result<()> {
    step("mounts over io_uring", || leaving_no_mounts(|| mounts_over_io_uring(root)))?;
    step("tests as a user", || leaving_no_mounts(|| tests_as_a_user(root)))
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
fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    std::io::stdout().flush()?;
    let begin = Instant::now();
    work().with_context(|| format!("the step `{name}` failed"))?;
    println!("   {name}: {} s", begin.elapsed().as_secs());
    Ok(())
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

/// All tests, with what passing ones print, because that is where they say `skipped:`.
fn tests(root: &Path) -> Result<()> {
    cargo(root, &["test", "--quiet", "--workspace", "--locked", "--no-run"])?;
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--workspace", "--locked", "--no-fail-fast", "--", "--show-output"]);
    let mut filter = report::Tests::default();
    watched(root, "tests", &mut command, |line| filter.shows(line))
}

/// The program of a package's test, of what was built for all tests: asking for the package alone would build others, with fewer
/// features.
fn test_program(root: &Path, package: &str, test: &str) -> Result<PathBuf> {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--quiet", "--workspace", "--locked", "--no-run", "--message-format=json"])
        .current_dir(root)
        .output()?;
    ensure!(output.status.success(), "the build ended with {}", output.status);
    let place = format!("crates/{package}#");
    String::from_utf8(output.stdout)?
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == test)
        .filter(|message| message["package_id"].as_str().is_some_and(|id| id.contains(&place)))
        .find_map(|message| Some(PathBuf::from(message["executable"].as_str()?)))
        .with_context(|| format!("cargo names no program for the test {test} of {package}"))
}

/// The tests of mounts once more, with requests that come through io_uring.
fn mounts_over_io_uring(root: &Path) -> Result<()> {
    let Some(_on) = io_uring::switch_on()? else { return Ok(()) };
    let (package, test) = ("fstitch-fuse", "mounted");
    let mut command = Command::new(test_program(root, package, test)?);
    command.arg("--show-output").env("FSTITCH_TRANSPORT", "io_uring");
    command.current_dir(root.join("crates").join(package));
    let mut filter = report::Tests::default();
    watched(root, "io_uring", &mut command, |line| filter.shows(line))
}

/// The tests of the program and of mounts as nobody, who is not allowed everything: what is root's alone is skipped there, and nothing else.
fn tests_as_a_user(root: &Path) -> Result<()> {
    for suite in user::SUITES {
        match user::command(root, suite)? {
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
    let output = child.stdout.take().context("the output was piped")?;
    let mut skipped = Vec::new();
    let mut failures = report::Failures::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        writeln!(log, "{line}")?;
        if shows(&line) {
            println!("{line}");
        }
        failures.take(&line);
        if line.starts_with("skipped:") {
            skipped.push(line);
        }
    }
    log.flush()?;
    let status = child.wait()?;
    if !status.success() {
        println!("-- what failed in the step `{name}` (all of it: {})\n{failures}", path.display());
        bail!("{command:?} ended with {status}");
    }
    Ok(skipped)
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
    use super::{our_mounts, unexpected_skips};

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
