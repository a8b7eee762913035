//! `fstitch umount`: takes a mount away and waits until everything is on the medium.

mod holders;

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fstitch_core::{Clock, SystemClock};
use fstitch_fuse::{UnmountError, remove_mount};

use crate::control::client::{Connection, all_mounts};
use crate::control::stack::{StackStatus, VolumeState};
use crate::control::{Request, Response};
use crate::mounts;
use crate::output::{Outcome, spinner};

use self::holders::{Device, Holders};

/// The mount is gone from here, and somebody else still has it.
const HELD: Outcome = Outcome(3);

/// How long a mount may take to end before it is looked who may still have it.
const LOOK_AFTER: Duration = Duration::from_secs(1);

const EXIT_STATUS: &str = "\
A process in a mount namespace of its own (a container, `unshare -m`) may have a copy of the mount. It is gone from here
then, but the volume stays in use until that process ends or unmounts it: this command says who it is, and waits.

Exit status: 0 unmounted, and everything is on the medium; 1 failed, or not everything reached the medium; 2 wrong usage;
3 gone from here, but still in use elsewhere after --timeout.";

/// Arguments of `umount`.
#[derive(clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub struct Arguments {
    /// Take the mount out of sight now even if it is in use; it ends when the last user has gone
    #[arg(short, long)]
    lazy: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Wait no longer than this, such as 30s, until everything is on the medium
    #[arg(long, value_name = "TIME", value_parser = crate::size::duration, conflicts_with = "lazy")]
    timeout: Option<Duration>,
    /// Unmount all volumes of a stack, inner ones first; named by any of its mount points or by the stack file
    #[arg(long, conflicts_with = "lazy")]
    stack: bool,
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
}

/// Runs `umount`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if arguments.stack {
        return unmount_stack(arguments);
    }
    let mountpoint = crate::control::client::absolute(&arguments.mountpoint);
    if !arguments.lazy {
        refuse_with_inner(&mountpoint)?;
    }
    require_ours(&mountpoint)?;
    // The daemon is asked before the mount goes: afterwards its socket may be gone as well.
    let waiting = start_waiting(&mountpoint)?;
    let wait = Wait::new(&mountpoint, arguments);
    detach(&mountpoint, arguments.lazy)?;
    match waiting {
        Some(connection) if !arguments.lazy => wait.until_written(connection),
        _ => Ok(Outcome::SUCCESS),
    }
}

/// Refuses to take away what others have mounted: that is for umount(8).
fn require_ours(mountpoint: &Path) -> Result<()> {
    let shown = mountpoint.display();
    match mounts::at(mountpoint) {
        Some(found) if found.is_ours() => Ok(()),
        Some(found) => {
            bail!(
                "{shown} is a mount of {} ({}), not of fstitch: umount(8) takes it away",
                found.kind,
                found.source
            )
        }
        None => match crate::open::mounted_at(mountpoint) {
            Some(at) => bail!("{shown} is not a mount point; it is mounted at {at}: `fstitch umount {at}`"),
            None => bail!("{shown} is not a mount point: `fstitch status` lists this user's mounts"),
        },
    }
}

/// Refuses to take a volume away in which others of its stack are mounted: it could not be closed.
fn refuse_with_inner(mountpoint: &Path) -> Result<()> {
    let Some(status) = Connection::to_mount(mountpoint).map(Connection::status).transpose()? else {
        return Ok(());
    };
    let Some(stack) = &status.stack else { return Ok(()) };
    let inner = stack.open_in(&stack.volume).into_iter();
    let mounted = inner.filter(|volume| volume.state == VolumeState::Open);
    let places: Vec<&str> = mounted.filter_map(|volume| volume.mountpoint.as_deref()).collect();
    ensure!(
        places.is_empty(),
        "{} holds volumes that are mounted at {}: unmount those first, or everything with `fstitch umount --stack {}`",
        mountpoint.display(),
        places.join(", "),
        mountpoint.display()
    );
    Ok(())
}

/// Unmounts all volumes of a stack, and waits after each until it is closed.
fn unmount_stack(arguments: &Arguments) -> Result<Outcome> {
    let stack = find_stack(&arguments.mountpoint)?;
    let mut left = stack.to_unmount();
    let mut ended = Ok(Outcome::SUCCESS);
    while !left.is_empty() {
        let next = PathBuf::from(&left[0]);
        let waiting = start_waiting(&next)?;
        let wait = Wait::new(&next, arguments);
        detach(&next, false).with_context(|| format!("still mounted of the stack: {}", left.join(", ")))?;
        // A volume that could not be written keeps no other one mounted.
        left.remove(0);
        let waited = waiting.map_or(Ok(Outcome::SUCCESS), |waiting| wait.until_written(waiting));
        if matches!(waited, Ok(HELD)) {
            // What it lies in cannot be closed before it.
            return Ok(HELD);
        }
        ended = ended.and(waited.with_context(|| next.display().to_string()));
    }
    ended
}

/// The running stack that a stack file describes, or one of its mount points belongs to.
fn find_stack(what: &Path) -> Result<StackStatus> {
    if !what.is_file() {
        let status = Connection::required(what)?.status()?;
        return status.stack.with_context(|| format!("{} is not part of a stack", what.display()));
    }
    let file = what.canonicalize()?.display().to_string();
    let stacks = all_mounts().into_iter().filter_map(|status| status.stack);
    let found = stacks.into_iter().find(|stack| stack.file == file);
    found.with_context(|| {
        format!("no stack of {} is mounted: `fstitch status` lists this user's", what.display())
    })
}

fn start_waiting(mountpoint: &Path) -> Result<Option<Connection>> {
    for _ in 0..DYING.0 {
        let Some(mut connection) = Connection::to_mount(mountpoint) else {
            return Ok(None);
        };
        match connection.ask(&Request::Wait) {
            Ok(Response::Error(text)) => bail!("{text}"),
            Ok(_) => return Ok(Some(connection)),
            // One that was just killed takes connections for a moment, and answers none.
            Err(error) => tracing::debug!("{error:#}"),
        }
        thread::sleep(DYING.1);
    }
    bail!("the mount's daemon takes connections and does not answer");
}

/// How often a daemon is asked again that closes a connection without an answer, and how long after one another.
const DYING: (u32, Duration) = (100, Duration::from_millis(20));

/// How often a mount in use is tried again, and how long after one another: a process that just closed its files may have
/// started another one, which shares them until it runs its own program, and one that is ending closes them soon.
const AGAIN: (u32, Duration) = (100, Duration::from_millis(10));

/// Takes the mount away from the kernel, with the superuser's call or through fusermount3.
fn detach(mountpoint: &Path, lazy: bool) -> Result<()> {
    for _ in 0..AGAIN.0 {
        match remove_mount(mountpoint, lazy) {
            Err(UnmountError::Busy(_)) => thread::sleep(AGAIN.1),
            other => return other.map_err(Into::into),
        }
    }
    remove_mount(mountpoint, lazy).map_err(|e| match e {
        UnmountError::Busy(_) => anyhow!("{e}, or use --lazy"),
        other => other.into(),
    })
}

/// Waiting for the end of a mount that is gone from here.
struct Wait<'a> {
    mountpoint: &'a Path,
    device: Option<Device>,
    timeout: Option<Duration>,
    quiet: bool,
}

impl<'a> Wait<'a> {
    /// To be made while the mount is still there.
    fn new(mountpoint: &'a Path, arguments: &Arguments) -> Self {
        let device = Device::at(mountpoint);
        Self { mountpoint, device, timeout: arguments.timeout, quiet: arguments.quiet }
    }

    /// Waits until the daemon has written everything and has gone.
    fn until_written(&self, mut connection: Connection) -> Result<Outcome> {
        let display = spinner(self.quiet);
        let (clock, mut looked) = (SystemClock::new(), false);
        let mut last = None;
        // Twice a second, if nothing else is to be told.
        while let Some(response) = connection.next()? {
            if let Response::Progress(progress) = &response {
                display.set_message(format!("writing the last {}", crate::size::show(progress.dirty_bytes)));
                display.tick();
                if clock.elapsed() >= LOOK_AFTER && !std::mem::replace(&mut looked, true) {
                    display.suspend(|| self.tell_holders());
                }
                if self.timeout.is_some_and(|limit| clock.elapsed() >= limit) {
                    display.finish_and_clear();
                    return self.give_up();
                }
            }
            last = Some(response);
        }
        display.finish_and_clear();
        match last {
            Some(Response::Unmounted) => Ok(Outcome::SUCCESS),
            Some(Response::Error(text)) => bail!("unmounted, but not everything reached the medium: {text}"),
            _ => bail!(
                "unmounted, but the daemon ended before it had written everything; the volume is consistent, and \
                 the next mount continues with what reached the medium"
            ),
        }
    }

    fn holders(&self) -> Holders {
        self.device.as_ref().map(Holders::of).unwrap_or_default()
    }

    /// Says who else has the mount, if somebody has.
    fn tell_holders(&self) {
        let holders = self.holders();
        if !holders.is_empty() && !self.quiet {
            let place = self.mountpoint.display();
            eprintln!(
                "fstitch: {place} is gone from here, but another mount namespace still has it: {holders}; waiting until \
                 it goes there too (--lazy does not wait, --timeout not for ever)"
            );
        }
    }

    fn give_up(&self) -> Result<Outcome> {
        let (place, holders) = (self.mountpoint.display(), self.holders());
        let why = if holders.is_empty() {
            "its daemon is still writing, or a mount namespace that /proc does not show still has it"
                .to_owned()
        } else {
            format!("another mount namespace still has it: {holders}")
        };
        eprintln!("fstitch: {place} is gone from here, but {why}; its daemon goes on");
        Ok(HELD)
    }
}
