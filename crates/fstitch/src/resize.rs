//! `fstitch resize`: another size for a volume that is not mounted.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fstitch_formats::resize::Resized;
use serde_json::{Map, Value};

use crate::open::{self, Access};
use crate::output::{Outcome, json, text, usage};

/// Arguments of `resize`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where the volume starts in the image, in bytes
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = crate::size::bytes)]
    offset: u64,
    /// The partition of a whole disk that the volume is in, by its number in the table (MBR or GPT)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    partition: Option<u32>,
    /// The image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The new size: with K, M, G or T in bytes, with `s` in sectors of 512 bytes, else in blocks of the volume. Without it all of the
    /// device or partition. An image file becomes as long, or as short
    #[arg(value_name = "SIZE")]
    size: Option<String>,
}

/// Runs `resize`. A volume that was not unmounted is recovered first.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let name = arguments.image.display().to_string();
    ensure!(
        !crate::disks::is_several(&arguments.image),
        "{name}: a volume on several disks has its size by them"
    );
    let volume = open::Arguments {
        offset: arguments.offset,
        cache_size: 0,
        partition: arguments.partition,
        journal: None,
    };
    let most = match arguments.partition {
        Some(number) => Some(open::partition(&arguments.image, number)?.len),
        None => None,
    };
    let block_size = {
        let opened = volume.open_kept(&arguments.image, Access::ReadOnly)?;
        ensure!(
            opened.kept.is_none(),
            "{name}: a volume that follows a policy keeps its size: `tune --policy none` first"
        );
        u64::from(opened.device.geometry().block_size)
    };
    let asked = arguments.size.as_deref().map(|text| crate::size::volume(text, block_size)).transpose();
    let asked = asked.map_err(usage)?;
    if let (Some(bytes), Some(most)) = (asked, most)
        && bytes > most
    {
        bail!("{name}: {bytes} bytes in a partition of {most}");
    }
    let lengthened = match (asked, most) {
        (Some(bytes), None) => lengthen(&arguments.image, arguments.offset, bytes)?,
        _ => None,
    };
    let done = resized(arguments, &volume, (asked.or(most), &name));
    match (done, lengthened) {
        (Ok(done), _) => {
            let cut = shorten(arguments, &done);
            cut.with_context(|| format!("shortening {name}, whose volume is smaller already"))?;
            show(arguments, &name, &done)
        }
        (Err(error), Some(before)) => {
            let file = std::fs::OpenOptions::new().write(true).open(&arguments.image);
            // What went wrong is to be said, whether the file gets its length back or not.
            let _ = file.and_then(|file| file.set_len(before));
            Err(error)
        }
        (Err(error), None) => Err(error),
    }
}

/// Makes an image file long enough; how long it was, if it was shorter.
fn lengthen(image: &Path, offset: u64, bytes: u64) -> Result<Option<u64>> {
    let found = std::fs::metadata(image).with_context(|| image.display().to_string())?;
    let end = offset.checked_add(bytes).context("offset and size are too large together")?;
    if !found.is_file() || found.len() >= end {
        return Ok(None);
    }
    let file = std::fs::OpenOptions::new().write(true).open(image);
    let grown = file.and_then(|file| file.set_len(end));
    grown.with_context(|| format!("growing {}", image.display()))?;
    Ok(Some(found.len()))
}

fn resized(
    arguments: &Arguments,
    volume: &open::Arguments,
    (bytes, name): (Option<u64>, &str),
) -> Result<Resized> {
    let opened = volume.open_kept(&arguments.image, Access::ReadWrite)?;
    let (disk, format) = (&*opened.device, opened.format);
    if let Some(report) = crate::recovery::recover(format, disk, None).with_context(|| name.to_owned())? {
        eprintln!("{name}: {}", report.describe());
    }
    let resizes = format.resizes();
    let resizes =
        resizes.with_context(|| format!("{name}: {} volumes keep their size", format.names()[0]))?;
    let bytes = bytes.unwrap_or_else(|| disk.geometry().bytes());
    let bar = indicatif::ProgressBar::no_length();
    let mut progress = |done: u64, total: u64| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message("blocks and inodes moved");
    };
    let done = resizes.resize(disk, bytes, crate::epoch::now()?, &mut progress);
    bar.finish_and_clear();
    let done = done.with_context(|| name.to_owned())?;
    opened.close()?;
    Ok(done)
}

/// Makes an image file that ended with its volume end with it again, if that became smaller.
fn shorten(arguments: &Arguments, done: &Resized) -> Result<()> {
    let size = |blocks: u64| arguments.offset + blocks * u64::from(done.block_size_bytes);
    let (before, after) = (size(done.blocks_before), size(done.blocks));
    let found = std::fs::metadata(&arguments.image)?;
    // What else lies behind the volume is somebody's.
    let ends_with_it = found.len() >= before && found.len() - before < u64::from(done.block_size_bytes);
    if after < before && found.is_file() && arguments.partition.is_none() && ends_with_it {
        let file = std::fs::OpenOptions::new().write(true).open(&arguments.image)?;
        file.set_len(after)?;
        file.sync_all()?;
    }
    Ok(())
}

fn show(arguments: &Arguments, name: &str, done: &Resized) -> Result<Outcome> {
    if arguments.json {
        let mut shown = Map::from_iter([("image".to_owned(), Value::from(name))]);
        if let Value::Object(fields) = serde_json::to_value(done)? {
            shown.extend(fields);
        }
        json(&shown)?;
        return Ok(Outcome::SUCCESS);
    }
    let size = crate::size::show(done.blocks * u64::from(done.block_size_bytes));
    if done.blocks == done.blocks_before {
        text(&format!("{name}: it has {size} already, in {} blocks\n", done.blocks))?;
    } else {
        text(&format!(
            "{name}: it has {size} now, in {} blocks; {} before\n",
            done.blocks, done.blocks_before
        ))?;
    }
    Ok(Outcome::SUCCESS)
}
