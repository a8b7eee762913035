//! `fstitch mount`, and what mount(8) calls as `mount.fuse.fstitch`.

pub mod background;
mod check;
pub mod daemon;
mod fuse2fs;
pub mod gate;
mod helper;
mod options;
mod reopen;
mod stack;
mod terms;
mod watch;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::output::{Outcome, usage};
pub use fuse2fs::{Arguments as Fuse2fsArguments, is_fuse2fs, run as run_fuse2fs};
pub use helper::{is_helper_name, run as run_helper};
pub use options::{Atime, Options, list_words, option_terms};

/// Arguments of `mount`.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = OPTIONS_HELP)]
pub struct Arguments {
    /// Mount options, separated by commas (see below)
    #[arg(short = 'o', long = "options", value_name = "LIST", value_parser = options::ListParser, hide_possible_values = true)]
    pub lists: Vec<String>,
    /// Where the volume starts in the image, in bytes: a partition's start
    #[arg(long, value_name = "BYTES", value_parser = crate::size::bytes)]
    pub offset: Option<u64>,
    /// The partition of a whole disk that the volume is in, by its number in the table (MBR or GPT)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub partition: Option<u32>,
    /// Bytes of memory for cached blocks and pending changes; by default an eighth of what is available, at most 4G
    #[arg(long, value_name = "BYTES", value_parser = crate::size::bytes)]
    pub cache_size: Option<u64>,
    /// Threads that answer the kernel; more than two rarely help
    #[arg(long, value_name = "COUNT")]
    pub workers: Option<usize>,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Optimisations to switch off, for measurements: hard, overlap, ready, elimination
    #[arg(long, hide = true, value_name = "LIST", value_delimiter = ',')]
    pub optimizations: Vec<String>,
    /// Age at which changes are written, such as 5s or 200ms
    #[arg(long, hide = true, value_name = "TIME", value_parser = crate::size::duration)]
    pub write_back_age: Option<Duration>,
    /// Mount all volumes that this file describes, with one patch graph (docs/stack.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lists", "offset", "partition", "cache_size", "workers",
        "optimizations", "write_back_age"])]
    pub stack: Option<PathBuf>,
    /// Find out whether the mount would work, and mount nothing: lock, features, journal, mount point. Of a stack file, draw
    /// the stack
    #[arg(long, conflicts_with = "foreground")]
    pub check: bool,
    /// With --check: print JSON
    #[arg(long, requires = "check")]
    pub json: bool,
    /// The image file or block device
    #[arg(value_name = "IMAGE", required_unless_present = "stack", conflicts_with = "stack")]
    pub image: Option<PathBuf>,
    /// The directory to mount on
    #[arg(value_name = "DIRECTORY", required_unless_present_any = ["stack", "check"], conflicts_with = "stack")]
    pub mountpoint: Option<PathBuf>,
}

/// The words of `-o`, each from the third column on and what it means from column `ABOUT_FROM` on; then a note.
pub const OPTIONS_HELP: &str = "\
Mount options (-o):
  ro, rw                         accept no changes; accept them
  sync                           every operation is on the medium before it returns
  noatime, relatime, strictatime when reading changes access times (default relatime)
  allow_other                    other users may use the mount
  auto_unmount                   the mount goes when its daemon is killed, too (through fusermount3)
  default_permissions            the kernel checks permissions (default; nodefault_permissions)
  uid=N, gid=N                   everything appears to belong to this user, this group
  offset=BYTES, partition=N      where the volume starts in the image, or its partition of a whole disk
  consistency=MECHANISM          soft (soft updates), ordered, metadata or full (journals), sync (names are stable when
                                 calls return), async (no order: a crash may ruin the volume); default: ordered
                                 where the volume has a journal, soft where it has none
  durability=power|process       of a BPFS: when a call returns, what it did survives a power cut (default), or the end of the
                                 daemon, and a power cut when it is synced
  fsync=ordered                  fsync of every program orders and does not wait: what was done last may be missing after
                                 a crash (see `fstitch order --help`); never the default, which is fsync=durable
  durable_every=TIME             with it: make everything stable that often, as in 5s
  commit=SECONDS                 age at which a journal's transaction is committed (default 5)
  journal_path=PATH              the device of the volume's journal, if it has one of its own
  on_fault=COMMAND               run this on faults of which the volume's policy says `notify`, with FSTITCH_STORY and others in its
                                 environment; a name without commas: the rest goes into a script
  rebuild_rate=BYTES             of a volume on several disks: write at most so many bytes a second to a disk that is rebuilt;
                                 without it half of the time is left to others
  awake=auto|on|off              keep idle processors awake while requests come: several times as fast in virtual machines and
                                 where processors sleep deeply. auto (default): where waking one was measured to be slow, only
                                 while requests come fast, not on battery; on (or `awake`): from the first request; see `status`
  writeback_cache                the kernel keeps what is written and passes it on when a file is closed or synced: several times
                                 faster for programs that write little at a time. Their writes cannot be ordered then: no
                                 patchgroups, no fsync=ordered, not with sync or consistency=full
  transport=WAY                  how the kernel's requests come: io_uring (Linux 6.14 and later, after
                                 `echo Y > /sys/module/fuse/parameters/enable_uring` as root), device (/dev/fuse), or
                                 auto (default): io_uring where it can be had
  tree=NAME                      mount this snapshot (read-only) or clone of the volume by itself, in place of the volume
  casefold                       names are found whatever their case, as on macOS and Windows, and keep the one they were made
                                 with; the kernel remembers no names then, so looking them up takes longer
  hide=PATTERN                   names that fit the pattern (`*`, `?`, `[a-z]`) are not there, in all directories; once for each
                                 pattern
  cache_size=BYTES, workers=N    as --cache-size and --workers
  norecovery                     do not reclaim in the background what a crash left behind
  nosuid, nodev, noexec, x-…     and other generic options of mount(8)

fsync on the root directory makes everything stable; sync(1) does not reach FUSE mounts.";

/// A mount that is to be made, all defaults filled in.
#[derive(Clone, Debug)]
pub struct Plan {
    image: PathBuf,
    mountpoint: PathBuf,
    options: Options,
    cache_size: u64,
    workers: usize,
    write_back_age: Duration,
    optimizations: fstitch_patch::Optimizations,
    /// The power of the mount can be cut.
    live: Option<crate::live::Options>,
}

/// Cache when nothing else is said, in bytes.
pub fn default_cache_size() -> u64 {
    u64::try_from(fstitch_patch::CacheOptions::share_of(fstitch_disk::available_memory()))
        .expect("at most 4 GiB")
}

/// Threads when nothing else is said.
const DEFAULT_WORKERS: usize = 1;

impl Arguments {
    /// What a command line says that has nothing but options, image and mount point.
    fn new(lists: Vec<String>, image: PathBuf, mountpoint: PathBuf) -> Self {
        Self {
            lists,
            offset: None,
            partition: None,
            cache_size: None,
            workers: None,
            foreground: false,
            optimizations: Vec::new(),
            write_back_age: None,
            stack: None,
            check: false,
            json: false,
            image: Some(image),
            mountpoint: Some(mountpoint),
        }
    }
}

impl Plan {
    fn new(arguments: &Arguments, sloppy: bool) -> Result<Self> {
        let mut options = Options::default();
        for list in &arguments.lists {
            options.add(list, sloppy).map_err(usage)?;
        }
        options.offset = arguments.offset.unwrap_or(options.offset);
        options.partition = arguments.partition.or(options.partition);
        let off = options.without.iter().chain(&arguments.optimizations).map(String::as_str);
        let optimizations = options::optimizations(off).map_err(usage)?;
        let age = fstitch_patch::CacheOptions::default().write_back_age;
        let workers = arguments.workers.or(options.workers).unwrap_or(DEFAULT_WORKERS);
        options::checked_workers(workers).map_err(usage)?;
        options.refuse_contradictions().map_err(usage)?;
        let (image, mountpoint) =
            arguments.image.clone().zip(arguments.mountpoint.clone()).context("nothing to mount")?;
        Ok(Self {
            image,
            mountpoint,
            cache_size: arguments.cache_size.or(options.cache_size).unwrap_or_else(default_cache_size),
            workers,
            write_back_age: arguments.write_back_age.or(options.write_back_age).unwrap_or(age),
            optimizations,
            live: None,
            options,
        })
    }

    /// Makes both paths independent of the current directory, and checks what costs nothing to check.
    fn settle(&mut self) -> Result<()> {
        settle_image(&mut self.image)?;
        if let Some(number) = self.options.partition {
            self.options.offset = crate::open::partition_start(&self.image, number)?;
        }
        if let Some(journal) = &mut self.options.journal {
            *journal = journal.canonicalize().with_context(|| format!("{}", journal.display()))?;
        }
        settle_mountpoint(&mut self.mountpoint)
    }
}

/// Makes an image's path independent of the current directory. A descriptor that we were handed stays one: whatever its path
/// is, we may not be able to go there.
fn settle_image(image: &mut PathBuf) -> Result<()> {
    let name = || format!("{}", image.display());
    if ["/proc/self/fd", "/dev/fd"].iter().any(|fds| image.starts_with(fds)) {
        std::fs::metadata(&*image).with_context(name)?;
    } else {
        *image = crate::disks::canonical(image)?;
    }
    Ok(())
}

/// Makes a mount point independent of the current directory and of symbolic links.
fn settle_mountpoint(mountpoint: &mut PathBuf) -> Result<()> {
    clear_dead_mount(mountpoint);
    let absolute = crate::control::client::absolute(mountpoint);
    let shown = mountpoint.display();
    let mut found = mountpoint.canonicalize();
    // Where a daemon has just died, the kernel may answer anything for a moment.
    for _ in 0..DYING_PAUSES {
        if found.is_ok() || !is_mounted(&absolute) {
            break;
        }
        std::thread::sleep(DYING_PAUSE);
        clear_dead_mount(mountpoint);
        found = mountpoint.canonicalize();
    }
    *mountpoint = match found {
        Ok(path) => path,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("the mount point {shown} does not exist: make the directory first")
        }
        Err(error) => return Err(error).with_context(|| format!("{shown}")),
    };
    ensure!(mountpoint.is_dir(), "the mount point {} is not a directory", mountpoint.display());
    Ok(())
}

/// How often and how long is waited for the mount of a daemon that is dying.
const DYING_PAUSES: u32 = 20;
const DYING_PAUSE: Duration = Duration::from_millis(50);

/// Takes away what a killed daemon of ours left at the mount point, where every access fails.
fn clear_dead_mount(mountpoint: &Path) {
    // Attributes may still be in the kernel's memory; how full the volume is only its daemon knows.
    if !rustix::fs::statvfs(mountpoint).is_err_and(|error| fstitch_fuse::is_dead(&error.into())) {
        return;
    }
    let absolute = crate::control::client::absolute(mountpoint);
    if !is_mounted(&absolute) {
        return;
    }
    tracing::info!("removing the dead mount at {}", absolute.display());
    let flags = rustix::mount::UnmountFlags::DETACH;
    if rustix::mount::unmount(&absolute, flags).is_err() {
        // Not root: the helper program may do it. If it cannot, mounting reports the dead mount.
        let _ = std::process::Command::new("fusermount3").args(["-u", "-z", "--"]).arg(&absolute).output();
    }
}

/// Whether one of our mounts can be seen at `mountpoint`, an absolute path.
pub fn is_mounted(mountpoint: &Path) -> bool {
    crate::mounts::at(mountpoint).is_some_and(|found| found.is_ours())
}

/// Runs `mount`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if let Some(file) = &arguments.stack {
        return stack::run(file, arguments);
    }
    if arguments.check {
        return check::run(arguments);
    }
    run_plan(Plan::new(arguments, false)?, arguments.foreground)
}

/// Runs `crash mount`: a mount whose power can be cut.
pub fn run_live(arguments: &Arguments, live: crate::live::Options) -> Result<Outcome> {
    ensure!(arguments.stack.is_none(), "the power of a stack cannot be cut by a command");
    let plan = Plan { live: Some(live), ..Plan::new(arguments, false)? };
    run_plan(plan, arguments.foreground)
}

fn run_plan(mut plan: Plan, foreground: bool) -> Result<Outcome> {
    if plan.options.remount {
        let mountpoint = plan.mountpoint.display();
        return Err(usage(format!("remounting is mount(8)'s work: `mount -o remount,… {mountpoint}`")));
    }
    plan.settle()?;
    if foreground {
        daemon::serve(&plan, daemon::Place::Foreground)?;
        return Ok(Outcome::SUCCESS);
    }
    run_in_background(|place| daemon::serve(&plan, place))
}

/// Mounts with a daemon, and returns when the mount answers.
pub fn run_in_background(serve: impl FnOnce(daemon::Place) -> Result<()>) -> Result<Outcome> {
    if background::is_daemon() {
        return daemon::serve_as_child(serve);
    }
    match background::start()? {
        Ok(()) => Ok(Outcome::SUCCESS),
        Err(text) => bail!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_wins_over_the_list() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let line = ["x", "-o", "cache_size=1M,workers=2,without=hard", "--cache-size", "2M", "a.img", "/mnt"];
        let plan = Plan::new(&Line::parse_from(line).arguments, false).unwrap();
        assert_eq!((plan.cache_size, plan.workers), (2 << 20, 2));
        assert!(!plan.optimizations.hard_patches && plan.optimizations.overlap_merging);
    }
}
