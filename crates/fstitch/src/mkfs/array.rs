//! Volumes on several disks: labels and maps first, then the file system through the shepherd.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite};
use fstitch_disk::{Direct, DiskOptions};
use fstitch_formats::make::{Asked, Fresh, Made, Making};
use fstitch_shepherd::disks::{Plan, label_of, write_labels};
use fstitch_shepherd::engine::Trouble;
use fstitch_shepherd::{Array, Shepherd};

use super::{AskedJournal, Common, Prepared, Target, Wanted, asked, blame, fill, random_uuid, report};
use crate::disks::{is_missing, names};
use crate::open::{self, Access};
use crate::output::{Outcome, spinner, text, usage};
use crate::shepherd::adopt;

/// Bytes at the start of each disk that are the labels', and that nobody else may take for something of his own.
const HEAD_BYTES: u64 = 64 << 10;
/// Bytes of all disks from which on blocks are large.
const LARGE: u64 = 512 << 20;

/// Makes an array of the disks that were named, and the volume on it.
pub(super) fn make(wanted: &Wanted) -> Result<Outcome> {
    let common = &wanted.common;
    let disks = names(&common.image);
    refuse(wanted, &disks)?;
    let mut asked = asked(wanted)?;
    let policy = common.policy.as_deref().ok_or_else(|| {
        usage(format!(
            "{}: a volume on several disks needs --stripe, or --policy, which says what is on which of them: `d-graid`, or what `fstitch policy \
             list` has for several disks",
            common.image.display()
        ))
    })?;
    let policy = adopt::Wanted::read(policy, None, disks.len())?;
    let plan = wanted.format.plan(&asked).map_err(blame)?;
    let prepared = prepare(common, &disks, plan.name())?;
    drop(plan);
    let made = write(wanted, &mut asked, &disks, &policy).and_then(|mut made| {
        let failed = fill::fill(common, &mut made)?;
        Ok((made, failed))
    });
    let (mut made, failed) = made.inspect_err(|_| {
        prepared.iter().zip(&disks).for_each(|(prepared, disk)| prepared.undo(disk));
    })?;
    let shown: Vec<String> = disks.iter().map(|disk| disk.display().to_string()).collect();
    made.values.insert("disks".to_owned(), shown.into());
    report(common, &asked, made)?;
    if !common.quiet && !common.json {
        let (image, count, name) = (common.image.display(), disks.len(), policy.name());
        text(&format!("{image}: it is on {count} disks, and follows the policy `{name}`\n"))?;
    }
    Ok(if failed == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

/// What cannot be asked of an array.
fn refuse(wanted: &Wanted, disks: &[PathBuf]) -> Result<()> {
    let common = &wanted.common;
    let image = common.image.display();
    if wanted.format.keeps_maps().is_none() {
        return Err(usage(format!("{} volumes cannot be on several disks", wanted.kind)));
    }
    for (is_asked, what) in [
        (super::offset(common)? != 0, "its disks have no offset"),
        (common.partition.is_some(), "name the partitions themselves as disks"),
        (matches!(common.journal, Some(AskedJournal::Device(_))), "its journal is on its disks"),
        (common.spares.is_some(), "its policy says how much of it is for copies"),
    ] {
        if is_asked {
            return Err(usage(format!("{image} is a volume on several disks: {what}")));
        }
    }
    refuse_names(common, disks)
}

/// Names of disks that a new volume cannot be on.
pub(super) fn refuse_names(common: &Common, disks: &[PathBuf]) -> Result<()> {
    let image = common.image.display();
    for (no, disk) in disks.iter().enumerate() {
        ensure!(!disk.as_os_str().is_empty(), "{image}: there is nothing between two commas");
        ensure!(!is_missing(disk), "{image}: a new array has all of its disks");
        let twice = |other: &PathBuf| other == disk || crate::disks::same(other, disk);
        ensure!(!disks[..no].iter().any(twice), "{image}: {} is there twice", disk.display());
    }
    Ok(())
}

/// Creates the disks, or makes sure that they hold nothing of value.
pub(super) fn prepare(common: &Common, disks: &[PathBuf], kind: &str) -> Result<Vec<Prepared>> {
    let unit = u64::from(common.block_size.unwrap_or(1024));
    let size =
        common.size.as_deref().map(|size| crate::size::volume(size, unit)).transpose().map_err(usage)?;
    let mut prepared: Vec<Prepared> = Vec::new();
    for disk in disks {
        let target = Target { image: disk, offset: 0, size, force: common.force, kind };
        match target.prepare() {
            Ok(done) => prepared.push(done),
            Err(error) => {
                prepared.iter().zip(disks).for_each(|(prepared, disk)| prepared.undo(disk));
                return Err(error);
            }
        }
    }
    Ok(prepared)
}

fn write(wanted: &Wanted, asked: &mut Asked, disks: &[PathBuf], policy: &adopt::Wanted) -> Result<Made> {
    let common = &wanted.common;
    let context = || format!("making a volume on {}", common.image.display());
    let size = common
        .size
        .as_deref()
        .map(|size| crate::size::volume(size, u64::from(common.block_size.unwrap_or(1024))).map_err(usage));
    let size = size.transpose()?;
    // The maps count in the volume's blocks, so these are known before there is a volume.
    let block_size = match asked.block_size {
        Some(block_size) => block_size,
        None if disks.iter().map(|disk| bytes_of(disk, size)).sum::<Result<u64>>()? < LARGE => 1024,
        None => 4096,
    };
    asked.block_size = Some(block_size);
    lay_out(disks, (block_size, size), asked.uuid, policy).with_context(context)?;
    let (kept, _) = open::array(&common.image, Access::ReadWrite, Direct::Never, None)?;
    let plan: Box<dyn Making> = wanted.format.plan(asked).map_err(blame)?;
    let display = spinner(common.quiet || common.json);
    let device = kept.device();
    // What was never written has no copy, so everything is.
    let fresh = Fresh { device: &*device, is_zero: false, bytes: None };
    let made = plan.make(fresh, &mut |done, of| {
        display.set_message(format!("group {done} of {of}"));
        display.tick();
    });
    display.finish_and_clear();
    let made = made.map_err(blame).with_context(context)?;
    // Who makes a volume does not say of every block what it is, and copies go by that.
    let keeps = wanted.format.keeps_maps().context("a format with maps keeps maps")?;
    let blocks = keeps.census(&*device)?;
    kept.shepherd().renew(&blocks, &mut |_, _| {}).with_context(context)?;
    let short = kept.shepherd().health().all(Trouble::CopyLost);
    if short > 0 {
        tracing::warn!(
            "{}: {short} copies found no room: larger disks have it, or a smaller journal (-J size=)",
            common.image.display()
        );
    }
    kept.close()?;
    Ok(made)
}

/// Bytes of a disk that are to be used.
fn bytes_of(disk: &Path, size: Option<u64>) -> Result<u64> {
    if let Some(size) = size {
        return Ok(size);
    }
    let options = DiskOptions { block_size: 512, read_only: true, ..DiskOptions::default() };
    Ok(open::disk(disk, &options)?.geometry().bytes())
}

/// Labels and empty maps.
fn lay_out(
    disks: &[PathBuf],
    (block_size, size): (u32, Option<u64>),
    uuid: [u8; 16],
    policy: &adopt::Wanted,
) -> Result<()> {
    let options = DiskOptions { block_size, size, ..DiskOptions::default() };
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    let mut members = Vec::new();
    for disk in disks {
        let device = open::disk(disk, &options)?;
        members.push((random_uuid()?, device.geometry().block_count));
        devices.push(Arc::new(device));
    }
    let first = (HEAD_BYTES / u64::from(block_size)).max(2);
    let plan = Plan { uuid, block_size, first, disks: members, hot: Vec::new() };
    let label = label_of(&plan, policy.policy()).map_err(blame)?;
    let zeros = vec![0; usize::try_from(block_size)?];
    for device in &devices {
        let zero = |block| BlockWrite { block: BlockNo(block), kind: BlockKind::Superblock, data: &zeros };
        device.write(&(0..first).map(zero).collect::<Vec<_>>())?;
    }
    write_labels(&devices, &label)?;
    let given: Vec<Option<Arc<dyn BlockDevice>>> = devices.into_iter().map(Some).collect();
    let (array, found) = Array::open(&given, false)?;
    assert_eq!(to_u64(found.places.iter().flatten().count()), to_u64(disks.len()), "it has all of its disks");
    Shepherd::format_array(&Arc::new(array), policy.text()).map_err(blame)
}
