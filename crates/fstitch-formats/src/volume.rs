//! An open volume, as a mount, a stack and the command line need it.

use std::sync::Arc;

use fstitch_core::{Consistency, Errno, Error, FileSystem, InodeNo, Result};
use fstitch_fs::arrange::CachedFormat;
use fstitch_fs::loopback::Loopback;
use fstitch_fs::uhfs::{Reclaimed, Uhfs};
use fstitch_patch::{Cache, Placement};

use crate::{HasSums, Snapshots};

/// References that the kernel holds: inodes, and how many of each.
pub type References = Vec<(InodeNo, u64)>;

/// How a volume is doing.
#[derive(Clone, Debug, Default)]
pub struct Health {
    /// Why it takes no changes any more, after a failure of the medium.
    pub failure: Option<Error>,
    /// Bytes that are changed and not yet written to their places; what a journal has counts.
    pub dirty_bytes: u64,
}

/// An open volume. Everything but what it is called has a default: that of a file system which keeps no cache, is stable when a
/// call returns, and has nothing to do in the background.
pub trait Volume: FileSystem {
    /// What people call a volume like this, such as `ext3`.
    fn format_name(&self) -> &'static str;
    /// The consistency mechanism in force.
    fn consistency(&self) -> Consistency;
    /// Whether the volume had not been unmounted cleanly before it was opened here.
    fn was_unclean(&self) -> bool {
        false
    }
    /// The cache that its blocks are in; `None` for a format that keeps none.
    fn cache(&self) -> Option<Arc<Cache>> {
        None
    }
    /// Begins to write changes out in the background; without this they are written by syncs alone.
    ///
    /// # Errors
    /// When no thread can be had.
    fn start(&self) -> Result<()> {
        self.cache().map_or(Ok(()), |cache| cache.start_flusher())
    }
    /// How it is doing.
    fn health(&self) -> Health {
        let of =
            |cache: Arc<Cache>| Health { failure: cache.poisoned(), dirty_bytes: cache.stats().dirty_bytes };
        self.cache().map(of).unwrap_or_default()
    }
    /// Frees what a crash has left marked as used, while the volume is in use.
    ///
    /// # Errors
    /// When the medium fails.
    fn reclaim(&self) -> Result<Reclaimed> {
        Ok(Reclaimed { complete: true, ..Reclaimed::default() })
    }
    /// Lets inodes leave memory that were there only until they were stable, and says whether there may be more: to be called every
    /// now and then by a thread of its own.
    fn let_go(&self) -> bool {
        false
    }
    /// Whether what is open could be changed at all: a snapshot that is opened by itself cannot.
    fn takes_changes(&self) -> bool {
        true
    }
    /// Its snapshots, if volumes of the format have some.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }
    /// What compares all of its blocks with their checksums, if the format has one for each.
    fn sums(&self) -> Option<&dyn HasSums> {
        None
    }
    /// All references that are held, for who opens the volume anew.
    fn references(&self) -> References;
    /// How many files are held that have lost their names. Only formats whose volumes are opened anew to be changed have to know.
    fn deleted_in_use(&self) -> usize {
        0
    }
    /// Takes over references that were held when the volume was open before.
    fn take_over(&self, references: &References);
    /// Where the blocks of the file `ino` are, for a volume that is in it. They stay there, and others cannot write the file, as
    /// long as this exists.
    ///
    /// # Errors
    /// `EOPNOTSUPP` where blocks have no places that stay; otherwise as [`Loopback::attach`].
    fn pin(self: Arc<Self>, ino: InodeNo, read_only: bool) -> Result<Arc<dyn Placement>> {
        let _ = (ino, read_only);
        Err(Errno::OPNOTSUPP.into())
    }
}

impl<L: CachedFormat> Volume for Uhfs<L> {
    fn format_name(&self) -> &'static str {
        self.format().name()
    }

    fn consistency(&self) -> Consistency {
        self.options().consistency
    }

    fn was_unclean(&self) -> bool {
        self.format().was_unclean()
    }

    fn cache(&self) -> Option<Arc<Cache>> {
        Some(Arc::clone(self.format().cache()))
    }

    fn reclaim(&self) -> Result<Reclaimed> {
        Self::reclaim(self)
    }

    fn let_go(&self) -> bool {
        Self::let_go(self)
    }

    fn references(&self) -> References {
        Self::references(self)
    }

    fn deleted_in_use(&self) -> usize {
        Self::deleted_in_use(self)
    }

    fn take_over(&self, references: &References) {
        Self::take_over(self, references);
    }

    fn pin(self: Arc<Self>, ino: InodeNo, read_only: bool) -> Result<Arc<dyn Placement>> {
        Ok(Loopback::attach(&self, ino, read_only)?)
    }
}
