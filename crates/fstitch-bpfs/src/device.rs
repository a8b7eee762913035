//! A volume on a block device or an ordinary file: its blocks come to memory as they are looked at, and what is stored reaches the
//! device by the [log](crate::log).

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{
    BlockDevice, BlockKind, Clock, Errno, Error, InodeNo, Overlay, Result, Structure, Timestamp,
};

use crate::layout::Identity;
use crate::log::{self, LOG_MAX, LOG_MIN, Log, LogCounts, Pages, Recovered, usual_log};
use crate::pm::{BLOCK, BLOCK_BYTES, Durability, Gate, Medium};
use crate::volume::{Bpfs, MkfsOptions, Options, check_room, found};

/// Blocks of a volume that a new one has written: the superblock, its copy, the first inodes.
const MADE: usize = 3;

fn read_identity(pages: &Pages) -> Result<Identity> {
    if pages.count() < to_u64(MADE) {
        return Err(Error::corrupt(Structure::Volume, None, "it is too small for a volume"));
    }
    let mut head = vec![0; BLOCK];
    pages.read(0, BlockKind::Superblock, &mut head)?;
    let identity = Identity::decode(&head)?;
    check_room(&identity, pages.count())?;
    if identity.log == 0 {
        let what = "a volume without a log on a device: it is opened in memory (`Bpfs::open`)";
        return Err(Error::Unsupported(what.into()));
    }
    Ok(identity)
}

/// The first epoch of a log: none that groups have which another volume has left here.
fn first_epoch(options: &MkfsOptions) -> u64 {
    let Timestamp { secs, nanos } = options.now;
    let time = secs.unsigned_abs() << 30 ^ u64::from(nanos);
    let of = |from| fstitch_core::Le::u64(&options.uuid, from);
    (of(0) ^ of(8).rotate_left(32) ^ time) & !0xffff_ffff | 1
}

/// Makes an empty volume of all of a device, with a log of so many blocks, or what suits it.
///
/// # Errors
/// `EINVAL` for a label that is too long; `ENOSPC` if the device is too small; `Unsupported` for such a log; those of the device.
pub fn mkfs_on(device: Arc<dyn BlockDevice>, options: &MkfsOptions, log: Option<u64>) -> Result<Identity> {
    let pages = Pages::new(device)?;
    let log = log.unwrap_or_else(|| usual_log(pages.count()));
    if !(LOG_MIN..=LOG_MAX).contains(&log) {
        return Err(Error::Unsupported(format!(
            "a log of {log} blocks: {LOG_MIN} to {LOG_MAX} are possible"
        )));
    }
    let blocks = pages.count().saturating_sub(log);
    if blocks < LOG_MIN {
        return Err(Errno::NOSPC.into());
    }
    // Made in memory, of which the first blocks are all that is written.
    let image = first_blocks(blocks, options)?;
    let mut identity = Identity::decode(&image)?;
    identity.log = u32::try_from(log).expect("it is not larger than the largest");
    let mut head = image[..BLOCK].to_vec();
    head[..128].copy_from_slice(&identity.encode()[..128]);
    let (superblock, inodes) = (BlockKind::Superblock, BlockKind::Inode);
    // A cut leaves what was there as none, or the new one.
    pages.write(&[(0, superblock, &[0; BLOCK])])?;
    pages.flush()?;
    let mut copy = vec![0; BLOCK];
    copy[..128].copy_from_slice(&head[..128]);
    pages.write(&[(1, superblock, &copy), (2, inodes, &image[2 * BLOCK..MADE * BLOCK])])?;
    log::make(&pages, &identity.log_shape(), first_epoch(options))?;
    pages.flush()?;
    pages.write(&[(0, superblock, &head)])?;
    pages.flush()?;
    Ok(identity)
}

/// The first blocks of a new volume.
fn first_blocks(blocks: u64, options: &MkfsOptions) -> Result<Vec<u8>> {
    let gate = found(Medium::memory(blocks * BLOCK_BYTES)?, options)?;
    Ok(gate.bytes(0, MADE * BLOCK).to_vec())
}

/// Who the volume is on a medium that begins so. `None`: there is none.
#[must_use]
pub fn probe(head: &[u8]) -> Option<Result<Identity>> {
    let is_one = head.len() >= BLOCK && Identity::is_there(head);
    is_one.then(|| Identity::decode(head))
}

/// Who the volume on a device is, and what is in its log.
///
/// # Errors
/// Those of the device; `Corrupt` if there is none, `Unsupported` if it is of another version.
pub fn identify_on(device: Arc<dyn BlockDevice>) -> Result<(Identity, Recovered)> {
    let pages = Pages::new(device)?;
    let identity = read_identity(&pages)?;
    let recovered = log::look(&pages, &identity)?;
    Ok((identity, recovered))
}

/// Gives a volume that nobody has open another label or UUID. A cut leaves the old ones or the new ones.
///
/// # Errors
/// As [`identify_on`]; `EINVAL` for a label that is too long; `EBUSY` if something is in the log.
pub fn rename_on(device: Arc<dyn BlockDevice>, label: Option<Vec<u8>>, uuid: Option<[u8; 16]>) -> Result<()> {
    let pages = Pages::new(device)?;
    let mut identity = read_identity(&pages)?;
    if log::look(&pages, &identity)?.groups > 0 {
        return Err(Errno::BUSY.into());
    }
    if label.as_ref().is_some_and(|label| label.len() > 64 || label.contains(&0)) {
        return Err(Errno::INVAL.into());
    }
    identity.label = label.unwrap_or(identity.label);
    identity.uuid = uuid.unwrap_or(identity.uuid);
    for block in 0..2 {
        let mut bytes = vec![0; BLOCK];
        pages.read(block, BlockKind::Superblock, &mut bytes)?;
        bytes[..128].copy_from_slice(&identity.encode()[..128]);
        pages.write(&[(block, BlockKind::Superblock, &bytes)])?;
        pages.flush()?;
    }
    Ok(())
}

/// Brings home what is in the log of a volume that nobody has open, and says that it is closed.
///
/// # Errors
/// As [`identify_on`].
pub fn recover_on(device: Arc<dyn BlockDevice>) -> Result<Recovered> {
    let pages = Pages::new(device)?;
    let identity = read_identity(&pages)?;
    let (log, recovered) = Log::open(pages, &identity, true)?;
    log.close(&|_| Vec::new())?;
    Ok(recovered)
}

impl Bpfs {
    /// Mounts the volume on a device, behind its log. `options.durability` says what an operation survives when it returns. Read-only,
    /// the device stays as it is: what its log has is seen in memory.
    ///
    /// # Errors
    /// Those of the device; `Corrupt` if there is no volume, or it is damaged; `Unsupported` if it is of another version.
    pub fn open_on(device: Arc<dyn BlockDevice>, options: Options, clock: Arc<dyn Clock>) -> Result<Self> {
        let device: Arc<dyn BlockDevice> =
            if options.read_only { Arc::new(Overlay::new(device)) } else { device };
        let pages = Pages::new(device)?;
        let identity = read_identity(&pages)?;
        let flushes = options.durability == Durability::Power;
        let (log, recovered) = Log::open(pages.clone(), &identity, flushes)?;
        let medium = Medium::pages(pages, identity.blocks, options.durability, options.cache_size)?;
        let mut gate = Gate::new(medium, options.caching, None)?;
        gate.follow_by(Arc::new(log));
        let mut fs = Self::begin(gate, identity, options, clock)?;
        fs.recovered = Some(recovered);
        Ok(fs)
    }

    /// What opening found in the log; `None` for a volume without one.
    #[must_use]
    pub fn recovered(&self) -> Option<Recovered> {
        self.recovered
    }

    /// What has gone through the log so far.
    #[must_use]
    pub fn log_counts(&self) -> Option<LogCounts> {
        self.share().state.gate.log().map(|log| log.counts())
    }

    /// Bytes of the device that are in memory; `None` for a volume that is in memory all the time.
    #[must_use]
    pub fn in_memory(&self) -> Option<u64> {
        self.share().state.gate.in_memory()
    }

    /// Why the volume takes no changes any more, if so.
    #[must_use]
    pub fn failed(&self) -> Option<Error> {
        let core = self.share();
        core.end().cloned().or_else(|| core.state.gate.log().and_then(|log| log.failed()))
    }

    /// The references that are held, for who opens the volume anew.
    #[must_use]
    pub fn references(&self) -> Vec<(InodeNo, u64)> {
        self.table().references()
    }

    /// Takes over references that were held when the volume was open before.
    pub fn take_over(&self, references: &[(InodeNo, u64)]) {
        let core = self.share();
        for &(ino, count) in references {
            // An inode that is gone answers `ESTALE` to whoever still asks for it.
            let _ = self.node(&core.state, ino, count);
        }
    }

    /// An operation has happened, and is over when it is as durable as the mount promises.
    ///
    /// # Errors
    /// Those of the device. Nothing changes any more then.
    pub(crate) fn durably<T>(&self, done: Result<T>) -> Result<T> {
        let done = done?;
        let log = self.share().state.gate.log().cloned();
        if let Some(log) = log {
            self.or_end(log.wait(log.appended()))?;
        }
        Ok(done)
    }

    /// A failure of the log ends all changes.
    pub(crate) fn or_end(&self, done: Result<()>) -> Result<()> {
        if let Err(error) = &done {
            self.end_life(error.clone());
        }
        done
    }
}
