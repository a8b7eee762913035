//! Blocks taken ahead of need for files that grow, so that the free map is not searched and changed for each block.
//!
//! **Layout.** A block taken ahead is marked as used and belongs to nobody: what a crash in the middle of any allocation
//! leaves, and lawful for the same reason. A volume whose changes go through a journal promises that a replay leaves no
//! such blocks, so nothing is taken ahead there.
//!
//! **States.** Taken with the file's last allocation, behind its last block; then either given to the file, from the
//! first one on, or given back: when the file is shortened or freed or grows elsewhere, when everything is made stable, when
//! space is wanting, before a check and before a pass of the reclaimer, which takes for leaked what is nobody's.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fstitch_core::FileKind;
use rustc_hash::FxHashMap;

use super::alloc::Run;
use super::inode::Inode;
use super::layout::superblock::S_FREE_BLOCKS_COUNT;
use super::volume::Ext2;

/// How many blocks are taken ahead for a file at most.
const MOST: u32 = 32;
/// For files that have so many: behind shorter ones, of which there are many, what is given back would leave gaps, and what is
/// written together would be in as many pieces.
const FROM: u64 = 64;
/// Of so many free blocks one may be taken ahead for a file, so none where space is short.
const OF_FREE: u32 = 64;
/// For how many files at a time.
const FILES: usize = 64;

/// Blocks taken ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    files: Mutex<Files>,
    /// Blocks in all of them.
    count: AtomicU32,
    /// Held while blocks are given back: whoever finds none to give back has then seen them free.
    giving: Mutex<()>,
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

/// Whether blocks may be taken ahead for one more file.
enum Room {
    Free,
    Taken,
    /// Not for this one; but those who have it had it long enough.
    Old,
}

impl Ahead {
    /// Blocks that are taken and nobody's: as good as free.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// How often blocks of all files were given back.
    pub(super) fn given_back(&self) -> u64 {
        self.given_back.load(Ordering::Acquire)
    }

    fn files(&self) -> std::sync::MutexGuard<'_, Files> {
        self.files.lock().expect("no panic while held")
    }

    /// Takes up to `want` blocks from the front of a file's, if they start with block `start` of the volume.
    fn pop(&self, ino: u32, start: u32, want: u32) -> Option<Run> {
        if self.count() == 0 {
            return None;
        }
        let mut files = self.files();
        let run = files.runs.get_mut(&ino).filter(|run| run.start == start)?;
        let count = want.min(run.count);
        let given = Run { start, count, bits: run.bits.clone(), reuse: run.reuse.clone() };
        run.start += count;
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
    /// Up to `want` of the blocks that were taken ahead for the file, if these are what comes next in it.
    pub(super) fn take_from_ahead(&self, inode: &Inode, index: u64, want: u32) -> Option<Run> {
        let (next, block) = inode.last?;
        if index == next { self.ahead.pop(inode.ino, block, want) } else { None }
    }

    /// How many blocks to take ahead with the allocation of file block `index`, if the file is long, grows from its end on, and
    /// there are plenty.
    pub(super) fn how_far_ahead(&self, inode: &Inode, index: u64) -> u32 {
        let is_long = index >= FROM && inode.disk.kind == FileKind::Regular;
        let grows = is_long && inode.last.is_some_and(|(next, _)| next == index);
        if !grows || self.cache.goes_through_journal() || self.distrusts_counters() {
            return 0;
        }
        match self.ahead.room() {
            Room::Free => {}
            Room::Taken => return 0,
            Room::Old => {
                self.give_back_ahead();
                return 0;
            }
        }
        let free =
            self.field(&self.cache.lock(), S_FREE_BLOCKS_COUNT).saturating_sub(self.sb.reserved_blocks);
        MOST.min(free / OF_FREE)
    }

    /// Parts a run that was taken for `want` blocks and more: the others stay for later.
    pub(super) fn keep_ahead(&self, inode: &Inode, run: &mut Run, want: u32) {
        if run.count > want {
            let rest = Run { start: run.start + want, count: run.count - want, ..run.clone() };
            run.count = want;
            self.ahead.keep(inode.ino, rest);
        }
    }

    /// Gives back what was taken ahead for an inode.
    pub(super) fn give_back_ahead_of(&self, ino: u32) {
        if let Some(run) = self.ahead.take(ino) {
            self.give_back_run(&run);
        }
    }

    /// Gives back what was taken ahead for all files. Returns how often some was by now.
    pub(super) fn give_back_ahead(&self) -> u64 {
        let _giving = self.ahead.giving.lock().expect("no panic while held");
        let runs = self.ahead.take_all();
        runs.iter().for_each(|run| self.give_back_run(run));
        if !runs.is_empty() {
            self.ahead.given_back.fetch_add(1, Ordering::Release);
        }
        self.ahead.given_back()
    }
}
