//! lost+found: where inodes go that have lost their names.

use fstitch_core::{BlockKind, Le, Result};

use super::bits::put_bit;
use super::claims::allocate;
use super::connect::set_dotdot;
use super::dirs::blocks_of;
use super::links::write_directory;
use super::salvage::add_name;
use super::state::{DIRECTORY, Dir, KIND, REACHED, State, Volume};
use crate::ext2::layout::dirent::{D_INODE, D_NAME_LEN, HEADER, put_empty_block};
use crate::ext2::layout::inode::{DIRECT, I_BLOCKS, I_LINKS_COUNT, I_SIZE, pointer_field};
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::{idx, low32, small, wide};

/// Gives an inode a name in lost+found; false when that is impossible.
pub(super) fn reconnect(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<bool> {
    let Some(parent) = lost_and_found(volume, state)? else {
        return Ok(false);
    };
    if state.is_dir(ino) {
        // Before the name: a directory's name in one that `..` does not name would be damage.
        count_child(volume, state, parent)?;
        set_dotdot(volume, state, ino, parent)?;
        volume.source.flush()?;
    }
    let kind = state.inodes[idx(ino)] & KIND;
    let name = format!("#{ino}");
    let (blocks, _) = blocks_of(volume, state, parent)?;
    let mut bytes = vec![0; volume.block_size()];
    let mut placed = false;
    // Earlier blocks were full before: lost inodes can be very many.
    for (at, &block) in blocks.iter().enumerate().skip(state.lost_room).filter(|(_, block)| **block != 0) {
        volume.read(block, BlockKind::Directory, &mut bytes)?;
        if add_name(volume, &mut bytes, ino, name.as_bytes(), kind) {
            volume.write(block, BlockKind::Directory, &bytes)?;
            state.lost_room = at;
            placed = true;
            break;
        }
    }
    if !placed && !add_block_with_name(volume, state, parent, (ino, name.as_bytes(), kind))? {
        return Ok(false);
    }
    state.add_name(ino);
    Ok(true)
}

/// Counts one more `..` in directory `parent`, before there is one: a count is never too low.
fn count_child(volume: &Volume<'_>, state: &mut State, parent: u32) -> Result<()> {
    let mut raw = volume.read_inode(parent)?;
    let links = I_LINKS_COUNT.get(&raw).saturating_add(1);
    I_LINKS_COUNT.put(&mut raw, links);
    volume.write_inode(parent, &raw)?;
    volume.source.flush()?;
    let counted = &mut state.links[idx(parent)];
    *counted = counted.saturating_add(1);
    if let Some(at) = state.dir_index(parent) {
        state.dirs[at].children += 1;
    }
    Ok(())
}

/// Marks inode `ino` as in use, before it is.
fn mark_used(volume: &Volume<'_>, ino: u32) -> Result<()> {
    let bitmap = volume.groups[idx(volume.shape.group_of_inode(ino))].inode_bitmap;
    let mut bytes = vec![0; volume.block_size()];
    volume.read(bitmap, BlockKind::InodeBitmap, &mut bytes)?;
    put_bit(&mut bytes, idx((ino - 1) % volume.shape.inodes_per_group), true);
    volume.write(bitmap, BlockKind::InodeBitmap, &bytes)?;
    volume.source.flush()
}

/// Makes directory `parent` longer by a block that holds one name.
fn add_block_with_name(
    volume: &Volume<'_>,
    state: &mut State,
    parent: u32,
    entry: (u32, &[u8], u8),
) -> Result<bool> {
    let mut raw = volume.read_inode(parent)?;
    let at = idx(I_SIZE.get(&raw)) / volume.block_size();
    let Some(block) = allocate(volume, state)? else {
        return Ok(false);
    };
    let mut bytes = vec![0; volume.block_size()];
    put_empty_block(&mut bytes);
    let added = add_name(volume, &mut bytes, entry.0, entry.1, entry.2);
    debug_assert!(added, "an empty block has room");
    volume.write(block, BlockKind::Directory, &bytes)?;
    volume.source.flush()?;
    let Some(blocks) = put_pointer(volume, state, &mut raw, (at, block))? else {
        return Ok(false);
    };
    volume.source.flush()?;
    I_SIZE.put(&mut raw, small((at + 1) * volume.block_size()));
    let sectors = I_BLOCKS.get(&raw);
    I_BLOCKS.put(&mut raw, sectors.saturating_add(blocks * low32(wide(volume.block_size() / 512))));
    volume.write_inode(parent, &raw)?;
    Ok(true)
}

/// Makes `block` file block `at` of the inode in `raw`, which is its caller's to write; how many blocks the inode has got, or
/// `None` if there was no room for indirect blocks or the file would be too long.
fn put_pointer(
    volume: &Volume<'_>,
    state: &mut State,
    raw: &mut [u8],
    (at, block): (usize, u32),
) -> Result<Option<u32>> {
    if at < DIRECT {
        pointer_field(at).put(raw, block);
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
    let Some(mut node) = indirect(volume, state, top, &mut made)? else { return Ok(None) };
    pointer_field(root).put(raw, node);
    let mut bytes = vec![0; volume.block_size()];
    for (depth, &slot) in slots.iter().enumerate() {
        volume.read(node, BlockKind::Indirect, &mut bytes)?;
        let below = if depth + 1 == slots.len() {
            block
        } else {
            match indirect(volume, state, Le::u32(&bytes, 4 * slot), &mut made)? {
                Some(below) => below,
                None => return Ok(None),
            }
        };
        Le::put_u32(&mut bytes, 4 * slot, below);
        volume.write(node, BlockKind::Indirect, &bytes)?;
        node = below;
    }
    Ok(Some(made))
}

/// An indirect block: the one there is, or a new one without pointers.
fn indirect(volume: &Volume<'_>, state: &mut State, block: u32, made: &mut u32) -> Result<Option<u32>> {
    if block != 0 {
        return Ok(Some(block));
    }
    let Some(fresh) = allocate(volume, state)? else { return Ok(None) };
    volume.write(fresh, BlockKind::Indirect, &vec![0; volume.block_size()])?;
    *made += 1;
    Ok(Some(fresh))
}

/// The inode of lost+found, made if there is none.
fn lost_and_found(volume: &Volume<'_>, state: &mut State) -> Result<Option<u32>> {
    let (blocks, _) = blocks_of(volume, state, ROOT_INO)?;
    let mut bytes = vec![0; volume.block_size()];
    for &block in blocks.iter().filter(|&&block| block != 0) {
        volume.read(block, BlockKind::Directory, &mut bytes)?;
        let mut at = 0;
        while let Ok(len) = super::entries::entry_len(&bytes, at) {
            let name_len = usize::from(D_NAME_LEN.get(&bytes[at..]));
            let ino = D_INODE.get(&bytes[at..]);
            if &bytes[at + HEADER..at + HEADER + name_len] == b"lost+found" && ino != 0 {
                let usable = ino <= volume.shape.inodes_count && state.is_dir(ino);
                return Ok(usable.then_some(ino));
            }
            at += len;
        }
    }
    make_lost_and_found(volume, state, &blocks)
}

fn make_lost_and_found(volume: &Volume<'_>, state: &mut State, root: &[u32]) -> Result<Option<u32>> {
    let free = (volume.shape.first_ino..=volume.shape.inodes_count).find(|&ino| !state.is_used(ino));
    let (Some(ino), Some(block)) = (free, allocate(volume, state)?) else {
        return Ok(None);
    };
    mark_used(volume, ino)?;
    write_directory(volume, state, ino, ROOT_INO, block)?;
    // What is left of this run finds it in order.
    state.inodes[idx(ino)] |= REACHED;
    state.links[idx(ino)] = 2;
    let at = state.dirs.partition_point(|dir| dir.ino < ino);
    state.dirs.insert(at, Dir { ino, dotdot: ROOT_INO, parent: ROOT_INO, children: 0 });
    count_child(volume, state, ROOT_INO)?;
    volume.source.flush()?;
    let mut bytes = vec![0; volume.block_size()];
    for &at in root.iter().filter(|&&block| block != 0) {
        volume.read(at, BlockKind::Directory, &mut bytes)?;
        if add_name(volume, &mut bytes, ino, b"lost+found", DIRECTORY) {
            volume.write(at, BlockKind::Directory, &bytes)?;
            return Ok(Some(ino));
        }
    }
    let entry = (ino, b"lost+found".as_slice(), DIRECTORY);
    Ok(add_block_with_name(volume, state, ROOT_INO, entry)?.then_some(ino))
}
