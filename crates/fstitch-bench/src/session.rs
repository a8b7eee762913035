//! A whole run: places, images, the race, the tables, and what is written in the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fstitch_core::{Clock, SystemClock};
use fstitch_fuse::Transport;

use crate::contender::{Contender, Medium, Tools};
use crate::papers::{self, Chosen, Setting};
use crate::processors;
use crate::race::{Plan, Say, Step, prepare};
use crate::results::{Machine, Results};
use crate::transport;
use crate::workload::{Scale, Tree};

/// Files and bytes of the tree: what the paper unpacked.
const TREE: (usize, usize) = (20_000, 218 << 20);
/// The same for a quick look.
const QUICK_TREE: (usize, usize) = (2_000, 20 << 20);
/// Where Debian's package puts the kernel's sources.
const SOURCES: &str = "/usr/src/linux-source-6.1.tar.xz";

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// How much is done.
    pub scale: Scale,
    /// How often each step is repeated at most.
    pub repetitions: u32,
    /// How long all of it may take; the tables and one repetition are done in any case.
    pub time: Duration,
    /// The contenders; all if empty.
    pub contenders: Vec<Contender>,
    /// Names of the workloads; all if empty.
    pub workloads: Vec<String>,
    /// Bytes of the images.
    pub image_bytes: u64,
    /// A directory on the real disk, and one in memory; a medium without one is left out.
    pub disk: Option<PathBuf>,
    /// See `disk`.
    pub memory: Option<PathBuf>,
    /// The archive of kernel sources; Debian's if it is there, otherwise a tree is made up.
    pub source: Option<PathBuf>,
    /// An archive of the sources of a program, which is built where a table asks for it.
    pub program: Option<PathBuf>,
    /// The program `fstitch`.
    pub fstitch: PathBuf,
    /// Which way requests reach our servers; `Auto` is io_uring where it can be had.
    pub transport: Transport,
    /// Whether the race is run.
    pub race: bool,
    /// The papers' tables, and what is measured without rivals.
    pub tables: Chosen,
}

/// Does all of it.
///
/// # Errors
/// When images or directories cannot be made, and those of `say`; what fails in a step is noted in the results.
pub fn run(wanted: &Wanted, say: &mut Say<'_>) -> Result<Results> {
    let clock = SystemClock::new();
    let temporary = |parent: &Path| {
        tempfile::Builder::new()
            .prefix("fstitch-bench-")
            .tempdir_in(parent)
            .with_context(|| parent.display().to_string())
    };
    let disk = wanted.disk.as_deref().map(temporary).transpose()?;
    let memory = wanted.memory.as_deref().map(temporary).transpose()?;
    let scratch = temporary(wanted.memory.as_deref().unwrap_or(&std::env::temp_dir()))?;
    let mountpoint = temporary(&std::env::temp_dir())?;
    let places = [("disk", &disk), ("memory", &memory)].into_iter();
    let medium = |(name, place): (&'static str, &Option<tempfile::TempDir>)| {
        place.as_ref().map(|place| Medium { name, image: place.path().join("image") })
    };
    let media: Vec<Medium> = places.filter_map(medium).collect();
    say(&Step { done: 0, total: 0, what: "reading the source tree" })?;
    let tree = tree(wanted)?;
    let mut results = Results { machine: Machine::look(&media, wanted.image_bytes), ..Results::default() };
    results.scale = if wanted.scale == Scale::Full { "full" } else { "quick" }.to_owned();
    let is_io_uring = look(wanted, &tree, &mut results)?;
    let mut plan = Plan {
        scale: wanted.scale,
        repetitions: wanted.repetitions,
        time: wanted.time,
        contenders: contenders(wanted, is_io_uring),
        workloads: wanted.workloads.clone(),
        media,
        scratch: scratch.path().to_owned(),
        transport: wanted.transport,
    };
    let tools = Tools { fstitch: wanted.fstitch.clone(), mountpoint: mountpoint.path().canonicalize()? };
    let place = |wanted: &Option<tempfile::TempDir>| {
        wanted.as_ref().map_or_else(|| scratch.path().to_owned(), |place| place.path().to_owned())
    };
    let setting = Setting {
        scale: wanted.scale,
        tree: &tree,
        disk: place(&disk),
        memory: place(&memory),
        fstitch: Some(wanted.fstitch.clone()),
        program: wanted.program.clone(),
    };
    papers::tables(&wanted.tables, &setting, &mut results, say)?;
    if wanted.race {
        for medium in &plan.media {
            say(&Step { done: 0, total: 0, what: &format!("writing the image of medium {}", medium.name) })?;
            prepare(medium, wanted.image_bytes)?;
        }
        plan.time = wanted.time.saturating_sub(clock.elapsed());
        plan.race(&tools, &tree, &mut results, say)?;
        results.tables.extend(papers::of_race(&results));
    }
    results.seconds = clock.elapsed().as_secs_f64();
    Ok(results)
}

/// Notes what is raced with, and returns whether the tuned machine has requests come by io_uring. What it changes to find out is as it
/// was afterwards: each step chooses for itself, for not all may touch the machine.
fn look(wanted: &Wanted, tree: &Tree, results: &mut Results) -> Result<bool> {
    let about = format!("{}: {} files, {} MB", tree.origin, tree.files.len(), tree.size() / 1_000_000);
    let chosen = transport::choose(wanted.transport);
    ensure!(
        chosen.is_io_uring || wanted.transport != Transport::IoUring,
        "requests come by {}",
        chosen.about
    );
    let facts = [
        ("source tree", about),
        ("tuned: idle processors", processors::idle()),
        ("tuned: requests of our mounts", chosen.about.clone()),
        ("who ran it", user()),
    ];
    results.machine.facts.extend(facts.map(|(name, fact)| (name.to_owned(), fact)));
    Ok(chosen.is_io_uring)
}

/// Those that are wanted; all if none is named.
fn contenders(wanted: &Wanted, is_io_uring: bool) -> Vec<Contender> {
    if wanted.contenders.is_empty() { all(is_io_uring) } else { wanted.contenders.clone() }
}

/// All contenders but those that race only when they are named, the conventional mode through FUSE, which is measured in process, and, without io_uring, those that
/// are to be compared with it.
fn all(is_io_uring: bool) -> Vec<Contender> {
    let takes_part = |one: &Contender| {
        let is_left_out = one.is_synchronous() && one.is_mounted()
            || one.is_by_device() && !is_io_uring
            || one.is_asked_for();
        !is_left_out
    };
    Contender::ALL.into_iter().chain([Contender::Tmpfs]).filter(takes_part).collect()
}

/// Who runs this: users other than root have no way to tune the machine, and defaults may do other things for them.
fn user() -> String {
    if rustix::process::geteuid().is_root() { "root".to_owned() } else { "not root".to_owned() }
}

fn tree(wanted: &Wanted) -> Result<Tree> {
    let (files, bytes) = if wanted.scale == Scale::Full { TREE } else { QUICK_TREE };
    let found =
        wanted.source.as_deref().or_else(|| Path::new(SOURCES).exists().then_some(Path::new(SOURCES)));
    match found {
        Some(archive) => Tree::of_archive(archive, files, bytes),
        None => Ok(Tree::made_up(files, bytes)),
    }
}
