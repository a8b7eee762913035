//! A logical disk: blocks and lists in a log, with concurrent atomic recovery units. Design: `docs/design/lld.md`.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]

mod aru;
mod catalogue;
mod check;
mod chunk;
mod cleaner;
mod conflict;
mod disk;
mod dump;
mod log;
mod options;
mod pack;
mod pages;
mod read;
mod record;
mod recovery;
mod segments;
mod shape;
mod shared;
mod space;
mod spill;
mod squeeze;
mod state;
mod stream;
mod tree;
mod unit;
mod view;
mod volume;
mod writer;

pub use aru::Aru;
pub use catalogue::{FIRST_LIST, NAME_MAX, VolumeInfo, Volumes};
pub use check::Progress;
pub use conflict::{Conflict, EndError};
pub use disk::Disk;
pub use dump::{DumpedChunk, DumpedData, DumpedSegment};
pub use log::Counters;
pub use options::{At, FormatOptions, Info, Options, Space, Visibility};
pub use pack::Compression;
pub use record::{BlockId, Label, ListId};
pub use recovery::Recovered;
pub use shape::device_block_size;
pub use volume::{Extent, Shared, Store, Volume};
