//! The block map: twelve direct pointers in the inode, then trees of one, two and three levels.
//!
//! ```text
//!   inode: 0 … 11 │ 12 ─► leaf │ 13 ─► node ─► leaf │ 14 ─► node ─► node ─► leaf
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{BlockKind, BlockNo, Errno, Result};
use fstitch_patch::Block;
use smallvec::SmallVec;

use super::inode::Inode;
use super::layout::inode::DIRECT;
use super::num::{idx, idx64, wide};
use super::volume::Ext2;
use crate::uhfs::Extent;

/// The way to a file block's pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// Levels of indirect blocks: 0 for direct pointers.
    pub(super) levels: usize,
    /// The pointer in the inode.
    pub(super) root: usize,
    /// The pointer in each indirect block, from the root down.
    steps: [usize; 3],
    /// The first file block of the innermost array of pointers.
    pub(super) leaf_first: u64,
    /// Pointers in that array.
    pub(super) leaf_len: u64,
}

impl Path {
    /// The way to file block `index`; `None` beyond the longest file.
    #[must_use]
    pub(super) fn to(index: u64, pointers: u64) -> Option<Self> {
        if index < wide(DIRECT) {
            let root = idx64(index);
            return Some(Self { levels: 0, root, steps: [0; 3], leaf_first: 0, leaf_len: wide(DIRECT) });
        }
        let mut first = wide(DIRECT);
        let mut span = pointers;
        for levels in 1..=3 {
            if index - first < span {
                let mut rest = index - first;
                let mut steps = [0; 3];
                let mut under = span;
                for step in steps.iter_mut().take(levels) {
                    under /= pointers;
                    *step = idx64(rest / under);
                    rest %= under;
                }
                let leaf_first = index - wide(steps[levels - 1]);
                return Some(Self {
                    levels,
                    root: DIRECT + levels - 1,
                    steps,
                    leaf_first,
                    leaf_len: pointers,
                });
            }
            first += span;
            span *= pointers;
        }
        None
    }

    /// The pointer's position in the indirect block at `depth` (0 is the block that the inode points at).
    #[must_use]
    pub(super) const fn step(&self, depth: usize) -> usize {
        self.steps[depth]
    }

    /// The first file block under the indirect block at `depth`, and how many are under it.
    #[must_use]
    pub(super) fn subtree(&self, depth: usize, pointers: u64) -> (u64, u64) {
        let mut span = pointers;
        let mut first = self.leaf_first;
        for below in (depth + 1..self.levels).rev() {
            // Leaving the level below: everything before this child in its parent.
            first -= wide(self.steps[below - 1]) * span;
            span *= pointers;
        }
        (first, span)
    }
}

/// The file blocks that tree `root` (12, 13 or 14) of the inode holds: the first one and their number.
#[must_use]
pub(super) fn tree_span(root: usize, pointers: u64) -> (u64, u64) {
    let mut first = wide(DIRECT);
    let mut span = pointers;
    for _ in DIRECT..root {
        first += span;
        span *= pointers;
    }
    (first, span)
}

/// Pointer `at` of the indirect block `bytes`.
#[must_use]
pub(super) fn pointer(bytes: &[u8], at: usize) -> u32 {
    fstitch_core::Le::u32(bytes, at * 4)
}

/// The first of some pointers, and how many of them from there on are a run of blocks or a hole.
fn run_of(slots: std::ops::Range<usize>, pointer: impl Fn(usize) -> u32) -> (u32, usize) {
    let (at, first) = (slots.start, pointer(slots.start));
    let alike = |step: usize, found: u32| match first {
        0 => found == 0,
        _ => u64::from(found) == u64::from(first) + wide(step),
    };
    (first, slots.take_while(|&slot| alike(slot - at, pointer(slot))).count())
}

/// The innermost indirect block that was met last, so that work on neighbouring blocks of a file does not walk down from
/// the inode each time: its number and which of the file's it is, in one word. It is known while the pointers that lead to it
/// stand: whoever clears pointers forgets it, under the inode's lock, as whoever looks holds that lock at least shared.
#[derive(Debug, Default)]
pub(super) struct LeafHint(AtomicU64);

impl LeafHint {
    pub(super) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Which of the file's innermost indirect blocks a path leads to, counted from 0.
    fn ordinal(path: &Path) -> u64 {
        (path.leaf_first - wide(DIRECT)) / path.leaf_len
    }

    fn set(&self, path: &Path, block: u32) {
        // A file has fewer than 2^32 blocks.
        self.0.store(Self::ordinal(path) << 32 | u64::from(block), Ordering::Relaxed);
    }

    pub(super) fn get(&self, path: &Path) -> Option<BlockNo> {
        let hint = self.0.load(Ordering::Relaxed);
        let block = hint & u64::from(u32::MAX);
        (block != 0 && hint >> 32 == Self::ordinal(path)).then_some(BlockNo(block))
    }
}

/// How far a walk along a path came.
pub(super) enum Reached {
    /// An indirect block at `depth` is missing: nothing under it exists.
    Missing {
        /// Depth of the first missing block.
        depth: usize,
        /// The last block that exists, where its pointer is missing; `None` if that is the inode.
        parent: Option<Block>,
    },
    /// The innermost array of pointers is in the inode itself.
    Direct,
    /// It is in this indirect block.
    Leaf(Block),
}

impl Ext2 {
    pub(super) fn pointers(&self) -> u64 {
        u64::from(self.sb.pointers_per_block())
    }

    /// Reads indirect block `no` of an inode.
    pub(super) fn read_indirect(&self, inode: &Inode, no: u64) -> Result<Block> {
        self.expect_indirect(inode, no)?;
        self.cache.read(BlockNo(no), BlockKind::Indirect)
    }

    /// Fails if `no` cannot be an indirect block.
    fn expect_indirect(&self, inode: &Inode, no: u64) -> Result<()> {
        match self.is_file_run(no, 1)? {
            true => Ok(()),
            false => Err(inode.damaged(format!("its indirect block {no} is outside the blocks for files"))),
        }
    }

    /// Follows `path` as far as it exists.
    pub(super) fn follow(&self, inode: &Inode, path: &Path) -> Result<Reached> {
        if path.levels == 0 {
            return Ok(Reached::Direct);
        }
        if let Some(leaf) = inode.leaf.get(path) {
            return Ok(Reached::Leaf(self.cache.read(leaf, BlockKind::Indirect)?));
        }
        let mut next = inode.disk.block[path.root];
        let mut parent: Option<Block> = None;
        for depth in 0..path.levels {
            if next == 0 {
                return Ok(Reached::Missing { depth, parent });
            }
            self.expect_indirect(inode, u64::from(next))?;
            let no = BlockNo(u64::from(next));
            if depth + 1 == path.levels {
                inode.leaf.set(path, next);
                return Ok(Reached::Leaf(self.cache.read(no, BlockKind::Indirect)?));
            }
            let (block, bytes) = self.cache.read_snapshot(no, BlockKind::Indirect)?;
            next = pointer(&bytes, path.step(depth));
            parent = Some(block);
        }
        unreachable!("the last level is a leaf or missing")
    }

    /// The run at file block `index`, at most `max` blocks long.
    pub(super) fn map_run(&self, inode: &Inode, index: u64, max: u64) -> Result<Extent> {
        if inode.has_extents() {
            return self.map_extent(inode, index, max);
        }
        if inode.disk.has_inline_data() {
            return Ok(Extent::hole(max.max(1)));
        }
        let Some(path) = Path::to(index, self.pointers()) else {
            return Ok(Extent::hole(max.max(1)));
        };
        let reached = self.follow(inode, &path)?;
        self.run_at(inode, (&path, &reached), index, max)
    }

    /// The run at file block `index`, whose way was followed.
    pub(super) fn run_at(
        &self,
        inode: &Inode,
        (path, reached): (&Path, &Reached),
        index: u64,
        max: u64,
    ) -> Result<Extent> {
        let max = max.max(1);
        let at = idx64(index - path.leaf_first);
        let len = idx64(path.leaf_len.min(index - path.leaf_first + max));
        let (first, count) = match reached {
            Reached::Missing { depth, .. } => {
                let (first, span) = path.subtree(*depth, self.pointers());
                return Ok(Extent::hole((first + span - index).min(max)));
            }
            Reached::Direct => run_of(at..len, |slot| inode.disk.block[slot]),
            Reached::Leaf(block) => {
                let bytes = block.snapshot();
                run_of(at..len, |slot| pointer(&bytes, slot))
            }
        };
        if first == 0 {
            return Ok(Extent::hole(wide(count)));
        }
        let run = u32::try_from(count).expect("at most the pointers of a block");
        if !self.is_file_run(u64::from(first), run)? {
            return Err(inode.damaged(format!("file block {index} at {first}: outside the blocks for files")));
        }
        Ok(Extent::of(BlockNo(u64::from(first)), wide(count)))
    }

    /// The way to file block `index`, `EFBIG` beyond the longest file.
    pub(super) fn path(&self, index: u64) -> Result<Path> {
        Path::to(index, self.pointers()).ok_or_else(|| Errno::FBIG.into())
    }

    /// The volume's block at file block `index`, if there is one.
    pub(super) fn block_at(&self, inode: &Inode, index: u64) -> Result<Option<u64>> {
        let extent = self.map_run(inode, index, 1)?;
        Ok(extent.start.map(BlockNo::get))
    }

    /// Bytes of a pointer array as little-endian words.
    pub(super) fn pointer_words(start: u32, count: u32) -> SmallVec<[u8; 64]> {
        (start..start + count).flat_map(u32::to_le_bytes).collect()
    }

    /// The byte where pointer `at` starts in its block.
    pub(super) fn pointer_place(at: u64) -> usize {
        idx(u32::try_from(at).expect("a position in a block")) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_through_all_levels() {
        let path = |index| Path::to(index, 256).unwrap();
        assert_eq!((path(11).levels, path(11).root), (0, 11));
        assert_eq!((path(12).levels, path(12).root, path(12).step(0)), (1, 12, 0));
        assert_eq!((path(267).levels, path(267).step(0)), (1, 255));
        let two = path(268 + 256 * 3 + 7);
        assert_eq!((two.levels, two.root, two.step(0), two.step(1)), (2, 13, 3, 7));
        assert_eq!((two.leaf_first, two.subtree(0, 256)), (268 + 768, (268, 65_536)));
        assert_eq!(two.subtree(1, 256), (268 + 768, 256));
        let three = path(268 + 65_536 + 65_536 * 2 + 256 * 5 + 9);
        assert_eq!((three.levels, three.root), (3, 14));
        assert_eq!((three.step(0), three.step(1), three.step(2)), (2, 5, 9));
        assert_eq!(three.subtree(0, 256), (268 + 65_536, 1 << 24));
        assert_eq!(three.subtree(1, 256), (268 + 65_536 + 65_536 * 2, 65_536));
        assert_eq!(Path::to(268 + 65_536 + (1 << 24), 256), None);
    }

    #[test]
    fn trees_follow_each_other() {
        assert_eq!(tree_span(12, 256), (12, 256));
        assert_eq!(tree_span(13, 256), (268, 65_536));
        assert_eq!(tree_span(14, 256), (65_804, 1 << 24));
    }
}
