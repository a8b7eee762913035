//! Consistency mechanisms by name.

use std::fmt;
use std::str::FromStr;

/// How a volume survives crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Soft updates: the format's own orderings.
    Soft,
    /// A journal of all but file contents.
    Metadata,
    /// The same, with file contents stable before what points at them.
    Ordered,
    /// A journal of everything.
    Full,
    /// No order at all.
    Async,
    /// Soft updates, and every change of names is stable when its call returns: the conventional way.
    Sync,
    /// Shadow paging: everything is as one root says.
    Shadow,
}

impl Consistency {
    /// Those that volumes choose among whose blocks are written in place. [`Consistency::Shadow`] is the only one of its format, and
    /// of no other.
    pub const ALL: [Self; 6] =
        [Self::Soft, Self::Metadata, Self::Ordered, Self::Full, Self::Async, Self::Sync];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Soft => "soft",
            Self::Metadata => "metadata",
            Self::Ordered => "ordered",
            Self::Full => "full",
            Self::Async => "async",
            Self::Sync => "sync",
            Self::Shadow => "shadow",
        }
    }

    /// Whether it keeps a journal.
    #[must_use]
    pub const fn is_journaled(self) -> bool {
        matches!(self, Self::Metadata | Self::Ordered | Self::Full)
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Consistency {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let mut known = Self::ALL.into_iter().chain([Self::Shadow]);
        known.find(|known| known.name() == name).ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("`{name}` is no consistency mechanism: there are {all}, {}", Self::Shadow)
        })
    }
}
