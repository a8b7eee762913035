//! \[S\] Table III: how long a volume takes to be mounted, also after a crash.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use fstitch_core::Consistency;
use fstitch_core::FileSystem;
use fstitch_patch::CacheOptions;

use super::{Setting, Volume, strings, timed};
use crate::place::{Open, Place};
use crate::results::Table;
use crate::workload::FILLER;

/// How many files are made at once.
const FILES: u64 = 2_000;

pub fn mounting(setting: &Setting<'_>) -> Result<Table> {
    let mut table = Table {
        name: "mounting".into(),
        title: "[S] Table III: seconds to mount".into(),
        is_goal: true,
        about: "In process, sparse images on the disk: opening the volume until it can be used and changed. A crash: the power is cut while files \
                are made, and nothing is repaired first (soft updates) or the journal is replayed (full). fsck is `e2fsck -fy`, the \
                conventional recovery. Wanted: below 0.2 s for 1 TiB, crash or not. The paper: 0.35 s, fsck 5 to 150 s."
            .into(),
        columns: strings(["", "after a clean unmount", "after a crash", "fsck"]),
        ..Table::default()
    };
    for (size, filled, mode) in [
        (2 << 30, 0, Consistency::Soft),
        (2 << 30, setting.scale.of(76, 20), Consistency::Soft),
        (1 << 40, 0, Consistency::Soft),
        (1 << 40, 0, Consistency::Full),
    ] {
        let [clean, crashed, fsck] = measure(setting, size, filled, mode)?;
        let name = format!("{} GiB, {filled} % full, {mode}", size >> 30_u64);
        let fsck = if fsck.is_nan() { "-".to_owned() } else { format!("{fsck:.3}") };
        table.rows.push(vec![name, format!("{clean:.4}"), format!("{crashed:.4}"), fsck]);
    }
    Ok(table)
}

fn measure(setting: &Setting<'_>, size: u64, filled: u64, mode: Consistency) -> Result<[f64; 3]> {
    let volume = Volume::new(&setting.disk, size, mode, CacheOptions::default())?;
    volume.place.mkdir("d")?;
    if filled > 0 {
        let file = volume.place.open("large", Open::New)?;
        let piece = u64::try_from(FILLER.len())?;
        (0..size / 100 * filled / piece).try_for_each(|no| file.write_at(&FILLER, no * piece))?;
    }
    make(&volume, 0)?;
    let (clean, volume) = open_again(volume, mode, |fs| Ok(fs.unmount()?))?;
    make(&volume, FILES)?;
    let (crashed, volume) =
        open_again(volume, mode, |fs| Ok(fs.abandon("the power is cut to measure recovery")?))?;
    let image = end(volume, |fs| Ok(fs.abandon("the power is cut to measure recovery")?))?;
    let fsck = if size > 1 << 34 { f64::NAN } else { fsck(&image)? };
    Ok([clean, crashed, fsck])
}

/// Makes files, half of them stable.
fn make(volume: &Volume, from: u64) -> Result<()> {
    for no in from..from + FILES {
        volume.place.open(&format!("d/{no}"), Open::New)?.write_at(&FILLER[..4096], 0)?;
        if no == from + FILES / 2 {
            volume.place.sync()?;
        }
    }
    Ok(())
}

type End = fn(&dyn FileSystem) -> Result<()>;

fn end(volume: Volume, end: End) -> Result<tempfile::TempPath> {
    let Volume { inside, disk, place, image } = volume;
    drop(place);
    end(&*inside.fs)?;
    drop((inside, disk));
    Ok(image)
}

fn open_again(volume: Volume, mode: Consistency, how: End) -> Result<(f64, Volume)> {
    let image = end(volume, how)?;
    let mut opened = None;
    let took = timed(|| {
        opened = Some(Volume::open(image, mode, CacheOptions::default())?);
        Ok(())
    })?;
    Ok((took, opened.context("the volume was opened")?))
}

/// Seconds that the reference checker takes.
fn fsck(image: &std::path::Path) -> Result<f64> {
    timed(|| {
        let status =
            Command::new("e2fsck").args(["-fy"]).arg(image).output().context("running e2fsck")?.status;
        // 1: it repaired something, as it must after a crash.
        ensure!(status.code().is_some_and(|code| code <= 1), "e2fsck ended with {status}");
        Ok(())
    })
}
