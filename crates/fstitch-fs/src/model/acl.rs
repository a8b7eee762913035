//! POSIX access control lists, as `system.posix_acl_*` carries them: how they inherit, and how they and the
//! permission bits follow each other.
//!
//! Layout of a value: a 32-bit version (2), then entries of 8 bytes: tag, permissions, id, little-endian.

use fstitch_core::{Errno, Le};

pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    perm: u16,
    id: u32,
}

/// A valid list: one entry each for owner, group and others, and a mask if any user or group is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl(Vec<AclEntry>);

impl Acl {
    /// Reads and validates a value. `Ok(None)` stands for a list without entries, which removes the list.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, Errno> {
        if bytes.len() < 4 || !(bytes.len() - 4).is_multiple_of(8) {
            return Err(Errno::INVAL);
        }
        if Le::u32(bytes, 0) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let entry =
            |raw: &[u8]| AclEntry { tag: Le::u16(raw, 0), perm: Le::u16(raw, 2), id: Le::u32(raw, 4) };
        let acl = Self(bytes[4..].chunks_exact(8).map(entry).collect());
        if acl.0.is_empty() {
            return Ok(None);
        }
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::INVAL) }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let named = count(USER) + count(GROUP);
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        let ordered = self.0.windows(2).all(|pair| pair[0].tag <= pair[1].tag);
        let once = [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1);
        let mask = count(MASK) == 1 || (count(MASK) == 0 && named == 0);
        ordered && once && mask && self.0.iter().all(|entry| known.contains(&entry.tag) && entry.perm <= 7)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            bytes.extend(entry.tag.to_le_bytes());
            bytes.extend(entry.perm.to_le_bytes());
            bytes.extend(entry.id.to_le_bytes());
        }
        bytes
    }

    fn perm_of(&self, tag: u16) -> Option<u16> {
        self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.perm)
    }

    fn set_perm(&mut self, tag: u16, perm: u16) {
        for entry in self.0.iter_mut().filter(|entry| entry.tag == tag) {
            entry.perm = perm;
        }
    }

    /// The tag whose permissions the group bits of a mode show.
    fn group_class(&self) -> u16 {
        if self.perm_of(MASK).is_some() { MASK } else { GROUP_OBJ }
    }

    /// Whether the list says no more than nine permission bits can.
    pub(super) fn is_minimal(&self) -> bool {
        self.0.iter().all(|entry| [USER_OBJ, GROUP_OBJ, OTHER].contains(&entry.tag))
    }

    /// The nine permission bits that show this list.
    pub(super) fn mode_bits(&self) -> u16 {
        let bits = |tag| self.perm_of(tag).expect("validated: every list has this entry");
        bits(USER_OBJ) << 6 | bits(self.group_class()) << 3 | bits(OTHER)
    }

    /// Follows a `chmod`.
    pub(super) fn set_mode_bits(&mut self, perm: u16) {
        self.set_perm(USER_OBJ, perm >> 6 & 7);
        self.set_perm(self.group_class(), perm >> 3 & 7);
        self.set_perm(OTHER, perm & 7);
    }

    /// The access list of an inode made with `perm` under this default list, and its permission bits.
    pub(super) fn inherit(&self, perm: u16) -> (Self, u16) {
        let mut own = self.clone();
        own.set_mode_bits(perm & self.mode_bits());
        let shown = own.mode_bits();
        (own, perm & !0o777 | shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named_user() -> Acl {
        let entry = |tag, perm, id| AclEntry { tag, perm, id };
        Acl(vec![
            entry(USER_OBJ, 7, 0),
            entry(USER, 6, 1000),
            entry(GROUP_OBJ, 5, 0),
            entry(MASK, 7, 0),
            entry(OTHER, 0, 0),
        ])
    }

    #[test]
    fn lists_round_trip() {
        let acl = named_user();
        assert_eq!(Acl::decode(&acl.encode()), Ok(Some(acl)));
        assert_eq!(Acl::decode(&VERSION.to_le_bytes()), Ok(None));
        assert_eq!(Acl::decode(&[1, 2, 3]), Err(Errno::INVAL));
    }

    #[test]
    fn a_named_user_needs_a_mask() {
        let mut acl = named_user();
        acl.0.remove(3);
        assert_eq!(Acl::decode(&acl.encode()), Err(Errno::INVAL));
    }

    #[test]
    fn inheritance_limits_the_mask_by_the_mode() {
        let (own, perm) = named_user().inherit(0o1644);
        assert_eq!(perm, 0o1640);
        assert_eq!(own.perm_of(MASK), Some(4));
        assert_eq!(own.perm_of(GROUP_OBJ), Some(5));
    }
}
