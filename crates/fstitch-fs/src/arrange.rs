//! Opening a volume with a consistency mechanism: which journal is kept, and whether the cache keeps orders.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockDevice, Clock, Concat, Consistency, Error, Result};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode, Ordering};

use crate::uhfs::{LowLevelFs, Uhfs, UhfsOptions};

/// A format whose volumes are opened in a cache.
pub trait CachedFormat: LowLevelFs + Sized {
    /// Opens the volume in `cache`, which needs no recovery (any more).
    ///
    /// # Errors
    /// When it is no such volume, is damaged where it cannot be used without, or the medium fails.
    fn open(cache: Arc<Cache>) -> Result<Self>;
    /// What people call a volume like this, such as `ext3`.
    fn name(&self) -> &'static str;
    /// The journal of the volume on `device`, if it has one. The cache's device has the blocks of `device` and behind them those
    /// of `external`, the journal's own device. A format that knows no journals has none.
    ///
    /// # Errors
    /// When the journal cannot be used.
    fn journal_config(
        device: &dyn BlockDevice,
        external: Option<&dyn BlockDevice>,
        mode: JournalMode,
        commit_interval: Duration,
    ) -> Result<Option<JournalConfig>> {
        let _ = (device, external, mode, commit_interval);
        Ok(None)
    }
    /// Whether the volume on `device` tells other machines who uses it, and must be claimed by who changes it.
    ///
    /// # Errors
    /// When that cannot be told.
    fn needs_claim(device: &dyn BlockDevice) -> Result<bool> {
        let _ = device;
        Ok(false)
    }
    /// What of the volume on `device` can only be changed through a journal, by name.
    ///
    /// # Errors
    /// When that cannot be told.
    fn needs_journal(device: &dyn BlockDevice) -> Result<Option<&'static str>> {
        let _ = device;
        Ok(None)
    }
    /// Lets changes go through the journal that [`CachedFormat::journal_config`] found, from the first one after the mount on.
    fn use_journal(&self, config: JournalConfig) {
        let _ = config;
    }
}

/// What goes through the journal, for mechanisms that keep one.
#[must_use]
pub const fn journal_mode(consistency: Consistency) -> Option<JournalMode> {
    match consistency {
        Consistency::Metadata => Some(JournalMode::Metadata),
        Consistency::Ordered => Some(JournalMode::Ordered),
        Consistency::Full => Some(JournalMode::Full),
        Consistency::Soft | Consistency::Async | Consistency::Sync | Consistency::Shadow => None,
    }
}

/// How a volume is opened.
#[derive(Clone)]
pub struct Arrangement {
    /// The mechanism; `None` for `ordered` where the volume has a journal and `soft` where it has none.
    pub consistency: Option<Consistency>,
    /// The snapshot or clone that is opened by itself, of a volume that has some; empty for the volume.
    pub tree: Vec<u8>,
    /// Age at which a transaction is committed.
    pub commit_interval: Duration,
    /// The device of an external journal, in blocks of the volume's size.
    pub journal: Option<Arc<dyn BlockDevice>>,
    /// Who opens it has claimed the volume, if it tells other machines who uses it.
    pub claimed: bool,
    /// The cache.
    pub cache: CacheOptions,
    /// The file system above it.
    pub fs: UhfsOptions,
}

impl Default for Arrangement {
    fn default() -> Self {
        Self {
            consistency: None,
            tree: Vec::new(),
            commit_interval: Duration::from_secs(5),
            journal: None,
            claimed: false,
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
    /// As [`CachedFormat::journal_config`]; [`Error::Unsupported`] for a journaling mechanism on a volume without a journal.
    pub fn new<L: CachedFormat>(device: &dyn BlockDevice, arrangement: &Arrangement) -> Result<Self> {
        let Arrangement { consistency, commit_interval, journal: external, cache, .. } = arrangement;
        if !cache.read_only && !arrangement.claimed && L::needs_claim(device)? {
            return Err(Error::Unsupported(
                "writing with feature mmp by who has not claimed the volume".into(),
            ));
        }
        if *consistency == Some(Consistency::Shadow) {
            let what =
                "consistency `shadow` on a volume whose blocks are written in place (that is waffle's)";
            return Err(Error::Unsupported(what.into()));
        }
        let mode = consistency.and_then(journal_mode).unwrap_or(JournalMode::Ordered);
        let journal = match consistency {
            Some(asked) if !asked.is_journaled() => None,
            _ if cache.read_only => None,
            _ => L::journal_config(device, external.as_deref(), mode, *commit_interval)?,
        };
        if journal.is_none()
            && !cache.read_only
            && let Some(feature) = L::needs_journal(device)?
        {
            return Err(Error::Unsupported(format!(
                "writing with feature {feature} and without a journal: mount read-only"
            )));
        }
        let consistency = match (consistency, &journal) {
            (Some(asked), None) if asked.is_journaled() && !cache.read_only => {
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
    /// As [`CachedFormat::open`].
    pub fn open_in<L: CachedFormat>(self, cache: Arc<Cache>, mut options: UhfsOptions) -> Result<Uhfs<L>> {
        let volume = L::open(Arc::clone(&cache))?;
        options.consistency = self.consistency;
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
/// As [`CachedFormat::open`]; [`Error::Unsupported`] for a journaling mechanism on a volume without a journal.
pub fn open<L: CachedFormat>(
    device: Arc<dyn BlockDevice>,
    arrangement: &Arrangement,
    clock: Arc<dyn Clock>,
) -> Result<(Uhfs<L>, Consistency)> {
    let chosen = Chosen::new::<L>(&*device, arrangement)?;
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
