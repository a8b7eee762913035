//! `fstitch mkfs journal`: a journal on a device of its own.

use std::path::PathBuf;

use anyhow::{Context, Result};
use fstitch_disk::DiskOptions;
use fstitch_formats::ext::{DeviceOptions, make_device};
use serde::Serialize;

use super::{Target, blame, show_uuid, uuid};
use crate::open;
use crate::output::{Outcome, json, usage};

/// Arguments of `mkfs journal`.
#[derive(clap::Args)]
#[command(after_help = "Then give it to a volume: fstitch tune --journal-device JOURNAL IMAGE")]
pub struct Arguments {
    /// Bytes per block, as those of the volume whose journal it will be
    #[arg(short = 'b', long, value_name = "BYTES", default_value_t = 4096, value_parser = super::asked_block_size)]
    block_size: u32,
    /// Label, at most 16 bytes
    #[arg(short = 'L', long)]
    label: Option<String>,
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
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Size, such as 4M; without a unit it counts blocks
    #[arg(value_name = "SIZE")]
    size: Option<String>,
}

/// What was made, for `--json`.
#[derive(Serialize)]
struct Made {
    image: String,
    block_size_bytes: u32,
    blocks: u32,
    uuid: String,
}

/// Runs `mkfs journal`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let size = match &arguments.size {
        Some(text) => {
            let size = crate::size::volume(text, u64::from(arguments.block_size));
            Some(size.map_err(usage)?)
        }
        None => None,
    };
    let options = DeviceOptions {
        block_size: arguments.block_size,
        uuid: uuid(arguments.uuid.as_deref())?,
        label: arguments.label.clone().unwrap_or_default().into_bytes(),
        now: crate::epoch::now()?,
        is_zero: false,
    };
    let target = Target { image: &arguments.image, offset: 0, size, force: arguments.force, kind: "journal" };
    let prepared = target.prepare()?;
    let options = DeviceOptions { is_zero: prepared.is_new(), ..options };
    let blocks = make(arguments, size, &options).inspect_err(|_| prepared.undo(&arguments.image))?;
    let (image, uuid) = (arguments.image.display().to_string(), show_uuid(&options.uuid));
    if arguments.json {
        json(&Made { image, block_size_bytes: arguments.block_size, blocks, uuid })?;
    } else if !arguments.quiet {
        println!("{image}: a journal of {blocks} blocks of {} bytes, UUID {uuid}", arguments.block_size);
    }
    Ok(Outcome::SUCCESS)
}

fn make(arguments: &Arguments, size: Option<u64>, options: &DeviceOptions) -> Result<u32> {
    let disk = DiskOptions { block_size: arguments.block_size, size, ..DiskOptions::default() };
    let disk = open::disk(&arguments.image, &disk)?;
    let made = make_device(&disk, options).map_err(blame);
    made.with_context(|| format!("making a journal on {}", arguments.image.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_checked() {
        assert!(uuid(Some("nonsense")).is_err());
        assert_ne!(uuid(None).unwrap(), uuid(Some("random")).unwrap());
    }
}
