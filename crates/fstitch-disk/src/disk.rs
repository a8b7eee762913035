//! A file or block device as a [`BlockDevice`].

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, RwLock};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Result,
};
use rustix::fs::{Advice, FallocateFlags};

use crate::bounce::{Bounce, is_aligned};
use crate::engine::{self, Failure};
use crate::lock::{self, Refusal};
use crate::medium::{Kind, Medium, open_error};
use crate::mode::Mode;
use crate::plan::{Direction, Layout, Plan};
use crate::ring::RingPool;
use crate::{Direct, DiskOptions, Uring, sys};

/// The most bytes of a batch that are worked on at a time, which bounds bounce buffers.
const CHUNK_BYTES_MAX: usize = 64 << 20;

/// A volume in an image file or on a block device.
///
/// Blocks are read and written with as few and as large requests as the batch permits, all at the same time
/// where the kernel offers io_uring. Memory that is aligned ([`BlockBuf`]) is used as it is; other memory
/// costs a copy in direct I/O. The volume is locked against other writers until the disk is dropped.
#[derive(Debug)]
pub struct FileDisk {
    medium: Medium,
    /// The exclusive hold on a block device, if one was needed and given.
    claim: Option<OwnedFd>,
    options: DiskOptions,
    layout: Layout,
    /// Held shared during I/O, exclusively while the mode changes.
    mode: RwLock<Mode>,
    rings: RingPool,
    /// False once the medium has said that it cannot discard.
    discards: AtomicBool,
    /// How the medium was found to be shorter than the volume, if it was.
    truncated: OnceLock<(io::ErrorKind, String)>,
}

/// How long a lock may be held by a process that is gone.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often such a lock is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

impl FileDisk {
    /// Opens the image file or block device at `path`.
    ///
    /// # Errors
    /// [`Error::Locked`] when it is in use, naming by whom and what to do; [`Error::Unsupported`] for
    /// options that nothing can satisfy and for what is neither file nor block device; [`Error::Io`] with
    /// [`IoOp::Open`] for everything else.
    pub fn open(path: impl AsRef<Path>, options: DiskOptions) -> Result<Self> {
        Self::open_or_refuse(path.as_ref(), options).map_err(|refusal| refusal.error)
    }

    /// The same, but waits up to five seconds for a lock whose owner is about to let go of it: one that has gone already and cannot be
    /// seen, or a child of this process that has not run its program yet.
    ///
    /// # Errors
    /// As [`FileDisk::open`].
    pub fn open_when_let_go(path: impl AsRef<Path>, options: &DiskOptions) -> Result<Self> {
        let mut waited = Duration::ZERO;
        loop {
            match Self::open_or_refuse(path.as_ref(), options.clone()) {
                Err(refusal) if refusal.passes && waited < LOCK_PATIENCE => {
                    std::thread::sleep(LOCK_INTERVAL);
                    waited += LOCK_INTERVAL;
                }
                done => return done.map_err(|refusal| refusal.error),
            }
        }
    }

    fn open_or_refuse(path: &Path, options: DiskOptions) -> std::result::Result<Self, Refusal> {
        options.validate()?;
        Self::new(Medium::open(path, options.read_only)?, options)
    }

    /// Takes a descriptor that is open already, for instance one that was passed by a process with more
    /// rights. Its status flags are changed; they are shared with all copies of the descriptor.
    ///
    /// # Errors
    /// As [`FileDisk::open`]; also when the descriptor is not open for what the options ask.
    pub fn from_fd(fd: OwnedFd, options: DiskOptions) -> Result<Self> {
        options.validate()?;
        Self::new(Medium::from_fd(fd, options.read_only)?, options).map_err(|refusal| refusal.error)
    }

    /// Creates an image file of `bytes` zeros that takes no room until it is written. An existing file is
    /// never touched, and none is left when this fails.
    ///
    /// # Errors
    /// [`Error::Io`] with [`IoOp::Open`] when the file exists or cannot be made.
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<()> {
        let path = path.as_ref();
        let fill = |file: &std::fs::File| {
            file.set_len(bytes)?;
            file.sync_all()?;
            // A file may be stable while its name is not.
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            std::fs::File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
        };
        let made = std::fs::File::create_new(path).and_then(|file| {
            fill(&file).inspect_err(|_| {
                // Why it could not be made is what the caller must hear, not that it could not be removed either.
                let _ = std::fs::remove_file(path);
            })
        });
        made.map_err(|error| open_error(&path.display().to_string(), error))
    }

    /// The same volume, still locked, with another block size: the right one is known only after the
    /// superblock has been read.
    ///
    /// # Errors
    /// As [`FileDisk::open`]; the volume is then closed.
    pub fn with_block_size(self, block_size: u32) -> Result<Self> {
        let options = DiskOptions { block_size, ..self.options };
        options.validate()?;
        let layout = self.medium.layout(&options)?;
        let mode = Mode::choose(&self.medium, layout, options.direct)?;
        Ok(Self { layout, mode: RwLock::new(mode), options, ..self })
    }

    /// Reads `len` bytes from byte `offset` of the volume, whatever the block size.
    ///
    /// # Errors
    /// [`Error::Io`] when the medium fails or the bytes do not lie inside the volume's whole blocks.
    pub fn read_bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let unit = u64::from(self.layout.block_size);
        let len_wide = to_u64(len);
        let (first, end) = match offset.checked_add(len_wide) {
            Some(end) => (offset / unit, end.div_ceil(unit)),
            None => return Err(outside(IoOp::Read, BlockNo(offset / unit))),
        };
        if end > self.layout.block_count {
            return Err(outside(IoOp::Read, BlockNo(self.layout.block_count.max(first))));
        }
        let count = to_usize(end - first);
        let mut bytes = BlockBuf::zeroed(count * self.layout.unit());
        let blocks = bytes.chunks_exact_mut(self.layout.unit());
        let mut reads: Vec<_> = (first..end)
            .zip(blocks)
            .map(|(block, data)| BlockRead { block: BlockNo(block), kind: BlockKind::Superblock, data })
            .collect();
        self.read(&mut reads)?;
        let start = to_usize(offset % unit);
        Ok(bytes[start..start + len].to_vec())
    }

    /// The path of the medium, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.medium.name
    }

    /// Whether the medium is a block device rather than a file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.medium.kind != Kind::File
    }

    /// Whether it was opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.read_only
    }

    /// Whether I/O bypasses the page cache at this moment.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        *self.mode.read().unpoisoned() != Mode::Cached
    }

    /// Whether batches go through io_uring, as far as is known by now: the first batch finds out.
    #[must_use]
    pub fn uses_io_uring(&self) -> bool {
        self.rings.is_usable()
    }

    /// Whether the medium is held exclusively against the kernel's own users.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.claim.is_some()
    }

    fn new(medium: Medium, options: DiskOptions) -> std::result::Result<Self, Refusal> {
        let claim = if options.lock { lock::acquire(&medium, &options)? } else { None };
        let layout = medium.layout(&options)?;
        let mode = RwLock::new(Mode::choose(&medium, layout, options.direct)?);
        let rings = RingPool::new(options.io_uring == Uring::Auto);
        let (discards, truncated) = (AtomicBool::new(true), OnceLock::new());
        Ok(Self { medium, claim, options, layout, mode, rings, discards, truncated })
    }

    /// Blocks of a batch that are worked on at a time.
    fn chunk_blocks(&self) -> usize {
        CHUNK_BYTES_MAX / self.layout.unit()
    }

    /// Refuses blocks outside the volume and memory of another size before anything is moved.
    fn check(&self, op: IoOp, block: BlockNo, data: &[u8]) -> Result<()> {
        if block.get() >= self.layout.block_count {
            return Err(outside(op, block));
        }
        if data.len() != self.layout.unit() {
            let problem = format!("{} bytes for a block of {}", data.len(), self.layout.block_size);
            return Err(Error::io(op, block, io::Error::new(io::ErrorKind::InvalidInput, problem)));
        }
        Ok(())
    }

    /// What was found missing once stays missing, although the file may grow again.
    fn expect_whole(&self, op: IoOp, block: BlockNo) -> Result<()> {
        let found = match self.truncated.get() {
            Some(problem) => Err(problem.clone()),
            None => self.medium.expect_whole(self.layout).map_err(|error| {
                let problem = (error.kind(), error.to_string());
                self.truncated.get_or_init(|| problem).clone()
            }),
        };
        found.map_err(|(kind, problem)| Error::io(op, block, io::Error::new(kind, problem)))
    }

    fn check_writable(&self, op: IoOp, block: BlockNo) -> Result<()> {
        if self.options.read_only {
            return Err(Error::io(op, block, rustix::io::Errno::ROFS.into()));
        }
        Ok(())
    }

    fn run(&self, mode: Mode, plan: &Plan<'_>) -> Result<(), Failure> {
        // Cached writes are copies into memory. A ring would hand each to a kernel thread, which costs more
        // than the copy.
        let copies = mode == Mode::Cached && plan.direction() == Direction::Write;
        let rings = if copies { None } else { Some(&self.rings) };
        engine::run(self.medium.file.as_fd(), rings, plan)
    }

    fn read_chunk(&self, reads: &mut [BlockRead<'_>]) -> Result<(), Failure> {
        let mode = self.mode.read().unpoisoned();
        let alignment = mode.alignment();
        let unaligned = reads.iter().filter(|read| !is_aligned(read.data, alignment)).count();
        let mut bounce = Bounce::new(unaligned, self.layout.unit(), alignment);
        let mut spare = bounce.bytes_mut().chunks_exact_mut(self.layout.unit());
        let mut blocks = Vec::with_capacity(reads.len());
        for read in reads.iter_mut() {
            let memory = if is_aligned(read.data, alignment) { Some(&mut *read.data) } else { spare.next() };
            blocks.push((read.block, memory.expect("one spare block for each unaligned one")));
        }
        self.run(*mode, &Plan::read(self.layout, blocks))?;
        let unaligned = reads.iter_mut().filter(|read| !is_aligned(read.data, alignment));
        for (read, bytes) in unaligned.zip(bounce.bytes().chunks_exact(self.layout.unit())) {
            read.data.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn write_chunk(&self, writes: &[BlockWrite<'_>]) -> Result<(), Failure> {
        let mode = self.mode.read().unpoisoned();
        let alignment = mode.alignment();
        let unaligned: Vec<_> = writes.iter().filter(|write| !is_aligned(write.data, alignment)).collect();
        let mut bounce = Bounce::new(unaligned.len(), self.layout.unit(), alignment);
        for (bytes, write) in bounce.bytes_mut().chunks_exact_mut(self.layout.unit()).zip(&unaligned) {
            bytes.copy_from_slice(write.data);
        }
        let mut spare = bounce.bytes().chunks_exact(self.layout.unit());
        let mut blocks = Vec::with_capacity(writes.len());
        for write in writes {
            let memory = if is_aligned(write.data, alignment) { Some(write.data) } else { spare.next() };
            blocks.push((write.block, memory.expect("one spare block for each unaligned one")));
        }
        self.run(*mode, &Plan::write(self.layout, blocks))
    }

    /// Gives direct I/O up when the medium refuses a request for its shape, which some file systems do only
    /// for certain files or certain writes. True when the request is worth another try.
    fn leave_direct(&self, failure: &Failure) -> bool {
        let refused = failure.error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error());
        if !refused || self.options.direct != Direct::Auto {
            return false;
        }
        let mut mode = self.mode.write().unpoisoned();
        match Mode::cached(&self.medium) {
            Ok(cached) => *mode = cached,
            Err(_) => return false,
        }
        true
    }

    /// A failure with the name of this device, and what the block is.
    fn told(&self, error: Error, kind_of: impl Fn(BlockNo) -> Option<BlockKind>) -> Error {
        let kind = if let Error::Io { block, .. } = &error { kind_of(*block) } else { None };
        let error = kind.into_iter().fold(error, Error::of_kind);
        error.on_device(&self.medium.name)
    }

    fn read_all(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        reads.iter().try_for_each(|read| self.check(IoOp::Read, read.block, read.data))?;
        for chunk in reads.chunks_mut(self.chunk_blocks()) {
            let mut outcome = self.read_chunk(chunk);
            if outcome.as_ref().is_err_and(|failure| self.leave_direct(failure)) {
                outcome = self.read_chunk(chunk);
            }
            outcome.map_err(|failure| {
                let error = self.medium.expect_whole(self.layout).err().unwrap_or(failure.error);
                Error::io(IoOp::Read, failure.block, error)
            })?;
        }
        Ok(())
    }

    fn write_all(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        for write in writes {
            self.check_writable(IoOp::Write, write.block)?;
            self.check(IoOp::Write, write.block, write.data)?;
        }
        let first = writes.first().map_or(BlockNo(0), |write| write.block);
        self.expect_whole(IoOp::Write, first)?;
        for chunk in writes.chunks(self.chunk_blocks()) {
            let mut outcome = self.write_chunk(chunk);
            if outcome.as_ref().is_err_and(|failure| self.leave_direct(failure)) {
                outcome = self.write_chunk(chunk);
            }
            outcome.map_err(|failure| Error::io(IoOp::Write, failure.block, failure.error))?;
        }
        Ok(())
    }
}

impl BlockDevice for FileDisk {
    fn geometry(&self) -> Geometry {
        self.medium.geometry(self.layout)
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.read_all(reads).map_err(|error| {
            let kind_of = |block| reads.iter().find(|read| read.block == block).map(|read| read.kind);
            self.told(error, kind_of)
        })
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.write_all(writes).map_err(|error| {
            let kind_of = |block| writes.iter().find(|write| write.block == block).map(|write| write.kind);
            self.told(error, kind_of)
        })
    }

    /// `fdatasync`, for files and block devices alike: the kernel writes what its page cache still holds,
    /// what a file needs to find its data again, and then empties the device's own cache. The ioctl
    /// `BLKFLSBUF` is not it: it writes and drops the page cache but never reaches the device's cache.
    fn flush(&self) -> Result<()> {
        self.expect_whole(IoOp::Flush, BlockNo(0))?;
        if self.options.read_only {
            return Ok(());
        }
        loop {
            match rustix::fs::fdatasync(&self.medium.file) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                // It is not known which blocks are concerned, so all are, from the first.
                Err(errno) => {
                    let error = Error::io(IoOp::Flush, BlockNo(0), errno.into());
                    return Err(error.on_device(&self.medium.name));
                }
            }
        }
    }

    /// Punches a hole into a file, discards sectors of a block device. A medium that can do neither is no
    /// failure: nothing is promised about discarded blocks.
    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.check_writable(IoOp::Discard, start)?;
        if start.get().checked_add(count).is_none_or(|end| end > self.layout.block_count) {
            return Err(outside(IoOp::Discard, start.max(BlockNo(self.layout.block_count))));
        }
        if count == 0 || !self.discards.load(Ordering::Relaxed) {
            return Ok(());
        }
        let position = self.layout.position(start);
        let len = count * u64::from(self.layout.block_size);
        match discard_bytes(&self.medium, position, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTTY) => {
                self.discards.store(false, Ordering::Relaxed);
                Ok(())
            }
            Err(errno) => Err(Error::io(IoOp::Discard, start, errno.into()).on_device(&self.medium.name)),
        }
    }

    /// Has the kernel read ahead, unless it is passed by.
    fn prefetch(&self, start: BlockNo, count: u64) {
        let count = count.min(self.layout.block_count.saturating_sub(start.get()));
        let Some(len) = NonZeroU64::new(count * u64::from(self.layout.block_size)) else { return };
        if !self.is_direct() {
            // It is a hint: whatever is wrong, the read will tell.
            let _ = rustix::fs::fadvise(
                &self.medium.file,
                self.layout.position(start),
                Some(len),
                Advice::WillNeed,
            );
        }
    }

    fn intact(&self) -> Result<()> {
        self.expect_whole(IoOp::Flush, BlockNo(0))
    }
}

fn discard_bytes(medium: &Medium, start: u64, len: u64) -> rustix::io::Result<()> {
    match medium.kind {
        Kind::File => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&medium.file, flags, start, len)
        }
        Kind::BlockDevice { sector } => {
            // Only whole sectors can be discarded, so the range shrinks to them.
            let sector = u64::from(sector);
            let first = start.next_multiple_of(sector);
            let end = (start + len) / sector * sector;
            if first >= end {
                return Ok(());
            }
            sys::block_device_discard(medium.file.as_fd(), first, end - first)
        }
    }
}

fn outside(op: IoOp, block: BlockNo) -> Error {
    Error::io(op, block, io::Error::new(io::ErrorKind::InvalidInput, "outside the volume"))
}

/// Reads up to `len` bytes from byte `offset` of a file or block device, without a lock, through the page
/// cache: enough to recognise what it holds before opening it. Fewer bytes come back at its end.
///
/// # Errors
/// [`Error::Unsupported`] when it is neither file nor block device, [`Error::Io`] with [`IoOp::Open`] when
/// it cannot be opened or read.
pub fn probe(path: impl AsRef<Path>, offset: u64, len: usize) -> Result<Vec<u8>> {
    let medium = Medium::open(path.as_ref(), true)?;
    let name = medium.name;
    let file = std::fs::File::from(medium.file);
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while filled < len {
        let position = offset.saturating_add(to_u64(filled));
        match file.read_at(&mut bytes[filled..], position) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(open_error(&name, error)),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}
