//! The papers' own tables, measured here, with the papers' figures beside them; and how cost grows with scale.
//!
//! All of it runs in this process: nothing but the file system and the medium is measured.

mod bpfs;
mod counts;
mod files;
mod goal;
mod lld;
mod optimizations;
mod race;
mod recovery;
mod scale;
mod shadow;
mod shepherd;
mod small;
mod tools;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use fstitch_core::Consistency;
use fstitch_core::{BlockDevice, Clock, SystemClock};
use fstitch_fs::ext2::journal;
use fstitch_patch::CacheOptions;

use crate::inside::{self, Disk, Inside};
use crate::place::Within;
use crate::race::{Say, Step};
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
    /// The program `fstitch`, for what is measured in a process of its own.
    pub fstitch: Option<PathBuf>,
    /// An archive of the sources of a program, which is built.
    pub program: Option<PathBuf>,
}

type Make = fn(&Setting<'_>) -> Result<Table>;

/// BPFS in memory, for a process of its own that serves it.
pub use self::bpfs::bpfs_in_memory;
/// What some process of its own measures for the table of large logical disks, as JSON.
pub use self::lld::child as large_logical_disk;

/// The tables that are measured, with names for those who wait and for those who choose.
const MEASURED: [(&str, Make); 25] = [
    ("patches per block", counts::table),
    ("cost per operation", scale::operations),
    ("cost by size of the volume", scale::volumes),
    ("time to mount", recovery::mounting),
    ("ext4 tools", tools::table),
    ("ufs small files", small::table),
    ("waffle snapshots", shadow::snapshots),
    ("waffle overwrites", shadow::overwrites),
    ("waffle compression", shadow::compression),
    ("optimisations", optimizations::table),
    ("files by size", files::table),
    ("PostMark as configured in 2000", files::mail),
    ("lld log", lld::log),
    ("lld cleaning", lld::cleaning),
    ("lld large", lld::large),
    ("lld minix units", lld::units),
    ("lld minix small files", lld::small_files),
    ("lld minix large file", lld::large_file),
    ("lld served", lld::served),
    ("shepherd steps", shepherd::steps),
    ("shepherd scrub", shepherd::scrub),
    ("bpfs operations", bpfs::operations),
    ("bpfs epochs", bpfs::epochs),
    ("bpfs flushes", bpfs::flushes),
    ("bpfs served", bpfs::served),
];

/// Tables that take so long that they are measured only when they are asked for.
const ASKED_FOR: [(&str, Make); 6] = [
    ("bpfs scan", bpfs::scan),
    ("bpfs bytes tree", bpfs::unpacking),
    ("bpfs bytes postmark", bpfs::postmark_small),
    ("bpfs bytes big postmark", bpfs::postmark_large),
    ("bpfs bytes bonnie", bpfs::bonnie),
    ("bpfs bytes build", bpfs::build),
];

/// Tables that are wanted.
#[derive(Clone, Debug)]
pub struct Chosen(Vec<(&'static str, Make)>);

impl Chosen {
    /// Those whose names contain one of some words; for no words all that do not take very long.
    ///
    /// # Errors
    /// If there are none: the message says which exist.
    pub fn new(words: &[String]) -> Result<Self> {
        if words.is_empty() {
            return Ok(Self(MEASURED.to_vec()));
        }
        let fits = |name: &str| words.iter().any(|word| name.contains(word.as_str()));
        let chosen: Vec<_> = MEASURED.into_iter().chain(ASKED_FOR).filter(|(name, _)| fits(name)).collect();
        if chosen.is_empty() {
            bail!("no table's name contains `{}`: there are {}", words.join("` or `"), names().join(", "));
        }
        Ok(Self(chosen))
    }

    /// No table at all.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }
}

/// The names of all tables that are measured.
#[must_use]
pub fn names() -> Vec<&'static str> {
    MEASURED.iter().chain(&ASKED_FOR).map(|(name, _)| *name).collect()
}

/// Measures tables. What fails is noted as a gap.
///
/// # Errors
/// Those of `say`, which is told of each: how many are done, of how many, and which is next.
pub fn tables(
    chosen: &Chosen,
    setting: &Setting<'_>,
    results: &mut Results,
    say: &mut Say<'_>,
) -> Result<()> {
    for (done, (name, make)) in chosen.0.iter().enumerate() {
        let name = *name;
        say(&Step { done, total: chosen.0.len(), what: name })?;
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A table with little work, on two directories that go with it.
    pub(crate) fn quick(make: Make) -> Table {
        let disk = tempfile::tempdir().unwrap();
        let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let setting = Setting {
            scale: Scale::Quick,
            tree: &Tree::made_up(2, 2000),
            disk: disk.path().to_owned(),
            memory: memory.path().to_owned(),
            fstitch: None,
            program: None,
        };
        let table = make(&setting).unwrap();
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{table:?}");
        table
    }

    #[test]
    fn tables_are_chosen_by_parts_of_their_names() {
        let chosen = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Chosen::new(&words).map(|chosen| chosen.0.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&[]).unwrap(), names()[..MEASURED.len()]);
        assert_eq!(
            chosen(&["large", "mount"]).unwrap(),
            ["time to mount", "lld large", "lld minix large file"]
        );
        assert_eq!(chosen(&["lld"]).unwrap().len(), 7);
        assert_eq!(chosen(&["bpfs bytes"]).unwrap(), names()[MEASURED.len() + 1..]);
        let error = chosen(&["tape", "wire"]).unwrap_err().to_string();
        assert!(error.starts_with("no table's name contains `tape` or `wire`: there are "), "{error}");
        assert!(names().iter().all(|name| error.contains(name)), "{error}");
    }
}
