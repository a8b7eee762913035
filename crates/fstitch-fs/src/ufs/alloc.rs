//! Taking and giving back fragments.
//!
//! **Orderings** (arrows read "comes after").
//! - a fragment is marked as used: no order; one marked too early is a leak at worst. Marking overlaps the patch that freed it;
//! - new contents → the clearing of the pointer that others had ([`Run::reuse`]);
//! - a fragment is marked as free → the change with which the last pointer to it went ([`Ufs::free`]).
//!
//! **Placement.** Whole blocks follow each other where they can; those of files that are begun lie behind the one where that was last
//! done. The end of a file goes to a block that is used in part, so that whole blocks stay whole; where that end grows and cannot grow
//! there, it moves to a whole block, once ([`super::tail`]). While a group has plenty of whole blocks only the blocks nearby are looked at,
//! so that what is written together lies together, and an end that has more than a quarter of a block has one for itself to grow in: moving
//! it copies what is there.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockNo, Caller, Errno, Error, Result, Structure};
use fstitch_patch::{PatchId, PatchIds};

use super::groups::{Map, OpenGroup};
use super::volume::Ufs;
use crate::num::low32;

/// Blocks whose changes are dropped under one hold of the core lock.
const DROP_STEP: u64 = 64;

/// Blocks on either side of where files are begun in which room for the end of one is looked for, while there are enough whole ones.
const NEARBY: u32 = 64;
/// A group has enough whole blocks while it has more than one in so many.
const ENOUGH: u32 = 8;

/// The end of a file that has more than one in so many of a block's fragments gets a whole one to grow in, while there are enough.
const GROWING: u32 = 4;

/// Where something should lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Near {
    /// At this fragment or soon behind it.
    Fragment(u64),
    /// In this group, where others have been begun.
    Group(u32),
}

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

/// Whether a group has so many whole blocks that there is no need to save them.
fn has_enough(open: &OpenGroup<'_>, per_block: u32) -> bool {
    open.counts.blocks > u64::from(open.read.fragments / per_block / ENOUGH)
}

impl Ufs {
    /// Where the first of what inode `ino` has should lie.
    pub(super) const fn near_inode(&self, ino: u32) -> Near {
        Near::Group(ino / self.sb.group_inodes)
    }

    /// Takes 1 to `want` whole blocks that follow each other, near `near`.
    pub(super) fn take_blocks(&self, caller: &Caller, near: Near, want: u64) -> Result<Run> {
        let per_block = u64::from(self.sb.fragments_per_block());
        let want = want.min(self.available(caller) / per_block);
        if want == 0 {
            return Err(Errno::NOSPC.into());
        }
        self.take(near, Wish::Blocks(low32(want.min(u64::from(u32::MAX)))))
    }

    /// Takes `count` fragments of one block, less than it has, near `near`.
    pub(super) fn take_fragments(&self, caller: &Caller, near: Near, count: u64) -> Result<Run> {
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
        if !fits {
            return Ok(None);
        }
        self.take_run(&mut open, at, low32(count)).map(Some)
    }

    /// What so many whole blocks or fragments may be taken of by a caller.
    fn available(&self, caller: &Caller) -> u64 {
        let free = self.free_fragments();
        if caller.uid == 0 { free } else { free.saturating_sub(self.sb.kept_fragments()) }
    }

    fn take(&self, near: Near, wish: Wish) -> Result<Run> {
        let per_block = self.sb.fragments_per_block();
        let (first, at) = match near {
            Near::Fragment(near) if near < self.sb.fragments => {
                let (no, at) = self.sb.group_of(near);
                (no, Some(at / per_block))
            }
            Near::Fragment(_) => (0, None),
            Near::Group(no) => (no, None),
        };
        for pending in [false, true] {
            for step in 0..self.sb.groups {
                let no = (first + step) % self.sb.groups;
                let mut open = self.open_group(no)?;
                if pending {
                    // Entries that became stable meanwhile are no reason to wait for anything.
                    open.pending.purge(&self.cache.lock());
                }
                let at = at.filter(|_| step == 0);
                if let Some((start, count)) = self.find_free(&mut open, at, wish, pending) {
                    // What finds room in another one's block begins none: places nearby would wander from one to the next.
                    if at.is_none() && open.is_free_block(start / per_block, per_block, true) {
                        open.begun = start / per_block;
                    }
                    return self.take_run(&mut open, start, count);
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Free fragments that fulfil a wish, from block `at` on or where files are begun.
    fn find_free(
        &self,
        open: &mut OpenGroup<'_>,
        at: Option<u32>,
        wish: Wish,
        pending: bool,
    ) -> Option<(u32, u32)> {
        let per_block = self.sb.fragments_per_block();
        let from = at.unwrap_or(open.begun);
        match wish {
            Wish::Blocks(want) => {
                let block = open.next_whole(from, per_block, pending)?;
                // A block that the volume's end cuts off is never whole.
                let more = (block + 1..open.read.fragments / per_block)
                    .take(crate::num::idx(want - 1))
                    .take_while(|&block| open.is_free_block(block, per_block, pending));
                Some((block * per_block, (1 + low32(to_u64(more.count()))) * per_block))
            }
            Wish::Fragments(count) => {
                // What begins with so much is written in pieces, and goes on.
                let may_grow = has_enough(open, per_block) && count * GROWING > per_block;
                let whole = |open: &OpenGroup<'_>| {
                    open.next_whole(from, per_block, pending).map(|block| block * per_block)
                };
                let begun = may_grow.then(|| whole(open)).flatten();
                let start = begun.or_else(|| self.find_part(open, count, pending)).or_else(|| whole(open));
                start.map(|at| (at, count))
            }
        }
    }

    /// So many free fragments of a block that is used in part.
    fn find_part(&self, open: &mut OpenGroup<'_>, count: u32, pending: bool) -> Option<u32> {
        if !open.has_run(count) {
            return None;
        }
        let per_block = self.sb.fragments_per_block();
        let all = open.read.fragments.div_ceil(per_block);
        let blocks = if has_enough(open, per_block) {
            open.begun.saturating_sub(NEARBY)..all.min(open.begun + NEARBY)
        } else {
            open.advance_parts(all, per_block);
            0..all
        };
        let fits = |block: u32| {
            let free = open.free_in(block, per_block);
            // Where so many free ones begin.
            let begins = (1..count).fold(free, |begins, by| begins & (free >> by));
            let places = (0..per_block).filter(|at| begins >> at & 1 == 1);
            places.map(|at| block * per_block + at).find(|&at| open.is_known(at, count, pending))
        };
        open.used_in_part(blocks, per_block).find_map(fits)
    }

    fn take_run(&self, open: &mut OpenGroup<'_>, at: u32, count: u32) -> Result<Run> {
        let part = self.map_part(open, Map::Fragments, (at, count))?;
        let reuse = open.pending.reuse(at, at + count);
        let mut tx = self.cache.lock();
        let bits = open.mark((&mut tx, &part), (Map::Fragments, at, count), true, &[]);
        drop(tx);
        self.add_free(-i64::from(count));
        let start = self.sb.group_first(open.no) + u64::from(at);
        Ok(Run { start, count: u64::from(count), bits, reuse })
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
            self.free_run(&mut open, (first, low32(stop - at)), after)?;
            at = stop;
        }
        Ok(())
    }

    fn free_run(
        &self,
        open: &mut OpenGroup<'_>,
        (first, count): (u32, u32),
        after: Option<PatchId>,
    ) -> Result<()> {
        let end = (first + count).min(open.read.fragments);
        let part = self.map_part(open, Map::Fragments, (first, end.saturating_sub(first).max(1)))?;
        let mut freed = 0;
        let mut at = first;
        while at < end {
            let run = (at..end).take_while(|&at| !open.is_free(at)).fold(0, |n, _| n + 1);
            if run == 0 {
                at += 1;
                continue;
            }
            let mut tx = self.cache.lock();
            open.mark((&mut tx, &part), (Map::Fragments, at, run), false, after.as_slice());
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
        Ok(())
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
