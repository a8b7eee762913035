//! The disk in the crash laboratory: after a power cut at any moment it is what it was after some of its operations, one behind the
//! other, and not less than was flushed.
//!
//! What it prevents: half a unit, a lost flush, a map that leads to something else, a disk that cannot be opened.
//!
//! CI looks at a sample. `FSTITCH_CRASH_SEEDS=first..end` says how many random programs are cut, and `FSTITCH_CRASH_CHOICES=N` how many
//! states at each cut; with `FSTITCH_CRASH_SEQUENCES=all` every pair of operations is.

#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

mod directed;
mod random;
mod recovery;
mod rig;
mod sequences;
