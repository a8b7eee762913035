//! Sparse lists by position, in units that have no memory for what they write.
//!
//! What it prevents: contents that a unit has spilled and that are lost, mixed up, or there although the unit never ended; space that is
//! gone with a unit that was aborted.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, Errno, MemDevice, Seed};
use fstitch_lld::{Aru, Disk, FormatOptions, ListId, Options};

const BLOCK: usize = 512;
const POSITIONS: u64 = 400;

type Model = BTreeMap<u64, u8>;

fn options(cache_size: usize) -> Options {
    Options { cache_size, checkpoint_interval: 256 << 10, ..Options::default() }
}

fn disk(cache_size: usize) -> (Arc<MemDevice>, Disk, ListId) {
    let device = Arc::new(MemDevice::from_image(512, vec![0; 6 << 20]));
    let format = FormatOptions { segment_size: 64 << 10, block_size: 512, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) = Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options(cache_size)).unwrap();
    let list = disk.new_list(true).unwrap();
    disk.flush().unwrap();
    (device, disk, list)
}

/// What a list has at every position.
fn shown(len: u64, mut read: impl FnMut(u64, &mut [u8])) -> Model {
    let mut model = Model::new();
    for position in 0..len {
        let mut bytes = [0xff; BLOCK];
        read(position, &mut bytes);
        assert_eq!(bytes, [bytes[0]; BLOCK], "position {position}");
        model.extend((bytes[0] != 0).then_some((position, bytes[0])));
    }
    model
}

fn committed(disk: &Disk, list: ListId) -> Model {
    shown(POSITIONS, |position, bytes| disk.read_at(list, position, bytes).unwrap())
}

/// A unit, and what it has done.
struct Stream<'a> {
    aru: Aru<'a>,
    /// What it has at positions of its own: those with this remainder.
    own: BTreeMap<u64, Option<u8>>,
    remainder: u64,
}

impl Stream<'_> {
    fn step(&mut self, list: ListId, model: &Model, seed: &mut Seed) {
        let position = seed.below(POSITIONS / 4) * 4 + self.remainder;
        match seed.below(8) {
            0 => {
                let last = (position + seed.below(40)).min(POSITIONS - 1);
                let mine: Vec<u64> = (position..=last).filter(|at| at % 4 == self.remainder).collect();
                for at in mine {
                    let had = self.now(model, at).is_some();
                    assert_eq!(self.aru.delete_range(list, at, at).unwrap(), u64::from(had));
                    self.own.insert(at, None);
                }
            }
            1 => {
                let found = self.aru.next_at(list, position).unwrap();
                let mine = self.now(model, position).is_some();
                assert_eq!(found.is_some_and(|(at, _)| at == position), mine, "position {position}");
            }
            2 => {
                let mut bytes = [0xff; BLOCK];
                self.aru.read_at(list, position, &mut bytes).unwrap();
                assert_eq!(bytes, [self.now(model, position).unwrap_or(0); BLOCK], "position {position}");
            }
            _ => {
                let byte = seed.below(255).to_le_bytes()[0] + 1;
                self.aru.write_at(list, position, &[byte; BLOCK]).unwrap();
                self.own.insert(position, Some(byte));
            }
        }
    }

    fn now(&self, model: &Model, position: u64) -> Option<u8> {
        self.own.get(&position).copied().unwrap_or_else(|| model.get(&position).copied())
    }

    fn end(self, model: &mut Model, seed: &mut Seed) {
        if seed.below(3) == 0 {
            self.aru.abort();
            return;
        }
        self.aru.end().unwrap();
        for (position, byte) in self.own {
            match byte {
                Some(byte) => model.insert(position, byte),
                None => model.remove(&position),
            };
        }
    }
}

fn random_run(number: u64, cache_size: usize) -> u64 {
    let mut seed = Seed::new(number);
    let (device, disk, list) = disk(cache_size);
    let mut model = Model::new();
    let mut since = vec![model.clone()];
    let mut streams: Vec<Stream<'_>> = Vec::new();
    for step in 0..1500 {
        let free = (1..4).find(|remainder| streams.iter().all(|stream| stream.remainder != *remainder));
        match (seed.below(20), free) {
            (0, Some(remainder)) => {
                streams.push(Stream { aru: disk.begin(), own: BTreeMap::new(), remainder });
            }
            (1, _) if !streams.is_empty() && seed.below(3) == 0 => {
                let at = to_usize(seed.below(to_u64(streams.len())));
                streams.swap_remove(at).end(&mut model, &mut seed);
                since.push(model.clone());
            }
            (2, _) => disk.clean(2).unwrap(),
            (3, _) => {
                disk.flush().unwrap();
                since = vec![model.clone()];
            }
            (4..8, _) => {
                let position = seed.below(POSITIONS / 4) * 4;
                let byte = seed.below(255).to_le_bytes()[0] + 1;
                disk.write_at(list, position, &[byte; BLOCK]).unwrap();
                model.insert(position, byte);
                since.push(model.clone());
            }
            _ if !streams.is_empty() => {
                let at = to_usize(seed.below(to_u64(streams.len())));
                streams[at].step(list, &model, &mut seed);
            }
            _ => {}
        }
        if step % 97 == 0 {
            assert_eq!(committed(&disk, list), model, "run {number}, step {step}");
            let cut: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, device.image()));
            let (found, _) = Disk::open(cut, &options(cache_size)).unwrap();
            assert!(since.contains(&committed(&found, list)), "run {number}, step {step}: no moment");
        }
    }
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
    disk.counters().spilled_bytes
}

#[test]
fn units_that_have_no_memory_are_units() {
    let spilled: u64 = (0..20).map(|number| random_run(number, 24 << 10)).sum();
    assert!(spilled > 1 << 20, "{spilled} bytes");
}

#[test]
fn units_that_have_memory_write_nothing_before_their_end() {
    assert_eq!(random_run(99, 64 << 20), 0);
}

#[test]
fn an_aborted_unit_gives_back_its_space() {
    let (_, disk, list) = disk(24 << 10);
    let before = disk.space();
    for _ in 0..40 {
        let unit = disk.begin();
        (0..1000).for_each(|position| unit.write_at(list, position, &[7; BLOCK]).unwrap());
        assert!(disk.space().used > before.used);
    }
    disk.checkpoint().unwrap();
    assert!(disk.space().used <= before.used + (64 << 10), "{:?}, and before {before:?}", disk.space());
}

#[test]
fn a_unit_that_has_no_space_changes_nothing() {
    let (_, disk, list) = disk(24 << 10);
    disk.write_at(list, 0, &[1; BLOCK]).unwrap();
    let unit = disk.begin();
    let refused = (0..u64::MAX).find_map(|position| unit.write_at(list, position, &[2; BLOCK]).err());
    assert_eq!(refused.unwrap().errno(), Errno::NOSPC);
    unit.abort();
    assert_eq!(committed(&disk, list), Model::from([(0, 1)]));
    (0..100).for_each(|position| disk.write_at(list, position, &[3; BLOCK]).unwrap());
}

#[test]
fn a_segment_says_which_chunk_needs_what_was_spilled_in_it() {
    let (_, disk, list) = disk(24 << 10);
    let unit = disk.begin();
    (0..60).for_each(|position| unit.write_at(list, position, &[5; BLOCK]).unwrap());
    let spilled = || {
        let mut segments = Vec::new();
        let each = &mut |found: fstitch_lld::DumpedSegment| {
            let has = found.chunks.iter().flat_map(|chunk| &chunk.data).any(|data| data.kind == "spilled");
            segments.extend(has.then_some((found.segment, found.newest)));
            Ok::<_, fstitch_core::Error>(())
        };
        disk.dump(0..disk.info().segments, each).unwrap();
        segments
    };
    let before = spilled();
    assert!(!before.is_empty() && before.iter().all(|(_, newest)| *newest == 0), "{before:?}");
    unit.end().unwrap();
    disk.flush().unwrap();
    // Its records are in one chunk, which is the last one.
    let newest = disk.info().chunk;
    let after = spilled();
    assert_eq!(after, before.iter().map(|(segment, _)| (*segment, newest)).collect::<Vec<_>>());
}
