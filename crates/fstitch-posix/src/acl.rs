//! POSIX access control lists, as far as making inodes and `chmod` change them. The values are those of
//! `system.posix_acl_access` and `system.posix_acl_default` as Linux passes them: a version (2), then entries
//! of tag, permissions (16 bits each) and id (32 bits), all little-endian.

use fstitch_core::{Errno, Result};

/// The attribute that holds an inode's access list.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute that holds what a directory's new entries inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const UNDEFINED_ID: u32 = u32::MAX;
/// More entries than any format stores in a block; bounds what a caller can make us parse.
const ENTRIES_MAX: usize = 8192;

/// Whom an entry is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A named user.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A named group.
    Group(u32),
    /// The upper bound for named users and all groups.
    Mask,
    /// Everybody else.
    Other,
}

impl Tag {
    fn parse(tag: u16, id: u32) -> Option<Self> {
        Some(match tag {
            0x01 => Self::UserObj,
            0x02 => Self::User(id),
            0x04 => Self::GroupObj,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }

    fn encode(self) -> (u16, u32) {
        match self {
            Self::UserObj => (0x01, UNDEFINED_ID),
            Self::User(id) => (0x02, id),
            Self::GroupObj => (0x04, UNDEFINED_ID),
            Self::Group(id) => (0x08, id),
            Self::Mask => (0x10, UNDEFINED_ID),
            Self::Other => (0x20, UNDEFINED_ID),
        }
    }
}

/// A valid access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// In the order of their tags; exactly one each of owner, group and others.
    entries: Vec<(Tag, u16)>,
}

impl Acl {
    /// Parses an attribute's value. `None` for a list without entries, which means "no list".
    ///
    /// # Errors
    /// `EOPNOTSUPP` for an unknown version, `EINVAL` for anything else that is wrong.
    pub fn parse(value: &[u8]) -> Result<Option<Self>> {
        let (version, rest) = value.split_first_chunk::<4>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP.into());
        }
        let (chunks, left) = rest.as_chunks::<ENTRY_BYTES>();
        if !left.is_empty() || chunks.len() > ENTRIES_MAX {
            return Err(Errno::INVAL.into());
        }
        let mut entries = Vec::with_capacity(chunks.len());
        for &[t0, t1, p0, p1, i0, i1, i2, i3] in chunks {
            let id = u32::from_le_bytes([i0, i1, i2, i3]);
            let tag = Tag::parse(u16::from_le_bytes([t0, t1]), id).ok_or(Errno::INVAL)?;
            entries.push((tag, u16::from_le_bytes([p0, p1])));
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(Errno::INVAL.into()) }
    }

    /// The attribute's value.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, perm) in &self.entries {
            let (tag, id) = tag.encode();
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&perm.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        value
    }

    /// One entry each of owner, group and others; a mask where there are named entries; entries sorted by
    /// kind; permissions of three bits.
    fn is_valid(&self) -> bool {
        let rank = |tag: &Tag| tag.encode().0;
        let sorted = self.entries.windows(2).all(|pair| rank(&pair[0].0) <= rank(&pair[1].0));
        let count = |wanted: Tag| self.entries.iter().filter(|(tag, _)| *tag == wanted).count();
        let named = self.entries.iter().any(|(tag, _)| matches!(tag, Tag::User(_) | Tag::Group(_)));
        let masks = count(Tag::Mask);
        sorted
            && [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().all(|tag| count(tag) == 1)
            && masks <= 1
            && (masks == 1 || !named)
            && self.entries.iter().all(|(_, perm)| *perm <= 7)
    }

    fn perm(&self, wanted: Tag) -> Option<u16> {
        self.entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, perm)| *perm)
    }

    fn update(&mut self, wanted: Tag, change: impl Fn(u16) -> u16) {
        for (tag, perm) in &mut self.entries {
            if *tag == wanted {
                *perm = change(*perm);
            }
        }
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> Tag {
        if self.perm(Tag::Mask).is_some() { Tag::Mask } else { Tag::GroupObj }
    }

    /// The nine permission bits that the list amounts to.
    #[must_use]
    pub fn mode(&self) -> u16 {
        let bits = |tag| self.perm(tag).unwrap_or(0);
        bits(Tag::UserObj) << 6 | bits(self.group_class()) << 3 | bits(Tag::Other)
    }

    /// Whether the mode's nine bits say everything that the list says.
    #[must_use]
    pub fn is_equivalent_to_mode(&self) -> bool {
        self.entries.len() == 3
    }

    /// What `chmod` to `mode` makes of the list.
    pub fn chmod(&mut self, mode: u16) {
        let class = self.group_class();
        self.update(Tag::UserObj, |_| mode >> 6 & 7);
        self.update(class, |_| mode >> 3 & 7);
        self.update(Tag::Other, |_| mode & 7);
    }

    /// The access list and permission bits of a new inode made with `perm` under this default list: no more
    /// than either allows.
    #[must_use]
    pub fn inherit(&self, perm: u16) -> (Self, u16) {
        let mut access = self.clone();
        let class = access.group_class();
        access.update(Tag::UserObj, |bits| bits & perm >> 6);
        access.update(class, |bits| bits & perm >> 3);
        access.update(Tag::Other, |bits| bits & perm);
        let mode = perm & !0o777 | access.mode();
        (access, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u16)]) -> Acl {
        let acl = Acl { entries: entries.to_vec() };
        assert!(acl.is_valid());
        acl
    }

    fn with_mask() -> Acl {
        acl(&[(Tag::UserObj, 7), (Tag::User(1000), 6), (Tag::GroupObj, 5), (Tag::Mask, 6), (Tag::Other, 4)])
    }

    #[test]
    fn encoding_and_parsing_agree() {
        let list = with_mask();
        assert_eq!(Acl::parse(&list.encode()).unwrap(), Some(list));
    }

    #[test]
    fn damaged_values_are_refused() {
        let good = with_mask().encode();
        assert_eq!(Acl::parse(&good[..3]).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(Acl::parse(&good[..good.len() - 1]).unwrap_err().errno(), Errno::INVAL);
        let mut version = good.clone();
        version[0] = 1;
        assert_eq!(Acl::parse(&version).unwrap_err().errno(), Errno::OPNOTSUPP);
        let mut tag = good.clone();
        tag[4] = 0x40;
        assert_eq!(Acl::parse(&tag).unwrap_err().errno(), Errno::INVAL);
        let without_mask = [(Tag::UserObj, 7), (Tag::User(1), 7), (Tag::GroupObj, 7), (Tag::Other, 7)];
        let value = Acl { entries: without_mask.to_vec() }.encode();
        assert_eq!(Acl::parse(&value).unwrap_err().errno(), Errno::INVAL);
        assert_eq!(Acl::parse(&VERSION.to_le_bytes()).unwrap(), None);
    }

    #[test]
    fn the_group_bits_are_the_mask_where_there_is_one() {
        assert_eq!(with_mask().mode(), 0o764);
        let minimal = acl(&[(Tag::UserObj, 6), (Tag::GroupObj, 5), (Tag::Other, 0)]);
        assert_eq!(minimal.mode(), 0o650);
        assert!(minimal.is_equivalent_to_mode() && !with_mask().is_equivalent_to_mode());
    }

    #[test]
    fn chmod_changes_the_mask_and_leaves_the_group() {
        let mut list = with_mask();
        list.chmod(0o4700);
        assert_eq!(list.mode(), 0o700);
        assert_eq!(list.perm(Tag::GroupObj), Some(5));
        assert_eq!(list.perm(Tag::Mask), Some(0));
    }

    #[test]
    fn inheritance_allows_no_more_than_the_mode_asks_for() {
        let (access, mode) = with_mask().inherit(0o1640);
        assert_eq!(mode, 0o1640);
        assert_eq!(access.perm(Tag::User(1000)), Some(6));
        assert_eq!(access.perm(Tag::Mask), Some(4));
        assert_eq!(access.perm(Tag::Other), Some(0));
    }
}
