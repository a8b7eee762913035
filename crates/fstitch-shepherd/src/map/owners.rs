//! Which block each spare is a copy of, or has taken the place of.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fstitch_core::num::to_usize;
use fstitch_core::{BlockNo, Le};

use super::area::MapWrite;
use super::{Area, Part};

/// What the map says of a spare that cannot be written.
const BAD: u64 = u64::MAX;
/// Of a free one.
const FREE: u64 = 0;
/// What is added for a spare that a block was moved to.
const MOVED: u64 = 1 << 62;
/// What is added for one with the parity of a group; then the rest is the group's number.
const PARITY: u64 = 1 << 61;
/// Bits of the block, plus 1.
const HOME_BITS: u32 = 40;
const HOME_MASK: u64 = (1 << HOME_BITS) - 1;
/// Bits of the sum of what was at home when a block was moved, behind those.
const WAS_MASK: u32 = (1 << 22) - 1;
/// Blocks of the largest volume.
pub(crate) const BLOCKS_MAX: u64 = HOME_MASK - 1;

/// Where a block was moved to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub(crate) spare: u64,
    /// By which what was at home then is known again; 0 if it could not be read.
    pub(crate) was: u32,
}

/// By what the contents of a home are known again.
pub(crate) fn mark_of(contents: &[u8]) -> u32 {
    (crc32c::crc32c(contents) & WAS_MASK).max(1)
}

/// The owners, whole in memory: about 100 bytes for each copy that there is.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    copies: BTreeMap<BlockNo, Vec<u64>>,
    moved: BTreeMap<BlockNo, Elsewhere>,
    parity: BTreeMap<u64, u64>,
    free: BTreeSet<u64>,
    /// Given in memory, and not written yet: the medium is not told of a copy before it is one.
    unwritten: BTreeSet<u64>,
    /// Given up in memory, and still named on the medium [M2].
    leaving: Vec<u64>,
    /// Spares that cannot be written, and whose copies they had, until the medium knows.
    given_up: BTreeMap<u64, BlockNo>,
    /// What the medium shall say, by spare.
    said: Vec<u64>,
    /// The medium does not know of it yet whose a spare is, or is not any more.
    has_news: bool,
    /// Blocks of the map that are not on the medium yet, and all generations.
    dirty: BTreeSet<u64>,
    generations: Vec<u64>,
    pub(crate) lost_pages: u64,
}

impl Owners {
    /// Reads the map. Spares of a block of the map that is lost in both places are free.
    pub(crate) fn load(area: &Area) -> Self {
        let shape = &area.shape;
        let mut owners = Self { said: vec![FREE; to_usize(shape.spares)], ..Self::default() };
        let entries = shape.entries(Part::Owners);
        for index in 0..shape.blocks(Part::Owners) {
            let found = area.read(Part::Owners, index);
            owners.lost_pages += u64::from(found.is_none());
            owners.generations.push(found.as_ref().map_or(0, |(generation, _)| *generation));
            let Some((_, contents)) = found else { continue };
            let first = index * entries;
            for spare in first..(first + entries).min(shape.spares) {
                owners.said[to_usize(spare)] = Le::u64(&contents, 8 * to_usize(spare - first));
            }
        }
        let mut losers = Vec::new();
        for (said, spare) in owners.said.clone().into_iter().zip(0..) {
            match said {
                FREE => drop(owners.free.insert(spare)),
                BAD => {}
                said if said & MOVED != 0 && (1..=shape.volume).contains(&(said & HOME_MASK)) => {
                    let was = u32::try_from(said >> HOME_BITS).unwrap_or(0) & WAS_MASK;
                    let home = BlockNo((said & HOME_MASK) - 1);
                    let loser = owners.found_moved(area, home, Elsewhere { spare, was });
                    losers.extend(loser);
                }
                said if said & PARITY != 0 && (1..=shape.volume).contains(&(said & HOME_MASK)) => {
                    // Of two either is computed anew before it is believed, as a crash was between them.
                    losers.extend(owners.parity.insert((said & HOME_MASK) - 1, spare));
                }
                home if home > shape.volume => drop(owners.free.insert(spare)),
                home => owners.copies.entry(BlockNo(home - 1)).or_default().push(spare),
            }
        }
        for spare in losers {
            owners.leaving.push(spare);
            owners.say(area, spare, FREE);
        }
        owners
    }

    /// A block was moved to a spare. To two, where that to another one was cut short: either may be the one, so one that can be read is.
    /// Returns the other one.
    fn found_moved(&mut self, area: &Area, home: BlockNo, there: Elsewhere) -> Option<u64> {
        let is_readable =
            |there: &Elsewhere| area.read_at(area.spare(there.spare), fstitch_core::BlockKind::Data).is_ok();
        match self.moved.get(&home).copied() {
            Some(other) if is_readable(&other) => Some(there.spare),
            _ => self.moved.insert(home, there).map(|other| other.spare),
        }
    }

    /// All copies are given up, whatever they are of; what was moved stays.
    pub(crate) fn only_moved(mut self, area: &Area) -> Self {
        let mut copies: Vec<u64> = std::mem::take(&mut self.copies).into_values().flatten().collect();
        copies.extend(std::mem::take(&mut self.parity).into_values());
        for spare in copies {
            self.say(area, spare, FREE);
            self.leaving.push(spare);
        }
        self.dirty = (0..area.shape.blocks(Part::Owners)).collect();
        self
    }

    /// Blocks that are not at home.
    pub(crate) fn moved(&self) -> impl Iterator<Item = (BlockNo, Elsewhere)> + '_ {
        self.moved.iter().map(|(home, there)| (*home, *there))
    }

    /// The spare with the parity of a group.
    pub(crate) fn parity(&self, group: u64) -> Option<u64> {
        self.parity.get(&group).copied()
    }

    /// Groups that have parity.
    pub(crate) fn groups(&self) -> u64 {
        fstitch_core::num::to_u64(self.parity.len())
    }

    /// The group whose parity is in a block of the device.
    pub(crate) fn group_at(&self, area: &Area, at: BlockNo) -> Option<u64> {
        self.parity.iter().find(|(_, spare)| area.spare(**spare) == at).map(|(group, _)| *group)
    }

    /// Gives a group a spare for its parity: the first behind `wish`. `None` if there is none.
    pub(crate) fn give_parity(&mut self, area: &Area, group: u64, wish: BlockNo) -> Option<u64> {
        let spare = self.pick(area, wish)?;
        self.parity.insert(group, spare);
        self.say(area, spare, PARITY | (group + 1));
        Some(spare)
    }

    /// A group has no parity any more; its spare cannot be written, or is free after the medium says so.
    pub(crate) fn take_parity(&mut self, area: &Area, group: u64, is_bad: bool) {
        let Some(spare) = self.parity.remove(&group) else { return };
        if is_bad {
            self.say(area, spare, BAD);
        } else {
            self.leaving.push(spare);
            self.say(area, spare, FREE);
        }
    }

    /// Whether more spares would be free if the medium knew of it.
    pub(crate) fn has_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Spares that nobody has.
    pub(crate) fn free(&self) -> u64 {
        fstitch_core::num::to_u64(self.free.len())
    }

    /// Spares that cannot be written.
    pub(crate) fn bad(&self) -> u64 {
        fstitch_core::num::to_u64(self.said.iter().filter(|said| **said == BAD).count())
    }

    /// Blocks that have copies.
    pub(crate) fn homes(&self) -> impl Iterator<Item = (BlockNo, &[u64])> {
        self.copies.iter().map(|(home, spares)| (*home, spares.as_slice()))
    }

    /// A spare is somebody's of whom the map does not say it: a block of the maps is there.
    pub(crate) fn reserve(&mut self, spare: u64) {
        self.free.remove(&spare);
    }

    /// Sets the first free spare behind `wish` apart. `None` if there is none.
    pub(crate) fn pick(&mut self, area: &Area, wish: BlockNo) -> Option<u64> {
        let spare = self.behind(area, wish)?;
        self.free.remove(&spare);
        Some(spare)
    }

    /// A spare that was set apart has a block that was moved. Where it was before, if that is another spare, which is named still.
    pub(crate) fn move_to(&mut self, area: &Area, home: BlockNo, there: Elsewhere) -> Option<Elsewhere> {
        let said = MOVED | u64::from(there.was) << HOME_BITS | (home.get() + 1);
        self.say(area, there.spare, said);
        self.moved.insert(home, there)
    }

    /// A spare that was set apart is free again.
    pub(crate) fn release(&mut self, spare: u64) {
        self.free.insert(spare);
    }

    /// Spares in some blocks that could not be written are free: they are on another disk now.
    pub(crate) fn forgive(&mut self, area: &Area, blocks: &Range<BlockNo>) {
        let spares = Self::first_from(area, blocks.start)..Self::first_from(area, blocks.end);
        for spare in spares.filter(|spare| self.said[to_usize(*spare)] == BAD).collect::<Vec<_>>() {
            self.say(area, spare, FREE);
            self.leaving.push(spare);
        }
    }

    /// A spare that nobody has any more cannot be written.
    pub(crate) fn condemn(&mut self, area: &Area, spare: u64) {
        self.free.remove(&spare);
        self.say(area, spare, BAD);
    }

    /// A block is at home again.
    pub(crate) fn bring_home(&mut self, area: &Area, home: BlockNo) {
        if let Some(there) = self.moved.remove(&home) {
            self.leaving.push(there.spare);
            self.say(area, there.spare, FREE);
        }
    }

    /// An empty map for a new volume.
    pub(crate) fn new(area: &Area) -> Self {
        Self {
            free: (0..area.shape.spares).collect(),
            said: vec![FREE; to_usize(area.shape.spares)],
            dirty: (0..area.shape.blocks(Part::Owners)).collect(),
            // Whatever the area held before is older.
            generations: (0..area.shape.blocks(Part::Owners))
                .map(|index| area.read(Part::Owners, index).map_or(0, |(generation, _)| generation))
                .collect(),
            ..Self::default()
        }
    }

    /// The spares with copies of a block.
    pub(crate) fn of(&self, home: BlockNo) -> &[u64] {
        self.copies.get(&home).map_or(&[], Vec::as_slice)
    }

    fn say(&mut self, area: &Area, spare: u64, what: u64) {
        self.said[to_usize(spare)] = what;
        self.has_news = true;
        self.dirty.insert(spare / area.shape.entries(Part::Owners));
    }

    /// Gives a block another spare: the first behind `wish` on the device. `None` if there is none.
    pub(crate) fn give(&mut self, area: &Area, home: BlockNo, wish: BlockNo) -> Option<u64> {
        let spare = self.behind(area, wish)?;
        self.free.remove(&spare);
        self.copy_to(home, spare);
        Some(spare)
    }

    /// The first free spare behind `wish` among those in some blocks, else the first of these. `None` if there is none.
    pub(crate) fn pick_in(&mut self, area: &Area, blocks: &Range<BlockNo>, wish: BlockNo) -> Option<u64> {
        let all = Self::first_from(area, blocks.start)..Self::first_from(area, blocks.end);
        let low = Self::first_from(area, wish).clamp(all.start, all.end);
        let found = self.free.range(low..all.end).next().or_else(|| self.free.range(all).next()).copied()?;
        self.free.remove(&found);
        Some(found)
    }

    /// A spare that was set apart is to have a copy of a block.
    pub(crate) fn copy_to(&mut self, home: BlockNo, spare: u64) {
        self.copies.entry(home).or_default().push(spare);
        self.unwritten.insert(spare);
    }

    /// The spares that hold a copy of a block, or did before one that is under way.
    pub(crate) fn written_of(&self, home: BlockNo) -> Vec<u64> {
        self.of(home).iter().copied().filter(|spare| !self.unwritten.contains(spare)).collect()
    }

    /// The spares that were given to a block and have not been written.
    pub(crate) fn unwritten_of(&self, home: BlockNo) -> Vec<u64> {
        self.of(home).iter().copied().filter(|spare| self.unwritten.contains(spare)).collect()
    }

    /// Whether spares were given that have not been written.
    pub(crate) fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// A spare holds what it is a copy of: the medium may be told, behind the next flush.
    pub(crate) fn holds(&mut self, area: &Area, home: BlockNo, spare: u64) {
        if self.of(home).contains(&spare) && self.unwritten.remove(&spare) {
            self.say(area, spare, home.get() + 1);
        }
    }

    /// The first spare at a block or behind it.
    fn first_from(area: &Area, block: BlockNo) -> u64 {
        let (mut low, mut high) = (0, area.shape.spares);
        while low < high {
            let middle = low + (high - low) / 2;
            if area.spare(middle) < block {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn behind(&self, area: &Area, wish: BlockNo) -> Option<u64> {
        let low = Self::first_from(area, wish);
        // Behind the wished place, so that the copies of neighbours are neighbours in the same order, and go out in one request.
        self.free.range(low..).next().or_else(|| self.free.first()).copied()
    }

    /// Takes a copy away; its spare is free after the medium says so.
    pub(crate) fn take(&mut self, area: &Area, home: BlockNo, spare: u64) {
        self.forget(home, spare);
        if self.unwritten.remove(&spare) {
            // The medium has never heard of it.
            self.free.insert(spare);
            return;
        }
        self.leaving.push(spare);
        self.say(area, spare, FREE);
    }

    /// Takes a copy away whose spare cannot be written.
    pub(crate) fn give_up(&mut self, area: &Area, home: BlockNo, spare: u64) {
        self.forget(home, spare);
        if !self.unwritten.contains(&spare) {
            self.given_up.insert(spare, home);
        }
        self.unwritten.remove(&spare);
        self.say(area, spare, BAD);
    }

    fn forget(&mut self, home: BlockNo, spare: u64) {
        if let Some(copies) = self.copies.get_mut(&home) {
            copies.retain(|other| *other != spare);
            if copies.is_empty() {
                self.copies.remove(&home);
            }
        }
    }

    /// What the medium must know, stably, before [`Owners::next_writes`]: a copy that was given up stays named until the one that takes its place is.
    /// They may be in two blocks of the map, of which power may spare one; the run is in doubt, so the older copy is found out.
    pub(crate) fn first_writes(&mut self, area: &Area) -> Vec<MapWrite> {
        if self.given_up.values().all(|home| self.of(*home).is_empty()) {
            return Vec::new();
        }
        self.writes(area, |owners, spare| {
            owners.given_up.get(&spare).map_or(owners.said[to_usize(spare)], |home| home.get() + 1)
        })
    }

    /// All that is not on the medium yet, in its next generation.
    pub(crate) fn next_writes(&mut self, area: &Area) -> Vec<MapWrite> {
        self.writes(area, |owners, spare| owners.said[to_usize(spare)])
    }

    /// The blocks of the map that are not on the medium yet, with this said of each spare.
    fn writes(&mut self, area: &Area, said: impl Fn(&Self, u64) -> u64) -> Vec<MapWrite> {
        let entries = area.shape.entries(Part::Owners);
        let mut writes = Vec::new();
        for index in self.dirty.clone() {
            self.generations[to_usize(index)] += 1;
            let mut contents = vec![0; area.shape.payload()];
            let first = index * entries;
            for spare in first..(first + entries).min(area.shape.spares) {
                Le::put_u64(&mut contents, 8 * to_usize(spare - first), said(self, spare));
            }
            let generation = self.generations[to_usize(index)];
            writes.push(MapWrite { part: Part::Owners, index, generation, contents });
        }
        writes
    }

    /// Whether the medium does not know of it yet whose a spare is, or is not any more.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// What [`Owners::next_writes`] gave is on the medium.
    pub(crate) fn written(&mut self) {
        self.has_news = false;
        self.dirty.clear();
        self.given_up.clear();
        self.free.extend(self.leaving.drain(..));
    }
}
