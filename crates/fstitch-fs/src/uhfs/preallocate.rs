//! Allocating and zeroing ranges of files whose format has blocks that are there and read as zeros: nothing is written
//! but what says so. Blocks behind the file's end stay until it is cut.
//!
//! The order: holes filled with unwritten blocks, which nobody can see; then whole blocks unwritten, zeroed edges and the size. With a
//! journal what these change of metadata is one transaction, and with one of data the edges as well, as far as one step has room for what
//! says that the blocks are unwritten ([`Uhfs::zero_step`]); longer ranges are zeroed in steps, and a crash between two leaves a file of
//! which a part was zeroed.

use std::ops::Range;

use fstitch_core::{Caller, FallocateMode, Result};
use fstitch_patch::PatchIds;

use super::node::Node;
use super::read::long;
use super::volume::{ATTR_CHANGE_BLOCKS, Change};
use super::{LowLevelFs, Uhfs};

/// What one run of blocks in a hole dirties at most: a bitmap and its descriptor for it and for each new node of a map of several
/// levels, the nodes, the inode, the superblock.
const RUN_BLOCKS: usize = 32;
/// So many bytes of a map say where a block is, at worst, where every second entry is free.
const BYTES_PER_BLOCK: usize = 32;

/// A range that is to be allocated or zeroed.
pub(super) struct Wish<'a> {
    pub(super) caller: &'a Caller,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) mode: FallocateMode,
}

impl Wish<'_> {
    fn zeroes(&self) -> bool {
        matches!(self.mode, FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize)
    }

    fn grows(&self) -> bool {
        matches!(self.mode, FallocateMode::Allocate | FallocateMode::ZeroRange)
    }
}

impl<L: LowLevelFs> Uhfs<L> {
    /// Does what `wish` says. The caller holds the writer lock.
    pub(super) fn allocate_unwritten(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        wish: &Wish<'_>,
    ) -> Result<()> {
        // What a failed truncation has left must go before something lawful lies behind the end.
        self.trim_before_growth(change, node, wish.end)?;
        let size = self.low.attr(node.read()?.inode()).size;
        let grown = self
            .allocate_in_steps(change, node, wish)
            .and_then(|pointers| self.zero_and_grow(change, node, wish, (size, pointers)));
        if grown.is_err() && wish.grows() && wish.end > size {
            // What did not fit shall not leave a file that has grown by a part of it.
            self.resize(change, node, wish.caller, size)?;
        }
        grown
    }

    /// File blocks that are called unwritten in one step, at most.
    fn zero_step(&self) -> u64 {
        long((self.step_blocks / 2).max(1) * self.block_size() / BYTES_PER_BLOCK)
    }

    /// What calling so many file blocks unwritten dirties at most, if it may be done in one step.
    fn marks(&self, count: u64) -> Option<usize> {
        let nodes = usize::try_from(count).unwrap_or(usize::MAX).saturating_mul(2 * BYTES_PER_BLOCK);
        let marks = (2 * RUN_BLOCKS).saturating_add(nodes.div_ceil(self.block_size()));
        (count <= self.zero_step()).then_some(if count > 0 { marks.min(self.step_blocks) } else { 0 })
    }

    /// Does all of `wish` that can be seen, where `pointers` are those of its blocks.
    fn zero_and_grow(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        wish: &Wish<'_>,
        (size, pointers): (u64, PatchIds),
    ) -> Result<()> {
        let unit = long(self.block_size());
        let blocks = if wish.zeroes() { wish.start.div_ceil(unit)..wish.end / unit } else { 0..0 };
        if let Some(marks) = self.marks(blocks.end.saturating_sub(blocks.start)) {
            change.reserve_whole(3 * self.block_size(), 4 * ATTR_CHANGE_BLOCKS + marks)?;
        }
        if wish.zeroes() {
            self.zero_unwritten(change, node, wish, blocks)?;
        }
        if wish.grows() && wish.end > size {
            change.reserve(self.block_size(), ATTR_CHANGE_BLOCKS)?;
            let mut state = node.write()?;
            self.zero_gap(&mut state, size)?;
            let mut befores = pointers;
            befores.push(state.growth);
            self.set_size(&mut state, wish.end, &befores)?;
        }
        self.finish_fallocate(change, node, wish.caller)
    }

    /// Zeroes what there is in the range: whole blocks become unwritten. They come first, for they may find that there is no room.
    fn zero_unwritten(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        wish: &Wish<'_>,
        blocks: Range<u64>,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let to = blocks.end.min(at.saturating_add(self.zero_step()));
            change.reserve(0, self.step_blocks)?;
            let mut state = node.write()?;
            let patches = self.low.mark_unwritten(state.inode_mut(), at..to)?;
            self.note(&mut state, super::node::Part::Contents, &patches);
            at = to;
        }
        self.zero_edges(change, node, wish.caller, (wish.start, wish.end))
    }

    /// Fills the holes of the range with unwritten blocks; returns what a larger size must come after.
    fn allocate_in_steps(
        &self,
        change: &Change<'_>,
        node: &Node<L::Inode>,
        wish: &Wish<'_>,
    ) -> Result<PatchIds> {
        let mut all = PatchIds::new();
        let (mut at, end) = (wish.start / long(self.block_size()), self.blocks_of(wish.end));
        while at < end {
            change.reserve(0, RUN_BLOCKS)?;
            let mut state = node.write()?;
            let run = self.low.map(state.inode(), at, end - at)?;
            if run.start.is_some() {
                at += run.count;
                continue;
            }
            let (count, pointers) = self.low.preallocate(wish.caller, state.inode_mut(), at, run.count)?;
            self.note(&mut state, super::node::Part::Contents, &pointers);
            // What the steps before have done is in this transaction or in earlier ones.
            all.clone_from(&pointers);
            at += count;
        }
        Ok(all)
    }
}
