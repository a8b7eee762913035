//! The checker: every sum, what uses each block, and what directories and lists say of inodes.
//!
//! Shadow paging leaves nothing after a crash, so whatever is found is damage. Two passes: *blocks* follows every reference of every tree,
//! but for what a tree shares with the one before it, and compares what it has found with the map; *names* looks at each tree that
//! changes as a file system: directories, links, lists. What can be put right from what is whole is put right by `restore`, `mend` (with `lists`)
//! and `salvage`.

mod blocks;
mod lists;
mod mend;
mod names;
mod restore;
mod salvage;

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, CheckReport, Error, FindingClass, IoOp, ManualClock, RepairMode, RepairOptions,
    RepairReport, Result, Timestamp,
};
use fstitch_patch::{Cache, CacheOptions};

use super::layout::HEIGHT_MAX;
use super::layout::pointer::Ref;
use super::layout::record::TreeKind;
use super::layout::root::Root;
use super::state::State;

/// Memory for looking at a volume.
const CACHE_BYTES: usize = 64 << 20;

/// Notes damage.
fn damage(report: &mut CheckReport, code: &'static str, text: impl Into<String>) {
    report.push(FindingClass::Corrupt, code, text);
}

/// Whether the medium did not give a block. It may do so later, so that what the block has is neither lost nor known.
fn is_unread(error: &Error) -> bool {
    matches!(error, Error::Io { op: IoOp::Read, .. })
}

/// Notes what reading has found to be damaged, or what cannot be read; other failures end the check.
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
        Err(error) if is_unread(&error) => {
            damage(report, code, error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Checks a volume of which everything is stable.
///
/// # Errors
/// When the medium fails otherwise than by not giving a block.
pub(super) fn check_state(state: &State) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    look_at(state, &mut report)?;
    Ok(report)
}

fn look_at(state: &State, report: &mut CheckReport) -> Result<()> {
    blocks::check(state, report)?;
    for (number, tree) in state.trees.iter().enumerate() {
        if tree.as_ref().is_some_and(|tree| tree.kind == TreeKind::Head && !tree.is_receiving) {
            names::check(state, number, report)?;
        }
    }
    Ok(())
}

/// Checks a volume that nobody uses.
///
/// # Errors
/// When the medium fails otherwise than by not giving a block; `Unsupported` by the names of features.
pub fn check(device: Arc<dyn BlockDevice>) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let device = super::grouped(device)?;
    let Some(root) = last_root(&*device, &mut report)? else { return Ok(report) };
    let options = CacheOptions { cache_size: CACHE_BYTES, read_only: true, ..CacheOptions::default() };
    let cache = Cache::new(device, options, Arc::new(ManualClock::new()));
    if let Some(state) = note(&mut report, "volume", State::open(cache, root, b""))? {
        look_at(&state, &mut report)?;
    }
    Ok(report)
}

/// The root that counts, or would count but for one bit.
fn last_root(device: &dyn BlockDevice, report: &mut CheckReport) -> Result<Option<Root>> {
    let Some(restored) = note(report, "root", restore::root(device))? else { return Ok(None) };
    let Some((root, _)) = restored else { return note(report, "root", Root::read(device)) };
    let (generation, place) = (root.generation, root.place());
    let text = format!("one bit of the last root is wrong: generation {generation}, in block {place}");
    damage(report, "root", text);
    Ok(Some(root))
}

/// How often mending may bring more to light.
const RUNS_MAX: u32 = 4;

/// Checks a volume, and puts right what can be: what follows from what is whole is computed anew, and what has lost its name gets one in
/// `lost+found`. What cannot be read of a file's contents and attributes stays as it is, and is told; so does a tree of which the medium does
/// not give a node, an inode or a name. A crash leaves nothing to mend, so
/// that `Preen` changes nothing.
///
/// # Errors
/// As [`check`]; when the medium cannot be written.
pub fn repair(device: Arc<dyn BlockDevice>, options: RepairOptions) -> Result<RepairReport> {
    let found = check(Arc::clone(&device))?;
    let mut report = RepairReport { left: found.clone(), found, mended: 0, runs: 1 };
    while options.mode == RepairMode::Yes && !report.left.is_clean() && report.runs < RUNS_MAX {
        let mended = mend_volume(Arc::clone(&device), options.now)?;
        if mended == 0 {
            break;
        }
        report.mended += mended;
        report.runs += 1;
        report.left = check(Arc::clone(&device))?;
    }
    Ok(report)
}

/// Mends a volume once; says how many changes it took, none if it cannot be opened at all.
fn mend_volume(device: Arc<dyn BlockDevice>, now: Timestamp) -> Result<u64> {
    let device = super::grouped(device)?;
    let Some((root, mut restored)) = restored_root(&*device)? else { return Ok(0) };
    restored += restore_tops(&*device, &root)?;
    // What is below a node that was restored is seen then.
    for _ in 0..=HEIGHT_MAX {
        let Some(state) = opened(&device, &root, true)? else { return Ok(restored) };
        let census = blocks::census(&state, &mut CheckReport::default())?;
        match restore::blocks(&*device, &census.suspects)? {
            0 => break,
            more => restored += more,
        }
    }
    match opened(&device, &root, false)? {
        Some(mut state) => Ok(restored + mend::all(&mut state, now)?),
        None => Ok(restored),
    }
}

/// The root that counts, which is written again if one bit of it is wrong, and how many changes that took. `None` if there is none.
fn restored_root(device: &dyn BlockDevice) -> Result<Option<(Root, u64)>> {
    let Ok(restored) = restore::root(device) else { return Ok(None) };
    if let Some((root, bytes)) = restored {
        root.check_writable()?;
        restore::put_root(device, &root, &bytes)?;
        return Ok(Some((root, 1)));
    }
    let Ok(root) = Root::read(device) else { return Ok(None) };
    root.check_writable()?;
    Ok(Some((root, 0)))
}

/// What must be whole before anything else is found: the table of trees, and the tops of the map and of the table of shared blocks.
fn restore_tops(device: &dyn BlockDevice, root: &Root) -> Result<u64> {
    let kind = BlockKind::GroupDescriptor;
    // The map's homes are before the data, and whoever opens it compares where it is with where it should be.
    let is_there = |top: &Ref| (1..root.blocks).contains(&top.block);
    let tops = [root.map, root.shared.root].into_iter().filter(is_there).map(|top| (top, kind));
    Ok(restore::blocks(device, &tops.collect())? + restore::fork(device, root.trees, root)?)
}

/// A volume whose map need not be whole; `None` if it cannot be opened.
fn opened(device: &Arc<dyn BlockDevice>, root: &Root, read_only: bool) -> Result<Option<State>> {
    let options = CacheOptions { cache_size: CACHE_BYTES, read_only, ..CacheOptions::default() };
    let cache = Cache::new(Arc::clone(device), options, Arc::new(ManualClock::new()));
    match State::open_damaged(cache, root.clone()) {
        Ok(state) => Ok(Some(state)),
        Err(Error::Corrupt(_)) => Ok(None),
        Err(error) if is_unread(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
