//! BPFS: a file system in byte-addressable persistent memory, of which every operation is atomic, in order, and durable when it returns,
//! without a cache of blocks, a journal of operations, or a check after a crash (\[D\], C. Frost's dissertation of 2010, chapter 3).
//! Design: `docs/design/bpfs.md`.
//!
//! It owns the tree of blocks, how little of it is copied for a change, and the gate through which each store goes. It never caches
//! contents, never repairs, and knows no patches (\[D\] §3.1 says why).
//!
//! ```text
//!   posix     FileSystem                    check     what a bug would leave; fsck what damage has left
//!     │
//!   names  data  attr  xattr                the operations, each of which is a change
//!     │
//!   change    what is to be different, and the one commit that makes it so
//!   dir       names in entries              volume    mount, locks, references
//!     │                                     scan      what a mount finds out
//!   tree  inode  layout                     where everything is
//!     ▼
//!   pm        the gate: Fresh, Hidden, Fenced, Committed
//!     │
//!   log       on a device: lines in groups, flushes, homes
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]
#![deny(unsafe_code)]

mod attr;
mod change;
mod check;
mod data;
mod device;
mod dir;
mod few;
mod fsck;
mod inode;
mod layout;
mod library;
mod log;
mod names;
#[allow(unsafe_code, reason = "the mapping, and the instructions that write lines back")]
pub mod pm;
mod posix;
mod scan;
mod state;
mod tree;
mod volume;
mod xattr;

pub use device::{identify_on, mkfs_on, probe, recover_on, rename_on};
pub use fsck::fsck;
pub use layout::Identity;
pub use log::{LogCounts, Recovered};
pub use pm::{Caching, Counts, Durability, Medium, Watch};
pub use state::Optimizations;
pub use volume::{Bpfs, MkfsOptions, Options, identify, mkfs};
