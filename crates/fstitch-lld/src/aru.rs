//! Units as clients have them, and how they end (\[A\] §3, §4).

use std::ops::Deref;
use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{Errno, Error, Result};

use crate::conflict::{EndError, check};
use crate::disk::Disk;
use crate::options::At;
use crate::record::{BlockId, ListId, Record};
use crate::segments::Run;
use crate::space::Needs;
use crate::stream::{RECORD_MAX, Stream};
use crate::unit::{ListOp, Stored, Unit};
use crate::view::Seen;

/// An atomic recovery unit that has not ended. Dropping it aborts it.
pub struct Aru<'a> {
    disk: Handle<'a>,
    unit: u64,
    has_ended: bool,
}

/// Whose disk a unit is of.
#[derive(Clone)]
enum Handle<'a> {
    Borrowed(&'a Disk),
    Shared(Arc<Disk>),
}

impl Deref for Handle<'_> {
    type Target = Disk;

    fn deref(&self) -> &Disk {
        match self {
            Self::Borrowed(disk) => disk,
            Self::Shared(disk) => disk,
        }
    }
}

impl Disk {
    /// Begins a unit (\[A\] §3): its operations happen all at once when it ends, or not at all.
    #[must_use]
    pub fn begin(&self) -> Aru<'_> {
        Aru { disk: Handle::Borrowed(self), unit: self.begin_unit(), has_ended: false }
    }

    /// As [`Disk::begin`], for a unit that keeps the disk.
    #[must_use]
    pub fn begin_shared(self: &Arc<Self>) -> Aru<'static> {
        Aru { disk: Handle::Shared(Arc::clone(self)), unit: self.begin_unit(), has_ended: false }
    }
}

impl Drop for Aru<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.disk.stream().forget_unit(self.unit);
        }
        self.disk.has_ended();
    }
}

impl Aru<'_> {
    /// A change that takes memory for a block.
    fn change_contents<T>(&self, work: impl FnOnce(&mut Unit, &mut Stream, u64) -> Result<T>) -> Result<T> {
        self.change_with(self.disk.block_size, work)
    }

    fn change<T>(&self, work: impl FnOnce(&mut Unit, &mut Stream, u64) -> Result<T>) -> Result<T> {
        self.change_with(0, work)
    }

    fn change_with<T>(
        &self,
        bytes: usize,
        work: impl FnOnce(&mut Unit, &mut Stream, u64) -> Result<T>,
    ) -> Result<T> {
        let stream = &mut *self.disk.stream();
        stream.check_poison()?;
        if bytes > 0 {
            stream.make_memory(bytes)?;
        }
        let now = stream.units.tick();
        let mut unit = stream.units.open.remove(&self.unit).expect("it has not ended");
        let done = work(&mut unit, stream, now);
        let left = std::mem::take(&mut unit.left);
        stream.units.open.insert(self.unit, unit);
        left.into_iter().for_each(|run| stream.leave_spilled(run));
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
        self.change_contents(|unit, stream, now| {
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

    /// As [`Disk::read_at`].
    ///
    /// # Errors
    /// As there.
    pub fn read_at(&self, list: ListId, position: u64, into: &mut [u8]) -> Result<()> {
        self.disk.read_at_as(Some(self.unit), list, position, into)
    }

    /// As [`Disk::write_at`].
    ///
    /// # Errors
    /// As there.
    pub fn write_at(&self, list: ListId, position: u64, contents: &[u8]) -> Result<()> {
        if contents.len() != self.disk.block_size {
            return Err(Errno::INVAL.into());
        }
        self.change_contents(|unit, stream, now| {
            let block = match (Seen { unit: Some(unit), state: &stream.state }).at(list, position)? {
                Some(block) => block,
                None => {
                    let block = stream.state.next_block;
                    unit.insert(block, list, At::Position(position), &stream.state, now)?;
                    stream.state.next_block += 1;
                    block
                }
            };
            unit.write(block, list, contents.into(), now);
            Ok(())
        })
    }

    /// As [`Disk::delete_range`].
    ///
    /// # Errors
    /// As there.
    pub fn delete_range(&self, list: ListId, from: u64, last: u64) -> Result<u64> {
        let (mut removed, mut from) = (0, from);
        while let Some((position, block)) = self.next_at(list, from)?.filter(|(at, _)| *at <= last) {
            self.delete_block(block)?;
            removed += 1;
            let Some(next) = position.checked_add(1) else { break };
            from = next;
        }
        Ok(removed)
    }

    /// As [`Disk::next_at`].
    ///
    /// # Errors
    /// As there.
    pub fn next_at(&self, list: ListId, position: u64) -> Result<Option<(u64, BlockId)>> {
        self.disk.next_at_as(Some(self.unit), list, position)
    }

    /// As [`Disk::block_at`].
    ///
    /// # Errors
    /// As there.
    pub fn block_at(&self, list: ListId, position: u64) -> Result<Option<BlockId>> {
        self.disk.block_at_as(Some(self.unit), list, position)
    }

    /// As [`Disk::block_after`].
    ///
    /// # Errors
    /// As there.
    pub fn block_after(&self, list: ListId, block: BlockId) -> Result<Option<BlockId>> {
        self.disk.neighbour_as(Some(self.unit), list, block, true)
    }

    /// As [`Disk::block_before`].
    ///
    /// # Errors
    /// As there.
    pub fn block_before(&self, list: ListId, block: BlockId) -> Result<Option<BlockId>> {
        self.disk.neighbour_as(Some(self.unit), list, block, false)
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
        let disk = self.disk.clone();
        let mut stream = disk.stream();
        let done = self.end_in(&mut stream);
        disk.settle(stream);
        done
    }

    /// Everything happens now, and is stable.
    ///
    /// # Errors
    /// As [`Aru::end`]; if the medium fails, nobody knows.
    pub fn end_durable(self) -> Result<(), EndError> {
        let disk = self.disk.clone();
        let mut stream = disk.stream();
        self.end_in(&mut stream)?;
        stream.log.counters.durable += 1;
        Ok(disk.make_stable(stream)?)
    }

    fn end_in(mut self, stream: &mut Stream) -> Result<(), EndError> {
        self.has_ended = true;
        if stream.units.open[&self.unit].has_done_nothing() {
            stream.forget_unit(self.unit);
            return Ok(note_empty(stream)?);
        }
        let needs = match self.prepare(stream) {
            Ok(needs) => needs,
            Err(error) => {
                stream.forget_unit(self.unit);
                return Err(error);
            }
        };
        let mut unit = stream.units.open.remove(&self.unit).expect("it has not ended");
        stream.ending = Some(self.unit);
        let done = perform_unit(stream, &mut unit, &needs);
        stream.ending = None;
        stream.log.counters.units += 1;
        if let Err(error) = &done {
            // A part of it is noted: without its end it will never happen, and nothing after it either.
            stream.poison.get_or_insert(Error::Poisoned(error.to_string().into()));
        }
        Ok(done?)
    }

    /// Makes sure that it can be done.
    fn prepare(&self, stream: &mut Stream) -> Result<Needs, EndError> {
        stream.check_poison()?;
        let unit = &stream.units.open[&self.unit];
        check(unit, &stream.state)?;
        let (contents, needs) = (new_contents(unit, stream)?, needs(unit));
        let pages = if needs.inserts > 0 { u64::from(stream.page_units()) } else { 0 };
        if contents > 0 {
            stream.make_space(contents + pages)?;
        } else {
            stream.make_space_for_pages(pages)?;
        }
        stream.make_room_for_unit(&needs)?;
        Ok(needs)
    }

    /// Nothing happens.
    pub fn abort(self) {}
}

/// Notes a unit that has done nothing: nobody can be in conflict with it, and it takes no space.
fn note_empty(stream: &mut Stream) -> Result<()> {
    // Both records are in one chunk.
    stream.make_room(2 * RECORD_MAX, 0)?;
    stream.log.note(&Record::Begin);
    stream.log.note(&Record::Commit);
    stream.log.counters.units += 1;
    Ok(())
}

/// What the end of a unit takes until the cleaner comes by.
fn needs(unit: &Unit) -> Needs {
    let mut needs = Needs { blocks: to_u64(unit.written_in_memory().count()), ..Needs::default() };
    let mut deleted = Needs::default();
    for op in unit.list_ops() {
        match op {
            ListOp::Delete { .. } | ListOp::DeleteList { .. } => deleted.add(1, 11),
            ListOp::NewList { .. } => needs.add(1, 12),
            ListOp::Insert { at: At::Position(_), .. } => needs.add(1, 31),
            // Labels of others may move.
            ListOp::Insert { .. } => needs.add(2, 51),
        }
    }
    needs.inserts = needs.records;
    needs.add(deleted.records, 11);
    // Those that are spilled need no room but for the record.
    needs.add(to_u64(unit.writes()), 32);
    needs.add(2, 1);
    needs
}

/// Blocks of the device that contents of a unit take more than what they replace.
fn new_contents(unit: &Unit, stream: &Stream) -> Result<u64> {
    let mut units = 0;
    for block in unit.written_in_memory() {
        let entry = stream.state.blocks.get(&block)?.unwrap_or_default();
        units += stream.net_units(block, &entry);
    }
    Ok(units)
}

/// Does what a unit does, which can be done.
fn perform_unit(stream: &mut Stream, unit: &mut Unit, needs: &Needs) -> Result<()> {
    let perform = |stream: &mut Stream, record: &Record| {
        stream.make_room(RECORD_MAX, 0)?;
        stream.perform(record)
    };
    perform(stream, &Record::Begin)?;
    let (chunk, is_whole) = (stream.log.position().number, stream.has_room_for_rest(needs));
    for op in unit.list_ops().to_vec() {
        match op {
            ListOp::NewList { list, sparse } => perform(stream, &Record::NewList { list, sparse })?,
            ListOp::DeleteList { list } => {
                stream.forget_contents_of(list)?;
                perform(stream, &Record::DeleteList { list })?;
            }
            ListOp::Delete { block } => perform(stream, &Record::Delete { block })?,
            ListOp::Insert { block, list, at } => {
                stream.make_room(2 * RECORD_MAX, 0)?;
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
    for (block, stored) in unit.take_writes() {
        // It may have been deleted with its list after it was written.
        let is_there = stream.state.blocks.get(&block)?.is_some();
        match stored {
            Stored::Memory(contents) if is_there => {
                stream.make_room(RECORD_MAX, 1)?;
                let sum = crc32c::crc32c(&contents);
                stream.perform_write(block, (contents, sum), is_whole);
            }
            Stored::Memory(_) => {}
            Stored::Spilled(Run { place, len, sum }) => {
                if is_there {
                    perform(stream, &Record::Found { block, place, len, sum })?;
                }
                stream.leave_spilled(Run { place, len, sum });
            }
        }
    }
    perform(stream, &Record::Commit)?;
    assert!(!is_whole || stream.log.position().number == chunk, "a unit took more than it needs");
    Ok(())
}
