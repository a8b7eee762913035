//! What every part of Featherstitch shares: numbers with types, errors, and the two traits at which all
//! systems meet.
//!
//! ```text
//!      FUSE, command line, crash laboratory, benchmarks
//!                         │
//!                  ┌──────▼──────┐
//!                  │ FileSystem  │   the mounted system, inode level, errno-faithful
//!                  └──────┬──────┘
//!              file systems, patches, caches
//!                  ┌──────▼──────┐
//!                  │ BlockDevice │   the medium: read, write, flush, discard
//!                  └─────────────┘
//! ```
//!
//! This crate owns vocabulary and contracts. It never decides policy, never starts a thread and contains no
//! unsafe code.
#![forbid(unsafe_code)]

mod buffer;
mod check;
mod clock;
mod codec;
mod concat;
mod consistency;
mod device;
mod error;
mod fs;
pub mod groups;
mod ids;
pub mod lock;
mod mem;
pub mod num;
pub mod order;
mod overlay;
mod partition;
pub mod schedule;
mod seed;
mod stats;
pub mod waiting;

pub use buffer::BlockBuf;
pub use check::{CheckReport, Finding, FindingClass, RepairMode, RepairOptions, RepairReport};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use codec::{Be, Le};
pub use concat::Concat;
pub use consistency::Consistency;
pub use device::{BlockDevice, BlockKind, BlockRead, BlockWrite, Geometry};
pub use error::{Corruption, Errno, Error, IoOp, Result, Structure};
pub use fs::{
    Attr, Caller, DirEntry, Entry, FallocateMode, FileKind, FileSystem, InodeFlags, InodeId, RenameMode,
    SeekFrom, SetAttr, SetTime, StatFs, XattrSetMode,
};
pub use ids::{BlockNo, ByteOff, InodeNo};
pub use mem::MemDevice;
pub use overlay::Overlay;
pub use partition::Partition;
pub use seed::Seed;
pub use stats::{Counter, DeviceStats, StatsDevice};
