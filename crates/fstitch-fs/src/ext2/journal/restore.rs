//! The journal's inode out of the copy that the superblock has of it.
//!
//! **Crash cases.** The inode is stable before the superblock names it. Cut before that, the journal is as lost as it was.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Error, InodeNo, Le, Result, Structure, Timestamp};

use super::super::source::BlockSource;
use super::copies::S_JNL_BLOCKS;
use super::create::put_inode;
use super::find::{Internal, Place, inode_place, locate, whole_file};
use super::raw::{JOURNAL_INO, S_JNL_BACKUP_TYPE, S_JOURNAL_INUM, Superblock};
use super::recover::{read_superblock, write_superblock};
use crate::ext2::layout::extent::Node;
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::inode::{DiskInode, EXTENTS_FL, I_BLOCKS, I_FLAGS, POINTERS};
use crate::ext2::num::{idx, small};
use crate::view::BlockView;

/// `s_jnl_backup_type` of a superblock that has a copy of the journal's pointers and length.
const BACKUP_BLOCKS: u8 = 1;

/// The bytes of inode 8 as the superblock `raw` has kept them, if they lead to a journal.
///
/// # Errors
/// When the medium fails.
pub(crate) fn from_backup(
    volume: &dyn BlockSource,
    shape: &Superblock,
    raw: &[u8],
    now: Timestamp,
) -> Result<Option<Vec<u8>>> {
    if S_JNL_BACKUP_TYPE.get(raw) != BACKUP_BLOCKS {
        return Ok(None);
    }
    let word = |at: usize| Le::u32(raw, S_JNL_BLOCKS + at * 4);
    let mut pointers = [0; POINTERS];
    for (at, pointer) in pointers.iter_mut().enumerate() {
        *pointer = word(at);
    }
    let mut inode = vec![0; usize::from(shape.inode_size)];
    put_inode(&mut inode, &pointers, (word(POINTERS + 1), word(POINTERS)), shape, now);
    // The copy has no flags: what begins as the root of a tree of extents is one.
    let extents = shape.features.has_incompat(incompat::EXTENTS);
    if extents && Node::parse_root(&pointers, BlockNo(0), shape.blocks_count).is_ok() {
        I_FLAGS.put(&mut inode, EXTENTS_FL);
    }
    let read = || {
        let disk = DiskInode::parse(&inode, InodeNo(u64::from(JOURNAL_INO)), BlockNo(0), shape)?;
        let (area, map) =
            whole_file(volume, shape, Structure::Other("the copy of the journal's inode"), &disk)?;
        let owned = area.count() + to_u64(map.len());
        match Internal::in_area(volume, shape, area) {
            // A journal that only others can read is none the less the journal.
            Ok(_) | Err(Error::Unsupported(_)) => Ok(owned),
            Err(error) => Err(error),
        }
    };
    match read() {
        Ok(owned) => {
            let owned = small(to_usize(owned));
            I_BLOCKS.put(&mut inode, owned.saturating_mul(shape.block_size / 512));
            shape.sums.seal_inode(JOURNAL_INO, &mut inode);
            Ok(Some(inode))
        }
        Err(Error::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a journal that the volume on `device` has in itself can be found and used. One on a device of its own is not
/// looked at, and neither is one with features that others know.
///
/// # Errors
/// As [`read_superblock`].
pub fn is_sound(device: &dyn BlockDevice) -> Result<bool> {
    let (raw, shape) = read_superblock(device)?;
    let volume = BlockView::new(device, idx(shape.block_size));
    let found = match locate(&shape, &raw) {
        Ok(Some(Place::Inode(ino))) => Internal::read(&volume, &shape, ino).map(drop),
        other => other.map(drop),
    };
    match found {
        Ok(()) | Err(Error::Unsupported(_)) => Ok(true),
        Err(Error::Corrupt(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Brings back a journal that the volume on `device` has in itself and that cannot be found, from the superblock's copy of
/// its inode; whether that was possible. Nothing in the journal is touched, so it can be replayed.
///
/// # Errors
/// As [`read_superblock`].
pub fn restore(device: &dyn BlockDevice, now: Timestamp) -> Result<bool> {
    let (mut raw, shape) = read_superblock(device)?;
    if is_sound(device)? {
        return Ok(false);
    }
    let volume = BlockView::new(device, idx(shape.block_size));
    let Some(inode) = from_backup(&volume, &shape, &raw, now)? else { return Ok(false) };
    let (at, offset) = inode_place(&volume, &shape, JOURNAL_INO)?;
    let mut block = vec![0; volume.block_size()];
    volume.read(at, BlockKind::Inode, &mut block)?;
    block[offset..offset + inode.len()].copy_from_slice(&inode);
    volume.write(at, BlockKind::Inode, &block)?;
    volume.flush()?;
    S_JOURNAL_INUM.put(&mut raw, JOURNAL_INO);
    write_superblock(device, &raw)?;
    Ok(true)
}
