//! Stories in words.

use std::fmt;

use super::{Event, Seen, Story};
use crate::policy::End;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self {
            Self::Reported => "the disk reports an error",
            Self::SumDiffers => "verify: the sum does not fit",
            Self::RuleBroken => "sanity: a rule of the format is broken",
            Self::Unnoticed => "nobody notices",
            Self::Waited => "it takes longer",
            Self::AskedAgain(times) => return write!(f, "retry: attempt {times} succeeds"),
            Self::AskedInVain(times) => return write!(f, "retry: {times} attempts, in vain"),
            Self::CopyRead => "mirror: a copy is read",
            Self::NoCopy => "mirror: no copy can be read",
            Self::Reconstructed => "parity: computed from its group",
            Self::NoParity => "parity: the group cannot be read",
            Self::Repaired => "repair: by the format's rules",
            Self::NoRepair => "repair: there is no single one",
            Self::Checked => "full-check: the volume is sound, and goes on",
            Self::CheckedInVain => "full-check: the volume is not sound",
            Self::Notified => "notify: the hook runs",
            Self::Remounted => "remount: what was not stable is given up, and the volume recovers",
            Self::RemountedInVain => "remount: the volume does not recover",
            Self::Renewed => "the right contents are written to its home",
            Self::RenewedElsewhere => "remap: its home cannot be written, so a spare is",
            Self::NotRenewed => "its home cannot be written: `health` says so",
            Self::Moved => "remap: written to a spare, and noted",
            Self::NoSpare => "remap: there is no spare",
            Self::Ended(End::Propagate) => "propagate: the error goes to the caller",
            Self::Ended(End::ReadOnly) => {
                "read-only: the error goes to the caller, and nothing is changed from now on"
            }
            Self::Ended(End::Stop) => "stop: the error goes to the caller, and everything fails from now on",
        };
        f.write_str(words)
    }
}

impl Event {
    /// A word for programs. It is a contract.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::SumDiffers => "sum-differs",
            Self::RuleBroken => "rule-broken",
            Self::Unnoticed => "unnoticed",
            Self::Waited => "waited",
            Self::AskedAgain(_) => "asked-again",
            Self::AskedInVain(_) => "asked-in-vain",
            Self::CopyRead => "copy-read",
            Self::NoCopy => "no-copy",
            Self::Reconstructed => "reconstructed",
            Self::NoParity => "no-parity",
            Self::Repaired => "repaired",
            Self::NoRepair => "no-repair",
            Self::Checked => "checked",
            Self::CheckedInVain => "checked-in-vain",
            Self::Notified => "notified",
            Self::Remounted => "remounted",
            Self::RemountedInVain => "remounted-in-vain",
            Self::Renewed => "renewed",
            Self::RenewedElsewhere => "renewed-elsewhere",
            Self::NotRenewed => "not-renewed",
            Self::Moved => "moved",
            Self::NoSpare => "no-spare",
            Self::Ended(End::Propagate) => "propagated",
            Self::Ended(End::ReadOnly) => "read-only",
            Self::Ended(End::Stop) => "stopped",
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Right => "the caller gets what it asked for",
            Self::Wrong => "the caller gets something else, and no error",
            Self::Error => "the caller gets EIO",
        })
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in &self.events {
            writeln!(f, "{event}")?;
        }
        self.seen.fmt(f)?;
        if self.is_latent { write!(f, "; what is wrong waits for a read") } else { Ok(()) }
    }
}
