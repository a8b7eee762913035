//! SQLite without a journal: an extension that SQLite loads, and that keeps databases in a logical disk. Design: `docs/design/lld-sqlite.md`.
//!
//! ```text
//!   SQLite ──► calls ──► System ──► Disks: a disk for all its databases ──► fstitch_lld::Volumes
//!                 │
//!                 └────► Handle ──► Database ──► Transaction: a unit ────► fstitch_lld::Aru
//!                               └─► Volatile: journals, which nobody needs after a failure
//! ```
//!
//! This crate owns the file system `lld` of SQLite: what is written between two commits is one atomic recovery unit. It never knows
//! what a page holds, and keeps nothing for the time after a failure but databases.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails where it cannot go on"))]
#![allow(unsafe_code)]

pub mod abi;
mod base;
mod calls;
mod database;
mod disks;
mod failure;
mod group;
mod handle;
mod host;
mod locks;
mod system;
mod transaction;
mod volatile;

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use fstitch_core::{BlockDevice, Error};
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_lld::{Disk, Options};

pub use disks::Opener;
pub use failure::{Failure, Result};

use abi::{Api, Connection, code};
use host::Host;
use system::System;

/// The name by which SQLite knows the file system.
pub const NAME: &CStr = c"lld";
/// Bytes at the beginning of a disk in which the superblock is.
const HEAD: usize = 4096;

/// What the entry point has made: a function of SQL is told nothing by which it could find it.
static LOADED: OnceLock<&'static System> = OnceLock::new();

/// Makes a file system known to SQLite, unless there is one of that name. Everything of it lives as long as the process.
///
/// # Errors
/// If SQLite is too old, or refuses it.
///
/// # Safety
/// `api` is what SQLite has given to the entry point of an extension.
pub unsafe fn register(
    api: *const Api,
    name: &'static CStr,
    opener: Opener,
    has_batches: bool,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let host = unsafe { Host::new(api) }?;
    // SAFETY: as above.
    unsafe { register_with(host, name, opener, has_batches) }.map(drop)
}

/// The same, with the system; `None` if it was there.
unsafe fn register_with(
    host: Host,
    name: &'static CStr,
    opener: Opener,
    has_batches: bool,
) -> Result<Option<&'static System>> {
    if !host.find(Some(name)).is_null() {
        return Ok(None);
    }
    let root = host.find(None);
    if root.is_null() {
        return Err(Failure::new(code::ERROR, "this SQLite has no file system of its own"));
    }
    let system: &'static System = Box::leak(Box::new(System::new(host, root, name, opener, has_batches)));
    // SAFETY: the root is SQLite's own.
    let table = unsafe { calls::table(system) };
    match host.register(Box::leak(Box::new(table))) {
        code::OK => Ok(Some(system)),
        refused => Err(Failure::new(refused, "SQLite does not take the file system")),
    }
}

/// Opens the disk in an image file or on a block device, as the extension does.
///
/// # Errors
/// [`Error::Locked`] if another process has it; [`Error::Unsupported`] if it is no logical disk; those of [`Disk::open`].
pub fn open_file(path: &Path, read_only: bool) -> fstitch_core::Result<Disk> {
    let head = fstitch_disk::probe(path, 0, HEAD)?;
    // Where the superblock is damaged its copy is looked for.
    let found = fstitch_lld::device_block_size(&head);
    let options = DiskOptions { block_size: found.unwrap_or(4096), read_only, ..DiskOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(FileDisk::open(path, options)?);
    match Disk::open(device, &Options { read_only, ..Options::default() }) {
        Ok((disk, _)) => Ok(disk),
        Err(Error::Corrupt(_)) if found.is_none() => {
            Err(Error::Unsupported("this is no logical disk".into()))
        }
        Err(error) => Err(error),
    }
}

/// Where SQLite enters when it loads the extension. It stays loaded, because connections come and go.
///
/// # Safety
/// SQLite calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_fstitchlldsqlite_init(
    connection: *mut Connection,
    message: *mut *mut c_char,
    api: *const Api,
) -> c_int {
    // SAFETY: SQLite's promise.
    let host = match unsafe { Host::new(api) } {
        Ok(host) => host,
        // SQLite's own words say that it was not loaded: what would say more is a function that an old one may lack.
        Err(failure) => return failure.code,
    };
    // SAFETY: as above.
    match unsafe { register_with(host, NAME, Box::new(open_file), true) } {
        Ok(Some(system)) => {
            // It is empty: the file system was not there.
            let _ = LOADED.set(system);
        }
        Ok(None) => {}
        Err(failure) => {
            // SAFETY: SQLite gives a place for the message, and frees it.
            unsafe { *message = host.text(&failure.text) };
            return failure.code;
        }
    }
    // SAFETY: the connection is the one that loads the extension.
    match unsafe { host.add_function(connection, c"lld_error", calls::lld_error) } {
        code::OK => code::OK_LOAD_PERMANENTLY,
        refused => refused,
    }
}
