//! Pages as bytes: a head of 16 bytes, and entries or children one behind the other.
//!
//! ```text
//!    0  magic "LDPG"     4  what the tree is     5  1: inner page     6  number of entries or children     8  zero
//! ```
//!
//! A leaf's entry is a key and a value, an inner page's a key, the number of entries below (8 bytes), the block (8) and the sum (4).
//! The sum of a page is with whoever leads to it.

use fstitch_core::{BlockNo, Corruption, Error, Le, Result, Structure};

use super::{Child, Link, Node, Place};

/// A value of so many bytes.
pub trait Fixed: Copy {
    /// How many bytes it takes.
    const SIZE: usize;
    /// Writes it to the beginning of `bytes`.
    fn put(&self, bytes: &mut [u8]);
    /// Reads it from the beginning of `bytes`.
    fn get(bytes: &[u8]) -> Self;
}

impl Fixed for u64 {
    const SIZE: usize = 8;

    fn put(&self, bytes: &mut [u8]) {
        Le::put_u64(bytes, 0, *self);
    }

    fn get(bytes: &[u8]) -> Self {
        Le::u64(bytes, 0)
    }
}

impl Fixed for (u64, u64) {
    const SIZE: usize = 16;

    fn put(&self, bytes: &mut [u8]) {
        Le::put_u64(bytes, 0, self.0);
        Le::put_u64(bytes, 8, self.1);
    }

    fn get(bytes: &[u8]) -> Self {
        (Le::u64(bytes, 0), Le::u64(bytes, 8))
    }
}

const MAGIC: u32 = u32::from_le_bytes(*b"LDPG");
const HEAD: usize = 16;
/// What a child takes beside its key.
const CHILD: usize = 20;

/// How many entries a leaf has room for.
pub(super) fn leaf_room<K: Fixed, V: Fixed>(page_size: usize) -> usize {
    (page_size - HEAD) / (K::SIZE + V::SIZE)
}

/// How many children an inner page has room for.
pub(super) fn inner_room<K: Fixed>(page_size: usize) -> usize {
    (page_size - HEAD) / (K::SIZE + CHILD)
}

impl<K: Fixed + Ord, V: Fixed> Node<K, V> {
    /// Writes the page; its children must be on the medium.
    pub(crate) fn encode(&self, tree: u8, page: &mut [u8]) {
        page.fill(0);
        Le::put_u32(page, 0, MAGIC);
        (page[4], page[5]) = (tree, u8::from(matches!(self, Self::Inner(_))));
        Le::put_u16(page, 6, u16::try_from(self.len()).expect("a page has fewer than 2^16 entries"));
        match self {
            Self::Leaf(entries) => {
                for (bytes, (key, value)) in page[HEAD..].chunks_mut(K::SIZE + V::SIZE).zip(entries) {
                    key.put(bytes);
                    value.put(&mut bytes[K::SIZE..]);
                }
            }
            Self::Inner(children) => {
                for (bytes, child) in page[HEAD..].chunks_mut(K::SIZE + CHILD).zip(children) {
                    let Link::Medium(place) = &child.link else { panic!("children are written first") };
                    child.first.put(bytes);
                    let rest = &mut bytes[K::SIZE..];
                    Le::put_u64(rest, 0, child.count);
                    Le::put_u64(rest, 8, place.block);
                    Le::put_u32(rest, 16, place.sum);
                }
            }
        }
    }

    /// Reads the page at `place`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none of this tree, or its sum or its order is wrong.
    pub(crate) fn decode(tree: u8, page: &[u8], place: Place) -> Result<Self> {
        let damage = |problem: String| {
            let what = Structure::Other("page of a tree");
            Error::Corrupt(Corruption { what, block: Some(BlockNo(place.block)), problem }.into())
        };
        let sum = crc32c::crc32c(page);
        if sum != place.sum {
            return Err(damage(format!("its sum is {sum:#010x}, not {:#010x}", place.sum)));
        }
        if Le::u32(page, 0) != MAGIC || page[4] != tree {
            return Err(damage(format!("it is no page of tree {tree}")));
        }
        let (is_leaf, len) = (page[5] == 0, usize::from(Le::u16(page, 6)));
        let room = if is_leaf { leaf_room::<K, V>(page.len()) } else { inner_room::<K>(page.len()) };
        if len > room || (!is_leaf && len == 0) {
            return Err(damage(format!("it has {len} entries and room for {room}")));
        }
        let node = if is_leaf {
            let entries = page[HEAD..].chunks(K::SIZE + V::SIZE).take(len);
            Self::Leaf(entries.map(|bytes| (K::get(bytes), V::get(&bytes[K::SIZE..]))).collect())
        } else {
            let children = page[HEAD..].chunks(K::SIZE + CHILD).take(len);
            Self::Inner(children.map(child_from).collect())
        };
        if !node.ascends() {
            return Err(damage("its keys do not ascend".into()));
        }
        Ok(node)
    }

    fn ascends(&self) -> bool {
        match self {
            Self::Leaf(entries) => entries.is_sorted_by(|a, b| a.0 < b.0),
            Self::Inner(children) => {
                let sum = children.iter().try_fold(0, |sum: u64, child| sum.checked_add(child.count));
                let counts = sum.is_some() && children.iter().all(|child| child.count > 0);
                counts && children.is_sorted_by(|a, b| a.first < b.first)
            }
        }
    }
}

fn child_from<K: Fixed, V>(bytes: &[u8]) -> Child<K, V> {
    let rest = &bytes[K::SIZE..];
    let place = Place { block: Le::u64(rest, 8), sum: Le::u32(rest, 16) };
    Child { first: K::get(bytes), count: Le::u64(rest, 0), link: Link::Medium(place) }
}
