//! Space that the end of a journal's running transaction gives, or that of what waits to be written.
//!
//! What that transaction has freed is nobody's yet: contents that were put there now would have to be stable before its end,
//! because they are ordered, and after it, because until then the blocks are somebody else's. An operation that finds too
//! little beside such space closes the transaction, which waits for nobody but the operations in it, and goes on. Without a journal a
//! format may bar what was freed until that is stable; then everything is made so.

use fstitch_core::{Errno, Error, Result};

use super::volume::Change;
use super::{LowLevelFs, Uhfs};

/// How often a transaction is closed for an operation that does not get on: others may free and take meanwhile.
const CLOSED_MAX: u32 = 3;

/// Watches a long operation for lacks of space that the end of a transaction mends.
pub(super) struct Barrier<'a, L: LowLevelFs> {
    fs: &'a Uhfs<L>,
    /// See [`LowLevelFs::space_barred`].
    barred: u64,
    /// Transactions closed since something was done last.
    closed: u32,
}

impl<'a, L: LowLevelFs> Barrier<'a, L> {
    pub(super) fn new(fs: &'a Uhfs<L>) -> Self {
        Self { fs, barred: fs.low.space_barred(), closed: 0 }
    }

    /// After a step that did only a part of what it should, of which `progress` says whether it did something, and `failure`
    /// why it ended if it said so: whether to try again, now that there may be more space. Ends the step under way.
    pub(super) fn lift(&mut self, change: &Change<'_>, progress: bool, failure: Option<&Error>) -> bool {
        if progress {
            self.closed = 0;
        }
        let lacks_space = failure.is_none_or(|error| error.errno() == Errno::NOSPC);
        if !lacks_space || !self.is_barred() {
            return false;
        }
        change.pause();
        self.close()
    }

    /// Whether space was passed over since the last look.
    fn is_barred(&mut self) -> bool {
        let barred = self.fs.low.space_barred();
        std::mem::replace(&mut self.barred, barred) != barred && self.closed < CLOSED_MAX
    }

    /// A failure is that of the next step.
    fn close(&mut self) -> bool {
        self.closed += 1;
        let cache = self.fs.cache();
        if cache.is_journaled() { cache.close_transaction().is_ok() } else { cache.sync_all().is_ok() }
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Runs `work`, and again if it met a lack of space that the end of a journal's running transaction mends.
    pub(super) fn with_space<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        let mut barrier = Barrier::new(self);
        loop {
            match self.noticed(work()) {
                Err(error) if error.errno() == Errno::NOSPC && barrier.is_barred() && barrier.close() => {}
                other => return other,
            }
        }
    }
}
