//! The generic file system, from outside: the same answers as the model, and the order of its patches.
//!
//! What it prevents: an operation that answers another errno than POSIX asks for, a tree that differs after a
//! remount, and a missing dependency between micro-operations, which only a crash would show.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod crashes;
mod dirsync;
mod driver;
mod earlier;
mod ext2;
mod extents;
mod groups;
mod loopback;
mod marks;
mod moves;
mod orders;
mod parked;
mod prealloc;
mod properties;
mod rig;
mod shape;
mod shifts;
mod threads;
mod toy;
mod ufs;
mod unwritten;
mod waffle;
