//! A volume's shape, as newfs finds it. Nothing here touches a device.

use fstitch_core::num::to_u64;
use fstitch_core::{Error, Result};

use super::options::MkfsOptions;
use crate::ufs::layout::group::at;
use crate::ufs::layout::superblock::{SUPERBLOCK_SIZE, Version};
use crate::ufs::order::Order;

/// Bytes that each copy of the superblock has for itself.
pub(super) const SUPERBLOCK_ROOM: u32 = 8192;
/// Bytes of a group's counts.
pub(super) const COUNTS: usize = 16;
/// Where the superblock lies, in bytes.
const PLACE_1: u32 = 8192;
const PLACE_2: u32 = 65_536;

/// Bytes of a fragment and of a block by default.
const FRAGMENT: u32 = 4096;
const BLOCK: u32 = 32_768;
const BLOCK_MIN: u32 = 4096;
const BLOCK_MAX: u32 = 65_536;
const FRAGMENT_MIN: u32 = 512;
const FRAGMENTS_PER_BLOCK_MAX: u32 = 8;
/// Below so many bytes fragments are small.
const TINY: u64 = 8 << 20;
const FRAGMENT_TINY: u32 = 1024;

/// By default there is an inode for so many fragments.
const FRAGMENTS_PER_INODE: u64 = 2;
/// As many groups there should be at least.
const GROUPS_MIN: u64 = 4;
/// Bytes of a group's block that newfs leaves, for systems whose groups have longer headers.
const GROUP_SPARE: u64 = 8;
/// Inodes of a group of UFS1, which counts them in 16 bits.
const GROUP_INODES_MAX_1: u64 = 0x7fff;
/// What is laid out together by default, in bytes.
const CONTIGUOUS: u32 = 1 << 20;
/// Lengths of runs of free blocks that are told apart.
const CLUSTERS_MAX: u32 = 16;
/// Fragments of the smallest volume, in blocks.
const BLOCKS_MIN: u64 = 8;

/// A volume's shape. All places and lengths are in fragments unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which of the two.
    pub version: Version,
    /// The order of bytes.
    pub order: Order,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes of a fragment.
    pub fragment_size: u32,
    /// The volume.
    pub fragments: u64,
    /// What of it can be contents.
    pub data_fragments: u64,
    /// The device.
    pub device_fragments: u64,
    /// Cylinder groups.
    pub groups: u32,
    /// A group, but the last one.
    pub group_fragments: u32,
    /// Inodes of a group.
    pub group_inodes: u32,
    /// Where the parts of a group are: superblock, group, inodes, contents.
    pub parts: [u32; 4],
    /// Bytes of a group's block that are used.
    pub group_size: u32,
    /// Lengths of runs of free blocks that are told apart; 0 if there is no map of them.
    pub clusters: u32,
    /// Blocks that are laid out together at most.
    pub max_contiguous: u32,
    /// What of a group is kept for directories and blocks of pointers.
    pub metadata_fragments: u32,
    /// Where the counts of all groups begin.
    pub summaries: u64,
    /// Their bytes.
    pub summaries_size: u32,
    /// Where the superblock lies, in bytes.
    pub superblock_at: u32,
    /// Bytes of the superblock that are used.
    pub superblock_size: u32,
}

/// What the search for a group's size goes by.
struct Search {
    version: Version,
    block_size: u64,
    /// Fragments of a block.
    frag: u64,
    fragments: u64,
    inodes_per_block: u64,
    /// Fragments before the inodes.
    inodes_at: u64,
    clusters: u64,
    fragments_per_inode: u64,
}

impl Search {
    /// Inodes of a group of so many fragments.
    fn inodes(&self, group: u64) -> u64 {
        group.div_ceil(self.fragments_per_inode).next_multiple_of(self.inodes_per_block)
    }

    /// Fragments of a group of so many inodes and no contents.
    fn metadata(&self, inodes: u64) -> u64 {
        self.inodes_at + inodes / self.inodes_per_block * self.frag
    }

    /// Bytes of the block of a group of so many fragments and inodes.
    fn size(&self, group: u64, inodes: u64) -> u64 {
        let tables = match self.version {
            Version::One => at::OLD_CYLINDER_TOTALS + at::OLD_CYLINDER_BLOCKS,
            Version::Two => 0,
        };
        let clusters = match self.clusters {
            0 => 0,
            lengths => lengths * 4 + (group / self.frag).div_ceil(8),
        };
        to_u64(at::HEADER + tables) + inodes.div_ceil(8) + group.div_ceil(8) + 4 + clusters
    }

    /// Bytes that it may have.
    const fn size_max(&self) -> u64 {
        self.block_size - GROUP_SPARE
    }

    /// Fragments of the smallest group: those that go with a block of inodes.
    fn smallest(&self) -> u64 {
        let whole = self.fragments.next_multiple_of(self.frag);
        let least = (self.fragments_per_inode * self.inodes_per_block).min(whole);
        let with = |inodes: u64| self.metadata(inodes).max(least);
        with(self.inodes(with(self.inodes_per_block))).next_multiple_of(self.frag)
    }

    /// Fewer fragments for an inode, until the smallest group can be described, but not fewer than `fewest`. A smallest group.
    fn fit_density(&mut self, fewest: u64) -> Result<u64> {
        loop {
            let group = self.smallest();
            if self.size(group, self.inodes(group)) < self.size_max() {
                return Ok(group);
            }
            if self.fragments_per_inode <= fewest {
                let block = self.block_size;
                return Err(Error::Unsupported(format!("such a volume with blocks of {block} bytes")));
            }
            self.fragments_per_inode -= 1;
        }
    }

    /// From the smallest group on as many fragments as can be described, if there are still some groups, and `most` at most.
    fn grow(&self, smallest: u64, most: u64) -> u64 {
        let mut group = smallest;
        while self.fragments / group >= GROUPS_MIN && group + self.frag <= most {
            let next = group + self.frag;
            let inodes = self.inodes(next);
            let size = self.size(next, inodes);
            if size > self.size_max() || (self.version == Version::One && inodes > GROUP_INODES_MAX_1) {
                break;
            }
            group = next;
            if size == self.size_max() {
                break;
            }
        }
        group
    }

    /// Smaller groups, until the last one has room for what each has; `None` if that cannot be.
    fn fit_last(&self, mut group: u64) -> Option<u64> {
        loop {
            let least = self.metadata(self.inodes(group));
            if self.fragments < least || group < least {
                return None;
            }
            let last = self.fragments % group;
            if last == 0 || last >= least {
                return Some(group);
            }
            group = group.checked_sub(self.frag).filter(|&group| group > 0)?;
        }
    }

    /// Where newfs finds nothing: a single group, if it can be described and has `most` fragments at most; else groups of `grown` fragments,
    /// without the last one, which has no room.
    fn fit_small(&mut self, grown: u64, most: u64) -> Option<u64> {
        let whole = self.fragments.next_multiple_of(self.frag);
        let inodes = self.inodes(whole);
        if whole <= most
            && self.fragments >= self.metadata(inodes)
            && self.size(whole, inodes) <= self.size_max()
        {
            return Some(whole);
        }
        self.fragments -= self.fragments % grown;
        (self.fragments > 0 && grown >= self.metadata(self.inodes(grown))).then_some(grown)
    }
}

/// Bytes of a block and of a fragment.
fn sizes(options: &MkfsOptions, bytes: u64) -> Result<(u32, u32)> {
    let refuse = |what: String| Err(Error::Unsupported(what));
    let is_possible = |size: u32| size.is_power_of_two() && (FRAGMENT_MIN..=BLOCK_MAX).contains(&size);
    if let Some(fragment) = options.fragment_size.filter(|&size| !is_possible(size)) {
        return refuse(format!(
            "fragments of {fragment} bytes: a power of two from {FRAGMENT_MIN} to {BLOCK_MAX} is possible"
        ));
    }
    let usual = if bytes < TINY { FRAGMENT_TINY } else { FRAGMENT };
    let (block, fragment) = match (options.block_size, options.fragment_size) {
        (None, None) => (BLOCK.min(usual * FRAGMENTS_PER_BLOCK_MAX), usual),
        (None, Some(fragment)) => (BLOCK.min(fragment * FRAGMENTS_PER_BLOCK_MAX).max(fragment), fragment),
        (Some(block), None) => (block, usual.clamp(block / FRAGMENTS_PER_BLOCK_MAX, block.max(1))),
        (Some(block), Some(fragment)) => (block, fragment),
    };
    if !block.is_power_of_two() || !(BLOCK_MIN..=BLOCK_MAX).contains(&block) {
        return refuse(format!(
            "blocks of {block} bytes: a power of two from {BLOCK_MIN} to {BLOCK_MAX} is possible"
        ));
    }
    let least = FRAGMENT_MIN.max(block / FRAGMENTS_PER_BLOCK_MAX);
    if !(least..=block).contains(&fragment) {
        return refuse(format!(
            "fragments of {fragment} bytes in blocks of {block}: a power of two from {least} to {block} is possible"
        ));
    }
    Ok((block, fragment))
}

impl Plan {
    /// Finds the shape of a volume on a device of so many bytes.
    ///
    /// # Errors
    /// `Unsupported`, with what cannot be had.
    pub fn new(options: &MkfsOptions, device_bytes: u64) -> Result<Self> {
        options.validate()?;
        let bytes = options.size.unwrap_or(device_bytes);
        if bytes > device_bytes {
            return Err(Error::Unsupported(format!("{bytes} bytes on a device of {device_bytes}")));
        }
        let (block_size, fragment_size) = sizes(options, bytes)?;
        let max_contiguous = options.max_contiguous.unwrap_or((CONTIGUOUS / block_size).max(1));
        let clusters = if max_contiguous > 1 { max_contiguous.min(CLUSTERS_MAX) } else { 0 };
        let shape = Self {
            version: options.version,
            order: options.order,
            block_size,
            fragment_size,
            fragments: bytes / u64::from(fragment_size),
            data_fragments: 0,
            device_fragments: device_bytes / u64::from(fragment_size),
            groups: 0,
            group_fragments: 0,
            group_inodes: 0,
            parts: [0; 4],
            group_size: 0,
            clusters,
            max_contiguous,
            metadata_fragments: 0,
            summaries: 0,
            summaries_size: 0,
            superblock_at: if options.version == Version::One { PLACE_1 } else { PLACE_2 },
            superblock_size: to_u32(to_u64(SUPERBLOCK_SIZE))
                .next_multiple_of(fragment_size)
                .min(SUPERBLOCK_ROOM),
        };
        shape.with_groups(options)
    }

    /// Finds the groups of a volume whose sizes are known.
    fn with_groups(mut self, options: &MkfsOptions) -> Result<Self> {
        let bytes = self.bytes();
        let too_small = || Error::Unsupported(format!("a volume of {bytes} bytes"));
        let frag = u64::from(self.fragments_per_block());
        if self.fragments < BLOCKS_MIN * frag {
            return Err(too_small());
        }
        if self.version == Version::One && self.fragments > u64::from(i32::MAX.unsigned_abs()) {
            let what = format!("{} fragments in UFS1: 2^31 - 1 are the most", self.fragments);
            return Err(Error::Unsupported(what));
        }
        let (superblock, group, inodes) = self.first_parts();
        let inodes_per_block = u64::from(self.block_size / self.version.inode_size());
        // All inodes are counted in 32 bits.
        let fewest = 1 + self.fragments / ((1 << 32) - inodes_per_block);
        let asked = options.bytes_per_inode.map(|bytes| bytes / u64::from(self.fragment_size));
        let mut search = Search {
            version: self.version,
            block_size: self.block_size.into(),
            frag,
            fragments: self.fragments,
            inodes_per_block,
            inodes_at: inodes.into(),
            clusters: self.clusters.into(),
            fragments_per_inode: asked.unwrap_or(FRAGMENTS_PER_INODE).max(fewest),
        };
        let smallest = search.fit_density(fewest)?;
        let most = u64::from(options.fragments_per_group.unwrap_or(i32::MAX.unsigned_abs()));
        let grown = search.grow(smallest, most);
        let size = search.fit_last(grown).or_else(|| search.fit_small(grown, most)).ok_or_else(too_small)?;
        self.fragments = search.fragments;
        let in_group = search.inodes(size);
        let groups = self.fragments.div_ceil(size);
        if groups * in_group > (1 << 32) - inodes_per_block {
            let what = format!("{groups} groups of {in_group} inodes: ask for more bytes for an inode");
            return Err(Error::Unsupported(what));
        }
        let bytes = search.size(size, in_group);
        self.group_fragments = to_u32(size);
        self.group_inodes = to_u32(in_group);
        self.groups = to_u32(groups);
        self.parts = [superblock, group, inodes, to_u32(search.metadata(in_group))];
        // What is said to be a group's size has the end of its header's structure in memory as well, and NetBSD mounts no other.
        self.group_size = to_u32(bytes + GROUP_SPARE).next_multiple_of(self.fragment_size);
        self.place_summaries(options)
    }

    /// Where superblock, group and inodes begin in a group.
    const fn first_parts(&self) -> (u32, u32, u32) {
        let (fragment, frag) = (self.fragment_size, self.block_size / self.fragment_size);
        let superblock = (self.superblock_at + SUPERBLOCK_ROOM).div_ceil(fragment).next_multiple_of(frag);
        let group = superblock + SUPERBLOCK_ROOM.div_ceil(fragment).next_multiple_of(frag);
        (superblock, group, group + frag)
    }

    /// Puts the counts of all groups behind the metadata of the first, where the directories must have room as well.
    fn place_summaries(mut self, options: &MkfsOptions) -> Result<Self> {
        let refuse = |what: String| Err(Error::Unsupported(what));
        let [superblock, .., data] = self.parts.map(u64::from);
        let size = u64::from(self.groups) * to_u64(COUNTS);
        let size = size.next_multiple_of(self.fragment_size.into());
        let taken = size / u64::from(self.fragment_size);
        let frag = u64::from(self.fragments_per_block());
        let directories = 1 + u64::from(options.snap) + u64::from(options.lost_found);
        let first = self.fragments.min(self.group_fragments.into());
        let end = (data + taken).next_multiple_of(frag) + directories * frag;
        if end > first {
            return refuse(format!(
                "a volume of {} bytes in {} groups: its first one has {first} fragments and needs {end}",
                self.bytes(),
                self.groups
            ));
        }
        self.summaries = data;
        self.summaries_size = to_u32(size);
        self.data_fragments =
            self.fragments - superblock - u64::from(self.groups) * (data - superblock) - taken;
        let kept = u64::from(self.group_fragments) * u64::from(options.min_free) / 200;
        let kept = options.metadata_fragments.map_or(kept, u64::from);
        if kept > u64::from(self.group_fragments / 2) {
            return refuse(format!("{kept} fragments for metadata in groups of {}", self.group_fragments));
        }
        self.metadata_fragments = to_u32(kept - kept % frag);
        Ok(self)
    }

    /// Bytes of the volume.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.fragments * self.fragment_size as u64
    }

    /// Fragments of a block.
    #[must_use]
    pub const fn fragments_per_block(&self) -> u32 {
        self.block_size / self.fragment_size
    }

    /// Inodes of a block.
    #[must_use]
    pub const fn inodes_per_block(&self) -> u32 {
        self.block_size / self.version.inode_size()
    }

    /// The fragments that group `no` has.
    #[must_use]
    pub fn fragments_of(&self, no: u32) -> u32 {
        let start = self.group_start(no);
        to_u32((self.fragments - start).min(self.group_fragments.into()))
    }

    /// Where group `no` begins.
    #[must_use]
    pub fn group_start(&self, no: u32) -> u64 {
        u64::from(no) * u64::from(self.group_fragments)
    }

    /// Fragments of the counts of all groups.
    pub(super) const fn summaries_fragments(&self) -> u32 {
        self.summaries_size / self.fragment_size
    }

    /// Inodes of a group whose blocks are written when it is made: in UFS2 the others are when they are needed.
    pub(super) fn initialised(&self) -> u32 {
        match self.version {
            Version::One => self.group_inodes,
            Version::Two => self.group_inodes.min(2 * self.inodes_per_block()),
        }
    }
}

/// A number of the plan as the format stores it.
pub(super) fn to_u32(number: u64) -> u32 {
    u32::try_from(number).expect("the plan keeps every number within the format's 32 bits")
}
