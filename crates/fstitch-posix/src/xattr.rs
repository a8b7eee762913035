//! Extended attributes; the two that hold access lists also change the mode.

use fstitch_core::{Attr, Errno, FileKind, Result};

use crate::acl::{self, Acl};
use crate::{FIXED, Inode};

/// Bytes in an attribute's name, Linux's limit.
const NAME_MAX: usize = 255;

/// Fails unless `name` could be that of an attribute.
///
/// # Errors
/// `ERANGE`, `EINVAL`.
pub fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::RANGE.into()),
        len if len > NAME_MAX => Err(Errno::RANGE.into()),
        _ if name.contains(&0) => Err(Errno::INVAL.into()),
        _ => Ok(()),
    }
}

/// Linux lets users attach attributes only where the permission bits say who may.
fn is_elsewhere(kind: FileKind, name: &[u8]) -> bool {
    name.starts_with(b"user.") && !matches!(kind, FileKind::Regular | FileKind::Directory)
}

/// Whether an inode of this kind may have the attribute that is asked for.
///
/// # Errors
/// `ENODATA`.
pub fn check_get(kind: FileKind, name: &[u8]) -> Result<()> {
    if is_elsewhere(kind, name) { Err(Errno::NODATA.into()) } else { Ok(()) }
}

/// Whether an attribute may be set or removed.
///
/// # Errors
/// `EPERM`.
pub fn check_change(inode: &Inode, name: &[u8]) -> Result<()> {
    inode.refuse(FIXED)?;
    if is_elsewhere(inode.attr.kind, name) { Err(Errno::PERM.into()) } else { Ok(()) }
}

/// Whether the attribute is an access list.
#[must_use]
pub fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

/// What setting an access list does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListChange {
    /// The value to store; `None` to remove the attribute.
    pub stored: Option<Vec<u8>>,
    /// The permission bits that go with it.
    pub perm: Option<u16>,
}

/// What setting the access list `name` to `value` does. One that says no more than the mode is not stored; an empty one
/// removes it.
///
/// # Errors
/// `EINVAL` for what is no list, `EOPNOTSUPP` for symbolic links, `EACCES` for a default list of what is no directory.
pub fn set_list(attr: &Attr, name: &[u8], value: &[u8]) -> Result<ListChange> {
    let list = if value.is_empty() { None } else { Acl::parse(value)? };
    if attr.kind == FileKind::Symlink {
        return Err(Errno::OPNOTSUPP.into());
    }
    if name == acl::DEFAULT && attr.kind != FileKind::Directory && list.is_some() {
        return Err(Errno::ACCES.into());
    }
    let is_access = name == acl::ACCESS;
    let perm = list.as_ref().filter(|_| is_access).map(|list| attr.perm & !0o777 | list.mode());
    let stored = list.filter(|list| !(is_access && list.is_equivalent_to_mode()));
    Ok(ListChange { stored: stored.map(|list| list.encode()), perm })
}

/// The access list that an inode has after `chmod`, if that changes it: `current` is the value of the one that it has.
///
/// # Errors
/// When that is no list.
pub fn list_after_chmod(current: &Acl, perm: u16) -> Option<Vec<u8>> {
    let mut list = current.clone();
    list.chmod(perm);
    (list != *current).then(|| list.encode())
}
