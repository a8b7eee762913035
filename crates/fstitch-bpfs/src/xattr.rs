//! Extended attributes: all of an inode's as one run of bytes, in blocks of their own. A change makes all of them anew, and one word
//! commits it.
//!
//! **Layout.** Their length (64 bits); then for each, in the order of their names: length of the name (8 bits), of the value (32), name,
//! value.

use fstitch_core::num::to_usize;
use fstitch_core::{Error, FileKind, InodeNo, Le, Result, Structure, XattrSetMode};
use fstitch_posix::xattr as rules;
use fstitch_posix::xattrs::{self, Xattrs, check_namespace, decode, encode, set, take};

use crate::change::Change;
use crate::data::set_perm;
use crate::inode::Inode;
use crate::layout::XATTRS_MAX;
use crate::pm::BLOCK;
use crate::state::State;
use crate::tree;
use crate::volume::Bpfs;

/// The attributes of an inode.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn load(state: &State, inode: &Inode) -> Result<Xattrs> {
    if inode.xattrs >> 3 == 0 {
        return Ok(Xattrs::new());
    }
    let missing = || Error::corrupt(Structure::AttributeBlock, None, "it is missing");
    let block = |index| {
        let block = tree::leaf(&state.gate, inode.xattrs, index).ok_or_else(missing)?;
        state.gate.load(block.at())?;
        Ok::<_, Error>(state.gate.block(block))
    };
    let first = block(0)?;
    let len = Le::u64(first, 0);
    if len > u64::try_from(XATTRS_MAX).expect("small") {
        return Err(Error::corrupt(
            Structure::AttributeBlock,
            None,
            format!("it says that there are {len} bytes"),
        ));
    }
    let end = to_usize(len) + 8;
    let mut bytes = first[8..end.min(BLOCK)].to_vec();
    let mut index = 1;
    while bytes.len() + 8 < end {
        let left = end - 8 - bytes.len();
        bytes.extend_from_slice(&block(index)?[..left.min(BLOCK)]);
        index += 1;
    }
    decode(&bytes)
}

/// Gives an inode its attributes.
///
/// # Errors
/// `ENOSPC`.
pub(crate) fn store(change: &mut Change<'_>, ino: u64, xattrs: &Xattrs) -> Result<()> {
    let bytes = encode(xattrs, XATTRS_MAX)?;
    change.put_xattrs(ino, &bytes)
}

/// What follows for an inode's access list from new permissions, if that changes it.
///
/// # Errors
/// When the list is none.
pub(crate) fn after_chmod(state: &State, inode: &Inode, perm: u16) -> Result<Option<Xattrs>> {
    xattrs::after_chmod(load(state, inode)?, perm)
}

impl Bpfs {
    pub(crate) fn do_getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        rules::check_name(name)?;
        let core = self.share();
        let inode = self.live(&core.state, ino)?;
        rules::check_get(inode.kind, name)?;
        check_namespace(name)?;
        take(&mut load(&core.state, &inode)?, name)
    }

    pub(crate) fn do_listxattr(&self, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let core = self.share();
        let inode = self.live(&core.state, ino)?;
        Ok(load(&core.state, &inode)?.into_keys().collect())
    }

    pub(crate) fn do_setxattr(
        &self,
        ino: InodeNo,
        (name, value): (&[u8], &[u8]),
        mode: XattrSetMode,
    ) -> Result<()> {
        rules::check_name(name)?;
        self.change_xattrs(ino, name, |inode, xattrs| set(xattrs, &inode.seen(1).attr, (name, value), mode))
    }

    pub(crate) fn do_removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        rules::check_name(name)?;
        self.change_xattrs(ino, name, |_, xattrs| take(xattrs, name).map(|_| None))
    }

    /// Changes attributes, and permissions with them if `how` says so.
    fn change_xattrs(
        &self,
        ino: InodeNo,
        name: &[u8],
        how: impl FnOnce(&Inode, &mut Xattrs) -> Result<Option<u16>>,
    ) -> Result<()> {
        let mut core = self.alone()?;
        let inode = self.live(&core.state, ino)?;
        rules::check_change(&inode.seen(1), name)?;
        check_namespace(name)?;
        let mut xattrs = load(&core.state, &inode)?;
        let perm = how(&inode, &mut xattrs)?;
        let mut change = core.change(self.now())?;
        store(&mut change, inode.ino, &xattrs)?;
        if let Some(perm) = perm.filter(|_| inode.kind != FileKind::Symlink) {
            set_perm(&mut change, &inode, perm);
        }
        change.touch(inode.ino);
        change.finish(|_| ())
    }
}
