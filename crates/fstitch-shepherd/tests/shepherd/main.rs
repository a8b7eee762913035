//! Policies, their maps and their disks, by what they do.
//!
//! What it prevents: told at the head of each part.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod arrays;
mod crash;
mod degraded;
mod directed;
mod disks;
mod machine;
mod maps;
mod matrix;
mod matrix_disks;
mod meanwhile;
mod moved;
mod parity;
mod remedies;
mod search;
mod small;
