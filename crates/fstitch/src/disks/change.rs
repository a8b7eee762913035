//! Disks come and go: the same for a volume that is mounted and one that is not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_shepherd::disks::{DiskState, Hot};
use serde::{Deserialize, Serialize};

use super::Disks;
use crate::mkfs::random_uuid;
use crate::shepherd::Kept;

/// What is to become of a volume's disks.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// Another disk in the place of one.
    Replace {
        /// Its number or name.
        disk: String,
        /// The new one.
        new: PathBuf,
        /// Whatever is on the new one, and whatever is lost with the old one.
        force: bool,
    },
    /// A hot spare.
    Add {
        /// The disk.
        new: PathBuf,
        /// Whatever is on it.
        force: bool,
    },
    /// A disk or a hot spare less.
    Remove {
        /// Its number or name.
        disk: String,
        /// Whatever is lost with it.
        force: bool,
    },
}

impl Change {
    /// Does it; what is to be said.
    pub fn apply(&self, kept: &Kept) -> Result<String> {
        let disks = kept.disks().context(NOT_SEVERAL)?;
        match self {
            Self::Replace { disk, new, force } => replace(kept, disks, disk, (new, *force)),
            Self::Add { new, force } => add(disks, (new, *force)),
            Self::Remove { disk, force } => remove(kept, disks, disk, *force),
        }
    }
}

/// Why a command about disks has nothing to do.
pub const NOT_SEVERAL: &str = "the volume is not on several disks";

/// The disk of this number or name.
fn find(disks: &Disks, wanted: &str) -> Result<usize> {
    let count = disks.array().label().disks.len();
    let is_it = |disk: &usize| {
        disks
            .name(*disk)
            .is_some_and(|name| super::same(&name, Path::new(wanted)) || name == Path::new(wanted))
    };
    let found = match wanted.parse() {
        Ok(number) if number < count => Some(number),
        _ => (0..count).find(is_it),
    };
    let known = || (0..count).map(|disk| disks.show(disk)).collect::<Vec<_>>().join(", ");
    found.with_context(|| format!("no disk `{wanted}`: there are {}", known()))
}

fn replace(kept: &Kept, disks: &Disks, wanted: &str, (new, force): (&Path, bool)) -> Result<String> {
    let disk = find(disks, wanted)?;
    let label = disks.array().label();
    let member = label.disks[disk];
    ensure!(
        member.state != DiskState::Hot,
        "{} is a hot spare: `fstitch disk remove` takes it away",
        disks.show(disk)
    );
    let needed = label.first + label.zone + member.blocks + member.spares;
    let device = prepare(disks, (new, force), needed)?;
    if !matches!(member.state, DiskState::Out { .. }) {
        refuse_loss(kept, disks, disk, force)?;
        kept.shepherd().put_disk_out(disk)?;
    }
    let old = disks.show(disk);
    kept.shepherd().replace_disk(disk, &device, random_uuid()?)?;
    disks.rename(disk, Some(new.to_path_buf()));
    Ok(format!("{} takes the place of {old}, and is to be rebuilt", new.display()))
}

fn add(disks: &Disks, (new, force): (&Path, bool)) -> Result<String> {
    let label = disks.array().label();
    let needed = label.disks.iter().map(|disk| disk.blocks + disk.spares).max().unwrap_or(0);
    let device = prepare(disks, (new, force), label.first + label.zone + needed)?;
    disks.array().set_hot(Hot::Add(&device, random_uuid()?))?;
    disks.rename(label.disks.len(), Some(new.to_path_buf()));
    Ok(format!("{} is a hot spare now: it takes the place of the first disk that fails", new.display()))
}

fn remove(kept: &Kept, disks: &Disks, wanted: &str, force: bool) -> Result<String> {
    let disk = find(disks, wanted)?;
    let shown = disks.show(disk);
    match disks.array().label().disks[disk].state {
        DiskState::Hot => {
            disks.array().set_hot(Hot::Remove(disk))?;
            disks.take(disk);
            Ok(format!("{shown} is no hot spare any more"))
        }
        DiskState::Out { .. } => {
            bail!("{shown} is out already: `fstitch disk replace` puts another in its place")
        }
        _ => {
            refuse_loss(kept, disks, disk, force)?;
            kept.shepherd().put_disk_out(disk)?;
            Ok(format!("{shown} is out: the volume is degraded until another takes its place"))
        }
    }
}

/// Refuses to put a disk out that has something which no other one has.
fn refuse_loss(kept: &Kept, disks: &Disks, disk: usize, force: bool) -> Result<()> {
    let device = kept.device();
    let format = crate::probe::on_device(&*device)?.format;
    let keeps = format.keeps_maps().context("a format with maps keeps maps")?;
    let blocks = keeps.census(&*device)?;
    let lost_now = kept.shepherd().lost_without(&blocks, None).len();
    let lost = kept.shepherd().lost_without(&blocks, Some(disk)).len().saturating_sub(lost_now);
    ensure!(
        lost == 0 || force,
        "{} has {lost} blocks that no other disk has: they would be lost (--force loses them)",
        disks.show(disk)
    );
    Ok(())
}

/// The new disk, which is made if it is not there, and holds nothing any more.
fn prepare(disks: &Disks, (new, force): (&Path, bool), needed: u64) -> Result<Arc<dyn BlockDevice>> {
    let label = disks.array().label();
    let block_size = label.block_size;
    let name = new.display();
    ensure!(!super::is_several(new), "{name}: one disk at a time");
    if new.symlink_metadata().is_err() {
        FileDisk::create(new, needed * u64::from(block_size)).with_context(|| format!("making {name}"))?;
    } else if !force && let Some(found) = crate::probe::holds(new, 0)? {
        bail!("{name} seems to hold {found}: nothing was written; add --force to overwrite it");
    }
    let device = crate::open::disk(new, &DiskOptions { block_size, ..DiskOptions::default() })?;
    let has = device.geometry().block_count;
    ensure!(
        has >= needed,
        "{name} has {}, and {} are needed",
        crate::size::show(has * u64::from(block_size)),
        crate::size::show(needed * u64::from(block_size))
    );
    let zeros = vec![0; to_usize(block_size)];
    let zero = |block| BlockWrite { block: BlockNo(block), kind: BlockKind::Superblock, data: &zeros };
    // Labels of another array would be newer than those that it gets.
    device.write(&(0..label.first.min(to_u64(64_usize))).map(zero).collect::<Vec<_>>())?;
    device.flush()?;
    Ok(Arc::new(device))
}
