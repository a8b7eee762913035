//! Ending a mount from another thread than those that serve it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use crate::kernel::{find_mount, is_root};

/// Why a mount could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open on it, or a process has its working directory there.
    #[error("{} is in use: close what is open there (`fuser -vm {}` lists it)", .0.display(), .0.display())]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("{} is not a mount point", .0.display())]
    NotMounted(PathBuf),
    /// Anything else.
    #[error("unmounting {}: {reason}", mountpoint.display())]
    Failed {
        /// The mount point.
        mountpoint: PathBuf,
        /// The operating system's or the helper's reason.
        reason: String,
    },
}

/// Removes a mount; works from any thread but the serving ones. Once the mount is gone, [`crate::Mount::run`]
/// finishes the file system and returns.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mountpoint: PathBuf,
    /// Serving has ended, so whatever is mounted at that path now is not ours.
    ended: Arc<AtomicBool>,
}

impl Unmounter {
    pub(crate) fn new(mountpoint: PathBuf) -> Self {
        Self { mountpoint, ended: Arc::new(AtomicBool::new(false)) }
    }

    /// Remembers that the mount is gone.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Where it is mounted.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Removes the mount if nobody uses it.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] while files are open there; nothing has changed then.
    pub fn unmount(&self) -> Result<(), UnmountError> {
        self.remove(false)
    }

    /// Takes the mount out of sight at once; serving goes on until the last open file is closed.
    ///
    /// # Errors
    /// As the operating system has it.
    pub fn detach(&self) -> Result<(), UnmountError> {
        self.remove(true)
    }

    /// Takes the mount out of sight and ends the connection, so that whoever waits for an answer gets an error. Without root's
    /// rights only the first.
    ///
    /// # Errors
    /// As the operating system has it.
    pub(crate) fn abort(&self) -> Result<(), UnmountError> {
        if is_root() && !self.ended.load(Ordering::Acquire) {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            if rustix::mount::unmount(&self.mountpoint, flags).is_ok() {
                return Ok(());
            }
        }
        self.detach()
    }

    fn remove(&self, lazy: bool) -> Result<(), UnmountError> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        match remove_mount(&self.mountpoint, lazy) {
            Err(UnmountError::NotMounted(_)) => Ok(()),
            other => other,
        }
    }
}

/// Removes a mount that any process serves; with `lazy` it goes out of sight even while it is in use, and ends when
/// the last user has gone.
///
/// # Errors
/// [`UnmountError`]; nothing has changed then.
pub fn remove_mount(mountpoint: &Path, lazy: bool) -> Result<(), UnmountError> {
    if !is_root() {
        return remove_through_helper(mountpoint, lazy);
    }
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(mountpoint, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(Os::INVAL | Os::NOENT) => Err(UnmountError::NotMounted(mountpoint.to_owned())),
        Err(Os::BUSY) => Err(UnmountError::Busy(mountpoint.to_owned())),
        Err(e) => Err(failed(mountpoint, e.to_string())),
    }
}

fn remove_through_helper(mountpoint: &Path, lazy: bool) -> Result<(), UnmountError> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(mountpoint);
    let output = command.output().map_err(|e| {
        failed(mountpoint, format!("starting fusermount3, which this needs (package fuse3): {e}"))
    })?;
    if output.status.success() {
        return Ok(());
    }
    if find_mount(mountpoint).is_none() {
        return Err(UnmountError::NotMounted(mountpoint.to_owned()));
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(UnmountError::Busy(mountpoint.to_owned()));
    }
    Err(failed(mountpoint, said))
}

fn failed(mountpoint: &Path, reason: String) -> UnmountError {
    UnmountError::Failed { mountpoint: mountpoint.to_owned(), reason }
}
