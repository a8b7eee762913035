//! Extended attributes, in inodes and in blocks of their own.

use fstitch_core::{BlockKind, Le, Result};

use super::inodes::Scan;
use super::state::{State, Volume};
use crate::ext2::layout::inode::{GOOD_OLD_SIZE, I_EXTRA_ISIZE};
use crate::ext2::layout::xattr::{
    BLOCK_HEADER, BODY_HEADER, E_HASH, E_NAME_INDEX, E_NAME_LEN, E_VALUE_BLOCK, E_VALUE_OFFS, E_VALUE_SIZE,
    ENTRY_HEADER, H_BLOCKS, H_MAGIC, H_REFCOUNT, XATTR_MAGIC,
};
use crate::ext2::num::idx;

/// Which rules differ between the two places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In an inode: values count from the first entry, hashes may be 0.
    Inode,
    /// In a block: values count from the block's start.
    Block,
}

/// Checks the attributes behind an inode's fixed fields.
pub(super) fn check_body(scan: &mut Scan<'_, '_>) {
    if scan.raw.len() <= GOOD_OLD_SIZE {
        return;
    }
    let start = GOOD_OLD_SIZE + usize::from(I_EXTRA_ISIZE.get(scan.raw));
    if I_EXTRA_ISIZE.get(scan.raw) == 0 || start + BODY_HEADER + 4 > scan.raw.len() {
        return;
    }
    if Le::u32(scan.raw, start) != XATTR_MAGIC {
        return;
    }
    let Err(problem) = check_entries(&scan.raw[start + BODY_HEADER..], 0, Place::Inode) else {
        return;
    };
    let text = format!("attributes in inode {}: {problem}", scan.ino);
    if scan.state.corrupt("xattr-bad-body", text) {
        scan.raw[start..].fill(0);
        scan.changed = true;
    }
}

/// Checks an attribute block; how many inodes it counts.
pub(super) fn check_block(bytes: &[u8]) -> std::result::Result<u32, String> {
    let magic = H_MAGIC.get(bytes);
    if magic != XATTR_MAGIC {
        return Err(format!("magic {magic:#x}, expected {XATTR_MAGIC:#x}"));
    }
    if H_BLOCKS.get(bytes) != 1 {
        return Err(format!("{} blocks, expected 1", H_BLOCKS.get(bytes)));
    }
    check_entries(bytes, BLOCK_HEADER, Place::Block)?;
    Ok(H_REFCOUNT.get(bytes))
}

/// Checks the entries that start at `first` of `area`; values lie in `area` too.
fn check_entries(area: &[u8], first: usize, place: Place) -> std::result::Result<(), String> {
    let mut at = first;
    let mut values: Vec<(usize, usize)> = Vec::new();
    loop {
        let Some(head) = area.get(at..at + 4) else {
            return Err(format!("entries run over the end at {at}"));
        };
        if head == [0; 4] {
            break;
        }
        let Some(entry) = area.get(at..at + ENTRY_HEADER) else {
            return Err(format!("entry at {at} runs over the end"));
        };
        let name_len = usize::from(E_NAME_LEN.get(entry));
        let next = at + ENTRY_HEADER + name_len.next_multiple_of(4);
        if next > area.len() {
            return Err(format!("name at {at} runs over the end"));
        }
        if place == Place::Block && E_NAME_INDEX.get(entry) == 0 {
            return Err(format!("entry at {at} has no namespace"));
        }
        let name = &area[at + ENTRY_HEADER..at + ENTRY_HEADER + name_len];
        values.extend(check_value(area, entry, name, place)?);
        at = next;
    }
    let end = at + 4;
    values.sort_unstable();
    if values.first().is_some_and(|&(start, _)| start < end) {
        return Err("a value overlaps the entries".into());
    }
    if values.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err("values overlap".into());
    }
    Ok(())
}

/// Checks one entry's value; the bytes that it takes, padding included.
fn check_value(
    area: &[u8],
    entry: &[u8],
    name: &[u8],
    place: Place,
) -> std::result::Result<Option<(usize, usize)>, String> {
    if E_VALUE_BLOCK.get(entry) != 0 {
        return Err("a value in another block".into());
    }
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
            volume.write(block, BlockKind::Attribute, &bytes)?;
        }
    }
    state.xattrs = blocks;
    Ok(())
}
