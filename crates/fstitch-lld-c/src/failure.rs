//! Why a call failed, as C programs hear it: a number and a text.
#![forbid(unsafe_code)]

use std::ffi::c_int;
use std::io::{self, ErrorKind};

use fstitch_core::{Errno, Error, IoOp};
use fstitch_lld::EndError;

/// The result of nearly everything here.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) errno: c_int,
    pub(crate) text: String,
}

impl Failure {
    pub(crate) fn new(errno: c_int, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// The caller's mistake.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// The same failure, with what it is about.
    pub(crate) fn about(mut self, what: &str) -> Self {
        self.text = format!("{what}: {}", self.text);
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Io { op: IoOp::Open, source, .. } => number_of(source),
            other => other.errno().0,
        };
        let text = match &error {
            Error::Errno(errno) => meaning(*errno).to_owned(),
            other => other.to_string(),
        };
        Self { errno, text }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Error::from(errno).into()
    }
}

impl From<EndError> for Failure {
    fn from(error: EndError) -> Self {
        match error {
            EndError::Disk(error) => error.into(),
            conflict @ EndError::Conflict(_) => Self::new(libc::ECANCELED, conflict.to_string()),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(number_of(&error), error.to_string())
    }
}

/// What a number means of a disk, which has no files.
fn meaning(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => "there is no such list, block or volume",
        Errno::EXIST => "it is there already",
        Errno::INVAL => "not for this kind of list, or not of this size or name",
        Errno::NOSPC => "no space left on the disk",
        Errno::ROFS => "the disk is open for reading only",
        Errno::BUSY => "it is in use",
        other => other.text(),
    }
}

/// The number behind a failure of the system; those with a text of ours have only a kind.
fn number_of(error: &io::Error) -> c_int {
    error.raw_os_error().unwrap_or(match error.kind() {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::PermissionDenied => libc::EACCES,
        ErrorKind::AlreadyExists => libc::EEXIST,
        ErrorKind::IsADirectory => libc::EISDIR,
        ErrorKind::NotADirectory => libc::ENOTDIR,
        ErrorKind::ReadOnlyFilesystem => libc::EROFS,
        ErrorKind::StorageFull => libc::ENOSPC,
        ErrorKind::FileTooLarge => libc::EFBIG,
        ErrorKind::InvalidInput => libc::EINVAL,
        _ => libc::EIO,
    })
}
