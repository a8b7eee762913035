//! What blocks of each kind may hold.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, BlockNo, InodeNo, Le};
use fstitch_fs::ext2::layout::dirent::entries;
use fstitch_fs::ext2::layout::feature::compat;
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{DiskInode, I_DTIME, I_LINKS_COUNT};
use fstitch_fs::ext2::layout::superblock::{
    BLOCKS, MAGIC, S_BLOCK_GROUP_NR, S_MAGIC, S_STATE, S_UUID, STATE_VALID, SUPERBLOCK_SIZE, Superblock,
};
use fstitch_fs::ext2::layout::xattr::XattrSet;
use fstitch_shepherd::Rules;

/// The rules of one volume.
pub(super) struct ExtRules {
    pub(super) shape: Superblock,
}

impl Rules for ExtRules {
    fn judge(&self, kind: BlockKind, block: BlockNo, data: &[u8]) -> Option<String> {
        match kind {
            BlockKind::Superblock => self.superblock(block, data),
            BlockKind::GroupDescriptor => self.descriptors(block, data),
            BlockKind::BlockBitmap => self.bitmap(block, data),
            BlockKind::Inode => self.inodes(block, data),
            BlockKind::Directory => {
                entries(data, block, &self.shape).find_map(Result::err).map(|error| error.to_string())
            }
            BlockKind::Indirect => self.pointers(data),
            BlockKind::Attribute if Le::u32(data, 0) == fstitch_fs::ext2::layout::xattr::XATTR_MAGIC => {
                XattrSet::parse_block(data, block).err().map(|error| error.to_string())
            }
            // Targets of symbolic links, and what the format has no rules for.
            _ => None,
        }
    }

    /// Superblock and descriptors have copies of the format's own, in which what changes is old: counts, which are hints, and states. The
    /// superblock's says besides whether there is a journal to be replayed, so that of a volume with a journal is beyond this.
    fn repair(
        &self,
        kind: BlockKind,
        block: BlockNo,
        data: &[u8],
        read: &dyn Fn(BlockNo, BlockKind) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        let (group, within) = self.in_group(block)?;
        let has_journal = self.shape.features.compat & compat::HAS_JOURNAL != 0;
        let others = (1..self.shape.group_count()).filter(|group| self.shape.has_superblock(*group));
        let mut others = others.filter(|other| *other != group);
        let copy = |group: u32, within: u32| {
            let at = BlockNo(self.shape.group_start(group) + u64::from(within));
            read(at, kind).filter(|copy| self.judge(kind, at, copy).is_none())
        };
        match kind {
            BlockKind::Superblock if group == 0 && !has_journal => {
                let copy = others.find_map(|other| copy(other, 0))?;
                let at = self.shape.offset_in_block();
                let mut repaired = data.to_vec();
                let raw = repaired.get_mut(at..at + SUPERBLOCK_SIZE)?;
                raw.copy_from_slice(copy.get(..SUPERBLOCK_SIZE)?);
                S_BLOCK_GROUP_NR.put(raw, 0);
                S_STATE.put(raw, S_STATE.get(raw) & !STATE_VALID);
                Some(repaired)
            }
            BlockKind::GroupDescriptor if within > 0 => others.find_map(|other| copy(other, within)),
            _ => None,
        }
    }
}

impl ExtRules {
    fn superblock(&self, block: BlockNo, data: &[u8]) -> Option<String> {
        let is_first = block == BlockNo(self.shape.superblock_no());
        let raw = data.get(if is_first { self.shape.offset_in_block() } else { 0 }..)?;
        if S_MAGIC.get(raw) != MAGIC {
            return Some(format!("it has the magic number {:#06x}", S_MAGIC.get(raw)));
        }
        if raw.get(S_UUID..S_UUID + 16) != Some(&self.shape.uuid) {
            return Some("it is another volume's".to_owned());
        }
        let blocks = BLOCKS.get(raw);
        (blocks != self.shape.blocks_count).then(|| format!("it says that the volume has {blocks} blocks"))
    }

    /// The group that has a block, and the block's place in it.
    fn in_group(&self, block: BlockNo) -> Option<(u32, u32)> {
        let within = block.get().checked_sub(self.shape.first_data_block())?;
        let per_group = u64::from(self.shape.blocks_per_group);
        Some((u32::try_from(within / per_group).ok()?, u32::try_from(within % per_group).ok()?))
    }

    fn descriptors(&self, block: BlockNo, data: &[u8]) -> Option<String> {
        let (_, within) = self.in_group(block)?;
        // Behind those in use are blocks that are reserved for more.
        let no = within.checked_sub(1).filter(|no| *no < self.shape.descriptor_blocks())?;
        let first = no * self.shape.descriptors_per_block();
        let groups = first..self.shape.group_count();
        data.chunks_exact(self.shape.descriptor_size()).zip(groups).find_map(|(raw, group)| {
            GroupDescriptor::parse(raw, group, &self.shape, block).err().map(|error| error.to_string())
        })
    }

    /// Blocks that a group lacks, as the last one may, are marked as used.
    fn bitmap(&self, block: BlockNo, data: &[u8]) -> Option<String> {
        let (group, _) = self.in_group(block)?;
        let missing = self.shape.group_clusters(group)..self.shape.clusters_per_group();
        let is_used = |bit: u32| data.get(to_usize(bit / 8)).is_some_and(|byte| byte & (1 << (bit % 8)) != 0);
        let free = missing.clone().find(|bit| !is_used(*bit))?;
        Some(format!("block {free} of group {group} is free, which has only {}", missing.start))
    }

    fn inodes(&self, block: BlockNo, data: &[u8]) -> Option<String> {
        let (group, _) = self.in_group(block)?;
        data.chunks_exact(usize::from(self.shape.inode_size)).find_map(|raw| {
            if I_LINKS_COUNT.get(raw) == 0 || I_DTIME.get(raw) != 0 {
                return None;
            }
            // Which inodes of the group these are does not matter to the rules.
            let ino = InodeNo(u64::from(group) * u64::from(self.shape.inodes_per_group) + 1);
            DiskInode::parse(raw, ino, block, &self.shape).err().map(|error| error.to_string())
        })
    }

    fn pointers(&self, data: &[u8]) -> Option<String> {
        let range = self.shape.first_data_block()..self.shape.blocks_count;
        let mut pointers = data.chunks_exact(4).map(|word| Le::u32(word, 0));
        let wild = pointers.find(|no| *no != 0 && !range.contains(&u64::from(*no)))?;
        Some(format!("it points at block {wild} of a volume of {}", self.shape.blocks_count))
    }
}
