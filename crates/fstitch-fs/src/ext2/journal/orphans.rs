//! The list of orphans: files without a name that were open, and truncations under way, when the volume was left.
//!
//! **Layout.** `s_last_orphan` names the first one; each one's `i_dtime` names the next, 0 ends the list. One without
//! links is to be freed, any other is to be cut to its length.
//!
//! **Crash cases.** All changes go through the journal in batches, each a transaction. A large file takes several,
//! from its end forward, and stays on the list until the last: after each, the volume is consistent and its list
//! says what is left to do.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::{
    BlockBuf, BlockKind, BlockNo, Error, FileKind, InodeNo, Le, Result, Structure, Timestamp,
};
use fstitch_patch::journal::{Log, Scan, replay};

use super::orphan_file::OrphanFile;
use super::raw::{
    JOURNAL_INO, S_FEATURE_RO_COMPAT, S_FREE_BLOCKS_COUNT, S_FREE_INODES_COUNT, S_LAST_ORPHAN, S_MKFS_TIME,
    SUPERBLOCK_SIZE, Superblock,
};
use crate::ext2::layout::checksum::{
    self, InodeSums, Sums, is_placed, put_block_bitmap_sum, put_inode_bitmap_sum, seal_superblock,
};
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::group::{
    BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BG_USED_DIRS_COUNT, GroupDescriptor,
};
use crate::ext2::layout::inode::{
    self, DIRECT, DiskInode, I_BLOCKS, I_BLOCKS_HIGH, I_DTIME, I_FILE_ACL, I_LINKS_COUNT, I_SIZE,
    I_SIZE_HIGH, POINTERS, pointer_field,
};
use crate::ext2::layout::xattr::{H_MAGIC, H_REFCOUNT, XATTR_MAGIC};
use crate::ext2::layout::{Field, keep_sum};
use crate::ext2::num::{idx, idx64, low32, wide};
use crate::ext2::own::OwnRuns;
use crate::ext2::view::BlockView;

/// Blocks that a batch changes at most, if nothing else is said, however large the journal is: they are in memory.
pub const BATCH_MAX: usize = 1024;
/// Blocks that freeing one more block may change: its bitmap and descriptor, the indirect blocks above it, the inode,
/// the superblock, the inode's bitmap and descriptor, the attributes with theirs.
const STEP_MAX: usize = 16;

/// What became of the orphans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orphans {
    /// Inodes freed.
    pub freed: u32,
    /// Files cut to their length.
    pub cut: u32,
    /// The list was dropped: the volume has errors, and only a check can tell what may be freed.
    pub dropped: bool,
}

/// An inode that is worked on.
pub(super) struct Orphan {
    pub(super) ino: u32,
    pub(super) group: u32,
    /// Where its bytes are.
    pub(super) at: (BlockNo, usize),
    pub(super) disk: DiskInode,
}

/// Where an orphan's number stands.
#[derive(Clone, Copy)]
enum Origin<'f> {
    /// It is the first of the list.
    List,
    /// In this block of the orphan file, at this byte.
    File(&'f OrphanFile, (BlockNo, usize)),
}

/// What a batch has changed that has sums: they are put right when it is complete.
#[derive(Clone, Default)]
pub(super) struct Summed {
    /// Groups whose descriptors or bitmaps were changed.
    pub(super) groups: BTreeSet<u32>,
    /// Inodes, and where they are.
    pub(super) inodes: BTreeMap<u32, (BlockNo, usize)>,
    /// Extent nodes, with the sums of the inodes that they belong to.
    pub(super) nodes: BTreeMap<BlockNo, InodeSums>,
    /// The sums of the inode that is worked on, if it has extents.
    pub(super) nodes_of: Option<InodeSums>,
}

/// What became of the blocks under a pointer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Freed {
    /// All are free, the one that it points at included.
    All,
    /// Some must stay.
    Part,
    /// Some must go yet, in another batch.
    Unfinished,
}

/// Works off the list of orphans.
pub(super) struct Pass<'a, 'd> {
    pub(super) volume: BlockView<'a>,
    pub(super) shape: Superblock,
    log: &'a mut Log<'d>,
    pub(super) now: Timestamp,
    /// Blocks changed since the last batch.
    changed: BTreeMap<BlockNo, (BlockKind, BlockBuf)>,
    batch_max: usize,
    /// The volume's own blocks.
    pub(super) own: OwnRuns,
    /// What of the changed blocks has sums to be put right.
    pub(super) summed: Summed,
}

impl<'a, 'd> Pass<'a, 'd> {
    /// A pass over the volume; `log` is empty.
    ///
    /// # Errors
    /// `Unsupported` if the journal, or `batch_max`, is too short for anything.
    pub(super) fn new(
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
    pub(super) fn of_any_size(
        volume: BlockView<'a>,
        shape: Superblock,
        log: &'a mut Log<'d>,
        (now, batch_max): (Timestamp, usize),
    ) -> Result<Self> {
        let groups = GroupDescriptor::read_all(&shape, |block, into| {
            volume.read(block, BlockKind::GroupDescriptor, into)
        })?;
        let groups: Vec<_> = groups.into_iter().map(Some).collect();
        let own = OwnRuns::of(&shape, &groups);
        let (changed, summed) = (BTreeMap::new(), Summed::default());
        Ok(Self { volume, shape, log, now, changed, batch_max, own, summed })
    }

    /// Frees and cuts all orphans.
    ///
    /// # Errors
    /// `Corrupt` at the first that cannot be one; what was done before is whole.
    pub(super) fn run(mut self) -> Result<Orphans> {
        let mut done = Orphans::default();
        loop {
            let first = self.field(S_LAST_ORPHAN)?;
            if first == 0 {
                break;
            }
            let worked = self.orphan(first, Origin::List, &mut done);
            // What stands before the damaged one was prepared in full, so it may go out before the error does.
            if worked.is_err() || self.is_full() {
                self.send()?;
            }
            worked?;
        }
        self.run_file(&mut done)?;
        self.send()?;
        Ok(done)
    }

    /// Does the same for the numbers in the orphan file, and says that there are none any more.
    fn run_file(&mut self, done: &mut Orphans) -> Result<()> {
        if !self.shape.features.has_ro_compat(ro_compat::ORPHAN_PRESENT) {
            return Ok(());
        }
        if let Some(file) = OrphanFile::find(&self.volume, &self.shape)? {
            for (no, slot) in file.slots() {
                loop {
                    let ino = Le::u32(&self.read(no, BlockKind::Data)?, slot);
                    if ino == 0 {
                        break;
                    }
                    let worked = self.orphan(ino, Origin::File(&file, (no, slot)), done);
                    if worked.is_err() || self.is_full() {
                        self.send()?;
                    }
                    worked?;
                }
            }
        }
        let raw = self.superblock()?;
        let word = S_FEATURE_RO_COMPAT.get(raw) & !ro_compat::ORPHAN_PRESENT;
        S_FEATURE_RO_COMPAT.put(raw, word);
        Ok(())
    }

    /// Puts the changes made so far into the journal, and from there home.
    fn send(&mut self) -> Result<()> {
        if self.changed.is_empty() {
            return Ok(());
        }
        self.seal()?;
        let (kinds, blocks) = self.take_changed();
        self.log.apply(&blocks, self.now)?;
        self.bring_home(&kinds)
    }

    /// Puts the changes made so far into the log in the place of the fast commits behind `scan`, and from there home.
    pub(super) fn send_instead(&mut self, scan: &Scan) -> Result<()> {
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

    pub(super) fn is_full(&self) -> bool {
        self.changed.len() + STEP_MAX > self.batch_max
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
            let no = BlockNo(u64::from(no));
            let at = GroupDescriptor::raw(&self.read(no, BlockKind::GroupDescriptor)?[offset..offset + size]);
            let bitmap = |of: &Self, no: u32, bits| {
                let changed = of.changed.get(&BlockNo(u64::from(no)));
                changed.and_then(|(_, bytes)| sums.bitmap(bytes, bits))
            };
            let blocks = bitmap(self, at.block_bitmap, self.shape.blocks_per_group);
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

    pub(super) fn read(&self, no: BlockNo, kind: BlockKind) -> Result<BlockBuf> {
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
        Err(Error::corrupt(Structure::Orphan, no, problem))
    }

    pub(super) fn change(&mut self, no: BlockNo, kind: BlockKind) -> Result<&mut BlockBuf> {
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

    /// What was changed of a block does not matter any more.
    pub(super) fn forget(&mut self, no: BlockNo) {
        self.changed.remove(&no);
    }

    /// A field of the superblock as it is now.
    pub(super) fn field(&self, field: Field<u32>) -> Result<u32> {
        let no = BlockNo(u64::from(self.shape.first_data_block()));
        let block = self.read(no, BlockKind::Superblock)?;
        Ok(field.get(&block[self.shape.offset_in_block()..]))
    }

    pub(super) fn superblock(&mut self) -> Result<&mut [u8]> {
        let offset = self.shape.offset_in_block();
        let no = BlockNo(u64::from(self.shape.first_data_block()));
        Ok(&mut self.change(no, BlockKind::Superblock)?[offset..])
    }

    pub(super) fn descriptor(&self, group: u32) -> Result<(BlockNo, usize, GroupDescriptor)> {
        let (no, offset) = self.shape.descriptor_place(group);
        let no = BlockNo(u64::from(no));
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
    fn clear_bit(&mut self, bitmap: u32, kind: BlockKind, bit: u32) -> Result<bool> {
        let no = BlockNo(u64::from(bitmap));
        let byte = &mut self.change(no, kind)?[idx(bit / 8)];
        let was_set = *byte & 1 << (bit % 8) != 0;
        *byte &= !(1 << (bit % 8));
        Ok(was_set)
    }

    // ---- freeing ----

    pub(super) fn free_block(&mut self, block: u32) -> Result<()> {
        let damaged = |problem: &str| {
            Error::corrupt(Structure::Orphan, None, format!("its block {block} is {problem}"))
        };
        if block <= self.shape.first_data_block() || block >= self.shape.blocks_count {
            return Err(damaged("outside the volume"));
        }
        let group = self.shape.group_of(block);
        let start = self.shape.group_start(group);
        let (no, offset, at) = self.descriptor(group)?;
        if self.own.meet(block, block + 1) {
            return Err(damaged("the volume's own"));
        }
        if at.is_block_uninit() {
            return Err(damaged("free, as its whole group is"));
        }
        self.summed.groups.insert(group);
        if !self.clear_bit(at.block_bitmap, BlockKind::BlockBitmap, block - start)? {
            return Err(damaged("free"));
        }
        self.count((no, offset), BG_FREE_BLOCKS_COUNT, true)?;
        let raw = self.superblock()?;
        S_FREE_BLOCKS_COUNT.put(raw, S_FREE_BLOCKS_COUNT.get(raw).saturating_add(1));
        Ok(())
    }

    pub(super) fn free_inode(&mut self, orphan: &Orphan) -> Result<()> {
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

    /// Gives up an inode's share in its block of attributes.
    pub(super) fn free_attributes(&mut self, block: u32) -> Result<()> {
        if block <= self.shape.first_data_block() || block >= self.shape.blocks_count {
            return Err(Error::corrupt(Structure::Orphan, None, format!("attributes in block {block}")));
        }
        let no = BlockNo(u64::from(block));
        let bytes = self.read(no, BlockKind::Data)?;
        if H_MAGIC.get(&bytes) != XATTR_MAGIC {
            return Err(Error::corrupt(Structure::Orphan, no, "no attributes are there"));
        }
        match H_REFCOUNT.get(&bytes) {
            0 | 1 => self.free_block(block),
            count => {
                let sums = self.shape.sums;
                let bytes = self.change(no, BlockKind::Data)?;
                H_REFCOUNT.put(bytes, count - 1);
                sums.seal_attributes(no.get(), bytes);
                Ok(())
            }
        }
    }

    /// Frees the blocks under `pointer`, `levels` above the file's blocks of which the first one is `first`, from the
    /// end to file block `keep`. `count` is how many blocks were freed.
    fn free_tree(
        &mut self,
        (pointer, levels): (u32, usize),
        first: u64,
        keep: u64,
        count: &mut u32,
    ) -> Result<Freed> {
        if levels == 0 {
            if first < keep {
                return Ok(Freed::Part);
            }
            if self.is_full() {
                return Ok(Freed::Unfinished);
            }
            self.free_block(pointer)?;
            *count += 1;
            return Ok(Freed::All);
        }
        if pointer <= self.shape.first_data_block() || pointer >= self.shape.blocks_count {
            return Err(Error::corrupt(Structure::Orphan, None, format!("its indirect block {pointer}")));
        }
        let pointers = u64::from(self.shape.pointers_per_block());
        let span = (1..levels).fold(1, |span, _| span * pointers);
        let no = BlockNo(u64::from(pointer));
        let block = self.read(no, BlockKind::Indirect)?;
        let mut left = block.clone();
        let mut found = if first < keep { Freed::Part } else { Freed::All };
        for at in (0..idx64(pointers)).rev() {
            let child = Le::u32(&block, at * 4);
            let child_first = first + wide(at) * span;
            if child == 0 || child_first + span <= keep {
                continue;
            }
            match self.free_tree((child, levels - 1), child_first, keep, count)? {
                Freed::All => Le::put_u32(&mut left, at * 4, 0),
                Freed::Part => {}
                Freed::Unfinished => {
                    found = Freed::Unfinished;
                    break;
                }
            }
        }
        if found == Freed::All && !self.is_full() {
            self.free_block(pointer)?;
            *count += 1;
            return Ok(Freed::All);
        }
        if left[..] != block[..] {
            *self.change(no, BlockKind::Indirect)? = left;
        }
        Ok(if found == Freed::All { Freed::Unfinished } else { found })
    }

    /// Frees the inode's blocks from the end to file block `keep`; whether that is finished.
    pub(super) fn free_from(&mut self, orphan: &mut Orphan, keep: u64) -> Result<bool> {
        if orphan.disk.has_extents() {
            return self.free_extents(orphan, keep);
        }
        let pointers = u64::from(self.shape.pointers_per_block());
        let mut count = 0;
        let mut finished = true;
        for at in (0..POINTERS).rev() {
            let levels = at.saturating_sub(DIRECT - 1);
            let first = tree_first(at, pointers);
            let pointer = orphan.disk.block[at];
            if pointer == 0 {
                continue;
            }
            match self.free_tree((pointer, levels), first, keep, &mut count)? {
                Freed::All => orphan.disk.block[at] = 0,
                Freed::Part => {}
                Freed::Unfinished => {
                    finished = false;
                    break;
                }
            }
        }
        self.lose_sectors(orphan, count);
        Ok(finished)
    }

    /// Takes blocks from the inode's count of them.
    pub(super) fn lose_sectors(&self, orphan: &mut Orphan, count: u32) {
        orphan.disk.sectors =
            orphan.disk.sectors.saturating_sub(u64::from(count) * u64::from(self.shape.block_size / 512));
    }

    // ---- the list ----

    fn load(&self, ino: u32) -> Result<Orphan> {
        let damaged =
            |problem: &str| Error::corrupt(Structure::OrphanList, None, format!("inode {ino} {problem}"));
        let lowest = self.shape.first_ino.max(JOURNAL_INO + 1);
        if ino > self.shape.inodes_count || ino < lowest || self.shape.is_own_inode(ino) {
            return Err(damaged("is none for files"));
        }
        let group = self.shape.group_of_inode(ino);
        let (_, _, descriptor) = self.descriptor(group)?;
        let bit = (ino - 1) % self.shape.inodes_per_group;
        let bitmap = self.read(BlockNo(u64::from(descriptor.inode_bitmap)), BlockKind::InodeBitmap)?;
        if bitmap[idx(bit / 8)] & 1 << (bit % 8) == 0 {
            return Err(damaged("is free"));
        }
        let at = inode::place(&self.shape, descriptor.inode_table, ino);
        let block = self.read(at.0, BlockKind::Inode)?;
        let bytes = &block[at.1..at.1 + usize::from(self.shape.inode_size)];
        let disk = DiskInode::parse(bytes, InodeNo(u64::from(ino)), at.0, &self.shape)?;
        Ok(Orphan { ino, group, at, disk })
    }

    /// Frees or cuts the first orphan and takes it off the list, or does as much of it as the batch has room for.
    fn orphan(&mut self, ino: u32, origin: Origin<'_>, done: &mut Orphans) -> Result<()> {
        let before = (self.changed.clone(), self.summed.clone());
        let worked = self.load(ino).and_then(|orphan| self.finish(orphan, origin, done));
        if worked.is_err() {
            (self.changed, self.summed) = before;
        }
        worked
    }

    fn finish(&mut self, mut orphan: Orphan, origin: Origin<'_>, done: &mut Orphans) -> Result<()> {
        let sums = self.shape.sums.of_inode(orphan.ino, orphan.disk.generation);
        self.summed.nodes_of = orphan.disk.has_extents().then_some(sums);
        self.summed.inodes.insert(orphan.ino, orphan.at);
        let next = orphan.disk.dtime;
        let frees = orphan.disk.nlink == 0;
        let block_size = u64::from(self.shape.block_size);
        let cuts = orphan.disk.kind == FileKind::Regular;
        let keep = if frees { 0 } else { orphan.disk.size.div_ceil(block_size) };
        if orphan.disk.has_blocks(self.shape.block_size) && (frees || cuts) {
            if !self.free_from(&mut orphan, keep)? {
                return self.put_blocks(&orphan);
            }
            if cuts && !frees {
                self.clear_tail(&orphan)?;
            }
        }
        self.put_blocks(&orphan)?;
        if frees {
            if orphan.disk.xattr_block != 0 {
                self.free_attributes(orphan.disk.xattr_block)?;
            }
            self.free_inode(&orphan)?;
            done.freed += 1;
        } else {
            done.cut += 1;
        }
        let dtime = if frees { self.deletion_time()? } else { 0 };
        let bytes = &mut self.change(orphan.at.0, BlockKind::Inode)?[orphan.at.1..];
        I_DTIME.put(bytes, dtime);
        if frees {
            I_SIZE.put(bytes, 0);
            I_LINKS_COUNT.put(bytes, 0);
            I_FILE_ACL.put(bytes, 0);
            I_BLOCKS.put(bytes, 0);
            // The high half of a length is a file's; elsewhere the word means something else.
            if orphan.disk.kind == FileKind::Regular {
                I_SIZE_HIGH.put(bytes, 0);
            }
        }
        match origin {
            Origin::List => S_LAST_ORPHAN.put(self.superblock()?, next),
            Origin::File(file, (no, slot)) => {
                let block = self.change(no, BlockKind::Data)?;
                Le::put_u32(block, slot, 0);
                file.seal(no, block);
            }
        }
        Ok(())
    }

    /// Writes what freeing blocks has changed of the inode.
    fn put_blocks(&mut self, orphan: &Orphan) -> Result<()> {
        let (low, high) = orphan.disk.storage_fields(self.shape.block_size);
        let counted_high = self.shape.features.has_ro_compat(ro_compat::HUGE_FILE);
        let bytes = &mut self.change(orphan.at.0, BlockKind::Inode)?[orphan.at.1..];
        I_BLOCKS.put(bytes, low);
        if counted_high {
            I_BLOCKS_HIGH.put(bytes, high);
        }
        for (at, &pointer) in orphan.disk.block.iter().enumerate() {
            pointer_field(at).put(bytes, pointer);
        }
        Ok(())
    }

    /// Zeroes the last block of a file from its end on, which a larger length would show.
    fn clear_tail(&mut self, orphan: &Orphan) -> Result<()> {
        let block_size = u64::from(self.shape.block_size);
        let tail = idx64(orphan.disk.size % block_size);
        if tail == 0 {
            return Ok(());
        }
        if let Some(no) = self.block_at(orphan, orphan.disk.size / block_size)? {
            self.change(no, BlockKind::Data)?[tail..].fill(0);
        }
        Ok(())
    }

    /// Where file block `index` is.
    pub(super) fn block_at(&self, orphan: &Orphan, index: u64) -> Result<Option<BlockNo>> {
        if orphan.disk.has_extents() {
            return self.extent_at(orphan, index);
        }
        let pointers = u64::from(self.shape.pointers_per_block());
        let root = (0..POINTERS).rev().find(|&at| tree_first(at, pointers) <= index).expect("the first is 0");
        let levels = root.saturating_sub(DIRECT - 1);
        let mut rest = index - tree_first(root, pointers);
        let mut pointer = orphan.disk.block[root];
        for level in (0..levels).rev() {
            if pointer == 0 {
                return Ok(None);
            }
            let block = self.read(BlockNo(u64::from(pointer)), BlockKind::Indirect)?;
            let span = (0..level).fold(1, |span, _| span * pointers);
            pointer = Le::u32(&block, idx64(rest / span) * 4);
            rest %= span;
        }
        if pointer != 0 && (pointer <= self.shape.first_data_block() || pointer >= self.shape.blocks_count) {
            return Err(Error::corrupt(
                Structure::Orphan,
                None,
                format!("its block {pointer} is outside the volume"),
            ));
        }
        Ok((pointer != 0).then(|| BlockNo(u64::from(pointer))))
    }

    /// When an inode is freed now. Small numbers would be taken for links of the list.
    pub(super) fn deletion_time(&self) -> Result<u32> {
        let made = self.field(S_MKFS_TIME)?;
        Ok(low32(self.now.secs.max(0).cast_unsigned()).max(made).max(1))
    }
}

/// The first file block under pointer `at` of an inode.
fn tree_first(at: usize, pointers: u64) -> u64 {
    let direct = wide(DIRECT);
    match at {
        _ if at < DIRECT => wide(at),
        12 => direct,
        13 => direct + pointers,
        _ => direct + pointers + pointers * pointers,
    }
}
