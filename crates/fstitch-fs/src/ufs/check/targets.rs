//! Targets of symbolic links: in the inode, or in a block. A zero ends each of them.

use fstitch_core::num::to_usize;
use fstitch_core::{BlockKind, Result};

use super::raw::RawInode;
use super::volume::Volume;
use super::walk;

/// The longest target, in bytes: that of a path.
pub(super) const TARGET_MAX: u64 = 1023;

/// Whether the target of a symbolic link is in the inode.
pub(super) fn is_inside(volume: &Volume<'_>, inode: &RawInode) -> bool {
    match volume.shape.symlink_inside {
        0 => inode.sectors() == 0,
        most => inode.size() < u64::from(most),
    }
}

/// Whether storage is counted beside that of extended attributes.
pub(super) fn is_stored(volume: &Volume<'_>, inode: &RawInode) -> bool {
    inode.sectors() > walk::extra_fragments(volume, inode) * volume.sectors_per_fragment()
}

/// Whether there is a target as long as the inode says.
pub(super) fn is_target(volume: &Volume<'_>, inode: &RawInode) -> Result<bool> {
    let (size, is_inside) = (inode.size(), is_inside(volume, inode));
    if size == 0 || size > TARGET_MAX || is_inside && is_stored(volume, inode) {
        return Ok(false);
    }
    let bytes = if is_inside { inside(inode) } else { outside(volume, inode)? };
    Ok(bytes.get(..to_usize(size)).is_some_and(|target| !target.contains(&0)))
}

/// The target that is there, whatever the length says.
pub(super) fn text(volume: &Volume<'_>, inode: &RawInode) -> Result<Vec<u8>> {
    let (mut bytes, most) = if is_stored(volume, inode) {
        (outside(volume, inode)?, to_usize(TARGET_MAX))
    } else {
        let inside = inside(inode);
        let most = volume.shape.symlink_inside.checked_sub(1).map_or(inside.len(), to_usize);
        (inside, most)
    };
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end.min(most));
    Ok(bytes)
}

fn inside(inode: &RawInode) -> Vec<u8> {
    inode.target_room().to_vec()
}

/// What is in the first block, as far as a target can reach; nothing if there is none.
fn outside(volume: &Volume<'_>, inode: &RawInode) -> Result<Vec<u8>> {
    let start = inode.slot(0);
    let most = (TARGET_MAX + 1).div_ceil(volume.fragment());
    let count = (1..=most).rev().find(|&count| volume.is_valid(start, count));
    count.map_or(Ok(Vec::new()), |count| volume.read(start, count, BlockKind::Attribute))
}
