//! The cleaner under loads that fill the disk.
//!
//! What it prevents: contents that are lost or come back when they are moved, a disk that refuses what it has space for, and a disk that
//! cannot go on because what is dead is spread over everything.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, Errno, MemDevice, Seed};
use fstitch_lld::{At, BlockId, Compression, Counters, Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 4096;

struct Rig {
    device: Arc<MemDevice>,
    disk: Disk,
    blocks: Vec<(BlockId, u64)>,
}

fn options() -> Options {
    Options { cache_size: 4 << 20, checkpoint_interval: 1 << 20, ..Options::default() }
}

fn filled(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(BLOCK / 8)
}

impl Rig {
    /// A disk of which so many percent are taken.
    fn new(bytes: usize, percent: u64) -> Self {
        let device = Arc::new(MemDevice::from_image(4096, vec![0; bytes]));
        let format = FormatOptions { segment_size: 64 << 10, ..FormatOptions::default() };
        Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
        let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options()).unwrap();
        let list = disk.new_list(true).unwrap();
        let space = disk.space().all;
        let mut blocks = Vec::new();
        while disk.space().used * 100 < space * percent {
            let block = disk.new_block(list, At::Position(to_u64(blocks.len()))).unwrap();
            disk.write(block, &filled(block)).unwrap();
            blocks.push((block, block));
        }
        Self { device, disk, blocks }
    }

    fn overwrite(&mut self, at: usize, value: u64) {
        let (block, old) = &mut self.blocks[at];
        self.disk.write(*block, &filled(value)).unwrap();
        *old = value;
    }

    fn compare(&self, disk: &Disk) {
        let mut bytes = vec![0; BLOCK];
        for &(block, value) in &self.blocks {
            disk.read(block, &mut bytes).unwrap();
            assert!(bytes == filled(value), "block {block}");
        }
    }

    /// Everything is there, in what is open and after a failure.
    fn end(self) -> Counters {
        self.compare(&self.disk);
        self.disk.flush().unwrap();
        let image: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(4096, self.device.image()));
        self.compare(&Disk::open(image, &options()).unwrap().0);
        let report = self.disk.check(true, &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings.first());
        let counters = self.disk.counters();
        assert_eq!(counters.unreadable, 0);
        counters
    }
}

/// Bytes written for each byte that clients wrote, after so many turns over all blocks.
fn amplification(percent: u64, turns: usize, next: &mut dyn FnMut(&mut Seed, usize) -> usize) -> f64 {
    let (mut rig, mut seed) = (Rig::new(32 << 20, percent), Seed::new(percent));
    let before = rig.disk.counters();
    for turn in 0..turns * rig.blocks.len() {
        let at = next(&mut seed, rig.blocks.len());
        rig.overwrite(at, to_u64(turn) << 20);
    }
    let after = rig.end();
    assert!(after.cleaned > before.cleaned);
    let bytes = |number: u64| f64::from(u32::try_from(number >> 12).unwrap());
    bytes(after.bytes - before.bytes) / bytes(after.client_bytes - before.client_bytes)
}

fn uniform(seed: &mut Seed, len: usize) -> usize {
    to_usize(seed.below(to_u64(len)))
}

#[test]
fn a_disk_that_is_full_goes_on() {
    for percent in [50, 80, 90, 97, 100] {
        let factor = amplification(percent, 4, &mut uniform);
        println!("{percent} %: {factor:.2}");
        assert!(factor < 60.0, "{percent} % full: {factor} bytes for each");
    }
}

#[test]
fn what_is_cold_is_left_alone() {
    let mut hot = |seed: &mut Seed, len: usize| {
        let hot = len / 10;
        if seed.below(10) < 9 { uniform(seed, hot) } else { hot + uniform(seed, len - hot) }
    };
    let (apart, mixed) = (amplification(80, 6, &mut hot), amplification(80, 6, &mut uniform));
    println!("hot and cold {apart:.2}, uniform {mixed:.2}");
    assert!(apart < mixed, "{apart} bytes for each, and {mixed} where all are written alike");
}

#[test]
fn as_much_is_cleaned_as_can_be() {
    let mut rig = Rig::new(8 << 20, 60);
    for at in (0..rig.blocks.len()).step_by(2) {
        rig.overwrite(at, 7);
    }
    let before = rig.disk.info().free_segments;
    rig.disk.clean(u64::MAX).unwrap();
    assert!(rig.disk.info().free_segments > before);
}

/// A block of which so many of 32 parts are noise.
fn noisy(parts: u64, value: u64) -> Vec<u8> {
    let mut seed = Seed::new(value);
    let noise = to_usize(parts) * BLOCK / 32;
    (0..BLOCK).map(|at| if at < noise { seed.below(256).to_le_bytes()[0] } else { 7 }).collect()
}

fn packing(bytes: usize) -> (Arc<MemDevice>, Disk) {
    let device = Arc::new(MemDevice::from_image(512, vec![0; bytes]));
    let format =
        FormatOptions { segment_size: 64 << 10, compression: Compression::Lz4, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options()).unwrap();
    assert_eq!(disk.info().compression, Compression::Lz4);
    (device, disk)
}

#[test]
fn what_is_moved_is_compressed_and_reads_as_it_was_written() {
    let (device, disk) = packing(8 << 20);
    let list = disk.new_list(true).unwrap();
    let mut blocks = Vec::new();
    for at in 0..700 {
        disk.write_at(list, at, &noisy(at % 33, at)).unwrap();
        blocks.push((at, at % 33, at));
    }
    // Something is dead everywhere, so that everything is worth moving.
    for (at, parts, value) in blocks.iter_mut().step_by(5) {
        *value += 1000;
        disk.write_at(list, *at, &noisy(*parts, *value)).unwrap();
    }
    disk.flush().unwrap();
    let (before, free) = (disk.space().used, disk.info().free_segments);
    disk.clean(u64::MAX).unwrap();
    let (after, saved) = (disk.space().used, disk.counters().packed_bytes);
    assert!(saved > 700 * 4096 / 4, "{saved} bytes of {}", 700 * 4096);
    assert!(before - after > saved - saved / 8, "{before} bytes, then {after}, with {saved} saved");
    assert!(disk.info().free_segments > free + saved / (64 << 10) / 2);
    let compare = |disk: &Disk| {
        let mut bytes = vec![0; BLOCK];
        for &(at, parts, value) in &blocks {
            disk.read_at(list, at, &mut bytes).unwrap();
            assert!(bytes == noisy(parts, value), "position {at}");
        }
        let report = disk.check(true, &mut |_| {}).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings.first());
    };
    compare(&disk);
    // What is packed is moved as it is.
    blocks
        .iter()
        .step_by(3)
        .for_each(|(at, parts, value)| disk.write_at(list, *at, &noisy(*parts, *value)).unwrap());
    disk.clean(u64::MAX).unwrap();
    compare(&disk);
    drop(disk);
    let (disk, _) = Disk::open(device, &options()).unwrap();
    compare(&disk);
    // Also in a unit.
    let unit = disk.begin();
    let mut bytes = vec![0; BLOCK];
    unit.read_at(list, 1, &mut bytes).unwrap();
    assert!(bytes == noisy(1, 1));
    unit.write_at(list, 1, &noisy(2, 2)).unwrap();
    unit.end().unwrap();
    disk.read_at(list, 1, &mut bytes).unwrap();
    assert!(bytes == noisy(2, 2));
}

#[test]
fn a_disk_that_is_full_with_packed_blocks_refuses_to_unpack_them_and_loses_nothing() {
    let (_, disk) = packing(4 << 20);
    let list = disk.new_list(true).unwrap();
    let mut blocks = 0;
    // Twice as much as there is space for, as it is written.
    while disk.write_at(list, blocks, &noisy(1, blocks)).is_ok() {
        blocks += 1;
        if blocks % 100 == 0 {
            disk.clean(u64::MAX).unwrap();
        }
    }
    let fits = disk.space().all / to_u64(BLOCK);
    assert!(blocks > 2 * fits, "{blocks} blocks where {fits} have space");
    let refused =
        (0..blocks).find_map(|at| disk.write_at(list, at, &noisy(32, at)).err().map(|error| (at, error)));
    let (at, error) = refused.unwrap();
    assert_eq!(error.errno(), Errno::NOSPC);
    let mut bytes = vec![0; BLOCK];
    for (other, parts) in (0..blocks).map(|other| (other, if other < at { 32 } else { 1 })) {
        disk.read_at(list, other, &mut bytes).unwrap();
        assert!(bytes == noisy(parts, other), "position {other}");
    }
    // What takes its full length is written again as often as one likes.
    for round in 1..12 {
        (0..at).for_each(|other| disk.write_at(list, other, &noisy(32, round * 10_000 + other)).unwrap());
    }
    disk.delete_range(list, 0, blocks / 2).unwrap();
    disk.write_at(list, at, &noisy(32, 1)).unwrap();
    disk.flush().unwrap();
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
    // Segments that were packed and are written anew can be packed again.
    disk.delete_range(list, 0, blocks).unwrap();
    let again = (0..).take_while(|at| disk.write_at(list, *at, &noisy(1, *at)).is_ok()).count();
    assert!(to_u64(again) > 2 * fits, "{again} blocks where {fits} have space");
}

/// A disk of blocks that nobody has written, in a sparse list: as many as there are, or as have space.
fn unwritten(device: &Arc<MemDevice>, options: &Options, most: u64) -> (Disk, ListId, u64) {
    let format = FormatOptions { segment_size: 64 << 10, ..FormatOptions::default() };
    Disk::format(Arc::clone(device) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(device) as Arc<dyn BlockDevice>, options).unwrap();
    let list = disk.new_list(true).unwrap();
    let made = (0..most).take_while(|at| match disk.new_block(list, At::Position(*at)) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.errno(), Errno::NOSPC);
            false
        }
    });
    let made = to_u64(made.count());
    (disk, list, made)
}

#[test]
fn the_last_space_is_given_to_one_block_only() {
    let device = Arc::new(MemDevice::from_image(4096, vec![0; 4 << 20]));
    let (disk, list, made) = unwritten(&device, &options(), 1000);
    assert_eq!(made, 1000);
    // Those that have space are written; the others are refused.
    let written = (0..made).take_while(|at| disk.write_at(list, *at, &filled(*at)).is_ok()).count();
    let written = to_u64(written);
    assert!(written < made && written > 300, "{written} of {made}");
    assert_eq!(disk.write_at(list, written, &filled(0)).unwrap_err().errno(), Errno::NOSPC);
    // What is taken is what was given: without one of them there is space for one again.
    disk.checkpoint().unwrap();
    assert_eq!(disk.space().used, disk.space().all);
    assert_eq!(disk.delete_range(list, 0, 0).unwrap(), 1);
    disk.checkpoint().unwrap();
    let space = disk.space();
    assert_eq!(space.all - space.used, to_u64(BLOCK), "{space:?}");
    disk.write_at(list, written, &filled(1)).unwrap();
    assert_eq!(disk.write_at(list, written + 1, &filled(1)).unwrap_err().errno(), Errno::NOSPC);
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
}

#[test]
fn a_checkpoint_is_possible_whatever_is_removed_from_a_disk_that_is_full_of_maps() {
    let device = Arc::new(MemDevice::from_image(4096, vec![0; 4 << 20]));
    let options = Options { cache_size: 16 << 20, checkpoint_interval: 16 << 20, ..Options::default() };
    let (disk, list, made) = unwritten(&device, &options, u64::MAX);
    disk.checkpoint().unwrap();
    let (free, before) = (disk.info().free_segments, disk.space());
    assert!(before.used / (64 << 10) > 2 * free, "{before:?}, {free} segments are free");
    // One block of each page: all of them change, and nothing is written that would begin a segment.
    let removed = (0..made).step_by(40).map(|at| disk.delete_range(list, at, at).unwrap()).sum::<u64>();
    assert_eq!(removed, made.div_ceil(40));
    disk.checkpoint().unwrap();
    assert_eq!(disk.list_len(list).unwrap(), made - removed);
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
}
