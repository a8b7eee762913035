//! The journal of an ext3 volume: where it is, and recovery from it.
//!
//! ```text
//!   needs_recovery ─► find journal ─► replay ─► errors noted ─► orphans finished ─► needs_recovery cleared
//!                     inode 8 or                                 each batch of blocks through
//!                     a device of its own                        the journal itself
//! ```
//!
//! Recovery works on the whole device, before a volume is opened. Every step leaves a volume on which the kernel,
//! e2fsck or another run can go on: the flag `needs_recovery` is the first thing set and the last one cleared.
//! Format and rules: `docs/spec/jbd.md`.

mod bits;
mod copies;
mod create;
mod external;
mod fast;
mod find;
mod kinds;
mod orphan_extents;
mod orphan_file;
mod orphan_values;
mod orphans;
mod pass;
mod recover;
mod restore;

pub(crate) use create::clear_backup;
pub use create::{AddOptions, BLOCKS_MAX, BLOCKS_MIN, add, clear, default_blocks, remove};
pub(super) use create::{add_counted, is_lent, lend, move_before, size_of_log};
pub use external::{DeviceOptions, JournalDevice, add_device, make_device, release_device};
pub(crate) use find::{Internal, whole_file};
pub use find::{Journal, Place, locate};
pub use orphans::Orphans;
pub use pass::BATCH_MAX;
pub(super) use pass::{Loaded, Pass, in_batches};
pub use recover::{Options, Recovered, abandon, needs_recovery, read_superblock, recover};
pub(super) use recover::{set_dirty, settle, write_superblock};
pub(crate) use restore::from_backup;
pub use restore::{is_sound, restore};

use super::layout::superblock as raw;
