//! Reading all inodes and directories of a volume through its cache.

use fstitch_core::{BlockKind, BlockNo, Error, FileKind, InodeNo, Result, Structure};

use super::super::bitmap;
use super::super::blockmap::pointer;
use super::super::extents::walk;
use super::super::groups::Map;
use super::super::inode::Inode;
use super::super::layout::inode::{
    DIRECT, DiskInode, EXTENTS_FL, I_DTIME, I_FLAGS, I_LINKS_COUNT, I_MODE, POINTERS, pointer_field,
};
use super::super::layout::{dirent, superblock::ROOT_INO};
use super::super::num::{idx, idx64, wide};
use super::super::volume::Ext2;
use crate::uhfs::ReclaimHooks;

/// Blocks of an inode table read at once.
const BATCH: u32 = 16;

/// An inode whose bit says that it is in use.
pub(super) struct FoundInode {
    pub(super) ino: u32,
    /// `None` if the inode itself is free.
    pub(super) disk: Option<DiskInode>,
    /// Blocks that it has, where they were counted.
    pub(super) blocks: Option<u32>,
    /// A regular file or a directory has blocks beyond its end.
    pub(super) beyond_end: bool,
}

/// A directory entry met by a scan.
pub(super) struct SeenName<'a> {
    /// The directory.
    pub(super) dir: InodeNo,
    /// The inode named.
    pub(super) target: u32,
    pub(super) name: &'a [u8],
    /// The entry says that it is a directory, or cannot say.
    pub(super) is_dir: bool,
}

impl SeenName<'_> {
    pub(super) fn is_dots(&self) -> bool {
        self.name == b"." || self.name == b".."
    }
}

type Hooks<'a> = &'a dyn ReclaimHooks<Inode>;

impl Ext2 {
    /// Visits the inodes of `first..end` that are marked as in use.
    pub(super) fn scan_used_inodes(
        &self,
        (first, end): (u32, u32),
        hooks: Hooks<'_>,
        visit: &mut dyn FnMut(&FoundInode) -> Result<()>,
    ) -> Result<()> {
        let per_group = self.sb.inodes_per_group;
        for group in (first - 1) / per_group..=(end - 2) / per_group {
            if hooks.stop() {
                return Ok(());
            }
            let start = group * per_group + 1;
            let from = first.max(start) - start;
            let to = end.min(start + per_group) - start;
            self.scan_group_inodes(group, (from, to), visit)?;
        }
        Ok(())
    }

    fn scan_group_inodes(
        &self,
        group: u32,
        (from, to): (u32, u32),
        visit: &mut dyn FnMut(&FoundInode) -> Result<()>,
    ) -> Result<()> {
        let (used, table) = {
            let open = self.open_group(group, Map::Inodes)?;
            let used: Vec<(u32, u32)> = bitmap::runs(&open.map.snapshot(), true, from, to).collect();
            (used, open.group.at.inode_table)
        };
        let per_block = self.sb.inodes_per_block();
        for (bit, count) in used {
            for at in bit..bit + count {
                if at % (per_block * BATCH) == 0 || at == bit {
                    let next = at / per_block;
                    let last = ((bit + count - 1) / per_block).min(next + BATCH);
                    let wanted: Vec<_> = (next..=last)
                        .map(|block| (BlockNo(table + u64::from(block)), BlockKind::Inode))
                        .collect();
                    self.cache.prefetch(&wanted);
                }
                let found = self.read_found(group * self.sb.inodes_per_group + 1 + at)?;
                visit(&found)?;
            }
        }
        Ok(())
    }

    fn read_found(&self, ino: u32) -> Result<FoundInode> {
        let (block, at) = self.inode_place(ino)?;
        let bytes = self.cache.read(block, BlockKind::Inode)?.snapshot();
        let raw = &bytes[at..at + usize::from(self.sb.inode_size)];
        let mut found = FoundInode { ino, disk: None, blocks: None, beyond_end: false };
        let dead = I_LINKS_COUNT.get(raw) == 0 && (I_MODE.get(raw) == 0 || I_DTIME.get(raw) != 0);
        let reserved = ino < self.sb.first_ino && ino != ROOT_INO;
        if dead || reserved {
            return Ok(found);
        }
        let disk = DiskInode::parse(raw, InodeNo(u64::from(ino)), block, &self.sb)?;
        let mut blocks = u32::from(disk.xattr_block != 0);
        let end = disk.size.div_ceil(u64::from(self.sb.block_size));
        let mut beyond_end = false;
        self.visit_blocks(ino, &disk, &mut |_, index| {
            blocks += 1;
            beyond_end |= index.is_some_and(|index| index >= end);
        })?;
        found.beyond_end = beyond_end && matches!(disk.kind, FileKind::Regular | FileKind::Directory);
        found.blocks = Some(blocks);
        found.disk = Some(disk);
        Ok(found)
    }

    /// How many blocks an inode has, the one of its attributes included.
    pub(super) fn count_blocks(&self, ino: u32, disk: &DiskInode) -> Result<u32> {
        let mut blocks = u32::from(disk.xattr_block != 0);
        self.visit_blocks(ino, disk, &mut |_, _| blocks += 1)?;
        Ok(blocks)
    }

    /// Visits every block of an inode: its number and, for data, its place in the file.
    fn visit_blocks(
        &self,
        ino: u32,
        disk: &DiskInode,
        visit: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<()> {
        if !disk.has_blocks(self.sb.block_size) {
            return Ok(());
        }
        if disk.has_extents() {
            return self.visit_extents(ino, &disk.block, visit);
        }
        let mut left = self.sb.blocks_count;
        for (at, &block) in disk.block[..DIRECT].iter().enumerate() {
            if block != 0 {
                visit(u64::from(block), Some(wide(at)));
            }
        }
        let mut first = wide(DIRECT);
        let mut span = self.pointers();
        for (levels, &block) in (1..).zip(&disk.block[DIRECT..]) {
            self.visit_tree(ino, (u64::from(block), levels, first), &mut left, visit)?;
            first += span;
            span *= self.pointers();
        }
        Ok(())
    }

    /// The same for a map of extents. Unwritten blocks have no place: they may be behind the end.
    fn visit_extents(
        &self,
        ino: u32,
        words: &[u32; POINTERS],
        visit: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<()> {
        let at = self.inode_place(ino)?.0;
        let mut read = |node: u64| {
            if !self.is_file_run(node, 1)? {
                let problem = format!("its extent node {node} is outside the blocks for files");
                return Err(Error::corrupt(Structure::Inode(u64::from(ino)), at, problem));
            }
            Ok(self.cache.read(BlockNo(node), BlockKind::Indirect)?.snapshot().to_vec())
        };
        let mut source = walk::Source { blocks_count: self.sb.blocks_count, read: &mut read };
        walk::walk((words, at), &mut source, &mut |part| {
            match part {
                walk::Part::Node(node) => visit(node, None),
                walk::Part::Extent(extent) => {
                    for (block, index) in
                        (extent.start..extent.start + u64::from(extent.len)).zip(u64::from(extent.block)..)
                    {
                        visit(block, (!extent.unwritten).then_some(index));
                    }
                }
            }
            Ok(())
        })
    }

    fn visit_tree(
        &self,
        ino: u32,
        (block, levels, first): (u64, u32, u64),
        left: &mut u64,
        visit: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        *left = left.checked_sub(1).ok_or_else(|| {
            Error::corrupt(Structure::Inode(u64::from(ino)), None, "it has more blocks than the volume")
        })?;
        if levels == 0 {
            visit(block, Some(first));
            return Ok(());
        }
        // The resize inode maps the blocks reserved for descriptors, which no file may own.
        let reserved = ino < self.sb.first_ino && ino != ROOT_INO;
        let lawful = if reserved { block < self.sb.blocks_count } else { self.is_file_run(block, 1)? };
        if !lawful {
            let problem = format!("its indirect block {block} is outside the blocks for files");
            return Err(Error::corrupt(Structure::Inode(u64::from(ino)), None, problem));
        }
        visit(block, None);
        let bytes = self.cache.read(BlockNo(block), BlockKind::Indirect)?.snapshot();
        let span = self.pointers().pow(levels - 1);
        for at in 0..idx64(self.pointers()) {
            let child = (u64::from(pointer(&bytes, at)), levels - 1, first + wide(at) * span);
            self.visit_tree(ino, child, left, visit)?;
        }
        Ok(())
    }

    /// Visits every entry of every directory.
    pub(super) fn scan_names(&self, hooks: Hooks<'_>, visit: &mut dyn FnMut(&SeenName<'_>)) -> Result<()> {
        self.scan_used_inodes((1, self.sb.inodes_count + 1), hooks, &mut |found| {
            let Some(disk) = found.disk.as_ref().filter(|disk| disk.kind == FileKind::Directory) else {
                return Ok(());
            };
            self.scan_directory(found.ino, disk, visit)
        })
    }

    /// Visits every entry of a directory.
    pub(super) fn scan_directory(
        &self,
        ino: u32,
        disk: &DiskInode,
        visit: &mut dyn FnMut(&SeenName<'_>),
    ) -> Result<()> {
        if disk.has_inline_data() {
            let inode = self.load_any(InodeNo(u64::from(ino)))?;
            return self.visit_inline(&inode, |target, kind, name| {
                let is_dir = kind.is_none_or(|kind| kind == FileKind::Directory);
                visit(&SeenName { dir: inode.no(), target, name, is_dir });
            });
        }
        let mut blocks = Vec::new();
        let end = disk.size / u64::from(self.sb.block_size);
        self.visit_blocks(ino, disk, &mut |block, index| {
            if index.is_some_and(|index| index < end) {
                blocks.push(block);
            }
        })?;
        for block in blocks {
            let no = BlockNo(block);
            let bytes = self.cache.read(no, BlockKind::Directory)?.snapshot();
            for entry in dirent::entries(&bytes, no, &self.sb) {
                let entry = entry?;
                if entry.ino != 0 {
                    let is_dir = entry.kind().is_none_or(|kind| kind == FileKind::Directory);
                    let dir = InodeNo(u64::from(ino));
                    visit(&SeenName { dir, target: entry.ino, name: entry.name, is_dir });
                }
            }
        }
        Ok(())
    }

    /// Visits every block that an inode in use owns.
    pub(super) fn scan_owned_blocks(&self, hooks: Hooks<'_>, visit: &mut dyn FnMut(u64)) -> Result<()> {
        self.scan_used_inodes((1, self.sb.inodes_count + 1), hooks, &mut |found| match &found.disk {
            Some(disk) => {
                visit(disk.xattr_block);
                self.visit_blocks(found.ino, disk, &mut |block, _| visit(block))
            }
            None => self.visit_reserved(found.ino, visit),
        })
    }

    /// Reserved inodes (bad blocks, resize, journal) own blocks without having names.
    fn visit_reserved(&self, ino: u32, visit: &mut dyn FnMut(u64)) -> Result<()> {
        if ino >= self.sb.first_ino {
            return Ok(());
        }
        let (block, at) = self.inode_place(ino)?;
        let bytes = self.cache.read(block, BlockKind::Inode)?.snapshot();
        let raw = &bytes[at..at + usize::from(self.sb.inode_size)];
        if I_FLAGS.get(raw) & EXTENTS_FL != 0 {
            let mut words = [0; POINTERS];
            words.iter_mut().enumerate().for_each(|(at, word)| *word = pointer_field(at).get(raw));
            return self.visit_extents(ino, &words, &mut |block, _| visit(block));
        }
        (0..DIRECT).for_each(|at| visit(u64::from(pointer_field(at).get(raw))));
        let mut left = self.sb.blocks_count;
        for levels in 1..=3 {
            let root = pointer_field(DIRECT + idx(levels) - 1).get(raw);
            self.visit_tree(ino, (u64::from(root), levels, 0), &mut left, &mut |block, _| visit(block))?;
        }
        Ok(())
    }
}
