//! The UFS format, of both versions and byte orders.
//!
//! ```text
//!   low ── LowLevelFs, one line each
//!    ├─ volume ── superblock, inodes
//!    ├─ map ── where the fragments of a file lie
//!    ├─ dir ── names
//!    └─ xattr
//!   check ── what is on a volume, compared with what it says of itself
//!   layout ── bytes and their meaning; order: which byte comes first
//! ```
//!
//! **Layout.** `docs/spec/ufs.md`. A block of the cache is a *fragment*: addresses count them, and a file ends with some. What other
//! formats call a block, and the generic file system too, is a fragment here; the BSDs' blocks are runs of them.
//!
//! Volumes are read. Nothing changes them yet, and opening one to be changed is refused.

pub mod check;
mod dir;
pub mod layout;
mod low;
mod map;
pub mod order;
mod volume;
mod xattr;

pub use volume::{Inode, Ufs};

use fstitch_core::{Error, Structure};

/// An inode is damaged.
fn damaged_inode(ino: u32, problem: String) -> Error {
    Error::corrupt(Structure::Inode(u64::from(ino)), None, problem)
}
