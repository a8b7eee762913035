//! `fstitch mkfs -d`: a new volume with what is in a directory or an archive.

use anyhow::{Context, Result};
use fstitch_core::Consistency;
use fstitch_core::{Caller, SetAttr};
use fstitch_formats::make::Made;

use super::{AskedJournal, Common, extended, offset};
use crate::copy::{FillRules, fill as copy};
use crate::open::{self, Access, Volume};

/// Memory for what is written, in bytes.
const CACHE: u64 = 32 << 20;
/// The superuser.
const ROOT: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0 };

/// Fills the volume that was just made, if that was asked for; returns how many things could not be copied.
pub(super) fn fill(common: &Common, made: &mut Made) -> Result<u64> {
    let Some(source) = &common.source else { return Ok(0) };
    let image = &common.image;
    let epoch = crate::epoch::asked()?;
    let journal = match &common.journal {
        Some(AskedJournal::Device(path)) => Some(path.clone()),
        _ => None,
    };
    let volume = open::Arguments { offset: offset(common)?, partition: None, cache_size: CACHE, journal };
    let mut options = volume.options(image, Access::ReadWrite)?;
    // Nothing is lost with a volume that is still being made: no order need be kept.
    options.preferred = Some(Consistency::Async);
    let volume = Volume::open(image, &options)?;
    volume.fs.start()?;
    let rules = FillRules { epoch, quiet: common.quiet || common.json };
    let filled = copy(source, (&*volume.fs, image), rules).and_then(|failed| {
        if let Some(owner) = extended(common, "root_owner").and_then(|text| text.split_once(':')) {
            let set =
                SetAttr { uid: Some(owner.0.parse()?), gid: Some(owner.1.parse()?), ..SetAttr::default() };
            volume.fs.setattr(&ROOT, volume.fs.root(), &set)?;
        }
        Ok(failed)
    });
    made.values.insert("free_blocks".to_owned(), volume.fs.statfs()?.blocks_free.into());
    volume.close().with_context(|| format!("closing {}", image.display()))?;
    filled.with_context(|| format!("filling {}", image.display()))
}
