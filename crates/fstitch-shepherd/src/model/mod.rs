//! What a policy will do: the model behind `explain`, and the oracle of the engine's tests.
//!
//! It shares the policy's table with the engine and nothing else: a function from a chain, a fault and the state of everything that a
//! step could use, to what happens in which order and what the caller sees.

mod read;
mod show;
mod write;

#[cfg(test)]
mod tests;

use crate::policy::{Direction, End, Kind, Policy, Retry};

/// What fails, at the block's home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Every request fails.
    Error,
    /// So many requests fail, then never again.
    Transient(u32),
    /// Some bits are others.
    Corrupt,
    /// The block is zeros.
    Zeroed,
    /// A part of it is of its old version.
    Torn,
    /// A write was acknowledged and forgotten.
    Lost,
    /// A write landed elsewhere; a read comes from elsewhere.
    Misdirected,
    /// A read returns what was there before.
    Stale,
    /// The request takes long.
    Slow,
    /// The disk fails with everything.
    Dead,
}

impl Fault {
    /// All of them, the transient one with two failures.
    pub const ALL: [Self; 10] = [
        Self::Error,
        Self::Transient(2),
        Self::Corrupt,
        Self::Zeroed,
        Self::Torn,
        Self::Lost,
        Self::Misdirected,
        Self::Stale,
        Self::Slow,
        Self::Dead,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "eio",
            Self::Transient(_) => "transient",
            Self::Corrupt => "corrupt",
            Self::Zeroed => "zeroed",
            Self::Torn => "torn",
            Self::Lost => "lost",
            Self::Misdirected => "misdirected",
            Self::Stale => "stale",
            Self::Slow => "slow",
            Self::Dead => "dead",
        }
    }

    /// The fault of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// Whether the disk itself says that something is wrong, as long as `asked` requests have been made before.
    const fn is_reported(self, asked: u32) -> bool {
        match self {
            Self::Error | Self::Dead => true,
            Self::Transient(times) => asked < times,
            _ => false,
        }
    }

    /// Whether what the disk gives is not what was written last.
    const fn is_wrong(self) -> bool {
        matches!(
            self,
            Self::Corrupt | Self::Zeroed | Self::Torn | Self::Lost | Self::Misdirected | Self::Stale
        )
    }
}

/// A fault, and the state of all that a policy could use against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// What fails at the home.
    pub fault: Fault,
    /// Whether what comes of it breaks a rule of the format.
    pub breaks_rules: bool,
    /// Whether a copy, where copies are kept, can be read and is right.
    pub copies: bool,
    /// Whether copies and spares are on other disks too, which live on where the home's dies.
    pub elsewhere: bool,
    /// Whether all others of the block's parity group, and the parity, can be read and are right.
    pub parity: bool,
    /// Whether the format's rules allow for one repair only.
    pub repairable: bool,
    /// Whether the volume is sound after a full check.
    pub checkable: bool,
    /// Whether the volume can be opened anew.
    pub remountable: bool,
    /// Whether the home can be written.
    pub writable: bool,
    /// Whether there is a spare that can be written, and room in the map.
    pub spares: bool,
}

impl Scenario {
    /// This fault, and nothing else that is wrong.
    #[must_use]
    pub const fn of(fault: Fault) -> Self {
        Self {
            fault,
            breaks_rules: matches!(fault, Fault::Corrupt | Fault::Zeroed | Fault::Misdirected),
            copies: true,
            elsewhere: false,
            parity: true,
            repairable: matches!(fault, Fault::Corrupt),
            checkable: true,
            remountable: true,
            writable: !matches!(fault, Fault::Error | Fault::Dead),
            spares: true,
        }
    }
}

/// Something that happens, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The disk reports an error.
    Reported,
    /// The sum does not fit.
    SumDiffers,
    /// A rule of the format is broken.
    RuleBroken,
    /// What is wrong passes.
    Unnoticed,
    /// It takes longer.
    Waited,
    /// Asked again, so often, until it succeeded.
    AskedAgain(u32),
    /// Asked again, so often, in vain.
    AskedInVain(u32),
    /// A copy was read.
    CopyRead,
    /// No copy could be read.
    NoCopy,
    /// Computed from its group.
    Reconstructed,
    /// The group could not be read.
    NoParity,
    /// Repaired by the format's rules.
    Repaired,
    /// There is no single repair.
    NoRepair,
    /// The volume was stopped, checked, and goes on.
    Checked,
    /// The check did not make the volume sound.
    CheckedInVain,
    /// The hook was run.
    Notified,
    /// What was not stable was given up, and the volume recovered.
    Remounted,
    /// That was not possible.
    RemountedInVain,
    /// The right contents were written to the home.
    Renewed,
    /// They were written to a spare, because the home cannot be.
    RenewedElsewhere,
    /// They could be written nowhere: one copy fewer, as `health` says.
    NotRenewed,
    /// Written to a spare.
    Moved,
    /// There is no spare.
    NoSpare,
    /// The end of the chain.
    Ended(End),
}

/// What the caller sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// What was asked for.
    Right,
    /// Something else, and no error.
    Wrong,
    /// `EIO`.
    Error,
}

/// A story: what happens, and how it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Story {
    /// In order.
    pub events: Vec<Event>,
    /// What the caller sees of this request; of a write, of it and the fsync behind it.
    pub seen: Seen,
    /// What becomes of the volume.
    pub end: Option<End>,
    /// Whether a write has left something that only a read can notice.
    pub is_latent: bool,
}

/// What a policy does when a request for a kind of block meets a fault.
#[must_use]
pub fn explain(policy: &Policy, kind: Kind, direction: Direction, scenario: &Scenario) -> Story {
    let (read, write) = (policy.chain(kind, Direction::Read), policy.chain(kind, Direction::Write));
    match direction {
        Direction::Read => read::story(read, write, scenario),
        Direction::Write => write::story(write, scenario),
    }
}

/// How often a retry asks: its delay may let it ask less often than it would.
fn attempts(retry: Retry) -> u32 {
    if retry.delay.is_zero() {
        return retry.times;
    }
    let fit = retry.within.as_nanos() / retry.delay.as_nanos();
    u32::try_from(fit).map_or(retry.times, |fit| fit.min(retry.times))
}

/// Asks again: what happened, and whether it succeeded. `asked` counts all requests so far.
fn ask_again(fault: Fault, retry: Retry, asked: &mut u32) -> (Event, bool) {
    let most = attempts(retry);
    for attempt in 1..=most {
        let fails = fault.is_reported(*asked);
        *asked = asked.saturating_add(1);
        if !fails && !fault.is_wrong() {
            return (Event::AskedAgain(attempt), true);
        }
    }
    (Event::AskedInVain(most), false)
}
