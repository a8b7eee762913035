//! Changes of a volume that nobody has open, in batches: blocks are changed in memory, and all that a batch has changed is one transaction.
//!
//! **Layout.** That of the volume. What a block's sum is was no concern of who changed it: all are put right when the batch is complete.
//!
//! **States and transitions.** The log is empty → blocks are read and changed in memory → they are one transaction in the log
//! ([`Pass::send`]) → home → the log is empty.
//!
//! **Crash cases.** A batch is home or not, whoever replays the log. The volume says that it needs recovery all the time.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, Error, FileKind, InodeNo, Result, Structure, Timestamp,
};
use fstitch_patch::journal::{Log, Scan, replay};

use super::find::{Journal, Place};
use super::raw::{FREE_BLOCKS, JOURNAL_INO, S_FREE_INODES_COUNT, SUPERBLOCK_SIZE, Superblock};
use crate::ext2::extents::root_over;
use crate::ext2::extents::tree::Held;
use crate::ext2::extents::walk::{Part, Source, walk};
use crate::ext2::layout::checksum::{
    self, InodeSums, Sums, is_placed, put_block_bitmap_sum, put_inode_bitmap_sum, seal_superblock,
};
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::group::{
    BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BG_USED_DIRS_COUNT, GroupDescriptor,
};
use crate::ext2::layout::inode::{self, DiskInode};
use crate::ext2::layout::xattr::{H_MAGIC, H_REFCOUNT, XATTR_MAGIC};
use crate::ext2::layout::{Field, keep_sum};
use crate::ext2::num::idx;
use crate::ext2::own::OwnRuns;
use crate::view::BlockView;

/// Blocks that a batch changes at most, if nothing else is said, however large the journal is: they are in memory.
pub const BATCH_MAX: usize = 1024;
/// Blocks that freeing one more block may change: its bitmap and descriptor, the indirect blocks above it, the inode,
/// the superblock, the inode's bitmap and descriptor, the attributes with theirs.
const STEP_MAX: usize = 16;

/// An inode that is worked on.
pub(in crate::ext2) struct Loaded {
    pub(in crate::ext2) ino: u32,
    pub(in crate::ext2) group: u32,
    /// Where its bytes are.
    pub(in crate::ext2) at: (BlockNo, usize),
    pub(in crate::ext2) disk: DiskInode,
}

/// What a batch has changed that has sums: they are put right when it is complete.
#[derive(Clone, Default)]
pub(in crate::ext2) struct Summed {
    /// Groups whose descriptors or bitmaps were changed.
    pub(in crate::ext2) groups: BTreeSet<u32>,
    /// Inodes, and where they are.
    pub(in crate::ext2) inodes: BTreeMap<u32, (BlockNo, usize)>,
    /// Extent nodes, with the sums of the inodes that they belong to.
    pub(in crate::ext2) nodes: BTreeMap<BlockNo, InodeSums>,
    /// The sums of the inode that is worked on, if it has extents.
    pub(in crate::ext2) nodes_of: Option<InodeSums>,
}

/// A volume that is changed in batches.
pub(in crate::ext2) struct Pass<'a, 'd> {
    pub(in crate::ext2) volume: BlockView<'a>,
    pub(in crate::ext2) shape: Superblock,
    log: &'a mut Log<'d>,
    pub(in crate::ext2) now: Timestamp,
    /// Blocks changed since the last batch.
    pub(in crate::ext2) changed: BTreeMap<BlockNo, (BlockKind, BlockBuf)>,
    batch_max: usize,
    /// The batch goes out before anything else is changed, full or not.
    pub(super) is_due: bool,
    /// The groups whose inode tables begin with these blocks, where usage is counted.
    pub(in crate::ext2) tables: BTreeMap<u64, u32>,
    /// The volume's own blocks.
    pub(in crate::ext2) own: OwnRuns,
    /// What is worked on, for errors.
    pub(in crate::ext2) what: Structure,
    /// What of the changed blocks has sums to be put right.
    pub(in crate::ext2) summed: Summed,
}

/// Works on the volume on `device` in batches of `batch_max` blocks through the journal that it has in itself, whose log is empty.
///
/// # Errors
/// Those of the work; `Unsupported` if the journal is too short for anything; `Io`, `Corrupt`.
pub(in crate::ext2) fn in_batches<T>(
    device: &dyn BlockDevice,
    (shape, what): (&Superblock, Structure),
    (now, batch_max): (Timestamp, usize),
    work: impl FnOnce(Pass<'_, '_>) -> Result<T>,
) -> Result<T> {
    let volume = BlockView::new(device, idx(shape.block_size));
    let journal = Journal::find(&volume, shape, Place::Inode(JOURNAL_INO), None)?;
    let mut log = journal.open(&volume)?;
    let mut pass = Pass::new(volume, shape.clone(), &mut log, (now, batch_max))?;
    pass.what = what;
    work(pass)
}

impl<'a, 'd> Pass<'a, 'd> {
    /// A pass over the volume; `log` is empty.
    ///
    /// # Errors
    /// `Unsupported` if the journal, or `batch_max`, is too short for anything.
    pub(in crate::ext2) fn new(
        volume: BlockView<'a>,
        shape: Superblock,
        log: &'a mut Log<'d>,
        (now, batch_max): (Timestamp, usize),
    ) -> Result<Self> {
        let batch_max = log.apply_max().min(batch_max);
        if batch_max < 2 * STEP_MAX {
            return Err(Error::Unsupported(format!("transactions of only {batch_max} blocks, for orphans")));
        }
        Self::of_any_size(volume, shape, log, (now, batch_max))
    }

    /// A pass whose batch is as large as it gets, if `batch_max` is out of reach.
    pub(in crate::ext2) fn of_any_size(
        volume: BlockView<'a>,
        shape: Superblock,
        log: &'a mut Log<'d>,
        (now, batch_max): (Timestamp, usize),
    ) -> Result<Self> {
        let groups = GroupDescriptor::read_all(&shape, |block, into| {
            volume.read(block, BlockKind::GroupDescriptor, into)
        })?;
        let counts = shape.features.has_ro_compat(ro_compat::QUOTA);
        let tables = groups.iter().map(|at| at.inode_table).zip(0..).filter(|_| counts).collect();
        let groups: Vec<_> = groups.into_iter().map(Some).collect();
        let own = OwnRuns::of(&shape, &groups);
        let (changed, summed) = (BTreeMap::new(), Summed::default());
        let (is_due, what) = (false, Structure::Orphan);
        Ok(Self { volume, shape, log, now, changed, batch_max, is_due, tables, own, what, summed })
    }

    /// Puts the changes made so far into the journal, and from there home.
    pub(in crate::ext2) fn send(&mut self) -> Result<()> {
        self.is_due = false;
        if self.changed.is_empty() {
            return Ok(());
        }
        self.charge_owners()?;
        self.seal()?;
        let (kinds, blocks) = self.take_changed();
        self.log.apply(&blocks, self.now)?;
        self.bring_home(&kinds)
    }

    /// Puts the changes made so far into the log in the place of the fast commits behind `scan`, and from there home.
    pub(in crate::ext2) fn send_instead(&mut self, scan: &Scan) -> Result<()> {
        self.charge_owners()?;
        self.seal()?;
        let (kinds, blocks) = self.take_changed();
        if blocks.len() > self.log.apply_max() {
            let (blocks, most) = (blocks.len(), self.log.apply_max());
            let problem = format!("fast commits that change {blocks} blocks, in a log for {most}");
            return Err(Error::Unsupported(problem));
        }
        self.log.supersede(scan, &blocks, self.now)?;
        self.bring_home(&kinds)
    }

    fn take_changed(&mut self) -> (BTreeMap<BlockNo, BlockKind>, Vec<(BlockNo, BlockBuf)>) {
        let (mut kinds, mut blocks) = (BTreeMap::new(), Vec::new());
        for (no, (kind, block)) in std::mem::take(&mut self.changed) {
            kinds.insert(no, kind);
            blocks.push((no, block));
        }
        (kinds, blocks)
    }

    fn bring_home(&mut self, kinds: &BTreeMap<BlockNo, BlockKind>) -> Result<()> {
        let kind_of = |no: BlockNo, _: &[u8]| kinds.get(&no).copied().unwrap_or(BlockKind::Data);
        replay(self.log, &self.volume, &kind_of, &mut |_| {})?;
        Ok(())
    }

    pub(in crate::ext2) fn is_full(&self) -> bool {
        self.changed.len() + STEP_MAX + self.owner_blocks() > self.batch_max
    }

    /// Puts the sums of everything that the batch has changed in place. A bitmap's is its group's descriptor's, so descriptors
    /// come after bitmaps.
    fn seal(&mut self) -> Result<()> {
        let summed = std::mem::take(&mut self.summed);
        let (sums, size) = (self.shape.sums, self.shape.descriptor_size());
        if sums == Sums::None {
            return Ok(());
        }
        for group in summed.groups {
            let (no, offset) = self.shape.descriptor_place(group);
            let no = BlockNo(no);
            let at = GroupDescriptor::raw(&self.read(no, BlockKind::GroupDescriptor)?[offset..offset + size]);
            let bitmap = |of: &Self, no: u64, bits| {
                let changed = of.changed.get(&BlockNo(no));
                changed.and_then(|(_, bytes)| sums.bitmap(bytes, bits))
            };
            let blocks = bitmap(self, at.block_bitmap, self.shape.clusters_per_group());
            let inodes = bitmap(self, at.inode_bitmap, self.shape.inodes_per_group);
            let raw = &mut self.change(no, BlockKind::GroupDescriptor)?[offset..offset + size];
            if let Some(sum) = blocks {
                put_block_bitmap_sum(raw, sum);
            }
            if let Some(sum) = inodes {
                put_inode_bitmap_sum(raw, sum);
            }
            sums.seal_descriptor(group, raw);
        }
        for (ino, (no, at)) in summed.inodes {
            let size = usize::from(self.shape.inode_size);
            if let Some((_, block)) = self.changed.get_mut(&no) {
                sums.seal_inode(ino, &mut block[at..at + size]);
            }
        }
        for (no, sums) in summed.nodes {
            if let Some((_, block)) = self.changed.get_mut(&no)
                && let Some(placed) = sums.extent_node(block)
            {
                checksum::place(block, placed);
            }
        }
        let raw = &mut self.superblock()?[..SUPERBLOCK_SIZE];
        keep_sum(raw);
        seal_superblock(raw);
        Ok(())
    }

    // ---- blocks ----

    pub(in crate::ext2) fn read(&self, no: BlockNo, kind: BlockKind) -> Result<BlockBuf> {
        if let Some((_, block)) = self.changed.get(&no) {
            return Ok(block.clone());
        }
        let mut block = BlockBuf::zeroed(self.volume.block_size());
        self.volume.read(no, kind, &mut block)?;
        self.verify(no, kind, &block)?;
        Ok(block)
    }

    /// Fails if a block that says what is to be freed has a wrong sum: another's blocks would be.
    fn verify(&self, no: BlockNo, kind: BlockKind, block: &[u8]) -> Result<()> {
        let is_right = match (kind, self.summed.nodes_of) {
            (BlockKind::Indirect, Some(sums)) => {
                sums.extent_node(block).is_none_or(|sum| is_placed(block, sum))
            }
            (BlockKind::Attribute, _) if H_MAGIC.get(block) == XATTR_MAGIC => {
                self.shape.sums.are_attributes_right(no.get(), block)
            }
            _ => true,
        };
        if is_right {
            return Ok(());
        }
        let what = if kind == BlockKind::Indirect { "an extent node" } else { "its attributes" };
        let problem = format!("the checksum of {what} in block {no} is wrong");
        Err(Error::corrupt(self.what, no, problem))
    }

    pub(in crate::ext2) fn change(&mut self, no: BlockNo, kind: BlockKind) -> Result<&mut BlockBuf> {
        if kind == BlockKind::Indirect
            && let Some(sums) = self.summed.nodes_of
        {
            self.summed.nodes.insert(no, sums);
        }
        if !self.changed.contains_key(&no) {
            let block = self.read(no, kind)?;
            self.changed.insert(no, (kind, block));
        }
        Ok(&mut self.changed.get_mut(&no).expect("just inserted").1)
    }

    /// A block that nobody has gets contents.
    pub(in crate::ext2) fn put_new(&mut self, no: BlockNo, kind: BlockKind, contents: BlockBuf) {
        if kind == BlockKind::Indirect
            && let Some(sums) = self.summed.nodes_of
        {
            self.summed.nodes.insert(no, sums);
        }
        self.changed.insert(no, (kind, contents));
    }

    /// Blocks that have changed since the last batch.
    pub(in crate::ext2) fn changes(&self) -> usize {
        self.changed.len()
    }

    /// The most blocks that a batch may change.
    pub(in crate::ext2) const fn batch_max(&self) -> usize {
        self.batch_max
    }

    /// What was changed of a block does not matter any more.
    pub(in crate::ext2) fn forget(&mut self, no: BlockNo) {
        self.changed.remove(&no);
    }

    /// A field of the superblock as it is now.
    pub(in crate::ext2) fn field(&self, field: Field<u32>) -> Result<u32> {
        let no = BlockNo(self.shape.superblock_no());
        let block = self.read(no, BlockKind::Superblock)?;
        Ok(field.get(&block[self.shape.offset_in_block()..]))
    }

    pub(in crate::ext2) fn superblock(&mut self) -> Result<&mut [u8]> {
        let offset = self.shape.offset_in_block();
        let no = BlockNo(self.shape.superblock_no());
        Ok(&mut self.change(no, BlockKind::Superblock)?[offset..])
    }

    pub(in crate::ext2) fn descriptor(&self, group: u32) -> Result<(BlockNo, usize, GroupDescriptor)> {
        let (no, offset) = self.shape.descriptor_place(group);
        let no = BlockNo(no);
        let block = self.read(no, BlockKind::GroupDescriptor)?;
        let bytes = &block[offset..offset + self.shape.descriptor_size()];
        // One that was changed gets its sum with the batch.
        let parsed = if self.summed.groups.contains(&group) {
            GroupDescriptor::parse_unsummed(bytes, group, &self.shape, no)?
        } else {
            GroupDescriptor::parse(bytes, group, &self.shape, no)?
        };
        Ok((no, offset, parsed))
    }

    /// Adds to a counter of a group.
    fn count(&mut self, (no, offset): (BlockNo, usize), field: Field<u16>, more: bool) -> Result<()> {
        let bytes = &mut self.change(no, BlockKind::GroupDescriptor)?[offset..];
        let count = field.get(bytes);
        let count = if more { count.saturating_add(1) } else { count.saturating_sub(1) };
        field.put(bytes, count);
        Ok(())
    }

    /// Clears a bit of a bitmap; false if it was clear.
    fn clear_bit(&mut self, bitmap: u64, kind: BlockKind, bit: u32) -> Result<bool> {
        let no = BlockNo(bitmap);
        let byte = &mut self.change(no, kind)?[idx(bit / 8)];
        let was_set = *byte & 1 << (bit % 8) != 0;
        *byte &= !(1 << (bit % 8));
        Ok(was_set)
    }

    // ---- freeing ----

    /// Frees a block, and with it all of its cluster.
    pub(in crate::ext2) fn free_block(&mut self, block: u64) -> Result<()> {
        let what = self.what;
        let damaged = |problem: &str| Error::corrupt(what, None, format!("its block {block} is {problem}"));
        if block <= self.shape.first_data_block() || block >= self.shape.blocks_count {
            return Err(damaged("outside the volume"));
        }
        let group = self.shape.group_of(block);
        let (no, offset, at) = self.descriptor(group)?;
        if self.own.meet(block, block + 1) {
            return Err(damaged("the volume's own"));
        }
        if at.is_block_uninit() {
            return Err(damaged("free, as its whole group is"));
        }
        self.summed.groups.insert(group);
        if !self.clear_bit(at.block_bitmap, BlockKind::BlockBitmap, self.shape.bit_of(block))? {
            return Err(damaged("free"));
        }
        self.count((no, offset), BG_FREE_BLOCKS_COUNT, true)?;
        let freed = u64::from(self.shape.cluster_blocks());
        let raw = self.superblock()?;
        FREE_BLOCKS.put(raw, FREE_BLOCKS.get(raw).saturating_add(freed));
        Ok(())
    }

    pub(in crate::ext2) fn free_inode(&mut self, orphan: &Loaded) -> Result<()> {
        let (no, offset, at) = self.descriptor(orphan.group)?;
        let bit = (orphan.ino - 1) % self.shape.inodes_per_group;
        self.summed.groups.insert(orphan.group);
        self.clear_bit(at.inode_bitmap, BlockKind::InodeBitmap, bit)?;
        self.count((no, offset), BG_FREE_INODES_COUNT, true)?;
        if orphan.disk.kind == FileKind::Directory {
            self.count((no, offset), BG_USED_DIRS_COUNT, false)?;
        }
        let raw = self.superblock()?;
        S_FREE_INODES_COUNT.put(raw, S_FREE_INODES_COUNT.get(raw).saturating_add(1));
        Ok(())
    }

    /// A block of attributes.
    pub(in crate::ext2) fn read_attributes(&self, block: u64) -> Result<(BlockNo, BlockBuf)> {
        if block <= self.shape.first_data_block() || block >= self.shape.blocks_count {
            return Err(Error::corrupt(self.what, None, format!("attributes in block {block}")));
        }
        let no = BlockNo(block);
        let bytes = self.read(no, BlockKind::Attribute)?;
        if H_MAGIC.get(&bytes) != XATTR_MAGIC {
            return Err(Error::corrupt(self.what, no, "no attributes are there"));
        }
        Ok((no, bytes))
    }

    /// Gives up an inode's share in its block of attributes.
    pub(in crate::ext2) fn free_attributes(&mut self, block: u64) -> Result<()> {
        let (no, bytes) = self.read_attributes(block)?;
        match H_REFCOUNT.get(&bytes) {
            0 | 1 => self.free_block(block),
            count => {
                let sums = self.shape.sums;
                let bytes = self.change(no, BlockKind::Attribute)?;
                H_REFCOUNT.put(bytes, count - 1);
                sums.seal_attributes(no.get(), bytes);
                Ok(())
            }
        }
    }

    // ---- inodes ----

    /// Where an inode lies.
    pub(in crate::ext2) fn place(&self, ino: u32) -> Result<(BlockNo, usize)> {
        let (_, _, descriptor) = self.descriptor(self.shape.group_of_inode(ino))?;
        Ok(inode::place(&self.shape, descriptor.inode_table, ino))
    }

    /// An inode of the volume, if it is in use.
    pub(in crate::ext2) fn load_inode(&self, ino: u32) -> Result<Option<Loaded>> {
        let group = self.shape.group_of_inode(ino);
        let (_, _, descriptor) = self.descriptor(group)?;
        let bit = (ino - 1) % self.shape.inodes_per_group;
        if descriptor.is_inode_uninit() {
            return Ok(None);
        }
        let bitmap = self.read(BlockNo(descriptor.inode_bitmap), BlockKind::InodeBitmap)?;
        if bitmap[idx(bit / 8)] & 1 << (bit % 8) == 0 {
            return Ok(None);
        }
        let at = inode::place(&self.shape, descriptor.inode_table, ino);
        let block = self.read(at.0, BlockKind::Inode)?;
        let bytes = &block[at.1..at.1 + usize::from(self.shape.inode_size)];
        let disk = DiskInode::parse(bytes, InodeNo(u64::from(ino)), at.0, &self.shape)?;
        Ok(Some(Loaded { ino, group, at, disk }))
    }

    /// Writes an inode's fields.
    pub(in crate::ext2) fn put_inode(&mut self, inode: &Loaded) -> Result<()> {
        let (size, block_size) = (usize::from(self.shape.inode_size), self.shape.block_size);
        self.summed.inodes.insert(inode.ino, inode.at);
        let block = self.change(inode.at.0, BlockKind::Inode)?;
        inode.disk.encode_into(&mut block[inode.at.1..inode.at.1 + size], block_size);
        Ok(())
    }

    /// Calls `each` with every run of blocks in an inode's map by extents, in the order of the file, and whether it is a node.
    pub(in crate::ext2) fn each_run(
        &self,
        inode: &Loaded,
        each: &mut dyn FnMut(u64, u32, bool),
    ) -> Result<()> {
        let mut read = |node: u64| {
            let block = self.read(BlockNo(node), BlockKind::Indirect)?;
            Ok(block.to_vec())
        };
        let mut source = Source { blocks_count: self.shape.blocks_count, read: &mut read };
        walk((&inode.disk.block, inode.at.0), &mut source, &mut |part| {
            match part {
                Part::Node(node) => each(node, 1, true),
                Part::Extent(extent) => each(extent.start, extent.len, false),
            }
            Ok(())
        })
    }

    /// Gives an inode the root of a tree of extents that was edited, and writes the nodes that differ.
    pub(in crate::ext2) fn put_tree(
        &mut self,
        inode: &mut Loaded,
        root: &Node,
        nodes: BTreeMap<u64, Held>,
    ) -> Result<()> {
        inode.disk.block = root_over(root, &inode.disk.block);
        self.summed.nodes_of = Some(self.shape.sums.of_inode(inode.ino, inode.disk.generation));
        for (block, held) in nodes.into_iter().filter(|(_, held)| held.is_changed) {
            let no = BlockNo(block);
            if held.is_new {
                // What a free block holds may be a node of its life before, with a sum that is wrong here.
                self.put_new(no, BlockKind::Indirect, BlockBuf::zeroed(self.volume.block_size()));
            }
            held.node.encode_into(self.change(no, BlockKind::Indirect)?);
        }
        self.summed.nodes_of = None;
        Ok(())
    }
}
