//! What can be chosen when a cache is made.

use std::time::Duration;

/// The optimisations of \[D\] §2.2, each a value so that it can be measured and proven alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Optimizations {
    /// Patches that can never need undoing keep no undo data and merge (§2.2.1, §2.2.2).
    pub hard_patches: bool,
    /// New patches join patches that they overlap (§2.2.3).
    pub overlap_merging: bool,
    /// Readiness is counted as patches come and go instead of searched at write-out (§2.2.4).
    pub ready_lists: bool,
    /// Changes undone before they were written leave no dependencies (§2.2.5).
    pub elimination: bool,
}

impl Optimizations {
    /// All on.
    pub const ALL: Self =
        Self { hard_patches: true, overlap_merging: true, ready_lists: true, elimination: true };
    /// All off.
    pub const NONE: Self =
        Self { hard_patches: false, overlap_merging: false, ready_lists: false, elimination: false };

    /// Every combination, by the bits of `0..16`.
    #[must_use]
    pub const fn combination(bits: u8) -> Self {
        Self {
            hard_patches: bits & 1 != 0,
            overlap_merging: bits & 2 != 0,
            ready_lists: bits & 4 != 0,
            elimination: bits & 8 != 0,
        }
    }
}

impl Default for Optimizations {
    fn default() -> Self {
        Self::ALL
    }
}

/// When a patch counts as committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the device flush that follows its write.
    Flush,
    /// After its write; only a sync flushes the device. For devices without a volatile cache, and for measuring.
    Unsafe,
}

/// Whether the dependencies that come with changes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ordering {
    /// They are.
    #[default]
    Kept,
    /// They are dropped: the medium may hold anything after a crash. For measuring, and for showing what they are for.
    Dropped,
}

/// What goes through a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalMode {
    /// Everything.
    Full,
    /// All but file contents, which are stable before the transaction that points at them.
    Ordered,
    /// All but file contents, which are written whenever it suits.
    Metadata,
}

/// How a cache behaves.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes of memory for blocks, patches, undo data, copies in flight and what file systems account.
    pub cache_size: usize,
    /// Age at which a dirty block is written.
    pub write_back_age: Duration,
    /// The optimisations.
    pub optimizations: Optimizations,
    /// When a patch counts as committed.
    pub durability: Durability,
    /// Whether dependencies are kept.
    pub ordering: Ordering,
    /// Age at which a block is written to its place that is stable in the journal.
    pub checkpoint_age: Duration,
    /// Refuse every change.
    pub read_only: bool,
}

impl CacheOptions {
    /// The smallest cache that is accepted, in bytes; smaller sizes are raised to it.
    pub const MIN_CACHE_SIZE: usize = 256 << 10;

    /// A cache's fair share, in bytes, of a machine that has `available` bytes of memory to spare: an eighth, of which
    /// changes may hold three quarters, at least 32 MiB and at most 4 GiB. Without a number, [`CacheOptions::default`].
    #[must_use]
    pub fn share_of(available: Option<u64>) -> usize {
        let share = |bytes: u64| (bytes / 8).clamp(32 << 20, 4 << 30);
        available.and_then(|bytes| usize::try_from(share(bytes)).ok()).unwrap_or(Self::default().cache_size)
    }
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            cache_size: 256 << 20,
            write_back_age: Duration::from_secs(5),
            optimizations: Optimizations::ALL,
            durability: Durability::Flush,
            ordering: Ordering::Kept,
            checkpoint_age: Duration::from_secs(30),
            read_only: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_takes_an_eighth() {
        assert_eq!(CacheOptions::share_of(Some(8 << 30)), 1 << 30);
        assert_eq!(CacheOptions::share_of(Some(0)), 32 << 20);
        assert_eq!(CacheOptions::share_of(Some(u64::MAX)), 4 << 30);
        assert_eq!(CacheOptions::share_of(None), CacheOptions::default().cache_size);
    }
}
