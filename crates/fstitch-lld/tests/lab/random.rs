//! Random programs on a disk that has been used, with units, spilling, checkpoints and the cleaner.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, MemDevice, Seed};
use fstitch_crashlab::{Level, Subject};
use fstitch_lld::{Aru, At, BlockId, Compression, Disk, ListId, Options};

use crate::rig::{Opened, Rig, Shown, choices, explore_all, filled, formatted, formatted_as, options, shown};

/// Lists of each kind, at most.
const LISTS: usize = 60;
/// Positions of sparse lists.
const POSITIONS: u64 = 40;

/// A disk that has been used, and whose end was a power cut: chunks of other times lie in its segments. Its cleaner compresses, if asked
/// for.
fn used(seed: &mut Seed, packs: bool) -> Rig {
    let made = if packs { formatted_as(60, 1024, Compression::Lz4) } else { formatted(40) };
    let mut shows = Shown::default();
    for life in 0..seed.below(4) {
        // A long life without a checkpoint: recovery finds many chunks, in segments where nothing is alive any more.
        let rarely = Options { checkpoint_interval: 64 << 20, ..options() };
        let (options, most) = if seed.below(2) == 0 { (rarely, 1200) } else { (options(), 150) };
        let (disk, _) = Disk::open(Arc::clone(&made) as Arc<dyn BlockDevice>, &options).unwrap();
        shows = shown(&disk).unwrap();
        let fill = life.to_le_bytes()[0] + 1;
        for _ in 0..seed.below(most) {
            match seed.below(3) {
                0 => unit(&disk, &mut shows, seed, fill, false),
                _ => simple(&disk, &mut shows, seed, fill),
            }
        }
        if seed.below(2) == 0 {
            disk.flush().unwrap();
        }
        shows = Opened.show(Arc::new(MemDevice::from_image(512, made.image()))).unwrap();
    }
    Rig::on(made.image(), shows)
}

/// An ordered list, and a block of it if it has one: at which place, and its number.
fn pick(shown: &Shown, seed: &mut Seed) -> Option<(ListId, Option<(usize, BlockId)>)> {
    let lists: Vec<ListId> = shown.ordered.keys().copied().collect();
    let list = *lists.get(to_usize(seed.below(to_u64(lists.len()).max(1))))?;
    let blocks = &shown.ordered[&list];
    let at = to_usize(seed.below(to_u64(blocks.len()).max(1)));
    Some((list, blocks.get(at).map(|(block, _)| (at, *block))))
}

fn pick_sparse(shown: &Shown, seed: &mut Seed) -> Option<ListId> {
    shown.sparse.keys().nth(to_usize(seed.below(to_u64(shown.sparse.len()).max(1)))).copied()
}

/// Removes positions of a sparse list.
fn remove(shown: &mut Shown, list: ListId, from: u64, last: u64) {
    shown.sparse.get_mut(&list).unwrap().retain(|position, _| !(from..=last).contains(position));
}

/// Who has written at a position of a sparse list: its block is now this.
fn wrote_at(shown: &mut Shown, list: ListId, position: u64, block: BlockId, fill: u8) {
    shown.sparse.get_mut(&list).unwrap().insert(position, (block, fill));
}

/// One simple operation.
fn simple(disk: &Disk, shown: &mut Shown, seed: &mut Seed, fill: u8) {
    if seed.below(4) == 0 {
        simple_sparse(disk, shown, seed, fill);
        return;
    }
    match (seed.below(10), pick(shown, seed)) {
        (0, _) if shown.ordered.len() > LISTS => {}
        (0, _) | (_, None) => drop(shown.ordered.insert(disk.new_list(false).unwrap(), Vec::new())),
        (1, Some((list, _))) if shown.ordered.len() > 3 => {
            disk.delete_list(list).unwrap();
            shown.ordered.remove(&list);
        }
        (2, Some((list, Some((at, block))))) => {
            disk.delete_block(block).unwrap();
            shown.ordered.get_mut(&list).unwrap().remove(at);
        }
        (3..6, Some((list, found))) => {
            let block = disk.new_block(list, found.map_or(At::Start, |(_, block)| At::After(block))).unwrap();
            shown.ordered.get_mut(&list).unwrap().insert(found.map_or(0, |(at, _)| at + 1), (block, 0));
        }
        (_, Some((list, Some((at, block))))) => {
            disk.write(block, &filled(disk, fill)).unwrap();
            shown.ordered.get_mut(&list).unwrap()[at].1 = fill;
        }
        _ => {}
    }
}

fn simple_sparse(disk: &Disk, shown: &mut Shown, seed: &mut Seed, fill: u8) {
    let position = seed.below(POSITIONS);
    match (seed.below(6), pick_sparse(shown, seed)) {
        (0, _) if shown.sparse.len() > 4 => {}
        (0, _) | (_, None) => drop(shown.sparse.insert(disk.new_list(true).unwrap(), Default::default())),
        (1, Some(list)) => {
            let last = position + seed.below(8);
            disk.delete_range(list, position, last).unwrap();
            remove(shown, list, position, last);
        }
        (2, Some(list)) if seed.below(8) == 0 => {
            disk.delete_list(list).unwrap();
            shown.sparse.remove(&list);
        }
        (_, Some(list)) => {
            disk.write_at(list, position, &filled(disk, fill)).unwrap();
            let block = disk.block_at(list, position).unwrap().unwrap();
            wrote_at(shown, list, position, block, fill);
        }
    }
}

/// A unit that makes, writes and deletes in one or two lists.
fn unit(disk: &Disk, shown: &mut Shown, seed: &mut Seed, fill: u8, durable: bool) {
    let unit = disk.begin();
    let most = [5, 5, 5, 60][to_usize(seed.below(4))];
    for _ in 0..=seed.below(most) {
        in_unit(disk, &unit, shown, seed, fill);
    }
    if durable { unit.end_durable().unwrap() } else { unit.end().unwrap() }
}

/// An operation of a unit.
fn in_unit(disk: &Disk, unit: &Aru<'_>, shown: &mut Shown, seed: &mut Seed, fill: u8) {
    if let (0, Some(list)) = (seed.below(4), pick_sparse(shown, seed)) {
        let position = seed.below(POSITIONS);
        if seed.below(4) == 0 {
            let last = position + seed.below(4);
            unit.delete_range(list, position, last).unwrap();
            remove(shown, list, position, last);
        } else {
            unit.write_at(list, position, &filled(disk, fill)).unwrap();
            let block = unit.block_at(list, position).unwrap().unwrap();
            wrote_at(shown, list, position, block, fill);
        }
        return;
    }
    match (seed.below(6), pick(shown, seed)) {
        (0, _) if shown.ordered.len() > LISTS => {}
        (0, _) | (_, None) => drop(shown.ordered.insert(unit.new_list(false).unwrap(), Vec::new())),
        (1, Some((list, Some((at, block))))) => {
            unit.delete_block(block).unwrap();
            shown.ordered.get_mut(&list).unwrap().remove(at);
        }
        (2..4, Some((list, found))) => {
            let block = unit.new_block(list, found.map_or(At::Start, |(_, block)| At::After(block))).unwrap();
            unit.write(block, &filled(disk, fill)).unwrap();
            shown.ordered.get_mut(&list).unwrap().insert(found.map_or(0, |(at, _)| at + 1), (block, fill));
        }
        (_, Some((list, Some((at, block))))) => {
            unit.write(block, &filled(disk, fill)).unwrap();
            shown.ordered.get_mut(&list).unwrap()[at].1 = fill;
        }
        _ => {}
    }
}

fn program(number: u64, operations: u64) -> Rig {
    let mut seed = Seed::new(number);
    let mut rig = used(&mut seed, number % 2 == 1);
    for _ in 0..operations {
        let fill = rig.fill();
        match seed.below(13) {
            11 => rig.clean(1 + seed.below(4)),
            10 => rig.checkpoint(),
            0 => rig.flush(),
            1 => {
                rig.operate(|disk, shown| unit(disk, shown, &mut seed, fill, true));
                rig.promise();
            }
            2..5 => rig.operate(|disk, shown| unit(disk, shown, &mut seed, fill, false)),
            _ => rig.operate(|disk, shown| simple(disk, shown, &mut seed, fill)),
        }
    }
    rig
}

/// Those that are asked for, or a sample.
fn seeds() -> Range<u64> {
    let Ok(given) = std::env::var("FSTITCH_CRASH_SEEDS") else { return 0..16 };
    let (first, end) = given.split_once("..").expect("FSTITCH_CRASH_SEEDS is first..end");
    first.parse().unwrap()..end.parse().unwrap()
}

#[test]
fn random_programs_survive_cuts_at_every_level() {
    let totals = std::sync::Mutex::new((0, 0, 0));
    let counts = explore_all(seeds(), choices(16), &|number| {
        let level = Level::ALL[to_usize(number % to_u64(Level::ALL.len()))];
        let rig = program(number, 120);
        let mut totals = totals.lock().unwrap();
        totals.0 += rig.cleaned;
        totals.1 += rig.disk.counters().spilled_bytes;
        totals.2 += rig.disk.counters().packed_bytes;
        (rig, format!("random/{number}"), vec![level])
    });
    let (cleaned, spilled, packed) = *totals.lock().unwrap();
    println!("cleaned {cleaned} times, {spilled} bytes spilled, {packed} saved by compressing");
    assert!(counts.generated > 100 * counts.workloads, "{counts:?}");
    assert!(cleaned > counts.workloads && spilled > 5_000 * counts.workloads);
    assert!(packed > 2_000 * counts.workloads, "of every other disk the cleaner packs what it moves");
}
