//! The ext2 format.
//!
//! ```text
//!   low ── LowLevelFs, one line each
//!    ├─ volume ── superblock, counters, features, state
//!    ├─ groups ── own (what is the volume's), unwritten, bitmap, pending ─ alloc (blocks), orlov (inodes); prealloc, windows
//!    ├─ inode ── attr, life (beginning and end), blockmap ─ attach, detach; extents; inline
//!    ├─ dir ── find, add, change, index, unindex
//!    └─ xattr ── acl
//!   seal ── the sums of all that has sums
//!   journal ── recovery before anything else: replay, orphans
//!   identity ── label and UUID of a volume that is not in use; resize ── growing one; tuning ── its features and settings
//!   clusters ── blocks that are taken several at a time
//!   quota ── what users, groups and projects have
//!   file_map ── where the blocks of a file lie
//!   reclaim ── what a crash has left, while the volume is in use; leftovers: what that can be
//!   layout ── bytes and their meaning; times, device: values in them
//! ```
//!
//! This module owns the format's validity and the orderings inside each micro-operation; the orderings between
//! them are `uhfs`'s. All of them stand in `docs/design/ext2-soft-updates.md`. It never waits for a patch, never
//! flushes (but once, to mark the volume as in use), and does not know what consistency mechanism is in force.

mod acl;
mod alloc;
mod attach;
mod attr;
mod bitmap;
mod blockmap;
pub mod check;
mod clusters;
mod detach;
pub mod device;
mod dir;
mod extents;
pub mod file_map;
mod groups;
pub mod identity;
mod inline;
mod inode;
pub mod journal;
mod journaled;
pub mod layout;
pub(crate) mod leftovers;
mod life;
mod low;
mod memory;
pub mod mkfs;
pub mod mmp;
mod moved;
mod newmap;
mod offline;
mod online;
mod orlov;
mod own;
mod prealloc;
pub mod quota;
mod reclaim;
pub mod resize;
mod runs;
mod seal;
mod source;
pub mod times;
pub mod tuning;
mod unwritten;
mod values;
mod volume;
mod windows;
mod xattr;

pub(crate) use crate::num;
pub use inode::Inode;
pub use source::BlockSource;
pub use volume::Ext2;
