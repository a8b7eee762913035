//! Making a UFS1 or UFS2 volume, as FreeBSD's newfs does.
//!
//! # Layout
//! `docs/spec/ufs.md`. Each group has a copy of the superblock, its own block and its inodes behind some fragments that are contents, but in
//! the first group, where these are the boot area and the superblock. Contents of the first group begin with the counts of all groups; then,
//! in blocks of their own, the directories.
//!
//! # Order
//! All places where superblocks are looked for are wiped first, and the superblock is written last, each behind a flush, so that a device on
//! which making was cut short is never taken for a volume. In between any order will do.
//!
//! # Invariants
//! 1. Equal options on devices of equal sizes make equal volumes, byte by byte.
//! 2. What a plan says lies within 32 bits where the format has 32 bits, and within the device.

mod files;
mod group;
mod options;
mod plan;
mod superblock;
mod write;

use fstitch_core::{BlockDevice, Result};

pub use options::{MkfsOptions, Optimise};
pub use plan::Plan;

use self::write::Writer;
use super::layout::superblock::Totals;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MkfsSummary {
    /// The volume's shape.
    pub plan: Plan,
    /// What is free, and how many directories there are.
    pub totals: Totals,
}

/// Makes a volume on `device`, whose blocks may have any size. `progress` is told how many groups of how many are written.
///
/// # Errors
/// `Unsupported` when the volume cannot be as asked, before anything is written; `Io` when the device fails, which leaves it without a
/// superblock.
pub fn mkfs(
    device: &dyn BlockDevice,
    options: &MkfsOptions,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<MkfsSummary> {
    let plan = Plan::new(options, device.geometry().bytes())?;
    let mut writer = Writer::new(device, options, &plan);
    writer.wipe()?;
    writer.groups(progress)?;
    writer.files()?;
    writer.finish()?;
    let totals = writer.totals();
    Ok(MkfsSummary { plan, totals })
}

/// A time as UFS1 has it: the nearest that fits its 32 bits.
fn seconds(time: i64) -> u32 {
    let nearest = time.clamp(i32::MIN.into(), i32::MAX.into());
    i32::try_from(nearest).expect("clamped").cast_unsigned()
}
