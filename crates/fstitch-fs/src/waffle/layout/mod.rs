//! Structures on the medium, as `docs/spec/waffle.md` has them. Bytes become values here, and nowhere else.

pub mod inode;
pub mod pointer;
pub mod record;
pub mod root;

use fstitch_core::{Le, Timestamp};
use twox_hash::XxHash3_64;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// The same, to calculate with numbers of the medium.
pub const BLOCK_BYTES: u64 = 4096;
/// Bytes of a block as devices say them.
pub const BLOCK_SIZE: u32 = 4096;
/// The places of the root, by generation modulo 2.
pub const ROOT_PLACES: [u64; 2] = [1, 16];
/// The first block of the map's homes.
pub const MAP_BASE: u64 = 17;
/// Blocks of the smallest volume.
pub const BLOCKS_MIN: u64 = 128;
/// Blocks of the largest.
pub const BLOCKS_MAX: u64 = 1 << 45;
/// Blocks in a region: bits of a block.
pub const REGION: u64 = BLOCK_BYTES * 8;
/// Blocks of a cluster, which are compressed together.
pub const CLUSTER: u64 = 16;
/// Bytes of a cluster.
pub const CLUSTER_BYTES: u64 = CLUSTER * BLOCK_BYTES;
/// References in a node.
pub const FAN: u64 = 128;
/// The logarithm of that.
pub const FAN_BITS: u32 = 7;
/// The largest height of a fork.
pub const HEIGHT_MAX: u8 = 8;
/// Bytes of the longest file: what an offset can say.
pub const SIZE_MAX: u64 = i64::MAX as u64;
/// Bytes of the longest name.
pub const NAME_MAX: usize = 255;
/// Most names of an inode.
pub const LINK_MAX: u32 = 1 << 30;
/// Bytes of the longest target of a symbolic link.
pub const SYMLINK_MAX: usize = 4095;
/// Bytes of all attributes of an inode.
pub const XATTRS_MAX: usize = 65_536;
/// The root directory.
pub const ROOT_INO: u64 = 1;
/// The first inode that files get.
pub const FIRST_INO: u64 = 16;

/// A block's sum.
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Bits of a name's key.
pub const KEY_BITS: u32 = 62;

/// A name's key in a volume, if no other name has it.
#[must_use]
pub fn name_key(name: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, name) >> (64 - KEY_BITS)
}

/// The homes of the map: where each level begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapShape {
    /// Blocks of each level, from the leaves up; the last has one.
    pub counts: Vec<u64>,
    /// The first home of each level.
    pub bases: Vec<u64>,
    /// The first block behind all homes: the data's first.
    pub end: u64,
}

impl MapShape {
    /// Those of a volume of so many blocks.
    #[must_use]
    pub fn of(blocks: u64) -> Self {
        let mut counts = vec![blocks.div_ceil(REGION).max(1)];
        while let Some(&last) = counts.last()
            && last > 1
        {
            counts.push(last.div_ceil(FAN));
        }
        let mut end = MAP_BASE;
        let mut bases = Vec::with_capacity(counts.len());
        for count in &counts {
            bases.push(end);
            end += 2 * count;
        }
        Self { counts, bases, end }
    }

    /// The height of the map.
    #[must_use]
    pub fn height(&self) -> u8 {
        u8::try_from(self.counts.len() - 1).unwrap_or(u8::MAX)
    }

    /// A home of a block of the map: the first or the second.
    #[must_use]
    pub fn home(&self, level: usize, index: u64, second: bool) -> u64 {
        self.bases[level] + 2 * index + u64::from(second)
    }
}

/// Reads a time whose seconds and nanoseconds are in different places.
pub(crate) fn time(bytes: &[u8], secs: usize, nanos: usize) -> Timestamp {
    Timestamp { secs: i64::from_ne_bytes(Le::u64(bytes, secs).to_ne_bytes()), nanos: Le::u32(bytes, nanos) }
}

/// Writes one.
pub(crate) fn put_time(bytes: &mut [u8], secs: usize, nanos: usize, time: Timestamp) {
    Le::put_u64(bytes, secs, u64::from_ne_bytes(time.secs.to_ne_bytes()));
    Le::put_u32(bytes, nanos, time.nanos);
}

/// Nanoseconds that are no second.
pub(crate) const NANOS_END: u32 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_follow_each_other() {
        let small = MapShape::of(1024);
        assert_eq!((small.height(), small.end), (0, MAP_BASE + 2));
        let large = MapShape::of(1 << 32);
        assert_eq!(large.counts, [131_072, 1024, 8, 1]);
        assert_eq!(large.home(1, 3, true), MAP_BASE + 2 * 131_072 + 7);
        assert_eq!(large.end, MAP_BASE + 2 * (131_072 + 1024 + 8 + 1));
    }

    #[test]
    fn times_before_1970_are_kept() {
        let mut bytes = [0; 12];
        let then = Timestamp { secs: -5, nanos: 7 };
        put_time(&mut bytes, 0, 8, then);
        assert_eq!(time(&bytes, 0, 8), then);
    }
}
