//! Space that the end of a journal's running transaction gives, or that of what waits to be written.
//!
//! What that transaction has freed is nobody's yet: contents that were put there now would have to be stable before its end,
//! because they are ordered, and after it, because until then the blocks are somebody else's. An operation that finds too
//! little beside such space closes the transaction, which waits for nobody but the operations in it, and goes on. Without a journal a
//! format may bar what was freed until that is stable; then everything is made so. A volume in a file of another one may lack space there: then
//! it is that one's which is given.

use fstitch_core::{Errno, Error, Result};

use super::volume::Change;
use super::{LowLevelFs, Uhfs};

/// How often a transaction is closed for an operation that does not get on: others may free and take meanwhile.
const CLOSED_MAX: u32 = 3;

/// How often space was passed over that is to be given.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Barred {
    /// See [`LowLevelFs::space_barred`].
    own: u64,
    /// The same in the volumes below, of those in files of others.
    below: u64,
}

/// Watches a long operation for lacks of space that the end of a transaction mends.
pub(super) struct Barrier<'a, L: LowLevelFs> {
    fs: &'a Uhfs<L>,
    barred: Barred,
    /// Transactions closed since something was done last.
    closed: u32,
}

impl<'a, L: LowLevelFs> Barrier<'a, L> {
    pub(super) fn new(fs: &'a Uhfs<L>) -> Self {
        Self { fs, barred: fs.barred(), closed: 0 }
    }

    /// After a step that did only a part of what it should, of which `progress` says whether it did something, and `failure`
    /// why it ended if it said so: whether to try again, now that there may be more space. Ends the step under way.
    pub(super) fn lift(&mut self, change: &Change<'_>, progress: bool, failure: Option<&Error>) -> bool {
        if progress {
            self.closed = 0;
        }
        let lacks_space = failure.is_none_or(|error| error.errno() == Errno::NOSPC);
        if !lacks_space {
            return false;
        }
        let Some(news) = self.news() else { return false };
        change.pause();
        self.close(news)
    }

    /// How often space was passed over since the last look, if it was, and closing may still help.
    fn news(&mut self) -> Option<Barred> {
        let now = self.fs.barred();
        let before = std::mem::replace(&mut self.barred, now);
        (now != before && self.closed < CLOSED_MAX)
            .then_some(Barred { own: now.own - before.own, below: now.below - before.below })
    }

    /// A failure is that of the next step.
    fn close(&mut self, news: Barred) -> bool {
        self.closed += 1;
        (news.own == 0 || self.fs.give_own().is_ok())
            && (news.below == 0 || self.fs.cache().give_below().is_ok())
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Runs `work`, and again if it met a lack of space that the end of a journal's running transaction mends.
    pub(super) fn with_space<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        let mut barrier = Barrier::new(self);
        loop {
            match self.noticed(work()) {
                Err(error) if error.errno() == Errno::NOSPC => match barrier.news() {
                    Some(news) if barrier.close(news) => {}
                    _ => return Err(error),
                },
                other => return other,
            }
        }
    }

    fn barred(&self) -> Barred {
        Barred { own: self.low.space_barred(), below: self.cache().barred_below() }
    }

    /// How often space was passed over here and below.
    pub(super) fn all_barred(&self) -> u64 {
        let barred = self.barred();
        barred.own + barred.below
    }

    /// Has all space given that is barred, here and below. By who has no change under way.
    pub(super) fn give_all(&self) -> Result<()> {
        self.give_own()?;
        self.cache().give_below()
    }

    fn give_own(&self) -> Result<()> {
        let cache = self.cache();
        if cache.is_journaled() { cache.close_transaction().map(drop) } else { cache.sync_all() }
    }
}
