//! `fstitch status`: which mounts there are, and how they fare.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use fstitch_client::Volume;
use serde::Serialize;

use crate::control::Status;
use crate::control::client::{Connection, absolute, all_mounts, why_silent};
use crate::mounts;
use crate::output::{Outcome, json, text};

/// How often a mount that does not answer is looked at again, every 50 ms.
const AGAIN: usize = 10;

/// Arguments of `status`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where a volume is mounted; without it, all mounts of this user
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: Option<PathBuf>,
}

/// Who uses ordered fsync on a mount, which its kernel side is asked: the control socket knows no processes.
#[derive(Clone, Debug, Serialize)]
struct Ordered {
    /// Everybody does, because it was mounted so.
    whole_mount: bool,
    /// Otherwise these processes, as the mount's server sees them.
    processes: Vec<OrderedProcess>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct OrderedProcess {
    pid: u32,
    /// 0: nothing bounds what a crash can lose.
    durable_every_ms: u32,
}

/// What is shown of a mount.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    mount: &'a Status,
    /// Absent where that cannot be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    ordered_fsync: Option<Ordered>,
}

impl<'a> Shown<'a> {
    fn new(mount: &'a Status) -> Self {
        // Without a daemon that answers, nobody answers that either.
        let ordered_fsync = if mount.pid == 0 { None } else { Ordered::of(&mount.mountpoint) };
        Self { mount, ordered_fsync }
    }
}

impl Ordered {
    /// `None` where there is no ordered fsync, or the mount may not be entered.
    fn of(mountpoint: &str) -> Option<Self> {
        let found = Volume::open(mountpoint).ok()?.order_users().ok()?;
        let users = found.users.iter();
        let processes =
            users.map(|user| OrderedProcess { pid: user.pid, durable_every_ms: user.durable_every_ms });
        Some(Self { whole_mount: found.whole_mount, processes: processes.collect() })
    }

    fn describe(&self) -> Result<String> {
        let mut shown = String::new();
        if self.whole_mount {
            writeln!(shown, "  ordered fsync: everybody (mounted with fsync=ordered)")?;
        }
        for OrderedProcess { pid, durable_every_ms } in &self.processes {
            write!(shown, "  ordered fsync: process {pid}, ")?;
            match durable_every_ms {
                0 => writeln!(shown, "durable when it was written by age")?,
                millis if millis % 1000 == 0 => writeln!(shown, "durable every {} s", millis / 1000)?,
                millis => writeln!(shown, "durable every {millis} ms")?,
            }
        }
        Ok(shown)
    }
}

/// Runs `status`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mounts = match &arguments.mountpoint {
        Some(mountpoint) => vec![one(mountpoint)?],
        None => all(),
    };
    let shown: Vec<Shown<'_>> = mounts.iter().map(Shown::new).collect();
    if arguments.json {
        json(&shown)?;
        return Ok(Outcome::SUCCESS);
    }
    if mounts.is_empty() {
        text("this user has no fstitch mounts\n")?;
    }
    for shown in &shown {
        text(&describe(shown.mount)?)?;
        if let Some(ordered) = &shown.ordered_fsync {
            text(&ordered.describe()?)?;
        }
    }
    let mut drawn = Vec::new();
    for stack in mounts.iter().filter_map(|mount| mount.stack.as_ref()) {
        if !drawn.contains(&stack.file) {
            text(&stack.draw())?;
            drawn.push(stack.file.clone());
        }
    }
    let failed = mounts.iter().any(|mount| !mount.failure.is_empty());
    Ok(if failed { Outcome::FAILURE } else { Outcome::SUCCESS })
}

/// The mount at `mountpoint`, be its daemon dead or alive.
fn one(mountpoint: &Path) -> Result<Status> {
    if let Some(status) = Connection::to_mount(mountpoint).and_then(|daemon| daemon.status().ok()) {
        return Ok(status);
    }
    match mounts::at(&absolute(mountpoint)) {
        Some(found) if found.is_ours() => Ok(silent(&found)),
        _ => Connection::required(mountpoint)?.status(),
    }
}

/// All mounts of this user: those whose daemons answer, and those that the kernel still has without.
fn all() -> Vec<Status> {
    let mut all = all_mounts();
    let answers = |found: &mounts::Found| all.iter().any(|it| Path::new(&it.mountpoint) == found.mountpoint);
    let unanswered = mounts::of_this_user().into_iter().filter(|found| !answers(found));
    let silent: Vec<Status> = unanswered.filter_map(|found| looked_at_again(&found)).collect();
    all.extend(silent);
    all.sort_by(|a, b| a.mountpoint.cmp(&b.mountpoint));
    all
}

/// A mount that did not answer: one that only begins or ends at this moment is not to be called failed. `None` when it is gone.
fn looked_at_again(found: &mounts::Found) -> Option<Status> {
    for _ in 0..AGAIN {
        match Connection::to_mount(&found.mountpoint) {
            Some(daemon) => return Some(daemon.status().unwrap_or_else(|_| silent(found))),
            None if mounts::at(&found.mountpoint).as_ref() != Some(found) => return None,
            None if found.is_dead() => break,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    }
    Some(silent(found))
}

/// What can be told of a mount whose daemon does not answer.
fn silent(found: &mounts::Found) -> Status {
    Status {
        image: found.source.clone(),
        mountpoint: found.mountpoint.display().to_string(),
        failure: why_silent(found),
        ..Status::default()
    }
}

fn describe(mount: &Status) -> Result<String> {
    let mut shown = String::new();
    if mount.pid == 0 {
        writeln!(shown, "{} on {}\n  FAILED: {}", mount.image, mount.mountpoint, mount.failure)?;
        return Ok(shown);
    }
    let access = if mount.read_only { "read-only" } else { "read-write" };
    writeln!(shown, "{} on {}", mount.image, mount.mountpoint)?;
    writeln!(shown, "  {} {access}, consistency {}, pid {}", mount.format, mount.consistency, mount.pid)?;
    if !mount.transport.is_empty() {
        let late = if mount.writeback_cache {
            ", writes when the kernel passes them on: no patchgroups"
        } else {
            ""
        };
        writeln!(shown, "  requests come by way of {}{late}", mount.transport)?;
    }
    if let Some(awake) = &mount.awake {
        writeln!(shown, "  {}", awake.describe())?;
    }
    writeln!(shown, "  not on the medium yet: {}", crate::size::show(mount.dirty_bytes))?;
    if let Some(journal) = &mount.journal {
        writeln!(
            shown,
            "  journal: {} of {} blocks in use, {} transactions on their way home",
            journal.used_blocks, journal.log_blocks, journal.transactions
        )?;
    }
    if let Some(array) = &mount.array {
        for (cause, _) in array.causes() {
            writeln!(shown, "  DEGRADED: {cause}")?;
        }
        shown.push_str(&array.describe());
    }
    if !mount.recovery.is_empty() {
        writeln!(shown, "  {}", mount.recovery)?;
    }
    if !mount.failure.is_empty() {
        writeln!(shown, "  FAILED: {}", mount.failure)?;
    }
    Ok(shown)
}
