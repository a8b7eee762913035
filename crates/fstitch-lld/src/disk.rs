//! The disk: what clients call.

use std::sync::Arc;

use fstitch_core::lock::{Condvar, MutexGuard};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, CheckReport, Errno, Error, Result};

use crate::check::Progress;
use crate::log::{Contents, Counters};
use crate::options::{At, FormatOptions, Info, Options, Space, Visibility};
use crate::record::{BlockId, Label, ListId, Record};
use crate::recovery::{Recovered, recover};
use crate::shape::Shape;
use crate::shared::Held;
use crate::state::{BlockEntry, damaged};
use crate::stream::{RECORD_MAX, Stream};

/// Blocks that are removed at a time.
const STRETCH: u64 = 4096;

/// A logical disk (\[A\] §2). Operations outside of units are atomic by themselves, and happen in the order in which they return.
pub struct Disk {
    held: Held,
    /// A unit has ended, for those who wait for their turn; `None` if nobody need.
    turns: Option<Condvar>,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) block_size: usize,
    pub(crate) visibility: Visibility,
}

impl Disk {
    /// Makes an empty disk on a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the sizes do not fit; those of the device.
    pub fn format(device: Arc<dyn BlockDevice>, options: &FormatOptions) -> Result<()> {
        let fitting = Shape::fitting(&*device, options.uuid, options.block_size, options.segment_size)?;
        let generation = Shape::generations(&*device)?;
        let shape = Shape { generation, compression: options.compression, ..fitting };
        Stream::format(device, shape, Options::default().keeping())
    }

    /// Opens a disk, and says what was done again after a failure.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is damaged or none, also if something is damaged that was stable: then it can be opened for reading; [`Error::Unsupported`] if it is of another version; those of the device.
    pub fn open(device: Arc<dyn BlockDevice>, options: &Options) -> Result<(Self, Recovered)> {
        let shape = Shape::read(&*device)?;
        let mut stream = Stream::open(Arc::clone(&device), shape, options.keeping())?;
        let recovered = recover(&mut stream)?;
        if let Some(what) = &recovered.damaged
            && !options.read_only
            && !options.accept_loss
        {
            return Err(damaged(format!(
                "{what}; what was before it can be read, and the rest can be given up"
            )));
        }
        if options.read_only {
            stream.poison = Some(Errno::ROFS.into());
        } else {
            stream.save()?;
        }
        let block_size = to_usize(shape.block_size);
        let disk = Self {
            held: Held::new(stream, options.background),
            turns: options.sequential.then(Condvar::new),
            device,
            block_size,
            visibility: options.visibility,
        };
        Ok((disk, recovered))
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    pub(crate) fn stream(&self) -> MutexGuard<'_, Stream> {
        self.held.shared().lock()
    }

    /// A unit begins, when it may.
    pub(crate) fn begin_unit(&self) -> u64 {
        let mut stream = self.stream();
        if let Some(turns) = &self.turns {
            while !stream.units.open.is_empty() {
                stream = turns.wait(stream, |_| panic!("another thread panicked with the disk in its hands"));
            }
        }
        stream.units.begin()
    }

    /// A unit has ended or is dropped.
    pub(crate) fn has_ended(&self) {
        self.turns.iter().for_each(Condvar::notify_all);
    }

    /// Everything up to now is stable when this returns.
    pub(crate) fn make_stable<'a>(&'a self, stream: MutexGuard<'a, Stream>) -> Result<()> {
        self.held.shared().make_stable(stream)
    }

    /// One operation outside of units.
    fn operate<T>(&self, work: impl FnOnce(&mut Stream) -> Result<T>) -> Result<T> {
        let mut stream = self.stream();
        let done = work(&mut stream);
        self.settle(stream);
        done
    }

    /// Keeps what is queued within bounds, after an operation.
    pub(crate) fn settle<'a>(&'a self, stream: MutexGuard<'a, Stream>) {
        self.held.settle(stream);
    }

    /// How much can be stored.
    #[must_use]
    pub fn space(&self) -> Space {
        let (all, used) = self.stream().space_bytes();
        Space { all, used }
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
        self.operate(|stream| {
            stream.make_space(stream.page_units().into())?;
            stream.make_room(RECORD_MAX, 0)?;
            let list = stream.state.next_list;
            stream.perform(&Record::NewList { list, sparse })?;
            Ok(list)
        })
    }

    /// Removes a list with its blocks.
    ///
    /// # Errors
    /// `ENOENT` if there is none.
    pub fn delete_list(&self, list: ListId) -> Result<()> {
        self.operate(|stream| {
            stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
            stream.make_room(RECORD_MAX, 0)?;
            // Those that the open chunk has contents of are few.
            stream.forget_contents_of(list)?;
            stream.perform(&Record::DeleteList { list })
        })
    }

    /// Makes a block, which reads as zeros.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, or no such block in it; `EEXIST` if the position is taken; `EINVAL` if the place is none of
    /// this kind of list; `ENOSPC`.
    pub fn new_block(&self, list: ListId, at: At) -> Result<BlockId> {
        self.operate(|stream| {
            let entry = stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
            stream.make_space(stream.page_units().into())?;
            stream.make_room(2 * RECORD_MAX, 0)?;
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
        })
    }

    /// A label in an ordered list; others move where there is none.
    pub(crate) fn gap(stream: &mut Stream, list: ListId, after: Option<Label>) -> Result<Label> {
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
        self.operate(|stream| {
            Self::entry(stream, block)?;
            stream.make_room(RECORD_MAX, 0)?;
            stream.perform(&Record::Delete { block })
        })
    }

    /// Removes the blocks of a sparse list at the positions from one up to another one. Not all at once: so many blocks at a time that
    /// others need not wait. Returns how many there were.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, `EINVAL` if it is not sparse.
    pub fn delete_range(&self, list: ListId, from: u64, last: u64) -> Result<u64> {
        let mut removed = 0;
        let mut from = Some(from);
        while let Some(start) = from {
            let (count, next) = self.operate(|stream| Self::delete_stretch(stream, list, start, last))?;
            removed += count;
            from = next;
        }
        Ok(removed)
    }

    /// Removes some blocks. Returns how many, and where to go on.
    fn delete_stretch(stream: &mut Stream, list: ListId, from: u64, last: u64) -> Result<(u64, Option<u64>)> {
        let entry = stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
        if !entry.sparse {
            return Err(Errno::INVAL.into());
        }
        let stretch = stream.state.stretch(list, from, last, STRETCH)?;
        let (Some(&(from, _)), Some(&(last, _))) = (stretch.first(), stretch.last()) else {
            return Ok((0, None));
        };
        stream.make_room(RECORD_MAX, 0)?;
        stretch.iter().for_each(|(_, block)| stream.log.drop_contents(*block));
        stream.perform(&Record::DeleteRange { list, from, last })?;
        let is_all = to_u64(stretch.len()) < STRETCH;
        Ok((to_u64(stretch.len()), last.checked_add(1).filter(|_| !is_all)))
    }

    /// Writes the block at a position of a sparse list; makes it where there is none.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, `EINVAL` if it is not sparse or `contents` are not one block; `ENOSPC`.
    pub fn write_at(&self, list: ListId, position: u64, contents: &[u8]) -> Result<()> {
        if contents.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let contents = summed(contents);
        self.operate(|stream| {
            let entry = stream.state.lists.get(&list)?.ok_or(Errno::NOENT)?;
            if !entry.sparse {
                return Err(Errno::INVAL.into());
            }
            let there = stream.state.order.get(&(list, position))?;
            match there {
                Some(block) => stream.make_space_to_write(block)?,
                None => stream.make_space((stream.shape.block_units() + stream.page_units()).into())?,
            }
            stream.make_room(2 * RECORD_MAX, 1)?;
            let block = there.unwrap_or(stream.state.next_block);
            if there.is_none() {
                stream.perform(&Record::Insert { block, list, label: position })?;
            }
            stream.perform_write(block, contents, true);
            Ok(())
        })
    }

    pub(crate) fn entry(stream: &Stream, block: BlockId) -> Result<BlockEntry> {
        stream.state.blocks.get(&block)?.ok_or(Error::Errno(Errno::NOENT))
    }

    /// Writes a block.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EINVAL` if `contents` are not one block; `ENOSPC`.
    pub fn write(&self, block: BlockId, contents: &[u8]) -> Result<()> {
        if contents.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let contents = summed(contents);
        self.operate(|stream| {
            Self::entry(stream, block)?;
            stream.make_space_to_write(block)?;
            stream.make_room(RECORD_MAX, 1)?;
            stream.perform_write(block, contents, true);
            Ok(())
        })
    }

    /// Makes everything stable that has returned.
    ///
    /// # Errors
    /// Those of the device, from then on for ever.
    pub fn flush(&self) -> Result<()> {
        self.make_stable(self.stream())
    }

    /// Makes everything stable, and has recovery begin here: what was only needed before is free. Happens by itself every now and then.
    ///
    /// # Errors
    /// `ENOSPC` if the maps have no room: then everything is as it was. Those of the device, from then on for ever.
    pub fn checkpoint(&self) -> Result<()> {
        self.stream().save()
    }

    /// Empties some segments, so that as many as this are free for whoever comes next. Happens by itself when few are.
    ///
    /// # Errors
    /// Those of the device.
    pub fn clean(&self, segments: u64) -> Result<()> {
        let stream = &mut *self.stream();
        stream.check_poison()?;
        let wanted = to_u64(stream.segments.free.len()).saturating_add(segments).min(stream.shape.segments);
        stream.clean(wanted)
    }

    /// Checks everything, also the contents of blocks if asked for; calls `each` every now and then. Nobody else has the disk meanwhile.
    ///
    /// # Errors
    /// Those of the device where it is not what is checked.
    pub fn check(&self, contents: bool, each: &mut dyn FnMut(Progress)) -> Result<CheckReport> {
        crate::check::check(&self.stream(), contents, each)
    }

    /// What the disk is.
    #[must_use]
    pub fn info(&self) -> Info {
        let stream = self.stream();
        let (checkpoint, shape) = (stream.checkpoint(), &stream.shape);
        Info {
            uuid: shape.uuid,
            block_size: shape.block_size,
            segment_size: shape.unit * shape.segment_units,
            compression: shape.compression,
            segments: shape.segments,
            free_segments: to_u64(stream.segments.free.len()),
            blocks: stream.state.blocks.tree.len(),
            lists: stream.state.lists.tree.len(),
            checkpoint: checkpoint.number,
            epoch: checkpoint.epoch,
            chunk: stream.log.position().number - 1,
            open_units: stream.units.open.len(),
            shadows: stream.units.shadows(),
        }
    }

    /// Makes everything stable, and the next opening short.
    ///
    /// # Errors
    /// As [`Disk::flush`].
    pub fn close(self) -> Result<()> {
        let mut stream = self.stream();
        if matches!(stream.poison, Some(Error::Errno(Errno::ROFS))) {
            return Ok(());
        }
        match stream.save() {
            Err(error) if error.errno() == Errno::NOSPC => stream.flush(),
            done => done,
        }
    }
}

/// Contents to keep, and their sum: made by whoever writes them, before he has the disk.
fn summed(contents: &[u8]) -> (Contents, u32) {
    (contents.into(), crc32c::crc32c(contents))
}
