//! BPFS, by what it does.
//!
//! What it prevents: told at the head of each part.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod crash;
mod damage;
mod directed;
#[path = "../../../fstitch-fs/tests/fs/driver.rs"]
#[allow(dead_code, reason = "other tests use the rest of it")]
mod driver;
mod figure;
mod fsck;
#[path = "support/image.rs"]
mod image;
mod lab;
mod library;
mod log;
mod model;
#[path = "support/device.rs"]
mod on_device;
#[path = "support/operations.rs"]
mod operations;
#[path = "support/rows.rs"]
mod rows;
#[path = "../../../fstitch-fs/tests/fs/shape.rs"]
mod shape;
mod support;
