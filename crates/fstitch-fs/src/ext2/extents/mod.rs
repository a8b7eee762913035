//! The block map by extents, which inodes with the flag `EXTENTS` have: the second answer to the questions of `blockmap`,
//! `attach` and `detach`.
//!
//! ```text
//!   map ─────── where a file block is
//!   attach ──── giving blocks to files; written: blocks that get contents later
//!   detach ──── taking them
//!    └─ change ── from a changed tree to patches
//!        └─ tree ── operations in memory, on nodes (layout::extent)
//!   walk ────── all of a map, whoever reads its nodes
//! ```
//!
//! **Layout.** See `layout::extent`. New nodes come from the group's end, like indirect blocks.
//!
//! **Orderings.** An extent in the middle of a node is put in by moving those behind it, so one change is many bytes of a
//! block, and often several blocks. No order of patches keeps that right if only a part of it reaches the medium. So files have extents
//! only where a journal is kept: what an operation changes is one step, and each step is whole in a transaction. Within it nothing
//! is ordered but what others rely on:
//! - whatever points at blocks → their contents and their bits in the free map, as for pointers: `ordered` promises that no
//!   file ever shows what was not written to it;
//! - a bit in the free map is cleared → the change of the node that pointed at the block.
//!
//! **Invariants.** Those of [`tree`], and: blocks behind a file's end are unwritten, for whoever checks takes written ones for lost.
//!
//! **Crash cases.** None within a step. Between the steps of a truncation the list of orphans says what is left to be done.

mod attach;
mod change;
mod detach;
mod map;
mod node;
pub(super) mod tree;
pub(super) mod walk;
mod written;

pub(super) use change::root_over;
pub(super) use map::{NodeHint, expected as expected_node};
pub(super) use node::new_root;
