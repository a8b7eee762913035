//! How much storage an inode says that it has.

use super::state::Volume;
use crate::ext2::layout::feature::ro_compat;
use crate::ext2::layout::inode::{HUGE_FILE_FL, I_BLOCKS, I_BLOCKS_HIGH, I_FLAGS};
use crate::ext2::num::{low16, low32, wide};

/// Sectors of 512 bytes that fit the 48 bits of an inode.
const STORED_MAX: u64 = (1 << 48) - 1;

/// An inode's storage, in units of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    pub(super) sectors: u64,
    /// Sectors per cluster.
    per_cluster: u64,
    /// Sectors per unit that the inode counts in.
    unit: u64,
    /// The count has a high half.
    wide: bool,
}

impl Storage {
    /// What the inode in `raw` says.
    pub(super) fn of(volume: &Volume<'_>, raw: &[u8]) -> Self {
        let per_block = wide(volume.block_size() / 512);
        let per_cluster = per_block << volume.shape.log_cluster;
        let huge = volume.shape.features.has_ro_compat(ro_compat::HUGE_FILE);
        let high = if huge { u64::from(I_BLOCKS_HIGH.get(raw)) << 32 } else { 0 };
        let unit = if huge && I_FLAGS.get(raw) & HUGE_FILE_FL != 0 { per_block } else { 1 };
        Self { sectors: (u64::from(I_BLOCKS.get(raw)) | high) * unit, per_cluster, unit, wide: huge }
    }

    /// Whether it is that of so many clusters.
    pub(super) fn is_of(&self, clusters: u64) -> bool {
        self.sectors == clusters * self.per_cluster
    }

    /// Counts so many clusters.
    pub(super) fn set_clusters(&mut self, clusters: u64) {
        self.sectors = clusters * self.per_cluster;
    }

    /// Counts more clusters.
    pub(super) fn add_clusters(&mut self, clusters: u64) {
        self.sectors = self.sectors.saturating_add(clusters * self.per_cluster);
    }

    /// Writes it to the inode in `raw`.
    pub(super) fn put(&self, raw: &mut [u8]) {
        let most = if self.wide { STORED_MAX } else { u64::from(u32::MAX) };
        let stored = (self.sectors / self.unit).min(most);
        I_BLOCKS.put(raw, low32(stored));
        if self.wide {
            I_BLOCKS_HIGH.put(raw, low16(low32(stored >> 32)));
        }
    }
}
