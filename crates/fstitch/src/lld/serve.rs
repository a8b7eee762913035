//! `fstitch lld serve`: volumes over NBD.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::{Clock, SystemClock};
use fstitch_lld::{Options, Volumes};
use fstitch_nbd::{Kind, Server};
use rustix::fs::Mode;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::control;
use super::exports::{Opened, Served, Units};
use crate::output::{Outcome, json, usage};
use crate::size;

/// What `fstitch lld serve --help` says.
pub const HELP: &str = "Serve the volumes of a logical disk over NBD, each under its name.

A write with FUA, and a flush, is answered when contents and maps are stable; those of several connections share one flush of the \
device. Trimmed and zeroed stretches take nothing.

With --control, units begin and end at a second socket: the export NAME?aru=TOKEN is a volume as the unit sees it, nobody else sees \
what it writes before it ends, and a failure leaves all of it or nothing. `fstitch lld unit` runs a command in one.

SIGINT and SIGTERM end it cleanly: requests in flight are answered, and the disk is closed.";

/// How long a stop waits for requests in flight.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Arguments of `lld serve`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Listen at a Unix socket
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Listen at a TCP address such as 127.0.0.1:10809. Whoever reaches it may read and write everything: there is no password and
    /// no encryption
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Have units begin and end at this Unix socket
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// The smallest piece that clients may read and write: a power of two up to a block of the disk
    #[arg(long, value_name = "BYTES", default_value_t = 512)]
    minimum: u32,
    /// Bytes of maps and of units that may be in memory
    #[arg(long, value_name = "BYTES", default_value = "128M", value_parser = size::bytes)]
    cache_size: u64,
    /// Refuse changes
    #[arg(long)]
    read_only: bool,
    /// Print JSON when it ends
    #[arg(long)]
    json: bool,
    /// The logical disk
    #[arg(value_name = "DISK")]
    disk: PathBuf,
}

/// What was done. Field names are a contract.
#[derive(Serialize)]
struct Summary {
    connections: u64,
    reads: u64,
    writes: u64,
    flushes: u64,
    errors: u64,
    bytes_read: u64,
    bytes_written: u64,
    /// What the disk wrote: summaries, maps and what the cleaner moved included.
    disk_bytes_written: u64,
    disk_flushes: u64,
    checkpoints: u64,
    segments_cleaned: u64,
    spilled_bytes: u64,
    /// Bytes that blocks take less because the cleaner has compressed them.
    packed_bytes: u64,
}

/// Runs `lld serve`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if arguments.socket.is_none() && arguments.listen.is_none() {
        return Err(usage("nobody could connect: give --socket PATH or --listen ADDRESS"));
    }
    // Before any thread is there, so that none of them gets them.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("handling signals")?;
    let cache_size = usize::try_from(arguments.cache_size).context("--cache-size")?;
    let options = Options { cache_size, read_only: arguments.read_only, ..Options::default() };
    let clock = SystemClock::new();
    let (disk, recovered) = super::open(&arguments.disk, &options)?;
    let opened_in = clock.elapsed();
    let name = arguments.disk.display();
    if recovered.chunks > 0 {
        eprintln!("fstitch: {name}: {} chunks of the log were done again", recovered.chunks);
    }
    let block_size = disk.info().block_size;
    if !arguments.minimum.is_power_of_two() || arguments.minimum > block_size {
        return Err(usage(format!("--minimum is a power of two, and at most a block of {block_size} bytes")));
    }
    let volumes = Volumes::open(Arc::clone(&disk)).with_context(|| name.to_string())?;
    let (units, opened, read_only) = (Units::default(), Opened::default(), arguments.read_only);
    let minimum = arguments.minimum;
    let served = Arc::new(Served { volumes, units, opened, minimum, read_only, recovered, opened_in });
    let server = listen(arguments, &served)?;
    eprintln!("fstitch: {name} is served");
    let (stop, stopped) = mpsc::channel();
    thread::spawn(move || signals.forever().next().map(|signal| stop.send(signal)));
    // A channel without a sender means that signals cannot be waited for any more.
    let _ = stopped.recv();
    let cut = server.stop(STOP_MAX);
    arguments.control.iter().for_each(|path| drop(std::fs::remove_file(path)));
    if cut.cut > 0 {
        eprintln!("fstitch: {} connections had to be cut", cut.cut);
    }
    if !arguments.read_only {
        disk.flush().with_context(|| name.to_string())?;
        disk.checkpoint()
            .or_else(|error| if error.errno() == fstitch_core::Errno::NOSPC { Ok(()) } else { Err(error) })?;
    }
    if arguments.json {
        json(&summary(&server, &disk))?;
    }
    Ok(Outcome::SUCCESS)
}

fn listen(arguments: &Arguments, served: &Arc<Served>) -> Result<Server> {
    let server =
        Server::new(Arc::clone(served) as Arc<dyn fstitch_nbd::Exports>, fstitch_nbd::Options::default())?;
    // Sockets are for this user only.
    let before = rustix::process::umask(Mode::from_raw_mode(0o077));
    let listening = (|| {
        if let Some(path) = &arguments.socket {
            server.listen_unix(path).with_context(|| path.display().to_string())?;
        }
        arguments.control.iter().try_for_each(|path| control::serve(path, served))
    })();
    rustix::process::umask(before);
    listening?;
    if let Some(address) = &arguments.listen {
        let at = server.listen_tcp(address.as_str()).with_context(|| address.clone())?;
        eprintln!("fstitch: listening at {at}");
    }
    Ok(server)
}

fn summary(server: &Server, disk: &fstitch_lld::Disk) -> Summary {
    let (stats, counters) = (server.stats(), disk.counters());
    Summary {
        connections: stats.connections.get(),
        reads: stats.requests(Kind::Read),
        writes: stats.requests(Kind::Write),
        flushes: stats.requests(Kind::Flush),
        errors: stats.errors.get(),
        bytes_read: stats.bytes_read.get(),
        bytes_written: stats.bytes_written.get(),
        disk_bytes_written: counters.bytes,
        disk_flushes: counters.flushes,
        checkpoints: counters.checkpoints,
        segments_cleaned: counters.cleaned,
        spilled_bytes: counters.spilled_bytes,
        packed_bytes: counters.packed_bytes,
    }
}
