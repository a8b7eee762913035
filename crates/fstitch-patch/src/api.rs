//! Interface sketch; bodies follow.
#![allow(missing_docs, unused_variables, clippy::unused_self)]
use fstitch_core::*;
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// Names a patch for ever. Committed patches answer `Committed`; as a before they are no-ops.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PatchId { index: u32, generation: u64 }
impl PatchId {
    /// The id of a patch that committed before time began: a before that orders nothing.
    pub const NONE: Self = Self { index: u32::MAX, generation: 0 };
}
/// The ids of a change that needed several patches.
pub type PatchIds = SmallVec<[PatchId; 4]>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PatchState { Uncommitted, InFlight, Committed }

#[derive(Clone, Copy, Debug)]
pub struct Optimizations { pub hard_patches: bool, pub overlap_merging: bool, pub ready_lists: bool, pub elimination: bool }
impl Default for Optimizations { fn default() -> Self { todo!() } }

#[derive(Clone, Copy, Debug)]
pub enum Durability { Flush, Unsafe }

#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes of memory for blocks, patches, undo data and frozen copies.
    pub cache_size: usize,
    /// Age at which dirty blocks are written.
    pub write_back_age: Duration,
    pub optimizations: Optimizations,
    pub durability: Durability,
    /// No patch may be created.
    pub read_only: bool,
}
impl Default for CacheOptions { fn default() -> Self { todo!() } }

/// The buffer cache of one device. Cheap to share: `Arc<Cache>`.
pub struct Cache {}

/// A cached block; while a handle exists the block stays in memory. Clone is cheap.
#[derive(Clone)]
pub struct Block {}
impl Block {
    pub fn no(&self) -> BlockNo { todo!() }
    /// The newest contents, as of now (no copy; later changes do not show in it).
    pub fn snapshot(&self) -> Arc<BlockBuf> { todo!() }
}

impl Cache {
    /// `device` must have the volume's block size. A volume that is opened read-only refuses `begin`.
    pub fn new(device: Arc<dyn BlockDevice>, options: CacheOptions, clock: Arc<dyn Clock>) -> Arc<Self> { todo!() }
    pub fn block_size(&self) -> usize { todo!() }
    pub fn block_count(&self) -> u64 { todo!() }
    pub fn clock(&self) -> &dyn Clock { todo!() }
    pub fn optimizations(&self) -> Optimizations { todo!() }
    /// The block's contents, read from the device on a miss. Never called with the core lock (`lock`) held.
    pub fn read(&self, block: BlockNo, kind: BlockKind) -> Result<Block> { todo!() }
    /// The same for several blocks; the misses go to the device as one batch.
    pub fn read_many(&self, blocks: &[(BlockNo, BlockKind)]) -> Result<Vec<Block>> { todo!() }
    /// A handle to a block whose old contents do not matter (newly allocated): no device read; if it was not
    /// cached its contents are zeros in memory. The caller's first change must overwrite all of it (`Tx::init`).
    pub fn fresh(&self, block: BlockNo, kind: BlockKind) -> Result<Block> { todo!() }
    /// Starts reading blocks that will be wanted soon (best effort: errors are left to the real read).
    pub fn prefetch(&self, blocks: &[(BlockNo, BlockKind)]) { todo!() }
    /// Waits until there is room for an operation that will dirty about `bytes`; fails with `Poisoned` after a
    /// failed write and with `EROFS` on a read-only cache. Call it at the start of every changing operation,
    /// holding no lock. An operation that changes much calls it again between its self-contained steps.
    pub fn reserve(&self, bytes: usize) -> Result<()> { todo!() }
    /// The core lock, in which patches are created: hold it for microseconds, never across I/O.
    pub fn lock(&self) -> Tx<'_> { todo!() }
    /// Makes these patches, and what they depend on, stable. Fails if the cache is poisoned.
    pub fn sync_patches(&self, patches: &[PatchId]) -> Result<()> { todo!() }
    /// Makes everything stable.
    pub fn sync_all(&self) -> Result<()> { todo!() }
    /// The state of a patch (takes the core lock for a moment).
    pub fn state(&self, patch: PatchId) -> PatchState { todo!() }
    /// The failure that poisoned the cache, if any.
    pub fn poisoned(&self) -> Option<Error> { todo!() }
    /// Refuses further changes because of damage found on the medium.
    pub fn poison(&self, why: &str) { todo!() }
    /// Accounts memory that a file system keeps beside the cache (directory indexes), so that the cache
    /// shrinks accordingly.
    pub fn account_external(&self, delta: isize) { todo!() }
}

/// The core lock.
pub struct Tx<'a> { cache: &'a Cache }
impl Tx<'_> {
    /// The newest contents.
    pub fn data(&self, block: &Block) -> &[u8] { todo!() }
    /// Changes bytes `offset..offset + bytes.len()`. Overlaps with earlier patches are ordered automatically.
    pub fn bytes(&mut self, block: &Block, offset: usize, bytes: &[u8], befores: &[PatchId]) -> PatchId { todo!() }
    /// Overwrites the whole block: `contents` becomes its data without being copied.
    pub fn init(&mut self, block: &Block, contents: Arc<BlockBuf>, befores: &[PatchId]) -> PatchId { todo!() }
    /// Flips `count` bits from bit `first` (little-endian bit numbering, as in ext2 bitmaps). Every bit must have the
    /// value `!value` before and has `value` after (asserted). One patch per 64-bit word, fewer when merged.
    pub fn bits(&mut self, block: &Block, first: u32, count: u32, value: bool, befores: &[PatchId]) -> PatchIds { todo!() }
    /// A patch without a block that groups dependencies; commits when all befores have.
    pub fn empty(&mut self, befores: &[PatchId]) -> PatchId { todo!() }
    /// A gathering patch that nothing may depend on: `sync_patches` of it waits for all that was added.
    pub fn gather(&mut self) -> PatchId { todo!() }
    /// Adds to a gathering patch; a committed gather (all its members were) is revived only by making a new one:
    /// returns the gather's id, which is a new one if the old one was committed.
    pub fn gather_add(&mut self, gather: PatchId, member: PatchId) -> PatchId { todo!() }
    pub fn state(&self, patch: PatchId) -> PatchState { todo!() }
    /// Whether `a` and `b` are uncommitted and, after merging, one and the same patch.
    pub fn same(&self, a: PatchId, b: PatchId) -> bool { todo!() }
    /// The block was freed and nothing reachable on the medium or in memory refers to its newest contents:
    /// drops its unflown changes (with the `elimination` optimisation; otherwise does nothing).
    /// Patches that depended on them now depend on what those depended on.
    /// `unreachable` are the patches that cut the block off from everything reachable (empty when it never was reachable
    /// on the medium): whatever depended on the dropped patches depends on these as well. Returns whether it dropped.
    pub fn drop_changes(&mut self, block: BlockNo, unreachable: &[PatchId]) -> bool { todo!() }
}
impl Cache {
    /// Starts the thread that writes dirty blocks by age and pressure. Without it, `reserve` and syncs write inline
    /// (tests, laboratory, offline tools). The thread ends when the cache is dropped.
    pub fn start_flusher(&self) -> Result<()> { todo!() }
    /// Counters, for `fstitch stats`. A plain struct of public u64 fields.
    pub fn stats(&self) -> Stats { todo!() }
}
/// Counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub patches_created_byte: u64, pub patches_created_bit: u64, pub patches_created_empty: u64,
    pub patches_hard: u64, pub patches_merged_hard: u64, pub patches_merged_overlap: u64, pub patches_converted: u64, pub patches_eliminated: u64,
    pub patches_live: u64, pub patches_peak: u64,
    pub undo_bytes_now: u64, pub undo_bytes_peak: u64, pub undo_bytes_total: u64,
    pub blocks_written: u64, pub blocks_written_undone: u64, pub write_requests: u64, pub flushes: u64, pub epochs: u64,
    pub cache_hits: u64, pub cache_misses: u64, pub cache_evictions: u64, pub copies_on_write: u64,
    pub memory_bytes: u64, pub memory_peak_bytes: u64, pub dirty_bytes: u64, pub waits: u64,
}
