//! The one way in which commands open a volume: probe, disk, cache, format, file system.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::{BlockDevice, Consistency, DeviceStats, Errno, Error, Overlay, StatsDevice, Timestamp};
use fstitch_disk::{Direct, DiskOptions, FileDisk, TableEntry};
use fstitch_formats as formats;
use fstitch_formats::{Durability, Format};
use fstitch_fs::arrange::Arrangement;
use fstitch_fs::uhfs::{AtimePolicy, UhfsOptions};
use fstitch_patch::{CacheOptions, Optimizations};
use fstitch_shepherd::{Array, Era};

use crate::claim::Claimed;
use crate::live::{self, Live};
use crate::probe::{self, Found};
use crate::shepherd::{self, Hook, Kept};
use crate::{disks, recovery};

/// Arguments of every command that works on an image.
#[derive(clap::Args, Clone, Debug)]
#[group(id = "volume")]
pub struct Arguments {
    /// Where the volume starts in the image, in bytes: a partition's start
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = crate::size::bytes)]
    pub offset: u64,
    /// The partition of a whole disk that the volume is in, by its number in the table (MBR or GPT)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Bytes of memory for cached blocks and pending changes
    #[arg(long, value_name = "BYTES", default_value = "32M", value_parser = crate::size::bytes)]
    pub cache_size: u64,
    /// The device of the volume's journal, if it has one of its own
    #[arg(long, value_name = "PATH")]
    pub journal: Option<PathBuf>,
}

/// What is wanted of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading; writers are kept out meanwhile.
    ReadOnly,
    /// Reading and changing.
    ReadWrite,
}

/// What an operation survives when it has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// Nobody hears of it before the volume is closed, which makes all of them stable.
    UntilClosed,
    /// What a mount was asked for, or as much as there is.
    Asked(Option<Durability>),
}

/// How a volume is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Reading, or changing as well.
    pub access: Access,
    /// Where the volume starts, in bytes.
    pub offset: u64,
    /// Bytes of memory.
    pub cache_size: u64,
    /// Age at which changes are written.
    pub write_back_age: Duration,
    /// The optimisations in force.
    pub optimizations: Optimizations,
    /// When reading changes access times.
    pub atime: AtimePolicy,
    /// The consistency mechanism; `None` for what suits the volume.
    pub consistency: Option<Consistency>,
    /// The mechanism that is preferred where nobody asks for one, if the volume can be changed by it.
    pub preferred: Option<Consistency>,
    /// What an operation survives where the format gives a choice.
    pub survives: Survives,
    /// Age at which a journal's transaction is committed.
    pub commit_interval: Duration,
    /// The device of an external journal.
    pub journal: Option<PathBuf>,
    /// The power can be cut.
    pub live: Option<live::Options>,
    /// Everything is done at this time instead of now.
    pub epoch: Option<Timestamp>,
    /// Whether the kernel's page cache is passed by.
    pub direct: Direct,
    /// What is run on faults of which the volume's policy says `notify`.
    pub on_fault: Option<String>,
    /// The snapshot or clone that is opened by itself.
    pub tree: Option<String>,
}

/// An open volume with everything below it.
pub struct Volume {
    /// The file system.
    pub fs: Arc<dyn formats::Volume>,
    /// The medium, for counters.
    pub disk: Arc<dyn Counted>,
    /// The volatile cache before the medium, if its power can be cut.
    pub live: Option<Live>,
    /// The shepherd before the medium, if the volume follows a policy.
    pub kept: Option<Arc<Kept>>,
    /// What it is open on, if its policy has steps that only a mount can carry out.
    pub era: Option<Arc<Era>>,
    /// The journal that is to be as new when the volume is closed, if one was needed and nothing may tell of the past.
    pub told: Option<Told>,
    /// What tells other machines that the volume is in use, if it does that.
    pub claim: Option<Claimed>,
    /// It does that.
    pub is_shared: bool,
}

/// A volume whose journal tells when it was changed.
pub struct Told {
    device: Arc<dyn BlockDevice>,
    format: &'static dyn Format,
}

/// A volume's disk, as everybody is to see it.
pub struct OpenedDisk {
    /// In blocks of the volume's size.
    pub device: Arc<dyn BlockDevice>,
    /// The shepherd, if the volume follows a policy: to be closed by who changes the volume.
    pub kept: Option<Kept>,
    /// The volume's format.
    pub format: &'static dyn Format,
    raw: Arc<dyn BlockDevice>,
    claim: Option<Claimed>,
}

impl OpenedDisk {
    /// The disk below the shepherd, for who gives the volume a policy or takes it away.
    pub fn raw(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.raw)
    }

    /// Leaves the volume to others.
    pub fn close(self) -> Result<()> {
        let closed = self.kept.map_or(Ok(()), |kept| kept.close());
        closed.and(self.claim.map_or(Ok(()), Claimed::release))
    }
}

/// What counts the requests that reach a medium, or several as one.
pub trait Counted: Send + Sync {
    /// The counts so far.
    fn stats(&self) -> &DeviceStats;
}

impl<D: BlockDevice> Counted for StatsDevice<D> {
    fn stats(&self) -> &DeviceStats {
        Self::stats(self)
    }
}

impl Arguments {
    /// Opens a volume for a command that uses it in this process.
    pub fn open(&self, image: &Path, access: Access) -> Result<Volume> {
        Volume::open(image, &self.options(image, access)?)
    }

    /// How a command that uses a volume in this process opens it.
    pub fn options(&self, image: &Path, access: Access) -> Result<Options> {
        let epoch = if access == Access::ReadWrite { crate::epoch::asked()? } else { None };
        Ok(Options {
            access,
            offset: self.start(image)?,
            cache_size: self.cache_size,
            write_back_age: CacheOptions::default().write_back_age,
            optimizations: Optimizations::ALL,
            atime: AtimePolicy::NoAtime,
            // What a journal keeps of the past depends on when it was written.
            consistency: None,
            preferred: epoch.map(|_| Consistency::Soft),
            survives: Survives::UntilClosed,
            commit_interval: Arrangement::default().commit_interval,
            journal: self.journal.clone(),
            live: None,
            epoch,
            // One after the other is read and written here, in small pieces: the kernel reads ahead and writes behind.
            direct: Direct::Never,
            on_fault: None,
            tree: None,
        })
    }

    /// Opens the disk alone, in blocks of the volume's size, and says what is on it.
    pub fn open_disk(&self, image: &Path, access: Access) -> Result<(FileDisk, Found)> {
        open_disk(image, self.start(image)?, access, Direct::Auto)
    }

    /// The same, through the shepherd if the volume follows a policy.
    pub fn open_kept(&self, image: &Path, access: Access) -> Result<OpenedDisk> {
        let below = below(image, (self.start(image)?, access, Direct::Auto), None)?;
        let (device, claim) = claimed(below.device(), &below, (image, access))?;
        Ok(OpenedDisk { device, kept: below.kept, format: below.format, raw: below.raw, claim })
    }

    /// Where the volume starts in `image`, in bytes.
    pub fn start(&self, image: &Path) -> Result<u64> {
        self.partition.map_or(Ok(self.offset), |number| partition_start(image, number))
    }
}

/// The disk or the disks of a volume, and the shepherd before them if it follows a policy.
struct Below {
    raw: Arc<dyn BlockDevice>,
    counted: Arc<dyn Counted>,
    kept: Option<Kept>,
    format: &'static dyn Format,
    /// Other machines are told who uses the volume.
    is_shared: bool,
    /// The disk, if there is but one.
    alone: Option<Arc<StatsDevice<FileDisk>>>,
}

impl Below {
    fn of_lost(lost: shepherd::lost::Lost) -> Self {
        let raw = Arc::clone(&lost.disk) as Arc<dyn BlockDevice>;
        let counted = Arc::clone(&lost.disk) as _;
        let (kept, format) = (Some(lost.kept), lost.format);
        // It follows a policy, which such a volume cannot.
        Self { raw, counted, kept, format, is_shared: false, alone: Some(lost.disk) }
    }

    /// The volume, as everybody is to see it.
    fn device(&self) -> Arc<dyn BlockDevice> {
        self.kept.as_ref().map_or_else(|| Arc::clone(&self.raw), Kept::device)
    }
}

/// Why such a volume is not changed.
pub const SHARED_JOURNAL: &str =
    "writing with feature mmp and a journal on a device of its own: mount read-only";
/// The same.
pub const SHARED_BY_DISKS: &str = "feature mmp, by which other machines are told that it is in use, is not kept on several disks or with a policy: \
    read it only";

/// The volume claimed, for who changes it, if it tells other machines who uses it.
fn claimed(
    device: Arc<dyn BlockDevice>,
    below: &Below,
    (image, access): (&Path, Access),
) -> Result<(Arc<dyn BlockDevice>, Option<Claimed>)> {
    let name = || image.display().to_string();
    let shares = below.format.shares().filter(|_| below.is_shared && access == Access::ReadWrite);
    let Some(shares) = shares else { return Ok((device, None)) };
    ensure!(
        below.format.look(&device)?.journal != formats::OwnJournal::Device,
        "{}: {SHARED_JOURNAL}",
        name()
    );
    let claim = Claimed::new(device, shares, image).with_context(name)?;
    Ok((claim.device(), Some(claim)))
}

/// Opens what is below a volume's file system: of `place`, where it starts, what for, and how.
fn below(
    image: &Path,
    (offset, access, direct): (u64, Access, Direct),
    hook: Option<&Hook>,
) -> Result<Below> {
    let name = || image.display().to_string();
    if disks::is_several(image) {
        ensure!(offset == 0, "{}: a volume on several disks starts where they do, not at an offset", name());
        if disks::stripe::is_one(image) {
            return striped(image, access, direct);
        }
        let (kept, counted) = array(image, access, direct, hook)?;
        let found = probe::on_device(&*kept.device()).with_context(name)?;
        kept.judge_by(found.format).with_context(name)?;
        ensure!(!found.is_shared || access == Access::ReadOnly, "{}: {SHARED_BY_DISKS}", name());
        let raw = Arc::clone(&counted) as Arc<dyn BlockDevice>;
        let Found { format, is_shared, .. } = found;
        return Ok(Below { raw, counted, kept: Some(kept), format, is_shared, alone: None });
    }
    on_one_disk(image, (offset, access, direct), hook)
}

/// The same of a stripe, whose volume follows no policy.
fn striped(image: &Path, access: Access, direct: Direct) -> Result<Below> {
    let name = || image.display().to_string();
    let stripe = disks::stripe::open(image, access, direct)?;
    let Found { format, is_shared, .. } = probe::on_device(&stripe).with_context(name)?;
    ensure!(!is_shared || access == Access::ReadOnly, "{}: {SHARED_BY_DISKS}", name());
    let counted = Arc::new(StatsDevice::new(stripe));
    let raw: Arc<dyn BlockDevice> = Arc::clone(&counted) as _;
    let kept = shepherd::over(&raw, format, access, (&name(), None)).with_context(name)?;
    ensure!(kept.is_none(), "{}: a volume on a stripe follows no policy", name());
    Ok(Below { raw, counted, kept, format, is_shared, alone: None })
}

/// The same on one disk. What is lost there by which the maps of its policy would be found may be in those maps.
fn on_one_disk(image: &Path, place: shepherd::lost::Place, hook: Option<&Hook>) -> Result<Below> {
    let usual = match as_usual(image, place, hook) {
        Ok(below) if below.kept.is_some() || !shepherd::lost::may_hide(&*below.raw, below.format) => {
            return Ok(below);
        }
        Err(error) if !shepherd::lost::is_worth_a_search(&error) => return Err(error),
        // The same disk may not be open twice.
        usual => usual.map(drop),
    };
    match (shepherd::lost::open(image, (place, place.1), &usual, hook)?, usual) {
        (Some(lost), _) => Ok(Below::of_lost(lost)),
        (None, Ok(())) => as_usual(image, place, hook),
        (None, Err(error)) => Err(error),
    }
}

/// The same where the volume says itself where its maps are.
fn as_usual(
    image: &Path,
    (offset, access, direct): shepherd::lost::Place,
    hook: Option<&Hook>,
) -> Result<Below> {
    let name = || image.display().to_string();
    let (disk, Found { format, is_shared, .. }) = open_disk(image, offset, access, direct)?;
    let disk = Arc::new(StatsDevice::new(disk));
    let raw: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
    let kept = shepherd::over(&raw, format, access, (&name(), hook)).with_context(name)?;
    Ok(Below { raw, counted: Arc::clone(&disk) as _, kept, format, is_shared, alone: Some(disk) })
}

/// Opens the disks of an array, with the shepherd before them, whatever is on it.
pub fn array(
    image: &Path,
    access: Access,
    direct: Direct,
    hook: Option<&Hook>,
) -> Result<(Kept, Arc<StatsDevice<Arc<Array>>>)> {
    let disks = disks::open(image, access, direct)?;
    let counted = Arc::new(StatsDevice::new(Arc::clone(disks.array())));
    let name = image.display().to_string();
    let kept = shepherd::over_disks(disks, Arc::clone(&counted) as _, (&name, hook)).with_context(|| name)?;
    Ok((kept, counted))
}

/// Where partition `number` of the disk `image` starts, in bytes.
pub fn partition_start(image: &Path, number: u32) -> Result<u64> {
    Ok(partition(image, number)?.start)
}

/// Partition `number` of the disk `image`.
pub fn partition(image: &Path, number: u32) -> Result<TableEntry> {
    ensure!(!disks::is_several(image), "{}: a volume on several disks has all of them", image.display());
    let table = fstitch_disk::partitions(image).with_context(|| image.display().to_string())?;
    let Some(entries) = table else { bail!("{} has no partition table", image.display()) };
    match entries.iter().find(|entry| entry.number == number) {
        Some(entry) => Ok(entry.clone()),
        None => {
            let numbers: Vec<String> = entries.iter().map(|entry| entry.number.to_string()).collect();
            bail!("{} has no partition {number}; it has {}", image.display(), numbers.join(", "))
        }
    }
}

/// Opens a disk alone, by what is at its beginning.
pub fn open_disk(image: &Path, offset: u64, access: Access, direct: Direct) -> Result<(FileDisk, Found)> {
    let found = probe::volume(image, offset);
    let found = found.map_err(|error| disks::alone(image).filter(|_| offset == 0).unwrap_or(error));
    let found = found?;
    let (read_only, direct) = (access == Access::ReadOnly, found.direct(access, direct));
    let options =
        DiskOptions { block_size: found.block_size, offset, read_only, direct, ..DiskOptions::default() };
    Ok((disk(image, &options)?, found))
}

/// How long an image may stay locked by a process that is gone.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How long an image may be locked by a process of which no mount is known: a daemon may have ended between the look
/// at its lock and the look for its mount.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// How often the lock is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Opens a medium. The kernel gives back the lock of a killed process some moments after it has gone, because
/// requests under way hold the file; and a daemon writes its last blocks after umount(8) has returned. Both are
/// waited for. A mount of ours that can be seen is not.
pub fn disk(image: &Path, options: &DiskOptions) -> Result<FileDisk> {
    let mut waited = Duration::ZERO;
    loop {
        match FileDisk::open(image, options.clone()) {
            Err(Error::Locked(reason)) => {
                let mounted = mounted_at(image);
                let ending = mounted.as_ref().is_some_and(|at| !crate::mount::is_mounted(Path::new(at)));
                let gone = reason.contains("another process") || waited < SECOND_LOOK;
                let patient = ending || (mounted.is_none() && gone);
                if waited >= LOCK_PATIENCE || !patient {
                    match mounted {
                        Some(at) if ending => {
                            bail!("{reason}; it was unmounted from {at}, where files are still open")
                        }
                        Some(at) => bail!("{reason}; it is mounted at {at}"),
                        None => bail!("{reason}"),
                    }
                }
                std::thread::sleep(LOCK_INTERVAL);
                waited += LOCK_INTERVAL;
            }
            Err(error) if !options.read_only && is_only_readable(image) => {
                bail!("{error}; this user may read {}, but not change it", image.display())
            }
            other => return Ok(other?),
        }
    }
}

/// Whether this user may read an image, but not change it.
pub fn is_only_readable(image: &Path) -> bool {
    let refused = |error: &std::io::Error| {
        matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
    };
    disks::names(image).iter().any(|image| {
        let writing = std::fs::OpenOptions::new().write(true).open(image);
        writing.is_err_and(|error| refused(&error)) && std::fs::File::open(image).is_ok()
    })
}

/// Where this user has the image mounted, in another process: who opens a volume anew is not in his own way.
pub fn mounted_at(image: &Path) -> Option<String> {
    let is_it = |path: &str| disks::same(Path::new(path), image);
    let same = |status: &crate::control::Status| {
        let devices = status.stack.iter().flat_map(|stack| &stack.devices);
        let mut media = devices.filter(|device| device.volume.is_none());
        is_it(&status.image) || media.any(|device| is_it(&device.path))
    };
    crate::control::client::all_mounts().into_iter().find(same).map(|status| status.mountpoint)
}

/// The medium after recovery: itself, or, for readers of one that needs it, a view of what it would be.
fn recovered(
    device: Arc<dyn BlockDevice>,
    format: &dyn Format,
    options: &Options,
) -> Result<Arc<dyn BlockDevice>> {
    if !format.needs_recovery(&device)? {
        return Ok(device);
    }
    let journal = options.journal.as_deref();
    let (device, report) = match options.access {
        Access::ReadWrite => {
            let report = recovery::recover(format, &device, journal)?;
            (device, report)
        }
        Access::ReadOnly => {
            let view = Overlay::new(device);
            let report = recovery::recover_in_memory(format, &view, journal)?;
            (Arc::new(view) as _, report)
        }
    };
    match report {
        Some(report) if !report.problems.is_empty() => tracing::warn!("{}", report.describe()),
        Some(report) => tracing::info!("{}", report.describe()),
        None => {}
    }
    Ok(device)
}

/// The mechanism that goes with what was asked for.
fn mechanism(
    device: &dyn BlockDevice,
    format: &dyn Format,
    options: &Options,
) -> Result<Option<Consistency>> {
    let name = format.names().first().unwrap_or(&"this");
    let usual = match options.preferred {
        Some(preferred) if options.consistency.is_none() && format.has_choice() => {
            by_journal(device, format, preferred)?
        }
        _ => options.consistency,
    };
    let of = |durability| format.durability(durability);
    match options.survives {
        Survives::UntilClosed => Ok(of(Durability::Process).or(usual)),
        Survives::Asked(Some(asked)) if of(asked).is_none() => {
            bail!(
                "`durability={}` is for volumes without a cache, and this is {name}: `consistency=` says what its operations survive",
                asked.name()
            )
        }
        Survives::Asked(asked) => match (of(asked.unwrap_or(Durability::Power)), options.consistency) {
            (Some(_), Some(consistency)) => bail!(
                "`consistency={consistency}` is not for {name}, every operation of which is atomic and in order: `durability=power` or \
                 `durability=process` says what it survives"
            ),
            (of_format, consistency) => Ok(of_format.or(consistency)),
        },
    }
}

/// The mechanism that is preferred, or what is next to it on a volume that needs its journal.
fn by_journal(
    device: &dyn BlockDevice,
    format: &dyn Format,
    preferred: Consistency,
) -> Result<Option<Consistency>> {
    Ok(match preferred {
        preferred if preferred.is_journaled() || !format.needs_journal(device)? => Some(preferred),
        Consistency::Async => Some(Consistency::Metadata),
        _ => None,
    })
}

/// A volume that could be opened.
pub struct Seen {
    /// The format's name.
    pub format: &'static str,
    /// The mechanism that would be in force.
    pub consistency: Consistency,
    /// It was not unmounted cleanly.
    pub was_unclean: bool,
    /// What opening would recover first.
    pub recovery: Option<String>,
}

/// What is below a volume at which is only looked, opened as it would be to change it, as far as locks and rights go.
fn below_for_looking(image: &Path, options: &Options) -> Result<Below> {
    let name = image.display().to_string();
    if disks::is_several(image) {
        return below(image, (options.offset, Access::ReadOnly, options.direct), None);
    }
    let place = (options.offset, options.access, options.direct);
    // Who looks has nothing given back.
    if let Some(lost) = shepherd::lost::instead(image, place, Access::ReadOnly)? {
        return Ok(Below::of_lost(lost));
    }
    let (disk, Found { format, is_shared, .. }) =
        open_disk(image, options.offset, options.access, options.direct)?;
    let disk = Arc::new(StatsDevice::new(disk));
    let raw: Arc<dyn BlockDevice> = Arc::clone(&disk) as _;
    let kept = shepherd::over(&raw, format, Access::ReadOnly, (&name, None)).with_context(|| name)?;
    Ok(Below { raw, counted: Arc::clone(&disk) as _, kept, format, is_shared, alone: Some(disk) })
}

/// Opens the volume in `image` as [`Volume::open`] does, and changes nothing: what recovery writes stays in memory.
///
/// # Errors
/// What would make opening it fail.
pub fn look(image: &Path, options: &Options) -> Result<Seen> {
    let name = || image.display().to_string();
    let below = below_for_looking(image, options)?;
    let (format, view) = (below.format, Overlay::new(below.device()));
    let report = match format.needs_recovery(&view).with_context(name)? {
        true => recovery::recover_in_memory(format, &view, options.journal.as_deref()).with_context(name)?,
        false => None,
    };
    let block_size = view.geometry().block_size;
    let journal = recovery::open_external(options.journal.as_deref(), block_size, options.access)?;
    let read_only = options.access == Access::ReadOnly;
    let arrangement = Arrangement {
        consistency: mechanism(&view, format, options).with_context(name)?,
        tree: tree(format, options)?,
        commit_interval: options.commit_interval,
        // Nothing is written.
        claimed: true,
        journal: journal.map(|disk| Arc::new(Overlay::new(disk)) as Arc<dyn BlockDevice>),
        cache: CacheOptions { read_only, ..CacheOptions::default() },
        fs: UhfsOptions { read_only, atime: options.atime, ..UhfsOptions::default() },
    };
    let opened = format.open(Arc::new(view), &arrangement, crate::epoch::clock(options.epoch));
    let fs = opened.with_context(name)?;
    Ok(Seen {
        format: fs.format_name(),
        consistency: fs.consistency(),
        was_unclean: fs.was_unclean(),
        recovery: report.map(|report| report.describe()),
    })
}

/// Opens the file system on a device that needs no recovery any more.
fn file_system(
    device: Arc<dyn BlockDevice>,
    format: &dyn Format,
    options: &Options,
) -> Result<Arc<dyn formats::Volume>> {
    let read_only = options.access == Access::ReadOnly;
    if !read_only {
        recovery::settle(format, &device)?;
    }
    let cache_size =
        usize::try_from(options.cache_size).context("the cache size does not fit this machine")?;
    let cache = CacheOptions {
        cache_size,
        write_back_age: options.write_back_age,
        optimizations: options.optimizations,
        read_only,
        ..CacheOptions::default()
    };
    let block_size = device.geometry().block_size;
    let journal = recovery::open_external(options.journal.as_deref(), block_size, options.access)?;
    let arrangement = Arrangement {
        consistency: mechanism(&device, format, options)?,
        tree: tree(format, options)?,
        commit_interval: options.commit_interval,
        claimed: true,
        journal: journal.map(|disk| Arc::new(disk) as Arc<dyn BlockDevice>),
        cache,
        fs: UhfsOptions { read_only, atime: options.atime, ..UhfsOptions::default() },
    };
    let opened = format.open(device, &arrangement, crate::epoch::clock(options.epoch));
    match (&options.tree, opened) {
        (Some(tree), Err(error)) if error.errno() == Errno::NOENT => {
            bail!("there is no snapshot or clone `{tree}`: `fstitch snapshot list` shows what there is")
        }
        (_, opened) => Ok(opened?),
    }
}

/// The name of what is opened in place of a whole volume.
fn tree(format: &dyn Format, options: &Options) -> Result<Vec<u8>> {
    let Some(name) = &options.tree else { return Ok(Vec::new()) };
    format.snapshots().context(crate::snapshot::NONE)?;
    Ok(name.clone().into_bytes())
}

/// Recovers what is on `device`, and opens it, for who has it open below already.
pub fn anew(
    device: Arc<dyn BlockDevice>,
    format: &dyn Format,
    options: &Options,
) -> Result<Arc<dyn formats::Volume>> {
    file_system(recovered(device, format, options)?, format, options)
}

impl Volume {
    /// Opens the volume in `image`.
    pub fn open(image: &Path, options: &Options) -> Result<Self> {
        let name = || image.display().to_string();
        let hook = options.on_fault.clone().map(|command| Hook::start(command, name())).transpose()?;
        let below = below(image, (options.offset, options.access, options.direct), hook.as_ref())?;
        let needs = |kept: &&Kept| options.access == Access::ReadWrite && kept.needs_attendance();
        let era = below.kept.as_ref().filter(needs).map(|kept| Arc::new(kept.era()));
        let device = era.clone().map_or_else(|| below.device(), |era| era as _);
        ensure!(
            below.kept.is_none() || options.live.is_none(),
            "{}: the power of a volume that follows a policy cannot be cut by a command",
            name()
        );
        ensure!(
            !below.is_shared || (options.live.is_none() && era.is_none()),
            "{}: a volume with feature mmp follows no policy that only a mount can carry out, and its power is not cut by a command",
            name()
        );
        let (device, claim) = claimed(device, &below, (image, options.access))?;
        let Below { counted, kept, format, is_shared, alone, .. } = below;
        let below = recovered(device, format, options).with_context(name)?;
        kept.as_ref().map_or(Ok(()), |kept| kept.renew(format)).with_context(name)?;
        let live = options.live.as_ref().zip(alone.as_ref());
        let live = live.map(|(live, disk)| Live::new(disk, live)).transpose()?;
        let device = live.as_ref().map_or(below, Live::device);
        let changes = options.epoch.is_some() && options.access == Access::ReadWrite;
        let tells = changes && format.needs_journal(&device).with_context(name)?;
        let told = tells.then(|| Told { device: Arc::clone(&device), format });
        let fs = file_system(device, format, options).with_context(name)?;
        Ok(Self { fs, disk: counted, live, kept: kept.map(Arc::new), era, told, claim, is_shared })
    }

    /// Makes everything stable and marks the volume clean.
    pub fn close(self) -> Result<()> {
        let unmounted = self.fs.unmount();
        let cleared = match (&self.told, &unmounted) {
            (Some(told), Ok(())) => told.format.journals().map_or(Ok(false), |all| all.clear(&told.device)),
            _ => Ok(false),
        };
        let finished = self.finish();
        unmounted?;
        cleared?;
        finished
    }

    /// Ends what lies below the file system, which has been unmounted.
    pub fn finish(self) -> Result<()> {
        let finished = self.live.map_or(Ok(()), |mut live| live.finish());
        drop(self.fs);
        let closed = self.kept.map_or(Ok(()), |kept| kept.close());
        let released = self.claim.map_or(Ok(()), Claimed::release);
        finished.and(closed).and(released)
    }
}
