//! The block of a new cylinder group: its maps, and what they add up to.

use std::ops::Range;

use fstitch_core::num::{to_u64, to_usize};

use super::plan::{COUNTS, Plan};
use crate::ufs::layout::group::{MAGIC, at};
use crate::ufs::layout::superblock::{ROOT_INO, Totals, Version};

/// What of a group is in use beside its metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Used {
    /// Directories, each with a fragment at the beginning of a block of its own; they have the inodes from the root's on.
    pub(super) directories: u32,
    /// It is the first group, which has no room before its metadata, the counts of all groups, and two inodes that are nobody's.
    pub(super) is_first: bool,
}

/// A new group's block.
pub(super) struct NewGroup {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// What is free, and how many directories there are.
    pub(super) totals: Totals,
}

/// Where in a group's block is what.
struct Places {
    used_inodes: usize,
    free_fragments: usize,
    cluster_sums: usize,
    clusters: usize,
    end: usize,
}

impl Places {
    fn new(plan: &Plan) -> Self {
        let bits = |count: u32| to_usize(count.div_ceil(8));
        let tables = match plan.version {
            Version::One => at::OLD_CYLINDER_TOTALS + at::OLD_CYLINDER_BLOCKS,
            Version::Two => 0,
        };
        let used_inodes = at::HEADER + tables;
        let free_fragments = used_inodes + bits(plan.group_inodes);
        let end = free_fragments + bits(plan.group_fragments);
        if plan.clusters == 0 {
            return Self { used_inodes, free_fragments, cluster_sums: 0, clusters: 0, end };
        }
        // There is no run of no blocks: its place is a word of the map before.
        let cluster_sums = end.next_multiple_of(at::WORD) - at::WORD;
        let clusters = cluster_sums + (to_usize(plan.clusters) + 1) * at::WORD;
        let end = clusters + bits(plan.group_fragments / plan.fragments_per_block());
        Self { used_inodes, free_fragments, cluster_sums, clusters, end }
    }
}

impl Plan {
    /// The first fragment of directory `index` of the first group: each has the next block that is free as a whole.
    pub(super) fn directory_at(&self, index: u32) -> u32 {
        let frag = self.fragments_per_block();
        (self.parts[3] + self.summaries_fragments()).next_multiple_of(frag) + index * frag
    }

    /// The fragments of a group of so many that are free.
    fn free(&self, fragments: u32, used: Used) -> Vec<Range<u32>> {
        let [superblock, .., data] = self.parts;
        if !used.is_first {
            return vec![0..superblock, data..fragments];
        }
        let mut free = Vec::new();
        let mut from = data + self.summaries_fragments();
        for index in 0..used.directories {
            let directory = self.directory_at(index);
            free.push(from..directory);
            from = directory + 1;
        }
        free.push(from..fragments);
        free
    }

    /// Makes the block of group `no`, written at `time`.
    pub(super) fn group(&self, no: u32, used: Used, time: i64) -> NewGroup {
        let places = Places::new(self);
        assert!(places.end <= to_usize(self.group_size), "the plan leaves room for the maps");
        let mut group = NewGroup { bytes: vec![0; to_usize(self.group_size)], totals: Totals::default() };
        let fragments = self.fragments_of(no);
        for range in self.free(fragments, used) {
            range.for_each(|fragment| set(&mut group.bytes[places.free_fragments..], fragment));
        }
        self.put_header(&mut group.bytes, no, time);
        self.put_places(&mut group.bytes, &places);
        self.count_fragments(&mut group, &places, fragments);
        self.count_clusters(&mut group.bytes, &places, fragments);
        let taken = if used.is_first { ROOT_INO } else { 0 } + used.directories;
        (0..taken).for_each(|ino| set(&mut group.bytes[places.used_inodes..], ino));
        group.totals.inodes = u64::from(self.group_inodes - taken);
        group.totals.directories = used.directories.into();
        let counts = self.counts(&group.totals);
        group.bytes[at::CS..at::CS + counts.len()].copy_from_slice(&counts);
        group
    }

    /// Counts as groups and the area of all groups have them.
    pub(super) fn counts(&self, totals: &Totals) -> [u8; COUNTS] {
        let mut counts = [0; COUNTS];
        let all = [totals.directories, totals.blocks, totals.inodes, totals.fragments];
        for (slot, count) in counts.chunks_exact_mut(at::WORD).zip(all) {
            self.order.put_u32(slot, 0, super::plan::to_u32(count));
        }
        counts
    }

    /// What the header says of the group itself.
    fn put_header(&self, bytes: &mut [u8], no: u32, time: i64) {
        let order = self.order;
        order.put_u32(bytes, at::MAGIC, MAGIC);
        order.put_u32(bytes, at::CGX, no);
        order.put_u32(bytes, at::NDBLK, self.fragments_of(no));
        match self.version {
            Version::One => {
                let inodes = u16::try_from(self.group_inodes).expect("the plan keeps them within 16 bits");
                order.put_u32(bytes, at::OLD_TIME, super::seconds(time));
                order.put_u16(bytes, at::OLD_NCYL, 1);
                order.put_u16(bytes, at::OLD_NIBLK, inodes);
            }
            Version::Two => {
                order.put_u64(bytes, at::TIME, time.cast_unsigned());
                order.put_u32(bytes, at::NIBLK, self.group_inodes);
                order.put_u32(bytes, at::INITEDIBLK, self.initialised());
            }
        }
    }

    /// Where the maps are.
    fn put_places(&self, bytes: &mut [u8], places: &Places) {
        let mut put = |at: usize, place: usize| {
            self.order.put_u32(bytes, at, super::plan::to_u32(to_u64(place)));
        };
        if self.version == Version::One {
            put(at::OLD_BTOTOFF, at::HEADER);
            put(at::OLD_BOFF, at::HEADER + at::OLD_CYLINDER_TOTALS);
        }
        put(at::IUSEDOFF, places.used_inodes);
        put(at::FREEOFF, places.free_fragments);
        put(at::NEXTFREEOFF, places.end);
        if self.clusters > 0 {
            put(at::CLUSTERSUMOFF, places.cluster_sums);
            put(at::CLUSTEROFF, places.clusters);
        }
    }

    /// Counts free blocks, free fragments of others, and the runs of these.
    fn count_fragments(&self, group: &mut NewGroup, places: &Places, fragments: u32) {
        let frag = self.fragments_per_block();
        let mut runs = [0_u32; FRAGMENTS_MAX];
        for block in (0..fragments).step_by(to_usize(frag)) {
            let is_free = |at: &u32| has(&group.bytes[places.free_fragments..], *at);
            let mut run = 0;
            for at in block..block + frag {
                if at < fragments && is_free(&at) {
                    run += 1;
                    continue;
                }
                runs[run] += 1;
                group.totals.fragments += to_u64(run);
                run = 0;
            }
            if run == to_usize(frag) {
                group.totals.blocks += 1;
            } else {
                runs[run] += 1;
                group.totals.fragments += to_u64(run);
            }
        }
        for (length, &count) in runs.iter().enumerate().skip(1) {
            self.order.put_u32(&mut group.bytes, at::FRSUM + length * at::WORD, count);
        }
    }

    /// The map of free blocks, and the runs of these.
    fn count_clusters(&self, bytes: &mut [u8], places: &Places, fragments: u32) {
        if self.clusters == 0 {
            return;
        }
        let frag = self.fragments_per_block();
        let blocks = fragments / frag;
        let longest = to_usize(self.clusters);
        let mut sums = vec![0_u32; longest + 1];
        let mut run = 0;
        for block in 0..blocks {
            let mut parts = block * frag..(block + 1) * frag;
            if parts.all(|at| has(&bytes[places.free_fragments..], at)) {
                set(&mut bytes[places.clusters..], block);
                run += 1;
            } else {
                sums[run.min(longest)] += 1;
                run = 0;
            }
        }
        sums[run.min(longest)] += 1;
        for (length, &count) in sums.iter().enumerate().skip(1) {
            self.order.put_u32(bytes, places.cluster_sums + length * at::WORD, count);
        }
        self.order.put_u32(bytes, at::NCLUSTERBLKS, blocks);
    }
}

/// Lengths of runs of fragments in a block, 0 included; whole blocks are no such runs.
const FRAGMENTS_MAX: usize = 8;

fn set(map: &mut [u8], at: u32) {
    map[to_usize(at / 8)] |= 1 << (at % 8);
}

fn has(map: &[u8], at: u32) -> bool {
    map[to_usize(at / 8)] >> (at % 8) & 1 != 0
}
