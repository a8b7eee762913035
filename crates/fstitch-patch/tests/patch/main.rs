//! The patch graph, its cache and its journal, by what they do.
//!
//! What it prevents: told at the head of each part.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod cache;
mod fast;
mod flusher;
mod groups;
mod journal;
mod journaled;
mod log_bytes;
mod medium;
mod races;
mod refusing;
mod seal;
mod seal_owners;
mod sealed_crashes;
mod volumes;
mod watch;
