//! The log: chunks are put together in memory, and written one behind the other, segment by segment.
//!
//! **Invariants.** 1. What the open chunk says has happened in the state already, but for the places of its data, which are known when
//! it is written. 2. A segment is begun only when it is free, and its successor is chosen then. 3. Chunks are written in the order of
//! their numbers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, Result};
use rustc_hash::FxHashMap;

use crate::chunk::{Chain, DataKind, Descriptor, Summary, summary_blocks};
use crate::pages::PAGE;
use crate::record::{BlockId, Record};
use crate::segments::Segments;
use crate::shape::{Position, Shape};
use crate::writer::{Medium, Reached, Sealed};

/// Contents of a block.
pub(crate) type Contents = Arc<[u8]>;

/// Data of the open chunk.
struct Item {
    descriptor: Descriptor,
    bytes: Contents,
}

/// The log of a disk that is open for writing.
pub(crate) struct Log {
    pub(crate) medium: Arc<Medium>,
    shape: Shape,
    epoch: u32,
    /// Where the open chunk goes.
    position: Position,
    /// Up to this chunk everything is stable, for all that is known here.
    stable: u64,
    records: Vec<u8>,
    data: Vec<Item>,
    data_units: u32,
    /// The newest contents of blocks that the open chunk has.
    written: FxHashMap<BlockId, u32>,
    /// What is to be written, in the order of the numbers.
    queue: Vec<Sealed>,
    queued_bytes: u64,
    /// A thread is writing what was queued.
    pub(crate) is_writing: bool,
    /// Contents that may not be on the medium yet, by their place.
    flying: FxHashMap<u64, Contents>,
    /// Of each chunk that may not be there yet, its number and where its data are.
    flights: VecDeque<(u64, Vec<u64>)>,
    /// How often a segment was begun: until then what was found in it does not change.
    begun: Arc<AtomicU64>,
    pub(crate) counters: Counters,
}

/// What the log has done since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Chunks written.
    pub chunks: u64,
    /// Bytes of them, summaries and pages included.
    pub bytes: u64,
    /// Bytes of blocks that clients wrote.
    pub client_bytes: u64,
    /// Units that have ended, not those that were aborted or in conflict.
    pub units: u64,
    /// Those of them that were to be stable.
    pub durable: u64,
    /// Flushes of the device, those of checkpoints included.
    pub flushes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Segments that the cleaner has emptied.
    pub cleaned: u64,
    /// Bytes of blocks that it has moved.
    pub moved_bytes: u64,
    /// Bytes of blocks that units have written before their end, because there was no memory for them.
    pub spilled_bytes: u64,
    /// Bytes that blocks take less because the cleaner has compressed them.
    pub packed_bytes: u64,
    /// Segments that the cleaner leaves as they are because something in them cannot be read.
    pub unreadable: u64,
}

/// Where data of a chunk have come to lie.
pub(crate) struct Laid {
    pub(crate) block: BlockId,
    pub(crate) place: u64,
    pub(crate) len: u32,
    pub(crate) sum: u32,
}

impl Log {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, shape: Shape, epoch: u32, position: Position) -> Self {
        let stable = position.number - 1;
        Self {
            medium: Arc::new(Medium::new(device, shape.unit_bytes(), stable)),
            shape,
            epoch,
            position,
            stable,
            records: Vec::new(),
            data: Vec::new(),
            data_units: 0,
            written: FxHashMap::default(),
            queue: Vec::new(),
            queued_bytes: 0,
            is_writing: false,
            flying: FxHashMap::default(),
            flights: VecDeque::new(),
            begun: Arc::default(),
            counters: Counters::default(),
        }
    }

    /// Where the next chunk goes.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Blocks of the device that data of the open chunk take.
    pub(crate) fn data_units(&self) -> u32 {
        self.data_units
    }

    /// Whether the open chunk says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty() && self.data.is_empty()
    }

    /// The contents of a block that the open chunk has.
    pub(crate) fn contents(&self, block: BlockId) -> Option<Contents> {
        let at = *self.written.get(&block)?;
        Some(Arc::clone(&self.data[to_usize(at)].bytes))
    }

    /// The blocks of which the open chunk has contents.
    pub(crate) fn blocks(&self) -> Vec<BlockId> {
        self.written.keys().copied().collect()
    }

    /// The block is no more: nothing of the open chunk is its contents.
    pub(crate) fn drop_contents(&mut self, block: BlockId) {
        self.written.remove(&block);
    }

    /// Whether the open chunk has room for so many more records' bytes and so much more data.
    pub(crate) fn has_room(&self, records: usize, data: usize, units: u32) -> bool {
        let summary =
            summary_blocks(self.data.len() + data, self.records.len() + records, self.shape.unit_bytes());
        let needed = to_u64(summary) + u64::from(self.data_units) + u64::from(units);
        needed <= u64::from(self.shape.segment_units - self.position.offset)
    }

    /// Notes a record. There must be room.
    pub(crate) fn note(&mut self, record: &Record) {
        record.put(&mut self.records);
    }

    /// Notes that a block has new contents, whose sum this is. There must be room. Who is in the open chunk as a whole replaces what others have there: the
    /// chunk is there as a whole or not at all, and all who have something in it have ended with it.
    pub(crate) fn note_write(&mut self, block: BlockId, (bytes, sum): (Contents, u32), is_whole: bool) {
        self.counters.client_bytes += to_u64(bytes.len());
        if let (Some(at), true) = (self.written.get(&block), is_whole) {
            let item = &mut self.data[to_usize(*at)];
            (item.bytes, item.descriptor.sum) = (bytes, sum);
            return;
        }
        let at = u32::try_from(self.data.len()).expect("a chunk is within a segment");
        let len = self.shape.block_units();
        self.data
            .push(Item { descriptor: Descriptor { kind: DataKind::Block, owner: block, len, sum }, bytes });
        self.data_units += len;
        self.written.insert(block, at);
        self.note(&Record::Write { block, data: at });
    }

    /// Ends the open chunk: it has its place, and will be written. Returns where the newest contents of its blocks lie. The log goes on
    /// behind it.
    pub(crate) fn seal(&mut self, segments: &mut Segments) -> Vec<Laid> {
        if self.is_empty() {
            return Vec::new();
        }
        let items = std::mem::take(&mut self.data);
        let records = std::mem::take(&mut self.records);
        let descriptors: Vec<Descriptor> = items.iter().map(|item| item.descriptor).collect();
        let data = items.into_iter().map(|item| (item.descriptor.kind, item.bytes)).collect();
        let mut next = self.queue_chunk(&descriptors, &records, data, 0, segments);
        self.data_units = 0;
        let mut places = Vec::with_capacity(descriptors.len());
        for descriptor in &descriptors {
            places.push(next);
            next += u64::from(descriptor.len);
        }
        let laid = self.written.drain().map(|(block, at)| {
            let Descriptor { len, sum, .. } = descriptors[to_usize(at)];
            Laid { block, place: places[to_usize(at)], len, sum }
        });
        // Neighbours are in the same pages.
        let mut laid: Vec<Laid> = laid.collect();
        laid.sort_unstable_by_key(|laid| laid.block);
        laid
    }

    /// Queues a chunk whose summary takes at least so many blocks. Returns where its data begin.
    fn queue_chunk(
        &mut self,
        descriptors: &[Descriptor],
        records: &[u8],
        data: Vec<(DataKind, Contents)>,
        at_least: usize,
        segments: &mut Segments,
    ) -> u64 {
        let Position { number, link, segment, offset, next_segment } = self.position;
        let chain = Chain { number, epoch: self.epoch, link, stable: self.stable, next_segment };
        let form = self.shape.form();
        let (summary, sum) = Summary::encode(form, &chain, descriptors, records, at_least);
        let first = self.shape.segment_start(segment) + u64::from(offset);
        let start = first + to_u64(summary.len() / form.unit);
        let mut places = Vec::with_capacity(data.len());
        let mut end = start;
        for (descriptor, (kind, contents)) in descriptors.iter().zip(&data) {
            if *kind != DataKind::Page {
                places.push(end);
                self.flying.insert(end, Arc::clone(contents));
            }
            end += u64::from(descriptor.len);
        }
        self.flights.push_back((number, places));
        self.enqueue(Sealed { number, first, summary, data });
        segments.written(first, number);
        let len = u32::try_from(end - first).expect("a chunk is within a segment");
        self.position = Position { number: number + 1, link: sum, offset: offset + len, ..self.position };
        start
    }

    fn enqueue(&mut self, sealed: Sealed) {
        self.counters.chunks += 1;
        self.counters.bytes += sealed.bytes();
        self.queued_bytes += sealed.bytes();
        self.queue.push(sealed);
    }

    /// Queues data that are no part of the log, with a summary that says what they are. Returns where they begin, and how many blocks of
    /// the device all of it takes.
    pub(crate) fn queue_beside(
        &mut self,
        first: u64,
        descriptors: &[Descriptor],
        data: Vec<(DataKind, Contents)>,
    ) -> (u64, u32) {
        let chain = Chain { number: 0, epoch: self.epoch, link: 0, stable: 0, next_segment: 0 };
        let form = self.shape.form();
        let (summary, _) = Summary::encode(form, &chain, descriptors, &[], 0);
        let start = first + to_u64(summary.len() / form.unit);
        let units = descriptors.iter().map(|data| u64::from(data.len)).sum::<u64>();
        let len = u32::try_from(start - first + units).expect("it is within a segment");
        self.enqueue(Sealed { number: 0, first, summary, data });
        (start, len)
    }

    /// Takes what is queued, to write it without the stream.
    pub(crate) fn take_queue(&mut self) -> Vec<Sealed> {
        self.queued_bytes = 0;
        std::mem::take(&mut self.queue)
    }

    /// Bytes that are queued.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// Writes what is queued; if somebody else is writing, waits for him.
    ///
    /// # Errors
    /// If the device fails; nobody knows then what is on it.
    pub(crate) fn write_queue(&mut self) -> Result<()> {
        let queue = self.take_queue();
        let medium = Arc::clone(&self.medium);
        let mut writing = medium.hold();
        writing.write(&queue)?;
        self.has_reached(writing.reached());
        Ok(())
    }

    /// Takes note of how far the medium is.
    pub(crate) fn has_reached(&mut self, reached: &Reached) {
        self.stable = self.stable.max(reached.stable);
        self.counters.flushes = reached.flushes + self.counters.checkpoints;
        while self.flights.front().is_some_and(|(number, _)| *number <= reached.written) {
            let (_, places) = self.flights.pop_front().expect("there is one");
            places.iter().for_each(|place| drop(self.flying.remove(place)));
        }
    }

    /// The chunk with which everything that was noted so far is stable.
    pub(crate) fn newest(&self) -> u64 {
        if self.is_empty() { self.position.number - 1 } else { self.position.number }
    }

    /// The last chunk that is stable, for all that is known here.
    pub(crate) fn stable(&self) -> u64 {
        self.stable
    }

    /// Contents that may not be on the medium yet.
    pub(crate) fn flying(&self, place: u64) -> Option<Contents> {
        self.flying.get(&place).cloned()
    }

    /// How often a segment was begun.
    pub(crate) fn begun(&self) -> &Arc<AtomicU64> {
        &self.begun
    }

    /// A segment will be written from its beginning.
    pub(crate) fn begins_segment(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
    }

    /// Goes on in the next segment, which must not be the last free one.
    ///
    /// # Errors
    /// `ENOSPC` if there is none behind it.
    pub(crate) fn next_segment(&mut self, segments: &mut Segments) -> Result<()> {
        let after = segments.take()?;
        self.begins_segment();
        self.position =
            Position { segment: self.position.next_segment, offset: 0, next_segment: after, ..self.position };
        Ok(())
    }

    /// Makes everything stable that is written or queued.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let queue = self.take_queue();
        let medium = Arc::clone(&self.medium);
        let mut writing = medium.hold();
        writing.write(&queue)?;
        writing.flush()?;
        self.has_reached(writing.reached());
        Ok(())
    }

    /// Begins a chunk of pages, as many as the segment has room for.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn begin_pages(&mut self, segments: &mut Segments) -> Result<PageRun> {
        assert!(self.is_empty(), "pages have chunks of their own");
        loop {
            let left = self.shape.segment_units - self.position.offset;
            let page_units = u32::try_from(PAGE / self.shape.unit_bytes()).expect("a page has a few blocks");
            let mut room = to_usize(left / page_units);
            let summary = |room: usize| summary_blocks(room, 0, self.shape.unit_bytes());
            while room > 0 && to_u64(summary(room)) + to_u64(room) * u64::from(page_units) > u64::from(left) {
                room -= 1;
            }
            if room > 0 {
                let first = self.shape.segment_start(self.position.segment) + u64::from(self.position.offset);
                let (summary, pages) = (summary(room), Vec::new());
                return Ok(PageRun { first: first + to_u64(summary), summary, room, page_units, pages });
            }
            self.next_segment(segments)?;
        }
    }

    /// Writes a chunk of pages.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn end_pages(&mut self, run: &PageRun, segments: &mut Segments) -> Result<()> {
        if run.pages.is_empty() {
            return Ok(());
        }
        let descriptor = |(tree, page): &(u8, Contents)| Descriptor {
            kind: DataKind::Page,
            owner: u64::from(*tree),
            len: run.page_units,
            sum: crc32c::crc32c(page),
        };
        let descriptors: Vec<Descriptor> = run.pages.iter().map(descriptor).collect();
        let data = run.pages.iter().map(|(_, page)| (DataKind::Page, Arc::clone(page))).collect();
        let start = self.queue_chunk(&descriptors, &[], data, run.summary, segments);
        assert_eq!(start, run.first, "pages are where their parents say");
        self.write_queue()
    }
}

/// A chunk of pages whose places are known while it is put together.
pub(crate) struct PageRun {
    first: u64,
    summary: usize,
    room: usize,
    page_units: u32,
    pages: Vec<(u8, Contents)>,
}

impl PageRun {
    /// Adds a page. Returns where it will be, or `None` if there is no room.
    pub(crate) fn add(&mut self, tree: u8, page: &[u8]) -> Option<(u64, u32)> {
        if self.pages.len() == self.room {
            return None;
        }
        let place = self.first + to_u64(self.pages.len()) * u64::from(self.page_units);
        self.pages.push((tree, page.into()));
        Some((place, self.page_units))
    }
}
