//! The devices of journals, as volumes get them and give them back.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fstitch_core::BlockDevice;
use fstitch_disk::{DiskOptions, FileDisk};
use fstitch_formats::Journals;
use fstitch_formats::ext::{JournalDevice, release_device};

use super::show_uuid;
use crate::open;

/// The device of a journal, ready to be changed.
pub struct Opened {
    path: PathBuf,
    disk: FileDisk,
    found: JournalDevice,
}

impl Opened {
    /// Opens the device, whatever the size of its blocks.
    pub fn new(path: &Path) -> Result<Self> {
        let options = DiskOptions { block_size: 1024, ..DiskOptions::default() };
        let disk = open::disk(path, &options)?;
        let found = JournalDevice::read(&disk).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.to_owned(), disk, found })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it the journal of the volume on `volume`; returns its blocks.
    pub fn give_to(&self, journals: &dyn Journals, volume: &dyn BlockDevice) -> Result<u32> {
        let added = journals.add_device(volume, &self.disk, self.number()?);
        added.with_context(|| format!("the journal {}", self.path.display()))
    }

    /// Fails unless it is the journal of the volume with this UUID.
    pub fn require_user(&self, volume: &[u8; 16]) -> Result<()> {
        if self.found.users(&self.disk)? != [*volume] {
            bail!("{} is not the journal of the volume {}", self.path.display(), show_uuid(volume));
        }
        Ok(())
    }

    /// Lets another volume have it that the volume with this UUID does not use any more.
    pub fn take_from(&self, volume: &[u8; 16]) -> Result<()> {
        release_device(&self.disk, volume).with_context(|| self.path.display().to_string())?;
        Ok(())
    }

    /// The device's number, by which Linux finds it without being told; 0 for a file.
    fn number(&self) -> Result<u32> {
        let meta = std::fs::metadata(&self.path)?;
        let number = if meta.file_type().is_block_device() { meta.rdev() } else { 0 };
        // Larger numbers than the field holds are nothing that Linux would find.
        Ok(u32::try_from(number).unwrap_or(0))
    }
}

/// The device for the journal of a volume that is still to be made, with blocks of its size if none was asked for.
pub fn for_new_volume(path: &Path, block_size: &mut Option<u32>) -> Result<Opened> {
    let opened = Opened::new(path)?;
    let found = opened.found.block_size;
    if *block_size.get_or_insert(found) != found {
        bail!("the journal {} has blocks of {found} bytes: the volume must have them, too", path.display());
    }
    if let Some(user) = opened.found.users(&opened.disk)?.first() {
        bail!(
            "the journal {} belongs to the volume {}; `fstitch mkfs journal --force` makes it anew",
            path.display(),
            show_uuid(user)
        );
    }
    Ok(opened)
}
