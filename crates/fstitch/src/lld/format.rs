//! `fstitch lld format`.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::BlockDevice;
use fstitch_disk::DiskOptions;
use fstitch_lld::{Compression, Disk, FormatOptions, Options};
use serde::Serialize;

use crate::mkfs::{Target, blame, show_uuid, uuid};
use crate::open;
use crate::output::{Outcome, json, usage};
use crate::size;

/// Arguments of `lld format`.
#[derive(clap::Args)]
#[command(after_help = "Then make a volume in it: fstitch lld volume create DISK NAME SIZE")]
pub struct Arguments {
    /// Bytes of a block: a power of two from 512 to 65536
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "4096", value_parser = bytes)]
    block_size: u32,
    /// Bytes of a segment, the unit of writing and cleaning: a power of two from 64K to 64M; 512K, and more on a large disk, by
    /// default
    #[arg(short = 's', long, value_name = "BYTES", value_parser = bytes)]
    segment_size: Option<u32>,
    /// Compress what is cold when the cleaner moves it, by LZ4, where it then takes less
    #[arg(long, value_name = "KIND", default_value = "none", value_parser = compression)]
    compress: Compression,
    /// UUID, or `random`
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// Overwrite what the medium seems to hold
    #[arg(short = 'F', long)]
    force: bool,
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The image file or block device; a file is created if a size is given
    #[arg(value_name = "DISK")]
    disk: PathBuf,
    /// Size, such as 10G
    #[arg(value_name = "SIZE", value_parser = size::bytes)]
    size: Option<u64>,
}

fn bytes(text: &str) -> Result<u32, String> {
    u32::try_from(size::bytes(text)?).map_err(|_| format!("{text} is too large"))
}

fn compression(text: &str) -> Result<Compression, String> {
    let known = [Compression::None, Compression::Lz4];
    known.into_iter().find(|known| known.name() == text).ok_or_else(|| "it is `none` or `lz4`".to_owned())
}

/// What was made. Field names are a contract.
#[derive(Serialize)]
struct Made {
    disk: String,
    uuid: String,
    block_size_bytes: u32,
    segment_size_bytes: u32,
    compression: &'static str,
    segments: u64,
    space_bytes: u64,
}

/// Runs `lld format`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if !(512..=65_536).contains(&arguments.block_size) || !arguments.block_size.is_power_of_two() {
        return Err(usage("a block is a power of two from 512 to 65536 bytes"));
    }
    let path = &arguments.disk;
    let target =
        Target { image: path, offset: 0, size: arguments.size, force: arguments.force, kind: "logical-disk" };
    let prepared = target.prepare()?;
    let made = make(arguments).inspect_err(|_| prepared.undo(path))?;
    if arguments.json {
        json(&made)?;
    } else if !arguments.quiet {
        println!(
            "{}: a logical disk of {} for contents, in {} segments of {}, UUID {}",
            made.disk,
            size::show(made.space_bytes),
            made.segments,
            size::show(made.segment_size_bytes.into()),
            made.uuid
        );
    }
    Ok(Outcome::SUCCESS)
}

fn make(arguments: &Arguments) -> Result<Made> {
    let path = &arguments.disk;
    let disk = path.display().to_string();
    let chosen = FormatOptions {
        block_size: arguments.block_size,
        compression: arguments.compress,
        ..FormatOptions::default()
    };
    let block_size = chosen.device_blocks();
    let options = DiskOptions { block_size, size: arguments.size, ..DiskOptions::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(open::disk(path, &options)?);
    let default = FormatOptions::for_bytes(device.geometry().bytes());
    let options = FormatOptions {
        segment_size: arguments.segment_size.unwrap_or(default.segment_size),
        uuid: uuid(arguments.uuid.as_deref())?,
        ..chosen
    };
    Disk::format(Arc::clone(&device), &options).map_err(blame).with_context(|| disk.clone())?;
    let read_only = Options { read_only: true, ..Options::default() };
    let made = Disk::open(device, &read_only)?.0;
    let (info, space) = (made.info(), made.space());
    Ok(Made {
        disk,
        uuid: show_uuid(&info.uuid),
        block_size_bytes: info.block_size,
        segment_size_bytes: info.segment_size,
        compression: info.compression.name(),
        segments: info.segments,
        space_bytes: space.all,
    })
}
