//! Who of a process's connections may read and write a database: the five levels of SQLite's locks.
//!
//! ```text
//!   none ──► shared ──► reserved ──► pending ──► exclusive
//!                 └──────────────────────┘ (who plays a journal back)
//! ```
//!
//! **Invariants.** 1. At most one holds more than `shared`. 2. Who is `exclusive` is alone. 3. While somebody is `pending` nobody
//! begins to read.

use std::collections::BTreeMap;
use std::ffi::c_int;

/// How much of a database a connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    #[default]
    None,
    /// It reads, with others.
    Shared,
    /// It will write, and others read.
    Reserved,
    /// It waits for the readers to end.
    Pending,
    /// It writes.
    Exclusive,
}

impl Level {
    /// The level of a number of SQLite.
    pub(crate) fn of(number: c_int) -> Option<Self> {
        [Self::None, Self::Shared, Self::Reserved, Self::Pending, Self::Exclusive]
            .into_iter()
            .find(|level| level.number() == number)
    }

    /// SQLite's number for it.
    pub(crate) fn number(self) -> c_int {
        match self {
            Self::None => 0,
            Self::Shared => 1,
            Self::Reserved => 2,
            Self::Pending => 3,
            Self::Exclusive => 4,
        }
    }
}

/// Who holds what; who is not named holds nothing.
#[derive(Debug, Default)]
pub(crate) struct Locks(BTreeMap<u64, Level>);

impl Locks {
    /// What somebody holds.
    pub(crate) fn level(&self, who: u64) -> Level {
        self.0.get(&who).copied().unwrap_or_default()
    }

    /// The most that anybody else holds.
    fn others(&self, who: u64) -> Level {
        self.0.iter().filter(|(other, _)| **other != who).map(|(_, level)| *level).max().unwrap_or_default()
    }

    /// Takes more, or says that others are in the way; then who wanted to be alone stays `pending`.
    pub(crate) fn lock(&mut self, who: u64, wanted: Level) -> bool {
        let (own, others) = (self.level(who), self.others(who));
        if own >= wanted {
            return true;
        }
        let reached = match wanted {
            Level::None => Level::None,
            Level::Shared if others < Level::Pending => Level::Shared,
            Level::Reserved if own == Level::Shared && others < Level::Reserved => Level::Reserved,
            Level::Pending | Level::Exclusive if others == Level::None => wanted,
            Level::Pending | Level::Exclusive if own > Level::None && others < Level::Reserved => {
                Level::Pending
            }
            _ => return false,
        };
        self.0.insert(who, reached);
        self.check_invariants();
        reached == wanted
    }

    /// Gives up what is more than `left`.
    pub(crate) fn unlock(&mut self, who: u64, left: Level) {
        assert!(left <= Level::Shared, "nobody goes back to writing");
        if self.level(who) > left {
            match left {
                Level::None => self.0.remove(&who),
                _ => self.0.insert(who, left),
            };
        }
    }

    /// Whether somebody writes, or will.
    pub(crate) fn is_reserved(&self) -> bool {
        self.0.values().any(|level| *level >= Level::Reserved)
    }

    fn check_invariants(&self) {
        let above = |least: Level| self.0.values().filter(|level| **level >= least).count();
        assert!(above(Level::Reserved) <= 1, "two write: {self:?}");
        assert!(above(Level::Exclusive) == 0 || above(Level::Shared) == 1, "not alone: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_one_writes() {
        let mut locks = Locks::default();
        assert!(locks.lock(1, Level::Shared) && locks.lock(2, Level::Shared));
        assert!(locks.lock(1, Level::Reserved) && !locks.lock(2, Level::Reserved));
        assert!(locks.lock(3, Level::Shared), "reading goes on beside who will write");
        assert!(!locks.lock(1, Level::Exclusive));
        assert_eq!(locks.level(1), Level::Pending);
        assert!(!locks.lock(4, Level::Shared), "nobody begins while one waits");
        locks.unlock(2, Level::None);
        assert!(!locks.lock(1, Level::Exclusive));
        locks.unlock(3, Level::None);
        assert!(locks.lock(1, Level::Exclusive) && !locks.lock(2, Level::Shared));
        assert!(locks.is_reserved());
        locks.unlock(1, Level::Shared);
        assert!(!locks.is_reserved() && locks.lock(2, Level::Shared));
    }

    #[test]
    fn who_plays_a_journal_back_goes_past_reserved() {
        let mut locks = Locks::default();
        assert!(locks.lock(1, Level::Shared) && locks.lock(1, Level::Exclusive));
        locks.unlock(1, Level::None);
        assert!(
            locks.lock(1, Level::Shared) && locks.lock(2, Level::Shared) && locks.lock(2, Level::Reserved)
        );
        assert!(!locks.lock(1, Level::Exclusive), "somebody else will write");
        assert_eq!(locks.level(1), Level::Shared);
    }

    /// Every level that one has, against every level that another one wants.
    #[test]
    fn every_two_levels() {
        const LEVELS: [Level; 5] =
            [Level::None, Level::Shared, Level::Reserved, Level::Pending, Level::Exclusive];
        for has in LEVELS {
            for wants in LEVELS {
                let mut locks = Locks::default();
                assert!(has == Level::None || locks.lock(1, Level::Shared) && locks.lock(1, has));
                let reads = locks.lock(2, Level::Shared);
                assert_eq!(reads, has < Level::Pending, "{has:?}");
                let goes = match wants {
                    Level::None => true,
                    Level::Shared => reads,
                    Level::Reserved => reads && has < Level::Reserved,
                    Level::Pending => reads && has < Level::Reserved,
                    Level::Exclusive => has == Level::None,
                };
                let got = locks.lock(2, wants) || (wants == Level::Pending && locks.level(2) == wants);
                assert_eq!(got, goes, "{has:?} {wants:?}");
            }
        }
    }
}
