//! A look into a stack before anything is touched: the volumes are opened for reading, recovered in memory where that is
//! needed, down to the files that are devices. What would fail later fails here.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::Consistency;
use fstitch_core::num::to_u64;
use fstitch_core::order;
use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, FileKind, FileSystem, Geometry, IoOp, Overlay,
    SystemClock,
};
use fstitch_formats as formats;
use fstitch_formats::{Cached, Format, OwnJournal};
use fstitch_fs::arrange::{Arrangement, Chosen};
use fstitch_fs::uhfs::UhfsOptions;
use fstitch_patch::CacheOptions;

use super::check::{Place, Volume};
use super::settle::Plan;
use crate::control::stack::StackStatus;
use crate::paths::{Held, Last, resolve};

/// A volume as it would be opened.
pub struct Seen {
    /// The format.
    pub format: &'static str,
    /// What would be in force.
    pub consistency: Consistency,
}

/// Looks into every volume of a stack, in the order of the plan.
pub fn look(plan: &Plan) -> Result<Vec<Seen>> {
    let mut looking = Looking { plan, devices: media(plan)?, volumes: Vec::new(), files: BTreeMap::new() };
    for number in 0..plan.stack.volumes.len() {
        let volume = &plan.stack.volumes[number];
        looking.look(volume).with_context(|| format!("volume `{}`", volume.name))?;
        looking.look_inside(number).with_context(|| format!("volume `{}`", volume.name))?;
    }
    Ok(looking.volumes.into_iter().map(|looked| looked.seen).collect())
}

/// The stack as it would be mounted.
pub fn planned(plan: &Plan) -> Result<StackStatus> {
    let mut shown = super::running::planned(plan);
    for (shown, seen) in shown.volumes.iter_mut().zip(look(plan)?) {
        seen.format.clone_into(&mut shown.format);
        shown.consistency = seen.consistency.to_string();
    }
    Ok(shown)
}

fn media(plan: &Plan) -> Result<Vec<Option<Arc<dyn BlockDevice>>>> {
    let open = |(device, extent): (&super::check::Device, &Option<super::settle::Extent>)| {
        let Some(extent) = extent else { return Ok(None) };
        let disk = extent.open(plan.block_size, true);
        let disk = disk.with_context(|| format!("device `{}`", device.name))?;
        Ok(Some(Arc::new(Overlay::new(disk)) as _))
    };
    plan.stack.devices.iter().zip(&plan.extents).map(open).collect()
}

struct Looking<'a> {
    plan: &'a Plan,
    /// Those that were found already.
    devices: Vec<Option<Arc<dyn BlockDevice>>>,
    volumes: Vec<Looked>,
    /// The files that are devices, by volume and inode.
    files: BTreeMap<(usize, u64), String>,
}

/// A volume that was looked at.
struct Looked {
    seen: Seen,
    fs: Arc<dyn formats::Volume>,
    /// The blocks of the log that takes contents as well: its own, or one below.
    log: Option<u64>,
}

impl Looking<'_> {
    fn look(&mut self, volume: &Volume) -> Result<()> {
        let device = |at: usize| self.devices[at].clone().context("its device is not there");
        let (blocks, external) = (device(volume.device)?, volume.journal.map(device).transpose()?);
        let format = format_of(&*blocks)?;
        if is_to_be_recovered(volume, (&*blocks, external.as_deref()), self.plan.block_size)? {
            crate::recovery::recover_with(format, &*blocks, external.as_deref())?;
        } else {
            // In memory, as all here.
            settled(volume, format, &*blocks)?;
        }
        let read_only = volume.options.read_only;
        let mut arrangement = Arrangement {
            consistency: volume.options.consistency,
            journal: external,
            cache: CacheOptions { read_only, cache_size: 0, ..CacheOptions::default() },
            ..Arrangement::default()
        };
        let mut chosen = cached(format)?.choose(&*blocks, &arrangement)?;
        let log_of =
            |device: usize| self.plan.stack.holder(device).and_then(|holder| self.volumes[holder].log);
        let below = Below { device: log_of(volume.device), journal: volume.journal.and_then(log_of) };
        let log = below.settle(&mut chosen, volume)?;
        arrangement.cache.read_only = true;
        arrangement.fs = UhfsOptions { read_only: true, ..UhfsOptions::default() };
        let fs = format.open(blocks, &arrangement, Arc::new(SystemClock::new()))?;
        let seen = Seen { format: fs.format_name(), consistency: chosen.consistency };
        self.volumes.push(Looked { seen, fs, log });
        Ok(())
    }

    /// Finds the files in a volume that are devices.
    fn look_inside(&mut self, number: usize) -> Result<()> {
        for (at, device) in self.plan.stack.devices.iter().enumerate() {
            let Place::File { volume, path } = &device.place else { continue };
            if *volume != number {
                continue;
            }
            let file = self.file(number, path);
            let file = file.with_context(|| format!("device `{}`: {path} in it", device.name))?;
            if let Some(other) = self.files.insert((number, file.ino), device.name.clone()) {
                bail!("devices `{other}` and `{}` are the same file", device.name);
            }
            self.devices[at] = Some(Arc::new(Overlay::new(file)));
        }
        Ok(())
    }

    fn file(&self, volume: usize, path: &str) -> Result<FileBlocks> {
        let fs = &self.volumes[volume].fs;
        let found = regular(&**fs, path)?;
        let attr = found.attr()?;
        let block_size = self.plan.block_size;
        let geometry =
            Geometry { block_size, block_count: attr.size / u64::from(block_size), atomic_size: 512 };
        Ok(FileBlocks { fs: Arc::clone(fs), ino: found.ino().get(), geometry })
    }
}

/// The regular file at `path`.
pub fn regular<'a>(fs: &'a dyn FileSystem, path: &str) -> Result<Held<'a>> {
    let found = resolve(fs, path.as_bytes(), Last::Follow)?;
    ensure!(found.attr()?.kind == FileKind::Regular, "it is no regular file");
    Ok(found)
}

/// The format of the volume that begins at the first block of `device`.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn format_of(device: &dyn BlockDevice) -> Result<&'static dyn Format> {
    let found = formats::probe_device(device)?;
    found.with_context(|| format!("it holds no {} volume", formats::all_names()))
}

/// What a stack needs of a format.
///
/// # Errors
/// When volumes of the format cannot be in a stack.
pub fn cached(format: &dyn Format) -> Result<&dyn Cached> {
    format.cached().with_context(|| {
        format!("volumes of the format {} keep no cache, and cannot be in a stack", format.names()[0])
    })
}

/// Whether a volume must be recovered before it is used. Fails if it cannot be part of a stack with such blocks.
/// `devices` are its own and that of its journal.
pub fn is_to_be_recovered(
    volume: &Volume,
    devices: (&dyn BlockDevice, Option<&dyn BlockDevice>),
    block_size: u32,
) -> Result<bool> {
    let format = format_of(devices.0)?;
    let seen = format.look(devices.0)?;
    ensure!(
        seen.block_size == block_size,
        "it has blocks of {} bytes and the others have {block_size}: in a stack all are of one size (`fstitch mkfs -b {block_size}`)",
        seen.block_size
    );
    if devices.1.is_some() && seen.journal != OwnJournal::Device {
        bail!("it has no journal on a device of its own: leave `journal` out");
    }
    let needed = format.needs_recovery(devices.0)?;
    ensure!(
        !needed || !volume.options.read_only,
        "it was not unmounted, and its journal must be replayed: mount it read-write once, or run `fstitch fsck`"
    );
    Ok(needed)
}

/// Mends what a crash has left of a volume that is to be changed and has no journal to be replayed; what was done, if anything was.
pub fn settled(volume: &Volume, format: &dyn Format, device: &dyn BlockDevice) -> Result<Option<String>> {
    if volume.options.read_only {
        return Ok(None);
    }
    Ok(format.settle(device, crate::epoch::now()?, &mut || {})?)
}

/// The blocks of logs below a volume that take contents, and with them all changes of the volume.
pub struct Below {
    /// Below the device that it is on.
    pub device: Option<u64>,
    /// Below the device of its journal.
    pub journal: Option<u64>,
}

impl Below {
    /// Where the journal of the volume below takes everything, there is no other one. Returns the blocks of the log that
    /// takes the contents of this volume's files.
    pub fn settle(&self, chosen: &mut Chosen, volume: &Volume) -> Result<Option<u64>> {
        if volume.options.read_only {
            return Ok(None);
        }
        let Some(log) = self.device else {
            let own = chosen.journal.as_ref();
            ensure!(
                own.is_none() || self.journal.is_none(),
                "its journal is in a volume with `full`, whose own journal takes all changes of what is in it, and it is not"
            );
            let own = own.filter(|_| chosen.consistency == Consistency::Full);
            return Ok(own.map(|own| own.area.count()));
        };
        if let Some(asked) = volume.options.consistency.filter(|asked| asked.is_journaled()) {
            bail!(
                "consistency `{asked}`: the journal of the volume that it is in takes all its changes, as that has \
                 `full`; leave `consistency` out"
            );
        }
        if chosen.journal.take().is_some() {
            chosen.consistency = Consistency::Full;
        }
        Ok(Some(log))
    }
}

/// The blocks of a file of a volume that is only read.
struct FileBlocks {
    fs: Arc<dyn formats::Volume>,
    ino: u64,
    geometry: Geometry,
}

impl BlockDevice for FileBlocks {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> fstitch_core::Result<()> {
        let _below = order::Below::enter();
        for read in reads {
            let offset = read.block.get().checked_mul(u64::from(self.geometry.block_size));
            let offset = offset.ok_or_else(|| refused(IoOp::Read, read.block))?;
            let mut done = 0;
            while done < read.data.len() {
                let at = offset + to_u64(done);
                match self.fs.read(fstitch_core::InodeNo(self.ino), at, &mut read.data[done..])? {
                    0 => return Err(refused(IoOp::Read, read.block)),
                    more => done += more,
                }
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> fstitch_core::Result<()> {
        writes.first().map_or(Ok(()), |write| Err(refused(IoOp::Write, write.block)))
    }

    fn flush(&self) -> fstitch_core::Result<()> {
        Ok(())
    }

    fn discard(&self, start: BlockNo, _count: u64) -> fstitch_core::Result<()> {
        Err(refused(IoOp::Discard, start))
    }
}

fn refused(op: IoOp, block: BlockNo) -> Error {
    Error::io(op, block, std::io::Error::other("outside of what can be looked at"))
}
