//! Single damages anywhere in the metadata of a volume that was not unmounted. Whatever they are, a mount loses nothing
//! that a repair would have kept, and does not call the volume clean while a check finds damage.

use std::collections::BTreeMap;

use fstitch_core::RepairMode;
use fstitch_core::{FileSystem, Seed};

use crate::support::{BLOCK, Volume, crashed, create, filled, mkdir};

/// A crash with something of everything to reclaim.
fn base() -> Volume {
    let mut volume = crashed(filled(), |fs| {
        let dir = mkdir(fs, fs.root(), "new");
        for n in 0..10 {
            create(fs, dir, &format!("n{n}"), b"new contents");
        }
    });
    let dir = volume.ino("/new");
    (0..5).for_each(|n| volume.clear_name(dir, volume.ino(&format!("/new/n{n}"))));
    volume
}

/// Blocks of metadata, which are hit most: those that mkfs made, and the directories'.
fn targets(volume: &Volume) -> Vec<usize> {
    let mut blocks: Vec<usize> = (1..140).collect();
    for dir in ["/", "/d", "/e", "/d/nested", "/new"] {
        let ino = volume.ino(dir);
        blocks.extend((0..12).map(|at| volume.block(ino, at)).filter(|&block| block != 0));
    }
    for file in ["/A", "/B"] {
        blocks.push(volume.block(volume.ino(file), 12));
    }
    blocks
}

/// One damage, in words.
fn damage(volume: &mut Volume, targets: &[usize], seed: u64) -> String {
    let mut dice = Seed::new(seed);
    loop {
        let block = targets[usize::try_from(dice.below(targets.len() as u64)).unwrap()];
        let at = block * BLOCK + usize::try_from(dice.below(1024)).unwrap();
        let before = volume.0.clone();
        let bytes = volume.bytes(block);
        let inside = at % BLOCK;
        let word = inside & !3;
        let kind = dice.below(8);
        match kind {
            0 | 1 => bytes[inside] ^= 1 << dice.below(8),
            2 => bytes[word..word + 4].fill(0),
            3 => {
                bytes[word..word + 4].copy_from_slice(&u32::try_from(dice.below(4096)).unwrap().to_le_bytes())
            }
            4 => bytes[inside / 256 * 256..][..256].fill(0),
            5 => bytes.fill(0),
            6 => {
                bytes.fill(0);
                bytes[4..6].copy_from_slice(&[0, 4]);
            }
            _ => bytes[word..word + 2]
                .copy_from_slice(&u16::try_from(4 * dice.below(256)).unwrap().to_le_bytes()),
        }
        if volume.0 != before {
            return format!("damage {kind} at byte {inside} of block {block}");
        }
    }
}

/// How often each contents occur.
fn contents(volume: &Volume) -> BTreeMap<Vec<u8>, usize> {
    let mut counts = BTreeMap::new();
    for (path, bytes) in volume.files() {
        if !path.contains("/after") {
            *counts.entry(bytes).or_default() += 1;
        }
    }
    counts
}

#[test]
fn single_damages_cost_nothing_that_a_repair_would_keep() {
    let runs = std::env::var("FSTITCH_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(400_u64);
    let base = base();
    let targets = targets(&base);
    let (mut refused, mut reclaimed, mut failures) = (0, 0, Vec::new());
    for seed in 0..runs {
        let mut volume = base.clone();
        let what = damage(&mut volume, &targets, seed);
        let Ok((mended, report)) = std::panic::catch_unwind(|| volume.repaired(RepairMode::Yes)) else {
            continue;
        };
        if !report.left.is_clean() || !volume.opens() {
            continue;
        }
        // Where blocks of files are marked free, work overwrites them.
        let (after, done) = volume.mounted_and(|done| done.as_ref().is_ok_and(|done| done.complete));
        match &done {
            Ok(done) if done.complete => reclaimed += 1,
            _ => refused += 1,
        }
        let damages = after.damages();
        if after.is_marked_clean() && !damages.is_empty() {
            failures.push(format!("{seed}: {what}: clean, but {damages:?}"));
        }
        let (kept, found) = (contents(&mended), contents(&after.repaired(RepairMode::Yes).0));
        for (bytes, count) in kept.iter().filter(|(bytes, _)| !bytes.is_empty()) {
            if found.get(bytes).copied().unwrap_or_default() < *count {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(20)]).into_owned();
                failures.push(format!("{seed}: {what}: lost {} bytes {start:?}; {done:?}", bytes.len()));
            }
        }
    }
    println!("{reclaimed} reclaimed, {refused} left alone, {} failures", failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(reclaimed > runs / 20 && refused > runs / 4, "both happen");
}
