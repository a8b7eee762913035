//! The sums of metadata, put in place when an image is settled and looked at when one was read.
//!
//! **What is summed** is in [`super::layout::checksum`]. Here is who each block belongs to: a descriptor and a table of inodes say it
//! by their places, which are told when a group is used first; a directory's block and an extent node by their *owner*, number
//! and generation of the inode, which whoever reads or makes one tells the cache ([`Ext2::owner_of`](super::volume::Ext2)).
//!
//! **What is damaged stays so.** A block of inodes or descriptors is nobody's alone. One with a wrong sum is remembered, refused to
//! who asks for it, and not summed again when its neighbours change: what is wrong must not look right. Who makes an inode anew
//! takes it off the list.
//!
//! **Without a journal** a bitmap and the descriptor that has its sum are written one after the other. So its sum is taken when the bitmap is
//! written, and put into the descriptor whenever that is, the last time when the volume is to be called clean. What a crash leaves in
//! between is right at most one by one: whoever finds that the mount before kept soft updates and ended so takes bitmaps as they are.
//!
//! **Invariants.** 1. A bitmap's sum in its group's descriptor is the one of its contents in every closed transaction, and on
//! every volume that is marked clean. 2. A bitmap that is read again is the one whose sum was settled last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{BlockKind, BlockNo, Error, Le, Result, Structure};
use fstitch_patch::{Bitmap, Seal};

use super::layout::checksum::{
    InodeSums, Placed, Sums, has_directory_tail, index_counts, is_placed, kept_of_bitmap_sum, place,
    put_block_bitmap_sum, put_inode_bitmap_sum, seal_superblock,
};
use super::layout::group::{
    BG_BLOCK_BITMAP_CSUM_HI, BG_BLOCK_BITMAP_CSUM_LO, BG_INODE_BITMAP_CSUM_HI, BG_INODE_BITMAP_CSUM_LO,
    GroupDescriptor, LARGE_DESCRIPTOR_SIZE,
};
use super::layout::superblock::{SUPERBLOCK_SIZE, Superblock};
use super::layout::xattr::XATTR_MAGIC;
use super::layout::{Field, keep_sum};
use super::num::{high16, low16, low32};

/// The seal of a volume.
pub(super) struct Sealer {
    shape: Superblock,
    sums: Sums,
    known: Mutex<Known, rank::Leaf>,
    /// No journal is kept: images are sealed when they are written.
    in_place: AtomicBool,
}

/// What is known of the volume's blocks.
#[derive(Default)]
struct Known {
    /// Groups by the first blocks of their inode tables.
    tables: BTreeMap<u64, u32>,
    /// Groups by their bitmaps, and the bitmaps' sums that were looked at or settled last.
    bitmaps: BTreeMap<u64, (u32, Option<u32>)>,
    /// Inodes with wrong sums.
    bad_inodes: BTreeSet<u32>,
    /// Groups whose descriptors have wrong sums.
    bad_groups: BTreeSet<u32>,
    /// Sums of bitmaps that were written without a journal, by group.
    unsettled: BTreeMap<u32, Unsettled>,
}

/// The sums of a group's bitmaps, as far as its descriptor need not have them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unsettled {
    blocks: Option<u32>,
    inodes: Option<u32>,
}

impl Unsettled {
    /// One is in the descriptor.
    fn forget(&mut self, kind: BlockKind) {
        match kind {
            BlockKind::BlockBitmap => self.blocks = None,
            _ => self.inodes = None,
        }
    }

    /// Puts them into a descriptor.
    pub(super) fn put(self, raw: &mut [u8]) {
        if let Some(sum) = self.blocks {
            put_block_bitmap_sum(raw, sum);
        }
        if let Some(sum) = self.inodes {
            put_inode_bitmap_sum(raw, sum);
        }
    }
}

/// The word that tells the cache whose a block is: an inode's number and its generation.
pub(super) fn owner(ino: u32, generation: u32) -> u64 {
    u64::from(ino) << 32 | u64::from(generation)
}

impl Sealer {
    /// The seal of a volume with sums; `None` if it has none.
    pub(super) fn of(shape: &Superblock) -> Option<Self> {
        let known = Mutex::default();
        let in_place = AtomicBool::new(false);
        (shape.sums != Sums::None).then(|| Self { shape: shape.clone(), sums: shape.sums, known, in_place })
    }

    /// No journal will be kept.
    pub(super) fn seal_in_place(&self) {
        self.in_place.store(true, Ordering::Relaxed);
    }

    /// Whether every block of the volume has a sum of its own, by what it is and whose.
    pub(super) fn knows_owners(&self) -> bool {
        matches!(self.sums, Sums::All(_))
    }

    /// The sums of bitmaps that descriptors need not have.
    pub(super) fn unsettled(&self) -> BTreeMap<u32, Unsettled> {
        self.known.lock().unsettled.clone()
    }

    /// Takes a bitmap as it was read first, whatever its group's descriptor says about it.
    pub(super) fn take_bitmap(&self, kind: BlockKind, block: BlockNo, bytes: &[u8]) {
        self.note_written(&mut self.known.lock(), (block.get(), kind), bytes);
    }

    /// Notes the sum of a bitmap as it is on the medium, or will be.
    fn note_written(&self, known: &mut Known, (block, kind): (u64, BlockKind), bytes: &[u8]) {
        let Some(sum) = self.bitmap_sum(kind, bytes) else { return };
        let Some((group, settled)) = known.bitmaps.get_mut(&block) else { return };
        *settled = Some(sum);
        let unsettled = known.unsettled.entry(*group).or_default();
        match kind {
            BlockKind::BlockBitmap => unsettled.blocks = Some(sum),
            _ => unsettled.inodes = Some(sum),
        }
    }

    /// Tells where a group's bitmaps and table are, before any of them is read.
    pub(super) fn note_group(&self, group: u32, at: &GroupDescriptor) {
        let mut known = self.known.lock();
        known.tables.insert(at.inode_table, group);
        known.bitmaps.entry(at.block_bitmap).or_insert((group, None));
        known.bitmaps.entry(at.inode_bitmap).or_insert((group, None));
    }

    /// Compares a bitmap, as it was read first, with the sum that its group's descriptor has.
    pub(super) fn check_bitmap(
        &self,
        kind: BlockKind,
        block: BlockNo,
        bytes: &[u8],
        kept: u32,
    ) -> Result<()> {
        let Some(sum) = self.bitmap_sum(kind, bytes) else { return Ok(()) };
        let mut known = self.known.lock();
        let Some((group, settled)) = known.bitmaps.get_mut(&block.get()) else { return Ok(()) };
        if kept_of_bitmap_sum(sum, self.shape.descriptor_size()) != kept {
            return Err(wrong(bitmap_of(kind, *group), block));
        }
        *settled = Some(sum);
        Ok(())
    }

    fn bitmap_sum(&self, kind: BlockKind, bytes: &[u8]) -> Option<u32> {
        self.sums.bitmap(
            bytes,
            match kind {
                BlockKind::BlockBitmap => self.shape.clusters_per_group(),
                _ => self.shape.inodes_per_group,
            },
        )
    }

    /// Fails if the sum of an inode that was read was wrong.
    pub(super) fn check_inode(&self, ino: u32, block: BlockNo) -> Result<()> {
        if self.known.lock().bad_inodes.contains(&ino) {
            return Err(wrong(Structure::Inode(u64::from(ino)), block));
        }
        Ok(())
    }

    /// An inode is made anew: whatever was there does not matter any more.
    pub(super) fn note_new_inode(&self, ino: u32) {
        self.known.lock().bad_inodes.remove(&ino);
    }

    /// The groups whose descriptors are in `block`.
    fn groups_in(&self, block: u64) -> std::ops::Range<u32> {
        let (shape, per_block) = (&self.shape, self.shape.descriptors_per_block());
        let Some(within) = block.checked_sub(shape.superblock_no() + 1) else { return 0..0 };
        let index = if within < u64::from(shape.packed_descriptor_blocks()) {
            low32(within)
        } else {
            let index = shape.group_of(block) / per_block;
            if index >= shape.descriptor_blocks() || shape.descriptor_block(index) != block {
                return 0..0;
            }
            index
        };
        index * per_block..((index + 1) * per_block).min(shape.group_count())
    }

    /// Calls `each` for each descriptor in an image of `block`, with its group and where its bytes are.
    fn each_descriptor(&self, block: u64, mut each: impl FnMut(u32, std::ops::Range<usize>)) {
        let size = self.shape.descriptor_size();
        for (group, at) in self.groups_in(block).zip(0_usize..) {
            each(group, at * size..(at + 1) * size);
        }
    }

    /// The number of the first inode in `block` of a table.
    fn first_inode(&self, known: &Known, block: u64) -> Option<u32> {
        let (&table, &group) = known.tables.range(..=block).next_back()?;
        let within =
            u32::try_from(block - table).ok().filter(|&within| within < self.shape.inode_table_blocks())?;
        Some(group * self.shape.inodes_per_group + within * self.shape.inodes_per_block() + 1)
    }

    /// The sum of the directory block or extent node `image`; `None` if there is no place for one.
    fn owned(&self, kind: BlockKind, owner: u64, image: &[u8]) -> Option<Placed> {
        let sums: InodeSums = self.sums.of_inode(low32(owner >> 32), low32(owner));
        match kind {
            BlockKind::Directory => match index_counts(image) {
                Some(counts) => sums.directory_index(image, counts),
                None if has_directory_tail(image) => sums.directory_leaf(image),
                None => None,
            },
            _ => sums.extent_node(image),
        }
    }

    fn seal_inodes(&self, block: u64, image: &mut [u8]) {
        let known = self.known.lock();
        let Some(first) = self.first_inode(&known, block) else { return };
        let slots = image.chunks_exact_mut(usize::from(self.shape.inode_size));
        for (ino, raw) in (first..).zip(slots) {
            if !known.bad_inodes.contains(&ino) && !is_blank(raw) {
                self.sums.seal_inode(ino, raw);
            }
        }
    }

    fn verify_inodes(&self, block: u64, image: &[u8]) {
        let mut known = self.known.lock();
        let Some(first) = self.first_inode(&known, block) else { return };
        for (ino, raw) in (first..).zip(image.chunks_exact(usize::from(self.shape.inode_size))) {
            if is_blank(raw) || self.sums.is_inode_right(ino, raw) {
                known.bad_inodes.remove(&ino);
            } else {
                known.bad_inodes.insert(ino);
            }
        }
    }
}

impl Seal for Sealer {
    fn covers(&self, kind: BlockKind) -> bool {
        match self.sums {
            Sums::None => false,
            Sums::Groups(_) => kind == BlockKind::GroupDescriptor,
            Sums::All(_) => matches!(
                kind,
                BlockKind::Superblock
                    | BlockKind::GroupDescriptor
                    | BlockKind::BlockBitmap
                    | BlockKind::InodeBitmap
                    | BlockKind::Inode
                    | BlockKind::Directory
                    | BlockKind::Indirect
                    | BlockKind::Attribute
            ),
        }
    }

    fn seal(&self, block: BlockNo, kind: BlockKind, owner: u64, image: &mut [u8]) {
        let no = block.get();
        match kind {
            BlockKind::Superblock if no == self.shape.superblock_no() => {
                let raw = &mut image[self.shape.offset_in_block()..];
                keep_sum(&mut raw[..SUPERBLOCK_SIZE]);
                seal_superblock(raw);
            }
            BlockKind::GroupDescriptor => {
                let known = self.known.lock();
                self.each_descriptor(no, |group, at| {
                    let raw = &mut image[at];
                    if let Some(sums) = known.unsettled.get(&group) {
                        sums.put(raw);
                    }
                    if !known.bad_groups.contains(&group) {
                        self.sums.seal_descriptor(group, raw);
                    }
                });
            }
            BlockKind::BlockBitmap | BlockKind::InodeBitmap if self.in_place.load(Ordering::Relaxed) => {
                self.note_written(&mut self.known.lock(), (no, kind), image);
            }
            BlockKind::Inode => self.seal_inodes(no, image),
            BlockKind::Directory | BlockKind::Indirect if owner != 0 => {
                if let Some(placed) = self.owned(kind, owner, image) {
                    place(image, placed);
                }
            }
            BlockKind::Attribute if Le::u32(image, 0) == XATTR_MAGIC => {
                self.sums.seal_attributes(block.get(), image);
            }
            _ => {}
        }
    }

    fn settle(&self, bitmaps: &[Bitmap<'_>], put: &mut dyn FnMut(BlockNo, usize, &[u8])) {
        let mut known = self.known.lock();
        let known = &mut *known;
        for bitmap in bitmaps {
            let Some(sum) = self.bitmap_sum(bitmap.kind, bitmap.contents) else { return };
            let Some((group, settled)) = known.bitmaps.get_mut(&bitmap.block.get()) else { continue };
            *settled = Some(sum);
            let (block, at) = self.shape.descriptor_place(*group);
            if let Some(unsettled) = known.unsettled.get_mut(group) {
                // No journal of its own, but all changes go through the one of a volume below: the descriptor has it with the bitmap.
                unsettled.forget(bitmap.kind);
            }
            let (low, high) = match bitmap.kind {
                BlockKind::BlockBitmap => (BG_BLOCK_BITMAP_CSUM_LO, BG_BLOCK_BITMAP_CSUM_HI),
                _ => (BG_INODE_BITMAP_CSUM_LO, BG_INODE_BITMAP_CSUM_HI),
            };
            let mut put_half = |field: Field<u16>, half: u16| {
                put(BlockNo(block), at + field.offset(), &half.to_le_bytes());
            };
            put_half(low, low16(sum));
            if self.shape.descriptor_size() >= LARGE_DESCRIPTOR_SIZE {
                put_half(high, high16(sum));
            }
        }
    }

    fn verify(&self, block: BlockNo, kind: BlockKind, owner: u64, image: &[u8]) -> Result<()> {
        let no = block.get();
        match kind {
            BlockKind::GroupDescriptor => {
                let mut known = self.known.lock();
                self.each_descriptor(no, |group, at| {
                    if self.sums.is_descriptor_right(group, &image[at]) {
                        known.bad_groups.remove(&group);
                    } else {
                        known.bad_groups.insert(group);
                    }
                });
                Ok(())
            }
            BlockKind::BlockBitmap | BlockKind::InodeBitmap => {
                let known = self.known.lock();
                match known.bitmaps.get(&no) {
                    Some(&(group, Some(sum))) if self.bitmap_sum(kind, image) != Some(sum) => {
                        Err(wrong(bitmap_of(kind, group), block))
                    }
                    _ => Ok(()),
                }
            }
            BlockKind::Inode => {
                self.verify_inodes(no, image);
                Ok(())
            }
            BlockKind::Directory | BlockKind::Indirect if owner != 0 => {
                match self.owned(kind, owner, image) {
                    Some(placed) if is_placed(image, placed) => Ok(()),
                    _ => Err(wrong(owned_by(kind), block)),
                }
            }
            BlockKind::Attribute if Le::u32(image, 0) == XATTR_MAGIC => {
                if self.sums.are_attributes_right(block.get(), image) {
                    return Ok(());
                }
                Err(wrong(Structure::AttributeBlock, block))
            }
            _ => Ok(()),
        }
    }
}

fn bitmap_of(kind: BlockKind, group: u32) -> Structure {
    match kind {
        BlockKind::BlockBitmap => Structure::BlockBitmap(u64::from(group)),
        _ => Structure::InodeBitmap(u64::from(group)),
    }
}

fn owned_by(kind: BlockKind) -> Structure {
    match kind {
        BlockKind::Directory => Structure::Other("directory block"),
        _ => Structure::Other("extent node"),
    }
}

fn wrong(what: Structure, block: BlockNo) -> Error {
    Error::corrupt(what, block, "its checksum is wrong")
}

/// Whether there was never an inode.
fn is_blank(raw: &[u8]) -> bool {
    raw.iter().fold(0, |any, &byte| any | byte) == 0
}

#[cfg(test)]
mod tests;
