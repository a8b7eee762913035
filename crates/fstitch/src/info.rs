//! `fstitch info`: what a volume is.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fstitch_core::BlockDevice;
use fstitch_formats::Description;
use serde_json::{Map, Value};

use crate::location::{Location, show};
use crate::open::{self, Access};
use crate::output::{Outcome, json, text};
use crate::paths::{self, Last};
use crate::recovery::open_external;

/// Arguments of `info`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Show every part, such as block groups
    #[arg(short, long)]
    groups: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// List the extents of a file in full
    #[arg(short, long)]
    extents: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device, or a file in it as IMAGE:/path: where its blocks lie
    #[arg(value_name = "IMAGE[:/PATH]")]
    image: PathBuf,
}

/// Runs `info`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if let Location::Image { image, path } = Location::parse(arguments.image.as_os_str()) {
        return of_file(arguments, &image, &path);
    }
    ensure!(!arguments.extents, "--extents is for a file: IMAGE:/path");
    let image = arguments.image.display().to_string();
    let opened = arguments.volume.open_kept(&arguments.image, Access::ReadOnly)?;
    let (disk, format) = (&*opened.device, opened.format);
    let block_size = disk.geometry().block_size;
    let external = open_external(arguments.volume.journal.as_deref(), block_size, Access::ReadOnly)?;
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    let described = format.describe(disk, external, arguments.groups).with_context(|| image.clone())?;
    let stripe = crate::disks::stripe::described(&arguments.image);
    let policy = opened.kept.as_ref().map(|kept| kept.shepherd().policy().description.as_str());
    if arguments.json {
        let mut shown = Map::from_iter([("image".to_owned(), Value::from(image))]);
        shown.extend(described.values);
        shown.insert("policy".to_owned(), policy.map_or(Value::Null, Value::from));
        if let Some((disks, unit)) = stripe {
            shown.insert("stripe_disks".to_owned(), disks.into());
            shown.insert("stripe_unit_bytes".to_owned(), unit.into());
        }
        json(&shown)?;
    } else {
        let mut shown = lines(&image, &described, policy)?;
        if let Some((disks, unit)) = stripe {
            let unit = crate::size::show(u64::from(unit));
            writeln!(shown, "  {:<20} {disks} disks, in units of {unit}", "stripe")?;
        }
        text(&shown)?;
    }
    Ok(Outcome::SUCCESS)
}

/// Extents of a file that are listed unless all are asked for.
const EXTENTS_SHOWN: usize = 10;

/// Shows where the blocks of a file lie.
fn of_file(arguments: &Arguments, image: &Path, path: &[u8]) -> Result<Outcome> {
    let name = format!("{}:{}", image.display(), show(path));
    let ino = {
        let volume = arguments.volume.open(image, Access::ReadOnly)?;
        paths::resolve(&*volume.fs, path, Last::Keep)?.ino()
    };
    let opened = arguments.volume.open_kept(image, Access::ReadOnly)?;
    let (disk, format) = (&*opened.device, opened.format);
    let maps = format.maps_files();
    let maps = maps.with_context(|| format!("{name}: {} volumes have no extents", format.names()[0]))?;
    ensure!(!format.needs_recovery(disk)?, "{name}: the volume must be recovered first: `fstitch fsck -p`");
    let map = maps.file_map(disk, ino.get()).with_context(|| name.clone())?;
    if arguments.json {
        let mut shown = Map::from_iter([
            ("image".to_owned(), Value::from(image.display().to_string())),
            ("path".to_owned(), Value::from(show(path))),
            ("inode".to_owned(), Value::from(ino.get())),
        ]);
        if let Value::Object(fields) = serde_json::to_value(&map)? {
            shown.extend(fields);
        }
        json(&shown)?;
        return Ok(Outcome::SUCCESS);
    }
    let mut shown = format!("{name}\n  {:<20} {}\n  {:<20} {}\n", "inode", ino, "map", map.map);
    let blocks: u64 = map.extents.iter().map(|run| run.blocks).sum();
    writeln!(shown, "  {:<20} {}, {} blocks of its own", "depth", map.depth, map.map_blocks)?;
    let size = map.block_size_bytes;
    writeln!(shown, "  {:<20} {}, {blocks} blocks of {size} bytes", "extents", map.extents.len())?;
    let most = if arguments.extents { usize::MAX } else { EXTENTS_SHOWN };
    for run in map.extents.iter().take(most) {
        let note = if run.unwritten { ", unwritten" } else { "" };
        let (first, last) = (run.physical, run.physical + run.blocks - 1);
        writeln!(shown, "    {:>10}  {first}..{last}, {} blocks{note}", run.logical, run.blocks)?;
    }
    if map.extents.len() > most {
        writeln!(shown, "    ... {} more: --extents lists all", map.extents.len() - most)?;
    }
    text(&shown)?;
    Ok(Outcome::SUCCESS)
}

fn lines(image: &str, described: &Description, policy: Option<&str>) -> Result<String> {
    let mut shown = format!("{image}\n");
    for field in described.fields.iter().filter(|field| !field.text.is_empty()) {
        writeln!(shown, "  {:<20} {}", field.name, field.text)?;
    }
    if let Some(policy) = policy {
        writeln!(shown, "  {:<20} {policy}", "policy")?;
    }
    for part in &described.parts {
        writeln!(shown, "  {part}")?;
    }
    Ok(shown)
}
