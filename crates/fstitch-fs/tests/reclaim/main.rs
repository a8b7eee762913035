//! The reclaimer on volumes that were not unmounted and are damaged as well: it frees only what a crash of soft updates
//! can have left, and keeps its hands off everything else.
//!
//! What it prevents: that mounting a damaged volume loses files which a repair would have kept, writes into blocks that
//! belong to others, or marks the volume clean.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod damaged;
mod lost;
mod random;
mod support;
