//! How badly a medium may behave: the levels of `docs/medium.md`, section 5.

use std::fmt;
use std::str::FromStr;

/// What a power cut may do. Each level includes the ones before it; the defects of M4 are a
/// [`FaultPlan`](crate::FaultPlan)'s business and no level here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The writes up to some moment, and none after it.
    M0,
    /// Acknowledged writes are stable; of those in flight any subset.
    M1,
    /// A volatile cache; blocks are atomic.
    M2,
    /// A volatile cache; 512 bytes are atomic.
    M3,
}

impl Level {
    /// All levels, the mildest first.
    pub const ALL: [Self; 4] = [Self::M0, Self::M1, Self::M2, Self::M3];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::M0 => "M0",
            Self::M1 => "M1",
            Self::M2 => "M2",
            Self::M3 => "M3",
        })
    }
}

/// A word that names no level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no level of crashes: expected M0, M1, M2 or M3")]
pub struct UnknownLevel(String);

impl FromStr for Level {
    type Err = UnknownLevel;

    fn from_str(text: &str) -> Result<Self, UnknownLevel> {
        let found = Self::ALL.into_iter().find(|level| level.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| UnknownLevel(text.to_owned()))
    }
}
