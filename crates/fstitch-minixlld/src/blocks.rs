//! Blocks of metadata by list and position: as everybody sees them, or as a change has them so far.
//!
//! What everybody sees is remembered, because a logical disk reads its medium each time. Only who shares the lock of the tree, or is
//! the one who changes it, remembers blocks: what is remembered is what is committed.

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{Errno, Error, InodeNo, Result};
use fstitch_lld::{BlockId, ListId};
use rustc_hash::FxHashMap;

use crate::inode::Inode;
use crate::layout::{INODE_AT, XATTRS_AT, data_at};

/// Contents of a block that are not changed.
pub(crate) type Image = Arc<[u8]>;
/// A list and a position.
pub(crate) type Key = (ListId, u64);

/// Who has blocks.
pub(crate) trait Blocks {
    /// Bytes of a block.
    fn block_size(&self) -> usize;

    /// A block of metadata, if there is one.
    fn image(&self, key: Key) -> Result<Option<Image>>;

    /// Reads a block of contents, and says whether there is one; `into` is one block.
    fn contents(&self, key: Key, into: &mut [u8]) -> Result<bool>;

    /// The first block of a list at a position or behind it.
    fn next_at(&self, list: ListId, from: u64) -> Result<Option<(u64, BlockId)>>;

    /// An inode.
    ///
    /// # Errors
    /// `ESTALE` if there is none.
    fn inode(&self, ino: InodeNo) -> Result<Inode> {
        let image = self.image((ino.get(), INODE_AT))?.ok_or(Errno::STALE)?;
        Inode::decode(ino, &image)
    }

    /// Bytes of a block, as a number of the medium.
    fn unit(&self) -> u64 {
        to_u64(self.block_size())
    }

    /// The first block of an inode's contents from block `n` on, counted from the contents' beginning.
    fn first_data(&self, ino: InodeNo, n: u64) -> Result<Option<(u64, BlockId)>> {
        let found = self.next_at(ino.get(), data_at(n))?.filter(|(at, _)| *at < XATTRS_AT);
        Ok(found.map(|(at, block)| (at - data_at(0), block)))
    }

    /// Reads contents from an offset on; what was never written is zeros.
    fn read(&self, ino: InodeNo, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut partial = Vec::new();
        for part in parts(self.unit(), offset, into.len()) {
            let target = &mut into[part.at..part.at + part.len];
            let key = (ino.get(), data_at(part.block));
            if part.len == self.block_size() {
                if !self.contents(key, target)? {
                    target.fill(0);
                }
                continue;
            }
            partial.resize(self.block_size(), 0);
            match self.contents(key, &mut partial)? {
                true => target.copy_from_slice(&partial[part.from..part.from + part.len]),
                false => target.fill(0),
            }
        }
        Ok(())
    }
}

/// What a lookup of a list that is gone, or a block of it, comes to.
pub(crate) fn or_absent<T>(found: Result<Option<T>>) -> Result<Option<T>> {
    match found {
        Err(Error::Errno(Errno::NOENT)) => Ok(None),
        found => found,
    }
}

/// A part of a range that lies in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The block.
    pub(crate) block: u64,
    /// Where the part begins in it.
    pub(crate) from: usize,
    /// Where it begins in the range.
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The parts of a range of bytes, block by block.
pub(crate) fn parts(unit: u64, offset: u64, len: usize) -> impl Iterator<Item = Part> {
    let short = |bytes: u64| usize::try_from(bytes).expect("within a block");
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let place = offset + to_u64(at);
        let from = place % unit;
        let part = Part { block: place / unit, from: short(from), at, len: short(unit - from).min(len - at) };
        at += part.len;
        Some(part)
    })
}

/// A block that is remembered.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) id: BlockId,
    pub(crate) image: Image,
}

/// Blocks that were used lately: when the young ones are too many, they become the old ones, and those go.
pub(crate) struct Memory {
    young: FxHashMap<Key, Known>,
    old: FxHashMap<Key, Known>,
    /// Of the young ones.
    most: usize,
}

impl Memory {
    /// Room for so many blocks.
    pub(crate) fn new(most: usize) -> Self {
        Self { young: FxHashMap::default(), old: FxHashMap::default(), most: (most / 2).max(1) }
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<Known> {
        if let Some(known) = self.young.get(&key) {
            return Some(known.clone());
        }
        let known = self.old.remove(&key)?;
        self.put(key, known.clone());
        Some(known)
    }

    pub(crate) fn put(&mut self, key: Key, known: Known) {
        if self.young.len() >= self.most {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, known);
    }

    pub(crate) fn forget(&mut self, key: Key) {
        self.young.remove(&key);
        self.old.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_the_borders_of_blocks() {
        let all: Vec<Part> = parts(512, 500, 1000).collect();
        let part = |block, from, at, len| Part { block, from, at, len };
        assert_eq!(all, [part(0, 500, 0, 12), part(1, 0, 12, 512), part(2, 0, 524, 476)]);
        assert_eq!(parts(512, 500, 0).count(), 0);
    }

    #[test]
    fn memory_is_bounded_and_keeps_what_is_used() {
        let mut memory = Memory::new(8);
        let known = |id| Known { id, image: vec![0; 4].into() };
        for n in 0..100 {
            memory.put((1, n), known(n));
            assert!(memory.get((1, 0)).is_some());
            assert!(memory.young.len() + memory.old.len() <= 8);
        }
        assert_eq!(memory.get((1, 99)).unwrap().id, 99);
        memory.forget((1, 99));
        assert!(memory.get((1, 99)).is_none() && memory.get((1, 50)).is_none());
    }
}
