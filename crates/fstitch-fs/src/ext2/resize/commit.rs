//! The changes inside a volume become its changes: all at once through its journal, or in order without one.

use std::collections::BTreeMap;

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Result, Timestamp};
use fstitch_patch::journal::replay;

use super::plan::Sizes;
use super::staged::Staged;
use crate::ext2::journal::{Journal, Place, read_superblock, set_dirty, write_superblock};
use crate::ext2::layout::checksum::seal_superblock;
use crate::ext2::layout::keep_sum;
use crate::ext2::layout::superblock::{
    S_BLOCK_GROUP_NR, S_CHECKSUM, S_OVERHEAD_BLOCKS, S_STATE, STATE_VALID, SUPERBLOCK_SIZE, Superblock,
};
use crate::ext2::num::idx;
use crate::view::BlockView;

/// Fails if the journal has no room for what changes inside the volume.
pub(super) fn check(
    device: &dyn BlockDevice,
    sizes: &Sizes,
    staged: &Staged<'_>,
    place: Option<Place>,
) -> Result<()> {
    let Some(place) = place else { return Ok(()) };
    let volume = BlockView::new(device, idx(sizes.old.block_size));
    let journal = Journal::find(&volume, &sizes.old, place, None)?;
    let log = journal.open(&volume)?;
    let inside = staged.blocks.keys().filter(|no| no.get() < sizes.old.blocks_count).count();
    if inside + 1 > log.apply_max() {
        let most = log.apply_max();
        let problem =
            format!("changing {inside} blocks at once, in a journal for {most}: a larger one is needed");
        return Err(Error::Unsupported(problem));
    }
    Ok(())
}

/// Makes the volume the new one, with `raw` as its superblock. New groups are stable.
pub(super) fn commit(
    device: &dyn BlockDevice,
    sizes: &Sizes,
    staged: Staged<'_>,
    (raw, place): (&[u8], Option<Place>),
    now: Timestamp,
) -> Result<()> {
    let volume = BlockView::new(device, idx(sizes.old.block_size));
    let end = BlockNo(sizes.old.blocks_count);
    let mut inside = staged.blocks;
    // What lies behind the old end nobody sees yet.
    let outside = inside.split_off(&end);
    write_all(&volume, &outside)?;
    let raw = &forget_overhead(device, raw)?[..];
    match place {
        Some(place) => journaled(device, sizes, inside, (raw, place), now)?,
        None => in_order(device, &inside, raw)?,
    }
    write_copies(&volume, raw, &sizes.new)
}

/// Takes the count of overhead away, alone: it lies in the superblock's second sector with the sum, so that this write is whole or not there, and
/// what follows changes the first one alone. Whoever mounts the volume counts it. `after`, as which the superblock is to be written, gets the
/// sum that it keeps.
fn forget_overhead(device: &dyn BlockDevice, after: &[u8]) -> Result<Vec<u8>> {
    let (mut raw, _) = read_superblock(device)?;
    if S_OVERHEAD_BLOCKS.get(&raw) != 0 {
        S_OVERHEAD_BLOCKS.put(&mut raw, 0);
        seal_superblock(&mut raw);
        write_superblock(device, &raw)?;
    }
    let mut after = after.to_vec();
    S_CHECKSUM.put(&mut after, S_CHECKSUM.get(&raw));
    Ok(after)
}

type Blocks = BTreeMap<BlockNo, (BlockKind, BlockBuf)>;

fn write_all(volume: &BlockView<'_>, blocks: &Blocks) -> Result<()> {
    for (no, (kind, block)) in blocks {
        volume.write(*no, *kind, block)?;
    }
    volume.flush()
}

/// Through the journal, which everybody replays whose turn it is after a crash.
fn journaled(
    device: &dyn BlockDevice,
    sizes: &Sizes,
    mut inside: Blocks,
    (raw, place): (&[u8], Place),
    now: Timestamp,
) -> Result<()> {
    let volume = BlockView::new(device, idx(sizes.old.block_size));
    let journal = Journal::find(&volume, &sizes.old, place, None)?;
    let mut log = journal.open(&volume)?;
    let no = BlockNo(sizes.old.first_data_block());
    let mut block = BlockBuf::zeroed(volume.block_size());
    volume.read(no, BlockKind::Superblock, &mut block)?;
    let at = sizes.old.offset_in_block();
    let mut before = block[at..at + SUPERBLOCK_SIZE].to_vec();
    set_dirty(&mut before, true);
    let after = &mut block[at..at + SUPERBLOCK_SIZE];
    after.copy_from_slice(raw);
    set_dirty(after, true);
    keep_sum(after);
    seal_superblock(after);
    inside.insert(no, (BlockKind::Superblock, block));
    let kinds: BTreeMap<BlockNo, BlockKind> = inside.iter().map(|(no, (kind, _))| (*no, *kind)).collect();
    let blocks: Vec<(BlockNo, BlockBuf)> = inside.into_iter().map(|(no, (_, block))| (no, block)).collect();
    // Without this mark nobody would replay the log.
    write_superblock(device, &before)?;
    log.apply(&blocks, now)?;
    // Whoever opens the volume looks at descriptors before the log, at as many as the superblock counts: of a volume that grows it comes
    // home behind them, of one that shrinks before them.
    let shrinks = sizes.new.blocks_count < sizes.old.blocks_count;
    for (home, block) in blocks.iter().filter(|(home, _)| (*home == no) == shrinks) {
        volume.write(*home, kinds[home], block)?;
    }
    volume.flush()?;
    let kind_of = |no: BlockNo, _: &[u8]| kinds.get(&no).copied().unwrap_or(BlockKind::Data);
    replay(&mut log, &volume, &kind_of, &mut |_| {})?;
    write_superblock(device, raw)
}

/// Without a journal: the volume is not clean while its parts change, and the superblock makes it the new one.
fn in_order(device: &dyn BlockDevice, inside: &Blocks, raw: &[u8]) -> Result<()> {
    let (mut before, shape) = read_superblock(device)?;
    let state = S_STATE.get(&before) & !STATE_VALID;
    S_STATE.put(&mut before, state);
    write_superblock(device, &before)?;
    write_all(&BlockView::new(device, idx(shape.block_size)), inside)?;
    write_superblock(device, raw)
}

/// Writes the copies of superblock and descriptors. They are looked at only when the first ones are lost.
pub(in crate::ext2) fn write_copies(volume: &BlockView<'_>, raw: &[u8], shape: &Superblock) -> Result<()> {
    let at = |no: u64| BlockNo(no);
    let packed = idx(shape.packed_descriptor_blocks());
    let mut table = vec![0; packed * volume.block_size()];
    if packed > 0 {
        volume.read(at(shape.first_data_block() + 1), BlockKind::GroupDescriptor, &mut table)?;
    }
    let mut block = BlockBuf::zeroed(volume.block_size());
    for group in (1..shape.group_count()).filter(|&group| shape.has_superblock(group)) {
        let start = shape.group_start(group);
        volume.read(at(start), BlockKind::Superblock, &mut block)?;
        let copy = &mut block[..SUPERBLOCK_SIZE];
        copy.copy_from_slice(raw);
        S_BLOCK_GROUP_NR.put(copy, u16::try_from(group).unwrap_or(u16::MAX));
        keep_sum(copy);
        seal_superblock(copy);
        volume.write(at(start), BlockKind::Superblock, &block)?;
        if packed > 0 && group / shape.descriptors_per_block() < shape.first_meta_bg {
            volume.write(at(start + 1), BlockKind::GroupDescriptor, &table)?;
        }
    }
    for index in shape.packed_descriptor_blocks()..shape.descriptor_blocks() {
        volume.read(at(shape.descriptor_block(index)), BlockKind::GroupDescriptor, &mut block)?;
        let first = index * shape.descriptors_per_block();
        for group in [first + 1, first + shape.descriptors_per_block() - 1] {
            if group < shape.group_count() {
                let no = shape.group_start(group) + u64::from(u32::from(shape.has_superblock(group)));
                volume.write(at(no), BlockKind::GroupDescriptor, &block)?;
            }
        }
    }
    volume.flush()
}
