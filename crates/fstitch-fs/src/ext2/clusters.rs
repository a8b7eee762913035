//! The clusters of files, where blocks are taken several at a time (`bigalloc`).
//!
//! **Layout.** A cluster of the volume is one file's, for one cluster of that file, and what the file has of it lies at the same place in both:
//!
//! ```text
//!   file    │ 0 1 . 3 │ 4 . . . │ . . . . │        ratio 4; a dot is a hole
//!   volume  │40 41 · 43│88 · · · │
//! ```
//! So a hole in a cluster of which the file has a block is filled in that place, and takes nothing. Nodes of maps and blocks of attributes have a
//! cluster each.
//!
//! **States.** A cluster is free → taken, for a block that is not in the file's map yet (a *claim* of the allocation under way) → the file's, as
//! long as any block of it is in the map → free. Counts (an inode's storage, groups, the superblock) are of clusters.
//!
//! **Orderings.** As in [`super::extents`]: who puts a block into the map has the bit of its cluster, which is set before, by this or an earlier
//! change. A bit is cleared after the change of the map that took the last block of the cluster. All of it is one step, which the
//! journal makes whole; so there is no writing without one.
//!
//! **Invariants.** 1. Two file blocks of a cluster are in one cluster of the volume, each at its place. 2. Nobody frees a cluster of which the
//! map, or an allocation under way, has a block. 3. The last cluster of a volume, if it is not whole, is given to nobody.
//!
//! **Crash cases.** None within a step. A block that leaves the map and comes back has the same place: it comes back behind the end of the
//! transaction that it left in, and its new contents are written after that, or a crash would leave the file of before with them.

use fstitch_core::{Caller, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::alloc::{FreedAfter, Run};
use super::detach::{Freed, Removal};
use super::extents::tree::{Found, Lost};
use super::inode::Inode;
use super::layout::extent::Extent;
use super::num::{idx64, low32, small};
use super::volume::Ext2;
use crate::uhfs::Allocation;

/// Clusters that allocations under way have blocks of: which of the file's, and the first block.
pub(super) type Claims = Vec<(u64, u64)>;

/// Blocks for a file.
pub(super) struct Taken {
    pub(super) run: Run,
    /// Their clusters were taken for them.
    pub(super) is_new: bool,
}

impl Ext2 {
    /// Which of its clusters a file block lies in.
    fn file_cluster(&self, index: u64) -> u64 {
        index >> self.sb.log_cluster
    }

    /// The place of a file block in its cluster.
    fn place_in_cluster(&self, index: u64) -> u32 {
        small(idx64(index % u64::from(self.sb.cluster_blocks())))
    }

    /// The first block of the cluster that the file's map has for its cluster `of_file`, if it has any block of it.
    fn mapped_cluster(&self, inode: &Inode, of_file: u64) -> Result<Option<u64>> {
        let first = of_file << self.sb.log_cluster;
        let end = first + u64::from(self.sb.cluster_blocks());
        let mut at = first;
        let extent = loop {
            match self.find_extent(inode, at)? {
                Found::In(extent) => break extent,
                Found::HoleTo(next) if next < end && next > at => at = next,
                Found::HoleTo(_) => return Ok(None),
            }
        };
        let block = extent.at(small(idx64(at)));
        let place = u64::from(self.place_in_cluster(at));
        if block
            .checked_sub(place)
            .is_none_or(|start| self.sb.cluster_start(self.sb.cluster_of(start)) != start)
        {
            return Err(inode.damaged(format!("file block {at} at {block}: across its cluster")));
        }
        Ok(Some(block - place))
    }

    /// The same, or that of an allocation under way.
    fn own_cluster(&self, inode: &Inode, of_file: u64) -> Result<Option<u64>> {
        if let Some(&(_, start)) = inode.claims.iter().find(|(claimed, _)| *claimed == of_file) {
            return Ok(Some(start));
        }
        self.mapped_cluster(inode, of_file)
    }

    /// Takes 1 to `want` blocks for the hole of at least so many at file block `index`: what the file has of their clusters, or new ones.
    pub(super) fn take_for_hole(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (index, want): (u64, u32),
    ) -> Result<Taken> {
        if !self.sb.has_clusters() {
            return Ok(Taken { run: self.take_data(caller, inode, index, want)?, is_new: true });
        }
        let place = self.place_in_cluster(index);
        if let Some(start) = self.own_cluster(inode, self.file_cluster(index))? {
            let count = want.min(self.sb.cluster_blocks() - place);
            let start = start + u64::from(place);
            // The cluster may be one that another file had a moment ago, and the block one that this file had.
            let reuse = self.own_reuse(start, u64::from(count))?;
            let run = Run { start, count, bits: PatchIds::new(), reuse };
            return Ok(Taken { run, is_new: false });
        }
        let mut want = want;
        let end = index + u64::from(want);
        let tail = self.place_in_cluster(end);
        let last = self.file_cluster(end);
        if tail > 0 && last > self.file_cluster(index) && self.own_cluster(inode, last)?.is_some() {
            want -= tail;
        }
        let run = self.take_data(caller, inode, index - u64::from(place), place + want)?;
        assert!(run.count > place, "a run has a whole cluster, or all that was wanted");
        let run = Run { start: run.start + u64::from(place), count: run.count - place, ..run };
        Ok(Taken { run, is_new: true })
    }

    /// Gives back what was taken for an extent and is not in the map.
    pub(super) fn give_back_taken(&self, taken: &Taken) {
        if taken.is_new {
            self.give_back_run(&taken.run);
        }
    }

    /// The clusters at both ends of an allocation, which others may have blocks of.
    fn claims_of(&self, allocation: &Allocation) -> Claims {
        let (first, count) = (allocation.index, allocation.count);
        let start = allocation.start.get() - u64::from(self.place_in_cluster(first));
        let [from, to] = [first, first + count - 1].map(|index| self.file_cluster(index));
        let last = start + ((to - from) << self.sb.log_cluster);
        let both = [(from, start), (to, last)];
        both[..if from == to { 1 } else { 2 }].to_vec()
    }

    /// Notes an allocation under way.
    pub(super) fn claim_clusters(&self, inode: &mut Inode, allocation: &Allocation) {
        if self.sb.has_clusters() {
            inode.claims.extend(self.claims_of(allocation));
        }
    }

    /// An allocation is under way no more.
    pub(super) fn end_claims(&self, inode: &mut Inode, allocation: &Allocation) {
        if !self.sb.has_clusters() {
            return;
        }
        for claim in self.claims_of(allocation) {
            if let Some(at) = inode.claims.iter().position(|other| *other == claim) {
                inode.claims.swap_remove(at);
            }
        }
    }

    /// Gives back the clusters of an allocation that was not attached, but for those that others have blocks of.
    pub(super) fn give_back_clusters(&self, inode: &mut Inode, allocation: &Allocation) -> Result<()> {
        self.end_claims(inode, allocation);
        let [first, last] =
            [allocation.index, allocation.index + allocation.count - 1].map(|at| self.file_cluster(at));
        let start = allocation.start.get() - u64::from(self.place_in_cluster(allocation.index));
        let from = first + u64::from(self.own_cluster(inode, first)?.is_some());
        let ends_before = last >= from && self.own_cluster(inode, last)?.is_some();
        let end = last + 1 - u64::from(ends_before);
        if from >= end {
            return Ok(());
        }
        let blocks = |clusters: u64| clusters << self.sb.log_cluster;
        self.free_blocks(start + blocks(from - first), low32(blocks(end - from)), FreedAfter::Nothing)
    }

    /// Clusters that the file gets with an extent which is not in its map yet.
    pub(super) fn new_clusters(&self, inode: &Inode, extent: &Extent) -> Result<u32> {
        if !self.sb.has_clusters() {
            return Ok(extent.len);
        }
        let [first, last] = [u64::from(extent.block), extent.end() - 1].map(|at| self.file_cluster(at));
        let mut count = small(idx64(last - first)) + 1;
        count -= u32::from(self.mapped_cluster(inode, first)?.is_some());
        if last > first {
            count -= u32::from(self.mapped_cluster(inode, last)?.is_some());
        }
        Ok(count)
    }

    /// Frees the clusters of which a change of the map has taken the last block. `clearing` says by which patch.
    pub(super) fn free_lost_clusters(
        &self,
        inode: &Inode,
        lost: &[(Lost, PatchId)],
        removal: &mut Removal<'_>,
    ) -> Result<()> {
        let mut behind = 0;
        for (lost, clearing) in lost {
            if let Err(error) = self.note_lost_parts(lost, *clearing) {
                removal.failed.get_or_insert(error);
            }
            let first = u64::from(lost.block);
            let [head, tail] = [first, first + u64::from(lost.count) - 1].map(|at| self.file_cluster(at));
            // What was met before is decided.
            let from = head.max(behind);
            behind = tail + 1;
            let stays = |of_file| self.stays(inode, of_file, removal);
            let from = if from == head && stays(head)? { from + 1 } else { from };
            let end = if tail >= from && stays(tail)? { tail } else { tail + 1 };
            if from >= end {
                continue;
            }
            let start = lost.start.checked_sub(u64::from(self.place_in_cluster(first)));
            let Some(start) =
                start.filter(|&start| self.sb.cluster_start(self.sb.cluster_of(start)) == start)
            else {
                // What is around it may be somebody else's: it leaks.
                let problem = format!("file block {first} at {}: across its cluster", lost.start);
                removal.failed.get_or_insert(inode.damaged(problem));
                continue;
            };
            let blocks = |clusters: u64| clusters << self.sb.log_cluster;
            // A volume may end in the midst of its last cluster.
            let start = start + blocks(from - head);
            let count = low32(blocks(end - from).min(self.sb.blocks_count.saturating_sub(start)));
            let mut freed = Freed { start, count };
            self.free_data(&mut freed, FreedAfter::Pointer(*clearing), removal);
        }
        Ok(())
    }

    /// Notes what was lost of clusters at both ends of which it is not all.
    fn note_lost_parts(&self, lost: &Lost, clearing: PatchId) -> Result<()> {
        let (first, size) = (u64::from(lost.block), self.sb.cluster_blocks());
        let place = self.place_in_cluster(first);
        let head = lost.count.min(size - place);
        if head < size {
            self.note_lost_part(lost.start, head, clearing)?;
        }
        let tail = (lost.count - head) % size;
        if tail > 0 {
            self.note_lost_part(lost.start + u64::from(lost.count - tail), tail, clearing)?;
        }
        Ok(())
    }

    /// Whether the file still has a block of its cluster `of_file`. Within what is removed it has none, whatever has moved there meanwhile.
    fn stays(&self, inode: &Inode, of_file: u64, removal: &Removal<'_>) -> Result<bool> {
        let first = of_file << self.sb.log_cluster;
        let range = removal.range();
        if range.start <= first && first + u64::from(self.sb.cluster_blocks()) <= range.end {
            return Ok(false);
        }
        Ok(self.own_cluster(inode, of_file)?.is_some())
    }

    /// The clusters of an extent of a map that goes as a whole, but for one that the extent before it has ended in.
    pub(super) fn clusters_to_leave(&self, extent: &Extent, removal: &mut Removal<'_>) -> Freed {
        if !self.sb.has_clusters() {
            return Freed { start: extent.start, count: extent.len };
        }
        let end = extent.start.saturating_add(u64::from(extent.len));
        let first = self.sb.cluster_of(extent.start);
        let skipped = removal.last_cluster == Some(first);
        removal.last_cluster = Some(self.sb.cluster_of(end - 1));
        let start = if skipped { self.sb.cluster_start(first + 1) } else { extent.start };
        Freed { start, count: low32(end.saturating_sub(start)) }
    }
}
