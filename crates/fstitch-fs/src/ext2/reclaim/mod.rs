//! Reclaiming, while the volume is in use, what a crash has left ([S] §3.3): inodes without names, blocks without
//! owners, counts of names and blocks that are too high, blocks beyond the ends of files.
//!
//! # What it may take away
//! Only what a crash of soft updates can have left. [`judge`] looks at the whole volume before anything is freed: where one
//! finding is none of these, nothing is touched, the volume is marked as having errors, and who asks is told. An inode without
//! a name that such a crash need not have left, and that holds something, gets a name in `lost+found` ([`keep`]).
//!
//! # Why it is safe
//! A pass starts at a moment when no operation is under way, and [`Watch`] notes from then on every inode whose
//! names, count or blocks change and every block that is taken or freed. The pass then reads all inodes and
//! directories as they are in the cache. What the watch did not note looked the same at the start and when it was
//! read; so an inode without names that did not change, and that nobody uses, is in no directory and never
//! will be, and a block in use without owner that did not change belongs to nobody. Whatever changed is left alone:
//! what a crash leaked cannot change, since nothing leads to it.
//!
//! # Orderings
//! Those of freeing an inode and of truncation; a block without owner is freed without dependencies, like one
//! that the medium never pointed at.
//!
//! # Crash cases
//! Cut short anywhere, less is reclaimed; the volume is not marked as clean until a whole run has passed.

mod judge;
mod keep;
mod references;
mod scan;
mod watch;

use fstitch_core::num::to_u64;
use fstitch_core::{Error, FileKind, InodeNo, Result};
use fstitch_patch::PatchIds;

use super::alloc::FreedAfter;
use super::groups::{DIRS, Map};
use super::layout::superblock::STATE_ERROR;
use super::leftovers::Leftovers;
use super::num::idx;
use super::volume::Ext2;
use super::{bitmap, inode::Inode};
use crate::uhfs::{AttrChange, ReclaimHooks, Reclaimed, unless_gone};
pub(super) use judge::Judged;
use judge::Verdict;
use watch::BitSet;
pub(super) use watch::Watch;

/// Runs of freeing inodes after which the rest is left to the next mount: each run frees a level of directories
/// that nothing leads to.
const ROUNDS: u32 = 64;

/// Attempts at counting a group's directories before that is left to the next check.
const RECOUNTS: u32 = 8;

/// Does `work` for slices of `first..end`, `step` numbers each, until it shall stop.
fn in_slices(
    hooks: &dyn ReclaimHooks<Inode>,
    (mut first, end): (u32, u32),
    step: u32,
    work: &mut dyn FnMut((u32, u32)) -> Result<()>,
) -> Result<()> {
    while first < end && !hooks.stop() {
        let next = first.saturating_add(step).min(end);
        work((first, next))?;
        first = next;
    }
    Ok(())
}

impl Ext2 {
    /// Reclaims everything that a crash has left and that can be told without stopping work.
    pub(super) fn reclaim_all(&self, hooks: &dyn ReclaimHooks<Inode>) -> Result<Reclaimed> {
        let mut done = Reclaimed::default();
        let by_journal = self.sb.features.is_journaled_ext4() && !self.left.are_of_soft_updates();
        if by_journal && self.sb.state & STATE_ERROR == 0 {
            // A crash leaves nothing that its journal does not end.
            done.complete = !self.is_unclean();
            return Ok(done);
        }
        if self.sb.has_clusters() {
            // Owners, leaks and storage are judged block by block here.
            let reason = "the volume has errors, and blocks in clusters: only a check frees what is nobody's";
            return Ok(Reclaimed { refusal: Some(self.refuse(hooks, reason.into())?), ..done });
        }
        let judged = self.judge(hooks);
        self.watch.stop();
        let left = match judged? {
            Verdict::Lawful(left) => left,
            Verdict::Refused(reason) => return Ok(Reclaimed { refusal: Some(reason), ..done }),
            Verdict::Stopped => return Ok(done),
        };
        let outcome = self.reclaim_rounds(hooks, &left, &mut done);
        self.watch.stop();
        if let Err(Error::Corrupt(problem)) = &outcome {
            done.refusal = Some(self.refuse(hooks, format!("the volume is damaged: {problem}"))?);
            return Ok(done);
        }
        outcome?;
        if !hooks.stop() && done.left_alone + done.busy == 0 && self.recount_directories(hooks)? {
            self.recount_totals()?;
            self.set_checked();
            done.complete = true;
        }
        Ok(done)
    }

    fn reclaim_rounds(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        left: &Leftovers,
        done: &mut Reclaimed,
    ) -> Result<()> {
        self.trim_directories(hooks)?;
        for _ in 0..ROUNDS {
            let before = done.inodes + done.kept;
            (done.left_alone, done.busy) = (0, 0);
            self.reclaim_inodes(hooks, left, done)?;
            if (done.inodes + done.kept == before && done.busy == 0) || hooks.stop() {
                break;
            }
        }
        self.reclaim_blocks(hooks, done)?;
        if hooks.stop() { Ok(()) } else { self.recount_references(hooks, done) }
    }

    /// Memory for one slice of a pass, in bytes.
    fn slice_bytes(&self) -> usize {
        self.cache.options().cache_size / 32
    }

    /// Starts a pass: nothing is under way at this moment.
    fn start_pass(&self, hooks: &dyn ReclaimHooks<Inode>) -> Result<()> {
        hooks.quiesced(3 * self.block_size(), &mut || {
            // What is preallocated from now on is known to the watch.
            self.give_back_preallocated();
            self.watch.start();
        })
    }

    /// Takes blocks beyond their ends away from directories. The names in them are not seen by anybody, so their inodes are
    /// about to be freed: the names must be gone for good before that, or a checker that looks at all blocks finds
    /// names of free inodes.
    fn trim_directories(&self, hooks: &dyn ReclaimHooks<Inode>) -> Result<()> {
        self.start_pass(hooks)?;
        let mut trimmed = false;
        self.scan_used_inodes((1, self.sb.inodes_count + 1), hooks, &mut |found| {
            let is_dir = found.disk.as_ref().is_some_and(|disk| disk.kind == FileKind::Directory);
            if !(is_dir && found.beyond_end) || self.watch.inode_changed(found.ino) {
                return Ok(());
            }
            hooks.with(InodeNo(u64::from(found.ino)), self.block_size() * 8, &mut |dir| {
                if !self.watch.inode_changed(found.ino) {
                    let end = dir.dir_blocks(self);
                    self.detach_range(dir, end, u64::MAX, &[])?;
                    trimmed = true;
                }
                Ok(PatchIds::new())
            })?;
            Ok(())
        })?;
        if trimmed { self.cache.sync_all() } else { Ok(()) }
    }

    // ---- inodes ----

    fn reclaim_inodes(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        left: &Leftovers,
        done: &mut Reclaimed,
    ) -> Result<()> {
        // Two bytes and a bit for each inode.
        let step = BitSet::numbers_in(self.slice_bytes()) / 32;
        in_slices(hooks, (1, self.sb.inodes_count + 1), step, &mut |slice| {
            self.reclaim_inode_slice(hooks, slice, left, done)
        })
    }

    fn reclaim_inode_slice(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        (first, end): (u32, u32),
        left: &Leftovers,
        done: &mut Reclaimed,
    ) -> Result<()> {
        self.start_pass(hooks)?;
        let mut counts = vec![0_u16; idx(end - first)];
        let mut named = BitSet::new(u64::from(first), u64::from(end));
        let mut named_twice = BitSet::new(u64::from(first), u64::from(end));
        self.scan_names(hooks, &mut |seen| {
            let target = seen.target;
            let Some(count) = target.checked_sub(first).and_then(|at| counts.get_mut(idx(at))) else {
                return;
            };
            *count = count.saturating_add(1);
            if !seen.is_dots() {
                if seen.is_dir && named.contains(u64::from(target)) {
                    named_twice.insert(u64::from(target));
                }
                named.insert(u64::from(target));
            }
        })?;
        let mut twice = Vec::new();
        self.scan_used_inodes((first, end), hooks, &mut |found| {
            if self.sb.is_own_inode(found.ino) {
                return Ok(());
            }
            let is_root = found.ino == super::layout::superblock::ROOT_INO;
            let is_dir = found.disk.as_ref().is_some_and(|disk| disk.kind == FileKind::Directory);
            if is_dir && named_twice.contains(u64::from(found.ino)) {
                twice.push(found.ino);
                return Ok(());
            }
            if !is_root && !named.contains(u64::from(found.ino)) {
                if self.must_keep(found, left)? {
                    return self.keep_unnamed(hooks, found, counts[idx(found.ino - first)], done);
                }
                return self.reclaim_unnamed(hooks, found, done);
            }
            self.correct_counts(hooks, found, counts[idx(found.ino - first)], done)
        })?;
        self.mend_second_names(hooks, &twice, done)
    }

    /// Clears the names of directories that a crash in the middle of a rename has left beside the valid one, which is
    /// in the directory that `..` names. The valid one is on the medium, so the clearing waits for nothing.
    fn mend_second_names(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        twice: &[u32],
        done: &mut Reclaimed,
    ) -> Result<()> {
        let mut valid = std::collections::BTreeMap::new();
        for &ino in twice {
            let Some(dir) = unless_gone(self.load_any(InodeNo(u64::from(ino))))? else {
                done.busy += 1;
                continue;
            };
            if let Some(parent) = self.find(&dir, b"..")? {
                valid.insert(ino, (parent.ino, false));
            }
        }
        if valid.is_empty() {
            done.left_alone += to_u64(twice.len());
            return Ok(());
        }
        let mut stale: Vec<(InodeNo, u32, Vec<u8>)> = Vec::new();
        self.scan_names(hooks, &mut |seen| {
            if seen.is_dots() {
                return;
            }
            if let Some((parent, met)) = valid.get_mut(&seen.target) {
                // The first name in the right directory stays.
                if *parent != seen.dir || std::mem::replace(met, true) {
                    stale.push((seen.dir, seen.target, seen.name.to_vec()));
                }
            }
        })?;
        for (dir, target, name) in stale {
            let keeps_one = valid.get(&target).is_some_and(|(_, met)| *met);
            if !keeps_one || self.watch.inode_changed(target) {
                done.left_alone += 1;
                continue;
            }
            hooks.with(dir, self.block_size() * 4, &mut |inode| match self.find(inode, &name)? {
                Some(slot) if slot.ino == InodeNo(u64::from(target)) => {
                    self.clear(inode, &slot, &[]).map(|_| PatchIds::new())
                }
                _ => Ok(PatchIds::new()),
            })?;
            // Another round corrects the counts.
            done.busy += 1;
        }
        Ok(())
    }

    /// Frees an inode without names, or just its bit if the inode itself was freed before the crash.
    fn reclaim_unnamed(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        found: &scan::FoundInode,
        done: &mut Reclaimed,
    ) -> Result<()> {
        let no = InodeNo(u64::from(found.ino));
        if self.watch.inode_changed(found.ino) || !hooks.forget(no) {
            return Ok(());
        }
        hooks.step(self.block_size() * 8, &mut || {
            if found.disk.is_none() {
                return self.free_inode_no(found.ino, false, FreedAfter::Nothing).map(drop);
            }
            let mut inode = self.load_any(no)?;
            self.charged(&mut inode, |inode| self.end_inode(inode, &[]))
        })?;
        done.inodes += 1;
        Ok(())
    }

    /// Lowers counts that are too high and trims blocks beyond the end of the file.
    fn correct_counts(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        found: &scan::FoundInode,
        names: u16,
        done: &mut Reclaimed,
    ) -> Result<()> {
        let Some(disk) = &found.disk else { return Ok(()) };
        let sectors = found.blocks.map(|blocks| u64::from(blocks) * self.sectors_per_block());
        let high_links = disk.nlink > names;
        let wrong_sectors = sectors.is_some_and(|sectors| sectors != disk.sectors);
        if !(high_links || wrong_sectors || found.beyond_end) {
            return Ok(());
        }
        if self.watch.inode_changed(found.ino) {
            done.busy += 1;
            return Ok(());
        }
        let (mut corrected, mut busy) = (0, 0);
        let end = disk.size.div_ceil(u64::from(self.sb.block_size));
        let is_there = hooks.with(InodeNo(u64::from(found.ino)), self.block_size() * 8, &mut |inode| {
            let mut cleared = PatchIds::new();
            if self.watch.inode_changed(found.ino) {
                busy += 1;
                return Ok(cleared);
            }
            if found.beyond_end {
                cleared = self.charged(inode, |inode| self.detach_range(inode, end, u64::MAX, &[]))?;
            }
            if found.beyond_end || wrong_sectors {
                let blocks = self.count_blocks(found.ino, &inode.disk)?;
                let sectors = u64::from(blocks) * self.sectors_per_block();
                self.charged(inode, |inode| self.set_sectors(inode, sectors))?;
                corrected += 1;
            }
            if high_links && names > 0 {
                let nlink = Some(u32::from(names));
                self.change_attr(inode, &AttrChange { nlink, ..AttrChange::default() }, &[])?;
                corrected += 1;
            }
            Ok(cleared)
        })?;
        done.counts += corrected;
        done.busy += busy + u64::from(!is_there);
        Ok(())
    }

    // ---- directories ----

    /// Corrects the groups' counts of directories, the one summary that no bitmap tells. False if a group never
    /// held still.
    fn recount_directories(&self, hooks: &dyn ReclaimHooks<Inode>) -> Result<bool> {
        for group in 0..self.sb.group_count() {
            let mut settled = false;
            for _ in 0..RECOUNTS {
                if hooks.stop() {
                    return Ok(false);
                }
                self.start_pass(hooks)?;
                if self.recount_group_directories(hooks, group)? {
                    settled = true;
                    break;
                }
            }
            self.watch.stop();
            if !settled {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// One attempt: false if an inode of the group changed meanwhile.
    fn recount_group_directories(&self, hooks: &dyn ReclaimHooks<Inode>, group: u32) -> Result<bool> {
        let first = group * self.sb.inodes_per_group + 1;
        let end = first + self.sb.inodes_per_group;
        let mut found = 0_u16;
        self.scan_used_inodes((first, end), hooks, &mut |inode| {
            let is_dir = |disk: &super::layout::inode::DiskInode| disk.kind == FileKind::Directory;
            found += u16::from(inode.disk.as_ref().is_some_and(is_dir));
            Ok(())
        })?;
        let mut settled = true;
        hooks.step(self.block_size(), &mut || {
            let open = self.open_group(group, Map::Inodes)?;
            let mut tx = self.cache.lock();
            if open.counter(&tx, DIRS) == found {
                return Ok(());
            }
            if self.watch.any_inode_in(first, end) {
                settled = false;
                return Ok(());
            }
            let delta = i32::from(found) - i32::from(open.counter(&tx, DIRS));
            open.adjust(&mut tx, DIRS, delta);
            Ok(())
        })?;
        Ok(settled)
    }

    // ---- blocks ----

    fn reclaim_blocks(&self, hooks: &dyn ReclaimHooks<Inode>, done: &mut Reclaimed) -> Result<()> {
        let step = (BitSet::numbers_in(self.slice_bytes()) / self.sb.blocks_per_group).max(1);
        in_slices(hooks, (0, self.sb.group_count()), step, &mut |slice| {
            self.reclaim_block_slice(hooks, slice, done)
        })
    }

    fn reclaim_block_slice(
        &self,
        hooks: &dyn ReclaimHooks<Inode>,
        (first, end): (u32, u32),
        done: &mut Reclaimed,
    ) -> Result<()> {
        self.start_pass(hooks)?;
        let last = end - 1;
        let end_block = self.sb.group_start(last) + u64::from(self.sb.group_blocks(last));
        let mut owned = BitSet::new(self.sb.group_start(first), end_block);
        self.scan_owned_blocks(hooks, &mut |block| owned.insert(block))?;
        for group in first..end {
            if hooks.stop() {
                return Ok(());
            }
            // Read now, so that nobody has to wait for the medium below.
            drop(self.open_group(group, Map::Blocks)?);
            // Again when nothing is under way: an operation that has cleared a pointer is about to free the block.
            let mut freed = Ok(0);
            hooks.quiesced(self.block_size() * 4, &mut || freed = self.free_unowned(group, &owned))?;
            done.blocks += freed?;
        }
        Ok(())
    }

    /// Frees the blocks of a group that are in use, owned by nobody, and did not change since the pass began. No
    /// operation is under way.
    fn free_unowned(&self, group: u32, owned: &BitSet) -> Result<u64> {
        let start = self.sb.group_start(group);
        let bits = {
            let open = self.open_group(group, Map::Blocks)?;
            let map = open.map.snapshot();
            let used: Vec<(u32, u32)> = bitmap::runs(&map, true, 0, self.sb.group_blocks(group)).collect();
            used
        };
        let mut freed = 0;
        for (bit, count) in bits {
            for block in (start + u64::from(bit)..).take(idx(count)) {
                let leaked = !owned.contains(block) && !self.watch.block_changed(block);
                if leaked && self.is_file_run(block, 1)? {
                    self.free_blocks(block, 1, FreedAfter::Nothing)?;
                    freed += 1;
                }
            }
        }
        Ok(freed)
    }

    /// Sets an inode's count of blocks, a hint without order.
    fn set_sectors(&self, inode: &mut Inode, sectors: u64) -> Result<()> {
        let block = self.inode_block(inode)?;
        inode.disk.sectors = sectors;
        let mut tx = self.cache.lock();
        self.put_sectors(&mut tx, inode, &block);
        drop(tx);
        self.remember(inode);
        Ok(())
    }
}
