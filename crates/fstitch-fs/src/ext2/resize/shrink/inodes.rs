//! Inodes whose numbers go, and blocks of attributes.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{BlockKind, BlockNo, Errno, Error, FileKind, Result, Structure};

use super::Mover;
use super::census::{Names, directory_blocks, each_block};
use crate::ext2::bitmap;
use crate::ext2::journal::Loaded;
use crate::ext2::layout::checksum::{InodeSums, has_directory_tail, index_counts, is_placed, place};
use crate::ext2::layout::dirent::{D_INODE, entries};
use crate::ext2::layout::xattr::{H_MAGIC, H_REFCOUNT, XATTR_MAGIC};
use crate::ext2::num::wide;

/// What a move of an inode changes beside what depends on its size: two inodes, their bitmaps and descriptors, the superblock.
pub(super) const MOVE_MAX: u64 = 8;

/// The place of the sum of a directory's block, and what it should be, if it has one.
fn sum_of(sums: InodeSums, bytes: &[u8]) -> Option<(usize, u32)> {
    match index_counts(bytes) {
        // The kernel leaves the tail that a directory's first block had as a leaf.
        Some(counts) => sums.directory_index(bytes, counts),
        None if has_directory_tail(bytes) => sums.directory_leaf(bytes),
        None => None,
    }
}

/// A block of a directory that a check should see first.
fn damaged(no: BlockNo) -> Error {
    let problem = "a block of a directory has a wrong checksum, or nobody's: check the volume first";
    Error::corrupt(Structure::Other("directory"), no, problem)
}

impl Mover<'_, '_> {
    /// Gives inodes whose numbers go others.
    ///
    /// # Errors
    /// Those of batches; `ENOSPC` if no number is free.
    pub(super) fn move_inodes(&mut self, numbers: &[(u32, u64)], names: &Names) -> Result<()> {
        let mut moved: BTreeMap<u32, u32> = BTreeMap::new();
        let mut free = self.pass.shape.first_ino.saturating_sub(1);
        for &(ino, blocks) in numbers {
            let places = names.of.get(&ino).map_or(&[][..], |places| &places[..]);
            // A directory with very many others in it does not count its names.
            let blocks = blocks + wide(places.len());
            if blocks + MOVE_MAX > wide(self.pass.batch_max()) {
                return Err(Error::Unsupported(format!(
                    "giving inode {ino} another number, which changes {blocks} blocks at once: a larger journal is needed"
                )));
            }
            if wide(self.pass.changes()) + blocks + MOVE_MAX > wide(self.batch) {
                self.send()?;
            }
            free = self.next_free(free)?;
            self.move_inode(ino, free, places, &mut moved)?;
            (self.progress)(1);
        }
        self.send()
    }

    /// The first free number behind `after`.
    fn next_free(&self, after: u32) -> Result<u32> {
        let per_group = self.pass.shape.inodes_per_group;
        let mut at = after;
        while at < self.limits.inodes {
            let group = at / per_group;
            let (_, _, descriptor) = self.pass.descriptor(group)?;
            let from = at % per_group;
            let found = if descriptor.is_inode_uninit() {
                Some(from)
            } else {
                let no = BlockNo(descriptor.inode_bitmap);
                bitmap::next(&self.pass.read(no, BlockKind::InodeBitmap)?, false, from, per_group)
            };
            if let Some(bit) = found {
                return Ok(group * per_group + bit + 1);
            }
            at = (group + 1) * per_group;
        }
        Err(Errno::NOSPC.into())
    }

    /// Inode `from` becomes inode `to`, with all that names it and all sums that its number is in.
    fn move_inode(
        &mut self,
        from: u32,
        to: u32,
        names: &[(BlockNo, u32)],
        moved: &mut BTreeMap<u32, u32>,
    ) -> Result<()> {
        let Some(inode) = self.pass.load_inode(from)? else {
            return Err(Error::corrupt(Structure::Inode(u64::from(from)), None, "it was in use, and is not"));
        };
        let is_directory = inode.disk.kind == FileKind::Directory;
        self.pass.mark_inode(to, is_directory)?;
        let at = self.pass.place(to)?;
        let size = usize::from(self.pass.shape.inode_size);
        let old = self.pass.change(inode.at.0, BlockKind::Inode)?;
        let raw = old[inode.at.1..inode.at.1 + size].to_vec();
        old[inode.at.1..inode.at.1 + size].fill(0);
        self.pass.change(at.0, BlockKind::Inode)?[at.1..at.1 + size].copy_from_slice(&raw);
        self.pass.summed.inodes.insert(from, inode.at);
        self.pass.summed.inodes.insert(to, at);
        self.pass.free_inode(&inode)?;
        moved.insert(from, to);
        self.rename(from, to, names, moved)?;
        if self.pass.shape.features.has_sums() {
            self.sum_again(&inode, to, is_directory)?;
        }
        Ok(())
    }

    /// The names in these blocks that lead to `from` lead to `to`.
    fn rename(
        &mut self,
        from: u32,
        to: u32,
        names: &[(BlockNo, u32)],
        moved: &BTreeMap<u32, u32>,
    ) -> Result<()> {
        for &(no, dir) in names {
            let now = moved.get(&dir).copied().unwrap_or(dir);
            // The inode's own block is still summed with the number that it had.
            let before = if dir == from { from } else { now };
            let owner = self.pass.load_inode(now)?.ok_or_else(|| damaged(no))?;
            let sums = |number| self.pass.shape.sums.of_inode(number, owner.disk.generation);
            let (before, after) = (sums(before), sums(now));
            let mut bytes = self.pass.read(no, BlockKind::Directory)?;
            if sum_of(before, &bytes).is_some_and(|placed| !is_placed(&bytes, placed)) {
                return Err(damaged(no));
            }
            let slots: Vec<_> = entries(&bytes, no, &self.pass.shape).slots().collect();
            for slot in slots.iter().filter(|slot| slot.ino == from) {
                D_INODE.put(&mut bytes[slot.offset..], to);
            }
            if let Some(placed) = sum_of(after, &bytes) {
                place(&mut bytes, placed);
            }
            *self.pass.change(no, BlockKind::Directory)? = bytes;
        }
        Ok(())
    }

    /// What is summed with an inode's number is summed with the new one.
    fn sum_again(&mut self, inode: &Loaded, to: u32, is_directory: bool) -> Result<()> {
        let sums = self.pass.shape.sums;
        let (before, after) =
            (sums.of_inode(inode.ino, inode.disk.generation), sums.of_inode(to, inode.disk.generation));
        if !inode.disk.has_blocks(self.pass.shape.block_size) {
            return Ok(());
        }
        let mut nodes = BTreeSet::new();
        if inode.disk.has_extents() {
            each_block(&mut self.pass, inode, &mut |start, _, is_map| {
                if is_map {
                    nodes.insert(start);
                }
            })?;
        }
        let blocks = if is_directory { directory_blocks(&mut self.pass, inode)? } else { Vec::new() };
        for node in nodes {
            let no = BlockNo(node);
            let bytes = self.pass.read(no, BlockKind::Indirect)?;
            self.pass.summed.nodes_of = Some(after);
            self.pass.put_new(no, BlockKind::Indirect, bytes);
            self.pass.summed.nodes_of = None;
        }
        for no in blocks {
            let mut bytes = self.pass.read(no, BlockKind::Directory)?;
            // Names that were changed a moment ago were summed with the new number already.
            let is_right = |sums| sum_of(sums, &bytes).is_none_or(|placed| is_placed(&bytes, placed));
            if !is_right(before) && !is_right(after) {
                return Err(damaged(no));
            }
            if let Some(placed) = sum_of(after, &bytes) {
                place(&mut bytes, placed);
                *self.pass.change(no, BlockKind::Directory)? = bytes;
            }
        }
        Ok(())
    }

    /// Moves blocks of attributes, each of which several inodes may have. As many as the batch has room for go from the old block to the
    /// new one at once, so that both count who has them.
    pub(super) fn move_attributes(&mut self, attributes: &BTreeMap<u64, Vec<u32>>) -> Result<()> {
        for (&block, owners) in attributes {
            let mut owners = &owners[..];
            let mut copy = None;
            while !owners.is_empty() {
                if !self.has_room(4) {
                    self.send()?;
                }
                let used = self.pass.changes() + 2 * self.groups.len() + 8;
                let count = owners.len().min(self.batch.saturating_sub(used).max(1));
                let (now, rest) = owners.split_at(count);
                copy = Some(self.share(block, copy, (now, rest.is_empty()))?);
                owners = rest;
                if !owners.is_empty() {
                    self.send()?;
                }
            }
            (self.progress)(1);
        }
        Ok(())
    }

    /// Gives some inodes with the attributes of `block` those of its copy, which is made if there is none yet.
    fn share(&mut self, block: u64, copy: Option<u64>, (owners, are_last): (&[u32], bool)) -> Result<u64> {
        let sums = self.pass.shape.sums;
        let old = BlockNo(block);
        let bytes = self.pass.read(old, BlockKind::Attribute)?;
        let refs = H_REFCOUNT.get(&bytes);
        let count = u32::try_from(owners.len()).expect("fewer than inodes");
        if H_MAGIC.get(&bytes) != XATTR_MAGIC || refs < count || (refs == count) != are_last {
            let problem =
                format!("its count of inodes is {refs}, where {count} are left: check the volume first");
            return Err(Error::corrupt(Structure::AttributeBlock, old, problem));
        }
        let to = match copy {
            Some(to) => to,
            None => self.room.take(1)?.0,
        };
        let new = BlockNo(to);
        let mut contents = match copy {
            Some(_) => self.pass.read(new, BlockKind::Attribute)?,
            None => {
                let mut contents = bytes.clone();
                H_REFCOUNT.put(&mut contents, 0);
                contents
            }
        };
        let all = H_REFCOUNT.get(&contents) + count;
        H_REFCOUNT.put(&mut contents, all);
        sums.seal_attributes(new.get(), &mut contents);
        if are_last {
            self.pass.forget(old);
            self.leave(block, 1);
        } else {
            let old = self.pass.change(old, BlockKind::Attribute)?;
            H_REFCOUNT.put(old, refs - count);
            sums.seal_attributes(block, old);
        }
        if copy.is_none() {
            self.take_in(to, 1);
        }
        self.pass.put_new(new, BlockKind::Attribute, contents);
        for &ino in owners {
            let Some(mut inode) = self.pass.load_inode(ino)? else { continue };
            inode.disk.xattr_block = to;
            self.pass.put_inode(&inode)?;
        }
        Ok(to)
    }
}
