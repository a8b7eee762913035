//! The way to a pointer: through the inode, or through up to three levels of blocks of pointers.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, Errno, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::layout::inode::{DIRECT, INDIRECT, put_pointer};
use super::layout::superblock::Version;
use super::volume::{Inode, Ufs};
use crate::num::{idx64, wide};

/// The way to a file block's pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// Levels of blocks of pointers: 0 for a pointer in the inode.
    pub(super) levels: usize,
    /// The pointer in the inode: 12 and more are those to blocks of pointers.
    pub(super) root: usize,
    /// The pointer in each block of pointers, from the root down.
    pub(super) steps: [u64; INDIRECT],
    /// The first file block of the innermost array of pointers, and its pointers.
    pub(super) first: u64,
    pub(super) len: u64,
}

/// How far a walk along a path came.
pub(super) enum Reached {
    /// The innermost array is in the inode.
    Inode,
    /// It is in the block that begins with this fragment.
    Leaf(u64),
    /// The block of pointers at `depth` is missing; its pointer would be in `parent`, or in the inode.
    Missing { depth: usize, parent: Option<u64> },
}

impl Path {
    /// The way to file block `block`; `None` beyond the longest file.
    pub(super) fn to(block: u64, pointers: u64) -> Option<Self> {
        let direct = to_u64(DIRECT);
        if block < direct {
            return Some(Self { levels: 0, root: idx64(block), steps: [0; INDIRECT], first: 0, len: direct });
        }
        let (mut rest, mut span) = (block - direct, pointers);
        for levels in 1..=INDIRECT {
            if rest < span {
                let (mut steps, mut under, mut left) = ([0; INDIRECT], span, rest);
                for step in steps.iter_mut().take(levels) {
                    under /= pointers;
                    *step = left / under;
                    left %= under;
                }
                let first = block - steps[levels - 1];
                return Some(Self { levels, root: DIRECT + levels - 1, steps, first, len: pointers });
            }
            rest -= span;
            span *= pointers;
        }
        None
    }

    /// What tells the block of pointers at `depth` from others of the file: its level and the first file block below it.
    pub(super) fn key(&self, depth: usize, pointers: u64) -> (usize, u64) {
        let (mut first, mut span) = (self.first, pointers);
        for level in (depth + 1..self.levels).rev() {
            first -= self.steps[level - 1] * span;
            span *= pointers;
        }
        (self.levels - depth, first)
    }
}

/// The file blocks that the tree below pointer `root` of the inode has: the first one and their number.
pub(super) fn tree_span(root: usize, pointers: u64) -> (u64, u64) {
    let (mut first, mut span) = (to_u64(DIRECT), pointers);
    for _ in DIRECT..root {
        first += span;
        span *= pointers;
    }
    (first, span)
}

impl Ufs {
    pub(super) fn pointers(&self) -> u64 {
        u64::from(self.sb.pointers_per_block())
    }

    pub(super) fn per_block(&self) -> u64 {
        u64::from(self.sb.fragments_per_block())
    }

    /// The way to a file block, `EFBIG` beyond the longest file.
    pub(super) fn path(&self, block: u64) -> Result<Path> {
        Path::to(block, self.pointers()).ok_or_else(|| Errno::FBIG.into())
    }

    /// Follows a path as far as it exists.
    pub(super) fn reach(&self, inode: &Inode, path: &Path) -> Result<Reached> {
        if path.levels == 0 {
            return Ok(Reached::Inode);
        }
        let (mut next, mut parent) = (inode.disk.indirect[path.root - DIRECT], None);
        for depth in 0..path.levels {
            if next == 0 {
                return Ok(Reached::Missing { depth, parent });
            }
            self.check_range(inode.ino, next, self.per_block())?;
            if depth + 1 == path.levels {
                return Ok(Reached::Leaf(next));
            }
            parent = Some(next);
            next = self.child(inode, next, path.steps[depth])?;
        }
        Err(inode.damaged("a way to a block that has no end"))
    }

    /// The fragment of the block of pointers `node` that has pointer `at`, and the byte in it.
    pub(super) fn pointer_place(&self, node: u64, at: u64) -> (BlockNo, usize) {
        let byte = at * u64::from(self.sb.version.pointer_size());
        let fragment = u64::from(self.sb.fragment_size);
        (BlockNo(node + byte / fragment), idx64(byte % fragment))
    }

    /// The fragments that have pointers `from..to` of block `node`, with those of the pointers that each has.
    pub(super) fn pointer_blocks(&self, node: u64, from: u64, to: u64) -> Result<Vec<(Block, u64, u64)>> {
        let each = u64::from(self.sb.fragment_size / self.sb.version.pointer_size());
        let mut blocks = Vec::new();
        let mut at = from;
        while at < to {
            let end = to.min((at / each + 1) * each);
            let block = self.cache.read(self.pointer_place(node, at).0, BlockKind::Indirect)?;
            blocks.push((block, at, end));
            at = end;
        }
        Ok(blocks)
    }

    /// The bytes of pointers.
    pub(super) fn pointer_bytes(&self, pointers: impl ExactSizeIterator<Item = u64>) -> Vec<u8> {
        let mut bytes = vec![0; pointers.len() * crate::num::idx(self.sb.version.pointer_size())];
        for (slot, pointer) in pointers.enumerate() {
            put_pointer(&mut bytes, &self.sb, 0, slot, pointer);
        }
        bytes
    }

    /// Sets pointers in a block of them, of which `blocks` were read, after `befores`. Returns the patches.
    pub(super) fn put_pointers(
        &self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        blocks: &[(Block, u64, u64)],
        pointer: impl Fn(u64) -> u64,
        befores: &[PatchId],
    ) -> PatchIds {
        let mut patches = PatchIds::new();
        for (block, from, to) in blocks {
            let slots: Vec<u64> = (*from..*to).map(&pointer).collect();
            let bytes = self.pointer_bytes(slots.into_iter());
            let patch = tx.bytes(block, self.pointer_place(0, *from).1, &bytes, befores);
            inode.gather(tx, patch);
            patches.push(patch);
        }
        patches
    }

    /// Pointer `at` in the bytes of some.
    pub(super) fn pointer_in(&self, bytes: &[u8], at: usize) -> u64 {
        match self.sb.version {
            Version::One => u64::from(self.sb.order.u32(bytes, at * 4)),
            Version::Two => self.sb.order.u64(bytes, at * 8),
        }
    }

    /// The pointers of a block of them.
    pub(super) fn read_pointers(&self, inode: &Inode, node: u64) -> Result<Vec<u64>> {
        self.check_range(inode.ino, node, self.per_block())?;
        let wanted: Vec<_> =
            (node..node + self.per_block()).map(|at| (BlockNo(at), BlockKind::Indirect)).collect();
        let each = crate::num::idx(self.sb.fragment_size / self.sb.version.pointer_size());
        let mut all = Vec::with_capacity(idx64(self.pointers()));
        for bytes in self.cache.snapshots(&wanted)? {
            all.extend((0..each).map(|at| self.pointer_in(&bytes, at)));
        }
        debug_assert_eq!(wide(all.len()), self.pointers());
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_through_all_levels() {
        let path = |block| Path::to(block, 256).expect("a way");
        assert_eq!((path(11).levels, path(11).root), (0, 11));
        assert_eq!((path(12).levels, path(12).root, path(12).steps[0]), (1, 12, 0));
        let two = path(268 + 256 * 3 + 7);
        assert_eq!((two.levels, two.root, two.steps[0], two.steps[1]), (2, 13, 3, 7));
        assert_eq!((two.first, two.key(0, 256), two.key(1, 256)), (268 + 768, (2, 268), (1, 268 + 768)));
        let three = path(268 + 65_536 + 65_536 * 2 + 256 * 5 + 9);
        assert_eq!(three.steps, [2, 5, 9]);
        assert_eq!(three.key(0, 256), (3, 268 + 65_536));
        assert_eq!(three.key(1, 256), (2, 268 + 65_536 + 65_536 * 2));
        assert_eq!(Path::to(268 + 65_536 + (1 << 24), 256), None);
        assert_eq!((tree_span(12, 256), tree_span(13, 256)), ((12, 256), (268, 65_536)));
    }
}
