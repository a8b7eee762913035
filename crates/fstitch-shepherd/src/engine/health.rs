//! What has gone wrong, for people and programs.

use std::collections::BTreeMap;

use fstitch_core::BlockNo;

use crate::model::{Event, Seen};
use crate::policy::{Direction, Kind};

/// A fault, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    /// What the block is.
    pub kind: Kind,
    /// Whether it was read or written.
    pub direction: Direction,
    /// Which block.
    pub block: BlockNo,
    /// In order.
    pub events: Vec<Event>,
    /// What the caller saw.
    pub seen: Seen,
}

impl std::fmt::Display for Incident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} block {}", self.direction.name(), self.kind.name(), self.block)?;
        let mut between = ": ";
        for event in &self.events {
            write!(f, "{between}{event}")?;
            between = "; ";
        }
        Ok(())
    }
}

/// What the maps have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Blocks for copies and for what is moved.
    pub spares: u64,
    /// Of these, free ones.
    pub free: u64,
    /// And those that cannot be written.
    pub bad: u64,
    /// Copies that there are.
    pub copies: u64,
    /// Blocks that are not at home.
    pub moved: u64,
    /// Groups of blocks that have parity.
    pub groups: u64,
    /// Blocks of which a disk had the only one, that has failed; those that nobody uses are counted as well.
    pub lost: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The disk reported an error of a read.
    Read,
    /// The disk reported an error of a write.
    Write,
    /// A sum did not fit.
    Sum,
    /// A rule of the format was broken.
    Rule,
    /// The caller got an error.
    Propagated,
    /// A copy was read in place of the home.
    CopyRead,
    /// A home got its contents back.
    Renewed,
    /// A home could not get them back.
    NotRenewed,
    /// A copy could not be written: there is one fewer than asked for.
    CopyLost,
    /// Taken as it was after a crash, though it fitted no sum: written then, or damaged.
    UnverifiedAfterCrash,
    /// A block of a map was lost in both places.
    MapLost,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Read,
        Self::Write,
        Self::Sum,
        Self::Rule,
        Self::Propagated,
        Self::CopyRead,
        Self::Renewed,
        Self::NotRenewed,
        Self::CopyLost,
        Self::UnverifiedAfterCrash,
        Self::MapLost,
    ];

    /// A word for programs. It is a contract.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read-errors",
            Self::Write => "write-errors",
            Self::Sum => "sums-that-differ",
            Self::Rule => "rules-broken",
            Self::Propagated => "propagated",
            Self::CopyRead => "copies-read",
            Self::Renewed => "renewed",
            Self::NotRenewed => "not-renewed",
            Self::CopyLost => "copies-lost",
            Self::UnverifiedAfterCrash => "unverified-after-a-crash",
            Self::MapLost => "maps-lost",
        }
    }
}

/// Counts by kind of block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    counts: BTreeMap<(Kind, Trouble), u64>,
}

impl Health {
    /// How often something happened to blocks of this kind.
    #[must_use]
    pub fn of(&self, kind: Kind, trouble: Trouble) -> u64 {
        self.counts.get(&(kind, trouble)).copied().unwrap_or(0)
    }

    /// The same over all kinds.
    #[must_use]
    pub fn all(&self, trouble: Trouble) -> u64 {
        self.counts
            .iter()
            .filter(|((_, other), _)| *other == trouble)
            .fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// As the map has them.
    pub(super) fn numbers(&self) -> Vec<u64> {
        let all = Kind::ALL.into_iter().flat_map(|kind| Trouble::ALL.map(|trouble| self.of(kind, trouble)));
        all.collect()
    }

    pub(super) fn from_numbers(numbers: &[u64]) -> Self {
        let all = Kind::ALL.into_iter().flat_map(|kind| Trouble::ALL.map(|trouble| (kind, trouble)));
        Self {
            counts: all
                .zip(numbers)
                .filter(|(_, count)| **count > 0)
                .map(|(of, count)| (of, *count))
                .collect(),
        }
    }

    /// All counts that are not 0.
    pub fn counts(&self) -> impl Iterator<Item = (Kind, Trouble, u64)> + '_ {
        self.counts.iter().map(|((kind, trouble), count)| (*kind, *trouble, *count))
    }

    pub(super) fn add(&mut self, kind: Kind, trouble: Trouble, count: u64) {
        if count > 0 {
            let counter = self.counts.entry((kind, trouble)).or_default();
            *counter = counter.saturating_add(count);
        }
    }

    pub(super) fn count(&mut self, incident: &Incident) {
        for event in &incident.events {
            let trouble = match (event, incident.direction) {
                (Event::Reported, Direction::Read) => Trouble::Read,
                (Event::Reported, Direction::Write) => Trouble::Write,
                (Event::SumDiffers, _) => Trouble::Sum,
                (Event::RuleBroken, _) => Trouble::Rule,
                (Event::CopyRead, _) => Trouble::CopyRead,
                (Event::Renewed, _) => Trouble::Renewed,
                (Event::NotRenewed, _) => Trouble::NotRenewed,
                (Event::Ended(_), _) => Trouble::Propagated,
                _ => continue,
            };
            self.add(incident.kind, trouble, 1);
        }
    }
}
