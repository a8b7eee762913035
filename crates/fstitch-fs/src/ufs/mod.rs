//! The UFS format, of both versions and byte orders.
//!
//! ```text
//!   low ── LowLevelFs, one line each
//!    ├─ life, attr ── inodes: their beginning and end, what is in them; xattr
//!    ├─ map, path, attach, detach, late, tail ── the fragments of a file: where they lie, come, go, and grow
//!    ├─ dir, names ── names: along the entries; making, clearing, replacing them
//!    ├─ alloc, inodes ── what is taken and given back, in groups
//!    └─ volume, using ── superblock, inodes in memory; the beginning and the end of a volume's use
//!   memory ── what is remembered of patches that are not stable
//!   check ── what is on a volume, compared with what it says of itself, and mended; mkfs ── a new one
//!   layout ── bytes and their meaning; order: which byte comes first
//! ```
//!
//! **Layout.** `docs/spec/ufs.md`. A block of the cache is a *fragment*: addresses count them, and a file ends with some. What other
//! formats call a block, and the generic file system too, is a fragment here; the BSDs' blocks are runs of them.
//!
//! **Orderings.** Each module has its own; all of them are in `docs/design/ufs.md`.

mod alloc;
mod attach;
mod attr;
pub mod check;
mod detach;
mod dir;
mod groups;
mod hashes;
pub mod identity;
mod inodes;
mod late;
pub mod layout;
mod life;
mod low;
mod map;
mod memory;
pub mod mkfs;
mod names;
pub mod order;
mod path;
mod tail;
mod using;
mod volume;
mod xattr;

pub use volume::{Inode, Ufs, may_be_written};

use fstitch_core::{Error, Structure};

/// An inode is damaged.
fn damaged_inode(ino: u32, problem: String) -> Error {
    Error::corrupt(Structure::Inode(u64::from(ino)), None, problem)
}
