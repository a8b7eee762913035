//! Contents of files and targets of symbolic links: reading, writing, truncating, punching. A block gets its place when it is written, and
//! keeps it until the commit.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, Result};

use super::layout::inode::Inode;
use super::layout::pointer::{Ref, slot_of};
use super::layout::{BLOCK, BLOCK_BYTES, FAN, sum};
use super::state::State;
use super::tree::Obj;

/// Blocks that are read at once.
const BATCH: u64 = 64;

impl State {
    /// Reads bytes of a file that are all before its end.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn read(&self, tree: usize, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < into.len() {
            let at = offset + to_u64(done);
            let first = at / BLOCK_BYTES;
            let end = (at + to_u64(into.len() - done)).div_ceil(BLOCK_BYTES);
            let end = end.min(first + BATCH).min((first / FAN + 1) * FAN);
            let refs = self.refs(tree, inode, (first, end))?;
            let wanted: Vec<(BlockNo, BlockKind)> = refs
                .iter()
                .filter(|reference| !reference.is_none())
                .map(|reference| (BlockNo(reference.block), BlockKind::Data))
                .collect();
            let mut blocks = self.cache.snapshots(&wanted)?.into_iter();
            for (reference, index) in refs.iter().zip(first..) {
                let at = offset + to_u64(done);
                let from = to_usize(at % BLOCK_BYTES);
                let len = (BLOCK - from).min(into.len() - done);
                let piece = &mut into[done..done + len];
                match blocks.next_if(!reference.is_none()) {
                    Some(bytes) => {
                        self.compare(*reference, (Obj::Data(inode.ino), 0, index), &bytes)?;
                        piece.copy_from_slice(&bytes[from..from + len]);
                    }
                    None => piece.fill(0),
                }
                done += len;
            }
        }
        Ok(())
    }

    /// The references to leaves of a file that are all below one node.
    fn refs(&self, tree: usize, inode: &Inode, (first, end): (u64, u64)) -> Result<Vec<Ref>> {
        let obj = Obj::Data(inode.ino);
        let refs: Vec<Ref> = if inode.data.height == 0 {
            (first..end).map(|index| if index == 0 { inode.data.root } else { Ref::NONE }).collect()
        } else if let Some(node) = self.node(tree, obj, 1, first / FAN)? {
            (first..end).map(|index| Ref::slot(&node, slot_of(index))).collect()
        } else {
            vec![Ref::NONE; to_usize(end - first)]
        };
        for (reference, index) in refs.iter().zip(first..) {
            if let Some(problem) = reference.problem(self.data(), self.generation()) {
                return Err(Self::damaged((obj, 0, index), None, problem));
            }
        }
        Ok(refs)
    }

    /// Gives a block of a file contents, and returns whether there were none. `old` is the reference that is there.
    pub(super) fn put_block(
        &mut self,
        ino: u64,
        index: u64,
        old: Ref,
        bytes: BlockBuf,
        goal: &mut Option<u64>,
    ) -> Result<()> {
        let obj = Obj::Data(ino);
        let is_own = self.is_own(old)?;
        let block = if is_own { old.block } else { self.take(*goal)? };
        *goal = Some(block + 1);
        let reference = Ref { block, birth: self.generation(), sum: sum(&bytes), flags: 0, extra: 0 };
        self.set_leaf(obj, index, reference)?;
        if !is_own {
            self.release(obj, old)?;
        }
        self.stage(block, Arc::new(bytes));
        Ok(())
    }

    /// The contents of a block of a file, to be changed.
    fn copy(&self, ino: u64, index: u64, reference: Ref) -> Result<BlockBuf> {
        if reference.is_none() {
            return Ok(BlockBuf::zeroed(BLOCK));
        }
        let bytes = self.load(reference, (Obj::Data(ino), 0, index), BlockKind::Data)?;
        Ok(BlockBuf::copy_of(&bytes))
    }

    /// Writes bytes, and makes the file longer if they end behind its end.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn put(&mut self, ino: u64, offset: u64, data: &[u8]) -> Result<()> {
        let obj = Obj::Data(ino);
        let (first, end) = (offset / BLOCK_BYTES, offset + to_u64(data.len()));
        let mut goal = match first.checked_sub(1) {
            Some(before) => Some(self.leaf(self.head, obj, before)?.block + 1).filter(|&goal| goal > 1),
            None => None,
        };
        let (mut added, mut rest, mut from) = (0, data, to_usize(offset % BLOCK_BYTES));
        for index in first..end.div_ceil(BLOCK_BYTES) {
            let (piece, behind) = rest.split_at(rest.len().min(BLOCK - from));
            let old = self.leaf(self.head, obj, index)?;
            let bytes = if piece.len() == BLOCK {
                BlockBuf::copy_of(piece)
            } else {
                let mut bytes = self.copy(ino, index, old)?;
                bytes[from..from + piece.len()].copy_from_slice(piece);
                bytes
            };
            self.put_block(ino, index, old, bytes, &mut goal)?;
            added += u64::from(old.is_none());
            (rest, from) = (behind, 0);
        }
        self.change_inode(ino, |inode| {
            inode.size = inode.size.max(end);
            inode.blocks = inode.blocks.saturating_add(added);
        })
    }

    /// Makes bytes zeros that are in one block, if it is there.
    fn blank(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        let index = from / BLOCK_BYTES;
        let old = self.leaf(self.head, Obj::Data(ino), index)?;
        if from >= to || old.is_none() {
            return Ok(());
        }
        let mut bytes = self.copy(ino, index, old)?;
        let range = to_usize(from - index * BLOCK_BYTES)..to_usize(to - index * BLOCK_BYTES);
        if bytes[range.clone()].iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        bytes[range].fill(0);
        self.put_block(ino, index, old, bytes, &mut Some(old.block))
    }

    /// Gives a file another length.
    ///
    /// # Errors
    /// `Io`, `Corrupt`; `ENOSPC` if a last block that was cut has no place.
    pub(super) fn truncate(&mut self, ino: u64, size: u64) -> Result<()> {
        let inode = self.inode(self.head, ino)?;
        let mut lost = 0;
        if size < inode.size {
            lost = self.cut(Obj::Data(ino), size.div_ceil(BLOCK_BYTES), u64::MAX)?;
            self.blank(ino, size, size.next_multiple_of(BLOCK_BYTES))?;
        }
        self.change_inode(ino, |inode| {
            inode.size = size;
            inode.blocks = inode.blocks.saturating_sub(lost);
        })
    }

    /// Makes bytes of a file that are before its end zeros; whole blocks become holes. What is in the last block behind the end is zero.
    ///
    /// # Errors
    /// As [`State::truncate`].
    pub(super) fn punch(&mut self, ino: u64, from: u64, to: u64, size: u64) -> Result<()> {
        let to = to.min(size);
        if from >= to {
            return Ok(());
        }
        let (first, end) = (from.div_ceil(BLOCK_BYTES), to / BLOCK_BYTES);
        if first > end {
            return self.blank(ino, from, to);
        }
        self.blank(ino, from, first * BLOCK_BYTES)?;
        self.blank(ino, end * BLOCK_BYTES, to)?;
        if first < end {
            let lost = self.cut(Obj::Data(ino), first, end)?;
            self.change_inode(ino, |inode| inode.blocks = inode.blocks.saturating_sub(lost))?;
        }
        Ok(())
    }

    /// Gives blocks of zeros to the holes among the blocks `first..end` of a file.
    ///
    /// # Errors
    /// `ENOSPC`, `Io`, `Corrupt`.
    pub(super) fn fill(&mut self, ino: u64, first: u64, end: u64) -> Result<()> {
        let (mut added, mut goal) = (0, None);
        for index in first..end {
            let old = self.leaf(self.head, Obj::Data(ino), index)?;
            if old.is_none() {
                self.put_block(ino, index, old, BlockBuf::zeroed(BLOCK), &mut goal)?;
                added += 1;
            } else {
                goal = Some(old.block + 1);
            }
        }
        self.change_inode(ino, |inode| inode.blocks = inode.blocks.saturating_add(added))
    }
}

/// The next one, if there should be one.
trait NextIf: Iterator {
    fn next_if(&mut self, wanted: bool) -> Option<Self::Item> {
        if wanted { self.next() } else { None }
    }
}

impl<I: Iterator> NextIf for I {}
