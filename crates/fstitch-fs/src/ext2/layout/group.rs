//! Group descriptors: where a group's bitmaps and inode table are, and its summary counters.
//!
//! **Layout.** 32 bytes each, in an array that starts in the block behind the superblock.

use fstitch_core::{BlockNo, Error, Result, Structure};

use super::field::fields;
use super::superblock::Superblock;

/// Bytes of a descriptor.
pub const DESCRIPTOR_SIZE: usize = 32;

fields! {
    /// Block of the block bitmap.
    BG_BLOCK_BITMAP: u32 @ 0;
    /// Block of the inode bitmap.
    BG_INODE_BITMAP: u32 @ 4;
    /// First block of the inode table.
    BG_INODE_TABLE: u32 @ 8;
    /// Free blocks.
    BG_FREE_BLOCKS_COUNT: u16 @ 12;
    /// Free inodes.
    BG_FREE_INODES_COUNT: u16 @ 14;
    /// Inodes that are directories.
    BG_USED_DIRS_COUNT: u16 @ 16;
    /// Flags of later formats.
    BG_FLAGS: u16 @ 18;
}

const _: () = assert!(BG_FLAGS.end() == 20 && BG_FLAGS.end() <= DESCRIPTOR_SIZE);

/// A block group's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupDescriptor {
    /// Block of the block bitmap.
    pub block_bitmap: u32,
    /// Block of the inode bitmap.
    pub inode_bitmap: u32,
    /// First block of the inode table.
    pub inode_table: u32,
    /// Free blocks (a summary: the bitmap is the truth).
    pub free_blocks: u16,
    /// Free inodes (a summary).
    pub free_inodes: u16,
    /// Directories (a summary).
    pub used_dirs: u16,
}

impl GroupDescriptor {
    /// Reads a descriptor without any check.
    #[must_use]
    pub fn raw(bytes: &[u8]) -> Self {
        Self {
            block_bitmap: BG_BLOCK_BITMAP.get(bytes),
            inode_bitmap: BG_INODE_BITMAP.get(bytes),
            inode_table: BG_INODE_TABLE.get(bytes),
            free_blocks: BG_FREE_BLOCKS_COUNT.get(bytes),
            free_inodes: BG_FREE_INODES_COUNT.get(bytes),
            used_dirs: BG_USED_DIRS_COUNT.get(bytes),
        }
    }

    /// Reads and checks the descriptor of `group`: its bitmaps and inode table lie inside the group, apart
    /// from each other and behind the group's copy of superblock and descriptors.
    ///
    /// # Errors
    /// `Corrupt`, naming the group. `block` is where the descriptor lies.
    pub fn parse(bytes: &[u8], group: u32, volume: &Superblock, block: BlockNo) -> Result<Self> {
        let descriptor = Self::raw(bytes);
        let damaged =
            |problem: String| Error::corrupt(Structure::Descriptor(u64::from(group)), block, problem);
        let first = u64::from(volume.group_start(group)) + u64::from(volume.group_overhead(group));
        let end = u64::from(volume.group_start(group)) + u64::from(volume.group_blocks(group));
        let table = u64::from(descriptor.inode_table);
        let table_end = table + u64::from(volume.inode_table_blocks());
        for (what, at, at_end) in [
            ("block bitmap", u64::from(descriptor.block_bitmap), u64::from(descriptor.block_bitmap) + 1),
            ("inode bitmap", u64::from(descriptor.inode_bitmap), u64::from(descriptor.inode_bitmap) + 1),
            ("inode table", table, table_end),
        ] {
            if at < first || at_end > end {
                return Err(damaged(format!("{what} at {at}..{at_end}, expected inside {first}..{end}")));
            }
        }
        let inside = |bitmap: u32| (table..table_end).contains(&u64::from(bitmap));
        if descriptor.block_bitmap == descriptor.inode_bitmap
            || inside(descriptor.block_bitmap)
            || inside(descriptor.inode_bitmap)
        {
            return Err(damaged("bitmaps and inode table overlap".into()));
        }
        Ok(descriptor)
    }

    /// Writes the descriptor's fields into its 32 bytes; the others are kept.
    pub fn encode_into(&self, bytes: &mut [u8]) {
        BG_BLOCK_BITMAP.put(bytes, self.block_bitmap);
        BG_INODE_BITMAP.put(bytes, self.inode_bitmap);
        BG_INODE_TABLE.put(bytes, self.inode_table);
        BG_FREE_BLOCKS_COUNT.put(bytes, self.free_blocks);
        BG_FREE_INODES_COUNT.put(bytes, self.free_inodes);
        BG_USED_DIRS_COUNT.put(bytes, self.used_dirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_round_trips() {
        let descriptor = GroupDescriptor {
            block_bitmap: 3,
            inode_bitmap: 4,
            inode_table: 5,
            free_blocks: 6,
            free_inodes: 7,
            used_dirs: 8,
        };
        let mut bytes = [0xff; DESCRIPTOR_SIZE];
        descriptor.encode_into(&mut bytes);
        assert_eq!(GroupDescriptor::raw(&bytes), descriptor);
        assert_eq!(bytes[18..], [0xff; 14]);
    }
}
