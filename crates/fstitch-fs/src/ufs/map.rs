//! Where the fragments of a file lie.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, Errno, Result};

use super::damaged_inode;
use super::layout::inode::{DIRECT, flag};
use super::layout::superblock::Version;
use super::volume::{Inode, Ufs};
use crate::uhfs::Extent;

/// A block's pointer, or how many blocks there are none for.
enum Pointer {
    /// The block begins with this fragment.
    To(u64),
    /// So many blocks, this one included, are holes.
    Hole(u64),
}

impl Ufs {
    /// The run of fragments at `index`, of at most `max`.
    pub(super) fn map_run(&self, inode: &Inode, index: u64, max: u64) -> Result<Extent> {
        if inode.disk.flags & flag::SNAPSHOT != 0 {
            // What it does not have is to be read from the volume, as far as that has not changed.
            return Err(Errno::OPNOTSUPP.into());
        }
        let per_block = u64::from(self.sb.fragments_per_block());
        let (block, inside) = (index / per_block, index % per_block);
        let reached = self.blocks_max();
        if block >= reached || !inode.has_blocks(&self.sb) {
            return Ok(Extent::hole(max.max(1)));
        }
        let mut run = self.map_block(inode, block, inside)?;
        while run.count < max {
            let next = index + run.count;
            if !next.is_multiple_of(per_block) || next / per_block >= reached {
                break;
            }
            let more = self.map_block(inode, next / per_block, 0)?;
            let is_one = match (run.start, more.start) {
                (Some(start), Some(more)) => start.get() + run.count == more.get(),
                (None, None) => true,
                _ => false,
            };
            if !is_one {
                break;
            }
            run.count += more.count;
        }
        run.count = run.count.min(max.max(1));
        Ok(run)
    }

    /// How many blocks a file has at most.
    pub(super) fn blocks_max(&self) -> u64 {
        let pointers = u64::from(self.sb.pointers_per_block());
        to_u64(DIRECT) + pointers + pointers.pow(2) + pointers.pow(3)
    }

    /// How many fragments there are of a block that the inode has a pointer to.
    pub(super) fn allocated_len(&self, inode: &Inode, block: u64) -> u64 {
        match inode.tail {
            Some((tail, count)) if tail == block => count,
            _ => u64::from(self.sb.fragments_per_block()),
        }
    }

    /// Fragments that so many bytes take.
    pub(super) fn fragments_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.sb.fragment_size))
    }

    /// How many fragments block `block` of a file of `size` bytes has: the last one ends with the file, if it is one of the first.
    pub(super) fn block_len(&self, size: u64, block: u64) -> u64 {
        let per_block = u64::from(self.sb.fragments_per_block());
        if block >= to_u64(DIRECT) {
            return per_block;
        }
        let here = size.saturating_sub(block * u64::from(self.sb.block_size));
        self.fragments_of(here).clamp(1, per_block)
    }

    /// The rest of block `block` from its fragment `inside` on; holes may be longer.
    fn map_block(&self, inode: &Inode, block: u64, inside: u64) -> Result<Extent> {
        let per_block = u64::from(self.sb.fragments_per_block());
        match self.pointer(inode, block)? {
            Pointer::Hole(blocks) => Ok(Extent::hole(blocks.saturating_mul(per_block) - inside)),
            Pointer::To(start) => {
                let len = self.allocated_len(inode, block);
                if inside >= len {
                    return Ok(Extent::hole(per_block - inside));
                }
                self.check_range(inode.ino, start, len)?;
                Ok(Extent::of(BlockNo(start + inside), len - inside))
            }
        }
    }

    fn pointer(&self, inode: &Inode, block: u64) -> Result<Pointer> {
        let direct = to_u64(DIRECT);
        if block < direct {
            let start = inode.disk.direct[usize::try_from(block).unwrap_or(0)];
            return Ok(if start == 0 { Pointer::Hole(1) } else { Pointer::To(start) });
        }
        let pointers = u64::from(self.sb.pointers_per_block());
        let (mut at, mut span) = (block - direct, 1);
        for root in inode.disk.indirect {
            // A block of pointers at this level reaches so many blocks.
            let reach = span * pointers;
            if at < reach {
                return self.follow(inode, root, (at, span));
            }
            at -= reach;
            span = reach;
        }
        Err(damaged_inode(inode.ino, format!("block {block}, which no pointer reaches")))
    }

    /// Goes from the block of pointers `from`, each of which reaches `span` blocks, to block `at` of those that it reaches.
    fn follow(&self, inode: &Inode, mut from: u64, (mut at, mut span): (u64, u64)) -> Result<Pointer> {
        let pointers = u64::from(self.sb.pointers_per_block());
        if from == 0 {
            return Ok(Pointer::Hole(span * pointers - at));
        }
        loop {
            let next = self.child(inode, from, at / span)?;
            if span == 1 {
                return Ok(if next == 0 { Pointer::Hole(1) } else { Pointer::To(next) });
            }
            at %= span;
            if next == 0 {
                return Ok(Pointer::Hole(span - at));
            }
            from = next;
            span /= pointers;
        }
    }

    /// Pointer `index` in the block of pointers that begins with fragment `block`.
    pub(super) fn read_pointer(&self, ino: u32, block: u64, index: u64) -> Result<u64> {
        self.check_range(ino, block, u64::from(self.sb.fragments_per_block()))?;
        let byte = index * u64::from(self.sb.version.pointer_size());
        let fragment = u64::from(self.sb.fragment_size);
        let bytes = self.cache.read(BlockNo(block + byte / fragment), BlockKind::Indirect)?;
        let at = usize::try_from(byte % fragment).unwrap_or(0);
        Ok(match self.sb.version {
            Version::One => u64::from(self.sb.order.u32(&bytes.snapshot(), at)),
            Version::Two => self.sb.order.u64(&bytes.snapshot(), at),
        })
    }
}
