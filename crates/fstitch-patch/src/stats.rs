//! Counters.

/// What a cache did so far. Counters grow; fields named `now`, `live` and `dirty_bytes` are current values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Byte patches created, merged ones not counted.
    pub patches_created_byte: u64,
    /// Bit patches created, merged ones not counted.
    pub patches_created_bit: u64,
    /// Empty patches created, gathers included.
    pub patches_created_empty: u64,
    /// Of these, gathering patches, which order nothing and only answer syncs.
    pub patches_created_gather: u64,
    /// Of the patches created, those without undo data.
    pub patches_hard: u64,
    /// Changes that joined their block's hard patch because nothing waited for the block.
    pub patches_merged_hard: u64,
    /// Changes that joined a patch that they overlap.
    pub patches_merged_overlap: u64,
    /// Changes that joined their block's home patch of the running transaction.
    pub patches_merged_logged: u64,
    /// Soft patches that became part of a hard one.
    pub patches_converted: u64,
    /// Patches dropped because their block was freed before it was written.
    pub patches_eliminated: u64,
    /// Patches now in memory.
    pub patches_live: u64,
    /// The most patches that were in memory.
    pub patches_peak: u64,
    /// Bytes of memory that patches take now, undo data included.
    pub patch_bytes_now: u64,
    /// Bytes of undo data now in memory.
    pub undo_bytes_now: u64,
    /// The most bytes of undo data that were in memory.
    pub undo_bytes_peak: u64,
    /// Bytes of undo data taken.
    pub undo_bytes_total: u64,
    /// Patches visited to find what must be written for somebody, or is old.
    pub patches_walked: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Of these, blocks written with patches undone, which must be written again.
    pub blocks_written_undone: u64,
    /// Of the blocks written, contents that nobody had asked for and that were not old yet.
    pub blocks_written_early: u64,
    /// Runs of neighbouring blocks written.
    pub write_requests: u64,
    /// Device flushes.
    pub flushes: u64,
    /// Epochs written.
    pub epochs: u64,
    /// Blocks found in the cache.
    pub cache_hits: u64,
    /// Blocks read from the device.
    pub cache_misses: u64,
    /// Reads of the device that failed.
    pub read_errors: u64,
    /// Clean blocks dropped to make room.
    pub cache_evictions: u64,
    /// Blocks copied because they were changed while in flight or while somebody read them.
    pub copies_on_write: u64,
    /// Bytes of memory now in use.
    pub memory_bytes: u64,
    /// The most bytes of memory that were in use.
    pub memory_peak_bytes: u64,
    /// Bytes of blocks with uncommitted changes.
    pub dirty_bytes: u64,
    /// Operations that waited for room.
    pub waits: u64,
}
