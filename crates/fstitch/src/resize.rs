//! `fstitch resize`: another size for a volume. One that is mounted grows; its daemon does it, which opens it anew.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use fstitch_formats::resize::Resized;
use serde_json::{Map, Value};

use crate::control::client::{self, Connection};
use crate::control::{Request, Response};
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
    /// The image file or block device, or where it is mounted: a volume in use grows, programs wait meanwhile
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
    let start = || match arguments.partition {
        Some(number) => open::partition_start(&arguments.image, number),
        None => Ok(arguments.offset),
    };
    if let Some(daemon) = client::of_volume(&arguments.image, start)? {
        return by_daemon(arguments, daemon, &name);
    }
    ensure!(
        !crate::disks::is_several(&arguments.image),
        "{name}: a volume on several disks has its size by them"
    );
    let bar = indicatif::ProgressBar::no_length();
    let mut progress = |done: u64, total: u64| {
        bar.set_length(total);
        bar.set_position(done);
        bar.set_message("blocks and inodes moved");
    };
    let done = Place {
        image: &arguments.image,
        offset: arguments.offset,
        partition: arguments.partition,
        only_larger: false,
    }
    .resize(arguments.size.as_deref(), &mut progress);
    bar.finish_and_clear();
    show(arguments, &name, &done?)
}

fn by_daemon(arguments: &Arguments, mut daemon: Connection, name: &str) -> Result<Outcome> {
    match daemon.ask(&Request::Resize { size: arguments.size.clone() })? {
        Response::Resized(done) => show(arguments, name, &done),
        Response::Error(text) => bail!("{text}"),
        other => bail!("an unexpected answer: {other:?}"),
    }
}

/// Where a volume is that nobody uses, and what may become of it.
pub struct Place<'a> {
    /// The image file or block device.
    pub image: &'a Path,
    /// Where the volume starts in it, in bytes.
    pub offset: u64,
    /// Or its partition.
    pub partition: Option<u32>,
    /// It does not get smaller.
    pub only_larger: bool,
}

impl Place<'_> {
    /// Gives the volume another size, by default all of its device or partition.
    pub fn resize(&self, size: Option<&str>, progress: &mut dyn FnMut(u64, u64)) -> Result<Resized> {
        let name = self.image.display();
        let volume =
            open::Arguments { offset: self.offset, cache_size: 0, partition: self.partition, journal: None };
        let most = match self.partition {
            Some(number) => Some(open::partition(self.image, number)?.len),
            None => None,
        };
        let (block_size, bytes) = {
            let opened = volume.open_kept(self.image, Access::ReadOnly)?;
            ensure!(
                opened.kept.is_none(),
                "{name}: a volume that follows a policy keeps its size: `tune --policy none` first"
            );
            let resizes = opened.format.resizes();
            let resizes = resizes.with_context(|| {
                format!("{name}: {} volumes keep their size", opened.format.names().join(" and "))
            })?;
            let device = &*opened.device;
            let bytes = resizes.size(device).with_context(|| name.to_string())?;
            (u64::from(device.geometry().block_size), bytes)
        };
        let asked = size.map(|text| crate::size::volume(text, block_size)).transpose();
        let asked = asked.map_err(usage)?;
        if let (Some(asked), Some(most)) = (asked, most)
            && asked > most
        {
            bail!("{name}: {asked} bytes in a partition of {most}");
        }
        if let Some(asked) = asked.filter(|&asked| self.only_larger && asked < bytes) {
            bail!(
                "{name}: {asked} bytes are less than the {bytes} that it has: a volume gets smaller when it is not mounted"
            );
        }
        let lengthened = match (asked, most) {
            (Some(bytes), None) => lengthen(self.image, self.offset, bytes)?,
            _ => None,
        };
        match (self.resized(&volume, asked.or(most), progress), lengthened) {
            (Ok(done), _) => {
                let cut = self.shorten(&done);
                cut.with_context(|| format!("shortening {name}, whose volume is smaller already"))?;
                Ok(done)
            }
            (Err(error), Some(lengths)) => {
                take_back(self.image, lengths);
                Err(error)
            }
            (Err(error), None) => Err(error),
        }
    }

    fn resized(
        &self,
        volume: &open::Arguments,
        bytes: Option<u64>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Resized> {
        let name = self.image.display();
        let opened = volume.open_kept(self.image, Access::ReadWrite)?;
        let (disk, format) = (&*opened.device, opened.format);
        if let Some(report) =
            crate::recovery::recover(format, disk, None).with_context(|| name.to_string())?
        {
            eprintln!("{name}: {}", report.describe());
        }
        let resizes = format.resizes();
        let resizes = resizes
            .with_context(|| format!("{name}: {} volumes keep their size", format.names().join(" and ")))?;
        let mut bytes = bytes.unwrap_or_else(|| disk.geometry().bytes());
        if self.only_larger {
            bytes = bytes.max(resizes.size(disk)?);
        }
        let done = resizes.resize(disk, bytes, crate::epoch::now()?, progress);
        let done = done.with_context(|| name.to_string())?;
        opened.close()?;
        Ok(done)
    }

    /// Makes an image file that ended with its volume end with it again, if that became smaller.
    fn shorten(&self, done: &Resized) -> Result<()> {
        let size = |blocks: u64| self.offset + blocks * u64::from(done.block_size_bytes);
        let (before, after) = (size(done.blocks_before), size(done.blocks));
        let found = std::fs::metadata(self.image)?;
        // What else lies behind the volume is somebody's.
        let ends_with_it = found.len() >= before && found.len() - before < u64::from(done.block_size_bytes);
        if after < before && found.is_file() && self.partition.is_none() && ends_with_it {
            let file = std::fs::OpenOptions::new().write(true).open(self.image)?;
            file.set_len(after)?;
            file.sync_all()?;
        }
        Ok(())
    }
}

/// How long an image file was, and is.
#[derive(Clone, Copy)]
struct Lengths {
    before: u64,
    after: u64,
}

/// Makes an image file long enough; how long it was, if it was shorter.
fn lengthen(image: &Path, offset: u64, bytes: u64) -> Result<Option<Lengths>> {
    let found = std::fs::metadata(image).with_context(|| image.display().to_string())?;
    let after = offset.checked_add(bytes).context("offset and size are too large together")?;
    if !found.is_file() || found.len() >= after {
        return Ok(None);
    }
    let file = std::fs::OpenOptions::new().write(true).open(image);
    let grown = file.and_then(|file| file.set_len(after));
    grown.with_context(|| format!("growing {}", image.display()))?;
    Ok(Some(Lengths { before: found.len(), after }))
}

/// Gives an image file the length that it had, unless somebody else has changed it since.
fn take_back(image: &Path, lengths: Lengths) {
    let file = std::fs::OpenOptions::new().write(true).open(image);
    // What went wrong is to be said, whether the file gets its length back or not.
    let _ = file.and_then(|file| match file.metadata()?.len() == lengths.after {
        true => file.set_len(lengths.before),
        false => Ok(()),
    });
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
