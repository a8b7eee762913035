//! Taking and giving back inode numbers.
//!
//! **Orderings** (arrows read "comes after").
//! - a number is marked as used: no order but the next; marking overlaps the patch that freed it;
//! - the number of inodes that were ever written (UFS2) → zeros in those that it covers; a mark behind the earlier number, and whatever names
//!   an inode there → that number: a check that finds a mark behind it believes what lies in the table.
//!
//! **Placement.** A file goes to its directory's group, a directory to the next group that has more room than most when its own has less.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, Errno, Error, Result, Structure};
use fstitch_patch::{PatchId, PatchIds, PatchState};

use super::groups::{Map, OpenGroup};
use super::layout::group::at::INITEDIBLK;
use super::layout::superblock::{ROOT_INO, Version};
use super::volume::Ufs;

/// An inode number taken.
#[derive(Clone, Debug)]
pub(super) struct TakenInode {
    pub(super) ino: u32,
    pub(super) is_dir: bool,
    /// The bit in the map, and what says that the inode was written.
    pub(super) bits: PatchIds,
    /// What its initialisation must come after: the end of its earlier life.
    pub(super) reuse: PatchIds,
    /// It is the first of its fragment, and no other one there is in use or was lately.
    pub(super) has_its_fragment: bool,
}

impl Ufs {
    /// Takes a free inode number near inode `parent`. `ENOSPC` if there is none.
    pub(super) fn take_inode(&self, parent: u32, is_dir: bool) -> Result<TakenInode> {
        let first = parent / self.sb.group_inodes;
        for (pending, choosy) in [(false, is_dir), (false, false), (true, false)] {
            for step in 0..self.sb.groups {
                let no = (first + step) % self.sb.groups;
                let mut open = self.open_group(no)?;
                if choosy && !self.has_room_for_dir(&open) {
                    continue;
                }
                if pending {
                    open.pending_inodes.purge(&self.cache.lock());
                }
                if let Some(at) = self.find_inode(&mut open, pending) {
                    return self.take_inode_at(&mut open, at, is_dir);
                }
            }
        }
        Err(Errno::NOSPC.into())
    }

    /// Whether a group has as many free inodes and blocks as the average.
    fn has_room_for_dir(&self, open: &OpenGroup<'_>) -> bool {
        let groups = u64::from(self.sb.groups);
        let blocks = self.free_fragments() / self.per_block();
        open.counts.inodes * groups >= self.free_inodes() && open.counts.blocks * groups >= blocks
    }

    fn find_inode(&self, open: &mut OpenGroup<'_>, pending: bool) -> Option<u32> {
        if open.counts.inodes == 0 {
            return None;
        }
        let all = self.sb.group_inodes;
        let first = (open.inode_cursor..all).find(|&at| !open.is_inode_used(at)).unwrap_or(all);
        open.inode_cursor = first;
        let own = if open.no == 0 { ROOT_INO + 1 } else { 0 };
        let purges = open.pending_inodes.purges();
        let mut at = match open.ready_inodes {
            // Past what was passed over before, one by one.
            (ready, since) if !pending && since == purges => first.max(own).max(ready),
            _ => first.max(own),
        };
        let found = loop {
            let Some(free) = (at..all).find(|&at| !open.is_inode_used(at)) else { break None };
            match open.pending_inodes.next_from(free) {
                Some((start, end)) if !pending && start <= free => at = end,
                _ => break Some(free),
            }
        };
        if !pending {
            open.ready_inodes = (found.unwrap_or(all), purges);
        }
        found
    }

    fn take_inode_at(&self, open: &mut OpenGroup<'_>, at: u32, is_dir: bool) -> Result<TakenInode> {
        let part = self.map_part(open, Map::Inodes, (at, 1))?;
        let written = self.write_table(open, at)?;
        let reuse = open.pending_inodes.reuse(at, at + 1);
        let mut tx = self.cache.lock();
        let written = (tx.state(written) != PatchState::Committed).then_some(written);
        let mut bits = open.mark((&mut tx, &part), (Map::Inodes, at, 1), true, written.as_slice());
        bits.extend(written);
        drop(tx);
        open.counts.directories += u64::from(is_dir);
        self.add_free_inodes(-1);
        let ino = open.no * self.sb.group_inodes + at;
        Ok(TakenInode { ino, is_dir, bits, reuse, has_its_fragment: self.has_its_fragment(open, at) })
    }

    /// Whether an inode is the first of its fragment and the others are free, on the medium as well.
    fn has_its_fragment(&self, open: &OpenGroup<'_>, at: u32) -> bool {
        let each = self.sb.fragment_size / self.sb.version.inode_size();
        let end = at + each;
        at.is_multiple_of(each)
            && end <= self.sb.group_inodes
            && open.pending_inodes.next_from(at + 1).is_none_or(|(start, _)| start >= end)
            && (at + 1..end).all(|at| !open.is_inode_used(at))
    }

    /// Makes sure that inode `at` of a group is one of those that were written: zeros come where something else may be. Returns the patch
    /// that says so.
    fn write_table(&self, open: &mut OpenGroup<'_>, at: u32) -> Result<PatchId> {
        let (written, patch) = open.initialised;
        if at < written || self.sb.version == Version::One {
            return Ok(patch);
        }
        let per_block = self.sb.block_size / self.sb.version.inode_size();
        let end = ((at / per_block + 1) * per_block).min(self.sb.group_inodes);
        let first = open.no * self.sb.group_inodes;
        let each = self.sb.fragment_size / self.sb.version.inode_size();
        if !written.is_multiple_of(each) {
            let problem = format!("{written} inodes were written, which are no whole fragments");
            return Err(Error::corrupt(Structure::Descriptor(u64::from(open.no)), None, problem));
        }
        let part = self.group_part(open, INITEDIBLK..INITEDIBLK + 4)?;
        let mut blocks = Vec::new();
        for ino in (first + written..first + end).step_by(crate::num::idx(each)) {
            blocks.push(self.cache.fresh(self.sb.inode_place(ino).0, BlockKind::Inode)?);
        }
        let zeros = Arc::new(BlockBuf::zeroed(self.sb.fragment_len()));
        let mut raw = [0; 4];
        self.sb.order.put_u32(&mut raw, 0, end);
        let mut tx = self.cache.lock();
        let mut befores = PatchIds::new();
        for block in &blocks {
            befores.push(tx.init(block, Arc::clone(&zeros), &[]));
        }
        befores.push(patch);
        let said = open.put((&mut tx, &part), INITEDIBLK, &raw, &befores).last().copied().unwrap_or(patch);
        drop(tx);
        open.initialised = (end, said);
        open.is_changed = true;
        Ok(said)
    }

    /// Marks an inode number as free, after `after`; at once if nothing on the medium names it.
    pub(super) fn free_inode_no(&self, ino: u32, is_dir: bool, after: Option<PatchId>) -> Result<()> {
        let (no, at) = (ino / self.sb.group_inodes, ino % self.sb.group_inodes);
        let mut open = self.open_group(no)?;
        if !open.is_inode_used(at) {
            let problem = "its number was free already".to_owned();
            self.found_damage(&super::damaged_inode(ino, problem));
            return Ok(());
        }
        let part = self.map_part(&open, Map::Inodes, (at, 1))?;
        let mut tx = self.cache.lock();
        open.mark((&mut tx, &part), (Map::Inodes, at, 1), false, after.as_slice());
        match after {
            Some(patch) => open.pending_inodes.insert(at, at + 1, patch, &tx),
            None => open.ready_inodes.0 = open.ready_inodes.0.min(at),
        }
        drop(tx);
        open.counts.directories = open.counts.directories.saturating_sub(u64::from(is_dir));
        open.inode_cursor = open.inode_cursor.min(at);
        self.add_free_inodes(1);
        Ok(())
    }
}
