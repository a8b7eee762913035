//! Extent nodes: a header and entries, in an inode's 60 bytes or in a block of their own.
//!
//! **Layout.** Header and entries have 12 bytes each. In a leaf (depth 0) an entry maps file blocks to blocks of the volume,
//! elsewhere it names the node that maps everything from its file block on. Entries are sorted and do not overlap. Behind
//! the last *possible* entry of a block lies its sum, if the volume has sums.

use fstitch_core::{BlockNo, Error, Result, Structure};

use super::field::fields;
use super::inode::{FAST_SYMLINK, POINTERS};
use crate::ext2::num::{high32, low16, low32, small};

/// What `eh_magic` holds.
pub const EXTENT_MAGIC: u16 = 0xf30a;
/// Bytes of the header.
pub const EXTENT_HEADER: usize = 12;
/// Bytes of an entry.
pub const EXTENT_ENTRY: usize = 12;
/// How deep a tree may be: with nodes of the smallest blocks five levels reach all of a file.
pub const DEPTH_MAX: u16 = 5;
/// One more than the last file block that an extent can map: a file has at most as many blocks as 32 bits count.
pub const LOGICAL_END: u64 = (1 << 32) - 1;
/// The longest extent of written blocks.
pub const WRITTEN_MAX: u32 = 32_768;
/// The longest extent of blocks that were not written yet, one less, for the length's top bit says so.
pub const UNWRITTEN_MAX: u32 = 32_767;
/// Bytes behind the last possible entry of a block that its sum takes.
pub const EXTENT_TAIL: usize = 4;

fields! {
    /// [`EXTENT_MAGIC`].
    EH_MAGIC: u16 @ 0;
    /// Entries in use.
    EH_ENTRIES: u16 @ 2;
    /// Entries that there is room for.
    EH_MAX: u16 @ 4;
    /// Levels below this node: 0 for a leaf.
    EH_DEPTH: u16 @ 6;
    /// Not used by anybody.
    EH_GENERATION: u32 @ 8;
}

fields! {
    /// The first file block of an index entry.
    EI_BLOCK: u32 @ 0;
    /// The block of the node below, low half.
    EI_LEAF_LO: u32 @ 4;
    /// High half.
    EI_LEAF_HI: u16 @ 8;
}

fields! {
    /// The first file block of an extent.
    EE_BLOCK: u32 @ 0;
    /// Blocks; what is above [`WRITTEN_MAX`] counts blocks that were not written.
    EE_LEN: u16 @ 4;
    /// The first block on the volume, high half.
    EE_START_HI: u16 @ 6;
    /// Low half.
    EE_START_LO: u32 @ 8;
}

const _: () = assert!(EH_GENERATION.end() == EXTENT_HEADER && EE_START_LO.end() == EXTENT_ENTRY);

/// Entries that fit an inode's 60 bytes.
pub const ROOT_MAX: u16 = 4;
const _: () = assert!(EXTENT_HEADER + 4 * EXTENT_ENTRY == FAST_SYMLINK);

/// Entries that fit a block. The four bytes that a sum takes are left behind the last one whatever the block's size.
#[must_use]
pub fn block_max(block_size: usize) -> u16 {
    u16::try_from((block_size - EXTENT_HEADER) / EXTENT_ENTRY).expect("blocks have at most 65536 bytes")
}

const _: () = {
    let mut size = 1024;
    while size <= 65_536 {
        assert!((size - EXTENT_HEADER) % EXTENT_ENTRY >= EXTENT_TAIL);
        size *= 2;
    }
};

/// A run of a file's blocks that lie behind each other on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first file block.
    pub block: u32,
    /// Blocks, at least one.
    pub len: u32,
    /// The first block on the volume.
    pub start: u64,
    /// The blocks belong to the file, but read as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The file block behind the last one: 2^32 at most.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.block) + u64::from(self.len)
    }

    /// Where file block `block`, which the extent maps, lies on the volume.
    #[must_use]
    pub fn at(&self, block: u32) -> u64 {
        self.start + u64::from(block - self.block)
    }

    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; EXTENT_ENTRY] {
        let most = if self.unwritten { UNWRITTEN_MAX } else { WRITTEN_MAX };
        assert!(self.len > 0 && self.len <= most, "an extent of {} blocks", self.len);
        let len = self.len + if self.unwritten { WRITTEN_MAX } else { 0 };
        let mut raw = [0; EXTENT_ENTRY];
        EE_BLOCK.put(&mut raw, self.block);
        EE_LEN.put(&mut raw, u16::try_from(len).expect("at most 65535"));
        EE_START_LO.put(&mut raw, low32(self.start));
        EE_START_HI.put(&mut raw, low16(high32(self.start)));
        raw
    }
}

/// An entry above the leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index {
    /// The first file block that the node below may map.
    pub block: u32,
    /// The block of that node.
    pub node: u64,
}

impl Index {
    /// The entry's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; EXTENT_ENTRY] {
        let mut raw = [0; EXTENT_ENTRY];
        EI_BLOCK.put(&mut raw, self.block);
        EI_LEAF_LO.put(&mut raw, low32(self.node));
        EI_LEAF_HI.put(&mut raw, low16(high32(self.node)));
        raw
    }
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Extents.
    Leaf(Vec<Extent>),
    /// The nodes below.
    Inner(Vec<Index>),
}

impl Entries {
    /// Entries in use.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Leaf(extents) => extents.len(),
            Self::Inner(nodes) => nodes.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A validated node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Levels below it.
    pub depth: u16,
    /// Entries that there is room for.
    pub max: u16,
    /// Its entries.
    pub entries: Entries,
}

/// What is expected of a node: by where it lies and by the node above it.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The block that it lies in, or that of its inode.
    pub at: BlockNo,
    /// Levels below it, if the node above says so.
    pub depth: Option<u16>,
    /// The file blocks that it may map.
    pub range: (u32, u64),
    /// Blocks on the volume.
    pub blocks_count: u64,
}

impl Expected {
    /// What is expected of a root in the inode that lies in block `at`.
    #[must_use]
    pub const fn root(at: BlockNo, blocks_count: u64) -> Self {
        Self { at, depth: None, range: (0, LOGICAL_END), blocks_count }
    }
}

impl Node {
    /// Reads and checks the node in `raw`, which is a whole block or an inode's 60 bytes: everything but whether the blocks
    /// that it names can belong to a file, of which only the volume's end is known here.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn parse(raw: &[u8], expected: &Expected) -> Result<Self> {
        let damaged = |problem: String| Error::corrupt(Structure::Other("extent node"), expected.at, problem);
        let room = (raw.len() - EXTENT_HEADER) / EXTENT_ENTRY;
        let (entries, max, depth) = (EH_ENTRIES.get(raw), EH_MAX.get(raw), EH_DEPTH.get(raw));
        if EH_MAGIC.get(raw) != EXTENT_MAGIC {
            return Err(damaged(format!("magic {:#06x}, expected {EXTENT_MAGIC:#06x}", EH_MAGIC.get(raw))));
        }
        if max == 0 || usize::from(max) > room || entries > max {
            return Err(damaged(format!("{entries} of {max} entries, with room for {room}")));
        }
        if depth > DEPTH_MAX || expected.depth.is_some_and(|expected| depth != expected) {
            let wanted = expected.depth.map_or(format!("at most {DEPTH_MAX}"), |depth| depth.to_string());
            return Err(damaged(format!("depth {depth}, expected {wanted}")));
        }
        let used = raw[EXTENT_HEADER..].chunks_exact(EXTENT_ENTRY).take(usize::from(entries));
        let entries = if depth == 0 { leaf(used, expected) } else { inner(used, expected) };
        Ok(Self { depth, max, entries: entries.map_err(damaged)? })
    }

    /// The root in an inode's words.
    ///
    /// # Errors
    /// As [`Node::parse`].
    pub fn parse_root(block: &[u32; POINTERS], at: BlockNo, blocks_count: u64) -> Result<Self> {
        Self::parse(&super::inode::pointer_bytes(block), &Expected::root(at, blocks_count))
    }

    /// Writes header and entries to the start of `raw`. What lies behind them is kept.
    ///
    /// # Panics
    /// If there are more entries than room, or the room is more than `raw`.
    pub fn encode_into(&self, raw: &mut [u8]) {
        assert!(self.entries.len() <= usize::from(self.max), "entries fit their node");
        assert!(EXTENT_HEADER + usize::from(self.max) * EXTENT_ENTRY <= raw.len(), "a node fits its place");
        EH_MAGIC.put(raw, EXTENT_MAGIC);
        EH_ENTRIES.put(raw, u16::try_from(self.entries.len()).expect("at most `max`"));
        EH_MAX.put(raw, self.max);
        EH_DEPTH.put(raw, self.depth);
        EH_GENERATION.put(raw, 0);
        let slots = raw[EXTENT_HEADER..].chunks_exact_mut(EXTENT_ENTRY);
        match &self.entries {
            Entries::Leaf(extents) => {
                slots.zip(extents).for_each(|(slot, entry)| slot.copy_from_slice(&entry.encode()));
            }
            Entries::Inner(nodes) => {
                slots.zip(nodes).for_each(|(slot, entry)| slot.copy_from_slice(&entry.encode()));
            }
        }
    }

    /// The inode's words of a root.
    ///
    /// # Panics
    /// If the node has room for more entries than a root.
    #[must_use]
    pub fn root_words(&self) -> [u32; POINTERS] {
        let mut raw = [0; FAST_SYMLINK];
        self.encode_into(&mut raw);
        super::inode::words(&raw)
    }

    /// A new file's root.
    #[must_use]
    pub const fn empty_root() -> Self {
        Self { depth: 0, max: ROOT_MAX, entries: Entries::Leaf(Vec::new()) }
    }
}

/// The first block of an extent, from its entry.
#[must_use]
pub fn extent_start(raw: &[u8]) -> u64 {
    u64::from(EE_START_LO.get(raw)) | u64::from(EE_START_HI.get(raw)) << 32
}

fn leaf<'a>(used: impl Iterator<Item = &'a [u8]>, expected: &Expected) -> Result<Entries, String> {
    let mut extents: Vec<Extent> = Vec::new();
    for raw in used {
        let (block, field) = (EE_BLOCK.get(raw), u32::from(EE_LEN.get(raw)));
        let unwritten = field > WRITTEN_MAX;
        let len = if unwritten { field - WRITTEN_MAX } else { field };
        let extent = Extent { block, len, start: extent_start(raw), unwritten };
        let after = extents.last().map_or(u64::from(expected.range.0), Extent::end);
        if len == 0 || u64::from(block) < after || extent.end() > expected.range.1 {
            let end = expected.range.1;
            return Err(format!(
                "an extent of file blocks {block}..{}, expected in {after}..{end}",
                extent.end()
            ));
        }
        let start = extent.start;
        if start == 0 || start + u64::from(len) > expected.blocks_count {
            let count = expected.blocks_count;
            return Err(format!("an extent of blocks {start}..{}, of {count}", start + u64::from(len)));
        }
        extents.push(extent);
    }
    Ok(Entries::Leaf(extents))
}

fn inner<'a>(used: impl Iterator<Item = &'a [u8]>, expected: &Expected) -> Result<Entries, String> {
    let mut nodes: Vec<Index> = Vec::new();
    for raw in used {
        let block = EI_BLOCK.get(raw);
        let after = nodes.last().map_or(expected.range.0, |node| node.block.saturating_add(1));
        if block < after || u64::from(block) >= expected.range.1 {
            let end = expected.range.1;
            return Err(format!("a node from file block {block} on, expected in {after}..{end}"));
        }
        let node = u64::from(EI_LEAF_LO.get(raw)) | u64::from(EI_LEAF_HI.get(raw)) << 32;
        if node == 0 || node >= expected.blocks_count {
            return Err(format!("a node in block {node}, of {}", expected.blocks_count));
        }
        nodes.push(Index { block, node });
    }
    if nodes.is_empty() {
        return Err("no node below a node that is no leaf".into());
    }
    Ok(Entries::Inner(nodes))
}

/// The byte where the sum of the node in the block `raw` lies, if the header leaves room for one.
#[must_use]
pub fn tail_offset(raw: &[u8]) -> Option<usize> {
    let at = EXTENT_HEADER + usize::from(EH_MAX.get(raw)) * EXTENT_ENTRY;
    (EH_MAGIC.get(raw) == EXTENT_MAGIC && at + EXTENT_TAIL <= raw.len()).then_some(at)
}

/// Entries that fit `bytes` behind a header, as a length in memory.
#[must_use]
pub fn room(bytes: usize) -> u32 {
    small((bytes - EXTENT_HEADER) / EXTENT_ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected() -> Expected {
        Expected { at: BlockNo(7), depth: None, range: (0, LOGICAL_END), blocks_count: 100_000 }
    }

    fn sample() -> Node {
        let extents = vec![
            Extent { block: 0, len: 32_768, start: 1000, unwritten: false },
            Extent { block: 32_768, len: 5, start: 40_000, unwritten: true },
            Extent { block: u32::MAX - 2, len: 2, start: 99_998, unwritten: false },
        ];
        Node { depth: 0, max: 84, entries: Entries::Leaf(extents) }
    }

    #[test]
    fn leaves_and_indexes_round_trip() {
        let mut raw = vec![0; 1024];
        sample().encode_into(&mut raw);
        assert_eq!(Node::parse(&raw, &expected()).unwrap(), sample());
        assert_eq!(tail_offset(&raw), Some(1020));
        let nodes = vec![Index { block: 0, node: 5 }, Index { block: 9, node: 99_999 }];
        let inner = Node { depth: 2, max: 4, entries: Entries::Inner(nodes) };
        let words = inner.root_words();
        assert_eq!(Node::parse_root(&words, BlockNo(3), 100_000).unwrap(), inner);
        assert_eq!(Node::empty_root().root_words()[0], 0xf30a);
    }

    #[test]
    fn lengths_say_what_was_not_written() {
        let encoded = |len, unwritten| Extent { block: 0, len, start: 1, unwritten }.encode();
        assert_eq!(EE_LEN.get(&encoded(32_768, false)), 0x8000);
        assert_eq!(EE_LEN.get(&encoded(1, true)), 0x8001);
        assert_eq!(EE_LEN.get(&encoded(32_767, true)), 0xffff);
    }

    #[test]
    fn what_cannot_be_is_damage() {
        type Damage = fn(&mut [u8]);
        let cases: [(&str, Damage); 9] = [
            ("magic", |raw| EH_MAGIC.put(raw, 0xf30b)),
            ("of 85 entries", |raw| EH_MAX.put(raw, 85)),
            ("with room", |raw| EH_ENTRIES.put(raw, 90)),
            ("depth 6", |raw| EH_DEPTH.put(raw, 6)),
            ("expected in 32768", |raw| EE_BLOCK.put(&mut raw[24..], 32_767)),
            ("expected in 0", |raw| EE_LEN.put(&mut raw[12..], 0)),
            ("..4294967296", |raw| EE_LEN.put(&mut raw[36..], 3)),
            ("of 100000", |raw| EE_START_LO.put(&mut raw[36..], 99_999)),
            ("of 100000", |raw| EE_START_HI.put(&mut raw[36..], 1)),
        ];
        for (expected_words, damage) in cases {
            let mut raw = vec![0; 1024];
            sample().encode_into(&mut raw);
            damage(&mut raw);
            let error = Node::parse(&raw, &expected()).unwrap_err().to_string();
            assert!(error.contains(expected_words), "{error} should mention {expected_words}");
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let mut seed = fstitch_core::Seed::new(5);
        for _ in 0..20_000 {
            let mut raw = vec![0; 1024];
            sample().encode_into(&mut raw);
            for _ in 0..=seed.below(4) {
                let at = usize::try_from(seed.below(48)).unwrap();
                raw[at] = u8::try_from(seed.below(256)).unwrap();
            }
            let _ = tail_offset(&raw);
            if let Ok(node) = Node::parse(&raw, &expected()) {
                let mut again = vec![0; 1024];
                node.encode_into(&mut again);
                assert_eq!(Node::parse(&again, &expected()).unwrap(), node);
            }
        }
    }
}
