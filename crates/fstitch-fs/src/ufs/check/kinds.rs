//! What an inode is, where it, its contents and its names may not agree: each of them is a witness, and two of them are right.
//!
//! An inode in doubt waits until all others are known: its names are looked for in all directories, and what it claims is somebody
//! else's if somebody else claims it.

use std::collections::BTreeMap;

use fstitch_core::num::to_u64;
use fstitch_core::{FileKind, Result};

use super::chunk::WHITEOUT;
use super::lost::change_entries;
use super::raw::{EXTRA_SLOTS, KIND_MASK, RawInode, SLOTS};
use super::state::{State, kind_code};
use super::volume::Volume;
use super::{groups, guess, targets};
use crate::ufs::layout::dirent::CHUNK;
use crate::ufs::layout::inode::DIRECT;

/// The kinds that there are.
const KINDS: [FileKind; 7] = [
    FileKind::Fifo,
    FileKind::CharDevice,
    FileKind::Directory,
    FileKind::BlockDevice,
    FileKind::Regular,
    FileKind::Symlink,
    FileKind::Socket,
];
/// Links of a directory that no other one is in.
const DIRECTORY_LINKS: u16 = 2;

/// What the names of an inode say that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It has none.
    Nameless,
    /// All of them say this.
    Kind(FileKind),
    /// Different things, or nothing that could be.
    Unclear,
}

/// What names say of inodes in doubt.
pub(super) type Names = BTreeMap<u32, Said>;

/// What one of this kind is called.
pub(super) const fn called(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Fifo => "a pipe",
        FileKind::CharDevice | FileKind::BlockDevice => "a device",
        FileKind::Directory => "a directory",
        FileKind::Regular => "a file",
        FileKind::Symlink => "a symbolic link",
        FileKind::Socket => "a socket",
    }
}

/// Whether an inode has no kind, and so should be nobody's.
pub(super) fn is_nobodys(inode: &RawInode) -> bool {
    inode.mode() & KIND_MASK == 0
}

/// Whether the mode of inode `ino` is in doubt.
pub(super) fn is_in_doubt(volume: &Volume<'_>, ino: u32, inode: &RawInode) -> Result<bool> {
    match inode.kind() {
        // No crash leaves this, for an inode loses its kind and its links with one write.
        None if is_nobodys(inode) => Ok(inode.links() > 0 && groups::is_inode_taken(volume, ino)?),
        None => Ok(true),
        // No storage is counted for what lies in the inode.
        Some(FileKind::Regular) if targets::is_inside(volume, inode) && inode.has_slots_from(0) => {
            targets::is_target(volume, inode)
        }
        Some(FileKind::Regular) => {
            let may_be = inode.links() >= DIRECTORY_LINKS
                && inode.size() > 0
                && inode.size().is_multiple_of(to_u64(CHUNK));
            Ok(may_be && guess::begins(volume, ino, inode)?)
        }
        Some(FileKind::Directory) => {
            Ok(inode.size() == 0 || is_odd(volume, inode, Some(FileKind::Directory))?)
        }
        Some(FileKind::Symlink) => Ok(!targets::is_target(volume, inode)?),
        kind => is_odd(volume, inode, kind),
    }
}

/// Whether an inode of this kind cannot hold what it does.
pub(super) fn is_odd(volume: &Volume<'_>, inode: &RawInode, kind: Option<FileKind>) -> Result<bool> {
    Ok(match kind {
        None => true,
        Some(FileKind::Fifo | FileKind::Socket) => inode.size() != 0 || inode.has_slots_from(0),
        Some(FileKind::CharDevice | FileKind::BlockDevice) => {
            inode.size() != 0 || inode.has_slots_from(1) || inode.is_no_device()
        }
        Some(FileKind::Directory) => !guess::may_be_directory(volume, inode)?,
        Some(_) => false,
    })
}

/// Whether what inode `ino` holds is what one of this kind does.
pub(super) fn fits(volume: &Volume<'_>, ino: u32, inode: &RawInode, kind: FileKind) -> Result<bool> {
    match kind {
        FileKind::Regular => {
            let is_empty = inode.size() == 0 && !inode.has_slots_from(0);
            Ok(is_empty || guess::is_file(volume, inode))
        }
        FileKind::Directory => guess::begins(volume, ino, inode),
        FileKind::Symlink => targets::is_target(volume, inode),
        _ => Ok(!is_odd(volume, inode, Some(kind))?),
    }
}

/// Whether nobody has what this inode points at.
pub(super) fn is_unclaimed(volume: &Volume<'_>, state: &State, inode: &RawInode) -> bool {
    let is_free = |start: u64, count: u64| {
        start == 0 || volume.is_valid(start, count) && state.claimed.is_clear(start, count)
    };
    (0..DIRECT).all(|slot| is_free(inode.slot(slot), volume.block_len(inode.size(), to_u64(slot))))
        && (DIRECT..SLOTS).all(|slot| is_free(inode.slot(slot), volume.per_block()))
        && (0..EXTRA_SLOTS).all(|slot| is_free(inode.extra(slot), 1))
}

/// What the names of inodes in doubt say, in all directories and in what may be one.
pub(super) fn names(volume: &Volume<'_>, state: &State, doubts: &[u32]) -> Result<Names> {
    let mut found: Names = doubts.iter().map(|&ino| (ino, Said::Nameless)).collect();
    let mut dirs: Vec<u32> = state.dirs.iter().map(|dir| dir.ino).collect();
    for &ino in doubts {
        if guess::begins(volume, ino, &volume.read_inode(ino)?)? {
            dirs.push(ino);
        }
    }
    for dir in dirs {
        change_entries(volume, dir, &mut |_, entry| {
            if let Some(said) = found.get_mut(&entry.ino).filter(|_| (entry.ino, entry.kind) != WHITEOUT) {
                let kind = KINDS.into_iter().find(|&kind| kind_code(kind) == entry.kind);
                *said = match (*said, kind) {
                    (Said::Nameless, Some(kind)) => Said::Kind(kind),
                    (Said::Kind(one), Some(other)) if one == other => *said,
                    _ => Said::Unclear,
                };
            }
            false
        })?;
    }
    Ok(found)
}
