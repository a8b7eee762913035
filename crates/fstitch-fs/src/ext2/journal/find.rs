//! Where a volume's journal is.

use std::collections::BTreeSet;

use fstitch_core::{Be, BlockDevice, BlockKind, BlockNo, Error, FileKind, InodeNo, Le, Result, Structure};
use fstitch_patch::journal::{Area, Home, Log, format};

use super::super::source::BlockSource;
use super::create::BLOCKS_MIN;
use super::external::JournalDevice;
use super::raw::{JOURNAL_INO, S_JOURNAL_INUM, S_JOURNAL_UUID, Superblock};
use crate::ext2::extents::walk;
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::group::GroupDescriptor;
use crate::ext2::layout::inode::{self, DIRECT, DiskInode, POINTERS};
use crate::ext2::num::idx;
use crate::ext2::own::OwnRuns;
use crate::view::BlockView;

/// Blocks for fast commits in a journal that does not say how many.
const FAST_COMMIT_DEFAULT: u32 = 256;

/// Where a journal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this inode of the volume.
    Inode(u32),
    /// On a device of its own with this identifier.
    Device([u8; 16]),
}

/// A volume's journal.
#[derive(Clone, Debug)]
pub struct Journal {
    /// Where it is.
    pub place: Place,
    /// Its blocks there.
    pub area: Area,
    /// Where copies may go.
    pub home: Home,
}

/// The place of the journal of the volume with this superblock; `None` if it has none.
///
/// # Errors
/// `Corrupt` if the superblock says that there is a journal, but not where.
pub fn locate(shape: &Superblock, raw: &[u8]) -> Result<Option<Place>> {
    if shape.features.compat & compat::HAS_JOURNAL == 0 {
        return Ok(None);
    }
    let mut uuid = [0; 16];
    uuid.copy_from_slice(&raw[S_JOURNAL_UUID..S_JOURNAL_UUID + 16]);
    match S_JOURNAL_INUM.get(raw) {
        0 if uuid == [0; 16] => Err(Error::corrupt(
            Structure::Superblock,
            None,
            "there is a journal, but neither an inode nor a device for it",
        )),
        0 => Ok(Some(Place::Device(uuid))),
        ino => Ok(Some(Place::Inode(ino))),
    }
}

impl Journal {
    /// Finds the journal of the volume on `volume` (in blocks of the volume's size). `external` is the device of an
    /// external journal, in blocks of any size.
    ///
    /// # Errors
    /// `Corrupt`, `Io`; `Unsupported` if the journal is external and its device was not given.
    pub fn find(
        volume: &BlockView<'_>,
        shape: &Superblock,
        place: Place,
        external: Option<&dyn BlockDevice>,
    ) -> Result<Self> {
        let block_count = shape.blocks_count;
        match (place, external) {
            (Place::Inode(ino), _) => {
                let (area, _) = internal(volume, shape, ino)?;
                Ok(Self { place, area, home: Home { block_count, shares_device: true } })
            }
            (Place::Device(uuid), Some(device)) => {
                let area = external_area(device, shape.block_size, &uuid)?;
                Ok(Self { place, area, home: Home { block_count, shares_device: false } })
            }
            (Place::Device(uuid), None) => Err(Error::Unsupported(format!(
                "the journal is on a device of its own (UUID {}), which was not named",
                show_uuid(&uuid)
            ))),
        }
    }

    /// Opens the journal; `device` is where it is, in blocks of the volume's size.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open<'d>(&'d self, device: &'d dyn BlockDevice) -> Result<Log<'d>> {
        Log::open(device, &self.area, self.home)
    }
}

pub(super) fn show_uuid(uuid: &[u8; 16]) -> String {
    let hex = |range: std::ops::Range<usize>| -> String {
        uuid[range].iter().map(|b| format!("{b:02x}")).collect()
    };
    [0..4, 4..6, 6..8, 8..10, 10..16].map(hex).join("-")
}

/// The area of an external journal: journal blocks are numbered as its device's.
fn external_area(device: &dyn BlockDevice, block_size: u32, uuid: &[u8; 16]) -> Result<Area> {
    let damaged = |problem: String| Error::corrupt(Structure::ExternalJournal, None, problem);
    let found = JournalDevice::read(device)?;
    if found.uuid != *uuid {
        let (found, expected) = (show_uuid(&found.uuid), show_uuid(uuid));
        return Err(damaged(format!("its UUID is {found}, but the volume's journal has UUID {expected}")));
    }
    if found.block_size != block_size {
        return Err(damaged(format!("blocks of {} bytes, expected {block_size}", found.block_size)));
    }
    Ok(Area::of_device(found.blocks, found.superblock()))
}

/// The area of a journal that is a file of the volume, and the blocks of the file's map.
pub(super) fn internal(
    volume: &dyn BlockSource,
    shape: &Superblock,
    ino: u32,
) -> Result<(Area, BTreeSet<u64>)> {
    let reserved = ino != JOURNAL_INO && (ino < shape.first_ino || shape.is_own_inode(ino));
    if reserved || ino > shape.inodes_count {
        let problem = format!("a journal is inode {JOURNAL_INO} or a file's");
        return Err(Error::corrupt(Structure::JournalInode(u64::from(ino)), None, problem));
    }
    let inode = read_inode(volume, shape, ino)?;
    whole_file(volume, shape, Structure::JournalInode(u64::from(ino)), &inode)
}

/// A journal that is a file of the volume, as far as can be told without its log: its blocks, and its superblock's bytes
/// and their meaning.
#[derive(Debug)]
pub(crate) struct Internal {
    pub(crate) area: Area,
    pub(crate) raw: Vec<u8>,
    pub(crate) superblock: format::Superblock,
}

impl Internal {
    /// Reads the journal in inode `ino` of the volume.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if nobody could use it; `Unsupported` by the names of the journal's features.
    pub(crate) fn read(volume: &dyn BlockSource, shape: &Superblock, ino: u32) -> Result<Self> {
        let (area, _) = internal(volume, shape, ino)?;
        Self::in_area(volume, shape, area)
    }

    /// Reads the journal in `area`.
    ///
    /// # Errors
    /// As [`Internal::read`].
    pub(super) fn in_area(volume: &dyn BlockSource, shape: &Superblock, area: Area) -> Result<Self> {
        let mut raw = vec![0; volume.block_size()];
        volume.read(area.superblock()?, BlockKind::JournalSuperblock, &mut raw)?;
        check_second_log(&raw)?;
        let superblock =
            format::Superblock::parse(&raw[..format::SUPERBLOCK_SIZE], shape.block_size, area.count())?;
        if superblock.len < BLOCKS_MIN {
            let problem = format!("{} blocks, expected at least {BLOCKS_MIN}", superblock.len);
            return Err(Error::corrupt(Structure::JournalSuperblock, None, problem));
        }
        Ok(Self { area, raw, superblock })
    }
}

/// Fails if the last blocks of the journal are a second log (feature `fast_commit`) that leaves too few for the first.
fn check_second_log(raw: &[u8]) -> Result<()> {
    let superblock = format::Superblock::decode(raw)?;
    if superblock.features.incompat & format::INCOMPAT_FAST_COMMIT == 0 {
        return Ok(());
    }
    let blocks = match Be::u32(raw, format::offset::S_NUM_FC_BLKS) {
        0 => FAST_COMMIT_DEFAULT,
        blocks => blocks,
    };
    if superblock.len.saturating_sub(blocks) < BLOCKS_MIN {
        let problem = format!("{blocks} of {} blocks for fast commits", superblock.len);
        return Err(Error::corrupt(Structure::JournalSuperblock, None, problem));
    }
    Ok(())
}

/// The blocks of a file of the volume that must have no holes, and the blocks of its map; errors name it `what`.
///
/// # Errors
/// `Io`; `Corrupt` if it is no such file, or has blocks that cannot be a file's.
pub(crate) fn whole_file(
    volume: &dyn BlockSource,
    shape: &Superblock,
    what: Structure,
    inode: &DiskInode,
) -> Result<(Area, BTreeSet<u64>)> {
    let damaged = |problem: String| Error::corrupt(what, None, problem);
    if inode.kind != FileKind::Regular || inode.nlink == 0 {
        return Err(damaged("it is no file".into()));
    }
    let blocks = inode.size / u64::from(shape.block_size);
    if blocks > shape.blocks_count {
        return Err(damaged(format!("{blocks} blocks on a volume of {}", shape.blocks_count)));
    }
    let mut file = File { volume, shape, left: blocks, runs: Vec::new(), seen: BTreeSet::new(), what };
    if inode.has_extents() {
        file.extents(inode)?;
    }
    let pointers = if inode.has_extents() { 0 } else { POINTERS };
    for (at, &pointer) in inode.block.iter().enumerate().take(pointers) {
        file.tree(pointer, at.saturating_sub(DIRECT - 1))?;
    }
    let area = Area::of_file(file.runs)?;
    let own = own_runs(volume, shape)?;
    for (start, count) in area.runs() {
        // The file would be written over it.
        if own.meet(start.get(), start.get() + count) {
            return Err(damaged(format!("blocks from {start} on are the volume's own metadata")));
        }
    }
    Ok((area, file.seen))
}

/// What groups are made of, wherever it lies. A damaged descriptor is an error only to who needs its group.
fn own_runs(volume: &dyn BlockSource, shape: &Superblock) -> Result<OwnRuns> {
    let groups =
        GroupDescriptor::read_all(shape, |block, into| volume.read(block, BlockKind::GroupDescriptor, into))?;
    let groups: Vec<_> = groups.into_iter().map(Some).collect();
    Ok(OwnRuns::of(shape, &groups))
}

pub(super) fn read_descriptor(
    volume: &dyn BlockSource,
    shape: &Superblock,
    group: u32,
) -> Result<GroupDescriptor> {
    let (table, offset) = shape.descriptor_place(group);
    let mut block = vec![0; volume.block_size()];
    let table = BlockNo(table);
    volume.read(table, BlockKind::GroupDescriptor, &mut block)?;
    GroupDescriptor::parse(&block[offset..offset + shape.descriptor_size()], group, shape, table)
}

/// Where an inode is: block and offset in it.
pub(super) fn inode_place(
    volume: &dyn BlockSource,
    shape: &Superblock,
    ino: u32,
) -> Result<(BlockNo, usize)> {
    let descriptor = read_descriptor(volume, shape, shape.group_of_inode(ino))?;
    Ok(inode::place(shape, descriptor.inode_table, ino))
}

fn read_inode(volume: &dyn BlockSource, shape: &Superblock, ino: u32) -> Result<DiskInode> {
    let (at, offset) = inode_place(volume, shape, ino)?;
    let mut block = vec![0; volume.block_size()];
    volume.read(at, BlockKind::Inode, &mut block)?;
    let bytes = &block[offset..offset + usize::from(shape.inode_size)];
    DiskInode::parse(bytes, InodeNo(u64::from(ino)), at, shape)
}

/// The walk through a file's block map.
struct File<'a> {
    volume: &'a dyn BlockSource,
    shape: &'a Superblock,
    /// Blocks of the file that were not met yet.
    left: u64,
    runs: Vec<(BlockNo, u64)>,
    /// Indirect blocks that were followed: each only once, so that a damaged map cannot blow up.
    seen: BTreeSet<u64>,
    /// What the file is.
    what: Structure,
}

impl File<'_> {
    fn damaged(&self, problem: String) -> Error {
        Error::corrupt(self.what, None, problem)
    }

    /// Everything that the extents of an inode map.
    fn extents(&mut self, inode: &DiskInode) -> Result<()> {
        let (volume, blocks_count) = (self.volume, self.shape.blocks_count);
        let mut read = |node: u64| {
            let mut block = vec![0; volume.block_size()];
            volume.read(BlockNo(node), BlockKind::Indirect, &mut block)?;
            Ok(block)
        };
        let mut next = 0;
        let mut source = walk::Source { blocks_count, read: &mut read };
        walk::walk((&inode.block, BlockNo(0)), &mut source, &mut |part| match part {
            walk::Part::Node(node) if !self.seen.insert(node) => {
                Err(self.damaged(format!("extent node {node} is there twice")))
            }
            walk::Part::Node(_) => Ok(()),
            walk::Part::Extent(extent) => {
                let count = self.left.min(u64::from(extent.len));
                if count > 0 && (u64::from(extent.block) != next || extent.unwritten) {
                    return Err(self.damaged(format!("there is a hole {} blocks before its end", self.left)));
                }
                if extent.start <= self.shape.first_data_block() {
                    return Err(
                        self.damaged(format!("block {} is outside the blocks for files", extent.start))
                    );
                }
                next = extent.end();
                self.left -= count;
                if count > 0 {
                    self.runs.push((BlockNo(extent.start), count));
                }
                Ok(())
            }
        })?;
        match self.left {
            0 => Ok(()),
            left => Err(self.damaged(format!("there is a hole {left} blocks before its end"))),
        }
    }

    /// Everything under `pointer`, which is `levels` above the file's blocks.
    fn tree(&mut self, pointer: u32, levels: usize) -> Result<()> {
        if self.left == 0 {
            return Ok(());
        }
        if pointer == 0 {
            return Err(self.damaged(format!("there is a hole {} blocks before its end", self.left)));
        }
        if !self.shape.is_for_files(u64::from(pointer)) {
            return Err(self.damaged(format!("block {pointer} is outside the blocks for files")));
        }
        if levels == 0 {
            self.left -= 1;
            let block = BlockNo(u64::from(pointer));
            match self.runs.last_mut() {
                Some((start, count)) if start.get() + *count == block.get() => *count += 1,
                _ => self.runs.push((block, 1)),
            }
            return Ok(());
        }
        if !self.seen.insert(u64::from(pointer)) {
            return Err(self.damaged(format!("indirect block {pointer} is there twice")));
        }
        let mut block = vec![0; self.volume.block_size()];
        self.volume.read(BlockNo(u64::from(pointer)), BlockKind::Indirect, &mut block)?;
        for at in 0..idx(self.shape.pointers_per_block()) {
            self.tree(Le::u32(&block, at * 4), levels - 1)?;
        }
        Ok(())
    }
}
