//! Real media: image files and block devices as [`fstitch_core::BlockDevice`].
//!
//! ```text
//!    BlockRead / BlockWrite batches
//!              │
//!        ┌─────▼─────┐   bounds, read-only, bounce buffers
//!        │ FileDisk  │
//!        └─────┬─────┘
//!        ┌─────▼─────┐   sorted blocks joined into vectored requests
//!        │   plan    │
//!        └─────┬─────┘
//!        ┌─────▼─────┐   several requests      ┌──────┐
//!        │  engine   ├────────────────────────►│ ring │  io_uring
//!        └─────┬─────┘                         └──────┘
//!              │ one request, or the rest of an incomplete one
//!        ┌─────▼─────┐
//!        │    sys    │  preadv, pwritev, fdatasync, locks, ioctls
//!        └───────────┘
//! ```
//!
//! This crate owns the path from a batch of blocks to the kernel, the choice between direct and cached I/O,
//! and the protection against two writers. It never caches a block, never orders writes except by `flush`,
//! and never decides what to do about a failure. What is assumed of a medium stands in `docs/medium.md`.
//!
//! Unsafe code is confined to two modules: `sys` (system calls without a safe wrapper) and `ring`.
#![deny(unsafe_code)]

mod bounce;
mod disk;
mod engine;
mod lock;
mod medium;
mod memory;
mod mode;
mod options;
mod partitions;
mod plan;
mod ring;
mod stripe;
mod sys;
mod users;

pub use disk::{FileDisk, probe};
pub use memory::available_memory;
pub use options::{Direct, DiskOptions, Uring};
pub use partitions::{TableEntry, partitions};
pub use stripe::{STRIPE_DATA, STRIPE_DISKS_MAX, STRIPE_LABEL, STRIPE_UNITS, Stripe, StripeLabel};
pub use sys::enter_idle_class;
