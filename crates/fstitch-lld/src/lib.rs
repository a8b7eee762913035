//! A logical disk: blocks and lists in a log, with concurrent atomic recovery units. Design: `docs/design/lld.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

mod chunk;
mod pages;
mod record;
mod state;
mod tree;

pub use record::{BlockId, Label, ListId};
