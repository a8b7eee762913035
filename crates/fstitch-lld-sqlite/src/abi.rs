//! What of SQLite's C interface is used here: the facts of its headers `sqlite3.h` and `sqlite3ext.h`, in Rust's words.
//!
//! An extension is given a table of SQLite's functions, whose order never changes. The layouts are compared with those of another
//! source in `tests/vfs/interface.rs`.

use std::ffi::{c_char, c_double, c_int, c_void};

/// A connection.
pub enum Connection {}
/// What a function of SQL is called with.
pub enum Context {}
/// What it is given.
pub enum Value {}

/// `sqlite3_file`: what SQLite has of an open file. Whoever opens it has memory of [`Vfs::file_size`] behind it.
#[repr(C)]
pub struct File {
    /// Null if it is not open.
    pub methods: *const IoMethods,
}

/// `sqlite3_io_methods`, version 1: without shared memory and without mapping.
#[repr(C)]
#[expect(missing_docs, reason = "SQLite's documentation says what they do")]
pub struct IoMethods {
    pub version: c_int,
    pub close: unsafe extern "C" fn(*mut File) -> c_int,
    pub read: unsafe extern "C" fn(*mut File, *mut c_void, c_int, i64) -> c_int,
    pub write: unsafe extern "C" fn(*mut File, *const c_void, c_int, i64) -> c_int,
    pub truncate: unsafe extern "C" fn(*mut File, i64) -> c_int,
    pub sync: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub file_size: unsafe extern "C" fn(*mut File, *mut i64) -> c_int,
    pub lock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub unlock: unsafe extern "C" fn(*mut File, c_int) -> c_int,
    pub check_reserved_lock: unsafe extern "C" fn(*mut File, *mut c_int) -> c_int,
    pub file_control: unsafe extern "C" fn(*mut File, c_int, *mut c_void) -> c_int,
    pub sector_size: unsafe extern "C" fn(*mut File) -> c_int,
    pub device_characteristics: unsafe extern "C" fn(*mut File) -> c_int,
}

/// `sqlite3_vfs`, version 2.
#[repr(C)]
#[expect(missing_docs, reason = "SQLite's documentation says what they do")]
pub struct Vfs {
    pub version: c_int,
    pub file_size: c_int,
    pub path_max: c_int,
    pub next: *mut Vfs,
    pub name: *const c_char,
    pub data: *mut c_void,
    pub open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, *mut File, c_int, *mut c_int) -> c_int>,
    pub delete: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int) -> c_int>,
    pub access: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_int) -> c_int>,
    pub full_pathname: Option<unsafe extern "C" fn(*mut Vfs, *const c_char, c_int, *mut c_char) -> c_int>,
    pub dl_open: Option<unsafe extern "C" fn(*mut Vfs, *const c_char) -> *mut c_void>,
    pub dl_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char)>,
    pub dl_sym: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void, *const c_char) -> Call>,
    pub dl_close: Option<unsafe extern "C" fn(*mut Vfs, *mut c_void)>,
    pub randomness: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub sleep: Option<unsafe extern "C" fn(*mut Vfs, c_int) -> c_int>,
    pub current_time: Option<unsafe extern "C" fn(*mut Vfs, *mut c_double) -> c_int>,
    pub last_error: Option<unsafe extern "C" fn(*mut Vfs, c_int, *mut c_char) -> c_int>,
    pub current_time_ms: Option<unsafe extern "C" fn(*mut Vfs, *mut i64) -> c_int>,
    pub system_calls: [Option<unsafe extern "C" fn()>; 3],
}

/// A function of SQLite whose type its place in the table says.
pub type Call = Option<unsafe extern "C" fn()>;

/// `sqlite3_api_routines`, up to the last function that is used here.
#[repr(C)]
pub struct Api {
    /// The functions.
    pub calls: [Call; 198],
}

/// Places in the table.
pub(crate) mod call {
    pub(crate) const LIBVERSION_NUMBER: usize = 67;
    pub(crate) const RESULT_TEXT: usize = 85;
    pub(crate) const VFS_FIND: usize = 141;
    pub(crate) const VFS_REGISTER: usize = 142;
    pub(crate) const CREATE_FUNCTION_V2: usize = 162;
    pub(crate) const LOG: usize = 167;
    pub(crate) const MALLOC64: usize = 197;
}

/// Result codes.
pub(crate) mod code {
    use std::ffi::c_int;

    pub(crate) const OK: c_int = 0;
    pub(crate) const ERROR: c_int = 1;
    pub(crate) const BUSY: c_int = 5;
    pub(crate) const READONLY: c_int = 8;
    pub(crate) const IOERR: c_int = 10;
    pub(crate) const CORRUPT: c_int = 11;
    pub(crate) const NOTFOUND: c_int = 12;
    pub(crate) const FULL: c_int = 13;
    pub(crate) const CANTOPEN: c_int = 14;
    pub(crate) const NOTADB: c_int = 26;
    pub(crate) const OK_LOAD_PERMANENTLY: c_int = 1 << 8;
    pub(crate) const READ: c_int = IOERR | 1 << 8;
    pub(crate) const SHORT_READ: c_int = IOERR | 2 << 8;
    pub(crate) const WRITE: c_int = IOERR | 3 << 8;
    pub(crate) const FSYNC: c_int = IOERR | 4 << 8;
    pub(crate) const TRUNCATE: c_int = IOERR | 6 << 8;
    pub(crate) const DELETE: c_int = IOERR | 10 << 8;
    pub(crate) const CORRUPTFS: c_int = IOERR | 33 << 8;
}

/// How a file is opened.
pub(crate) mod open {
    use std::ffi::c_int;

    pub(crate) const READONLY: c_int = 1;
    pub(crate) const READWRITE: c_int = 2;
    pub(crate) const CREATE: c_int = 4;
    pub(crate) const MAIN_DB: c_int = 0x100;
    pub(crate) const TEMP_DB: c_int = 0x200;
    pub(crate) const TRANSIENT_DB: c_int = 0x400;
    pub(crate) const MAIN_JOURNAL: c_int = 0x800;
    pub(crate) const TEMP_JOURNAL: c_int = 0x1000;
    pub(crate) const SUBJOURNAL: c_int = 0x2000;
    pub(crate) const SUPER_JOURNAL: c_int = 0x4000;
    /// Those that have no name.
    pub(crate) const TEMPORARY: c_int = TEMP_DB | TRANSIENT_DB | TEMP_JOURNAL | SUBJOURNAL;
}

/// What is promised of a file.
pub(crate) mod promise {
    use std::ffi::c_int;

    pub(crate) const ATOMIC: c_int = 1;
    pub(crate) const SAFE_APPEND: c_int = 0x200;
    pub(crate) const SEQUENTIAL: c_int = 0x400;
    pub(crate) const UNDELETABLE_WHEN_OPEN: c_int = 0x800;
    pub(crate) const POWERSAFE_OVERWRITE: c_int = 0x1000;
    pub(crate) const BATCH_ATOMIC: c_int = 0x4000;
}

/// What SQLite says to a file, or asks of it, beside reading and writing.
pub(crate) mod control {
    use std::ffi::c_int;

    pub(crate) const LOCKSTATE: c_int = 1;
    pub(crate) const VFSNAME: c_int = 12;
    pub(crate) const PRAGMA: c_int = 14;
    pub(crate) const SYNC: c_int = 21;
    pub(crate) const COMMIT_PHASETWO: c_int = 22;
    pub(crate) const PDB: c_int = 30;
    pub(crate) const BEGIN_ATOMIC_WRITE: c_int = 31;
    pub(crate) const COMMIT_ATOMIC_WRITE: c_int = 32;
    pub(crate) const ROLLBACK_ATOMIC_WRITE: c_int = 33;
}
