//! Which blocks are free: in memory alone, made by the scan of a mount. A block is free exactly when nothing points to it (\[D\] §3.3.2),
//! so this is where the right to write one freely comes from.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Errno, Result};

use super::BLOCK_BYTES;
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
    used: Vec<u64>,
    blocks: u64,
    free: u64,
    cursor: usize,
    /// Freed by commits that are not fenced yet.
    leaving: Vec<u64>,
}

impl Space {
    /// All free but the first ones.
    pub fn new(blocks: u64) -> Self {
        let words = to_usize(blocks.div_ceil(64));
        let mut space = Self { used: vec![0; words], blocks, free: blocks, cursor: 0, leaving: Vec::new() };
        (0..super::gate::FIRST_BLOCK.min(blocks)).for_each(|block| {
            space.set(block);
        });
        (blocks..to_u64(words) * 64)
            .for_each(|beyond| space.used[to_usize(beyond / 64)] |= 1 << (beyond % 64));
        space
    }

    fn set(&mut self, block: u64) -> bool {
        let (word, bit) = (to_usize(block / 64), 1 << (block % 64));
        let was_free = self.used[word] & bit == 0;
        self.used[word] |= bit;
        self.free -= u64::from(was_free);
        was_free
    }

    fn clear(&mut self, block: u64) {
        let (word, bit) = (to_usize(block / 64), 1 << (block % 64));
        assert!(self.used[word] & bit != 0, "block {block} is freed twice");
        self.used[word] &= !bit;
        self.free += 1;
    }

    /// The scan has found a pointer to a block; false if it has found another one before.
    pub fn mark(&mut self, block: Block) -> bool {
        self.set(block.0)
    }

    /// Whether a block is used.
    pub fn has(&self, block: Block) -> bool {
        self.used[to_usize(block.0 / 64)] >> (block.0 % 64) & 1 == 1
    }

    /// A block that nothing points to.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn take(&mut self) -> Result<Fresh> {
        if self.free == 0 {
            return Err(Errno::NOSPC.into());
        }
        let words = self.used.len();
        for step in 0..words {
            let word = (self.cursor + step) % words;
            let free = !self.used[word];
            if free != 0 {
                self.cursor = word;
                let block = to_u64(word) * 64 + u64::from(free.trailing_zeros());
                self.set(block);
                return Ok(Fresh(block));
            }
        }
        Err(Errno::NOSPC.into())
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
