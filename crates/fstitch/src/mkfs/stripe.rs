//! Volumes on stripes: labels first, then the file system on all disks as one.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use fstitch_core::BlockDevice;
use fstitch_disk::{Direct, STRIPE_DISKS_MAX};
use fstitch_formats::make::{Asked, Fresh, Made, Making};

use super::array::{prepare, refuse_names};
use super::{AskedJournal, Common, Wanted, asked, blame, fill, random_uuid, report};
use crate::disks::{names, stripe};
use crate::open::Access;
use crate::output::{Outcome, spinner, text, usage};

/// Makes a stripe of the disks that were named, and the volume on it.
pub(super) fn make(wanted: &Wanted, unit: u32) -> Result<Outcome> {
    let common = &wanted.common;
    let disks = names(&common.image);
    refuse(common, &disks)?;
    let asked = asked(wanted)?;
    let plan = wanted.format.plan(&asked).map_err(blame)?;
    let prepared = prepare(common, &disks, plan.name())?;
    let made = write(common, (&asked, &*plan), (&disks, unit)).and_then(|mut made| {
        let failed = fill::fill(common, &mut made)?;
        Ok((made, failed))
    });
    let (mut made, failed) = made.inspect_err(|_| {
        prepared.iter().zip(&disks).for_each(|(prepared, disk)| prepared.undo(disk));
    })?;
    let shown: Vec<String> = disks.iter().map(|disk| disk.display().to_string()).collect();
    made.values.insert("disks".to_owned(), shown.into());
    made.values.insert("stripe_unit_bytes".to_owned(), unit.into());
    report(common, &asked, made)?;
    if !common.quiet && !common.json {
        let (image, count, unit) = (common.image.display(), disks.len(), crate::size::show(unit.into()));
        text(&format!(
            "{image}: it goes around {count} disks in units of {unit}; without one of them it is lost\n"
        ))?;
    }
    Ok(if failed == 0 { Outcome::SUCCESS } else { Outcome::FAILURE })
}

/// What cannot be asked of a stripe.
fn refuse(common: &Common, disks: &[PathBuf]) -> Result<()> {
    let image = common.image.display();
    for (is_asked, what) in [
        (super::offset(common)? != 0, "its disks have no offset"),
        (common.partition.is_some(), "name the partitions themselves as disks"),
        (matches!(common.journal, Some(AskedJournal::Device(_))), "its journal is on its disks"),
        (disks.len() > STRIPE_DISKS_MAX, "64 are the most"),
    ] {
        if is_asked {
            return Err(usage(format!("{image} is a volume on several disks: {what}")));
        }
    }
    refuse_names(common, disks)
}

fn write(
    common: &Common,
    (asked, plan): (&Asked, &dyn Making),
    (disks, unit): (&[PathBuf], u32),
) -> Result<Made> {
    let context = || format!("making a volume on {}", common.image.display());
    let block_size = plan.unit().or(asked.block_size).unwrap_or(1024);
    ensure!(
        block_size <= unit,
        usage(format!(
            "{context}: its blocks of {block_size} bytes are longer than a unit",
            context = context()
        ))
    );
    stripe::label_all(disks, random_uuid()?, unit).with_context(context)?;
    let device = stripe::open_as(&common.image, block_size, Access::ReadWrite, Direct::Never)?;
    let display = spinner(common.quiet || common.json);
    let fresh = Fresh { device: &device, is_zero: false, bytes: None };
    let made = plan.make(fresh, &mut |done, of| {
        display.set_message(format!("group {done} of {of}"));
        display.tick();
    });
    display.finish_and_clear();
    let made = made.map_err(blame).with_context(context)?;
    device.flush().with_context(context)?;
    Ok(made)
}
