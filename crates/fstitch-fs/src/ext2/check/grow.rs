//! Directories that get another block, lose their holes, or move out of their inode.

use fstitch_core::{BlockKind, Le, Result};

use super::claims::{allocate, allocate_at, cut_extents};
use super::entries::entry_len;
use super::extents::{self, ROOT};
use super::parts::Parts;
use super::rebuild::rebuild;
use super::salvage::add_name;
use super::state::{State, Volume};
use super::storage::Storage;
use super::{dirs, xattrs};
use crate::ext2::layout::dirent::{D_FILE_TYPE, D_INODE, D_NAME_LEN, ENTRY_MIN, HEADER};
use crate::ext2::layout::extent::{Extent, Node};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::inode::{
    DIRECT, EXTENTS_FL, I_FLAGS, I_SIZE, I_SIZE_HIGH, INLINE_DATA_FL, pointer_field,
};
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::{idx, low32, pointer32, small, wide};

/// Puts an empty block where directory `ino` has none; false when there is no room.
pub(super) fn fill_hole(volume: &Volume<'_>, state: &mut State, ino: u32, logical: usize) -> Result<bool> {
    let first = (logical == 0).then_some((ino, ROOT_INO));
    put_block(volume, state, (ino, logical), Parts::empty_block(volume, first))
}

/// Makes directory `ino` longer by a block that holds one name (inode, name, kind).
pub(super) fn add_block_with_name(
    volume: &Volume<'_>,
    state: &mut State,
    ino: u32,
    entry: (u32, &[u8], u8),
) -> Result<bool> {
    let parts = Parts::of(volume, state, ino)?;
    if parts.is_inline() {
        return move_out(volume, state, parts, entry);
    }
    let mut bytes = Parts::empty_block(volume, None);
    let end = bytes.len() - volume.tail_len();
    let added = add_name(volume, &mut bytes[..end], entry.0, entry.1, entry.2);
    debug_assert!(added, "an empty block has room");
    if !put_block(volume, state, (ino, parts.count()), bytes)? {
        return Ok(false);
    }
    // A name outside the index would not be found.
    if I_FLAGS.get(&parts.raw) & super::inodes::INDEX != 0 {
        dirs::drop_index(volume, state, ino)?;
    }
    Ok(true)
}

/// Makes a new block of these bytes, a leaf, file block `logical` of directory `ino`, and the directory as long as that
/// needs; false when there is no room.
fn put_block(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, logical): (u32, usize),
    mut bytes: Vec<u8>,
) -> Result<bool> {
    let mut raw = volume.read_inode(ino)?;
    let Some((block, taken)) = allocate_at(volume, state, (ino, &raw), small(logical))? else {
        return Ok(false);
    };
    volume.write_leaf(block, volume.owner(ino, &raw), &mut bytes)?;
    volume.source.flush()?;
    let Some(made) = put_pointer(volume, state, (ino, &mut raw), (logical, block))? else {
        return Ok(false);
    };
    volume.source.flush()?;
    let end = wide(logical + 1) * wide(volume.block_size());
    if end > u64::from(I_SIZE.get(&raw)) | u64::from(I_SIZE_HIGH.get(&raw)) << 32 {
        set_size(&mut raw, end);
    }
    let mut storage = Storage::of(volume, &raw);
    storage.add_clusters(made - 1 + u64::from(taken));
    storage.put(&mut raw);
    volume.write_inode(ino, &raw)?;
    Ok(true)
}

pub(super) fn set_size(raw: &mut [u8], size: u64) {
    I_SIZE.put(raw, low32(size));
    I_SIZE_HIGH.put(raw, low32(size >> 32));
}

/// Makes `block` file block `at` of the inode in `raw`, which is its caller's to write; how many blocks the inode has got, or
/// `None` if there was no room for its map's or the file would be too long.
pub(super) fn put_pointer(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &mut [u8]),
    (at, block): (usize, u64),
) -> Result<Option<u64>> {
    if I_FLAGS.get(raw) & EXTENTS_FL != 0 {
        return put_extent(volume, state, (ino, raw), (small(at), block));
    }
    if at < DIRECT {
        pointer_field(at).put(raw, pointer32(block));
        return Ok(Some(1));
    }
    let per_block = idx(volume.shape.pointers_per_block());
    let (root, slots) = match at - DIRECT {
        at if at < per_block => (DIRECT, vec![at]),
        at if at - per_block < per_block * per_block => {
            let at = at - per_block;
            (DIRECT + 1, vec![at / per_block, at % per_block])
        }
        _ => return Ok(None),
    };
    let mut made = 1;
    let top = pointer_field(root).get(raw);
    let Some(mut node) = indirect(volume, state, u64::from(top), &mut made)? else { return Ok(None) };
    pointer_field(root).put(raw, pointer32(node));
    let mut bytes = vec![0; volume.block_size()];
    for (depth, &slot) in slots.iter().enumerate() {
        volume.read(node, BlockKind::Indirect, &mut bytes)?;
        let below = if depth + 1 == slots.len() {
            block
        } else {
            match indirect(volume, state, u64::from(Le::u32(&bytes, 4 * slot)), &mut made)? {
                Some(below) => below,
                None => return Ok(None),
            }
        };
        Le::put_u32(&mut bytes, 4 * slot, pointer32(below));
        volume.write(node, BlockKind::Indirect, &bytes)?;
        node = below;
    }
    Ok(Some(made))
}

/// The same by extents. How many nodes the new tree has is for the next run to count.
fn put_extent(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, raw): (u32, &mut [u8]),
    (at, block): (u32, u64),
) -> Result<Option<u64>> {
    let mut kept = Vec::new();
    extents::list(volume, state, (ino, raw), &mut |extent| kept.push(extent))?;
    let place = kept.partition_point(|extent| extent.block < at);
    kept.insert(place, Extent { block: at, len: 1, start: block, unwritten: false });
    Ok(rebuild(volume, state, (ino, raw), &kept)?.then_some(1))
}

/// An indirect block: the one there is, or a new one without pointers.
fn indirect(volume: &Volume<'_>, state: &mut State, block: u64, made: &mut u64) -> Result<Option<u64>> {
    if block != 0 {
        return Ok(Some(block));
    }
    let Some(fresh) = allocate(volume, state)? else { return Ok(None) };
    volume.write(fresh, BlockKind::Indirect, &vec![0; volume.block_size()])?;
    *made += 1;
    Ok(Some(fresh))
}

/// Moves what is behind holes of directory `ino`, which is mapped by extents, up. An index, which names blocks by their
/// place, goes first.
pub(super) fn close_holes(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<()> {
    dirs::drop_index(volume, state, ino)?;
    let mut raw = volume.read_inode(ino)?;
    if volume.shape.has_clusters() {
        return cut_at_hole(volume, state, (ino, &mut raw));
    }
    let mut kept = Vec::new();
    let mut next = 0;
    extents::list(volume, state, (ino, &raw), &mut |extent| {
        kept.push(Extent { block: next, ..extent });
        next += extent.len;
    })?;
    if !rebuild(volume, state, (ino, &mut raw), &kept)? {
        // The names up to the first hole at least.
        let end = kept.first().map_or(0, Extent::end);
        cut_extents(volume, state, (ino, &mut raw), end)?;
        next = u32::try_from(end).unwrap_or(0);
    }
    set_size(&mut raw, u64::from(next) * wide(volume.block_size()));
    volume.write_inode(ino, &raw)
}

/// Ends a directory at its first hole, where blocks keep their places in clusters and so cannot move up: only where there is no cluster to fill
/// it. The names behind it lead to what lost+found gets.
fn cut_at_hole(volume: &Volume<'_>, state: &mut State, (ino, raw): (u32, &mut [u8])) -> Result<()> {
    let mut end = 0;
    extents::list(volume, state, (ino, raw), &mut |extent| {
        if u64::from(extent.block) == end {
            end = extent.end();
        }
    })?;
    cut_extents(volume, state, (ino, raw), end)?;
    set_size(raw, end * wide(volume.block_size()));
    volume.write_inode(ino, raw)
}

/// The parent that the first block of a directory names, or the root.
pub(super) fn parent_in(bytes: &[u8]) -> u32 {
    match entry_len(bytes, 0) {
        Ok(len) if len + ENTRY_MIN <= bytes.len() => D_INODE.get(&bytes[len..]),
        _ => ROOT_INO,
    }
}

/// Gives an inline directory a block, with one more name.
fn move_out(volume: &Volume<'_>, state: &mut State, parts: Parts, entry: (u32, &[u8], u8)) -> Result<bool> {
    let Some(block) = allocate(volume, state)? else { return Ok(false) };
    let parent = parts.inline_parent().unwrap_or(ROOT_INO);
    let mut bytes = Parts::empty_block(volume, Some((parts.ino, parent)));
    let end = bytes.len() - volume.tail_len();
    let mut old = Vec::new();
    for at in 0..parts.count() {
        parts.read(volume, at, &mut old)?;
        let mut from = 0;
        while let Ok(len) = entry_len(&old, from) {
            let head = &old[from..];
            let name = &head[HEADER..HEADER + usize::from(D_NAME_LEN.get(head))];
            if D_INODE.get(head) != 0 {
                add_name(volume, &mut bytes[..end], D_INODE.get(head), name, D_FILE_TYPE.get(head));
            }
            from += len;
        }
    }
    add_name(volume, &mut bytes[..end], entry.0, entry.1, entry.2);
    let mut raw = parts.raw;
    volume.write_leaf(block, volume.owner(parts.ino, &raw), &mut bytes)?;
    volume.source.flush()?;
    xattrs::remove_inline_value(&mut raw);
    let by_extents = volume.shape.features.has_incompat(incompat::EXTENTS);
    let flags = I_FLAGS.get(&raw) & !(INLINE_DATA_FL | super::inodes::INDEX);
    I_FLAGS.put(&mut raw, flags | if by_extents { EXTENTS_FL } else { 0 });
    raw[ROOT].fill(0);
    if by_extents {
        Node::empty_root().encode_into(&mut raw[ROOT]);
    }
    let made = put_pointer(volume, state, (parts.ino, &mut raw), (0, block))?.unwrap_or(0);
    set_size(&mut raw, wide(volume.block_size()));
    let mut storage = Storage::of(volume, &raw);
    storage.add_clusters(made);
    storage.put(&mut raw);
    volume.write_inode(parts.ino, &raw)?;
    Ok(true)
}
