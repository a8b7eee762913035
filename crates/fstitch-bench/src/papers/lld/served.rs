//! Volumes over NBD: writes a second, and what the server takes of the processors for each.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fstitch_core::{BlockDevice, Seed};
use fstitch_lld::{Disk, Options, Volumes};
use fstitch_nbd::{DeviceExport, Export, Kind, MemExport, Server, Single};

use super::client::{Client, REQUEST};
use super::{circumstances, fresh, image, spread, strings};
use crate::inside;
use crate::meter::{own_seconds, process_seconds, seconds, thread_seconds};
use crate::papers::{Setting, timed};
use crate::results::Table;
use crate::workload::len;

/// The smallest piece that clients may write, as `fstitch lld serve` has it.
const MINIMUM: u32 = 512;
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(2);
/// Requests in flight.
const FLIGHTS: [usize; 2] = [1, 32];

/// Those of whom something is wanted: what is compared with nbdkit's memory is in memory.
const WANTED: &str = "logical disk, memory";
/// The part of nbdkit's rate that is wanted.
const RATE_MIN: f64 = 0.8;
/// Microseconds of processor time that a request may take.
const SERVER_US_MAX: f64 = 5.0;

/// How much is done.
#[derive(Clone, Copy)]
struct Amount {
    image: u64,
    /// Blocks of the volume.
    blocks: u64,
    writes: u64,
    /// Writes that are stable when they are answered.
    stable: u64,
    repeats: usize,
}

/// With whom rates are compared: by requests in flight.
#[derive(Clone, Copy, Default)]
struct Others {
    export: Option<[f64; 2]>,
    nbdkit: Option<[f64; 2]>,
}

/// What a server took.
#[derive(Clone, Copy)]
struct Took {
    /// Requests a second.
    rate: f64,
    /// Microseconds of processor time for each.
    server: f64,
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let of = |full, quick| setting.scale.of(full, quick);
    let amount = Amount {
        image: of(1 << 30, 64 << 20),
        blocks: of(65_536, 2_048),
        writes: of(100_000, 1_000),
        stable: of(5_000, 100),
        repeats: len(of(5, 2)),
    };
    let media = [("memory", &*setting.memory), ("disk", &*setting.disk)];
    let nbdkit = crate::contender::version("nbdkit", "--version");
    let said = match &nbdkit {
        Some(version) => format!("`{version}` ran in a process of its own"),
        None => "nbdkit is not installed here: it was not measured".to_owned(),
    };
    let mut table = Table {
        name: "lld served".into(),
        title: "The logical disk over NBD: random writes of 4 KiB".into(),
        is_goal: true,
        about: format!(
            "{} {} writes to a volume of {} MiB that is full, on a Unix socket, by a client with one connection in this process, and a flush; with \
             FUA {}. Our server's processor time is this process's without the client's thread. `memory export` is our server with nothing \
             behind it; {said}. Wanted of the disk in memory: {RATE_MIN} of the rate of nbdkit's memory, and {SERVER_US_MAX} us of the \
             processors for each request.",
            circumstances(&media, amount.repeats),
            amount.writes,
            (amount.blocks * 4096) >> 20,
            amount.stable
        ),
        columns: strings([
            "",
            "in flight",
            "writes a second",
            "least to most",
            "server's processor us",
            "to the memory export",
            "to nbdkit",
            "",
        ]),
        ..Table::default()
    };
    let mut others = Others { export: Some(memory_export(&mut table, setting, amount)?), nbdkit: None };
    if nbdkit.is_some() {
        others.nbdkit = Some(nbdkit_memory(&mut table, setting, amount, others)?);
    }
    for (name, directory) in media {
        logical_disk(&mut table, name, directory, amount, others)?;
    }
    Ok(table)
}

/// Rows of somebody, for each number of requests in flight; returns the median rates.
fn rows(
    table: &mut Table,
    who: &str,
    others: Others,
    mut measure: impl FnMut(usize, u64) -> Result<Vec<Took>>,
) -> Result<[f64; 2]> {
    let mut medians = [0.0; 2];
    for (at, in_flight) in FLIGHTS.into_iter().enumerate() {
        let took = measure(in_flight, u64::try_from(at)?)?;
        let rate = spread(took.iter().map(|took| took.rate).collect())?;
        let server = spread(took.iter().map(|took| took.server).collect())?;
        medians[at] = rate.median;
        let ratio = |other: Option<[f64; 2]>| {
            other.map_or_else(|| "-".to_owned(), |other| format!("{:.2}", rate.median / other[at]))
        };
        table.rows.push(vec![
            who.to_owned(),
            in_flight.to_string(),
            format!("{:.0}", rate.median),
            format!("{:.0}-{:.0}", rate.least, rate.most),
            format!("{:.2}", server.median),
            ratio(others.export.or(Some([rate.median; 2]))),
            ratio(others.nbdkit),
            others
                .nbdkit
                .filter(|_| who == WANTED)
                .map_or_else(String::new, |nbdkit| verdict(rate.median / nbdkit[at], server.median)),
        ]);
    }
    Ok(medians)
}

/// Whether both goals are met: of the rate, against nbdkit, and of the processor time.
fn verdict(ratio: f64, server_us: f64) -> String {
    let said = |is_met: bool| if is_met { "met" } else { "**missed**" };
    format!("rate {}, processor {}", said(ratio >= RATE_MIN), said(server_us <= SERVER_US_MAX))
}

/// Offsets of requests, anywhere in the volume.
fn offsets(blocks: u64, count: u64, seed: u64) -> Vec<u64> {
    let mut numbers = Seed::new(seed);
    (0..count).map(|_| numbers.below(blocks) * 4096).collect()
}

/// Fills the volume once.
fn fill(client: &mut Client, amount: Amount) -> Result<()> {
    ensure!(client.size >= amount.blocks * 4096, "the volume is too small");
    let all: Vec<u64> = (0..amount.blocks).map(|block| block * 4096).collect();
    client.write(&all, 32, false)?;
    client.flush()
}

fn memory_export(table: &mut Table, setting: &Setting<'_>, amount: Amount) -> Result<[f64; 2]> {
    let served = Served::new(Arc::new(MemExport::new(amount.blocks * 4096)), &setting.memory)?;
    let mut client = served.client()?;
    fill(&mut client, amount)?;
    rows(table, "memory export", Others::default(), |in_flight, seed| {
        served.repeat(&mut client, amount, (in_flight, seed, false))
    })
}

fn logical_disk(
    table: &mut Table,
    name: &str,
    directory: &Path,
    amount: Amount,
    others: Others,
) -> Result<()> {
    let image = image(directory, amount.image)?;
    let disk = Arc::new(fresh(&inside::disk(&image)?, &Options::default())?);
    let volumes = Volumes::open(Arc::clone(&disk))?;
    volumes.create("volume", amount.blocks * 4096)?;
    let volume = Arc::new(volumes.volume("volume")?) as Arc<dyn BlockDevice>;
    let served = Served::new(Arc::new(DeviceExport::new(volume, MINIMUM, false)?), directory)?;
    let mut client = served.client()?;
    fill(&mut client, amount)?;
    for (what, stable) in [("", false), (", FUA", true)] {
        let who = format!("logical disk, {name}{what}");
        rows(table, &who, others, |in_flight, seed| {
            let before = disk.counters();
            let took = served.repeat(&mut client, amount, (in_flight, seed, stable))?;
            counted(&disk, before, if stable { amount.stable } else { amount.writes }, amount.repeats)?;
            Ok(took)
        })?;
    }
    Ok(())
}

/// Fails unless the disk has seen what the client says it wrote.
fn counted(disk: &Disk, before: fstitch_lld::Counters, writes: u64, repeats: usize) -> Result<()> {
    let bytes = disk.counters().client_bytes - before.client_bytes;
    ensure!(bytes == writes * u64::try_from(repeats * REQUEST)?, "the disk counts what was written: {bytes}");
    Ok(())
}

/// Our server, in this process.
struct Served {
    server: Server,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Served {
    fn new(export: Arc<dyn Export>, directory: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("nbd-").tempdir_in(directory)?;
        let socket = directory.path().join("socket");
        let server = Server::new(Arc::new(Single(export)), fstitch_nbd::Options::default())?;
        server.listen_unix(&socket).context("listening at a Unix socket")?;
        Ok(Self { server, socket, _directory: directory })
    }

    fn client(&self) -> Result<Client> {
        Client::new(&self.socket, "volume")
    }

    fn repeat(&self, client: &mut Client, amount: Amount, how: (usize, u64, bool)) -> Result<Vec<Took>> {
        let (in_flight, seed, stable) = how;
        let count = if stable { amount.stable } else { amount.writes };
        let once = |no: usize| {
            let offsets = offsets(amount.blocks, count, seed * 100 + u64::try_from(no)?);
            let before = (own_seconds(), thread_seconds(), self.server.stats().requests(Kind::Write));
            let took = write(client, &offsets, in_flight, stable)?;
            let server = (own_seconds() - before.0) - (thread_seconds() - before.1);
            ensure!(
                self.server.stats().requests(Kind::Write) - before.2 == count,
                "the server counts every write"
            );
            Ok(Took { rate: seconds(count) / took, server: server * 1e6 / seconds(count) })
        };
        (0..amount.repeats).map(once).collect()
    }
}

/// Seconds that some writes take until all of them are stable.
fn write(client: &mut Client, offsets: &[u64], in_flight: usize, stable: bool) -> Result<f64> {
    timed(|| {
        client.write(offsets, in_flight, stable)?;
        client.flush()
    })
}

/// nbdkit in a process of its own, which ends with this value.
struct Nbdkit(Child);

impl Drop for Nbdkit {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn nbdkit_memory(
    table: &mut Table,
    setting: &Setting<'_>,
    amount: Amount,
    others: Others,
) -> Result<[f64; 2]> {
    let directory = tempfile::Builder::new().prefix("nbd-").tempdir_in(&setting.memory)?;
    let socket = directory.path().join("socket");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket);
    command.arg("memory").arg((amount.blocks * 4096).to_string());
    let child = Nbdkit(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("running nbdkit")?);
    let mut waited = Duration::ZERO;
    while !socket.exists() {
        ensure!(waited < PATIENCE, "nbdkit does not listen");
        std::thread::sleep(INTERVAL);
        waited += INTERVAL;
    }
    let mut client = Client::new(&socket, "")?;
    fill(&mut client, amount)?;
    let pid = child.0.id().to_string();
    rows(table, "nbdkit, memory", others, |in_flight, seed| {
        let once = |no: usize| {
            let offsets = offsets(amount.blocks, amount.writes, seed * 100 + u64::try_from(no)?);
            let before = process_seconds(&pid)?;
            let took = write(&mut client, &offsets, in_flight, false)?;
            let server = process_seconds(&pid)? - before;
            let count = seconds(amount.writes);
            Ok(Took { rate: count / took, server: server * 1e6 / count })
        };
        (0..amount.repeats).map(once).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn every_server_is_asked_with_one_and_with_many_in_flight() {
        let table = quick(table);
        let is_there = crate::contender::version("nbdkit", "--version").is_some();
        assert_eq!(table.rows.len(), 10 + if is_there { 2 } else { 0 });
        assert_eq!(table.about.contains("not installed"), !is_there, "{}", table.about);
        for row in &table.rows {
            let number = |at: usize| row[at].parse::<f64>().unwrap();
            assert!(["1", "32"].contains(&row[1].as_str()), "{row:?}");
            assert!(number(2) > 0.0 && number(2).is_finite(), "{row:?}");
            // A disk on which a flush takes milliseconds is less than half a hundredth of what it is compared with.
            assert!(number(5) >= 0.0 && number(5).is_finite(), "{row:?}");
            assert_eq!(
                row[6] == "-",
                !is_there || ["memory export", "nbdkit, memory"].contains(&&*row[0]),
                "{row:?}"
            );
            assert_eq!(row[7].starts_with("rate "), is_there && row[0] == WANTED, "{row:?}");
            // The processor time of another process is told in steps of 10 ms.
            assert!(number(4) > 0.0 || row[0].starts_with("nbdkit"), "a server works: {row:?}");
        }
    }

    #[test]
    fn both_goals_have_their_sides() {
        assert_eq!(verdict(0.8, 5.0), "rate met, processor met");
        assert_eq!(verdict(0.79, 5.1), "rate **missed**, processor **missed**");
    }

    #[test]
    fn a_disk_that_has_not_seen_the_writes_is_no_measurement() {
        let directory = tempfile::tempdir().unwrap();
        let image = image(directory.path(), 16 << 20).unwrap();
        let disk = fresh(&inside::disk(&image).unwrap(), &Options::default()).unwrap();
        let list = disk.new_list(true).unwrap();
        let before = disk.counters();
        disk.write_at(list, 0, &[1; REQUEST]).unwrap();
        assert!(counted(&disk, before, 1, 1).is_ok());
        assert!(counted(&disk, before, 2, 1).is_err());
    }
}
