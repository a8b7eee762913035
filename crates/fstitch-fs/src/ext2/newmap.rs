//! The block map of a file that is made at once: all of its blocks are known and written. The journal's, and those of the
//! first files of a new volume.
//!
//! **Layout.** By pointers: 12 in the inode, then indirect blocks of one to three levels. By extents: up to four in the inode, else
//! leaves and as many levels above them as it takes. Blocks of the map come from a list of spare ones, since who makes a map also says
//! what else they could have been used for.

use fstitch_core::Le;

use super::layout::checksum::{InodeSums, place};
use super::layout::extent::{Entries, Extent, Index, Node, ROOT_MAX, WRITTEN_MAX, block_max};
use super::layout::inode::{DIRECT, POINTERS};
use super::num::{idx, low32, pointer32, small, wide};

/// Bytes of a pointer in a block map.
const POINTER_SIZE: u32 = 4;

/// What kind of map is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) block_size: u32,
    /// By extents, else by pointers.
    pub(crate) extents: bool,
    /// How extent nodes in blocks of their own are summed.
    pub(crate) sums: InodeSums,
}

/// A file's block map.
#[derive(Clone, Debug)]
pub(crate) struct NewMap {
    /// What the inode holds.
    pub(crate) root: [u32; POINTERS],
    /// The map's own blocks and what is in them.
    pub(crate) nodes: Vec<(u64, Vec<u8>)>,
    /// The file's blocks, in its order.
    pub(crate) data: Vec<u64>,
}

impl Shape {
    /// Blocks that the map of a file in `data` takes itself.
    pub(crate) fn nodes(&self, data: &[u64]) -> usize {
        if !self.extents {
            return idx(indirect_blocks(small(data.len()), self.block_size / POINTER_SIZE));
        }
        idx(self.tree_nodes(small(extents(data).len())))
    }

    /// Nodes below the root for so many extents.
    fn tree_nodes(&self, mut entries: u32) -> u32 {
        let mut nodes = 0;
        while entries > u32::from(ROOT_MAX) {
            entries = entries.div_ceil(u32::from(block_max(idx(self.block_size))));
            nodes += entries;
        }
        nodes
    }

    /// How many blocks a map takes that is as simple as that of `blocks` blocks can be.
    pub(crate) fn nodes_at_least(&self, blocks: u32) -> u32 {
        if !self.extents {
            return indirect_blocks(blocks, self.block_size / POINTER_SIZE);
        }
        self.tree_nodes(blocks.div_ceil(WRITTEN_MAX))
    }

    /// The map of the file in `data`, with as many of the blocks `spare` as [`Shape::nodes`] says.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn build(&self, data: &[u64], spare: &[u64]) -> NewMap {
        let mut spare = spare.iter().copied();
        let mut nodes = Vec::new();
        let root = if self.extents {
            self.tree(extents(data), &mut nodes, &mut spare)
        } else {
            self.pointers(data, &mut nodes, &mut spare)
        };
        NewMap { root, nodes, data: data.to_vec() }
    }

    fn pointers(
        &self,
        data: &[u64],
        nodes: &mut Vec<(u64, Vec<u8>)>,
        spare: &mut impl Iterator<Item = u64>,
    ) -> [u32; POINTERS] {
        let mut root = [0; POINTERS];
        let (direct, mut rest) = data.split_at(DIRECT.min(data.len()));
        root.iter_mut().zip(direct).for_each(|(pointer, &block)| *pointer = pointer32(block));
        let per_block = idx(self.block_size / POINTER_SIZE);
        let mut span = per_block;
        for (at, levels) in (DIRECT..POINTERS).zip(1..) {
            let (part, behind) = rest.split_at(span.min(rest.len()));
            (rest, span) = (behind, span * per_block);
            if part.is_empty() {
                break;
            }
            let mut level = part.to_vec();
            for _ in 0..levels {
                level = gather(&level, per_block, nodes, spare);
            }
            root[at] = pointer32(level[0]);
        }
        assert!(rest.is_empty(), "the file is short enough");
        root
    }

    fn tree(
        &self,
        extents: Vec<Extent>,
        nodes: &mut Vec<(u64, Vec<u8>)>,
        spare: &mut impl Iterator<Item = u64>,
    ) -> [u32; POINTERS] {
        let room = usize::from(block_max(idx(self.block_size)));
        let (mut level, mut depth) = (Entries::Leaf(extents), 0);
        while level.len() > usize::from(ROOT_MAX) {
            let parts: Vec<(u32, Entries)> = match level {
                Entries::Leaf(all) => {
                    all.chunks(room).map(|part| (part[0].block, Entries::Leaf(part.to_vec()))).collect()
                }
                Entries::Inner(all) => {
                    all.chunks(room).map(|part| (part[0].block, Entries::Inner(part.to_vec()))).collect()
                }
            };
            let above = parts.into_iter().map(|(block, entries)| {
                let node = spare.next().expect("the map was counted before");
                nodes.push((node, self.node(depth, entries)));
                Index { block, node }
            });
            level = Entries::Inner(above.collect());
            depth += 1;
        }
        Node { depth, max: ROOT_MAX, entries: level }.root_words()
    }

    fn node(&self, depth: u16, entries: Entries) -> Vec<u8> {
        let mut raw = vec![0; idx(self.block_size)];
        Node { depth, max: block_max(raw.len()), entries }.encode_into(&mut raw);
        if let Some(sum) = self.sums.extent_node(&raw) {
            place(&mut raw, sum);
        }
        raw
    }
}

/// Puts pointers into indirect blocks, and returns these.
fn gather(
    level: &[u64],
    per_block: usize,
    nodes: &mut Vec<(u64, Vec<u8>)>,
    spare: &mut impl Iterator<Item = u64>,
) -> Vec<u64> {
    let parents = level.chunks(per_block).map(|part| {
        let block = spare.next().expect("the map was counted before");
        let mut bytes = vec![0; per_block * 4];
        for (at, &pointer) in part.iter().enumerate() {
            Le::put_u32(&mut bytes, at * 4, pointer32(pointer));
        }
        nodes.push((block, bytes));
        block
    });
    parents.collect()
}

/// Indirect blocks for a file of `blocks` blocks without holes.
fn indirect_blocks(blocks: u32, pointers: u32) -> u32 {
    let mut rest = u64::from(blocks).saturating_sub(wide(DIRECT));
    let pointers = u64::from(pointers);
    let (mut count, mut span) = (0, pointers);
    for level in 1..=3_u32 {
        let under = rest.min(span);
        rest -= under;
        let mut array = under;
        for _ in 0..level {
            array = array.div_ceil(pointers);
            count += array;
        }
        span *= pointers;
    }
    low32(count)
}

/// The blocks as extents.
fn extents(data: &[u64]) -> Vec<Extent> {
    let mut extents: Vec<Extent> = Vec::new();
    for (at, &block) in data.iter().enumerate() {
        match extents.last_mut() {
            Some(last) if last.start + u64::from(last.len) == block && last.len < WRITTEN_MAX => {
                last.len += 1
            }
            _ => extents.push(Extent { block: small(at), len: 1, start: block, unwritten: false }),
        }
    }
    extents
}

#[cfg(test)]
mod tests {
    use fstitch_core::BlockNo;

    use super::*;
    use crate::ext2::layout::extent::Expected;

    fn shape(extents: bool) -> Shape {
        Shape { block_size: 1024, extents, sums: InodeSums::default() }
    }

    /// The blocks that an extent tree names.
    fn read(map: &NewMap, raw: &Node, into: &mut Vec<u64>) {
        match &raw.entries {
            Entries::Leaf(extents) => {
                for extent in extents {
                    assert_eq!(extent.block, small(into.len()), "no hole");
                    into.extend(extent.start..extent.start + u64::from(extent.len));
                }
            }
            Entries::Inner(below) => {
                for index in below {
                    let (_, bytes) = map.nodes.iter().find(|(block, _)| *block == index.node).unwrap();
                    let expected = Expected {
                        at: BlockNo(index.node),
                        depth: Some(raw.depth - 1),
                        range: (index.block, 1 << 32),
                        blocks_count: 1 << 48,
                    };
                    read(map, &Node::parse(bytes, &expected).unwrap(), into);
                }
            }
        }
    }

    #[test]
    fn a_tree_names_all_blocks_in_their_order() {
        let far: Vec<u64> = (0..30_000).map(|at| 1_000_000 + 2 * at).collect();
        let whole: Vec<u64> = (7..100_000).collect();
        for data in
            [&whole[..5], &whole[..], &far[..4], &far[..5], &far[..84 * 4], &far[..84 * 4 + 1], &far[..]]
        {
            let shape = shape(true);
            let spare: Vec<u64> = (0..wide(shape.nodes(data))).map(|at| 500_000 + at).collect();
            let map = shape.build(data, &spare);
            assert_eq!(map.nodes.len(), spare.len());
            let mut found = Vec::new();
            read(&map, &Node::parse_root(&map.root, BlockNo(0), 1 << 48).unwrap(), &mut found);
            assert_eq!(found, data);
        }
    }

    #[test]
    fn a_map_of_pointers_takes_what_was_counted() {
        for blocks in [1_u32, 12, 13, 268, 269, 66_000] {
            let data: Vec<u64> = (100..100 + u64::from(blocks)).collect();
            let shape = shape(false);
            assert_eq!(small(shape.nodes(&data)), shape.nodes_at_least(blocks));
            let spare: Vec<u64> =
                (0..shape.nodes_at_least(blocks)).map(|at| 500_000 + u64::from(at)).collect();
            assert_eq!(shape.build(&data, &spare).nodes.len(), spare.len());
        }
    }
}
