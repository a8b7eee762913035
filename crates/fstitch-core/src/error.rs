//! Errors: four kinds that never mix. A bug is an assertion; a failing medium is [`Error::Io`]; damaged bytes
//! are [`Error::Corrupt`]; valid but unknown bytes are [`Error::Unsupported`]. What a file operation answers
//! by the rules of POSIX is [`Error::Errno`]. [`Error::WouldWait`] is none: the operation is only done elsewhere.

use std::fmt;
use std::sync::Arc;

use crate::BlockNo;

/// The result of nearly everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a device was doing when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Reading blocks.
    Read,
    /// Writing blocks.
    Write,
    /// Making writes stable.
    Flush,
    /// Discarding blocks.
    Discard,
    /// Opening or examining the medium.
    Open,
}

impl fmt::Display for IoOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::Open => "open",
        })
    }
}

/// Damage found in bytes from a medium, with its coordinates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The structure: "superblock", "inode 12", "directory entry"…
    pub what: String,
    /// The block that holds it, where one is known.
    pub block: Option<BlockNo>,
    /// What is wrong, with what was expected and what was found.
    pub problem: String,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.block {
            Some(block) => write!(f, "{} in block {block}: {}", self.what, self.problem),
            None => write!(f, "{}: {}", self.what, self.problem),
        }
    }
}

/// Any failure of a device or file system. Cloning is cheap.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The medium failed.
    #[error("{}", describe_io(*op, *block, source))]
    Io {
        /// What was attempted.
        op: IoOp,
        /// The first block concerned.
        block: BlockNo,
        /// The operating system's reason.
        source: Arc<std::io::Error>,
    },
    /// The bytes on the medium are damaged.
    #[error("corrupt: {0}")]
    Corrupt(Box<Corruption>),
    /// The bytes on the medium are valid, but we do not know what they ask for.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The medium is in use by somebody else.
    #[error("{0}")]
    Locked(String),
    /// An earlier write or flush failed; what was not stable then is lost, and nothing more is written.
    #[error("the volume no longer accepts changes: {0}")]
    Poisoned(Arc<str>),
    /// The operation would have to wait on a thread that must not, and has changed nothing ([`crate::waiting`]). Nobody but who
    /// runs that thread sees this.
    #[error("it would have to wait")]
    WouldWait,
    /// The operation's answer by the rules of POSIX.
    #[error("{0}")]
    Errno(Errno),
}

impl Error {
    /// A failure of the medium.
    #[must_use]
    pub fn io(op: IoOp, block: BlockNo, source: std::io::Error) -> Self {
        Self::Io { op, block, source: Arc::new(source) }
    }

    /// Damage in the structure `what`, found in `block`.
    #[must_use]
    pub fn corrupt(
        what: impl Into<String>,
        block: impl Into<Option<BlockNo>>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Corrupt(Box::new(Corruption {
            what: what.into(),
            block: block.into(),
            problem: problem.into(),
        }))
    }

    /// The errno that an application sees for this failure.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Io { .. } => Errno::IO,
            Self::Corrupt(_) => Errno::UCLEAN,
            Self::Unsupported(_) => Errno::OPNOTSUPP,
            Self::Locked(_) => Errno::BUSY,
            Self::Poisoned(_) => Errno::ROFS,
            Self::WouldWait => Errno::AGAIN,
            Self::Errno(errno) => *errno,
        }
    }
}

/// The message of a failed medium. Opening and flushing concern no block in particular.
fn describe_io(op: IoOp, block: BlockNo, source: &std::io::Error) -> String {
    match op {
        IoOp::Open | IoOp::Flush => format!("{op} failed: {source}"),
        IoOp::Read | IoOp::Write | IoOp::Discard => format!("{op} failed at block {block}: {source}"),
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

macro_rules! errnos {
    ($($name:ident = $no:literal, $text:literal;)*) => {
        /// A POSIX error number, with Linux's values.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct Errno(pub i32);

        impl Errno {
            $(#[doc = $text] pub const $name: Self = Self($no);)*

            /// What the number means.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self.0 {
                    $($no => $text,)*
                    _ => "unknown error",
                }
            }

            /// The name, such as `ENOENT`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($no => concat!("E", stringify!($name)),)*
                    _ => "E?",
                }
            }
        }
    };
}

errnos! {
    PERM = 1, "operation not permitted";
    NOENT = 2, "no such file or directory";
    IO = 5, "input/output error";
    NXIO = 6, "no such device or address";
    BADF = 9, "bad file descriptor";
    AGAIN = 11, "try again";
    NOMEM = 12, "out of memory";
    ACCES = 13, "permission denied";
    BUSY = 16, "device or resource busy";
    EXIST = 17, "file exists";
    XDEV = 18, "invalid cross-device link";
    NODEV = 19, "no such device";
    NOTDIR = 20, "not a directory";
    ISDIR = 21, "is a directory";
    INVAL = 22, "invalid argument";
    NFILE = 23, "too many open files in system";
    MFILE = 24, "too many open files";
    NOTTY = 25, "inappropriate ioctl for device";
    TXTBSY = 26, "text file busy";
    FBIG = 27, "file too large";
    NOSPC = 28, "no space left on device";
    ROFS = 30, "read-only file system";
    MLINK = 31, "too many links";
    RANGE = 34, "result does not fit";
    NAMETOOLONG = 36, "file name too long";
    NOSYS = 38, "function not implemented";
    NOTEMPTY = 39, "directory not empty";
    LOOP = 40, "too many levels of symbolic links";
    NODATA = 61, "no data available";
    OVERFLOW = 75, "value too large";
    OPNOTSUPP = 95, "operation not supported";
    STALE = 116, "stale file handle";
    UCLEAN = 117, "structure needs cleaning";
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
