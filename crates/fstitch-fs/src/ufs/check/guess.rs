//! What an inode is whose mode says something else than its contents.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, FileKind, Result};

use super::chunk;
use super::raw::{RawInode, SLOTS};
use super::volume::Volume;
use crate::ufs::layout::dirent::CHUNK;
use crate::ufs::layout::inode::DIRECT;

/// A directory, if its first block begins as that of this directory; a file, if all of its pointers can be one's.
pub(super) fn kind(volume: &Volume<'_>, ino: u32, inode: &RawInode) -> Result<Option<FileKind>> {
    if begins(volume, ino, inode)? {
        return Ok(Some(FileKind::Directory));
    }
    Ok(is_file(volume, inode).then_some(FileKind::Regular))
}

/// Whether the first block begins as that of this directory.
pub(super) fn begins(volume: &Volume<'_>, ino: u32, inode: &RawInode) -> Result<bool> {
    let first = inode.slot(0);
    if !volume.is_valid(first, 1) {
        return Ok(false);
    }
    let bytes = volume.read(first, 1, BlockKind::Directory)?;
    Ok(chunk::begins_directory(&bytes[..CHUNK], ino, volume.manner()))
}

/// Whether what a directory's first block holds may be a directory's: it begins as one, or at least half of it could be in one.
pub(super) fn may_be_directory(volume: &Volume<'_>, inode: &RawInode) -> Result<bool> {
    let (first, count) = (inode.slot(0), volume.block_len(inode.size(), 0));
    if inode.size() == 0 || !volume.is_valid(first, count) || !is_file(volume, inode) {
        return Ok(true);
    }
    let bytes = volume.read(first, count, BlockKind::Directory)?;
    let manner = volume.manner();
    let size = to_usize(inode.size().min(to_u64(bytes.len())));
    let chunks = bytes[..size].chunks_exact(CHUNK);
    let all = chunks.len();
    let sound = chunks.filter(|chunk| chunk::entries(chunk, manner).is_ok()).count();
    Ok(chunk::has_dots(&bytes[..CHUNK], manner) || sound * 2 >= all.max(1))
}

/// Whether all pointers can be those of a file of this length.
pub(super) fn is_file(volume: &Volume<'_>, inode: &RawInode) -> bool {
    let size = inode.size();
    if size == 0 || size > volume.shape.size_max() {
        return false;
    }
    let blocks = size.div_ceil(volume.block());
    let mut first = to_u64(DIRECT);
    let direct = (0..DIRECT).all(|slot| {
        let (start, block) = (inode.slot(slot), to_u64(slot));
        start == 0 || block < blocks && volume.is_valid(start, volume.block_len(size, block))
    });
    let indirect = (DIRECT..SLOTS).all(|slot| {
        let start = inode.slot(slot);
        let fits = start == 0 || first < blocks && volume.is_valid(start, volume.per_block());
        first += volume.pointers().pow(u32::try_from(slot - DIRECT + 1).unwrap_or(0));
        fits
    });
    // It has its last block, where that is one of the first: files do not end with holes.
    let ends = blocks > to_u64(DIRECT) || inode.slot(to_usize(blocks - 1)) != 0;
    direct && indirect && ends && inode.has_slots_from(0)
}
