//! Blocks taken before they are needed for files that grow, so that the free map is not searched and changed for each block.
//!
//! Who fills a new file at once and says how long it will be gets all of its blocks together, indirect ones in their places
//! among the others, as far as free runs are that long.
//!
//! **Layout.** A preallocated block is marked as used and belongs to nobody: what a crash in the middle of any allocation
//! leaves, and lawful for the same reason. A volume whose changes go through a journal promises that a replay leaves no
//! such blocks, so nothing is preallocated there.
//!
//! **States.** Taken with the file's last allocation, behind its last block; then either given to the file, from the
//! first one on, or given back: when the file is shortened or freed or grows elsewhere, when everything is made stable, when
//! space is wanting, before a check and before a pass of the reclaimer, which takes for leaked what is nobody's.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{Caller, FileKind, Result};
use rustc_hash::FxHashMap;

use super::alloc::{Goal, Run};
use super::inode::Inode;
use super::layout::inode::DIRECT;
use super::num::{low32, wide};
use super::volume::Ext2;

/// How many blocks are preallocated for a file at most.
const MOST: u32 = 32;
/// For files that have so many: behind shorter ones, of which there are many, what is given back would leave gaps, and what is
/// written together would be in as many pieces.
const FROM: u64 = 64;
/// Of so many free blocks one may be preallocated for a file, so none where space is short.
const OF_FREE: u32 = 64;
/// For how many files at a time.
const FILES: usize = 64;
/// So many blocks of a file that is longer than any free run are wanted in one piece at least, for a quarter of a group.
const PIECES_PER_GROUP: u32 = 4;

/// Preallocated blocks.
#[derive(Debug, Default)]
pub(super) struct Preallocated {
    files: Mutex<Files, rank::Leaf>,
    /// Blocks in all of them.
    count: AtomicU32,
    /// Held while blocks are given back: whoever finds none to give back has then seen them free.
    giving: Mutex<(), rank::Giving>,
    /// How often some of all files were given back.
    given_back: AtomicU64,
}

#[derive(Debug, Default)]
struct Files {
    /// By inode.
    runs: FxHashMap<u32, Run>,
    /// Files that found no room since there was some.
    refused: usize,
}

/// Whether blocks may be preallocated for one more file.
enum Room {
    Free,
    Taken,
    /// Not for this one; but those who have it had it long enough.
    Old,
}

impl Preallocated {
    /// Blocks that are taken and nobody's: as good as free.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// How often blocks of all files were given back.
    pub(super) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Acquire)
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock()
    }

    /// Takes up to `want` blocks from the front of a file's, if they start with block `start` of the volume.
    fn pop(&self, ino: u32, start: u64, want: u32) -> Option<Run> {
        if self.count() == 0 {
            return None;
        }
        let mut files = self.files();
        let run = files.runs.get_mut(&ino).filter(|run| run.start == start)?;
        let count = want.min(run.count);
        let given = Run { start, count, bits: run.bits.clone(), reuse: run.reuse.clone() };
        run.start += u64::from(count);
        run.count -= count;
        if run.count == 0 {
            files.runs.remove(&ino);
        }
        self.count.fetch_sub(count, Ordering::Relaxed);
        Some(given)
    }

    /// Keeps blocks for a file that has none.
    fn keep(&self, ino: u32, run: Run) {
        self.count.fetch_add(run.count, Ordering::Relaxed);
        let before = self.files().runs.insert(ino, run);
        assert!(before.is_none(), "blocks of inode {ino} are given back before others are taken");
    }

    fn take(&self, ino: u32) -> Option<Run> {
        if self.count() == 0 {
            return None;
        }
        let run = self.files().runs.remove(&ino)?;
        self.count.fetch_sub(run.count, Ordering::Relaxed);
        Some(run)
    }

    fn take_all(&self) -> Vec<Run> {
        let runs: Vec<Run> = self.files().runs.drain().map(|(_, run)| run).collect();
        self.count.fetch_sub(runs.iter().map(|run| run.count).sum(), Ordering::Relaxed);
        runs
    }

    fn room(&self) -> Room {
        let mut files = self.files();
        if files.runs.len() < FILES {
            return Room::Free;
        }
        files.refused = (files.refused + 1) % FILES;
        if files.refused == 0 { Room::Old } else { Room::Taken }
    }
}

impl Ext2 {
    /// Up to `want` of the blocks that were preallocated for the file, if these are what comes next in it.
    pub(super) fn take_preallocated(&self, inode: &Inode, index: u64, want: u32) -> Option<Run> {
        let (next, block) = inode.last?;
        if index == next { self.preallocated.pop(inode.ino, block, want) } else { None }
    }

    /// Learns that a file without blocks will have `size` bytes, all of them written.
    pub(super) fn expect_blocks(&self, inode: &mut Inode, size: u64) {
        let alone = inode.disk.kind == FileKind::Regular && inode.disk.size == 0 && inode.last.is_none();
        let lawful = !self.cache.goes_through_journal() && !self.distrusts_counters();
        let blocks = size.div_ceil(wide(self.block_size()));
        inode.expected = if alone && lawful { blocks } else { 0 };
    }

    /// Whether file block `index` comes next of those that lie together.
    pub(super) fn is_in_line(&self, inode: &Inode, index: u64) -> bool {
        inode.expected > 0 && inode.last.is_some_and(|(next, _)| next == index)
    }

    /// The next of the blocks that lie together, for an indirect block.
    pub(super) fn take_in_line(&self, inode: &mut Inode) -> Option<Run> {
        let (next, block) = inode.last.filter(|_| inode.expected > 0)?;
        let run = self.preallocated.pop(inode.ino, block, 1)?;
        inode.last = Some((next, block + 1));
        Some(run)
    }

    /// Up to `want` blocks for file block `index`, and behind them what else the file will need, in one piece; `None` where
    /// nothing is expected or no free run is long enough.
    pub(super) fn take_expected(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (index, want): (u64, u32),
        goal: Goal,
    ) -> Result<Option<Run>> {
        if index >= inode.expected {
            return Ok(None);
        }
        let all = inode.expected - index + self.indirect_between(index, inode.expected);
        let piece = self.sb.blocks_per_group / PIECES_PER_GROUP;
        let all = u32::try_from(all).unwrap_or(u32::MAX).min(self.sb.blocks_per_group);
        let Some(mut run) = self.take_whole(caller, (goal, self.maps_low(inode)), all, all.min(piece))?
        else {
            inode.expected = 0;
            return Ok(None);
        };
        self.keep_preallocated(inode, &mut run, want);
        Ok(Some(run))
    }

    /// How many indirect blocks the file blocks from `from` to `to` need first.
    fn indirect_between(&self, from: u64, to: u64) -> u64 {
        indirect_between(self.pointers(), from, to)
    }

    /// How many blocks to preallocate with the allocation of file block `index`, if the file is long, grows from its end on, and
    /// there are plenty.
    pub(super) fn preallocation_for(&self, inode: &Inode, index: u64) -> u32 {
        let is_long = index >= FROM && inode.disk.kind == FileKind::Regular;
        let grows = is_long && inode.last.is_some_and(|(next, _)| next == index);
        if !grows || self.cache.goes_through_journal() || self.distrusts_counters() {
            return 0;
        }
        match self.preallocated.room() {
            Room::Free => {}
            Room::Taken => return 0,
            Room::Old => {
                self.give_back_preallocated();
                return 0;
            }
        }
        let free = self.free_blocks_now(&self.cache.lock()).saturating_sub(self.sb.reserved_blocks);
        low32((free / u64::from(OF_FREE)).min(u64::from(MOST)))
    }

    /// Parts a run that was taken for `want` blocks and more: the others stay for later.
    pub(super) fn keep_preallocated(&self, inode: &Inode, run: &mut Run, want: u32) {
        if run.count > want {
            let rest = Run { start: run.start + u64::from(want), count: run.count - want, ..run.clone() };
            run.count = want;
            self.preallocated.keep(inode.ino, rest);
        }
    }

    /// Gives back what was preallocated for an inode.
    pub(super) fn give_back_preallocated_of(&self, ino: u32) {
        if let Some(run) = self.preallocated.take(ino) {
            self.give_back_run(&run);
        }
    }

    /// Gives back what was preallocated for all files. Returns how often some was by now.
    pub(super) fn give_back_preallocated(&self) -> u64 {
        let _giving = self.preallocated.giving.lock();
        let runs = self.preallocated.take_all();
        runs.iter().for_each(|run| self.give_back_run(run));
        if !runs.is_empty() {
            self.preallocated.given_back.fetch_add(1, Ordering::Release);
        }
        self.preallocated.given_back()
    }
}

/// How many indirect blocks come before the file blocks from `from` to `to`, with so many pointers to a block.
fn indirect_between(pointers: u64, from: u64, to: u64) -> u64 {
    let direct = wide(DIRECT);
    // How many of the file blocks `first`, `first + step`, … are among them.
    let starts = |first: u64, step: u64| {
        let before = |end: u64| if end > first { (end - first).div_ceil(step) } else { 0 };
        before(to) - before(from)
    };
    let (double, triple) = (direct + pointers, direct + pointers + pointers * pointers);
    starts(direct, pointers)
        + starts(double, u64::MAX)
        + starts(triple, u64::MAX)
        + starts(triple, pointers * pointers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indirect_blocks_are_counted() {
        for (from, to, count) in [
            (0, 12, 0),
            (0, 13, 1),
            (12, 13, 1),
            (13, 200, 0),
            (0, 12 + 256, 1),
            (0, 12 + 256 + 1, 3),
            (12 + 256 + 1, 12 + 256 + 257, 1),
            (0, 12 + 256 + 65536, 1 + 1 + 256),
            (0, 12 + 256 + 65536 + 1, 1 + 1 + 256 + 3),
        ] {
            assert_eq!(indirect_between(256, from, to), count, "{from} to {to}");
        }
    }
}
