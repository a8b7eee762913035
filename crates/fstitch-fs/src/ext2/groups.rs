//! Block groups: where their bitmaps and inode tables are, read when first used, and their locks.
//!
//! A volume of 16 TiB has 131,072 groups: nothing here is read or allocated before a group is used, beyond
//! one pointer for each.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use fstitch_core::lock::{Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, BlockNo, Error, Result, Structure};
use fstitch_patch::{Block, Blocks, PatchId, PatchIds, Tx};
use smallvec::SmallVec;

use super::layout::Field;
use super::layout::checksum::{block_bitmap_sum, inode_bitmap_sum};
use super::layout::feature::incompat;
use super::layout::group::{
    BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BG_USED_DIRS_COUNT, BLOCK_UNINIT, GroupDescriptor,
    INODE_UNINIT,
};
use super::layout::superblock::Superblock;
use super::num::{idx, low32};
use super::own::OwnRuns;
use super::windows::Windows;
use super::{bitmap, volume::Ext2};
use crate::pending::Pending;

/// All groups of a volume.
pub(super) struct Groups {
    all: Vec<OnceLock<Box<Group>>>,
    /// What is the volume's own, where groups may have theirs in others.
    own: OnceLock<OwnRuns>,
}

impl Groups {
    pub(super) fn new(sb: &Superblock) -> Self {
        let all = std::iter::repeat_with(OnceLock::new).take(idx(sb.group_count())).collect();
        Self { all, own: OnceLock::new() }
    }
}

/// A group in use.
pub(super) struct Group {
    pub(super) no: u32,
    /// Where everything is; its counters are as found, not kept up to date.
    pub(super) at: GroupDescriptor,
    pub(super) descriptor: (BlockNo, usize),
    /// Which of its maps were never written: [`BLOCK_UNINIT`] and [`INODE_UNINIT`]. Cleared under `state`.
    pub(super) unwritten: AtomicU16,
    /// Keeps the descriptor in memory where it says what the bitmaps' sums are.
    _pinned: Option<Block>,
    /// No inode is free, not even one that must be waited for `[state]`.
    pub(super) full: AtomicBool,
    /// The bitmaps were looked at: the group's own metadata is marked as used, the counters are right.
    examined: AtomicBool,
    pub(super) state: Mutex<GroupState, rank::Group>,
}

/// Which of a group's bitmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Map {
    Blocks,
    Inodes,
}

/// What a group's lock protects, besides its bitmaps' bits.
#[derive(Default)]
pub(super) struct GroupState {
    /// Where the search for a new file's first block starts.
    pub(super) block_cursor: u32,
    /// No inode below is free.
    pub(super) inode_cursor: u32,
    /// No inode below is free and not listed in `pending_inodes`, as long as its `purges` are so many.
    pub(super) ready_inodes: (u32, u64),
    pub(super) pending_blocks: Pending,
    /// Blocks, from the group's start, that files have lost in clusters which they keep.
    pub(super) pending_parts: Pending,
    pub(super) windows: Windows,
    pub(super) pending_inodes: Pending,
    /// The patch that says that the block bitmap was written, and the same for inodes.
    pub(super) block_map: PatchId,
    pub(super) inode_map: PatchId,
    /// The patch that made the used part of the inode table longer.
    pub(super) table: PatchId,
}

/// A locked group with the blocks that allocation changes.
pub(super) struct OpenGroup<'v> {
    pub(super) group: &'v Group,
    pub(super) state: MutexGuard<'v, GroupState>,
    /// The bitmap that was asked for.
    pub(super) map: Block,
    descriptor: Block,
}

impl Group {
    /// Locks the group, of which a bitmap and the descriptor were read.
    fn open(&self, mut read: Blocks) -> OpenGroup<'_> {
        let (Some(descriptor), Some(map)) = (read.pop(), read.pop()) else {
            unreachable!("two blocks were asked for");
        };
        OpenGroup { group: self, state: self.state.lock(), map, descriptor }
    }
}

impl OpenGroup<'_> {
    /// One of the group's summary counters.
    pub(super) fn counter(&self, tx: &Tx<'_>, field: Field<u16>) -> u16 {
        field.get(&tx.data(&self.descriptor)[self.group.descriptor.1..])
    }

    /// Adds to one of the group's summary counters. No dependencies: it is a hint.
    pub(super) fn adjust(&self, tx: &mut Tx<'_>, field: Field<u16>, delta: i32) {
        let at = self.group.descriptor.1;
        let now = i32::from(field.get(&tx.data(&self.descriptor)[at..]));
        let value = u16::try_from((now + delta).clamp(0, i32::from(u16::MAX))).expect("clamped");
        if i32::from(value) != now {
            tx.bytes(&self.descriptor, at + field.offset(), &value.to_le_bytes(), &[]);
        }
    }
}

impl Ext2 {
    /// The group `no`, which exists.
    pub(super) fn group(&self, no: u32) -> Result<&Group> {
        let cell = &self.groups.all[idx(no)];
        if let Some(group) = cell.get() {
            return Ok(group);
        }
        let (block, offset) = self.sb.descriptor_place(no);
        let block = BlockNo(block);
        let descriptors = self.cache.read(block, BlockKind::GroupDescriptor)?;
        let bytes = descriptors.snapshot();
        let size = self.sb.descriptor_size();
        let at = match GroupDescriptor::parse(&bytes[offset..offset + size], no, &self.sb, block) {
            Ok(at) => at,
            // Others have used the group meanwhile: in memory the sum means nothing any more.
            Err(error) => return cell.get().map(|group| &**group).ok_or(error),
        };
        if let Some(seal) = &self.seal {
            seal.note_group(no, &at);
        }
        let group = Group {
            no,
            at,
            descriptor: (block, offset),
            unwritten: AtomicU16::new(at.flags & (BLOCK_UNINIT | INODE_UNINIT)),
            _pinned: self.sb.features.has_sums().then_some(descriptors),
            full: AtomicBool::new(false),
            examined: AtomicBool::new(false),
            state: Mutex::default(),
        };
        Ok(cell.get_or_init(|| Box::new(group)))
    }

    /// Reads what allocation in group `no` needs, with one of its bitmaps, and locks it.
    pub(super) fn open_group(&self, no: u32, map: Map) -> Result<OpenGroup<'_>> {
        let group = self.group(no)?;
        self.write_maps(group, map)?;
        let block = BlockNo;
        let blocks = (block(group.at.block_bitmap), BlockKind::BlockBitmap);
        let inodes = (block(group.at.inode_bitmap), BlockKind::InodeBitmap);
        let (wanted, other) = match map {
            Map::Blocks => (blocks, inodes),
            Map::Inodes => (inodes, blocks),
        };
        let descriptor = (group.descriptor.0, BlockKind::GroupDescriptor);
        if group.examined.load(Ordering::Acquire) {
            return Ok(group.open(self.cache.read_many(&[wanted, descriptor])?));
        }
        // In one read, since this is a group's first use.
        let mut found = self.cache.read_many(&[wanted, descriptor, other])?;
        let other = found.pop().expect("three blocks were asked for");
        let open = group.open(found);
        if !group.examined.load(Ordering::Acquire) {
            match map {
                Map::Blocks => self.examine(&open, &open.map, &other)?,
                Map::Inodes => self.examine(&open, &other, &open.map)?,
            }
            group.examined.store(true, Ordering::Release);
        }
        Ok(open)
    }

    /// Looks at a group's bitmaps for the first time: refuses ones with a wrong sum and ones that offer the volume's own blocks
    /// as free, and corrects the counters of a volume that was not unmounted cleanly.
    fn examine(&self, open: &OpenGroup<'_>, blocks: &Block, inodes: &Block) -> Result<()> {
        let group = open.group;
        let (bytes, inode_bytes) = (blocks.snapshot(), inodes.snapshot());
        let found = group.at.flags;
        if let Some(seal) = &self.seal {
            // As it was read: a map that was written only now has no sum yet.
            let raw = open.descriptor.snapshot();
            let raw = &raw[group.descriptor.1..group.descriptor.1 + self.sb.descriptor_size()];
            let maps = [
                (BLOCK_UNINIT, BlockKind::BlockBitmap, blocks.no(), &bytes, block_bitmap_sum(raw)),
                (INODE_UNINIT, BlockKind::InodeBitmap, inodes.no(), &inode_bytes, inode_bitmap_sum(raw)),
            ];
            for (unwritten, kind, no, bytes, kept) in maps {
                if found & unwritten != 0 {
                    continue;
                }
                if self.left.are_of_soft_updates() {
                    seal.take_bitmap(kind, no, bytes);
                } else {
                    seal.check_bitmap(kind, no, bytes, kept)?;
                }
            }
        }
        let start = self.sb.group_start(group.no);
        if found & BLOCK_UNINIT == 0 {
            for (first, end) in self.own_in(group) {
                if let Some(free) = bitmap::next(&bytes, false, first, end) {
                    let block = start + self.sb.blocks_of(free);
                    let problem = format!("block {block} of the volume's own metadata is marked as free");
                    return Err(Error::corrupt(
                        Structure::BlockBitmap(u64::from(group.no)),
                        blocks.no(),
                        problem,
                    ));
                }
            }
        }
        if self.is_unclean() && !self.cache.options().read_only {
            let unwritten = group.unwritten.load(Ordering::Relaxed);
            let mut tx = self.cache.lock();
            if unwritten & BLOCK_UNINIT == 0 {
                let free_blocks = bitmap::count_free(&bytes, self.sb.group_clusters(group.no));
                self.correct(&mut tx, open, BG_FREE_BLOCKS_COUNT, free_blocks);
            }
            if unwritten & INODE_UNINIT == 0 {
                let free_inodes = bitmap::count_free(&inode_bytes, self.sb.inodes_per_group);
                self.correct(&mut tx, open, BG_FREE_INODES_COUNT, free_inodes);
            }
        }
        Ok(())
    }

    /// Reads where all groups have their bitmaps and tables, if that may be in other groups, or in clusters that they share.
    pub(super) fn find_own(&self) -> Result<()> {
        if !self.sb.features.has_incompat(incompat::FLEX_BG) && !self.sb.has_clusters() {
            return Ok(());
        }
        let mut found = Vec::with_capacity(idx(self.sb.group_count()));
        for block in self.sb.all_descriptor_blocks() {
            let block = BlockNo(block);
            let bytes = self.cache.read(block, BlockKind::GroupDescriptor)?.snapshot();
            for raw in bytes.chunks_exact(self.sb.descriptor_size()) {
                let no = u32::try_from(found.len()).expect("groups have 32-bit numbers");
                if no == self.sb.group_count() {
                    break;
                }
                // A damaged one is reported by who uses the group.
                found.push(GroupDescriptor::parse(raw, no, &self.sb, block).ok());
            }
        }
        let _first = self.groups.own.set(OwnRuns::of(&self.sb, &found));
        Ok(())
    }

    /// Blocks of the clusters that are the volume's own, if they are known.
    pub(super) fn own_blocks(&self) -> u64 {
        self.groups.own.get().map_or(0, OwnRuns::count)
    }

    /// The parts of a group that are the volume's own, as bits of its block bitmap.
    pub(super) fn own_in(&self, group: &Group) -> SmallVec<[(u32, u32); 4]> {
        let start = self.sb.group_start(group.no);
        let end = start + u64::from(self.sb.group_blocks(group.no));
        let local;
        let own = match self.groups.own.get() {
            Some(own) => own,
            None => {
                local = OwnRuns::of_group(&self.sb, group.no, &group.at);
                &local
            }
        };
        let bits = |(first, last)| (self.sb.bit_of(first), self.sb.clusters(low32(last - start)));
        own.within(start, end).map(bits).collect()
    }

    /// Sets a group's counter to what its bitmap says and tells the volume's total the difference.
    fn correct(&self, tx: &mut Tx<'_>, open: &OpenGroup<'_>, field: Field<u16>, counted: u32) {
        let at = open.group.descriptor.1;
        let delta = i64::from(counted) - i64::from(field.get(&tx.data(&open.descriptor)[at..]));
        if delta == 0 {
            return;
        }
        open.adjust(tx, field, i32::try_from(delta).expect("both fit 32 bits"));
        if field.offset() == BG_FREE_BLOCKS_COUNT.offset() {
            self.adjust_free_blocks(tx, delta << self.sb.log_cluster);
        } else {
            self.adjust_free_inodes(tx, delta);
        }
    }

    /// Makes sure that group `no`'s counters are right.
    pub(super) fn recount_group(&self, no: u32) -> Result<()> {
        self.open_group(no, Map::Blocks).map(drop)
    }

    /// Looks at descriptors, `count` of them from `first` on (wrapping at the end of the first `groups`), as they are in the cache, until `each`
    /// returns false.
    pub(super) fn scan_descriptors(
        &self,
        (first, count): (u32, u32),
        groups: u32,
        each: &mut dyn FnMut(u32, &GroupDescriptor) -> bool,
    ) -> Result<()> {
        let mut held: Option<(u64, std::sync::Arc<fstitch_core::BlockBuf>)> = None;
        for step in 0..count.min(groups) {
            let no = u32::try_from((u64::from(first) + u64::from(step)) % u64::from(groups))
                .expect("below groups");
            let (block, offset) = self.sb.descriptor_place(no);
            if held.as_ref().is_none_or(|(at, _)| *at != block) {
                let read = self.cache.read(BlockNo(block), BlockKind::GroupDescriptor)?;
                held = Some((block, read.snapshot()));
            }
            let Some((_, bytes)) = &held else { unreachable!("just read") };
            if !each(no, &GroupDescriptor::raw(&bytes[offset..offset + self.sb.descriptor_size()])) {
                break;
            }
        }
        Ok(())
    }

    /// Puts the sums of bitmaps that were written without a journal into the descriptors. Everything else is stable.
    pub(super) fn settle_bitmap_sums(&self) -> Result<PatchIds> {
        let mut patches = PatchIds::new();
        let Some(seal) = &self.seal else { return Ok(patches) };
        for (group, sums) in seal.unsettled() {
            let (block, at) = self.sb.descriptor_place(group);
            let block = self.cache.read(BlockNo(block), BlockKind::GroupDescriptor)?;
            let mut tx = self.cache.lock();
            let mut raw = tx.data(&block)[at..at + self.sb.descriptor_size()].to_vec();
            sums.put(&mut raw);
            // All of it, even where the image in memory has nothing new: the medium need not have it.
            patches.push(tx.bytes(&block, at, &raw, &[]));
        }
        Ok(patches)
    }

    /// All blocks of the descriptor table, in order.
    pub(super) fn all_descriptor_blocks(&self) -> Result<Vec<Block>> {
        self.sb
            .all_descriptor_blocks()
            .map(|block| self.cache.read(BlockNo(block), BlockKind::GroupDescriptor))
            .collect()
    }

    /// Free blocks and inodes by the groups' counters in `blocks`, at one moment.
    pub(super) fn sum_descriptors(&self, tx: &Tx<'_>, blocks: &[Block]) -> (u64, u32) {
        let (mut free_blocks, mut free_inodes) = (0_u64, 0_u32);
        for no in 0..self.sb.group_count() {
            let (_, offset) = self.sb.descriptor_place(no);
            let bytes = &tx.data(&blocks[idx(no / self.sb.descriptors_per_block())])[offset..];
            free_blocks =
                free_blocks.saturating_add(u64::from(BG_FREE_BLOCKS_COUNT.get(bytes)) << self.sb.log_cluster);
            free_inodes = free_inodes.saturating_add(u32::from(BG_FREE_INODES_COUNT.get(bytes)));
        }
        (free_blocks, free_inodes)
    }

    /// Whether the run of blocks `start..start + count` can belong to a file: inside the volume, and none of the
    /// groups' own metadata.
    pub(super) fn is_file_run(&self, start: u64, count: u32) -> Result<bool> {
        let end = start.saturating_add(u64::from(count));
        if start <= self.sb.first_data_block() || end > self.sb.blocks_count {
            return Ok(false);
        }
        if let Some(own) = self.groups.own.get() {
            return Ok(!own.meet(start, end));
        }
        for no in self.sb.group_of(start)..=self.sb.group_of(end - 1) {
            let at = self.group(no)?.at;
            let first = self.sb.group_start(no);
            let own = [
                (first, self.sb.group_overhead(no)),
                (at.block_bitmap, 1),
                (at.inode_bitmap, 1),
                (at.inode_table, self.sb.inode_table_blocks()),
            ];
            if own.iter().any(|&(own, len)| len > 0 && start < own + u64::from(len) && own < end) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The counter of directories.
pub(super) const DIRS: Field<u16> = BG_USED_DIRS_COUNT;
