//! What a failure has left: the newest checkpoint, and the chunks behind it as far as they are whole.
//!
//! Nothing is written before everything is read. The first thing that is written is a checkpoint.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, Result};

use crate::chunk::{Chain, DataKind, Descriptor, Summary};
use crate::pages::read_run;
use crate::record::{BlockId, Record};
use crate::shape::{Position, Shape};
use crate::stream::Stream;

/// How many of the segments that were free at the checkpoint are looked at, which are those that the log took first.
const AHEAD: usize = 64;
/// How far behind the end of the log it is looked for what should not be there, in each of two segments.
const LOOK_BYTES: usize = 4 << 20;
/// Bytes of a chunk that are read at once.
const PIECE_BYTES: usize = 1 << 20;
/// Pages are read ahead for so many records at once, at most.
const BATCH: usize = 4096;

/// What opening a disk did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Chunks behind the newest checkpoint that were done again; none of a disk that was closed.
    pub chunks: u64,
    /// What they say, in records.
    pub records: u64,
    /// A unit whose end is not in the log, so that nothing of it happened.
    pub unfinished: bool,
    /// A chunk whose summary is there, and not all its data: the log ends before it.
    pub torn: bool,
    /// Something that was stable is damaged, so that the state is an older one than was promised; and what.
    pub damaged: Option<String>,
}

/// A chunk behind the checkpoint.
struct Found {
    summary: Summary,
    /// Where its data begin.
    data: u64,
    /// Where its segment goes on.
    segment: u64,
    end: u32,
}

/// Does again what the log says behind the newest checkpoint, and has the log go on there.
///
/// # Errors
/// Those of the device, and `Corrupt` where the log says what cannot be.
pub(crate) fn recover(stream: &mut Stream) -> Result<Recovered> {
    let mut recovered = Recovered::default();
    let ahead = stream.free_ahead(AHEAD);
    let mut chunks = follow(stream)?;
    let stable = chunks.iter().map(|chunk| chunk.summary.chain.stable).max().unwrap_or(0);
    // What a flush has covered is not read; the first of the others that is not whole ends the log.
    for at in 0..chunks.len() {
        if chunks[at].summary.chain.number > stable && !is_whole(stream, &chunks[at])? {
            chunks.truncate(at);
            recovered.torn = true;
            break;
        }
    }
    replay(stream, &chunks, &mut recovered)?;
    let end = end_of(stream, &chunks);
    recovered.damaged = beyond(stream, &end, chunks.last().map(|last| last.summary.chain.epoch), &ahead)?;
    let epoch = stream.checkpoint().epoch + 1;
    stream.go_on_at(end, epoch);
    Ok(recovered)
}

/// Where the log goes on.
fn end_of(stream: &Stream, chunks: &[Found]) -> Position {
    chunks.last().map_or(stream.checkpoint().position, |last| Position {
        number: last.summary.chain.number + 1,
        link: last.summary.sum,
        segment: last.segment,
        offset: last.end,
        next_segment: last.summary.chain.next_segment,
    })
}

/// Looks for chunks behind the end of the log that say that what is missing there was stable. A failure of power leaves none: what was
/// written in its last moments was put together before a flush that would have covered what is missing.
fn beyond(stream: &Stream, end: &Position, epoch: Option<u32>, ahead: &[u64]) -> Result<Option<String>> {
    let (shape, epoch) = (&stream.shape, epoch.unwrap_or(stream.checkpoint().epoch));
    let most = u32::try_from(LOOK_BYTES / shape.unit_bytes()).expect("it is small");
    let near = [(end.segment, end.offset, most), (end.next_segment, 0, most)];
    let far = ahead.iter().map(|segment| (*segment, 0, 1));
    for (segment, from, count) in near.into_iter().chain(far) {
        for offset in summaries_in(stream, segment, from, count)? {
            let Some(found) = summary_at(shape, &**stream.device(), segment, offset)? else { continue };
            let Chain { number, stable, .. } = found.chain;
            if number > end.number && stable >= end.number && found.chain.epoch >= epoch {
                let lost = end.number;
                return Ok(Some(format!(
                    "chunk {lost} of the log, in segment {} from block {} on, is damaged: chunk {number} says that it was stable",
                    end.segment, end.offset
                )));
            }
        }
    }
    Ok(None)
}

/// Where in a part of a segment something looks like a summary.
fn summaries_in(stream: &Stream, segment: u64, from: u32, count: u32) -> Result<Vec<u32>> {
    let shape = &stream.shape;
    let end = shape.segment_units.min(from.saturating_add(count));
    if segment >= shape.segments || from >= end {
        return Ok(Vec::new());
    }
    let mut bytes = vec![0; to_usize(end - from) * shape.unit_bytes()];
    let place = shape.segment_start(segment) + u64::from(from);
    read_run(&**stream.device(), place, BlockKind::JournalDescriptor, &mut bytes)?;
    let units = (from..).zip(bytes.chunks(shape.unit_bytes()));
    let looks =
        |(offset, bytes): (u32, &[u8])| Summary::probe(bytes, shape.segment_units - offset).map(|_| offset);
    Ok(units.filter_map(looks).collect())
}

/// The chain of summaries behind the checkpoint.
fn follow(stream: &Stream) -> Result<Vec<Found>> {
    let checkpoint = stream.checkpoint();
    let Position { mut number, mut link, mut segment, mut offset, mut next_segment } = checkpoint.position;
    let mut epoch = checkpoint.epoch;
    let mut chunks = Vec::new();
    loop {
        let mut found = None;
        for (at, from) in [(segment, offset), (next_segment, 0)] {
            let summary = summary_at(&stream.shape, &**stream.device(), at, from)?;
            let fits = |summary: &Summary| {
                let chain = &summary.chain;
                chain.number == number && chain.link == link && chain.epoch >= epoch
            };
            found = summary.filter(fits).map(|summary| (at, from, summary));
            if found.is_some() {
                break;
            }
        }
        let Some((at, from, summary)) = found else { return Ok(chunks) };
        let end = from + summary.blocks + summary.data_blocks();
        let data = stream.shape.segment_start(at) + u64::from(from + summary.blocks);
        (number, link, epoch) = (number + 1, summary.sum, summary.chain.epoch);
        (segment, offset, next_segment) = (at, end, summary.chain.next_segment);
        chunks.push(Found { summary, data, segment: at, end });
    }
}

/// The summary at a place, if there is one whose chunk fits its segment.
pub(crate) fn summary_at(
    shape: &Shape,
    device: &dyn BlockDevice,
    segment: u64,
    offset: u32,
) -> Result<Option<Summary>> {
    if segment >= shape.segments || offset >= shape.segment_units {
        return Ok(None);
    }
    let place = shape.segment_start(segment) + u64::from(offset);
    let left = shape.segment_units - offset;
    let mut bytes = vec![0; shape.unit_bytes()];
    read_run(device, place, BlockKind::JournalDescriptor, &mut bytes)?;
    let Some(blocks) = Summary::probe(&bytes, left) else { return Ok(None) };
    if blocks > 1 {
        let first = bytes.len();
        bytes.resize(first * to_usize(blocks), 0);
        read_run(device, place + 1, BlockKind::JournalDescriptor, &mut bytes[first..])?;
    }
    let summary = Summary::decode(shape.form(), &bytes);
    Ok(summary.filter(|summary| {
        let fits = summary.blocks.checked_add(summary.data_blocks()).is_some_and(|units| units <= left);
        fits && summary.chain.next_segment < shape.segments
    }))
}

/// Whether all data of a chunk have their sums. They are read in large pieces: most of the time of a recovery would go into waiting for
/// one block after the other.
fn is_whole(stream: &Stream, chunk: &Found) -> Result<bool> {
    let unit = stream.shape.unit_bytes();
    let mut place = chunk.data;
    let mut left = &chunk.summary.data[..];
    let mut bytes = Vec::new();
    while let Some(first) = left.first() {
        let mut size = 0;
        let fits = |data: &&Descriptor| {
            size += to_usize(data.len) * unit;
            size <= PIECE_BYTES
        };
        let (piece, rest) = left.split_at(left.iter().take_while(fits).count().max(1));
        let units = piece.iter().map(|data| to_usize(data.len)).sum::<usize>();
        let kind = if first.kind == DataKind::Page { BlockKind::Indirect } else { BlockKind::Data };
        bytes.resize(units * unit, 0);
        read_run(&**stream.device(), place, kind, &mut bytes)?;
        let mut from = 0;
        for data in piece {
            let end = from + to_usize(data.len) * unit;
            if crc32c::crc32c(&bytes[from..end]) != data.sum {
                return Ok(false);
            }
            from = end;
        }
        place += to_u64(units);
        left = rest;
    }
    // What units have spilled is beside the log.
    for record in chunk.summary.records() {
        if let Record::Found { place, len, sum, .. } = record {
            check_place(&stream.shape, place, len)?;
            let mut bytes = vec![0; to_usize(len) * unit];
            read_run(&**stream.device(), place, BlockKind::Data, &mut bytes)?;
            if crc32c::crc32c(&bytes) != sum {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether contents can be there.
fn check_place(shape: &Shape, place: u64, len: u32) -> Result<()> {
    let last = place.saturating_add(u64::from(len)).saturating_sub(1);
    let inside = shape.segment_of(place).is_some_and(|segment| shape.segment_of(last) == Some(segment));
    if inside && len > 0 {
        Ok(())
    } else {
        Err(crate::state::damaged(format!("a record names the place {place}")))
    }
}

/// Pages that records will ask for, read together: one by one each of them would be waited for.
#[derive(Default)]
struct Ahead {
    /// For the chunks before this one pages have been read.
    chunks: usize,
}

impl Ahead {
    /// Reads pages for the next chunks, as many as have a batch of records. What cannot be read is found out by whoever needs it.
    fn read(&mut self, stream: &Stream, chunks: &[Found], batch: usize) {
        let (mut blocks, mut places): (Vec<BlockId>, Vec<_>) = (Vec::new(), Vec::new());
        for chunk in chunks {
            for record in chunk.summary.records() {
                match record {
                    Record::Write { block, .. } | Record::Found { block, .. } | Record::Delete { block } => {
                        blocks.push(block);
                    }
                    Record::Insert { list, label, .. } => places.push((list, label)),
                    _ => {}
                }
            }
            self.chunks += 1;
            if blocks.len() + places.len() >= batch {
                break;
            }
        }
        blocks.sort_unstable();
        places.sort_unstable();
        let state = &stream.state;
        state.blocks.tree.read_ahead(&blocks, &state.blocks.pages).ok();
        state.order.tree.read_ahead(&places, &state.order.pages).ok();
    }
}

/// A record, and where the data of its chunk are.
struct Held {
    record: Record,
    found: (u64, u32, u32),
}

fn replay(stream: &mut Stream, chunks: &[Found], recovered: &mut Recovered) -> Result<()> {
    let mut unit: Option<Vec<Held>> = None;
    let batch = (stream.budget.most / 8).clamp(1, BATCH);
    let mut ahead = Ahead::default();
    for (at, chunk) in chunks.iter().enumerate() {
        if at >= ahead.chunks {
            ahead.read(stream, &chunks[at..], batch);
        }
        let mut places = Vec::with_capacity(chunk.summary.data.len());
        let mut next = chunk.data;
        for data in &chunk.summary.data {
            places.push((next, data.len, data.sum));
            next += u64::from(data.len);
        }
        stream.segments.written(chunk.data, chunk.summary.chain.number);
        // A record names the data that were written last in its chunk: a simple operation may have replaced them.
        for record in chunk.summary.records() {
            recovered.records += 1;
            let found = match record {
                Record::Write { data, .. } => places[to_usize(data)],
                _ => (0, 0, 0),
            };
            if let Record::Found { place, len, .. } = record {
                check_place(&stream.shape, place, len)?;
                stream.segments.referred(place, chunk.summary.chain.number);
            }
            match (record, &mut unit) {
                (Record::Begin, _) => unit = Some(Vec::new()),
                (Record::Commit, held) => {
                    for held in held.take().unwrap_or_default() {
                        apply(stream, &held)?;
                    }
                }
                (_, Some(held)) => held.push(Held { record, found }),
                (_, None) => apply(stream, &Held { record, found })?,
            }
        }
        recovered.chunks += 1;
    }
    recovered.unfinished = unit.is_some();
    Ok(())
}

fn apply(stream: &mut Stream, held: &Held) -> Result<()> {
    let Stream { state, segments, .. } = stream;
    state.apply(&held.record, &|_| held.found, segments)
}
