//! lost+found: where inodes go that have lost their names.

use fstitch_core::Result;

use super::claims::{allocatable, allocate};
use super::connect::set_dotdot;
use super::dirs::drop_index;
use super::grow::add_block_with_name;
use super::inodes::INDEX;
use super::links::write_directory;
use super::parts::{Parts, Shape};
use super::salvage::add_name;
use super::seals::Map;
use super::state::{DIRECTORY, Dir, KIND, REACHED, State, Volume};
use crate::bits::put_bit;
use crate::ext2::layout::dirent::{D_INODE, D_NAME_LEN, HEADER};
use crate::ext2::layout::inode::{I_FLAGS, I_LINKS_COUNT};
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::idx;

/// Clusters that lost+found and its name may take: its own, and for a root that is full, or lies in its inode, one more and nodes.
const PROVIDED_ROOM: u64 = 8;

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
    let entry = (ino, name.as_bytes(), kind);
    // Earlier parts were full before: lost inodes can be very many.
    let placed = match add_to(volume, state, (parent, state.lost_room), entry)? {
        Some(at) => {
            state.lost_room = at;
            true
        }
        None => add_block_with_name(volume, state, parent, entry)?,
    };
    if placed {
        state.add_name(ino);
    }
    Ok(placed)
}

/// Adds a name (inode, name, kind) to the first part of directory `dir` from part `from` on that has room; which one.
fn add_to(
    volume: &Volume<'_>,
    state: &State,
    (dir, from): (u32, usize),
    entry: (u32, &[u8], u8),
) -> Result<Option<usize>> {
    let mut parts = Parts::of(volume, state, dir)?;
    let mut bytes = Vec::new();
    for at in from..parts.count() {
        if !parts.read(volume, at, &mut bytes)? || parts.shape(at, &bytes) == Shape::Index {
            continue;
        }
        let end = parts.entries_end(volume, at, &bytes);
        if add_name(volume, &mut bytes[..end], entry.0, entry.1, entry.2) {
            parts.write(volume, at, &mut bytes)?;
            // Its hash may belong elsewhere.
            if I_FLAGS.get(&parts.raw) & INDEX != 0 {
                drop_index(volume, state, dir)?;
            }
            return Ok(Some(at));
        }
    }
    Ok(None)
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
    let group = volume.shape.group_of_inode(ino);
    let mut bytes = vec![0; volume.block_size()];
    let at = (ino - 1) % volume.shape.inodes_per_group;
    volume.use_table(group, at + 1)?;
    volume.read_bitmap(group, Map::Inodes, &mut bytes)?;
    put_bit(&mut bytes, idx(at), true);
    volume.write_bitmap(group, Map::Inodes, &bytes)?;
    volume.source.flush()
}

/// The inode of lost+found, made if there is none; `None` where that is impossible, or the name is of something else.
fn lost_and_found(volume: &Volume<'_>, state: &mut State) -> Result<Option<u32>> {
    match named_lost_and_found(volume, state)? {
        Some(ino) => Ok(Some(ino).filter(|&ino| ino <= volume.shape.inodes_count && state.is_dir(ino))),
        None => make_lost_and_found(volume, state),
    }
}

/// Makes lost+found if there is none and room enough, for the next time; whether it was made.
pub(super) fn provide(volume: &Volume<'_>, state: &mut State) -> Result<bool> {
    if named_lost_and_found(volume, state)?.is_some()
        || allocatable(volume, state)? < PROVIDED_ROOM << volume.shape.log_cluster
    {
        return Ok(false);
    }
    Ok(make_lost_and_found(volume, state)?.is_some())
}

/// The inode that the root calls lost+found.
fn named_lost_and_found(volume: &Volume<'_>, state: &State) -> Result<Option<u32>> {
    let parts = Parts::of(volume, state, ROOT_INO)?;
    let mut bytes = Vec::new();
    for part in 0..parts.count() {
        if !parts.read(volume, part, &mut bytes)? {
            continue;
        }
        let end = parts.entries_end(volume, part, &bytes);
        let mut at = 0;
        while let Ok(len) = super::entries::entry_len(&bytes[..end], at) {
            let name_len = usize::from(D_NAME_LEN.get(&bytes[at..]));
            let ino = D_INODE.get(&bytes[at..]);
            if &bytes[at + HEADER..at + HEADER + name_len] == b"lost+found" && ino != 0 {
                return Ok(Some(ino));
            }
            at += len;
        }
    }
    Ok(None)
}

fn make_lost_and_found(volume: &Volume<'_>, state: &mut State) -> Result<Option<u32>> {
    let free = (volume.shape.first_ino..=volume.shape.inodes_count).find(|&ino| !state.is_used(ino));
    let Some(ino) = free else { return Ok(None) };
    let Some(block) = allocate(volume, state)? else { return Ok(None) };
    mark_used(volume, ino)?;
    write_directory(volume, state, ino, ROOT_INO, block)?;
    // What is left of this run finds it in order.
    state.inodes[idx(ino)] |= REACHED;
    state.links[idx(ino)] = 2;
    let at = state.dirs.partition_point(|dir| dir.ino < ino);
    state.dirs.insert(at, Dir { ino, dotdot: ROOT_INO, parent: ROOT_INO, children: 0 });
    count_child(volume, state, ROOT_INO)?;
    volume.source.flush()?;
    let entry = (ino, b"lost+found".as_slice(), DIRECTORY);
    if add_to(volume, state, (ROOT_INO, 0), entry)?.is_some() {
        return Ok(Some(ino));
    }
    Ok(add_block_with_name(volume, state, ROOT_INO, entry)?.then_some(ino))
}
