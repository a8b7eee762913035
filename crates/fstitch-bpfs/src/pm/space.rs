//! Which blocks are free: in memory alone, made by the scan of a mount. A block is free exactly when nothing points to it (\[D\] §3.3.2),
//! so this is where the right to write one freely comes from.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Errno, Result};

use super::BLOCK_BYTES;
use super::bits::{Bits, SharedBits, beyond};
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

impl Linked {
    /// The number of its block.
    pub fn number(&self) -> u64 {
        self.0
    }
}

impl Fresh {
    /// Its number.
    pub fn number(&self) -> u64 {
        self.0
    }

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
    /// Freed by commits that are not fenced yet.
    leaving: Vec<u64>,
}

impl Space {
    /// All free but the first ones.
    pub fn new(blocks: u64) -> Self {
        Marks::new(blocks).into_space()
    }

    /// A block that nothing points to: the first one, so that files that come and go are in the same blocks all the time, which are in the
    /// caches.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn take(&mut self) -> Result<Fresh> {
        Ok(Fresh(self.used.take().ok_or(Errno::NOSPC)?))
    }

    /// Nothing came of a block.
    pub fn give_back(&mut self, fresh: Fresh) {
        self.used.clear(fresh.0);
    }

    /// Nothing came of a link.
    pub fn unlink(&mut self, linked: Linked) {
        self.used.clear(linked.0);
    }

    /// A commit has taken the last pointer to a block; it may be taken again when that commit is durable.
    pub fn leave(&mut self, block: Block) {
        self.leaving.push(block.0);
    }

    /// All commits so far are durable: `left` hears of blocks that nothing points to any more.
    pub fn settle(&mut self, mut left: impl FnMut(u64)) {
        for block in self.leaving.drain(..) {
            self.used.clear(block);
            left(block);
        }
    }

    /// Blocks that are free, those that are about to be counted in.
    pub fn free(&self) -> u64 {
        self.used.free() + to_u64(self.leaving.len())
    }

    /// Blocks that can be taken now.
    pub fn takeable(&self) -> u64 {
        self.used.free()
    }

    /// All blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }
}

/// What a scan has found pointers to. Several threads may mark blocks at the same time.
#[derive(Debug)]
pub(crate) struct Marks {
    used: SharedBits,
    blocks: u64,
}

impl Marks {
    /// None but the first ones.
    pub(crate) fn new(blocks: u64) -> Self {
        let used = SharedBits::new(blocks);
        if let Some(last) = blocks.checked_sub(1) {
            used.add_all(last / 64, beyond(to_usize(last % 64 + 1)));
        }
        for block in 0..super::gate::FIRST_BLOCK.min(blocks) {
            used.add(block);
        }
        Self { used, blocks }
    }

    /// Marks blocks of a word; the first of them that was marked before, if one was.
    fn mark_all(&self, word: u64, bits: u64) -> std::result::Result<(), Block> {
        match self.used.add_all(word, bits) {
            0 => Ok(()),
            twice => Err(Block(word * 64 + u64::from(twice.trailing_zeros()))),
        }
    }

    /// The blocks of the volume, of which those that were not marked are free.
    pub(crate) fn into_space(self) -> Space {
        let used = Bits::from_words(self.used.into_words());
        Space { used, blocks: self.blocks, leaving: Vec::new() }
    }
}

/// Who marks blocks one after the other: those of a word at once, because most of a file's lie side by side.
#[derive(Debug)]
pub(crate) struct Marking<'a> {
    marks: &'a Marks,
    word: u64,
    bits: u64,
    /// Blocks so far.
    count: u64,
}

impl<'a> Marking<'a> {
    pub(crate) fn new(marks: &'a Marks) -> Self {
        Self { marks, word: 0, bits: 0, count: 0 }
    }

    /// There is a pointer to a block.
    ///
    /// # Errors
    /// The block, or one before it, if there was another pointer to it.
    pub(crate) fn mark(&mut self, block: Block) -> std::result::Result<(), Block> {
        let (word, bit) = (block.0 / 64, 1 << (block.0 % 64));
        if word != self.word {
            self.flush()?;
            self.word = word;
        } else if self.bits & bit != 0 {
            return Err(block);
        }
        self.bits |= bit;
        self.count += 1;
        Ok(())
    }

    fn flush(&mut self) -> std::result::Result<(), Block> {
        self.marks.mark_all(self.word, std::mem::take(&mut self.bits))
    }

    /// All of them are marked; how many they are.
    ///
    /// # Errors
    /// As [`Self::mark`].
    pub(crate) fn finish(mut self) -> std::result::Result<u64, Block> {
        self.flush()?;
        Ok(self.count)
    }
}
