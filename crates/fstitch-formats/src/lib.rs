//! What every format offers to the programs above, and the list of them.
//!
//! ```text
//!   command line, benchmarks, laboratory's systems, fuzz targets
//!        │ by name, or by what is on a medium
//!        ▼
//!   FORMATS ──► Format: probe, make, recover, open, check, repair, describe
//!                  │ open
//!                  ▼
//!               Volume: FileSystem + what a mount, a stack and commands need of an open one
//!        │
//!        ▼
//!   fstitch-fs (Uhfs over a cache), and file systems without a cache
//! ```
//!
//! A new format is a file here, or a folder, and a line in [`FORMATS`]. This crate translates; what a format is stands in the
//! crate that has it. It knows no files and no terminals: media are `BlockDevice`s, and what is said is returned.
#![forbid(unsafe_code)]

use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, Result};

mod bpfs;
mod described;
pub mod ext;
mod format;
mod lent;
pub mod make;
mod maps;
mod minixlld;
pub mod resize;
pub mod search;
pub mod show;
mod ufs;
mod volume;
mod waffle;
pub mod whose;

pub use described::{Description, Field};
pub use format::{
    Cached, Durability, Format, HasSnapshots, HasSums, Identity, Journals, Look, OwnJournal, Recovering,
    Recovery, ScrubPlace, Shares, Snapshot, SnapshotWork, Snapshots, Sums, TreeKind,
};
pub use fstitch_fs::ext2::mmp::{Around, Claim, Who};
pub use maps::{KeepsMaps, MapsAt};
pub use volume::{Health, References, Volume};
pub use whose::{NamesBlocks, Owner, Owners};

/// All formats. What is common comes first: it is what an empty medium is told to become.
pub const FORMATS: &[&dyn Format] =
    &[&ext::Ext, &minixlld::Minix, &bpfs::BpfsFormat, &ufs::UfsFormat, &waffle::WaffleFormat];

/// Bytes from the start of a medium that [`Format::probe`] wants to see.
pub const PROBE_LEN: usize = 68 << 10;

/// The format that calls a kind of volume `name`.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static dyn Format> {
    by_name_among(FORMATS, name)
}

/// The same among `formats`.
#[must_use]
pub fn by_name_among<'f>(formats: &[&'f dyn Format], name: &str) -> Option<&'f dyn Format> {
    formats.iter().copied().find(|format| format.names().contains(&name))
}

/// The format of the medium that begins with `head`, [`PROBE_LEN`] bytes if it has so many, and the bytes of a block of the
/// volume there, or why it cannot be one.
#[must_use]
pub fn probe(head: &[u8]) -> Option<(&'static dyn Format, std::result::Result<u32, String>)> {
    probe_among(FORMATS, head)
}

/// The same among `formats`.
#[must_use]
pub fn probe_among<'f>(
    formats: &[&'f dyn Format],
    head: &[u8],
) -> Option<(&'f dyn Format, std::result::Result<u32, String>)> {
    formats.iter().copied().find_map(|format| Some((format, format.probe(head)?)))
}

/// The same for what begins at the first block of `device`.
///
/// # Errors
/// When it cannot be read.
pub fn probe_device(device: &dyn BlockDevice) -> Result<Option<&'static dyn Format>> {
    let geometry = device.geometry();
    let block_size = to_usize(geometry.block_size);
    let count =
        (PROBE_LEN.div_ceil(block_size)).min(usize::try_from(geometry.block_count).unwrap_or(usize::MAX));
    let mut head = vec![0; count * block_size];
    let mut reads: Vec<BlockRead<'_>> = head
        .chunks_exact_mut(block_size)
        .zip(0..)
        .map(|(data, block)| BlockRead { block: BlockNo(block), kind: BlockKind::Superblock, data })
        .collect();
    device.read(&mut reads)?;
    Ok(probe(&head).map(|(format, _)| format))
}

/// The names of all kinds of volumes, as a sentence has them: `ext2 or ext3`.
#[must_use]
pub fn all_names() -> String {
    let names: Vec<&str> = FORMATS.iter().flat_map(|format| format.names()).copied().collect();
    match names.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
