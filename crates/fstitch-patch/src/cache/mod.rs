//! The buffer cache: cached blocks of one device, their patches, and the flusher that writes them in epochs.
//!
//! ```text
//!   load.rs     hits, misses, pins            step.rs     one epoch: launch, write, flush, commit
//!   clean.rs    clean blocks and eviction     sync.rs     waiting for patches to become stable
//!   limits.rs   room for operations           flusher.rs  the thread that writes by age and pressure
//!   tx.rs       the core lock, in which patches are created
//!   journal/    transactions, where a journal is kept     groups.rs   patchgroups
//!   volume.rs   several volumes on one device             device.rs   a volume as a device
//!   seal.rs     checksums of formats, at the moment of writing   medium.rs  what a write became, block by block
//!   view.rs     one moment, for people                       observe.rs events, for who looks on
//! ```
//!
//! Locks, in this order: `epoch` (one epoch at a time, held across I/O), `core` (graph and index, held for
//! microseconds, never across I/O), and leaves. `docs/design/uhfs.md` has the table of all ranks. `observer` is
//! taken before `core`, by who holds neither, and never waited for.
//!
//! # Invariants
//!
//! 1. A block of the device is in at most one slot; two that load it at a time read it once.
//! 2. A block with uncommitted patches, one in flight and one that is pinned stay in memory.
//! 3. An epoch is written, then flushed, then committed; nothing of it is committed if either fails.
//! 4. After a failure nothing is written and nothing that was not stable is forgotten: reading sees the newest data, every sync
//!    fails.
//! 5. Who creates patches has reserved room for them before, holding no lock and no unfinished patch.
//!
//! # States and transitions of a block
//! *absent* → *loading* [`load`] → *clean* [`note_clean`]; or *fresh*, of which nobody has said yet what it holds [`fresh`] → *dirty*
//! [`Tx`: `init`, `bytes`, `bits`] → *in flight* [`launch`] → *clean* or, changed meanwhile, *dirty* [`settle`] → *absent*
//! [`make_room`, `forget`]. The cache itself: *open* → *poisoned* [`settle`, `poison`, `abandon`], for ever.

mod block;
mod clean;
mod device;
mod flusher;
mod groups;
mod journal;
mod limits;
mod load;
mod medium;
mod observe;
mod seal;
mod step;
mod sync;
mod tx;
mod view;
mod volume;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use fstitch_core::groups::GroupId;
use fstitch_core::lock::{Condvar, Mutex, MutexGuard};
use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::order::rank;
use fstitch_core::waiting::Waiting;
use fstitch_core::{BlockBuf, BlockDevice, BlockNo, Clock, Error, Geometry, Result};
use rustc_hash::FxHashMap;

use crate::graph::patch::{Sx, Vx};
use crate::graph::{Graph, Holder};
use crate::observer::What;
use crate::patchgroup::Group;
use crate::{CacheOptions, Optimizations, PatchId, PatchState, Stats};
pub use block::Block;
use clean::CleanList;
pub use device::VolumeDevice;
use flusher::Flusher;
pub use journal::{Handle, JournalConfig, JournalStatus};
pub use load::{Blocks, Snapshots};
use medium::Failures;
pub use medium::{Exception, Fate, Medium};
use seal::Seals;
pub use seal::{Bitmap, Numbers, Seal};
pub use tx::Tx;
pub use volume::{Linear, Pieces, Placement, Spot, VolumeOptions};
use volume::{Mapping, VolumeState};

/// The buffer cache of one device, or of one of the volumes on it ([`Cache::volume`]).
pub struct Cache {
    shared: Arc<Shared>,
    flusher: Mutex<Option<Flusher>, rank::Table>,
    /// Whose mechanism its changes obey.
    volume: Vx,
    /// The volume below whose mechanism that is, where its journal takes everything.
    below: Option<Arc<Cache>>,
    mapping: Mapping,
    /// Its number among those who ask for blocks.
    holder: Holder,
    block_count: u64,
    options: CacheOptions,
    /// Its changes go through a journal; changes under the core lock, and may be read without it.
    journaled: Arc<AtomicBool>,
}

/// What handles, the flusher thread and the cache share.
pub(crate) struct Shared {
    medium: Arc<dyn Medium>,
    geometry: Geometry,
    block_size: usize,
    options: CacheOptions,
    clock: Arc<dyn Clock>,
    /// What blocks hold of which nobody has said yet what they hold.
    zeros: Arc<BlockBuf>,
    /// Held through an epoch.
    epoch: Mutex<(), rank::Epoch>,
    core: Mutex<Core, rank::Core>,
    /// A miss was loaded, an epoch was committed, or the cache was poisoned.
    changed: Condvar,
    /// There is work for the flusher thread, or it should stop.
    kick: Condvar,
    /// A journal has been kept: what somebody waits for may come to wait for more.
    journaled: AtomicBool,
    /// What formats put into blocks last.
    seals: Seals,
    /// Who looks on.
    observer: observe::Seat,
}

/// What the core lock guards.
pub(crate) struct Core {
    graph: Graph,
    index: FxHashMap<BlockNo, Sx>,
    clean: CleanList,
    /// Blocks in memory.
    loaded: usize,
    /// Blocks being written from copies of their own.
    copies_in_flight: usize,
    /// The blocks of the last epoch, and when it was launched.
    launched: Vec<Sx>,
    launched_at: Duration,
    /// Memory that file systems keep beside the cache.
    external_bytes: usize,
    /// What callers of `sync_patches` wait for: written by whoever writes the next epoch.
    wanted: Vec<(u64, Vec<PatchId>)>,
    /// The stamp of the blocks that they need, as of the last walk: good until somebody else waits, or nothing of it can be
    /// written any more.
    marked: Option<u64>,
    /// The same of what is old enough: good for one round of the flusher.
    marked_old: Option<u64>,
    next_waiter: u64,
    poison: Option<Error>,
    /// Blocks that failed where the others are sound.
    failures: Failures,
    /// A flusher thread runs.
    has_flusher: bool,
    /// The flusher thread should write everything it can.
    pressure: bool,
    /// There was much to write when an operation began last.
    early: bool,
    /// How often the flusher found nothing that it could write to make room.
    idle_rounds: u64,
    stop: bool,
    groups: FxHashMap<GroupId, Group>,
    /// The whole device, and the volumes on parts of it.
    volumes: Vec<VolumeState>,
}

impl Cache {
    /// A cache over `device`, whose block size is the volume's.
    ///
    /// # Panics
    /// If its blocks are larger than 64 KiB.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, options: CacheOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::over(Arc::new(medium::Device(device)), options, clock)
    }

    /// A cache over a medium that answers for each block.
    ///
    /// # Panics
    /// If its blocks are larger than 64 KiB.
    #[must_use]
    pub fn over(medium: Arc<dyn Medium>, mut options: CacheOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        let geometry = medium.geometry();
        assert!(geometry.block_size <= 64 << 10, "blocks of {} bytes", geometry.block_size);
        options.cache_size = options.cache_size.max(CacheOptions::MIN_CACHE_SIZE);
        let mut graph = Graph::new(options.optimizations, Arc::clone(&clock));
        graph.join_age = options.write_back_age;
        if options.ordering == crate::Ordering::Dropped {
            graph.arrangements[0] = crate::graph::Arrangement::Dropped;
        }
        let core = Core {
            graph,
            index: FxHashMap::default(),
            clean: CleanList::new(),
            loaded: 0,
            copies_in_flight: 0,
            launched: Vec::new(),
            launched_at: Duration::ZERO,
            external_bytes: 0,
            wanted: Vec::new(),
            marked: None,
            marked_old: None,
            next_waiter: 0,
            poison: None,
            failures: Failures::default(),
            has_flusher: false,
            pressure: false,
            early: false,
            idle_rounds: 0,
            stop: false,
            groups: FxHashMap::default(),
            volumes: vec![VolumeState::default()],
        };
        let block_size = to_usize(geometry.block_size);
        let shared = Shared {
            medium,
            geometry,
            block_size,
            options: options.clone(),
            clock,
            zeros: Arc::new(BlockBuf::zeroed(block_size)),
            epoch: Mutex::new(()),
            core: Mutex::new(core),
            changed: Condvar::new(),
            kick: Condvar::new(),
            journaled: AtomicBool::new(false),
            seals: Seals::default(),
            observer: observe::Seat::default(),
        };
        Arc::new(Self {
            shared: Arc::new(shared),
            flusher: Mutex::new(None),
            volume: 0,
            below: None,
            mapping: Mapping(None),
            block_count: geometry.block_count,
            holder: 0,
            options,
            journaled: Arc::new(AtomicBool::new(false)),
        })
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.shared.block_size
    }

    /// Blocks on the device, or of the volume.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    /// The time that everything here lives by.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// The optimisations in force. Where a journal is kept no change of what it logs is eliminated: a transaction is written as a
    /// whole.
    #[must_use]
    pub fn optimizations(&self) -> Optimizations {
        let mut optimizations = self.options.optimizations;
        optimizations.elimination &= !self.journaled.load(std::sync::atomic::Ordering::Acquire);
        optimizations
    }

    /// The core lock, in which patches are created: hold it for microseconds, never across I/O.
    #[must_use]
    pub fn lock(&self) -> Tx<'_> {
        Tx::new(self.shared.core(), self)
    }

    /// The state of a patch.
    #[must_use]
    pub fn state(&self, patch: PatchId) -> PatchState {
        self.shared.core().graph.state(patch)
    }

    /// The failure after which nothing is written any more, if there was one.
    #[must_use]
    pub fn poisoned(&self) -> Option<Error> {
        Shared::check_volume(&self.shared.core(), self.volume).err()
    }

    /// Refuses changes of this volume from now on, because of damage found on the medium.
    pub fn poison(&self, why: &str) {
        let mut core = self.shared.core();
        core.volumes[usize::from(self.volume)].poison.get_or_insert_with(|| Error::Poisoned(why.into()));
        core.tell(|_| What::Poisoned);
        self.shared.changed.notify_all();
    }

    /// Writes nothing more to the device from now on, as if the power had been cut, and returns when no epoch is under way. To be
    /// called holding no lock.
    pub fn abandon(&self, why: &str) {
        self.shared.poison(why);
        drop(self.shared.epoch());
    }

    /// Accounts memory that a file system keeps beside the cache, such as directory indexes.
    pub fn account_external(&self, delta: isize) {
        let mut core = self.shared.core();
        core.external_bytes = core.external_bytes.saturating_add_signed(delta);
        self.shared.make_room(&mut core, 0);
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.shared.core();
        let count = |n: usize| to_u64(n);
        Stats {
            memory_bytes: count(self.shared.memory(&core)),
            patch_bytes_now: count(core.graph.patch_bytes()),
            dirty_bytes: count(core.graph.dirty().len() * self.shared.block_size),
            ..core.graph.stats
        }
    }

    /// Blocks with changes that are not stable yet.
    #[must_use]
    pub fn dirty_blocks(&self) -> usize {
        self.shared.core().graph.dirty().len()
    }

    /// Checks the invariants of `docs/design/patch.md` on the whole graph.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self) {
        self.shared.core().graph.check_invariants();
    }
}

/// The core lock, held.
pub(crate) type CoreGuard<'a> = MutexGuard<'a, Core>;

/// After a panic under the core lock whatever was half changed then must not reach the medium.
fn after_panic(core: &mut Core) {
    core.poison.get_or_insert_with(|| Error::Poisoned("a panic in the middle of a change".into()));
}

/// Memory that a cached block takes beside its contents: its slot, its place in the index, and what alignment costs.
const BLOCK_OVERHEAD: usize = 320;
/// A pin's and the contents' counts, and two entries of the index where it has just grown.
const BESIDE_SLOT: usize =
    2 * 2 * size_of::<usize>() + 2 * size_of::<(BlockNo, Sx)>() + 2 * size_of::<usize>();
const _: () = assert!(size_of::<crate::graph::Slot>() + BESIDE_SLOT <= BLOCK_OVERHEAD);

impl Shared {
    #[track_caller]
    fn core(&self) -> CoreGuard<'_> {
        self.core.lock_mended(after_panic)
    }

    fn poison(&self, why: &str) {
        let mut core = self.core();
        core.poison.get_or_insert_with(|| Error::Poisoned(why.into()));
        core.tell(|_| What::Poisoned);
        self.changed.notify_all();
    }

    /// The right to write an epoch. An epoch that panicked stays in flight for ever, and no other follows.
    #[track_caller]
    fn epoch(&self) -> MutexGuard<'_, ()> {
        self.epoch.lock_mended(|()| self.poison("a panic while an epoch was written"))
    }

    /// Waits for something to change.
    fn wait<'a>(&self, core: CoreGuard<'a>) -> CoreGuard<'a> {
        let _waiting = Waiting::begin();
        self.changed.wait(core, after_panic)
    }

    /// Waits for work, at most this long.
    fn wait_for_kick<'a>(&self, core: CoreGuard<'a>, limit: Duration) -> CoreGuard<'a> {
        self.kick.wait_timeout(core, limit, after_panic)
    }

    /// Bytes in use.
    fn memory(&self, core: &Core) -> usize {
        (core.loaded + core.copies_in_flight) * (self.block_size + BLOCK_OVERHEAD)
            + core.graph.patch_bytes()
            + core.external_bytes
    }

    /// Fails if an earlier failure ended all writing.
    fn check_poison(core: &Core) -> Result<()> {
        core.poison.clone().map_or(Ok(()), Err)
    }
}
