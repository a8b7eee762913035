//! Failing media under the cache and ext2: a census of injected errors.
//!
//! What it prevents: an error of the medium that nobody is told about, an fsync that reports success for data
//! which are gone, a volume that is marked clean after a failed write, and a failure that leaves what no crash may.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod census;
mod dishonest;
mod families;
mod silent;
mod volume;
