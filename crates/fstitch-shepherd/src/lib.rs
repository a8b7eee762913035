//! What is done when a disk fails, by kind of block. Design: `docs/design/shepherd.md`; paper: I/O shepherding ([C]).
//!
//! ```text
//!   text (TOML) ──► Policy: a chain of steps for each kind of block, for reads and writes     policy/
//!                     │
//!                     ├──► check: what cannot be right is refused, with line and remedy       policy/check.rs
//!                     └──► explain: what will happen when something fails                     model/
//! ```
//!
//! This crate owns policies and what they mean. It never decides where a block lies in a file system, and keeps no order of its own:
//! what must be stable before something else is a patch of the cache above.
//!
//! So far it holds the policies and the model that says what they do; the engine that carries them out is built to this model and
//! compared with it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

pub mod model;
pub mod policy;

pub use policy::{BadPolicy, Policy, VolumeFacts};
