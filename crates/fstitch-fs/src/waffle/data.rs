//! Contents of files and targets of symbolic links: reading, writing, truncating, punching. A block gets its place when it is written, and
//! keeps it until the commit.

use std::borrow::Cow;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockBuf, BlockKind, BlockNo, FileKind, Result};

use super::cluster::cluster_of;
use super::layout::inode::Inode;
use super::layout::pointer::{Ref, slot_of};
use super::layout::{BLOCK, BLOCK_BYTES, CLUSTER, CLUSTER_BYTES, FAN};
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
        if self.has_packed() && inode.kind == FileKind::Regular {
            return self.read_clusters(tree, inode, offset, into);
        }
        self.read_loose(tree, inode, offset, into)
    }

    /// The same where clusters may be compressed.
    fn read_clusters(&self, tree: usize, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<()> {
        let mut rest = into;
        let mut at = offset;
        while !rest.is_empty() {
            let cluster = at / CLUSTER_BYTES;
            let from = to_usize(at % CLUSTER_BYTES);
            let len = rest.len().min(to_usize(CLUSTER_BYTES) - from);
            let (piece, behind) = rest.split_at_mut(len);
            let refs = self.cluster(tree, inode.ino, cluster)?;
            match self.unpacked(inode.ino, cluster, &refs)? {
                None => self.read_loose(tree, inode, at, piece)?,
                Some(plain) => {
                    let there = plain.get(from..).unwrap_or_default();
                    let there = &there[..there.len().min(len)];
                    piece[..there.len()].copy_from_slice(there);
                    piece[there.len()..].fill(0);
                }
            }
            (rest, at) = (behind, at + to_u64(len));
        }
        Ok(())
    }

    fn read_loose(&self, tree: usize, inode: &Inode, offset: u64, into: &mut [u8]) -> Result<()> {
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
            self.check_leaf(*reference, (obj, 0, index))?;
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
        self.put_leaf(ino, index, old, (bytes, 0, 0), goal)
    }

    /// The contents of a block of a file, to be changed.
    pub(super) fn copy(&self, ino: u64, index: u64, reference: Ref) -> Result<BlockBuf> {
        if reference.is_none() {
            return Ok(BlockBuf::zeroed(BLOCK));
        }
        if let Some(bytes) = self.staged(reference.block) {
            return Ok(BlockBuf::copy_of(bytes));
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
        let inode = self.inode(self.head, ino)?;
        let added = if inode.is_packing() || self.has_packed() {
            self.put_clusters(&inode, offset, data, &mut goal)?
        } else {
            self.put_blocks(ino, offset, data, &mut goal)?
        };
        self.change_inode(ino, |inode| {
            inode.size = inode.size.max(end);
            inode.blocks = inode.blocks.saturating_add_signed(added);
        })
    }

    /// Writes blocks as they are; returns how many leaves there are more.
    fn put_blocks(&mut self, ino: u64, offset: u64, data: &[u8], goal: &mut Option<u64>) -> Result<i64> {
        let (first, end) = (offset / BLOCK_BYTES, offset + to_u64(data.len()));
        let (mut added, mut rest, mut from) = (0, data, to_usize(offset % BLOCK_BYTES));
        for index in first..end.div_ceil(BLOCK_BYTES) {
            let (piece, behind) = rest.split_at(rest.len().min(BLOCK - from));
            let old = self.leaf(self.head, Obj::Data(ino), index)?;
            let bytes = if piece.len() == BLOCK {
                BlockBuf::copy_of(piece)
            } else {
                let mut bytes = self.copy(ino, index, old)?;
                bytes[from..from + piece.len()].copy_from_slice(piece);
                bytes
            };
            self.put_block(ino, index, old, bytes, goal)?;
            added += i64::from(old.is_none());
            (rest, from) = (behind, 0);
        }
        Ok(added)
    }

    /// The same where clusters may be, or become, compressed.
    fn put_clusters(
        &mut self,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        goal: &mut Option<u64>,
    ) -> Result<i64> {
        let ino = inode.ino;
        let (mut added, mut rest, mut at) = (0, data, offset);
        while !rest.is_empty() {
            let (cluster, from) = (at / CLUSTER_BYTES, at % CLUSTER_BYTES);
            let (piece, behind) = rest.split_at(rest.len().min(to_usize(CLUSTER_BYTES - from)));
            let end = at + to_u64(piece.len());
            let is_whole = from == 0 && (end.is_multiple_of(CLUSTER_BYTES) || end >= inode.size);
            let packed = match is_whole && inode.is_packing() {
                true => self.put_packed(ino, cluster, &whole_blocks(piece), goal)?,
                false => None,
            };
            added += match packed {
                Some((had, has)) => has.cast_signed() - had.cast_signed(),
                None => {
                    if !is_whole {
                        self.loosen(ino, cluster)?;
                    }
                    if !is_whole && inode.is_packing() && end > inode.size {
                        self.gather(ino, cluster)?;
                    }
                    if inode.is_packing() {
                        self.clusters.loose.insert((ino, cluster));
                    }
                    self.put_blocks(ino, at, piece, goal)?
                }
            };
            (rest, at) = (behind, end);
        }
        Ok(added)
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
            self.loosen_at(ino, size)?;
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
        self.loosen_at(ino, from)?;
        let is_to_end = to == size;
        if !is_to_end {
            self.loosen_at(ino, to)?;
        }
        // Behind the end is nothing: all of the last blocks goes.
        let end = if is_to_end { to.next_multiple_of(CLUSTER_BYTES) } else { to } / BLOCK_BYTES;
        let first = from.div_ceil(BLOCK_BYTES);
        if first > end {
            return self.blank(ino, from, to);
        }
        self.blank(ino, from, first * BLOCK_BYTES)?;
        if !is_to_end {
            self.blank(ino, end * BLOCK_BYTES, to)?;
        }
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
            if index == first || index % CLUSTER == 0 {
                self.loosen(ino, cluster_of(index))?;
            }
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

/// Bytes with zeros behind them to a block's end.
fn whole_blocks(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.len().is_multiple_of(BLOCK) {
        return Cow::Borrowed(bytes);
    }
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(BLOCK), 0);
    Cow::Owned(whole)
}

/// The next one, if there should be one.
trait NextIf: Iterator {
    fn next_if(&mut self, wanted: bool) -> Option<Self::Item> {
        if wanted { self.next() } else { None }
    }
}

impl<I: Iterator> NextIf for I {}
