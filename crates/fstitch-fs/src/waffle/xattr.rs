//! Extended attributes: all of an inode's as one run of bytes, in blocks of their own. A change makes all of them anew.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Errno, Error, FileKind, InodeNo, Result, Structure, XattrSetMode};
use fstitch_posix::xattr as rules;
use fstitch_posix::xattrs::{self, Xattrs, check_namespace, decode, encode, set, take};

use super::layout::inode::Inode;
use super::layout::{BLOCK, XATTRS_MAX};
use super::names::touch;
use super::state::{Class, State};
use super::tree::Obj;
use super::volume::{SNAPSHOTS_INO, Waffle};

/// The attributes of an inode of a tree.
///
/// # Errors
/// `Io`, `Corrupt`.
pub(super) fn load(state: &State, tree: usize, inode: &Inode) -> Result<Xattrs> {
    let len = to_usize(inode.xattrs_len);
    let mut bytes = Vec::with_capacity(len);
    for index in 0..to_u64(len.div_ceil(BLOCK)) {
        let block = state.node(tree, Obj::Xattrs(inode.ino), 0, index)?;
        let block = block.ok_or_else(|| {
            let problem = format!("block {index} of its attributes is missing");
            Error::corrupt(Structure::Inode(inode.ino), None, problem)
        })?;
        bytes.extend_from_slice(&block[..(len - bytes.len()).min(BLOCK)]);
    }
    decode(&bytes)
}

/// Gives an inode its attributes.
///
/// # Errors
/// `ENOSPC`, `Io`, `Corrupt`.
pub(super) fn store(state: &mut State, ino: u64, xattrs: &Xattrs) -> Result<()> {
    let bytes = encode(xattrs, XATTRS_MAX)?;
    let obj = Obj::Xattrs(ino);
    let blocks = to_u64(bytes.len().div_ceil(BLOCK));
    state.cut(obj, blocks, u64::MAX)?;
    for (piece, index) in bytes.chunks(BLOCK).zip(0..) {
        let block = state.touch(obj, 0, index)?;
        block[..piece.len()].copy_from_slice(piece);
        block[piece.len()..].fill(0);
    }
    let len = u32::try_from(bytes.len()).expect("they are few");
    state.change_inode(ino, |inode| inode.xattrs_len = len)
}

/// What follows for an inode's access list from new permissions, if that changes it.
///
/// # Errors
/// When the list is none.
pub(super) fn after_chmod(state: &State, inode: &Inode, perm: u16) -> Result<Option<Xattrs>> {
    xattrs::after_chmod(load(state, state.head, inode)?, perm)
}

impl Waffle {
    pub(super) fn do_getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        rules::check_name(name)?;
        if ino == SNAPSHOTS_INO {
            return Err(Errno::NODATA.into());
        }
        let core = self.share();
        let (tree, inode) = self.inode_of(&core.state, ino)?;
        rules::check_get(inode.kind, name)?;
        check_namespace(name)?;
        take(&mut load(&core.state, tree, &inode)?, name)
    }

    pub(super) fn do_listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        if ino == SNAPSHOTS_INO {
            return Ok(Vec::new());
        }
        let core = self.share();
        let (tree, inode) = self.inode_of(&core.state, ino)?;
        Ok(load(&core.state, tree, &inode)?.into_keys().collect())
    }

    pub(super) fn do_setxattr(
        &self,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<()> {
        rules::check_name(name)?;
        self.change_xattrs(Class::Takes, ino, name, |inode, xattrs| {
            set(xattrs, &inode.seen().attr, (name, value), mode)
        })
    }

    pub(super) fn do_removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        rules::check_name(name)?;
        self.change_xattrs(Class::Gives, ino, name, |_, xattrs| take(xattrs, name).map(|_| None))
    }

    /// Changes attributes, and permissions with them if `how` says so.
    fn change_xattrs(
        &self,
        class: Class,
        ino: InodeNo,
        name: &[u8],
        how: impl Fn(&Inode, &mut Xattrs) -> Result<Option<u16>>,
    ) -> Result<()> {
        self.change(class, 0, |state| {
            let inode = self.ours(state, ino)?;
            rules::check_change(&inode.seen(), name)?;
            check_namespace(name)?;
            let mut xattrs = load(state, state.head, &inode)?;
            let perm = how(&inode, &mut xattrs)?.filter(|_| inode.kind != FileKind::Symlink);
            store(state, inode.ino, &xattrs)?;
            touch(state, inode.ino, |inode| inode.perm = perm.unwrap_or(inode.perm))
        })
        .map(drop)
    }
}
