//! `fstitch lld dump`: what lies on the medium.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use fstitch_lld::{DumpedChunk, DumpedSegment, Options};
use serde::Serialize;

use crate::output::Outcome;
use crate::size;

/// What `fstitch lld dump --help` says.
pub const HELP: &str = "Show what lies in the segments of a logical disk: each chunk with its place, its number in the log (0: beside the \
log, by the cleaner or a unit) and what it has, also what is not needed any more. Nothing is written.";

/// Arguments of `lld dump`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this segment, from 0
    #[arg(long, value_name = "NUMBER")]
    segment: Option<u64>,
    /// Show data and records, too
    #[arg(long)]
    records: bool,
    /// Print JSON, a segment a line, with data and records
    #[arg(long)]
    json: bool,
    /// The image file or block device
    #[arg(value_name = "DISK")]
    disk: PathBuf,
}

/// A segment. Field names are a contract.
#[derive(Serialize)]
struct Segment<'a> {
    segment: u64,
    place: u64,
    live_bytes: u64,
    newest_chunk: u64,
    age: u64,
    chunks: Vec<Chunk<'a>>,
}

#[derive(Serialize)]
struct Chunk<'a> {
    place: u64,
    number: u64,
    epoch: u32,
    link: u32,
    sum: u32,
    stable: u64,
    next_segment: u64,
    summary_bytes: u64,
    data: Vec<Data>,
    records: &'a [String],
}

#[derive(Serialize)]
struct Data {
    kind: &'static str,
    owner: u64,
    place: u64,
    bytes: u64,
    sum: u32,
}

/// Runs `lld dump`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let (disk, _) = super::open(&arguments.disk, &Options { read_only: true, ..Options::default() })?;
    let segments = disk.info().segments;
    let range = match arguments.segment {
        Some(segment) if segment >= segments => {
            return Err(crate::output::usage(format!("--segment {segment}: there are {segments}, from 0")));
        }
        Some(segment) => segment..segment + 1,
        None => 0..segments,
    };
    let mut out = io::stdout().lock();
    disk.dump::<anyhow::Error>(range, &mut |segment| {
        if arguments.json {
            serde_json::to_writer(&mut out, &in_json(&segment))?;
            writeln!(out)?;
        } else {
            lines(&mut out, &segment, arguments.records)?;
        }
        Ok(())
    })
    .with_context(|| arguments.disk.display().to_string())?;
    Ok(Outcome::SUCCESS)
}

fn in_json(segment: &DumpedSegment) -> Segment<'_> {
    Segment {
        segment: segment.segment,
        place: segment.place,
        live_bytes: segment.live_bytes,
        newest_chunk: segment.newest,
        age: segment.age,
        chunks: segment.chunks.iter().map(chunk_in_json).collect(),
    }
}

fn chunk_in_json(chunk: &DumpedChunk) -> Chunk<'_> {
    let data = chunk.data.iter();
    let data = data.map(|data| Data {
        kind: data.kind,
        owner: data.owner,
        place: data.place,
        bytes: data.bytes,
        sum: data.sum,
    });
    Chunk {
        place: chunk.place,
        number: chunk.number,
        epoch: chunk.epoch,
        link: chunk.link,
        sum: chunk.sum,
        stable: chunk.stable,
        next_segment: chunk.next_segment,
        summary_bytes: chunk.summary_bytes,
        data: data.collect(),
        records: &chunk.records,
    }
}

fn lines(out: &mut impl Write, segment: &DumpedSegment, records: bool) -> Result<()> {
    if segment.chunks.is_empty() && segment.live_bytes == 0 {
        return Ok(());
    }
    let live = size::show(segment.live_bytes);
    writeln!(out, "segment {} at block {}: {live} in use", segment.segment, segment.place)?;
    for chunk in &segment.chunks {
        let what = match chunk.number {
            0 => "beside the log".to_owned(),
            number => format!("chunk {number}"),
        };
        let bytes: u64 = chunk.data.iter().map(|data| data.bytes).sum();
        writeln!(
            out,
            "  block {}: {what}, epoch {}, {} data of {}, {} records",
            chunk.place,
            chunk.epoch,
            chunk.data.len(),
            size::show(bytes),
            chunk.records.len()
        )?;
        if records {
            for data in &chunk.data {
                writeln!(
                    out,
                    "    block {}: {} {}, sum {:#010x}",
                    data.place, data.kind, data.owner, data.sum
                )?;
            }
            chunk.records.iter().try_for_each(|record| writeln!(out, "    {record}"))?;
        }
    }
    Ok(())
}
