//! Patches and the buffer cache: every change to a disk block carries the changes that must be stable first.
#![forbid(unsafe_code)]

mod api;
pub use api::*;
