//! Values of attributes that have inodes of their own (feature `ea_inode`): making them, counting who refers to them, freeing them.
//!
//! **Layout.** A value is the contents of an inode without a name, with one link and the flag `EA_INODE`. What else would be its times says: its sum
//! (access), and in 64 bits how many entries refer to it (version, the high half in the time of change). An entry of an inode's own bytes refers
//! to it, and an entry of a block of attributes does once, however many inodes share the block. An inode's storage counts its
//! values' blocks, as if it had them.
//!
//! **States.** A value is made with one reference, gets more when a block that inodes share is copied, and ends with the last.
//!
//! **Invariants.** 1. A reference is counted when an entry is there: counts rise before and fall behind the change of the entries,
//! in the same transaction. 2. The contents are stable before the transaction that makes the first entry.
//!
//! **Crash cases.** None: such volumes are changed through a journal only. A value has no name by which one that is whole could be told
//! from one that a crash has left.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Caller, Errno, FileKind, InodeFlags, InodeNo, Result};
use fstitch_patch::{Block, PatchIds};

use super::inode::Inode;
use super::layout::checksum::crc;
use super::layout::feature::incompat;
use super::layout::inode::{EA_INODE_FL, I_ATIME, I_CTIME, I_FLAGS, I_VERSION};
use super::layout::superblock::{S_CHECKSUM_SEED, S_UUID, SUPERBLOCK_SIZE};
use super::layout::xattr::{Elsewhere, INDEX_USER, Xattr, XattrSet};
use super::num::{idx, idx64, low32, small, wide};
use super::volume::Ext2;
use crate::uhfs::{AttrChange, NewInode};

/// Permissions of an inode with a value.
const PERM: u16 = 0o600;
/// What a change of values dirties beside what their number and lengths say: the superblock, nodes over contents, the list of
/// inodes without names.
const CHANGED_BLOCKS: usize = 12;

/// How many references to values come and go.
#[derive(Debug, Default)]
pub(super) struct References(BTreeMap<u32, i64>);

impl References {
    /// Those of entries that come, or go.
    pub(super) fn add(&mut self, set: &XattrSet, by: i64) {
        for at in set.0.iter().filter_map(|attribute| attribute.elsewhere) {
            *self.0.entry(at.inode).or_default() += by;
        }
    }

    /// One that was counted already.
    pub(super) fn without(&mut self, value: u32) {
        *self.0.entry(value).or_default() -= 1;
    }
}

/// How many entries refer to the value in an inode. One of old writers has no count, and one entry.
pub(super) fn references(raw: &[u8]) -> u64 {
    let count = u64::from(I_CTIME.get(raw)) << 32 | u64::from(I_VERSION.get(raw));
    count.max(1)
}

/// Writes how many do.
pub(super) fn put_references(raw: &mut [u8], count: u64) {
    I_CTIME.put(raw, low32(count >> 32));
    I_VERSION.put(raw, low32(count));
}

impl Ext2 {
    /// Whether attributes may have values in inodes of their own.
    #[inline]
    pub(super) fn has_values(&self) -> bool {
        self.sb.features.has_incompat(incompat::EA_INODE)
    }

    /// Blocks that a change of one of the inode's attributes dirties for values, at most, if the new one has `len` bytes: those of
    /// the value that is made, of one that ends in each place, and of the counts that a copy of a shared block raises.
    pub(super) fn value_blocks(&self, inode: &Inode, len: usize) -> Result<usize> {
        if !self.has_values() {
            return Ok(0);
        }
        let places = self.read_places(inode)?;
        let largest = |set: &XattrSet| sizes(set).max().map_or(0, |size| self.changed_blocks(&[size]));
        let ended = largest(&places.body) + largest(&places.block);
        let made = if len == 0 { 0 } else { self.changed_blocks(&[len]) + len.div_ceil(self.block_size()) };
        Ok(made + ended + sizes(&places.block).count())
    }

    /// Blocks that the end of an inode dirties for the values in its block of attributes, at most: while others share it they are not
    /// shed one by one, and these may all have left when it ends.
    pub(super) fn ending_value_blocks(&self, inode: &Inode) -> Result<usize> {
        if !self.has_values() || inode.disk.flags & EA_INODE_FL != 0 || inode.disk.xattr_block == 0 {
            return Ok(0);
        }
        let sizes: Vec<usize> = sizes(&self.read_places(inode)?.block).collect();
        Ok(if sizes.is_empty() { 0 } else { self.changed_blocks(&sizes) })
    }

    /// Blocks that making or ending values of these sizes dirties at most beside contents. Each block of a value may lie in a group of
    /// its own, which has a free map and a descriptor; there are no more of them than the volume has.
    fn changed_blocks(&self, sizes: &[usize]) -> usize {
        let blocks: usize = sizes.iter().map(|size| size.div_ceil(self.block_size())).sum();
        let (all, descriptors) = (idx(self.sb.group_count()), idx(self.sb.descriptor_blocks()));
        let groups = (blocks + sizes.len()).min(all);
        // Each value's place in the table, and the free map that has its number.
        let inodes = sizes.len() + sizes.len().min(all);
        CHANGED_BLOCKS + inodes + groups + groups.min(descriptors)
    }

    /// An inode that holds a value.
    pub(super) fn load_value(&self, of: &Inode, ino: u32) -> Result<Inode> {
        let value = self.load_any(InodeNo(u64::from(ino)))?;
        let is_value = value.disk.kind == FileKind::Regular && value.disk.flags & EA_INODE_FL != 0;
        if is_value {
            Ok(value)
        } else {
            Err(of.damaged(format!("the value of an attribute is in inode {ino}")))
        }
    }

    /// The sum of a value.
    fn value_sum(&self, value: &[u8]) -> u32 {
        let at = self.sb.offset_in_block();
        let raw = &self.sb_block.snapshot()[at..at + SUPERBLOCK_SIZE];
        let seed = match self.sb.features.has_incompat(incompat::CSUM_SEED) {
            true => S_CHECKSUM_SEED.get(raw),
            false => crc(u32::MAX, &raw[S_UUID..S_UUID + 16]),
        };
        crc(seed, value)
    }

    /// Makes an attribute's value the contents of a new inode, to which one entry refers.
    pub(super) fn make_value(&self, caller: &Caller, of: &Inode, attribute: &Xattr) -> Result<Xattr> {
        let sum = self.value_sum(&attribute.value);
        let new = NewInode {
            mode: FileKind::Regular.mode_bits() | PERM,
            uid: of.disk.uid,
            gid: of.disk.gid,
            nlink: 1,
            rdev: 0,
            flags: InodeFlags::default(),
            now: self.now(),
            target: b"",
            xattrs: &[],
        };
        let (mut value, _) = self.new_uncharged(caller, of, &new, &[])?;
        if let Err(error) = self.fill_value(caller, &mut value, (&attribute.value, sum)) {
            self.end_inode(&mut value, &[])?;
            return Err(error);
        }
        // Of name and sum, as if the sum were the value.
        let hashed = Xattr { value: sum.to_le_bytes().to_vec(), ..attribute.clone() };
        let size = small(attribute.value.len());
        let elsewhere = Some(Elsewhere { inode: value.ino, size, hash: hashed.hash() });
        Ok(Xattr { value: Vec::new(), elsewhere, ..attribute.clone() })
    }

    fn fill_value(&self, caller: &Caller, value: &mut Inode, (bytes, sum): (&[u8], u32)) -> Result<()> {
        let unit = self.block_size();
        let count = wide(bytes.len().div_ceil(unit));
        let mut index = 0;
        while index < count {
            let allocation = self.allocate_run(caller, value, index, count - index)?;
            let parts = bytes[idx64(index) * unit..].chunks(unit).zip(allocation.start.get()..);
            let mut contents = PatchIds::new();
            index += allocation.count;
            for (part, no) in parts.take(idx64(allocation.count)) {
                let mut image = BlockBuf::zeroed(unit);
                image[..part.len()].copy_from_slice(part);
                let block = match self.cache.fresh(BlockNo(no), BlockKind::Data) {
                    Ok(block) => block,
                    Err(error) => {
                        self.give_back_allocation(value, allocation);
                        return Err(error);
                    }
                };
                let mut tx = self.cache.lock();
                tx.note_new(&block);
                contents.push(tx.init_kept(&block, Arc::new(image), &allocation.reuse));
            }
            self.attach_run(value, allocation, &contents)?;
        }
        let size = AttrChange { size: Some(wide(bytes.len())), ..AttrChange::default() };
        self.change_attr(value, &size, &[])?;
        let block = self.inode_block(value)?;
        value.disk.flags |= EA_INODE_FL;
        let mut tx = self.cache.lock();
        value.put(&mut tx, &block, (I_FLAGS, value.disk.flags), &[]);
        value.put(&mut tx, &block, (I_ATIME, sum), &[]);
        value.put(&mut tx, &block, (I_CTIME, 0), &[]);
        value.put(&mut tx, &block, (I_VERSION, 1), &[]);
        drop(tx);
        self.remember(value);
        Ok(())
    }

    /// Fails if what is to change is none.
    pub(super) fn expect_values(&self, of: &Inode, references: &References) -> Result<()> {
        let mut changed = references.0.iter().filter(|&(_, &by)| by != 0);
        changed.try_for_each(|(&ino, _)| self.load_value(of, ino).map(drop))
    }

    /// Counts references that come: all of them, or none if that fails.
    pub(super) fn raise_references(&self, of: &Inode, references: &References) -> Result<()> {
        let come = references.0.iter().filter(|&(_, &by)| by > 0);
        let found = come.map(|(&ino, &by)| {
            let value = self.load_value(of, ino)?;
            Ok((self.inode_block(&value)?, value, by))
        });
        for (block, mut value, by) in found.collect::<Result<Vec<_>>>()? {
            self.change_references(&mut value, &block, by);
        }
        Ok(())
    }

    /// Lets go of references that went, of as many as can be; reports the first failure.
    pub(super) fn lower_references(&self, of: &Inode, references: &References) -> Result<()> {
        let mut done = Ok(());
        for (&ino, &by) in references.0.iter().filter(|&(_, &by)| by < 0) {
            done = done.and(self.lower_reference(of, ino, by));
        }
        done
    }

    fn lower_reference(&self, of: &Inode, ino: u32, by: i64) -> Result<()> {
        let mut value = self.load_value(of, ino)?;
        let block = self.inode_block(&value)?;
        if self.change_references(&mut value, &block, by) {
            return Ok(());
        }
        if value.disk.xattr_block != 0 {
            return Err(of.damaged(format!("the value in inode {ino} has attributes")));
        }
        self.end_inode(&mut value, &[])
    }

    /// Changes how many entries refer to a value; false, with nothing changed, if none would any more.
    fn change_references(&self, value: &mut Inode, block: &Block, by: i64) -> bool {
        let mut tx = self.cache.lock();
        let mut raw = tx.data(block)[value.at.1..value.at.1 + I_VERSION.end()].to_vec();
        let count = references_after(&raw, by);
        if count > 0 {
            put_references(&mut raw, count);
            value.put(&mut tx, block, (I_CTIME, I_CTIME.get(&raw)), &[]);
            value.put(&mut tx, block, (I_VERSION, I_VERSION.get(&raw)), &[]);
        }
        count > 0
    }

    /// Lets go of all values to which these entries refer.
    pub(super) fn release_values(&self, of: &Inode, set: &XattrSet) -> Result<()> {
        let mut gone = References::default();
        gone.add(set, -1);
        self.lower_references(of, &gone)
    }

    /// Units of 512 bytes that an inode's storage counts for its values.
    pub(super) fn value_sectors(&self, sets: [&XattrSet; 2]) -> u64 {
        let all = sets.into_iter().flat_map(|set| &set.0).filter_map(|attribute| attribute.elsewhere);
        let cluster = self.block_size() << self.sb.log_cluster;
        let clusters: u64 = all.map(|at| wide(idx(at.size).div_ceil(cluster))).sum();
        clusters * self.sectors_per_cluster()
    }

    /// The same attribute with its value elsewhere, to see whether that would fit.
    pub(super) fn lightened(new: &Xattr) -> Xattr {
        let elsewhere = Some(Elsewhere { inode: 1, size: small(new.value.len()), hash: 0 });
        Xattr { value: Vec::new(), elsewhere, ..new.clone() }
    }

    /// Whether a value may be elsewhere: of a symbolic link it would say that the target is, to others.
    pub(super) fn may_have_values(&self, inode: &Inode, new: &Xattr) -> Result<()> {
        let may = self.has_values() && inode.disk.kind != FileKind::Symlink && new.index >= INDEX_USER;
        if may { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }
}

/// The sizes of a set's values that are elsewhere.
fn sizes(set: &XattrSet) -> impl Iterator<Item = usize> {
    set.0.iter().filter_map(|attribute| attribute.elsewhere).map(|at| idx(at.size))
}

/// The count after a change; 0 where nobody refers to it any more.
fn references_after(raw: &[u8], by: i64) -> u64 {
    references(raw).saturating_add_signed(by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_64_bits_in_two_places() {
        let mut raw = vec![0; 128];
        assert_eq!(references(&raw), 1, "old writers do not count");
        put_references(&mut raw, 0x1_0000_0002);
        assert_eq!((I_CTIME.get(&raw), I_VERSION.get(&raw), references(&raw)), (1, 2, 0x1_0000_0002));
        assert_eq!((references_after(&raw, 3), references_after(&raw, -9)), (0x1_0000_0005, 0xffff_fff9));
        put_references(&mut raw, 1);
        assert_eq!(references_after(&raw, -1), 0);
    }
}
