//! The journal: transactions on the medium in the format of ext3 (JBD), and of ext4 (JBD2) for reading.
//!
//! ```text
//!   superblock │ descriptor copy copy … revoke … commit │ descriptor copy … commit │ …
//!      0       │ s_first                                                    s_maxlen │ and around
//! ```
//!
//! This module knows no file system. Whoever calls it says where the journal's blocks are ([`Area`]) and where
//! its copies go home to (any `BlockDevice`). Format: `docs/spec/jbd.md`.
//!
//! - [`format`](mod@format), [`blocks`]: bytes and their meaning, both ways; [`checksum`].
//! - [`Log`]: a journal on a device. [`Log::walk`] reads its records, [`Log::scan`] finds its whole transactions.
//! - `Writer`: what the blocks of a transaction are, for the cache's transactions and for [`Log::apply`].
//! - [`replay`](fn@replay): brings copies home and empties the log. [`fast`]: what a journal may have behind its log;
//!   [`Log::supersede`] makes a transaction of it.

mod area;
pub mod blocks;
pub mod checksum;
pub mod fast;
pub mod format;
mod log;
mod replay;
mod scan;
mod supersede;
mod writer;

pub use area::Area;
pub use log::{Home, Log};
pub use replay::{KindOf, Progress, Replayed, Stage, bring_home, replay};
pub use scan::{End, Record, Scan, Walk, Why};
pub(crate) use writer::{Described, Writer};
