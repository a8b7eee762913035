//! Extended attributes: sorted entries in one block, or behind the fixed fields of a large inode.
//!
//! **Layout.** Entries grow upwards from the start of the area, values downwards from its end, four zero
//! bytes end the entries. A block starts with a header that counts the inodes which share it.

use fstitch_core::{BlockNo, Error, Result, Structure};

use super::field::fields;
use crate::ext2::num::{idx, small};

/// What `h_magic` and the word before the entries in an inode hold.
pub const XATTR_MAGIC: u32 = 0xea02_0000;
/// Bytes of a block's header.
pub const BLOCK_HEADER: usize = 32;
/// Bytes of the word before the entries in an inode.
pub const BODY_HEADER: usize = 4;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 16;
/// How many inodes may share a block.
pub const REFCOUNT_MAX: u32 = 1024;

fields! {
    /// [`XATTR_MAGIC`].
    H_MAGIC: u32 @ 0;
    /// Inodes that share the block.
    H_REFCOUNT: u32 @ 4;
    /// Blocks: 1.
    H_BLOCKS: u32 @ 8;
    /// Hash of all entries.
    H_HASH: u32 @ 12;
    /// The block's sum, on volumes with sums.
    H_CHECKSUM: u32 @ 16;
}

fields! {
    /// Bytes of the name.
    E_NAME_LEN: u8 @ 0;
    /// Namespace.
    E_NAME_INDEX: u8 @ 1;
    /// Where the value starts.
    E_VALUE_OFFS: u16 @ 2;
    /// Inode of the value: 0 if it is in the same area.
    E_VALUE_BLOCK: u32 @ 4;
    /// Bytes of the value.
    E_VALUE_SIZE: u32 @ 8;
    /// Hash of name and value.
    E_HASH: u32 @ 12;
}

const _: () = assert!(E_HASH.end() == ENTRY_HEADER && H_CHECKSUM.end() <= BLOCK_HEADER);

/// `user.`
pub const INDEX_USER: u8 = 1;
/// `system.posix_acl_access`
pub const INDEX_POSIX_ACL_ACCESS: u8 = 2;
/// `system.posix_acl_default`
pub const INDEX_POSIX_ACL_DEFAULT: u8 = 3;
/// `trusted.`
pub const INDEX_TRUSTED: u8 = 4;
/// `security.`
pub const INDEX_SECURITY: u8 = 6;
/// What belongs to the system, and no program sees.
pub const INDEX_SYSTEM: u8 = 7;

const PREFIXES: [(u8, &[u8]); 3] =
    [(INDEX_USER, b"user."), (INDEX_TRUSTED, b"trusted."), (INDEX_SECURITY, b"security.")];
const WHOLE_NAMES: [(u8, &[u8]); 2] = [
    (INDEX_POSIX_ACL_ACCESS, b"system.posix_acl_access"),
    (INDEX_POSIX_ACL_DEFAULT, b"system.posix_acl_default"),
];

/// Namespace and rest of a full name; `None` for namespaces that the format does not have.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    if let Some((index, _)) = WHOLE_NAMES.iter().find(|(_, name)| *name == full) {
        return Some((*index, b""));
    }
    PREFIXES
        .iter()
        .find_map(|(index, prefix)| full.strip_prefix(*prefix).map(|rest| (*index, rest)))
        .filter(|(_, rest)| !rest.is_empty())
}

/// The full name of an attribute; `None` for namespaces that we do not know.
#[must_use]
pub fn full_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    if let Some((_, whole)) = WHOLE_NAMES.iter().find(|(known, _)| *known == index) {
        return name.is_empty().then(|| whole.to_vec());
    }
    let (_, prefix) = PREFIXES.iter().find(|(known, _)| *known == index)?;
    Some([prefix, name].concat())
}

/// One attribute, as stored (access control lists in the format's own encoding).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// Namespace.
    pub index: u8,
    /// Name without the namespace's prefix.
    pub name: Vec<u8>,
    /// Value; nothing if it is elsewhere.
    pub value: Vec<u8>,
    /// Where the value is, if it is not here.
    pub elsewhere: Option<Elsewhere>,
}

/// A value in an inode of its own (feature `ea_inode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The inode.
    pub inode: u32,
    /// Bytes of the value.
    pub size: u32,
    /// The hash of name and value, which nothing here tells.
    pub hash: u32,
}

impl Xattr {
    /// Hash of name and value, as `e_hash` holds it.
    #[must_use]
    pub fn hash(&self) -> u32 {
        if let Some(elsewhere) = self.elsewhere {
            return elsewhere.hash;
        }
        if self.index == INDEX_SYSTEM {
            // Its value changes in place.
            return 0;
        }
        let name = self.name.iter().fold(0_u32, |hash, &byte| hash.rotate_left(5) ^ u32::from(byte));
        self.value.chunks(4).fold(name, |hash, chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            hash.rotate_left(16) ^ u32::from_le_bytes(word)
        })
    }

    fn key(&self) -> (u8, usize, &[u8]) {
        (self.index, self.name.len(), &self.name)
    }

    fn entry_size(&self) -> usize {
        ENTRY_HEADER + self.name.len().next_multiple_of(4)
    }
}

/// The attributes of one area, in the order in which they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct XattrSet(pub Vec<Xattr>);

impl XattrSet {
    /// The value of an attribute, as far as it is here.
    #[must_use]
    pub fn get(&self, index: u8, name: &[u8]) -> Option<&[u8]> {
        self.find(index, name).map(|x| x.value.as_slice())
    }

    /// An attribute.
    #[must_use]
    pub fn find(&self, index: u8, name: &[u8]) -> Option<&Xattr> {
        self.0.iter().find(|x| x.index == index && x.name == name)
    }

    /// Adds or replaces an attribute.
    pub fn set(&mut self, attribute: Xattr) {
        match self.0.binary_search_by(|x| x.key().cmp(&attribute.key())) {
            Ok(at) => self.0[at] = attribute,
            Err(at) => self.0.insert(at, attribute),
        }
    }

    /// Removes an attribute; false if it was not there.
    pub fn remove(&mut self, index: u8, name: &[u8]) -> bool {
        let before = self.0.len();
        self.0.retain(|x| x.index != index || x.name != name);
        self.0.len() < before
    }

    /// Bytes that entries, their end and values take.
    #[must_use]
    pub fn size(&self) -> usize {
        4 + self.0.iter().map(|x| x.entry_size() + x.value.len().next_multiple_of(4)).sum::<usize>()
    }

    /// The hash of all entries, as `h_hash` holds it: 0 if any entry has none.
    #[must_use]
    pub fn hash(&self) -> u32 {
        let hashes = self.0.iter().map(Xattr::hash);
        if hashes.clone().any(|hash| hash == 0) {
            return 0;
        }
        hashes.fold(0_u32, |all, hash| all.rotate_left(16) ^ hash)
    }

    /// Reads the entries that start at `first` of `area`; value offsets count from the start of `area`.
    ///
    /// # Errors
    /// `Corrupt`: `block` is where the area lies.
    pub fn parse(area: &[u8], first: usize, block: BlockNo) -> Result<Self> {
        let damaged =
            |at: usize, problem: &str| Error::corrupt(Structure::AttributeEntry(at), block, problem);
        let mut set = Self::default();
        let mut at = first;
        loop {
            let rest = area.get(at..).unwrap_or_default();
            if rest.len() < 4 {
                return Err(damaged(at, "the entries have no end"));
            }
            if rest[..4] == [0; 4] {
                break;
            }
            if rest.len() < ENTRY_HEADER {
                return Err(damaged(at, "cut off by the end of the area"));
            }
            let name_len = usize::from(E_NAME_LEN.get(rest));
            let name = rest.get(ENTRY_HEADER..ENTRY_HEADER + name_len);
            let name = name.ok_or_else(|| damaged(at, "the name leaves the area"))?;
            let (start, size) = (usize::from(E_VALUE_OFFS.get(rest)), E_VALUE_SIZE.get(rest));
            let inode = E_VALUE_BLOCK.get(rest);
            let elsewhere = (inode != 0).then(|| Elsewhere { inode, size, hash: E_HASH.get(rest) });
            let here = if elsewhere.is_some() { 0..0 } else { start..start.saturating_add(idx(size)) };
            let value = area.get(here).ok_or_else(|| damaged(at, "the value leaves the area"))?.to_vec();
            set.0.push(Xattr { index: E_NAME_INDEX.get(rest), name: name.to_vec(), value, elsewhere });
            at += ENTRY_HEADER + name_len.next_multiple_of(4);
        }
        set.0.sort_by(|a, b| a.key().cmp(&b.key()));
        Ok(set)
    }

    /// Writes the entries from `first` of `area` on, and their values at its end; all else from `first` on is zeroed.
    /// False, with `area` unchanged, if they do not fit.
    #[must_use]
    pub fn encode_into(&self, area: &mut [u8], first: usize) -> bool {
        if first + self.size() > area.len() {
            return false;
        }
        area[first..].fill(0);
        let (mut at, mut end) = (first, area.len());
        for attribute in &self.0 {
            end -= attribute.value.len().next_multiple_of(4);
            area[end..end + attribute.value.len()].copy_from_slice(&attribute.value);
            let entry = &mut area[at..at + attribute.entry_size()];
            let offset = if attribute.value.is_empty() { 0 } else { end };
            E_NAME_LEN.put(entry, u8::try_from(attribute.name.len()).expect("names have at most 255 bytes"));
            E_NAME_INDEX.put(entry, attribute.index);
            E_VALUE_OFFS.put(entry, u16::try_from(offset).expect("areas have at most 4096 bytes"));
            let size = attribute.elsewhere.map_or(small(attribute.value.len()), |elsewhere| elsewhere.size);
            E_VALUE_SIZE.put(entry, size);
            E_VALUE_BLOCK.put(entry, attribute.elsewhere.map_or(0, |elsewhere| elsewhere.inode));
            E_HASH.put(entry, attribute.hash());
            entry[ENTRY_HEADER..ENTRY_HEADER + attribute.name.len()].copy_from_slice(&attribute.name);
            at += attribute.entry_size();
        }
        true
    }

    /// Reads an attribute block and its reference count.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse_block(bytes: &[u8], block: BlockNo) -> Result<(Self, u32)> {
        let damaged = |problem: String| Error::corrupt(Structure::AttributeBlock, block, problem);
        if H_MAGIC.get(bytes) != XATTR_MAGIC {
            return Err(damaged(format!("magic {:#010x}", H_MAGIC.get(bytes))));
        }
        if H_BLOCKS.get(bytes) != 1 {
            return Err(damaged(format!("{} blocks, expected 1", H_BLOCKS.get(bytes))));
        }
        let refcount = H_REFCOUNT.get(bytes);
        if refcount == 0 {
            return Err(damaged("reference count 0".into()));
        }
        Ok((Self::parse(bytes, BLOCK_HEADER, block)?, refcount))
    }

    /// Fills a whole block; false, with `bytes` unchanged, if the attributes do not fit.
    #[must_use]
    pub fn encode_block(&self, bytes: &mut [u8], refcount: u32) -> bool {
        if !self.encode_into(bytes, BLOCK_HEADER) {
            return false;
        }
        bytes[..BLOCK_HEADER].fill(0);
        H_MAGIC.put(bytes, XATTR_MAGIC);
        H_REFCOUNT.put(bytes, refcount);
        H_BLOCKS.put(bytes, 1);
        H_HASH.put(bytes, self.hash());
        true
    }

    /// Whether an inode's bytes behind its fixed fields hold attributes.
    #[must_use]
    pub fn is_in_body(body: &[u8]) -> bool {
        body.len() >= BODY_HEADER + 4 && H_MAGIC.get(body) == XATTR_MAGIC
    }

    /// Reads the attributes in an inode's bytes behind its fixed fields; none if the magic is absent.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse_body(body: &[u8], block: BlockNo) -> Result<Self> {
        if !Self::is_in_body(body) {
            return Ok(Self::default());
        }
        Self::parse(&body[BODY_HEADER..], 0, block)
    }

    /// Where the value of an attribute lies in an inode's bytes behind its fixed fields, which are known to be intact.
    #[must_use]
    pub fn place_in_body(body: &[u8], index: u8, name: &[u8]) -> Option<std::ops::Range<usize>> {
        if !Self::is_in_body(body) {
            return None;
        }
        let mut rest = &body[BODY_HEADER..];
        while rest.len() >= ENTRY_HEADER && rest[..4] != [0; 4] {
            let name_len = usize::from(E_NAME_LEN.get(rest));
            if E_NAME_INDEX.get(rest) == index
                && rest.get(ENTRY_HEADER..ENTRY_HEADER + name_len) == Some(name)
            {
                let start = BODY_HEADER + usize::from(E_VALUE_OFFS.get(rest));
                let range = start..start + idx(E_VALUE_SIZE.get(rest));
                return (E_VALUE_BLOCK.get(rest) == 0 && range.end <= body.len()).then_some(range);
            }
            rest = rest.get(ENTRY_HEADER + name_len.next_multiple_of(4)..).unwrap_or_default();
        }
        None
    }

    /// Fills an inode's bytes behind its fixed fields; false, with `body` unchanged, if they do not fit.
    #[must_use]
    pub fn encode_body(&self, body: &mut [u8]) -> bool {
        if self.0.is_empty() {
            body.fill(0);
            return true;
        }
        if body.len() < BODY_HEADER || !self.encode_into(&mut body[BODY_HEADER..], 0) {
            return false;
        }
        H_MAGIC.put(body, XATTR_MAGIC);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> XattrSet {
        let mut set = XattrSet::default();
        for (name, value) in [
            (&b"user.long-name"[..], &b"value"[..]),
            (b"trusted.t", b""),
            (b"user.a", b"12345678"),
            (b"security.s", b"x"),
        ] {
            let (index, name) = split_name(name).unwrap();
            set.set(Xattr { index, name: name.to_vec(), value: value.to_vec(), elsewhere: None });
        }
        set
    }

    #[test]
    fn blocks_and_bodies_round_trip() {
        let set = sample();
        let mut block = vec![0xee; 1024];
        assert!(set.encode_block(&mut block, 3));
        assert_eq!(XattrSet::parse_block(&block, BlockNo(1)).unwrap(), (set.clone(), 3));
        let mut body = vec![0xee; 160];
        assert!(set.encode_body(&mut body));
        assert_eq!(XattrSet::parse_body(&body, BlockNo(1)).unwrap(), set);
        let mut tiny = vec![0xee; 64];
        assert!(!set.encode_body(&mut tiny));
        assert_eq!(tiny, vec![0xee; 64]);
    }

    #[test]
    fn entries_are_sorted_by_namespace_length_and_name() {
        let names: Vec<_> = sample().0.iter().map(|x| full_name(x.index, &x.name).unwrap()).collect();
        assert_eq!(names, [&b"user.a"[..], b"user.long-name", b"trusted.t", b"security.s"]);
    }

    #[test]
    fn the_hash_is_the_specified_one() {
        let one = Xattr { index: 1, name: b"ab".to_vec(), value: vec![1, 0, 0, 0, 2], elsewhere: None };
        // Name: 'a' << 5 ^ 'b'; then each word of the padded value.
        let name = (0x61 << 5) ^ 0x62_u32;
        let expected = (name.rotate_left(16) ^ 1).rotate_left(16) ^ 2;
        assert_eq!(one.hash(), expected);
    }

    #[test]
    fn contents_have_a_place_and_no_hash() {
        let mut set = sample();
        let contents = Xattr {
            index: INDEX_SYSTEM,
            name: b"data".to_vec(),
            value: b"contents".to_vec(),
            elsewhere: None,
        };
        assert_eq!(contents.hash(), 0);
        let mut body = vec![0; 160];
        assert!(set.encode_body(&mut body));
        assert_eq!(XattrSet::place_in_body(&body, INDEX_SYSTEM, b"data"), None);
        set.set(contents);
        assert!(set.encode_body(&mut body));
        let place = XattrSet::place_in_body(&body, INDEX_SYSTEM, b"data").unwrap();
        assert_eq!(&body[place], b"contents");
        assert_eq!(XattrSet::place_in_body(&[0; 100], INDEX_SYSTEM, b"data"), None);
    }

    #[test]
    fn values_elsewhere_stay_there() {
        let mut set = sample();
        let elsewhere = Some(Elsewhere { inode: 77, size: 5000, hash: 9 });
        set.set(Xattr { index: 1, name: b"large".to_vec(), value: Vec::new(), elsewhere });
        let mut block = vec![0xee; 1024];
        assert!(set.encode_block(&mut block, 1));
        assert_eq!(XattrSet::parse_block(&block, BlockNo(1)).unwrap(), (set, 1));
    }

    #[test]
    fn unknown_namespaces_have_no_index() {
        assert_eq!(split_name(b"system.other"), None);
        assert_eq!(split_name(b"user."), None);
        assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
        assert_eq!(full_name(9, b"x"), None);
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut seed = fstitch_core::Seed::new(3);
        for _ in 0..5_000 {
            let mut block = vec![0; 1024];
            assert!(sample().encode_block(&mut block, 1));
            for _ in 0..4 {
                let at = usize::try_from(seed.below(160)).unwrap();
                block[at] = u8::try_from(seed.below(256)).unwrap();
            }
            let _ = XattrSet::parse_block(&block, BlockNo(1));
        }
    }
}
