//! An open file as SQLite has it: a database, or one that nobody needs after a failure.

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use crate::abi::{code, control, promise};
use crate::database::Database;
use crate::failure::{Failure, Result};
use crate::locks::Level;
use crate::system::System;
use crate::volatile::Volatile;

/// Such a file.
pub(crate) struct Handle {
    pub(crate) system: &'static System,
    pub(crate) file: Kind,
}

/// What it is.
pub(crate) enum Kind {
    Database(Database),
    Volatile(Arc<Volatile>),
}

/// What SQLite says to a file.
pub(crate) enum Said<'a> {
    /// All of a transaction is written; the name of what ties several databases together.
    Written(Option<&'a str>),
    /// The transaction is complete.
    Complete,
    /// A batch of writes begins.
    BeginBatch,
    /// It ends.
    EndBatch,
    /// It is given up.
    AbortBatch,
    /// It belongs to the connection at this address.
    Connection(usize),
    /// A pragma, its value, and where the answer goes.
    Pragma(&'a str, Option<&'a str>, &'a mut Option<String>),
}

impl Said<'_> {
    /// What a number says for which no argument is needed.
    pub(crate) fn of(number: c_int) -> Option<Self> {
        match number {
            control::COMMIT_PHASETWO => Some(Said::Complete),
            control::BEGIN_ATOMIC_WRITE => Some(Said::BeginBatch),
            control::COMMIT_ATOMIC_WRITE => Some(Said::EndBatch),
            control::ROLLBACK_ATOMIC_WRITE => Some(Said::AbortBatch),
            _ => None,
        }
    }
}

fn of_journal(error: &io::Error) -> Failure {
    Failure::new(code::IOERR, format!("a journal beside memory: {error}"))
}

impl Handle {
    pub(crate) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let is_whole = match &mut self.file {
            Kind::Database(database) => database.read(offset, into)?,
            Kind::Volatile(file) => file.read(offset, into).map_err(|error| of_journal(&error))?,
        };
        // This is no failure of which anybody need hear.
        if is_whole { Ok(()) } else { Err(Failure::new(code::SHORT_READ, "")) }
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        match &mut self.file {
            Kind::Database(database) => database.write(offset, data),
            Kind::Volatile(file) => file.write(offset, data).map_err(|error| of_journal(&error)),
        }
    }

    pub(crate) fn truncate(&mut self, size: u64) -> Result<()> {
        match &mut self.file {
            Kind::Database(database) => database.truncate(size),
            Kind::Volatile(file) => file.truncate(size).map_err(|error| of_journal(&error)),
        }
    }

    pub(crate) fn sync(&mut self) -> Result<()> {
        match &mut self.file {
            Kind::Database(database) => database.sync(),
            // After a failure nobody looks at it.
            Kind::Volatile(_) => Ok(()),
        }
    }

    pub(crate) fn size(&mut self) -> u64 {
        match &mut self.file {
            Kind::Database(database) => database.size(),
            Kind::Volatile(file) => file.size(),
        }
    }

    pub(crate) fn lock(&mut self, wanted: Level) -> Result<()> {
        let is_free = match &mut self.file {
            Kind::Database(database) => database.lock(wanted),
            Kind::Volatile(_) => true,
        };
        if is_free { Ok(()) } else { Err(Failure::new(code::BUSY, "")) }
    }

    pub(crate) fn unlock(&mut self, left: Level) {
        if let Kind::Database(database) = &mut self.file {
            database.unlock(left);
        }
    }

    pub(crate) fn level(&self) -> Level {
        match &self.file {
            Kind::Database(database) => database.level(),
            Kind::Volatile(_) => Level::None,
        }
    }

    pub(crate) fn is_reserved(&self) -> bool {
        matches!(&self.file, Kind::Database(database) if database.is_reserved())
    }

    /// Hears what SQLite says; `None` if it means nothing here.
    pub(crate) fn hear(&mut self, said: Said<'_>) -> Option<Result<()>> {
        let Kind::Database(database) = &mut self.file else { return None };
        Some(match said {
            Said::Written(together) => database.written(together),
            Said::Complete => database.commit(),
            // All that is written is in a unit anyway. It ends when the transaction is complete, its last truncation included.
            Said::BeginBatch | Said::EndBatch => Ok(()),
            Said::AbortBatch => {
                database.abort();
                Ok(())
            }
            Said::Connection(connection) => {
                database.belongs_to(connection);
                Ok(())
            }
            Said::Pragma(name, value, answer) => return hear_pragma(database, name, value, answer),
        })
    }

    /// What is promised of it.
    pub(crate) fn promises(&self) -> c_int {
        let all = promise::ATOMIC | promise::SAFE_APPEND | promise::SEQUENTIAL | promise::POWERSAFE_OVERWRITE;
        let batch = if self.system.has_batches { promise::BATCH_ATOMIC } else { 0 };
        match &self.file {
            Kind::Database(_) => all | promise::UNDELETABLE_WHEN_OPEN | batch,
            Kind::Volatile(_) => all,
        }
    }

    /// Bytes below which writing takes as long as so many.
    pub(crate) fn sector_size(&self) -> c_int {
        match &self.file {
            Kind::Database(database) => c_int::try_from(database.block_size()).unwrap_or(4096),
            Kind::Volatile(_) => 512,
        }
    }
}

/// The pragmas that mean something here.
fn hear_pragma(
    database: &Database,
    name: &str,
    value: Option<&str>,
    answer: &mut Option<String>,
) -> Option<Result<()>> {
    if name.eq_ignore_ascii_case("lld_counters") {
        *answer = Some(database.opened.counters());
        return Some(Ok(()));
    }
    let is_wal = value.is_some_and(|value| value.eq_ignore_ascii_case("wal"));
    if name.eq_ignore_ascii_case("journal_mode") && is_wal {
        let text = "no write-ahead log on a logical disk: each transaction is atomic without a journal";
        *answer = Some(text.to_owned());
        return Some(Err(Failure::new(code::ERROR, text)));
    }
    None
}
