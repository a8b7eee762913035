//! Cylinder groups in use: their maps in memory, the counts that follow from these, and their locks.
//!
//! **Invariants.**
//! 1. A group's maps in memory are those of its newest contents in the cache: both change under its lock.
//! 2. What is free by number is counted from the maps. The counts that groups, summaries and superblock hold are written when the
//!    volume is left clean ([`super::using`]), and believed by nobody before that.

use std::ops::Range;

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, BlockNo, Error, Result, Structure};
use fstitch_patch::{Blocks, PatchId, PatchIds, Tx};
use smallvec::SmallVec;

use super::hashes;
use super::layout::group::Group;
use super::layout::superblock::{Superblock, Totals, hashed};
use super::volume::Ufs;
use crate::bits::bit;
use crate::num::{low32, small};
use crate::pending::Pending;

/// Bits of a byte.
const BYTE: u32 = 8;

/// All groups of a volume, read when first used.
pub(super) struct Groups(Vec<Mutex<Option<Box<State>>, rank::Group>>);

/// A group in memory.
pub(super) struct State {
    /// As it was read: where its parts are, and what it counted.
    pub(super) read: Group,
    /// Free fragments.
    free: Vec<u8>,
    /// Inodes in use.
    used: Vec<u8>,
    /// What is free, and how many inodes are directories.
    pub(super) counts: Totals,
    /// How many runs of free fragments there are, of so many fragments and one, in blocks that are used in part.
    runs: [u32; BYTE as usize],
    /// The block where a file was begun last; the first one of which something is free before that.
    pub(super) begun: u32,
    /// Where the search for inodes goes on: none before is free.
    pub(super) inode_cursor: u32,
    /// Where it does for those that are free on the medium as well, as long as so many times was purged what was freed.
    pub(super) ready_inodes: (u32, u64),
    /// No block before this one is used in part.
    part_cursor: u32,
    /// What was freed while the pointer to it may be on the medium, and the same of inodes.
    pub(super) pending: Pending,
    pub(super) pending_inodes: Pending,
    /// How many inodes have ever been written, and the patch that says so.
    pub(super) initialised: (u32, PatchId),
    /// It differs from what is on the medium, counts included.
    pub(super) is_changed: bool,
}

/// A locked group.
pub(super) struct OpenGroup<'v> {
    pub(super) no: u32,
    /// Its first fragment.
    at: u64,
    state: MutexGuard<'v, Option<Box<State>>>,
    per_block: u32,
    fragment_bits: u32,
}

/// Fragments of a group that are to be changed.
pub(super) struct Part {
    /// The first of them in the group.
    first: usize,
    blocks: Blocks,
}

/// Which of a group's maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    Fragments,
    Inodes,
}

impl Part {
    /// The newest bytes of all of them.
    pub(super) fn bytes(&self, tx: &Tx<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.blocks.iter().for_each(|block| bytes.extend_from_slice(tx.data(block)));
        bytes
    }
}

impl Groups {
    pub(super) fn new(sb: &Superblock) -> Self {
        Self(std::iter::repeat_with(Mutex::default).take(to_usize(sb.groups)).collect())
    }
}

impl Ufs {
    /// Locks a group, reading it if need be.
    pub(super) fn open_group(&self, no: u32) -> Result<OpenGroup<'_>> {
        let at = self.group_block(no)?;
        let group = &self.groups.0[to_usize(no)];
        let mut state = group.lock();
        if state.is_none() {
            // Not under the lock, for which others would wait without anybody knowing for what.
            drop(state);
            let count = u64::from(self.sb.group_size).div_ceil(u64::from(self.sb.fragment_size));
            let blocks = self.cache.read_many(&descriptor(at..at + count))?;
            state = group.lock();
            if state.is_none() {
                let mut bytes = Vec::new();
                for block in blocks {
                    bytes.extend_from_slice(&block.snapshot());
                }
                bytes.truncate(to_usize(self.sb.group_size));
                if self.sb.kept_hashes() & hashed::GROUP != 0 && !hashes::is_group_right(&self.sb, &bytes) {
                    return Err(hashes::wrong_group(no, at));
                }
                let read = State::new(Group::parse(bytes, no, BlockNo(at), &self.sb)?, &self.sb);
                self.check_own(no, &read)?;
                *state = Some(Box::new(read));
            }
        }
        let fragment_bits = self.sb.fragment_size * BYTE;
        Ok(OpenGroup { no, at, state, per_block: self.sb.fragments_per_block(), fragment_bits })
    }

    /// The fragments that have some bytes of a group: what changes them reads them first.
    pub(super) fn group_part(&self, open: &OpenGroup<'_>, bytes: Range<usize>) -> Result<Part> {
        let fragment = self.sb.fragment_len();
        let (first, end) = (bytes.start / fragment, bytes.end.div_ceil(fragment));
        let blocks = match open.at + to_u64(first) {
            at if end == first + 1 => {
                Blocks::from_iter([self.cache.read(BlockNo(at), BlockKind::GroupDescriptor)?])
            }
            at => self.cache.read_many(&descriptor(at..open.at + to_u64(end)))?,
        };
        Ok(Part { first, blocks })
    }

    /// Those that have some bits of a map.
    pub(super) fn map_part(&self, open: &OpenGroup<'_>, map: Map, (at, count): (u32, u32)) -> Result<Part> {
        let base = open.map_at(map).0;
        self.group_part(open, base + to_usize(at / BYTE)..base + to_usize((at + count).div_ceil(BYTE)))
    }

    /// Fails if something of the volume's own is called free: files would get it.
    fn check_own(&self, no: u32, read: &State) -> Result<()> {
        let sb = &self.sb;
        let (first, end) = (sb.group_first(no), sb.group_first(no) + u64::from(read.read.fragments));
        let (at, bytes) = sb.summaries;
        let summaries = at..at.saturating_add(u64::from(bytes).div_ceil(u64::from(sb.fragment_size)));
        for own in [sb.metadata_of(no), summaries] {
            let here = own.start.max(first)..own.end.min(end);
            if let Some(free) = here.into_iter().find(|&at| read.is_free(low32(at - first))) {
                let problem = format!("fragment {free}, which is metadata, is called free");
                return Err(Error::corrupt(Structure::BlockBitmap(u64::from(no)), None, problem));
            }
        }
        Ok(())
    }

    /// The groups that were changed.
    pub(super) fn changed_groups(&self) -> Vec<u32> {
        let is_changed = |state: &Mutex<Option<Box<State>>, rank::Group>| {
            state.lock().as_ref().is_some_and(|state| state.is_changed)
        };
        (0..).zip(&self.groups.0).filter(|(_, state)| is_changed(state)).map(|(no, _)| no).collect()
    }
}

impl State {
    fn new(read: Group, sb: &Superblock) -> Self {
        let len = |bits: u32| to_usize(bits.div_ceil(BYTE));
        let mut free = read.part(read.free_fragments, len(sb.group_fragments)).to_vec();
        // What is behind the end of the last group is nobody's.
        for at in read.fragments..small(free.len()) * BYTE {
            free[to_usize(at / BYTE)] &= !(1 << (at % BYTE));
        }
        let used = read.part(read.used_inodes, len(sb.group_inodes)).to_vec();
        let initialised = (read.initialised, PatchId::NONE);
        let mut state = Self {
            counts: Totals { directories: read.totals.directories, ..Totals::default() },
            runs: [0; BYTE as usize],
            read,
            free,
            used,
            begun: 0,
            inode_cursor: 0,
            ready_inodes: (0, 0),
            part_cursor: 0,
            pending: Pending::default(),
            pending_inodes: Pending::default(),
            initialised,
            is_changed: false,
        };
        let per_block = sb.fragments_per_block();
        let all = state.read.fragments.div_ceil(per_block);
        for block in 0..all {
            state.count(block, per_block, true);
        }
        state.begun = (0..all).find(|&block| state.free_in(block, per_block) != 0).unwrap_or(0);
        state.counts.inodes =
            (0..sb.group_inodes).filter(|&at| !bit(&state.used, to_usize(at))).fold(0, |n, _| n + 1);
        state
    }

    /// The fragments of a block, as many bits as it has, and which of them are free.
    pub(super) fn free_in(&self, block: u32, per_block: u32) -> u32 {
        let first = block * per_block;
        let byte = u32::from(self.free.get(to_usize(first / BYTE)).copied().unwrap_or(0));
        byte >> (first % BYTE) & ((1 << per_block) - 1)
    }

    /// Adds what is free in a block to the counts, or takes it off.
    fn count(&mut self, block: u32, per_block: u32, adds: bool) {
        let free = self.free_in(block, per_block).count_ones();
        let (blocks, fragments) = if free == per_block { (1, 0) } else { (0, u64::from(free)) };
        let change =
            |count: &mut u64, by: u64| *count = if adds { *count + by } else { count.saturating_sub(by) };
        change(&mut self.counts.blocks, blocks);
        change(&mut self.counts.fragments, fragments);
        if fragments > 0 {
            for len in runs(self.free_in(block, per_block)) {
                let count = &mut self.runs[to_usize(len - 1)];
                *count = if adds { *count + 1 } else { count.saturating_sub(1) };
            }
            self.part_cursor = self.part_cursor.min(block);
        }
    }

    /// Whether a block that is used in part has so many free fragments side by side.
    pub(super) fn has_run(&self, count: u32) -> bool {
        self.runs[to_usize(count - 1)..].iter().any(|&count| count > 0)
    }

    /// Goes on to the first block that is used in part, of so many blocks.
    pub(super) fn advance_parts(&mut self, all: u32, per_block: u32) {
        let first = self.used_in_part(self.part_cursor..all, per_block).next();
        self.part_cursor = first.unwrap_or(all);
    }

    /// The blocks among some that are neither free as a whole nor used as a whole.
    pub(super) fn used_in_part(&self, blocks: Range<u32>, per_block: u32) -> impl Iterator<Item = u32> {
        let (each, all) = (BYTE / per_block, (1 << per_block) - 1);
        let blocks = blocks.start.max(self.part_cursor)..blocks.end;
        let bytes = to_usize(blocks.start / each)..to_usize(blocks.end.div_ceil(each)).min(self.free.len());
        let mixed = bytes.filter(|&at| !matches!(self.free[at], 0 | u8::MAX));
        let within = mixed.flat_map(move |at| small(at) * each..(small(at) + 1) * each);
        within.filter(move |block| {
            let free = self.free_in(*block, per_block);
            blocks.contains(block) && free != 0 && free != all
        })
    }

    /// The first free block from `from` on, or from the group's beginning; unless `pending`, one that is known to be so on the medium.
    pub(super) fn next_whole(&self, from: u32, per_block: u32, pending: bool) -> Option<u32> {
        if self.counts.blocks == 0 {
            return None;
        }
        // A block that the volume's end cuts off is never whole.
        let whole = self.read.fragments / per_block;
        let each = BYTE / per_block;
        let among = |blocks: Range<u32>| {
            let bytes = blocks.start / each..blocks.end.div_ceil(each);
            let has_free = bytes.filter(|&at| self.free[to_usize(at)] != 0);
            has_free
                .flat_map(move |at| at * each..(at + 1) * each)
                .find(|block| blocks.contains(block) && self.is_free_block(*block, per_block, pending))
        };
        let from = from.min(whole);
        among(from..whole).or_else(|| among(0..from))
    }

    /// Whether a whole block is free and, unless `pending`, known to be so on the medium.
    pub(super) fn is_free_block(&self, block: u32, per_block: u32, pending: bool) -> bool {
        self.free_in(block, per_block) == (1 << per_block) - 1
            && self.is_known(block * per_block, per_block, pending)
    }

    pub(super) fn is_inode_used(&self, at: u32) -> bool {
        bit(&self.used, to_usize(at))
    }

    pub(super) fn is_free(&self, at: u32) -> bool {
        bit(&self.free, to_usize(at))
    }

    /// Whether so many fragments from `at` on are free and, unless `pending`, known to be so on the medium.
    pub(super) fn are_free(&self, at: u32, count: u32, pending: bool) -> bool {
        (at..at + count).all(|at| self.is_free(at)) && self.is_known(at, count, pending)
    }

    /// Whether none of what is free from `at` on was freed by what is not on the medium yet, unless that does not matter (`pending`).
    pub(super) fn is_known(&self, at: u32, count: u32, pending: bool) -> bool {
        pending || self.pending.next_from(at).is_none_or(|(start, _)| start >= at + count)
    }
}

/// How long the runs of ones are in the bits of a block.
fn runs(mut bits: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        bits >>= bits.trailing_zeros().min(BYTE);
        let len = bits.trailing_ones();
        bits >>= len;
        (len > 0).then_some(len)
    })
}

impl std::ops::Deref for OpenGroup<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_deref().expect("opening a group has read it")
    }
}

impl std::ops::DerefMut for OpenGroup<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_deref_mut().expect("opening a group has read it")
    }
}

/// Fragments of a group, as they are asked for.
fn descriptor(fragments: Range<u64>) -> SmallVec<[(BlockNo, BlockKind); 8]> {
    fragments.map(|at| (BlockNo(at), BlockKind::GroupDescriptor)).collect()
}

impl OpenGroup<'_> {
    /// Where a map begins in the group, and what its bits are of something in use.
    fn map_at(&self, map: Map) -> (usize, bool) {
        match map {
            Map::Fragments => (self.read.free_fragments, false),
            Map::Inodes => (self.read.used_inodes, true),
        }
    }

    /// Marks `count` fragments or inodes from `at` on, whose bits are in `part`, as used or free, after `befores`; all of them are the other way
    /// now. Returns the patches.
    pub(super) fn mark(
        &mut self,
        (tx, part): (&mut Tx<'_>, &Part),
        (map, at, count): (Map, u32, u32),
        used: bool,
        befores: &[PatchId],
    ) -> PatchIds {
        let (base, of_used) = self.map_at(map);
        let value = used == of_used;
        self.recount(map, (at, count), false);
        for at in at..at + count {
            let map = match map {
                Map::Fragments => &mut self.free,
                Map::Inodes => &mut self.used,
            };
            let mask = 1 << (at % BYTE);
            let byte = &mut map[to_usize(at / BYTE)];
            *byte = if value { *byte | mask } else { *byte & !mask };
        }
        self.recount(map, (at, count), true);
        self.is_changed = true;
        let mut patches = PatchIds::new();
        let mut first = to_u64(base) * u64::from(BYTE) + u64::from(at);
        let end = first + u64::from(count);
        while first < end {
            let (block, within) = (first / u64::from(self.fragment_bits), low32(first) % self.fragment_bits);
            let len = low32(end - first).min(self.fragment_bits - within);
            let block = &part.blocks[to_usize(block) - part.first];
            patches.extend(tx.bits(block, within, len, value, befores));
            first += u64::from(len);
        }
        patches
    }

    /// Adds what is free around `at` to the counts, or takes it off.
    fn recount(&mut self, map: Map, (at, count): (u32, u32), adds: bool) {
        let per_block = self.per_block;
        match map {
            Map::Fragments => {
                for block in at / per_block..(at + count).div_ceil(per_block) {
                    self.count(block, per_block, adds);
                }
            }
            Map::Inodes => {
                let free = (at..at + count).fold(0, |n, at| n + u64::from(!self.is_inode_used(at)));
                let counts = &mut self.counts;
                counts.inodes = if adds { counts.inodes + free } else { counts.inodes.saturating_sub(free) };
            }
        }
    }

    /// Patches bytes of the group from byte `at` on, which are in `part`.
    pub(super) fn put(
        &self,
        (tx, part): (&mut Tx<'_>, &Part),
        at: usize,
        bytes: &[u8],
        befores: &[PatchId],
    ) -> PatchIds {
        let fragment = to_usize(self.fragment_bits / BYTE);
        let mut patches = PatchIds::new();
        let mut done = 0;
        while done < bytes.len() {
            let (block, within) = ((at + done) / fragment, (at + done) % fragment);
            let len = (bytes.len() - done).min(fragment - within);
            let (block, here) = (&part.blocks[block - part.first], &bytes[done..done + len]);
            if tx.data(block)[within..within + len] != *here {
                patches.push(tx.bytes(block, within, here, befores));
            }
            done += len;
        }
        patches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_a_block() {
        for (bits, expected) in [
            (0, vec![]),
            (0xff, vec![8]),
            (0b1, vec![1]),
            (0b1011_0011, vec![2, 2, 1]),
            (0b1110_0000, vec![3]),
        ] {
            assert_eq!(runs(bits).collect::<Vec<_>>(), expected, "{bits:#b}");
        }
    }
}
