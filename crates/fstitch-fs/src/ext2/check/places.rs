//! Where bitmaps and inode tables are, if what a descriptor says of it cannot be, or others say something else.
//!
//! A descriptor with a right sum may still be a wrong one. Nothing else is looked at before this is settled: who mends by a table
//! that is none writes over files.

use std::collections::BTreeSet;

use fstitch_core::{BlockKind, BlockNo, CheckReport, FileKind, FindingClass, Result};

use super::state::Volume;
use super::supers::copies;
use crate::bits::{bit, put_bit};
use crate::ext2::layout::group::{BLOCK_UNINIT, GroupDescriptor, INODE_UNINIT};
use crate::ext2::layout::inode::{self, I_LINKS_COUNT, I_MODE};
use crate::ext2::layout::superblock::{ROOT_INO, Superblock};
use crate::ext2::num::{idx, idx64};

/// What a group has where.
fn places(of: &GroupDescriptor) -> [u64; 3] {
    [of.block_bitmap, of.inode_bitmap, of.inode_table]
}

fn with_places(of: &GroupDescriptor, [block_bitmap, inode_bitmap, inode_table]: [u64; 3]) -> GroupDescriptor {
    GroupDescriptor { block_bitmap, inode_bitmap, inode_table, ..*of }
}

/// Settles what all groups have where, and what of it was never used; how many descriptors were mended.
pub(super) fn settle(volume: &mut Volume<'_>, report: &mut CheckReport, mend: bool) -> Result<u64> {
    let mut mended = 0;
    if !volume.compares() {
        // In use: sums are behind what is in memory, and nobody is to be sent elsewhere.
        return Ok(mended);
    }
    let suspects = suspects(volume);
    let mut copies = Copies::default();
    for group in 0..volume.shape.group_count() {
        let (own, copy) = (volume.groups[idx(group)], copies.of(volume, group)?);
        let better = better_places(volume, group, (&own, copy), suspects.contains(&group))?;
        let now = with_flags(&volume.shape, group, &better.unwrap_or(own));
        if now == own {
            continue;
        }
        let problem = match better {
            Some(better) => format!(
                "group {group} has its bitmaps and table at {:?}, more speaks for {:?}",
                places(&own),
                places(&better)
            ),
            None => format!("group {group} is in use, and its flags {:#x} say that it never was", own.flags),
        };
        report.push(FindingClass::Corrupt, "group-descriptor", problem);
        volume.groups[idx(group)] = now;
        if mend {
            let summed = volume.shape.features.has_group_sums();
            volume.change_descriptor(group, |raw| now.encode_into(raw, summed))?;
            mended += 1;
        }
    }
    Ok(mended)
}

/// A descriptor whose flags may be: the first group has inodes, and makers of volumes write the last one's bitmap.
fn with_flags(shape: &Superblock, group: u32, own: &GroupDescriptor) -> GroupDescriptor {
    let mut now = *own;
    if group == 0 && own.is_inode_uninit() {
        now.flags &= !INODE_UNINIT;
        if u32::from(own.itable_unused) == shape.inodes_per_group {
            now.itable_unused = 0;
        }
    }
    if group + 1 == shape.group_count() {
        now.flags &= !BLOCK_UNINIT;
    }
    now
}

/// Whether nothing of another group lies where `group` would have its bitmaps and its table.
fn is_apart(volume: &Volume<'_>, group: u32, at: &GroupDescriptor) -> bool {
    let table = volume.shape.inode_table_blocks();
    let parts = |at: &GroupDescriptor| {
        [(at.block_bitmap, 1), (at.inode_bitmap, 1), (at.inode_table, table)]
            .map(|(first, count)| (first, first.saturating_add(u64::from(count))))
    };
    let mut others = (0..volume.shape.group_count()).zip(&volume.groups).filter(|(other, _)| *other != group);
    others.all(|(_, other)| {
        let own = parts(at);
        parts(other).iter().all(|&(start, end)| own.iter().all(|part| part.1 <= start || end <= part.0))
    })
}

/// Groups of which something lies over something of another one, or of the volume's own.
fn suspects(volume: &Volume<'_>) -> BTreeSet<u32> {
    let shape = &volume.shape;
    let mut parts: Vec<(u64, u64, Option<u32>)> = Vec::new();
    for (group, at) in (0..shape.group_count()).zip(&volume.groups) {
        let start = shape.group_start(group);
        let overhead = shape.group_overhead(group).min(shape.group_blocks(group));
        parts.push((start, start + u64::from(overhead), None));
        parts.extend([at.block_bitmap, at.inode_bitmap].map(|block| (block, block + 1, Some(group))));
        parts.push((at.inode_table, at.inode_table + u64::from(shape.inode_table_blocks()), Some(group)));
    }
    parts.retain(|(start, end, _)| start < end);
    parts.sort_unstable();
    let mut found = BTreeSet::new();
    let mut furthest: (u64, Option<u32>) = (0, None);
    for (start, end, group) in parts {
        if start < furthest.0 {
            found.extend(group.into_iter().chain(furthest.1));
        }
        if end > furthest.0 {
            furthest = (end, group);
        }
    }
    found
}

/// Where else a group has its bitmaps and its table, if more speaks for that than for what its descriptor says.
fn better_places(
    volume: &Volume<'_>,
    group: u32,
    (own, copy): (&GroupDescriptor, Option<[u64; 3]>),
    suspect: bool,
) -> Result<Option<GroupDescriptor>> {
    let differs = copy.is_some_and(|copy| copy != places(own));
    let raw = volume.read_descriptor(group)?;
    // Without a copy the root directory can tell, and the sums of bitmaps that were written.
    let summed = volume.shape.features.has_sums() && !own.is_block_uninit();
    let alone = copy.is_none()
        && (!is_rooted(volume, group, own)? || summed && volume.bitmaps_summed(&raw, own)? < 2);
    if !(suspect || differs || alone) {
        return Ok(None);
    }
    let mut best = (Evidence::of(volume, group, &raw, own)?, *own);
    let guesses = usual(&volume.shape, group, own).into_iter().map(|places| (places, true));
    for (places, is_guess) in copy.map(|places| (places, false)).into_iter().chain(guesses) {
        let candidate = with_places(own, places);
        if !candidate.is_possible(group, &volume.shape) {
            continue;
        }
        let evidence = Evidence::of(volume, group, &raw, &candidate)?;
        let is_better = if is_guess { evidence.is_proof_against(&best.0) } else { evidence > best.0 };
        if is_better {
            best = (evidence, candidate);
        }
    }
    Ok((places(&best.1) != places(own)).then_some(best.1))
}

/// What speaks for places, the strongest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Evidence {
    /// Bitmaps that have the sums of the descriptor.
    summed: usize,
    /// The table of the first group has the root directory.
    rooted: bool,
    /// The bitmap of blocks has the metadata in use, and what is behind the group.
    covers: bool,
    /// Inodes of which bitmap and table say the same.
    agreed: u32,
    /// Nothing of another group lies there.
    apart: bool,
    /// Makers of volumes put them there. Nothing else tells where the table is of a group that was never used.
    usual: bool,
}

impl Evidence {
    /// Whether it is enough for what nobody says. A sum alone is not: some have 16 bits, and a crash leaves those of bitmaps behind.
    fn is_proof_against(&self, other: &Self) -> bool {
        let rooted = self.rooted && !other.rooted;
        let covers = self.covers && !other.covers;
        let better = self.summed > other.summed || (rooted || covers) && self.summed == other.summed;
        better && self.agreed >= other.agreed && self.covers >= other.covers
    }

    fn of(volume: &Volume<'_>, group: u32, raw: &[u8], at: &GroupDescriptor) -> Result<Self> {
        let has_sums = volume.shape.features.has_sums();
        Ok(Self {
            summed: if has_sums { volume.bitmaps_summed(raw, at)? } else { 0 },
            rooted: is_rooted(volume, group, at)?,
            covers: covers(volume, group, at)?,
            agreed: agreed(volume, at)?,
            apart: is_apart(volume, group, at),
            usual: layouts(&volume.shape, group).contains(&places(at)),
        })
    }
}

fn is_rooted(volume: &Volume<'_>, group: u32, at: &GroupDescriptor) -> Result<bool> {
    if group > 0 {
        return Ok(true);
    }
    let (block, offset) = inode::place(&volume.shape, at.inode_table, ROOT_INO);
    let mut bytes = vec![0; volume.block_size()];
    volume.read(block.get(), BlockKind::Inode, &mut bytes)?;
    Ok(FileKind::from_mode(I_MODE.get(&bytes[offset..])) == Some(FileKind::Directory))
}

fn covers(volume: &Volume<'_>, group: u32, at: &GroupDescriptor) -> Result<bool> {
    let shape = &volume.shape;
    if at.is_block_uninit() {
        return Ok(true);
    }
    let mut bits = vec![0; volume.block_size()];
    volume.read(at.block_bitmap, BlockKind::BlockBitmap, &mut bits)?;
    let (start, blocks) = (shape.group_start(group), shape.group_blocks(group));
    let mut wanted = vec![0; bits.len()];
    let own = (0..shape.group_overhead(group).min(blocks)).map(|bit| start + u64::from(bit));
    let parts = [at.block_bitmap, at.inode_bitmap].into_iter();
    let table = at.inode_table..at.inode_table + u64::from(shape.inode_table_blocks());
    for block in
        own.chain(parts).chain(table).filter(|block| (start..start + u64::from(blocks)).contains(block))
    {
        put_bit(&mut wanted, idx64((block - start) >> shape.log_cluster), true);
    }
    (idx(shape.group_clusters(group))..bits.len() * 8).for_each(|bit| put_bit(&mut wanted, bit, true));
    Ok(bits.iter().zip(&wanted).all(|(&bits, &wanted)| bits & wanted == wanted))
}

fn agreed(volume: &Volume<'_>, at: &GroupDescriptor) -> Result<u32> {
    let shape = &volume.shape;
    if at.is_inode_uninit() {
        return Ok(0);
    }
    let mut bits = vec![0; volume.block_size()];
    volume.read(at.inode_bitmap, BlockKind::InodeBitmap, &mut bits)?;
    let used = shape.inodes_per_group - u32::from(at.itable_unused);
    let mut agreed = 0;
    let mut block = vec![0; volume.block_size()];
    for no in 0..used {
        let within = no % shape.inodes_per_block();
        if within == 0 {
            volume.read(
                at.inode_table + u64::from(no / shape.inodes_per_block()),
                BlockKind::Inode,
                &mut block,
            )?;
        }
        let raw = &block[idx(within) * usize::from(shape.inode_size)..];
        agreed += u32::from(bit(&bits, idx(no)) == (I_LINKS_COUNT.get(raw) != 0));
    }
    Ok(agreed)
}

/// Where makers of volumes put things: behind the copy of superblock and descriptors, or by kinds for some groups together.
fn layouts(shape: &Superblock, group: u32) -> [[u64; 3]; 3] {
    let first = shape.group_start(group) + u64::from(shape.group_overhead(group));
    let together: u32 = 1 << shape.log_groups_per_flex.min(16);
    let flex = group / together * together;
    let (at, of) = (u64::from(group - flex), u64::from(together.min(shape.group_count())));
    let start = shape.group_start(flex) + u64::from(shape.group_overhead(flex));
    let tables = at * u64::from(shape.inode_table_blocks());
    let apart = [first, first + 1, first + 2];
    let packed = [start + at, start + of + at, start + 2 * of + tables];
    // mke2fs leaves room for the groups that a volume may grow by.
    let room = u64::from(together);
    let spread = [start + at, start + room + at, start + 2 * room + tables];
    [apart, packed, spread]
}

/// The same, and with only one of the three there.
fn usual(shape: &Superblock, group: u32, own: &GroupDescriptor) -> Vec<[u64; 3]> {
    let whole = layouts(shape, group);
    let single = whole.iter().flat_map(|places| {
        (0..3).map(|part| {
            let mut mixed = self::places(own);
            mixed[part] = places[part];
            mixed
        })
    });
    whole.into_iter().chain(single).collect()
}

/// Copies of descriptors, of which the last block read is kept.
#[derive(Default)]
struct Copies {
    held: Option<(u64, Vec<u8>)>,
}

impl Copies {
    /// What the first copy of a descriptor says of places, if there is one, and it is not damaged.
    fn of(&mut self, volume: &Volume<'_>, group: u32) -> Result<Option<[u64; 3]>> {
        let shape = &volume.shape;
        let Some((block, offset)) = copies(shape, group).next() else { return Ok(None) };
        if self.held.as_ref().is_none_or(|(held, _)| *held != block) {
            let mut bytes = vec![0; volume.block_size()];
            volume.read(block, BlockKind::GroupDescriptor, &mut bytes)?;
            self.held = Some((block, bytes));
        }
        let Some((_, bytes)) = &self.held else { return Ok(None) };
        let raw = &bytes[offset..offset + shape.descriptor_size()];
        Ok(GroupDescriptor::parse(raw, group, shape, BlockNo(0)).ok().map(|copy| places(&copy)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_alone_is_no_proof() {
        let own = Evidence { summed: 0, rooted: true, covers: true, agreed: 256, apart: true, usual: true };
        let by_chance = Evidence { summed: 1, agreed: 120, ..own };
        assert!(!by_chance.is_proof_against(&own), "bitmaps and inodes say something else");
        assert!(Evidence { summed: 1, ..own }.is_proof_against(&own));
        assert!(!Evidence { summed: 1, covers: false, ..own }.is_proof_against(&own));
        let elsewhere = Evidence { rooted: false, agreed: 100, ..own };
        assert!(own.is_proof_against(&elsewhere), "the root directory");
        assert!(
            !own.is_proof_against(&Evidence { agreed: 300, ..elsewhere }),
            "a root that is damaged itself"
        );
        assert!(!own.is_proof_against(&own));
    }
}
