//! Extended attributes: all of an inode's as one run of bytes, behind the inode if it fits there, else in blocks of its own.
//!
//! **Layout.** For each attribute, in the order of their names: length of the name (8 bits), of the value (32), name, value.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Errno, Error, InodeNo, Result, Structure, XattrSetMode};
use fstitch_posix::xattr as rules;
use fstitch_posix::xattrs::{self, Xattrs, check_namespace, decode, encode, set, take};

use crate::blocks::Blocks;
use crate::change::Change;
use crate::inode::{INODE, Inode};
use crate::layout::{INODE_AT, XATTRS_AT, XATTRS_MAX};
use crate::volume::MinixLld;

/// Bytes behind an inode.
fn room(block_size: usize) -> usize {
    block_size - INODE
}

/// The attributes of an inode.
///
/// # Errors
/// Those of the disk, and `Corrupt`.
pub(crate) fn load(blocks: &impl Blocks, inode: &Inode) -> Result<Xattrs> {
    let len = to_usize(inode.xattr_bytes);
    if len == 0 {
        return Ok(Xattrs::new());
    }
    let list = inode.ino.get();
    if len <= room(blocks.block_size()) {
        let image = blocks.image((list, INODE_AT))?.ok_or(Errno::STALE)?;
        return decode(&image[INODE..INODE + len]);
    }
    let mut bytes = Vec::with_capacity(len);
    for n in 0..to_u64(len).div_ceil(blocks.unit()) {
        let missing = || Error::corrupt(Structure::AttributeBlock, None, "it is missing");
        bytes.extend_from_slice(&blocks.image((list, XATTRS_AT + n))?.ok_or_else(missing)?);
    }
    decode(&bytes[..len])
}

/// Gives an inode its attributes; whoever calls puts it into the change.
///
/// # Errors
/// `ENOSPC` if they are too many; those of the disk.
pub(crate) fn store(change: &mut Change<'_>, inode: &mut Inode, xattrs: &Xattrs) -> Result<()> {
    let bytes = encode(xattrs, XATTRS_MAX)?;
    let (list, unit) = (inode.ino.get(), change.unit());
    let is_inside = |len: u64| len <= to_u64(room(to_usize(unit)));
    let blocks = |len: u64| if is_inside(len) { 0 } else { len.div_ceil(unit) };
    let (old, new) = (blocks(inode.xattr_bytes.into()), blocks(to_u64(bytes.len())));
    for n in new..old {
        change.remove_image((list, XATTRS_AT + n))?;
    }
    let mut image = change.image((list, INODE_AT))?.ok_or(Errno::STALE)?.to_vec();
    image[INODE..].fill(0);
    if new == 0 {
        image[INODE..INODE + bytes.len()].copy_from_slice(&bytes);
    }
    change.set_image((list, INODE_AT), image)?;
    for (n, piece) in (0..new).zip(bytes.chunks(to_usize(unit))) {
        let mut block = piece.to_vec();
        block.resize(to_usize(unit), 0);
        change.set_image((list, XATTRS_AT + n), block)?;
    }
    inode.xattr_bytes = u32::try_from(bytes.len()).expect("they are few");
    Ok(())
}

/// What follows for an inode's access list from new permissions.
///
/// # Errors
/// Those of the disk; when the list is none.
pub(crate) fn chmod(change: &mut Change<'_>, inode: &mut Inode, perm: u16) -> Result<()> {
    match xattrs::after_chmod(load(change, inode)?, perm)? {
        Some(xattrs) => store(change, inode, &xattrs),
        None => Ok(()),
    }
}

impl MinixLld {
    pub(crate) fn do_getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        rules::check_name(name)?;
        let _tree = self.share();
        let inode = self.live(self, ino)?;
        rules::check_get(inode.kind, name)?;
        check_namespace(name)?;
        take(&mut load(self, &inode)?, name)
    }

    pub(crate) fn do_listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let _tree = self.share();
        let inode = self.live(self, ino)?;
        Ok(load(self, &inode)?.into_keys().collect())
    }

    pub(crate) fn do_setxattr(
        &self,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<()> {
        rules::check_name(name)?;
        let change = self.change()?;
        let mut inode = self.live(&change, ino)?;
        rules::check_change(&inode.seen(), name)?;
        check_namespace(name)?;
        let mut xattrs = load(&change, &inode)?;
        if let Some(perm) = set(&mut xattrs, &inode.seen().attr, (name, value), mode)? {
            inode.perm = perm;
        }
        self.put_xattrs(change, inode, &xattrs)
    }

    pub(crate) fn do_removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        rules::check_name(name)?;
        let change = self.change()?;
        let inode = self.live(&change, ino)?;
        rules::check_change(&inode.seen(), name)?;
        check_namespace(name)?;
        let mut xattrs = load(&change, &inode)?;
        take(&mut xattrs, name)?;
        self.put_xattrs(change, inode, &xattrs)
    }

    fn put_xattrs(&self, mut change: Change<'_>, mut inode: Inode, xattrs: &Xattrs) -> Result<()> {
        store(&mut change, &mut inode, xattrs)?;
        inode.ctime = change.now();
        change.put(inode);
        change.commit(|| ())
    }
}
