//! A disk of 1 TiB of which little is written: how much memory it takes, and how long it is opened.
//!
//! It runs in a process of its own: memory that other tables have left would count.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use fstitch_core::num::to_usize;
use fstitch_core::{BlockDevice, Seed};
use fstitch_lld::{Disk, FormatOptions, Options, Volumes};
use serde::{Deserialize, Serialize};

use super::{circumstances, columns, goal_row, plain_row, sparse, spread, written};
use crate::inside;
use crate::meter::seconds;
use crate::papers::{Setting, timed};
use crate::report::Wanted;
use crate::results::{Spread, Table};
use crate::workload::{FILLER, Scale, len};

/// Bytes of the disk and of its volume.
const BYTES: u64 = 1 << 40;
/// Bytes of maps that may be in memory.
const CACHE: u64 = 128 << 20;
/// What the process may have beside them, in bytes.
const BESIDE: u64 = 64 << 20;

/// How much is done.
#[derive(Clone, Copy)]
struct Amount {
    writes: u64,
    repeats: usize,
}

impl Amount {
    fn of(scale: Scale) -> Self {
        Self { writes: scale.of(1_000_000, 4_000), repeats: len(scale.of(5, 2)) }
    }
}

/// What the process found.
#[derive(Debug, Serialize, Deserialize)]
struct Found {
    /// Bytes in memory before the disk was there, at the end of the writes, and at the most.
    resident: [u64; 3],
    /// Seconds that the writes took.
    writing: f64,
    /// Bytes that reached the medium.
    written: u64,
    /// Bytes that were written in blocks.
    client: u64,
    /// Seconds of opening.
    clean: Vec<f64>,
    crashed: Vec<f64>,
    /// Records that were done again after each crash.
    records: Vec<u64>,
    /// Blocks that were read for that.
    read: Vec<u64>,
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let amount = Amount::of(setting.scale);
    let program = setting.fstitch.as_deref().context("the program is not there to be started")?;
    let mut command = Command::new(program);
    command.args(["bench", "--lld-large"]).arg(&setting.disk);
    if setting.scale == Scale::Quick {
        command.arg("--quick");
    }
    let done = command.output().with_context(|| program.display().to_string())?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr).trim());
    show(setting, amount, &serde_json::from_slice(&done.stdout)?)
}

fn show(setting: &Setting<'_>, amount: Amount, found: &Found) -> Result<Table> {
    let mib = |bytes: u64| seconds(bytes) / f64::from(1 << 20);
    let once = |number: f64| Spread { median: number, least: number, most: number };
    let [start, resident, most] = found.resident;
    let limit = Wanted::AtMost(mib(CACHE + BESIDE));
    let rows = vec![
        goal_row("memory at its most", " MiB", once(mib(most)), limit),
        plain_row("memory after the writes", " MiB", once(mib(resident))),
        plain_row("memory before the disk was opened", " MiB", once(mib(start))),
        goal_row("opened after it was closed", " s", spread(found.clean.clone())?, Wanted::AtMost(0.5)),
        goal_row("opened after a crash", " s", spread(found.crashed.clone())?, Wanted::AtMost(2.0)),
        plain_row(
            "records that are done again then",
            "",
            spread(found.records.iter().map(|count| seconds(*count)).collect())?,
        ),
        plain_row(
            "blocks that are read for that",
            "",
            spread(found.read.iter().map(|count| seconds(*count)).collect())?,
        ),
        plain_row("random writes a second", "", once(seconds(amount.writes) / found.writing)),
        plain_row("bytes written for each", "", once(seconds(found.written) / seconds(found.client))),
    ];
    Ok(Table {
        name: "lld large".into(),
        title: "The logical disk: 1 TiB".into(),
        is_goal: true,
        about: format!(
            "{} A volume of 1 TiB on a sparse image of 1 TiB, 128 MiB for maps; {} writes of 4 KiB anywhere in it, in a process of its own, whose \
             resident size the kernel tells. A crash: the process forgets the disk shortly before a checkpoint would be made, after a flush.",
            circumstances(&[("disk", &setting.disk)], amount.repeats),
            amount.writes
        ),
        columns: columns(),
        rows,
    })
}

/// What the process does: returns what it found, as JSON.
///
/// # Errors
/// Those of the disk.
pub fn child(directory: &Path, scale: Scale) -> Result<String> {
    Ok(serde_json::to_string(&measure(directory, Amount::of(scale))?)?)
}

fn options() -> Options {
    Options { cache_size: to_usize(CACHE), ..Options::default() }
}

fn measure(directory: &Path, amount: Amount) -> Result<Found> {
    let start = memory("VmRSS")?;
    let image = sparse(directory, BYTES)?.into_temp_path();
    let device = inside::disk(&image)?;
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &FormatOptions::for_bytes(BYTES))?;
    let volumes = Volumes::open(Arc::new(open(&device)?))?;
    volumes.create("volume", BYTES)?;
    let list = volumes.volume("volume")?.list();
    let disk = Arc::clone(volumes.disk());
    drop(volumes);
    let mut disk = Arc::into_inner(disk).context("nobody else has the disk")?;
    let mut numbers = Seed::new(23);
    let mut write = |disk: &Disk| disk.write_at(list, numbers.below(BYTES / 4096), &FILLER[..4096]);
    let (before, counted) = (written(&device), disk.counters().client_bytes);
    let writing = timed(|| {
        (0..amount.writes).try_for_each(|_| write(&disk))?;
        Ok(disk.flush()?)
    })?;
    let client = disk.counters().client_bytes - counted;
    ensure!(client == amount.writes * 4096, "the disk counts what was written");
    let (resident, reached) = (memory("VmRSS")?, written(&device) - before);
    let (mut clean, mut crashed, mut records, mut read) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..amount.repeats {
        disk.close()?;
        clean.push(timed(|| open(&device).map(drop))?);
        disk = open(&device)?;
        let interval = until_checkpoint(&disk, &mut write)?.min(amount.writes);
        until_checkpoint(&disk, &mut write)?;
        (0..interval * 9 / 10).try_for_each(|_| write(&disk))?;
        disk.flush()?;
        drop(disk);
        let (mut found, before) = (None, device.stats().blocks_read.get());
        crashed.push(timed(|| {
            found = Some(Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options())?);
            Ok(())
        })?);
        let (opened, recovered) = found.context("the disk was opened")?;
        ensure!(recovered.damaged.is_none() && !recovered.torn, "a crash leaves nothing behind a flush");
        records.push(recovered.records);
        read.push(device.stats().blocks_read.get() - before);
        disk = opened;
    }
    let most = memory("VmHWM")?;
    Ok(Found {
        resident: [start, resident, most],
        writing,
        written: reached,
        client,
        clean,
        crashed,
        records,
        read,
    })
}

fn open(device: &inside::Disk) -> Result<Disk> {
    Ok(Disk::open(Arc::clone(device) as Arc<dyn BlockDevice>, &options())?.0)
}

/// Writes until a checkpoint is made. Returns how many writes that were.
fn until_checkpoint(disk: &Disk, write: &mut dyn FnMut(&Disk) -> fstitch_core::Result<()>) -> Result<u64> {
    let before = disk.counters().checkpoints;
    let mut count = 0;
    while disk.counters().checkpoints == before {
        write(disk)?;
        count += 1;
    }
    Ok(count)
}

/// A size of this process, in bytes, as the kernel tells it.
fn memory(what: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(number.with_context(|| format!("no {what} in /proc/self/status"))?.parse::<u64>()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_finds_what_it_has_done() {
        let directory = tempfile::tempdir().unwrap();
        let amount = Amount { writes: 1_000, repeats: 2 };
        let found = measure(directory.path(), amount).unwrap();
        assert_eq!(found.client, 1_000 * 4096);
        assert!(found.written > found.client, "summaries at least: {found:?}");
        assert!(found.resident.iter().all(|bytes| *bytes > 1 << 20), "{found:?}");
        assert!(found.resident[2] >= found.resident[1], "{found:?}");
        let times = found.clean.iter().chain(&found.crashed);
        assert!(found.read.iter().all(|count| *count > 0), "what is done again must be read: {found:?}");
        assert!(times.clone().count() == 4 && times.clone().all(|time| time.is_finite() && *time > 0.0));
        assert!(
            found.records.iter().all(|count| *count >= 900),
            "after a crash much is done again: {found:?}"
        );
    }

    #[test]
    fn memory_is_what_a_process_has() {
        // Other tests of this process may give memory back meanwhile.
        let grows = |_| {
            let before = memory("VmRSS").unwrap();
            let more = std::hint::black_box(vec![1_u8; 32 << 20]);
            memory("VmRSS").unwrap() >= before + (16 << 20) && !more.is_empty()
        };
        assert!((0..50).any(grows));
        assert!(memory("VmNothing").is_err());
    }
}
