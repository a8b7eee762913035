//! The command line: mounts, makes, checks and inspects file systems whose writes are ordered by patches.
//!
//! ```text
//!   mkfs  fsck  info     ls cat cp rm …    mount ──► daemon ──► control socket
//!     │     │     │        │   │   │         │                    ▲   ▲   ▲
//!     │     │     │        └───┴───┴── open ─┘              status stats umount
//!     ▼     ▼     ▼                     ▼
//!   FileDisk (fstitch-disk)   Cache (fstitch-patch) ◄─ Ext2, Uhfs (fstitch-fs) ◄─ Mount (fstitch-fuse)
//! ```
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage; `fsck` has those of fsck(8), `mount.fuse.fstitch` those of
//! mount(8).
#![forbid(unsafe_code)]

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

mod bench;
mod cat;
mod claim;
mod control;
mod copy;
mod crash;
mod demo;
mod depend;
mod disks;
mod edit;
mod epoch;
mod faults;
mod fsck;
mod graph;
mod info;
mod journal;
mod live;
mod lld;
mod location;
mod ls;
mod man;
mod mkfs;
mod mount;
mod mounts;
mod open;
mod order;
mod output;
mod paths;
mod policy;
mod probe;
mod quota;
mod recovery;
mod resize;
mod shepherd;
mod size;
mod snapshot;
mod stats;
mod status;
mod trace;
mod tree;
mod tune;
mod umount;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use output::Outcome;

/// Mounts, makes, checks and inspects file systems that survive the plug being pulled.
#[derive(Parser)]
#[command(name = "fstitch", version, about, long_about = None)]
pub struct Arguments {
    /// Say what is going on; twice for more
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a volume
    Mkfs(mkfs::Arguments),
    /// Mount an image or a block device
    Mount(Box<mount::Arguments>),
    /// Mount by the command line of e2fsprogs' fuse2fs, also when called by that name
    Fuse2fs(mount::Fuse2fsArguments),
    /// Unmount, and wait until everything is on the medium
    #[command(visible_alias = "unmount")]
    Umount(umount::Arguments),
    /// Check a volume, and repair it
    Fsck(fsck::Arguments),
    /// List what is in an image, without mounting it
    Ls(ls::Arguments),
    /// Copy files and trees into and out of images, without mounting them
    Cp(copy::Arguments),
    /// Print a file out of an image, without mounting it
    Cat(cat::Arguments),
    /// Remove files and directories in an image, without mounting it
    Rm(edit::remove::Arguments),
    /// Make directories in an image, without mounting it
    Mkdir(edit::names::Mkdir),
    /// Move and rename inside an image, without mounting it
    Mv(edit::names::Mv),
    /// Make links in an image, without mounting it
    Ln(edit::names::Ln),
    /// Change modes in an image, without mounting it
    Chmod(edit::attributes::Chmod),
    /// Change owners in an image, without mounting it
    Chown(edit::attributes::Chown),
    /// Set times in an image or make empty files, without mounting it
    Touch(edit::times::Touch),
    /// Change sizes in an image, without mounting it
    Truncate(edit::times::Truncate),
    /// Allocate, punch, zero, take out or put in ranges of files in an image, without mounting it
    Fallocate(edit::allocate::Arguments),
    /// Show what a volume is
    Info(info::Arguments),
    /// Give an unmounted volume another label, UUID, journal, policy, or other settings
    Tune(tune::Arguments),
    /// Show what users, groups and projects have on an unmounted volume, or set their limits
    Quota(quota::Arguments),
    /// Grow a volume, mounted or not, or shrink one that is not
    Resize(resize::Arguments),
    /// Make, list, clone, send and remove snapshots of a volume, mounted or not
    Snapshot(snapshot::Arguments),
    /// Look into the journal of an ext3 volume
    Journal(journal::Arguments),
    /// Show which volumes are mounted, and how they fare
    Status(status::Arguments),
    /// Show the counters of a mount
    Stats(stats::Arguments),
    /// Show what waits to be written on a mount, and why
    Graph(graph::Arguments),
    /// Record what becomes of changes on a mount, and show it epoch by epoch
    Trace(trace::Arguments),
    /// Run shell commands one after the other, the changes of each before those of the next
    #[command(long_about = depend::HELP)]
    Depend(depend::Arguments),
    /// Run a program whose fsync orders and does not wait
    #[command(long_about = order::HELP)]
    Order(order::Arguments),
    /// Make, look into and serve logical disks
    Lld(lld::Arguments),
    /// Say what is done when a disk fails, by kind of block
    Policy(policy::Arguments),
    /// Read and compare everything that a volume has checksums or copies of, and mend what can be
    Scrub(shepherd::scrub::Arguments),
    /// Show how a volume that follows a policy is doing, and what to do about it
    Health(shepherd::health::Arguments),
    /// Show, replace, add and remove the disks of a volume on several
    Disk(disks::command::Arguments),
    /// Show an image as a file on a disk that fails as it is told
    Faults(faults::Arguments),
    /// Cut the power at every moment of a workload, and judge every image that is left
    Crash(Box<crash::Arguments>),
    /// Race this program against the kernel's file systems and others, on this machine
    Bench(Box<bench::Arguments>),
    /// Show the main job: fill a volume, kill the writer in mid-write, look at what is left
    Demo(demo::Arguments),
    #[command(hide = true)]
    DemoWriter(demo::WriterArguments),
    /// Print completions for a shell
    Completions(man::CompletionArguments),
    /// Print or write manual pages
    Man(man::ManArguments),
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    if mount::is_helper_name(&program) {
        return mount::run_helper(arguments).into();
    }
    if mount::is_fuse2fs(&program) {
        log(0);
        return mount::run_fuse2fs(arguments).into();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    log(arguments.verbose);
    let (failure, misuse) = match &arguments.command {
        Command::Fsck(_) => (fsck::OPERATIONAL, fsck::USAGE),
        _ => (Outcome::FAILURE, Outcome::USAGE),
    };
    match run(&arguments.command) {
        Ok(outcome) => outcome.into(),
        Err(error) if output::is_broken_pipe(&error) => Outcome::SUCCESS.into(),
        Err(error) => {
            eprintln!("fstitch: {}", output::reasons(&error));
            if output::is_usage(&error) { misuse.into() } else { failure.into() }
        }
    }
}

/// Prints help or what is wrong with the arguments. fsck has its own code for that.
fn usage(error: &clap::Error) -> ExitCode {
    // Standard output or error may be closed; there is nobody left to tell.
    let _ = error.print();
    if !error.use_stderr() {
        return Outcome::SUCCESS.into();
    }
    let fsck = std::env::args_os().skip(1).find(|word| !word.as_encoded_bytes().starts_with(b"-"));
    if fsck.is_some_and(|word| word == "fsck") { fsck::USAGE.into() } else { Outcome::USAGE.into() }
}

fn run(command: &Command) -> Result<Outcome> {
    match command {
        Command::Mkfs(arguments) => mkfs::run(arguments),
        Command::Mount(arguments) => mount::run(arguments),
        Command::Fuse2fs(arguments) => Ok(mount::run_fuse2fs(arguments.words.iter().cloned())),
        Command::Umount(arguments) => umount::run(arguments),
        Command::Fsck(arguments) => fsck::run(arguments),
        Command::Ls(arguments) => ls::run(arguments),
        Command::Cp(arguments) => copy::run(arguments),
        Command::Cat(arguments) => cat::run(arguments),
        Command::Rm(arguments) => edit::remove::run(arguments),
        Command::Mkdir(arguments) => edit::names::mkdir(arguments),
        Command::Mv(arguments) => edit::names::mv(arguments),
        Command::Ln(arguments) => edit::names::ln(arguments),
        Command::Chmod(arguments) => edit::attributes::chmod(arguments),
        Command::Chown(arguments) => edit::attributes::chown(arguments),
        Command::Touch(arguments) => edit::times::touch(arguments),
        Command::Truncate(arguments) => edit::times::truncate(arguments),
        Command::Fallocate(arguments) => edit::allocate::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Tune(arguments) => tune::run(arguments),
        Command::Quota(arguments) => quota::run(arguments),
        Command::Resize(arguments) => resize::run(arguments),
        Command::Snapshot(arguments) => snapshot::run(arguments),
        Command::Journal(arguments) => journal::run(arguments),
        Command::Lld(arguments) => lld::run(arguments),
        Command::Policy(arguments) => policy::run(arguments),
        Command::Disk(arguments) => disks::command::run(arguments),
        Command::Faults(arguments) => faults::run(arguments),
        Command::Scrub(arguments) => shepherd::scrub::run(arguments),
        Command::Health(arguments) => shepherd::health::run(arguments),
        Command::Status(arguments) => status::run(arguments),
        Command::Stats(arguments) => stats::run(arguments),
        Command::Graph(arguments) => graph::run(arguments),
        Command::Trace(arguments) => trace::run(arguments),
        Command::Depend(arguments) => depend::run(arguments),
        Command::Order(arguments) => order::run(arguments),
        Command::Crash(arguments) => crash::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Demo(arguments) => demo::run(arguments),
        Command::DemoWriter(arguments) => demo::run_writer(arguments),
        Command::Completions(arguments) => man::completions(arguments),
        Command::Man(arguments) => man::man(arguments),
    }
}

/// Sends events to standard error: `FSTITCH_LOG` decides, or `-v`, or only warnings are shown.
fn log(verbose: u8) {
    let default = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("FSTITCH_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(default));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    /// Commands that change something, run programs or print what is no data: they need no JSON.
    const NOT_READING: [&str; 38] = [
        "disk replace",
        "disk add",
        "disk remove",
        "disk rebuild",
        "faults serve",
        "mkfs",
        "umount",
        "cp",
        "cat",
        "tune",
        "depend",
        "order",
        "demo",
        "demo-writer",
        "completions",
        "man",
        "crash mount",
        "rm",
        "mkdir",
        "mv",
        "ln",
        "chmod",
        "chown",
        "touch",
        "truncate",
        "fallocate",
        "fuse2fs",
        "trace record",
        "lld volume create",
        "lld volume resize",
        "lld volume remove",
        "lld unit",
        "snapshot create",
        "snapshot clone",
        "snapshot send",
        "snapshot receive",
        "snapshot remove",
        "help",
    ];

    /// Calls `see` with each command that can be run, and its words.
    fn walk(command: &clap::Command, words: &str, see: &mut impl FnMut(&str, &clap::Command)) {
        if !command.has_subcommands() {
            see(words.trim_start(), command);
        }
        for below in command.get_subcommands() {
            walk(below, &format!("{words} {}", below.get_name()), see);
        }
    }

    #[test]
    fn every_command_that_only_reads_prints_json() {
        walk(&super::Arguments::command(), "", &mut |words, command| {
            let exempt =
                NOT_READING.iter().any(|other| words == *other || words.starts_with(&format!("{other} ")));
            let has_json = command.get_arguments().any(|argument| argument.get_long() == Some("json"));
            assert!(
                exempt || has_json,
                "`{words}` has no --json: add it, or say in NOT_READING that it does not only read"
            );
        });
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::Arguments::command().debug_assert();
    }
}
