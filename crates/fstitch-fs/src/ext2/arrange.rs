//! Consistency mechanisms by name, and opening a volume with one.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockDevice, Clock, Concat, Error, Result};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode, Ordering};

use super::Ext2;
use super::journaled::journal_config;
use crate::uhfs::{Uhfs, UhfsOptions};

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
}

impl Consistency {
    /// All of them.
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
        }
    }

    /// What goes through the journal, for those that keep one.
    #[must_use]
    pub const fn journal_mode(self) -> Option<JournalMode> {
        match self {
            Self::Metadata => Some(JournalMode::Metadata),
            Self::Ordered => Some(JournalMode::Ordered),
            Self::Full => Some(JournalMode::Full),
            Self::Soft | Self::Async | Self::Sync => None,
        }
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
        Self::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("`{name}` is no consistency mechanism: there are {all}")
        })
    }
}

/// How a volume is opened.
#[derive(Clone)]
pub struct Arrangement {
    /// The mechanism; `None` for `ordered` where the volume has a journal and `soft` where it has none.
    pub consistency: Option<Consistency>,
    /// Age at which a transaction is committed.
    pub commit_interval: Duration,
    /// The device of an external journal, in blocks of the volume's size.
    pub journal: Option<Arc<dyn BlockDevice>>,
    /// The cache.
    pub cache: CacheOptions,
    /// The file system above it.
    pub fs: UhfsOptions,
}

impl Default for Arrangement {
    fn default() -> Self {
        Self {
            consistency: None,
            commit_interval: Duration::from_secs(5),
            journal: None,
            cache: CacheOptions::default(),
            fs: UhfsOptions::default(),
        }
    }
}

/// What suits a volume, after a look at it.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// The mechanism in force.
    pub consistency: Consistency,
    /// The journal to keep, if any. That of a device of its own is behind the volume.
    pub journal: Option<JournalConfig>,
}

impl Chosen {
    /// Looks at the volume on `device`, in blocks of the volume's size, which needs no recovery (any more).
    ///
    /// # Errors
    /// As [`journal_config`]; [`Error::Unsupported`] for a journaling mechanism on a volume without a journal.
    pub fn new(device: &dyn BlockDevice, arrangement: &Arrangement) -> Result<Self> {
        let Arrangement { consistency, commit_interval, journal: external, cache, .. } = arrangement;
        let mode = consistency
            .map_or(JournalMode::Ordered, |asked| asked.journal_mode().unwrap_or(JournalMode::Ordered));
        let journal = match consistency {
            Some(asked) if asked.journal_mode().is_none() => None,
            _ if cache.read_only => None,
            _ => journal_config(device, external.as_deref(), mode, *commit_interval)?,
        };
        let consistency = match (consistency, &journal) {
            (Some(asked), None) if asked.journal_mode().is_some() && !cache.read_only => {
                return Err(Error::Unsupported(format!(
                    "consistency `{asked}` on a volume without a journal (`fstitch tune --journal` adds one)"
                )));
            }
            (Some(asked), _) => *asked,
            (None, Some(_)) => Consistency::Ordered,
            (None, None) => Consistency::Soft,
        };
        Ok(Self { consistency, journal })
    }

    /// Whether the cache keeps dependencies.
    #[must_use]
    pub fn ordering(&self) -> Ordering {
        if self.consistency == Consistency::Async { Ordering::Dropped } else { Ordering::Kept }
    }

    /// Opens the volume in `cache`, which has its blocks and behind them those of the device of its journal.
    ///
    /// # Errors
    /// As [`Ext2::open`].
    pub fn open_in(self, cache: Arc<Cache>, mut options: UhfsOptions) -> Result<Uhfs<Ext2>> {
        let volume = Ext2::open(Arc::clone(&cache))?;
        options.synchronous |= self.consistency == Consistency::Sync;
        if let Some(journal) = self.journal {
            // A step of a large operation must fit a transaction beside others.
            let log_blocks = usize::try_from(journal.area.count()).unwrap_or(usize::MAX);
            options.step_bytes = options.step_bytes.min(log_blocks.saturating_mul(cache.block_size()) / 16);
            volume.use_journal(journal);
        }
        Ok(Uhfs::new(volume, options))
    }
}

/// Opens the volume on `device`, in blocks of the volume's size, which needs no recovery (any more). Returns the file
/// system and the mechanism in force.
///
/// # Errors
/// As [`Ext2::open`]; [`Error::Unsupported`] for a journaling mechanism on a volume without a journal.
pub fn open(
    device: Arc<dyn BlockDevice>,
    arrangement: &Arrangement,
    clock: Arc<dyn Clock>,
) -> Result<(Uhfs<Ext2>, Consistency)> {
    let chosen = Chosen::new(&*device, arrangement)?;
    let consistency = chosen.consistency;
    let mut options = arrangement.cache.clone();
    if chosen.ordering() == Ordering::Dropped {
        options.ordering = Ordering::Dropped;
    }
    let device = match &arrangement.journal {
        Some(external) if chosen.journal.is_some() => {
            Arc::new(Concat::new(vec![device, Arc::clone(external)])?)
        }
        _ => device,
    };
    let cache = Cache::new(device, options, clock);
    Ok((chosen.open_in(cache, arrangement.fs.clone())?, consistency))
}
