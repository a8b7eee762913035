//! The interface as it is declared here, against how another crate has it from SQLite's header.

use std::mem::offset_of;

use fstitch_lld_sqlite::abi::{IoMethods, Vfs};
use rusqlite::ffi;

#[test]
fn structures_lie_as_the_headers_say() {
    macro_rules! same {
        ($($ours:ident = $theirs:ident),*; $kind:ty, $other:ty) => {
            $(assert_eq!(offset_of!($kind, $ours), offset_of!($other, $theirs), stringify!($ours));)*
        };
    }
    same!(version = iVersion, file_size = szOsFile, path_max = mxPathname, next = pNext, name = zName, data = pAppData, open = xOpen,
        delete = xDelete, access = xAccess, full_pathname = xFullPathname, dl_open = xDlOpen, dl_error = xDlError, dl_sym = xDlSym,
        dl_close = xDlClose, randomness = xRandomness, sleep = xSleep, current_time = xCurrentTime, last_error = xGetLastError,
        current_time_ms = xCurrentTimeInt64, system_calls = xSetSystemCall; Vfs, ffi::sqlite3_vfs);
    assert_eq!(size_of::<Vfs>(), size_of::<ffi::sqlite3_vfs>());
    same!(version = iVersion, close = xClose, read = xRead, write = xWrite, truncate = xTruncate, sync = xSync, file_size = xFileSize,
        lock = xLock, unlock = xUnlock, check_reserved_lock = xCheckReservedLock, file_control = xFileControl,
        sector_size = xSectorSize, device_characteristics = xDeviceCharacteristics; IoMethods, ffi::sqlite3_io_methods);
    assert_eq!(size_of::<IoMethods>(), offset_of!(ffi::sqlite3_io_methods, xShmMap));
}
