//! What SQLite calls: C on one side, [`System`] and [`Handle`] on the other. All that is here is to check and to translate.
//!
//! A panic ends the process: that is a failure like a loss of power, which databases survive.

use std::ffi::{CStr, c_char, c_double, c_int, c_void};

use crate::abi::{Call, Context, File, IoMethods, Value, Vfs, code, control, open};
use crate::failure::{Failure, Result};
use crate::handle::{Handle, Said};
use crate::locks::Level;
use crate::system::System;

/// The longest name.
const PATH_MAX: c_int = 4096;

/// What SQLite has memory for when it opens a file.
#[repr(C)]
struct Slot {
    file: File,
    handle: *mut Handle,
}

static METHODS: IoMethods = IoMethods {
    version: 1,
    close,
    read,
    write,
    truncate,
    sync,
    file_size,
    lock,
    unlock,
    check_reserved_lock,
    file_control,
    sector_size,
    device_characteristics,
};

/// The table of a file system's functions.
///
/// # Safety
/// `system.root` is a file system of SQLite's.
pub(crate) unsafe fn table(system: &'static System) -> Vfs {
    // SAFETY: the caller's promise.
    let root = unsafe { &*system.root };
    let slot = c_int::try_from(size_of::<Slot>()).expect("two pointers");
    Vfs {
        version: root.version.min(2),
        // What has no name is opened by the default file system, in the same memory.
        file_size: slot.max(root.file_size),
        path_max: PATH_MAX.max(root.path_max),
        next: std::ptr::null_mut(),
        name: system.name.as_ptr(),
        data: std::ptr::from_ref(system).cast_mut().cast(),
        open: Some(open_file),
        delete: Some(delete),
        access: Some(access),
        full_pathname: Some(full_pathname),
        dl_open: Some(dl_open),
        dl_error: Some(dl_error),
        dl_sym: Some(dl_sym),
        dl_close: Some(dl_close),
        randomness: Some(randomness),
        sleep: Some(sleep),
        current_time: Some(current_time),
        last_error: Some(last_error),
        current_time_ms: Some(current_time_ms),
        system_calls: [None; 3],
    }
}

/// The file system behind a table.
///
/// # Safety
/// `vfs` is of [`table`].
unsafe fn system(vfs: *mut Vfs) -> &'static System {
    // SAFETY: the caller's promise; it lives for ever.
    unsafe { &*(*vfs).data.cast::<System>() }
}

/// The file behind what SQLite has.
///
/// # Safety
/// `file` was opened by [`open_file`] for a [`Handle`], and is used by one thread at a time, as SQLite does.
unsafe fn handle<'a>(file: *mut File) -> &'a mut Handle {
    // SAFETY: the caller's promise.
    unsafe { &mut *(*file.cast::<Slot>()).handle }
}

/// A length that is none below zero.
fn size(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

unsafe extern "C" fn open_file(
    vfs: *mut Vfs,
    name: *const c_char,
    file: *mut File,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite calls with the table that it was given.
    let system = unsafe { system(vfs) };
    if name.is_null() || flags & open::TEMPORARY != 0 {
        // SAFETY: the default file system is called as SQLite calls it; the memory is large enough for its files.
        return unsafe {
            ((*system.root).open.expect("every file system opens"))(system.root, name, file, flags, out)
        };
    }
    // SAFETY: the memory is SQLite's for this file; without methods it is not open.
    unsafe { (*file).methods = std::ptr::null() };
    // SAFETY: a name ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) };
    system.answer(system.open(name, flags).map(|(handle, flags)| {
        let slot =
            Slot { file: File { methods: &raw const METHODS }, handle: Box::into_raw(Box::new(handle)) };
        // SAFETY: there is memory for `Slot`; `out` is null or a number's.
        unsafe {
            file.cast::<Slot>().write(slot);
            if !out.is_null() {
                *out = flags;
            }
        }
    }))
}

unsafe extern "C" fn delete(vfs: *mut Vfs, name: *const c_char, _: c_int) -> c_int {
    // SAFETY: SQLite calls with its table and a name that ends with a zero byte.
    let (system, name) = unsafe { (system(vfs), CStr::from_ptr(name)) };
    system.answer(system.delete(name))
}

unsafe extern "C" fn access(vfs: *mut Vfs, name: *const c_char, _: c_int, out: *mut c_int) -> c_int {
    // SAFETY: as above; `out` is a number's.
    unsafe { *out = c_int::from(system(vfs).has(CStr::from_ptr(name))) };
    code::OK
}

unsafe extern "C" fn full_pathname(
    vfs: *mut Vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: as above.
    let (system, name) = unsafe { (system(vfs), CStr::from_ptr(name)) };
    system.answer(system.full_name(name).and_then(|full| {
        if full.len() >= usize::try_from(room).unwrap_or(0) {
            return Err(Failure::new(code::CANTOPEN, "the name is too long"));
        }
        // SAFETY: there is room for so many bytes and a zero.
        unsafe {
            full.as_ptr().cast::<c_char>().copy_to_nonoverlapping(out, full.len());
            *out.add(full.len()) = 0;
        }
        Ok(())
    }))
}

/// Calls the same of the default file system.
macro_rules! of_root {
    ($vfs:expr, $call:ident($($argument:expr),*)) => {{
        // SAFETY: SQLite calls with its table and with arguments that are lawful for every file system.
        unsafe {
            let root = system($vfs).root;
            ((*root).$call.expect("every file system has it"))(root $(, $argument)*)
        }
    }};
}

unsafe extern "C" fn dl_open(vfs: *mut Vfs, name: *const c_char) -> *mut c_void {
    of_root!(vfs, dl_open(name))
}

unsafe extern "C" fn dl_error(vfs: *mut Vfs, room: c_int, out: *mut c_char) {
    of_root!(vfs, dl_error(room, out));
}

unsafe extern "C" fn dl_sym(vfs: *mut Vfs, library: *mut c_void, name: *const c_char) -> Call {
    of_root!(vfs, dl_sym(library, name))
}

unsafe extern "C" fn dl_close(vfs: *mut Vfs, library: *mut c_void) {
    of_root!(vfs, dl_close(library));
}

unsafe extern "C" fn randomness(vfs: *mut Vfs, room: c_int, out: *mut c_char) -> c_int {
    of_root!(vfs, randomness(room, out))
}

unsafe extern "C" fn sleep(vfs: *mut Vfs, microseconds: c_int) -> c_int {
    of_root!(vfs, sleep(microseconds))
}

unsafe extern "C" fn current_time(vfs: *mut Vfs, out: *mut c_double) -> c_int {
    of_root!(vfs, current_time(out))
}

unsafe extern "C" fn current_time_ms(vfs: *mut Vfs, out: *mut i64) -> c_int {
    of_root!(vfs, current_time_ms(out))
}

unsafe extern "C" fn last_error(vfs: *mut Vfs, room: c_int, out: *mut c_char) -> c_int {
    // SAFETY: SQLite calls with its table.
    let Some(failure) = (unsafe { system(vfs) }).last() else { return 0 };
    let text = failure.text.as_bytes();
    let len = text.len().min(usize::try_from(room).unwrap_or(0).saturating_sub(1));
    if room > 0 && !out.is_null() {
        // SAFETY: there is room for so many bytes and a zero.
        unsafe {
            text.as_ptr().cast::<c_char>().copy_to_nonoverlapping(out, len);
            *out.add(len) = 0;
        }
    }
    // It would be errno: there is none.
    0
}

unsafe extern "C" fn close(file: *mut File) -> c_int {
    // SAFETY: the file is open, and SQLite does not use it again.
    let handle = unsafe { Box::from_raw((*file.cast::<Slot>()).handle) };
    // SAFETY: the memory is SQLite's for this file.
    unsafe { (*file).methods = std::ptr::null() };
    let system = handle.system;
    system.answer(system.close(*handle))
}

unsafe extern "C" fn read(file: *mut File, into: *mut c_void, len: c_int, offset: i64) -> c_int {
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: SQLite calls with an open file and memory for so many bytes.
    let (handle, into) = unsafe { (handle(file), std::slice::from_raw_parts_mut(into.cast::<u8>(), len)) };
    let done = handle.read(size(offset), into);
    handle.system.answer(done)
}

unsafe extern "C" fn write(file: *mut File, data: *const c_void, len: c_int, offset: i64) -> c_int {
    let len = usize::try_from(len).unwrap_or(0);
    // SAFETY: SQLite calls with an open file and so many bytes.
    let (handle, data) = unsafe { (handle(file), std::slice::from_raw_parts(data.cast::<u8>(), len)) };
    let done = handle.write(size(offset), data);
    handle.system.answer(done)
}

unsafe extern "C" fn truncate(file: *mut File, len: i64) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let handle = unsafe { handle(file) };
    let done = handle.truncate(size(len));
    handle.system.answer(done)
}

unsafe extern "C" fn sync(file: *mut File, _: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let handle = unsafe { handle(file) };
    let done = handle.sync();
    handle.system.answer(done)
}

unsafe extern "C" fn file_size(file: *mut File, out: *mut i64) -> c_int {
    // SAFETY: SQLite calls with an open file and a number's place.
    unsafe { *out = i64::try_from(handle(file).size()).unwrap_or(i64::MAX) };
    code::OK
}

unsafe extern "C" fn lock(file: *mut File, wanted: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let handle = unsafe { handle(file) };
    let done = Level::of(wanted).map_or(Ok(()), |wanted| handle.lock(wanted));
    handle.system.answer(done)
}

unsafe extern "C" fn unlock(file: *mut File, left: c_int) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { handle(file) }.unlock(if left == 0 { Level::None } else { Level::Shared });
    code::OK
}

unsafe extern "C" fn check_reserved_lock(file: *mut File, out: *mut c_int) -> c_int {
    // SAFETY: SQLite calls with an open file and a number's place.
    unsafe { *out = c_int::from(handle(file).is_reserved()) };
    code::OK
}

unsafe extern "C" fn sector_size(file: *mut File) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { handle(file) }.sector_size()
}

unsafe extern "C" fn device_characteristics(file: *mut File) -> c_int {
    // SAFETY: SQLite calls with an open file.
    unsafe { handle(file) }.promises()
}

/// A string of C, where there is one.
///
/// # Safety
/// `text` is null or ends with a zero byte, and lives as long as `'a`.
unsafe fn string<'a>(text: *const c_char) -> Option<&'a str> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) })?.to_str().ok()
}

unsafe extern "C" fn file_control(file: *mut File, number: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: SQLite calls with an open file.
    let handle = unsafe { handle(file) };
    let heard = match number {
        // SAFETY: the argument is a number's place.
        control::LOCKSTATE => unsafe {
            *argument.cast::<c_int>() = handle.level().number();
            Some(Ok(()))
        },
        // SAFETY: the argument is a string's place.
        control::VFSNAME => unsafe {
            let name = handle.system.name.to_str().unwrap_or_default();
            *argument.cast::<*mut c_char>() = handle.system.host.text(name);
            Some(Ok(()))
        },
        // SAFETY: the argument is null or a string.
        control::SYNC => handle.hear(Said::Written(unsafe { string(argument.cast()) })),
        // SAFETY: the argument is the place of a pointer, which is not followed.
        control::PDB => unsafe { handle.hear(Said::Connection((*argument.cast::<*const c_void>()).addr())) },
        // SAFETY: the argument is that of a pragma.
        control::PRAGMA => unsafe { pragma(handle, argument.cast()) },
        _ => Said::of(number).and_then(|said| handle.hear(said)),
    };
    heard.map_or(code::NOTFOUND, |done| handle.system.answer(done))
}

/// # Safety
/// `words` are four strings, of which the first is written, and the others are null or end with a zero byte.
unsafe fn pragma(handle: &mut Handle, words: *mut *mut c_char) -> Option<Result<()>> {
    // SAFETY: the caller's promise.
    let (name, value) = unsafe { (string(*words.add(1))?, string(*words.add(2))) };
    let mut answer = None;
    let heard = handle.hear(Said::Pragma(name, value, &mut answer))?;
    if let Some(answer) = answer {
        // SAFETY: the caller's promise; SQLite frees it.
        unsafe { *words = handle.system.host.text(&answer) };
    }
    Some(heard)
}

/// `lld_error()`: why something could not be done last; null if nothing was refused.
///
/// # Safety
/// SQLite calls it.
pub(crate) unsafe extern "C" fn lld_error(context: *mut Context, _: c_int, _: *mut *mut Value) {
    let Some(system) = crate::LOADED.get() else { return };
    if let Some(failure) = system.last() {
        // SAFETY: the context is that of this call.
        unsafe { system.host.answer(context, &failure.text) };
    }
}
