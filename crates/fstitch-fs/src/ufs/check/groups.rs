//! A group's block: where in it what is, and what it must hold.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, Result};

use super::raw::RawInode;
use super::state::State;
use super::volume::{Volume, at as super_at};
use crate::bits::{bit, put_bit};

/// A group's magic number.
const MAGIC: u32 = 0x0009_0255;
/// Bytes before the maps.
pub(super) const BASE: usize = 168;
/// Sizes of runs of free fragments that are counted, 0 included.
const RUNS: usize = 8;

/// Fields of a group, by their bytes.
pub(super) mod at {
    pub(in super::super) const MAGIC: usize = 4;
    pub(in super::super) const NUMBER: usize = 12;
    pub(in super::super) const OLD_CYLINDERS: usize = 16;
    pub(in super::super) const OLD_INODES: usize = 18;
    pub(in super::super) const FRAGMENTS: usize = 20;
    /// Directories, free blocks, free inodes, free fragments.
    pub(in super::super) const COUNTS: usize = 24;
    /// Where blocks, fragments and inodes were taken last.
    pub(in super::super) const ROTORS: usize = 40;
    pub(in super::super) const RUNS: usize = 52;
    pub(in super::super) const OLD_TOTALS_AT: usize = 84;
    pub(in super::super) const OLD_POSITIONS_AT: usize = 88;
    pub(in super::super) const INODES_AT: usize = 92;
    pub(in super::super) const FREE_AT: usize = 96;
    pub(in super::super) const END_AT: usize = 100;
    pub(in super::super) const SUMS_AT: usize = 104;
    pub(in super::super) const CLUSTERS_AT: usize = 108;
    pub(in super::super) const CLUSTERS: usize = 112;
    pub(in super::super) const INODES: usize = 116;
    pub(in super::super) const INITIALISED: usize = 120;
}
/// Fields that keep what they hold: times, check hashes, which are judged apart, and what others count.
const KEPT: [std::ops::Range<usize>; 2] = [8..12, 124..144];

/// Where the maps of all groups are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    old_totals: usize,
    old_positions: usize,
    /// The bitmap of inodes.
    pub(super) inodes: usize,
    /// The bitmap of free fragments.
    pub(super) free: usize,
    /// Counts of runs of free blocks, and the bitmap of these; 0 where none are kept.
    sums: usize,
    clusters: usize,
    /// The longest run that is counted.
    runs: usize,
    /// Behind all of it.
    pub(super) end: usize,
}

impl Layout {
    /// As the superblock has it; `None` if that does not fit a group's block.
    pub(super) fn of(volume: &Volume<'_>) -> Option<Self> {
        let shape = &volume.shape;
        let place = |at| usize::try_from(volume.word(at)).ok();
        let runs = place(super_at::CLUSTERS)?;
        let (mut old_totals, mut old_positions, mut inodes) = (0, 0, BASE);
        if !volume.is_two() {
            let cylinders = place(super_at::OLD_CPG).filter(|&count| count > 0)?;
            let positions = place(super_at::OLD_POSITIONS)?;
            old_totals = BASE;
            old_positions = old_totals.checked_add(cylinders.checked_mul(4)?)?;
            inodes = old_positions.checked_add(cylinders.checked_mul(positions)?.checked_mul(2)?)?;
        }
        let free = inodes.checked_add(to_usize(shape.group_inodes.div_ceil(8)))?;
        let mut end = free.checked_add(to_usize(shape.group_fragments.div_ceil(8)))?;
        let (mut sums, mut clusters) = (0, 0);
        if runs > 0 {
            sums = (end - 4).next_multiple_of(4);
            clusters = sums.checked_add(runs.checked_add(1)?.checked_mul(4)?)?;
            let blocks = shape.group_fragments / shape.fragments_per_block();
            end = clusters.checked_add(to_usize(blocks.div_ceil(8)))?;
        }
        let found = Self { old_totals, old_positions, inodes, free, sums, clusters, runs, end };
        (end <= to_usize(shape.group_size)).then_some(found)
    }

    /// The bytes that may differ in what counts free blocks: all maps but the two bitmaps.
    pub(super) fn is_counting(&self, byte: usize, volume: &Volume<'_>) -> bool {
        byte >= self.free + to_usize(volume.shape.group_fragments / 8) && byte < self.end
    }
}

/// Reads a group's block.
pub(super) fn read(volume: &Volume<'_>, group: u32) -> Result<Vec<u8>> {
    let len = to_usize(volume.shape.group_size);
    let count = to_u64(len).div_ceil(volume.fragment());
    volume.read(volume.part(group, 1), count, BlockKind::GroupDescriptor)
}

pub(super) fn write(volume: &Volume<'_>, group: u32, bytes: &[u8]) -> Result<()> {
    volume.write(volume.part(group, 1), BlockKind::GroupDescriptor, bytes)
}

/// Notes in their group's bitmap that fragments are somebody's.
pub(super) fn take_fragments(volume: &Volume<'_>, start: u64, count: u64) -> Result<()> {
    let all = u64::from(volume.shape.group_fragments);
    let (Some(layout), Ok(group)) = (Layout::of(volume), u32::try_from(start / all)) else { return Ok(()) };
    let mut bytes = read(volume, group)?;
    for at in start..start + count {
        put_bit(&mut bytes[layout.free..], to_usize(at % all), false);
    }
    write(volume, group, &bytes)
}

/// Notes in its group's bitmap that an inode is in use.
pub(super) fn take_inode(volume: &Volume<'_>, ino: u32) -> Result<()> {
    let Some(layout) = Layout::of(volume) else { return Ok(()) };
    let (group, no) = (ino / volume.shape.group_inodes, ino % volume.shape.group_inodes);
    let mut bytes = read(volume, group)?;
    put_bit(&mut bytes[layout.inodes..], to_usize(no), true);
    write(volume, group, &bytes)
}

/// Whether its group's bitmap says that an inode is in use, or is none that could say so.
pub(super) fn is_inode_taken(volume: &Volume<'_>, ino: u32) -> Result<bool> {
    let Some(layout) = Layout::of(volume) else { return Ok(true) };
    let (group, no) = (ino / volume.shape.group_inodes, ino % volume.shape.group_inodes);
    let bytes = read(volume, group)?;
    Ok(!is_group(volume, group, &bytes) || bit(&bytes[layout.inodes..], to_usize(no)))
}

/// Fragments of a group.
pub(super) fn fragments(volume: &Volume<'_>, group: u32) -> u32 {
    let rest = volume.shape.fragments - volume.group_first(group);
    u32::try_from(rest).unwrap_or(u32::MAX).min(volume.shape.group_fragments)
}

/// Whether `bytes` begin as the block of a group.
pub(super) fn is_group(volume: &Volume<'_>, group: u32, bytes: &[u8]) -> bool {
    is_numbered(volume, group, bytes) && volume.order().u32(bytes, at::FRAGMENTS) == fragments(volume, group)
}

/// The same, however many fragments it says that it has.
pub(super) fn is_numbered(volume: &Volume<'_>, group: u32, bytes: &[u8]) -> bool {
    let word = |at| volume.order().u32(bytes, at);
    word(at::MAGIC) == MAGIC && word(at::NUMBER) == group
}

/// How many inodes of a group were ever written: what it says, unless its own bitmap or its table says otherwise.
pub(super) fn initialised(volume: &Volume<'_>, layout: &Layout, group: u32) -> Result<u32> {
    let all = volume.shape.group_inodes;
    if !volume.is_two() {
        return Ok(all);
    }
    let bytes = read(volume, group)?;
    let says = volume.order().u32(&bytes, at::INITIALISED);
    let per_block = volume.shape.block_size / volume.shape.version.inode_size();
    // The first group has the root directory.
    let least = if group == 0 { per_block.min(all) } else { 0 };
    if !is_group(volume, group, &bytes) || says > all || says < least {
        return in_table(volume, group, per_block);
    }
    // Inodes are never taken behind those that were written.
    let map = &bytes[layout.inodes..];
    let highest = (says..all).rev().find(|&no| bit(map, to_usize(no)));
    match highest {
        Some(no) if is_inode(volume, &volume.read_inode(group * all + no)?) => {
            Ok((no + 1).next_multiple_of(per_block).min(all))
        }
        _ => Ok(says),
    }
}

/// How far a group's table holds inodes: whole blocks of it were written at once.
fn in_table(volume: &Volume<'_>, group: u32, per_block: u32) -> Result<u32> {
    let shape = &volume.shape;
    let len = to_usize(shape.version.inode_size());
    for first in (0..shape.group_inodes).step_by(to_usize(per_block)) {
        let at = shape.inode_place(group * shape.group_inodes + first).0;
        let bytes = volume.read(at.get(), volume.per_block(), BlockKind::Inode)?;
        let inodes = bytes.chunks(len).map(|bytes| RawInode::new(bytes.to_vec(), shape));
        let sound = inodes.filter(|inode| inode.is_blank() || is_inode(volume, inode)).count();
        // What was there before the volume was made looks like inodes by chance only.
        if sound * 2 < to_usize(per_block) && (group, first) != (0, 0) {
            return Ok(first);
        }
    }
    Ok(shape.group_inodes)
}

fn is_inode(volume: &Volume<'_>, inode: &RawInode) -> bool {
    inode.kind().is_some() && inode.size() <= volume.shape.size_max()
}

/// What a group's block must hold, given what was found; `old` is what it holds. Directories are counted for the caller.
pub(super) fn build(
    volume: &Volume<'_>,
    layout: &Layout,
    state: &State,
    (group, old): (u32, &[u8]),
) -> Vec<u8> {
    let mut new = old.to_vec();
    let order = volume.order();
    new[..BASE].fill(0);
    for range in KEPT {
        new[range.clone()].copy_from_slice(&old[range]);
    }
    new[layout.inodes..layout.end].fill(0);
    let shape = &volume.shape;
    let count = fragments(volume, group);
    let mut word = |at: usize, value: u32| order.put_u32(&mut new, at, value);
    word(at::MAGIC, MAGIC);
    word(at::NUMBER, group);
    word(at::FRAGMENTS, count);
    for (no, most) in [count, count, shape.group_inodes].into_iter().enumerate() {
        let at = at::ROTORS + no * 4;
        let rotor = order.u32(old, at);
        word(at, if rotor < most { rotor } else { 0 });
    }
    let small = |place: usize| u32::try_from(place).unwrap_or(0);
    word(at::OLD_TOTALS_AT, small(layout.old_totals));
    word(at::OLD_POSITIONS_AT, small(layout.old_positions));
    word(at::INODES_AT, small(layout.inodes));
    word(at::FREE_AT, small(layout.free));
    word(at::END_AT, small(layout.end));
    word(at::SUMS_AT, small(layout.sums));
    word(at::CLUSTERS_AT, small(layout.clusters));
    word(at::CLUSTERS, if layout.runs > 0 { count / shape.fragments_per_block() } else { 0 });
    if volume.is_two() {
        word(at::INODES, shape.group_inodes);
        word(at::INITIALISED, state.initialised[to_usize(group)]);
    } else {
        put_cylinders(volume, &mut new, (group, count));
    }
    put_inodes(volume, layout, state, (group, &mut new));
    put_fragments(volume, layout, state, (group, &mut new));
    new
}

/// What only UFS1 has: cylinders, and inodes in 16 bits.
fn put_cylinders(volume: &Volume<'_>, new: &mut [u8], (group, count): (u32, u32)) {
    let (shape, order) = (&volume.shape, volume.order());
    let all = volume.word(super_at::OLD_CPG).max(1);
    let per_cylinder = (shape.group_fragments / all).max(1);
    let cylinders = if group + 1 == shape.groups { count.div_ceil(per_cylinder) } else { all };
    let low = |value: u32| u16::try_from(value & 0xffff).unwrap_or(0);
    order.put_u16(new, at::OLD_CYLINDERS, low(cylinders));
    order.put_u16(new, at::OLD_INODES, low(shape.group_inodes));
}

fn put_inodes(volume: &Volume<'_>, layout: &Layout, state: &State, (group, new): (u32, &mut [u8])) {
    let all = volume.shape.group_inodes;
    let (mut free, mut directories) = (all, 0);
    for no in 0..all {
        let ino = group * all + no;
        if state.is_used(ino) || ino < crate::ufs::layout::superblock::ROOT_INO {
            put_bit(&mut new[layout.inodes..], to_usize(no), true);
            free -= 1;
            directories += u32::from(state.is_dir(ino));
        }
    }
    volume.order().put_u32(new, at::COUNTS, directories);
    volume.order().put_u32(new, at::COUNTS + 8, free);
}

fn put_fragments(volume: &Volume<'_>, layout: &Layout, state: &State, (group, new): (u32, &mut [u8])) {
    let per_block = volume.shape.fragments_per_block();
    let (first, count) = (volume.group_first(group), fragments(volume, group));
    let mut runs = [0_u32; RUNS];
    let (mut whole, mut single) = (0, 0);
    let mut clusters = Clusters::default();
    for block in (0..count).step_by(to_usize(per_block)) {
        let is_free = |no: u32| no < count && !state.claimed.get(first + u64::from(no));
        let free = (block..block + per_block).filter(|&no| is_free(no)).count();
        for no in (block..block + per_block).filter(|&no| is_free(no)) {
            put_bit(&mut new[layout.free..], to_usize(no), true);
        }
        if free == to_usize(per_block) {
            whole += 1;
            if layout.runs > 0 {
                put_bit(&mut new[layout.clusters..], to_usize(block / per_block), true);
            }
            clusters.run += 1;
            continue;
        }
        clusters.end(layout, volume, new);
        single += u32::try_from(free).unwrap_or(0);
        let mut run = 0;
        for no in block..=block + per_block {
            if no < block + per_block && is_free(no) {
                run += 1;
            } else {
                runs[run] += u32::from(run > 0);
                run = 0;
            }
        }
    }
    clusters.end(layout, volume, new);
    let order = volume.order();
    order.put_u32(new, at::COUNTS + 4, whole);
    order.put_u32(new, at::COUNTS + 12, single);
    for (size, count) in runs.into_iter().enumerate() {
        order.put_u32(new, at::RUNS + size * 4, count);
    }
}

/// The run of free blocks that is being counted.
#[derive(Default)]
struct Clusters {
    run: usize,
}

impl Clusters {
    fn end(&mut self, layout: &Layout, volume: &Volume<'_>, new: &mut [u8]) {
        if self.run > 0 && layout.runs > 0 {
            let at = layout.sums + self.run.min(layout.runs) * 4;
            let order = volume.order();
            let count = order.u32(new, at);
            order.put_u32(new, at, count + 1);
        }
        self.run = 0;
    }
}
