//! The checker: every sum, what uses each block, and what directories and lists say of inodes.
//!
//! Shadow paging leaves nothing after a crash, so whatever is found is damage. Two passes: *blocks* follows every reference of every tree,
//! but for what a tree shares with the one before it, and compares what it has found with the map; *names* looks at each tree that
//! changes as a file system: directories, links, lists.

mod blocks;
mod names;

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, CheckReport, Error, FindingClass, ManualClock, RepairOptions, RepairReport, Result,
};
use fstitch_patch::{Cache, CacheOptions};

use super::layout::record::TreeKind;
use super::layout::root::Root;
use super::state::State;

/// Memory for looking at a volume.
const CACHE_BYTES: usize = 64 << 20;

/// Notes damage.
fn damage(report: &mut CheckReport, code: &'static str, text: impl Into<String>) {
    report.push(FindingClass::Corrupt, code, text);
}

/// Notes what reading has found to be damaged; other failures end the check.
fn note<T>(report: &mut CheckReport, code: &'static str, found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(value) => Ok(Some(value)),
        Err(Error::Corrupt(what)) => {
            damage(report, code, what.to_string());
            Ok(None)
        }
        // What leads to nothing answers so to its users.
        Err(Error::Errno(errno)) => {
            damage(report, code, format!("what should be there is not: {errno}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Checks a volume of which everything is stable.
///
/// # Errors
/// When the medium fails.
pub(super) fn check_state(state: &State) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    blocks::check(state, &mut report)?;
    for (number, tree) in state.trees.iter().enumerate() {
        if tree.as_ref().is_some_and(|tree| tree.kind == TreeKind::Head && !tree.is_receiving) {
            names::check(state, number, &mut report)?;
        }
    }
    Ok(report)
}

/// Checks a volume that nobody uses.
///
/// # Errors
/// When the medium fails; `Unsupported` by the names of features.
pub fn check(device: Arc<dyn BlockDevice>) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let device = super::grouped(device)?;
    let Some(root) = note(&mut report, "root", Root::read(&*device))? else { return Ok(report) };
    let options = CacheOptions { cache_size: CACHE_BYTES, read_only: true, ..CacheOptions::default() };
    let cache = Cache::new(device, options, Arc::new(ManualClock::new()));
    match note(&mut report, "volume", State::open(cache, root, b""))? {
        Some(state) => check_state(&state),
        None => Ok(report),
    }
}

/// Checks a volume. Nothing is mended: a crash leaves nothing to mend, and what is damaged on the medium is brought back from a copy.
///
/// # Errors
/// As [`check`].
pub fn repair(device: Arc<dyn BlockDevice>, _options: RepairOptions) -> Result<RepairReport> {
    let found = check(device)?;
    Ok(RepairReport { left: found.clone(), found, mended: 0, runs: 1 })
}
