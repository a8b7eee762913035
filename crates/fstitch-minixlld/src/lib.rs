//! MinixLLD: a file system of Minix's kind on a logical disk (\[A\] §5.1), in which **every operation is one atomic recovery unit**.
//! Design: `docs/design/minixlld.md`.
//!
//! It owns what inodes and directories are, as lists of the disk. It never orders writes, repairs anything, or knows where a block is:
//! after a power cut the tree is what it was after some of its operations, one behind the other, and not before the last sync.
//!
//! ```text
//!   posix      FileSystem                      check      what a bug would leave
//!     │
//!   make  remove  data  extent  attr  xattr    the operations, each of which is a change
//!     │
//!   change     one unit: blocks and inodes as it has them so far
//!   dir        names in leaves                 volume     mount, locks, references
//!     │
//!   blocks     metadata by list and position   layout  inode  leaf    bytes
//!     ▼
//!   fstitch_lld::Disk
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

mod attr;
mod blocks;
mod change;
mod check;
mod data;
mod dir;
mod extent;
mod inode;
mod layout;
mod leaf;
mod make;
mod posix;
mod remove;
mod space;
mod volume;
mod work;
mod xattr;

pub use layout::Volume;
pub use volume::{MinixLld, MkfsOptions, Options, identify, mkfs};
