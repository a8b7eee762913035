//! Pass 4: names against link counts, and inodes without a name.

use fstitch_core::Result;

use super::claims::allocate;
use super::connect::{Orphans, named_in};
use super::extents::ROOT;
use super::inodes::clear_inode;
use super::journal;
use super::lost::{provide, reconnect};
use super::parts::Parts;
use super::state::{BAD, Mending, State, USED, Volume};
use crate::ext2::layout::extent::{Entries, Extent, Node, ROOT_MAX};
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::inode::{
    DIRECTORY_LINK_MAX, EA_INODE_FL, EXTENTS_FL, GOOD_OLD_SIZE, I_ATIME, I_BLOCKS, I_CTIME, I_DTIME, I_FLAGS,
    I_LINKS_COUNT, I_MODE, I_MTIME, I_SIZE, pointer_field,
};
use crate::ext2::layout::superblock::{ROOT_INO, S_FEATURE_RO_COMPAT};
use crate::ext2::num::{idx, pointer32};

/// Judges every inode in use.
pub(super) fn run(volume: &Volume<'_>, state: &mut State, orphans: &Orphans) -> Result<()> {
    let first = volume.shape.first_ino;
    let tops = kept(volume, state, orphans)?;
    for ino in std::iter::once(ROOT_INO).chain(first..=volume.shape.inodes_count) {
        if !state.is_used(ino) || volume.shape.is_own_inode(ino) {
            continue;
        }
        if state.value_inodes.contains(&ino) && !state.is_named(ino) {
            value(volume, state, ino)?;
            continue;
        }
        if !state.is_named(ino) {
            nameless(volume, state, ino, &tops)?;
        } else if volume.source.inode_moves(ino) {
            continue;
        } else if let Some(code) = state.bad.get(&ino).copied() {
            if state.corrupt(code, format!("inode {ino} makes no sense ({code})")) {
                free(volume, state, ino)?;
            }
        } else {
            links(volume, state, ino)?;
        }
    }
    // What had damage may have more of it one day.
    if state.mended == 0
        && matches!(state.mending, Mending::Everything { keep: true })
        && provide(volume, state)?
    {
        state.mended += 1;
    }
    Ok(())
}

/// An inode that holds a value of attributes has no name, and one link as long as an entry refers to it.
fn value(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<()> {
    let links = state.links[idx(ino)];
    if state.value_uses(ino) == 0 {
        let text = format!("inode {ino} holds a value of attributes, but no entry refers to it");
        if state.corrupt("value-unreferenced", text) {
            // It becomes an ordinary file without a name, which the next run takes to lost+found.
            let mut raw = volume.read_inode(ino)?;
            let flags = I_FLAGS.get(&raw);
            I_FLAGS.put(&mut raw, flags & !EA_INODE_FL);
            volume.write_inode(ino, &raw)?;
        }
    } else if links != 1 {
        let text = format!("inode {ino} holds a value of attributes, but counts {links} links");
        if state.corrupt("value-links", text) {
            let mut raw = volume.read_inode(ino)?;
            I_LINKS_COUNT.put(&mut raw, 1);
            volume.write_inode(ino, &raw)?;
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
    let mut names = names_of(state, ino);
    let feature = volume.shape.features.ro_compat & ro_compat::DIR_NLINK != 0;
    if state.is_dir(ino) && names > DIRECTORY_LINK_MAX {
        if !feature {
            return need_dir_nlink(volume, state, ino, names);
        }
        names = 1;
    }
    if counted == names {
        return Ok(());
    }
    let text = format!("inode {ino} counts {counted} links, it has {names}");
    let mend = match counted {
        _ if counted > names => state.allowed("links-high", text),
        // A directory that had too many subdirectories to count them, until some went.
        1 if feature && state.is_dir(ino) => state.allowed("links-uncounted", text),
        _ => state.corrupt("links-low", text),
    };
    if mend {
        let mut raw = volume.read_inode(ino)?;
        I_LINKS_COUNT.put(&mut raw, u16::try_from(names).unwrap_or(u16::MAX));
        volume.write_inode(ino, &raw)?;
    }
    Ok(())
}

/// A directory has more links than can be counted: a volume must say that it has such. The count is for the next run.
fn need_dir_nlink(volume: &Volume<'_>, state: &mut State, ino: u32, names: u32) -> Result<()> {
    let text = format!("directory {ino} has {names} links, but the feature dir_nlink is off");
    if state.corrupt("dir-nlink-feature", text) {
        let mut raw = volume.raw_super.clone();
        S_FEATURE_RO_COMPAT.put(&mut raw, volume.shape.features.ro_compat | ro_compat::DIR_NLINK);
        volume.write_super_bytes(&raw)?;
    }
    Ok(())
}

/// An inode in use to which no path leads. While `tops` of trees come back, what is inside them is not nameless yet: the
/// next round knows.
fn nameless(volume: &Volume<'_>, state: &mut State, ino: u32, tops: &Orphans) -> Result<()> {
    let links = state.links[idx(ino)];
    let text = format!("inode {ino} counts {links} links, but no path leads to it");
    if journal::is_in(volume, ino) {
        // It is what remains of a file `.journal`, as which journals were made on volumes in use.
        if state.corrupt("journal-nameless", text) {
            journal::give_up(volume)?;
        }
        return Ok(());
    }
    if !state.allowed("inode-unreferenced", text) {
        return Ok(());
    }
    if state.inodes[idx(ino)] & BAD != 0 {
        return free(volume, state, ino);
    }
    if !tops.is_empty() && !tops.contains(&ino) {
        state.mended -= 1;
        return Ok(());
    }
    if !tops.contains(&ino) && !keeps(volume, state, ino)? {
        return free(volume, state, ino);
    }
    if !reconnect(volume, state, ino)? {
        state.mended -= 1;
    }
    Ok(())
}

/// The tops of trees that go to lost+found.
fn kept(volume: &Volume<'_>, state: &State, orphans: &Orphans) -> Result<Orphans> {
    let mut tops = Orphans::new();
    if state.mending != Mending::Nothing {
        for &ino in orphans.iter().filter(|&&ino| state.inodes[idx(ino)] & BAD == 0) {
            if keeps(volume, state, ino)? {
                tops.insert(ino);
            }
        }
    }
    Ok(tops)
}

/// Whether an inode to which no path leads goes to lost+found: unless all that was found is what a crash leaves, and the
/// inode is as well. An empty directory is nothing that anybody could miss; a new one is kept for what is old in it.
fn keeps(volume: &Volume<'_>, state: &State, ino: u32) -> Result<bool> {
    if state.mending == (Mending::Everything { keep: true }) {
        return Ok(true);
    }
    let keeps = state.leftovers.keeps(&volume.read_inode(ino)?);
    if !state.is_dir(ino) {
        return Ok(keeps);
    }
    // What has a name elsewhere is not lost with this one: a rename into a new directory was cut off.
    for child in named_in(volume, state, ino)?.into_iter().filter(|&child| !state.is_named(child)) {
        if keeps || state.leftovers.keeps(&volume.read_inode(child)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Frees an inode; what it owned is found without an owner in the next round.
fn free(volume: &Volume<'_>, state: &State, ino: u32) -> Result<()> {
    let mut raw = volume.read_inode(ino)?;
    clear_inode(&mut raw, state.dtime());
    volume.write_inode(ino, &raw)
}

/// Makes inode `ino` an empty directory in `block`.
pub(super) fn write_directory(
    volume: &Volume<'_>,
    state: &mut State,
    ino: u32,
    parent: u32,
    block: u64,
) -> Result<()> {
    let mut raw = vec![0; usize::from(volume.shape.inode_size)];
    let mut bytes = Parts::empty_block(volume, Some((ino, parent)));
    volume.write_leaf(block, volume.owner(ino, &raw), &mut bytes)?;
    I_MODE.put(&mut raw, if ino == ROOT_INO { 0o040_755 } else { 0o040_700 });
    I_LINKS_COUNT.put(&mut raw, 2);
    I_DTIME.put(&mut raw, 0);
    for field in [I_ATIME, I_CTIME, I_MTIME] {
        field.put(&mut raw, state.dtime());
    }
    I_SIZE.put(&mut raw, volume.shape.block_size);
    I_BLOCKS.put(&mut raw, volume.shape.block_size / 512 * volume.shape.cluster_blocks());
    if volume.shape.has_clusters() {
        let extents = Entries::Leaf(vec![Extent { block: 0, len: 1, start: block, unwritten: false }]);
        Node { depth: 0, max: ROOT_MAX, entries: extents }.encode_into(&mut raw[ROOT]);
        I_FLAGS.put(&mut raw, EXTENTS_FL);
    } else {
        pointer_field(0).put(&mut raw, pointer32(block));
    }
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
