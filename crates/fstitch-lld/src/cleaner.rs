//! The cleaner: what is alive in some segments moves together, so that those are free.
//!
//! What it writes is no part of the log. The contents of blocks go to a segment of their own, apart from what clients write now, in the
//! order of their lists; the state in memory says where they are; and the checkpoint at the end of each pass makes that last. A failure
//! before it finds the older checkpoint, and the segments that are being emptied as they were. Pages of trees do not move: they
//! count as changed, and the checkpoint writes them.
//!
//! **Invariants.** 1. A segment is emptied only of what its summaries name; where something in it cannot be read, it stays as it
//! is. 2. It is free only after a checkpoint in which nothing is in it. 3. Contents are moved only if their sum is right.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo, BlockRead, Errno, Error, Result};

use crate::chunk::{DataKind, Descriptor, Summary, summary_blocks};
use crate::log::Contents;
use crate::pack::{Compression, packed};
use crate::record::{BlockId, Label, ListId};
use crate::segments::Run;
use crate::state::Table;
use crate::stream::Stream;
use crate::tree::{Fixed, Place};

/// Passes that may give nothing before it is said that there is nothing to be had: pages that move leave room elsewhere first.
const PATIENCE: u32 = 12;
/// Bytes that a pass moves at most, unless one segment has more.
const PASS_BYTES: u64 = 16 << 20;

/// The segment that is written with what has been alive for long, and how far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cold {
    pub(crate) segment: u64,
    offset: u32,
}

/// What is written beside the log, each in segments of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// What has been alive for long.
    Cold,
    /// What units have no memory for.
    Spilled,
}

/// Contents that are alive.
pub(crate) struct Alive {
    block: BlockId,
    pub(crate) run: Run,
    owner: Owner,
    bytes: Vec<u8>,
}

/// Who has contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// The committed state, in that list and at that label.
    Committed(ListId, Label),
    /// A unit that has not ended.
    Unit(u64),
}

/// A segment that may be emptied.
struct Candidate {
    segment: u64,
    live: u32,
    score: u64,
}

impl Stream {
    /// Empties segments until so many are free, or no more can be had.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn clean(&mut self, wanted: u64) -> Result<()> {
        let (mut best, mut patience) = (self.segments.free.len(), PATIENCE);
        while to_u64(self.segments.free.len()) < wanted && patience > 0 {
            match self.pass(wanted) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.errno() == Errno::NOSPC => break,
                Err(error) => return Err(error),
            }
            patience -= 1;
            if self.segments.free.len() > best {
                (best, patience) = (self.segments.free.len(), PATIENCE);
            }
        }
        Ok(())
    }

    /// Empties some segments. Returns whether there were any.
    fn pass(&mut self, wanted: u64) -> Result<bool> {
        // What is in the queue must be where it is looked for.
        let written = self.log.write_queue();
        self.noted(written)?;
        let victims = self.victims(wanted);
        if victims.is_empty() {
            return Ok(false);
        }
        let (mut alive, mut age) = (Vec::new(), 0);
        for &segment in &victims {
            match self.alive_in(segment) {
                Ok(found) => {
                    alive.extend(found);
                    age = age.max(self.age_of(segment));
                    self.log.counters.cleaned += 1;
                }
                Err(Error::Io { .. } | Error::Corrupt(_)) => self.leave_unreadable(segment),
                Err(error) => return Err(error),
            }
        }
        if self.shape.compression != Compression::None {
            self.pack(&mut alive);
        }
        self.move_in_order(alive, age)?;
        self.save()?;
        Ok(true)
    }

    /// Something in a segment cannot be read: it stays as it is.
    pub(crate) fn leave_unreadable(&mut self, segment: u64) {
        self.unreadable.insert(segment);
        self.log.counters.unreadable += 1;
    }

    /// The age of what is youngest in a segment.
    pub(crate) fn age_of(&self, segment: u64) -> u64 {
        self.segments.usage[to_usize(segment)].age
    }

    /// Blocks of the device in a segment that are alive.
    pub(crate) fn alive_units(&self, segment: u64) -> u32 {
        self.segments.usage[to_usize(segment)].live + self.own.of(segment) + self.spilled_in(segment)
    }

    /// Moves contents, those of a list together.
    pub(crate) fn move_in_order(&mut self, mut alive: Vec<Alive>, age: u64) -> Result<()> {
        alive.sort_unstable_by_key(|alive| (alive.owner, alive.block));
        self.move_all(alive, age)
    }

    /// The segments that are worth most, as many as can be emptied with what is free.
    fn victims(&self, wanted: u64) -> Vec<u64> {
        let mut candidates = self.candidates();
        candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.score));
        let usable = u64::from(self.shape.usable_units());
        let free = to_u64(self.segments.free.len());
        let (block, page) = (u64::from(self.shape.block_units()), u64::from(self.page_units()));
        let most = PASS_BYTES / u64::from(self.shape.unit);
        let (mut victims, mut live, mut gain) = (Vec::new(), 0, 0);
        for Candidate { segment, live: here, .. } in candidates {
            let moved = live + u64::from(here);
            // What moves changes a page for each block, at most.
            let pages = (moved / block.min(page)).min(self.pages + self.changed_pages());
            let fits = moved.div_ceil(usable) + self.checkpoint_segments(pages) <= free;
            let is_enough = gain > usable * (wanted + 1).saturating_sub(free) || moved > most;
            if !victims.is_empty() && (!fits || is_enough) {
                break;
            }
            if fits {
                gain += usable - u64::from(here);
                live = moved;
                victims.push(segment);
            }
        }
        victims
    }

    /// Every segment that would give something, by cost and benefit: what is gained, the longer the better, for what is read and
    /// written.
    fn candidates(&self) -> Vec<Candidate> {
        let taken = self.taken();
        let now = self.log.position().number;
        let all = u64::from(self.shape.usable_units());
        let candidate = |segment: u64| {
            let live = self.alive_units(segment);
            let gain = all.checked_sub(u64::from(live) + u64::from(self.shape.block_units()))?;
            let may = live > 0 && !taken.contains(&segment) && !self.unreadable.contains(&segment);
            let age = now.saturating_sub(self.age_of(segment)) + 1;
            let score = gain.saturating_mul(age.min(1 << 40)) / (all + u64::from(live));
            may.then_some(Candidate { segment, live, score })
        };
        (0..self.shape.segments).filter_map(candidate).collect()
    }

    /// What is alive in a segment: contents are returned, pages count as changed from now on.
    pub(crate) fn alive_in(&mut self, segment: u64) -> Result<Vec<Alive>> {
        let mut offset = 0;
        let (mut alive, mut pages) = (Vec::new(), Vec::new());
        while let Some(summary) = self.summary_at(segment, offset)? {
            offset += summary.blocks;
            for data in &summary.data {
                let place = self.shape.segment_start(segment) + u64::from(offset);
                offset += data.len;
                let run = Run { place, len: data.len, sum: data.sum };
                match data.kind {
                    DataKind::Block | DataKind::Packed | DataKind::Spilled => {
                        let owner = self.owner_of(data.owner, place)?;
                        alive.extend(owner.map(|owner| Alive {
                            block: data.owner,
                            run,
                            owner,
                            bytes: Vec::new(),
                        }));
                    }
                    DataKind::Page => pages.push((data.owner, Place { block: place, sum: data.sum })),
                }
            }
        }
        self.read_all(&mut alive)?;
        for (tree, place) in pages {
            self.touch_page(tree, place)?;
        }
        let counted = self.segments.usage[to_usize(segment)].live + self.spilled_in(segment);
        let known: u32 = alive.iter().map(|alive| alive.run.len).sum();
        if known > counted {
            return Err(crate::state::damaged(format!("segment {segment} has more in use than it counts")));
        }
        Ok(alive)
    }

    /// Whose contents are at a place that a descriptor has for a block.
    fn owner_of(&self, block: BlockId, place: u64) -> Result<Option<Owner>> {
        if let Some((unit, _)) = self.spilled_at(place) {
            return Ok(Some(Owner::Unit(unit)));
        }
        let entry = self.state.blocks.get(&block)?.filter(|entry| entry.place == place);
        Ok(entry.map(|entry| Owner::Committed(entry.list, entry.label)))
    }

    /// The summary at a place; `None` behind the last one.
    fn summary_at(&self, segment: u64, offset: u32) -> Result<Option<Summary>> {
        crate::recovery::summary_at(&self.shape, &**self.device(), segment, offset)
    }

    fn read_all(&self, alive: &mut [Alive]) -> Result<()> {
        let unit = self.shape.unit_bytes();
        for alive in alive.iter_mut() {
            alive.bytes = vec![0; to_usize(alive.run.len) * unit];
        }
        let mut reads = Vec::new();
        for alive in alive.iter_mut() {
            for (block, data) in (alive.run.place..).zip(alive.bytes.chunks_mut(unit)) {
                reads.push(BlockRead { block: BlockNo(block), kind: BlockKind::Data, data });
            }
        }
        self.device().read(&mut reads)?;
        match alive.iter().find(|alive| crc32c::crc32c(&alive.bytes) != alive.run.sum) {
            Some(bad) => Err(crate::state::damaged(format!("the contents of block {}", bad.block))),
            None => Ok(()),
        }
    }

    /// Has a page of one of the trees written again at the next checkpoint.
    fn touch_page(&mut self, tree: u64, place: Place) -> Result<()> {
        match tree {
            1 => touch(&mut self.state.blocks, place),
            2 => touch(&mut self.state.order, place),
            3 => touch(&mut self.state.lists, place),
            4 => touch(&mut self.usage, place),
            _ => Ok(()),
        }
    }

    /// Compresses committed contents where that takes fewer blocks of the device. What units have spilled is young.
    pub(crate) fn pack(&mut self, alive: &mut [Alive]) {
        let (unit, full) = (self.shape.unit_bytes(), self.shape.block_units());
        for alive in alive.iter_mut().filter(|alive| alive.run.len == full) {
            if let (Owner::Committed(..), Some(bytes)) = (alive.owner, packed(&alive.bytes, unit)) {
                self.log.counters.packed_bytes += to_u64(alive.bytes.len() - bytes.len());
                alive.run.len = u32::try_from(bytes.len() / unit).expect("it is less than a block");
                alive.run.sum = crc32c::crc32c(&bytes);
                alive.bytes = bytes;
            }
        }
    }

    /// Writes contents to where what is cold goes.
    fn move_all(&mut self, mut alive: Vec<Alive>, age: u64) -> Result<()> {
        while !alive.is_empty() {
            let (open, _) = self.room_beside(Beside::Cold)?;
            let later = alive.split_off(self.fitting(open, &alive));
            self.move_to(alive, age)?;
            alive = later;
        }
        Ok(())
    }

    /// How many of some contents fit one piece there, where there is room for a block.
    fn fitting(&self, open: Cold, alive: &[Alive]) -> usize {
        let left = u64::from(self.shape.segment_units - open.offset);
        let mut units = 0;
        let fits = |(at, alive): &(usize, &Alive)| {
            units += u64::from(alive.run.len);
            to_u64(summary_blocks(at + 1, 0, self.shape.unit_bytes())) + units <= left
        };
        alive.iter().enumerate().take_while(fits).count()
    }

    /// Where something can be written beside the log, and how many blocks of contents.
    pub(crate) fn room_beside(&mut self, what: Beside) -> Result<(Cold, usize)> {
        loop {
            let found = match self.beside(what) {
                Some(open) => *open,
                None => {
                    self.log.begins_segment();
                    let segment = self.segments.take()?;
                    // What the cleaner writes was packed where it could be.
                    if what == Beside::Cold {
                        self.segments.packed.insert(segment);
                    }
                    Cold { segment, offset: 0 }
                }
            };
            *self.beside(what) = Some(found);
            let left = self.shape.segment_units - found.offset;
            let mut room = to_usize(left / self.shape.block_units());
            let needs = |room: usize| to_u64(summary_blocks(room, 0, self.shape.unit_bytes()));
            let units = u64::from(self.shape.block_units());
            while room > 0 && needs(room) + to_u64(room) * units > u64::from(left) {
                room -= 1;
            }
            if room > 0 {
                return Ok((found, room));
            }
            *self.beside(what) = None;
        }
    }

    fn beside(&mut self, what: Beside) -> &mut Option<Cold> {
        match what {
            Beside::Cold => &mut self.cold,
            Beside::Spilled => &mut self.spill_to,
        }
    }

    /// Writes contents for which there is room. Returns where they begin.
    pub(crate) fn write_beside(
        &mut self,
        what: Beside,
        descriptors: &[Descriptor],
        data: Vec<(DataKind, Contents)>,
    ) -> Result<u64> {
        let open = self.beside(what).expect("there is room");
        let first = self.shape.segment_start(open.segment) + u64::from(open.offset);
        let (place, len) = self.log.queue_beside(first, descriptors, data);
        // Nobody reads these from the queue.
        let written = self.log.write_queue();
        self.noted(written)?;
        *self.beside(what) = Some(Cold { offset: open.offset + len, ..open });
        Ok(place)
    }

    fn move_to(&mut self, alive: Vec<Alive>, age: u64) -> Result<()> {
        let full = self.shape.block_units();
        let descriptor = |alive: &Alive| Descriptor {
            kind: match alive.owner {
                Owner::Unit(_) => DataKind::Spilled,
                Owner::Committed(..) if alive.run.len < full => DataKind::Packed,
                Owner::Committed(..) => DataKind::Block,
            },
            owner: alive.block,
            len: alive.run.len,
            sum: alive.run.sum,
        };
        let descriptors: Vec<Descriptor> = alive.iter().map(descriptor).collect();
        let owners: Vec<_> = alive.iter().map(|alive| (alive.block, alive.run, alive.owner)).collect();
        let data = alive.into_iter().map(|alive| (DataKind::Block, alive.bytes.into())).collect();
        let mut place = self.write_beside(Beside::Cold, &descriptors, data)?;
        self.segments.aged(place, age);
        for (block, run, owner) in owners {
            match owner {
                Owner::Committed(..) => {
                    self.state.set_place(block, (place, run.len, run.sum), &mut self.segments)?;
                }
                Owner::Unit(unit) => self.set_spilled(unit, block, Run { place, ..run }),
            }
            self.log.counters.moved_bytes += u64::from(run.len) * u64::from(self.shape.unit);
            place += u64::from(run.len);
        }
        Ok(())
    }
}

fn touch<K: Fixed + Ord, V: Fixed>(table: &mut Table<K, V>, place: Place) -> Result<()> {
    let key = table.pages.first_key(place)?;
    table.tree.touch(key.as_ref(), place, &table.pages).map(drop)
}
