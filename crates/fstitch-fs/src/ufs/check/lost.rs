//! lost+found: where inodes go that have lost their names; and what has to be made for that.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, FileKind, Result};

use super::chunk::{self, Entry, Name};
use super::claims::allocate;
use super::dirs::{DirBlock, blocks};
use super::raw::RawInode;
use super::state::{DIRECTORY, State};
use super::volume::Volume;
use super::{groups, walk};
use crate::ufs::layout::dirent::CHUNK;
use crate::ufs::layout::inode::DIRECT;
use crate::ufs::layout::superblock::ROOT_INO;

const NAME: &str = "lost+found";
/// So many are made at most; the second one when there is no more room in the first one.
const DIRECTORIES_MAX: u32 = 1000;
const ROOT_MODE: u16 = 0o755;
/// Its owner alone may look into it, and names stay.
const LOST_MODE: u16 = 0o1700;

/// Looks at an entry of a chunk, which it may change; whether it did.
type Change<'c> = dyn FnMut(&mut [u8], &Entry) -> bool + 'c;

/// Shows the used entries of a directory, `.` and `..` aside, as far as there are sound ones, and writes what is changed.
pub(super) fn change_entries(volume: &Volume<'_>, dir: u32, change: &mut Change<'_>) -> Result<()> {
    let inode = volume.read_inode(dir)?;
    for DirBlock { start, count, len, .. } in blocks(volume, &inode)? {
        let mut bytes = volume.read(start, count, BlockKind::Directory)?;
        let mut changed = false;
        for bytes in bytes[..len].chunks_exact_mut(CHUNK) {
            let found = chunk::entries(bytes, volume.manner()).unwrap_or_else(|(before, _)| before);
            for entry in found.iter().filter(|entry| entry.ino != 0) {
                if !matches!(entry.name(bytes), b"." | b"..") {
                    changed |= change(bytes, entry);
                }
            }
        }
        if changed {
            volume.write(start, BlockKind::Directory, &bytes)?;
        }
    }
    Ok(())
}

/// The inodes in use that directory `dir` names, itself and its parent aside.
pub(super) fn named_in(volume: &Volume<'_>, state: &State, dir: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    change_entries(volume, dir, &mut |_, entry| {
        found.extend(Some(entry.ino).filter(|&ino| state.is_used(ino) && ino != ROOT_INO));
        false
    })?;
    Ok(found)
}

/// The inode that a name in directory `dir` leads to.
fn find(volume: &Volume<'_>, dir: u32, name: &[u8]) -> Result<Option<u32>> {
    let mut found = None;
    change_entries(volume, dir, &mut |bytes, entry| {
        found = found.or((entry.name(bytes) == name).then_some(entry.ino));
        false
    })?;
    Ok(found)
}

/// Makes `..` of directory `dir` name `parent`, where there is one.
pub(super) fn set_dotdot(volume: &Volume<'_>, dir: u32, parent: u32) -> Result<()> {
    let start = walk::find(volume, &volume.read_inode(dir)?, 0)?;
    if start == 0 {
        return Ok(());
    }
    let mut bytes = volume.read(start, 1, BlockKind::Directory)?;
    let found = chunk::entries(&bytes[..CHUNK], volume.manner()).unwrap_or_else(|(before, _)| before);
    if let Some(entry) = found.get(1).filter(|entry| entry.ino != 0 && entry.name(&bytes) == b"..") {
        chunk::put_ino(&mut bytes, entry.at, parent, volume.manner());
        volume.write(start, BlockKind::Directory, &bytes)?;
    }
    Ok(())
}

/// Gives an inode a name in lost+found; false when that is impossible.
pub(super) fn reconnect(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<bool> {
    // Those before were full: what is lost can be much.
    while state.lost_number < DIRECTORIES_MAX {
        let Some(parent) = lost_and_found(volume, state, state.lost_number)? else { return Ok(false) };
        let Some(parent) = parent else {
            state.lost_number += 1;
            continue;
        };
        let kind = state.kind(ino);
        let name = free_name(volume, parent, ino)?;
        if kind == DIRECTORY {
            // Before the name: a directory's name in one that `..` does not name would be damage.
            add_link(volume, state, parent)?;
            set_dotdot(volume, ino, parent)?;
            raise_links(volume, state, ino)?;
            volume.source.flush()?;
        }
        if add_name(volume, state, parent, (ino, kind, name.as_bytes()))? {
            return Ok(true);
        }
        state.lost_number += 1;
    }
    Ok(false)
}

/// A name for an inode that nothing in directory `dir` has.
fn free_name(volume: &Volume<'_>, dir: u32, ino: u32) -> Result<String> {
    let name = format!("#{ino:08}");
    for turn in 0..u32::MAX {
        let name = if turn == 0 { name.clone() } else { format!("{name}.{turn}") };
        if find(volume, dir, name.as_bytes())?.is_none() {
            return Ok(name);
        }
    }
    Ok(name)
}

/// Counts one more subdirectory of `dir`, before it has that: a count is never too low.
fn add_link(volume: &Volume<'_>, state: &mut State, dir: u32) -> Result<()> {
    let mut inode = volume.read_inode(dir)?;
    let links = inode.links().saturating_add(1);
    inode.set_links(links);
    volume.write_inode(dir, &inode)?;
    // This run may come to it later.
    state.links[to_usize(dir)] = links;
    if let Some(dir) = state.dir_mut(dir) {
        dir.children += 1;
    }
    Ok(())
}

/// Makes a directory count at least its names and those of the directories in it.
fn raise_links(volume: &Volume<'_>, state: &State, dir: u32) -> Result<()> {
    let inside = named_in(volume, state, dir)?.into_iter().filter(|&child| state.is_dir(child)).count();
    let mut inode = volume.read_inode(dir)?;
    let links = u16::try_from(inside + 2).unwrap_or(u16::MAX);
    if inode.links() < links {
        inode.set_links(links);
        volume.write_inode(dir, &inode)?;
    }
    Ok(())
}

/// Directory `number` of those for what was lost, made if there is none. `None` if it cannot be made; nothing inside if its name is
/// something else's.
fn lost_and_found(volume: &Volume<'_>, state: &mut State, number: u32) -> Result<Option<Option<u32>>> {
    let name = if number == 0 { NAME.to_owned() } else { format!("{NAME}.{number}") };
    if let Some(ino) = find(volume, ROOT_INO, name.as_bytes())? {
        return Ok(Some(Some(ino).filter(|&ino| state.is_dir(ino) && state.is_reached(ino))));
    }
    let Some(ino) = free_inode(volume, state)? else { return Ok(None) };
    if !make_directory(volume, state, (ino, ROOT_INO), LOST_MODE)? {
        return Ok(None);
    }
    state.reach(ino);
    add_link(volume, state, ROOT_INO)?;
    volume.source.flush()?;
    let placed = add_name(volume, state, ROOT_INO, (ino, DIRECTORY, name.as_bytes()))?;
    Ok(placed.then_some(Some(ino)))
}

/// An inode that nobody has.
fn free_inode(volume: &Volume<'_>, state: &mut State) -> Result<Option<u32>> {
    let all = volume.shape.group_inodes;
    for group in 0..volume.shape.groups {
        let first = (group * all).max(ROOT_INO + 1);
        let end = group * all + state.initialised[to_usize(group)];
        if let Some(ino) = (first..end).find(|&ino| !state.is_used(ino)) {
            return Ok(Some(ino));
        }
        if end < (group + 1) * all {
            begin_inodes(volume, state, group)?;
            return Ok(Some(end.max(first)));
        }
    }
    Ok(None)
}

/// Begins one more block of a group's inodes.
fn begin_inodes(volume: &Volume<'_>, state: &mut State, group: u32) -> Result<()> {
    let shape = &volume.shape;
    let done = state.initialised[to_usize(group)];
    let per_block = shape.block_size / shape.version.inode_size();
    let at = shape.inode_place(group * shape.group_inodes + done / per_block * per_block).0.get();
    let len = to_usize(volume.block());
    let mut bytes = volume.read(at, volume.per_block(), BlockKind::Inode)?;
    bytes[to_usize(done % per_block * shape.version.inode_size())..len].fill(0);
    volume.write(at, BlockKind::Inode, &bytes)?;
    let now = ((done / per_block + 1) * per_block).min(shape.group_inodes);
    let mut bytes = groups::read(volume, group)?;
    volume.order().put_u32(&mut bytes, groups::at::INITIALISED, now);
    groups::write(volume, group, &bytes)?;
    state.initialised[to_usize(group)] = now;
    Ok(())
}

/// Makes inode `ino` an empty directory in `parent`; false when there is no room for it.
fn make_directory(
    volume: &Volume<'_>,
    state: &mut State,
    (ino, parent): (u32, u32),
    mode: u16,
) -> Result<bool> {
    let Some(at) = allocate(volume, state, 1)? else { return Ok(false) };
    groups::take_inode(volume, ino)?;
    let mut bytes = vec![0; to_usize(volume.fragment())];
    chunk::fill(&mut bytes, Some((ino, parent)), volume.manner());
    volume.write(at, BlockKind::Directory, &bytes)?;
    let mut inode = volume.read_inode(ino)?;
    inode.become_directory(mode, volume.shape.block_size, state.now);
    inode.set_size(volume.fragment());
    inode.set_sectors(volume.sectors_per_fragment());
    inode.set_slot(0, at);
    volume.source.flush()?;
    volume.write_inode(ino, &inode)?;
    volume.source.flush()?;
    state.use_inode(ino, FileKind::Directory, 2);
    Ok(true)
}

/// Makes an empty root directory. What has its inode gets another one; false when there is no room.
pub(super) fn make_root(volume: &Volume<'_>, state: &mut State) -> Result<bool> {
    if state.is_used(ROOT_INO) && !state.is_dir(ROOT_INO) {
        let Some(ino) = free_inode(volume, state)? else { return Ok(false) };
        volume.write_inode(ino, &volume.read_inode(ROOT_INO)?)?;
        let mut root = volume.read_inode(ROOT_INO)?;
        root.clear();
        volume.write_inode(ROOT_INO, &root)?;
    }
    make_directory(volume, state, (ROOT_INO, ROOT_INO), ROOT_MODE)
}

/// Adds a name to directory `dir`; false when there is no room for it.
pub(super) fn add_name(volume: &Volume<'_>, state: &mut State, dir: u32, name: Name<'_>) -> Result<bool> {
    let inode = volume.read_inode(dir)?;
    for DirBlock { start, count, len, .. } in blocks(volume, &inode)? {
        let mut bytes = volume.read(start, count, BlockKind::Directory)?;
        let mut chunks = bytes[..len].chunks_exact_mut(CHUNK);
        if chunks.any(|bytes| chunk::insert(bytes, name, volume.manner())) {
            volume.write(start, BlockKind::Directory, &bytes)?;
            return Ok(true);
        }
    }
    // A chunk of its own.
    Ok(extend(volume, state, (dir, inode))? && add_name(volume, state, dir, name)?)
}

/// Adds a chunk without names to a directory; false when there is no room. Only blocks that the inode itself points at are added.
fn extend(volume: &Volume<'_>, state: &mut State, (dir, mut inode): (u32, RawInode)) -> Result<bool> {
    let size = inode.size();
    let block = size / volume.block();
    let Some(slot) = usize::try_from(block).ok().filter(|&slot| slot < DIRECT) else { return Ok(false) };
    let (inside, byte) = (size % volume.block() / volume.fragment(), to_usize(size % volume.fragment()));
    let start = inode.slot(slot);
    let at = match byte {
        0 if inside == 0 => allocate(volume, state, 1)?,
        0 => longer(volume, state, (start, inside))?,
        _ => Some(start),
    };
    let Some(at) = at else { return Ok(false) };
    let mut bytes = match byte {
        0 => vec![0; to_usize(volume.fragment())],
        _ => volume.read(at + inside, 1, BlockKind::Directory)?,
    };
    chunk::empty(&mut bytes[byte..byte + CHUNK], volume.manner());
    volume.write(at + inside, BlockKind::Directory, &bytes)?;
    inode.set_slot(slot, at);
    inode.set_size(size + to_u64(CHUNK));
    if byte == 0 {
        inode.set_sectors(inode.sectors() + volume.sectors_per_fragment());
    }
    volume.source.flush()?;
    volume.write_inode(dir, &inode)?;
    Ok(true)
}

/// Where `count` fragments from `start` on can have one more: there, if it is nobody's, or where they are copied to.
fn longer(volume: &Volume<'_>, state: &mut State, (start, count): (u64, u64)) -> Result<Option<u64>> {
    let next = start + count;
    let is_here = volume.is_valid(start, count + 1) && state.claimed.is_clear(next, 1);
    if is_here {
        state.claimed.set(next);
        groups::take_fragments(volume, next, 1)?;
        return Ok(Some(start));
    }
    let Some(at) = allocate(volume, state, count + 1)? else { return Ok(None) };
    let bytes = volume.read(start, count, BlockKind::Directory)?;
    volume.write(at, BlockKind::Directory, &bytes)?;
    Ok(Some(at))
}
