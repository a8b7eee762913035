//! Damaged media.
//!
//! What it prevents: a panic, a hang or wrong contents on a medium whose bytes are no longer what was written; a unit that was flushed and
//! is gone without a word although its segments are whole.

use std::ops::Range;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, MemDevice, Seed};
use fstitch_lld::{At, BlockId, Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 512;
const SEGMENT: usize = 64 << 10;

/// A list, its blocks and what is in those, and the bytes of the image that its unit wrote.
struct List {
    list: ListId,
    blocks: Vec<(BlockId, u8)>,
    bytes: Range<usize>,
}

/// From the first byte that differs to the last.
fn differs(a: &[u8], b: &[u8]) -> Range<usize> {
    let len = a.len().max(b.len());
    let differs = |at: &usize| a.get(*at) != b.get(*at);
    let first = (0..len).find(differs).unwrap_or(len);
    first..(first..len).rev().find(differs).map_or(first, |last| last + 1)
}

/// A disk with some lists, of which a part is in the checkpoint and a part in the log behind it; and what it has.
fn image() -> (Vec<u8>, Vec<List>) {
    let device = Arc::new(MemDevice::from_image(512, vec![0; 4 << 20]));
    let format = FormatOptions { segment_size: 64 << 10, block_size: 512, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &Options::default()).unwrap();
    let mut all = Vec::new();
    for number in 0..20 {
        let unit = disk.begin();
        let list = unit.new_list(false).unwrap();
        let mut blocks = Vec::new();
        for byte in 1..40 {
            let block = unit.new_block(list, At::Start).unwrap();
            unit.write(block, &[byte; BLOCK]).unwrap();
            blocks.insert(0, (block, byte));
        }
        let before = device.image();
        unit.end_durable().unwrap();
        all.push(List { list, blocks, bytes: differs(&before, &device.image()) });
        if number == 10 {
            disk.checkpoint().unwrap();
        }
    }
    disk.flush().unwrap();
    // One more, so that what was flushed is known to be.
    disk.new_list(false).unwrap();
    disk.flush().unwrap();
    (device.image(), all)
}

/// Damages an image in one of many ways.
fn damage(image: &mut Vec<u8>, seed: &mut Seed) -> String {
    let len = to_u64(image.len());
    // What is written lies at the beginning.
    let at = to_usize(if seed.below(4) == 0 { seed.below(len) } else { seed.below(700 << 10) });
    let within = |at: usize, count: usize| at..(at + count).min(to_usize(len));
    match seed.below(6) {
        0 => {
            let bit = 1 << seed.below(8);
            image[at] ^= bit;
            format!("bit {bit:#x} of byte {at}")
        }
        1 => {
            let at = at / 512 * 512;
            image[within(at, 512)].fill(0);
            format!("block at byte {at} zeroed")
        }
        2 => {
            let at = at / SEGMENT * SEGMENT + 8 * 512;
            image[within(at, SEGMENT)].fill(0);
            format!("segment at byte {at} zeroed")
        }
        3 => {
            let (from, to) = (at / 512 * 512, to_usize(seed.below(700 << 10)) / 512 * 512);
            let block = image[within(from, 512)].to_vec();
            image[to..to + block.len()].copy_from_slice(&block);
            format!("block at byte {from} copied to byte {to}")
        }
        4 => {
            let segment = |number: usize| number * SEGMENT + 8 * 512;
            let (from, to) = (segment(to_usize(seed.below(10))), segment(to_usize(seed.below(10))));
            let bytes = image[from..from + SEGMENT].to_vec();
            image[to..to + SEGMENT].copy_from_slice(&bytes);
            format!("segment at byte {from} copied to byte {to}")
        }
        _ => {
            let blocks = to_usize(seed.below(len / 512));
            image.truncate(blocks.max(1) * 512);
            format!("cut off behind {blocks} blocks")
        }
    }
}

/// Whether a list is there as it was. Contents are right or refused.
fn is_right(disk: &Disk, List { list, blocks, .. }: &List) -> bool {
    let mut bytes = [0; BLOCK];
    (0..).zip(blocks).all(|(at, (block, byte))| {
        let found = disk.block_at(*list, at);
        let is_read =
            matches!(found, Ok(Some(found)) if found == *block) && disk.read(*block, &mut bytes).is_ok();
        assert!(!is_read || bytes == [*byte; BLOCK], "wrong contents of block {block}");
        is_read
    })
}

/// Those that are asked for by a variable, as first..end, or so many.
fn numbers(variable: &str, sample: u64) -> std::ops::Range<u64> {
    let Ok(given) = std::env::var(variable) else { return 0..sample };
    let (first, end) = given.split_once("..").expect("it is first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn damage_is_refused_or_said() {
    let (sound, all) = image();
    let (mut refused, mut said, mut nothing) = (0, 0, 0);
    let numbers = numbers("FSTITCH_LLD_IMAGES", 300);
    let images = numbers.end - numbers.start;
    let mut seed = Seed::new(7 + numbers.start);
    for number in numbers {
        let mut bytes = sound.clone();
        let what = damage(&mut bytes, &mut seed);
        let hit = differs(&sound, &bytes);
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, bytes));
        let read_only = Options { read_only: true, ..Options::default() };
        let Ok((disk, recovered)) = Disk::open(Arc::clone(&device), &read_only) else {
            refused += 1;
            continue;
        };
        let report = disk.check(true, &mut |_| {});
        let lost: Vec<&List> = all.iter().filter(|list| !is_right(&disk, list)).collect();
        // The last ones, of which nobody knows any more that they were stable.
        let is_hit = |list: &&List| list.bytes.start < hit.end && hit.start < list.bytes.end;
        let is_whole = !lost.iter().all(is_hit);
        let is_said =
            report.is_ok_and(|report| !report.is_clean()) || recovered.damaged.is_some() || recovered.torn;
        assert!(!is_whole || is_said, "image {number}, {what}: something is lost, and nobody says so");
        let lost = !lost.is_empty();
        if lost {
            said += 1
        } else {
            nothing += 1
        }
        // It can be used as far as it goes.
        if let Ok((disk, _)) = Disk::open(device, &Options::default()) {
            let _ = disk.new_list(false).and_then(|list| disk.new_block(list, At::Start));
            let _ = disk.clean(2);
            let _ = disk.close();
        }
    }
    println!("{refused} refused, {said} said, {nothing} without a consequence");
    println!("0 programs, 0 operations, 0 cuts, {images} states, of which {images} were recovered and read");
    assert!(refused > 20 && said > 20 && nothing > 20);
}

#[test]
fn a_checkpoint_that_is_half_written_leaves_the_one_before_it() {
    let device = Arc::new(MemDevice::from_image(512, vec![0; 4 << 20]));
    let format = FormatOptions { segment_size: 64 << 10, block_size: 512, ..FormatOptions::default() };
    let open = |image: Vec<u8>| {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, image));
        Disk::open(device, &Options::default())
    };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &Options::default()).unwrap();
    let list = disk.new_list(true).unwrap();
    let mut places = Vec::new();
    for number in 0..4 {
        disk.write_at(list, number, &[7; BLOCK]).unwrap();
        let before = device.image();
        disk.checkpoint().unwrap();
        let mut image = device.image();
        // The first eight blocks are no segment's.
        let written = differs(&before[..8 * BLOCK], &image[..8 * BLOCK]);
        let place = written.start / BLOCK;
        assert_eq!(place, (written.end - 1) / BLOCK, "it is in one block");
        places.push(place);
        image[place * BLOCK + 96..(place + 1) * BLOCK].fill(0);
        let (found, recovered) = open(image).unwrap_or_else(|error| panic!("checkpoint {number}: {error}"));
        assert!(recovered.damaged.is_none(), "checkpoint {number}: {recovered:?}");
        assert_eq!(found.list_len(list).unwrap(), number + 1);
        assert!(found.check(true, &mut |_| {}).unwrap().is_clean(), "checkpoint {number}");
    }
    assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "in turn: {places:?}");
}
