//! Programs that are run to make, mount and unmount.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::inside::BLOCK_SIZE;

/// Inodes of all images.
const INODES: &str = "150000";

/// How long a mount may take to appear or a server to end.
const PATIENCE: Duration = Duration::from_secs(60);
const INTERVAL: Duration = Duration::from_millis(2);

/// Runs a program that says nothing when all is well, and returns what it prints.
pub fn run(program: &str, arguments: &[&OsStr]) -> Result<String> {
    let done = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let done = done.with_context(|| format!("running {program}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{program} {arguments:?} ended with {}: {}", done.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// The line that says what version a program is, if it is there.
#[must_use]
pub fn version(program: &str, option: &str) -> Option<String> {
    let done = Command::new(program).arg(option).stdin(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
    // Some tell the versions of their libraries first.
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let own = lines.clone().find(|line| line.starts_with(program));
    own.or_else(|| lines.next()).map(str::to_owned)
}

/// Makes a volume of `format` in `image`, alike for all contenders; nothing is left for threads to do later.
pub fn format(format: &str, image: &Path) -> Result<()> {
    let (size, extended) = (BLOCK_SIZE.to_string(), "nodiscard,lazy_itable_init=0,lazy_journal_init=1");
    let mut words = vec!["-q", "-F", "-t", format, "-b", &size, "-N", INODES, "-E", extended];
    if format != "ext2" {
        words.extend(["-J", "size=64"]);
    }
    let mut words: Vec<&OsStr> = words.into_iter().map(OsStr::new).collect();
    words.push(image.as_os_str());
    run("mke2fs", &words)?;
    Ok(())
}

/// Whether something is mounted on `at`.
pub fn is_mounted(at: &Path) -> bool {
    let Ok(table) = std::fs::read_to_string("/proc/self/mountinfo") else { return false };
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|place| Path::new(place) == at))
}

/// Starts a server that stays in the foreground, and waits until it has mounted.
pub fn serve(command: &mut Command, at: &Path) -> Result<Child> {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("starting a server")?;
    let mut waited = Duration::ZERO;
    while !is_mounted(at) {
        if let Some(status) = child.try_wait()? {
            bail!("the server {command:?} ended with {status} before it had mounted");
        }
        if waited > PATIENCE {
            child.kill()?;
            bail!("the server {command:?} has not mounted for {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(INTERVAL);
        waited += INTERVAL;
    }
    Ok(child)
}

/// Unmounts, and waits until the server has ended.
pub fn unmount_server(at: &Path, mut server: Child) -> Result<()> {
    unmount(at)?;
    let status = server.wait()?;
    if !status.success() {
        bail!("the server ended with {status}");
    }
    Ok(())
}

/// Unmounts; a mount that is busy for a moment is tried again.
pub fn unmount(at: &Path) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    let (program, words) = if root {
        ("umount", vec![at.as_os_str()])
    } else {
        ("fusermount3", vec![OsStr::new("-u"), at.as_os_str()])
    };
    let mut tries = 0;
    loop {
        match run(program, &words) {
            Ok(_) => return Ok(()),
            Err(error) if tries == 50 => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        tries += 1;
    }
}
