//! Repairing: runs of the passes until one changes nothing.

use fstitch_core::{BlockDevice, RepairMode, RepairOptions, RepairReport, Result};

use super::run::run_device;
use super::state::Mending;

/// Each run mends at least one thing that no later run undoes, most runs mend all of a pass. A volume that is
/// not mended after so many is beyond us.
const RUNS_MAX: u32 = 64;

/// Checks and repairs the ext2 volume on `device`, which nobody may have mounted.
///
/// Inodes without a name go to lost+found when there is damage: they may have been somebody's. When everything found is
/// what a crash allows, those are freed that a crash can have left so, deleted or never finished, and that hold nothing.
///
/// # Errors
/// When the device fails, or the volume has features that we do not know.
pub fn repair_ext2(device: &dyn BlockDevice, options: RepairOptions) -> Result<RepairReport> {
    repair(device, options, true)
}

/// The same for a volume that was sound a moment ago: whatever is found now is what was begun since, and no inode without a name is somebody's.
///
/// # Errors
/// As [`repair_ext2`].
pub(in crate::ext2) fn repair_sound_ext2(
    device: &dyn BlockDevice,
    options: RepairOptions,
) -> Result<RepairReport> {
    repair(device, options, false)
}

fn repair(device: &dyn BlockDevice, options: RepairOptions, may_keep: bool) -> Result<RepairReport> {
    let found = run_device(device, Mending::Nothing, options.now)?.report;
    let damaged = found.corrupt > 0;
    let mending = match options.mode {
        _ if found.is_clean() => Mending::Nothing,
        RepairMode::No => Mending::Nothing,
        RepairMode::Preen if damaged => Mending::Nothing,
        RepairMode::Preen => Mending::Allowed,
        RepairMode::Yes => Mending::Everything { keep: damaged && may_keep },
    };
    let mut report = RepairReport { left: found.clone(), found, mended: 0, runs: 1 };
    if mending == Mending::Nothing {
        return Ok(report);
    }
    while report.runs < RUNS_MAX {
        let outcome = run_device(device, mending, options.now)?;
        report.runs += 1;
        report.mended += outcome.mended;
        report.left = outcome.report;
        if outcome.mended == 0 {
            break;
        }
    }
    Ok(report)
}
