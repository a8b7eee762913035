//! What a block is whose copy a log brings home: the log does not say, and its inodes are not known yet.
//!
//! Superblocks, descriptors, bitmaps and tables are where they have always been. The others show by their contents: attributes
//! have a magic number, a directory's block is a chain of entries, pointers lie within the volume. Contents that look like one of
//! these are taken for it, which happens only where contents are journaled; an empty block of pointers is one of pointers.

use fstitch_core::{BlockKind, BlockNo, Le, Result};

use super::super::layout::dirent::entries;
use super::super::layout::group::GroupDescriptor;
use super::super::layout::superblock::Superblock;
use super::super::layout::xattr::XATTR_MAGIC;
use super::super::num::low32;
use crate::view::BlockView;

/// Kinds of blocks of a volume.
pub(super) struct Kinds<'a> {
    volume: &'a Superblock,
    /// Bitmaps and tables by their first blocks, with their lengths: they may lie in other groups than their own.
    places: Vec<(u64, u32, BlockKind)>,
}

impl<'a> Kinds<'a> {
    /// Of a volume as it is on the medium: where its structures are does not change.
    pub(super) fn read(view: &BlockView<'_>, volume: &'a Superblock) -> Result<Self> {
        let groups = GroupDescriptor::read_all(volume, |block, into| {
            view.read(block, BlockKind::GroupDescriptor, into)
        })?;
        let mut places: Vec<_> = groups
            .iter()
            .flat_map(|at| {
                [
                    (at.block_bitmap, 1, BlockKind::BlockBitmap),
                    (at.inode_bitmap, 1, BlockKind::InodeBitmap),
                    (at.inode_table, volume.inode_table_blocks(), BlockKind::Inode),
                ]
            })
            .collect();
        places.sort_unstable_by_key(|&(first, ..)| first);
        Ok(Self { volume, places })
    }

    /// What a block is that holds this.
    pub(super) fn of(&self, block: BlockNo, contents: &[u8]) -> BlockKind {
        self.by_place(block).unwrap_or_else(|| self.by_contents(block, contents))
    }

    fn by_place(&self, block: BlockNo) -> Option<BlockKind> {
        let no = block.get();
        if no < self.volume.first_data_block() || no >= self.volume.blocks_count {
            return None;
        }
        let group = self.volume.group_of(no);
        // In some groups: a superblock, the descriptors, and blocks that are reserved for more of these.
        let head = self.volume.group_overhead(group);
        // In the first group a boot block may come before the superblock.
        let before = low32(self.volume.head_of(group) - self.volume.group_start(group));
        match low32(no - self.volume.group_start(group)).checked_sub(before)? {
            0 if self.volume.has_superblock(group) => Some(BlockKind::Superblock),
            n if n + before < head && n <= self.volume.descriptor_blocks() => {
                Some(BlockKind::GroupDescriptor)
            }
            _ => {
                let behind = self.places.partition_point(|&(first, ..)| first <= no);
                let &(first, count, kind) = self.places.get(behind.checked_sub(1)?)?;
                (no - first < u64::from(count)).then_some(kind)
            }
        }
    }

    fn by_contents(&self, block: BlockNo, contents: &[u8]) -> BlockKind {
        if Le::u32(contents, 0) == XATTR_MAGIC {
            return BlockKind::Attribute;
        }
        if entries(contents, block, self.volume).all(|entry| entry.is_ok()) {
            return BlockKind::Directory;
        }
        let mut pointers = contents.chunks_exact(4).map(|word| Le::u32(word, 0));
        let is_pointer = |no: u32| {
            no == 0 || (self.volume.first_data_block()..self.volume.blocks_count).contains(&u64::from(no))
        };
        if pointers.all(is_pointer) { BlockKind::Indirect } else { BlockKind::Data }
    }
}
