//! What SQLite and its users are told when something cannot be done.

use std::ffi::c_int;
use std::fmt;

use fstitch_core::{Errno, Error};
use fstitch_lld::EndError;

use crate::abi::code;

/// A result code of SQLite, and the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub code: c_int,
    /// The reason.
    pub text: String,
}

/// What is done here, or why not.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure for a reason of ours.
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Why the logical disk could not do what SQLite calls `code` when it fails.
    pub(crate) fn of(code: c_int, error: &Error) -> Self {
        let code = match error {
            Error::Errno(Errno::NOSPC) => code::FULL,
            Error::Errno(Errno::ROFS) => code::READONLY,
            Error::Locked(_) => code::BUSY,
            Error::Corrupt(_) if code == code::CANTOPEN => code::CORRUPT,
            Error::Corrupt(_) => code::CORRUPTFS,
            Error::Unsupported(_) if code == code::CANTOPEN => code::NOTADB,
            _ => code,
        };
        Self::new(code, error.to_string())
    }

    /// Why a unit did not end.
    pub(crate) fn of_end(error: &EndError) -> Self {
        match error {
            EndError::Disk(error) => Self::of(code::FSYNC, error),
            EndError::Conflict(_) => Self::new(code::WRITE, error.to_string()),
        }
    }

    /// The same with what it is about, unless it says so.
    pub(crate) fn about(self, what: &str) -> Self {
        if self.text.starts_with(what) {
            return self;
        }
        Self { text: format!("{what}: {}", self.text), ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
