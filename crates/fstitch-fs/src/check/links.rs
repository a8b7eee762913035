//! Pass 4: names against link counts, and inodes without a name.

use fstitch_core::{BlockKind, Result};

use super::claims::allocate;
use super::connect::{Orphans, set_dotdot};
use super::dirs::blocks_of;
use super::inodes::clear_inode;
use super::salvage::add_name;
use super::state::{BAD, KIND, Mending, State, USED, Volume};
use crate::ext2::layout::dirent::{D_INODE, D_NAME_LEN, HEADER, put_empty_block, put_first_block};
use crate::ext2::layout::inode::{
    DIRECT, GOOD_OLD_SIZE, I_ATIME, I_BLOCKS, I_CTIME, I_DTIME, I_LINKS_COUNT, I_MODE, I_MTIME, I_SIZE,
    pointer_field,
};
use crate::ext2::layout::superblock::ROOT_INO;
use crate::ext2::num::{idx, low32, small, wide};

/// Judges every inode in use.
pub(super) fn run(volume: &Volume<'_>, state: &mut State, orphans: &Orphans) -> Result<()> {
    let first = volume.shape.first_ino;
    for ino in std::iter::once(ROOT_INO).chain(first..=volume.shape.inodes_count) {
        if !state.is_used(ino) {
            continue;
        }
        if !state.is_named(ino) {
            nameless(volume, state, ino, orphans)?;
        } else if let Some(code) = state.bad.get(&ino).copied() {
            if state.corrupt(code, format!("inode {ino} makes no sense ({code})")) {
                free(volume, state, ino)?;
            }
        } else {
            links(volume, state, ino)?;
        }
    }
    Ok(())
}

/// How many links inode `ino` should count.
fn names_of(state: &State, ino: u32) -> u32 {
    match state.dir_index(ino) {
        // Its name, its own `.`, and the `..` of each subdirectory.
        Some(at) if state.is_dir(ino) => 2 + state.dirs[at].children,
        _ => u32::from(state.names[idx(ino)]),
    }
}

fn links(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<()> {
    let counted = u32::from(state.links[idx(ino)]);
    let names = names_of(state, ino);
    if counted == names {
        return Ok(());
    }
    let text = format!("inode {ino} counts {counted} links, it has {names}");
    let mend =
        if counted > names { state.allowed("links-high", text) } else { state.corrupt("links-low", text) };
    if mend {
        let mut raw = volume.read_inode(ino)?;
        I_LINKS_COUNT.put(&mut raw, u16::try_from(names).unwrap_or(u16::MAX));
        volume.write_inode(ino, &raw)?;
    }
    Ok(())
}

/// An inode in use to which no path leads.
fn nameless(volume: &Volume<'_>, state: &mut State, ino: u32, orphans: &Orphans) -> Result<()> {
    let links = state.links[idx(ino)];
    let text = format!("inode {ino} counts {links} links, but no path leads to it");
    if !state.allowed("inode-unreferenced", text) {
        return Ok(());
    }
    let keep = state.mending == (Mending::Everything { keep: true });
    if !keep || state.inodes[idx(ino)] & BAD != 0 {
        return free(volume, state, ino);
    }
    // While directories come back, files inside them are not nameless yet: the next round knows.
    if (orphans.is_empty() || orphans.contains(&ino)) && !reconnect(volume, state, ino)? {
        state.mended -= 1;
    }
    Ok(())
}

/// Frees an inode; what it owned is found without an owner in the next round.
fn free(volume: &Volume<'_>, state: &State, ino: u32) -> Result<()> {
    let mut raw = volume.read_inode(ino)?;
    clear_inode(&mut raw, state.dtime());
    volume.write_inode(ino, &raw)
}

/// Gives an inode a name in lost+found; false when that is impossible.
fn reconnect(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<bool> {
    let Some(parent) = lost_and_found(volume, state)? else {
        return Ok(false);
    };
    let kind = state.inodes[idx(ino)] & KIND;
    let name = format!("#{ino}");
    let (blocks, _) = blocks_of(volume, state, parent)?;
    let mut bytes = vec![0; volume.block_size()];
    let mut placed = false;
    for &block in blocks.iter().filter(|&&block| block != 0) {
        volume.read(block, BlockKind::Directory, &mut bytes)?;
        if add_name(volume, &mut bytes, ino, name.as_bytes(), kind) {
            volume.write(block, BlockKind::Directory, &bytes)?;
            placed = true;
            break;
        }
    }
    if !placed && !add_block_with_name(volume, state, parent, (ino, name.as_bytes(), kind))? {
        return Ok(false);
    }
    state.add_name(ino);
    if state.is_dir(ino) {
        set_dotdot(volume, state, ino, parent)?;
    }
    Ok(true)
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
    if at >= DIRECT {
        return Ok(false);
    }
    let Some(block) = allocate(volume, state)? else {
        return Ok(false);
    };
    let mut bytes = vec![0; volume.block_size()];
    put_empty_block(&mut bytes);
    let added = add_name(volume, &mut bytes, entry.0, entry.1, entry.2);
    debug_assert!(added, "an empty block has room");
    volume.write(block, BlockKind::Directory, &bytes)?;
    volume.source.flush()?;
    pointer_field(at).put(&mut raw, block);
    I_SIZE.put(&mut raw, small((at + 1) * volume.block_size()));
    let sectors = I_BLOCKS.get(&raw);
    I_BLOCKS.put(&mut raw, sectors + low32(wide(volume.block_size() / 512)));
    volume.write_inode(parent, &raw)?;
    Ok(true)
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
    write_directory(volume, state, ino, ROOT_INO, block)?;
    volume.source.flush()?;
    let mut bytes = vec![0; volume.block_size()];
    for &at in root.iter().filter(|&&block| block != 0) {
        volume.read(at, BlockKind::Directory, &mut bytes)?;
        if add_name(volume, &mut bytes, ino, b"lost+found", super::state::DIRECTORY) {
            volume.write(at, BlockKind::Directory, &bytes)?;
            return Ok(Some(ino));
        }
    }
    let entry = (ino, b"lost+found".as_slice(), super::state::DIRECTORY);
    Ok(add_block_with_name(volume, state, ROOT_INO, entry)?.then_some(ino))
}

/// Makes inode `ino` an empty directory in `block`.
fn write_directory(volume: &Volume<'_>, state: &mut State, ino: u32, parent: u32, block: u32) -> Result<()> {
    let mut bytes = vec![0; volume.block_size()];
    put_first_block(&mut bytes, ino, parent, volume.shape.has_filetype());
    volume.write(block, BlockKind::Directory, &bytes)?;
    let mut raw = vec![0; usize::from(volume.shape.inode_size)];
    I_MODE.put(&mut raw, if ino == ROOT_INO { 0o040_755 } else { 0o040_700 });
    I_LINKS_COUNT.put(&mut raw, 2);
    I_DTIME.put(&mut raw, 0);
    for field in [I_ATIME, I_CTIME, I_MTIME] {
        field.put(&mut raw, state.dtime());
    }
    I_SIZE.put(&mut raw, volume.shape.block_size);
    I_BLOCKS.put(&mut raw, volume.shape.block_size / 512);
    pointer_field(0).put(&mut raw, block);
    debug_assert!(raw.len() >= GOOD_OLD_SIZE);
    volume.write_inode(ino, &raw)?;
    state.inodes[idx(ino)] |= USED | super::state::DIRECTORY;
    Ok(())
}

/// Makes an empty root directory.
pub(super) fn make_root(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    match allocate(volume, state)? {
        Some(block) => write_directory(volume, state, ROOT_INO, ROOT_INO, block),
        None => {
            state.mended -= 1;
            Ok(())
        }
    }
}
