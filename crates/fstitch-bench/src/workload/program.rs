//! Programs that people run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{At, tree};
use crate::meter::Meter;
use crate::place::Host;

fn host<'a>(at: &At<'a>) -> Result<&'a Path> {
    at.host.context("programs run where something is mounted")
}

/// Runs a program that is told `input`, and fails with what it says.
fn run(command: &mut Command, input: &str) -> Result<String> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdin = child.stdin.take().context("standard input")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    let done = child.wait_with_output()?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{:?} ended with {}: {}", command.get_program(), done.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// 1,000 transactions of one row each.
pub(super) fn sqlite(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let (host, count) = (host(at)?, at.scale.of(1_000, 100));
    let mut text = String::new();
    for no in 0..count {
        text.push_str(&format!("insert into t values ({no}, 'the text of row {no}');\n"));
    }
    let file = host.join("database");
    run(Command::new("sqlite3").arg(&file), "create table t (no integer primary key, text);\n")?;
    meter.phase("transactions", count, || run(Command::new("sqlite3").arg(&file), &text).map(drop))?;
    let found = run(Command::new("sqlite3").arg(&file), "select count(*) from t;\n")?;
    ensure!(found.trim() == count.to_string(), "{} of {count} rows are there", found.trim());
    Ok(())
}

/// A clone without hard links, and a look at it.
pub(super) fn git(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let files = at.scale.of(2_500, 400);
    let (host, origin) = (host(at)?, repository(at, files)?);
    let clone = host.join("clone");
    meter.phase("clone", files, || {
        let mut command = Command::new("git");
        command.args(["clone", "--quiet", "--local", "--no-hardlinks"]).arg(&origin).arg(&clone);
        run(&mut command, "").map(drop)
    })?;
    meter.phase("status", files, || {
        let said = run(Command::new("git").arg("-C").arg(&clone).args(["status", "--porcelain"]), "")?;
        ensure!(said.is_empty(), "the clone differs: {said}");
        Ok(())
    })
}

/// A repository of so many files, made once in a run.
fn repository(at: &At<'_>, files: u64) -> Result<PathBuf> {
    let origin = at.scratch.join("repository");
    if !origin.exists() {
        std::fs::create_dir(&origin)?;
        tree::unpack(&Host::new(&origin)?, &at.tree.part(files))?;
        let git = |words: &[&str]| run(Command::new("git").arg("-C").arg(&origin).args(words), "").map(drop);
        git(&["init", "--quiet"])?;
        git(&["add", "--all", "--force"])?;
        let who = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"];
        git(&[&who[..], &["commit", "--quiet", "--message", "all"]].concat())?;
    }
    Ok(origin)
}

/// The program whose transactions `mail` does by itself.
pub(super) fn postmark(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let (host, transactions) = (host(at)?, at.scale.of(2_000, 300));
    let script = format!(
        "set location {}\nset number 500\nset size 500 65536\nset transactions {transactions}\nset seed 42\n\
         set report terse\nrun\nquit\n",
        host.display()
    );
    meter.phase("all", transactions, || run(&mut Command::new("postmark"), &script).map(drop))
}

/// Random writes that are made stable again and again.
pub(super) fn fio(at: &At<'_>, meter: &mut Meter<'_>) -> Result<()> {
    let (host, count) = (host(at)?, at.scale.of(4_000, 800));
    meter.phase("fsync every 16", count, || {
        let mut command = Command::new("fio");
        command.current_dir(host).args(["--name=random", "--filename=file", "--rw=randwrite", "--bs=4k"]);
        command.args([
            "--size=64m",
            "--ioengine=psync",
            "--fsync=16",
            "--randseed=7",
            "--output-format=terse",
        ]);
        run(command.arg(format!("--number_ios={count}")), "").map(drop)
    })
}
