//! Units: begun, ended, aborted, and volumes as they see them.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use fstitch_core::BlockDevice;
use fstitch_lld::Aru;

use crate::boundary::{attempt, bytes, call, room};
use crate::bytes::Bytes;
use crate::failure::{Failure, Result};
use crate::handles::{self, LldDisk, LldUnit, LldVolume, OpenUnit, OpenVolume, Opened, find, take};

/// Begins a unit.
#[unsafe(no_mangle)]
pub extern "C" fn lld_begin(disk: *mut LldDisk) -> *mut LldUnit {
    let begun = attempt("lld_begin", || Ok(handles::add(find::<Opened>(disk.addr())?.begin()?)));
    begun.map_or(null_mut(), without_provenance_mut)
}

/// Ends a unit.
#[unsafe(no_mangle)]
pub extern "C" fn lld_end(unit: *mut LldUnit) -> c_int {
    call("lld_end", || {
        take::<OpenUnit>(unit.addr())?.take()?.end()?;
        Ok(0)
    })
}

/// Ends a unit, and makes it stable.
#[unsafe(no_mangle)]
pub extern "C" fn lld_end_durable(unit: *mut LldUnit) -> c_int {
    call("lld_end_durable", || {
        take::<OpenUnit>(unit.addr())?.take()?.end_durable()?;
        Ok(0)
    })
}

/// Aborts a unit.
#[unsafe(no_mangle)]
pub extern "C" fn lld_abort(unit: *mut LldUnit) -> c_int {
    call("lld_abort", || {
        take::<OpenUnit>(unit.addr())?.take()?.abort();
        Ok(0)
    })
}

/// Works on a volume as a unit sees it.
fn on_volume<T>(
    unit: *mut LldUnit,
    volume: *mut LldVolume,
    work: impl FnOnce(&Bytes<'_, Aru<'static>>) -> Result<T>,
) -> Result<T> {
    let (unit, volume) = (find::<OpenUnit>(unit.addr())?, find::<OpenVolume>(volume.addr())?);
    if !Arc::ptr_eq(&unit.on, &volume.on) {
        return Err(Failure::invalid("the volume is of another disk"));
    }
    let (list, size) = (volume.volume.list(), volume.volume.geometry().bytes());
    unit.with(|aru| work(&Bytes::new(&unit.on, aru, list, size)))
}

/// Reads bytes of a volume as the unit sees them.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_unit_pread(
    unit: *mut LldUnit,
    volume: *mut LldVolume,
    into: *mut c_void,
    len: usize,
    offset: u64,
) -> isize {
    call("lld_unit_pread", || {
        // SAFETY: the caller's promise.
        let into = unsafe { room(into.cast(), len) }?;
        on_volume(unit, volume, |on| on.read(offset, into)).map(usize::cast_signed)
    })
}

/// Writes bytes of a volume, when the unit ends.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_unit_pwrite(
    unit: *mut LldUnit,
    volume: *mut LldVolume,
    from: *const c_void,
    len: usize,
    offset: u64,
) -> isize {
    call("lld_unit_pwrite", || {
        // SAFETY: the caller's promise.
        let from = unsafe { bytes(from, len) }?;
        on_volume(unit, volume, |on| on.write(offset, from))?;
        Ok(len.cast_signed())
    })
}

/// Gives bytes of a volume back, when the unit ends.
#[unsafe(no_mangle)]
pub extern "C" fn lld_unit_trim(unit: *mut LldUnit, volume: *mut LldVolume, offset: u64, len: u64) -> c_int {
    call("lld_unit_trim", || {
        on_volume(unit, volume, |on| on.trim(offset, len))?;
        Ok(0)
    })
}
