//! The FUSE front end over the reference file system, seen through system calls. These tests keep the
//! translation of requests, errors and attributes faithful, and the kernel's caches right.
#![expect(clippy::unwrap_used, reason = "these are tests, their helpers included")]

mod attributes;
mod cached;
mod data;
mod groups;
mod harness;
mod life;
mod names;
mod panics;
mod privileges;
mod spy;
mod table;
mod waiting;
