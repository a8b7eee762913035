//! Where the blocks of a file lie, for people: read from a medium that nobody writes.

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure};

use super::extents::walk::{Part, Source, walk};
use super::journal::read_superblock;
use super::layout::extent::Node;
use super::layout::group::GroupDescriptor;
use super::layout::inode::{self, DIRECT, DiskInode, POINTERS};
use super::layout::superblock::Superblock;
use super::num::{idx, idx64, wide};
use crate::view::BlockView;

/// A run of a file's blocks that lie behind each other on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first one's place in the file, in blocks.
    pub logical: u64,
    /// The first one's number on the volume.
    pub physical: u64,
    /// How many.
    pub blocks: u64,
    /// They read as zeros.
    pub unwritten: bool,
}

/// How a file is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileMap {
    /// By extents, and not by pointers.
    pub by_extents: bool,
    /// The contents lie in the inode itself: there are no blocks.
    pub is_inline: bool,
    /// Levels of blocks between the inode and the file's blocks.
    pub depth: u16,
    /// Blocks that the map takes itself.
    pub map_blocks: u64,
    /// The file's blocks, in its order. By extents each run is one, by pointers they are joined.
    pub runs: Vec<Run>,
    /// Bytes of a block.
    pub block_size: u32,
}

/// The map of inode `ino` of the volume on `device`, which needs no recovery.
///
/// # Errors
/// `Io`, `Corrupt`.
pub fn read(device: &dyn BlockDevice, ino: u64) -> Result<FileMap> {
    let (_, shape) = read_superblock(device)?;
    let volume = BlockView::new(device, idx(shape.block_size));
    let number = u32::try_from(ino).ok().filter(|&ino| ino > 0 && ino <= shape.inodes_count);
    let number =
        number.ok_or_else(|| Error::corrupt(Structure::Inode(ino), None, "no inode of the volume"))?;
    let mut block = BlockBuf::zeroed(volume.block_size());
    let group = shape.group_of_inode(number);
    let (no, offset) = shape.descriptor_place(group);
    let no = BlockNo(no);
    volume.read(no, BlockKind::GroupDescriptor, &mut block)?;
    let raw = &block[offset..offset + shape.descriptor_size()];
    let descriptor = GroupDescriptor::parse(raw, group, &shape, no)?;
    let (at, offset) = inode::place(&shape, descriptor.inode_table, number);
    volume.read(at, BlockKind::Inode, &mut block)?;
    let raw = &block[offset..offset + usize::from(shape.inode_size)];
    let disk = DiskInode::parse(raw, InodeNo(ino), at, &shape)?;
    let mut map = FileMap {
        by_extents: disk.has_extents(),
        is_inline: disk.has_inline_data(),
        depth: 0,
        map_blocks: 0,
        runs: Vec::new(),
        block_size: shape.block_size,
    };
    if !disk.has_blocks(shape.block_size) {
        return Ok(map);
    }
    if map.by_extents {
        extents(&volume, &shape, (&disk, at), &mut map)?;
    } else {
        pointers(&volume, &shape, &disk, &mut map)?;
    }
    Ok(map)
}

fn extents(
    volume: &BlockView<'_>,
    shape: &Superblock,
    (disk, at): (&DiskInode, BlockNo),
    map: &mut FileMap,
) -> Result<()> {
    map.depth = Node::parse_root(&disk.block, at, shape.blocks_count)?.depth;
    let mut read = |node: u64| {
        let mut block = vec![0; volume.block_size()];
        volume.read(BlockNo(node), BlockKind::Indirect, &mut block)?;
        Ok(block)
    };
    let mut source = Source { blocks_count: shape.blocks_count, read: &mut read };
    walk((&disk.block, at), &mut source, &mut |part| {
        match part {
            Part::Node(_) => map.map_blocks += 1,
            Part::Extent(extent) => map.runs.push(Run {
                logical: u64::from(extent.block),
                physical: extent.start,
                blocks: u64::from(extent.len),
                unwritten: extent.unwritten,
            }),
        }
        Ok(())
    })
}

fn pointers(volume: &BlockView<'_>, shape: &Superblock, disk: &DiskInode, map: &mut FileMap) -> Result<()> {
    let mut first = 0;
    for (at, &pointer) in disk.block.iter().enumerate().take(POINTERS) {
        let levels = at.saturating_sub(DIRECT - 1);
        let span = (0..levels).fold(1, |span, _| span * u64::from(shape.pointers_per_block()));
        below(volume, shape, (pointer, levels), first, map)?;
        first += span;
    }
    Ok(())
}

fn below(
    volume: &BlockView<'_>,
    shape: &Superblock,
    (pointer, levels): (u32, usize),
    first: u64,
    map: &mut FileMap,
) -> Result<()> {
    if pointer == 0 {
        return Ok(());
    }
    if !shape.is_for_files(u64::from(pointer)) {
        return Err(Error::corrupt(Structure::Other("block map"), None, format!("it has block {pointer}")));
    }
    if levels == 0 {
        match map.runs.last_mut() {
            Some(run)
                if run.logical + run.blocks == first && run.physical + run.blocks == u64::from(pointer) =>
            {
                run.blocks += 1;
            }
            _ => {
                let physical = u64::from(pointer);
                map.runs.push(Run { logical: first, physical, blocks: 1, unwritten: false });
            }
        }
        return Ok(());
    }
    map.map_blocks += 1;
    map.depth = map.depth.max(u16::try_from(levels).expect("at most three"));
    if map.map_blocks > shape.blocks_count {
        return Err(Error::corrupt(
            Structure::Other("block map"),
            None,
            "more blocks of pointers than blocks",
        ));
    }
    let mut block = vec![0; volume.block_size()];
    volume.read(BlockNo(u64::from(pointer)), BlockKind::Indirect, &mut block)?;
    let span = (1..levels).fold(1, |span, _| span * u64::from(shape.pointers_per_block()));
    for at in 0..idx64(u64::from(shape.pointers_per_block())) {
        let child = Le::u32(&block, 4 * at);
        below(volume, shape, (child, levels - 1), first + wide(at) * span, map)?;
    }
    Ok(())
}
