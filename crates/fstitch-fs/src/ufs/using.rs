//! The beginning and the end of a volume's use.
//!
//! **Orderings** (arrows read "comes after"). Every change → the mark that the volume is in use: `uhfs` makes it stable before the first.
//! The mark that it is clean → everything else, counts included.
//!
//! While a volume is in use it is not clean, and asks for a full check where a system that believes the soft updates to be its own would do
//! without: what the counts of groups and summaries say is written when it is left clean.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, BlockNo, Result};
use fstitch_patch::{Block, PatchId, PatchIds, Tx};

use super::groups::OpenGroup;
use super::hashes;
use super::layout::group::{Clusters, at as group};
use super::layout::superblock::{
    FLAGS_UPDATED, OLD_FLAGS, SUPERBLOCK_MAX, SUPERBLOCK_SIZE, Totals, Version, at, flag, hashed,
};
use super::volume::Ufs;
use crate::num::{idx, idx64, low32, small};

/// The superblock's fragments, in the cache.
struct Super {
    blocks: Vec<Block>,
    /// Where it begins in the first of them.
    at: usize,
    fragment: usize,
}

impl Super {
    /// The superblock's newest bytes, as many as it may take and the volume's fragments have.
    fn bytes(&self, tx: &Tx<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for block in &self.blocks {
            bytes.extend_from_slice(tx.data(block));
        }
        bytes.drain(..self.at);
        bytes
    }

    /// Patches bytes of the superblock.
    fn put(&self, tx: &mut Tx<'_>, (at, bytes): (usize, &[u8]), befores: &[PatchId]) -> PatchIds {
        let mut patches = PatchIds::new();
        let mut done = 0;
        while done < bytes.len() {
            let place = self.at + at + done;
            let (block, within) = (place / self.fragment, place % self.fragment);
            let len = (bytes.len() - done).min(self.fragment - within);
            let part = &bytes[done..done + len];
            if tx.data(&self.blocks[block])[within..within + len] != *part {
                patches.push(tx.bytes(&self.blocks[block], within, part, befores));
            }
            done += len;
        }
        patches
    }
}

impl Ufs {
    fn super_blocks(&self) -> Result<Super> {
        let fragment = u64::from(self.sb.fragment_size);
        let (first, end) = (
            self.sb.at / fragment,
            (self.sb.at + to_u64(if self.sb.says_hashed() { SUPERBLOCK_MAX } else { SUPERBLOCK_SIZE }))
                .div_ceil(fragment),
        );
        let read = (first..end).map(|no| self.cache.read(BlockNo(no), BlockKind::Superblock));
        let blocks = read.collect::<Result<_>>()?;
        Ok(Super { blocks, at: idx64(self.sb.at % fragment), fragment: idx64(fragment) })
    }

    /// Whether the superblock has the check hash that it should, if any.
    pub(super) fn is_superblock_right(&self) -> Result<bool> {
        if self.sb.kept_hashes() & hashed::SUPERBLOCK == 0 {
            return Ok(true);
        }
        let blocks = self.super_blocks()?;
        let bytes = blocks.bytes(&self.cache.lock());
        Ok(hashes::is_super_right(self.sb.order, &bytes))
    }

    fn words(&self, values: &[u64], wide: bool) -> Vec<u8> {
        let each = if wide { 8 } else { 4 };
        let mut bytes = vec![0; values.len() * each];
        for (slot, &value) in values.iter().enumerate() {
            match wide {
                true => self.sb.order.put_u64(&mut bytes, slot * each, value),
                false => self.sb.order.put_u32(&mut bytes, slot * each, low32(value)),
            }
        }
        bytes
    }

    fn put_flags(&self, tx: &mut Tx<'_>, blocks: &Super, flags: u32, befores: &[PatchId]) -> PatchIds {
        let mut patches = blocks.put(tx, (at::FLAGS, &self.words(&[u64::from(flags)], false)), befores);
        if self.sb.version == Version::One {
            let old = u8::try_from(flags & OLD_FLAGS).unwrap_or(0);
            patches.extend(blocks.put(tx, (at::OLD_FLAGS, &[old | FLAGS_UPDATED]), befores));
        }
        patches
    }

    fn now_secs(&self) -> u64 {
        self.cache.clock().now().secs.max(0).cast_unsigned()
    }

    fn put_time(&self, tx: &mut Tx<'_>, blocks: &Super) -> PatchIds {
        let now = self.now_secs();
        match self.sb.version {
            Version::One => blocks.put(tx, (at::OLD_TIME, &self.words(&[now], false)), &[]),
            Version::Two => blocks.put(tx, (at::TIME, &self.words(&[now], true)), &[]),
        }
    }

    /// What asks for a full check beside the mark that it is not clean: of a system that would use a volume with soft updates at once, and
    /// of ours, where check hashes and this are written together. NetBSD neither checks nor mounts what has flags that it does not know.
    fn asks_for_check(&self) -> u32 {
        let is_trusted = self.sb.flags & (flag::SOFTDEP | flag::SUJ) != 0;
        if is_trusted || self.sb.says_hashed() { flag::UNCLEAN | flag::NEEDS_FSCK } else { 0 }
    }

    /// Marks the volume as in use.
    pub(super) fn start_use(&self) -> Result<()> {
        let blocks = self.super_blocks()?;
        let mut tx = self.cache.lock();
        let kept = hashes::in_use(self.sb.kept_hashes());
        let flags = self.flags_with(kept) | self.asks_for_check();
        if self.sb.says_hashed() {
            // Alone: a block may be torn between its sectors, and not every mechanism keeps orders.
            self.put_hashes(&mut tx, &blocks, (flags, kept));
            drop(tx);
            self.cache.sync_all()?;
            tx = self.cache.lock();
        }
        blocks.put(&mut tx, (at::CLEAN, &[0]), &[]);
        self.put_flags(&mut tx, &blocks, flags, &[]);
        self.put_time(&mut tx, &blocks);
        if self.sb.version == Version::Two {
            // A journal of soft updates that is older than this mount is not replayed by anybody.
            blocks.put(&mut tx, (at::MTIME, &self.words(&[self.now_secs()], true)), &[]);
        }
        Ok(())
    }

    /// Writes all counts, and marks the volume as clean, unless it was unclean when it was opened, or a read failed: an operation that
    /// cannot go on in the middle may leave what nothing owns.
    pub(super) fn end_use(&self) -> Result<()> {
        if self.cache.options().read_only {
            return Ok(());
        }
        let blocks = self.super_blocks()?;
        let has_failed = self.cache.stats().read_errors > 0;
        let mut totals = self.sb.totals;
        let mut counted = PatchIds::new();
        let mut are_known = true;
        for no in self.changed_groups() {
            let open = self.open_group(no)?;
            let (before, now) = (open.read.totals, open.counts);
            let change = |total: &mut u64, before: u64, now: u64| {
                *total = total.saturating_add(now).saturating_sub(before)
            };
            change(&mut totals.directories, before.directories, now.directories);
            change(&mut totals.blocks, before.blocks, now.blocks);
            change(&mut totals.inodes, before.inodes, now.inodes);
            change(&mut totals.fragments, before.fragments, now.fragments);
            let (patches, is_known) = self.put_group_counts(&open)?;
            counted.extend(patches);
            are_known &= is_known;
        }
        let mut tx = self.cache.lock();
        counted.extend(self.put_totals(&mut tx, &blocks, totals));
        counted.extend(self.put_time(&mut tx, &blocks));
        if self.is_unclean() || has_failed || !are_known {
            return Ok(());
        }
        let kept = self.sb.kept_hashes();
        let flags = self.flags_with(kept) & !(flag::UNCLEAN | flag::NEEDS_FSCK);
        if kept == 0 {
            // What asks for a check goes after the counts, too.
            let flagged = self.put_flags(&mut tx, &blocks, flags, &counted);
            counted.extend(flagged);
            blocks.put(&mut tx, (at::CLEAN, &[1]), &counted);
            return Ok(());
        }
        blocks.put(&mut tx, (at::CLEAN, &[1]), &counted);
        drop(tx);
        self.cache.sync_all()?;
        // The flags still ask for a check: the last write, of these alone, says that all is there.
        self.put_hashes(&mut self.cache.lock(), &blocks, (flags, kept));
        Ok(())
    }

    /// The flags of the volume when these have check hashes.
    fn flags_with(&self, kept: u32) -> u32 {
        let none = if kept == 0 && self.sb.says_hashed() { flag::HASHES_OR_QUOTA } else { 0 };
        self.sb.flags & !none
    }

    /// Says who has check hashes, beside the flags and the superblock's own hash, which is of what it is with these: in one sector.
    fn put_hashes(&self, tx: &mut Tx<'_>, blocks: &Super, (flags, kept): (u32, u32)) {
        let order = self.sb.order;
        let mut raw = blocks.bytes(tx);
        order.put_u32(&mut raw, at::METACKHASH, kept);
        order.put_u32(&mut raw, at::FLAGS, flags);
        if kept & hashed::SUPERBLOCK != 0
            && let Some(len) = hashes::super_len(order, &raw)
        {
            let sum = hashes::hash(&raw[..len], at::CKHASH);
            order.put_u32(&mut raw, at::CKHASH, sum);
        }
        blocks.put(tx, (at::CKHASH, &raw[at::CKHASH..at::FLAGS + 4]), &[]);
    }

    fn put_totals(&self, tx: &mut Tx<'_>, blocks: &Super, totals: Totals) -> PatchIds {
        let values = [totals.directories, totals.blocks, totals.inodes, totals.fragments];
        let mut patches = PatchIds::new();
        if self.sb.version == Version::One {
            patches.extend(blocks.put(tx, (at::OLD_CSTOTAL, &self.words(&values, false)), &[]));
        }
        patches.extend(blocks.put(tx, (at::CSTOTAL, &self.words(&values, true)), &[]));
        patches
    }

    /// Writes what a group counts, into itself and among those of all groups. False if what lies in its place there is something else: then that
    /// stays, and the volume is left to a check.
    fn put_group_counts(&self, open: &OpenGroup<'_>) -> Result<(PatchIds, bool)> {
        let counts = open.counts;
        let values = [counts.directories, counts.blocks, counts.inodes, counts.fragments];
        let bytes = self.words(&values, false);
        let fragment = u64::from(self.sb.fragment_size);
        let place = u64::from(open.no) * to_u64(bytes.len());
        let summary =
            self.cache.read(BlockNo(self.sb.summaries.0 + place / fragment), BlockKind::GroupDescriptor)?;
        let (runs, sums, map) = self.free_runs(open);
        let now = self.now_secs();
        let part = self.group_part(open, 0..idx(self.sb.group_size))?;
        let mut tx = self.cache.lock();
        let mut put = |at: usize, bytes: &[u8]| open.put((&mut tx, &part), at, bytes, &[]);
        let mut patches = put(group::CS, &bytes);
        patches.extend(put(group::FRSUM, &self.words(&runs, false)));
        if let Some(Clusters { sums: sums_at, map: map_at, .. }) = open.read.clusters {
            // What is said of runs of length 0 lies in the map before it.
            patches.extend(put(sums_at + 4, &self.words(&sums[1..], false)));
            patches.extend(put(map_at, &map));
        }
        match self.sb.version {
            Version::One => patches.extend(put(group::OLD_TIME, &self.words(&[now], false))),
            Version::Two => patches.extend(put(group::TIME, &self.words(&[now], true))),
        }
        let at = idx64(place % fragment);
        let before = open.read.totals;
        let expected =
            self.words(&[before.directories, before.blocks, before.inodes, before.fragments], false);
        if self.sb.kept_hashes() & hashed::GROUP != 0 {
            let sum = hashes::hash(&part.bytes(&tx)[..idx(self.sb.group_size)], group::CKHASH);
            let befores = patches.clone();
            let raw = self.words(&[u64::from(sum)], false);
            patches.extend(open.put((&mut tx, &part), group::CKHASH, &raw, &befores));
        }
        let is_known = tx.data(&summary)[at..at + bytes.len()] == expected[..];
        if is_known {
            patches.push(tx.bytes(&summary, at, &bytes, &[]));
        }
        Ok((patches, is_known))
    }

    /// How many runs of each length there are among the free fragments of blocks that are used in part, the same of whole free blocks,
    /// and the bitmap of these.
    fn free_runs(&self, open: &OpenGroup<'_>) -> (Vec<u64>, Vec<u64>, Vec<u8>) {
        let per_block = self.sb.fragments_per_block();
        let full = (1_u32 << per_block) - 1;
        let most = idx(self.sb.cluster_max);
        let blocks = open.read.clusters.map_or(0, |clusters| clusters.blocks);
        let (mut runs, mut sums) = (vec![0; 8], vec![0; most + 1]);
        let mut map = vec![0_u8; idx(blocks.div_ceil(8))];
        let mut cluster = 0;
        for block in 0..open.read.fragments.div_ceil(per_block) {
            let free = open.free_in(block, per_block);
            if free == full && block < blocks {
                map[idx(block / 8)] |= 1 << (block % 8);
                cluster += 1;
                continue;
            }
            end_cluster(&mut sums, &mut cluster);
            if free == full {
                continue;
            }
            let mut run = 0;
            for at in 0..=per_block {
                if at < per_block && free >> at & 1 == 1 {
                    run += 1;
                } else if run > 0 {
                    runs[run] += 1;
                    run = 0;
                }
            }
        }
        end_cluster(&mut sums, &mut cluster);
        debug_assert!(small(map.len()) * 8 >= blocks);
        (runs, sums, map)
    }
}

/// Counts a run of free blocks that has ended: those that are longer than is counted apart are counted as the longest.
fn end_cluster(sums: &mut [u64], cluster: &mut usize) {
    if *cluster > 0 && sums.len() > 1 {
        sums[(*cluster).min(sums.len() - 1)] += 1;
    }
    *cluster = 0;
}
