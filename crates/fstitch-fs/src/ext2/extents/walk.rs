//! All of a map, for those who read a volume without its cache, or all of it.

use std::ops::Range;

use fstitch_core::{BlockNo, Result};

use super::map::expected;
use super::node::{ALL, child_for, damaged};
use crate::ext2::layout::extent::{Entries, Extent, Node};
use crate::ext2::layout::inode::POINTERS;

/// A part of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ext2) enum Part {
    /// A node below the root.
    Node(u64),
    /// An extent.
    Extent(Extent),
}

/// Where the nodes of a map come from.
pub(in crate::ext2) struct Source<'a> {
    /// Blocks on the volume.
    pub(in crate::ext2) blocks_count: u64,
    /// Reads a block that should be a node.
    pub(in crate::ext2) read: &'a mut dyn FnMut(u64) -> Result<Vec<u8>>,
}

/// Visits the extents of the map in an inode's words, which lie in block `at`, in the order of the file, and before them the nodes
/// that lead there, until `visit` fails. Damage ends it with an error: nodes are finite, and each is met once for each entry above.
///
/// # Errors
/// `Corrupt`, and those of reading and visiting.
pub(in crate::ext2) fn walk(
    (words, at): (&[u32; POINTERS], BlockNo),
    source: &mut Source<'_>,
    visit: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<()> {
    let root = Node::parse_root(words, at, source.blocks_count)?;
    // A tree cannot have more nodes than the volume has blocks.
    let mut left = source.blocks_count;
    below(&root, &ALL, &mut left, source, visit)
}

fn below(
    node: &Node,
    range: &Range<u64>,
    left: &mut u64,
    source: &mut Source<'_>,
    visit: &mut dyn FnMut(Part) -> Result<()>,
) -> Result<()> {
    match &node.entries {
        Entries::Leaf(extents) => extents.iter().try_for_each(|extent| visit(Part::Extent(*extent))),
        Entries::Inner(nodes) => {
            for entry in nodes {
                let Some((_, child, within)) = child_for(node, u64::from(entry.block), range) else {
                    continue;
                };
                *left = left.checked_sub(1).ok_or_else(|| damaged(None, "more nodes than blocks"))?;
                visit(Part::Node(child.node))?;
                let bytes = (source.read)(child.node)?;
                let expected = expected(source.blocks_count, child.node, node.depth - 1, &within);
                below(&Node::parse(&bytes, &expected)?, &within, left, source, visit)?;
            }
            Ok(())
        }
    }
}
