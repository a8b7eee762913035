//! Blocks taken ahead of need for files that grow, so that the free map is not searched and changed for each block.
//!
//! **Layout.** A block taken ahead is marked as used and belongs to nobody: what a crash in the middle of any allocation
//! leaves, and lawful for the same reason. A volume with a journal promises that a replay leaves no such blocks, so
//! nothing is taken ahead there.
//!
//! **States.** Taken with the file's last allocation, behind its last block; then either given to the file, from the
//! first one on, or given back: when the file is shortened or freed or grows elsewhere, when everything is made stable, when
//! space is wanting, before a check and before a pass of the reclaimer, which takes for leaked what is nobody's.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rustc_hash::FxHashMap;

use super::alloc::Run;
use super::inode::Inode;
use super::num::small;
use super::volume::Ext2;
use fstitch_core::FileKind;

/// How many blocks are taken ahead for a file at most; never more than it has.
const MOST: u64 = 32;
/// For how many files at a time.
const FILES: usize = 64;

/// Blocks taken ahead, by inode.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    runs: Mutex<FxHashMap<u32, Run>>,
    /// Blocks in all of them.
    count: AtomicU32,
}

impl Ahead {
    /// Blocks that are taken and nobody's: as good as free.
    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Takes up to `want` blocks from the front of a file's, if they start with block `start` of the volume.
    fn pop(&self, ino: u32, start: u32, want: u32) -> Option<Run> {
        if self.count() == 0 {
            return None;
        }
        let mut runs = self.runs.lock().expect("no panic while held");
        let run = runs.get_mut(&ino).filter(|run| run.start == start)?;
        let count = want.min(run.count);
        let given = Run { start, count, bits: run.bits.clone(), reuse: run.reuse.clone() };
        run.start += count;
        run.count -= count;
        if run.count == 0 {
            runs.remove(&ino);
        }
        self.count.fetch_sub(count, Ordering::Relaxed);
        Some(given)
    }

    /// Keeps blocks for a file that has none.
    fn keep(&self, ino: u32, run: Run) {
        self.count.fetch_add(run.count, Ordering::Relaxed);
        let before = self.runs.lock().expect("no panic while held").insert(ino, run);
        assert!(before.is_none(), "blocks of inode {ino} are given back before others are taken");
    }

    fn take(&self, ino: u32) -> Option<Run> {
        if self.count() == 0 {
            return None;
        }
        let run = self.runs.lock().expect("no panic while held").remove(&ino)?;
        self.count.fetch_sub(run.count, Ordering::Relaxed);
        Some(run)
    }

    fn take_all(&self) -> Vec<Run> {
        let runs: Vec<Run> =
            self.runs.lock().expect("no panic while held").drain().map(|(_, run)| run).collect();
        self.count.fetch_sub(runs.iter().map(|run| run.count).sum(), Ordering::Relaxed);
        runs
    }

    fn is_full(&self) -> bool {
        self.runs.lock().expect("no panic while held").len() >= FILES
    }
}

impl Ext2 {
    /// Up to `want` of the blocks that were taken ahead for the file, if these are what comes next in it.
    pub(super) fn take_from_ahead(&self, inode: &Inode, index: u64, want: u32) -> Option<Run> {
        let (next, block) = inode.last?;
        if index == next { self.ahead.pop(inode.ino, block, want) } else { None }
    }

    /// How many blocks to take ahead with the allocation of file block `index`: as many as the file has, if it grows from its
    /// end on.
    pub(super) fn how_far_ahead(&self, inode: &Inode, index: u64) -> u32 {
        let grows = inode.last.is_some_and(|(next, _)| next == index) && inode.disk.kind == FileKind::Regular;
        if !grows || self.cache.is_journaled() {
            return 0;
        }
        if self.ahead.is_full() {
            self.give_back_ahead();
        }
        small(usize::try_from(index.min(MOST)).expect("few"))
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

    /// Gives back what was taken ahead for all files. Returns whether there was anything.
    pub(super) fn give_back_ahead(&self) -> bool {
        let runs = self.ahead.take_all();
        runs.iter().for_each(|run| self.give_back_run(run));
        !runs.is_empty()
    }
}
