//! A transaction becomes blocks of a log: the only place that knows which, whoever writes them and in whatever order.
//!
//! **Layout.** Revoke blocks, then descriptors, each followed by the copies that it describes, then the commit block.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockNo, Timestamp};

use super::blocks::{self, Shape, Tag};
use super::checksum::{START, crc32};
use super::format::{Checksums, Sequence};

/// A transaction on its way into a log.
pub(crate) struct Writer {
    shape: Shape,
    sequence: Sequence,
    /// Over descriptors and copies, where commit blocks have it.
    sum: u32,
}

/// A descriptor and the copies that come behind it.
pub(crate) struct Described {
    pub(crate) descriptor: BlockBuf,
    pub(crate) copies: Vec<Arc<BlockBuf>>,
}

impl Writer {
    /// Begins the transaction of this number.
    pub(crate) fn new(shape: Shape, sequence: Sequence) -> Self {
        Self { shape, sequence, sum: START }
    }

    /// Blocks of the log that so many copies and revoked blocks take, with the commit block.
    pub(crate) fn need(shape: &Shape, copies: usize, revoked: usize) -> usize {
        copies + copies.div_ceil(shape.tags_max()) + revoked.div_ceil(shape.revokes_max()) + 1
    }

    /// The revoke blocks.
    pub(crate) fn revokes(&self, revoked: &[u64]) -> Vec<BlockBuf> {
        let block = |part: &[u64]| {
            let mut block = BlockBuf::zeroed(self.shape.block_size());
            self.shape.put_revoke(&mut block, self.sequence, part);
            block
        };
        revoked.chunks(self.shape.revokes_max()).map(block).collect()
    }

    /// A descriptor of blocks with their homes, [`Shape::tags_max`] of them at most. Parts come in the order in which they are in the log.
    pub(crate) fn describe(&mut self, part: impl Iterator<Item = (BlockNo, Arc<BlockBuf>)>) -> Described {
        let (shape, sequence) = (self.shape, self.sequence);
        let (tags, copies): (Vec<Tag>, Vec<Arc<BlockBuf>>) = part
            .map(|(home, contents)| {
                let (copy, is_escaped) = escaped(contents);
                (shape.tag_for(home.get(), is_escaped, sequence, &copy), copy)
            })
            .unzip();
        let mut descriptor = BlockBuf::zeroed(shape.block_size());
        shape.put_descriptor(&mut descriptor, sequence, &tags);
        if shape.checksums() == Checksums::Commit {
            self.sum = copies.iter().fold(crc32(self.sum, &descriptor), |sum, copy| crc32(sum, copy));
        }
        Described { descriptor, copies }
    }

    /// The commit block.
    pub(crate) fn commit(&self, time: Timestamp) -> BlockBuf {
        let mut block = BlockBuf::zeroed(self.shape.block_size());
        self.shape.put_commit(&mut block, self.sequence, time, self.sum);
        block
    }
}

/// A block's contents as the log may hold them, and whether they had to be changed for that.
fn escaped(contents: Arc<BlockBuf>) -> (Arc<BlockBuf>, bool) {
    let mut start = [0; 4];
    start.copy_from_slice(&contents[..4]);
    if !blocks::escape(&mut start) {
        return (contents, false);
    }
    let mut copy = BlockBuf::clone(&contents);
    let is_escaped = blocks::escape(&mut copy);
    (Arc::new(copy), is_escaped)
}
