//! Repairing: runs of the passes until one changes nothing.

use fstitch_core::{
    BlockDevice, CheckReport, Error, FindingClass, RepairMode, RepairOptions, RepairReport, Result, Timestamp,
};

use super::run::{Done, Run, hopeless};
use super::state::Mending;
use super::supers;
use super::volume::Volume;
use crate::ufs::layout::superblock::Superblock;
use crate::view::BlockView;

/// Each run mends at least one thing that no later run undoes, most runs mend all of a pass. A volume that is not mended after so many
/// is beyond us.
const RUNS_MAX: u32 = 64;

/// Checks the UFS volume on `device` without changing it.
///
/// # Errors
/// When the device fails. Damage is no error: it is in the report.
pub fn check_ufs(device: &dyn BlockDevice) -> Result<CheckReport> {
    Ok(run_device(device, Mending::Nothing, Timestamp::default())?.0)
}

/// Checks and repairs the UFS volume on `device`, which nobody may have mounted.
///
/// # Errors
/// When the device fails, or something is to be mended on a volume with what would not be kept right by that.
pub fn repair_ufs(device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport> {
    let (found, _) = run_device(device, Mending::Nothing, options.now)?;
    let mending = match options.mode {
        _ if found.is_clean() => Mending::Nothing,
        RepairMode::No => Mending::Nothing,
        RepairMode::Preen if found.corrupt > 0 => Mending::Nothing,
        RepairMode::Preen => Mending::Allowed,
        RepairMode::Yes => Mending::Everything,
    };
    let mut report = RepairReport { left: found.clone(), found, mended: 0, runs: 1 };
    if mending == Mending::Nothing {
        return Ok(report);
    }
    while report.runs < RUNS_MAX {
        if prepare(device)? {
            let text = "check hashes of groups and superblock are switched off, for what is mended would not have them: `fstitch tune -O ckhash` makes them again";
            report.found.push(FindingClass::Allowed, "check-hashes", text);
            report.mended += 1;
        }
        let (left, mended) = run_device(device, mending, options.now)?;
        report.runs += 1;
        report.mended += mended;
        report.left = left;
        if mended == 0 {
            break;
        }
    }
    Ok(report)
}

/// Refuses what cannot be mended, and switches check hashes off but those of inodes; whether there were any.
fn prepare(device: &dyn BlockDevice) -> Result<bool> {
    // Without a superblock there is nothing to refuse yet.
    let shape = match Superblock::read(device) {
        Err(Error::Corrupt(_)) => return Ok(false),
        other => other?,
    };
    let view = BlockView::new(device, shape.fragment_len());
    let volume = open(&view, shape)?;
    if supers::why_unusable(&volume).is_some() {
        return Ok(false);
    }
    let why = if volume.shape.is_old || !volume.is_updated() {
        "its superblock is of before FreeBSD 5 and NetBSD 2"
    } else if volume.has_snapshots()? {
        "there are snapshots inside, which would have to keep what changes"
    } else if volume.is_journaled() {
        "it has a journal (WAPBL), which is not replayed here"
    } else if volume.has_quotas() {
        "it counts quotas as NetBSD does, which are not counted here"
    } else if volume.has_other_hashes() {
        supers::drop_hashes(&volume)?;
        return Ok(true);
    } else {
        return Ok(false);
    };
    let name = volume.shape.version.name();
    Err(Error::Unsupported(format!("mending this {name} volume: {why}; let the system that made it do that")))
}

fn open<'v>(view: &'v BlockView<'_>, shape: Superblock) -> Result<Volume<'v>> {
    let mut volume = Volume { source: view, shape, raw: Vec::new() };
    volume.raw = volume.read_super(volume.shape.at)?;
    Ok(volume)
}

/// One run over a device: what was found, and how many changes were made.
fn run_device(device: &dyn BlockDevice, mending: Mending, now: Timestamp) -> Result<Done> {
    let search = |volume: Option<&Volume<'_>>| match mending {
        Mending::Everything => supers::search(device, 1, volume),
        _ => Ok(None),
    };
    let (damage, restored) = match Superblock::read(device) {
        Ok(shape) => {
            let view = BlockView::new(device, shape.fragment_len());
            let volume = open(&view, shape)?;
            if let Some(restored) = supers::better(device, &volume)? {
                let text = "the superblock is not that of what is on the volume, a copy is";
                (text.to_owned(), Some(restored))
            } else {
                let is_unclean = volume.shape.is_unclean();
                match (Run { mending, now, is_unclean }).all(&volume)? {
                    Ok(done) => return Ok(done),
                    Err(why) => (why.to_owned(), search(Some(&volume))?),
                }
            }
        }
        Err(Error::Corrupt(problem)) => (problem.to_string(), search(None)?),
        Err(error) => return Err(error),
    };
    restore(device, mending, (damage, restored))
}

fn restore(
    device: &dyn BlockDevice,
    mending: Mending,
    (damage, restored): (String, Option<supers::Restored>),
) -> Result<Done> {
    let report = hopeless(damage);
    match restored {
        Some(restored) if mending == Mending::Everything => {
            supers::restore(device, &restored)?;
            Ok((report, 1))
        }
        _ => Ok((report, 0)),
    }
}
