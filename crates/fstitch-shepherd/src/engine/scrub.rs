//! Everything that the maps speak of is read and compared, and mended where it can be.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, BlockWrite, IoOp, Result};

use super::{Health, Shepherd, State, Trouble, run_of};
use crate::map::Found;
use crate::map::sums::sum_of;
use crate::policy::{Direction, Kind};

/// Blocks of a piece, which is read while another is compared.
const PIECE: u64 = 512;

/// A piece that will be compared.
enum Ahead<'scope> {
    Reading(ScopedJoinHandle<'scope, Piece>),
    Read(Piece),
}

impl Ahead<'_> {
    /// When it is read.
    fn wait(self) -> Piece {
        match self {
            Self::Reading(reader) => reader.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Self::Read(piece) => piece,
        }
    }
}

/// What a scrub of some blocks has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Blocks that have sums or copies.
    pub blocks: u64,
    /// Blocks that were read, copies included.
    pub read: u64,
    /// Homes that could not be read or were not what was written, and have their contents again.
    pub restored: Vec<BlockNo>,
    /// The same, which cannot be written: their copies are read until they can.
    pub not_restored: Vec<BlockNo>,
    /// Copies that were lost or not what they should be, and were written again.
    pub copies_written: u64,
    /// Blocks of which nothing is left that is right.
    pub lost: Vec<BlockNo>,
    /// Blocks that are on fewer disks than they should be, because a disk is out or not rebuilt yet.
    pub degraded: u64,
    /// Blocks that have no sum, and a copy that is another than their home: nobody can know which one is right.
    pub differing: Vec<BlockNo>,
}

impl Scrubbed {
    /// Adds what was found elsewhere.
    pub fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.read += other.read;
        self.restored.extend(other.restored);
        self.not_restored.extend(other.not_restored);
        self.copies_written += other.copies_written;
        self.lost.extend(other.lost);
        self.degraded += other.degraded;
        self.differing.extend(other.differing);
    }

    /// Whether all is as it should be, or is again.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.differing.is_empty() && self.not_restored.is_empty()
    }
}

/// A block that the maps speak of.
struct Kept {
    block: BlockNo,
    sum: u32,
    spares: Vec<u64>,
    /// Of its spares those on disks that can be asked.
    served: Vec<u64>,
}

impl Kept {
    /// Whether all of its copies can be asked for.
    fn is_whole(&self) -> bool {
        self.served.len() == self.spares.len()
    }
}

/// What was read of a block: its home, and its copies as far as they are served.
struct Seen<'f> {
    home: Option<&'f [u8]>,
    copies: Vec<Option<&'f [u8]>>,
}

/// Blocks that are read together, and what was read.
struct Piece {
    kept: Vec<Kept>,
    /// The groups of parity that begin in it, and where their parity is.
    groups: Vec<(u64, BlockNo)>,
    /// Homes, then the copies of each, then parities.
    found: Found,
    read: u64,
}

/// What of a piece may not be what it should be.
struct Suspects<'p> {
    /// Blocks that are not right, or of whose copies one that can be asked for is not.
    blocks: Vec<(&'p Kept, Seen<'p>)>,
    /// Groups whose parity is not, or of other blocks.
    groups: Vec<(u64, BlockNo)>,
}

impl Piece {
    /// All blocks of it with what was read of them.
    fn seen(&self) -> impl Iterator<Item = (&Kept, Seen<'_>)> {
        let mut next = self.kept.len();
        self.kept.iter().enumerate().map(move |(no, kept)| {
            let copies = (next..next + kept.served.len()).map(|no| self.found.of(no)).collect();
            next += kept.served.len();
            (kept, Seen { home: self.found.of(no), copies })
        })
    }

    /// What was read at the home of a block.
    fn home(&self, block: BlockNo) -> Option<&[u8]> {
        let no = self.kept.binary_search_by_key(&block, |kept| kept.block).ok()?;
        self.found.of(no)
    }

    /// Whether a group that begins in it has parity.
    fn has_parity(&self, group: u64) -> bool {
        self.groups.binary_search_by_key(&group, |(group, _)| *group).is_ok()
    }

    /// The groups of it, and what was read as their parity.
    fn parities(&self) -> impl Iterator<Item = (&(u64, BlockNo), Option<&[u8]>)> {
        let first = to_usize(self.read) - self.groups.len();
        self.groups.iter().enumerate().map(move |(no, group)| (group, self.found.of(first + no)))
    }
}

impl Shepherd {
    /// Blocks that a scrub is best asked for: fewer leave the disk idle between requests, more have writes wait.
    pub const SCRUBBED_AT_ONCE: u64 = 2048;

    /// Blocks of the volume.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.area.shape.volume
    }

    /// Looks at `count` blocks from `from` on: their homes, and all copies. Writes wait meanwhile, so it is asked for little at a time.
    /// `kind` says what blocks hold, for the counters.
    ///
    /// # Errors
    /// When the maps cannot be written.
    pub fn scrub(&self, from: BlockNo, count: u64, kind: &dyn Fn(BlockNo) -> BlockKind) -> Result<Scrubbed> {
        let _nobody_writes = self.gate.write().unpoisoned();
        let end = from.get().saturating_add(count).min(self.area.shape.volume);
        let mut memory = std::mem::take(&mut *self.scrubbed.lock().unpoisoned());
        let mut done = Scrubbed::default();
        let is_one = self.pieces(from.get()..end).nth(1).is_none();
        let at_once = if is_one { 1 } else { self.options.scrubbed_at_once.max(1) };
        let mut pieces = self.pieces(from.get()..end);
        std::thread::scope(|scope| {
            let mut ahead = VecDeque::new();
            loop {
                while ahead.len() < at_once
                    && let Some(range) = pieces.next()
                {
                    let memory = memory.pop();
                    let read = move || self.read_piece(range, memory);
                    ahead.push_back(if at_once == 1 {
                        Ahead::Read(read())
                    } else {
                        Ahead::Reading(scope.spawn(read))
                    });
                }
                let Some(piece) = ahead.pop_front().map(Ahead::wait) else { break };
                done.blocks += to_u64(piece.kept.len());
                done.read += piece.read;
                done.degraded += to_u64(piece.kept.iter().filter(|kept| !kept.is_whole()).count());
                let suspects = self.compare(&piece);
                if !suspects.blocks.is_empty() || !suspects.groups.is_empty() {
                    // Nothing is on its way when something is mended.
                    ahead = ahead.into_iter().map(|ahead| Ahead::Read(ahead.wait())).collect();
                }
                for (kept, seen) in suspects.blocks {
                    self.scrub_one(kept, &seen, kind, &mut done);
                }
                done.copies_written += self.scrub_parity(&suspects.groups);
                done.copies_written += self.take_in_parity(&self.bare(&piece, kind));
                memory.push(piece.found.into_memory());
            }
        });
        if end < self.area.shape.volume {
            *self.scrubbed.lock().unpoisoned() = memory;
        }
        let mut state = self.state();
        if state.owners.has_news() {
            self.tell_owners(&mut state)?;
        }
        Ok(done)
    }

    /// A range in pieces that begin where groups do, the first perhaps not.
    fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let unit = PIECE.next_multiple_of(self.group.max(1));
        let first = range.start / unit * unit;
        (first..range.end)
            .step_by(to_usize(unit))
            .map(move |start| start.max(range.start)..(start + unit).min(range.end))
    }

    /// Reads all that is kept of some blocks, in one request.
    fn read_piece(&self, range: Range<u64>, memory: Option<BlockBuf>) -> Piece {
        let groups = self.parity_of(&range);
        let mut kept = Vec::with_capacity(to_usize(range.end - range.start));
        {
            let mut guard = self.state();
            let state = &mut *guard;
            let blocks = range.map(BlockNo).filter(|block| !self.owns(*block));
            kept.extend(blocks.filter_map(|block| self.kept(state, block)));
        }
        let served: usize = kept.iter().map(|kept| kept.served.len()).sum();
        let mut all = Vec::with_capacity(kept.len() + served + groups.len());
        all.extend(kept.iter().map(|kept| kept.block));
        all.extend(kept.iter().flat_map(|kept| kept.served.iter().map(|spare| self.area.spare(*spare))));
        all.extend(groups.iter().map(|(_, at)| *at));
        let found = self.area.read_many(&all, BlockKind::Data, memory);
        Piece { kept, groups, found, read: to_u64(all.len()) }
    }

    /// What of a piece is not seen to be right.
    fn compare<'p>(&self, piece: &'p Piece) -> Suspects<'p> {
        let is_right = |kept: &Kept, seen: &Seen<'_>| {
            let Some(home) = seen.home else { return false };
            self.fits(kept, home) && seen.copies.iter().all(|copy| *copy == Some(home))
        };
        let blocks: Vec<_> = piece.seen().filter(|(kept, seen)| !is_right(kept, seen)).collect();
        let known = |block| if blocks.is_empty() { piece.home(block) } else { None };
        let is_unequal = |group: u64, parity: Option<&[u8]>| {
            parity.is_none_or(|parity| !self.is_parity(group, parity, &known))
        };
        let unequal = piece.parities().filter(|(group, parity)| is_unequal(group.0, *parity));
        let groups = unequal.map(|(group, _)| *group).collect();
        Suspects { blocks, groups }
    }

    /// Of the groups of a piece that have no parity, those of which a block asks for it: a block of each. They lost it when one of them could
    /// not be written, or there was no room.
    fn bare(&self, piece: &Piece, kind: &dyn Fn(BlockNo) -> BlockKind) -> Vec<BlockNo> {
        if self.group == 0 {
            return Vec::new();
        }
        let asks =
            |kept: &Kept| kept.sum != 0 && self.chain(kind(kept.block), Direction::Write).keeps_parity();
        let groups = piece.kept.chunk_by(|one, next| self.group_of(one.block) == self.group_of(next.block));
        let has_none = |group: &&[Kept]| !piece.has_parity(self.group_of(group[0].block));
        groups
            .filter(has_none)
            .filter_map(|group| group.iter().find(|kept| asks(kept)))
            .map(|kept| kept.block)
            .collect()
    }

    /// Whether something is what was written as a block, as far as its sum says.
    fn fits(&self, kept: &Kept, data: &[u8]) -> bool {
        kept.sum == 0 || kept.sum == sum_of(&self.area.uuid, kept.block, data)
    }

    /// A block that the maps speak of.
    fn kept(&self, state: &mut State, block: BlockNo) -> Option<Kept> {
        let sum = if self.has_sums(state) { state.sums.get(&self.area, block) } else { 0 };
        let spares = state.owners.of(block).to_vec();
        let is_kept =
            sum != 0 || !spares.is_empty() || self.area.device.has(block) || self.has_parity(state, block);
        let served = spares.iter().copied().filter(|spare| self.serves(self.area.spare(*spare))).collect();
        is_kept.then_some(Kept { block, sum, spares, served })
    }

    fn scrub_one(
        &self,
        kept: &Kept,
        seen: &Seen<'_>,
        kind: &dyn Fn(BlockNo) -> BlockKind,
        done: &mut Scrubbed,
    ) {
        let fits = |data: &[u8]| self.fits(kept, data);
        let Seen { home, copies } = seen;
        let computed;
        let right = match home {
            Some(data) if fits(data) => data,
            _ => {
                let kind = kind(kept.block);
                let is_here = self.serves(kept.block);
                if is_here {
                    let trouble = if home.is_none() { Trouble::Read } else { Trouble::Sum };
                    self.count(kind, trouble, 1);
                }
                computed = self.computed_by_parity(kept.block);
                let others = copies.iter().copied().chain([computed.as_deref()]);
                let Some(copy) = others.flatten().find(|copy| fits(copy)) else {
                    done.lost.push(kept.block);
                    return;
                };
                if !is_here {
                    // Its successor will have it.
                    done.degraded += 1;
                    return;
                }
                self.count(kind, Trouble::CopyRead, 1);
                if self.restore(kept.block, copy) {
                    self.count(kind, Trouble::Renewed, 1);
                    done.restored.push(kept.block);
                } else {
                    self.count(kind, Trouble::NotRenewed, 1);
                    done.not_restored.push(kept.block);
                }
                copy
            }
        };
        let is_right = |copy: &Option<&[u8]>| copy.as_ref().is_some_and(|copy| *copy == right);
        let read = kept.served.iter().zip(copies);
        let wrong: Vec<u64> = read.filter(|(_, copy)| !is_right(copy)).map(|(spare, _)| *spare).collect();
        if wrong.is_empty() {
            return;
        }
        if kept.sum == 0 && copies.iter().flatten().any(|copy| *copy != right) {
            // Nothing is copied over another copy unless it was compared with its sum [S5].
            done.differing.push(kept.block);
            return;
        }
        self.rewrite_copies(kept, &wrong, right, kind(kept.block), done);
    }

    /// Writes copies again, and counts those that find no place.
    fn rewrite_copies(&self, kept: &Kept, wrong: &[u64], right: &[u8], kind: BlockKind, done: &mut Scrubbed) {
        let mut state = self.state();
        for spare in wrong {
            if self.rewrite_copy(&mut state, kept.block, *spare, right) {
                done.copies_written += 1;
            } else {
                self.count(kind, Trouble::CopyLost, 1);
            }
        }
    }

    /// Writes a copy again, to another spare where that fails; whether it is there. The maps are not told yet.
    pub(super) fn rewrite_copy(&self, state: &mut State, block: BlockNo, spare: u64, right: &[u8]) -> bool {
        let at = self.area.spare(spare);
        if self.area.write_each(&[at], &[right]).is_empty() {
            return true;
        }
        state.owners.give_up(&self.area, block, spare);
        let Some(other) = self.give_like(state, block, at) else { return false };
        if self.area.write_each(&[self.area.spare(other)], &[right]).is_empty() {
            state.owners.holds(&self.area, block, other);
            return true;
        }
        state.owners.give_up(&self.area, block, other);
        false
    }

    /// Writes a home again, which has its run in doubt first; whether that worked, and what it holds then is right.
    pub(super) fn restore(&self, block: BlockNo, contents: &[u8]) -> bool {
        if self.lets(IoOp::Write, block).is_err() {
            return false;
        }
        let mut guard = self.state();
        let state = &mut *guard;
        let run = run_of(block);
        let new = std::iter::once(run).filter(|run| !state.doubt.has(*run)).collect();
        let write = BlockWrite { block, kind: BlockKind::Data, data: contents };
        let is_written = state.doubt.set(&self.area, &new).is_ok()
            && self.disk().write(&[write]).is_ok()
            && self.area.read_at(block, BlockKind::Data).is_ok_and(|now| now == contents);
        if is_written {
            state.failed.remove(&run);
        } else {
            state.failed.insert(run);
        }
        is_written
    }

    fn count(&self, kind: BlockKind, trouble: Trouble, count: u64) {
        let mut health: std::sync::MutexGuard<'_, Health> = self.health.lock().unpoisoned();
        health.add(Kind::Block(kind), trouble, count);
    }
}
