//! Directories: names in leaves, found by their slots.
//!
//! A leaf is at the position of the highest slot that may be in it, so the leaf of a name is the first block of the list at the
//! name's slot or behind it: the logical disk's own search is the index. A full leaf gives its lower names to a leaf at a lower
//! position; an empty one goes, and its slots fall to the one behind it. All of that is part of the operation's unit.

use fstitch_core::{Errno, FileKind, InodeNo, Result};

use crate::blocks::Blocks;
use crate::change::Change;
use crate::layout::LEAF_LAST;
use crate::leaf::{self, Named};

/// A name that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    pub(crate) key: u64,
    /// Its leaf.
    position: u64,
}

/// A name of a directory.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) dir: InodeNo,
    pub(crate) name: &'a [u8],
    pub(crate) slot: u64,
}

/// The leaf that has a slot, or would have it.
fn leaf_of(blocks: &impl Blocks, dir: InodeNo, slot: u64) -> Result<Option<u64>> {
    let found = blocks.next_at(dir.get(), slot)?;
    Ok(found.map(|(position, _)| position).filter(|position| *position <= LEAF_LAST))
}

/// Finds a name.
///
/// # Errors
/// Those of the disk, and `Corrupt`.
pub(crate) fn find(blocks: &impl Blocks, place: &Place<'_>) -> Result<Option<Found>> {
    let Some(position) = leaf_of(blocks, place.dir, place.slot)? else { return Ok(None) };
    let Some(image) = blocks.image((place.dir.get(), position))? else { return Ok(None) };
    let entries = leaf::decode(&image)?;
    let found = entries.iter().find(|named| named.slot() == place.slot && named.name == place.name);
    Ok(found.map(|named| Found { ino: named.ino, kind: named.kind, key: named.key, position }))
}

/// Whether there are no names.
///
/// # Errors
/// Those of the disk.
pub(crate) fn is_empty(blocks: &impl Blocks, dir: InodeNo) -> Result<bool> {
    Ok(leaf_of(blocks, dir, 1)?.is_none())
}

/// Adds a name, which is not there yet.
///
/// # Errors
/// `ENOSPC` if so many names share a slot that no leaf has room for them; those of the disk.
pub(crate) fn add(change: &mut Change<'_>, place: &Place<'_>, ino: InodeNo, kind: FileKind) -> Result<()> {
    let found = leaf_of(change, place.dir, place.slot)?;
    let position = found.unwrap_or(LEAF_LAST);
    let image = match found {
        Some(_) => change.image((place.dir.get(), position))?,
        None => None,
    };
    let mut entries = match &image {
        Some(image) => leaf::decode(image)?,
        None => Vec::new(),
    };
    let taken = |key: u64| entries.iter().any(|named| named.key == key);
    let mut keys = (0..=u8::MAX).map(|number| leaf::key(place.slot, number));
    let key = keys.find(|key| !taken(*key)).ok_or(Errno::NOSPC)?;
    let at = entries.partition_point(|named| named.key < key);
    entries.insert(at, Named { key, ino, kind, name: place.name });
    store(change, place.dir, position, &entries)
}

/// Gives a leaf its entries, and those that it has no room for leaves of their own.
fn store(change: &mut Change<'_>, dir: InodeNo, position: u64, entries: &[Named<'_>]) -> Result<()> {
    let block_size = change.block_size();
    let pieces = leaf::split(entries, leaf::room(block_size)).ok_or(Errno::NOSPC)?;
    let count = pieces.len();
    for (n, piece) in (1..).zip(pieces) {
        let at = match piece.last() {
            Some(last) if n < count => last.slot(),
            _ => position,
        };
        change.set_image((dir.get(), at), leaf::encode(piece, block_size))?;
    }
    Ok(())
}

/// Removes a name.
///
/// # Errors
/// Those of the disk, and `Corrupt`.
pub(crate) fn remove(change: &mut Change<'_>, dir: InodeNo, found: &Found) -> Result<()> {
    let key = (dir.get(), found.position);
    let image = change.image(key)?.ok_or(Errno::UCLEAN)?;
    let mut entries = leaf::decode(&image)?;
    entries.retain(|named| named.key != found.key);
    let room = leaf::room(change.block_size());
    if entries.is_empty() {
        return change.remove_image(key);
    }
    if leaf::bytes_of(&entries) < room / 4
        && let Some(next) = leaf_of(change, dir, found.position + 1)?
        && let Some(other) = change.image((dir.get(), next))?
    {
        let mut all = entries.clone();
        all.extend(leaf::decode(&other)?);
        if leaf::bytes_of(&all) <= room / 4 * 3 {
            change.remove_image(key)?;
            return store(change, dir, next, &all);
        }
    }
    store(change, dir, found.position, &entries)
}

/// Makes a name stand for another inode, in its place.
///
/// # Errors
/// Those of the disk, and `Corrupt`.
pub(crate) fn replace(
    change: &mut Change<'_>,
    dir: InodeNo,
    found: &Found,
    (ino, kind): (InodeNo, FileKind),
) -> Result<()> {
    let image = change.image((dir.get(), found.position))?.ok_or(Errno::UCLEAN)?;
    let mut entries = leaf::decode(&image)?;
    let named = entries.iter_mut().find(|named| named.key == found.key).ok_or(Errno::UCLEAN)?;
    (named.ino, named.kind) = (ino, kind);
    store(change, dir, found.position, &entries)
}

/// A name as listings have it.
pub(crate) struct Listed {
    pub(crate) key: u64,
    pub(crate) ino: InodeNo,
    pub(crate) kind: FileKind,
    pub(crate) name: Vec<u8>,
}

/// The names of the next leaf whose keys are higher than `after`; none at the end.
///
/// # Errors
/// Those of the disk, and `Corrupt`.
pub(crate) fn list(blocks: &impl Blocks, dir: InodeNo, after: u64) -> Result<Vec<Listed>> {
    let mut from = (after >> 8).max(1);
    while let Some(position) = leaf_of(blocks, dir, from)? {
        let image = blocks.image((dir.get(), position))?.ok_or(Errno::UCLEAN)?;
        let entries = leaf::decode(&image)?;
        let listed: Vec<Listed> = entries
            .iter()
            .filter(|named| named.key > after)
            .map(|named| Listed {
                key: named.key,
                ino: named.ino,
                kind: named.kind,
                name: named.name.to_vec(),
            })
            .collect();
        if !listed.is_empty() {
            return Ok(listed);
        }
        from = position + 1;
    }
    Ok(Vec::new())
}
