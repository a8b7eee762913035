//! Writing a planned volume.

use std::collections::BTreeMap;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Result};

use super::image::{self, GroupUse, NewFile, SUPER_OFFSET, SUPER_SIZE};
use super::layout::Layout;
use super::options::MkfsOptions;
use super::plan::{FIRST_INO, Plan};
use super::space::Space;
use super::{index, narrow, resize};
use crate::ext2::layout::checksum::{Sums, seal_superblock};
use crate::ext2::layout::group::{BLOCK_UNINIT, INODE_UNINIT, INODE_ZEROED};
use crate::ext2::layout::inode::EXTENTS_FL;
use crate::ext2::layout::quota::{Dquot, Header, QuotaKind};
use crate::ext2::layout::superblock::{S_MMP_BLOCK, S_MMP_INTERVAL};
use crate::ext2::mmp;
use crate::ext2::newmap::{NewMap, Shape};
use crate::ext2::quota::tree::build;
use crate::ext2::quota::{FILE_FLAGS, FILE_MODE};
use crate::view::BlockView;

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
    layout: Layout,
    sums: Sums,
    /// Blocks that are not zero, apart from bitmaps and descriptors, written after the tables were zeroed.
    staged: BTreeMap<u64, Vec<u8>>,
    zeros: Vec<u8>,
    descriptors: Vec<u8>,
    free_blocks: u64,
    /// The block that tells who uses the volume, 0 without one.
    mmp_block: u64,
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
            layout: Layout::new(plan)?,
            sums: Sums::of_superblock(&image::superblock(plan, options, (0, 0), 0)),
            staged: BTreeMap::new(),
            zeros: vec![0; ZEROS],
            descriptors: vec![0; index(plan.desc_blocks) * block],
            free_blocks: 0,
            mmp_block: 0,
        })
    }

    /// Blocks that nothing uses. Known once the groups are written.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free_blocks
    }

    /// Blocks that nothing will use once the first files are there.
    pub(super) fn room(&self) -> u64 {
        self.plan.blocks - self.plan.first_data_block - self.layout.space.count()
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

    /// Takes the first `count` free blocks that lie together, in whole clusters.
    fn allocate(&mut self, count: u64) -> Option<u64> {
        let count = count.next_multiple_of(self.plan.cluster());
        let found = self.layout.space.find(self.plan.first_data_block, self.plan.blocks, count)?;
        self.layout.space.take(found, count);
        Some(found)
    }

    /// Takes the next free block.
    fn allocate_one(&mut self) -> Result<u64> {
        let too_small =
            || Error::Unsupported(format!("a volume of {} blocks is too small", self.plan.blocks));
        self.allocate(1).ok_or_else(too_small)
    }

    /// Takes blocks for inode `ino`, together where extents make that worth it, and stages what its map needs.
    fn allocate_file(&mut self, ino: u32, count: u64) -> Result<NewMap> {
        let extents = self.plan.features.extent;
        let together = if extents { self.allocate(count) } else { None };
        let data: Vec<u64> = match together {
            Some(start) => (start..start + count).collect(),
            None => {
                let cluster = self.plan.cluster();
                let starts: Vec<u64> =
                    (0..count.div_ceil(cluster)).map(|_| self.allocate_one()).collect::<Result<_>>()?;
                let all = starts.into_iter().flat_map(|start| start..start + cluster);
                all.take(index(count)).collect::<Vec<u64>>()
            }
        };
        let sums = self.sums.of_inode(ino, 0);
        let shape = Shape { block_size: narrow(self.plan.block_size), extents, sums };
        let spare: Vec<u64> = (0..shape.nodes(&data)).map(|_| self.allocate_one()).collect::<Result<_>>()?;
        let map = shape.build(&data, &spare);
        self.staged.extend(map.nodes.iter().map(|(block, bytes)| ((*block), bytes.clone())));
        Ok(map)
    }

    /// Stages the root directory, lost+found, and the reserved inodes.
    pub(super) fn lay_out_files(&mut self) -> Result<()> {
        let (plan, sums) = (self.plan, self.sums);
        let map = self.allocate_file(ROOT_INO, 1)?;
        let name = Some((FIRST_INO, b"lost+found".as_slice()));
        let bytes = image::directory(plan, sums, (ROOT_INO, ROOT_INO), name);
        self.staged.insert(map.data[0], bytes);
        let root = NewFile { owner: self.options.root_owner, ..self.new_file((0o040_755, 3), &map) };
        self.put_inode(ROOT_INO, &root);
        let mut charged = vec![(root.owner, root.sectors)];

        let map = self.allocate_file(FIRST_INO, plan.lost_found_blocks)?;
        for (i, &at) in map.data.iter().enumerate() {
            let bytes = match i {
                0 => image::directory(plan, sums, (FIRST_INO, ROOT_INO), None),
                _ => image::empty_directory_block(plan, sums, FIRST_INO),
            };
            self.staged.insert(at, bytes);
        }
        let lost_found = self.new_file((0o040_700, 2), &map);
        charged.push((lost_found.owner, lost_found.sectors));
        self.put_inode(FIRST_INO, &lost_found);

        if plan.features.resize_inode {
            let root = self.allocate_one()?;
            let file = resize::build(plan, root, &mut self.staged);
            self.put_inode(RESIZE_INO, &file);
        }
        self.lay_out_quotas(&charged)?;
        if plan.features.orphan_file {
            self.lay_out_orphan_file()?;
        }
        if plan.features.mmp {
            let block = self.allocate_one()?;
            let mut bytes = vec![0; index(plan.block_size)];
            mmp::put_free(&mut bytes[..SUPER_SIZE], sums);
            self.staged.insert(block, bytes);
            self.mmp_block = block;
        }
        Ok(())
    }

    /// Stages the files of quotas of those who have been `charged`: owner and group, sectors of an inode.
    fn lay_out_quotas(&mut self, charged: &[((u32, u32), u32)]) -> Result<()> {
        for (kind, ino) in QuotaKind::ALL.into_iter().zip(self.plan.quota_inodes()) {
            if ino == 0 {
                continue;
            }
            let mut entries: BTreeMap<u32, Dquot> = BTreeMap::new();
            for &((uid, gid), sectors) in charged {
                let entry = entries.entry([uid, gid, 0][kind.index()]).or_default();
                entry.inodes += 1;
                entry.space += u64::from(sectors) * 512;
            }
            let contents = build(kind, &Header::EMPTY, &entries)?;
            let unit = index(self.plan.block_size);
            let map = self.allocate_file(ino, to_u64(contents.len().div_ceil(unit)))?;
            for (part, &block) in contents.chunks(unit).zip(&map.data) {
                let mut bytes = part.to_vec();
                bytes.resize(unit, 0);
                self.staged.insert(block, bytes);
            }
            let file = self.new_file((FILE_MODE, 1), &map);
            let (size, flags) = (to_u64(contents.len()), file.flags | FILE_FLAGS);
            self.put_inode(ino, &NewFile { size, flags, ..file });
        }
        Ok(())
    }

    fn lay_out_orphan_file(&mut self) -> Result<()> {
        let ino = self.plan.orphan_ino();
        let map = self.allocate_file(ino, self.plan.orphan_blocks())?;
        for &block in &map.data {
            let bytes = image::orphan_block(self.plan, self.sums, block);
            self.staged.insert(block, bytes);
        }
        self.put_inode(ino, &self.new_file((0o100_600, 1), &map));
        Ok(())
    }

    fn new_file(&self, (mode, links): (u16, u16), map: &NewMap) -> NewFile {
        let (count, nodes) = (to_u64(map.data.len()), to_u64(map.nodes.len()));
        NewFile {
            mode,
            links,
            owner: (0, 0),
            size: count * self.plan.block_size,
            sectors: narrow(
                ((self.clusters(count) + nodes) * self.plan.block_size / 512) << self.plan.log_cluster,
            ),
            flags: if self.plan.features.extent { EXTENTS_FL } else { 0 },
            pointers: map.root,
        }
    }

    /// So many blocks in clusters.
    fn clusters(&self, blocks: u64) -> u64 {
        blocks.div_ceil(self.plan.cluster())
    }

    /// Stages inode `ino` in its place in the inode table.
    fn put_inode(&mut self, ino: u32, file: &NewFile) {
        let plan = self.plan;
        let mut raw = image::inode(plan, self.options.now, file);
        self.sums.seal_inode(ino, &mut raw);
        let (group, slot) = self.place(ino);
        let table = self.layout.groups[index(group)].inode_table;
        let at = slot * plan.inode_size;
        let block = self
            .staged
            .entry(table + at / plan.block_size)
            .or_insert_with(|| vec![0; index(plan.block_size)]);
        let offset = index(at % plan.block_size);
        block[offset..offset + raw.len()].copy_from_slice(&raw);
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
        let places = self.layout.groups[index(group)];
        let first_ino = group * plan.inodes_per_group;
        let used_inodes = plan.used_inodes().saturating_sub(first_ino).min(plan.inodes_per_group);
        let taken = self.taken_in(group);
        let clusters = self.clusters(plan.group_len(group));
        let free_clusters = clusters - taken.iter().map(|(from, to)| to - from).sum::<u64>();
        let flags = self.flags(group, free_clusters, used_inodes);
        let sum = |bits: &[u8], len| self.sums.bitmap(bits, narrow(len));
        let mut sums = [None, None];
        if flags & BLOCK_UNINIT == 0 {
            let block_bits = bitmap(plan.block_size, &taken, clusters);
            sums[0] = sum(&block_bits, plan.blocks_per_group >> plan.log_cluster);
            self.view.write(BlockNo(places.block_bitmap), BlockKind::BlockBitmap, &block_bits)?;
        }
        if flags & INODE_UNINIT == 0 {
            let inode_bits = bitmap(plan.block_size, &[(0, used_inodes)], plan.inodes_per_group);
            sums[1] = sum(&inode_bits, plan.inodes_per_group);
            self.view.write(BlockNo(places.inode_bitmap), BlockKind::InodeBitmap, &inode_bits)?;
        }
        if !self.options.device_is_zero {
            self.write_zeros(places.inode_table, plan.table_blocks, BlockKind::Inode)?;
            if plan.has_super(group) {
                let reserved = plan.head(group) + 1 + plan.desc_blocks;
                self.write_zeros(reserved, plan.reserved_desc_blocks, BlockKind::Indirect)?;
            }
        }
        let directories = [ROOT_INO, FIRST_INO].into_iter().filter(|&ino| self.place(ino).0 == group).count();
        let free_inodes = plan.inodes_per_group - used_inodes;
        let directories = to_u64(directories);
        self.free_blocks += free_clusters << plan.log_cluster;
        let usage = GroupUse { free_blocks: free_clusters, free_inodes, directories, flags, sums };
        let size = index(plan.desc_size);
        let raw = &mut self.descriptors[index(group) * size..][..size];
        image::descriptor(raw, self.sums, (group, &places), &usage);
        Ok(())
    }

    /// What is taken of `group`, as ranges of clusters from its first one on.
    fn taken_in(&self, group: u64) -> Vec<(u64, u64)> {
        let start = self.plan.group_start(group);
        let taken = self.layout.space.taken(start, start + self.plan.group_len(group));
        let log = self.plan.log_cluster;
        taken.into_iter().map(|(from, to)| ((from - start) >> log, self.clusters(to - start))).collect()
    }

    /// What of a group is left uninitialised. A reader knows a bitmap that was not written only where nothing is used but the group's
    /// own metadata, as far as they are in the group. The last group has a bitmap in any case, for its end is in it.
    fn flags(&self, group: u64, free_clusters: u64, used_inodes: u64) -> u16 {
        let plan = self.plan;
        if !plan.features.has_group_sums() {
            return 0;
        }
        let range = plan.group_start(group)..plan.group_start(group) + plan.group_len(group);
        let places = self.layout.groups[index(group)];
        let parts = [
            (range.start, range.start + plan.overhead(group)),
            (places.block_bitmap, places.block_bitmap + 1),
            (places.inode_bitmap, places.inode_bitmap + 1),
            (places.inode_table, places.inode_table + plan.table_blocks),
        ];
        let mut own = Space::default();
        for (from, to) in parts.map(|(from, to)| (from.max(range.start), to.min(range.end))) {
            own.take(from, to.saturating_sub(from));
        }
        let own = self.clusters(own.widened(|range| plan.whole(range)).count());
        let mut flags = INODE_ZEROED;
        if used_inodes == 0 {
            flags |= INODE_UNINIT;
        }
        if group + 1 < plan.groups && free_clusters + own == self.clusters(plan.group_len(group)) {
            flags |= BLOCK_UNINIT;
        }
        flags
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

    /// The superblock, with what was found out as the volume was laid out.
    fn superblock(&self, free: (u64, u64), group: u64) -> Vec<u8> {
        let mut raw = image::superblock(self.plan, self.options, free, group);
        if self.mmp_block != 0 {
            S_MMP_BLOCK.put(&mut raw, self.mmp_block);
            S_MMP_INTERVAL.put(&mut raw, mmp::INTERVAL);
            seal_superblock(&mut raw);
        }
        raw
    }

    /// Writes the copies of superblock and descriptors, and last the primary superblock.
    pub(super) fn finish(&mut self) -> Result<()> {
        let plan = self.plan;
        let block = index(plan.block_size);
        let free = (self.free_blocks, plan.inodes() - plan.used_inodes());
        for group in 0..plan.groups {
            let start = plan.group_start(group);
            let has_super = plan.has_super(group);
            let (first, count) = plan.descs_in(group);
            if count > 0 {
                let bytes = &self.descriptors[index(first) * block..][..index(count) * block];
                let at = BlockNo(plan.head(group) + u64::from(has_super));
                self.view.write(at, BlockKind::GroupDescriptor, bytes)?;
            }
            if has_super && group > 0 {
                let mut raw = self.superblock(free, group);
                raw.resize(block, 0);
                self.view.write(BlockNo(start), BlockKind::Superblock, &raw)?;
            }
        }
        self.view.flush()?;
        let mut head = vec![0; self.head_len()];
        let raw = self.superblock(free, 0);
        head[SUPER_OFFSET..SUPER_OFFSET + SUPER_SIZE].copy_from_slice(&raw);
        self.view.write(BlockNo(0), BlockKind::Superblock, &head)?;
        self.view.flush()
    }
}

/// A bitmap block: bits of the ranges `used` are set, others clear up to `len`, and then comes padding, which is set.
fn bitmap(block_size: u64, used: &[(u64, u64)], len: u64) -> Vec<u8> {
    let mut raw = vec![0; index(block_size)];
    for &(from, to) in used.iter().chain([&(len, block_size * 8)]) {
        let mut bit = from;
        while bit < to {
            if bit.is_multiple_of(8) && to - bit >= 8 {
                raw[index(bit / 8)] = 0xff;
                bit += 8;
            } else {
                raw[index(bit / 8)] |= 1 << (bit % 8);
                bit += 1;
            }
        }
    }
    raw
}
