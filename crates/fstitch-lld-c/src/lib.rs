//! `libfstitch_lld`: logical disks for C programs. `fstitch_lld.h` describes the calls, `docs/lld.md` is the page for users.
//!
//! ```text
//!   lld_…  ──► boundary: panics, errno, texts, memory of the caller       boundary.rs
//!     │
//!     ├─► handles: a number for whatever is open                          handles.rs
//!     │
//!     ├─► disk, blocks, unit, volumes: the calls                          disk.rs, blocks.rs, unit.rs, volumes.rs
//!     │         │
//!     │       bytes: parts of blocks                                      bytes.rs
//!     ▼         ▼
//!   medium ──► fstitch-lld ──► fstitch-disk                               medium.rs
//! ```
//!
//! This crate owns what C lacks: handles that are looked up before they are used, so that one that was closed is told and not
//! followed; errno and a text for each thread; bytes instead of blocks. It never keeps or orders anything that `fstitch-lld` does not.
//! A panic ends at the boundary, as `ENOTRECOVERABLE`. Its entry points carry unsafe attributes, because a C name may mean something
//! else in another library; what they get from C is checked here, as far as that is possible.
#![allow(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

mod blocks;
mod boundary;
mod bytes;
mod disk;
mod failure;
mod handles;
mod layout;
mod medium;
mod unit;
mod volumes;
