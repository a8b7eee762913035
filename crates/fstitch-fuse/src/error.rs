//! What can keep a mount from happening or from ending well, in words that name the remedy.

use std::path::PathBuf;

/// A failure to mount, to serve, or to finish.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The kernel has no FUSE, or this container hides it.
    #[error(
        "/dev/fuse does not exist: load the kernel module (modprobe fuse), or in a container pass --device /dev/fuse"
    )]
    NoFuseDevice,
    /// `/dev/fuse` is closed to this user.
    #[error(
        "/dev/fuse may not be opened by this user: an administrator can allow it with `chmod 666 /dev/fuse`, or mount as root"
    )]
    FuseDeviceForbidden,
    /// The helper that mounts for unprivileged users is missing.
    #[error("fusermount3 is not installed, and only root can mount without it: install the package `fuse3`")]
    NoFusermount,
    /// The helper refused.
    #[error("fusermount3 refused to mount: {0}")]
    Fusermount(String),
    /// `allow_other` needs the administrator's consent.
    #[error(
        "allow_other is reserved to root here: an administrator can permit it with a line `user_allow_other` in /etc/fuse.conf"
    )]
    AllowOtherForbidden,
    /// io_uring was demanded and cannot be had.
    #[error("{0}; without `transport=io_uring` requests come through /dev/fuse")]
    NoIoUring(String),
    /// The mount point does not exist.
    #[error("the mount point {} does not exist", .0.display())]
    NoMountpoint(PathBuf),
    /// The mount point is not a directory.
    #[error("the mount point {} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    /// The mount point is what a killed server left behind.
    #[error("{p} is a mount whose server has died: remove it first with `umount {p}` or `fusermount3 -u {p}`", p = .0.display())]
    DeadMount(PathBuf),
    /// One of our file systems is mounted there already.
    #[error("a fstitch file system is already mounted on {}", .0.display())]
    AlreadyMounted(PathBuf),
    /// An option is unknown or malformed.
    #[error("mount option {0}")]
    Option(String),
    /// `fsync=ordered` was asked for where there is no order.
    #[error(
        "fsync=ordered is not possible on this volume: {0}; `consistency=async` and `sync` keep no order"
    )]
    Order(fstitch_core::Error),
    /// Mounting was not permitted.
    #[error("mounting on {} is not permitted: the process is root but lacks CAP_SYS_ADMIN (in a container: --cap-add SYS_ADMIN)", .0.display())]
    NotPermitted(PathBuf),
    /// Another failure of the operating system.
    #[error("{what}: {source}")]
    System {
        /// What was attempted.
        what: String,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// Serving ended with an error; the file system was finished nevertheless, as far as it could be.
    #[error("serving requests failed: {0}")]
    Session(std::io::Error),
    /// The file system could not be made stable at the end.
    #[error("the volume could not be finished: {0}")]
    Finish(fstitch_core::Error),
}

impl MountError {
    /// A failure of a system call.
    pub(crate) fn system(what: impl Into<String>, source: impl Into<std::io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }
}
