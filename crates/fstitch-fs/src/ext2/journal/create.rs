//! Giving an ext2 volume a journal, and taking one away. The volume is clean and nobody has it mounted.
//!
//! **Layout.** The journal is inode 8, in free blocks near the volume's middle, as contiguous as they are. Its first
//! block is its superblock, the others are zero, so that nothing there looks like a transaction.
//!
//! **States and transitions.** *Without* → the mark of a clean volume is taken away → blocks, map and inode are written →
//! feature and mark in one write of the superblock: *with*. Removing goes the same way back. The superblock's copies
//! change while inode 8 is stable, so that none ever names a journal that is not there.
//!
//! **Crash cases.** In between, the volume has no journal and is not clean: a check gives back what inode 8 has taken.

use fstitch_core::{BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Le, Result, Structure, Timestamp};
use fstitch_patch::journal::format::{self, INCOMPAT_REVOKE};

use super::copies::{self, S_JNL_BLOCKS, S_JNL_BLOCKS_LEN};
use super::find::{Place, inode_place, internal, locate, read_descriptor};
use super::raw::{
    JOURNAL_INO, S_FEATURE_COMPAT, S_FREE_BLOCKS_COUNT, S_JNL_BACKUP_TYPE, S_JOURNAL_DEV, S_JOURNAL_INUM,
    S_JOURNAL_UUID, S_STATE, STATE_ERROR, STATE_VALID, Superblock,
};
use super::recover::{is_dirty, read_superblock, write_superblock};
use crate::ext2::bitmap;
use crate::ext2::layout::feature::compat;
use crate::ext2::layout::group::BG_FREE_BLOCKS_COUNT;
use crate::ext2::layout::inode::{
    DIRECT, I_ATIME, I_BLOCKS, I_CTIME, I_EXTRA_ISIZE, I_LINKS_COUNT, I_MODE, I_MTIME, I_SIZE, I_SIZE_HIGH,
    POINTERS, new_extra_isize, pointer_field,
};
use crate::ext2::num::{idx, idx64, low32, small, wide};
use crate::ext2::view::BlockView;

/// The shortest journal that other systems accept, in blocks.
pub const BLOCKS_MIN: u32 = 1024;
/// The longest one.
pub const BLOCKS_MAX: u32 = 10_240_000;
/// Bytes of a pointer in a block map.
const POINTER_SIZE: u32 = 4;
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
pub const fn default_blocks(volume: u32) -> Option<u32> {
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

/// Adds a journal to the volume on `device`; returns its blocks.
///
/// # Errors
/// `Unsupported` if the volume is not clean, has one, or cannot have one of that size: nothing was changed.
pub fn add(device: &dyn BlockDevice, options: AddOptions) -> Result<u32> {
    let (mut raw, shape) = ready(device)?;
    if locate(&shape, &raw)?.is_some() {
        return Err(Error::Unsupported("a second journal".into()));
    }
    let (blocks, with_map) = space(shape.blocks_count, shape.block_size, options.blocks)?;
    let volume = BlockView::new(device, idx(shape.block_size));
    let (inode_at, offset) = inode_place(&volume, &shape, JOURNAL_INO)?;
    let mut table = BlockBuf::zeroed(volume.block_size());
    volume.read(inode_at, BlockKind::Inode, &mut table)?;
    let inode = &mut table[offset..offset + usize::from(shape.inode_size)];
    if I_MODE.get(inode) != 0 || (0..POINTERS).any(|at| pointer_field(at).get(inode) != 0) {
        let problem = "there is no journal, but its inode is in use: check the volume first";
        return Err(Error::corrupt(Structure::Inode(u64::from(JOURNAL_INO)), inode_at, problem));
    }
    let taken = take(&volume, &shape, with_map)?;
    let map = Map::build(&taken.blocks, blocks, &shape);
    put_inode(inode, &map.pointers, size(blocks, &shape), &shape, options.now);
    let owned = small(map.data.len() + map.indirect.len());
    I_BLOCKS.put(inode, owned * (shape.block_size / 512));
    mark(device, &mut raw, false)?;
    write_log(&volume, &map, (blocks, &shape.uuid), options.is_zero)?;
    volume.flush()?;
    taken.write(&volume, &shape, true)?;
    // Inode 8 never has blocks that somebody else could be given.
    volume.flush()?;
    volume.write(inode_at, BlockKind::Inode, &table)?;
    volume.flush()?;
    let free = S_FREE_BLOCKS_COUNT.get(&raw).saturating_sub(small(taken.blocks.len()));
    S_FREE_BLOCKS_COUNT.put(&mut raw, free);
    S_FEATURE_COMPAT.put(&mut raw, shape.features.compat | compat::HAS_JOURNAL);
    S_JOURNAL_INUM.put(&mut raw, JOURNAL_INO);
    put_backup(&mut raw, Some((&map, blocks, &shape)));
    copies::update(&volume, &shape, &raw)?;
    mark(device, &mut raw, true)?;
    Ok(blocks)
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
            let blocks = runs.map(low32).chain(map).collect();
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
        let free = S_FREE_BLOCKS_COUNT.get(&raw).saturating_add(small(owned.blocks.len()));
        S_FREE_BLOCKS_COUNT.put(&mut raw, free);
    }
    mark(device, &mut raw, true)
}

/// The superblock of a volume that may be changed as it is.
pub(super) fn ready(device: &dyn BlockDevice) -> Result<(Vec<u8>, Superblock)> {
    let (raw, shape) = read_superblock(device)?;
    let foreign = shape.features.read_only_because(false);
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

/// How many blocks a journal has on a volume of `volume` blocks, if `asked` were asked for, and how many it takes with
/// its map.
pub(in crate::ext2) fn space(volume: u32, block_size: u32, asked: Option<u32>) -> Result<(u32, u32)> {
    let small_volume = || Error::Unsupported(format!("a journal on a volume of only {volume} blocks"));
    let blocks = asked.or_else(|| default_blocks(volume)).ok_or_else(small_volume)?;
    if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks) {
        let text = format!("a journal of {blocks} blocks: {BLOCKS_MIN} to {BLOCKS_MAX} are possible");
        return Err(Error::Unsupported(text));
    }
    Ok((blocks, blocks + map_blocks(blocks, block_size / POINTER_SIZE)))
}

/// Sets or clears the mark of a clean volume, with everything else in `raw`.
pub(super) fn mark(device: &dyn BlockDevice, raw: &mut [u8], clean: bool) -> Result<()> {
    let state = S_STATE.get(raw) & !STATE_VALID;
    S_STATE.put(raw, if clean { state | STATE_VALID } else { state });
    write_superblock(device, raw)
}

/// Indirect blocks for a file of `blocks` blocks without holes.
fn map_blocks(blocks: u32, pointers: u32) -> u32 {
    let mut rest = u64::from(blocks).saturating_sub(wide(DIRECT));
    let pointers = u64::from(pointers);
    let (mut count, mut span) = (0, pointers);
    for level in 1..=3_u32 {
        let under = rest.min(span);
        rest -= under;
        let mut array = under;
        for _ in 0..level {
            array = array.div_ceil(pointers);
            count += array;
        }
        span *= pointers;
    }
    low32(count)
}

/// Blocks that the journal takes, or gives back.
struct Taken {
    blocks: Vec<u32>,
}

/// Finds free blocks from the volume's middle on.
fn take(volume: &BlockView<'_>, shape: &Superblock, count: u32) -> Result<Taken> {
    let groups = shape.group_count();
    let mut blocks = Vec::with_capacity(idx(count));
    let mut bits = vec![0; volume.block_size()];
    for group in (groups / 2..groups).chain(0..groups / 2) {
        if blocks.len() == idx(count) {
            break;
        }
        let at = BlockNo(u64::from(read_descriptor(volume, shape, group)?.block_bitmap));
        volume.read(at, BlockKind::BlockBitmap, &mut bits)?;
        let start = shape.group_start(group);
        for (from, len) in bitmap::runs(&bits, false, 0, shape.group_blocks(group)) {
            let len = len.min(count - small(blocks.len()));
            blocks.extend(start + from..start + from + len);
        }
    }
    if blocks.len() < idx(count) {
        let free = blocks.len();
        return Err(Error::Unsupported(format!("a journal that takes {count} blocks: only {free} are free")));
    }
    blocks.sort_unstable();
    Ok(Taken { blocks })
}

impl Taken {
    /// Marks all blocks as used or free, in bitmaps and descriptors.
    fn write(&self, volume: &BlockView<'_>, shape: &Superblock, used: bool) -> Result<()> {
        let mut sorted = self.blocks.clone();
        sorted.sort_unstable();
        for part in sorted.chunk_by(|&one, &two| shape.group_of(one) == shape.group_of(two)) {
            let group = shape.group_of(part[0]);
            let at = BlockNo(u64::from(read_descriptor(volume, shape, group)?.block_bitmap));
            let mut bits = BlockBuf::zeroed(volume.block_size());
            volume.read(at, BlockKind::BlockBitmap, &mut bits)?;
            for &block in part {
                let bit = block - shape.group_start(group);
                let (byte, mask) = (&mut bits[idx(bit / 8)], 1 << (bit % 8));
                debug_assert!((*byte & mask != 0) != used, "block {block} changes");
                *byte ^= mask;
            }
            volume.write(at, BlockKind::BlockBitmap, &bits)?;
            let (table, offset) = shape.descriptor_place(group);
            let table = BlockNo(u64::from(table));
            let mut block = BlockBuf::zeroed(volume.block_size());
            volume.read(table, BlockKind::GroupDescriptor, &mut block)?;
            let count = u16::try_from(part.len()).expect("a group has fewer blocks than 2^16");
            let free = BG_FREE_BLOCKS_COUNT.get(&block[offset..]);
            let free = if used { free.saturating_sub(count) } else { free.saturating_add(count) };
            BG_FREE_BLOCKS_COUNT.put(&mut block[offset..], free);
            volume.write(table, BlockKind::GroupDescriptor, &block)?;
        }
        Ok(())
    }
}

/// The journal's block map.
pub(super) struct Map {
    pointers: [u32; POINTERS],
    /// Indirect blocks and what is in them.
    indirect: Vec<(u32, Vec<u8>)>,
    data: Vec<u32>,
}

impl Map {
    /// Shares out `taken`: the first `blocks` hold the journal, the others its map.
    fn build(taken: &[u32], blocks: u32, shape: &Superblock) -> Self {
        let (data, spare) = taken.split_at(idx(blocks));
        let mut map = Self { pointers: [0; POINTERS], indirect: Vec::new(), data: data.to_vec() };
        let mut spare = spare.iter().copied();
        let (direct, mut rest) = data.split_at(DIRECT.min(data.len()));
        map.pointers[..direct.len()].copy_from_slice(direct);
        let per_block = idx(shape.pointers_per_block());
        let mut span = per_block;
        for (at, levels) in (DIRECT..POINTERS).zip(1..) {
            let (part, behind) = rest.split_at(span.min(rest.len()));
            (rest, span) = (behind, span * per_block);
            if part.is_empty() {
                break;
            }
            let mut level = part.to_vec();
            for _ in 0..levels {
                level = map.gather(&level, per_block, &mut spare);
            }
            map.pointers[at] = level[0];
        }
        debug_assert!(rest.is_empty() && spare.next().is_none(), "the map was counted right");
        map
    }

    /// Puts pointers into indirect blocks, and returns these.
    fn gather(&mut self, level: &[u32], per_block: usize, spare: &mut impl Iterator<Item = u32>) -> Vec<u32> {
        let parents = level.chunks(per_block).map(|part| {
            let block = spare.next().expect("the map was counted before");
            let mut bytes = vec![0; per_block * 4];
            for (at, &pointer) in part.iter().enumerate() {
                Le::put_u32(&mut bytes, at * 4, pointer);
            }
            self.indirect.push((block, bytes));
            block
        });
        parents.collect()
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

fn write_log(
    volume: &BlockView<'_>,
    map: &Map,
    (blocks, uuid): (u32, &[u8; 16]),
    is_zero: bool,
) -> Result<()> {
    if !is_zero {
        for run in map.data.chunk_by(|&one, &two| one + 1 == two) {
            write_zeros(volume, BlockNo(u64::from(run[0])), wide(run.len()))?;
        }
    }
    for (block, bytes) in &map.indirect {
        volume.write(BlockNo(u64::from(*block)), BlockKind::Indirect, bytes)?;
    }
    let mut superblock = format::Superblock::new(small(volume.block_size()), blocks, 1, *uuid);
    superblock.features.incompat = INCOMPAT_REVOKE;
    let mut block = BlockBuf::zeroed(volume.block_size());
    superblock.encode_into(&mut block[..format::SUPERBLOCK_SIZE]);
    volume.write(BlockNo(u64::from(map.data[0])), BlockKind::JournalSuperblock, &block)
}

fn size(blocks: u32, shape: &Superblock) -> (u32, u32) {
    let bytes = u64::from(blocks) * u64::from(shape.block_size);
    (low32(bytes), low32(bytes >> 32))
}

/// Makes inode 8 a journal's, with these pointers and a length of two words, the low one first. How much it owns is left
/// out.
pub(super) fn put_inode(
    inode: &mut [u8],
    pointers: &[u32; POINTERS],
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
    for (at, &pointer) in pointers.iter().enumerate() {
        pointer_field(at).put(inode, pointer);
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
pub(super) fn put_backup(raw: &mut [u8], journal: Option<(&Map, u32, &Superblock)>) {
    raw[S_JNL_BLOCKS..S_JNL_BLOCKS + S_JNL_BLOCKS_LEN].fill(0);
    S_JNL_BACKUP_TYPE.put(raw, u8::from(journal.is_some()));
    if let Some((map, blocks, shape)) = journal {
        let (low, high) = size(blocks, shape);
        for (at, &word) in map.pointers.iter().chain([&high, &low]).enumerate() {
            Le::put_u32(raw, S_JNL_BLOCKS + at * 4, word);
        }
    }
}
