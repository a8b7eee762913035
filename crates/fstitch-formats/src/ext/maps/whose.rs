//! Whom blocks belong to. Structures are where the superblock says; then all inodes in use are gone over, with their pointers, and at last
//! those that were found are looked for in the directories.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::num::to_usize;
use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, FileKind, InodeNo, Result};
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{DiskInode, I_LINKS_COUNT, I_MODE};
use fstitch_fs::ext2::layout::superblock::{JOURNAL_INO, ROOT_INO};

use super::census::journal_ino;
use super::tree::{self, Names};
use super::{MAPS_INO, Raw};
use crate::ext::Ext;
use crate::whose::Role;
use crate::{NamesBlocks, Owner, Owners};

impl NamesBlocks for Ext {
    fn whose(
        &self,
        device: &dyn BlockDevice,
        blocks: &BTreeSet<BlockNo>,
        owners_max: usize,
    ) -> Result<Owners> {
        let raw = Raw::read_what_can_be(device)?;
        let mut found = Found { left: blocks.clone(), owners_max, ..Found::default() };
        let journal = journal_ino(&raw);
        for group in 0..raw.shape.group_count() {
            if let Some(at) = raw.pass_over(raw.group(group))? {
                structures(&raw, group, &at, &mut found);
                inodes(&raw, group, &at, journal, &mut found)?;
            }
        }
        nobodys(&raw, &mut found)?;
        let mut names = found.inodes();
        let tree = Raw::read_what_can_be(device)?;
        tree::name(&tree, &mut names)?;
        Ok(found.named(&names, raw.unread.get() + tree.unread.get()))
    }
}

/// Whose a block is: in the order in which owners are listed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    ino: Option<u32>,
    role: Role,
    group: Option<u32>,
}

/// What was found so far.
#[derive(Default)]
struct Found {
    /// Blocks that nobody was found for.
    left: BTreeSet<BlockNo>,
    /// Blocks of attributes, which several inodes may have.
    shared: BTreeSet<BlockNo>,
    /// How many names an inode has; where that cannot be read it is not here.
    links: BTreeMap<u32, usize>,
    /// How many blocks, and the first of them.
    owners: BTreeMap<Place, (u64, BlockNo)>,
    owners_max: usize,
    others: u64,
}

impl Found {
    /// Notes that one of the blocks that are asked about has this owner.
    fn note(&mut self, place: Place, block: BlockNo) {
        let is_full = self.owners.len() >= self.owners_max;
        match self.owners.get_mut(&place) {
            Some((blocks, first)) => (*blocks, *first) = (*blocks + 1, block.min(*first)),
            None if is_full => self.others += 1,
            None => {
                self.owners.insert(place, (1, block));
            }
        }
    }

    /// The blocks from `start` on that are asked about, as the structure of a group.
    fn take(&mut self, (start, count): (u64, u32), role: Role, group: u32) -> Vec<BlockNo> {
        let count = u64::from(count);
        let asked: Vec<BlockNo> = self.left.range(BlockNo(start)..BlockNo(start + count)).copied().collect();
        for block in &asked {
            self.left.remove(block);
            self.note(Place { ino: None, role, group: Some(group) }, *block);
        }
        asked
    }

    /// The inodes that are to be named.
    fn inodes(&self) -> BTreeMap<u32, Names> {
        let names = |ino: u32| Names { expected: self.links.get(&ino).copied(), paths: Vec::new() };
        self.owners.keys().filter_map(|place| Some((place.ino?, names(place.ino?)))).collect()
    }

    fn named(self, names: &BTreeMap<u32, Names>, unread: u64) -> Owners {
        let owners = self.owners.into_iter().map(|(place, (blocks, first))| Owner {
            role: place.role,
            group: place.group,
            inode: place.ino.map(|ino| InodeNo(u64::from(ino))),
            paths: place
                .ino
                .and_then(|ino| names.get(&ino))
                .map(|names| names.paths.clone())
                .unwrap_or_default(),
            blocks,
            first,
        });
        Owners { owners: owners.collect(), others: self.others, unread }
    }
}

/// What lies where the superblock and the descriptors say.
fn structures(raw: &Raw<'_>, group: u32, at: &GroupDescriptor, found: &mut Found) {
    let start = raw.shape.head_of(group);
    // In the first group a boot block may come before it.
    let before = u32::try_from(start - raw.shape.group_start(group)).unwrap_or(0);
    let head = raw.shape.group_overhead(group).saturating_sub(before);
    if head > 0 {
        found.take((start, 1), Role::Superblock, group);
        let in_use = raw.shape.descriptor_blocks().min(head - 1);
        found.take((start + 1, in_use), Role::Descriptors, group);
        found.take((start + 1 + u64::from(in_use), head - 1 - in_use), Role::Reserved, group);
    }
    found.take((at.block_bitmap, 1), Role::BlockBitmap, group);
    found.take((at.inode_bitmap, 1), Role::InodeBitmap, group);
}

/// The inode table of a group, and what its inodes have.
fn inodes(
    raw: &Raw<'_>,
    group: u32,
    at: &GroupDescriptor,
    journal: Option<u32>,
    found: &mut Found,
) -> Result<()> {
    let bitmap = raw.pass_over(raw.block(at.inode_bitmap, BlockKind::InodeBitmap))?;
    // Where nobody can say, all may be.
    let is_used = |bit: u32| {
        let byte = bitmap.as_ref().map_or(Some(&0xff), |bits| bits.get(to_usize(bit / 8)));
        byte.is_some_and(|byte| byte & (1 << (bit % 8)) != 0)
    };
    let per_block = raw.shape.inodes_per_block();
    let asked: BTreeSet<BlockNo> = found
        .take((at.inode_table, raw.shape.inode_table_blocks()), Role::InodeTable, group)
        .into_iter()
        .collect();
    let mut tables = Tables { raw, table: at.inode_table, read: Vec::new(), first: 0 };
    let (mut used, size) =
        ((0..raw.shape.inodes_per_group).filter(|bit| is_used(*bit)), usize::from(raw.shape.inode_size));
    used.try_for_each(|bit| {
        let (ino, block) = (group * raw.shape.inodes_per_group + 1 + bit, bit / per_block);
        let no = BlockNo(at.inode_table + u64::from(block));
        let offset = to_usize(bit % per_block) * size;
        let bytes = tables.get(block)?.map(|table| &table[offset..offset + size]);
        let is_gone = bytes.is_some_and(|bytes| I_MODE.get(bytes) == 0 || I_LINKS_COUNT.get(bytes) == 0);
        if asked.contains(&no) && !raw.shape.is_own_inode(ino) && !is_gone {
            found.note(Place { ino: Some(ino), role: Role::Inode, group: None }, no);
        }
        bytes.map_or(Ok(()), |bytes| inode(raw, ino, bytes, journal, found))
    })
}

/// Blocks of the inode table that are read at once.
const TABLE_BATCH: u32 = 64;

/// A group's inode table, of which some is in memory.
struct Tables<'r, 'd> {
    raw: &'r Raw<'d>,
    table: u64,
    /// From block `first` of the table on.
    read: Vec<Option<BlockBuf>>,
    first: u32,
}

impl Tables<'_, '_> {
    /// A block of the table; `None` if it cannot be read.
    fn get(&mut self, block: u32) -> Result<Option<&BlockBuf>> {
        let in_memory = |tables: &Self| tables.read.len() > to_usize(block.saturating_sub(tables.first));
        if block < self.first || !in_memory(self) {
            self.first = block;
            self.read = self.fill(block)?;
        }
        Ok(self.read[to_usize(block - self.first)].as_ref())
    }

    fn fill(&self, block: u32) -> Result<Vec<Option<BlockBuf>>> {
        let (raw, start) = (self.raw, self.table + u64::from(block));
        let count = TABLE_BATCH.min(raw.shape.inode_table_blocks() - block);
        let mut bytes = vec![0; to_usize(count) * raw.view.block_size()];
        if raw.view.read(BlockNo(start), BlockKind::Inode, &mut bytes).is_ok() {
            return Ok(bytes
                .chunks_exact(raw.view.block_size())
                .map(|one| Some(BlockBuf::copy_of(one)))
                .collect());
        }
        (start..start + u64::from(count)).map(|no| raw.pass_over(raw.block(no, BlockKind::Inode))).collect()
    }
}

/// The blocks of one inode.
fn inode(raw: &Raw<'_>, ino: u32, bytes: &[u8], journal: Option<u32>, found: &mut Found) -> Result<()> {
    let is_reserved = raw.shape.is_own_inode(ino) && ino != ROOT_INO;
    let whole = match ino {
        MAPS_INO => Some(Role::Maps),
        _ if journal == Some(ino) || ino == JOURNAL_INO => Some(Role::Journal),
        _ if is_reserved => Some(Role::Reserved),
        _ => None,
    };
    let mut links = 0;
    let (contents, pointers) = match whole {
        Some(role) => (role, role),
        None => match DiskInode::parse(bytes, InodeNo(u64::from(ino)), BlockNo(0), &raw.shape) {
            // Nobody can tell what it has; the checker can.
            Err(_) => return Ok(()),
            Ok(disk) => {
                links = if disk.kind == FileKind::Directory { 1 } else { usize::from(disk.nlink) };
                note_one(raw, disk.xattr_block, (ino, Role::Attributes, links), found);
                if !disk.has_blocks(raw.shape.block_size) {
                    return Ok(());
                }
                let contents = match disk.kind {
                    FileKind::Directory => Role::Entries,
                    FileKind::Symlink => Role::Attributes,
                    _ => Role::Contents,
                };
                (contents, Role::Pointers)
            }
        },
    };
    raw.walk(bytes, &mut |no, is_pointers| {
        let role = if is_pointers { pointers } else { contents };
        match whole {
            // It has no name that says more.
            Some(_) if found.left.remove(&BlockNo(no)) => {
                found.note(Place { ino: None, role, group: None }, BlockNo(no));
            }
            Some(_) => {}
            None => note_one(raw, no, (ino, role, links), found),
        }
    })
}

/// One block of an inode that has so many names.
fn note_one(raw: &Raw<'_>, no: u64, (ino, role, links): (u32, Role, usize), found: &mut Found) {
    let block = BlockNo(no);
    let is_first = raw.is_block(no) && found.left.remove(&block);
    if is_first && role == Role::Attributes {
        found.shared.insert(block);
    }
    // Attributes may be several inodes', and then they are all hurt.
    if is_first || (role == Role::Attributes && found.shared.contains(&block)) {
        found.links.insert(ino, links);
        found.note(Place { ino: Some(ino), role, group: None }, block);
    }
}

/// What is left: free blocks, and blocks that should belong to somebody.
fn nobodys(raw: &Raw<'_>, found: &mut Found) -> Result<()> {
    let mut bits: Option<(u32, Option<BlockBuf>)> = None;
    for block in std::mem::take(&mut found.left) {
        let no = block.get();
        if !raw.is_block(no) {
            // Before the first group: room for a boot loader.
            found.note(Place { ino: None, role: Role::Reserved, group: None }, block);
            continue;
        }
        let group = raw.shape.group_of(no);
        if bits.as_ref().is_none_or(|(of, _)| *of != group) {
            let read = raw.group(group).and_then(|at| raw.block(at.block_bitmap, BlockKind::BlockBitmap));
            bits = Some((group, raw.pass_over(read)?));
        }
        let bit = (no - raw.shape.group_start(group)) >> raw.shape.log_cluster;
        let byte = bits.as_ref().and_then(|(_, bits)| bits.as_ref()?.get(to_usize(bit / 8)).copied());
        let is_free = byte.is_some_and(|byte| byte & (1 << (bit % 8)) == 0);
        let role = if is_free { Role::Free } else { Role::Nobody };
        found.note(Place { ino: None, role, group: None }, block);
    }
    Ok(())
}
