//! Several disks: where copies go, what a disk that is out has taken with it, and how its successor gets what it had.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, IoOp, Result};

use super::{Shepherd, State, Trouble};
use crate::disks::{Array, DiskState};
use crate::map::sums::{LOST, sum_of};
use crate::policy::{Kind, Place, Standing};

/// Blocks of the volume after which labels say how far a disk has been rebuilt.
const SAID_EVERY: u64 = 1 << 14;

/// A step of rebuilding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rebuilt {
    /// Which disk.
    pub disk: usize,
    /// Blocks of the volume before this one are done.
    pub next: u64,
    /// Blocks that were written to the disk.
    pub written: u64,
    /// Blocks of which the old disk had the only one, or the only good one.
    pub lost: Vec<BlockNo>,
    /// Blocks that the new disk does not take.
    pub failed: u64,
}

/// Sets of disks, as bits, that alone have something which was written since the last flush; with the number of the last such write.
#[derive(Clone, Debug, Default)]
pub(super) struct Bare {
    sets: BTreeMap<u16, u64>,
    writes: u64,
}

/// A block of which the disk that is rebuilt has something.
struct Wanted {
    block: BlockNo,
    sum: u32,
    /// The disk is to have it at this place.
    home: Option<BlockNo>,
    /// And copies in these spares.
    spares: Vec<u64>,
    /// Where it may be read.
    sources: Vec<BlockNo>,
}

impl Shepherd {
    fn array(&self) -> Option<&Arc<Array>> {
        self.options.disks.as_ref()
    }

    /// The disks, if the volume is on several.
    #[must_use]
    pub fn disks(&self) -> Option<&Arc<Array>> {
        self.array()
    }

    /// Whether what is at home of a block, or where it was moved to, can be asked for.
    pub(super) fn serves(&self, block: BlockNo) -> bool {
        self.array().is_none_or(|array| array.serves(self.area.device.place(block)))
    }

    /// Whether a block that was just written is kept by a disk from which it can be read: its own, or one with a copy [D2].
    pub(super) fn reaches(&self, state: &State, array: &Array, block: BlockNo) -> bool {
        array.serves(self.area.device.place(block))
            || state.owners.of(block).iter().any(|spare| array.serves(self.area.spare(*spare)))
    }

    /// The error of a block whose disk is out and that has no copy elsewhere.
    fn unreached(block: BlockNo) -> Error {
        let reason = std::io::Error::other("its disk is out, and no other one has a copy");
        Error::io(IoOp::Write, block, reason)
    }

    /// Whether blocks that were written just now are kept by a disk: the first that is not.
    pub(super) fn kept_by_a_disk(&self, write: &BlockWrite<'_>) -> Result<()> {
        let Some(array) = self.array().filter(|array| array.is_degraded()) else { return Ok(()) };
        if self.reaches(&self.state(), array, write.block) {
            Ok(())
        } else {
            Err(Self::unreached(write.block))
        }
    }

    /// Notes which disks have what was written just now, until it is flushed.
    pub(super) fn note_bare(&self, state: &State, writes: &[BlockWrite<'_>]) {
        let Some(array) = self.array() else { return };
        let mut bare = self.bare.lock().unpoisoned();
        bare.writes += 1;
        let number = bare.writes;
        for write in writes {
            let copies = state.owners.of(write.block).iter().map(|spare| self.area.spare(*spare));
            let places = std::iter::once(self.area.device.place(write.block)).chain(copies);
            let having = array.having(places);
            // Of what no disk has, the write says so.
            if having != 0 {
                bare.sets.insert(having, number);
            }
        }
    }

    /// After a flush, whether all disks have gone out that had something written `before` it. Later writes are the next one's.
    pub(super) fn lost_with_disks(&self, before: &Bare) -> Result<()> {
        let Some(array) = self.array() else { return Ok(()) };
        let taking = array.all_taking();
        self.bare.lock().unpoisoned().sets.retain(|_, number| *number > before.writes);
        if before.sets.keys().all(|disks| disks & taking != 0) {
            return Ok(());
        }
        let reason = "a disk of the array has failed, with blocks that no other one has";
        Err(Error::io(IoOp::Flush, BlockNo(0), std::io::Error::other(reason)))
    }

    /// A disk's successor has nothing of what was written before.
    fn bare_without(&self, disk: usize) {
        let mut bare = self.bare.lock().unpoisoned();
        for (disks, number) in std::mem::take(&mut bare.sets) {
            let left = bare.sets.entry(disks & !(1 << disk)).or_default();
            *left = number.max(*left);
        }
    }

    /// Reads a block whose disk is out from a copy; whether that is so, and the copy was believed.
    pub(super) fn read_elsewhere(&self, read: &mut BlockRead<'_>) -> bool {
        !self.serves(read.block) && self.read_copy(read)
    }

    /// Reads a batch from the copies on one other disk, if that has less to do than the blocks' own; whether it did, and all are believed.
    pub(super) fn read_idler(&self, reads: &mut [BlockRead<'_>]) -> bool {
        let Some(array) = self.array() else { return false };
        let Some(own) = array.disk_of(self.area.device.place(reads[0].block)) else { return false };
        if array.busy(own) == 0 {
            return false;
        }
        let Some(at) = self.idler_places(array, own, reads) else { return false };
        let moved = reads.iter_mut().zip(at);
        let mut moved: Vec<BlockRead<'_>> =
            moved.map(|(read, block)| BlockRead { block, kind: read.kind, data: &mut *read.data }).collect();
        self.disk().read(&mut moved).is_ok() && reads.iter().all(|read| self.believe(read, Ok(())).is_ok())
    }

    /// The copies of blocks on an idler disk; `None` if a block has none there, or is under way.
    fn idler_places(&self, array: &Array, own: usize, reads: &[BlockRead<'_>]) -> Option<Vec<BlockNo>> {
        let state = self.state();
        let mut other = None;
        reads
            .iter()
            .map(|read| {
                if state.doubt.has(super::run_of(read.block)) {
                    return None;
                }
                let places = state.owners.of(read.block).iter().map(|spare| self.area.spare(*spare));
                places.into_iter().find(|at| {
                    let Some(disk) = array.disk_of(*at) else { return false };
                    let is_idler = disk != own && array.serves(*at) && array.busy(disk) < array.busy(own);
                    is_idler && *other.get_or_insert(disk) == disk
                })
            })
            .collect()
    }

    /// Gives a block a copy as a step asks for it; whether there was room.
    pub(super) fn give_copy(&self, state: &mut State, block: BlockNo, standing: Standing) -> bool {
        let Some(array) = self.array() else {
            let wish = match standing {
                Standing::Mirror { place: Place::Far, .. } => {
                    BlockNo((block.get() + state.head.volume / 2) % state.head.volume.max(1))
                }
                _ => block,
            };
            return state.owners.give(&self.area, block, wish).is_some();
        };
        let own = array.disk_of(self.area.device.place(block));
        let found = match (standing, own) {
            (Standing::Mirror { place: place @ (Place::Near | Place::Far), .. }, Some(own)) => {
                let (range, near) = array.spares_for(block, own);
                let half = (range.end.get() - range.start.get()) / 2;
                let far =
                    BlockNo(range.start.get() + (near.get() - range.start.get() + half) % (2 * half).max(1));
                let wish = if place == Place::Near { near } else { far };
                let found = state.owners.pick_in(&self.area, &range, wish);
                found.or_else(|| self.pick_elsewhere(state, array, block, own))
            }
            (_, own) => self.pick_elsewhere(state, array, block, own),
        };
        if let Some(spare) = found {
            state.owners.copy_to(block, spare);
        }
        found.is_some()
    }

    /// A spare on a disk that has nothing of a block: on the next one that takes writes, else on one that is out, whose successor will have it.
    fn pick_elsewhere(
        &self,
        state: &mut State,
        array: &Array,
        block: BlockNo,
        own: impl Into<Option<usize>>,
    ) -> Option<u64> {
        let own = own.into();
        let has: Vec<usize> = state
            .owners
            .of(block)
            .iter()
            .filter_map(|spare| array.disk_of(self.area.spare(*spare)))
            .chain(own)
            .collect();
        let next = own.map_or(0, |own| own + 1);
        let others: Vec<usize> = (0..array.disks())
            .map(|at| (next + at) % array.disks())
            .filter(|disk| !has.contains(disk))
            .collect();
        [true, false].into_iter().find_map(|takes| {
            let those = others.iter().filter(|disk| array.takes_disk(**disk) == takes);
            those.into_iter().find_map(|disk| {
                let (range, wish) = array.spares_for(block, *disk);
                state.owners.pick_in(&self.area, &range, wish)
            })
        })
    }

    /// A copy from which a block can be read that would be nowhere else: its disk is being rebuilt and has not come to it, or its copies are
    /// on such a disk. It is there until the disk is whole.
    pub(super) fn give_a_served_copy(&self, state: &mut State, block: BlockNo) {
        let Some(array) = self.array().filter(|array| array.is_degraded()) else { return };
        let at = self.area.device.place(block);
        let has_any = array.takes(at) || !state.owners.of(block).is_empty();
        if has_any && !self.reaches(state, array, block) {
            let own = array.disk_of(at);
            let found = self.pick_elsewhere(state, array, block, own);
            if let Some(spare) = found {
                state.owners.copy_to(block, spare);
            }
        }
    }

    /// Which of a block's copies is one too many; `None` while it could be read from nowhere else.
    pub(super) fn one_too_many(&self, state: &State, block: BlockNo) -> Option<u64> {
        let copies = state.owners.of(block);
        let Some(array) = self.array().filter(|array| array.is_degraded()) else {
            return copies.last().copied();
        };
        let serves = |spare: &u64| array.serves(self.area.spare(*spare));
        if let Some(away) = copies.iter().rev().find(|spare| !serves(spare)) {
            return Some(*away);
        }
        let is_enough = copies.len() > 1 || array.serves(self.area.device.place(block));
        copies.last().copied().filter(|_| is_enough)
    }

    /// Another spare for a copy, in place of one that cannot be written.
    pub(super) fn give_like(&self, state: &mut State, block: BlockNo, bad: BlockNo) -> Option<u64> {
        self.pick_or_wait(state, |this, state| this.give_like_now(state, block, bad))
    }

    fn give_like_now(&self, state: &mut State, block: BlockNo, bad: BlockNo) -> Option<u64> {
        let Some(array) = self.array() else { return state.owners.give(&self.area, block, bad) };
        let own = array.disk_of(self.area.device.place(block));
        let same = array.disk_of(bad).filter(|disk| array.takes_disk(*disk));
        let on_the_same = same.and_then(|disk| {
            let (range, _) = array.spares_for(block, disk);
            state.owners.pick_in(&self.area, &range, bad)
        });
        let spare = on_the_same.or_else(|| self.pick_elsewhere(state, array, block, own))?;
        state.owners.copy_to(block, spare);
        Some(spare)
    }

    /// A spare for a block that is moved: on its own disk, else on one without a copy, else on any that takes writes.
    pub(super) fn pick_for_move(&self, state: &mut State, block: BlockNo) -> Option<u64> {
        let Some(array) = self.array() else { return state.owners.pick(&self.area, block) };
        let own = array.disk_of(block);
        let copies: Vec<Option<usize>> =
            state.owners.of(block).iter().map(|spare| array.disk_of(self.area.spare(*spare))).collect();
        let mut disks: Vec<usize> = (0..array.disks()).filter(|disk| array.takes_disk(*disk)).collect();
        disks.sort_by_key(|disk| (own != Some(*disk), copies.contains(&Some(*disk))));
        disks.into_iter().find_map(|disk| {
            let (range, wish) = array.spares_for(block, disk);
            state.owners.pick_in(&self.area, &range, wish)
        })
    }

    /// Whether a spare is on a disk that takes writes.
    pub(super) fn spare_takes(&self, spare: u64) -> bool {
        self.array().is_none_or(|array| array.takes(self.area.spare(spare)))
    }

    /// Whether nothing is left of a block [D4].
    pub(super) fn is_lost(&self, block: BlockNo) -> bool {
        if self.options.disks.is_none() {
            return false;
        }
        self.is_marked(&mut self.state(), block)
    }

    /// Blocks that are about to be written are not lost any more. The mark goes when they are stable: before, a crash would leave what the
    /// successor happened to hold; later, what was promised would be called lost.
    pub(super) fn find_again(&self, state: &mut State, writes: &[BlockWrite<'_>]) -> Result<()> {
        if state.head.lost == 0 {
            return Ok(());
        }
        let lost: Vec<BlockWrite<'_>> =
            writes.iter().copied().filter(|write| self.is_marked(state, write.block)).collect();
        if lost.is_empty() {
            return Ok(());
        }
        // Where one fails the write itself will, and is answered by its chain; nothing is there yet.
        let written = lost.iter().filter(|write| self.disk().write(std::slice::from_ref(write)).is_ok());
        let written: Vec<BlockNo> = written.map(|write| write.block).collect();
        if written.is_empty() {
            return Ok(());
        }
        self.disk().flush()?;
        self.no_longer_lost(state, &written)
    }

    /// Blocks that hold something again, stably.
    fn no_longer_lost(&self, state: &mut State, blocks: &[BlockNo]) -> Result<()> {
        for block in blocks {
            self.take_mark(state, *block);
        }
        let writes = state.sums.next_writes();
        self.write_maps(state, &writes)?;
        state.sums.written();
        self.count_marks(state);
        Ok(())
    }

    /// A block has no sum any more, and is not marked as lost.
    pub(super) fn take_mark(&self, state: &mut State, block: BlockNo) {
        state.marks_taken += u32::from(self.is_marked(state, block));
        state.sums.set(&self.area, block, 0);
    }

    /// Marks that are stably gone are not counted any more. Never before: who finds a count of none looks for no marks.
    pub(super) fn count_marks(&self, state: &mut State) {
        state.head.lost = state.head.lost.saturating_sub(std::mem::take(&mut state.marks_taken));
    }

    /// A block that is in a spare now, stably, is not lost.
    pub(super) fn found_in_a_spare(&self, state: &mut State, block: BlockNo) -> Result<()> {
        if self.is_marked(state, block) { self.no_longer_lost(state, &[block]) } else { Ok(()) }
    }

    /// Whether a block is marked as lost.
    pub(super) fn is_marked(&self, state: &mut State, block: BlockNo) -> bool {
        state.head.lost > 0
            && block.get() < self.area.shape.volume
            && state.sums.get(&self.area, block) == LOST
    }

    /// Puts a disk out that somebody is about to replace.
    ///
    /// # Errors
    /// `Unsupported` if the volume is not on several disks, or no whole one would be left.
    pub fn put_disk_out(&self, disk: usize) -> Result<()> {
        let array = self.array().filter(|array| disk < array.disks());
        let array =
            array.ok_or_else(|| Error::Unsupported(format!("putting out disk {disk} of the volume")))?;
        if array.put_out(disk) {
            return Ok(());
        }
        Err(Error::Unsupported(format!("putting out disk {disk}, the last one that is whole")))
    }

    /// Gives a disk that is out a successor, of another name than any in the array. It is to be rebuilt.
    ///
    /// # Errors
    /// `Unsupported` if it is not out, or the new one is too small; when the new one fails.
    pub fn replace_disk(&self, disk: usize, device: &Arc<dyn BlockDevice>, uuid: [u8; 16]) -> Result<()> {
        self.succeed(disk, device, uuid, None)
    }

    /// Gives a disk that is out a hot spare as its successor; which disk.
    ///
    /// # Errors
    /// As [`Shepherd::replace_disk`].
    pub fn take_hot(&self) -> Result<Option<usize>> {
        let Some(array) = self.array() else { return Ok(None) };
        let is_out = |disk: &usize| matches!(array.state(*disk), DiskState::Out { .. });
        let (Some(disk), Some((hot, device, uuid))) = ((0..array.disks()).find(is_out), array.hot()) else {
            return Ok(None);
        };
        self.succeed(disk, &device, uuid, Some(hot))?;
        Ok(Some(disk))
    }

    fn succeed(
        &self,
        disk: usize,
        device: &Arc<dyn BlockDevice>,
        uuid: [u8; 16],
        hot: Option<usize>,
    ) -> Result<()> {
        let array = self.array().filter(|array| disk < array.disks());
        let array =
            array.ok_or_else(|| Error::Unsupported(format!("replacing disk {disk} of the volume")))?;
        let _nobody_writes = self.gate.write().unpoisoned();
        let mut state = self.state();
        array.replace(disk, device, uuid, hot)?;
        self.bare_without(disk);
        let (range, _) = array.spares_for(BlockNo(0), disk);
        state.owners.forgive(&self.area, &range);
        if state.owners.has_news() {
            self.tell_owners(&mut state)?;
        }
        Ok(())
    }

    /// Rebuilds `count` blocks of the volume for a disk that was replaced; `None` if there is none. Writes wait meanwhile.
    ///
    /// # Errors
    /// When maps or labels cannot be written.
    pub fn rebuild(&self, count: u64) -> Result<Option<Rebuilt>> {
        let Some(array) = self.array() else { return Ok(None) };
        let _nobody_writes = self.gate.write().unpoisoned();
        let next_of = |disk: usize| match array.state(disk) {
            DiskState::Rebuilding { next } => Some((disk, next)),
            _ => None,
        };
        let Some((disk, next)) = (0..array.disks()).find_map(next_of) else { return Ok(None) };
        let end = next.saturating_add(count).min(array.volume());
        let mut done = Rebuilt { disk, next: end, ..Rebuilt::default() };
        let mut state = self.state();
        let wanted: Vec<Wanted> = (next..end)
            .map(BlockNo)
            .filter_map(|block| self.wanted(&mut state, array, disk, block))
            .collect();
        self.rebuild_blocks(&mut state, &wanted, &mut done);
        if state.owners.has_news() {
            self.tell_owners(&mut state)?;
        }
        drop(state);
        if matches!(array.state(disk), DiskState::Out { .. }) {
            return Ok(Some(Rebuilt { next, ..done }));
        }
        let is_done = end >= array.volume();
        let is_said = is_done || end / SAID_EVERY != next / SAID_EVERY;
        if is_said {
            // What is lost is marked before the disk may be read there.
            self.settle_alone()?;
        }
        let to = if is_done { DiskState::Whole } else { DiskState::Rebuilding { next: end } };
        array.rebuilt(disk, to, is_said)?;
        Ok(Some(done))
    }

    fn wanted(&self, state: &mut State, array: &Array, disk: usize, block: BlockNo) -> Option<Wanted> {
        let at = self.area.device.place(block);
        let is_home = array.disk_of(at) == Some(disk);
        let copies = state.owners.of(block).iter().map(|spare| (*spare, self.area.spare(*spare)));
        let (spares, others): (Vec<_>, Vec<_>) = copies.partition(|(_, at)| array.disk_of(*at) == Some(disk));
        if !is_home && spares.is_empty() {
            return None;
        }
        let home = (!is_home).then_some(at);
        let sources = home.into_iter().chain(others.into_iter().map(|(_, at)| at));
        Some(Wanted {
            block,
            sum: state.sums.get(&self.area, block),
            home: is_home.then_some(at),
            spares: spares.into_iter().map(|(spare, _)| spare).collect(),
            sources: sources.filter(|at| array.serves(*at)).collect(),
        })
    }

    fn rebuild_blocks(&self, state: &mut State, wanted: &[Wanted], done: &mut Rebuilt) {
        let firsts: Vec<BlockNo> =
            wanted.iter().filter_map(|wanted| wanted.sources.first().copied()).collect();
        let mut firsts = self.area.read_each(&firsts, BlockKind::Data).into_iter();
        let mut at: Vec<BlockNo> = Vec::new();
        let mut of: Vec<(usize, Option<u64>)> = Vec::new();
        let mut contents: Vec<Vec<u8>> = Vec::new();
        for (no, wanted) in wanted.iter().enumerate() {
            let first = if wanted.sources.is_empty() { None } else { firsts.next().flatten() };
            let Some(right) = self.right(wanted, first) else {
                self.lose(state, wanted, done);
                continue;
            };
            let places = wanted.home.iter().map(|at| (*at, None));
            let copies = wanted.spares.iter().map(|spare| (self.area.spare(*spare), Some(*spare)));
            for (place, spare) in places.chain(copies) {
                at.push(place);
                of.push((no, spare));
                contents.push(right.clone());
            }
        }
        let failed = self.area.write_each(&at, &contents);
        done.written += to_u64(at.len() - failed.len());
        done.failed += to_u64(failed.len());
        for no in failed {
            let (wanted, spare) = (&wanted[of[no].0], of[no].1);
            match (spare, self.array()) {
                (Some(spare), _) => self.replace_spare(state, (wanted.block, spare), &contents[no]),
                // Who does not take a home would be asked for it.
                (None, Some(array)) => drop(array.put_out(done.disk)),
                (None, None) => {}
            }
            self.health.lock().unpoisoned().add(Kind::Block(BlockKind::Data), Trouble::CopyLost, 1);
        }
    }

    /// What a block holds: from the first source that fits its sum.
    fn right(&self, wanted: &Wanted, first: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let fits = |data: &Vec<u8>| {
            wanted.sum == 0
                || (wanted.sum != LOST && wanted.sum == sum_of(&self.area.uuid, wanted.block, data))
        };
        first.filter(fits).or_else(|| {
            let others = wanted.sources.iter().skip(1);
            others.into_iter().find_map(|at| self.area.read_at(*at, BlockKind::Data).ok().filter(fits))
        })
    }

    /// Nothing of a block can be had: whoever asks for it is told so, until it is written again.
    fn lose(&self, state: &mut State, wanted: &Wanted, done: &mut Rebuilt) {
        for spare in &wanted.spares {
            state.owners.take(&self.area, wanted.block, *spare);
        }
        if wanted.home.is_some() {
            // It may have been lost with an earlier disk.
            state.head.lost = state.head.lost.saturating_add(u32::from(wanted.sum != LOST));
            state.sums.set(&self.area, wanted.block, LOST);
            done.lost.push(wanted.block);
        }
    }

    /// What the head says of lost blocks, on the medium.
    pub(super) fn say_lost(&self, state: &mut State) -> Result<()> {
        if state.head.lost == state.lost_said {
            return Ok(());
        }
        self.area.write(&[state.head.next_write()])?;
        state.lost_said = state.head.lost;
        Ok(())
    }
}
