//! How many patches it takes, and what they weigh.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use fstitch_core::Consistency;
use fstitch_patch::{Cache, CacheOptions, Stats};

use super::{Setting, Volume, strings};
use crate::meter::seconds;
use crate::place::{Place, remove_tree};
use crate::results::Table;
use crate::workload::{PostMark, postmark, unpack};

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let mut table = Table {
        name: "patches".into(),
        title: "Patches, against what is written".into(),
        is_goal: true,
        about: "Soft updates in process, a cache of 256 MiB, an image in memory. Wanted: at most 1.3 patches that hold \
                something per block written, undo data of at most 0.1 % of the bytes written, at most 0.5 % of the blocks written \
                with patches undone, the memory of patches at its most at most 3 % of that of dirty blocks at its most. The original measured 1.03, 0.1 %, 1.0 %."
            .into(),
        columns: strings(["", "patches per block", "undo data", "blocks with undone patches", "memory of patches", ""]),
        ..Table::default()
    };
    for workload in ["untar", "delete", "PostMark", "mail"] {
        let (stats, before, weight) = run(setting, workload)?;
        table.rows.push(row(workload, &stats, &before, weight));
    }
    Ok(table)
}

fn run(setting: &Setting<'_>, workload: &str) -> Result<(Stats, Stats, f64)> {
    let volume = Volume::new(&setting.memory, 2 << 30, Consistency::Soft, CacheOptions::default())?;
    let place: &dyn Place = &volume.place;
    if workload == "delete" {
        unpack(place, setting.tree)?;
        place.sync()?;
    }
    let before = volume.inside.cache.stats();
    let done = AtomicBool::new(false);
    let weight = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch(&volume.inside.cache, &done));
        let work = || -> Result<()> {
            match workload {
                "untar" => unpack(place, setting.tree)?,
                "delete" => {
                    setting.tree.roots().iter().try_for_each(|root| remove_tree(place, root).map(drop))?
                }
                "PostMark" => {
                    postmark(place, PostMark::LARGE.scaled(setting.scale))?;
                }
                _ => postmark(place, PostMark::SMALL.scaled(setting.scale))?,
            }
            place.sync()
        };
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let weight = watcher.join().expect("watching does not panic");
        worked.map(|()| weight)
    })?;
    Ok((volume.inside.cache.stats(), before, weight))
}

/// The most memory that patches had, to the most that dirty blocks had, looked at again and again.
fn watch(cache: &Cache, done: &AtomicBool) -> f64 {
    let (mut patches, mut dirty) = (0, 1);
    while !done.load(Ordering::Relaxed) {
        let now = cache.stats();
        patches = patches.max(now.patch_bytes_now);
        dirty = dirty.max(now.dirty_bytes);
        std::thread::sleep(Duration::from_millis(1));
    }
    seconds(patches) / seconds(dirty)
}

fn row(workload: &str, stats: &Stats, before: &Stats, weight: f64) -> Vec<String> {
    let blocks = seconds(stats.blocks_written - before.blocks_written).max(1.0);
    let filled = |stats: &Stats| stats.patches_created_byte + stats.patches_created_bit;
    let patches = seconds(filled(stats) - filled(before)) / blocks;
    let undo = seconds(stats.undo_bytes_total - before.undo_bytes_total) / (blocks * 4096.0);
    let undone = seconds(stats.blocks_written_undone - before.blocks_written_undone) / blocks;
    let met = patches <= 1.3 && undo <= 0.001 && undone <= 0.005 && weight <= 0.03;
    vec![
        workload.to_owned(),
        format!("{patches:.2}"),
        format!("{:.3} %", undo * 100.0),
        format!("{:.2} %", undone * 100.0),
        format!("{:.2} %", weight * 100.0),
        if met { "met" } else { "**missed**" }.to_owned(),
    ]
}
