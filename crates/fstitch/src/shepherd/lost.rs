//! Volumes whose maps cannot be found as usual, because a block that leads to them is lost: they are searched for on the disk.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, Error, IoOp, Overlay, StatsDevice};
use fstitch_disk::{Direct, DiskOptions, FileDisk};
use fstitch_formats::search::{Rescued, Searched, search as search_disk};
use fstitch_formats::{FORMATS, Format};
use fstitch_shepherd::{Options, Shepherd};

use super::attendant::Attendant;
use super::{Kept, Late};
use crate::open::Access;
use crate::output::spinner;
use crate::probe;
use crate::shepherd::Hook;

/// A volume that was found by its maps.
pub struct Lost {
    /// Its disk.
    pub disk: Arc<StatsDevice<FileDisk>>,
    /// Its format.
    pub format: &'static dyn Format,
    /// The shepherd before it.
    pub kept: Kept,
}

/// Where a volume is, what it is opened for, and how.
pub type Place = (u64, Access, Direct);

/// Whether a volume may have been refused because something is lost by which its maps would be found.
pub fn is_worth_a_search(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<probe::Nothing>()
            || matches!(cause.downcast_ref(), Some(Error::Corrupt(_) | Error::Io { op: IoOp::Read, .. }))
            || cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.raw_os_error() == Some(EIO))
    })
}

/// What the kernel says of a block that cannot be read.
const EIO: i32 = 5;

/// Whether a volume without maps may have some nevertheless.
pub fn may_hide(device: &dyn BlockDevice, format: &dyn Format) -> bool {
    format.keeps_maps().is_some_and(|keeps| keeps.may_hide(device).unwrap_or(false))
}

/// Searches for the maps of a volume that could not be opened as usual, or not with a policy; everywhere, if it could not and there is or was a
/// volume. `None` if there are none that may be used.
pub fn open(
    image: &Path,
    (place, access): (Place, Access),
    usual: &Result<()>,
    hook: Option<&Hook>,
) -> Result<Option<Lost>> {
    let name = image.display().to_string();
    let everywhere = usual.is_err() && was_a_volume(image, place);
    let Some(rescued) = find(image, place, everywhere, &name)? else { return Ok(None) };
    let disk = Arc::new(StatsDevice::new(opened(image, place, rescued.block_size)?));
    let below = give_back(&disk, &rescued, access, &name)?;
    let blocks: Vec<BlockNo> = rescued.rescue.blocks.keys().copied().collect();
    let view = Overlay::new(Arc::clone(&below));
    put(&view, &rescued)?;
    let format = probe::on_device(&view).with_context(|| name.clone())?.format;
    let kept = keep(below, &view, (format, &rescued), access, (&name, hook))?;
    say(&name, &blocks, &rescued);
    kept.say(&name);
    Ok(Some(Lost { disk, format, kept }))
}

/// The same for who has not tried the usual way: `None` where that is to be gone. What is lost is given back as `access` says.
pub fn instead(image: &Path, place: Place, access: Access) -> Result<Option<Lost>> {
    let usual = match leads_to_maps(image, place) {
        Ok(true) => return Ok(None),
        Err(error) if !is_worth_a_search(&error) => return Ok(None),
        usual => usual.map(|_| ()),
    };
    open(image, (place, access), &usual, None)
}

/// Whether the volume says where its maps are, or that it has none.
fn leads_to_maps(image: &Path, (offset, access, direct): Place) -> Result<bool> {
    let (disk, found) = crate::open::open_disk(image, offset, access, direct)?;
    let format = found.format;
    let Some(keeps) = format.keeps_maps() else { return Ok(true) };
    keeps.maps(&disk)?;
    Ok(!may_hide(&disk, format))
}

fn opened(image: &Path, (offset, access, direct): Place, block_size: u32) -> Result<FileDisk> {
    let read_only = access == Access::ReadOnly;
    crate::open::disk(image, &DiskOptions { block_size, offset, read_only, direct, ..DiskOptions::default() })
}

/// Whether there is a superblock, or a copy of one, or blocks that cannot be read where it would be.
fn was_a_volume(image: &Path, place: Place) -> bool {
    if probe::volume(image, place.0).map_or_else(|error| !error.is::<probe::Nothing>(), |_| true) {
        return true;
    }
    let Ok(disk) = opened(image, place, probe::UNTOLD_BLOCK) else { return false };
    FORMATS.iter().any(|format| format.has_backup(&disk).unwrap_or(true))
}

fn find(image: &Path, place: Place, everywhere: bool, name: &str) -> Result<Option<Rescued>> {
    let display = spinner(false);
    let mut failed = None;
    let mut open = |block_size| match opened(image, place, block_size) {
        Ok(disk) => Ok(Arc::new(disk) as Arc<dyn BlockDevice>),
        Err(error) => {
            let reason = std::io::Error::other(crate::output::reasons(&error));
            failed = Some(error);
            Err(Error::io(IoOp::Open, BlockNo(0), reason))
        }
    };
    let searched = search_disk(&mut open, everywhere, &mut |what, done, all| {
        display.set_message(format!("{what}: {} %", (100 * done).checked_div(all).unwrap_or(100)));
        display.tick();
    });
    display.finish_and_clear();
    let Searched { rescued, refused } = match (searched, failed) {
        (Err(_), Some(error)) => return Err(error),
        (searched, _) => searched?,
    };
    if rescued.is_none() {
        for (head, why) in refused {
            tracing::warn!(
                "{name}: maps of a policy were found by a search (block {head}), and are not used: {why}"
            );
        }
    }
    Ok(rescued)
}

fn put(device: &dyn BlockDevice, rescued: &Rescued) -> fstitch_core::Result<()> {
    let kind = BlockKind::Superblock;
    rescued
        .rescue
        .blocks
        .iter()
        .try_for_each(|(block, data)| device.write(&[BlockWrite { block: *block, kind, data }]))
}

/// Writes what was lost to its place again; for who only reads, in memory.
fn give_back(
    disk: &Arc<StatsDevice<FileDisk>>,
    rescued: &Rescued,
    access: Access,
    name: &str,
) -> Result<Arc<dyn BlockDevice>> {
    let disk = Arc::clone(disk) as Arc<dyn BlockDevice>;
    if access == Access::ReadOnly {
        let view = Overlay::new(disk);
        put(&view, rescued)?;
        return Ok(Arc::new(view));
    }
    for (block, data) in &rescued.rescue.blocks {
        let written = disk.write(&[BlockWrite { block: *block, kind: BlockKind::Superblock, data }]);
        if let Err(error) = written {
            tracing::warn!(
                "{name}: block {block} cannot be written either ({error}): the disk is to be replaced"
            );
        }
    }
    disk.flush()?;
    Ok(disk)
}

/// Puts the shepherd over the disk. `view` has all that is lost.
fn keep(
    below: Arc<dyn BlockDevice>,
    view: &dyn BlockDevice,
    (format, rescued): (&'static dyn Format, &Rescued),
    access: Access,
    (name, hook): (&str, Option<&Hook>),
) -> Result<Kept> {
    let keeps = format.keeps_maps().context("a format with maps keeps maps")?;
    let (noted, attendant) = (Arc::default(), Arc::<Attendant>::default());
    let options = super::options(keeps, view, name, (hook, &noted), Arc::clone(&attendant))?;
    let options = Options { read_only: access == Access::ReadOnly, is_ours: true, ..options };
    let (shepherd, opened) = Shepherd::open(below, &rescued.found.area, options)
        .context("the maps of the volume's policy, which were found by a search, cannot be used")?;
    let late = Arc::new(Late::default());
    Ok(Kept { shepherd: Arc::new(shepherd), opened, access, noted, disks: None, late, attendant })
}

fn say(name: &str, blocks: &[BlockNo], rescued: &Rescued) {
    let numbers: Vec<String> = blocks.iter().map(ToString::to_string).collect();
    let what = match &numbers[..] {
        [] => "of its maps the volume does not say all that it should".to_owned(),
        [one] => format!("block {one}, without which the maps of its policy are not found, was lost"),
        several => format!(
            "blocks {}, without which the maps of its policy are not found, were lost",
            several.join(", ")
        ),
    };
    let head = rescued.head;
    tracing::warn!(
        "{name}: {what}; the maps were found by a search (head in block {head}), and had what is needed. \
         `fstitch fsck` checks the volume, `fstitch scrub` its copies; a disk that loses more is to be replaced"
    );
}
