//! The logical disk, by what it does.
//!
//! What it prevents: told at the head of each part.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod cleaner;
mod damage;
mod disk;
mod format;
mod sparse;
mod threads;
mod units;
mod volumes;
mod walk;
