//! The open volume: its superblock, the counters in it and its state.
//!
//! **Layout.** The superblock's summary counters and every group's are changed in the cached blocks as space is
//! taken and given back, each a patch of its own without dependencies: they are hints, and after an unclean
//! unmount nobody trusts them.
//!
//! **States.** A volume is *clean* (`STATE_VALID` on the medium) or *in use*. [`Ext2::mark_in_use`] takes it from clean to
//! in use, stable before anything else changes; [`Ext2::mark_clean`] takes it back after everything else is
//! stable. A volume that was opened unclean stays so until a check says [`Ext2::set_checked`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, Caller, Errno, Error, InodeNo, IoOp, Result, StatFs, Structure,
    Timestamp,
};
use fstitch_patch::{Block, Cache, Ordering as Order, PatchId, Tx};

use super::groups::Groups;
use super::layout::feature::{Features, PLAIN, incompat, ro_compat};
use super::layout::superblock::{
    FREE_BLOCKS, ROOT_INO, S_FEATURE_COMPAT, S_FEATURE_RO_COMPAT, S_FREE_INODES_COUNT, S_MNT_COUNT, S_MTIME,
    S_SESSION_MAGIC, S_STATE, S_WTIME, STATE_ERROR, STATE_VALID, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE,
    Superblock,
};
use super::layout::{Field, FieldInt, dirent, inode};
use super::leftovers::RECORD_SIZE;
use super::memory::Memory;
use super::num::{high32, idx, low32, small};
use super::seal::Sealer;
use crate::uhfs::Limits;
use crate::view::BlockView;

/// An open ext2 volume.
pub struct Ext2 {
    pub(super) cache: Arc<Cache>,
    /// Shape and features as found at the mount; its counters are not kept up to date.
    pub(super) sb: Superblock,
    /// The block that holds the superblock, kept in memory.
    pub(super) sb_block: Block,
    pub(super) groups: Groups,
    /// What sums the volume's metadata, if they have sums.
    pub(super) seal: Option<Arc<Sealer>>,
    /// What is remembered about patches that are not stable yet.
    pub(super) memory: Memory,
    /// What the reclaimer must not judge.
    pub(super) watch: super::reclaim::Watch,
    features: Mutex<NewFeatures, rank::Table>,
    /// The volume had not been unmounted cleanly: summary counters are recounted group by group.
    unclean: bool,
    /// All groups were recounted, or counters could be trusted from the start.
    totals_trusted: AtomicBool,
    /// A check since the mount found the volume consistent.
    checked: AtomicBool,
    /// What the mount before can have left.
    pub(super) left: super::leftovers::Leftovers,
    /// When the volume was opened, in seconds.
    pub(super) opened_at: u32,
    /// What the reclaimer has found out about the volume.
    pub(super) judged: super::reclaim::Judged,
    overhead: OnceLock<u64>,
    /// The journal that changes go through, if there is one.
    pub(super) journal: Mutex<Option<fstitch_patch::JournalConfig>, rank::Leaf>,
    /// Directories' indexes are kept when names are added: changes go through a journal.
    pub(super) keeps_indexes: AtomicBool,
    /// How often blocks were passed over that the running transaction has freed.
    pub(super) barred: AtomicU64,
    /// What its users have, if that is counted and the volume is written.
    pub(super) quotas: Option<Box<super::quota::Quotas>>,
    pub(super) orphans: Mutex<super::journaled::OrphanList, rank::Orphans>,
    /// Preallocated blocks of files that grow.
    pub(super) preallocated: super::prealloc::Preallocated,
}

/// Feature bits set since the mount, with the patches that set them.
#[derive(Default)]
struct NewFeatures {
    compat: (u32, PatchId),
    ro_compat: (u32, PatchId),
}

impl std::fmt::Debug for Ext2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ext2({} blocks of {} bytes)", self.sb.blocks_count, self.sb.block_size)
    }
}

impl Ext2 {
    /// Reads the superblock of a device of any block size, to learn the volume's block size and features.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`] if it is no ext2 volume, [`Error::Unsupported`] by name.
    pub fn probe(device: &dyn BlockDevice) -> Result<Superblock> {
        let bytes = device.geometry().bytes();
        if bytes < 2 * u64::from(small(SUPERBLOCK_SIZE)) {
            let problem = format!("the device has only {bytes} bytes: not an ext2 volume");
            return Err(Error::corrupt(Structure::Superblock, None, problem));
        }
        let view = BlockView::new(device, SUPERBLOCK_SIZE);
        let mut raw = vec![0; SUPERBLOCK_SIZE];
        view.read(BlockNo(1), BlockKind::Superblock, &mut raw)?;
        Superblock::parse(&raw, bytes)
    }

    /// Opens the volume in `cache`, whose block size must be the volume's (see [`Ext2::probe`]). Reads the
    /// superblock only; changes nothing.
    ///
    /// # Errors
    /// As [`Ext2::probe`]. A volume with features that forbid writing opens only in a read-only cache.
    pub fn open(cache: Arc<Cache>) -> Result<Self> {
        let block_size = cache.block_size();
        let (no, offset) = if block_size == SUPERBLOCK_SIZE { (1, 0) } else { (0, SUPERBLOCK_OFFSET) };
        if offset + SUPERBLOCK_SIZE > block_size {
            let source = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            return Err(Error::io(IoOp::Open, BlockNo(0), source));
        }
        let sb_block = cache.read(BlockNo(no), BlockKind::Superblock)?;
        let snapshot = sb_block.snapshot();
        let device_bytes = cache.block_count() * u64::from(small(block_size));
        let sb = Superblock::parse(&snapshot[offset..offset + SUPERBLOCK_SIZE], device_bytes)?;
        if idx(sb.block_size) != block_size {
            let problem = format!("blocks of {} bytes, opened with {block_size}", sb.block_size);
            return Err(Error::corrupt(Structure::Superblock, None, problem));
        }
        if !cache.options().read_only {
            check_writable(&sb)?;
        }
        let seal = Sealer::of(&sb).map(Arc::new);
        if let Some(seal) = &seal {
            cache.set_seal(Arc::<Sealer>::clone(seal))?;
        }
        let unclean = sb.state & STATE_VALID == 0 || sb.state & STATE_ERROR != 0;
        let opened_at = low32(cache.clock().now().secs.max(0).cast_unsigned());
        let mut volume = Self {
            groups: Groups::new(&sb),
            seal,
            memory: Memory::new(cache.options().cache_size / 8),
            cache,
            sb_block,
            sb,
            watch: super::reclaim::Watch::default(),
            features: Mutex::default(),
            unclean,
            totals_trusted: AtomicBool::new(!unclean),
            checked: AtomicBool::new(!unclean),
            left: super::leftovers::Leftovers::of(&snapshot[offset..offset + SUPERBLOCK_SIZE]),
            opened_at,
            judged: super::reclaim::Judged::default(),
            overhead: OnceLock::new(),
            journal: Mutex::default(),
            keeps_indexes: AtomicBool::new(false),
            barred: AtomicU64::new(0),
            quotas: None,
            orphans: Mutex::default(),
            preallocated: super::prealloc::Preallocated::default(),
        };
        volume.find_own()?;
        volume.quotas = volume.open_quotas()?;
        Ok(volume)
    }

    /// The superblock as found when the volume was opened.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Whether the volume had not been unmounted cleanly before it was opened.
    #[must_use]
    pub fn is_unclean(&self) -> bool {
        self.unclean
    }

    /// Says that a check found the volume consistent, or mended it: a clean unmount may then mark it as clean.
    pub fn set_checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Says that damage was found: an unmount does not mark the volume as clean.
    pub(super) fn set_unchecked(&self) {
        self.checked.store(false, Ordering::Relaxed);
    }

    pub(super) fn root_ino(&self) -> InodeNo {
        InodeNo(u64::from(ROOT_INO))
    }

    pub(super) fn format_limits(&self) -> Limits {
        Limits {
            name_max: dirent::NAME_MAX,
            link_max: self.link_max(),
            dir_link_max: match self.counts_directories() {
                true => self.link_max(),
                false => u32::MAX,
            },
            size_max: if self.sb.features.has_incompat(incompat::EXTENTS) {
                inode::size_max_extents(self.sb.block_size)
            } else {
                inode::size_max(self.sb.block_size)
            },
            symlink_max: idx(self.sb.block_size) - 1,
            block_size: self.block_size(),
            shift_unit: self.block_size() << self.sb.log_cluster,
            hole_unit: self.block_size(),
        }
    }

    /// Names that an inode can have. Who knows no more than ext2 and ext3 have may count on fewer.
    pub(super) fn link_max(&self) -> u32 {
        let features = &self.sb.features;
        let is_ext4 = Features { compat: 0, ..features.beyond(&PLAIN) } != Features::default();
        if is_ext4 { inode::DIRECTORY_LINK_MAX } else { inode::LINK_MAX }
    }

    /// Whether a directory must count its subdirectories: without the feature `dir_nlink`, or where ext2's limit holds.
    pub(super) fn counts_directories(&self) -> bool {
        self.link_max() == inode::LINK_MAX || !self.sb.features.has_ro_compat(ro_compat::DIR_NLINK)
    }

    pub(super) fn block_size(&self) -> usize {
        idx(self.sb.block_size)
    }

    /// Units of 512 bytes in a block.
    pub(super) fn sectors_per_block(&self) -> u64 {
        u64::from(self.sb.block_size / 512)
    }

    /// Units of 512 bytes in a cluster: what an inode's storage counts.
    pub(super) fn sectors_per_cluster(&self) -> u64 {
        self.sectors_per_block() << self.sb.log_cluster
    }

    pub(super) fn now(&self) -> Timestamp {
        self.cache.clock().now()
    }

    fn now_secs(&self) -> u32 {
        low32(self.now().secs.max(0).cast_unsigned())
    }

    /// The deletion time of an inode freed now. Never 0, which would mean "in use", and not before the volume
    /// was made: small numbers mean a list of orphans to other implementations.
    pub(super) fn deletion_time(&self) -> u32 {
        self.now_secs().max(self.sb.mkfs_time).max(1)
    }

    // ---- counters ----

    pub(super) fn field<T: FieldInt>(&self, tx: &Tx<'_>, field: Field<T>) -> T {
        field.get(&tx.data(&self.sb_block)[self.sb.offset_in_block()..])
    }

    /// Patches a field of the superblock, after `befores`.
    pub(super) fn put<T: FieldInt>(
        &self,
        tx: &mut Tx<'_>,
        field: Field<T>,
        value: T,
        befores: &[PatchId],
    ) -> PatchId {
        let at = self.sb.offset_in_block() + field.offset();
        tx.bytes(&self.sb_block, at, value.encode().as_ref(), befores)
    }

    /// Adds to one of the superblock's summary counters. No dependencies: it is a hint.
    fn adjust(&self, tx: &mut Tx<'_>, field: Field<u32>, delta: i64) {
        let now = i64::from(self.field(tx, field)) + delta;
        // A damaged counter may be too small; it stays in range and the next check mends it.
        let value = low32(now.clamp(0, i64::from(u32::MAX)).cast_unsigned());
        self.put(tx, field, value, &[]);
    }

    /// Adds to the number of free blocks on the volume.
    pub(super) fn adjust_free_blocks(&self, tx: &mut Tx<'_>, delta: i64) {
        // As above: a damaged counter stays in range.
        self.put_free_blocks(tx, self.free_blocks_now(tx).saturating_add_signed(delta));
    }

    /// Free blocks, by the superblock.
    pub(super) fn free_blocks_now(&self, tx: &Tx<'_>) -> u64 {
        FREE_BLOCKS.get(&tx.data(&self.sb_block)[self.sb.offset_in_block()..])
    }

    fn put_free_blocks(&self, tx: &mut Tx<'_>, count: u64) {
        let (low, high) = FREE_BLOCKS.halves();
        if self.field(tx, low) != low32(count) {
            self.put(tx, low, low32(count), &[]);
        }
        if self.sb.features.has_incompat(incompat::BIT64) && self.field(tx, high) != high32(count) {
            self.put(tx, high, high32(count), &[]);
        }
    }

    /// Adds to the number of free inodes on the volume.
    pub(super) fn adjust_free_inodes(&self, tx: &mut Tx<'_>, delta: i64) {
        self.adjust(tx, S_FREE_INODES_COUNT, delta);
    }

    /// How many clusters `caller` may take: all free ones, less the reserved ones for ordinary callers. While the
    /// counters cannot be trusted they refuse nothing.
    pub(super) fn clusters_for(&self, caller: &Caller) -> u64 {
        if !self.totals_trusted.load(Ordering::Acquire) {
            return u64::MAX;
        }
        let free = self.free_blocks_now(&self.cache.lock());
        let log = self.sb.log_cluster;
        let reserved = if self.is_privileged(caller) { 0 } else { self.sb.reserved_blocks >> log };
        (free >> log).saturating_sub(reserved)
    }

    fn is_privileged(&self, caller: &Caller) -> bool {
        let group = u32::from(self.sb.reserved_gid);
        caller.uid == 0
            || caller.uid == u32::from(self.sb.reserved_uid)
            || (group != 0 && caller.gid == group)
    }

    /// Whether the groups' summary counters are what was found after an unclean unmount.
    pub(super) fn distrusts_counters(&self) -> bool {
        !self.totals_trusted.load(Ordering::Acquire)
    }

    /// Recounts every group that was not used yet, so that the totals are right again. For the background,
    /// after a mount of an unclean volume; does nothing otherwise.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`]; the totals then stay untrusted.
    pub fn recount_totals(&self) -> Result<()> {
        if !self.distrusts_counters() || self.cache.options().read_only {
            return Ok(());
        }
        for group in 0..self.sb.group_count() {
            self.cache.reserve(2 * self.block_size())?;
            self.recount_group(group)?;
        }
        let descriptors = self.all_descriptor_blocks()?;
        let mut tx = self.cache.lock();
        // Under the core lock nobody takes or gives back, so the sums and the totals are of one moment.
        let (blocks, inodes) = self.sum_descriptors(&tx, &descriptors);
        self.put_free_blocks(&mut tx, blocks);
        if self.field(&tx, S_FREE_INODES_COUNT) != inodes {
            self.put(&mut tx, S_FREE_INODES_COUNT, inodes, &[]);
        }
        drop(tx);
        self.totals_trusted.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn space(&self) -> StatFs {
        let tx = self.cache.lock();
        let free = self.free_blocks_now(&tx) + u64::from(self.preallocated.count());
        let inodes_free = u64::from(self.field(&tx, S_FREE_INODES_COUNT));
        drop(tx);
        let blocks = self.sb.blocks_count - self.overhead_blocks();
        let free = free.min(blocks);
        StatFs {
            block_size: self.sb.block_size,
            blocks,
            blocks_free: free,
            blocks_available: free.saturating_sub(self.sb.reserved_blocks),
            inodes: u64::from(self.sb.inodes_count),
            inodes_free: inodes_free.min(u64::from(self.sb.inodes_count)),
            name_max: small(dirent::NAME_MAX),
        }
    }

    /// Blocks that never hold files.
    fn overhead_blocks(&self) -> u64 {
        *self.overhead.get_or_init(|| {
            if self.sb.has_clusters() {
                return self.own_blocks();
            }
            let per_group = 2 + self.sb.inode_table_blocks();
            let all: u64 = (0..self.sb.group_count())
                .map(|group| u64::from(self.sb.group_overhead(group)) + u64::from(per_group))
                .sum();
            let all = all + self.sb.first_data_block();
            all.min(self.sb.blocks_count)
        })
    }

    // ---- features and state ----

    /// Sets a compatible feature bit; the first use of the feature depends on the returned patch.
    /// `EOPNOTSUPP` in revision 0, which has no features.
    pub(super) fn need_compat(&self, bit: u32) -> Result<PatchId> {
        let mut features = self.features.lock();
        let NewFeatures { compat, .. } = &mut *features;
        self.need(S_FEATURE_COMPAT, self.sb.features.compat, compat, bit)
    }

    /// Sets a read-only compatible feature bit, likewise.
    pub(super) fn need_ro_compat(&self, bit: u32) -> Result<PatchId> {
        let mut features = self.features.lock();
        let NewFeatures { ro_compat, .. } = &mut *features;
        self.need(S_FEATURE_RO_COMPAT, self.sb.features.ro_compat, ro_compat, bit)
    }

    fn need(&self, field: Field<u32>, old: u32, new: &mut (u32, PatchId), bit: u32) -> Result<PatchId> {
        if !self.sb.is_dynamic() {
            return Err(Errno::OPNOTSUPP.into());
        }
        if (old | new.0) & bit == 0 {
            let mut tx = self.cache.lock();
            let word = self.field(&tx, field) | bit;
            *new = (new.0 | bit, self.put(&mut tx, field, word, &[]));
        }
        Ok(new.1)
    }

    /// Marks the volume as in use and makes that stable: a crash at any later moment must find it so. With a journal it is
    /// not unclean for that, but to be recovered.
    pub(super) fn start_use(&self) -> Result<()> {
        let mut patches = Vec::new();
        let is_journaled = self.has_journal_in_use();
        if let Some(seal) = self.seal.as_ref().filter(|_| !is_journaled) {
            seal.seal_in_place();
        }
        {
            let mut tx = self.cache.lock();
            let mounts = self.field(&tx, S_MNT_COUNT).saturating_add(1);
            if !is_journaled {
                let state = self.field(&tx, S_STATE) & !STATE_VALID;
                patches.push(self.put(&mut tx, S_STATE, state, &[]));
            }
            patches.push(self.put(&mut tx, S_MNT_COUNT, mounts, &[]));
            patches.push(self.put(&mut tx, S_MTIME, self.now_secs(), &[]));
            patches.push(self.put_session(&mut tx, is_journaled, mounts));
        }
        if self.start_journal(&mut patches)? { Ok(()) } else { self.cache.sync_patches(&patches) }
    }

    /// Leaves word of this mount for the one after a crash, or takes it back where no soft updates are kept.
    fn put_session(&self, tx: &mut Tx<'_>, is_journaled: bool, mounts: u16) -> PatchId {
        if is_journaled || self.cache.options().ordering == Order::Dropped {
            return self.put(tx, S_SESSION_MAGIC, 0, &[]);
        }
        let at = self.sb.offset_in_block() + S_SESSION_MAGIC.offset();
        tx.bytes(&self.sb_block, at, &self.left.record(self.now_secs(), mounts), &[])
    }

    /// Marks the volume as clean, unless it was unclean when opened and no check has passed since, or a read failed:
    /// an operation that cannot go on in the middle may leave blocks and inodes behind that nothing owns.
    pub(super) fn end_use(&self) -> Result<()> {
        if self.cache.options().read_only {
            return Ok(());
        }
        if self.checked.load(Ordering::Relaxed) {
            self.recount_totals()?;
        }
        self.stop_journal()?;
        let intact = self.checked.load(Ordering::Relaxed) && self.cache.stats().read_errors == 0;
        let settled = self.settle_bitmap_sums()?;
        let mut tx = self.cache.lock();
        self.put(&mut tx, S_WTIME, self.now_secs(), &[]);
        let before = self.field(&tx, S_STATE);
        // With a journal the volume was called valid all the time.
        let state = if intact { (before | STATE_VALID) & !STATE_ERROR } else { before & !STATE_VALID };
        if state != before {
            // Who finds the volume clean expects right sums.
            self.put(&mut tx, S_STATE, state, &settled);
        }
        if intact && self.field(&tx, S_SESSION_MAGIC) != 0 {
            let at = self.sb.offset_in_block() + S_SESSION_MAGIC.offset();
            tx.bytes(&self.sb_block, at, &[0; RECORD_SIZE], &[]);
        }
        Ok(())
    }

    /// Says on the medium that damage was found: with a journal nothing else tells it from a volume that is to be recovered.
    pub(super) fn mark_damaged(&self) {
        let mut tx = self.cache.lock();
        let state = (self.field(&tx, S_STATE) | STATE_ERROR) & !STATE_VALID;
        self.put(&mut tx, S_STATE, state, &[]);
    }

    /// Reports damage found while the volume is in use: nothing is written any more.
    pub(super) fn found_damage(&self, error: &Error) {
        if !self.cache.options().read_only {
            self.cache.poison(&error.to_string());
        }
    }
}

/// Refuses to write a volume with features that we cannot keep valid, by name.
fn check_writable(sb: &Superblock) -> Result<()> {
    let forbidding = sb.features.read_only_because();
    if forbidding.is_empty() {
        return Ok(());
    }
    let names = forbidding.join(", ");
    Err(Error::Unsupported(format!("writing with feature {names}: mount read-only")))
}
