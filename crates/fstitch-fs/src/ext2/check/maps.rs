//! Pass 5: bitmaps and counters against what the passes before have found.

use fstitch_core::Result;

use super::seals::Map;
use super::state::{State, USED, Volume};
use crate::bits::put_bit;
use crate::ext2::layout::group::{BG_FREE_BLOCKS_COUNT, BG_FREE_INODES_COUNT, BG_USED_DIRS_COUNT};
use crate::ext2::layout::superblock::{
    FREE_BLOCKS, S_FREE_INODES_COUNT, S_SESSION_MAGIC, S_STATE, STATE_ERROR, STATE_VALID,
};
use crate::ext2::leftovers::RECORD_SIZE;
use crate::ext2::num::{idx, small, wide};

/// Bits that are compared at once.
const WORD: usize = 64;

/// What the bitmaps of a group amount to, in clusters and inodes.
#[derive(Clone, Copy, Debug)]
struct Free {
    blocks: u32,
    inodes: u32,
}

/// Checks all bitmaps, then the counters.
pub(super) fn run(volume: &mut Volume<'_>, state: &mut State) -> Result<()> {
    let (mut blocks_free, mut inodes_free) = (0_u64, 0_u32);
    for group in 0..volume.shape.group_count() {
        let blocks = block_bitmap(volume, state, group)?;
        let inodes = inode_bitmap(volume, state, group)?;
        blocks_free += u64::from(blocks);
        inodes_free += inodes;
        group_counters(volume, state, group, Free { blocks, inodes })?;
    }
    volume_counters(volume, state, (blocks_free, inodes_free))
}

/// One bitmap, as it is and as it should be.
struct Bitmap<'b> {
    bytes: &'b mut [u8],
    len: usize,
    changed: bool,
}

impl Bitmap<'_> {
    /// The whole bitmap in words: where each begins, its bits, and which of these mean something.
    fn words(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        self.bytes.as_chunks().0.iter().enumerate().map(|(word, bytes)| {
            let at = word * WORD;
            let meant = match self.len.saturating_sub(at) {
                0 => 0,
                count if count < WORD => (1 << count) - 1,
                _ => u64::MAX,
            };
            (at, u64::from_le_bytes(*bytes), meant)
        })
    }

    /// Runs of bits that are `set` but should not be, or the other way round, as (first, count); `expected` has the
    /// word that begins at a bit as it should be.
    fn runs(&self, set: bool, expected: impl Fn(usize) -> u64) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (start, bits, meant) in self.words().take_while(|&(.., meant)| meant != 0) {
            let expected = expected(start);
            let mut wrong = meant & if set { bits & !expected } else { !bits & expected };
            while wrong != 0 {
                let at = start + idx(wrong.trailing_zeros());
                match runs.last_mut() {
                    Some((first, count)) if *first + *count == at => *count += 1,
                    _ => runs.push((at, 1)),
                }
                wrong &= wrong - 1;
            }
        }
        runs
    }

    fn put(&mut self, (first, count): (usize, usize), on: bool) {
        for at in first..first + count {
            put_bit(self.bytes, at, on);
        }
        self.changed = true;
    }

    /// Clear bits.
    fn free(&self) -> u32 {
        self.words().map(|(_, bits, meant)| (!bits & meant).count_ones()).sum()
    }

    /// The bits behind the last one that means something are set.
    fn padding(&mut self, state: &mut State, what: impl Fn() -> String) {
        if self.words().all(|(_, bits, meant)| bits | meant == u64::MAX) {
            return;
        }
        if state.corrupt("bitmap-padding", format!("{}: the padding is not set", what())) {
            let all = self.bytes.len() * 8 - self.len;
            self.put((self.len, all), true);
        }
    }
}

/// Judges the sum of a bitmap; true when it is to be written with a right one. One that was never written has none.
fn sum(volume: &Volume<'_>, state: &mut State, (group, map): (u32, Map), bytes: &[u8]) -> Result<bool> {
    if volume.is_uninit(group, map)? || volume.bitmap_sum_matches(group, map, bytes)? {
        return Ok(false);
    }
    let text = format!("the sum of a bitmap of group {group} ({map:?}) does not match");
    // Soft updates write the bitmap and the descriptor that has its sum one after the other.
    Ok(match state.leftovers.are_of_soft_updates() {
        true => state.allowed("bitmap-sum", text),
        false => state.corrupt("bitmap-sum", text),
    })
}

fn block_bitmap(volume: &Volume<'_>, state: &mut State, group: u32) -> Result<u32> {
    let (first, count) = (volume.shape.group_start(group), volume.shape.group_clusters(group));
    if state.used.is_clear(first >> volume.shape.log_cluster, u64::from(count))
        && volume.is_uninit(group, Map::Blocks)?
    {
        // Of a large volume most groups: nothing was ever there, not even metadata.
        return Ok(count);
    }
    let mut bytes = vec![0; volume.block_size()];
    volume.read_bitmap(group, Map::Blocks, &mut bytes)?;
    let summed = sum(volume, state, (group, Map::Blocks), &bytes)?;
    let start = volume.shape.group_start(group);
    let log_cluster = volume.shape.log_cluster;
    let len = idx(volume.shape.group_clusters(group));
    let mut map = Bitmap { bytes: &mut bytes, len, changed: false };
    let owned = |state: &State, at: usize| state.used.word((start >> log_cluster) + wide(at));
    // The blocks of a run of bits.
    let blocks = |run: (usize, usize)| {
        let first = start + (wide(run.0) << log_cluster);
        first..first + (wide(run.1) << log_cluster)
    };
    for run in map.runs(true, |at| owned(state, at)) {
        let text = format!("blocks {:?} are marked used, nothing owns them", blocks(run));
        if state.allowed("block-leaked", text) {
            map.put(run, false);
        }
    }
    for run in map.runs(false, |at| owned(state, at)) {
        let text = format!("blocks {:?} are marked free, but have owners", blocks(run));
        if blocks(run).all(|block| volume.source.block_moves(block)) {
            continue;
        }
        if state.corrupt("block-marked-free", text) {
            map.put(run, true);
        }
    }
    map.padding(state, || format!("block bitmap of group {group}"));
    let (free, changed) = (map.free(), map.changed || summed);
    if changed {
        volume.write_bitmap(group, Map::Blocks, &bytes)?;
    }
    Ok(free)
}

fn inode_bitmap(volume: &Volume<'_>, state: &mut State, group: u32) -> Result<u32> {
    let (first, count) = (group * volume.shape.inodes_per_group + 1, volume.shape.inodes_per_group);
    let known = &state.inodes[idx(first)..idx(first + count)];
    let is_new = !State::is_reserved(volume, first) && known.iter().all(|&flags| flags == 0);
    if is_new && volume.is_uninit(group, Map::Inodes)? {
        return Ok(count);
    }
    let mut bytes = vec![0; volume.block_size()];
    volume.read_bitmap(group, Map::Inodes, &mut bytes)?;
    let summed = sum(volume, state, (group, Map::Inodes), &bytes)?;
    let start = group * volume.shape.inodes_per_group + 1;
    let mut map = Bitmap { bytes: &mut bytes, len: idx(volume.shape.inodes_per_group), changed: false };
    let used = |state: &State, at: usize| {
        let inodes = (start + small(at)..).zip(&state.inodes[idx(start) + at..]).take(WORD);
        inodes.enumerate().fold(0, |word, (bit, (ino, flags))| {
            word | u64::from(State::is_reserved(volume, ino) || flags & USED != 0) << bit
        })
    };
    for run in map.runs(true, |at| used(state, at)) {
        let first = start + small(run.0);
        let text = format!("inodes {first}..{} are marked used, but are free", first + small(run.1));
        if state.allowed("inode-leaked", text) {
            map.put(run, false);
        }
    }
    for run in map.runs(false, |at| used(state, at)) {
        for at in run.0..run.0 + run.1 {
            let ino = start + small(at);
            // An inode may be written before its bit; as long as nothing names it, it is free all the same.
            let own = State::is_reserved(volume, ino) || volume.shape.is_own_inode(ino);
            let named = (own || state.is_named(ino)) && !volume.source.inode_moves(ino);
            let text = format!("inode {ino} is marked free, but is in use");
            if named && state.corrupt("inode-marked-free", text) {
                map.put((at, 1), true);
            }
        }
    }
    map.padding(state, || format!("inode bitmap of group {group}"));
    let (free, changed) = (map.free(), map.changed || summed);
    if changed {
        volume.write_bitmap(group, Map::Inodes, &bytes)?;
    }
    Ok(free)
}

/// A count as a descriptor's 16-bit field has it.
fn short(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn group_counters(volume: &Volume<'_>, state: &mut State, group: u32, free: Free) -> Result<()> {
    let start = group * volume.shape.inodes_per_group + 1;
    let end = start + volume.shape.inodes_per_group;
    let low = state.dirs.partition_point(|dir| dir.ino < start);
    let high = state.dirs.partition_point(|dir| dir.ino < end);
    let directories = small(state.dirs[low..high].iter().filter(|dir| state.is_dir(dir.ino)).count());
    let expected = (short(free.blocks), short(free.inodes), short(directories));
    let descriptor = &volume.groups[idx(group)];
    let found = (descriptor.free_blocks, descriptor.free_inodes, descriptor.used_dirs);
    if found == expected {
        return Ok(());
    }
    let text = format!(
        "group {group} counts (free blocks, free inodes, directories) {found:?}, it has {expected:?}"
    );
    if state.allowed("group-counters", text) {
        volume.change_descriptor(group, |raw| {
            BG_FREE_BLOCKS_COUNT.put(raw, expected.0);
            BG_FREE_INODES_COUNT.put(raw, expected.1);
            BG_USED_DIRS_COUNT.put(raw, expected.2);
        })?;
    }
    Ok(())
}

/// `free` counts clusters and inodes.
fn volume_counters(volume: &mut Volume<'_>, state: &mut State, free: (u64, u32)) -> Result<()> {
    let expected = (free.0 << volume.shape.log_cluster, free.1);
    let raw = &mut volume.raw_super;
    let found = (FREE_BLOCKS.get(raw), S_FREE_INODES_COUNT.get(raw));
    let mut changed = false;
    if found != expected {
        let text = format!("the superblock counts {found:?} free blocks and inodes, there are {expected:?}");
        if state.allowed("superblock-counters", text) {
            FREE_BLOCKS.put(raw, expected.0);
            S_FREE_INODES_COUNT.put(raw, expected.1);
            changed = true;
        }
    }
    let flags = S_STATE.get(raw);
    // The mark is put right last, and only when nothing is left to mend.
    let mended = state.report.total == state.mended;
    if flags & STATE_VALID == 0 || flags & STATE_ERROR != 0 {
        let text = format!("the volume was not unmounted cleanly (state {flags:#x})");
        if state.allowed("superblock-not-clean", text) {
            if mended {
                S_STATE.put(raw, STATE_VALID);
                raw[S_SESSION_MAGIC.offset()..][..RECORD_SIZE].fill(0);
                changed = true;
            } else {
                state.mended -= 1;
            }
        }
    }
    if changed {
        // Bitmaps and descriptors are stable before the superblock says that all is well.
        volume.source.flush()?;
        volume.write_super()?;
    }
    Ok(())
}
