//! From a plan to open volumes: one cache over all media, each volume in its part of it, outer ones first.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use fstitch_core::{BlockDevice, BlockNo, Concat, Errno, Error, StatsDevice, SystemClock};
use fstitch_formats as formats;
use fstitch_formats::Format;
use fstitch_fs::arrange::Arrangement;
use fstitch_fs::uhfs::UhfsOptions;
use fstitch_patch::{Cache, CacheOptions, Linear, Pieces, Placement, VolumeDevice, VolumeOptions};

use super::check::{self, Place};
use super::look::{Below, cached, format_of, is_to_be_recovered, regular, settled};
use super::settle::Plan;
use crate::open::Volume;

/// A stack whose volumes are open.
pub struct Opened {
    /// The cache that all of them share.
    pub engine: Arc<Cache>,
    /// The volumes, in the order of the plan.
    pub volumes: Vec<Member>,
}

/// An open volume of a stack.
pub struct Member {
    /// The volume.
    pub volume: Volume,
    /// Where it and its journal are: files stay attached while these live.
    pub placements: Vec<Arc<dyn Placement>>,
}

/// The blocks of a device.
#[derive(Clone)]
struct Blocks {
    /// For looking at them, and for recovery, before a volume is opened.
    device: Arc<dyn BlockDevice>,
    /// Where they are in the stack's cache.
    placement: Arc<dyn Placement>,
}

impl Opened {
    /// Opens everything. What was opened before a failure is closed again.
    pub fn new(plan: &Plan) -> Result<Self> {
        let (media, disk) = media(plan)?;
        let read_only = plan.stack.volumes.iter().all(|volume| volume.options.read_only);
        let cache_size =
            usize::try_from(plan.stack.cache_size).context("the cache size does not fit this machine")?;
        let options = CacheOptions {
            cache_size,
            write_back_age: plan.stack.write_back_age,
            read_only,
            ..CacheOptions::default()
        };
        let engine = Cache::new(Arc::clone(&disk) as _, options, Arc::new(SystemClock::new()));
        if !read_only {
            engine.start_flusher()?;
        }
        let mut opening = Opening {
            plan,
            disk,
            blocks: media,
            opened: Self { engine, volumes: Vec::new() },
            logs: Vec::new(),
        };
        for number in 0..plan.stack.volumes.len() {
            let volume = &plan.stack.volumes[number];
            if let Err(error) = opening.open(number) {
                opening.close();
                return Err(error.context(format!("volume `{}`", volume.name)));
            }
        }
        Ok(opening.opened)
    }
}

/// The media of a stack, by its devices, and all of them as one.
type Media = (Vec<Option<Blocks>>, Arc<StatsDevice<Concat<Arc<dyn BlockDevice>>>>);

/// Opens all media: they are one device, one behind the other.
fn media(plan: &Plan) -> Result<Media> {
    let mut first = 0;
    let mut parts: Vec<Arc<dyn BlockDevice>> = Vec::new();
    let mut blocks = Vec::new();
    for (number, (device, extent)) in plan.stack.devices.iter().zip(&plan.extents).enumerate() {
        let Some(extent) = extent else {
            blocks.push(None);
            continue;
        };
        let disk = extent.open(plan.block_size, plan.stack.is_read_only(number));
        let disk = disk.with_context(|| format!("device `{}`", device.name))?;
        let count = disk.geometry().block_count;
        let placement = Arc::new(Linear { first: BlockNo(first), count });
        blocks.push(Some(Blocks { device: Arc::clone(&disk), placement }));
        parts.push(disk);
        first += count;
    }
    Ok((blocks, Arc::new(StatsDevice::new(Concat::new(parts)?))))
}

/// The blocks of a file of an open volume.
fn file(fs: &Arc<dyn formats::Volume>, path: &str, read_only: bool, engine: &Arc<Cache>) -> Result<Blocks> {
    let found = regular(&**fs, path)?;
    let placement: Arc<dyn Placement> =
        Arc::clone(fs).pin(found.ino(), read_only).map_err(|error| match error {
            Error::Errno(Errno::BUSY) => anyhow!("it is another device of the stack as well"),
            error => error.into(),
        })?;
    let options = VolumeOptions { read_only, ..VolumeOptions::default() };
    let cache = engine.volume(Arc::clone(&placement), options)?;
    Ok(Blocks { device: Arc::new(VolumeDevice::new(cache)), placement })
}

/// A stack in the middle of being opened.
struct Opening<'a> {
    plan: &'a Plan,
    disk: Arc<StatsDevice<Concat<Arc<dyn BlockDevice>>>>,
    /// The blocks of the devices that are there already.
    blocks: Vec<Option<Blocks>>,
    opened: Opened,
    /// For each open volume, the blocks of the log that takes its changes and those of volumes in it, if one takes contents.
    logs: Vec<Option<u64>>,
}

/// Which part of a log one step of an operation takes at most: it must fit a transaction beside others.
const STEP_SHARE: u64 = 16;

impl Opening<'_> {
    /// Opens a volume and attaches the files in it that are devices.
    fn open(&mut self, number: usize) -> Result<()> {
        let volume = &self.plan.stack.volumes[number];
        let devices: Vec<Blocks> = std::iter::once(volume.device)
            .chain(volume.journal)
            .map(|device| self.blocks[device].clone().context("its device is not there"))
            .collect::<Result<_>>()?;
        let (opened, log) = self.open_on(volume, &devices)?;
        self.logs.push(log);
        // From now on the placements are the volume's, and end with it.
        std::iter::once(volume.device).chain(volume.journal).for_each(|device| self.blocks[device] = None);
        let placements = devices.into_iter().map(|blocks| blocks.placement).collect();
        let fs = Arc::clone(&opened.fs);
        self.opened.volumes.push(Member { volume: opened, placements });
        self.attach(number, &fs)
    }

    /// Returns the volume and, for volumes in it, what `logs` keeps.
    fn open_on(&self, volume: &check::Volume, devices: &[Blocks]) -> Result<(Volume, Option<u64>)> {
        let (blocks, external) = (&devices[0], devices.get(1));
        let format = format_of(&*blocks.device)?;
        let cached = cached(format)?;
        if let Some(keeps) = format.keeps_maps()
            && matches!(keeps.maps(&*blocks.device)?, formats::MapsAt::Here(_))
        {
            bail!(
                "it follows a policy of the shepherd, which volumes of a stack cannot: `fstitch tune --policy none` takes it away"
            );
        }
        let read_only = volume.options.read_only;
        if !read_only && crate::probe::on_device(&*blocks.device)?.is_shared {
            bail!(
                "feature mmp, by which other machines are told that it is in use, is not kept in a stack: mount it read-only or by itself"
            );
        }
        self.recover(volume, format, (blocks, external))?;
        let mut arrangement = Arrangement {
            claimed: false,
            tree: Vec::new(),
            consistency: volume.options.consistency,
            commit_interval: volume.options.commit_interval.unwrap_or(Arrangement::default().commit_interval),
            journal: external.map(|external| Arc::clone(&external.device)),
            cache: CacheOptions { read_only, ..self.opened.engine.options().clone() },
            fs: UhfsOptions { read_only, atime: volume.options.atime.into(), ..UhfsOptions::default() },
        };
        let mut chosen = cached.choose(&*blocks.device, &arrangement)?;
        let log_of = |device: usize| self.plan.stack.holder(device).and_then(|holder| self.logs[holder]);
        let below = Below { device: log_of(volume.device), journal: volume.journal.and_then(log_of) };
        let log = below.settle(&mut chosen, volume)?;
        if let Some(log) = log {
            let step = usize::try_from(log / STEP_SHARE).unwrap_or(usize::MAX);
            let options = &mut arrangement.fs;
            options.step_bytes = options.step_bytes.min(step.saturating_mul(self.opened.engine.block_size()));
        }
        let placement: Arc<dyn Placement> = match external {
            Some(external) if chosen.journal.is_some() => {
                Arc::new(Pieces::new(vec![Arc::clone(&blocks.placement), Arc::clone(&external.placement)]))
            }
            _ => Arc::clone(&blocks.placement),
        };
        let options = VolumeOptions { ordering: chosen.ordering(), read_only };
        let cache = self.opened.engine.volume(placement, options)?;
        let fs = cached.open_in(chosen, cache, arrangement.fs)?;
        Ok((
            Volume {
                fs,
                disk: Arc::clone(&self.disk) as _,
                live: None,
                kept: None,
                era: None,
                told: None,
                claim: None,
                is_shared: false,
            },
            log,
        ))
    }

    /// Recovers a volume that was not unmounted, or mends what that has left.
    fn recover(
        &self,
        volume: &check::Volume,
        format: &dyn Format,
        (blocks, external): (&Blocks, Option<&Blocks>),
    ) -> Result<()> {
        let external = external.map(|external| &*external.device);
        if !is_to_be_recovered(volume, (&*blocks.device, external), self.plan.block_size)? {
            if let Some(done) = settled(volume, format, &*blocks.device)? {
                tracing::warn!("volume `{}`: {done}", volume.name);
            }
            return Ok(());
        }
        match crate::recovery::recover_with(format, &*blocks.device, external)? {
            Some(report) if !report.problems.is_empty() => {
                tracing::warn!("volume `{}`: {}", volume.name, report.describe());
            }
            Some(report) => tracing::info!("volume `{}`: {}", volume.name, report.describe()),
            None => {}
        }
        Ok(())
    }

    /// Attaches the files of a volume that are devices.
    fn attach(&mut self, number: usize, fs: &Arc<dyn formats::Volume>) -> Result<()> {
        let stack = &self.plan.stack;
        for (at, (device, blocks)) in stack.devices.iter().zip(&mut self.blocks).enumerate() {
            let Place::File { volume, path } = &device.place else { continue };
            if *volume != number {
                continue;
            }
            let read_only = stack.is_read_only(at);
            let attached = file(fs, path, read_only, &self.opened.engine);
            *blocks = Some(attached.with_context(|| format!("device `{}`: {path} in it", device.name))?);
        }
        Ok(())
    }

    /// Closes what is open, inner volumes first.
    fn close(mut self) {
        self.blocks.clear();
        while let Some(member) = self.opened.volumes.pop() {
            if let Err(error) = member.volume.close() {
                tracing::warn!("closing again: {error:#}");
            }
        }
    }
}
