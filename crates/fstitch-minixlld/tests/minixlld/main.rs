//! MinixLLD, by what it does.
//!
//! What it prevents: told at the head of each part.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod check;
mod contents;
#[path = "../../../fstitch-fs/tests/fs/driver.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod driver;
mod lab;
mod life;
mod model;
mod names;
#[path = "../../../fstitch-fs/tests/fs/shape.rs"]
mod shape;
mod support;
