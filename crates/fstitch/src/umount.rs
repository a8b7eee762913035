//! `fstitch umount`: takes a mount away and waits until everything is on the medium.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::UnmountFlags;

use crate::control::client::Connection;
use crate::control::{Request, Response};
use crate::output::{Outcome, spinner};

/// Arguments of `umount`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Take the mount out of sight now even if it is in use; it ends when the last user has gone
    #[arg(short, long)]
    lazy: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Where the volume is mounted
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,
}

/// Runs `umount`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let mountpoint = crate::control::client::absolute(&arguments.mountpoint);
    // The daemon is asked before the mount goes: afterwards its socket may be gone as well.
    let waiting = start_waiting(&mountpoint)?;
    detach(&mountpoint, arguments.lazy)?;
    match waiting {
        Some(connection) if !arguments.lazy => wait(connection, arguments.quiet)?,
        _ => {}
    }
    Ok(Outcome::SUCCESS)
}

fn start_waiting(mountpoint: &Path) -> Result<Option<Connection>> {
    let Some(mut connection) = Connection::to_mount(mountpoint) else {
        return Ok(None);
    };
    match connection.ask(&Request::Wait)? {
        Response::Error(text) => bail!("{text}"),
        _ => Ok(Some(connection)),
    }
}

/// Takes the mount away from the kernel, with the superuser's call or through fusermount3.
fn detach(mountpoint: &Path, lazy: bool) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
        return match rustix::mount::unmount(mountpoint, flags) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::BUSY) => bail!(
                "{} is in use: close what is open there (`fuser -vm {}` lists it), or use --lazy",
                mountpoint.display(),
                mountpoint.display()
            ),
            Err(rustix::io::Errno::INVAL) => bail!("{} is not a mount point", mountpoint.display()),
            Err(error) => Err(error).with_context(|| format!("unmounting {}", mountpoint.display())),
        };
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let status = command
        .arg("--")
        .arg(mountpoint)
        .status()
        .context("running fusermount3, which unprivileged unmounting needs (package fuse3)")?;
    ensure!(status.success(), "fusermount3 could not unmount {}", mountpoint.display());
    Ok(())
}

/// Waits until the daemon has written everything and has gone.
fn wait(mut connection: Connection, quiet: bool) -> Result<()> {
    let display = spinner(quiet);
    let mut last = None;
    while let Some(response) = connection.next()? {
        if let Response::Progress(progress) = &response {
            display.set_message(format!("writing the last {}", crate::size::show(progress.dirty_bytes)));
            display.tick();
        }
        last = Some(response);
    }
    display.finish_and_clear();
    match last {
        Some(Response::Unmounted) => Ok(()),
        Some(Response::Error(text)) => bail!("unmounted, but not everything reached the medium: {text}"),
        _ => bail!(
            "unmounted, but the daemon ended before it had written everything; the volume is consistent, and \
             the next mount continues with what reached the medium"
        ),
    }
}
