//! Running programs and waiting for all that they start, also for what they leave behind: its order is theirs.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};
use signal_hook::consts::{SIGINT, SIGQUIT};

/// Makes this process the one that adopts what its children leave behind: the server finds processes by their
/// ancestors, and this one must be among them. So it also stays until those have ended that a terminal interrupts.
pub fn adopt() -> Result<()> {
    for signal in [SIGINT, SIGQUIT] {
        // Nobody looks: that they end is what counts. Unlike a signal that is ignored, programs do not inherit this.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).context("handling signals")?;
    }
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .context("this process cannot adopt what its commands leave behind")
}

/// Runs a program to its end and returns what it ended with, at once or when everything it started has ended, too.
pub fn run(command: &mut Command, whole_tree: bool) -> Result<ExitStatus> {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().with_context(|| format!("starting {program}"))?;
    let child =
        i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("the kernel's number of a process")?;
    let mut ended = None;
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => {
                ended = Some(ExitStatus::from_raw(status.as_raw()));
                if !whole_tree {
                    break;
                }
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::CHILD) => break,
            Err(error) => return Err(error).context("waiting for processes"),
        }
    }
    ended.with_context(|| format!("{program} ended unseen"))
}

/// The exit code that a shell would have for it.
pub fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| signal + 128));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
