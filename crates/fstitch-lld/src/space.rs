//! Who may take how much of the disk.
//!
//! What is alive may take most of the segments; the rest is what the cleaner and checkpoints work with, so that they always can. Two
//! questions are asked of everything that is to be noted: is there *space*, which only what stays takes, and *room*, which everything
//! takes until the cleaner comes by.

use fstitch_core::num::to_u64;
use fstitch_core::{Errno, Result};

use crate::pages::PAGE;
use crate::record::BlockId;
use crate::shape::Shape;
use crate::state::State;
use crate::stream::{RECORD_MAX, Stream};

/// Free segments that a pass of the cleaner fills before it has emptied any.
const RESERVE: u64 = 4;
/// What is being written and never full: the log's segment, the next one, the cleaner's, and some that are full of small chunks.
const OPEN: u64 = 5;
/// Of all segments, how many are never full, in percent.
const SPARE_PERCENT: u64 = 4;
/// Changed pages with which a checkpoint is made, at most.
const CHANGED_MAX: u64 = 8192;
/// Changed pages below which a checkpoint gives nothing back that is worth it.
const CHANGED_MIN: u64 = 32;
/// Bytes that a block takes in the trees, as a rule: an entry in that of blocks and one in that of orders, in pages that are not full.
const MAP_BYTES: u64 = 90;

/// What a block takes in a summary, at most: its descriptor and its record.
const BLOCK_BYTES: u64 = 24 + 16;
/// How many blocks that are made take a page more, at least: their entries fill a page of blocks, and half of one of orders.
const INSERTS_PER_PAGE: u64 = 40;

/// What the end of a unit needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    /// Records.
    pub(crate) records: u64,
    /// Bytes of those that are no writes.
    pub(crate) bytes: u64,
    /// Blocks and lists that are made.
    pub(crate) inserts: u64,
    /// Contents that are in memory.
    pub(crate) blocks: u64,
}

impl Needs {
    /// Adds so many records of so many bytes at most.
    pub(crate) fn add(&mut self, records: u64, bytes: u64) {
        self.records += records;
        self.bytes += records * bytes;
    }
}

/// Blocks of the device that what is alive may take: what remains when the cleaner and checkpoints have theirs.
pub(crate) fn space_of(shape: &Shape) -> u64 {
    let segments = shape.segments;
    let spare = (segments * SPARE_PERCENT).div_ceil(100);
    let bytes = segments * u64::from(shape.segment_units) / u64::from(shape.block_units()) * MAP_BYTES;
    let map = bytes.div_ceil(to_u64(PAGE)).min(CHANGED_MAX);
    let checkpoints = 2 * (map.div_ceil(pages_per_segment(shape)) + 1);
    segments.saturating_sub(spare + checkpoints + RESERVE + OPEN) * u64::from(shape.usable_units())
}

/// Pages that a segment has room for.
fn pages_per_segment(shape: &Shape) -> u64 {
    let page = to_u64(PAGE) / u64::from(shape.unit);
    (u64::from(shape.segment_units) / page).saturating_sub(1).max(1)
}

impl Stream {
    /// Blocks of the device that a page takes.
    pub(crate) fn page_units(&self) -> u32 {
        u32::try_from(PAGE / self.shape.unit_bytes()).expect("a page has a few blocks")
    }

    /// Pages that the next checkpoint has to write, and those that lead to them.
    pub(crate) fn changed_pages(&self) -> u64 {
        to_u64(self.state.changed_pages() + self.usage.tree.changed_pages())
    }

    /// Pages that a segment has room for.
    fn pages_per_segment(&self) -> u64 {
        pages_per_segment(&self.shape)
    }

    /// Segments that a checkpoint would take now, and after so many more changes.
    pub(crate) fn checkpoint_segments(&self, more: u64) -> u64 {
        // Each segment that has changed is an entry of the tree of segments, and many share a page.
        let usage = to_u64(self.segments.changed.len()).min(self.shape.segments / 64 + 1) + 3;
        (self.changed_pages() + usage + more).div_ceil(self.pages_per_segment()) + 1
    }

    /// Pages that may have changed before a checkpoint is made: half of what may be kept.
    fn changed_most(&self) -> u64 {
        to_u64(self.budget.most / 2).min(CHANGED_MAX)
    }

    /// Segments that the largest checkpoint takes.
    fn largest_checkpoint(&self) -> u64 {
        let pages = (self.pages + self.changed_pages()).min(self.changed_most());
        self.checkpoint_segments(pages.saturating_sub(self.changed_pages()) + 8)
    }

    /// Blocks of the device that it takes.
    pub(crate) fn space_used(&self) -> u64 {
        let changed = self.changed_pages() * u64::from(self.page_units());
        self.segments.live + self.own.all + self.spilled.all + u64::from(self.log.data_units()) + changed
    }

    /// Makes sure that there is space for so many more blocks of the device.
    ///
    /// # Errors
    /// `ENOSPC`, and those of the device.
    pub(crate) fn make_space(&mut self, units: u64) -> Result<()> {
        self.make_space_within(units, self.space)
    }

    /// Makes sure that there is space for new contents of a block that is there. Only where little is left it is asked what the block
    /// has.
    ///
    /// # Errors
    /// As [`Stream::make_space`].
    pub(crate) fn make_space_to_write(&mut self, block: BlockId) -> Result<()> {
        if self.space_used() + u64::from(self.shape.block_units()) <= self.space {
            return self.check_poison();
        }
        let entry = self.state.block(block)?;
        self.make_space(self.net_units(block, &entry))
    }

    /// As [`Stream::make_space`], for what stores nothing new and may take a part of what is spare for its pages: a removal must be
    /// possible on a full disk, and what remembers it takes a little.
    pub(crate) fn make_space_for_pages(&mut self, units: u64) -> Result<()> {
        let spare = self.shape.segments.div_ceil(100) * u64::from(self.shape.usable_units());
        self.make_space_within(units, self.space + spare)
    }

    fn make_space_within(&mut self, units: u64, limit: u64) -> Result<()> {
        self.check_poison()?;
        if self.space_used() + units <= limit {
            return Ok(());
        }
        // What has changed since the last checkpoint counts twice, and what the open chunk replaces is not given back yet.
        if self.changed_pages() > CHANGED_MIN || !self.log.is_empty() {
            self.save_if_possible()?;
        }
        if self.space_used() + units > limit {
            self.squeeze(limit.saturating_sub(units))?;
        }
        if self.space_used() + units <= limit { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }

    /// Makes room for so many more bytes of records and pieces of data in the open chunk.
    ///
    /// # Errors
    /// `ENOSPC`, and those of the device.
    pub(crate) fn make_room(&mut self, records: usize, data: usize) -> Result<()> {
        self.check_poison()?;
        let units = u32::try_from(data).expect("a few blocks") * self.shape.block_units();
        if self.ending.is_none() {
            // What has changed must fit what is free, or no checkpoint would ever be possible.
            if self.checkpoint_segments(8) + RESERVE > to_u64(self.segments.free.len()) {
                self.make_free(1)?;
            }
            if self.changed_pages() > self.changed_most() {
                self.save_if_possible()?;
            }
        }
        while !self.log.has_room(records, data, units) {
            if self.log.is_empty() {
                self.begin_segment()?;
            } else {
                self.close()?;
            }
        }
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<()> {
        if self.ending.is_none() {
            if self.due == 0 {
                self.save_if_possible()?;
            }
            self.make_free(1)?;
        }
        let done = self.log.next_segment(&mut self.segments);
        self.noted(done)?;
        self.due = self.due.saturating_sub(1);
        Ok(())
    }

    /// Makes sure that so many segments can be taken, and that cleaning and a checkpoint are possible after that.
    pub(crate) fn make_free(&mut self, segments: u64) -> Result<()> {
        // One checkpoint at any time, and one at the end of a pass, which changes pages by what it moves.
        let low = segments + RESERVE + 2 * self.largest_checkpoint();
        if to_u64(self.segments.free.len()) < low {
            self.save_if_possible()?;
        }
        if to_u64(self.segments.free.len()) < low {
            // Some more than that, so that the next ones find them.
            self.clean(low + (self.shape.segments / 32).clamp(2, 64))?;
        }
        // What is kept for the cleaner is there to be taken where it has found nothing.
        let least = segments + 1 + self.checkpoint_segments(0);
        if to_u64(self.segments.free.len()) < least { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// Makes sure that a unit can end without a checkpoint in between.
    ///
    /// # Errors
    /// `ENOSPC`, and those of the device.
    pub(crate) fn make_room_for_unit(&mut self, needs: &Needs) -> Result<()> {
        self.check_poison()?;
        if self.due == 0 {
            self.save_if_possible()?;
        }
        let units = needs.blocks * u64::from(self.shape.block_units());
        // Summaries of all chunks, of which a segment ends at most a block early.
        let more = (needs.bytes + needs.blocks * BLOCK_BYTES).div_ceil(u64::from(self.shape.unit)) + 2;
        let room = u64::from(self.shape.segment_units - self.shape.block_units() - 2);
        let segments = (units + more).div_ceil(room) + 1;
        // A record changes a leaf of up to three trees; no more than there are, and what blocks that are made add to them.
        let most = self.pages + self.changed_pages() + needs.inserts / INSERTS_PER_PAGE + 8;
        let pages = (needs.records * 3).min(most);
        self.make_free(segments + pages.div_ceil(self.pages_per_segment()))
    }

    /// Whether what a unit needs behind its beginning fits the open chunk.
    pub(crate) fn has_room_for_rest(&self, needs: &Needs) -> bool {
        // The last record is noted when there would be room for one more.
        let bytes = usize::try_from(needs.bytes).ok().and_then(|bytes| bytes.checked_add(2 * RECORD_MAX));
        let units = needs.blocks.checked_mul(self.shape.block_units().into());
        match (bytes, usize::try_from(needs.blocks), units.map(u32::try_from)) {
            (Some(bytes), Ok(blocks), Some(Ok(units))) => self.log.has_room(bytes, blocks, units),
            _ => false,
        }
    }

    /// Makes a checkpoint if pages have room.
    pub(crate) fn save_if_possible(&mut self) -> Result<()> {
        match self.save() {
            Err(error) if error.errno() == Errno::NOSPC => Ok(()),
            done => done,
        }
    }

    /// Bytes that clients can store, and how many of them are taken: what would be alive if everything were written now.
    pub(crate) fn space_bytes(&self) -> (u64, u64) {
        let State { blocks, order, lists, .. } = &self.state;
        let left = blocks.tree.left().len() + order.tree.left().len() + lists.tree.left().len();
        let left = (to_u64(left + self.usage.tree.left().len())) * u64::from(self.page_units());
        let pages = self.changed_pages() * u64::from(self.page_units());
        let is_new = |block: &BlockId| matches!(blocks.get(block), Ok(Some(entry)) if entry.place == 0);
        let new = to_u64(self.log.blocks().iter().filter(|block| is_new(block)).count());
        let new = new * u64::from(self.shape.block_units());
        let used = self.segments.live + self.own.all + self.spilled.all + new + pages - left;
        let unit = u64::from(self.shape.unit);
        (self.space * unit, used.min(self.space) * unit)
    }
}
