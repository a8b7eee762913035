//! Allocating, punching and zeroing ranges of files; see `shift` for taking them out and putting them in. Where the format has no notion of a block that is allocated but
//! unwritten, allocated blocks are initialised with zeros like written ones; see `preallocate` for the others.

use fstitch_core::{Caller, Errno, FallocateMode, InodeNo, Result};
use fstitch_posix::change::{check_fallocate, expect_allocatable, range_end};

use super::node::Node;
use super::preallocate::Wish;
use super::read::{long, short};
use super::shift::Shifting;
use super::volume::{ATTR_CHANGE_BLOCKS, Change};
use super::write::{Fill, Source};
use super::{LowLevelFs, Uhfs};

/// A range that is filled, and whether the file grows with it.
pub(super) struct Range<'a> {
    pub(super) caller: &'a Caller,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) source: Source<'a>,
    pub(super) grow: bool,
}

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_fallocate(
        &self,
        caller: &Caller,
        ino: InodeNo,
        (offset, len): (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let end = range_end((offset, len), self.low.limits().size_max)?;
        let change = self.change(0)?;
        let node = self.node(ino)?;
        expect_allocatable(self.kind(&*node.read()?))?;
        let _writer = self.writer(&change, &node)?;
        node.refuse_pinned()?;
        check_fallocate(self.low.flags(node.read()?.inode()), mode)?;
        self.move_out_first(&change, &node, caller)?;
        let (size, unwritten) = {
            let state = node.read()?;
            (self.low.attr(state.inode()).size, self.low.has_unwritten(state.inode()))
        };
        if let Some(shifting) = Shifting::of(mode, offset, len) {
            return self.shift(&change, &node, caller, &shifting);
        }
        if unwritten && mode != FallocateMode::PunchHole {
            let wish = Wish { caller, start: offset, end, mode };
            return self.allocate_unwritten(&change, &node, &wish);
        }
        let (source, grow) = match mode {
            FallocateMode::PunchHole => {
                return self.punch(&change, &node, caller, (offset, end, size));
            }
            FallocateMode::Allocate => (Source::ZerosInHoles, true),
            FallocateMode::AllocateKeepSize => (Source::ZerosInHoles, false),
            FallocateMode::ZeroRange => (Source::Zeros, true),
            FallocateMode::ZeroRangeKeepSize => (Source::Zeros, false),
            FallocateMode::CollapseRange | FallocateMode::InsertRange => unreachable!("done above"),
        };
        let file_end = self.blocks_of(size) * long(self.block_size());
        if mode == FallocateMode::AllocateKeepSize && end > file_end {
            return Err(Errno::OPNOTSUPP.into());
        }
        // Behind the end everything is zero already.
        let end = if grow { end } else { end.min(size) };
        if offset < end {
            let len = usize::try_from(end - offset).unwrap_or(usize::MAX);
            self.trim_before_growth(&change, &node, if grow { end } else { 0 })?;
            if len <= self.step_blocks * self.block_size() {
                change.reserve_whole(len, 2 * ATTR_CHANGE_BLOCKS)?;
            }
            let filled =
                self.fill_in_steps(&change, &node, &Range { caller, start: offset, end, source, grow });
            if let Err(error) = filled {
                // What did not fit shall not leave a file that has grown by a part of it.
                if end > size {
                    self.resize(&change, &node, caller, size)?;
                }
                return Err(error);
            }
        }
        self.finish_fallocate(&change, &node, caller)
    }

    /// Moves contents that are elsewhere than in blocks there, in a step of its own: the file is the same before and after.
    fn move_out_first(&self, change: &Change<'_>, node: &Node<L::Inode>, caller: &Caller) -> Result<()> {
        let moving = self.moving(&*node.read()?);
        if moving == 0 {
            return Ok(());
        }
        change.reserve(0, ATTR_CHANGE_BLOCKS + moving)?;
        self.move_out(&mut *node.write()?, caller, u64::MAX)
    }

    pub(super) fn finish_fallocate(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
    ) -> Result<()> {
        change.reserve(0, ATTR_CHANGE_BLOCKS)?;
        let mut state = node.write()?;
        self.drop_privileges(&mut state, caller)?;
        self.touch(&mut state, true)
    }

    pub(super) fn fill_in_steps(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        range: &Range<'_>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
            let len = self.step_len(at, left);
            change.reserve(len, ATTR_CHANGE_BLOCKS)?;
            let mut state = node.write()?;
            let size = self.low.attr(state.inode()).size;
            if range.grow && at + long(len) > size {
                self.zero_gap(&mut state, size)?;
            }
            let fill = Fill { caller: range.caller, offset: at, len, source: range.source };
            at += long(self.fill_and_grow(&mut state, &fill, range.grow)?);
        }
        Ok(())
    }

    /// Frees the whole blocks of a range, as far as the file reaches, and zeroes the rest of it.
    fn punch(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
        (start, end, size): (u64, u64, u64),
    ) -> Result<()> {
        let unit = long(self.low.limits().hole_unit);
        let per_unit = unit / long(self.block_size());
        let end = end.min(size);
        let (first, last) = self.hole_in((start, end), size);
        if let Some(freeing) = self.freeing(last.saturating_sub(first) * per_unit) {
            change.reserve_whole(2 * short(unit), 3 * ATTR_CHANGE_BLOCKS + freeing)?;
        }
        let edges = match first < last {
            true => [(start, first * unit), (last * unit, end)],
            false => [(start, end), (end, end)],
        };
        edges.into_iter().try_for_each(|edge| self.zero_edge(change, node, caller, edge))?;
        self.detach_between(change, node, (first * per_unit, last * per_unit), &[])?;
        self.finish_fallocate(change, node, caller)
    }

    /// The first unit that a range of a file has all of, and the one behind the last, in units of holes: none in which the file must end.
    fn hole_in(&self, (start, end): (u64, u64), size: u64) -> (u64, u64) {
        let unit = long(self.low.limits().hole_unit);
        let kept = if self.low.ends_in_block() { size.saturating_sub(1) / unit } else { u64::MAX };
        let first = start.div_ceil(unit);
        (first, (end / unit).min(kept).max(first))
    }

    /// Zeroes what a range has of blocks of which it has not all.
    pub(super) fn zero_edges(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
        (start, end): (u64, u64),
    ) -> Result<()> {
        let unit = long(self.block_size());
        let (first, last) = (start.div_ceil(unit), end / unit);
        let edges = match first <= last {
            true => [(start, end.min(first * unit)), ((last * unit).max(start), end)],
            false => [(start, end), (end, end)],
        };
        edges.into_iter().try_for_each(|edge| self.zero_edge(change, node, caller, edge))
    }

    /// Zeroes a range of blocks that are there or not together, unless it reads as zeros anyway.
    fn zero_edge(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        caller: &Caller,
        (from, to): (u64, u64),
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        change.reserve(short(to - from).max(self.block_size()), ATTR_CHANGE_BLOCKS)?;
        let mut state = node.write()?;
        let unit = long(self.block_size());
        let mut at = from;
        while at < to {
            let end = to.min((at / unit + 1) * unit);
            if self.low.map(state.inode(), at / unit, 1)?.contents().is_some() {
                let fill = Fill { caller, offset: at, len: short(end - at), source: Source::Zeros };
                self.fill_and_grow(&mut state, &fill, false)?;
            }
            at = end;
        }
        Ok(())
    }
}
