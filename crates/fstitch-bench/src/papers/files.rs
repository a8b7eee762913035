//! \[S\] Figs 3 to 6 and Table I: files by size, and mail, without order, with soft updates and the conventional way.

use anyhow::Result;
use fstitch_core::Consistency;
use fstitch_core::FileSystem;
use fstitch_patch::CacheOptions;

use super::{Setting, Volume, strings, timed};
use crate::meter::seconds;
use crate::place::{Open, Place};
use crate::results::Table;
use crate::workload::{FILLER, PostMark, postmark};

/// The paper's names.
const MODES: [(&str, Consistency); 3] = [
    ("No Order", Consistency::Async),
    ("Soft Updates", Consistency::Soft),
    ("Conventional", Consistency::Sync),
];
/// Sizes in KiB; 96 and 104 are around the first indirect block of the paper's format (here that is behind 48).
const SIZES: [u64; 10] = [2, 8, 32, 48, 52, 64, 104, 256, 1024, 4096];

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let total = setting.scale.of(8 << 20, 1 << 20).max(4 << 20);
    let mut table = Table {
        name: "file sizes".into(),
        title: "[S] Figs 3-6: files made, read and deleted, by size".into(),
        about: format!(
            "In process, an image on the disk, {} MiB for each size, 50 files in a directory; each number includes making it stable; \
             the volume is opened anew before reading, and again before deleting. The paper: no order and soft updates alike, both far \
             ahead of the conventional way until the data weighs more.",
            total >> 20
        ),
        columns: strings([
            "",
            "mode",
            "create, MB/s",
            "write requests per file",
            "read, MB/s",
            "delete, files/s",
        ]),
        ..Table::default()
    };
    for size in SIZES {
        for (name, mode) in MODES {
            let [create, requests, read, delete] = measure(setting, mode, size << 10, total)?;
            table.rows.push(vec![
                format!("{size} KiB"),
                name.to_owned(),
                format!("{create:.1}"),
                format!("{requests:.2}"),
                format!("{read:.1}"),
                format!("{delete:.0}"),
            ]);
        }
    }
    Ok(table)
}

fn measure(setting: &Setting<'_>, mode: Consistency, size: u64, total: u64) -> Result<[f64; 4]> {
    let count = total / size;
    let path = |no: u64| format!("d{}/{no}", no / 50);
    let volume = Volume::new(&setting.disk, 512 << 20, mode, CacheOptions::default())?;
    (0..count.div_ceil(50)).try_for_each(|no| volume.place.mkdir(&format!("d{no}")))?;
    volume.place.sync()?;
    let before = volume.disk.stats().write_requests.get();
    let create = timed(|| {
        for no in 0..count {
            let file = volume.place.open(&path(no), Open::New)?;
            for at in (0..size).step_by(64 << 10) {
                file.write_at(&FILLER[..usize::try_from((size - at).min(64 << 10))?], at)?;
            }
        }
        volume.place.sync()
    })?;
    let requests = volume.disk.stats().write_requests.get() - before;
    let volume = reopen(volume, mode)?;
    let mut buffer = vec![0; 64 << 10];
    let read = timed(|| {
        for no in 0..count {
            let (file, mut at) = (volume.place.open(&path(no), Open::Existing)?, 0);
            while at < size {
                at += u64::try_from(file.read_at(&mut buffer, at)?)?;
            }
        }
        Ok(())
    })?;
    let volume = reopen(volume, mode)?;
    let delete = timed(|| {
        (0..count).try_for_each(|no| volume.place.unlink(&path(no)))?;
        volume.place.sync()
    })?;
    let megabytes = seconds(count * size) / 1e6;
    Ok([megabytes / create, seconds(requests) / seconds(count), megabytes / read, seconds(count) / delete])
}

fn reopen(volume: Volume, mode: Consistency) -> Result<Volume> {
    let Volume { inside, disk, place, image } = volume;
    drop(place);
    inside.fs.unmount()?;
    drop((inside, disk));
    Volume::open(image, mode, CacheOptions::default())
}

pub fn mail(setting: &Setting<'_>) -> Result<Table> {
    let mut table = Table {
        name: "mail".into(),
        title: "[S] Table I: PostMark, transactions per second".into(),
        about: "In process, an image on the disk; the paper's configuration: 1,000 files of 512 bytes to 16 KiB, 30,000 transactions (the \
                conventional way: 2,000). The paper: 165, 170 and 45.4."
            .into(),
        columns: strings(["", "transactions per second", "to Soft Updates"]),
        ..Table::default()
    };
    let mut rates = Vec::new();
    for (name, mode) in MODES {
        let all = if mode == Consistency::Sync { 2_000 } else { 30_000 };
        let mark = PostMark { transactions: setting.scale.of(all, all / 10), ..PostMark::SMALL };
        let volume = Volume::new(&setting.disk, 512 << 20, mode, CacheOptions::default())?;
        let took = timed(|| {
            postmark(&volume.place, mark)?;
            volume.place.sync()
        })?;
        rates.push((name, seconds(mark.transactions) / took));
    }
    let soft = rates[1].1;
    table.rows = rates
        .into_iter()
        .map(|(name, rate)| vec![name.to_owned(), format!("{rate:.0}"), format!("{:.2}", rate / soft)])
        .collect();
    Ok(table)
}
