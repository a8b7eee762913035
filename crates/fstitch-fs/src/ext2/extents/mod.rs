//! The block map by extents, which inodes with the flag `EXTENTS` have: the second answer to the questions of `blockmap`,
//! `attach` and `detach`.
//!
//! ```text
//!   map ─────── where a file block is
//!   attach ──── giving blocks to files; written: blocks that get contents later
//!   detach ──── taking them; replace: other blocks in place of some
//!   shift ───── moving them in the file
//!    └─ change ── from a changed tree to patches; copy, ends: without a journal
//!        └─ tree ── operations in memory, on nodes (layout::extent)
//!   walk ────── all of a map, whoever reads its nodes
//! ```
//!
//! **Layout.** See `layout::extent`. New nodes come from the group's end, like indirect blocks.
//!
//! **Orderings.** An extent in the middle of a node is put in by moving those behind it, so one change is many bytes of a
//! block, and often several blocks. With a journal, what an operation changes is one step, and each step is whole in a
//! transaction. Without one, a node that the medium comes to is changed only where that is right alone, and else copied
//! ([`copy`]; `docs/design/ext4-soft.md`). In both cases:
//! - whatever points at blocks → their contents and their bits in the free map, as for pointers: `ordered` promises that no
//!   file ever shows what was not written to it;
//! - a bit in the free map is cleared → the change of the node that pointed at the block.
//!
//! **Invariants.** Those of [`tree`], and: blocks behind a file's end are unwritten, for whoever checks takes written ones for lost.
//! Without a journal no extent of a node lies across a place where the file may end on the medium ([`ends`]).
//!
//! **Crash cases.** With a journal none within a step: between the steps of a truncation the list of orphans says what is left to
//! be done. Without one: leaked blocks, written blocks behind the file's end, and part of a range punched or marked.

mod attach;
mod change;
mod copy;
mod detach;
mod ends;
mod map;
mod node;
mod replace;
mod shift;
pub(super) mod tree;
pub(super) mod walk;
mod written;

pub(super) use change::root_over;
pub(super) use ends::Ends;
pub(super) use map::{NodeHint, expected as expected_node};
pub(super) use node::new_root;
