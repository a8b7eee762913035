//! The SQLite that has loaded this: the functions of it that are called here.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::abi::{Api, Connection, Context, Value, Vfs, call, code};
use crate::failure::{Failure, Result};

/// The oldest SQLite that is known to call a file system as is expected here.
const VERSION_MIN: c_int = 3_031_000;

/// A function of SQL, without state.
pub(crate) type Function = unsafe extern "C" fn(*mut Context, c_int, *mut *mut Value);

/// SQLite's table of functions, which lives as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Host(*const Api);

// SAFETY: the table is never written after SQLite has handed it out, and its functions may be called by any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// The function at a place of the table, as what it is there.
macro_rules! function {
    ($host:expr, $place:expr, $kind:ty) => {{
        // SAFETY: `Host::new` was given the table, which has at least so many places.
        let found = unsafe { (&(*$host.0).calls)[$place] }.expect("SQLite has a function at every place");
        // SAFETY: the type is that of the function of this name in `sqlite3ext.h`.
        unsafe { std::mem::transmute::<unsafe extern "C" fn(), $kind>(found) }
    }};
}

impl Host {
    /// A SQLite that is new enough.
    ///
    /// # Safety
    /// `api` is what SQLite has given to the entry point of an extension.
    pub(crate) unsafe fn new(api: *const Api) -> Result<Self> {
        let host = Self(api);
        let version = function!(host, call::LIBVERSION_NUMBER, unsafe extern "C" fn() -> c_int);
        // SAFETY: it takes nothing and changes nothing.
        let version = unsafe { version() };
        if version < VERSION_MIN {
            let text = format!("SQLite {version} is older than {VERSION_MIN}, the first that serves here");
            return Err(Failure::new(code::ERROR, text));
        }
        Ok(host)
    }

    /// The file system of a name, or the default one.
    pub(crate) fn find(self, name: Option<&CStr>) -> *mut Vfs {
        let find = function!(self, call::VFS_FIND, unsafe extern "C" fn(*const c_char) -> *mut Vfs);
        // SAFETY: a name is null or ends with a zero byte.
        unsafe { find(name.map_or(std::ptr::null(), CStr::as_ptr)) }
    }

    /// Makes a file system known.
    pub(crate) fn register(self, vfs: &'static mut Vfs) -> c_int {
        let register = function!(self, call::VFS_REGISTER, unsafe extern "C" fn(*mut Vfs, c_int) -> c_int);
        // SAFETY: it lives for ever, and SQLite alone has it from now on.
        unsafe { register(vfs, 0) }
    }

    /// Tells SQLite's log, and so whoever has asked for it.
    pub(crate) fn log(self, failure: &Failure) {
        let log = function!(self, call::LOG, unsafe extern "C" fn(c_int, *const c_char, ...));
        let text = CString::new(format!("lld: {failure}")).unwrap_or_default();
        // SAFETY: the format takes one string that ends with a zero byte.
        unsafe { log(failure.code, c"%s".as_ptr(), text.as_ptr()) }
    }

    /// Text in memory that SQLite frees; null if there is none left.
    pub(crate) fn text(self, text: &str) -> *mut c_char {
        let malloc = function!(self, call::MALLOC64, unsafe extern "C" fn(u64) -> *mut c_void);
        let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
        let bytes = text.as_bytes_with_nul();
        // SAFETY: any size may be asked for.
        let memory = unsafe { malloc(fstitch_core::num::to_u64(bytes.len())) }.cast::<c_char>();
        if !memory.is_null() {
            // SAFETY: there is room for so many bytes, which nobody else knows of.
            unsafe { bytes.as_ptr().cast::<c_char>().copy_to_nonoverlapping(memory, bytes.len()) };
        }
        memory
    }

    /// Gives a connection a function without arguments.
    ///
    /// # Safety
    /// `connection` is one that is open.
    pub(crate) unsafe fn add_function(
        self,
        connection: *mut Connection,
        name: &CStr,
        function: Function,
    ) -> c_int {
        type Last = Option<unsafe extern "C" fn(*mut Context)>;
        type Free = Option<unsafe extern "C" fn(*mut c_void)>;
        type Create = unsafe extern "C" fn(
            *mut Connection,
            *const c_char,
            c_int,
            c_int,
            *mut c_void,
            Option<Function>,
            Option<Function>,
            Last,
            Free,
        ) -> c_int;
        const UTF8: c_int = 1;
        let create = function!(self, call::CREATE_FUNCTION_V2, Create);
        let data = std::ptr::null_mut();
        // SAFETY: the caller's promise; the name ends with a zero byte.
        unsafe { create(connection, name.as_ptr(), 0, UTF8, data, Some(function), None, None, None) }
    }

    /// Answers with text.
    ///
    /// # Safety
    /// `context` is what SQLite has called a function with, and the function goes on.
    pub(crate) unsafe fn answer(self, context: *mut Context, text: &str) {
        type Answer = unsafe extern "C" fn(*mut Context, *const c_char, c_int, isize);
        /// SQLite is to copy it.
        const TRANSIENT: isize = -1;
        let answer = function!(self, call::RESULT_TEXT, Answer);
        let len = c_int::try_from(text.len()).unwrap_or(0);
        // SAFETY: the caller's promise; SQLite reads so many bytes and keeps none.
        unsafe { answer(context, text.as_ptr().cast(), len, TRANSIENT) }
    }
}
