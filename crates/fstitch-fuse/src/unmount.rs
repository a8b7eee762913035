//! Ending a mount from another thread than those that serve it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

/// Why a mount could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open on it, or a process has its working directory there.
    #[error("{} is in use: close what is open there (`fuser -vm {}` lists it)", .0.display(), .0.display())]
    Busy(PathBuf),
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
    as_root: bool,
    /// Serving has ended, so whatever is mounted at that path now is not ours.
    ended: Arc<AtomicBool>,
}

impl Unmounter {
    pub(crate) fn new(mountpoint: PathBuf, as_root: bool) -> Self {
        Self { mountpoint, as_root, ended: Arc::new(AtomicBool::new(false)) }
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
        self.remove(UnmountFlags::NOFOLLOW)
    }

    /// Takes the mount out of sight at once; serving goes on until the last open file is closed.
    ///
    /// # Errors
    /// As the operating system has it.
    pub fn detach(&self) -> Result<(), UnmountError> {
        self.remove(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
    }

    fn remove(&self, flags: UnmountFlags) -> Result<(), UnmountError> {
        if self.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        if !self.as_root {
            return self.remove_through_helper(flags.contains(UnmountFlags::DETACH));
        }
        match rustix::mount::unmount(&self.mountpoint, flags) {
            // EINVAL and ENOENT: nothing is mounted there any more.
            Ok(()) | Err(Os::INVAL | Os::NOENT) => Ok(()),
            Err(Os::BUSY) => Err(UnmountError::Busy(self.mountpoint.clone())),
            Err(e) => Err(self.failed(e.to_string())),
        }
    }

    fn remove_through_helper(&self, detach: bool) -> Result<(), UnmountError> {
        let mut command = Command::new("fusermount3");
        command.arg("-u").args(detach.then_some("-z")).arg("--").arg(&self.mountpoint);
        let output = command.output().map_err(|e| self.failed(format!("starting fusermount3: {e}")))?;
        if output.status.success() || crate::kernel::find_mount(&self.mountpoint).is_none() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(if said.contains("busy") {
            UnmountError::Busy(self.mountpoint.clone())
        } else {
            self.failed(said)
        })
    }

    fn failed(&self, reason: String) -> UnmountError {
        UnmountError::Failed { mountpoint: self.mountpoint.clone(), reason }
    }
}
