//! Taking free blocks for the maps, and giving them back. The volume is clean and nobody has it mounted.

use std::collections::{BTreeMap, BTreeSet};

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, Le, Result, Timestamp};
use fstitch_fs::ext2::journal as jbd;
use fstitch_fs::ext2::layout::feature::{PLAIN, ro_compat};
use fstitch_fs::ext2::layout::group::BG_FREE_BLOCKS_COUNT;
use fstitch_fs::ext2::layout::inode::{
    DIRECT, I_ATIME, I_BLOCKS, I_CTIME, I_EXTRA_ISIZE, I_LINKS_COUNT, I_MODE, I_MTIME, I_SIZE, I_SIZE_HIGH,
    POINTERS, new_extra_isize, pointer_field, size_max,
};
use fstitch_fs::ext2::layout::superblock::{
    S_FEATURE_RO_COMPAT, S_FREE_BLOCKS_COUNT, S_STATE, STATE_ERROR, STATE_VALID, SUPERBLOCK_SIZE,
};
use fstitch_fs::view::BlockView;
use fstitch_shepherd::Room;

use super::{MODE, Raw};
use crate::MapsAt;

/// Bytes from which on a file needs the feature `large_file`.
const LARGE: u64 = 1 << 31;

fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Unsupported(what.into()))
}

/// A volume that may be changed as it is, and its superblock's bytes.
fn ready(device: &dyn BlockDevice) -> Result<(Raw<'_>, Vec<u8>)> {
    let (bytes, shape) = jbd::read_superblock(device)?;
    let foreign = shape.features.beyond(&PLAIN).all_names();
    if !foreign.is_empty() {
        return unsupported(format!("changing a volume with feature {}", foreign.join(", ")));
    }
    let is_clean = shape.state & (STATE_VALID | STATE_ERROR) == STATE_VALID;
    if !is_clean || jbd::needs_recovery(device)? {
        return unsupported("changing the policy of a volume that is not clean: check it first");
    }
    if !shape.is_dynamic() {
        return unsupported("a policy for a volume of revision 0");
    }
    Ok((Raw::read(device)?, bytes))
}

/// Writes the superblock, with the mark of a clean volume or without, and makes it stable.
fn put_superblock(device: &dyn BlockDevice, bytes: &mut [u8], is_clean: bool) -> Result<()> {
    let state = S_STATE.get(bytes) & !STATE_VALID;
    S_STATE.put(bytes, if is_clean { state | STATE_VALID } else { state });
    let view = BlockView::new(device, SUPERBLOCK_SIZE);
    view.write(BlockNo(1), BlockKind::Superblock, bytes)?;
    view.flush()
}

/// See [`crate::KeepsMaps::make_room`].
pub(super) fn take(device: &dyn BlockDevice, room: Room, now: Timestamp) -> Result<Vec<BlockNo>> {
    let (raw, mut superblock) = ready(device)?;
    let (inode_at, mut table, offset) = raw.maps_inode()?;
    let inode_size = usize::from(raw.shape.inode_size);
    if table[offset..offset + inode_size].iter().any(|byte| *byte != 0) {
        return unsupported(
            "a policy for a volume whose inode 5, where it would be kept, is a boot loader's",
        );
    }
    let per_block = to_usize(raw.shape.pointers_per_block());
    let Taken { data, behind } = choose(&Free::read(&raw)?, room, per_block)?;
    let needed = data.len() + behind.len();
    let size = to_u64(data.len()) * u64::from(raw.shape.block_size);
    if size > size_max(raw.shape.block_size) {
        let blocks = data.len();
        return unsupported(format!("maps of {blocks} blocks: a file of this volume has fewer"));
    }
    let map = Map::build(&data, behind.clone(), per_block);
    let inode = &mut table[offset..offset + inode_size];
    I_MODE.put(inode, MODE);
    I_LINKS_COUNT.put(inode, 1);
    I_SIZE.put(inode, u32::try_from(size & u64::from(u32::MAX)).expect("masked"));
    I_SIZE_HIGH.put(inode, u32::try_from(size >> 32).expect("the upper half"));
    let sectors = to_u64(needed) * u64::from(raw.shape.block_size / 512);
    I_BLOCKS.put(inode, u32::try_from(sectors).unwrap_or(u32::MAX));
    let time = u32::try_from(now.secs.max(0)).unwrap_or(u32::MAX);
    for field in [I_ATIME, I_CTIME, I_MTIME] {
        field.put(inode, time);
    }
    for (at, pointer) in map.root.iter().enumerate() {
        pointer_field(at).put(inode, *pointer);
    }
    if inode_size > 128 {
        I_EXTRA_ISIZE.put(inode, new_extra_isize(&raw.shape));
    }
    put_superblock(device, &mut superblock, false)?;
    let taken: BTreeSet<u32> = data.iter().chain(&behind).copied().collect();
    mark(&raw, &taken, true)?;
    raw.view.flush()?;
    for (no, bytes) in &map.pointers {
        raw.view.write(BlockNo(u64::from(*no)), BlockKind::Indirect, bytes)?;
    }
    raw.view.flush()?;
    raw.view.write(inode_at, BlockKind::Inode, &table)?;
    raw.view.flush()?;
    if size >= LARGE {
        let features = S_FEATURE_RO_COMPAT.get(&superblock) | ro_compat::LARGE_FILE;
        S_FEATURE_RO_COMPAT.put(&mut superblock, features);
    }
    count(&mut superblock, taken.len(), false);
    put_superblock(device, &mut superblock, true)?;
    Ok(data.into_iter().map(|no| BlockNo(u64::from(no))).collect())
}

/// Blocks for maps, and for the pointers to them.
struct Taken {
    data: Vec<u32>,
    behind: Vec<u32>,
}

/// Chooses blocks: the halves and the lists at the ends of the volume. How long the lists are depends on where the blocks are, which are more if
/// the lists are longer.
fn choose(all: &Free, room: Room, per_block: usize) -> Result<Taken> {
    let [half, spares] = [room.half, room.spares].map(to_usize);
    let mut list = 1;
    loop {
        let blocks = half.saturating_add(list).saturating_mul(2).saturating_add(spares);
        if u32::try_from(blocks).is_err() {
            return unsupported(format!("maps of {blocks} blocks"));
        }
        let pointers = pointer_blocks(blocks, per_block);
        if blocks + pointers > all.count() {
            let needed = blocks + pointers;
            return unsupported(format!("maps that take {needed} blocks: only {} are free", all.count()));
        }
        let mut free = all.clone();
        let mut data = free.lowest(half);
        let behind = free.lowest(pointers);
        data.extend(free.highest(half));
        let lists = [free.lowest(list), free.highest(list)];
        data.extend(&lists[0]);
        data.extend(free.spread(spares));
        data.extend(&lists[1]);
        let area: Vec<BlockNo> = data.iter().map(|no| BlockNo(u64::from(*no))).collect();
        let longer = to_usize(room.list(&area));
        if longer <= list {
            return Ok(Taken { data, behind });
        }
        list = longer;
    }
}

/// See [`crate::KeepsMaps::give_back`].
pub(super) fn give_back(device: &dyn BlockDevice) -> Result<()> {
    let (raw, mut superblock) = ready(device)?;
    match raw.maps()? {
        MapsAt::Nowhere => return Ok(()),
        MapsAt::Here(_) => return unsupported("giving back the blocks of maps that are used"),
        MapsAt::Unfinished(_) => {}
    }
    let (inode_at, mut table, offset) = raw.maps_inode()?;
    let inode = &mut table[offset..offset + usize::from(raw.shape.inode_size)];
    let mut owned = BTreeSet::new();
    raw.walk(inode, &mut |no, _| {
        owned.extend(u32::try_from(no));
    })?;
    inode.fill(0);
    put_superblock(device, &mut superblock, false)?;
    raw.view.write(inode_at, BlockKind::Inode, &table)?;
    raw.view.flush()?;
    mark(&raw, &owned, false)?;
    raw.view.flush()?;
    count(&mut superblock, owned.len(), true);
    put_superblock(device, &mut superblock, true)
}

/// Changes the superblock's count of free blocks.
fn count(superblock: &mut [u8], blocks: usize, are_free: bool) {
    let (before, blocks) = (S_FREE_BLOCKS_COUNT.get(superblock), u32::try_from(blocks).unwrap_or(u32::MAX));
    let after = if are_free { before.saturating_add(blocks) } else { before.saturating_sub(blocks) };
    S_FREE_BLOCKS_COUNT.put(superblock, after);
}

/// Marks blocks as used or free, in the bitmaps and in the groups' counts.
fn mark(raw: &Raw<'_>, blocks: &BTreeSet<u32>, are_used: bool) -> Result<()> {
    let mut by_group: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for no in blocks {
        by_group.entry(raw.shape.group_of(u64::from(*no))).or_default().push(*no);
    }
    for (group, blocks) in by_group {
        let at = raw.group(group)?.block_bitmap;
        let mut bits = raw.block(at, BlockKind::BlockBitmap)?;
        let mut changed = 0;
        for no in blocks {
            let bit = u64::from(no) - raw.shape.group_start(group);
            let (byte, mask) = (&mut bits[to_usize(bit / 8)], 1 << (bit % 8));
            if (*byte & mask != 0) != are_used {
                *byte ^= mask;
                changed += 1;
            }
        }
        raw.view.write(BlockNo(at), BlockKind::BlockBitmap, &bits)?;
        let (no, offset) = raw.shape.descriptor_place(group);
        let mut descriptors = raw.block(no, BlockKind::GroupDescriptor)?;
        let before = BG_FREE_BLOCKS_COUNT.get(&descriptors[offset..]);
        let after = if are_used { before.saturating_sub(changed) } else { before.saturating_add(changed) };
        BG_FREE_BLOCKS_COUNT.put(&mut descriptors[offset..], after);
        raw.view.write(BlockNo(no), BlockKind::GroupDescriptor, &descriptors)?;
    }
    Ok(())
}

/// The free blocks of each group, in order.
#[derive(Clone)]
struct Free(Vec<Vec<u32>>);

impl Free {
    fn read(raw: &Raw<'_>) -> Result<Self> {
        let group = |group: u32| {
            let bits = raw.block(raw.group(group)?.block_bitmap, BlockKind::BlockBitmap)?;
            let start = raw.shape.group_start(group);
            let is_free = |bit: &u32| bits[to_usize(bit / 8)] & (1 << (bit % 8)) == 0;
            let block =
                |bit: u32| u32::try_from(start + u64::from(bit)).expect("no volume with maps has more");
            Ok((0..raw.shape.group_blocks(group)).filter(is_free).map(block).collect())
        };
        Ok(Self((0..raw.shape.group_count()).map(group).collect::<Result<_>>()?))
    }

    fn count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Takes the first blocks of the volume.
    fn lowest(&mut self, count: usize) -> Vec<u32> {
        let mut taken = Vec::with_capacity(count);
        for group in &mut self.0 {
            let some = group.len().min(count - taken.len());
            taken.extend(group.drain(..some));
        }
        taken
    }

    /// Takes the last ones, in order.
    fn highest(&mut self, count: usize) -> Vec<u32> {
        let mut taken = Vec::with_capacity(count);
        for group in self.0.iter_mut().rev() {
            let some = group.len().min(count - taken.len());
            taken.extend(group.drain(group.len() - some..).rev());
        }
        taken.reverse();
        taken
    }

    /// Takes from all groups alike, what is last in each; in order.
    fn spread(&mut self, count: usize) -> Vec<u32> {
        let mut taken = Vec::with_capacity(count);
        let mut left = self.count();
        for group in &mut self.0 {
            let wanted = count - taken.len();
            // So that what is left to be taken has the same share of what is left.
            let share = if left == 0 { 0 } else { (wanted * group.len()).div_ceil(left) };
            left -= group.len();
            let some = share.min(wanted).min(group.len());
            taken.extend(group.drain(group.len() - some..));
        }
        taken
    }
}

/// Blocks of pointers that a file of `blocks` blocks has.
fn pointer_blocks(blocks: usize, per_block: usize) -> usize {
    let mut left = blocks.saturating_sub(DIRECT);
    let mut span = per_block;
    let mut count = 0;
    for levels in 1..=POINTERS - DIRECT {
        let mut under = left.min(span);
        left -= under;
        for _ in 0..levels {
            under = under.div_ceil(per_block);
            count += under;
        }
        span = span.saturating_mul(per_block);
    }
    count
}

/// The map of a file without holes.
struct Map {
    root: [u32; POINTERS],
    /// Blocks of pointers, with what is in them.
    pointers: Vec<(u32, Vec<u8>)>,
}

impl Map {
    /// Of a file of these blocks, with blocks of pointers from `behind`, which are as many as it takes.
    fn build(data: &[u32], behind: Vec<u32>, per_block: usize) -> Self {
        let mut map = Self { root: [0; POINTERS], pointers: Vec::new() };
        let (direct, mut rest) = data.split_at(DIRECT.min(data.len()));
        map.root[..direct.len()].copy_from_slice(direct);
        let mut behind = behind.into_iter();
        let mut span = per_block;
        for at in DIRECT..POINTERS {
            let (here, more) = rest.split_at(span.min(rest.len()));
            let mut level = here.to_vec();
            for _ in DIRECT..=at {
                level = level
                    .chunks(per_block)
                    .map(|some| {
                        let no = behind.next().expect("they were counted");
                        let mut bytes = vec![0; 4 * per_block];
                        for (slot, pointer) in some.iter().enumerate() {
                            Le::put_u32(&mut bytes, 4 * slot, *pointer);
                        }
                        map.pointers.push((no, bytes));
                        no
                    })
                    .collect();
            }
            map.root[at] = level.first().copied().unwrap_or(0);
            (rest, span) = (more, span.saturating_mul(per_block));
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_have_the_blocks_of_pointers_that_were_counted() {
        for blocks in [0, 1, 12, 13, 16, 20, 28, 29, 32, 33, 92, 93, 200] {
            let data: Vec<u32> = (1000..).take(blocks).collect();
            let count = pointer_blocks(blocks, 4);
            let map = Map::build(&data, (1..).take(count).collect(), 4);
            assert_eq!(map.pointers.len(), count, "{blocks} blocks");
            let pointed: usize = map
                .pointers
                .iter()
                .flat_map(|(_, bytes)| bytes.chunks_exact(4))
                .map(|word| Le::u32(word, 0))
                .chain(map.root)
                .filter(|no| *no >= 1000)
                .count();
            assert_eq!(pointed, blocks.min(12 + 4 + 16 + 64), "{blocks} blocks");
        }
    }

    #[test]
    fn blocks_are_taken_from_where_they_were_asked_for() {
        let mut free = Free(vec![vec![1, 2, 3, 4], vec![], vec![10, 11, 12, 13, 14, 15, 16, 17]]);
        assert_eq!(free.lowest(1), [1]);
        assert_eq!(free.highest(2), [16, 17]);
        assert_eq!(free.spread(3), [4, 14, 15], "from both groups, at their ends");
        assert_eq!((free.count(), free.lowest(9), free.spread(2)), (6, vec![2, 3, 10, 11, 12, 13], vec![]));
    }
}
