//! Checking and repairing ext2, with findings in two classes.
//!
//! *Allowed* is what soft updates leave after a crash: something is marked used that nothing owns, a count is
//! too high, a summary is stale. The volume is safe to use as it is. *Corrupt* is everything else.
//!
//! ```text
//!   pass 0  supers    superblock, descriptors, resize inode        journal, orphan_file
//!   pass 1  inodes    every inode, every block that it claims            claims, kinds, walk, xattrs
//!   pass 2  dirs      every entry of every directory, hash trees         entries, salvage, tree
//!   pass 3  connect   paths from the root, directories with two names
//!   pass 4  links     link counts, inodes without a name                               lost
//!   pass 5  quota     what users, groups and projects have
//!           maps      bitmaps and counters
//! ```
//!
//! The passes report; with [`fstitch_core::RepairMode`] other than `No` they also mend. After a pass that changed anything
//! the medium is flushed and the passes start again, so that no pass acts on tables that are out of date, and
//! a run that changes nothing is the proof that all is mended. See `docs/design/check.md`.
//!
//! Memory: two bits per block of parts of the volume where something is, five bytes per inode, 32 bytes per directory; nothing for a file. Hostile
//! volumes cannot make a pass loop: an indirect block is followed once.

mod ahead;
mod claims;
mod clusters;
mod connect;
mod dirs;
mod entries;
mod extents;
mod grow;
mod inline;
mod inodes;
mod journal;
mod kinds;
mod links;
mod lost;
mod maps;
mod mmp;
mod orphan_file;
mod parts;
mod places;
mod quota;
mod rebuild;
mod repair;
mod run;
mod salvage;
mod seals;
mod state;
mod storage;
mod supers;
mod survey;
mod switch;
mod tails;
mod tree;
mod values;
mod walk;
mod xattrs;

pub use inodes::EXTENT_ACROSS_END;
pub use repair::repair_ext2;
pub(in crate::ext2) use repair::repair_sound_ext2;
pub(crate) use run::{Judgement, judge_source};
pub use run::{check_ext2, check_source};
pub use supers::find_backup;
pub(in crate::ext2) use supers::to_mend_by;
pub(in crate::ext2) use survey::survey;
pub(in crate::ext2) use switch::{empty_inodes, make_real, seal};
