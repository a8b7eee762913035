//! Pass 0: the superblock, the group descriptors, and the resize inode.

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, CheckReport, Error, FindingClass, Le, Result, Structure,
};

use super::super::source::BlockSource;
use super::claims::DOUBLE_INDIRECT;
use super::state::{State, Volume};
use super::{journal, orphan_file};
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::group::{DESCRIPTOR_SIZE, GroupDescriptor};
use crate::ext2::layout::inode::{I_MODE, I_SIZE, I_SIZE_HIGH, POINTERS, pointer_field};
use crate::ext2::layout::superblock::{
    RESIZE_INO, S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT, S_LOG_BLOCK_SIZE, S_LOG_FRAG_SIZE,
    S_RESERVED_GDT_BLOCKS, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};
use crate::ext2::num::{idx, wide};
use crate::ext2::view::BlockView;

/// Blocks of a group as the makers of volumes have them at most: a count of them has 16 bits.
const GROUP_MAX: u64 = (1 << 16) - 8;

/// The superblock's bytes, at the same place whatever the block size.
pub(super) fn raw_superblock(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    let mut raw = vec![0; SUPERBLOCK_SIZE];
    if view.block_count() < 2 {
        return Err(Error::corrupt(Structure::Superblock, None, "the device is too small to hold one"));
    }
    view.read(BlockNo(1), BlockKind::Superblock, &mut raw)?;
    Ok(raw)
}

/// Reads and checks a superblock beyond what is needed to use it.
pub(super) fn parse(raw: &[u8], device_bytes: u64) -> Result<Superblock> {
    let shape = Superblock::parse(raw, device_bytes)?;
    let foreign = shape.features.read_only_because(false);
    if !foreign.is_empty() {
        // What such a feature adds may be in good order in a way that looks like damage here, and mending would
        // damage it: the files of quotas, checksums, bitmaps that are not written yet.
        let names = foreign.join(", ");
        return Err(Error::Unsupported(format!("checking a volume with feature {names}: use e2fsck")));
    }
    let damaged = |problem: String| Error::corrupt(Structure::Superblock, None, problem);
    if shape.reserved_blocks > shape.blocks_count / 2 {
        return Err(damaged(format!(
            "{} of {} blocks are reserved",
            shape.reserved_blocks, shape.blocks_count
        )));
    }
    if S_LOG_FRAG_SIZE.get(raw) != S_LOG_BLOCK_SIZE.get(raw) {
        return Err(damaged("fragments are smaller than blocks".into()));
    }
    if u32::from(shape.reserved_gdt_blocks) > shape.pointers_per_block() {
        return Err(damaged(format!("{} reserved descriptor blocks", shape.reserved_gdt_blocks)));
    }
    let last = shape.group_count() - 1;
    let needed = u64::from(shape.group_overhead(last)) + u64::from(shape.inode_table_blocks()) + 2;
    if u64::from(shape.group_blocks(last)) < needed {
        return Err(damaged("the last group is too small for its metadata".into()));
    }
    Ok(shape)
}

/// The superblock's backups that a volume may have, for when the primary is lost.
pub fn find_backup(device: &dyn BlockDevice) -> Result<Option<Vec<u8>>> {
    for block_size in (10..=16).map(|log| 1_usize << log) {
        let view = BlockView::new(device, block_size);
        let first = u64::from(block_size == 1024);
        let per_group = (wide(block_size) * 8).min(GROUP_MAX);
        for group in [1, 3, 5, 7, 9] {
            let block = first + group * per_group;
            if block >= view.block_count() {
                break;
            }
            let mut bytes = vec![0; block_size];
            view.read(BlockNo(block), BlockKind::Superblock, &mut bytes)?;
            bytes.truncate(SUPERBLOCK_SIZE);
            let right_size = S_LOG_BLOCK_SIZE.get(&bytes) == wide(block_size).trailing_zeros() - 10;
            if right_size && parse(&bytes, device.geometry().bytes()).is_ok() {
                Le::put_u16(&mut bytes, 0x5a, 0);
                return Ok(Some(bytes));
            }
        }
    }
    Ok(None)
}

/// Writes the bytes of a superblock to the primary's place.
pub(super) fn write_primary(device: &dyn BlockDevice, raw: &[u8]) -> Result<()> {
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    view.write(BlockNo(wide(SUPERBLOCK_OFFSET / SUPERBLOCK_SIZE)), BlockKind::Superblock, raw)?;
    view.flush()
}

/// The volume behind `source`, with its descriptors; the report when they make no sense.
pub(super) fn open<'a>(
    source: &'a dyn BlockSource,
    raw_super: Vec<u8>,
    shape: Superblock,
    mend: bool,
) -> Result<std::result::Result<(Volume<'a>, u64), CheckReport>> {
    let mut report = CheckReport::default();
    let mut mended = 0;
    let mut volume = Volume { source, shape, raw_super, groups: Vec::new() };
    let tables = descriptor_table(&volume, 0)?;
    for group in 0..volume.shape.group_count() {
        let problem = match descriptor(&tables, group, &volume.shape) {
            Ok(found) => {
                volume.groups.push(found);
                continue;
            }
            Err(Error::Corrupt(problem)) => problem,
            Err(other) => return Err(other),
        };
        report.push(FindingClass::Corrupt, "group-descriptor", problem.to_string());
        let other = other_descriptor(&volume, &tables, group)?;
        volume.groups.push(other.unwrap_or_default());
        if mend && other.is_some() {
            volume.write_descriptor(group)?;
            mended += 1;
        }
    }
    if report.total > mended {
        return Ok(Err(report));
    }
    Ok(Ok((volume, mended)))
}

/// What the descriptor of `group` may have been: what a copy says, or what the makers of volumes do.
fn other_descriptor(volume: &Volume<'_>, tables: &[u8], group: u32) -> Result<Option<GroupDescriptor>> {
    let shape = &volume.shape;
    for copy in (1..shape.group_count()).filter(|&copy| shape.has_superblock(copy)).take(3) {
        if let Ok(found) = descriptor(&descriptor_table(volume, copy)?, group, shape) {
            return Ok(Some(found));
        }
    }
    let found = GroupDescriptor::raw(&tables[idx(group) * DESCRIPTOR_SIZE..]);
    let first = shape.group_start(group) + shape.group_overhead(group);
    let candidates = [
        GroupDescriptor { block_bitmap: first, ..found },
        GroupDescriptor { inode_bitmap: first + 1, ..found },
        GroupDescriptor { inode_table: first + 2, ..found },
        GroupDescriptor { block_bitmap: first, inode_bitmap: first + 1, inode_table: first + 2, ..found },
    ];
    let mut raw = [0; DESCRIPTOR_SIZE];
    Ok(candidates.into_iter().find(|candidate| {
        candidate.encode_into(&mut raw, shape.features.has_group_sums());
        GroupDescriptor::parse(&raw, group, shape, BlockNo(0)).is_ok()
    }))
}

fn descriptor(table: &[u8], group: u32, shape: &Superblock) -> Result<GroupDescriptor> {
    let start = idx(group) * DESCRIPTOR_SIZE;
    let (block, _) = shape.descriptor_place(group);
    let at = BlockNo(u64::from(block));
    GroupDescriptor::parse(&table[start..start + DESCRIPTOR_SIZE], group, shape, at)
}

/// The descriptors as `group`'s copy has them.
fn descriptor_table(volume: &Volume<'_>, group: u32) -> Result<Vec<u8>> {
    let mut bytes = vec![0; idx(volume.shape.descriptor_blocks()) * volume.block_size()];
    volume.read(volume.shape.group_start(group) + 1, BlockKind::GroupDescriptor, &mut bytes)?;
    Ok(bytes)
}

/// Checks what of the superblock can be put right.
pub(super) fn check(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    journal::check(volume, state)?;
    orphan_file::check(volume, state)?;
    revision(volume, state)?;
    let on = volume.shape.features.compat & compat::RESIZE_INODE != 0;
    let problem = if on { resize_problem(volume)? } else { resize_leftovers(volume)? };
    if let Some(problem) = problem
        && state.corrupt("resize-inode", problem)
    {
        give_up_resizing(volume)?;
    }
    Ok(())
}

/// Features came with revision 1; on older volumes the words must be empty.
fn revision(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let words = [S_FEATURE_COMPAT, S_FEATURE_INCOMPAT, S_FEATURE_RO_COMPAT];
    let raw = &mut volume.raw_super;
    if volume.shape.is_dynamic() || words.iter().all(|word| word.get(raw) == 0) {
        return Ok(());
    }
    let text = "the superblock has features, but its revision knows none";
    if state.corrupt("superblock-features", text) {
        words.iter().for_each(|word| word.put(raw, 0));
        volume.write_super()?;
    }
    Ok(())
}

/// What is left of a resize inode on a volume that has none.
fn resize_leftovers(volume: &Volume<'_>) -> Result<Option<String>> {
    if S_RESERVED_GDT_BLOCKS.get(&volume.raw_super) != 0 && volume.shape.is_dynamic() {
        return Ok(Some("descriptor blocks are reserved, but the feature resize_inode is off".into()));
    }
    let raw = volume.read_inode(RESIZE_INO)?;
    let used = (0..POINTERS).any(|at| pointer_field(at).get(&raw) != 0);
    Ok(used.then(|| "the resize inode is in use, but the feature is off".into()))
}

/// What is wrong with the resize inode: it must own exactly the reserved descriptor blocks.
fn resize_problem(volume: &Volume<'_>) -> Result<Option<String>> {
    let raw = volume.read_inode(RESIZE_INO)?;
    let root = pointer_field(DOUBLE_INDIRECT).get(&raw);
    let others = (0..POINTERS).any(|at| at != DOUBLE_INDIRECT && pointer_field(at).get(&raw) != 0);
    if I_MODE.get(&raw) & 0xf000 != 0x8000 || others || !volume.is_valid(root) {
        return Ok(Some("the resize inode is damaged".into()));
    }
    let shape = &volume.shape;
    let pointers = u64::from(shape.pointers_per_block());
    let reach = (12 + pointers + pointers.pow(2) + pointers.pow(3)) * u64::from(shape.block_size);
    let size = u64::from(I_SIZE.get(&raw)) | u64::from(I_SIZE_HIGH.get(&raw)) << 32;
    if size > reach {
        return Ok(Some(format!("the resize inode has {size} bytes")));
    }
    let copies: Vec<u32> = (1..shape.group_count()).filter(|&g| shape.has_superblock(g)).collect();
    let per_block = shape.pointers_per_block();
    let mut found = vec![0; volume.block_size()];
    volume.read(root, BlockKind::Indirect, &mut found)?;
    let mut expected = vec![0; volume.block_size()];
    let reserved = u32::from(shape.reserved_gdt_blocks);
    let primary = |i: u32| shape.first_data_block() + 1 + shape.descriptor_blocks() + i;
    for i in 0..reserved {
        let slot = (shape.descriptor_blocks() + i) % per_block;
        Le::put_u32(&mut expected, 4 * idx(slot), primary(i));
    }
    if found != expected {
        return Ok(Some("the resize inode does not list the reserved descriptor blocks".into()));
    }
    for i in 0..reserved {
        volume.read(primary(i), BlockKind::Indirect, &mut found)?;
        expected.fill(0);
        for (at, group) in copies.iter().enumerate().take(idx(per_block)) {
            Le::put_u32(&mut expected, 4 * at, primary(i) + group * shape.blocks_per_group);
        }
        if found != expected {
            let block = primary(i);
            return Ok(Some(format!("reserved descriptor block {block} does not list its copies")));
        }
    }
    Ok(None)
}

/// Switches `resize_inode` off: its blocks become free, and the volume can no longer grow in use.
fn give_up_resizing(volume: &mut Volume<'_>) -> Result<()> {
    let word = volume.shape.features.compat & !compat::RESIZE_INODE;
    S_FEATURE_COMPAT.put(&mut volume.raw_super, word);
    S_RESERVED_GDT_BLOCKS.put(&mut volume.raw_super, 0);
    volume.write_super()?;
    volume.source.flush()?;
    let raw = vec![0; usize::from(volume.shape.inode_size)];
    volume.write_inode(RESIZE_INO, &raw)
}
