//! Group descriptors: where a group's bitmaps and inode table are, and its summary counters.
//!
//! **Layout.** 32 bytes each, or `s_desc_size` bytes (64) with the feature `64bit`, in an array that starts in the block
//! behind the superblock; with `meta_bg` each block of it lies in the first of the groups that it describes.

use fstitch_core::{BlockNo, Error, Result, Structure};

use super::feature::incompat;
use super::field::{Field, fields};
use super::superblock::Superblock;
use crate::ext2::num::{high32, idx, low32};

/// Bytes of a descriptor without the feature `64bit`.
pub const DESCRIPTOR_SIZE: usize = 32;
/// Bytes of a descriptor that has all fields below.
pub const LARGE_DESCRIPTOR_SIZE: usize = 64;
/// `bg_flags`: inode bitmap and table were never written: no inode is in use.
pub const INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written: only metadata are in use.
pub const BLOCK_UNINIT: u16 = 2;
/// `bg_flags`: the inode table holds zeros where no inode was.
pub const INODE_ZEROED: u16 = 4;

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
    /// [`INODE_UNINIT`] and the others.
    BG_FLAGS: u16 @ 18;
    /// Sum of the block bitmap, low half.
    BG_BLOCK_BITMAP_CSUM_LO: u16 @ 24;
    /// Sum of the inode bitmap, low half.
    BG_INODE_BITMAP_CSUM_LO: u16 @ 26;
    /// Inodes at the table's end that were never used.
    BG_ITABLE_UNUSED: u16 @ 28;
    /// Sum of the descriptor.
    BG_CHECKSUM: u16 @ 30;
    /// High halves, in large descriptors only: block of the block bitmap.
    BG_BLOCK_BITMAP_HI: u32 @ 32;
    /// Block of the inode bitmap.
    BG_INODE_BITMAP_HI: u32 @ 36;
    /// First block of the inode table.
    BG_INODE_TABLE_HI: u32 @ 40;
    /// Free blocks.
    BG_FREE_BLOCKS_COUNT_HI: u16 @ 44;
    /// Free inodes.
    BG_FREE_INODES_COUNT_HI: u16 @ 46;
    /// Directories.
    BG_USED_DIRS_COUNT_HI: u16 @ 48;
    /// Inodes at the table's end that were never used.
    BG_ITABLE_UNUSED_HI: u16 @ 50;
    /// Sum of the block bitmap.
    BG_BLOCK_BITMAP_CSUM_HI: u16 @ 56;
    /// Sum of the inode bitmap.
    BG_INODE_BITMAP_CSUM_HI: u16 @ 58;
}

const _: () = {
    assert!(BG_FLAGS.end() + 4 == BG_BLOCK_BITMAP_CSUM_LO.offset());
    assert!(BG_CHECKSUM.end() == DESCRIPTOR_SIZE && BG_BLOCK_BITMAP_HI.offset() == DESCRIPTOR_SIZE);
    assert!(BG_ITABLE_UNUSED_HI.end() + 4 == BG_BLOCK_BITMAP_CSUM_HI.offset());
    assert!(BG_INODE_BITMAP_CSUM_HI.end() + 4 == LARGE_DESCRIPTOR_SIZE);
};

/// A block group's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupDescriptor {
    /// Block of the block bitmap.
    pub block_bitmap: u64,
    /// Block of the inode bitmap.
    pub inode_bitmap: u64,
    /// First block of the inode table.
    pub inode_table: u64,
    /// Free blocks (a summary: the bitmap is the truth).
    pub free_blocks: u16,
    /// Free inodes (a summary).
    pub free_inodes: u16,
    /// Directories (a summary).
    pub used_dirs: u16,
    /// [`INODE_UNINIT`] and the others; 0 where descriptors have no sums, for then nobody means them.
    pub flags: u16,
    /// Inodes at the table's end that were never used; 0 where descriptors have no sums.
    pub itable_unused: u16,
}

impl GroupDescriptor {
    /// Reads a descriptor without any check. What only features give a meaning is read as it stands.
    #[must_use]
    pub fn raw(bytes: &[u8]) -> Self {
        Self {
            block_bitmap: place(bytes, BG_BLOCK_BITMAP, BG_BLOCK_BITMAP_HI),
            inode_bitmap: place(bytes, BG_INODE_BITMAP, BG_INODE_BITMAP_HI),
            inode_table: place(bytes, BG_INODE_TABLE, BG_INODE_TABLE_HI),
            free_blocks: BG_FREE_BLOCKS_COUNT.get(bytes),
            free_inodes: BG_FREE_INODES_COUNT.get(bytes),
            used_dirs: BG_USED_DIRS_COUNT.get(bytes),
            flags: BG_FLAGS.get(bytes),
            itable_unused: BG_ITABLE_UNUSED.get(bytes),
        }
    }

    /// Reads all descriptors of a volume without any check. `read` reads a block.
    ///
    /// # Errors
    /// When reading fails.
    pub fn read_all(
        volume: &Superblock,
        mut read: impl FnMut(BlockNo, &mut [u8]) -> Result<()>,
    ) -> Result<Vec<Self>> {
        let mut block = vec![0; idx(volume.block_size)];
        let mut groups = Vec::with_capacity(idx(volume.group_count()));
        for no in volume.all_descriptor_blocks() {
            read(BlockNo(no), &mut block)?;
            let left = idx(volume.group_count()) - groups.len();
            groups.extend(block.chunks_exact(volume.descriptor_size()).take(left).map(Self::raw));
        }
        Ok(groups)
    }

    /// Reads and checks the descriptor of `group`, all `s_desc_size` bytes of it: its sum is right, its bitmaps and inode
    /// table lie where they may, apart from each other and behind the copy of superblock and descriptors in the groups where
    /// they lie. That is this group, or with `flex_bg` any.
    ///
    /// # Errors
    /// `Corrupt`, naming the group. `block` is where the descriptor lies.
    pub fn parse(bytes: &[u8], group: u32, volume: &Superblock, block: BlockNo) -> Result<Self> {
        if !volume.sums.is_descriptor_right(group, bytes) {
            let problem = format!("checksum {:#06x}", BG_CHECKSUM.get(bytes));
            return Err(Error::corrupt(Structure::Descriptor(u64::from(group)), block, problem));
        }
        Self::parse_unsummed(bytes, group, volume, block)
    }

    /// The same whatever its sum is: for checking.
    ///
    /// # Errors
    /// As [`GroupDescriptor::parse`].
    pub fn parse_unsummed(bytes: &[u8], group: u32, volume: &Superblock, block: BlockNo) -> Result<Self> {
        let mut descriptor = Self::raw(bytes);
        let damaged =
            |problem: String| Error::corrupt(Structure::Descriptor(u64::from(group)), block, problem);
        if has_high_count(bytes) {
            return Err(damaged("a count needs more than its low half".into()));
        }
        if !volume.features.has_group_sums() {
            (descriptor.flags, descriptor.itable_unused) = (0, 0);
        }
        descriptor.check_places(group, volume).map_err(damaged)?;
        if u32::from(descriptor.itable_unused) > volume.inodes_per_group {
            return Err(damaged(format!("{} unused inodes", descriptor.itable_unused)));
        }
        Ok(descriptor)
    }

    /// Whether its bitmaps and its table may lie where it says.
    #[must_use]
    pub(crate) fn is_possible(&self, group: u32, volume: &Superblock) -> bool {
        self.check_places(group, volume).is_ok()
    }

    fn check_places(&self, group: u32, volume: &Superblock) -> Result<(), String> {
        let table = self.inode_table;
        let table_end = table.saturating_add(u64::from(volume.inode_table_blocks()));
        let home = volume.group_start(group);
        let home = home..home + u64::from(volume.group_blocks(group));
        let roams = volume.features.has_incompat(incompat::FLEX_BG);
        let bounds = if roams {
            volume.first_data_block() + 1..volume.blocks_count
        } else {
            home.start + u64::from(volume.group_overhead(group))..home.end
        };
        for (what, at, at_end) in [
            ("block bitmap", self.block_bitmap, self.block_bitmap.saturating_add(1)),
            ("inode bitmap", self.inode_bitmap, self.inode_bitmap.saturating_add(1)),
            ("inode table", table, table_end),
        ] {
            if at < bounds.start || at_end > bounds.end {
                let (start, end) = (bounds.start, bounds.end);
                return Err(format!("{what} at {at}..{at_end}, expected inside {start}..{end}"));
            }
            if roams && let Some(other) = overhead_met(volume, at, at_end) {
                return Err(format!("{what} at {at}..{at_end} lies over the descriptors in group {other}"));
            }
        }
        let inside = |bitmap: u64| (table..table_end).contains(&bitmap);
        if self.block_bitmap == self.inode_bitmap || inside(self.block_bitmap) || inside(self.inode_bitmap) {
            return Err("bitmaps and inode table overlap".into());
        }
        Ok(())
    }

    /// Whether the block bitmap was never written.
    #[must_use]
    pub const fn is_block_uninit(&self) -> bool {
        self.flags & BLOCK_UNINIT != 0
    }

    /// Whether inode bitmap and table were never written.
    #[must_use]
    pub const fn is_inode_uninit(&self) -> bool {
        self.flags & INODE_UNINIT != 0
    }

    /// Writes the descriptor's fields into its bytes, all `s_desc_size` of them; the others are kept. Flags and unused inodes
    /// are written only where they mean something (`summed`, [`super::feature::Features::has_group_sums`]).
    pub fn encode_into(&self, bytes: &mut [u8], summed: bool) {
        BG_BLOCK_BITMAP.put(bytes, low32(self.block_bitmap));
        BG_INODE_BITMAP.put(bytes, low32(self.inode_bitmap));
        BG_INODE_TABLE.put(bytes, low32(self.inode_table));
        BG_FREE_BLOCKS_COUNT.put(bytes, self.free_blocks);
        BG_FREE_INODES_COUNT.put(bytes, self.free_inodes);
        BG_USED_DIRS_COUNT.put(bytes, self.used_dirs);
        if summed {
            BG_FLAGS.put(bytes, self.flags);
            BG_ITABLE_UNUSED.put(bytes, self.itable_unused);
        }
        if bytes.len() >= LARGE_DESCRIPTOR_SIZE {
            BG_BLOCK_BITMAP_HI.put(bytes, high32(self.block_bitmap));
            BG_INODE_BITMAP_HI.put(bytes, high32(self.inode_bitmap));
            BG_INODE_TABLE_HI.put(bytes, high32(self.inode_table));
            bytes[BG_FREE_BLOCKS_COUNT_HI.offset()..BG_ITABLE_UNUSED_HI.end()].fill(0);
        }
    }
}

/// A block number in two halves, of which small descriptors have the low one only.
fn place(bytes: &[u8], low: Field<u32>, high: Field<u32>) -> u64 {
    let high = if bytes.len() >= LARGE_DESCRIPTOR_SIZE { u64::from(high.get(bytes)) << 32 } else { 0 };
    u64::from(low.get(bytes)) | high
}

/// Whether a large descriptor has counts that need their high halves, which no volume with groups of at most 65,528 blocks
/// has.
fn has_high_count(bytes: &[u8]) -> bool {
    bytes.len() >= LARGE_DESCRIPTOR_SIZE
        && bytes[BG_FREE_BLOCKS_COUNT_HI.offset()..BG_ITABLE_UNUSED_HI.end()].iter().any(|&byte| byte != 0)
}

/// The first group that has a part of `at..end`, which are blocks of the volume, in its copy of superblock and descriptors.
fn overhead_met(volume: &Superblock, at: u64, end: u64) -> Option<u32> {
    (volume.group_of(at)..=volume.group_of(end - 1)).find(|&group| {
        let (start, overhead) = (volume.group_start(group), u64::from(volume.group_overhead(group)));
        overhead > 0 && at < start + overhead && start < end
    })
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
            flags: BLOCK_UNINIT,
            itable_unused: 9,
        };
        let mut bytes = [0xff; LARGE_DESCRIPTOR_SIZE];
        descriptor.encode_into(&mut bytes[..DESCRIPTOR_SIZE], false);
        assert_eq!(bytes[18..], [0xff; 46], "without sums nobody else has flags");
        descriptor.encode_into(&mut bytes[..DESCRIPTOR_SIZE], true);
        assert_eq!(GroupDescriptor::raw(&bytes[..DESCRIPTOR_SIZE]), descriptor);
        assert_eq!(bytes[32..], [0xff; 32]);
        assert!(has_high_count(&bytes));
        descriptor.encode_into(&mut bytes, true);
        assert!(!has_high_count(&bytes));
        assert_eq!(bytes[52..], [0xff; 12], "sums are not the descriptor's");
        let far = GroupDescriptor {
            block_bitmap: 3 << 32 | 7,
            inode_bitmap: 1 << 32,
            inode_table: 5 << 40,
            ..descriptor
        };
        far.encode_into(&mut bytes, true);
        assert!(!has_high_count(&bytes));
        assert_eq!(GroupDescriptor::raw(&bytes), far);
        assert_eq!(GroupDescriptor::raw(&bytes[..DESCRIPTOR_SIZE]).block_bitmap, 7);
    }
}
