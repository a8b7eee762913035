//! What fast commits say becomes a transaction of the log, so that it reaches home as a whole or not at all.
//!
//! ```text
//!   log full of what is home ─► tail moved ─► transaction written ─► tail with its number ─► replay, emptied
//!   fast commits count          they count    they count             they do not count any more
//! ```
//!
//! **Orderings.** 1. The tail is moved behind the whole transactions, which are stable at home. 2. The new transaction is written where the
//! log is free now, and made stable. Its number is not the one that is expected there, so nobody takes it for a continuation. 3. The tail says
//! its number. Fast commits are those of the transaction before, so they end to count with the same write that makes it the log's.
//!
//! **Crash cases.** Before 3 the fast commits count, and home is as the whole transactions left it: recovery starts anew and comes to the
//! same. With 3 the log has one whole transaction, which anybody replays.

use fstitch_core::{BlockBuf, BlockNo, Result, Timestamp};

use super::log::Log;
use super::scan::Scan;

impl Log<'_> {
    /// Puts `blocks`, in ascending order and [`Log::apply_max`] at most, into the log as a transaction that comes after the fast commits
    /// behind `scan`, in their place. What `scan` has found must be home and stable. The log is not empty then: a replay brings them home.
    ///
    /// # Errors
    /// When the device fails: the log says one or the other. `Corrupt` if a block is none that copies may go to: nothing was touched.
    ///
    /// # Panics
    /// If the log is empty, or there are no blocks or too many.
    pub fn supersede(&mut self, scan: &Scan, blocks: &[(BlockNo, BlockBuf)], now: Timestamp) -> Result<()> {
        assert!(!self.is_empty(), "fast commits count behind a log that is in use only");
        assert!(scan.first == self.superblock().sequence, "the log is as it was when it was read");
        self.check_transaction(blocks)?;
        let (tail, next) = (self.superblock().advance(self.superblock().start, scan.blocks), scan.next());
        self.change_superblock(|superblock| {
            superblock.start = tail;
            superblock.sequence = next;
        })?;
        let number = next.plus(1);
        self.write_transaction(tail, number, blocks, now)?;
        self.flush()?;
        self.change_superblock(|superblock| superblock.sequence = number)
    }
}
