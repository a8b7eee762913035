//! A cylinder group: what of it is free.

pub(in crate::ufs) mod at;

use fstitch_core::{BlockNo, Error, Result, Structure};

use super::superblock::{Superblock, Totals, Version};

/// The magic number of a group.
pub(in crate::ufs) const MAGIC: u32 = 0x0009_0255;

/// A group's block, and where in it what is.
#[derive(Clone, Debug)]
pub struct Group {
    bytes: Vec<u8>,
    /// Fragments of the group.
    pub fragments: u32,
    /// Inodes that have ever been written; what the others hold means nothing.
    pub initialised: u32,
    /// What it says that is free.
    pub totals: Totals,
    pub(in crate::ufs) used_inodes: usize,
    pub(in crate::ufs) free_fragments: usize,
    /// Where the counts of runs of free blocks are, the bitmap of free blocks, and the number of these; nothing where there is none.
    pub(in crate::ufs) clusters: Option<Clusters>,
}

/// What a group says of whole free blocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::ufs) struct Clusters {
    /// The counts of runs by their length, from 1 on, of 4 bytes each, behind an unused one.
    pub(in crate::ufs) sums: usize,
    /// The bitmap.
    pub(in crate::ufs) map: usize,
    /// Blocks of the group.
    pub(in crate::ufs) blocks: u32,
}

impl Group {
    /// What the block in `bytes` says of group `no`; it lies at `block`.
    ///
    /// # Errors
    /// `Corrupt`, with what cannot be.
    pub fn parse(bytes: Vec<u8>, no: u32, block: BlockNo, volume: &Superblock) -> Result<Self> {
        let damaged = |problem: String| Error::corrupt(Structure::Descriptor(u64::from(no)), block, problem);
        let word = |at: usize| volume.order.u32(&bytes, at);
        if word(4) != MAGIC || word(12) != no {
            return Err(damaged(format!("magic number {:#x} of group {}", word(4), word(12))));
        }
        let start = u64::from(no) * u64::from(volume.group_fragments);
        let here = (volume.fragments - start).min(u64::from(volume.group_fragments));
        if u64::from(word(20)) != here {
            return Err(damaged(format!("{} fragments, expected {here}", word(20))));
        }
        let place = |at: usize| usize::try_from(word(at)).unwrap_or(usize::MAX);
        let (used_inodes, free_fragments) = (place(92), place(96));
        let fits = |at: usize, bits: u32| {
            let len = usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
            at >= at::HEADER && at.saturating_add(len) <= bytes.len()
        };
        if !fits(used_inodes, volume.group_inodes) || !fits(free_fragments, volume.group_fragments) {
            return Err(damaged(format!("bitmaps at bytes {used_inodes} and {free_fragments}")));
        }
        let blocks = word(112);
        let sums_len = 4 * (usize::try_from(volume.cluster_max).unwrap_or(usize::MAX)).saturating_add(1);
        let (sums, map) = (place(104), place(108));
        let clusters = (volume.cluster_max > 0).then_some(Clusters { sums, map, blocks });
        let sums_fit = sums >= at::HEADER && sums.saturating_add(sums_len) <= bytes.len();
        let whole = volume.group_fragments / volume.fragments_per_block();
        if clusters.is_some() && (!sums_fit || !fits(map, blocks) || blocks > whole) {
            return Err(damaged(format!("counts of {blocks} blocks at bytes {sums} and {map}")));
        }
        let bytes_of = |bits: u32| usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
        let mut parts = vec![
            (used_inodes, bytes_of(volume.group_inodes)),
            (free_fragments, bytes_of(volume.group_fragments)),
        ];
        if clusters.is_some() {
            // What would be said of runs of no length lies in the map before it.
            parts.extend([(sums + at::WORD, sums_len - at::WORD), (map, bytes_of(blocks))]);
        }
        parts.sort_unstable();
        if parts.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
            return Err(damaged(format!("its maps overlap: {parts:?}")));
        }
        let totals = Totals {
            directories: u64::from(word(at::CS)),
            blocks: u64::from(word(28)),
            inodes: u64::from(word(32)),
            fragments: u64::from(word(36)),
        };
        let (fragments, all) = (word(20), volume.group_inodes);
        let initialised = match volume.version {
            Version::One => all,
            Version::Two => word(at::INITEDIBLK).min(all),
        };
        Ok(Self { fragments, initialised, totals, used_inodes, free_fragments, clusters, bytes })
    }

    /// `len` bytes of the group's block from `at` on.
    pub(in crate::ufs) fn part(&self, at: usize, len: usize) -> &[u8] {
        &self.bytes[at..at + len]
    }

    fn bit(&self, base: usize, at: u32) -> bool {
        let byte = usize::try_from(at / 8).unwrap_or(usize::MAX);
        self.bytes.get(base.saturating_add(byte)).is_some_and(|byte| byte >> (at % 8) & 1 != 0)
    }

    /// Whether the group's inode `at` is in use.
    #[must_use]
    pub fn is_inode_used(&self, at: u32) -> bool {
        self.bit(self.used_inodes, at)
    }

    /// Whether the group's fragment `at` is free.
    #[must_use]
    pub fn is_fragment_free(&self, at: u32) -> bool {
        self.bit(self.free_fragments, at)
    }
}
