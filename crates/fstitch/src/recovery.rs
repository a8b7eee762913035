//! Recovery before a volume is used, whatever its format: with progress, and with the device of its journal.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::{BlockDevice, Clock, Overlay, SystemClock};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_formats::{Format, Recovering, Recovery};
use fstitch_patch::journal::{Progress, Stage};

use crate::open::{self, Access};
use crate::output::spinner;

/// How often a line moves that says what is going on.
const TICK: Duration = Duration::from_millis(100);

/// Opens the device of an external journal.
pub fn open_external(path: Option<&Path>, block_size: u32, access: Access) -> Result<Option<FileDisk>> {
    let options = DiskOptions { block_size, read_only: access == Access::ReadOnly, ..DiskOptions::default() };
    path.map(|path| open::disk(path, &options).with_context(|| format!("the journal {}", path.display())))
        .transpose()
}

/// Recovers the volume on `disk`. `None` if there was nothing to do.
pub fn recover(
    format: &dyn Format,
    disk: &dyn BlockDevice,
    external: Option<&Path>,
) -> Result<Option<Recovery>> {
    let external = open_external(external, disk.geometry().block_size, Access::ReadWrite)?;
    recover_with(format, disk, external.as_ref().map(|disk| -> &dyn BlockDevice { disk }))
}

/// The same with the device of an external journal.
pub fn recover_with(
    format: &dyn Format,
    disk: &dyn BlockDevice,
    external: Option<&dyn BlockDevice>,
) -> Result<Option<Recovery>> {
    showing(external, |how| format.recover(disk, how))
}

/// The same, but what cannot be recovered is given up.
pub fn recover_or_give_up(
    format: &dyn Format,
    disk: &dyn BlockDevice,
    external: Option<&Path>,
) -> Result<Option<Recovery>> {
    let external = open_external(external, disk.geometry().block_size, Access::ReadWrite)?;
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    showing(external, |how| format.recover_or_give_up(disk, how))
}

/// Runs `recover` with its progress on the terminal.
fn showing<T>(
    external: Option<&dyn BlockDevice>,
    recover: impl FnOnce(&mut Recovering<'_>) -> fstitch_core::Result<T>,
) -> Result<T> {
    let display = spinner(false);
    let mut progress = |now: Progress| {
        let stage = match now.stage {
            Stage::Scan => "reading the journal",
            Stage::Copy => "replaying the journal",
        };
        display.set_message(format!("{stage}: {} of {} blocks", now.done, now.total));
        display.tick();
    };
    let now = SystemClock::new().now();
    let done = recover(&mut Recovering { external, now, for_reading: false, progress: &mut progress })?;
    display.finish_and_clear();
    Ok(done)
}

/// Lets the format check a volume that was not unmounted and is about to be changed, and says what was mended.
pub fn settle(format: &dyn Format, disk: &dyn BlockDevice) -> Result<()> {
    let mut display = None;
    let mut begins = || {
        let shown = spinner(false);
        shown.set_message("checking the volume, which was not unmounted");
        shown.enable_steady_tick(TICK);
        display = Some(shown);
    };
    let done = format.settle(disk, SystemClock::new().now(), &mut begins);
    if let Some(display) = display {
        display.finish_and_clear();
    }
    if let Some(said) = done? {
        tracing::warn!("{said}");
    }
    Ok(())
}

/// As [`recover`], on a device that keeps changes in memory, so that nothing is written for good.
pub fn recover_in_memory<D: BlockDevice>(
    format: &dyn Format,
    disk: &Overlay<D>,
    external: Option<&Path>,
) -> Result<Option<Recovery>> {
    let external = open_external(external, disk.geometry().block_size, Access::ReadOnly)?.map(Overlay::new);
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    let now = SystemClock::new().now();
    Ok(format.recover(disk, &mut Recovering { external, now, for_reading: true, progress: &mut |_| {} })?)
}
