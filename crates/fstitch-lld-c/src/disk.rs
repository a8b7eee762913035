//! Disks: made, opened, asked, checked and closed.

use std::ffi::{c_char, c_int};
use std::fmt::Write as _;
use std::ptr::{null_mut, without_provenance_mut};

use fstitch_core::CheckReport;
use fstitch_core::num::to_u64;
use fstitch_lld::Space;

use crate::boundary::{Out, attempt, call, found, given, path, room};
use crate::failure::Result;
use crate::handles::{self, LldDisk, Opened, find};
use crate::layout::{LldChecked, LldCounters, LldFormat, LldInfo, LldOpen, LldRecovered, LldSpace};
use crate::medium;

/// Makes a disk.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_format(path_: *const c_char, options: *const LldFormat) -> c_int {
    call("lld_format", || {
        // SAFETY: the caller's promise.
        let (path, asked) = unsafe { (path(path_)?, given(options, "options")?) };
        medium::format(path, &asked)?;
        Ok(0)
    })
}

/// Opens a disk.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_open(
    path_: *const c_char,
    options: *const LldOpen,
    recovered: *mut LldRecovered,
) -> *mut LldDisk {
    let opened = attempt("lld_open", || {
        // SAFETY: the caller's promise.
        let (path, asked) = unsafe { (path(path_)?, given(options, "options")?) };
        // SAFETY: the caller's promise.
        let place = unsafe { Out::or_none(recovered, "what recovery did") }?;
        let options = asked.options()?;
        let (disk, done) = medium::open(path, &options)?;
        place.iter().for_each(|place| place.put((&done).into()));
        Ok(handles::add(Opened::new(disk, options.visibility, options.sequential)))
    });
    opened.map_or(null_mut(), without_provenance_mut)
}

/// Closes a disk.
#[unsafe(no_mangle)]
pub extern "C" fn lld_close(disk: *mut LldDisk) -> c_int {
    call("lld_close", || {
        handles::take_disk(disk.addr())?.close()?;
        Ok(0)
    })
}

/// Works on a disk.
fn with(name: &str, disk: *mut LldDisk, work: impl FnOnce(&Opened) -> Result<c_int>) -> c_int {
    call(name, || work(&*find::<Opened>(disk.addr())?))
}

/// Bytes of a block.
#[unsafe(no_mangle)]
pub extern "C" fn lld_block_size(disk: *mut LldDisk) -> c_int {
    with("lld_block_size", disk, |on| {
        Ok(c_int::try_from(on.disk.block_size()).expect("a block is 64 KiB at most"))
    })
}

/// The first list from a number on.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_next_list(disk: *mut LldDisk, from: u64, list: *mut u64) -> c_int {
    with("lld_next_list", disk, |on| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(list, "the list's number") }?;
        Ok(found(&place, on.disk.next_list(from)?))
    })
}

/// Makes everything stable.
#[unsafe(no_mangle)]
pub extern "C" fn lld_flush(disk: *mut LldDisk) -> c_int {
    with("lld_flush", disk, |on| {
        on.disk.flush()?;
        Ok(0)
    })
}

/// Makes everything stable, and the next opening short.
#[unsafe(no_mangle)]
pub extern "C" fn lld_checkpoint(disk: *mut LldDisk) -> c_int {
    with("lld_checkpoint", disk, |on| {
        on.disk.checkpoint()?;
        Ok(0)
    })
}

/// Empties some segments.
#[unsafe(no_mangle)]
pub extern "C" fn lld_clean(disk: *mut LldDisk, segments: u64) -> c_int {
    with("lld_clean", disk, |on| {
        // More than there are cannot be emptied.
        on.disk.clean(segments.min(on.disk.info().segments))?;
        Ok(0)
    })
}

/// Checks everything.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_check(
    disk: *mut LldDisk,
    contents: c_int,
    checked: *mut LldChecked,
    text: *mut c_char,
    size: usize,
) -> c_int {
    with("lld_check", disk, |on| {
        // SAFETY: the caller's promise.
        let (place, text) = unsafe { (Out::new(checked, "what was found")?, room::<u8>(text.cast(), size)?) };
        let report = on.disk.check(contents != 0, &mut |_| {})?;
        let lines = lines(&report);
        let text_size = to_u64(lines.len()) + 1;
        if let Some(last) = text.len().checked_sub(1) {
            let len = lines.len().min(last);
            text[..len].copy_from_slice(&lines.as_bytes()[..len]);
            text[len] = 0;
        }
        place.put(LldChecked {
            blocks: on.disk.info().blocks,
            findings: report.total,
            corrupt: report.corrupt,
            text_size,
        });
        Ok(0)
    })
}

/// What was found, a finding a line.
fn lines(report: &CheckReport) -> String {
    report.findings.iter().fold(String::new(), |mut lines, found| {
        let _ = writeln!(lines, "[{}] {}", found.code, found.text);
        lines
    })
}

/// How much can be stored.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_space(disk: *mut LldDisk, space: *mut LldSpace) -> c_int {
    with("lld_space", disk, |on| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(space, "the space") }?;
        let Space { all, used } = on.disk.space();
        place.put(LldSpace { all, used });
        Ok(0)
    })
}

/// What the disk is.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_info(disk: *mut LldDisk, info: *mut LldInfo) -> c_int {
    with("lld_info", disk, |on| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(info, "what the disk is") }?;
        place.put(on.disk.info().into());
        Ok(0)
    })
}

/// What has been written since the disk was opened.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_counters(disk: *mut LldDisk, counters: *mut LldCounters) -> c_int {
    with("lld_counters", disk, |on| {
        // SAFETY: the caller's promise.
        let place = unsafe { Out::new(counters, "the counters") }?;
        place.put(on.disk.counters().into());
        Ok(0)
    })
}
