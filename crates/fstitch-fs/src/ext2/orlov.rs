//! Choosing groups for inodes, after Orlov: directories at the top of the tree are spread over the volume,
//! deeper ones stay near their parent while its group has room, files go to their directory's group.

use std::sync::atomic::Ordering;

use fstitch_core::{Errno, Error, Result, Structure};
use fstitch_patch::{PatchIds, PatchState};

use super::alloc::FreedAfter;
use super::bitmap;
use super::groups::{DIRS, Map};
use super::layout::group::{BG_FREE_INODES_COUNT, GroupDescriptor};
use super::volume::Ext2;

/// How many groups are compared when a directory at the top of the tree is placed.
const SPREAD_LIMIT: u32 = 1024;

/// An inode to be chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct InodeWish {
    /// The group of the directory that will name it.
    pub(super) parent_group: u32,
    pub(super) is_dir: bool,
    /// The parent is the root or marked as top of a tree.
    pub(super) spread: bool,
}

/// An inode number taken.
#[derive(Clone, Debug)]
pub(super) struct TakenInode {
    pub(super) ino: u32,
    pub(super) is_dir: bool,
    /// The bit in the free map.
    pub(super) bits: PatchIds,
    /// What its initialisation must come after: the end of its earlier life.
    pub(super) reuse: PatchIds,
}

impl Ext2 {
    /// Takes a free inode number. `ENOSPC` if there is none.
    pub(super) fn take_inode(&self, wish: InodeWish) -> Result<TakenInode> {
        let first = match (wish.is_dir, wish.spread) {
            (true, true) => self.spread_group(wish.parent_group)?,
            (true, false) => self.near_group(wish.parent_group)?,
            (false, _) => wish.parent_group,
        };
        for pending in [false, true] {
            if let Some(taken) = self.search_inodes(first, wish.is_dir, pending)? {
                return Ok(taken);
            }
        }
        Err(Errno::NOSPC.into())
    }

    fn search_inodes(&self, first: u32, is_dir: bool, pending: bool) -> Result<Option<TakenInode>> {
        let all = self.sb.group_count();
        let trusted = !self.distrusts_counters();
        // The group wished for is tried without looking at its descriptor, which costs least when it has room.
        let full = self.group(first)?.full.load(Ordering::Relaxed);
        if !full && let Some(taken) = self.take_inode_in(first, is_dir, pending)? {
            return Ok(Some(taken));
        }
        let mut next = 1;
        while next < all {
            let mut candidate = None;
            self.scan_descriptors(((first + next) % all, all - next), all, &mut |no, descriptor| {
                next += 1;
                if !trusted || descriptor.free_inodes > 0 {
                    candidate = Some(no);
                }
                candidate.is_none()
            })?;
            let Some(no) = candidate else { break };
            if let Some(taken) = self.take_inode_in(no, is_dir, pending)? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    fn take_inode_in(&self, no: u32, is_dir: bool, pending: bool) -> Result<Option<TakenInode>> {
        let mut open = self.open_group(no, Map::Inodes)?;
        let end = self.sb.inodes_per_group;
        let reserved = self.sb.first_ino - 1;
        let floor = reserved.saturating_sub(no.saturating_mul(end)).min(end);
        let mut tx = self.cache.lock();
        if pending {
            open.state.pending_inodes.purge(&tx);
        }
        let free = open.state.inode_cursor.max(floor);
        let (ready, purges) = open.state.ready_inodes;
        let start = match pending {
            true => floor,
            // Past what was passed over before, one by one.
            false if purges == open.state.pending_inodes.purges() => free.max(ready),
            false => free,
        };
        let mut at = start;
        let found = loop {
            let Some(bit) = bitmap::next(tx.data(&open.map), false, at, end) else {
                if at == free {
                    open.group.full.store(true, Ordering::Relaxed);
                }
                break None;
            };
            match open.state.pending_inodes.next_from(bit) {
                Some((listed, listed_end)) if !pending && listed <= bit => at = listed_end,
                _ => break Some(bit),
            }
        };
        if !pending {
            open.state.ready_inodes = (found.unwrap_or(end), open.state.pending_inodes.purges());
        }
        let Some(bit) = found else { return Ok(None) };
        let reuse = open.state.pending_inodes.reuse(bit, bit + 1);
        self.watch.inode(no * end + bit + 1);
        // No dependencies: a bit set too early is a leak at worst. Setting it overlaps the patch that freed it.
        let mut bits = tx.bits(&open.map, bit, 1, true, &[]);
        if tx.state(open.state.inode_map) != PatchState::Committed {
            bits.push(open.state.inode_map);
        }
        open.adjust(&mut tx, BG_FREE_INODES_COUNT, -1);
        if is_dir {
            open.adjust(&mut tx, DIRS, 1);
        }
        self.adjust_free_inodes(&mut tx, -1);
        drop(tx);
        if !pending && open.state.pending_inodes.is_empty() {
            open.state.inode_cursor = bit;
        }
        Ok(Some(TakenInode { ino: no * end + bit + 1, is_dir, bits, reuse }))
    }

    /// Frees an inode number.
    pub(super) fn free_inode_no(&self, ino: u32, is_dir: bool, after: FreedAfter) -> Result<()> {
        let no = self.sb.group_of_inode(ino);
        let mut open = self.open_group(no, Map::Inodes)?;
        let bit = (ino - 1) % self.sb.inodes_per_group;
        self.watch.inode(ino);
        let mut tx = self.cache.lock();
        if !bitmap::all(tx.data(&open.map), true, bit, bit + 1) {
            drop(tx);
            let what = Structure::InodeBitmap(u64::from(no));
            let damage = Error::corrupt(what, open.map.no(), format!("inode {ino} was free already"));
            self.found_damage(&damage);
            return Err(damage);
        }
        // After the inode was cleared: a free inode on the medium is named by nobody there.
        tx.bits(&open.map, bit, 1, false, after.befores());
        open.adjust(&mut tx, BG_FREE_INODES_COUNT, 1);
        if is_dir {
            open.adjust(&mut tx, DIRS, -1);
        }
        self.adjust_free_inodes(&mut tx, 1);
        match after {
            FreedAfter::Pointer(patch) => open.state.pending_inodes.insert(bit, bit + 1, patch, &tx),
            FreedAfter::Nothing => open.state.ready_inodes.0 = open.state.ready_inodes.0.min(bit),
        }
        open.state.inode_cursor = open.state.inode_cursor.min(bit);
        open.group.full.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The group for a directory at the top of the tree: few directories, and no fewer free inodes and blocks
    /// than groups have on average.
    fn spread_group(&self, parent: u32) -> Result<u32> {
        let groups = self.sb.group_count();
        let (mut inodes, mut blocks, mut seen) = (0_u64, 0_u64, 0_u64);
        self.scan_descriptors((parent, groups.min(SPREAD_LIMIT)), groups, &mut |_, descriptor| {
            inodes += u64::from(descriptor.free_inodes);
            blocks += u64::from(descriptor.free_blocks);
            seen += 1;
            true
        })?;
        let good = |descriptor: &GroupDescriptor| {
            descriptor.free_inodes > 0
                && u64::from(descriptor.free_inodes) * seen >= inodes
                && u64::from(descriptor.free_blocks) * seen >= blocks
        };
        let mut best: Option<(u16, u32)> = None;
        self.scan_descriptors((parent, groups.min(SPREAD_LIMIT)), groups, &mut |no, descriptor| {
            if good(descriptor) && best.is_none_or(|(dirs, _)| descriptor.used_dirs < dirs) {
                best = Some((descriptor.used_dirs, no));
            }
            best.is_none_or(|(dirs, _)| dirs > 0)
        })?;
        best.map_or_else(|| self.near_group(parent), |(_, no)| Ok(no))
    }

    /// The parent's group, or the next one that is not crowded with directories.
    fn near_group(&self, parent: u32) -> Result<u32> {
        let inodes_min = self.sb.inodes_per_group / 16;
        let blocks_min = self.sb.blocks_per_group / 16;
        let dirs_max = self.sb.inodes_per_group / 4;
        let mut found = parent;
        self.scan_descriptors((parent, SPREAD_LIMIT), self.sb.group_count(), &mut |no, descriptor| {
            let roomy = u32::from(descriptor.free_inodes) > inodes_min
                && u32::from(descriptor.free_blocks) > blocks_min
                && u32::from(descriptor.used_dirs) < dirs_max;
            if roomy {
                found = no;
            }
            !roomy
        })?;
        Ok(found)
    }
}
