//! The file system that SQLite knows as `lld`: opening, names, removing.

use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;

use crate::abi::{Vfs, code, open};
use crate::database::Database;
use crate::disks::{Disks, How, Opener, Place};
use crate::failure::{Failure, Result};
use crate::handle::{Handle, Kind};
use crate::host::Host;

/// Such a file system. It lives as long as the process.
pub(crate) struct System {
    pub(crate) host: Host,
    /// The default one, for what has no name, for time and for chance.
    pub(crate) root: *mut Vfs,
    /// Its name.
    pub(crate) name: &'static CStr,
    /// Whether SQLite is told that it may write in batches.
    pub(crate) has_batches: bool,
    disks: Disks,
    /// Why something could not be done last.
    last: Mutex<Option<Failure>, rank::Leaf>,
}

// SAFETY: the default file system is SQLite's, which calls it from any thread itself.
unsafe impl Send for System {}
// SAFETY: as above.
unsafe impl Sync for System {}

impl System {
    pub(crate) fn new(
        host: Host,
        root: *mut Vfs,
        name: &'static CStr,
        opener: Opener,
        has_batches: bool,
    ) -> Self {
        Self { host, root, name, has_batches, disks: Disks::new(opener), last: Mutex::default() }
    }

    /// SQLite's code for what was done. Why it was not is remembered, and told to SQLite's log.
    pub(crate) fn answer(&self, done: Result<()>) -> c_int {
        let Err(failure) = done else { return code::OK };
        let answer = failure.code;
        // A lock that another connection holds, and the end of a file, are nothing to talk about.
        if !failure.text.is_empty() {
            self.host.log(&failure);
            *self.last.lock() = Some(failure);
        }
        answer
    }

    /// Why something could not be done last.
    pub(crate) fn last(&self) -> Option<Failure> {
        self.last.lock().clone()
    }

    /// Opens a database or a journal. Also returns the flags with which it is open.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(crate) fn open(&'static self, name: &CStr, flags: c_int) -> Result<(Handle, c_int)> {
        let place = Place::of(OsStr::from_bytes(name.to_bytes()))?;
        let may_create = flags & open::CREATE != 0;
        let (file, flags) = if flags & open::MAIN_DB != 0 {
            let how = How { may_write: flags & open::READWRITE != 0, may_create };
            let (opened, base, is_read_only) = self.disks.database(&place, how)?;
            let flags = if is_read_only { flags & !open::READWRITE | open::READONLY } else { flags };
            (Kind::Database(Database::new(opened, base, is_read_only)), flags)
        } else if flags & (open::MAIN_JOURNAL | open::SUPER_JOURNAL) != 0 {
            let found = self.disks.with(&place.disk, |opened| match may_create {
                true => Some(opened.volatiles.find_or_make(&place.volume)),
                false => opened.volatiles.find(&place.volume),
            });
            let missing = || Failure::new(code::CANTOPEN, format!("there is no journal {}", place.volume));
            (Kind::Volatile(found.flatten().ok_or_else(missing)?), flags)
        } else {
            let text = "no write-ahead log on a logical disk: each transaction is atomic without a journal";
            return Err(Failure::new(code::CANTOPEN, text));
        };
        Ok((Handle { system: self, file }, flags))
    }

    /// A file is not needed any more.
    ///
    /// # Errors
    /// Those of closing the disk.
    pub(crate) fn close(&self, handle: Handle) -> Result<()> {
        match handle.file {
            Kind::Database(database) => self.disks.release(database.close()),
            Kind::Volatile(_) => Ok(()),
        }
    }

    /// Removes a journal; a volume, if it is of that name.
    ///
    /// # Errors
    /// `BUSY` if a volume is open; those of a unit that happens when a journal is removed.
    pub(crate) fn delete(&self, name: &CStr) -> Result<()> {
        let place = Place::of(OsStr::from_bytes(name.to_bytes()))?;
        let done = self.disks.with(&place.disk, |opened| {
            if !opened.remove_volatile(&place.volume)? && opened.has_volume(&place.volume) {
                opened.remove_volume(&place.volume)?;
            }
            Ok(())
        });
        done.unwrap_or(Ok(()))
    }

    /// Whether there is a file of a name, on a disk that is open.
    pub(crate) fn has(&self, name: &CStr) -> bool {
        let Ok(place) = Place::of(OsStr::from_bytes(name.to_bytes())) else { return false };
        let volume = &place.volume;
        // Journals are asked for at every transaction, and are no volumes.
        let is_journal = [c"-journal", c"-wal"].iter().any(|end| name.to_bytes().ends_with(end.to_bytes()));
        let has = self.disks.with(&place.disk, |opened| {
            opened.volatiles.find(volume).is_some() || (!is_journal && opened.has_volume(volume))
        });
        has.unwrap_or(false)
    }

    /// A name that means the same from anywhere, and is the same however it is said.
    ///
    /// # Errors
    /// `CANTOPEN` if it cannot be.
    pub(crate) fn full_name(&self, name: &CStr) -> Result<Vec<u8>> {
        let name = Path::new(OsStr::from_bytes(name.to_bytes()));
        let whole = std::path::absolute(name)
            .map_err(|error| Failure::new(code::CANTOPEN, format!("{}: {error}", name.display())))?;
        let Ok(place) = Place::of(whole.as_os_str()) else {
            return Ok(whole.into_os_string().into_encoded_bytes());
        };
        let disk = std::fs::canonicalize(&place.disk).unwrap_or(place.disk);
        Ok(disk.join(place.volume).into_os_string().into_encoded_bytes())
    }
}
