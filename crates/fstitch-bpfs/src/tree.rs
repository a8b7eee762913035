//! Trees of blocks: how they are counted and gone through.
//!
//! A tree has a word at its top, which points to its highest block and says how many levels of pointers there are above the leaves. The
//! same leaf has the same number whatever the height is; a tree that is too low, or has null pointers, reads as zeros there.

use crate::layout::{HEIGHT_MAX, POINTERS, slot};
use crate::pm::{BLOCK_BYTES, Block, Gate};

/// A tree of a volume, from the inner ones to the outermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tree {
    /// Contents of an inode.
    File(u64),
    /// Its extended attributes.
    Xattrs(u64),
    /// Of inodes.
    Inodes,
    /// The superblock, which nothing points to.
    Super,
}

/// A block of a tree by its place. They are ordered so that what points to a block comes behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Node {
    pub(crate) tree: Tree,
    /// 0 for contents.
    pub(crate) level: u8,
    pub(crate) index: u64,
}

impl Node {
    /// A block of contents.
    pub(crate) fn leaf(tree: Tree, index: u64) -> Self {
        Self { tree, level: 0, index }
    }

    /// What points to it, below the top of its tree, and where in that.
    pub(crate) fn parent(self) -> (Self, u16) {
        let at = u16::try_from(self.index % POINTERS).expect("a block has 512 pointers");
        (Self { level: self.level + 1, index: self.index / POINTERS, ..self }, at)
    }
}

/// Leaves below a block of a level.
pub(crate) fn span(level: u8) -> u64 {
    POINTERS.pow(level.into())
}

/// Leaves that hold so many bytes.
pub(crate) fn leaves(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES)
}

/// Levels that so many leaves need.
pub(crate) fn height_for(leaves: u64) -> u8 {
    (0..HEIGHT_MAX).find(|height| span(*height) >= leaves).unwrap_or(HEIGHT_MAX)
}

/// The height that the word at a top says.
pub(crate) fn height(root: u64) -> u8 {
    u8::try_from(root & 7).expect("3 bits").min(HEIGHT_MAX)
}

/// A leaf, if there is one.
pub(crate) fn leaf(gate: &Gate, root: u64, index: u64) -> Option<Block> {
    let height = height(root);
    if index >= span(height) {
        return None;
    }
    (0..height).rev().try_fold(gate.follow(root)?, |block, level| {
        let at = u16::try_from(index / span(level) % POINTERS).expect("a block has 512 pointers");
        gate.follow(gate.word(slot(block.at(), at)))
    })
}

/// What somebody who goes through a tree sees: the level, the number in it, and the word that points there.
pub(crate) type Seen = (u8, u64, u64);

/// Goes through the blocks above and of the leaves from `first` to before `end`, from the top down. `visit` is told of every word that is
/// not null, and says whether to go on below it.
pub(crate) fn walk<E>(
    gate: &Gate,
    root: u64,
    (first, end): (u64, u64),
    visit: &mut impl FnMut(Seen) -> Result<bool, E>,
) -> Result<(), E> {
    let height = height(root);
    let end = end.min(span(height));
    if root >> 3 == 0 || first >= end || !visit((height, 0, root))? {
        return Ok(());
    }
    below(gate, root, (height, 0), (first, end), visit)
}

fn below<E>(
    gate: &Gate,
    word: u64,
    (level, index): (u8, u64),
    (first, end): (u64, u64),
    visit: &mut impl FnMut(Seen) -> Result<bool, E>,
) -> Result<(), E> {
    let Some(block) = gate.follow(word).filter(|_| level > 0) else { return Ok(()) };
    let (level, each) = (level - 1, span(level - 1));
    let base = index * POINTERS;
    let from = (first / each).max(base);
    let to = end.div_ceil(each).min(base + POINTERS);
    for child in from..to {
        let at = u16::try_from(child - base).expect("a block has 512 pointers");
        let word = gate.word(slot(block.at(), at));
        if word >> 3 != 0 && visit((level, child, word))? {
            below(gate, word, (level, child), (first, end), visit)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_are_as_low_as_they_can_be() {
        let heights = [0, 1, 2, 512, 513, 512 * 512, 512 * 512 + 1].map(height_for);
        assert_eq!(heights, [0, 0, 1, 1, 2, 2, 3]);
    }

    #[test]
    fn what_points_to_a_block_comes_behind_it() {
        let leaf = Node::leaf(Tree::File(9), 1000);
        let (parent, at) = leaf.parent();
        assert_eq!((parent.level, parent.index, at), (1, 1, 488));
        assert!(leaf < parent && parent < Node::leaf(Tree::Inodes, 0));
        assert!(Node { tree: Tree::Inodes, level: 3, index: 0 } < Node::leaf(Tree::Super, 0));
    }
}
