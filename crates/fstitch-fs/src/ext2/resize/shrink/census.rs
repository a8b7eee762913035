//! What lies behind the new end.

use std::collections::BTreeMap;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Error, FileKind, InodeNo, Result, Structure};

use super::pointers::each_pointer;
use super::{Limits, put_run};
use crate::ext2::bitmap;
use crate::ext2::journal::{Loaded, Pass};
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::inode::{DiskInode, I_MODE, POINTERS, pointer_field};
use crate::ext2::layout::superblock::{JOURNAL_INO, RESIZE_INO};
use crate::ext2::num::{idx, idx64, low32};
use crate::ext2::resize::table::DOUBLE_INDIRECT;

/// The inode that lists bad blocks.
const BAD_BLOCKS_INO: u32 = 1;

/// Inodes with something behind the new end.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// With blocks of their maps there.
    pub(super) blocks: Vec<u32>,
    /// Whose numbers are not any more, in order, and what moving each takes of a transaction at least, in blocks.
    pub(super) numbers: Vec<(u32, u64)>,
    /// By blocks of attributes there: who has them.
    pub(super) attributes: BTreeMap<u64, Vec<u32>>,
    /// All directories.
    pub(super) directories: Vec<u32>,
    /// Blocks in use there, but for those that the volume has for itself.
    pub(super) used: u64,
    /// How many blocks from there on maps and inodes have.
    pub(super) claimed: u64,
    /// How many of these are the journal's.
    pub(super) journal: u64,
    marks: Marks,
}

/// The bitmap of the group that was looked at last.
#[derive(Debug, Default)]
struct Marks(Option<(u32, BlockBuf)>);

impl Marks {
    /// Fails if a block of an inode is free by its bitmap: somebody else would get it.
    fn expect_used(&mut self, pass: &Pass<'_, '_>, ino: u32, (start, end): (u64, u64)) -> Result<()> {
        let mut at = start;
        while at < end {
            let group = pass.shape.group_of(at);
            let first = pass.shape.group_start(group);
            let until = end.min(first + u64::from(pass.shape.group_blocks(group)));
            let known = self.0.take().filter(|(of, _)| *of == group);
            let (_, bits) = self.0.insert(match known {
                Some(known) => known,
                None => (group, pass.block_bits(group)?),
            });
            if let Some(free) = bitmap::next(bits, false, low32(at - first), low32(until - first)) {
                let problem = format!(
                    "its block {} is marked as free: check the volume first",
                    first + u64::from(free)
                );
                return Err(Error::corrupt(Structure::Inode(u64::from(ino)), None, problem));
            }
            at = until;
        }
        Ok(())
    }
}

impl Census {
    /// Looks at all inodes.
    ///
    /// # Errors
    /// `Io`; `Corrupt` at the first thing that a check should see first; `Unsupported` by name.
    pub(super) fn take(pass: &mut Pass<'_, '_>, limits: Limits) -> Result<Self> {
        let mut census = Self { used: used_behind(pass, limits.end)?, ..Self::default() };
        for group in 0..pass.shape.group_count() {
            let (_, _, descriptor) = pass.descriptor(group)?;
            if descriptor.is_inode_uninit() {
                continue;
            }
            let bits = pass.read(BlockNo(descriptor.inode_bitmap), BlockKind::InodeBitmap)?;
            let per_group = pass.shape.inodes_per_group;
            let per_block = pass.shape.inodes_per_block();
            let used = per_group - u32::from(descriptor.itable_unused).min(per_group);
            if bitmap::next(&bits, true, used, per_group).is_some() {
                let problem = "inodes are in use that were never used: check the volume first";
                return Err(Error::corrupt(Structure::InodeBitmap(u64::from(group)), None, problem));
            }
            for index in 0..used.div_ceil(per_block) {
                let here = index * per_block..((index + 1) * per_block).min(used);
                let is_used = |bit: u32| bits[idx(bit / 8)] & 1 << (bit % 8) != 0;
                if !here.clone().any(is_used) {
                    continue;
                }
                let at = BlockNo(descriptor.inode_table + u64::from(index));
                let block = pass.read(at, BlockKind::Inode)?;
                for bit in here.filter(|&bit| is_used(bit)) {
                    let ino = group * per_group + bit + 1;
                    let offset = idx(bit % per_block) * usize::from(pass.shape.inode_size);
                    let raw = &block[offset..offset + usize::from(pass.shape.inode_size)];
                    census.inode(pass, limits, (ino, group), (at, offset, raw))?;
                }
            }
        }
        Ok(census)
    }

    fn inode(
        &mut self,
        pass: &mut Pass<'_, '_>,
        limits: Limits,
        (ino, group): (u32, u32),
        (at, offset, raw): (BlockNo, usize, &[u8]),
    ) -> Result<()> {
        if is_the_volumes(pass, limits, ino, (at, raw))? {
            return Ok(());
        }
        let inode = loaded(pass, (ino, group), (at, offset, raw))?;
        let (mut behind, mut nodes, mut runs) = (0_u64, 0_u64, Vec::new());
        if inode.disk.has_blocks(pass.shape.block_size) {
            each_block(pass, &inode, &mut |start, count, is_map| {
                let count = u64::from(count);
                behind += (start + count).saturating_sub(limits.end).min(count);
                nodes += u64::from(is_map);
                put_run(&mut runs, start, count);
            })?;
        }
        if inode.disk.xattr_block != 0 {
            put_run(&mut runs, inode.disk.xattr_block, 1);
        }
        for (start, end) in runs {
            self.marks.expect_used(pass, ino, (start, end))?;
        }
        if behind > 0 {
            self.blocks.push(ino);
        }
        self.claimed += behind;
        if ino == JOURNAL_INO {
            self.journal = behind;
        }
        if inode.disk.xattr_block >= limits.end {
            self.claimed += u64::from(!self.attributes.contains_key(&inode.disk.xattr_block));
            self.attributes.entry(inode.disk.xattr_block).or_default().push(ino);
        }
        if inode.disk.kind == FileKind::Directory {
            self.directories.push(ino);
        }
        if ino > limits.inodes {
            self.number(pass, &inode, nodes)?;
        }
        Ok(())
    }

    /// An inode needs another number.
    fn number(&mut self, pass: &Pass<'_, '_>, inode: &Loaded, nodes: u64) -> Result<()> {
        if inode.ino == pass.shape.orphan_file {
            let what = format!("shrinking a volume whose orphan file is inode {}", inode.ino);
            return Err(Error::Unsupported(what));
        }
        // With sums all blocks of a directory, and all nodes, are summed with the number.
        let own = match (pass.shape.features.has_sums(), inode.disk.kind) {
            (false, _) => 0,
            (true, FileKind::Directory) => nodes + inode.disk.size / u64::from(pass.shape.block_size),
            (true, _) => nodes,
        };
        self.numbers.push((inode.ino, own));
        Ok(())
    }
}

/// Whether an inode is one that the volume has for itself, and that stays as it is.
fn is_the_volumes(
    pass: &Pass<'_, '_>,
    limits: Limits,
    ino: u32,
    (at, raw): (BlockNo, &[u8]),
) -> Result<bool> {
    if ino < pass.shape.first_ino && I_MODE.get(raw) == 0 {
        // The list of bad blocks has no mode.
        if ino == BAD_BLOCKS_INO && (0..POINTERS).any(|at| pointer_field(at).get(raw) != 0) {
            return Err(Error::Unsupported("shrinking a volume with a list of bad blocks".into()));
        }
        return Ok(true);
    }
    if ino != RESIZE_INO {
        return Ok(false);
    }
    let root = u64::from(pointer_field(DOUBLE_INDIRECT).get(raw));
    let is_needed = pass.shape.features.compat & compat::RESIZE_INODE != 0;
    if is_needed && root <= pass.shape.first_data_block() {
        return Err(damaged(ino, at, &format!("its pointers are in block {root}")));
    }
    if root >= limits.end {
        let what = "shrinking a volume whose resize inode has its pointers behind the new end";
        return Err(Error::Unsupported(what.into()));
    }
    Ok(true)
}

/// An inode, if it is what it should be.
fn loaded(
    pass: &Pass<'_, '_>,
    (ino, group): (u32, u32),
    (at, offset, raw): (BlockNo, usize, &[u8]),
) -> Result<Loaded> {
    if !pass.shape.sums.is_inode_right(ino, raw) {
        return Err(damaged(ino, at, "its checksum is wrong"));
    }
    let disk = DiskInode::parse(raw, InodeNo(u64::from(ino)), at, &pass.shape)?;
    let attributes = disk.xattr_block;
    let is_inside = attributes > pass.shape.first_data_block() && attributes < pass.shape.blocks_count;
    if attributes != 0 && !is_inside {
        return Err(damaged(ino, at, &format!("its attributes are in block {attributes}")));
    }
    Ok(Loaded { ino, group, at: (at, offset), disk })
}

/// An inode that a check should see first.
fn damaged(ino: u32, at: BlockNo, problem: &str) -> Error {
    Error::corrupt(Structure::Inode(u64::from(ino)), at, format!("{problem}: check the volume first"))
}

/// Calls `each` with every run of blocks in an inode's map, and whether it is one of the map itself.
pub(super) fn each_block(
    pass: &mut Pass<'_, '_>,
    inode: &Loaded,
    each: &mut dyn FnMut(u64, u32, bool),
) -> Result<()> {
    if !inode.disk.has_extents() {
        return each_pointer(pass, inode, each);
    }
    pass.summed.nodes_of = Some(pass.shape.sums.of_inode(inode.ino, inode.disk.generation));
    let walked = pass.each_run(inode, each);
    pass.summed.nodes_of = None;
    walked
}

/// Blocks in use from `end` on, but for the volume's own.
pub(super) fn used_behind(pass: &Pass<'_, '_>, end: u64) -> Result<u64> {
    let mut used = 0_u64;
    for group in pass.shape.group_of(end)..pass.shape.group_count() {
        let start = pass.shape.group_start(group);
        let (from, until) = (start.max(end), start + u64::from(pass.shape.group_blocks(group)));
        let bits = pass.block_bits(group)?;
        let free = bitmap::runs(&bits, false, low32(from - start), low32(until - start));
        let free: u64 = free.map(|(_, count)| u64::from(count)).sum();
        let own: u64 = pass.own.within(from, until).map(|(start, end)| end - start).sum();
        used += (until - from).saturating_sub(free + own);
    }
    Ok(used)
}

/// Inodes in use whose numbers are higher than `last`.
pub(super) fn numbers_behind(pass: &Pass<'_, '_>, last: u32) -> Result<u64> {
    let mut used = 0_u64;
    for group in last / pass.shape.inodes_per_group..pass.shape.group_count() {
        let (_, _, descriptor) = pass.descriptor(group)?;
        if !descriptor.is_inode_uninit() {
            let bits = pass.read(BlockNo(descriptor.inode_bitmap), BlockKind::InodeBitmap)?;
            let runs = bitmap::runs(&bits, true, 0, pass.shape.inodes_per_group);
            used += runs.map(|(_, count)| u64::from(count)).sum::<u64>();
        }
    }
    Ok(used)
}

/// Where the names lie that lead to inodes whose numbers go.
pub(super) struct Names {
    /// By inode: the blocks of directories, and the directories' numbers as they were.
    pub(super) of: BTreeMap<u32, Vec<(BlockNo, u32)>>,
}

impl Names {
    /// Looks through all directories.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub(super) fn find(pass: &mut Pass<'_, '_>, directories: &[u32], inodes: u32) -> Result<Self> {
        let mut of: BTreeMap<u32, Vec<(BlockNo, u32)>> = BTreeMap::new();
        for &ino in directories {
            let Some(dir) = pass.load_inode(ino)? else { continue };
            for no in directory_blocks(pass, &dir)? {
                let bytes = pass.read(no, BlockKind::Directory)?;
                for entry in crate::ext2::layout::dirent::entries(&bytes, no, &pass.shape) {
                    let entry = entry?;
                    if entry.ino > inodes {
                        let places = of.entry(entry.ino).or_default();
                        if places.last() != Some(&(no, ino)) {
                            places.push((no, ino));
                        }
                    }
                }
            }
        }
        Ok(Self { of })
    }
}

/// The blocks of a directory's contents.
pub(super) fn directory_blocks(pass: &mut Pass<'_, '_>, dir: &Loaded) -> Result<Vec<BlockNo>> {
    let mut blocks = Vec::new();
    each_block(pass, dir, &mut |start, count, is_map| {
        if !is_map {
            blocks.extend((start..start + u64::from(count)).map(BlockNo));
        }
    })?;
    // Behind its length a directory may have blocks without names.
    blocks.truncate(idx64(dir.disk.size / u64::from(pass.shape.block_size)));
    Ok(blocks)
}
