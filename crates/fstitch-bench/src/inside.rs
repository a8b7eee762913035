//! A volume opened in this process, without FUSE.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use fstitch_core::Consistency;
use fstitch_core::{BlockDevice, Clock, FileSystem, StatsDevice, SystemClock, Timestamp};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_fs::arrange::{self, Arrangement};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::mkfs::{MkfsJournal, MkfsOptions, mkfs};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::uhfs::{AtimePolicy, LowLevelFs, Uhfs, UhfsOptions};
use fstitch_fs::waffle::{self, Waffle};
use fstitch_patch::{Cache, CacheOptions};

/// Blocks of all volumes, in bytes.
pub const BLOCK_SIZE: u32 = 4096;

/// A medium that counts what reaches it.
pub type Disk = Arc<StatsDevice<FileDisk>>;

/// Opens an image as a mount does.
///
/// # Errors
/// As [`FileDisk::open`].
pub fn disk(image: &Path) -> Result<Disk> {
    disk_of(image, BLOCK_SIZE)
}

/// The same with blocks of another size.
///
/// # Errors
/// As [`disk`].
pub fn disk_of(image: &Path, block_size: u32) -> Result<Disk> {
    let options = DiskOptions { block_size, ..DiskOptions::default() };
    Ok(Arc::new(StatsDevice::new(FileDisk::open_when_let_go(image, &options)?)))
}

/// The cache that a mount has by default.
#[must_use]
pub fn cache() -> CacheOptions {
    CacheOptions {
        cache_size: CacheOptions::share_of(fstitch_disk::available_memory()),
        ..CacheOptions::default()
    }
}

/// A volume with everything below it.
pub struct Inside {
    /// The file system.
    pub fs: Arc<Uhfs<Ext2>>,
    /// Its cache, for counters.
    pub cache: Arc<Cache>,
}

impl Inside {
    /// Makes an ext3 volume on `device`, with at least so many inodes.
    ///
    /// # Errors
    /// As `mkfs`.
    pub fn make(device: &dyn BlockDevice, inodes: u32) -> Result<()> {
        let mut options = MkfsOptions::new([7; 16], [9; 16], Timestamp { secs: 1_700_000_000, nanos: 0 });
        options.block_size = Some(BLOCK_SIZE);
        options.inodes = Some(inodes);
        options.journal = MkfsJournal::Suitable;
        options.device_is_zero = true;
        mkfs(device, &options, &mut |_, _| {})?;
        Ok(())
    }

    /// Opens the volume on `device`, with the defaults of a mount but for `cache`.
    ///
    /// # Errors
    /// As opening a volume.
    pub fn open(device: Arc<dyn BlockDevice>, consistency: Consistency, cache: CacheOptions) -> Result<Self> {
        Self::open_with(device, consistency, cache, Arc::new(SystemClock::new()))
    }

    /// The same with a clock of one's own.
    ///
    /// # Errors
    /// As [`Inside::open`].
    pub fn open_with(
        device: Arc<dyn BlockDevice>,
        consistency: Consistency,
        cache: CacheOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let arrangement = Arrangement {
            consistency: Some(consistency),
            cache,
            fs: UhfsOptions { atime: AtimePolicy::RelAtime, ..UhfsOptions::default() },
            ..Arrangement::default()
        };
        let (fs, _) = arrange::open::<Ext2>(device, &arrangement, clock)?;
        let cache = Arc::clone(LowLevelFs::cache(fs.format()));
        Ok(Self { fs: Arc::new(fs), cache })
    }
}

/// Opens a volume of UFS with soft updates, as a mount does.
///
/// # Errors
/// As opening a volume.
pub fn ufs(device: Arc<dyn BlockDevice>) -> Result<Arc<dyn FileSystem>> {
    let arrangement = Arrangement {
        consistency: Some(Consistency::Soft),
        cache: cache(),
        fs: UhfsOptions { atime: AtimePolicy::RelAtime, ..UhfsOptions::default() },
        ..Arrangement::default()
    };
    let (fs, _) = arrange::open::<Ufs>(device, &arrangement, Arc::new(SystemClock::new()))?;
    LowLevelFs::cache(fs.format()).start_flusher()?;
    Ok(Arc::new(fs))
}

/// Opens a volume of waffle, as a mount does.
///
/// # Errors
/// As opening a volume.
pub fn waffle(device: Arc<dyn BlockDevice>) -> Result<Arc<dyn FileSystem>> {
    let options = waffle::Options { atime: AtimePolicy::RelAtime, ..waffle::Options::default() };
    let fs = Waffle::mount(device, cache(), Arc::new(SystemClock::new()), options)?;
    fs.start()?;
    Ok(fs)
}
