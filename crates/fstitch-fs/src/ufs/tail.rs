//! The end of a file: a run of fragments that grows, in its place or by moving.
//!
//! A block that ends a file, one of the first twelve, has as many fragments as the file's length needs; its pointer says only where the first of
//! them is. So the length is what points at the others.
//!
//! **Orderings** (arrows read "comes after").
//! - a length that covers more fragments → their contents, their bits;
//! - moved: the copies in the new place → all changes of the old fragments that are not on the medium, the end of the new place's earlier
//!   life; the pointer → the copies, the bits; the old fragments are free → the pointer;
//! - a block that is not the last one any more is whole: a length beyond it → the zeros in it, their bits.
//!
//! **Crash cases.** Before the length: leaked fragments. Moved, before the pointer: the same; after it, before the old fragments are free:
//! the same.

use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, FileKind, Result};
use fstitch_patch::{PatchId, PatchIds};

use super::alloc::{Near, Run};
use super::layout::inode::places;
use super::volume::{Inode, Ufs};
use crate::num::idx64;
use crate::uhfs::Allocation;

impl Ufs {
    /// Takes fragments for the block in which the file ends, so that it has `need` of them.
    pub(super) fn allocate_in_tail(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (tail, count): (u64, u64),
        need: u64,
    ) -> Result<Allocation> {
        let run = self.lengthen(caller, inode, (tail, count), need)?;
        Ok(Allocation {
            index: tail * self.per_block() + count,
            start: BlockNo(run.start),
            count: run.count,
            reuse: run.reuse,
            bits: run.bits,
        })
    }

    /// Makes the block whole in which the file ends: it is about to be followed by others.
    pub(super) fn fill_tail(&self, caller: &Caller, inode: &mut Inode) -> Result<()> {
        let per_block = self.per_block();
        let Some((tail, count)) = inode.tail.filter(|&(_, count)| count < per_block) else { return Ok(()) };
        let run = self.lengthen(caller, inode, (tail, count), per_block)?;
        let kind = kind_of(inode);
        let mut blocks = Vec::new();
        for at in run.start..run.start + run.count {
            match self.cache.fresh(BlockNo(at), kind) {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    self.give_back(run.start, run.count);
                    return Err(error);
                }
            }
        }
        let zeros = Arc::new(BlockBuf::zeroed(self.sb.fragment_len()));
        let mut tx = self.cache.lock();
        for block in &blocks {
            let zeroed = tx.init(block, Arc::clone(&zeros), &run.reuse);
            inode.gather(&mut tx, zeroed);
            inode.held.push(zeroed);
        }
        drop(tx);
        inode.held.extend_from_slice(&run.bits);
        inode.filled_from = Some((tail, count));
        inode.tail = Some((tail, per_block));
        // Failing to read the inode again leaves a hint too small.
        let _hint = self.add_sectors(inode, run.count);
        Ok(())
    }

    /// Takes back what [`Ufs::fill_tail`] has done for an allocation that came to nothing.
    pub(super) fn unfill_tail(&self, inode: &mut Inode) {
        let Some((tail, count)) = inode.filled_from.take() else { return };
        self.cut_tail(inode, (tail, count));
    }

    /// Frees what the block in which the file ends has beyond `count` fragments, which no length has covered.
    pub(super) fn cut_tail(&self, inode: &mut Inode, (tail, count): (u64, u64)) {
        let Some((_, now)) = inode.tail.filter(|&(block, now)| block == tail && now > count) else { return };
        inode.tail = Some((tail, count));
        self.give_back(inode.disk.direct[idx64(tail)] + count, now - count);
        // Failing to read the inode again leaves a hint too large.
        let _hint = self.sub_sectors(inode, now - count);
    }

    /// Takes fragments behind the `count` of block `tail`, up to `need`, where it is or in a new place to which it moves.
    fn lengthen(
        &self,
        caller: &Caller,
        inode: &mut Inode,
        (tail, count): (u64, u64),
        need: u64,
    ) -> Result<Run> {
        let start = inode.disk.direct[idx64(tail)];
        self.check_range(inode.ino, start, count)?;
        // Fragments never go on in the next block of the volume.
        let fits = start % self.per_block() + need <= self.per_block();
        if fits && let Some(run) = self.take_here(caller, start + count, need - count)? {
            return Ok(run);
        }
        let place = self.take_for_tail(caller, Near::Fragment(start), need)?;
        if let Err(error) = self.move_tail(inode, (tail, count), &place) {
            self.give_back(place.start, place.count);
            return Err(error);
        }
        Ok(Run { start: place.start + count, count: need - count, ..place })
    }

    /// A new place for `need` fragments: where it can, with room behind them.
    fn take_for_tail(&self, caller: &Caller, near: Near, need: u64) -> Result<Run> {
        match self.take_blocks(caller, near, 1) {
            Ok(run) => {
                if run.count > need {
                    self.give_back(run.start + need, run.count - need);
                }
                Ok(Run { count: need, ..run })
            }
            Err(error) if error.errno() == Errno::NOSPC && need < self.per_block() => {
                self.take_fragments(caller, near, need)
            }
            Err(error) => Err(error),
        }
    }

    /// Copies the fragments of the block in which the file ends to their new place, and points the file at it.
    fn move_tail(&self, inode: &mut Inode, (tail, count): (u64, u64), place: &Run) -> Result<()> {
        let inode_block = self.inode_block(inode)?;
        let old = inode.disk.direct[idx64(tail)];
        let kind = kind_of(inode);
        let mut pairs = Vec::new();
        for at in 0..count {
            let from = self.cache.read(BlockNo(old + at), kind)?;
            pairs.push((from, self.cache.fresh(BlockNo(place.start + at), kind)?));
        }
        // A pointer behind the end is not on the medium yet.
        let is_pointed = tail * u64::from(self.sb.block_size) < inode.disk.size;
        let mut moved = PatchIds::new();
        let mut tx = self.cache.lock();
        for (from, to) in &pairs {
            let mut befores = place.reuse.clone();
            // The copy has what they have made, so it comes after whatever they wait for.
            befores.extend(tx.unstable(from));
            let contents = BlockBuf::copy_of(tx.data(from));
            let copy = tx.init(to, Arc::new(contents), &befores);
            inode.gather(&mut tx, copy);
            moved.push(copy);
        }
        moved.extend_from_slice(&place.bits);
        inode.disk.direct[idx64(tail)] = place.start;
        let mut after = None;
        if is_pointed {
            let bytes = self.pointer_bytes([place.start].into_iter());
            let at = places(self.sb.version).pointers + idx64(tail) * bytes.len();
            let pointer = inode.put(&mut tx, &inode_block, (at, &bytes), &moved);
            moved = PatchIds::from_slice(&[pointer]);
            after = Some(pointer);
        }
        drop(tx);
        if inode.disk.kind == FileKind::Directory {
            self.names_moved((old, place.start), count, &moved);
        }
        inode.held.extend_from_slice(&moved);
        self.remember(inode);
        // The file is in its new place: failing to read a group again leaks the old one, which is lawful.
        let _leaked = self.free(old, count, after);
        Ok(())
    }

    /// Names in fragments that have moved are reachable with what made them so before, and with the pointer to the new place.
    fn names_moved(&self, (old, new): (u64, u64), count: u64, moved: &[PatchId]) {
        for at in 0..count {
            let mut links = self.memory.links(old + at);
            links.extend_from_slice(moved);
            self.memory.set_links(new + at, links, &self.cache);
        }
    }
}

/// What an inode's blocks hold.
pub(super) const fn kind_of(inode: &Inode) -> BlockKind {
    match inode.disk.kind {
        FileKind::Directory => BlockKind::Directory,
        FileKind::Symlink => BlockKind::Attribute,
        _ => BlockKind::Data,
    }
}
