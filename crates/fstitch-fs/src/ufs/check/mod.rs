//! Checking and repairing UFS volumes, with findings in two classes.
//!
//! *Allowed* is what soft updates leave after a crash: something is marked as used that nothing owns, a count is too high, a total is
//! wrong. *Corrupt* is everything else.
//!
//! ```text
//!   pass 0  supers    superblock and its copies                            copies, merged
//!   pass 1  inodes    every inode, every fragment that it claims          kinds, guess, targets, claims, walk
//!   pass 2  dirs      every name, from the root on                        chunk
//!   pass 3  connect   where directories belong
//!   pass 4  links     link counts, inodes without a name                  lost
//!   pass 5  maps      bitmaps, counts, totals                             groups
//! ```
//!
//! The passes report; with [`fstitch_core::RepairMode`] other than `No` they also mend. After a pass that changed anything the medium is
//! flushed and the passes start again, so that no pass acts on tables that are out of date, and a run that changes nothing is the proof
//! that all is mended. A repair writes to the device, which nobody may have mounted: patches order the changes of a volume that makes
//! sense, and this one may not.
//!
//! **Layout.** Everything is found by the superblock; `supers::why_unusable` makes sure that all metadata lie on the volume.
//!
//! **Order.** Pointers and names are mended in one run, bitmaps and counts in a later one, the mark of a clean volume last, after a flush,
//! and only when nothing else was found.
//!
//! **Invariants.** (1) A fragment has one owner in `state::State::claimed`; a block of pointers is followed by that one only, so no walk
//! is longer than the volume. (2) A run that is not to mend writes nothing: its source need not be writable. (3) What preening mends is
//! what a crash leaves; a volume with damage is left alone by it.
//!
//! **Crash cases.** Mending what is *allowed* leaves only that when it is cut off: counts are raised before names and lowered after
//! them. Mending damage leaves a volume that another repair mends.
//!
//! Memory: a bit for each fragment where something is, five bytes for each inode, 16 bytes for each directory, and what is shared.

mod chunk;
mod claims;
mod connect;
mod copies;
mod dirs;
mod groups;
mod guess;
mod inodes;
mod kinds;
mod links;
mod lost;
mod maps;
mod merged;
mod raw;
mod repair;
mod run;
mod source;
mod state;
mod supers;
mod targets;
mod volume;
mod walk;

pub use repair::{check_ufs, repair_ufs};

use fstitch_core::{CheckReport, Result, Timestamp};

use super::volume::Ufs;
use run::{Run, hopeless};
use state::Mending;
use volume::Volume;

impl Ufs {
    /// Checks the volume as it is in the cache. Nothing may change meanwhile.
    ///
    /// # Errors
    /// When the device fails.
    pub fn check_volume(&self) -> Result<CheckReport> {
        let mut shape = self.sb.clone();
        if !self.cache.options().read_only {
            // Hashes in memory are behind what is there.
            shape.hashes = 0;
        }
        let mut volume = Volume { source: &*self.cache, shape, raw: Vec::new() };
        volume.raw = volume.read_super(self.sb.at)?;
        let run = Run { mending: Mending::Nothing, now: Timestamp::default(), is_unclean: self.is_unclean() };
        Ok(run.all(&volume)?.map_or_else(hopeless, |(report, _)| report))
    }
}
