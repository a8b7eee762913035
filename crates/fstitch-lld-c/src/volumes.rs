//! Volumes: made, listed, resized, removed, opened, read and written.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, Errno};
use fstitch_lld::{Disk, Volumes};

use crate::boundary::{Out, attempt, bytes, call, name, room};
use crate::bytes::Bytes;
use crate::failure::{Failure, Result};
use crate::handles::{self, LldDisk, LldVolume, OpenVolume, Opened, find, take};
use crate::layout::LldVolumeInfo;

/// The catalogue of a disk; one that has none has no volume of this name.
fn catalogue(on: &Opened, name: &str, make: bool) -> Result<Arc<Volumes>> {
    let volumes = on.volumes(make)?;
    volumes.ok_or_else(|| Failure::from(Errno::NOENT).about(&volume_called(name)))
}

fn volume_called(name: &str) -> String {
    format!("volume {name}")
}

/// Changes the catalogue of a disk.
fn change(
    disk: *mut LldDisk,
    name: &str,
    make: bool,
    work: impl FnOnce(&Volumes) -> fstitch_core::Result<()>,
) -> Result<c_int> {
    let on = find::<Opened>(disk.addr())?;
    on.may_begin()?;
    let volumes = catalogue(&on, name, make)?;
    work(&volumes).map_err(|error| Failure::from(error).about(&volume_called(name)))?;
    Ok(0)
}

/// Makes a volume.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_create(disk: *mut LldDisk, name_: *const c_char, size: u64) -> c_int {
    call("lld_volume_create", || {
        // SAFETY: the caller's promise.
        let name = unsafe { name(name_) }?;
        change(disk, name, true, |volumes| volumes.create(name, size))
    })
}

/// Changes the size of a volume.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_resize(disk: *mut LldDisk, name_: *const c_char, size: u64) -> c_int {
    call("lld_volume_resize", || {
        // SAFETY: the caller's promise.
        let name = unsafe { name(name_) }?;
        change(disk, name, false, |volumes| volumes.resize(name, size))
    })
}

/// Removes a volume.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_remove(disk: *mut LldDisk, name_: *const c_char) -> c_int {
    call("lld_volume_remove", || {
        // SAFETY: the caller's promise.
        let name = unsafe { name(name_) }?;
        change(disk, name, false, |volumes| volumes.remove(name))
    })
}

/// Lists volumes.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_list(
    disk: *mut LldDisk,
    volumes: *mut LldVolumeInfo,
    room_: usize,
    count: *mut u64,
) -> c_int {
    call("lld_volume_list", || {
        // SAFETY: the caller's promise; nothing is read of what may not have been written yet.
        let (place, room) = unsafe { (Out::new(count, "the number of volumes")?, room(volumes, room_)?) };
        let on = find::<Opened>(disk.addr())?;
        let catalogue = on.volumes(false)?;
        let all = catalogue.map(|volumes| volumes.list()).transpose()?.unwrap_or_default();
        for (place, volume) in room.iter_mut().zip(&all) {
            *place = volume.into();
        }
        place.put(to_u64(all.len()));
        Ok(0)
    })
}

/// Opens a volume.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_open(disk: *mut LldDisk, name_: *const c_char) -> *mut LldVolume {
    let opened = attempt("lld_volume_open", || {
        // SAFETY: the caller's promise.
        let name = unsafe { name(name_) }?;
        let on = find::<Opened>(disk.addr())?;
        let volume = catalogue(&on, name, false)?.volume(name);
        let volume = volume.map_err(|error| Failure::from(error).about(&volume_called(name)))?;
        Ok(handles::add(Arc::new(OpenVolume { volume, on })))
    });
    opened.map_or(null_mut(), without_provenance_mut)
}

/// Closes a volume.
#[unsafe(no_mangle)]
pub extern "C" fn lld_volume_close(volume: *mut LldVolume) -> c_int {
    call("lld_volume_close", || {
        take::<OpenVolume>(volume.addr())?;
        Ok(0)
    })
}

/// Bytes of a volume.
#[unsafe(no_mangle)]
pub extern "C" fn lld_volume_size(volume: *mut LldVolume) -> i64 {
    call("lld_volume_size", || {
        let bytes = find::<OpenVolume>(volume.addr())?.volume.geometry().bytes();
        Ok(i64::try_from(bytes).expect("the catalogue has no larger ones"))
    })
}

/// Works on the bytes of a volume.
fn with<T>(volume: *mut LldVolume, work: impl FnOnce(&Bytes<'_, Disk>) -> Result<T>) -> Result<T> {
    let volume = find::<OpenVolume>(volume.addr())?;
    let size = volume.volume.geometry().bytes();
    work(&Bytes::new(&volume.on, &*volume.on.disk, volume.volume.list(), size))
}

/// Reads bytes of a volume.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_pread(
    volume: *mut LldVolume,
    into: *mut c_void,
    len: usize,
    offset: u64,
) -> isize {
    call("lld_volume_pread", || {
        // SAFETY: the caller's promise.
        let into = unsafe { room(into.cast(), len) }?;
        with(volume, |on| on.read(offset, into)).map(usize::cast_signed)
    })
}

/// Writes bytes of a volume.
///
/// # Safety
/// Pointers are null, or lead to what the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lld_volume_pwrite(
    volume: *mut LldVolume,
    from: *const c_void,
    len: usize,
    offset: u64,
) -> isize {
    call("lld_volume_pwrite", || {
        // SAFETY: the caller's promise.
        let from = unsafe { bytes(from, len) }?;
        with(volume, |on| on.write(offset, from))?;
        Ok(len.cast_signed())
    })
}

/// Gives bytes of a volume back.
#[unsafe(no_mangle)]
pub extern "C" fn lld_volume_trim(volume: *mut LldVolume, offset: u64, len: u64) -> c_int {
    call("lld_volume_trim", || {
        with(volume, |on| on.trim(offset, len))?;
        Ok(0)
    })
}

/// Makes everything stable that has been written.
#[unsafe(no_mangle)]
pub extern "C" fn lld_volume_flush(volume: *mut LldVolume) -> c_int {
    call("lld_volume_flush", || {
        find::<OpenVolume>(volume.addr())?.volume.flush()?;
        Ok(0)
    })
}
