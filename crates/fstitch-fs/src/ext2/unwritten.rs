//! Maps that were never written: of groups nobody has used yet.
//!
//! A descriptor may say that a group's block bitmap is known without reading it (only the volume's own blocks are in use), and
//! that its inode bitmap is (no inode is). Whoever takes the first block or inode there writes the map in full and clears the
//! flag, with a journal in one transaction; so does who would free one, which then finds it free. With the map of inodes that of blocks is
//! written, too, as other writers of the format do.
//!
//! It may also say how many inodes at the end of its table were never used, whatever is there. Whoever takes one of them makes the table
//! longer first.
//!
//! **Orderings** (arrows read "comes after").
//! - the flag is cleared → the map is written: else a map of nothing would be taken for one;
//! - whatever points at a block or names an inode → the flag is cleared: a map that is known without reading it has no such
//!   block in use. So the clearing is among the *bits* of who takes something, until it is stable;
//! - the table is longer → what is in it was zeroed, where it was not blank: else it would look like inodes in use;
//! - whatever names an inode → the table reaches to it.
//!
//! **Crash cases.** A map that was written and is not used; a table that is longer than it need be.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Result};
use fstitch_patch::{PatchIds, PatchState};

use super::groups::{Group, Map};
use super::layout::group::{BG_FLAGS, BG_ITABLE_UNUSED, BLOCK_UNINIT, INODE_UNINIT};
use super::num::{idx, low16, small};
use super::orlov::TakenInode;
use super::volume::Ext2;

impl Ext2 {
    /// Makes sure that a group's map is written which is about to be used.
    pub(super) fn write_maps(&self, group: &Group, map: Map) -> Result<()> {
        let unwritten = group.unwritten.load(Ordering::Acquire);
        if unwritten == 0 || self.cache.options().read_only {
            return Ok(());
        }
        if unwritten & BLOCK_UNINIT != 0 {
            let mut contents = self.padded(self.sb.group_blocks(group.no));
            for (first, end) in self.own_in(group) {
                set(&mut contents, first, end);
            }
            self.write_map(group, (group.at.block_bitmap, BlockKind::BlockBitmap), BLOCK_UNINIT, contents)?;
        }
        if unwritten & INODE_UNINIT != 0 && map == Map::Inodes {
            let contents = self.padded(self.sb.inodes_per_group);
            self.write_map(group, (group.at.inode_bitmap, BlockKind::InodeBitmap), INODE_UNINIT, contents)?;
        }
        Ok(())
    }

    /// A bitmap of so many bits: what lies behind them counts as used.
    fn padded(&self, bits: u32) -> BlockBuf {
        let mut contents = BlockBuf::zeroed(self.block_size());
        set(&mut contents, bits, small(self.block_size()) * 8);
        contents
    }

    fn write_map(
        &self,
        group: &Group,
        (no, kind): (u64, BlockKind),
        flag: u16,
        contents: BlockBuf,
    ) -> Result<()> {
        let block = self.cache.fresh(BlockNo(no), kind)?;
        let (descriptor, at) =
            (self.cache.read(group.descriptor.0, BlockKind::GroupDescriptor)?, group.descriptor.1);
        let mut state = group.state.lock();
        let unwritten = group.unwritten.load(Ordering::Relaxed);
        if unwritten & flag == 0 {
            return Ok(());
        }
        let mut tx = self.cache.lock();
        let map = tx.init(&block, Arc::new(contents), &[]);
        let flags = BG_FLAGS.get(&tx.data(&descriptor)[at..]) & !flag;
        let written = tx.bytes(&descriptor, at + BG_FLAGS.offset(), &flags.to_le_bytes(), &[map]);
        if flag == INODE_UNINIT {
            let unused = low16(self.sb.inodes_per_group);
            tx.bytes(&descriptor, at + BG_ITABLE_UNUSED.offset(), &unused.to_le_bytes(), &[]);
            state.inode_map = written;
        } else {
            state.block_map = written;
        }
        drop(tx);
        group.unwritten.store(unwritten & !flag, Ordering::Release);
        drop(state);
        Ok(())
    }
}

impl Ext2 {
    /// Makes the table of inodes that counts as used reach to a number that was taken. Its name comes after that.
    pub(super) fn use_table(&self, taken: &mut TakenInode) -> Result<()> {
        if !self.sb.features.has_group_sums() {
            return Ok(());
        }
        let all = self.sb.inodes_per_group;
        let (no, bit) = (self.sb.group_of_inode(taken.ino), (taken.ino - 1) % all);
        let group = self.group(no)?;
        let (descriptor, at) =
            (self.cache.read(group.descriptor.0, BlockKind::GroupDescriptor)?, group.descriptor.1);
        let used = |raw: &[u8]| all.saturating_sub(u32::from(BG_ITABLE_UNUSED.get(&raw[at..])));
        let first = used(&descriptor.snapshot());
        let mut places = Vec::new();
        for other in first..=bit {
            let (block, offset) = self.inode_place(no * all + other + 1)?;
            places.push((other, self.cache.read(block, BlockKind::Inode)?, offset));
        }
        let mut state = group.state.lock();
        let mut tx = self.cache.lock();
        let first = used(tx.data(&descriptor));
        if bit >= first {
            let blank = vec![0; usize::from(self.sb.inode_size)];
            let mut zeroed = PatchIds::new();
            for (_, block, offset) in places.iter().filter(|(other, ..)| *other >= first) {
                if tx.data(block)[*offset..*offset + blank.len()] != blank {
                    zeroed.push(tx.bytes(block, *offset, &blank, &[]));
                }
            }
            let left = low16(all - bit - 1);
            let field = at + BG_ITABLE_UNUSED.offset();
            state.table = tx.bytes(&descriptor, field, &left.to_le_bytes(), &zeroed);
        }
        if tx.state(state.table) != PatchState::Committed {
            taken.bits.push(state.table);
        }
        Ok(())
    }
}

/// Sets the bits `from..end`.
fn set(map: &mut [u8], from: u32, end: u32) {
    let mut bit = from;
    while bit < end {
        if bit.is_multiple_of(8) && end - bit >= 8 {
            map[idx(bit / 8)] = 0xff;
            bit += 8;
        } else {
            map[idx(bit / 8)] |= 1 << (bit % 8);
            bit += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_bits_of_a_range_are_set() {
        for (from, end) in [(0, 0), (0, 8), (3, 5), (3, 29), (8, 64), (63, 64)] {
            let mut map = [0; 8];
            set(&mut map, from, end);
            let found = (0..64).filter(|bit| map[idx(bit / 8)] >> (bit % 8) & 1 == 1);
            assert_eq!(found.collect::<Vec<_>>(), (from..end).collect::<Vec<u32>>());
        }
    }
}
