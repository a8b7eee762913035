//! Extents that move in their file. Every node from the first of them on changes; none is made, but where an extent is cut in two, and
//! none goes, but what a range had for itself.

use std::collections::BTreeSet;
use std::ops::Range;

use fstitch_core::Result;

use super::{At, Nodes, Tree, join, met};
use crate::ext2::extents::node::{ALL, children_mut, damaged, extents_mut, index32, key, outside, part};
use crate::ext2::layout::extent::{Entries, Index};

/// By how much file blocks from `from` on move.
struct Move {
    from: u64,
    by: i64,
    /// Nodes that have.
    moved: BTreeSet<u64>,
}

impl Move {
    fn new(from: u64, blocks: u64, back: bool) -> Result<Self> {
        let by =
            i64::try_from(blocks).map_err(|_| damaged(None, "a move over more blocks than files have"))?;
        Ok(Self { from, by: if back { -by } else { by }, moved: BTreeSet::new() })
    }

    /// Where the run of `len` blocks at `block` comes.
    fn place(&self, block: u32, len: u32) -> Result<u32> {
        let to = u64::from(block).checked_add_signed(self.by);
        let to = to.filter(|to| to.saturating_add(u64::from(len)) <= ALL.end);
        to.map(index32).ok_or_else(|| damaged(None, format!("file block {block} would be outside of files")))
    }
}

impl<N: Nodes> Tree<N> {
    /// Takes the blocks of `range` out of the file, where those behind it come; they are listed in [`Tree::lost`].
    pub(in crate::ext2) fn take_out(&mut self, range: &Range<u64>) -> Result<()> {
        self.remove(range)?;
        let mut work = Move::new(range.end, range.end - range.start, true)?;
        self.move_below((None, &ALL), &mut work)?;
        self.join_at(range.start)
    }

    /// Moves the blocks from the start of `range` on behind its end, so that it is a hole.
    pub(in crate::ext2) fn put_in(&mut self, range: &Range<u64>) -> Result<()> {
        self.cut(range.start)?;
        let mut work = Move::new(range.start, range.end - range.start, false)?;
        self.move_below((None, &ALL), &mut work)
    }

    /// Recursion is as deep as the tree.
    fn move_below(&mut self, (at, range): (At, &Range<u64>), work: &mut Move) -> Result<()> {
        let depth = self.node(at).depth;
        let children = match &self.node(at).entries {
            Entries::Leaf(_) => return self.move_leaf(at, work),
            Entries::Inner(children) => children.clone(),
        };
        for (slot, &child) in children.iter().enumerate() {
            let end = children.get(slot + 1).map_or(range.end, |next| u64::from(next.block));
            if end <= work.from {
                continue;
            }
            let Index { block, node } = child;
            let below = u64::from(block)..end;
            self.hold(child, depth - 1, &below)?;
            if !work.moved.insert(node) {
                return Err(damaged(Some(node), "it is in the tree twice"));
            }
            self.move_below((Some(node), &below), work)?;
            match key(self.node(Some(node)), 0) {
                Some(first) if first != block => children_mut(self.change(at))[slot].block = first,
                Some(_) => {}
                None => return Err(damaged(Some(node), "it is empty")),
            }
        }
        Ok(())
    }

    fn move_leaf(&mut self, at: At, work: &Move) -> Result<()> {
        let Entries::Leaf(extents) = &self.node(at).entries else { return Ok(()) };
        let first = extents.partition_point(|extent| u64::from(extent.block) < work.from);
        if first == extents.len() {
            return Ok(());
        }
        for extent in &mut extents_mut(self.change(at))[first..] {
            extent.block = work.place(extent.block, extent.len)?;
        }
        Ok(())
    }

    /// Has an extent begin at `index`, where one goes over it.
    fn cut(&mut self, index: u64) -> Result<()> {
        self.edit_each(&(index..index + 1), |extents, range, _, _| {
            let Some((at, _)) = met(extents, range) else { return };
            let [before, _] = outside(extents[at], range);
            let Some(before) = before else { return };
            let behind = part(extents[at], &(range.start..extents[at].end()));
            extents.splice(at..=at, [before, behind]);
        })
    }

    /// Joins what begins at `index` with what is before it.
    fn join_at(&mut self, index: u64) -> Result<()> {
        let path = self.path(index)?;
        let Entries::Leaf(extents) = &self.node(path.leaf).entries else { return Ok(()) };
        let at = extents.partition_point(|extent| u64::from(extent.block) < index);
        let around = at.saturating_sub(1)..at + 1;
        let walls = self.walls_in(path.leaf);
        join(extents_mut(self.change(path.leaf)), around, &walls);
        self.settle(path)
    }
}
