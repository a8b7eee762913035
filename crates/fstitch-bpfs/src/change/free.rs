//! What a file loses: its end, or what is between.

use fstitch_core::Result;
use fstitch_core::num::to_usize;

use super::Change;
use crate::layout::{Field, POINTERS};
use crate::pm::{BLOCK_BYTES, Block, Word};
use crate::tree::{self, Node, Tree, leaves, span};

impl Change<'_> {
    /// Makes a file shorter: what is behind its end is hidden, and free.
    pub(crate) fn cut_off(&mut self, ino: u64, end: u64) {
        let tree = Tree::File(ino);
        let (from, to) = (leaves(end), leaves(self.reached(ino)));
        let blocks = self.blocks_within(self.top(tree), (from, to));
        blocks.into_iter().for_each(|block| self.free(tree, block));
        self.set_field(ino, Field::Size, end);
    }

    /// The blocks that hold nothing but leaves of a range, and pointers to them.
    pub(super) fn blocks_within(&self, top: u64, (from, to): (u64, u64)) -> Vec<Block> {
        let mut blocks = Vec::new();
        let gate = &self.state.gate;
        let walked: Result<(), std::convert::Infallible> =
            tree::walk(gate, top, (from, to), &mut |(level, index, word)| {
                if index * span(level) >= from {
                    blocks.extend(gate.follow(word));
                }
                Ok(true)
            });
        let Ok(()) = walked;
        blocks
    }

    /// Takes whole blocks out of a file.
    pub(crate) fn punch(&mut self, ino: u64, (first, end): (u64, u64)) {
        let tree = Tree::File(ino);
        let end = if end >= leaves(self.reached(ino)) { u64::MAX } else { end };
        let top = Node { tree, level: self.height(tree), index: 0 };
        if first < end && self.exists(top) {
            self.punch_below(ino, top, (first, end));
        }
    }

    pub(super) fn punch_below(&mut self, ino: u64, node: Node, (first, end): (u64, u64)) {
        let (base, each) = (node.index * span(node.level), span(node.level));
        // A tree may be lower than its file is long.
        let is_outside = end <= base || base.saturating_add(each) <= first;
        let Some(block) = self.block(node).filter(|_| !is_outside) else { return };
        if first <= base && base.saturating_add(each) <= end {
            let height = if node.level == self.height(node.tree) { node.level } else { 0 };
            let below = self.blocks_of(block, node.level, leaves(self.reached(ino)).saturating_sub(base));
            below.into_iter().for_each(|block| self.free(node.tree, block));
            if node.level == self.height(node.tree) {
                self.set_field(ino, Field::Root, u64::from(height));
            } else {
                let (parent, at) = node.parent();
                self.set_word(parent, at, Word::plain(0));
            }
            return;
        }
        let each = span(node.level - 1);
        let from = (first / each).max(node.index * POINTERS);
        let to = end.div_ceil(each).min((node.index + 1) * POINTERS);
        for index in from..to {
            self.punch_below(ino, Node { level: node.level - 1, index, ..node }, (first, end));
        }
    }

    /// A block of pointers at a level and what is below it, as far as leaves can be reached.
    pub(super) fn blocks_of(&self, block: Block, level: u8, leaves: u64) -> Vec<Block> {
        let mut blocks = Vec::new();
        let gate = &self.state.gate;
        let top = Word::of(block, level).value();
        let walked: Result<(), std::convert::Infallible> =
            tree::walk(gate, top, (0, leaves), &mut |(_, _, word)| {
                blocks.extend(gate.follow(word));
                Ok(true)
            });
        let Ok(()) = walked;
        blocks
    }

    /// Gives a file blocks of zeros where it has none.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn fill_holes(&mut self, ino: u64, (first, end): (u64, u64)) -> Result<()> {
        let size = self.field(ino, Field::Size);
        self.reach(ino, end)?;
        for index in first..end {
            if !self.exists(Node::leaf(Tree::File(ino), index)) {
                let until = to_usize(size.saturating_sub(index * BLOCK_BYTES).min(BLOCK_BYTES));
                self.put_new(Node::leaf(Tree::File(ino), index), 0, &[], until)?;
            }
        }
        Ok(())
    }
}
