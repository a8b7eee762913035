//! Going to the background: the daemon is this program started anew, before any thread exists, and tells its
//! parent over its standard output when the mount answers.
//!
//! Nothing is forked after threads have started, errors appear on the terminal of whoever mounted, and the
//! parent returns only when the mount answers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// Tells the program that it is the daemon of a parent that waits.
const DAEMON_VARIABLE: &str = "FSTITCH_DAEMON";
/// What the daemon writes when the mount answers.
const READY: &str = "ready";

/// Whether this process is the daemon of a parent that waits.
pub fn is_daemon() -> bool {
    std::env::var_os(DAEMON_VARIABLE).is_some()
}

/// Starts this program anew with the same arguments and waits until it is ready or has failed. The outer error
/// is ours, the inner one is what the daemon said.
pub fn start() -> Result<Result<(), String>> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        // The name tells a mount helper from the ordinary program.
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    let mut child = command
        .args(arguments)
        .env(DAEMON_VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting the daemon")?;
    let mut said = String::new();
    let output = child.stdout.take().context("the daemon's output was piped")?;
    let mut lines = BufReader::new(output).lines();
    while let Some(line) = lines.next().transpose()? {
        if line == READY {
            return Ok(Ok(()));
        }
        said.push_str(&line);
        said.push('\n');
    }
    let status = child.wait()?;
    if said.is_empty() {
        said = format!("the daemon ended with {status} before the mount answered");
    }
    Ok(Err(said.trim_end().to_owned()))
}

/// In the daemon: leaves the terminal's session, so that closing the terminal does not end the mount.
pub fn leave_session() -> Result<()> {
    // A process that leads its group already has a session of its own, which serves as well.
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error).context("leaving the terminal's session"),
    }
}

/// In the daemon: tells the parent that the mount answers, and lets go of its terminal and directory.
pub fn report_ready() -> Result<()> {
    println!("{READY}");
    std::io::stdout().flush()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    std::env::set_current_dir("/")?;
    Ok(())
}
