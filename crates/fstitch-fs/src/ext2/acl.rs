//! POSIX access control lists: the format stores short entries (version 1), the system calls speak another
//! encoding (version 2). Everything else is stored as it is.

use fstitch_core::{Errno, Le, Result};

use super::layout::xattr::{self, INDEX_POSIX_ACL_ACCESS, INDEX_POSIX_ACL_DEFAULT, Xattr};

/// The version of the stored form.
const STORED_VERSION: u32 = 1;
/// The version of the form that system calls use.
const WIRE_VERSION: u32 = 2;
/// Tags whose entries name a user or group.
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x08;
/// All tags: owner, user, owning group, group, mask, others.
const TAGS: [u16; 6] = [0x01, TAG_USER, 0x04, TAG_GROUP, 0x10, 0x20];
/// The id of entries that name nobody.
const NO_ID: u32 = u32::MAX;

/// The stored form of the attribute `full_name`.
///
/// # Errors
/// `EOPNOTSUPP` for unknown namespaces, `ERANGE` for names that are too long, `EINVAL` for a malformed list.
pub(super) fn stored(full_name: &[u8], value: &[u8]) -> Result<Xattr> {
    let (index, name) = xattr::split_name(full_name).ok_or(Errno::OPNOTSUPP)?;
    if name.len() > 255 {
        return Err(Errno::RANGE.into());
    }
    let value = if is_acl(index) { to_stored(value).ok_or(Errno::INVAL)? } else { value.to_vec() };
    Ok(Xattr { index, name: name.to_vec(), value, elsewhere: None })
}

/// The form that system calls use of a stored value; `None` if it is malformed.
pub(super) fn wire(index: u8, value: &[u8]) -> Option<Vec<u8>> {
    if is_acl(index) { to_wire(value) } else { Some(value.to_vec()) }
}

const fn is_acl(index: u8) -> bool {
    matches!(index, INDEX_POSIX_ACL_ACCESS | INDEX_POSIX_ACL_DEFAULT)
}

fn to_stored(wire: &[u8]) -> Option<Vec<u8>> {
    if wire.len() < 4 || Le::u32(wire, 0) != WIRE_VERSION || !(wire.len() - 4).is_multiple_of(8) {
        return None;
    }
    let mut out = STORED_VERSION.to_le_bytes().to_vec();
    for entry in wire[4..].chunks_exact(8) {
        let tag = Le::u16(entry, 0);
        if !TAGS.contains(&tag) {
            return None;
        }
        out.extend_from_slice(&entry[..4]);
        if matches!(tag, TAG_USER | TAG_GROUP) {
            out.extend_from_slice(&entry[4..]);
        }
    }
    Some(out)
}

fn to_wire(stored: &[u8]) -> Option<Vec<u8>> {
    if stored.len() < 4 || Le::u32(stored, 0) != STORED_VERSION {
        return None;
    }
    let mut out = WIRE_VERSION.to_le_bytes().to_vec();
    let mut rest = &stored[4..];
    while !rest.is_empty() {
        let short = rest.get(..4)?;
        let tag = Le::u16(short, 0);
        if !TAGS.contains(&tag) {
            return None;
        }
        out.extend_from_slice(short);
        if matches!(tag, TAG_USER | TAG_GROUP) {
            out.extend_from_slice(rest.get(4..8)?);
            rest = &rest[8..];
        } else {
            out.extend_from_slice(&NO_ID.to_le_bytes());
            rest = &rest[4..];
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u16, perm: u16, id: u32) -> Vec<u8> {
        [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat()
    }

    #[test]
    fn lists_convert_both_ways() {
        let mut wire = 2_u32.to_le_bytes().to_vec();
        for (tag, id) in [(1, NO_ID), (2, 1000), (4, NO_ID), (8, 70_000), (0x10, NO_ID), (0x20, NO_ID)] {
            wire.extend(entry(tag, 5, id));
        }
        let short = to_stored(&wire).unwrap();
        assert_eq!(short.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(Le::u32(&short, 0), 1);
        assert_eq!(to_wire(&short).unwrap(), wire);
    }

    #[test]
    fn malformed_lists_are_refused() {
        assert_eq!(to_stored(b""), None);
        assert_eq!(to_stored(&[2, 0, 0, 0, 1]), None);
        let mut odd = 2_u32.to_le_bytes().to_vec();
        odd.extend(entry(3, 0, 0));
        assert_eq!(to_stored(&odd), None);
        assert_eq!(to_wire(&[1, 0, 0, 0, 2, 0, 7, 0]), None, "a user without an id");
        assert_eq!(stored(b"system.other", b"").unwrap_err().errno(), Errno::OPNOTSUPP);
    }
}
