//! Which blocks are used: now, and at the last commit. A block is free to be taken if it is used in neither.
//!
//! **Layout**: `docs/spec/waffle.md`, *map*. Each block of the map has two homes; what changed goes to the one that no root reaches.
//!
//! **Invariants**
//! 1. `avail[r]` blocks of region `r` are clear in both of its maps; `total` is their sum.
//! 2. `given_up` blocks are clear now and were not at the last commit: the next commit makes them free.
//! 3. A region whose maps are not in memory has not changed since the last commit.
//!
//! **Crash cases**: none of its own. A home that is being written is reached by no root that is stable.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, Le, Result, Structure};
use fstitch_patch::Cache;

use super::layout::pointer::{REF_BYTES, Ref};
use super::layout::{BLOCK, FAN, MapShape, REGION, sum};

pub(super) const WORDS: usize = BLOCK / 8;
/// Regions that stay in memory without need.
const IDLE_REGIONS: usize = 64;

pub(super) type Words = [u64; WORDS];

/// The maps of a region.
struct Region {
    new: Box<Words>,
    old: Box<Words>,
    is_changed: bool,
}

/// A block of the map to be written.
pub(super) struct Home {
    pub(super) block: u64,
    pub(super) kind: BlockKind,
    pub(super) bytes: BlockBuf,
}

/// The map in memory.
pub(super) struct Map {
    shape: MapShape,
    blocks: u64,
    /// References to the blocks of each level.
    refs: Vec<Vec<Ref>>,
    avail: Vec<u32>,
    loaded: BTreeMap<u64, Region>,
    total: u64,
    given_up: u64,
    /// Where to look for a block that is to be near nothing.
    cursor: u64,
    /// What the operation under way has changed: blocks, and whether they were taken.
    log: Vec<(u64, bool)>,
    /// It could not be read, and says nothing.
    is_lost: bool,
    /// Blocks that stay used whoever gives them up.
    kept: BTreeSet<u64>,
}

/// What a block of a level holds, for the device.
fn kind(level: usize) -> BlockKind {
    if level == 0 { BlockKind::BlockBitmap } else { BlockKind::GroupDescriptor }
}

/// The blocks of a region.
fn len(blocks: u64, region: u64) -> u64 {
    blocks.saturating_sub(region * REGION).min(REGION)
}

fn damaged(region: u64, block: Option<BlockNo>, problem: impl Into<String>) -> Error {
    Error::corrupt(Structure::BlockBitmap(region), block, problem)
}

/// Sets the bits `from..to`.
fn fill(words: &mut Words, from: u64, to: u64) {
    for bit in from..to {
        words[to_usize(bit / 64)] |= 1 << (bit % 64);
    }
}

fn zeros(words: &Words) -> u32 {
    words.iter().map(|word| word.count_zeros()).sum()
}

/// The bits of a region that no tree has: those before the data, and those behind the end.
fn fixed(blocks: u64, data: u64, region: u64) -> Box<Words> {
    let mut words = Box::new([0; WORDS]);
    let first = region * REGION;
    fill(&mut words, 0, data.saturating_sub(first).min(REGION));
    fill(&mut words, len(blocks, region), REGION);
    words
}

impl Map {
    /// That of a new volume, in which nothing is used but what is no tree's.
    pub(super) fn empty(blocks: u64) -> Self {
        let shape = MapShape::of(blocks);
        let refs = shape.counts.iter().map(|&count| vec![Ref::NONE; to_usize(count)]).collect();
        let mut map = Self {
            avail: vec![0; to_usize(shape.counts[0])],
            cursor: shape.end,
            shape,
            blocks,
            refs,
            loaded: BTreeMap::new(),
            total: 0,
            given_up: 0,
            log: Vec::new(),
            is_lost: false,
            kept: BTreeSet::new(),
        };
        let regions = map.shape.counts[0];
        for region in 0..regions {
            let first = region * REGION;
            let is_whole = first >= map.shape.end && len(blocks, region) == REGION;
            let mut avail = len(blocks, region);
            if !is_whole {
                let new = fixed(blocks, map.shape.end, region);
                avail = zeros(&new).into();
                map.loaded.insert(region, Region { old: new.clone(), new, is_changed: true });
            }
            map.avail[to_usize(region)] = u32::try_from(avail).expect("a region's blocks");
            map.total += avail;
        }
        map
    }

    /// That of a volume whose map cannot be read.
    pub(super) fn lost(blocks: u64) -> Self {
        Self { is_lost: true, ..Self::empty(blocks) }
    }

    /// That of a volume, whose upper levels are read: the leaves come as they are needed.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn open(cache: &Cache, blocks: u64, top: Ref, generation: u64) -> Result<Self> {
        let mut map = Self::empty(blocks);
        (map.loaded, map.total) = (BTreeMap::new(), 0);
        let levels = map.shape.counts.len();
        map.refs[levels - 1][0] = top;
        for level in (0..levels).rev() {
            for index in 0..map.shape.counts[level] {
                let reference = map.refs[level][to_usize(index)];
                map.check_ref(reference, (level, index), generation)?;
                if level > 0 && !reference.is_none() {
                    let bytes = read(cache, reference, BlockKind::GroupDescriptor, index)?;
                    let first = to_usize(index * FAN);
                    let below = &mut map.refs[level - 1];
                    let count = (below.len() - first).min(to_usize(FAN));
                    (0..count).for_each(|slot| below[first + slot] = Ref::slot(&bytes, slot));
                }
            }
        }
        for region in 0..map.shape.counts[0] {
            let reference = map.refs[0][to_usize(region)];
            let most = len(blocks, region);
            let avail = if reference.is_none() { most } else { reference.extra.into() };
            if avail > most || reference.is_none() && region * REGION < map.shape.end {
                return Err(damaged(region, None, format!("{avail} of its {most} blocks would be free")));
            }
            map.avail[to_usize(region)] = u32::try_from(avail).expect("a region's blocks");
            map.total += avail;
        }
        Ok(map)
    }

    fn check_ref(&self, reference: Ref, (level, index): (usize, u64), generation: u64) -> Result<()> {
        let homes = [false, true].map(|second| self.shape.home(level, index, second));
        let is_good = reference == Ref::NONE || homes.contains(&reference.block);
        if !is_good || reference.flags != 0 || reference.birth > generation {
            let problem =
                format!("the reference to block {index} of level {level} of the map: {reference:?}");
            return Err(damaged(index, None, problem));
        }
        Ok(())
    }

    /// Where the map's blocks are.
    pub(super) fn shape(&self) -> &MapShape {
        &self.shape
    }

    /// What is used is what `wanted` says of each region, given what the map has of it now, if that can be read; says how many regions
    /// were otherwise.
    pub(super) fn correct(
        &mut self,
        cache: &Cache,
        mut wanted: impl FnMut(u64, Option<&Words>) -> Box<Words>,
    ) -> Result<u64> {
        let mut corrected = 0;
        for region in 0..self.shape.counts[0] {
            let had = match self.words(cache, region) {
                Ok(words) => Some(words).filter(|_| !self.is_lost),
                Err(Error::Corrupt(_)) => None,
                Err(error) => return Err(error),
            };
            let mut new = wanted(region, had.as_deref());
            let fixed = fixed(self.blocks, self.shape.end, region);
            new.iter_mut().zip(fixed.iter()).for_each(|(word, fixed)| *word |= fixed);
            let free = zeros(&new);
            if had.as_ref() == Some(&new) && self.avail[to_usize(region)] == free {
                continue;
            }
            corrected += 1;
            self.total = self.total - u64::from(self.avail[to_usize(region)]) + u64::from(free);
            self.avail[to_usize(region)] = free;
            self.loaded.insert(region, Region { old: new.clone(), new, is_changed: true });
        }
        (self.given_up, self.is_lost) = (0, false);
        Ok(corrected)
    }

    /// Whether a block is used now.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn is_used(&mut self, cache: &Cache, block: u64) -> Result<bool> {
        let bit = block % REGION;
        let maps = self.load(cache, block / REGION)?;
        Ok(maps.new[to_usize(bit / 64)] >> (bit % 64) & 1 == 1)
    }

    /// The references to the blocks of a level, and what these hold.
    pub(super) fn level(&self, level: usize) -> Option<(&[Ref], BlockKind)> {
        self.refs.get(level).map(|refs| (&refs[..], kind(level)))
    }

    /// The reference to the top.
    pub(super) fn top(&self) -> Ref {
        self.refs[self.refs.len() - 1][0]
    }

    /// Blocks that may be taken.
    pub(super) fn avail(&self) -> u64 {
        self.total
    }

    /// Blocks that the next commit makes free.
    pub(super) fn given_up(&self) -> u64 {
        self.given_up
    }

    /// Bytes of memory that changed regions take.
    pub(super) fn memory(&self) -> usize {
        self.loaded.len() * 2 * BLOCK
    }

    fn load(&mut self, cache: &Cache, region: u64) -> Result<&mut Region> {
        if !self.loaded.contains_key(&region) {
            let words = self.words(cache, region)?;
            let loaded = Region { old: words.clone(), new: words, is_changed: false };
            self.loaded.insert(region, loaded);
        }
        Ok(self.loaded.get_mut(&region).expect("it was put there"))
    }

    /// A region's map as the last root has it.
    ///
    /// # Errors
    /// `Io`; `Corrupt` also where what no tree has is not marked.
    pub(super) fn words(&self, cache: &Cache, region: u64) -> Result<Box<Words>> {
        let fixed = fixed(self.blocks, self.shape.end, region);
        let reference = self.refs[0][to_usize(region)];
        if reference.is_none() {
            return Ok(fixed);
        }
        let bytes = read(cache, reference, BlockKind::BlockBitmap, region)?;
        let mut words = Box::new([0; WORDS]);
        words.iter_mut().enumerate().for_each(|(at, word)| *word = Le::u64(&bytes, 8 * at));
        let block = Some(BlockNo(reference.block));
        if words.iter().zip(fixed.iter()).any(|(word, fixed)| word & fixed != *fixed) {
            return Err(damaged(region, block, "blocks are free that no file may have"));
        }
        if zeros(&words) != reference.extra {
            let problem =
                format!("{} blocks are free, and {} are said to be", zeros(&words), reference.extra);
            return Err(damaged(region, block, problem));
        }
        Ok(words)
    }

    /// Takes a free block, the first from `goal` on if it may be; without a goal one behind the last that was taken so.
    ///
    /// # Errors
    /// `Io`, `Corrupt`. `None` if there is none.
    pub(super) fn take(&mut self, cache: &Cache, goal: Option<u64>) -> Result<Option<u64>> {
        let from = goal.unwrap_or(self.cursor);
        let from = if from >= self.blocks { self.shape.end } else { from };
        let regions = self.shape.counts[0];
        for step in 0..=regions {
            let region = (from / REGION + step) % regions;
            if self.avail[to_usize(region)] == 0 {
                continue;
            }
            let first = if step == 0 { from % REGION } else { 0 };
            let maps = self.load(cache, region)?;
            if let Some(bit) = find(maps, first) {
                let block = region * REGION + bit;
                self.mark(block, true);
                self.log.push((block, true));
                if goal.is_none() {
                    self.cursor = block + 1;
                }
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// From now on these blocks, and no others, stay used when they are given up: whoever mends knows that others have them.
    pub(super) fn keep(&mut self, blocks: BTreeSet<u64>) {
        self.kept = blocks;
    }

    /// Gives a block up.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if it is free.
    pub(super) fn give_up(&mut self, cache: &Cache, block: u64) -> Result<()> {
        if self.kept.contains(&block) {
            return Ok(());
        }
        let (region, bit) = (block / REGION, block % REGION);
        let maps = self.load(cache, region)?;
        if maps.new[to_usize(bit / 64)] >> (bit % 64) & 1 == 0 {
            return Err(damaged(region, None, format!("block {block} is given up, and it is free")));
        }
        self.mark(block, false);
        self.log.push((block, false));
        Ok(())
    }

    /// Changes a bit of a region in memory, and what is counted.
    fn mark(&mut self, block: u64, is_used: bool) {
        let (region, bit) = (block / REGION, block % REGION);
        let maps = self.loaded.get_mut(&region).expect("it was loaded");
        let (word, mask) = (to_usize(bit / 64), 1 << (bit % 64));
        debug_assert_eq!(maps.new[word] & mask == 0, is_used, "block {block}");
        maps.new[word] ^= mask;
        maps.is_changed = true;
        let was_used = maps.old[word] & mask != 0;
        let avail = &mut self.avail[to_usize(region)];
        match (was_used, is_used) {
            (true, true) => self.given_up -= 1,
            (true, false) => self.given_up += 1,
            (false, true) => (*avail, self.total) = (*avail - 1, self.total - 1),
            (false, false) => (*avail, self.total) = (*avail + 1, self.total + 1),
        }
    }

    /// What is changed from now on can be undone.
    pub(super) fn begin(&mut self) {
        self.log.clear();
    }

    /// Undoes what was changed since.
    pub(super) fn undo(&mut self) {
        while let Some((block, was_taken)) = self.log.pop() {
            self.mark(block, !was_taken);
        }
    }

    /// What is used now is what the next root says: gives every block of the map that has changed its other home, and what is
    /// to be there.
    pub(super) fn close(&mut self, generation: u64) -> Vec<Home> {
        self.log.clear();
        let mut homes = Vec::new();
        let mut changed = Vec::new();
        for (&region, maps) in &mut self.loaded {
            if !maps.is_changed {
                continue;
            }
            let mut bytes = BlockBuf::zeroed(BLOCK);
            maps.new.iter().enumerate().for_each(|(at, word)| Le::put_u64(&mut bytes, 8 * at, *word));
            let free = zeros(&maps.new);
            self.total += u64::from(free) - u64::from(self.avail[to_usize(region)]);
            self.avail[to_usize(region)] = free;
            *maps.old = *maps.new;
            maps.is_changed = false;
            changed.push((region, bytes, free));
        }
        self.given_up = 0;
        for level in 0..self.shape.counts.len() {
            let mut above: Vec<u64> = changed.iter().map(|(index, ..)| index / FAN).collect();
            above.dedup();
            for (index, bytes, extra) in changed {
                let kind = kind(level);
                let first = self.shape.home(level, index, false);
                let reference = &mut self.refs[level][to_usize(index)];
                let block = if reference.block == first { first + 1 } else { first };
                *reference = Ref { block, birth: generation, sum: sum(&bytes), flags: 0, extra };
                homes.push(Home { block, kind, bytes });
            }
            if level + 1 == self.shape.counts.len() {
                break;
            }
            changed = above.into_iter().map(|index| (index, self.node(level, index), 0)).collect();
        }
        if self.loaded.len() > IDLE_REGIONS {
            let region = self.cursor / REGION;
            self.loaded.retain(|&other, _| other == region);
        }
        homes
    }

    /// The node above blocks of a level.
    fn node(&self, level: usize, index: u64) -> BlockBuf {
        let mut bytes = BlockBuf::zeroed(BLOCK);
        let first = to_usize(index * FAN);
        let refs = self.refs[level].iter().skip(first).take(to_usize(FAN));
        refs.enumerate().for_each(|(slot, reference)| reference.write(&mut bytes, slot * REF_BYTES));
        bytes
    }

    /// Checks invariants 1 and 2 of what is in memory.
    ///
    /// # Panics
    /// If one does not hold.
    #[cfg(any(test, debug_assertions))]
    pub(super) fn check_invariants(&self) {
        let mut given_up = 0;
        for (&region, maps) in &self.loaded {
            let either: u32 =
                maps.new.iter().zip(maps.old.iter()).map(|(new, old)| (new | old).count_zeros()).sum();
            assert_eq!(either, self.avail[to_usize(region)], "free blocks of region {region}");
            given_up += maps
                .new
                .iter()
                .zip(maps.old.iter())
                .map(|(new, old)| u64::from((!new & old).count_ones()))
                .sum::<u64>();
        }
        assert_eq!(given_up, self.given_up, "blocks given up");
        assert_eq!(self.avail.iter().map(|&avail| u64::from(avail)).sum::<u64>(), self.total, "free blocks");
    }
}

/// The first bit from `first` on, or from the start, that is clear in both maps.
fn find(maps: &Region, first: u64) -> Option<u64> {
    let start = to_usize(first / 64);
    let free = |word: usize| !(maps.new[word] | maps.old[word]);
    let bit = |word: usize, free: u64| to_u64(word) * 64 + u64::from(free.trailing_zeros());
    let begun = free(start) & (u64::MAX << (first % 64));
    if begun != 0 {
        return Some(bit(start, begun));
    }
    let others = (start + 1..WORDS).chain(0..=start);
    others.map(|word| (word, free(word))).find(|(_, free)| *free != 0).map(|(word, free)| bit(word, free))
}

fn read(cache: &Cache, reference: Ref, kind: BlockKind, index: u64) -> Result<Arc<BlockBuf>> {
    let (_, bytes) = cache.read_snapshot(BlockNo(reference.block), kind)?;
    let found = sum(&bytes);
    if found != reference.sum {
        let problem = format!("{kind} of the map: its sum is {found:#x}, and should be {:#x}", reference.sum);
        return Err(damaged(index, Some(BlockNo(reference.block)), problem));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fstitch_core::{ManualClock, MemDevice};
    use fstitch_patch::CacheOptions;

    fn cache(blocks: u64) -> Arc<Cache> {
        let device = Arc::new(MemDevice::new(4096, blocks));
        Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()))
    }

    #[test]
    fn what_is_given_up_is_taken_after_the_commit_only() {
        let cache = cache(128);
        let mut map = Map::empty(128);
        drop(map.close(1));
        let all = map.avail();
        let block = map.take(&cache, None).unwrap().unwrap();
        assert_eq!(map.close(2).len(), 1);
        map.give_up(&cache, block).unwrap();
        assert_eq!((map.avail(), map.given_up()), (all - 1, 1));
        let taken: Vec<u64> = std::iter::from_fn(|| map.take(&cache, None).unwrap()).collect();
        assert!(taken.len() == 108 && !taken.contains(&block), "{} blocks", taken.len());
        map.check_invariants();
        drop(map.close(3));
        assert_eq!(map.take(&cache, Some(0)).unwrap(), Some(block));
        assert_eq!(map.take(&cache, Some(0)).unwrap(), None);
    }

    #[test]
    fn an_operation_is_undone() {
        let cache = cache(128);
        let mut map = Map::empty(128);
        let first = map.take(&cache, None).unwrap().unwrap();
        drop(map.close(1));
        let before = map.avail();
        map.begin();
        map.give_up(&cache, first).unwrap();
        let _ = map.take(&cache, None).unwrap();
        let mine = map.take(&cache, None).unwrap().unwrap();
        map.give_up(&cache, mine).unwrap();
        assert!(map.give_up(&cache, mine).is_err(), "given up twice");
        map.undo();
        map.check_invariants();
        assert_eq!((map.avail(), map.given_up()), (before, 0));
    }

    #[test]
    fn blocks_of_the_map_take_turns_at_their_homes() {
        let cache = cache(1 << 16);
        let mut map = Map::empty(1 << 16);
        assert_eq!(
            map.close(1).len(),
            2,
            "the region with the places of roots, and the node above; the other is all free"
        );
        let block = map.take(&cache, None).unwrap().unwrap();
        let homes: Vec<u64> = map.close(2).iter().map(|home| home.block).collect();
        map.give_up(&cache, block).unwrap();
        let others: Vec<u64> = map.close(3).iter().map(|home| home.block).collect();
        assert_eq!(homes.len(), 2);
        assert!(homes.iter().all(|home| !others.contains(home)), "{homes:?} {others:?}");
    }
}
