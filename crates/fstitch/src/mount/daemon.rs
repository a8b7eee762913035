//! The process that serves a mount, from opening the volume to the last write.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock, Weak};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{BlockDevice, BlockNo, FileSystem};
use fstitch_formats::resize::Resized;
use fstitch_formats::{Format, Health, ScrubPlace, Snapshot};
use fstitch_fs::uhfs::Reclaimed;
use fstitch_fuse::{AwakeWatch, Invalidator, Mount, UnmountOnSignal};
use fstitch_patch::VolumeDevice;

use super::gate::{self, Gate};
use super::reopen::Reopenable;
pub use super::terms::{layered, mount_options, open_options};
use super::watch::{GRAPH_MAX, Heard, cache_of};
use super::{Options, Plan, background};
use crate::control::graph::Graph;
use crate::control::server::{Served, Server};
use crate::control::stack::StackStatus;
use crate::control::trace::{Happened, Head};
use crate::control::{Cut, SnapshotChange, Status};
use crate::disks::{self, DiskList, Disks};
use crate::live::Live;
use crate::open::{self, Access, Options as OpenOptions, Volume};
use crate::output::Outcome;
use crate::shepherd::Kept;

/// Why a mount whose power was cut answers nothing.
const CUT: &str = "the power is gone, cut by a command: what was not stable is lost";

/// How often it is looked whether inodes may leave memory: as often as the flusher looks at the age of changes.
const LET_GO_EVERY: Duration = Duration::from_secs(1);

/// Where the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Started by hand; errors go to the terminal.
    Foreground,
    /// A child of a process that waits for it to be ready.
    Background,
}

/// Serves as the child of a waiting parent, to whom failures before the mount answers are told.
pub fn serve_as_child(serve: impl FnOnce(Place) -> Result<()>) -> Result<Outcome> {
    background::leave_session()?;
    if let Err(error) = serve(Place::Background) {
        // After the mount answered nobody listens here any more, and the log has it.
        let _nobody_listens = writeln!(std::io::stdout(), "{}", crate::output::reasons(&error));
        return Ok(Outcome::FAILURE);
    }
    Ok(Outcome::SUCCESS)
}

/// Opens the volume, mounts it, serves it until it is unmounted, and makes everything stable.
pub fn serve(plan: &Plan, place: Place) -> Result<()> {
    let volume = Volume::open(&plan.image, &open_options(plan)).map_err(|error| hint(plan, error))?;
    let mut plan = plan.clone();
    plan.options.read_only |= !volume.fs.takes_changes();
    let plan = &plan;
    let (volume, gate) = gated(plan, volume)?;
    if !plan.options.read_only {
        volume.fs.start()?;
    }
    // Who changes a volume that others may have changed meanwhile opens it from the beginning. A volume in use that follows a policy has
    // other ways to be opened anew, and its size is not changed.
    let can_be_anew = plan.options.read_only || volume.kept.is_none();
    let seat = (can_be_anew && plan.live.is_none() && !volume.is_shared)
        .then(|| Arc::new(Reopenable::new(Arc::clone(&volume.fs))));
    let fs: Arc<dyn FileSystem> = match &seat {
        Some(seat) => Arc::clone(seat) as _,
        None => Arc::clone(&volume.fs) as _,
    };
    let fs = layered(fs, &plan.options)?;
    // A descriptor is known to others by the path of its file, if that has one.
    let source =
        crate::disks::canonical(&plan.image).unwrap_or_else(|_| plan.image.clone()).display().to_string();
    let places = (source.clone(), plan.mountpoint.as_path());
    let mount =
        Mount::new(fs, &mount_options(&plan.options, places, plan.workers, volume.fs.consistency())?)?;
    let status = Status {
        image: source,
        mountpoint: plan.mountpoint.display().to_string(),
        transport: mount.transport().to_string(),
        ..Status::default()
    };
    let served = Arc::new(Daemon::new(status, &plan.options, volume, Some(&mount)));
    served.goes_through(gate);
    if let Some(seat) = seat {
        served.let_reopen(seat, plan);
    }
    let control = Server::start(&plan.mountpoint, Arc::clone(&served) as _).inspect_err(|_| {
        // The mount goes with this function; a control socket is what umount and stats rely on.
        tracing::error!("the control socket could not be made");
    })?;
    let signals = UnmountOnSignal::install(vec![mount.unmounter()], |line| eprintln!("fstitch: {line}"))
        .context("taking over signals")?;
    if place == Place::Background {
        background::report_ready()?;
    }
    if !plan.options.read_only && !plan.options.no_recovery {
        Daemon::recover(&served)?;
    }
    Daemon::let_go(&served)?;
    Daemon::keep_disks(&served, plan.options.rebuild_rate)?;
    let result = mount.run();
    drop(signals);
    // The image is closed, and its lock given back, before anybody hears that the unmount is done.
    let closed = served.close();
    let result = result.map_err(anyhow::Error::from).and(closed);
    control.finish(result.as_ref().map(|_| ()).map_err(crate::output::reasons));
    result
}

/// Puts a gate before a volume whose policy has steps that only a mount can carry out.
///
/// # Errors
/// For what cannot be had with such a policy.
fn gated(plan: &Plan, volume: Volume) -> Result<(Volume, Option<Arc<Gate>>)> {
    let name = plan.image.display().to_string();
    let (volume, gate) = gate::before(volume, name, &open_options(plan), !plan.options.no_recovery)?;
    for (is_asked, option, why) in [
        (
            plan.options.writeback_cache,
            "writeback_cache",
            "the kernel would keep lengths of files that were given up",
        ),
        (plan.options.ordered_fsync, "fsync=ordered", "what is given up is the newest, whatever the order"),
    ] {
        ensure!(
            gate.is_none() || !is_asked,
            "{}: `{option}` is not to be had with the volume's policy, which has it opened anew after a fault (`full-check`, `remount`): {why}",
            plan.image.display()
        );
    }
    Ok((volume, gate))
}

/// Says what could be done about an image that this user may read but not change.
fn hint(plan: &Plan, error: anyhow::Error) -> anyhow::Error {
    match plan.options.read_only || !open::is_only_readable(&plan.image) {
        true => error,
        false => anyhow!("{}; `-o ro` mounts it for reading", crate::output::reasons(&error)),
    }
}

/// Tells what becomes of the stack that a volume belongs to.
pub type StackTeller = Box<dyn Fn() -> StackStatus + Send + Sync>;

/// What the control socket shows of a mount.
pub struct Daemon {
    /// `None` when the volume has been closed.
    volume: RwLock<Option<Volume>>,
    status: Mutex<Status>,
    /// What the background check does or found.
    recovery: Mutex<String>,
    /// The file system as the kernel sees it, if it does. It is the mount's, and does not keep the image open.
    served: Option<Weak<dyn FileSystem>>,
    /// Tells what is done about idle processors, where requests come.
    awake: Option<AwakeWatch>,
    /// The stack that the volume belongs to, if it does.
    stack: Option<StackTeller>,
    /// What the power cut did, after it.
    cut: OnceLock<Cut>,
    /// How the volume is opened anew, for writing or with another size.
    reopening: OnceLock<Reopening>,
    /// What was heard of patches, while somebody has that noted.
    heard: Heard,
    /// It will not be open any more.
    has_ended: AtomicBool,
    /// What the volume is behind, if its policy has it opened anew after faults.
    gate: Mutex<Option<Arc<Gate>>>,
    /// How the kernel is told of what it cannot know.
    kernel: Option<Invalidator>,
}

/// What it takes to open a volume anew while it is mounted.
struct Reopening {
    seat: Arc<Reopenable>,
    daemon: Weak<Daemon>,
    image: PathBuf,
    options: OpenOptions,
    /// Reclaims what a crash has left.
    recovers: bool,
    /// Bytes a second that are written to a disk that is rebuilt.
    rebuild_rate: Option<u64>,
    /// Held by whoever opens it anew, or closes it.
    one: Mutex<()>,
}

impl Daemon {
    /// Shows `volume`, of which `places` says what was mounted and where, as far as `mount` is there.
    pub fn new(places: Status, options: &Options, volume: Volume, mount: Option<&Mount>) -> Self {
        let status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            writeback_cache: options.writeback_cache,
            pid: std::process::id(),
            offset_bytes: options.offset,
            format: volume.fs.format_name().to_owned(),
            consistency: volume.fs.consistency().to_string(),
            read_only: options.read_only,
            was_unclean: volume.fs.was_unclean(),
            ..places
        };
        Self {
            volume: RwLock::new(Some(volume)),
            status: Mutex::new(status),
            recovery: Mutex::new(String::new()),
            served: mount.map(|mount| Arc::downgrade(&mount.served())),
            awake: mount.map(Mount::awake),
            stack: None,
            cut: OnceLock::new(),
            reopening: OnceLock::new(),
            heard: Heard::default(),
            has_ended: AtomicBool::new(false),
            gate: Mutex::default(),
            kernel: mount.map(Mount::invalidator),
        }
    }

    fn shown(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unpoisoned()
    }

    /// The volume is behind this, if it needs to be.
    fn goes_through(&self, gate: Option<Arc<Gate>>) {
        if let (Some(gate), Some(kernel)) = (&gate, &self.kernel) {
            gate.connect(kernel.clone());
        }
        *self.gate.lock().unpoisoned() = gate;
    }

    /// From now on the volume may be opened anew.
    fn let_reopen(self: &Arc<Self>, seat: Arc<Reopenable>, plan: &Plan) {
        let (daemon, options) = (Arc::downgrade(self), open_options(plan));
        let recovers = !plan.options.no_recovery;
        let _first = self.reopening.set(Reopening {
            seat,
            daemon,
            image: plan.image.clone(),
            options,
            one: Mutex::new(()),
            recovers,
            rebuild_rate: plan.options.rebuild_rate,
        });
    }

    /// The same for a volume of a stack.
    pub fn in_stack(self, teller: StackTeller) -> Self {
        Self { stack: Some(teller), ..self }
    }

    /// Runs `work` on the volume while it is open.
    pub fn with<T>(&self, work: impl FnOnce(&Volume) -> Result<T>) -> Result<T> {
        match &*self.volume.read().unpoisoned() {
            Some(volume) => work(volume),
            None => bail!("the volume has been unmounted"),
        }
    }

    /// Closes the volume, when those who look at it have finished.
    pub fn close(&self) -> Result<()> {
        // Whoever opens it anew comes to an end first: nothing may be left open behind an unmount.
        let reopening = self.reopening.get();
        let _one = reopening.map(|reopening| reopening.one.lock().unpoisoned());
        self.has_ended.store(true, Ordering::SeqCst);
        let volume = self.volume.write().unpoisoned().take();
        if let Some(volume) = &volume {
            self.heard.end(volume);
        }
        if let Some(gate) = self.gate.lock().unpoisoned().take() {
            gate.close();
        }
        if let Some(reopening) = reopening {
            reopening.seat.close();
        }
        volume.map_or(Ok(()), Volume::finish)
    }

    /// After an unclean unmount, reclaims in the background what the crash left behind. Unmounting stops it.
    pub fn recover(served: &Arc<Self>) -> Result<()> {
        if !served.shown().was_unclean {
            return Ok(());
        }
        served.say("reclaiming what the last crash left behind");
        let served = Arc::clone(served);
        std::thread::Builder::new().name("reclaimer".into()).spawn(move || {
            if let Err(error) = served.reclaim() {
                served.say(&format!("reclaiming what the last crash left behind failed: {error:#}"));
            }
        })?;
        Ok(())
    }

    /// Lets inodes go beside everything else that were in memory only until they were stable, as long as the volume is open.
    pub fn let_go(served: &Arc<Self>) -> Result<()> {
        if served.shown().read_only {
            // Nothing has to wait there.
            return Ok(());
        }
        let served = Arc::downgrade(served);
        std::thread::Builder::new().name("evictor".into()).spawn(move || {
            while let Some(daemon) = served.upgrade() {
                if daemon.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                // While it is opened anew nothing has to go.
                let more = daemon.with(|volume| Ok(volume.fs.let_go())).unwrap_or(false);
                drop(daemon);
                if !more {
                    std::thread::sleep(LET_GO_EVERY);
                }
            }
        })?;
        Ok(())
    }

    /// Rebuilds disks that were replaced, and has hot spares take the places of those that fail, as long as the volume is open. `rate`: bytes a second.
    pub fn keep_disks(served: &Arc<Self>, rate: Option<u64>) -> Result<()> {
        if served.shown().read_only || served.with(|volume| several(volume).map(|_| ())).is_err() {
            return Ok(());
        }
        let served = Arc::downgrade(served);
        std::thread::Builder::new().name("disks".into()).spawn(move || {
            let mut keeper = disks::Keeper::default();
            while let Some(daemon) = served.upgrade() {
                let kept = |volume: &Volume| disks::keep(several(volume)?.0, &mut keeper, rate);
                let Ok(pause) = daemon.with(kept) else { return };
                drop(daemon);
                std::thread::sleep(pause);
            }
        })?;
        Ok(())
    }

    /// Reclaims, and returns how many things were mended.
    fn reclaim(&self) -> Result<u64> {
        let done = self.with(|volume| Ok(volume.fs.reclaim()?))?;
        self.say(&reclaimed(&done));
        if done.refusal.is_some() {
            tracing::warn!("nothing was reclaimed: unmount, and run `fstitch fsck`");
        }
        Ok(done.inodes + done.blocks + done.counts + done.kept)
    }

    fn say(&self, text: &str) {
        tracing::info!("{text}");
        text.clone_into(&mut self.recovery.lock().unpoisoned());
    }
}

/// The disks of a volume that is on several.
fn several(volume: &Volume) -> Result<(&Kept, &Disks)> {
    let kept = volume.kept.as_deref().and_then(|kept| Some((kept, kept.disks()?)));
    kept.context("the volume is not on several disks")
}

/// What was reclaimed, for people.
pub fn reclaimed(done: &Reclaimed) -> String {
    if let Some(reason) = &done.refusal {
        return format!(
            "NOTHING was reclaimed after the last crash: {reason}; unmount, and run `fstitch fsck -n`, then `-y`"
        );
    }
    let mut said = format!(
        "reclaimed after the last crash: {} inodes, {} blocks, {} counts",
        done.inodes, done.blocks, done.counts
    );
    if done.kept > 0 {
        said.push_str(&format!("; {} inodes that had lost their names are in lost+found", done.kept));
    }
    if done.left_alone > 0 {
        said.push_str(&format!("; {} findings need `fstitch fsck`", done.left_alone));
    }
    if !done.complete {
        said.push_str("; stopped before the end");
    }
    said
}

impl Served for Daemon {
    fn status(&self) -> Status {
        let now = self.with(|volume| {
            let volatile = volume.live.as_ref().map_or(0, Live::volatile_bytes);
            let journal = volume.fs.cache().and_then(|cache| cache.journal_status()).map(Into::into);
            let array = several(volume).ok().map(|(_, disks)| (disks::list(disks), disks.list()));
            Ok((volume.fs.health(), volatile, journal, array))
        });
        let (Health { failure, dirty_bytes }, volatile_bytes, journal, array) = now.unwrap_or_default();
        let shown = self.shown().clone();
        let (array, image) = array.map_or((None, shown.image.clone()), |(array, image)| (Some(array), image));
        Status {
            recovery: self.recovery.lock().unpoisoned().clone(),
            failure: failure.map(|error| error.to_string()).unwrap_or_default(),
            dirty_bytes,
            volatile_bytes,
            journal,
            awake: self.awake.as_ref().map(|awake| awake.report().into()),
            stack: self.stack.as_ref().map(|tell| tell()),
            array,
            image,
            ..shown
        }
    }

    fn stats(&self) -> Result<crate::stats::Stats> {
        self.with(|volume| {
            let cache = volume.fs.cache().map(|cache| (&cache.stats()).into()).unwrap_or_default();
            Ok(crate::stats::Stats { cache, device: volume.disk.stats().into() })
        })
    }

    fn fsck(&self, repair: bool) -> Result<crate::fsck::Report> {
        let repaired = if repair { self.reclaim()? } else { 0 };
        let found = self.with(|volume| Ok(volume.fs.check()?))?;
        Ok(crate::fsck::Report::new(&found, repaired, found.total))
    }

    fn sync(&self) -> Result<()> {
        self.with(|volume| Ok(volume.fs.sync()?))
    }

    fn reopen(&self) -> Result<()> {
        let Some(reopening) = self.reopening.get() else {
            bail!("this mount accepts changes, or is one that cannot come to: unmount it and mount it anew");
        };
        {
            let _one = reopening.one.lock().unpoisoned();
            if !self.shown().read_only {
                return Ok(());
            }
            // Nobody waits for the volume meanwhile: who opens it asks all mounts for their status, this one too.
            let volume = self.volume.write().unpoisoned().take();
            let volume = volume.context("the volume has been unmounted")?;
            let through = Mutex::default();
            let open = |access| {
                let options = OpenOptions { access, ..reopening.options.clone() };
                let volume = Volume::open(&reopening.image, &options)?;
                ensure!(
                    access == Access::ReadOnly || volume.fs.takes_changes(),
                    "it is a snapshot, which takes no changes: `fstitch snapshot clone` makes what does"
                );
                let name = reopening.image.display().to_string();
                let (volume, gate) = gate::before(volume, name, &options, reopening.recovers)?;
                *through.lock().unpoisoned() = gate;
                Ok(volume)
            };
            let (volume, refused) = reopening.seat.reopen(volume, open)?;
            self.goes_through(through.into_inner().unpoisoned());
            if refused.is_none() {
                volume.fs.start()?;
                let mut status = self.shown();
                status.read_only = false;
                status.consistency = volume.fs.consistency().to_string();
                status.was_unclean = volume.fs.was_unclean();
            }
            *self.volume.write().unpoisoned() = Some(volume);
            if let Some(why) = refused {
                return Err(
                    why.context("the volume cannot be opened for writing, and stays mounted read-only")
                );
            }
        }
        if let Some(daemon) = reopening.daemon.upgrade() {
            if reopening.recovers {
                Self::recover(&daemon)?;
            }
            Self::let_go(&daemon)?;
            Self::keep_disks(&daemon, reopening.rebuild_rate)?;
        }
        Ok(())
    }

    fn resize(&self, size: Option<&str>) -> Result<Resized> {
        self.grow(size)
    }

    fn cut(&self, survivors: &str, flush: u64) -> Result<Cut> {
        let survivors = survivors.parse()?;
        self.with(|volume| {
            let live = volume.live.as_ref().context("this mount was not made by `fstitch crash mount`")?;
            if let Some(skip) = flush.checked_sub(1) {
                live.cut_at_flush(skip, survivors);
                let synced = volume.fs.sync();
                tracing::debug!("the sync in which the power is cut: {synced:?}");
            }
            // The medium first, at whatever moment this is; the rest only learns what has happened.
            let cut = live.cut(survivors);
            let dirty = volume.fs.health().dirty_bytes / u64::from(volume.fs.statfs()?.block_size);
            if let Some(served) = self.served.as_ref().and_then(Weak::upgrade) {
                served.abandon(CUT)?;
            }
            let report = cut?;
            // What was written and not flushed counts as changed too, so the rest is what was not written.
            let unwritten = dirty.saturating_sub(report.survived + report.lost);
            let cut = Cut { survived: report.survived, lost: report.lost, unwritten };
            Ok(self.cut.get_or_init(|| cut).clone())
        })
    }

    fn graph(&self, limit: usize) -> Result<Graph> {
        self.with(|volume| Ok(cache_of(volume)?.view(limit.min(GRAPH_MAX)).into()))
    }

    fn disks(&self) -> Result<DiskList> {
        self.with(|volume| Ok(disks::list(several(volume)?.1)))
    }

    fn change_disks(&self, change: &disks::Change) -> Result<String> {
        ensure!(!self.shown().read_only, "the volume is mounted for reading only");
        self.with(|volume| change.apply(several(volume)?.0))
    }

    fn health(&self) -> Result<crate::shepherd::health::Health> {
        self.with(|volume| {
            let kept = volume.kept.as_ref().context("the volume follows no policy")?;
            let (format, newest) = newest(volume)?;
            let mut health = crate::shepherd::health::of(kept.shepherd(), kept.opened());
            if let Some(gate) = &*self.gate.lock().unpoisoned() {
                health = health.with_remedies(gate.carried());
            }
            let named = health.with_names(kept, format, &*newest, &[&*kept.device(), &*newest]);
            Ok(named.on_disks(kept.disks()))
        })
    }

    fn whose(&self, blocks: &[u64]) -> Result<crate::shepherd::whose::Whose> {
        self.with(|volume| {
            let kept = volume.kept.as_ref().context("the volume follows no policy")?;
            let (format, newest) = newest(volume)?;
            let blocks: Vec<BlockNo> = blocks.iter().copied().map(BlockNo).collect();
            Ok(kept.whose(format, &*newest, &blocks))
        })
    }

    fn snapshots(&self, change: Option<&SnapshotChange>) -> Result<Vec<Snapshot>> {
        self.with(|volume| {
            let snapshots = volume.fs.snapshots().context(crate::snapshot::NONE)?;
            change.map_or(Ok(()), |change| change.apply(snapshots))?;
            Ok(snapshots.list())
        })
    }

    fn send(&self, name: &str, since: Option<&str>, to: &mut dyn std::io::Write) -> Result<()> {
        // Nobody waits for whoever takes the stream: an unmount ends it.
        let fs = self.with(|volume| Ok(Arc::clone(&volume.fs)))?;
        let snapshots = fs.snapshots().context(crate::snapshot::NONE)?;
        crate::snapshot::said(snapshots.send(name, since, to, &mut |_| ()), name, since)
    }

    fn scrub(&self, from: u64, place: Option<ScrubPlace>) -> Result<crate::shepherd::scrub::Found> {
        self.with(|volume| {
            let Some(kept) = volume.kept.as_ref() else {
                let sums = volume.fs.sums().context(crate::shepherd::scrub::NONE)?;
                return crate::shepherd::scrub::sums_part(sums, from, place);
            };
            let (format, newest) = newest(volume)?;
            crate::shepherd::scrub::part(kept, format, &*newest, from)
        })
    }

    fn begin_trace(&self) -> Result<Head> {
        self.with(|volume| self.heard.begin(volume, &self.shown()))
    }

    fn next_trace(&self) -> Result<Vec<Happened>> {
        self.with(|volume| self.heard.next(volume))
    }

    fn end_trace(&self) -> Vec<Happened> {
        // Closing the volume has ended it as well.
        let _ended = self.with(|volume| {
            self.heard.end(volume);
            Ok(())
        });
        self.heard.take()
    }
}

/// The format of a volume, and its blocks as they are now, whether they have been written or not.
fn newest(volume: &Volume) -> Result<(&'static dyn Format, Arc<dyn BlockDevice>)> {
    let name = volume.fs.format_name();
    let format = fstitch_formats::by_name(name).with_context(|| format!("no format `{name}`"))?;
    let newest = match (volume.fs.cache(), &volume.kept) {
        (Some(cache), _) => Arc::new(VolumeDevice::new(cache)) as Arc<dyn BlockDevice>,
        (None, Some(kept)) => kept.device(),
        (None, None) => bail!("its blocks cannot be looked at"),
    };
    Ok((format, newest))
}

mod grow;
#[cfg(test)]
mod tests;
