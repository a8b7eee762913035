//! Directories get room for sums, or what had them becomes room for names again.
//!
//! ```text
//!   leaf     entries over the whole block              <->   entries | tail (12 bytes)
//!   index    entries, as many as the block holds       <->   one less | tail (8 bytes)
//! ```
//!
//! **States and transitions.** A block with room at its end becomes the other kind in place, by one write. A directory with a block that has none is
//! written anew into free blocks (where these are clusters its entries move together in place, if that helps): *old* → the inode names the new blocks, by one write: *new*; the old ones are found without an owner.
//!
//! **Crash cases.** A tail is a free entry where there are no sums, so a leaf is right for both. An index with the other kind's limit is
//! made anew by whoever checks, or given up; the volume is not clean meanwhile. Blocks that are nobody's are freed by a check.

use fstitch_core::{BlockNo, Error, Le, Result, Structure};

use super::claims::allocate;
use super::extents;
use super::grow::{parent_in, put_pointer, set_size};
use super::inodes::INDEX;
use super::parts::Parts;
use super::rebuild::rebuild;
use super::state::{State, Volume};
use super::storage::Storage;
use super::walk::{Pointer, Verdict, Visit, walk};
use crate::ext2::layout::checksum::{DIRECTORY_TAIL, INDEX_TAIL, put_directory_tail};
use crate::ext2::layout::dirent::{
    D_FILE_TYPE, D_INODE, D_NAME_LEN, D_REC_LEN, ENTRY_MIN, HEADER, Slot, entry_size, inline_entries,
    put_empty_leaf, put_first_entries, rec_len_field,
};
use crate::ext2::layout::extent::{Extent, Node};
use crate::ext2::layout::index::{ENTRY, IndexEntry, NODE_ENTRIES, ROOT_ENTRIES, Root, put_node, put_root};
use crate::ext2::layout::inode::{EXTENTS_FL, I_FLAGS, POINTERS, pointer_field};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::{idx, wide};

/// Where the root of an index says by what names are hashed, and how many levels of nodes there are.
const VERSION_AT: usize = 28;
const LEVELS_AT: usize = 30;
/// The bits of an index entry that say which block.
const POSITION: u32 = 0x0fff_ffff;

/// A name of a directory.
#[derive(Clone)]
struct Name {
    ino: u32,
    file_type: u8,
    name: Vec<u8>,
}

/// What block `at` of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Leaf,
    /// A block of an index, whose counts are at this byte.
    Index(usize),
}

/// Makes all blocks of directory `ino` what the features in memory ask for.
pub(super) fn seal(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<()> {
    let mut parts = Parts::of(volume, state, ino)?;
    if parts.is_inline() {
        return Ok(());
    }
    let kinds = kinds(volume, &parts)?;
    if volume.has_sums() && !has_room(volume, &parts, &kinds)? {
        return write_anew(volume, state, &parts, &kinds);
    }
    let mut bytes = Vec::new();
    for (at, kind) in kinds.into_iter().enumerate() {
        if !parts.read(volume, at, &mut bytes)? {
            continue;
        }
        let before = bytes.clone();
        match kind {
            Part::Index(counts) => put_limit(volume, &mut bytes, counts),
            Part::Leaf if volume.has_sums() => {
                let slots = slots(volume, parts.block(at), &bytes)?;
                debug_assert!(fits(&slots, bytes.len()), "looked at before");
                end_with_tail(&mut bytes, &slots);
            }
            Part::Leaf => {
                let slots = slots(volume, parts.block(at), &bytes)?;
                end_without_tail(&mut bytes, &slots);
            }
        }
        if bytes != before || !parts.sum_matches(volume, parts.shape(at, &bytes), &bytes) {
            parts.write(volume, at, &mut bytes)?;
        }
    }
    Ok(())
}

/// How many blocks directory `ino` takes when it is written anew, as a volume like `target` has it; `None` if there is no need.
pub(super) fn blocks_anew(
    volume: &Volume<'_>,
    state: &State,
    (ino, target): (u32, &Superblock),
) -> Result<Option<usize>> {
    let parts = Parts::of(volume, state, ino)?;
    if parts.is_inline() {
        return Ok(None);
    }
    let kinds = kinds(volume, &parts)?;
    if has_room(volume, &parts, &kinds)? {
        return Ok(None);
    }
    Ok(Some(Anew::of(volume, &parts, &kinds)?.blocks(target).0.len()))
}

/// What each block is. Of an index the blocks are those that it says: an empty leaf without a tail looks like one of them.
fn kinds(volume: &Volume<'_>, parts: &Parts) -> Result<Vec<Part>> {
    let mut kinds = vec![Part::Leaf; parts.count()];
    let mut bytes = Vec::new();
    if I_FLAGS.get(&parts.raw) & INDEX == 0 || kinds.is_empty() || !parts.read(volume, 0, &mut bytes)? {
        return Ok(kinds);
    }
    kinds[0] = Part::Index(ROOT_ENTRIES);
    let mut below = children(&bytes, ROOT_ENTRIES);
    for _ in 0..bytes[LEVELS_AT] {
        let mut next = Vec::new();
        for at in below {
            // What leads astray or in a circle is for the look at the index.
            if kinds.get(at) == Some(&Part::Leaf) && parts.read(volume, at, &mut bytes)? {
                kinds[at] = Part::Index(NODE_ENTRIES);
                next.append(&mut children(&bytes, NODE_ENTRIES));
            }
        }
        below = next;
    }
    Ok(kinds)
}

/// The blocks that the entries from byte `at` on name, whatever limit they have.
fn children(bytes: &[u8], at: usize) -> Vec<usize> {
    let count = usize::from(Le::u16(bytes, at + 2)).min((bytes.len() - at) / ENTRY);
    (0..count).map(|no| idx(Le::u32(bytes, at + no * ENTRY + 4) & POSITION)).collect()
}

/// Whether all blocks have room for a sum.
fn has_room(volume: &Volume<'_>, parts: &Parts, kinds: &[Part]) -> Result<bool> {
    let mut bytes = Vec::new();
    for (at, kind) in kinds.iter().enumerate() {
        if !parts.read(volume, at, &mut bytes)? {
            continue;
        }
        let has = match *kind {
            Part::Index(counts) => {
                usize::from(Le::u16(&bytes, counts + 2)) <= limit(bytes.len(), counts, true)
            }
            Part::Leaf => {
                let slots = slots(volume, parts.block(at), &bytes)?;
                // Where clusters are in the way of new blocks, entries move within the block.
                let moves = volume.shape.has_clusters() && fits(&slots, bytes.len());
                moves || ends_before_tail(&slots, bytes.len())
            }
        };
        if !has {
            return Ok(false);
        }
    }
    Ok(true)
}

/// All entries of a block, a tail among them.
fn slots(volume: &Volume<'_>, block: u64, bytes: &[u8]) -> Result<Vec<Slot>> {
    let mut slots = inline_entries(bytes, BlockNo(block), &volume.shape).slots();
    let all = slots.by_ref().collect();
    slots.intact()?;
    Ok(all)
}

/// Whether the entries leave room for a tail in a block of `len` bytes.
fn fits(slots: &[Slot], len: usize) -> bool {
    slots.iter().map(Slot::used).sum::<usize>() + DIRECTORY_TAIL <= len
}

/// Whether a tail has room in a block of `len` bytes where the entries are.
fn ends_before_tail(slots: &[Slot], len: usize) -> bool {
    let end = len - DIRECTORY_TAIL;
    let Some(last) = slots.last() else { return true };
    // A free entry takes a little, too.
    (last.offset == end && last.ino == 0) || last.offset + last.used().max(ENTRY_MIN) <= end
}

/// Entries that an index block of `len` bytes has room for.
const fn limit(len: usize, counts: usize, summed: bool) -> usize {
    (len - counts - if summed { INDEX_TAIL } else { 0 }) / ENTRY
}

fn put_len(bytes: &mut [u8], at: usize, len: usize) {
    D_REC_LEN.put(&mut bytes[at..], rec_len_field(len));
}

/// Gives a block a tail, for which there is room: its last entry ends before, or all of them move together.
fn end_with_tail(bytes: &mut [u8], slots: &[Slot]) {
    let end = bytes.len() - DIRECTORY_TAIL;
    let Some(last) = slots.last() else { return };
    // A free entry takes a little, too.
    let needed = last.used().max(ENTRY_MIN);
    if last.offset == end && last.ino == 0 {
        put_directory_tail(bytes);
        return;
    }
    if last.offset + needed <= end {
        put_len(bytes, last.offset, end - last.offset);
        put_directory_tail(bytes);
        return;
    }
    let old = bytes.to_vec();
    bytes.fill(0);
    put_len(bytes, 0, end);
    let (mut at, mut previous) = (0, None);
    for slot in slots.iter().filter(|slot| slot.ino != 0) {
        let used = HEADER + slot.name_len;
        bytes[at..at + used].copy_from_slice(&old[slot.offset..slot.offset + used]);
        put_len(bytes, at, slot.used());
        previous = Some(at);
        at += slot.used();
    }
    if let Some(previous) = previous {
        put_len(bytes, previous, end - previous);
    }
    put_directory_tail(bytes);
}

/// Makes what was a tail part of the entry before it.
fn end_without_tail(bytes: &mut [u8], slots: &[Slot]) {
    let end = bytes.len() - DIRECTORY_TAIL;
    if let [.., before, last] = slots
        && last.offset == end
        && last.ino == 0
    {
        bytes[end..].fill(0);
        put_len(bytes, before.offset, bytes.len() - before.offset);
    }
}

/// Gives a block of an index, whose counts are at byte `counts`, the limit that goes with the features in memory.
fn put_limit(volume: &Volume<'_>, bytes: &mut [u8], counts: usize) {
    let now = limit(bytes.len(), counts, volume.has_sums());
    let before = usize::from(Le::u16(bytes, counts));
    if now != before {
        Le::put_u16(bytes, counts, u16::try_from(now).expect("a block has fewer entries"));
        let from = counts + now.min(before) * ENTRY;
        bytes[from..].fill(0);
    }
}

/// A directory that is to be written anew.
struct Anew {
    ino: u32,
    parent: u32,
    /// By what names are hashed, if it has an index.
    version: Option<u8>,
    names: Vec<Name>,
}

impl Anew {
    fn of(volume: &Volume<'_>, parts: &Parts, kinds: &[Part]) -> Result<Self> {
        let (mut bytes, mut names, mut parent, mut version) = (Vec::new(), Vec::new(), 0, None);
        for (at, kind) in kinds.iter().enumerate() {
            if !parts.read(volume, at, &mut bytes)? {
                continue;
            }
            if at == 0 {
                parent = parent_in(&bytes);
                version = (*kind != Part::Leaf).then(|| bytes[VERSION_AT]);
            }
            if *kind != Part::Leaf {
                continue;
            }
            let own = if at == 0 { 2 } else { 0 };
            for slot in slots(volume, parts.block(at), &bytes)?.into_iter().skip(own) {
                if slot.ino != 0 {
                    let (file_type, name) =
                        (D_FILE_TYPE.get(&bytes[slot.offset..]), bytes[slot.name()].to_vec());
                    names.push(Name { ino: slot.ino, file_type, name });
                }
            }
        }
        Ok(Self { ino: parts.ino, parent, version, names })
    }

    /// The blocks, which of them are an index's, and whether the directory has one.
    fn blocks(&self, shape: &Superblock) -> (Vec<Vec<u8>>, Vec<bool>, bool) {
        if let Some(version) = self.version
            && let Some((blocks, are_index)) = self.indexed(shape, version)
        {
            return (blocks, are_index, true);
        }
        let (filetype, len) = (shape.has_filetype(), idx(shape.block_size));
        let mut first = vec![0; len];
        put_first_entries(&mut first, self.ino, self.parent, (filetype, true));
        let start = 2 * ENTRY_MIN;
        let mut leaves =
            Leaves { len, full: len - DIRECTORY_TAIL, blocks: vec![first], at: start, last: ENTRY_MIN };
        self.names.iter().for_each(|name| leaves.add(name));
        let are_index = vec![false; leaves.blocks.len()];
        (leaves.blocks, are_index, false)
    }

    /// The same with an index; `None` if that would have too many levels.
    fn indexed(&self, shape: &Superblock, version: u8) -> Option<(Vec<Vec<u8>>, Vec<bool>)> {
        let hasher = shape.name_hasher(version)?;
        let mut sorted: Vec<(u32, &Name)> =
            self.names.iter().map(|name| (hasher.hash(&name.name), name)).collect();
        sorted.sort_by_key(|&(hash, _)| hash);
        let len = idx(shape.block_size);
        let room = len - DIRECTORY_TAIL;
        // Names that come next find room.
        let mut leaves =
            Leaves { len, full: room - room / 8, blocks: vec![vec![0; len]], at: usize::MAX, last: 0 };
        let mut entries: Vec<IndexEntry> = Vec::new();
        let mut before = None;
        for (hash, name) in sorted {
            leaves.add(name);
            let at = leaves.blocks.len() - 1;
            if entries.last().is_none_or(|entry| entry.at != at) {
                let goes_on = u32::from(before == Some(hash));
                entries.push(IndexEntry { hash: hash | goes_on, at });
            }
            before = Some(hash);
        }
        let mut blocks = leaves.blocks;
        if entries.is_empty() {
            blocks.push(vec![0; len]);
            put_empty_leaf(&mut blocks[1], true);
            entries.push(IndexEntry { hash: 0, at: 1 });
        }
        let mut are_index = vec![false; blocks.len()];
        are_index[0] = true;
        let (of_root, of_node) = (limit(len, ROOT_ENTRIES, true), limit(len, NODE_ENTRIES, true));
        let mut levels = 0;
        while entries.len() > of_root {
            levels += 1;
            let mut above = Vec::new();
            for part in entries.chunks(of_node - of_node / 8) {
                above.push(IndexEntry { hash: part[0].hash, at: blocks.len() });
                let mut bytes = vec![0; len];
                put_node(&mut bytes, part, shape);
                blocks.push(bytes);
                are_index.push(true);
            }
            entries = above;
        }
        if levels > shape.index_levels_max() {
            return None;
        }
        put_first_entries(&mut blocks[0], self.ino, self.parent, (shape.has_filetype(), false));
        put_root(&mut blocks[0], Root { version, levels }, &entries, shape);
        Some((blocks, are_index))
    }
}

/// Blocks with names and tails.
struct Leaves {
    /// Bytes of a block.
    len: usize,
    /// Where a block counts as full.
    full: usize,
    blocks: Vec<Vec<u8>>,
    /// Where the next entry goes in the last one.
    at: usize,
    /// The entry before it.
    last: usize,
}

impl Leaves {
    fn add(&mut self, name: &Name) {
        let (size, end) = (entry_size(name.name.len()), self.len - DIRECTORY_TAIL);
        if self.at.saturating_add(size) > self.full {
            let mut fresh = vec![0; self.len];
            put_empty_leaf(&mut fresh, true);
            self.blocks.push(fresh);
            (self.at, self.last) = (0, 0);
        }
        let (at, last) = (self.at, self.last);
        let Some(bytes) = self.blocks.last_mut() else { return };
        if at > 0 {
            put_len(bytes, last, at - last);
        }
        let entry = &mut bytes[at..end];
        D_INODE.put(entry, name.ino);
        D_NAME_LEN.put(entry, u8::try_from(name.name.len()).expect("names have at most 255 bytes"));
        D_FILE_TYPE.put(entry, name.file_type);
        entry[HEADER..HEADER + name.name.len()].copy_from_slice(&name.name);
        put_len(bytes, at, end - at);
        (self.at, self.last) = (at + size, at);
    }
}

/// Writes a directory into blocks that nothing owns, and has its inode name these.
fn write_anew(volume: &Volume<'_>, state: &mut State, parts: &Parts, kinds: &[Part]) -> Result<()> {
    let ino = parts.ino;
    let full = || {
        let problem = "it has no room for sums, and there are no free blocks to write it anew";
        Error::corrupt(Structure::Inode(u64::from(ino)), None, problem)
    };
    if volume.shape.has_clusters() {
        return Err(full());
    }
    let (blocks, are_index, is_indexed) = Anew::of(volume, parts, kinds)?.blocks(&volume.shape);
    let mut raw = parts.raw.clone();
    let owner = volume.owner(ino, &raw);
    let mut places = Vec::with_capacity(blocks.len());
    for (mut bytes, is_index) in blocks.into_iter().zip(are_index) {
        let block = allocate(volume, state)?.ok_or_else(full)?;
        if is_index {
            volume.write_index(block, owner, &mut bytes)?;
        } else {
            volume.write_leaf(block, owner, &mut bytes)?;
        }
        places.push(block);
    }
    let flags = I_FLAGS.get(&raw) & !INDEX;
    I_FLAGS.put(&mut raw, flags | if is_indexed { INDEX } else { 0 });
    if !map(volume, state, (ino, &mut raw), &places)? {
        return Err(full());
    }
    set_size(&mut raw, wide(places.len() * volume.block_size()));
    let [before, after] = [&parts.raw, &raw].map(|raw| map_size(volume, state, (ino, raw)));
    let mut storage = Storage::of(volume, &raw);
    let per_block = wide(volume.block_size() / 512);
    storage.sectors = storage.sectors.saturating_sub(before? * per_block) + after? * per_block;
    storage.put(&mut raw);
    volume.source.flush()?;
    volume.write_inode(ino, &raw)?;
    volume.source.flush()
}

/// Makes `places` the blocks of the inode in `raw`; false if there are no blocks for its map.
fn map(volume: &Volume<'_>, state: &mut State, (ino, raw): (u32, &mut [u8]), places: &[u64]) -> Result<bool> {
    if I_FLAGS.get(raw) & EXTENTS_FL != 0 {
        Node::empty_root().encode_into(&mut raw[extents::ROOT]);
        let extent = |(block, &start): (u32, &u64)| Extent { block, len: 1, start, unwritten: false };
        let all: Vec<Extent> = (0..).zip(places).map(extent).collect();
        return rebuild(volume, state, (ino, raw), &all);
    }
    (0..POINTERS).for_each(|at| pointer_field(at).put(raw, 0));
    for (at, &block) in places.iter().enumerate() {
        if put_pointer(volume, state, (ino, raw), (at, block))?.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many blocks the inode in `raw` has by its map, those of the map among them.
fn map_size(volume: &Volume<'_>, state: &State, (ino, raw): (u32, &[u8])) -> Result<u64> {
    if I_FLAGS.get(raw) & EXTENTS_FL != 0 {
        let seen = extents::whole(volume, state, (ino, raw))?;
        let blocks: u64 = seen.kept.iter().map(|extent| u64::from(extent.len)).sum();
        return Ok(blocks + wide(seen.nodes.len()));
    }
    let mut count = Count { state, blocks: 0 };
    walk(volume, &mut raw.to_vec(), &mut count)?;
    Ok(count.blocks)
}

/// Counts what pointers lead to.
struct Count<'a> {
    state: &'a State,
    blocks: u64,
}

impl Visit for Count<'_> {
    fn visit(&mut self, volume: &Volume<'_>, pointer: Pointer) -> Result<Verdict> {
        self.blocks += 1;
        let leads =
            pointer.level > 0 && volume.is_valid(pointer.block) && !self.state.is_shared(pointer.block);
        Ok(if leads { Verdict::Follow } else { Verdict::Skip })
    }
}
