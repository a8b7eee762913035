//! The disk: what clients call.

use std::sync::Arc;

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::num::to_usize;
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, Errno, Error, Result};

use crate::conflict::{EndError, check};
use crate::log::Counters;
use crate::record::{BlockId, Label, ListId, Record};
use crate::recovery::{Recovered, recover};
use crate::shape::Shape;
use crate::state::BlockEntry;
use crate::stream::{Keeping, RECORD_MAX, Stream};
use crate::unit::{ListOp, Seen, Unit};

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

/// Which version of a block or list is read (\[A\] §3.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Visibility {
    /// Everybody reads what any unit has changed last: the first option of the paper.
    Latest,
    /// Everybody reads what is committed, units too: the second.
    Committed,
    /// A unit reads what it has changed, and everybody else what is committed: the third, as the paper's prototype.
    #[default]
    Own,
}

/// How a disk is opened.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is read while units are open.
    pub visibility: Visibility,
    /// Bytes of maps that may be in memory.
    pub cache_size: usize,
    /// Bytes of log after which a checkpoint is made: what recovery has to read.
    pub checkpoint_interval: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { visibility: Visibility::default(), cache_size: 128 << 20, checkpoint_interval: 64 << 20 }
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
    visibility: Visibility,
}

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
        Ok((Self { stream: Mutex::new(stream), block_size, visibility: options.visibility }, recovered))
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
        self.read_as(None, block, into)
    }

    fn read_as(&self, unit: Option<u64>, block: BlockId, into: &mut [u8]) -> Result<()> {
        if into.len() != self.block_size {
            return Err(Errno::INVAL.into());
        }
        let stream = self.stream();
        let unit = unit.and_then(|unit| stream.units.open.get(&unit));
        let shadow = match self.visibility {
            Visibility::Latest => stream.units.newest_contents(block),
            Visibility::Committed => None,
            Visibility::Own => unit.and_then(|unit| unit.contents(block)),
        };
        if let Some(shadow) = shadow {
            into.copy_from_slice(&shadow);
            return Ok(());
        }
        // Where it is and whether it is there is the unit's own business.
        let seen =
            Seen { unit: unit.filter(|_| self.visibility != Visibility::Committed), state: &stream.state };
        if unit.is_some() && seen.list_of(block)?.is_none() {
            return Err(Errno::NOENT.into());
        }
        if seen.unit.is_some_and(|unit| unit.has_made(block)) {
            into.fill(0);
            return Ok(());
        }
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
        self.block_at_as(None, list, position)
    }

    fn block_at_as(&self, unit: Option<u64>, list: ListId, position: u64) -> Result<Option<BlockId>> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        if seen.list(list)?.ok_or(Errno::NOENT)? {
            return seen.at(list, position);
        }
        if position >= seen.len(list)? { Ok(None) } else { seen.select(list, position) }
    }

    /// The first block of a sparse list at a position or behind it, with its position: what follows a gap is found without asking for
    /// every position of it.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list, `EINVAL` if it is ordered.
    pub fn first_at(&self, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        self.first_at_as(None, list, position)
    }

    fn first_at_as(&self, unit: Option<u64>, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        if seen.list(list)?.ok_or(Errno::NOENT)? {
            seen.first_at(list, position)
        } else {
            Err(Errno::INVAL.into())
        }
    }

    /// The first list with this number or a higher one, in the committed state.
    ///
    /// # Errors
    /// Those of the device.
    pub fn next_list(&self, from: ListId) -> Result<Option<ListId>> {
        let stream = self.stream();
        let lists = &stream.state.lists;
        Ok(lists.tree.at_or_after(&from, &lists.pages)?.map(|(list, _)| list))
    }

    /// How many blocks a list has.
    ///
    /// # Errors
    /// `ENOENT` if there is no such list.
    pub fn list_len(&self, list: ListId) -> Result<u64> {
        self.list_len_as(None, list)
    }

    fn list_len_as(&self, unit: Option<u64>, list: ListId) -> Result<u64> {
        let stream = self.stream();
        let seen = self.seen(&stream, unit, list);
        seen.list(list)?.ok_or(Errno::NOENT)?;
        seen.len(list)
    }

    /// Whose version of a list is read.
    fn seen<'a>(&self, stream: &'a Stream, unit: Option<u64>, list: ListId) -> Seen<'a> {
        let unit = match self.visibility {
            Visibility::Latest => stream.units.newest_view(list),
            Visibility::Committed => None,
            Visibility::Own => unit.and_then(|unit| stream.units.open.get(&unit)),
        };
        Seen { unit, state: &stream.state }
    }

    /// Begins a unit (\[A\] §3): its operations happen all at once when it ends, or not at all.
    #[must_use]
    pub fn begin(&self) -> Aru<'_> {
        let unit = self.stream().units.begin();
        Aru { disk: self, unit, has_ended: false }
    }

    /// Makes everything stable that has returned.
    ///
    /// # Errors
    /// Those of the device, from then on for ever.
    pub fn flush(&self) -> Result<()> {
        self.stream().flush()
    }

    /// Makes everything stable, and has recovery begin here: what was only needed before is free. Happens by itself every now and then.
    ///
    /// # Errors
    /// `ENOSPC` if the maps have no room: then everything is as it was. Those of the device, from then on for ever.
    pub fn checkpoint(&self) -> Result<()> {
        self.stream().save()
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

/// An atomic recovery unit that has not ended. Dropping it aborts it.
pub struct Aru<'a> {
    disk: &'a Disk,
    unit: u64,
    has_ended: bool,
}

impl Drop for Aru<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.disk.stream().units.open.remove(&self.unit);
        }
    }
}

impl Aru<'_> {
    fn change<T>(&self, work: impl FnOnce(&mut Unit, &mut Stream, u64) -> Result<T>) -> Result<T> {
        let stream = &mut *self.disk.stream();
        stream.check_poison()?;
        let now = stream.units.tick();
        let mut unit = stream.units.open.remove(&self.unit).expect("it has not ended");
        let done = work(&mut unit, stream, now);
        stream.units.open.insert(self.unit, unit);
        done
    }

    /// As [`Disk::new_list`]; nobody else sees the list before the end.
    ///
    /// # Errors
    /// As there.
    pub fn new_list(&self, sparse: bool) -> Result<ListId> {
        self.change(|unit, stream, now| {
            let list = stream.state.next_list;
            stream.state.next_list += 1;
            unit.make_list(list, sparse, now);
            Ok(list)
        })
    }

    /// As [`Disk::delete_list`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_list(&self, list: ListId) -> Result<()> {
        self.change(|unit, stream, now| {
            Seen { unit: Some(unit), state: &stream.state }.list(list)?.ok_or(Errno::NOENT)?;
            unit.delete_list(list, &stream.state, now)
        })
    }

    /// As [`Disk::new_block`]. The number is nobody else's from now on; the block is in its list at the end (\[A\] §3.3).
    ///
    /// # Errors
    /// As there.
    pub fn new_block(&self, list: ListId, at: At) -> Result<BlockId> {
        self.change(|unit, stream, now| {
            let block = stream.state.next_block;
            unit.insert(block, list, at, &stream.state, now)?;
            stream.state.next_block += 1;
            Ok(block)
        })
    }

    /// As [`Disk::delete_block`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_block(&self, block: BlockId) -> Result<()> {
        self.change(|unit, stream, now| {
            let list = Seen { unit: Some(unit), state: &stream.state }.list_of(block)?.ok_or(Errno::NOENT)?;
            unit.delete(block, list, &stream.state, now)
        })
    }

    /// As [`Disk::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&self, block: BlockId, contents: &[u8]) -> Result<()> {
        if contents.len() != self.disk.block_size {
            return Err(Errno::INVAL.into());
        }
        self.change(|unit, stream, now| {
            let list = Seen { unit: Some(unit), state: &stream.state }.list_of(block)?.ok_or(Errno::NOENT)?;
            unit.write(block, list, contents.into(), now);
            Ok(())
        })
    }

    /// As [`Disk::read`]; by default it sees what the unit has written.
    ///
    /// # Errors
    /// As there.
    pub fn read(&self, block: BlockId, into: &mut [u8]) -> Result<()> {
        self.disk.read_as(Some(self.unit), block, into)
    }

    /// As [`Disk::block_at`].
    ///
    /// # Errors
    /// As there.
    pub fn block_at(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        self.disk.block_at_as(Some(self.unit), list, position)
    }

    /// As [`Disk::first_at`].
    ///
    /// # Errors
    /// As there.
    pub fn first_at(&self, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        self.disk.first_at_as(Some(self.unit), list, position)
    }

    /// As [`Disk::list_len`].
    ///
    /// # Errors
    /// As there.
    pub fn list_len(&self, list: ListId) -> Result<u64> {
        self.disk.list_len_as(Some(self.unit), list)
    }

    /// Everything happens now.
    ///
    /// # Errors
    /// [`EndError`], and nothing has happened.
    pub fn end(self) -> Result<(), EndError> {
        let disk = self.disk;
        self.end_in(&mut disk.stream())
    }

    /// Everything happens now, and is stable.
    ///
    /// # Errors
    /// As [`Aru::end`]; if the medium fails, nobody knows.
    pub fn end_durable(self) -> Result<(), EndError> {
        let disk = self.disk;
        let stream = &mut *disk.stream();
        self.end_in(stream)?;
        Ok(stream.flush()?)
    }

    fn end_in(mut self, stream: &mut Stream) -> Result<(), EndError> {
        self.has_ended = true;
        let mut unit = stream.units.open.remove(&self.unit).expect("it has not ended");
        check(&unit, &stream.state)?;
        // Each insertion may have labels moved.
        stream.make_room_for_unit(2 * unit.list_ops().len() + unit.writes() + 2, unit.writes())?;
        stream.ending = Some(self.unit);
        let done = perform_unit(stream, &mut unit);
        stream.ending = None;
        if let Err(error) = &done {
            // A part of it is noted: without its end it will never happen, and nothing after it either.
            stream.poison.get_or_insert(Error::Poisoned(error.to_string().into()));
        }
        Ok(done?)
    }

    /// Nothing happens.
    pub fn abort(self) {}
}

/// Does what a unit does, which can be done.
fn perform_unit(stream: &mut Stream, unit: &mut Unit) -> Result<()> {
    let perform = |stream: &mut Stream, record: &Record| {
        stream.make_room(RECORD_MAX, 0, false)?;
        stream.perform(record)
    };
    perform(stream, &Record::Begin)?;
    for op in unit.list_ops().to_vec() {
        match op {
            ListOp::NewList { list, sparse } => perform(stream, &Record::NewList { list, sparse })?,
            ListOp::DeleteList { list } => {
                stream.forget_contents_of(list)?;
                perform(stream, &Record::DeleteList { list })?;
            }
            ListOp::Delete { block } => perform(stream, &Record::Delete { block })?,
            ListOp::Insert { block, list, at } => {
                stream.make_room(2 * RECORD_MAX, 0, false)?;
                let label = match at {
                    At::Position(position) => position,
                    At::Start => Disk::gap(stream, list, None)?,
                    At::After(before) => {
                        let label = stream.state.block(before)?.label;
                        Disk::gap(stream, list, Some(label))?
                    }
                };
                stream.perform(&Record::Insert { block, list, label })?;
            }
        }
    }
    for (block, contents) in unit.take_writes() {
        // It may have been deleted with its list after it was written.
        if stream.state.blocks.get(&block)?.is_some() {
            stream.make_room(RECORD_MAX, 1, false)?;
            stream.perform_write(block, contents, false);
        }
    }
    perform(stream, &Record::Commit)
}
