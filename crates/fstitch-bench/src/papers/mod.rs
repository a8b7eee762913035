//! The papers' own tables, measured here, with the papers' figures beside them; and how cost grows with scale.
//!
//! All of it runs in this process: nothing but the file system and the medium is measured.

mod counts;
mod files;
mod optimizations;
mod race;
mod recovery;
mod scale;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use fstitch_core::Consistency;
use fstitch_core::{BlockDevice, Clock, SystemClock};
use fstitch_fs::ext2::journal;
use fstitch_patch::CacheOptions;

use crate::inside::{self, Disk, Inside};
use crate::place::Within;
use crate::results::{Results, Table};
use crate::workload::{Scale, Tree};

/// What the tables are made with.
pub struct Setting<'a> {
    /// How much is done.
    pub scale: Scale,
    /// The source tree.
    pub tree: &'a Tree,
    /// A directory for sparse images: on the real disk where there is one.
    pub disk: PathBuf,
    /// A directory for sparse images in memory.
    pub memory: PathBuf,
}

type Make = fn(&Setting<'_>) -> Result<Table>;

/// The tables that are measured, with names for those who wait.
const MEASURED: [(&str, Make); 7] = [
    ("patches per block", counts::table),
    ("cost per operation", scale::operations),
    ("cost by size of the volume", scale::volumes),
    ("time to mount", recovery::mounting),
    ("optimisations", optimizations::table),
    ("files by size", files::table),
    ("PostMark as configured in 2000", files::mail),
];

/// How many tables are measured.
pub const COUNT: usize = MEASURED.len();

/// Measures all tables. What fails is noted as a gap.
///
/// # Errors
/// Those of `say`, which is told of each.
pub fn tables(
    setting: &Setting<'_>,
    results: &mut Results,
    say: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    for (name, make) in MEASURED {
        say(name)?;
        match make(setting) {
            Ok(table) => results.tables.push(table),
            Err(error) => {
                let why = format!("{error:#}");
                results.gaps.push(crate::results::Gap { what: name.to_owned(), why, is_failure: true });
            }
        }
    }
    Ok(())
}

/// The tables that papers have of a race, taken from ours.
#[must_use]
pub fn of_race(results: &Results) -> Vec<Table> {
    race::tables(results)
}

/// A volume on a sparse image of its own, which goes with it.
struct Volume {
    inside: Inside,
    disk: Disk,
    place: Within,
    image: tempfile::TempPath,
}

impl Volume {
    /// Makes a volume of so many bytes.
    fn new(directory: &Path, bytes: u64, mode: Consistency, cache: CacheOptions) -> Result<Self> {
        let image = tempfile::Builder::new().prefix("volume-").tempfile_in(directory)?;
        image.as_file().set_len(bytes)?;
        let image = image.into_temp_path();
        let inodes = u32::try_from((bytes >> 14).clamp(16_384, 1_200_000))?;
        Inside::make(&*inside::disk(&image)?, inodes)?;
        Self::open(image, mode, cache)
    }

    /// Opens it as a mount does: first the journal is replayed, if there is something in it.
    fn open(image: tempfile::TempPath, mode: Consistency, cache: CacheOptions) -> Result<Self> {
        let disk = inside::disk(&image)?;
        if journal::needs_recovery(&*disk)? {
            let mut options = journal::Options {
                external: None,
                now: SystemClock::new().now(),
                for_reading: false,
                batch_max: journal::BATCH_MAX,
                progress: &mut |_| {},
            };
            journal::recover(&*disk, &mut options)?;
        }
        let inside = Inside::open(Arc::clone(&disk) as Arc<dyn BlockDevice>, mode, cache)?;
        inside.cache.start_flusher()?;
        let place = Within::new(Arc::clone(&inside.fs) as _);
        Ok(Self { inside, disk, place, image })
    }
}

/// Seconds that `work` takes.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let clock = SystemClock::new();
    work()?;
    Ok(clock.elapsed().as_secs_f64())
}

fn strings<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}
