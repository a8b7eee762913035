//! Patches and the buffer cache: every change to a disk block carries the changes that must be stable first.
//!
//! ```text
//!   file system ──► Cache ── reserve ── read ── lock ─► Tx ── bytes, bits, init, empty ──► Graph
//!                     │                                                                      │
//!                     └── sync_patches, sync_all ──► step: launch ─► write, flush ─► commit ──┘
//!                                                              │
//!                                                   Medium: a BlockDevice, or a layer above some
//! ```
//!
//! This crate owns ordering. It knows no file system, and it never writes a block whose dependencies are not
//! stable. Design, invariants and crash cases: `docs/design/patch.md`.
#![forbid(unsafe_code)]

mod cache;
mod graph;
mod id;
pub mod journal;
mod observer;
mod options;
mod patchgroup;
mod stats;
pub mod view;

pub use cache::{
    Bitmap, Block, Blocks, Cache, Exception, Fate, Handle, JournalConfig, JournalStatus, Linear, Medium,
    Numbers, Pieces, Placement, Seal, Snapshots, Spot, Tx, VolumeDevice, VolumeOptions,
};
pub use id::{PatchId, PatchIds, PatchState};
pub use observer::{Event, Observer, What};
pub use options::{CacheOptions, Durability, JournalMode, Optimizations, Ordering};
pub use stats::Stats;
pub use view::View;
