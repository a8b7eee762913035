//! The process that writes until it is killed: unpacks the tree, moves it, deletes the one before, over and over.
//!
//! Every now and then a file is made stable and then promised: a line in the journal, which lies outside the volume,
//! says so. Promises are kept in a directory of their own and never taken back.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_disk::Direct;
use fstitch_fs::uhfs::AtimePolicy;
use fstitch_patch::Optimizations;

use super::place::{Inside, Mounted, Place};
use super::tree::{FILES_MIN, generated_size};
use crate::open::{Access, Options, Survives, Volume};
use crate::output::Outcome;

/// One file of so many is promised.
const PROMISE_EVERY: usize = 60;
/// Files unpacked per round.
const FILES_PER_ROUND: usize = 1500;
/// Directories that the files of a round are spread over.
const DIRECTORIES: usize = 40;

/// Arguments of the hidden command `demo-writer`.
#[derive(clap::Args)]
pub struct Arguments {
    /// The files to unpack
    #[arg(long)]
    list: PathBuf,
    /// Where promises are noted
    #[arg(long)]
    journal: PathBuf,
    /// A mount point, or an image
    target: PathBuf,
}

/// Writes until it is killed.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let journal = std::fs::OpenOptions::new().create(true).append(true).open(&arguments.journal)?;
    let list = std::fs::read_to_string(&arguments.list).context("reading the list of files")?;
    let mut sources: Vec<Source> = list.lines().map(|line| Source::File(PathBuf::from(line))).collect();
    sources.extend((sources.len()..FILES_MIN).map(Source::Generated));
    if arguments.target.is_dir() {
        return Writer { place: &Mounted(arguments.target.clone()), sources, journal }.forever();
    }
    let volume = Volume::open(
        &arguments.target,
        &Options {
            access: Access::ReadWrite,
            offset: 0,
            cache_size: 64 << 20,
            write_back_age: Duration::from_millis(200),
            optimizations: Optimizations::ALL,
            atime: AtimePolicy::NoAtime,
            consistency: None,
            preferred: None,
            survives: Survives::Asked(None),
            commit_interval: Duration::from_secs(5),
            journal: None,
            live: None,
            epoch: None,
            direct: Direct::Auto,
            on_fault: None,
            tree: None,
        },
    )?;
    volume.fs.start()?;
    Writer { place: &Inside(&*volume.fs), sources, journal }.forever()
}

enum Source {
    File(PathBuf),
    Generated(usize),
}

impl Source {
    fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::File(path) => Ok(std::fs::read(path)?),
            Self::Generated(number) => {
                let len = usize::try_from(generated_size(*number))?;
                let line = format!("generated file {number}\n").into_bytes();
                Ok(line.iter().copied().cycle().take(len).collect())
            }
        }
    }
}

struct Writer<'a, P: Place> {
    place: &'a P,
    sources: Vec<Source>,
    journal: std::fs::File,
}

impl<P: Place> Writer<'_, P> {
    fn forever(mut self) -> Result<Outcome> {
        self.place.make_directory("promised")?;
        let first = self.place.list("")?.len();
        let mut previous: Option<String> = None;
        for round in first.. {
            let name = format!("round-{round}-{}", std::process::id());
            self.unpack(&name, round)?;
            let moved = format!("moved-{round}-{}", std::process::id());
            self.place.rename(&name, &moved)?;
            for left in previous.replace(moved).into_iter().chain(self.left_behind(round)?) {
                self.remove(&left, 0)?;
            }
        }
        Ok(Outcome::SUCCESS)
    }

    /// What an earlier writer left when it was killed, in the first round only.
    fn left_behind(&self, round: usize) -> Result<Vec<String>> {
        let own = format!("-{}", std::process::id());
        let names = self.place.list("")?.into_iter().filter(|(_, is_directory)| *is_directory);
        let others = names.map(|(name, _)| name).filter(|name| {
            (name.starts_with("round-") || name.starts_with("moved-")) && !name.ends_with(&own)
        });
        Ok(if round > 0 { others.collect() } else { Vec::new() })
    }

    fn unpack(&mut self, directory: &str, round: usize) -> Result<()> {
        self.place.make_directory(directory)?;
        for number in 0..DIRECTORIES {
            self.place.make_directory(&format!("{directory}/{number}"))?;
        }
        let start = round * FILES_PER_ROUND;
        for index in 0..FILES_PER_ROUND.min(self.sources.len()) {
            let number = (start + index) % self.sources.len();
            let data = self.sources[number].read()?;
            let path = format!("{directory}/{}/file-{index}", index % DIRECTORIES);
            self.place.write_file(&path, &data, false)?;
            if index % PROMISE_EVERY == 0 {
                self.promise(&data)?;
            }
            if index % 7 == 3 {
                let other = format!("{directory}/{}/moved-{index}", (index * 31) % DIRECTORIES);
                self.place.rename(&path, &other)?;
            }
        }
        Ok(())
    }

    /// Writes a file, makes it stable, and only then promises it.
    fn promise(&mut self, data: &[u8]) -> Result<()> {
        let line = self.journal.metadata()?.len();
        let path = format!("promised/{line}-{}", std::process::id());
        self.place.write_file(&path, data, true)?;
        let entry = format!("{path} {} {:016x}\n", data.len(), super::verify::hash(data));
        Ok(self.journal.write_all(entry.as_bytes())?)
    }

    fn remove(&self, path: &str, depth: usize) -> Result<()> {
        anyhow::ensure!(depth < 16, "{path} nests deeper than anything that was written");
        for (name, is_directory) in self.place.list(path)? {
            let below = format!("{path}/{name}");
            if is_directory {
                self.remove(&below, depth + 1)?;
            } else {
                self.place.remove_file(&below)?;
            }
        }
        self.place.remove_directory(path)
    }
}
