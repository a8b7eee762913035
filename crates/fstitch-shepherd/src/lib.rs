//! What is done when a disk fails, by kind of block. Design: `docs/design/shepherd.md`; paper: I/O shepherding (\[C\]).
//!
//! ```text
//!   text (TOML) ──► Policy: a chain of steps for each kind of block, for reads and writes     policy/
//!                     │
//!                     ├──► Shepherd: carries it out, over a device                           engine/, map/
//!                     ├──► check: what cannot be right is refused, with line and remedy       policy/check.rs
//!                     └──► explain: what will happen when something fails                     model/
//! ```
//!
//! This crate owns policies and what they mean. It never decides where a block lies in a file system, and keeps no order of its own:
//! what must be stable before something else is a patch of the cache above.
//!
//! The engine is compared with the model in every cell (`tests/matrix.rs`). `full-check` and `remount` are carried out by whoever has opened the
//! volume (`Remedy`); where nobody does, a policy that has them is refused by their names.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

pub mod disks;
pub mod engine;
mod map;
pub mod model;
pub mod policy;

pub use disks::Array;
pub use engine::{Era, Options, Remedy, Room, Rules, Shepherd, Stretch};
pub use policy::{BadPolicy, Policy, VolumeFacts};
