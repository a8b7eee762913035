//! All extended attributes of an inode together, as formats have them that keep them so.
//!
//! **Layout.** For each attribute, in the order of their names: length of the name (8 bits), of the value (32, little-endian), name,
//! value.

use std::collections::BTreeMap;

use fstitch_core::num::to_usize;
use fstitch_core::{Attr, Errno, Error, Le, Result, Structure, XattrSetMode};

use crate::acl::{self, Acl};
use crate::xattr::{is_list, list_after_chmod, set_list};

/// Attributes by name.
pub type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Bytes of an attribute before its name.
const HEAD: usize = 5;

/// The bytes of attributes, of which there may be `most`.
///
/// # Errors
/// `ENOSPC` for more, `ERANGE` for a name that is too long.
pub fn encode(xattrs: &Xattrs, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs {
        bytes.push(u8::try_from(name.len()).map_err(|_| Errno::RANGE)?);
        let len = u32::try_from(value.len()).map_err(|_| Errno::NOSPC)?;
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
    }
    if bytes.len() > most { Err(Errno::NOSPC.into()) } else { Ok(bytes) }
}

/// The attributes in these bytes.
///
/// # Errors
/// `Corrupt`, with the byte where one begins that is not whole.
pub fn decode(mut bytes: &[u8]) -> Result<Xattrs> {
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

/// What attributes become by new permissions, if they change: the access list follows these.
///
/// # Errors
/// When the list is none.
pub fn after_chmod(mut xattrs: Xattrs, perm: u16) -> Result<Option<Xattrs>> {
    let Some(value) = xattrs.get(acl::ACCESS) else { return Ok(None) };
    let list = Acl::parse(value)?.and_then(|list| list_after_chmod(&list, perm));
    Ok(list.map(|list| {
        xattrs.insert(acl::ACCESS.to_vec(), list);
        xattrs
    }))
}

/// Fails unless an attribute's name begins as those that Linux knows.
///
/// # Errors
/// `EOPNOTSUPP`; `EINVAL` for a name that ends there.
pub fn check_namespace(name: &[u8]) -> Result<()> {
    if is_list(name) {
        return Ok(());
    }
    let known = [&b"user."[..], b"trusted.", b"security."];
    match known.iter().find(|prefix| name.starts_with(prefix)) {
        None => Err(Errno::OPNOTSUPP.into()),
        Some(prefix) if name.len() == prefix.len() => Err(Errno::INVAL.into()),
        Some(_) => Ok(()),
    }
}

/// Sets an attribute of an inode with `attr`; what its permissions become by a list.
///
/// # Errors
/// `EEXIST`, `ENODATA` as `mode` says; those of [`set_list`].
pub fn set(
    xattrs: &mut Xattrs,
    attr: &Attr,
    (name, value): (&[u8], &[u8]),
    mode: XattrSetMode,
) -> Result<Option<u16>> {
    if is_list(name) {
        let list = set_list(attr, name, value)?;
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
}

/// An attribute's value, which is taken out.
///
/// # Errors
/// `ENODATA`.
pub fn take(xattrs: &mut Xattrs, name: &[u8]) -> Result<Vec<u8>> {
    xattrs.remove(name).ok_or_else(|| Errno::NODATA.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let xattrs = Xattrs::from([(b"user.a".to_vec(), vec![1; 70_000]), (b"user.b".to_vec(), Vec::new())]);
        let bytes = encode(&xattrs, 1 << 20).unwrap();
        assert_eq!(decode(&bytes).unwrap(), xattrs);
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(decode(&[200, 0]).is_err());
    }

    #[test]
    fn there_is_a_limit() {
        let xattrs = Xattrs::from([(b"user.a".to_vec(), vec![1; 100])]);
        let len = encode(&xattrs, 1000).unwrap().len();
        assert!(encode(&xattrs, len).is_ok());
        assert_eq!(encode(&xattrs, len - 1).unwrap_err().errno(), Errno::NOSPC);
        let long = Xattrs::from([(vec![b'a'; 256], Vec::new())]);
        assert_eq!(encode(&long, 1000).unwrap_err().errno(), Errno::RANGE);
    }

    #[test]
    fn names_belong_somewhere() {
        for (name, refused) in
            [("user.a", None), ("user.", Some(Errno::INVAL)), ("other.a", Some(Errno::OPNOTSUPP))]
        {
            let found = check_namespace(name.as_bytes()).err().map(|error| error.errno());
            assert_eq!(found, refused, "{name}");
        }
        assert!(check_namespace(acl::ACCESS).is_ok());
    }
}
