//! Direct or cached I/O.
//!
//! All I/O of one medium goes one way at a time. A switch from direct to cached happens while nothing is in
//! flight, and the kernel drops cached pages whenever direct I/O writes below them, so that no stale page
//! survives the switch. There is no switch back.

use std::os::fd::{AsFd, OwnedFd};

use fstitch_core::{BlockNo, Error, Result};
use rustix::fs::OFlags;

use crate::bounce::Bounce;
use crate::medium::{Medium, open_error};
use crate::plan::{Layout, Plan};
use crate::{Direct, sys};

/// The alignments of memory that media ask for, in bytes.
const ALIGNMENTS: [usize; 2] = [512, 4096];

/// The way I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Through the page cache, which accepts any memory.
    Cached,
    /// Past it, from memory aligned to so many bytes.
    Direct {
        /// In bytes.
        alignment: usize,
    },
}

impl Mode {
    /// The alignment that memory must have.
    pub(crate) fn alignment(self) -> usize {
        match self {
            Self::Cached => 1,
            Self::Direct { alignment } => alignment,
        }
    }

    /// Chooses for a medium and a layout, and prepares the descriptor. Whether direct I/O works depends on
    /// the file system, the device's sectors and the alignment of the layout, so it is found out by a read.
    pub(crate) fn choose(medium: &Medium, layout: Layout, wanted: Direct) -> Result<Self> {
        if wanted != Direct::Never && set_direct(&medium.file, true).is_ok() {
            let works = ALIGNMENTS.into_iter().find(|&alignment| probe(medium, layout, alignment));
            if let Some(alignment) = works {
                return Ok(Self::Direct { alignment });
            }
        }
        if wanted == Direct::Always {
            return Err(Error::Unsupported(format!(
                "direct I/O on {} with blocks of {} bytes from byte {}: its file system or the size of its \
                 sectors does not permit it",
                medium.name, layout.block_size, layout.offset
            )));
        }
        Self::cached(medium)
    }

    /// Leaves direct I/O. Nothing may be in flight.
    pub(crate) fn cached(medium: &Medium) -> Result<Self> {
        set_direct(&medium.file, false).map_err(|errno| open_error(&medium.name, errno.into()))?;
        Ok(Self::Cached)
    }
}

fn set_direct(file: &OwnedFd, on: bool) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    let wanted = if on { flags | OFlags::DIRECT } else { flags - OFlags::DIRECT };
    if wanted == flags { Ok(()) } else { rustix::fs::fcntl_setfl(file, wanted) }
}

/// Whether one block can be read into memory that is aligned to `alignment` and to no more. The second block
/// is read, because its position shows whether both offset and block size suit the medium.
fn probe(medium: &Medium, layout: Layout, alignment: usize) -> bool {
    let most = ALIGNMENTS[ALIGNMENTS.len() - 1];
    let mut bounce = Bounce::new(1, layout.unit() + alignment, most);
    let memory = &mut bounce.bytes_mut()[alignment..];
    let block = BlockNo(u64::from(layout.block_count > 1));
    let plan = Plan::read(layout, vec![(block, memory)]);
    let request = plan.requests()[0];
    let refused = rustix::io::Errno::INVAL.raw_os_error();
    // Any other error is the medium's, and would not go away with cached I/O.
    sys::transfer(medium.file.as_fd(), &plan, request)
        .map_or_else(|e| e.raw_os_error() != Some(refused), |_| true)
}
