//! Writing a planned volume.

use std::collections::BTreeMap;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result};

use super::image::{self, DESC_SIZE, GroupUse, NewFile, SUPER_OFFSET, SUPER_SIZE};
use super::options::MkfsOptions;
use super::plan::{FIRST_INO, Plan};
use super::{index, narrow, resize};
use crate::ext2::view::BlockView;

/// Bytes of zeros written at once.
const ZEROS: usize = 1 << 20;
/// The root directory's inode.
const ROOT_INO: u32 = 2;
/// The resize inode.
const RESIZE_INO: u32 = 7;

/// A volume in the making.
pub(super) struct Writer<'a> {
    view: BlockView<'a>,
    device: &'a dyn BlockDevice,
    options: &'a MkfsOptions,
    plan: &'a Plan,
    /// Data blocks taken in each group, from the first behind its metadata.
    taken: BTreeMap<u64, u64>,
    /// Blocks that are not zero, apart from bitmaps and descriptors, written after the tables were zeroed.
    staged: BTreeMap<u64, Vec<u8>>,
    zeros: Vec<u8>,
    descriptors: Vec<u8>,
    free_blocks: u64,
}

impl<'a> Writer<'a> {
    pub(super) fn new(device: &'a dyn BlockDevice, options: &'a MkfsOptions, plan: &'a Plan) -> Result<Self> {
        let block = index(plan.block_size);
        let view = BlockView::new(device, block);
        if plan.blocks > view.block_count() {
            return Err(Error::Unsupported(format!("{} blocks on this device", plan.blocks)));
        }
        Ok(Self {
            view,
            device,
            options,
            plan,
            taken: BTreeMap::new(),
            staged: BTreeMap::new(),
            zeros: vec![0; ZEROS],
            descriptors: vec![0; index(plan.desc_blocks) * block],
            free_blocks: 0,
        })
    }

    /// Blocks that nothing uses. Known once the groups are written.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Blocks that nothing will use once the first files are there.
    pub(super) fn room(&self) -> u64 {
        self.plan.free_without_files() - self.taken.values().sum::<u64>()
    }

    /// Makes sure that nobody takes the device for a volume until it is one.
    pub(super) fn wipe(&mut self) -> Result<()> {
        if self.options.discard {
            let geometry = self.device.geometry();
            self.device.discard(BlockNo(0), geometry.block_count)?;
        }
        let head = self.head_len();
        self.view.write(BlockNo(0), BlockKind::Superblock, &self.zeros[..head])?;
        self.view.flush()
    }

    /// Bytes of whole blocks that hold the boot area and the primary superblock.
    fn head_len(&self) -> usize {
        (SUPER_OFFSET + SUPER_SIZE).next_multiple_of(index(self.plan.block_size))
    }

    /// Takes the next free block.
    fn allocate(&mut self) -> u64 {
        for group in 0..self.plan.groups {
            let taken = self.taken.entry(group).or_insert(0);
            let next = self.plan.meta_len(group) + *taken;
            if next < self.plan.group_len(group) {
                *taken += 1;
                return self.plan.group_start(group) + next;
            }
        }
        unreachable!("the plan has checked that the first files fit")
    }

    /// Stages the root directory, lost+found, and the reserved inodes.
    pub(super) fn lay_out_files(&mut self) {
        let now = self.options.now;
        let block = index(self.plan.block_size);
        let root = self.allocate();
        let name = Some((FIRST_INO, b"lost+found".as_slice()));
        self.staged.insert(root, image::directory(self.plan, ROOT_INO, ROOT_INO, name));
        let mut file = self.new_directory(0o040_755, 3, &[root]);
        file.owner = self.options.root_owner;
        self.put_inode(ROOT_INO, &image::inode(self.plan, now, &file));

        let blocks: Vec<u64> = (0..self.plan.lost_found_blocks).map(|_| self.allocate()).collect();
        for (i, &at) in blocks.iter().enumerate() {
            let bytes = match i {
                0 => image::directory(self.plan, FIRST_INO, ROOT_INO, None),
                _ => image::empty_directory_block(self.plan),
            };
            debug_assert_eq!(bytes.len(), block);
            self.staged.insert(at, bytes);
        }
        let file = self.new_directory(0o040_700, 2, &blocks);
        self.put_inode(FIRST_INO, &image::inode(self.plan, now, &file));

        if self.plan.reserved_desc_blocks > 0 {
            let root = self.allocate();
            let file = resize::build(self.plan, root, &mut self.staged);
            self.put_inode(RESIZE_INO, &image::inode(self.plan, now, &file));
        }
    }

    fn new_directory(&self, mode: u16, links: u16, blocks: &[u64]) -> NewFile {
        let count = to_u64(blocks.len());
        let mut pointers = [0; 15];
        for (pointer, &block) in pointers.iter_mut().zip(blocks) {
            *pointer = narrow(block);
        }
        NewFile {
            mode,
            links,
            owner: (0, 0),
            size: count * self.plan.block_size,
            sectors: narrow(count * self.plan.block_size / 512),
            pointers,
        }
    }

    /// Stages inode `ino` in its place in the inode table.
    fn put_inode(&mut self, ino: u32, raw: &[u8]) {
        let plan = self.plan;
        let (group, slot) = self.place(ino);
        let table = plan.group_start(group) + plan.bitmap_offset(group) + 2;
        let at = slot * plan.inode_size;
        let block = self
            .staged
            .entry(table + at / plan.block_size)
            .or_insert_with(|| vec![0; index(plan.block_size)]);
        let offset = index(at % plan.block_size);
        block[offset..offset + raw.len()].copy_from_slice(raw);
    }

    /// The group of inode `ino` and its index there.
    fn place(&self, ino: u32) -> (u64, u64) {
        let n = u64::from(ino) - 1;
        (n / self.plan.inodes_per_group, n % self.plan.inodes_per_group)
    }

    /// Writes each group's bitmaps and zeroed inode table, and fills the descriptors.
    pub(super) fn write_groups(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        for group in 0..self.plan.groups {
            self.write_group(group)?;
            progress(group + 1, self.plan.groups);
        }
        Ok(())
    }

    fn write_group(&mut self, group: u64) -> Result<()> {
        let plan = self.plan;
        let start = plan.group_start(group);
        let bitmaps = start + plan.bitmap_offset(group);
        let used = plan.meta_len(group) + self.taken.get(&group).copied().unwrap_or(0);
        let free_blocks = plan.group_len(group) - used;
        let first_ino = group * plan.inodes_per_group;
        let used_inodes = u64::from(FIRST_INO).saturating_sub(first_ino).min(plan.inodes_per_group);
        let directories = [ROOT_INO, FIRST_INO].into_iter().filter(|&ino| self.place(ino).0 == group).count();
        let usage = GroupUse {
            free_blocks,
            free_inodes: plan.inodes_per_group - used_inodes,
            directories: u64::try_from(directories).expect("at most two"),
        };
        self.free_blocks += free_blocks;
        let at = index(group) * DESC_SIZE;
        image::descriptor(&mut self.descriptors[at..at + DESC_SIZE], plan, group, &usage);

        let block_bits = bitmap(plan.block_size, used, plan.group_len(group));
        self.view.write(BlockNo(bitmaps), BlockKind::BlockBitmap, &block_bits)?;
        let inode_bits = bitmap(plan.block_size, used_inodes, plan.inodes_per_group);
        self.view.write(BlockNo(bitmaps + 1), BlockKind::InodeBitmap, &inode_bits)?;
        if !self.options.device_is_zero {
            self.write_zeros(bitmaps + 2, plan.table_blocks, BlockKind::Inode)?;
            if plan.has_super(group) {
                let reserved = start + 1 + plan.desc_blocks;
                self.write_zeros(reserved, plan.reserved_desc_blocks, BlockKind::Indirect)?;
            }
        }
        Ok(())
    }

    fn write_zeros(&self, start: u64, count: u64, kind: BlockKind) -> Result<()> {
        let step = to_u64(ZEROS) / self.plan.block_size;
        let mut at = start;
        while at < start + count {
            let n = step.min(start + count - at);
            self.view.write(BlockNo(at), kind, &self.zeros[..index(n * self.plan.block_size)])?;
            at += n;
        }
        Ok(())
    }

    /// Writes the first files and inodes over the zeroed tables.
    pub(super) fn write_staged(&mut self) -> Result<()> {
        for (&block, bytes) in &self.staged {
            self.view.write(BlockNo(block), BlockKind::Data, bytes)?;
        }
        Ok(())
    }

    /// Writes the copies of superblock and descriptors, and last the primary superblock.
    pub(super) fn finish(&mut self) -> Result<()> {
        let plan = self.plan;
        let block = index(plan.block_size);
        let free = (self.free_blocks, plan.inodes() - u64::from(FIRST_INO));
        for group in (0..plan.groups).filter(|&group| plan.has_super(group)) {
            let start = plan.group_start(group);
            self.view.write(BlockNo(start + 1), BlockKind::GroupDescriptor, &self.descriptors)?;
            if group > 0 {
                let mut raw = image::superblock(plan, self.options, free, group);
                raw.resize(block, 0);
                self.view.write(BlockNo(start), BlockKind::Superblock, &raw)?;
            }
        }
        self.view.flush()?;
        let mut head = vec![0; self.head_len()];
        let raw = image::superblock(plan, self.options, free, 0);
        head[SUPER_OFFSET..SUPER_OFFSET + SUPER_SIZE].copy_from_slice(&raw);
        self.view.write(BlockNo(0), BlockKind::Superblock, &head)?;
        self.view.flush()
    }
}

/// A bitmap block: `used` bits set, then clear ones up to `len`, then padding, which is set.
fn bitmap(block_size: u64, used: u64, len: u64) -> Vec<u8> {
    let mut raw = vec![0; index(block_size)];
    for bit in (0..used).chain(len..block_size * 8) {
        raw[index(bit / 8)] |= 1 << (bit % 8);
    }
    raw
}
