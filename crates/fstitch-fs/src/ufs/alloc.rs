//! Taking and giving back fragments.
//!
//! **Orderings** (arrows read "comes after").
//! - a fragment is marked as used: no order; one marked too early is a leak at worst. Marking overlaps the patch that freed it;
//! - new contents → the clearing of the pointer that others had ([`Run::reuse`]);
//! - a fragment is marked as free → the change with which the last pointer to it went ([`Ufs::free`]).
//!
//! **Placement.** Whole blocks follow each other where they can. The end of a file goes to a block that is used in part, so that whole
//! blocks stay whole; where that end grows and cannot grow there, it moves to a whole block, once ([`super::tail`]).

use fstitch_core::num::to_u64;
use fstitch_core::{BlockNo, Caller, Errno, Error, Result, Structure};
use fstitch_patch::{PatchId, PatchIds};

use super::groups::{Map, OpenGroup};
use super::volume::Ufs;
use crate::num::low32;

/// Blocks whose changes are dropped under one hold of the core lock.
const DROP_STEP: u64 = 64;

/// Fragments taken, contiguous.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) count: u64,
    /// The bits in the map.
    pub(super) bits: PatchIds,
    /// What the contents must come after.
    pub(super) reuse: PatchIds,
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
enum Wish {
    /// Whole blocks, so many of them at most.
    Blocks(u32),
    /// So many fragments of one block, less than it has.
    Fragments(u32),
}

impl Ufs {
    /// Takes 1 to `want` whole blocks that follow each other, near fragment `near`.
    pub(super) fn take_blocks(&self, caller: &Caller, near: u64, want: u64) -> Result<Run> {
        let per_block = u64::from(self.sb.fragments_per_block());
        let want = want.min(self.available(caller) / per_block);
        if want == 0 {
            return Err(Errno::NOSPC.into());
        }
        self.take(near, Wish::Blocks(low32(want.min(u64::from(u32::MAX)))))
    }

    /// Takes `count` fragments of one block, less than it has, near fragment `near`.
    pub(super) fn take_fragments(&self, caller: &Caller, near: u64, count: u64) -> Result<Run> {
        if count > self.available(caller) {
            return Err(Errno::NOSPC.into());
        }
        self.take(near, Wish::Fragments(low32(count)))
    }

    /// Takes just these fragments, if they are free on the medium, too.
    pub(super) fn take_here(&self, caller: &Caller, start: u64, count: u64) -> Result<Option<Run>> {
        if count > self.available(caller) {
            return Err(Errno::NOSPC.into());
        }
        let (no, at) = self.sb.group_of(start);
        let mut open = self.open_group(no)?;
        let end = u64::from(at) + count;
        let fits = end <= u64::from(open.read.fragments) && open.are_free(at, low32(count), false);
        Ok(fits.then(|| self.take_run(&mut open, at, low32(count))))
    }

    /// What so many whole blocks or fragments may be taken of by a caller.
    fn available(&self, caller: &Caller) -> u64 {
        let free = self.free_fragments();
        if caller.uid == 0 { free } else { free.saturating_sub(self.sb.kept_fragments()) }
    }

    fn take(&self, near: u64, wish: Wish) -> Result<Run> {
        let near = if near < self.sb.fragments { near } else { 0 };
        let (first, at) = self.sb.group_of(near);
        for pending in [false, true] {
            for step in 0..self.sb.groups {
                let no = (first + step) % self.sb.groups;
                let mut open = self.open_group(no)?;
                if pending {
                    // Entries that became stable meanwhile are no reason to wait for anything.
                    open.pending.purge(&self.cache.lock());
                }
                let per_block = self.sb.fragments_per_block();
                if matches!(wish, Wish::Fragments(_)) {
                    let all = open.read.fragments.div_ceil(per_block);
                    open.advance_parts(all, per_block);
                }
                let from = if step == 0 { at } else { open.block_cursor * per_block };
                if let Some((at, count)) = self.find_free(&open, from, wish, pending) {
                    open.block_cursor = (at + count) / per_block;
                    return Ok(self.take_run(&mut open, at, count));
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    fn find_free(&self, open: &OpenGroup<'_>, from: u32, wish: Wish, pending: bool) -> Option<(u32, u32)> {
        let per_block = self.sb.fragments_per_block();
        // A block that the volume's end cuts off is never whole.
        let (whole, all) = (open.read.fragments / per_block, open.read.fragments.div_ceil(per_block));
        match wish {
            Wish::Blocks(want) => {
                if open.counts.blocks == 0 {
                    return None;
                }
                let is_free = |block: u32| open.is_free_block(block, per_block, pending);
                let from = (from / per_block).min(whole);
                let block = (from..whole).chain(0..from).find(|&block| is_free(block))?;
                let more =
                    (block + 1..whole).take(crate::num::idx(want - 1)).take_while(|&block| is_free(block));
                Some((block * per_block, (1 + low32(to_u64(more.count()))) * per_block))
            }
            Wish::Fragments(count) => {
                let fits = |block: u32| {
                    let free = open.free_in(block, per_block);
                    // Where so many free ones begin.
                    let begins = (1..count).fold(free, |begins, by| begins & (free >> by));
                    let places = (0..per_block).filter(|at| begins >> at & 1 == 1);
                    places.map(|at| block * per_block + at).find(|&at| open.is_known(at, count, pending))
                };
                let from = (from / per_block).min(all);
                let in_part = |blocks| open.used_in_part(blocks, per_block);
                let partly =
                    open.has_run(count).then(|| in_part(from..all).chain(in_part(0..from)).find_map(fits));
                let partly = partly.flatten();
                let start = partly.or_else(|| {
                    self.find_free(open, from * per_block, Wish::Blocks(1), pending).map(|(at, _)| at)
                });
                start.map(|at| (at, count))
            }
        }
    }

    fn take_run(&self, open: &mut OpenGroup<'_>, at: u32, count: u32) -> Run {
        let reuse = open.pending.reuse(at, at + count);
        let mut tx = self.cache.lock();
        let bits = open.mark(&mut tx, Map::Fragments, (at, count), true, &[]);
        drop(tx);
        self.add_free(-i64::from(count));
        let start = self.sb.group_first(open.no) + u64::from(at);
        Run { start, count: u64::from(count), bits, reuse }
    }

    /// Gives back what was taken and never pointed at.
    pub(super) fn give_back(&self, start: u64, count: u64) {
        // Failing to read the group again leaks it, which is lawful; the next operation reports it.
        let _leaked = self.free(start, count, None);
    }

    /// Frees `count` fragments from `start` on, after `after`; at once if nothing on the medium points at them. What is free already is
    /// damage: nothing is written any more.
    pub(super) fn free(&self, start: u64, count: u64, after: Option<PatchId>) -> Result<()> {
        self.drop_contents(start, count, after);
        let (mut at, end) = (start, start + count);
        while at < end {
            let (no, first) = self.sb.group_of(at);
            let stop = end.min(self.sb.group_first(no) + u64::from(self.sb.group_fragments));
            let mut open = self.open_group(no)?;
            self.free_run(&mut open, (first, low32(stop - at)), after);
            at = stop;
        }
        Ok(())
    }

    fn free_run(&self, open: &mut OpenGroup<'_>, (first, count): (u32, u32), after: Option<PatchId>) {
        let end = (first + count).min(open.read.fragments);
        let mut freed = 0;
        let mut at = first;
        while at < end {
            let run = (at..end).take_while(|&at| !open.is_free(at)).fold(0, |n, _| n + 1);
            if run == 0 {
                at += 1;
                continue;
            }
            let mut tx = self.cache.lock();
            open.mark(&mut tx, Map::Fragments, (at, run), false, after.as_slice());
            if let Some(patch) = after {
                open.pending.insert(at, at + run, patch, &tx);
            }
            drop(tx);
            freed += run;
            at += run;
        }
        self.add_free(i64::from(freed));
        if freed < count {
            let problem = format!("{} fragments of a file were free already", count - freed);
            let what = Structure::BlockBitmap(u64::from(open.no));
            self.found_damage(&Error::corrupt(what, None, problem));
        }
    }

    /// The newest contents of freed fragments will never be seen: they need not be written.
    fn drop_contents(&self, start: u64, count: u64, after: Option<PatchId>) {
        if !self.cache.options().optimizations.elimination {
            return;
        }
        let (mut at, end) = (start, start + count);
        while at < end {
            let stop = end.min(at + DROP_STEP);
            let mut tx = self.cache.lock();
            for block in at..stop {
                tx.drop_changes(BlockNo(block), after.as_slice());
            }
            at = stop;
        }
    }

    /// Whether fragments that files may use are marked as used.
    pub(super) fn are_used(&self, start: u64, count: u64) -> Result<bool> {
        let (no, at) = self.sb.group_of(start);
        let open = self.open_group(no)?;
        Ok((at..at + low32(count)).all(|at| at < open.read.fragments && !open.is_free(at)))
    }
}
