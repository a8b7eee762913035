//! An open file or block device: what it is, how large it is, and who may use it.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use fstitch_core::{BlockNo, Error, Geometry, IoOp, Result};
use rustix::fs::{FileType, Mode as Permissions, OFlags, Stat};

use crate::plan::Layout;
use crate::{DiskOptions, sys};

/// What every medium is assumed to write all or not at all, in bytes, when nothing better is known: no disk
/// has smaller sectors.
const SECTOR_BYTES: u32 = 512;

/// What kind of medium it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An image in a file.
    File,
    /// A block device with logical sectors of so many bytes.
    BlockDevice {
        /// Bytes of a logical sector.
        sector: u32,
    },
}

/// An open medium.
#[derive(Debug)]
pub(crate) struct Medium {
    pub(crate) file: OwnedFd,
    /// The path, for messages.
    pub(crate) name: Arc<str>,
    pub(crate) kind: Kind,
    pub(crate) stat: Stat,
}

impl Medium {
    /// Opens a file or block device by its path.
    pub(crate) fn open(path: &Path, read_only: bool) -> Result<Self> {
        let name = path.display().to_string();
        // Looked at before it is opened: opening a FIFO would wait for a writer.
        let stat = rustix::fs::stat(path).map_err(|errno| open_error(&name, errno.into()))?;
        kind_of(&name, &stat)?;
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        match rustix::fs::open(path, access | OFlags::CLOEXEC, Permissions::empty()) {
            Ok(file) => Self::new(file, name),
            Err(rustix::io::Errno::BUSY) => Err(crate::lock::busy_device(&name, &stat)),
            Err(errno) => Err(open_error(&name, errno.into())),
        }
    }

    /// Takes a descriptor that somebody else has opened.
    pub(crate) fn from_fd(file: OwnedFd, read_only: bool) -> Result<Self> {
        let name = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .map_or_else(|_| format!("descriptor {}", file.as_raw_fd()), |path| path.display().to_string());
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|errno| open_error(&name, errno.into()))?;
        let access = flags & OFlags::ACCMODE;
        if access != OFlags::RDWR && !(read_only && access == OFlags::RDONLY) {
            let wanted = if read_only { "reading" } else { "reading and writing" };
            let problem = format!("the descriptor passed for it is not open for {wanted}");
            return Err(open_error(&name, io::Error::new(io::ErrorKind::PermissionDenied, problem)));
        }
        // With O_APPEND Linux ignores the position of a write, and O_NONBLOCK makes the ring answer EAGAIN.
        rustix::fs::fcntl_setfl(&file, flags - OFlags::APPEND - OFlags::NONBLOCK)
            .map_err(|errno| open_error(&name, errno.into()))?;
        Self::new(file, name)
    }

    fn new(file: OwnedFd, name: String) -> Result<Self> {
        let name: Arc<str> = name.into();
        let stat = rustix::fs::fstat(&file).map_err(|errno| open_error(&name, errno.into()))?;
        let kind = match kind_of(&name, &stat)? {
            FileType::BlockDevice => {
                let sector =
                    rustix::fs::ioctl_blksszget(&file).map_err(|errno| open_error(&name, errno.into()))?;
                Kind::BlockDevice { sector }
            }
            _ => Kind::File,
        };
        Ok(Self { file, name, kind, stat })
    }

    /// The size of the whole medium in bytes.
    pub(crate) fn bytes(&self) -> Result<u64> {
        use std::os::fd::AsFd;
        match self.kind {
            // Taken anew each time: a file may have grown since it was opened.
            Kind::File => rustix::fs::fstat(&self.file).map(|stat| u64::try_from(stat.st_size).unwrap_or(0)),
            Kind::BlockDevice { .. } => sys::block_device_bytes(self.file.as_fd()),
        }
        .map_err(|errno| open_error(&self.name, errno.into()))
    }

    /// Where the volume's blocks lie.
    pub(crate) fn layout(&self, options: &DiskOptions) -> Result<Layout> {
        let whole = self.bytes()?;
        let room = whole.saturating_sub(options.offset);
        let bytes = options.size.unwrap_or(room);
        let block_count = bytes / u64::from(options.block_size);
        let problem = if bytes > room {
            format!("{bytes} bytes from byte {} do not fit its {whole} bytes", options.offset)
        } else if block_count == 0 {
            format!("its {whole} bytes hold no block of {} bytes", options.block_size)
                + &if options.offset > 0 { format!(" from byte {}", options.offset) } else { String::new() }
        } else {
            return Ok(Layout { offset: options.offset, block_size: options.block_size, block_count });
        };
        Err(open_error(&self.name, io::Error::new(io::ErrorKind::InvalidInput, problem)))
    }

    /// Fails if a file has become shorter than the volume in it: somebody has truncated it while it was in use. Written to
    /// all the same, it would grow again, and what was cut off would be zeros that nobody knows of.
    pub(crate) fn expect_whole(&self, layout: Layout) -> io::Result<()> {
        if self.kind != Kind::File {
            return Ok(());
        }
        let now = u64::try_from(rustix::fs::fstat(&self.file)?.st_size).unwrap_or(0);
        let end = layout.offset + layout.block_count * u64::from(layout.block_size);
        if now >= end {
            return Ok(());
        }
        let problem = format!(
            "{} has been truncated while it was in use: it has {now} bytes now, the volume ends at byte {end}",
            self.name
        );
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem))
    }

    /// The shape that the volume's users see; `docs/medium.md` says why `atomic_size` is what it is.
    pub(crate) fn geometry(&self, layout: Layout) -> Geometry {
        let sector = match self.kind {
            Kind::File => SECTOR_BYTES,
            Kind::BlockDevice { sector } => sector.max(SECTOR_BYTES),
        };
        Geometry {
            block_size: layout.block_size,
            block_count: layout.block_count,
            atomic_size: sector.min(layout.block_size),
        }
    }
}

/// Refuses what is neither a file nor a block device.
fn kind_of(name: &str, stat: &Stat) -> Result<FileType> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    let what = match kind {
        FileType::RegularFile | FileType::BlockDevice => return Ok(kind),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Err(Error::Unsupported(format!("{name} is {what}; a volume is an image file or a block device")))
}

/// A failure to open or examine the medium `name`.
pub(crate) fn open_error(name: &str, error: io::Error) -> Error {
    Error::io(IoOp::Open, BlockNo(0), io::Error::new(error.kind(), format!("{name}: {error}")))
}
