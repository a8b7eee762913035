//! The journal of a volume, described.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, Error, Result};
use fstitch_fs::ext2::journal::{Journal, Place, locate, read_superblock};
use fstitch_fs::ext2::layout::feature::incompat;
use fstitch_fs::ext2::layout::superblock::S_FEATURE_INCOMPAT;
use fstitch_fs::view::BlockView;
use fstitch_patch::journal::Log;
use serde::Serialize;

use crate::show;

/// What `info` and `journal dump` show of a journal.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// `inode 8`, or `device` with the journal's UUID.
    place: String,
    /// `clean`, `dirty`, or why it cannot be told.
    state: String,
    /// What follows is absent if the journal cannot be read.
    #[serde(flatten)]
    superblock: Option<ShownSuperblock>,
}

#[derive(Clone, Debug, Serialize)]
struct ShownSuperblock {
    version: u8,
    features: Vec<String>,
    uuid: String,
    block_size_bytes: u32,
    blocks: u32,
    first_block: u32,
    start_block: u32,
    sequence: u32,
    errno: i32,
}

impl Shown {
    /// Why it can be read no further, or how it is.
    #[must_use]
    pub fn state(&self) -> &str {
        &self.state
    }

    /// The lines for people: name and value.
    #[must_use]
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("journal", format!("{}, {}", self.place, self.state))];
        if let Some(found) = &self.superblock {
            let size = u64::from(found.blocks) * u64::from(found.block_size_bytes);
            lines.push((
                "journal size",
                format!(
                    "{} in {} blocks of {} bytes",
                    show::size(size),
                    found.blocks,
                    found.block_size_bytes
                ),
            ));
            let features = if found.features.is_empty() { "none".into() } else { found.features.join(" ") };
            lines.push(("journal features", format!("{features} (version {})", found.version)));
            lines.push((
                "journal log",
                format!(
                    "from block {}, start {}, sequence {}",
                    found.first_block, found.start_block, found.sequence
                ),
            ));
            if found.errno != 0 {
                lines.push(("journal error", found.errno.to_string()));
            }
        }
        lines
    }

    fn new(place: Place, is_dirty: bool, log: std::result::Result<&Log<'_>, &Error>) -> Self {
        let place = match place {
            Place::Inode(ino) => format!("inode {ino}"),
            Place::Device(uuid) => format!("device {}", show::uuid(&uuid)),
        };
        let log = match log {
            Ok(log) => log,
            Err(error) => return Self { place, state: error.to_string(), superblock: None },
        };
        let found = log.superblock();
        let state = match (is_dirty, log.is_empty()) {
            (true, false) => "dirty: it must be replayed",
            (true, true) => "empty, but the volume was not unmounted",
            (false, true) => "clean",
            (false, false) => "clean: what is in it is not to be replayed",
        };
        let superblock = ShownSuperblock {
            version: if found.is_v2 { 2 } else { 1 },
            features: found.features.names(),
            uuid: show::uuid(&found.uuid),
            block_size_bytes: found.block_size,
            blocks: found.len,
            first_block: found.first,
            start_block: found.start,
            sequence: found.sequence.0,
            errno: found.errno,
        };
        Self { place, state: state.to_owned(), superblock: Some(superblock) }
    }
}

/// Calls `see` with the journal of the volume on `device`, described, and opened if it can be; `external` is the device of its
/// journal, if that has one. `None` if the volume has none.
///
/// # Errors
/// As [`read_superblock`].
pub fn look<T>(
    device: &dyn BlockDevice,
    external: Option<&dyn BlockDevice>,
    see: impl FnOnce(Shown, Option<&Log<'_>>) -> T,
) -> Result<Option<T>> {
    let (raw, volume) = read_superblock(device)?;
    let Some(place) = locate(&volume, &raw)? else {
        return Ok(None);
    };
    let is_dirty = S_FEATURE_INCOMPAT.get(&raw) & incompat::RECOVER != 0;
    let view = BlockView::new(device, to_usize(volume.block_size));
    let found = Journal::find(&view, &volume, place, external);
    let opened = match (&found, place, external) {
        (Ok(found), Place::Device(_), Some(device)) => found.open(device),
        (Ok(found), ..) => found.open(&view),
        (Err(error), ..) => Err(error.clone()),
    };
    Ok(Some(match opened {
        Ok(log) => see(Shown::new(place, is_dirty, Ok(&log)), Some(&log)),
        Err(error) => see(Shown::new(place, is_dirty, Err(&error)), None),
    }))
}
