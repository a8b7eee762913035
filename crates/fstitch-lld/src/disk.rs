//! The disk: what clients call.

use std::sync::Arc;

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::num::to_usize;
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, Errno, Error, Result};

use crate::log::Counters;
use crate::record::{BlockId, Label, ListId, Record};
use crate::recovery::{Recovered, recover};
use crate::shape::Shape;
use crate::state::BlockEntry;
use crate::stream::{Keeping, Stream};

/// How a disk is made.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Bytes of a block: a power of two, from the device's to 64 KiB.
    pub block_size: u32,
    /// Bytes of a segment: a power of two from 64 KiB to 64 MiB, at least 16 blocks.
    pub segment_size: u32,
    /// Names the disk.
    pub uuid: [u8; 16],
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { block_size: 4096, segment_size: 512 << 10, uuid: [0; 16] }
    }
}

/// How a disk is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Bytes of maps that may be in memory.
    pub cache_size: usize,
    /// Bytes of log after which a checkpoint is made: what recovery has to read.
    pub checkpoint_interval: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { cache_size: 128 << 20, checkpoint_interval: 64 << 20 }
    }
}

impl Options {
    fn keeping(&self) -> Keeping {
        Keeping { cache_size: self.cache_size, checkpoint_bytes: self.checkpoint_interval }
    }
}

/// Where in its list a new block goes (\[A\] §2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// In front of all others.
    Start,
    /// Behind this block.
    After(BlockId),
    /// In a sparse list, at this position.
    Position(u64),
}

/// A logical disk (\[A\] §2). Operations outside of units are atomic by themselves, and happen in the order in which they return.
pub struct Disk {
    stream: Mutex<Stream, rank::Epoch>,
    block_size: usize,
}

/// No record takes more bytes.
const RECORD_MAX: usize = 64;

impl Disk {
    /// Makes an empty disk on a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the sizes do not fit; those of the device.
    pub fn format(device: Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
        let shape = Shape::fitting(&*device, options.uuid, options.block_size, options.segment_size)?;
        Stream::format(device, shape, Options::default().keeping())
    }

    /// Opens a disk, and says what was done again after a failure.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged or none, [`Error::Unsupported`] if it is of another version; those of the device.
    pub fn open(device: Arc<dyn BlockDevice>, options: &Options) -> Result<(Self, Recovered)> {
        let shape = Shape::read(&*device)?;
        let mut stream = Stream::open(device, shape, options.keeping())?;
        let recovered = recover(&mut stream)?;
        stream.save()?;
        let block_size = to_usize(shape.block_size);
        Ok((Self { stream: Mutex::new(stream), block_size }, recovered))
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock()
    }

    /// What has been written since the disk was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.stream().log.counters
    }

    /// Makes a list without blocks: ordered, or sparse, whose blocks have positions with gaps between them.
    ///
    /// # Errors
    /// `ENOSPC`; [`Error::Poisoned`] after a failed write.
    pub fn new_list(&self, sparse: bool) -> Result<ListId> {
        let stream = &mut *self.stream();
        stream.make_room(RECORD_MAX, 0, true)?;
        let list = stream.state.next_list;
        stream.perform(&Record::NewList { list, sparse })?;
        Ok(list)
    }

    /// Removes a list with its blocks.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn delete_list(&self, list: ListId) -> Result<()> {
        let stream = &mut *self.stream();
        stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
        stream.make_room(RECORD_MAX, 0, false)?;
        // Those that the open chunk has contents of are few.
        stream.forget_contents_of(list)?;
        stream.perform(&Record::DeleteList { list })
    }

    /// Makes a block, which reads as zeros.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, or no such block in it; `EEXIST` if the position is taken; `EINVAL` if the place is none of
    /// this kind of list; `ENOSPC`.
    pub fn new_block(&self, list: ListId, at: At) -> Result<BlockId> {
        let stream = &mut *self.stream();
        let entry = stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
        stream.make_room(2 * RECORD_MAX, 0, true)?;
        let label = match (at, entry.sparse) {
            (At::Position(position), true) => {
                if stream.state.order.get(&(list, position))?.is_some() {
                    return Err(Errno::EXIST.into());
                }
                position
            }
            (At::Start, false) => Self::gap(stream, list, None)?,
            (At::After(block), false) => {
                let before = stream.state.blocks.get(&block)?.filter(|before| before.list == list);
                Self::gap(stream, list, Some(before.ok_or(Errno::NOENT)?.label))?
            }
            _ => return Err(Errno::INVAL.into()),
        };
        let block = stream.state.next_block;
        stream.perform(&Record::Insert { block, list, label })?;
        Ok(block)
    }

    /// A label in an ordered list; others move where there is none.
    fn gap(stream: &mut Stream, list: ListId, after: Option<Label>) -> Result<Label> {
        let gap = stream.state.gap(list, after)?;
        if let Some(relabel) = gap.relabel {
            stream.perform(&relabel)?;
        }
        Ok(gap.label)
    }

    /// Removes a block.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn delete_block(&self, block: BlockId) -> Result<()> {
        let stream = &mut *self.stream();
        Self::entry(stream, block)?;
        stream.make_room(RECORD_MAX, 0, false)?;
        stream.perform(&Record::Delete { block })
    }

    fn entry(stream: &Stream, block: BlockId) -> Result<BlockEntry> {
        stream.state.blocks.get(&block)?.ok_or(Error::Errno(Errno::NOENT))
    }

    /// Reads a block.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EINVAL` if `into` is not one block; [`Error::Corrupt`] if its contents are damaged.
    pub fn read(&self, block: BlockId, into: &mut [u8]) -> Result<()> {
        if into.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let stream = self.stream();
        let entry = Self::entry(&stream, block)?;
        stream.read(block, &entry, into)
    }

    /// Writes a block.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EINVAL` if `contents` are not one block; `ENOSPC`.
    pub fn write(&self, block: BlockId, contents: &[u8]) -> Result<()> {
        if contents.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let stream = &mut *self.stream();
        Self::entry(stream, block)?;
        stream.make_room(RECORD_MAX, 1, true)?;
        stream.perform_write(block, contents.into(), true);
        Ok(())
    }

    /// The block at a position of a list: the position in an ordered list, or the client's own in a sparse one.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list.
    pub fn block_at(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        let stream = self.stream();
        let entry = stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
        if entry.sparse {
            return stream.state.order.get(&(list, position));
        }
        if position >= entry.blocks {
            return Ok(None);
        }
        let order = &stream.state.order;
        let first = order.tree.rank(&(list, 0), &order.pages)?;
        Ok(order.tree.select(first + position, &order.pages)?.map(|(_, block)| block))
    }

    /// How many blocks a list has.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list.
    pub fn list_len(&self, list: ListId) -> Result<u64> {
        Ok(self.stream().state.lists.get(&list)?.ok_or(Errno::NOENT)?.blocks)
    }

    /// Makes everything stable that has returned.
    ///
    /// # Errors
    /// Those of the device, from then on for ever.
    pub fn flush(&self) -> Result<()> {
        self.stream().flush()
    }

    /// Makes everything stable, and the next opening short.
    ///
    /// # Errors
    /// As [`Disk::flush`].
    pub fn close(self) -> Result<()> {
        let mut stream = self.stream();
        match stream.save() {
            Err(error) if error.errno() == Errno::NOSPC => stream.flush(),
            done => done,
        }
    }
}
