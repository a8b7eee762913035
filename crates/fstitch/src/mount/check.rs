//! `fstitch mount --check`: whether a mount would work, found out without mounting.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;

use super::{Arguments, Plan, daemon, is_mounted, settle_image};
use crate::open::{Access, look};
use crate::output::{Outcome, json, text};

/// What a mount would be, with `--json`.
#[derive(Serialize)]
struct Found<'a> {
    image: String,
    format: &'a str,
    consistency: String,
    read_only: bool,
    was_unclean: bool,
    /// What is recovered first; empty where nothing is.
    recovery: &'a str,
}

/// Runs `mount --check`. What would make the mount fail is an error here.
pub(super) fn run(arguments: &Arguments) -> Result<Outcome> {
    let given = arguments.mountpoint.clone();
    let somewhere =
        Arguments { mountpoint: Some(given.clone().unwrap_or_else(|| "/".into())), ..arguments.clone() };
    let mut plan = Plan::new(&somewhere, false)?;
    settle_image(&mut plan.image)?;
    if let Some(number) = plan.options.partition {
        plan.options.offset = crate::open::partition_start(&plan.image, number)?;
    }
    let options = daemon::open_options(&plan);
    let seen = look(&plan.image, &options)?;
    // Options that contradict the volume.
    let places = (plan.image.display().to_string(), plan.mountpoint.as_path());
    daemon::mount_options(&plan.options, places, plan.workers, seen.consistency)?;
    if let Some(mountpoint) = &given {
        look_at(mountpoint)?;
    }
    if arguments.json {
        json(&Found {
            image: plan.image.display().to_string(),
            format: seen.format,
            consistency: seen.consistency.to_string(),
            read_only: options.access == Access::ReadOnly,
            was_unclean: seen.was_unclean,
            recovery: seen.recovery.as_deref().unwrap_or_default(),
        })?;
        return Ok(Outcome::SUCCESS);
    }
    let mut said = format!("{}: {}", plan.image.display(), seen.format);
    match options.access {
        Access::ReadOnly => said.push_str(", could be mounted for reading only"),
        Access::ReadWrite => {
            said.push_str(&format!(", could be mounted with consistency `{}`", seen.consistency))
        }
    }
    if let Some(recovery) = seen.recovery {
        said.push_str(&format!("\nnot unmounted cleanly: {recovery}"));
    } else if seen.was_unclean {
        said.push_str(
            "\nnot unmounted cleanly: what a crash left behind would be reclaimed while it is in use",
        );
    }
    text(&format!("{said}\n"))?;
    Ok(Outcome::SUCCESS)
}

/// Whether something can be mounted at `mountpoint`.
fn look_at(mountpoint: &Path) -> Result<()> {
    let shown = mountpoint.display();
    let found = std::fs::metadata(mountpoint).with_context(|| format!("the mount point {shown}"))?;
    ensure!(found.is_dir(), "the mount point {shown} is not a directory");
    if is_mounted(&crate::control::client::absolute(mountpoint)) {
        bail!("an image is mounted at {shown} already");
    }
    let device = std::fs::metadata("/dev/fuse").is_ok_and(|found| found.file_type().is_char_device());
    ensure!(device, "there is no /dev/fuse here: nothing can be mounted");
    Ok(())
}
