//! Whether an operation costs the same however much there is.

use anyhow::{Context, Result};
use fstitch_core::Consistency;

use super::{Setting, Volume, strings, timed};
use crate::inside::cache;
use crate::meter::seconds;
use crate::place::{Open, Place};
use crate::results::{Spread, Table};
use crate::workload::FILLER;

/// MiB of memory that is made ready before what is measured.
const MEMORY: u64 = 128;
/// Names in a directory.
const WIDTH: u64 = 1_000;
/// How often each operation is measured at each level: the median counts.
const ROUNDS: usize = 5;

fn path(no: u64) -> String {
    format!("d{}/{no}", no / WIDTH)
}

fn make(place: &dyn Place, from: u64, count: u64) -> Result<()> {
    for no in from..from + count {
        if no % WIDTH == 0 {
            place.mkdir(&format!("d{}", no / WIDTH))?;
        }
        place.open(&path(no), Open::New)?;
    }
    Ok(())
}

pub fn operations(setting: &Setting<'_>) -> Result<Table> {
    let most = setting.scale.of(1_000_000, 20_000);
    let mut table = Table {
        name: "cost by files".into(),
        title: "Microseconds per operation, by the number of files".into(),
        is_goal: true,
        about: "Soft updates in process, the cache of a mount, a sparse image of 64 GiB in memory, 1,000 files in a directory: the last 1,000 (of 1,000 files) or 10,000 \
                files made, looked at and unlinked, each without making it stable: the median of five rounds. Wanted: flat."
            .into(),
        columns: strings(["files", "create", "stat", "unlink"]),
        ..Table::default()
    };
    let volume = Volume::new(&setting.memory, 64 << 30, Consistency::Soft, cache())?;
    let (place, mut there): (&dyn Place, _) = (&volume.place, 0);
    for level in [1_000, 10_000, 100_000, 1_000_000].into_iter().filter(|level| *level <= most) {
        let last = (level / 10).clamp(1_000, 10_000);
        make(place, there, level - last - there)?;
        place.sync()?;
        let start = level - last;
        let mut rounds: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            crate::warm::heap(MEMORY);
            rounds[0].push(timed(|| make(place, start, last))?);
            place.sync()?;
            rounds[1].push(timed(|| (start..level).try_for_each(|no| place.size(&path(no)).map(drop)))?);
            rounds[2].push(timed(|| (start..level).try_for_each(|no| place.unlink(&path(no))))?);
            (start / WIDTH..level / WIDTH).try_for_each(|no| place.rmdir(&format!("d{no}")))?;
            place.sync()?;
        }
        make(place, start, last)?;
        there = level;
        let mut row = vec![level.to_string()];
        for took in rounds {
            let spread = Spread::of(took).context("rounds")?;
            row.push(format!("{:.2}", spread.median * 1e6 / seconds(last)));
        }
        table.rows.push(row);
    }
    Ok(table)
}

pub fn volumes(setting: &Setting<'_>) -> Result<Table> {
    const COUNT: u64 = 5_000;
    let mut table = Table {
        name: "cost by volume".into(),
        title: "Microseconds per operation, by the size of the volume".into(),
        is_goal: true,
        about: "As above, on sparse images in memory; 5,000 files made, 5,000 blocks of 4 KiB written to a file, without making them stable. Wanted: \
                flat."
            .into(),
        columns: strings(["volume", "create", "write 4 KiB", "unlink"]),
        ..Table::default()
    };
    for bytes in [64_u64 << 20, 1 << 30, 8 << 30, 64 << 30] {
        let volume = Volume::new(&setting.memory, bytes, Consistency::Soft, cache())?;
        let place: &dyn Place = &volume.place;
        crate::warm::heap(MEMORY);
        let create = timed(|| make(place, 0, COUNT))?;
        let file = place.open("file", Open::New)?;
        let write = timed(|| (0..COUNT).try_for_each(|no| file.write_at(&FILLER[..4096], no * 4096)))?;
        let unlink = timed(|| (0..COUNT).try_for_each(|no| place.unlink(&path(no))))?;
        let each = |took: f64| format!("{:.2}", took * 1e6 / seconds(COUNT));
        table.rows.push(vec![format!("{} MiB", bytes >> 20), each(create), each(write), each(unlink)]);
    }
    Ok(table)
}
