//! What lies on the medium, segment by segment and chunk by chunk, for people who look for what went wrong.

use std::ops::Range;

use fstitch_core::Result;
use fstitch_core::num::to_usize;

use crate::chunk::{DataKind, Summary};
use crate::disk::Disk;
use crate::recovery::summary_at;
use crate::stream::Stream;

/// Data of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpedData {
    /// `contents`, `page`, `spilled` or `packed`.
    pub kind: &'static str,
    /// The number of the block, or of the tree.
    pub owner: u64,
    /// The block of the device where they begin.
    pub place: u64,
    /// Bytes.
    pub bytes: u64,
    /// CRC-32C that they should have.
    pub sum: u32,
}

/// A chunk that lies in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedChunk {
    /// The block of the device where its summary begins.
    pub place: u64,
    /// Its number in the log; 0 for one beside it.
    pub number: u64,
    /// In which life of the disk it was written.
    pub epoch: u32,
    /// The sum of the summary before it.
    pub link: u32,
    /// The sum of its own summary.
    pub sum: u32,
    /// Up to which chunk everything was stable when it was put together.
    pub stable: u64,
    /// The segment behind its own.
    pub next_segment: u64,
    /// Bytes of its summary.
    pub summary_bytes: u64,
    /// What it has.
    pub data: Vec<DumpedData>,
    /// What it says has happened.
    pub records: Vec<String>,
}

/// A segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DumpedSegment {
    /// Its number, from 0.
    pub segment: u64,
    /// The block of the device where it begins.
    pub place: u64,
    /// Bytes of it that somebody refers to.
    pub live_bytes: u64,
    /// The last chunk of the log in it, or that refers to what is in it.
    pub newest: u64,
    /// The chunk that was the newest one when the youngest of its data were written by a client.
    pub age: u64,
    /// What lies there, also what is not needed any more.
    pub chunks: Vec<DumpedChunk>,
}

impl Disk {
    /// Shows what lies in some segments to `each`, one after the other. Nobody else has the disk meanwhile.
    ///
    /// # Errors
    /// Those of the device, and of `each`.
    pub fn dump<E: From<fstitch_core::Error>>(
        &self,
        segments: Range<u64>,
        each: &mut dyn FnMut(DumpedSegment) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let stream = self.stream();
        for segment in segments.start..segments.end.min(stream.shape.segments) {
            each(dumped(&stream, segment)?)?;
        }
        Ok(())
    }
}

fn dumped(stream: &Stream, segment: u64) -> Result<DumpedSegment> {
    let shape = &stream.shape;
    let usage = stream.segments.usage[to_usize(segment)];
    let mut chunks = Vec::new();
    let mut offset = 0;
    while offset < shape.segment_units {
        // Behind the last one older ones may lie, anywhere.
        match summary_at(shape, &**stream.device(), segment, offset)? {
            None => offset += 1,
            Some(summary) => {
                let place = shape.segment_start(segment) + u64::from(offset);
                offset += summary.blocks + summary.data_blocks();
                chunks.push(chunk(&summary, place, shape.unit.into()));
            }
        }
    }
    Ok(DumpedSegment {
        segment,
        place: shape.segment_start(segment),
        live_bytes: u64::from(usage.live) * u64::from(shape.unit),
        newest: usage.newest,
        age: usage.age,
        chunks,
    })
}

fn chunk(summary: &Summary, place: u64, unit: u64) -> DumpedChunk {
    let mut next = place + u64::from(summary.blocks);
    let data = summary.data.iter().map(|data| {
        let place = next;
        next += u64::from(data.len);
        let kind = match data.kind {
            DataKind::Block => "contents",
            DataKind::Page => "page",
            DataKind::Spilled => "spilled",
            DataKind::Packed => "packed",
        };
        DumpedData { kind, owner: data.owner, place, bytes: u64::from(data.len) * unit, sum: data.sum }
    });
    let chain = &summary.chain;
    DumpedChunk {
        place,
        number: chain.number,
        epoch: chain.epoch,
        link: chain.link,
        sum: summary.sum,
        stable: chain.stable,
        next_segment: chain.next_segment,
        summary_bytes: u64::from(summary.blocks) * unit,
        data: data.collect(),
        records: summary.records().map(|record| format!("{record:?}")).collect(),
    }
}
