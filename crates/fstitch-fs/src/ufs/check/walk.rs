//! Following an inode's pointers.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, Result};
use rustc_hash::FxHashSet;

use super::raw::{EXTRA_SLOTS, RawInode, SLOTS};
use super::volume::Volume;
use crate::ufs::layout::inode::DIRECT;

/// Where a pointer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// In the inode.
    Inode(usize),
    /// In the inode, to extended attributes.
    Extra(usize),
    /// In the block of pointers that begins with fragment `at`.
    Map {
        /// That fragment.
        at: u64,
        /// Which pointer.
        index: u64,
    },
}

/// A pointer met on the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pointer {
    pub(super) slot: Slot,
    /// The first fragment that it points at; never 0.
    pub(super) start: u64,
    /// How many there are.
    pub(super) count: u64,
    /// Levels of pointers below: 0 for contents.
    pub(super) level: u32,
    /// The first block of the file that it covers.
    pub(super) block: u64,
    /// That is behind the end of the file.
    pub(super) is_beyond: bool,
}

/// What to do with a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Follow it.
    Follow,
    /// Leave it, and do not look behind it.
    Skip,
    /// Clear it.
    Clear,
}

/// Judges each pointer. Whoever answers [`Verdict::Follow`] for the same block again and again makes a walk that may not end in time.
pub(super) type Judge<'a> = dyn FnMut(&Pointer) -> Result<Verdict> + 'a;

/// Shows all pointers to an inode's blocks, in the order of the file; true when those in the inode were changed. Changed blocks of
/// pointers are written.
pub(super) fn walk(volume: &Volume<'_>, inode: &mut RawInode, judge: &mut Judge<'_>) -> Result<bool> {
    let size = inode.size();
    let mut changed = false;
    let mut block = 0;
    for slot in 0..SLOTS {
        let level = u32::try_from(slot.saturating_sub(DIRECT - 1)).unwrap_or(0);
        let pointer = Pointer {
            slot: Slot::Inode(slot),
            start: inode.slot(slot),
            count: volume.block_len(size, if level > 0 { u64::MAX } else { block }),
            level,
            block,
            is_beyond: block.saturating_mul(volume.block()) >= size,
        };
        if pointer.start != 0 && follow(volume, &pointer, size, judge)? {
            inode.set_slot(slot, 0);
            changed = true;
        }
        block += volume.pointers().pow(level);
    }
    Ok(changed)
}

/// Shows the pointers to extended attributes; true when they were changed.
pub(super) fn walk_extra(volume: &Volume<'_>, inode: &mut RawInode, judge: &mut Judge<'_>) -> Result<bool> {
    let size = u64::from(inode.extra_size());
    let mut changed = false;
    for slot in 0..EXTRA_SLOTS {
        let block = to_u64(slot);
        let pointer = Pointer {
            slot: Slot::Extra(slot),
            start: inode.extra(slot),
            count: volume.block_len(size, block),
            level: 0,
            block,
            is_beyond: block * volume.block() >= size,
        };
        if pointer.start != 0 && judge(&pointer)? == Verdict::Clear {
            inode.set_extra(slot, 0);
            changed = true;
        }
    }
    Ok(changed)
}

/// Shows one pointer and what is behind it; whether it shall be cleared.
fn follow(volume: &Volume<'_>, pointer: &Pointer, size: u64, judge: &mut Judge<'_>) -> Result<bool> {
    match judge(pointer)? {
        Verdict::Skip => return Ok(false),
        Verdict::Clear => return Ok(true),
        Verdict::Follow if pointer.level == 0 => return Ok(false),
        Verdict::Follow => {}
    }
    let mut bytes = volume.read(pointer.start, volume.per_block(), BlockKind::Indirect)?;
    let span = volume.pointers().pow(pointer.level - 1);
    let mut changed = false;
    // Recursion is at most three levels deep.
    for index in 0..volume.pointers() {
        let start = volume.pointer(&bytes, index);
        if start == 0 {
            continue;
        }
        let block = pointer.block + index * span;
        let next = Pointer {
            slot: Slot::Map { at: pointer.start, index },
            start,
            count: volume.per_block(),
            level: pointer.level - 1,
            block,
            is_beyond: block.saturating_mul(volume.block()) >= size,
        };
        if follow(volume, &next, size, judge)? {
            volume.put_pointer(&mut bytes, index, 0);
            changed = true;
        }
    }
    if changed {
        volume.write(pointer.start, BlockKind::Indirect, &bytes)?;
    }
    Ok(false)
}

/// Whether pointers in the inode lie behind the end of the file.
pub(super) fn goes_beyond(volume: &Volume<'_>, inode: &RawInode) -> bool {
    let (blocks, mut first) = (inode.size().div_ceil(volume.block()), 0);
    (0..SLOTS).any(|slot| {
        let is_beyond = first >= blocks && inode.slot(slot) != 0;
        first += volume.pointers().pow(u32::try_from(slot.saturating_sub(DIRECT - 1)).unwrap_or(0));
        is_beyond
    })
}

/// Fragments that an inode has up to its end, attributes and blocks of pointers among them.
pub(super) fn stored(volume: &Volume<'_>, inode: &RawInode) -> Result<u64> {
    let (mut count, mut seen) = (extra_fragments(volume, inode), FxHashSet::default());
    walk(volume, &mut inode.clone(), &mut |pointer| {
        let is_new = pointer.level == 0 || seen.insert(pointer.start);
        if pointer.is_beyond || !is_new || !volume.is_valid(pointer.start, pointer.count) {
            return Ok(Verdict::Skip);
        }
        count += pointer.count;
        Ok(Verdict::Follow)
    })?;
    Ok(count)
}

/// Fragments that extended attributes have, by their length.
pub(super) fn extra_fragments(volume: &Volume<'_>, inode: &RawInode) -> u64 {
    u64::from(inode.extra_size()).div_ceil(volume.fragment())
}

/// The blocks that an inode has before its end: each one's number, and its first fragment. Those of blocks of pointers that were met
/// before are left out, and no more are shown than the volume could have.
pub(super) fn mapped(volume: &Volume<'_>, inode: &RawInode) -> Result<Vec<(u64, u64)>> {
    let (mut found, mut seen) = (Vec::new(), FxHashSet::default());
    let most = to_usize(volume.shape.fragments);
    // Nothing is cleared, so that nothing is written.
    walk(volume, &mut inode.clone(), &mut |pointer| {
        let is_new = pointer.level == 0 || seen.insert(pointer.start);
        if pointer.is_beyond
            || !is_new
            || found.len() == most
            || !volume.is_valid(pointer.start, pointer.count)
        {
            return Ok(Verdict::Skip);
        }
        if pointer.level == 0 {
            found.push((pointer.block, pointer.start));
        }
        Ok(Verdict::Follow)
    })?;
    Ok(found)
}

/// Writes a pointer into its place: of inode `ino` or a block.
pub(super) fn put(volume: &Volume<'_>, ino: u32, slot: Slot, pointer: u64) -> Result<()> {
    if let Slot::Map { at, index } = slot {
        let byte = index * u64::from(volume.shape.version.pointer_size());
        let at = at + byte / volume.fragment();
        let per_fragment = volume.fragment() / u64::from(volume.shape.version.pointer_size());
        let mut bytes = volume.read(at, 1, BlockKind::Indirect)?;
        volume.put_pointer(&mut bytes, index % per_fragment, pointer);
        return volume.write(at, BlockKind::Indirect, &bytes);
    }
    let mut inode = volume.read_inode(ino)?;
    match slot {
        Slot::Inode(slot) => inode.set_slot(slot, pointer),
        Slot::Extra(slot) => inode.set_extra(slot, pointer),
        Slot::Map { .. } => {}
    }
    volume.write_inode(ino, &inode)
}

/// The pointer to block `block` of a file; 0 where there is none that can be.
pub(super) fn find(volume: &Volume<'_>, inode: &RawInode, block: u64) -> Result<u64> {
    let direct = to_u64(DIRECT);
    if block < direct {
        let start = inode.slot(to_usize(block));
        let len = volume.block_len(inode.size(), block);
        return Ok(if volume.is_valid(start, len) { start } else { 0 });
    }
    let (mut rest, mut span) = (block - direct, 1);
    for slot in DIRECT..SLOTS {
        let reach = span * volume.pointers();
        if rest < reach {
            return below(volume, inode.slot(slot), (rest, span));
        }
        rest -= reach;
        span = reach;
    }
    Ok(0)
}

/// Goes down from the block of pointers `at`, each of which reaches `span` blocks.
fn below(volume: &Volume<'_>, mut at: u64, (mut rest, mut span): (u64, u64)) -> Result<u64> {
    loop {
        if !volume.is_valid(at, volume.per_block()) {
            return Ok(0);
        }
        let index = rest / span;
        let per_fragment = volume.fragment() / u64::from(volume.shape.version.pointer_size());
        let bytes = volume.read(at + index / per_fragment, 1, BlockKind::Indirect)?;
        at = volume.pointer(&bytes, index % per_fragment);
        if span == 1 {
            return Ok(if volume.is_valid(at, volume.per_block()) { at } else { 0 });
        }
        rest %= span;
        span /= volume.pointers();
    }
}

/// Blocks of pointers that are looked into for a file's last block. Only a hostile volume has so many empty ones.
const LOOKS_MAX: u32 = 4096;

/// The last block of a file that a pointer which can be one leads to, whatever the length says.
pub(super) fn last(volume: &Volume<'_>, inode: &RawInode) -> Result<Option<u64>> {
    let mut looks = LOOKS_MAX;
    let pointers = volume.pointers();
    let mut first = to_u64(DIRECT) + pointers + pointers.pow(2);
    for level in (1..=3_u32).rev() {
        let slot = DIRECT - 1 + to_usize(level);
        if let Some(found) = last_below(volume, (inode.slot(slot), level, first), &mut looks)? {
            return Ok(Some(found));
        }
        first -= if level > 1 { pointers.pow(level - 1) } else { 0 };
    }
    Ok((0..DIRECT).rev().find(|&slot| volume.is_valid(inode.slot(slot), 1)).map(to_u64))
}

fn last_below(
    volume: &Volume<'_>,
    (at, level, first): (u64, u32, u64),
    looks: &mut u32,
) -> Result<Option<u64>> {
    if !volume.is_valid(at, volume.per_block()) {
        return Ok(None);
    }
    if level == 0 || *looks == 0 {
        return Ok(Some(first));
    }
    *looks -= 1;
    let bytes = volume.read(at, volume.per_block(), BlockKind::Indirect)?;
    let span = volume.pointers().pow(level - 1);
    for index in (0..volume.pointers()).rev() {
        let next = volume.pointer(&bytes, index);
        if next != 0 {
            let found = last_below(volume, (next, level - 1, first + index * span), looks)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}
