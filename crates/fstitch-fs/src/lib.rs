//! File systems over patches.
//!
//! ```text
//!   FileSystem (fstitch-core)        what FUSE and the command line call
//!        │
//!   Uhfs<L>                          POSIX operations, locks, references, soft-updates order between micro-operations
//!        │
//!   LowLevelFs                       micro-operations: allocate, initialise, attach, name, …
//!        │
//!   ext2                             layout, validity rules, patches
//!        │
//!   Cache, Tx (fstitch-patch)        blocks and patches ◄── Loopback: a file whose blocks are a volume of their own
//! ```
#![forbid(unsafe_code)]

mod appended;
pub mod arrange;
mod bits;
pub mod ext2;
mod gather;
pub mod loopback;
pub mod model;
mod name_index;
mod num;
mod pending;
pub mod ufs;
pub mod uhfs;
mod unstable;
pub mod view;
pub mod waffle;
