//! Pass 5: what groups say that is free, their counts, the counts of all groups, and the totals.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, Result};

use super::groups::{self, BASE, Layout, at};
use super::state::State;
use super::volume::{Volume, at as super_at};
use crate::bits::bit;
use crate::ufs::hashes;
use crate::ufs::layout::superblock::hashed;

/// Bytes of a group's counts in the list of those of all groups.
const SUMMARY: usize = 16;
/// Bytes behind the four totals that nobody uses, and that must be zero.
const SPARE_TOTALS: std::ops::Range<usize> = super_at::TOTALS + 32..super_at::TIME;

/// Totals: directories, free blocks, free inodes, free fragments.
type Totals = [u64; 4];

pub(super) fn run(volume: &Volume<'_>, state: &mut State, layout: &Layout) -> Result<()> {
    let mut totals = Totals::default();
    let mut summaries = Vec::new();
    for group in 0..volume.shape.groups {
        let old = groups::read(volume, group)?;
        if volume.shape.kept_hashes() & hashed::GROUP != 0 && !hashes::is_group_right(&volume.shape, &old) {
            // When something is mended groups have no hashes any more.
            let _ = state.corrupt("group-hash", format!("the check hash of group {group} does not match"));
        }
        let new = groups::build(volume, layout, state, (group, &old));
        if judge(volume, state, layout, (group, &old, &new)) {
            groups::write(volume, group, &new)?;
        }
        summaries.extend_from_slice(&new[at::COUNTS..at::COUNTS + SUMMARY]);
        for (no, total) in totals.iter_mut().enumerate() {
            *total += u64::from(volume.order().u32(&new, at::COUNTS + no * 4));
        }
    }
    judge_summaries(volume, state, &summaries)?;
    judge_totals(volume, state, totals)
}

/// Compares a group with what it should be; whether it is to be written.
fn judge(
    volume: &Volume<'_>,
    state: &mut State,
    layout: &Layout,
    (group, old, new): (u32, &[u8], &[u8]),
) -> bool {
    if old == new {
        return false;
    }
    let mut mend = false;
    let counts = at::COUNTS..at::OLD_TOTALS_AT;
    let differs = |range: std::ops::Range<usize>| old[range.clone()] != new[range];
    if differs(0..counts.start) || differs(counts.end..BASE) {
        mend |= state.corrupt("group", format!("the block of group {group} does not describe that"));
    }
    // Bits that differ: those that only the old map has, and those that it lacks.
    let bits = |from: usize, count: u32| {
        let (mut more, mut less) = (0_u64, 0_u64);
        for no in 0..to_usize(count) {
            match (bit(&old[from..], no), bit(&new[from..], no)) {
                (true, false) => more += 1,
                (false, true) => less += 1,
                _ => {}
            }
        }
        (more, less)
    };
    let (used, unused) = bits(layout.inodes, volume.shape.group_inodes);
    let (free, taken) = bits(layout.free, volume.shape.group_fragments);
    if unused > 0 {
        mend |= state.corrupt("inode-free", format!("group {group}: {unused} inodes in use are called free"));
    }
    if used > 0 {
        mend |= state
            .allowed("inode-leaked", format!("group {group}: {used} inodes are called used, and are not"));
    }
    if free > 0 {
        mend |= state.corrupt(
            "block-free",
            format!("group {group}: {free} fragments that are somebody's are called free"),
        );
    }
    if taken > 0 {
        mend |=
            state.allowed("block-leaked", format!("group {group}: {taken} fragments in use are nobody's"));
    }
    if differs(counts) {
        mend |= state.allowed("group-totals", format!("group {group}: its counts are not what was found"));
    }
    let counting = (layout.inodes..layout.end).filter(|&byte| layout.is_counting(byte, volume));
    if counting.into_iter().any(|byte| old[byte] != new[byte]) {
        mend |= state.allowed(
            "group-clusters",
            format!("group {group}: its counts of free blocks in a row are wrong"),
        );
    }
    mend
}

/// The list of all groups' counts.
fn judge_summaries(volume: &Volume<'_>, state: &mut State, summaries: &[u8]) -> Result<()> {
    let (at, bytes) = volume.shape.summaries;
    let count = u64::from(bytes).div_ceil(volume.fragment());
    let mut found = volume.read(at, count, BlockKind::GroupDescriptor)?;
    let len = summaries.len();
    if found[..len] == *summaries {
        return Ok(());
    }
    let wrong = found.chunks(SUMMARY).zip(summaries.chunks(SUMMARY)).filter(|(old, new)| old != new).count();
    if state.allowed("summary", format!("the counts of {wrong} groups in the list of them are wrong")) {
        found[..len].copy_from_slice(summaries);
        volume.write(at, BlockKind::GroupDescriptor, &found)?;
    }
    Ok(())
}

/// The totals in the superblock: in UFS1 also where they were before.
fn judge_totals(volume: &Volume<'_>, state: &mut State, totals: Totals) -> Result<()> {
    let wide = volume.is_updated();
    let found_wide: Totals = std::array::from_fn(|no| volume.long(super_at::TOTALS + no * 8));
    let found_old: Totals = std::array::from_fn(|no| volume.word(super_at::OLD_TOTALS + no * 4).into());
    let is_right = (!wide || found_wide == totals && volume.raw[SPARE_TOTALS].iter().all(|&byte| byte == 0))
        && (volume.is_two() || found_old == totals);
    let found = if wide { found_wide } else { found_old };
    if is_right || !state.allowed("totals", format!("totals {found:?}, {totals:?} found")) {
        return Ok(());
    }
    let order = volume.order();
    volume.edit_super(volume.shape.at, |raw| {
        for (no, total) in totals.into_iter().enumerate() {
            let low = u32::try_from(total).unwrap_or(u32::MAX);
            order.put_u32(raw, super_at::OLD_TOTALS + no * 4, low);
            if wide {
                order.put_u64(raw, super_at::TOTALS + no * 8, total);
            }
        }
        if wide {
            raw[SPARE_TOTALS].fill(0);
        }
    })
}

/// Whether the list of all groups' counts is where and as long as it can be.
pub(super) fn has_place(volume: &Volume<'_>) -> bool {
    let (at, bytes) = volume.shape.summaries;
    let count = u64::from(bytes).div_ceil(volume.fragment());
    let needed = u64::from(volume.shape.groups) * to_u64(SUMMARY);
    let end = at.checked_add(count).filter(|&end| end <= volume.shape.fragments);
    end.is_some() && at >= u64::from(volume.shape.parts[0]) && u64::from(bytes) >= needed
}
