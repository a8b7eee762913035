//! What operations on a tree need of its nodes beside what they are on the medium.

use std::ops::Range;

use fstitch_core::{BlockNo, Error, Result, Structure};

use crate::ext2::layout::extent::{Entries, Extent, Index, LOGICAL_END, Node, UNWRITTEN_MAX, WRITTEN_MAX};
use crate::ext2::layout::inode::POINTERS;

/// All file blocks that a tree may hold.
pub(super) const ALL: Range<u64> = 0..LOGICAL_END;

/// A file block of a tree as its 32 bits.
pub(super) fn index32(index: u64) -> u32 {
    u32::try_from(index).expect("a tree maps no file block from 2^32 on")
}

/// Damage in a tree as a whole.
pub(super) fn damaged(block: Option<u64>, problem: impl Into<String>) -> Error {
    let block = block.map(BlockNo);
    Error::corrupt(Structure::Other("extent node"), block, problem)
}

/// The part of an extent that is within `range`, which it meets.
pub(super) fn part(extent: Extent, range: &Range<u64>) -> Extent {
    let (from, to) = (range.start.max(u64::from(extent.block)), range.end.min(extent.end()));
    assert!(from < to, "a part of an extent is not empty");
    Extent { block: index32(from), len: index32(to - from), start: extent.at(index32(from)), ..extent }
}

/// The parts of an extent before and behind `range`.
pub(super) fn outside(extent: Extent, range: &Range<u64>) -> [Option<Extent>; 2] {
    let before = u64::from(extent.block)..range.start;
    let behind = range.end..extent.end();
    [before, behind].map(|rest| (!rest.is_empty()).then(|| part(extent, &rest)))
}

/// The longest extent of its kind.
pub(super) fn longest(extent: Extent) -> u32 {
    if extent.unwritten { UNWRITTEN_MAX } else { WRITTEN_MAX }
}

/// Two extents as one, if the second follows at once in the file and on the volume, and is alike.
pub(super) fn joined(first: Extent, next: Extent) -> Option<Extent> {
    let len = first.len + next.len;
    let follows = first.end() == u64::from(next.block)
        && first.start.checked_add(u64::from(first.len)) == Some(next.start)
        && first.unwritten == next.unwritten;
    (follows && len <= longest(first)).then_some(Extent { len, ..first })
}

/// The first file block of entry `at`.
pub(super) fn key(node: &Node, at: usize) -> Option<u32> {
    match &node.entries {
        Entries::Leaf(extents) => extents.get(at).map(|extent| extent.block),
        Entries::Inner(nodes) => nodes.get(at).map(|child| child.block),
    }
}

/// Takes the entries from `at` on.
pub(super) fn split_off(node: &mut Node, at: usize) -> Node {
    let entries = match &mut node.entries {
        Entries::Leaf(extents) => Entries::Leaf(extents.split_off(at)),
        Entries::Inner(nodes) => Entries::Inner(nodes.split_off(at)),
    };
    Node { entries, ..*node }
}

/// The extents of a leaf.
///
/// # Panics
/// If it is none.
pub(super) fn extents_mut(node: &mut Node) -> &mut Vec<Extent> {
    match &mut node.entries {
        Entries::Leaf(extents) => extents,
        Entries::Inner(_) => panic!("a node without levels below is a leaf"),
    }
}

/// The children of an inner node.
///
/// # Panics
/// If it is a leaf.
pub(super) fn children_mut(node: &mut Node) -> &mut Vec<Index> {
    match &mut node.entries {
        Entries::Inner(nodes) => nodes,
        Entries::Leaf(_) => panic!("a node with levels below has children"),
    }
}

/// The child of an inner node under which `index` is, or would be: its position, and the file blocks that it may hold if the
/// node's are within `range`.
pub(super) fn child_for(node: &Node, index: u64, range: &Range<u64>) -> Option<(usize, Index, Range<u64>)> {
    let Entries::Inner(nodes) = &node.entries else { return None };
    let at = nodes.partition_point(|child| u64::from(child.block) <= index).saturating_sub(1);
    let child = *nodes.get(at)?;
    let end = nodes.get(at + 1).map_or(range.end, |next| u64::from(next.block));
    Some((at, child, u64::from(child.block)..end))
}

/// The words of a new inode that has these blocks from its start on, if any.
pub(in crate::ext2) fn new_root(run: Option<(u64, u32)>) -> [u32; POINTERS] {
    let mut root = Node::empty_root();
    let extent = run.map(|(start, len)| Extent { block: 0, len, start, unwritten: false });
    extents_mut(&mut root).extend(extent);
    root.root_words()
}

/// The bytes that differ, from the first to the last.
pub(super) fn difference(before: &[u8], after: &[u8]) -> Option<Range<usize>> {
    let differs = |at: &usize| before[*at] != after[*at];
    let first = (0..before.len()).find(differs)?;
    let last = (0..before.len()).rev().find(differs)?;
    Some(first..last + 1)
}

/// Fails unless a node that is held is the one that its parent expects.
pub(super) fn expect_held(node: &Node, depth: u16, range: &Range<u64>, block: u64) -> Result<()> {
    let stands = node.depth == depth && key(node, 0).is_none_or(|key| range.contains(&u64::from(key)));
    if stands { Ok(()) } else { Err(damaged(Some(block), "it is in the tree twice")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_join_up_to_their_longest() {
        let extent = |block, len, start, unwritten| Extent { block, len, start, unwritten };
        let first = extent(10, 5, 100, false);
        assert_eq!(joined(first, extent(15, 2, 105, false)), Some(extent(10, 7, 100, false)));
        for other in [extent(16, 2, 105, false), extent(15, 2, 106, false), extent(15, 2, 105, true)] {
            assert_eq!(joined(first, other), None);
        }
        let long = extent(0, 32_000, 100, true);
        assert_eq!(joined(long, extent(32_000, 767, 32_100, true)).map(|both| both.len), Some(32_767));
        assert_eq!(joined(long, extent(32_000, 768, 32_100, true)), None);
    }

    #[test]
    fn extents_are_cut() {
        let extent = |block, len, start| Extent { block, len, start, unwritten: false };
        let whole = extent(10, 4, 9);
        assert_eq!(part(whole, &(11..13)), extent(11, 2, 10));
        assert_eq!(outside(whole, &(11..13)), [Some(extent(10, 1, 9)), Some(extent(13, 1, 12))]);
        assert_eq!(outside(whole, &(0..11)), [None, Some(extent(11, 3, 10))]);
        assert_eq!(outside(whole, &(10..20)), [None, None]);
    }

    #[test]
    fn differences_reach_from_the_first_to_the_last() {
        assert_eq!(difference(b"abcdef", b"abXdXf"), Some(2..5));
        assert_eq!(difference(b"same", b"same"), None);
    }
}
