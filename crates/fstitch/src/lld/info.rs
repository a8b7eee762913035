//! `fstitch lld info`.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::Result;
use fstitch_core::{Errno, Error};
use fstitch_lld::{Options, Volumes};
use serde::Serialize;

use super::volume::Shown;
use crate::mkfs::show_uuid;
use crate::output::{Outcome, json, text};
use crate::size;

/// Arguments of `lld info`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image file or block device; nothing is written to it
    #[arg(value_name = "DISK")]
    disk: PathBuf,
}

/// What a disk is. Field names are a contract.
#[derive(Serialize)]
struct Info {
    disk: String,
    uuid: String,
    block_size_bytes: u32,
    segment_size_bytes: u32,
    compression: &'static str,
    segments: u64,
    free_segments: u64,
    space_bytes: u64,
    used_bytes: u64,
    blocks: u64,
    lists: u64,
    checkpoint: u64,
    epoch: u32,
    chunk: u64,
    /// What opening it for writing would do again.
    behind_checkpoint: Behind,
    volumes: Option<Vec<Shown>>,
}

/// What is in the log behind the newest checkpoint.
#[derive(Serialize)]
struct Behind {
    chunks: u64,
    records: u64,
    unfinished_unit: bool,
    damaged: Option<String>,
}

/// Runs `lld info`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let read_only = Options { read_only: true, ..Options::default() };
    let (disk, recovered) = super::open(&arguments.disk, &read_only)?;
    let (info, space) = (disk.info(), disk.space());
    let volumes = match Volumes::open(disk).and_then(|volumes| volumes.list()) {
        Ok(volumes) => Some(volumes.into_iter().map(|volume| Shown::new(volume, info.block_size)).collect()),
        // It has none yet, and cannot be given a catalogue now; or it is used for something else.
        Err(Error::Errno(Errno::ROFS) | Error::Unsupported(_)) => None,
        Err(error) => return Err(error.into()),
    };
    let shown = Info {
        disk: arguments.disk.display().to_string(),
        uuid: show_uuid(&info.uuid),
        block_size_bytes: info.block_size,
        segment_size_bytes: info.segment_size,
        compression: info.compression.name(),
        segments: info.segments,
        free_segments: info.free_segments,
        space_bytes: space.all,
        used_bytes: space.used,
        blocks: info.blocks,
        lists: info.lists,
        checkpoint: info.checkpoint,
        epoch: info.epoch,
        chunk: info.chunk,
        behind_checkpoint: Behind {
            chunks: recovered.chunks,
            records: recovered.records,
            unfinished_unit: recovered.unfinished,
            damaged: recovered.damaged,
        },
        volumes,
    };
    if arguments.json {
        json(&shown)?
    } else {
        text(&lines(&shown)?)?
    }
    Ok(Outcome::SUCCESS)
}

fn lines(info: &Info) -> Result<String> {
    let mut shown = format!("{}\n", info.disk);
    let mut line = |name: &str, value: String| writeln!(shown, "  {name:<20} {value}");
    line("UUID", info.uuid.clone())?;
    line("blocks of", size::show(info.block_size_bytes.into()))?;
    line(
        "segments",
        format!(
            "{} of {}, {} free",
            info.segments,
            size::show(info.segment_size_bytes.into()),
            info.free_segments
        ),
    )?;
    line("compression", info.compression.to_owned())?;
    line(
        "space",
        format!("{}, of which {} is used", size::show(info.space_bytes), size::show(info.used_bytes)),
    )?;
    line("holds", format!("{} blocks in {} lists", info.blocks, info.lists))?;
    line("checkpoint", format!("{}, in epoch {}", info.checkpoint, info.epoch))?;
    let behind = &info.behind_checkpoint;
    if behind.chunks > 0 {
        let unfinished =
            if behind.unfinished_unit { "; a unit did not end, and nothing of it happened" } else { "" };
        line(
            "after it",
            format!("{} records in {} chunks of the log{unfinished}", behind.records, behind.chunks),
        )?;
    }
    if let Some(damaged) = &behind.damaged {
        line("DAMAGED", damaged.clone())?;
    }
    for volume in info.volumes.iter().flatten() {
        line("volume", volume.line())?;
    }
    Ok(shown)
}
