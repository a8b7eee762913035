//! Reading files, and looking for data and holes in them.

use std::sync::atomic::Ordering;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo, Errno, Error, InodeNo, Result, SeekFrom, waiting};

use smallvec::SmallVec;

use super::node::{Node, Part, State};
use super::volume::ATTR_CHANGE_BLOCKS;
use super::{AtimePolicy, AttrChange, LowLevelFs, Uhfs};

impl<L: LowLevelFs> Uhfs<L> {
    pub(super) fn do_read(&self, ino: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.node(ino)?;
        let len = {
            let state = node.read()?;
            self.expect_regular(&state)?;
            let size = self.low.attr(state.inode()).size;
            let len = clip(buf.len(), size.saturating_sub(offset));
            if len == 0 {
                return Ok(0);
            }
            self.read_range(state.inode(), offset, &mut buf[..len])?;
            self.read_ahead(&node, state.inode(), offset, offset + long(len), size);
            len
        };
        self.accessed(&node)?;
        Ok(len)
    }

    /// Fails unless the inode is a regular file: `EISDIR` or `EINVAL`.
    pub(super) fn expect_regular(&self, state: &State<L::Inode>) -> Result<()> {
        fstitch_posix::expect_regular(self.kind(state))
    }

    /// Reads bytes that are within the file, in batches that fit beside each other in a small cache.
    pub(super) fn read_range(&self, inode: &L::Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(contents) = self.low.inline_contents(inode)? {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(contents.len());
            let len = buf.len().min(contents.len() - from);
            buf[..len].copy_from_slice(&contents[from..from + len]);
            buf[len..].fill(0);
            return Ok(());
        }
        let mut done = 0;
        while done < buf.len() {
            let len = self.step_len(offset + long(done), buf.len() - done);
            self.read_batch(inode, offset + long(done), &mut buf[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Reads bytes of at most one step: the blocks as one batch, the holes as zeros.
    fn read_batch(&self, inode: &L::Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let unit = long(self.block_size());
        let first = offset / unit;
        let end = self.blocks_of(offset + long(buf.len()));
        let mut wanted: SmallVec<[(BlockNo, BlockKind); 4]> = SmallVec::new();
        let mut indexes: SmallVec<[u64; 4]> = SmallVec::new();
        let mut index = first;
        while index < end {
            let extent = self.low.map(inode, index, end - index)?;
            if let Some(start) = extent.contents() {
                wanted.extend((0..extent.count).map(|i| (BlockNo(start.get() + i), BlockKind::Data)));
                indexes.extend(index..index + extent.count);
            }
            index += extent.count;
        }
        if long(indexes.len()) < end - first {
            buf.fill(0);
        }
        let blocks = self.cache().snapshots(&wanted)?;
        for (index, contents) in indexes.into_iter().zip(&blocks) {
            let part = BlockPart::of(index * unit, unit, offset, long(buf.len()));
            buf[part.in_buffer..part.in_buffer + part.len]
                .copy_from_slice(&contents[part.in_block..part.in_block + part.len]);
        }
        Ok(())
    }

    /// Starts reading what a sequential reader will want next: a step, whenever half of the last one is used.
    fn read_ahead(&self, node: &Node<L::Inode>, inode: &L::Inode, offset: u64, end: u64, size: u64) {
        let expected = node.read_next.swap(end, Ordering::Relaxed);
        if expected != offset {
            node.read_ahead.store(end, Ordering::Relaxed);
            return;
        }
        let window = long(self.step_blocks * self.block_size());
        let ahead = node.read_ahead.load(Ordering::Relaxed).max(end);
        let until = size.min(end + window);
        if ahead >= until || ahead > end + window / 2 {
            return;
        }
        node.read_ahead.store(until, Ordering::Relaxed);
        let (mut index, last) = (ahead / long(self.block_size()), self.blocks_of(until));
        let mut wanted = Vec::new();
        while index < last {
            // Best effort: the read that needs the pointers reports what is wrong with them.
            let Ok(extent) = self.low.map(inode, index, last - index) else { return };
            if let Some(start) = extent.contents() {
                wanted.extend((0..extent.count).map(|i| (BlockNo(start.get() + i), BlockKind::Data)));
            }
            index += extent.count;
        }
        self.cache().prefetch(&wanted);
    }

    pub(super) fn do_seek(&self, ino: InodeNo, offset: u64, whence: SeekFrom) -> Result<u64> {
        let node = self.node(ino)?;
        let state = node.read()?;
        self.expect_regular(&state)?;
        let size = self.low.attr(state.inode()).size;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        if self.low.inline_contents(state.inode())?.is_some() {
            return Ok(if whence == SeekFrom::Data { offset } else { size });
        }
        let unit = long(self.block_size());
        let end = self.blocks_of(size);
        let mut index = offset / unit;
        while index < end {
            let extent = self.low.map(state.inode(), index, end - index)?;
            if extent.contents().is_some() == (whence == SeekFrom::Data) {
                return Ok(offset.max(index * unit));
            }
            index += extent.count;
        }
        match whence {
            SeekFrom::Hole => Ok(size),
            SeekFrom::Data => Err(Errno::NXIO.into()),
        }
    }

    /// Brings the access time up to date where the policy asks for it. A failure must not fail the read; if
    /// the volume takes no more changes, everything that changes it says so. A thread that serves many passes an access time over
    /// for which it would have to wait: whoever looks does not wait for those who write.
    ///
    /// # Errors
    /// [`Error::WouldWait`] on a thread that refuses to wait, for the first change of the volume, which somebody must mark as in
    /// use.
    pub(super) fn accessed(&self, node: &Node<L::Inode>) -> Result<()> {
        if self.options.read_only || self.options.atime == AtimePolicy::NoAtime {
            return Ok(());
        }
        let wanted = node.read().is_ok_and(|state| self.options.atime.wants(&self.seen(&state), self.now()));
        if !wanted {
            return Ok(());
        }
        let is_first = !self.in_use.load(Ordering::Acquire);
        let _passes_over = (!is_first && waiting::serves_many()).then(waiting::refuse);
        match self.change(ATTR_CHANGE_BLOCKS) {
            Ok(_change) => self.set_accessed(node),
            // Not for a check of a volume that nobody has changed yet.
            Err(Error::WouldWait) if is_first && self.gate.try_read().is_some() => {
                return Err(Error::WouldWait);
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn set_accessed(&self, node: &Node<L::Inode>) {
        let Ok(mut state) = node.write() else { return };
        let change = AttrChange { atime: Some(self.now()), ..AttrChange::default() };
        if let Ok(patches) = self.low.set_attr(state.inode_mut(), &change, &[]) {
            self.note(&mut state, Part::Attributes, &patches);
        }
    }

    /// How many of `len` bytes from `offset` belong to one step: up to the next multiple of the step's size,
    /// which is a whole number of blocks.
    pub(super) fn step_len(&self, offset: u64, len: usize) -> usize {
        let step = long(self.step_blocks * self.block_size());
        clip(len, step - offset % step)
    }

    /// Blocks that `size` bytes from the start of a file touch.
    pub(super) fn blocks_of(&self, size: u64) -> u64 {
        size.div_ceil(long(self.block_size()))
    }
}

/// The part of a block that lies within a range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPart {
    /// Where the part starts in the block.
    pub(super) in_block: usize,
    /// Where it starts in the range's buffer.
    pub(super) in_buffer: usize,
    /// Its bytes.
    pub(super) len: usize,
}

impl BlockPart {
    /// The common part of the block at `block_start` and the `len` bytes from `offset`; they must meet.
    pub(super) fn of(block_start: u64, block_size: u64, offset: u64, len: u64) -> Self {
        let start = block_start.max(offset);
        let end = (block_start + block_size).min(offset + len);
        debug_assert!(start < end, "the block is outside the range");
        Self {
            in_block: short(start - block_start),
            in_buffer: short(start - offset),
            len: short(end - start),
        }
    }
}

/// A length in memory as a number of bytes in a file.
pub(super) fn long(len: usize) -> u64 {
    to_u64(len)
}

/// A number of bytes of a file that fits memory.
pub(super) fn short(len: u64) -> usize {
    to_usize(len)
}

/// The smaller of a length in memory and one in a file.
fn clip(len: usize, limit: u64) -> usize {
    usize::try_from(limit).map_or(len, |limit| len.min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_blocks_are_cut_at_both_ends() {
        assert_eq!(BlockPart::of(0, 1024, 1000, 100), BlockPart { in_block: 1000, in_buffer: 0, len: 24 });
        assert_eq!(BlockPart::of(1024, 1024, 1000, 100), BlockPart { in_block: 0, in_buffer: 24, len: 76 });
        assert_eq!(BlockPart::of(1024, 1024, 0, 9000), BlockPart { in_block: 0, in_buffer: 1024, len: 1024 });
    }
}
