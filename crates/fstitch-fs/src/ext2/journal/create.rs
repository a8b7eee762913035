//! Giving an ext2 volume a journal, and taking one away. The volume is clean and nobody has it mounted.
//!
//! **Layout.** The journal is inode 8, in free blocks near the volume's middle, as contiguous as they are; where files are mapped by
//! extents, in the first of them that are contiguous enough. Its first block is its superblock, the others are zero, so that nothing
//! there looks like a transaction. Its own features are those that the kernel would give it when it mounts the volume.
//!
//! **States and transitions.** *Without* → the mark of a clean volume is taken away → blocks, map and inode are written →
//! feature and mark in one write of the superblock: *with*. Removing goes the same way back. The superblock's copies
//! change while inode 8 is stable, so that none ever names a journal that is not there.
//!
//! **Crash cases.** In between, the volume has no journal and is not clean: a check gives back what inode 8 has taken.

use std::collections::BTreeSet;

use fstitch_core::{Be, BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Le, Result, Structure, Timestamp};
use fstitch_patch::journal::format::{
    self, INCOMPAT_64BIT, INCOMPAT_CSUM_V3, INCOMPAT_FAST_COMMIT, INCOMPAT_REVOKE,
};

use super::copies::{self, S_JNL_BLOCKS, S_JNL_BLOCKS_LEN};
use super::find::{Internal, Place, inode_place, internal, locate, read_descriptor};
use super::pass::in_batches;
use super::raw::{
    FREE_BLOCKS, JOURNAL_INO, S_FEATURE_COMPAT, S_JNL_BACKUP_TYPE, S_JOURNAL_DEV, S_JOURNAL_INUM,
    S_JOURNAL_UUID, S_STATE, STATE_ERROR, STATE_VALID, Superblock,
};
use super::recover::{is_dirty, read_superblock, set_dirty, settle, write_superblock};
use crate::ext2::bitmap;
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::feature::{Features, compat, incompat};
use crate::ext2::layout::inode::{
    EXTENTS_FL, I_ATIME, I_BLOCKS, I_CTIME, I_EXTRA_ISIZE, I_FLAGS, I_LINKS_COUNT, I_MODE, I_MTIME, I_SIZE,
    I_SIZE_HIGH, POINTERS, new_extra_isize, pointer_field,
};
use crate::ext2::mkfs::MkfsFeatures;
use crate::ext2::newmap::{NewMap, Shape};
use crate::ext2::num::{idx, idx64, low32, small, wide};
use crate::ext2::offline::OfflineGroup;
use crate::ext2::runs::Runs;
use crate::view::BlockView;

/// The shortest journal that other systems accept, in blocks.
pub const BLOCKS_MIN: u32 = 1024;
/// The longest one.
pub const BLOCKS_MAX: u32 = 10_240_000;
/// With the feature `fast_commit` a log of so many blocks has one more for fast commits.
const LOG_TO_FAST: u32 = 64;
/// Whose a log says that it is that was [lent](lend): no volume's.
const LENT: [u8; 16] = *b"fstitch lent log";
/// Blocks of zeros that are written at once.
const ZEROS: usize = 256;

/// How to make a journal.
#[derive(Clone, Copy, Debug)]
pub struct AddOptions {
    /// Blocks of the journal; by default as many as suit the volume.
    pub blocks: Option<u32>,
    /// The time for its inode.
    pub now: Timestamp,
    /// Free blocks are known to be zero, as on a new sparse file.
    pub is_zero: bool,
}

/// How many blocks of journal suit a volume of so many blocks; `None` if it is too small for any.
#[must_use]
pub const fn default_blocks(volume: u64) -> Option<u32> {
    Some(match volume {
        0..0x800 => return None,
        0x800..0x8000 => 1 << 10,
        0x8000..0x4_0000 => 1 << 12,
        0x4_0000..0x8_0000 => 1 << 13,
        0x8_0000..0x40_0000 => 1 << 14,
        0x40_0000..0x80_0000 => 1 << 15,
        0x80_0000..0x100_0000 => 1 << 16,
        0x100_0000..0x200_0000 => 1 << 17,
        _ => 1 << 18,
    })
}

/// A journal that was added.
#[derive(Clone, Copy, Debug)]
pub(in crate::ext2) struct Added {
    /// Its blocks.
    pub(in crate::ext2) blocks: u32,
    /// What it takes of the volume, with its map.
    pub(in crate::ext2) owned: u32,
}

/// Adds a journal to the volume on `device`; returns its blocks.
///
/// # Errors
/// `Unsupported` if the volume is not clean, has one, or cannot have one of that size: nothing was changed.
pub fn add(device: &dyn BlockDevice, options: AddOptions) -> Result<u32> {
    add_counted(device, options).map(|added| added.blocks)
}

/// The same, and says how many blocks went.
pub(in crate::ext2) fn add_counted(device: &dyn BlockDevice, options: AddOptions) -> Result<Added> {
    add_before(device, options, None)
}

/// Lends a journal, all before block `end`, to a volume that has none, for work that must be whole at once. Whoever finds the volume after a
/// crash finds one with a journal, which says that it [is lent](is_lent).
///
/// # Errors
/// As [`add`].
pub(in crate::ext2) fn lend(device: &dyn BlockDevice, end: u64, now: Timestamp) -> Result<()> {
    let (_, shape) = ready(device)?;
    let suits = default_blocks(shape.blocks_count).filter(|&blocks| blocks > BLOCKS_MIN);
    let with = |blocks| AddOptions { blocks: Some(blocks), now, is_zero: false };
    let lent = match suits.map(|blocks| add_before(device, with(blocks), Some((end, LENT)))) {
        Some(Ok(added)) => Ok(added),
        // A shorter one may have room.
        Some(Err(Error::Unsupported(_))) | None => add_before(device, with(BLOCKS_MIN), Some((end, LENT))),
        Some(Err(error)) => Err(error),
    };
    lent.map(drop)
}

/// Whether the volume's journal is one that was [lent](lend).
///
/// # Errors
/// `Io`, `Corrupt`.
pub(in crate::ext2) fn is_lent(device: &dyn BlockDevice) -> Result<bool> {
    let (raw, shape) = read_superblock(device)?;
    let Some(Place::Inode(ino)) = locate(&shape, &raw)? else { return Ok(false) };
    let volume = BlockView::new(device, idx(shape.block_size));
    Ok(Internal::read(&volume, &shape, ino)?.superblock.uuid == LENT)
}

/// The same; `place` is the block before which it lies, and whose it says that it is.
fn add_before(
    device: &dyn BlockDevice,
    options: AddOptions,
    place: Option<(u64, [u8; 16])>,
) -> Result<Added> {
    let (mut raw, shape) = ready(device)?;
    let (end, uuid) = place.unwrap_or((shape.blocks_count, shape.uuid));
    if locate(&shape, &raw)?.is_some() {
        return Err(Error::Unsupported("a second journal".into()));
    }
    let blocks = size_of_log(shape.blocks_count, options.blocks, &shape.features)?;
    let volume = BlockView::new(device, idx(shape.block_size));
    let (inode_at, offset) = inode_place(&volume, &shape, JOURNAL_INO)?;
    let mut table = BlockBuf::zeroed(volume.block_size());
    volume.read(inode_at, BlockKind::Inode, &mut table)?;
    let inode = &mut table[offset..offset + usize::from(shape.inode_size)];
    if I_MODE.get(inode) != 0 || (0..POINTERS).any(|at| pointer_field(at).get(inode) != 0) {
        let problem = "there is no journal, but its inode is in use: check the volume first";
        return Err(Error::corrupt(Structure::Inode(u64::from(JOURNAL_INO)), inode_at, problem));
    }
    let (taken, map) = take_mapped(&volume, &shape, (blocks, end))?;
    put_inode(inode, &map.root, size(blocks, &shape), &shape, options.now);
    let owned = low32(taken.owned(&shape));
    I_BLOCKS.put(inode, owned * (shape.block_size / 512));
    shape.sums.seal_inode(JOURNAL_INO, inode);
    mark(device, &mut raw, false)?;
    write_log(&volume, &map, (&shape, uuid), options.is_zero)?;
    volume.flush()?;
    taken.write(&volume, &shape, true)?;
    // Inode 8 never has blocks that somebody else could be given.
    volume.flush()?;
    volume.write(inode_at, BlockKind::Inode, &table)?;
    volume.flush()?;
    let free = FREE_BLOCKS.get(&raw).saturating_sub(u64::from(owned));
    FREE_BLOCKS.put(&mut raw, free);
    S_FEATURE_COMPAT.put(&mut raw, shape.features.compat | compat::HAS_JOURNAL);
    S_JOURNAL_INUM.put(&mut raw, JOURNAL_INO);
    put_backup(&mut raw, Some((&map, blocks, &shape)));
    copies::update(&volume, &shape, &raw)?;
    mark(device, &mut raw, true)?;
    Ok(Added { blocks, owned })
}

/// Makes the journal in the volume on `device` as it was when it was new, zeros but for its superblock; false if there is none in
/// it. Nothing that is zero already is written.
///
/// # Errors
/// `Unsupported` if the volume is not clean or must be recovered first: nothing was changed.
pub fn clear(device: &dyn BlockDevice) -> Result<bool> {
    let (raw, shape) = ready(device)?;
    let Some(Place::Inode(ino)) = locate(&shape, &raw)? else { return Ok(false) };
    let volume = BlockView::new(device, idx(shape.block_size));
    let (area, _) = internal(&volume, &shape, ino)?;
    let superblock = new_log_superblock(&shape, small(idx64(area.count())), shape.uuid);
    // The log is empty: whoever finds it cut short in between finds the same.
    volume.write(area.superblock()?, BlockKind::JournalSuperblock, &superblock)?;
    volume.flush()?;
    let first = area.superblock()?.get();
    for (start, count) in area.runs() {
        let (start, end) = (start.get(), start.get() + count);
        clear_run(&volume, if start == first { start + 1 } else { start }, end)?;
    }
    volume.flush()?;
    Ok(true)
}

/// Moves the journal of the volume on `device`, which is inode 8, before block `end`, where it is as long as it was.
///
/// **Crash cases.** The bits of its new blocks are set by a transaction in the old log, those of its old ones are cleared by one in the new
/// log. In between inode 8 changes, by one write of its sector, when the old log is empty and the new one is complete. So the volume always
/// has a journal; it is not clean, as blocks may be in use and nobody's: a check frees them.
///
/// # Errors
/// `Unsupported` if the volume is not clean or must be recovered first, or has no room there: nothing was changed.
pub(in crate::ext2) fn move_before(device: &dyn BlockDevice, end: u64, now: Timestamp) -> Result<()> {
    let (mut raw, shape) = ready(device)?;
    let volume = BlockView::new(device, idx(shape.block_size));
    let (area, map) = internal(&volume, &shape, JOURNAL_INO)?;
    let blocks = small(idx64(area.count()));
    let uuid = Internal::read(&volume, &shape, JOURNAL_INO)?.superblock.uuid;
    let runs = area.runs().flat_map(|(start, count)| start.get()..start.get() + count);
    let before: Vec<u64> = runs.chain(map).collect();
    let (taken, map) = take_mapped(&volume, &shape, (blocks, end))?;
    let (inode_at, offset) = inode_place(&volume, &shape, JOURNAL_INO)?;
    let mut table = BlockBuf::zeroed(volume.block_size());
    volume.read(inode_at, BlockKind::Inode, &mut table)?;
    let inode = &mut table[offset..offset + usize::from(shape.inode_size)];
    put_inode(inode, &map.root, size(blocks, &shape), &shape, now);
    I_BLOCKS.put(inode, small(taken.blocks.len()) * (shape.block_size / 512));
    shape.sums.seal_inode(JOURNAL_INO, inode);
    mark(device, &mut raw, false)?;
    write_log(&volume, &map, (&shape, uuid), false)?;
    volume.flush()?;
    mark_through_log(device, &taken.blocks, true, now)?;
    volume.write(inode_at, BlockKind::Inode, &table)?;
    volume.flush()?;
    mark_through_log(device, &before, false, now)?;
    let (mut raw, _) = read_superblock(device)?;
    put_backup(&mut raw, Some((&map, blocks, &shape)));
    copies::update(&volume, &shape, &raw)?;
    mark(device, &mut raw, true)
}

/// Marks blocks as used or free by one transaction in the volume's journal, which is home and counted when this returns.
fn mark_through_log(device: &dyn BlockDevice, blocks: &[u64], used: bool, now: Timestamp) -> Result<()> {
    let (mut raw, shape) = read_superblock(device)?;
    in_batches(device, (&shape, Structure::Journal), (now, usize::MAX), |mut pass| {
        pass.mark_blocks(&Runs::of(blocks.iter().map(|&block| (block, block + 1)).collect()), used)?;
        if pass.changes() > pass.batch_max() {
            return Err(Error::Unsupported(format!("moving a journal of {} blocks", blocks.len())));
        }
        set_dirty(&mut raw, true);
        write_superblock(device, &raw)?;
        pass.send()
    })?;
    settle(device, now)
}

/// Takes the journal of the volume on `device` away; a volume without one stays as it is.
///
/// # Errors
/// `Unsupported` if the volume is not clean or must be recovered first: nothing was changed.
pub fn remove(device: &dyn BlockDevice) -> Result<()> {
    let (mut raw, shape) = ready(device)?;
    let Some(place) = locate(&shape, &raw)? else { return Ok(()) };
    if shape.orphan_file != 0 {
        // Others take an orphan file without a journal for damage.
        return Err(Error::Unsupported("taking the journal from a volume with feature orphan_file".into()));
    }
    let volume = BlockView::new(device, idx(shape.block_size));
    let owned = match place {
        Place::Inode(ino) => {
            let (area, map) = internal(&volume, &shape, ino)?;
            let runs = area.runs().flat_map(|(start, count)| start.get()..start.get() + count);
            let blocks = runs.chain(map).collect();
            Some((ino, Taken { blocks }))
        }
        Place::Device(_) => None,
    };
    S_FEATURE_COMPAT.put(&mut raw, shape.features.compat & !compat::HAS_JOURNAL);
    S_JOURNAL_INUM.put(&mut raw, 0);
    S_JOURNAL_DEV.put(&mut raw, 0);
    raw[S_JOURNAL_UUID..S_JOURNAL_UUID + 16].fill(0);
    put_backup(&mut raw, None);
    mark(device, &mut raw, false)?;
    copies::update(&volume, &shape, &raw)?;
    if let Some((ino, owned)) = owned {
        let (at, offset) = inode_place(&volume, &shape, ino)?;
        let mut table = BlockBuf::zeroed(volume.block_size());
        volume.read(at, BlockKind::Inode, &mut table)?;
        table[offset..offset + usize::from(shape.inode_size)].fill(0);
        volume.write(at, BlockKind::Inode, &table)?;
        volume.flush()?;
        owned.write(&volume, &shape, false)?;
        volume.flush()?;
        let free = FREE_BLOCKS.get(&raw).saturating_add(owned.owned(&shape));
        FREE_BLOCKS.put(&mut raw, free);
    }
    mark(device, &mut raw, true)
}

/// The superblock of a volume that may be changed as it is.
pub(super) fn ready(device: &dyn BlockDevice) -> Result<(Vec<u8>, Superblock)> {
    let (raw, shape) = read_superblock(device)?;
    let foreign = MkfsFeatures::foreign(&shape.features);
    if !foreign.is_empty() {
        return Err(Error::Unsupported(format!("changing a volume with feature {}", foreign.join(", "))));
    }
    if is_dirty(&raw) || shape.state & (STATE_VALID | STATE_ERROR) != STATE_VALID {
        return Err(Error::Unsupported(
            "changing the journal of a volume that is not clean: check it first".into(),
        ));
    }
    if !shape.is_dynamic() {
        return Err(Error::Unsupported("a journal on a volume of revision 0".into()));
    }
    Ok((raw, shape))
}

/// How many blocks a journal has on a volume of `volume` blocks, if a log of `asked` was asked for.
pub(in crate::ext2) fn size_of_log(volume: u64, asked: Option<u32>, features: &Features) -> Result<u32> {
    let small_volume = || Error::Unsupported(format!("a journal on a volume of only {volume} blocks"));
    let blocks = asked.or_else(|| default_blocks(volume)).ok_or_else(small_volume)?;
    if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks) {
        let text = format!("a journal of {blocks} blocks: {BLOCKS_MIN} to {BLOCKS_MAX} are possible");
        return Err(Error::Unsupported(text));
    }
    let has_fast = features.compat & compat::FAST_COMMIT != 0;
    Ok(if has_fast { blocks + blocks / LOG_TO_FAST } else { blocks })
}

/// How the journal of a volume is mapped.
fn map_shape(shape: &Superblock) -> Shape {
    Shape {
        block_size: shape.block_size,
        extents: shape.features.has_incompat(incompat::EXTENTS),
        sums: shape.sums.of_inode(JOURNAL_INO, 0),
    }
}

/// Sets or clears the mark of a clean volume, with everything else in `raw`.
pub(super) fn mark(device: &dyn BlockDevice, raw: &mut [u8], clean: bool) -> Result<()> {
    let state = S_STATE.get(raw) & !STATE_VALID;
    S_STATE.put(raw, if clean { state | STATE_VALID } else { state });
    write_superblock(device, raw)
}

/// Blocks that the journal takes, or gives back.
struct Taken {
    blocks: Vec<u64>,
}

/// Finds free blocks before block `end` for a journal of so many and for its map, which takes the more the more scattered they are.
fn take_mapped(
    volume: &BlockView<'_>,
    shape: &Superblock,
    (blocks, end): (u32, u64),
) -> Result<(Taken, NewMap)> {
    let mapped = map_shape(shape);
    let mut nodes = mapped.nodes_at_least(blocks);
    // A node has a cluster of its own.
    let clusters = shape.clusters(blocks);
    loop {
        let found = take(volume, shape, (clusters + nodes, end))?;
        let (data, spare) = found.split_at(idx(clusters));
        let all = data.iter().flat_map(|&start| start..start + u64::from(shape.cluster_blocks()));
        let mut data: Vec<u64> = all.take(idx(blocks)).collect();
        let needed = mapped.nodes(&data);
        if needed <= spare.len() {
            let map = mapped.build(&data, spare);
            data.extend_from_slice(&spare[..needed]);
            return Ok((Taken { blocks: data }, map));
        }
        nodes = small(needed);
    }
}

/// Finds free clusters before block `end`, from the middle on, in ascending order: by extents the first that lie together, else, and where
/// there is no such place, the first. Each is said by its first block.
fn take(volume: &BlockView<'_>, shape: &Superblock, (count, end): (u32, u64)) -> Result<Vec<u64>> {
    let together = map_shape(shape).extents;
    // Pointers have 32 bits.
    let end = if together { end } else { end.min(1 << 32) };
    let groups = shape.group_of(end - 1) + 1;
    let middle = if together { middle(volume, shape, end)? } else { groups / 2 };
    let mut found: Vec<u64> = Vec::new();
    let mut run: (u64, u32) = (0, 0);
    for group in (middle..groups).chain(0..middle) {
        if found.len() >= idx(count) && !together {
            break;
        }
        let here = OfflineGroup::read(volume, shape, group)?;
        let start = shape.group_start(group);
        let until = low32(end.saturating_sub(start).min(u64::from(shape.group_blocks(group))));
        for (from, len) in bitmap::runs(here.bits(), false, 0, until >> shape.log_cluster) {
            let first = shape.cluster_of(start) + u64::from(from);
            let starts = |from: u64, len: u32| {
                (from..from + u64::from(len)).map(|cluster| shape.cluster_start(cluster))
            };
            run = if run.0 + u64::from(run.1) == first { (run.0, run.1 + len) } else { (first, len) };
            if together && run.1 >= count {
                return Ok(starts(run.0, count).collect());
            }
            let len = len.min(count - small(found.len()));
            found.extend(starts(first, len));
        }
    }
    if found.len() < idx(count) {
        let [count, free] = [count, small(found.len())].map(|clusters| clusters << shape.log_cluster);
        return Err(Error::Unsupported(format!("a journal that takes {count} blocks: only {free} are free")));
    }
    found.sort_unstable();
    Ok(found)
}

/// The group near the volume's middle where a journal is looked for that lies together: the first of those that have their
/// tables together, or on a smaller volume that of three with the most free blocks. So does mke2fs.
fn middle(volume: &BlockView<'_>, shape: &Superblock, end: u64) -> Result<u32> {
    let middle = shape.group_of((end / 2).max(shape.first_data_block()));
    let log = u32::from(shape.log_groups_per_flex);
    if log > 0 && middle.checked_shr(log).is_some_and(|rounded| rounded > 0) {
        return Ok(middle >> log << log);
    }
    let mut best = (middle, 0);
    for group in middle.saturating_sub(1)..=(middle + 1).min(shape.group_of(end - 1)) {
        let free = read_descriptor(volume, shape, group)?.free_blocks;
        if free > best.1 {
            best = (group, free);
        }
    }
    Ok(best.0)
}

impl Taken {
    /// How many blocks their clusters have.
    fn owned(&self, shape: &Superblock) -> u64 {
        let clusters: BTreeSet<u64> = self.blocks.iter().map(|&block| shape.cluster_of(block)).collect();
        wide(clusters.len()) << shape.log_cluster
    }

    /// Marks all blocks as used or free, in bitmaps and descriptors.
    fn write(&self, volume: &BlockView<'_>, shape: &Superblock, used: bool) -> Result<()> {
        let mut sorted = self.blocks.clone();
        sorted.sort_unstable();
        for part in sorted.chunk_by(|&one, &two| shape.group_of(one) == shape.group_of(two)) {
            OfflineGroup::read(volume, shape, shape.group_of(part[0]))?.mark(volume, part, used)?;
        }
        Ok(())
    }
}

/// Makes `count` blocks from `first` on zero, so that nothing there looks like a transaction.
pub(super) fn write_zeros(volume: &BlockView<'_>, first: BlockNo, count: u64) -> Result<()> {
    let zeros = vec![0; ZEROS * volume.block_size()];
    let end = first.get() + count;
    for at in (first.get()..end).step_by(ZEROS) {
        let blocks = idx64((end - at).min(wide(ZEROS)));
        volume.write(BlockNo(at), BlockKind::JournalData, &zeros[..blocks * volume.block_size()])?;
    }
    Ok(())
}

/// The same for `from..to`, where what is zero already is not written.
fn clear_run(volume: &BlockView<'_>, from: u64, to: u64) -> Result<()> {
    let mut bytes = vec![0; ZEROS * volume.block_size()];
    for at in (from..to).step_by(ZEROS) {
        let count = (to - at).min(wide(ZEROS));
        let part = &mut bytes[..idx64(count) * volume.block_size()];
        volume.read(BlockNo(at), BlockKind::JournalData, part)?;
        if part.iter().any(|&byte| byte != 0) {
            write_zeros(volume, BlockNo(at), count)?;
        }
    }
    Ok(())
}

fn write_log(
    volume: &BlockView<'_>,
    map: &NewMap,
    (shape, uuid): (&Superblock, [u8; 16]),
    is_zero: bool,
) -> Result<()> {
    if !is_zero {
        for run in map.data.chunk_by(|&one, &two| one + 1 == two) {
            write_zeros(volume, BlockNo(run[0]), wide(run.len()))?;
        }
    }
    for (block, bytes) in &map.nodes {
        volume.write(BlockNo(*block), BlockKind::Indirect, bytes)?;
    }
    let at = BlockNo(map.data[0]);
    volume.write(at, BlockKind::JournalSuperblock, &new_log_superblock(shape, small(map.data.len()), uuid))
}

/// The block with the superblock of a new journal of so many blocks.
fn new_log_superblock(shape: &Superblock, blocks: u32, uuid: [u8; 16]) -> BlockBuf {
    let mut superblock = format::Superblock::new(shape.block_size, blocks, 1, uuid);
    superblock.features.incompat = log_features(shape);
    let mut block = BlockBuf::zeroed(idx(shape.block_size));
    if superblock.features.incompat & INCOMPAT_FAST_COMMIT != 0 {
        superblock.fast_blocks = blocks / (LOG_TO_FAST + 1);
        Be::put_u32(&mut block, format::offset::S_NUM_FC_BLKS, superblock.fast_blocks);
    }
    superblock.encode_into(&mut block[..format::SUPERBLOCK_SIZE]);
    block
}

/// The incompatible features of the journal of such a volume.
fn log_features(shape: &Superblock) -> u32 {
    let mut features = INCOMPAT_REVOKE;
    if shape.features.has_incompat(incompat::BIT64) {
        features |= INCOMPAT_64BIT;
    }
    if shape.features.has_sums() {
        features |= INCOMPAT_CSUM_V3;
    }
    if shape.features.compat & compat::FAST_COMMIT != 0 {
        features |= INCOMPAT_FAST_COMMIT;
    }
    features
}

fn size(blocks: u32, shape: &Superblock) -> (u32, u32) {
    let bytes = u64::from(blocks) * u64::from(shape.block_size);
    (low32(bytes), low32(bytes >> 32))
}

/// Makes inode 8 a journal's, with this root of its map and a length of two words, the low one first. How much it owns is left
/// out, and so is its sum.
pub(super) fn put_inode(
    inode: &mut [u8],
    root: &[u32; POINTERS],
    (low, high): (u32, u32),
    shape: &Superblock,
    now: Timestamp,
) {
    inode.fill(0);
    let time = low32(now.secs.cast_unsigned());
    I_MODE.put(inode, 0o100_600);
    I_LINKS_COUNT.put(inode, 1);
    I_SIZE.put(inode, low);
    I_SIZE_HIGH.put(inode, high);
    for field in [I_ATIME, I_CTIME, I_MTIME] {
        field.put(inode, time);
    }
    for (at, &word) in root.iter().enumerate() {
        pointer_field(at).put(inode, word);
    }
    // A pointer that looks like the header of a node has no entries behind it that could be right.
    let by_extents = shape.features.has_incompat(incompat::EXTENTS)
        && Node::parse_root(root, BlockNo(0), shape.blocks_count).is_ok();
    if by_extents {
        I_FLAGS.put(inode, EXTENTS_FL);
    }
    if shape.inode_size > 128 {
        I_EXTRA_ISIZE.put(inode, new_extra_isize(shape));
    }
}

/// Forgets the copy of the journal's pointers in the superblock `raw`.
pub(crate) fn clear_backup(raw: &mut [u8]) {
    put_backup(raw, None);
}

/// Keeps the journal's pointers in the superblock, or forgets them.
pub(super) fn put_backup(raw: &mut [u8], journal: Option<(&NewMap, u32, &Superblock)>) {
    raw[S_JNL_BLOCKS..S_JNL_BLOCKS + S_JNL_BLOCKS_LEN].fill(0);
    S_JNL_BACKUP_TYPE.put(raw, u8::from(journal.is_some()));
    if let Some((map, blocks, shape)) = journal {
        let (low, high) = size(blocks, shape);
        for (at, &word) in map.root.iter().chain([&high, &low]).enumerate() {
            Le::put_u32(raw, S_JNL_BLOCKS + at * 4, word);
        }
    }
}
