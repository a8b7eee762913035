//! Extended attributes: all of an inode's as one run of bytes, in blocks of their own. A change makes all of them anew, and one word
//! commits it.
//!
//! **Layout.** Their length (64 bits); then for each, in the order of their names: length of the name (8 bits), of the value (32), name,
//! value.

use std::collections::BTreeMap;

use fstitch_core::num::to_usize;
use fstitch_core::{Errno, Error, FileKind, InodeNo, Le, Result, Structure, XattrSetMode};
use fstitch_posix::xattr as rules;
use fstitch_posix::{acl, acl::Acl};

use crate::change::Change;
use crate::data::set_perm;
use crate::inode::Inode;
use crate::layout::XATTRS_MAX;
use crate::pm::BLOCK;
use crate::state::State;
use crate::tree;
use crate::volume::Bpfs;

/// Attributes by name.
pub(crate) type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

const HEAD: usize = 5;

fn encode(xattrs: &Xattrs) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs {
        bytes.push(u8::try_from(name.len()).expect("names were checked"));
        let len = u32::try_from(value.len()).map_err(|_| Errno::NOSPC)?;
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    if bytes.len() > XATTRS_MAX { Err(Errno::NOSPC.into()) } else { Ok(bytes) }
}

fn decode(mut bytes: &[u8]) -> Result<Xattrs> {
    let whole = bytes.len();
    let mut xattrs = Xattrs::new();
    while !bytes.is_empty() {
        let at = whole - bytes.len();
        let damaged = || Error::corrupt(Structure::AttributeEntry(at), None, "it ends behind all of them");
        let head = bytes.split_off(..HEAD).ok_or_else(damaged)?;
        let name = bytes.split_off(..usize::from(head[0])).ok_or_else(damaged)?;
        let value = bytes.split_off(..to_usize(Le::u32(head, 1))).ok_or_else(damaged)?;
        xattrs.insert(name.to_vec(), value.to_vec());
    }
    Ok(xattrs)
}

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
    let bytes = encode(xattrs)?;
    change.put_xattrs(ino, &bytes)
}

/// What follows for an inode's access list from new permissions, if that changes it.
///
/// # Errors
/// When the list is none.
pub(crate) fn after_chmod(state: &State, inode: &Inode, perm: u16) -> Result<Option<Xattrs>> {
    let mut xattrs = load(state, inode)?;
    let Some(value) = xattrs.get(acl::ACCESS) else { return Ok(None) };
    let list = Acl::parse(value)?.and_then(|list| rules::list_after_chmod(&list, perm));
    Ok(list.map(|list| {
        xattrs.insert(acl::ACCESS.to_vec(), list);
        xattrs
    }))
}

/// Fails unless an attribute's name begins as those that Linux knows.
fn check_namespace(name: &[u8]) -> Result<()> {
    if rules::is_list(name) {
        return Ok(());
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find(|prefix| name.starts_with(prefix)) {
        None => Err(Errno::OPNOTSUPP.into()),
        Some(prefix) if name.len() == prefix.len() => Err(Errno::INVAL.into()),
        Some(_) => Ok(()),
    }
}

impl Bpfs {
    pub(crate) fn do_getxattr(&self, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        rules::check_name(name)?;
        let core = self.share();
        let inode = self.live(&core.state, ino)?;
        rules::check_get(inode.kind, name)?;
        check_namespace(name)?;
        load(&core.state, &inode)?.remove(name).ok_or_else(|| Errno::NODATA.into())
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
        self.change_xattrs(ino, name, |inode, xattrs| {
            if rules::is_list(name) {
                let list = rules::set_list(&inode.seen(1).attr, name, value)?;
                match list.stored {
                    Some(stored) => drop(xattrs.insert(name.to_vec(), stored)),
                    None => drop(xattrs.remove(name)),
                }
                return Ok(list.perm);
            }
            match (mode, xattrs.contains_key(name)) {
                (XattrSetMode::Create, true) => Err(Errno::EXIST.into()),
                (XattrSetMode::Replace, false) => Err(Errno::NODATA.into()),
                _ => {
                    xattrs.insert(name.to_vec(), value.to_vec());
                    Ok(None)
                }
            }
        })
    }

    pub(crate) fn do_removexattr(&self, ino: InodeNo, name: &[u8]) -> Result<()> {
        rules::check_name(name)?;
        self.change_xattrs(ino, name, |_, xattrs| {
            xattrs.remove(name).map(|_| None).ok_or_else(|| Errno::NODATA.into())
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let xattrs = Xattrs::from([(b"user.a".to_vec(), vec![1; 60_000]), (b"user.b".to_vec(), Vec::new())]);
        let bytes = encode(&xattrs).unwrap();
        assert_eq!(decode(&bytes).unwrap(), xattrs);
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode(&[200, 0]).is_err());
    }
}
