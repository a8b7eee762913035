//! Which blocks are free: in memory alone, made by the scan of a mount. A block is free exactly when nothing points to it (\[D\] §3.3.2),
//! so this is where the right to write one freely comes from.

use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Errno, Result};

use super::BLOCK_BYTES;
use super::bits::{Bits, beyond};
use super::gate::Word;

/// A block that something may point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(u64);

/// A block that nothing points to, to be written freely. Who links it lets go of it.
#[derive(Debug)]
pub struct Fresh(u64);

/// What is to be given back of a block that was linked, if nothing came of that.
#[derive(Debug)]
pub struct Linked(u64);

impl Block {
    /// The block of a number from the medium, if there is such a one for trees.
    pub(super) fn from_medium(number: u64, blocks: u64) -> Option<Self> {
        (super::gate::FIRST_BLOCK..blocks).contains(&number).then_some(Self(number))
    }

    /// Where it begins.
    pub fn at(self) -> u64 {
        self.0 * BLOCK_BYTES
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl Fresh {
    /// Where it begins.
    pub(super) fn at(&self) -> u64 {
        self.0 * BLOCK_BYTES
    }

    /// The word that points to it, at the top of so many levels. It is durable at the next fence, and nobody writes to it any more.
    pub fn link(self, height: u8) -> (Word, Linked) {
        (Word::pointer(self.0, height), Linked(self.0))
    }
}

/// The blocks of a volume.
#[derive(Debug)]
pub struct Space {
    used: Bits,
    blocks: u64,
    free: u64,
    /// Freed by commits that are not fenced yet.
    leaving: Vec<u64>,
}

impl Space {
    /// All free but the first ones.
    pub fn new(blocks: u64) -> Self {
        Marks::new(blocks).into_space()
    }

    fn clear(&mut self, block: u64) {
        assert!(self.used.clear(block), "block {block} is freed twice");
        self.free += 1;
    }

    /// A block that nothing points to: the first one, so that files that come and go are in the same blocks all the time, which are in the
    /// caches.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn take(&mut self) -> Result<Fresh> {
        let block = self.used.first_free().ok_or(Errno::NOSPC)?;
        self.used.set(block);
        self.free -= 1;
        Ok(Fresh(block))
    }

    /// Nothing came of a block.
    pub fn give_back(&mut self, fresh: Fresh) {
        self.clear(fresh.0);
    }

    /// Nothing came of a link.
    pub fn unlink(&mut self, linked: Linked) {
        self.clear(linked.0);
    }

    /// A commit has taken the last pointer to a block; it may be taken again when that commit is durable.
    pub fn leave(&mut self, block: Block) {
        self.leaving.push(block.0);
    }

    /// All commits so far are durable.
    pub fn settle(&mut self) {
        for block in std::mem::take(&mut self.leaving) {
            self.clear(block);
        }
    }

    /// Blocks that are free, those that are about to be counted in.
    pub fn free(&self) -> u64 {
        self.free + to_u64(self.leaving.len())
    }

    /// Blocks that can be taken now.
    pub fn takeable(&self) -> u64 {
        self.free
    }

    /// All blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// What a scan has found pointers to. Several threads may mark blocks at the same time.
#[derive(Debug)]
pub(crate) struct Marks {
    used: Vec<AtomicU64>,
    blocks: u64,
}

impl Marks {
    /// None but the first ones.
    pub(crate) fn new(blocks: u64) -> Self {
        let mut used: Vec<AtomicU64> = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        if let Some(last) = used.last_mut() {
            *last = AtomicU64::new(beyond(to_usize((blocks - 1) % 64 + 1)));
        }
        let marks = Self { used, blocks };
        (0..super::gate::FIRST_BLOCK.min(blocks)).for_each(|block| {
            marks.set(block);
        });
        marks
    }

    fn set(&self, block: u64) -> bool {
        let bit = 1 << (block % 64);
        // Nothing is read because a bit is there but the bit: `into_space` has them all to itself.
        self.used[to_usize(block / 64)].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// There is a pointer to a block; false if there was another one before.
    pub(crate) fn mark(&self, block: Block) -> bool {
        self.set(block.0)
    }

    /// The blocks of the volume, of which those that were not marked are free.
    pub(crate) fn into_space(self) -> Space {
        let used = Bits::from_words(self.used.into_iter().map(AtomicU64::into_inner).collect());
        let free = used.count_free();
        Space { used, blocks: self.blocks, free, leaving: Vec::new() }
    }
}
