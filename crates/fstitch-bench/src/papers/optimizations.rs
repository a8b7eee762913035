//! \[D\] Fig 2.10: what the optimisations save.

use anyhow::Result;
use fstitch_core::Consistency;
use fstitch_patch::{CacheOptions, Optimizations};

use super::{Setting, Volume, strings};
use crate::meter::{process_seconds, seconds};
use crate::place::{Place, remove_tree};
use crate::results::Table;
use crate::workload::{PostMark, postmark, unpack};

/// The paper's numbers of patches and its undo data, none and both.
const PAPER: [(&str, &str, &str); 4] = [
    ("untar", "619,740 / 459 MiB", "68,887 / 0.39 MiB"),
    ("delete", "299,089 / 1.43 MiB", "1,800 / 0.00 MiB"),
    ("PostMark", "4,590,571 / 3,175 MiB", "675,308 / 0.11 MiB"),
    ("Andrew's copy", "70,932 / 64 MiB", "10,418 / 0.04 MiB"),
];

const CHOICES: [(&str, bool, bool); 4] = [
    ("none", false, false),
    ("hard patches", true, false),
    ("overlap merging", false, true),
    ("both", true, true),
];

struct Row {
    patches: u64,
    undo: f64,
    seconds: f64,
    blocks: u64,
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let mut table = Table {
        name: "optimizations".into(),
        title: "[D] Fig 2.10: what the optimisations save".into(),
        about: "Soft updates in process, a cache of 1 GiB, an image in memory; the source tree above, PostMark with files of up to 1 MiB \
                (the paper: 4 MiB, which without optimisations would take two minutes here). Patches as created, merged ones not counted; the processors' time is that of the whole process. \
                The paper's figures are for all of its patches and its own tree of 218 MB."
            .into(),
        columns: strings(["", "patches", "undo data, MiB", "blocks written", "processor s", "the paper"]),
        ..Table::default()
    };
    for (no, (workload, none, both)) in PAPER.into_iter().enumerate() {
        for (choice, hard_patches, overlap_merging) in CHOICES {
            let optimizations = Optimizations { hard_patches, overlap_merging, ..Optimizations::ALL };
            let row = measure(setting, no, optimizations)?;
            let paper = match choice {
                "none" => none,
                "both" => both,
                _ => "",
            };
            table.rows.push(vec![
                format!("{workload}, {choice}"),
                row.patches.to_string(),
                format!("{:.2}", row.undo),
                row.blocks.to_string(),
                format!("{:.2}", row.seconds),
                paper.to_owned(),
            ]);
        }
    }
    Ok(table)
}

fn measure(setting: &Setting<'_>, workload: usize, optimizations: Optimizations) -> Result<Row> {
    let cache = CacheOptions { cache_size: 1 << 30, optimizations, ..CacheOptions::default() };
    let volume = Volume::new(&setting.memory, 2 << 30, Consistency::Soft, cache)?;
    let (place, part): (&dyn Place, _) = (&volume.place, setting.tree.part(setting.scale.of(1_500, 300)));
    if workload == 1 {
        unpack(place, setting.tree)?;
        place.sync()?;
    }
    let (before, start) = (volume.inside.cache.stats(), process_seconds("self")?);
    match workload {
        0 => unpack(place, setting.tree)?,
        1 => setting.tree.roots().iter().try_for_each(|root| remove_tree(place, root).map(drop))?,
        2 => postmark(place, PostMark { sizes: (500, 1 << 20), ..PostMark::LARGE }.scaled(setting.scale))?,
        _ => unpack(place, &part)?,
    }
    place.sync()?;
    let (after, end) = (volume.inside.cache.stats(), process_seconds("self")?);
    let created = |stats: &fstitch_patch::Stats| {
        stats.patches_created_byte + stats.patches_created_bit + stats.patches_created_empty
    };
    Ok(Row {
        patches: created(&after) - created(&before),
        undo: seconds(after.undo_bytes_total - before.undo_bytes_total) / f64::from(1 << 20),
        seconds: end - start,
        blocks: after.blocks_written - before.blocks_written,
    })
}
