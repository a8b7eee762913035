//! Errors: four kinds that never mix. A bug is an assertion; a failing medium is [`Error::Io`]; damaged bytes
//! are [`Error::Corrupt`]; valid but unknown bytes are [`Error::Unsupported`]. What a file operation answers
//! by the rules of POSIX is [`Error::Errno`]. [`Error::WouldWait`] is none: the operation is only done elsewhere.

use std::fmt;
use std::sync::Arc;

use crate::{BlockKind, BlockNo};

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

/// What is damaged, so that programs can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Structure {
    /// The volume's superblock or a copy of it.
    Superblock,
    /// The descriptor of this group.
    Descriptor(u64),
    /// The free-block bitmap of this group.
    BlockBitmap(u64),
    /// The free-inode bitmap of this group.
    InodeBitmap(u64),
    /// The inode of this number.
    Inode(u64),
    /// A directory entry, at this byte of its block where that is known.
    DirectoryEntry(Option<usize>),
    /// A block of extended attributes.
    AttributeBlock,
    /// An extended attribute, at this byte.
    AttributeEntry(usize),
    /// A block of pointers.
    Indirect,
    /// A pointer.
    Pointer,
    /// An inode that lost its names while it was in use.
    Orphan,
    /// The list of those.
    OrphanList,
    /// A journal's log.
    Journal,
    /// Its superblock.
    JournalSuperblock,
    /// The inode whose blocks are the journal, of this number.
    JournalInode(u64),
    /// The blocks that a journal is said to have.
    JournalArea,
    /// A journal on a device of its own.
    ExternalJournal,
    /// A table of partitions.
    PartitionTable,
    /// A volume as a whole.
    Volume,
    /// Something else that a format has, by its name there.
    Other(&'static str),
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => f.write_str("superblock"),
            Self::Descriptor(group) => write!(f, "descriptor of group {group}"),
            Self::BlockBitmap(group) => write!(f, "block bitmap of group {group}"),
            Self::InodeBitmap(group) => write!(f, "inode bitmap of group {group}"),
            Self::Inode(ino) => write!(f, "inode {ino}"),
            Self::DirectoryEntry(None) => f.write_str("directory entry"),
            Self::DirectoryEntry(Some(at)) => write!(f, "directory entry at byte {at}"),
            Self::AttributeBlock => f.write_str("attribute block"),
            Self::AttributeEntry(at) => write!(f, "attribute entry at byte {at}"),
            Self::Indirect => f.write_str("indirect block"),
            Self::Pointer => f.write_str("block pointer"),
            Self::Orphan => f.write_str("orphan"),
            Self::OrphanList => f.write_str("list of orphans"),
            Self::Journal => f.write_str("journal"),
            Self::JournalSuperblock => f.write_str("journal superblock"),
            Self::JournalInode(ino) => write!(f, "journal inode {ino}"),
            Self::JournalArea => f.write_str("journal's blocks"),
            Self::ExternalJournal => f.write_str("external journal"),
            Self::PartitionTable => f.write_str("partition table"),
            Self::Volume => f.write_str("volume"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// Damage found in bytes from a medium, with its coordinates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The structure.
    pub what: Structure,
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
    #[error("{}", describe_io(*op, *block, *kind, device.as_deref(), source))]
    Io {
        /// What was attempted.
        op: IoOp,
        /// The first block concerned.
        block: BlockNo,
        /// What the block is, where whoever asked said so.
        kind: Option<BlockKind>,
        /// The name of the device, where it has one.
        device: Option<Arc<str>>,
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
        Self::Io { op, block, kind: None, device: None, source: Arc::new(source) }
    }

    /// The same failure, with what the block is, unless that is known already.
    #[must_use]
    pub fn of_kind(mut self, what: BlockKind) -> Self {
        if let Self::Io { kind, .. } = &mut self {
            kind.get_or_insert(what);
        }
        self
    }

    /// The same failure, with the device that failed, unless that is known already: who is nearest to it knows best.
    #[must_use]
    pub fn on_device(mut self, name: &Arc<str>) -> Self {
        if let Self::Io { device, .. } = &mut self {
            device.get_or_insert_with(|| Arc::clone(name));
        }
        self
    }

    /// Damage in the structure `what`, found in `block`.
    #[must_use]
    pub fn corrupt(what: Structure, block: impl Into<Option<BlockNo>>, problem: impl Into<String>) -> Self {
        Self::Corrupt(Box::new(Corruption { what, block: block.into(), problem: problem.into() }))
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
fn describe_io(
    op: IoOp,
    block: BlockNo,
    kind: Option<BlockKind>,
    device: Option<&str>,
    source: &std::io::Error,
) -> String {
    let place = match op {
        IoOp::Open | IoOp::Flush => String::new(),
        IoOp::Read | IoOp::Write | IoOp::Discard => {
            let kind = kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
            format!(" at block {block}{kind}")
        }
    };
    let device = device.map(|name| format!(" of {name}")).unwrap_or_default();
    format!("{op} failed{place}{device}: {source}")
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
    DQUOT = 122, "disk quota exceeded";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_can_be_told_by_programs_and_by_people() {
        let error = Error::corrupt(Structure::DirectoryEntry(Some(12)), BlockNo(7), "length 3");
        let Error::Corrupt(found) = &error else { panic!("{error}") };
        assert!(matches!(found.what, Structure::DirectoryEntry(Some(12))));
        assert_eq!(error.to_string(), "corrupt: directory entry at byte 12 in block 7: length 3");
        assert_eq!(Error::corrupt(Structure::Inode(5), None, "x").to_string(), "corrupt: inode 5: x");
    }

    #[test]
    fn who_is_nearest_to_a_failure_names_it() {
        let source = std::io::Error::other("gone");
        let (near, far): (Arc<str>, Arc<str>) = ("near".into(), "far".into());
        let error = Error::io(IoOp::Write, BlockNo(9), source).of_kind(BlockKind::Inode).on_device(&near);
        let error = error.of_kind(BlockKind::Data).on_device(&far);
        assert_eq!(error.to_string(), "write failed at block 9 (inodes) of near: gone");
        let flush = Error::io(IoOp::Flush, BlockNo(0), std::io::Error::other("gone"));
        assert_eq!(flush.to_string(), "flush failed: gone");
    }
}
