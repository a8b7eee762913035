//! Disks that were replaced get what they should have: in a mount's thread, beside everything else, or in a command.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::{Clock, SystemClock};
use fstitch_shepherd::disks::DiskState;

use super::Disks;
use super::change::NOT_SEVERAL;
use crate::output::spinner;
use crate::shepherd::Kept;

/// Blocks of the volume that are gone over while writes wait.
const STEP: u64 = 256;
/// How often a mount looks at its disks when all is well.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long is waited after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(2);

/// What the thread of a mount remembers.
#[derive(Default)]
pub struct Keeper {
    /// Disks that were out when they were looked at last.
    out: BTreeSet<usize>,
    /// Hot spares that did not take a disk's place.
    bad: BTreeSet<[u8; 16]>,
    lost: usize,
}

/// Does a little of what a volume's disks need; how long to wait then. At most `rate` bytes a second are written to a disk that is rebuilt;
/// without one, half of the time is left to others.
pub fn keep(kept: &Kept, keeper: &mut Keeper, rate: Option<u64>) -> Result<Duration> {
    let disks = kept.disks().context(NOT_SEVERAL)?;
    if !disks.array().is_degraded() {
        keeper.out.clear();
        return Ok(LOOK_EVERY);
    }
    for disk in 0..disks.array().disks() {
        if matches!(disks.array().state(disk), DiskState::Out { .. }) && keeper.out.insert(disk) {
            tracing::warn!("{} is out: the volume is DEGRADED", disks.show(disk));
        }
    }
    if let Err(error) = take_hot(kept, disks, keeper) {
        tracing::warn!("a hot spare cannot take the place of a disk: {}", crate::output::reasons(&error));
    }
    let clock = SystemClock::new();
    let Some(step) =
        kept.shepherd().rebuild(STEP).inspect_err(|error| tracing::warn!("rebuilding: {error}")).or_else(
            |_| {
                std::thread::sleep(AGAIN_AFTER);
                Ok::<_, anyhow::Error>(None)
            },
        )?
    else {
        return Ok(LOOK_EVERY);
    };
    keeper.lost += step.lost.len();
    if disks.array().state(step.disk) == DiskState::Whole {
        tracing::warn!(
            "{} is whole again, but for {} blocks that no other disk had",
            disks.show(step.disk),
            keeper.lost
        );
        keeper.lost = 0;
        keeper.out.remove(&step.disk);
    }
    let bytes = step.written * u64::from(disks.array().label().block_size);
    Ok(match rate.filter(|rate| *rate > 0) {
        Some(rate) => due(bytes, rate).saturating_sub(clock.elapsed()),
        None => clock.elapsed(),
    })
}

fn due(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// A hot spare takes the place of a disk that is out, if there is one of each.
fn take_hot(kept: &Kept, disks: &Disks, keeper: &mut Keeper) -> Result<()> {
    let before = disks.array().label();
    let hot = before.disks.iter().enumerate().find(|(_, disk)| disk.state == DiskState::Hot);
    let Some((_, member)) = hot.filter(|(_, member)| !keeper.bad.contains(&member.uuid)) else {
        return Ok(());
    };
    let taken = kept.shepherd().take_hot().inspect_err(|_| {
        keeper.bad.insert(member.uuid);
    });
    if let Some(disk) = taken? {
        let uuid = disks.array().label().disks[disk].uuid;
        let old = disks.show(disk);
        if let Some(at) = before.disks.iter().position(|member| member.uuid == uuid) {
            let name = disks.take(at);
            disks.rename(disk, name);
        }
        tracing::warn!("the hot spare {} takes the place of {old}", disks.show(disk));
    }
    Ok(())
}

/// Rebuilds all that is to be, and shows how far it is.
pub(super) fn all(kept: &Kept, rate: Option<u64>, quiet: bool) -> Result<u64> {
    let disks = kept.disks().context(NOT_SEVERAL)?;
    let mut keeper = Keeper::default();
    take_hot(kept, disks, &mut keeper)?;
    let (display, clock) = (spinner(quiet), SystemClock::new());
    let volume = disks.array().volume();
    let mut lost = 0;
    let mut done: u64 = 0;
    let mut written: u64 = 0;
    while let Some(step) = kept.shepherd().rebuild(STEP)? {
        lost += fstitch_core::num::to_u64(step.lost.len());
        done += STEP;
        written += step.written;
        let left = clock.elapsed().mul_f64(ratio(volume.saturating_sub(step.next), done)).as_secs();
        display.set_message(format!(
            "{}: {} of {volume} blocks, {left} s left",
            disks.show(step.disk),
            step.next
        ));
        display.tick();
        if let Some(rate) = rate.filter(|rate| *rate > 0) {
            let bytes = written * u64::from(disks.array().label().block_size);
            std::thread::sleep(due(bytes, rate).saturating_sub(clock.elapsed()));
        }
    }
    display.finish_and_clear();
    Ok(lost)
}

#[expect(clippy::cast_precision_loss, reason = "what is shown need not be exact")]
fn ratio(left: u64, done: u64) -> f64 {
    left as f64 / done.max(1) as f64
}
