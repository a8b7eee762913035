//! Writing a planned volume.

use std::ops::Range;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Result};

use super::files::{NewDirectory, directories};
use super::group::{NewGroup, Used};
use super::options::MkfsOptions;
use super::plan::{COUNTS, Plan, SUPERBLOCK_ROOM};
use super::superblock::RECOVERY_AT;
use crate::ufs::layout::group::at;
use crate::ufs::layout::superblock::{PLACES, Totals};
use crate::view::BlockView;

/// Bytes of zeros written at once; whole fragments of any size.
const ZEROS: usize = 1 << 20;

/// A volume in the making.
pub(super) struct Writer<'a> {
    view: BlockView<'a>,
    options: &'a MkfsOptions,
    plan: &'a Plan,
    directories: Vec<NewDirectory>,
    zeros: Vec<u8>,
    totals: Totals,
    /// The counts of the groups that were written.
    summaries: Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, options: &'a MkfsOptions, plan: &'a Plan) -> Self {
        Self {
            view: BlockView::new(device, to_usize(plan.fragment_size)),
            options,
            plan,
            directories: directories(options),
            zeros: vec![0; ZEROS],
            totals: Totals::default(),
            summaries: Vec::new(),
        }
    }

    /// What is free. Known once the groups are written.
    pub(super) const fn totals(&self) -> Totals {
        self.totals
    }

    /// Makes sure that nobody takes the device for a volume until it is one, and later not for one that it was: wherever somebody looks for
    /// a superblock there is none.
    pub(super) fn wipe(&self) -> Result<()> {
        let last = PLACES.into_iter().max().unwrap_or_default() + u64::from(SUPERBLOCK_ROOM);
        let end = last.div_ceil(self.plan.fragment_size.into()).min(self.plan.fragments);
        self.zero(0..end, BlockKind::Superblock)?;
        self.view.flush()
    }

    /// Writes every group, but for the copy of the superblock in the first one.
    pub(super) fn groups(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        let last = self.plan.groups - 1;
        let mut common: Option<NewGroup> = None;
        for no in 0..self.plan.groups {
            let used = self.used(no);
            // All but the first and the last differ in their numbers alone.
            let group = match common.take() {
                Some(mut group) if no != last => {
                    self.plan.order.put_u32(&mut group.bytes, at::CGX, no);
                    group
                }
                _ => self.plan.group(no, used, self.options.now.secs),
            };
            self.count(&group);
            self.group(no, &group)?;
            progress(u64::from(no) + 1, self.plan.groups.into());
            common = (!used.is_first).then_some(group);
        }
        Ok(())
    }

    fn used(&self, no: u32) -> Used {
        let directories = u32::try_from(self.directories.len()).expect("a few");
        match no {
            0 => Used { directories, is_first: true },
            _ => Used { directories: 0, is_first: false },
        }
    }

    fn count(&mut self, group: &NewGroup) {
        self.summaries.extend(self.plan.counts(&group.totals));
        self.totals.directories += group.totals.directories;
        self.totals.blocks += group.totals.blocks;
        self.totals.inodes += group.totals.inodes;
        self.totals.fragments += group.totals.fragments;
    }

    /// Writes a group's block and its inodes.
    fn group(&self, no: u32, group: &NewGroup) -> Result<()> {
        let plan = self.plan;
        let start = plan.group_start(no);
        let [_, block, inodes, _] = plan.parts.map(u64::from);
        let mut bytes = group.bytes.clone();
        bytes.resize(to_usize(plan.block_size), 0);
        self.view.write(BlockNo(start + block), BlockKind::GroupDescriptor, &bytes)?;
        let blocks = plan.initialised() / plan.inodes_per_block();
        let end = inodes + u64::from(blocks * plan.fragments_per_block());
        self.zero(start + inodes..start + end, BlockKind::Inode)
    }

    /// Writes the directories, with their inodes, and the counts of all groups.
    pub(super) fn files(&self) -> Result<()> {
        let plan = self.plan;
        let mut inodes = vec![0; to_usize(plan.block_size)];
        let size = to_usize(plan.version.inode_size());
        let first = to_usize(crate::ufs::layout::superblock::ROOT_INO);
        let slots = inodes.chunks_exact_mut(size).skip(first);
        for ((index, directory), slot) in (0..).zip(&self.directories).zip(slots) {
            let block = plan.directory_at(index);
            slot.copy_from_slice(&directory.inode(plan, self.options, block));
            let contents = directory.contents(plan);
            self.view.write(BlockNo(block.into()), BlockKind::Directory, &contents)?;
        }
        self.view.write(BlockNo(plan.parts[2].into()), BlockKind::Inode, &inodes)?;
        assert_eq!(self.summaries.len(), to_usize(plan.groups) * COUNTS, "every group was counted");
        let mut summaries = self.summaries.clone();
        summaries.resize(to_usize(plan.summaries_size), 0);
        self.view.write(BlockNo(plan.summaries), BlockKind::GroupDescriptor, &summaries)
    }

    /// Writes the copies of the superblock, and then, when all else is stable, it: now this is a volume.
    pub(super) fn finish(&self) -> Result<()> {
        for no in 1..self.plan.groups {
            self.copy(no)?;
        }
        self.view.flush()?;
        // With blocks of 64 KiB the first copy of UFS1 lies where superblocks are looked for.
        self.copy(0)?;
        self.view.flush()?;
        let plan = self.plan;
        let at = to_usize(plan.superblock_at);
        let end = (at + to_usize(SUPERBLOCK_ROOM)).next_multiple_of(to_usize(plan.fragment_size));
        let mut head = vec![0; end];
        if let Some(recovery) = plan.recovery() {
            head[RECOVERY_AT..RECOVERY_AT + recovery.len()].copy_from_slice(&recovery);
        }
        let superblock = plan.superblock(self.options, &self.totals, plan.superblock_at.into());
        head[at..at + superblock.len()].copy_from_slice(&superblock);
        self.view.write(BlockNo(0), BlockKind::Superblock, &head)?;
        self.view.flush()
    }

    /// Writes the copy of the superblock in group `no`.
    fn copy(&self, no: u32) -> Result<()> {
        let plan = self.plan;
        let fragment = plan.group_start(no) + u64::from(plan.parts[0]);
        let place = fragment * u64::from(plan.fragment_size);
        let mut bytes = plan.superblock(self.options, &self.totals, place);
        let room = (plan.parts[1] - plan.parts[0]) * plan.fragment_size;
        bytes.resize(to_usize(room), 0);
        self.view.write(BlockNo(fragment), BlockKind::Superblock, &bytes)
    }

    /// Writes zeros, if there is something else.
    fn zero(&self, fragments: Range<u64>, kind: BlockKind) -> Result<()> {
        if self.options.device_is_zero {
            return Ok(());
        }
        let fragment = to_usize(self.plan.fragment_size);
        let at_once = to_u64(ZEROS / fragment);
        let mut from = fragments.start;
        while from < fragments.end {
            let count = at_once.min(fragments.end - from);
            self.view.write(BlockNo(from), kind, &self.zeros[..to_usize(count) * fragment])?;
            from += count;
        }
        Ok(())
    }
}
