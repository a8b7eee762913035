//! What is asked of whoever keeps the order, and the numbers it is asked with.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// A group's number in the scope of this process, from 1. Numbers of closed groups are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupNo(pub u32);

impl fmt::Display for GroupNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// A process with ordered fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderUser {
    /// Its process id, as the mount's server sees it.
    pub pid: u32,
    /// How often what it changed is made stable, in milliseconds; 0 if nothing bounds that.
    pub durable_every_ms: u32,
}

/// Who has ordered fsync on a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OrderUsers {
    /// Everybody has, because it was mounted so; then no processes are listed.
    pub whole_mount: bool,
    /// The processes, sorted by their id.
    pub users: Vec<OrderUser>,
}

/// Calls that answer nothing but success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Depend {
        after: GroupNo,
        before: GroupNo,
    },
    Engage(GroupNo),
    Disengage(GroupNo),
    /// About the file that the call is made on, as the next.
    EngageFile(GroupNo),
    DisengageFile(GroupNo),
    Sync(GroupNo),
    Close(GroupNo),
    OrderBegin {
        every_change: bool,
        durable_every_ms: u32,
    },
    OrderEnd,
}

/// Whoever keeps the order: the mount, or waiting.
pub(crate) trait Calls: Send + Sync + fmt::Debug {
    /// Makes a group on the volume that `on` is open on.
    fn create(&self, on: BorrowedFd<'_>) -> io::Result<GroupNo>;

    /// Makes a call on the volume or file that `on` is open on.
    fn call(&self, on: BorrowedFd<'_>, call: Call) -> io::Result<()>;

    /// Who has ordered fsync on the volume that `on` is open on.
    fn order_users(&self, on: BorrowedFd<'_>) -> io::Result<OrderUsers>;
}
