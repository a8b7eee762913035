//! `fstitch info`: what a volume is.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use fstitch_core::BlockDevice;
use fstitch_formats::Description;
use serde_json::{Map, Value};

use crate::open::{self, Access};
use crate::output::{Outcome, json, text};
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
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// Runs `info`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let image = arguments.image.display().to_string();
    let opened = arguments.volume.open_kept(&arguments.image, Access::ReadOnly)?;
    let (disk, format) = (&*opened.device, opened.format);
    let block_size = disk.geometry().block_size;
    let external = open_external(arguments.volume.journal.as_deref(), block_size, Access::ReadOnly)?;
    let external = external.as_ref().map(|disk| -> &dyn BlockDevice { disk });
    let described = format.describe(disk, external, arguments.groups).with_context(|| image.clone())?;
    let policy = opened.kept.as_ref().map(|kept| kept.shepherd().policy().description.as_str());
    if arguments.json {
        let mut shown = Map::from_iter([("image".to_owned(), Value::from(image))]);
        shown.extend(described.values);
        shown.insert("policy".to_owned(), policy.map_or(Value::Null, Value::from));
        json(&shown)?;
    } else {
        text(&lines(&image, &described, policy)?)?;
    }
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
