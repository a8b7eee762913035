//! Extended attributes, in inodes and in blocks of their own.
//!
//! A value may lie in an inode of its own (feature `ea_inode`), which has no name, counts the entries that refer to it and
//! holds a sum of the value; the hash of an entry is then of name and sum. The rest of a small file's contents is the value
//! of an attribute of the inode (feature `inline_data`), which no hash covers.

use std::ops::Range;

use fstitch_core::{BlockKind, Le, Result};

use super::inodes::Scan;
use super::state::{State, Volume};
use crate::ext2::layout::feature::incompat;
use crate::ext2::layout::inode::{
    EA_INODE_FL, GOOD_OLD_SIZE, I_ATIME, I_EXTRA_ISIZE, I_FLAGS, I_LINKS_COUNT, I_SIZE,
};
use crate::ext2::layout::xattr::{
    BLOCK_HEADER, BODY_HEADER, E_HASH, E_NAME_INDEX, E_NAME_LEN, E_VALUE_BLOCK, E_VALUE_OFFS, E_VALUE_SIZE,
    ENTRY_HEADER, H_BLOCKS, H_MAGIC, H_REFCOUNT, XATTR_MAGIC,
};
use crate::ext2::num::{idx, wide};

/// The namespace of what belongs to the system.
const SYSTEM: u8 = 7;
/// The name in it of the attribute with a small file's contents.
const INLINE: &[u8] = b"data";

/// Which rules differ between the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In an inode: values count from the first entry, hashes may be 0.
    Inode,
    /// In a block: values count from the block's start.
    Block,
}

/// What is wrong with an area of entries.
struct Bad {
    /// Where the first bad entry starts; there is room for the end of the entries.
    at: usize,
    /// How long it is, if it is one.
    len: Option<usize>,
    problem: String,
}

/// Sound entries.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// The inodes that hold values, once for each entry.
    pub(super) values: Vec<u32>,
    /// Clusters that these values take.
    pub(super) value_blocks: u64,
}

/// Where the entries in an inode start, if there are any.
fn body(raw: &[u8]) -> Option<usize> {
    if raw.len() <= GOOD_OLD_SIZE || I_EXTRA_ISIZE.get(raw) == 0 {
        return None;
    }
    let start = GOOD_OLD_SIZE + usize::from(I_EXTRA_ISIZE.get(raw));
    let fits = start + BODY_HEADER + 4 <= raw.len();
    (fits && Le::u32(raw, start) == XATTR_MAGIC).then_some(start + BODY_HEADER)
}

/// Checks the attributes behind an inode's fixed fields. A bad entry is removed, what follows one without an end as well.
pub(super) fn check_body(scan: &mut Scan<'_, '_>) -> Result<Entries> {
    let Some(start) = body(scan.raw) else { return Ok(Entries::default()) };
    loop {
        let bad = match check_entries(scan.volume, (&scan.raw[start..], 0), Place::Inode)? {
            Ok(entries) => return Ok(entries),
            Err(bad) => bad,
        };
        let text = format!("attributes in inode {}: {}", scan.ino, bad.problem);
        if !scan.state.corrupt("xattr-bad-body", text) {
            return Ok(Entries::default());
        }
        remove(&mut scan.raw[start..], bad.at, bad.len);
        scan.changed = true;
    }
}

/// Removes the entry at `at` of an area; without a length all from there on. Values stay where they are.
fn remove(area: &mut [u8], at: usize, len: Option<usize>) {
    let Some(len) = len else {
        area[at..at + 4].fill(0);
        return;
    };
    let mut end = at + len;
    while let Some(head) = area.get(end..end + ENTRY_HEADER)
        && head[..4] != [0; 4]
    {
        let next = end + ENTRY_HEADER + usize::from(E_NAME_LEN.get(head)).next_multiple_of(4);
        if next > area.len() {
            break;
        }
        end = next;
    }
    area.copy_within(at + len..end, at);
    area[end - len..end].fill(0);
}

/// Checks an attribute block; how many inodes it counts.
pub(super) fn check_block(
    volume: &Volume<'_>,
    bytes: &[u8],
) -> Result<std::result::Result<(u32, Entries), String>> {
    let magic = H_MAGIC.get(bytes);
    if magic != XATTR_MAGIC {
        return Ok(Err(format!("magic {magic:#x}, expected {XATTR_MAGIC:#x}")));
    }
    if H_BLOCKS.get(bytes) != 1 {
        return Ok(Err(format!("{} blocks, expected 1", H_BLOCKS.get(bytes))));
    }
    let entries = check_entries(volume, (bytes, BLOCK_HEADER), Place::Block)?;
    Ok(entries.map(|entries| (H_REFCOUNT.get(bytes), entries)).map_err(|bad| bad.problem))
}

/// The bytes of an inode that hold the rest of its contents, behind those in the place of its map.
pub(super) fn inline_value(raw: &[u8]) -> Option<Range<usize>> {
    let start = body(raw)?;
    let (at, _) = find_inline(&raw[start..])?;
    let entry = &raw[start + at..];
    let from = start + usize::from(E_VALUE_OFFS.get(entry));
    let range = from..from + idx(E_VALUE_SIZE.get(entry));
    (range.end <= raw.len()).then_some(range)
}

/// Gives an inode an empty attribute for its contents, behind its other attributes; false if there is no room.
pub(super) fn add_inline_value(raw: &mut [u8]) -> bool {
    if raw.len() <= GOOD_OLD_SIZE || I_EXTRA_ISIZE.get(raw) == 0 {
        return false;
    }
    let start = GOOD_OLD_SIZE + usize::from(I_EXTRA_ISIZE.get(raw));
    let len = ENTRY_HEADER + INLINE.len();
    if start + BODY_HEADER + len + 4 > raw.len() {
        return false;
    }
    if body(raw).is_none() {
        raw[start..].fill(0);
        H_MAGIC.put(&mut raw[start..], XATTR_MAGIC);
    }
    let area = &mut raw[start + BODY_HEADER..];
    let Some((at, lowest)) = ends(area) else { return false };
    if at + len + 4 > lowest {
        return false;
    }
    area[at..at + len + 4].fill(0);
    let entry = &mut area[at..at + len];
    E_NAME_LEN.put(entry, u8::try_from(INLINE.len()).expect("4"));
    E_NAME_INDEX.put(entry, SYSTEM);
    entry[ENTRY_HEADER..].copy_from_slice(INLINE);
    true
}

/// Where the entries of an area end, and where its first value begins.
fn ends(area: &[u8]) -> Option<(usize, usize)> {
    let (mut at, mut lowest) = (0, area.len());
    while let Some(head) = area.get(at..at + ENTRY_HEADER)
        && head[..4] != [0; 4]
    {
        if E_VALUE_SIZE.get(head) > 0 && E_VALUE_BLOCK.get(head) == 0 {
            lowest = lowest.min(usize::from(E_VALUE_OFFS.get(head)));
        }
        at += ENTRY_HEADER + usize::from(E_NAME_LEN.get(head)).next_multiple_of(4);
    }
    (at + 4 <= area.len()).then_some((at, lowest))
}

/// Takes the attribute with the contents out of an inode.
pub(super) fn remove_inline_value(raw: &mut [u8]) {
    if let Some(start) = body(raw)
        && let Some((at, len)) = find_inline(&raw[start..])
    {
        remove(&mut raw[start..], at, Some(len));
    }
}

/// Where the entry of the attribute with the contents is, and its length.
fn find_inline(area: &[u8]) -> Option<(usize, usize)> {
    let mut at = 0;
    while let Some(head) = area.get(at..at + ENTRY_HEADER)
        && head[..4] != [0; 4]
    {
        let name_len = usize::from(E_NAME_LEN.get(head));
        let len = ENTRY_HEADER + name_len.next_multiple_of(4);
        let name = area.get(at + ENTRY_HEADER..at + ENTRY_HEADER + name_len)?;
        if E_NAME_INDEX.get(head) == SYSTEM && name == INLINE {
            return Some((at, len));
        }
        at += len;
    }
    None
}

/// Checks the entries that start at `first` of an area; values lie in it too, or in inodes.
fn check_entries(
    volume: &Volume<'_>,
    (area, first): (&[u8], usize),
    place: Place,
) -> Result<std::result::Result<Entries, Bad>> {
    let mut at = first;
    let mut found = Entries::default();
    // Of each value: where it lies, and the entry and its length.
    let mut values: Vec<(usize, usize, usize, usize)> = Vec::new();
    let mut last = (first, None);
    loop {
        let broken = |problem: String| Ok(Err(Bad { at, len: None, problem }));
        let Some(head) = area.get(at..at + 4) else {
            let (at, len) = last;
            return Ok(Err(Bad {
                at,
                len,
                problem: format!("entries without an end, the last one at {at}"),
            }));
        };
        if head == [0; 4] {
            break;
        }
        let Some(entry) = area.get(at..at + ENTRY_HEADER) else {
            return broken(format!("entry at {at} runs over the end"));
        };
        let name_len = usize::from(E_NAME_LEN.get(entry));
        let len = ENTRY_HEADER + name_len.next_multiple_of(4);
        let Some(name) = area.get(at + ENTRY_HEADER..at + len) else {
            return broken(format!("name at {at} runs over the end"));
        };
        let bad = |problem: String| Ok(Err(Bad { at, len: Some(len), problem }));
        if place == Place::Block && E_NAME_INDEX.get(entry) == 0 {
            return bad(format!("entry at {at} has no namespace"));
        }
        let name = &name[..name_len];
        if E_VALUE_BLOCK.get(entry) != 0 {
            match check_value_inode(volume, entry, name, place)? {
                Ok(blocks) => {
                    found.values.push(E_VALUE_BLOCK.get(entry));
                    found.value_blocks += blocks;
                }
                Err(problem) => return bad(problem),
            }
        } else {
            match check_value(area, entry, name, place) {
                Ok(range) => values.extend(range.map(|(start, end)| (start, end, at, len))),
                Err(problem) => return bad(problem),
            }
        }
        last = (at, Some(len));
        at += len;
    }
    values.sort_unstable();
    let mut end = at + 4;
    for &(start, stop, at, len) in &values {
        if start < end {
            return Ok(Err(Bad { at, len: Some(len), problem: "a value overlaps entries or others".into() }));
        }
        end = stop;
    }
    Ok(Ok(found))
}

/// Checks one entry's value; the bytes that it takes, padding included.
fn check_value(
    area: &[u8],
    entry: &[u8],
    name: &[u8],
    place: Place,
) -> std::result::Result<Option<(usize, usize)>, String> {
    let start = usize::from(E_VALUE_OFFS.get(entry));
    let size = idx(E_VALUE_SIZE.get(entry));
    let end = start + size.next_multiple_of(4);
    if start + size > area.len() || (size > 0 && end > area.len()) {
        return Err(format!("a value of {size} bytes at {start} runs over the end"));
    }
    let value = if size > 0 { &area[start..end] } else { &[] };
    let hash = E_HASH.get(entry);
    let unset = place == Place::Inode && hash == 0;
    let matches = unset || hash == entry_hash(name, value, false) || hash == entry_hash(name, value, true);
    if !matches {
        return Err(format!("hash {hash:#x} does not match"));
    }
    Ok((size > 0).then_some((start, end)))
}

/// Checks a value that lies in an inode of its own; the blocks that it takes.
fn check_value_inode(
    volume: &Volume<'_>,
    entry: &[u8],
    name: &[u8],
    place: Place,
) -> Result<std::result::Result<u64, String>> {
    let (ino, size) = (E_VALUE_BLOCK.get(entry), E_VALUE_SIZE.get(entry));
    let shape = &volume.shape;
    let exists = (shape.first_ino..=shape.inodes_count).contains(&ino) && !shape.is_own_inode(ino);
    if !shape.features.has_incompat(incompat::EA_INODE) || !exists || volume.is_never_used(ino) {
        return Ok(Err(format!("a value in inode {ino}")));
    }
    let raw = volume.read_inode(ino)?;
    if I_FLAGS.get(&raw) & EA_INODE_FL == 0 || I_LINKS_COUNT.get(&raw) == 0 || I_SIZE.get(&raw) != size {
        return Ok(Err(format!("a value of {size} bytes in inode {ino}, which is none")));
    }
    let (hash, sum) = (E_HASH.get(entry), I_ATIME.get(&raw).to_le_bytes());
    let unset = place == Place::Inode && hash == 0;
    if !unset && hash != entry_hash(name, &sum, false) && hash != entry_hash(name, &sum, true) {
        return Ok(Err(format!("hash {hash:#x} does not match the value in inode {ino}")));
    }
    // In clusters, as all that an inode counts.
    Ok(Ok(u64::from(size).div_ceil(wide(volume.block_size()) << volume.shape.log_cluster)))
}

/// The hash of a name and its padded value; old writers took the name's bytes as signed.
fn entry_hash(name: &[u8], value: &[u8], signed: bool) -> u32 {
    let name = name.iter().fold(0_u32, |hash, &byte| {
        let wide = if signed { i32::from(byte.cast_signed()).cast_unsigned() } else { u32::from(byte) };
        hash.rotate_left(5) ^ wide
    });
    value.chunks_exact(4).fold(name, |hash, word| hash.rotate_left(16) ^ Le::u32(word, 0))
}

/// Compares each attribute block's count with the inodes that point at it.
pub(super) fn check_counts(volume: &Volume<'_>, state: &mut State) -> Result<()> {
    let blocks = std::mem::take(&mut state.xattrs);
    for (&block, usage) in &blocks {
        if usage.seen == usage.counted || volume.source.block_moves(block) {
            continue;
        }
        let text =
            format!("attribute block {block} counts {} inodes, {} point at it", usage.counted, usage.seen);
        let mend = if usage.counted > usage.seen {
            state.allowed("xattr-count-high", text)
        } else {
            state.corrupt("xattr-count-low", text)
        };
        if mend {
            let mut bytes = vec![0; volume.block_size()];
            volume.read(block, BlockKind::Attribute, &mut bytes)?;
            H_REFCOUNT.put(&mut bytes, usage.seen);
            volume.write_attributes(block, &mut bytes)?;
        }
    }
    state.xattrs = blocks;
    Ok(())
}
