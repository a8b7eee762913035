//! The cache from outside.
//!
//! What it prevents: more device flushes than the graph is deep, a sync that writes what it need not or misses
//! what it must, changes lost silently after a failed write, memory beyond the limit, and blocks read twice.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Error, Geometry, IoOp,
    ManualClock, MemDevice, Result,
};
use fstitch_patch::{Block, Cache, CacheOptions, Durability, Optimizations, PatchId, PatchState};

const BLOCK_SIZE: u32 = 1024;
const KIND: BlockKind = BlockKind::Data;

/// A memory device that logs and fails on demand.
struct Probe {
    memory: MemDevice,
    fail_writes: AtomicBool,
    fail_flushes: AtomicBool,
    panic_writes: AtomicBool,
    reads: AtomicU64,
    /// The blocks of each batch; a flush is an empty batch.
    log: Mutex<Vec<Vec<u64>>>,
}

impl Probe {
    fn new(blocks: u64) -> Arc<Self> {
        Arc::new(Self {
            memory: MemDevice::new(BLOCK_SIZE, blocks),
            fail_writes: AtomicBool::new(false),
            fail_flushes: AtomicBool::new(false),
            panic_writes: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            log: Mutex::new(Vec::new()),
        })
    }

    fn byte(&self, block: usize, offset: usize) -> u8 {
        self.memory.image()[block * 1024 + offset]
    }

    fn take_log(&self) -> Vec<Vec<u64>> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

impl BlockDevice for Probe {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.reads.fetch_add(u64::try_from(reads.len()).unwrap(), Ordering::SeqCst);
        self.memory.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if self.fail_writes.load(Ordering::SeqCst) {
            return Err(Error::io(IoOp::Write, writes[0].block, std::io::Error::other("injected")));
        }
        assert!(!self.panic_writes.load(Ordering::SeqCst), "a bug, on purpose");
        self.log.lock().unwrap().push(writes.iter().map(|w| w.block.get()).collect());
        self.memory.write(writes)
    }
    fn flush(&self) -> Result<()> {
        if self.fail_flushes.load(Ordering::SeqCst) {
            return Err(Error::io(IoOp::Flush, BlockNo(0), std::io::Error::other("injected")));
        }
        self.log.lock().unwrap().push(vec![]);
        Ok(())
    }
    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

fn cache_with(probe: &Arc<Probe>, options: CacheOptions) -> (Arc<Cache>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    (Cache::new(probe.clone(), options, clock.clone()), clock)
}

fn cache(probe: &Arc<Probe>) -> Arc<Cache> {
    cache_with(probe, CacheOptions::default()).0
}

fn get(cache: &Cache, no: u64) -> Block {
    cache.read(BlockNo(no), KIND).unwrap()
}

fn set(cache: &Cache, no: u64, offset: usize, value: u8, befores: &[PatchId]) -> PatchId {
    let block = get(cache, no);
    cache.lock().bytes(&block, offset, &[value], befores)
}

#[test]
fn a_chain_costs_one_flush_a_link_and_a_crowd_only_one() {
    let probe = Probe::new(64);
    let cache = cache(&probe);
    let mut last = PatchId::NONE;
    for no in 0..4 {
        last = set(&cache, no, 0, 1, &[last]);
    }
    for no in 10..40 {
        set(&cache, no, 0, 2, &[]);
    }
    cache.sync_all().unwrap();
    let log = probe.take_log();
    assert_eq!(log.iter().filter(|batch| batch.is_empty()).count(), 4, "{log:?}");
    let first: Vec<u64> = std::iter::once(0).chain(10..40).collect();
    assert_eq!(log[0], first, "everything independent goes first, sorted");
    assert_eq!(cache.stats().write_requests, 2 + 3);
    assert_eq!(cache.state(last), PatchState::Committed);
}

#[test]
fn a_sync_writes_its_closure_and_no_more() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let below = set(&cache, 1, 0, 1, &[]);
    let target = set(&cache, 2, 0, 2, &[below]);
    let other = set(&cache, 3, 0, 3, &[target]);
    cache.sync_patches(&[target]).unwrap();
    assert_eq!(probe.take_log(), [vec![1], vec![], vec![2], vec![]]);
    assert_eq!(cache.state(other), PatchState::Uncommitted);
    cache.sync_patches(&[target, PatchId::NONE]).unwrap();
    assert!(probe.take_log().is_empty(), "what is stable needs no I/O");
}

#[test]
fn a_cycle_between_blocks_is_broken_by_undo() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let bitmap = set(&cache, 1, 0, 1, &[]);
    let inode = set(&cache, 2, 0, 2, &[bitmap]);
    let freed = set(&cache, 1, 8, 3, &[inode]);
    cache.sync_patches(&[inode]).unwrap();
    assert_eq!((probe.byte(1, 0), probe.byte(1, 8), probe.byte(2, 0)), (1, 0, 2), "the free is undone");
    assert_eq!(get(&cache, 1).snapshot()[8], 3, "the cache shows the newest");
    cache.sync_patches(&[freed]).unwrap();
    assert_eq!(probe.byte(1, 8), 3);
    assert_eq!(cache.stats().blocks_written_undone, 1);
}

#[test]
fn a_failed_write_poisons_and_says_so_for_ever() {
    for flush in [false, true] {
        let probe = Probe::new(16);
        let cache = cache(&probe);
        let lost = set(&cache, 1, 0, 1, &[]);
        let failing = if flush { &probe.fail_flushes } else { &probe.fail_writes };
        failing.store(true, Ordering::SeqCst);
        assert_eq!(cache.sync_patches(&[lost]).unwrap_err().errno(), Errno::IO);
        failing.store(false, Ordering::SeqCst);
        assert_eq!(cache.sync_patches(&[lost]).unwrap_err().errno(), Errno::IO, "sticky");
        assert_eq!(cache.sync_all().unwrap_err().errno(), Errno::IO, "sticky");
        assert_eq!(cache.reserve(1).unwrap_err().errno(), Errno::ROFS);
        assert!(cache.poisoned().unwrap().to_string().contains("1 blocks were lost (1)"));
        assert_ne!(cache.state(lost), PatchState::Committed);
        cache.check_invariants();
    }
}

#[test]
fn an_abandoned_cache_writes_nothing_more() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let kept = set(&cache, 1, 0, 1, &[]);
    cache.sync_patches(&[kept]).unwrap();
    let lost = set(&cache, 2, 0, 1, &[]);
    cache.abandon("the plug is out");
    probe.take_log();
    assert_eq!(cache.sync_patches(&[lost]).unwrap_err().errno(), Errno::IO);
    assert_eq!(cache.sync_all().unwrap_err().errno(), Errno::IO);
    assert!(cache.step().is_err());
    assert_eq!(cache.reserve(1).unwrap_err().errno(), Errno::ROFS);
    assert!(cache.poisoned().unwrap().to_string().contains("the plug is out"));
    assert_eq!((probe.take_log().len(), probe.byte(1, 0), probe.byte(2, 0)), (0, 1, 0));
}

#[test]
fn a_panic_in_mid_change_ends_writing_and_nobody_hangs() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    set(&cache, 1, 0, 1, &[]);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _tx = cache.lock();
        panic!("a bug, on purpose");
    }));
    assert!(caught.is_err());
    assert_eq!(cache.sync_all().unwrap_err().errno(), Errno::IO);
    assert!(cache.poisoned().unwrap().to_string().contains("panic"));
    assert!(probe.take_log().is_empty());
}

#[test]
fn a_panicking_flusher_releases_those_who_wait_for_room() {
    let probe = Probe::new(4096);
    let options = CacheOptions { cache_size: 512 << 10, ..CacheOptions::default() };
    let (cache, _) = cache_with(&probe, options);
    cache.start_flusher().unwrap();
    probe.panic_writes.store(true, Ordering::SeqCst);
    let refused = (0..4096).find_map(|no| {
        let reserved = cache.reserve(1024).err();
        if reserved.is_none() {
            set(&cache, no, 0, 5, &[]);
        }
        reserved
    });
    assert_eq!(refused.expect("there is no room for all").errno(), Errno::ROFS);
    assert_eq!(cache.sync_all().unwrap_err().errno(), Errno::IO);
}

#[test]
fn blocks_in_flight_are_shared_until_somebody_changes_them() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    set(&cache, 1, 0, 1, &[]);
    let reader = get(&cache, 1).snapshot();
    set(&cache, 1, 1, 2, &[]);
    assert_eq!((reader[0], reader[1]), (1, 0), "a snapshot does not change");
    assert_eq!(cache.stats().copies_on_write, 1);
    drop(reader);
    set(&cache, 1, 2, 3, &[]);
    assert_eq!(cache.stats().copies_on_write, 1, "nobody looks: no copy");
    let contents = Arc::new(BlockBuf::copy_of(&[7; 1024]));
    let block = cache.fresh(BlockNo(5), KIND).unwrap();
    cache.lock().init(&block, Arc::clone(&contents), &[]);
    assert!(Arc::ptr_eq(&block.snapshot(), &contents), "a block is overwritten without a copy");
    assert_eq!(probe.reads.load(Ordering::SeqCst), 1, "fresh blocks are not read");
}

#[test]
fn memory_stays_within_the_limit_and_operations_wait_for_room() {
    let probe = Probe::new(4096);
    let options = CacheOptions { cache_size: 512 << 10, ..CacheOptions::default() };
    let (cache, _) = cache_with(&probe, options);
    for round in 0..2 {
        for no in 0..4096 {
            cache.reserve(1024).unwrap();
            set(&cache, no, round, 9, &[]);
        }
    }
    let stats = cache.stats();
    assert!(stats.memory_peak_bytes <= 520 << 10, "{stats:?}");
    assert!(stats.waits > 0 && stats.cache_evictions > 0, "{stats:?}");
    cache.sync_all().unwrap();
    assert!((0..4096).all(|no| probe.byte(no, 0) == 9 && probe.byte(no, 1) == 9));
}

#[test]
fn the_flusher_thread_makes_room() {
    let probe = Probe::new(4096);
    let options = CacheOptions { cache_size: 512 << 10, ..CacheOptions::default() };
    let (cache, _) = cache_with(&probe, options);
    cache.start_flusher().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let mut last = PatchId::NONE;
                for no in 0..1024 {
                    cache.reserve(1024).unwrap();
                    last = set(cache, no * 4 + thread, 0, 5, &[last]);
                    if no % 300 == 0 {
                        cache.sync_patches(&[last]).unwrap();
                    }
                }
            });
        }
    });
    cache.sync_all().unwrap();
    cache.check_invariants();
    assert!((0..4096).all(|no| probe.byte(no, 0) == 5));
}

#[test]
fn concurrent_misses_read_once() {
    let probe = Probe::new(256);
    let cache = cache(&probe);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let all: Vec<(BlockNo, BlockKind)> = (0..256).map(|no| (BlockNo(no), KIND)).collect();
                assert_eq!(cache.read_many(&all).unwrap().len(), 256);
            });
        }
    });
    assert_eq!(probe.reads.load(Ordering::SeqCst), 256);
    assert_eq!(cache.read(BlockNo(256), KIND).unwrap_err().errno(), Errno::IO);
}

#[test]
fn dropping_changes_keeps_what_depended_on_them_ordered() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let bit = set(&cache, 1, 0, 1, &[]);
    let data = set(&cache, 2, 0, 2, &[bit]);
    let pointer = set(&cache, 3, 0, 3, &[data]);
    let cut = set(&cache, 4, 0, 4, &[]);
    assert!(cache.lock().drop_changes(BlockNo(2), &[cut]));
    assert_eq!(cache.state(data), PatchState::Committed);
    cache.check_invariants();
    cache.sync_patches(&[pointer]).unwrap();
    let log = probe.take_log();
    assert_eq!(log, [vec![1, 4], vec![], vec![3], vec![]], "before the pointer: the bit and the cut");
    assert_eq!(get(&cache, 2).snapshot()[0], 0, "the block is read again");
    let below = set(&cache, 5, 0, 5, &[]);
    let above = set(&cache, 6, 0, 6, &[below]);
    let would_close = set(&cache, 7, 0, 7, &[above]);
    assert!(!cache.lock().drop_changes(BlockNo(5), &[would_close]), "the dependency would close a cycle");
    let off = CacheOptions { optimizations: Optimizations::NONE, ..CacheOptions::default() };
    let (cache, _) = cache_with(&probe, off);
    set(&cache, 1, 0, 1, &[]);
    assert!(!cache.lock().drop_changes(BlockNo(1), &[]), "switched off");
}

/// Others know the clearing of a pointer by its id: the next life of what it pointed at comes after it, also when the block that held the pointer
/// is gone before it was ever written.
#[test]
fn what_comes_after_a_dropped_clearing_comes_after_what_cut_its_block_off() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let pointers = cache.read(BlockNo(2), BlockKind::Indirect).unwrap();
    let clearing = cache.lock().bytes(&pointers, 0, &[7], &[]);
    let waits = set(&cache, 6, 0, 6, &[clearing]);
    drop(pointers);
    let cut = set(&cache, 4, 0, 4, &[]);
    assert!(cache.lock().drop_changes(BlockNo(2), &[cut]));
    assert_ne!(cache.state(clearing), PatchState::Committed, "the medium still has the pointer");
    let next_life = set(&cache, 5, 0, 5, &[clearing]);
    cache.check_invariants();
    cache.sync_patches(&[next_life, waits]).unwrap();
    assert_eq!(probe.take_log(), [vec![4], vec![], vec![5, 6], vec![]], "the cut is first");
    assert_eq!(cache.state(clearing), PatchState::Committed);
    // Contents are nobody's next life.
    let contents = set(&cache, 8, 0, 8, &[]);
    let cut = set(&cache, 4, 0, 9, &[]);
    assert!(cache.lock().drop_changes(BlockNo(8), &[cut]));
    assert_eq!(cache.state(contents), PatchState::Committed);
    cache.check_invariants();
}

#[test]
fn a_freed_block_leaves_the_cache_unless_somebody_holds_it() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let unit = u64::try_from(cache.block_size()).unwrap();
    let memory = || cache.stats().memory_bytes;
    set(&cache, 2, 0, 2, &[]);
    let before = memory();
    assert!(cache.lock().drop_changes(BlockNo(2), &[]), "its change is dropped");
    assert!(memory() + unit <= before);
    drop(get(&cache, 3));
    let (before, reads) = (memory(), probe.reads.load(Ordering::SeqCst));
    assert!(!cache.lock().drop_changes(BlockNo(3), &[]), "there was nothing to drop");
    assert!(memory() + unit <= before);
    drop(get(&cache, 3));
    assert_eq!(probe.reads.load(Ordering::SeqCst), reads + 1, "it is read again");
    let held = get(&cache, 4);
    let before = memory();
    assert!(!cache.lock().drop_changes(BlockNo(4), &[]));
    assert_eq!((memory(), held.snapshot()[0]), (before, 0), "a handle keeps it");
    cache.check_invariants();
}

#[test]
fn empties_gather_hold_and_release() {
    let probe = Probe::new(16);
    let cache = cache(&probe);
    let (a, b) = (set(&cache, 1, 0, 1, &[]), set(&cache, 2, 0, 2, &[]));
    let both = cache.lock().empty(&[a, b]);
    let held = cache.lock().hold(&[both]);
    let after = set(&cache, 3, 0, 3, &[held]);
    assert_eq!(cache.sync_patches(&[after]).unwrap_err().errno(), Errno::BUSY, "held");
    cache.lock().release(held);
    cache.sync_patches(&[after]).unwrap();
    assert_eq!(probe.take_log(), [vec![1, 2], vec![], vec![3], vec![]]);
    let member = set(&cache, 4, 0, 4, &[]);
    let mut gather = PatchId::NONE;
    for &id in &[a, member] {
        gather = cache.lock().gather_add(gather, id);
    }
    let block = get(&cache, 4);
    let merged = cache.lock().bytes(&block, 9, &[9], &[]);
    assert!(cache.lock().same(member, merged), "a gather does not make later changes soft");
    cache.sync_patches(&[gather]).unwrap();
    assert_eq!(cache.state(member), PatchState::Committed);
}

#[test]
fn old_blocks_are_written_with_what_they_wait_for() {
    let probe = Probe::new(16);
    let options = CacheOptions { write_back_age: Duration::from_millis(1), ..CacheOptions::default() };
    let (cache, clock) = cache_with(&probe, options);
    set(&cache, 1, 0, 1, &[]);
    clock.advance(Duration::from_secs(1));
    cache.start_flusher().unwrap();
    let deadline = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(20)));
    assert!(
        deadline.take(500).any(|()| cache.dirty_blocks() == 0),
        "the flusher writes old blocks by itself"
    );
}

/// Written through: nothing has to become older first. The clock stands still, so that with any other age nothing would be written.
#[test]
fn at_age_zero_everything_is_written_at_once() {
    let probe = Probe::new(16);
    let options = CacheOptions { write_back_age: Duration::ZERO, ..CacheOptions::default() };
    let (cache, _clock) = cache_with(&probe, options);
    cache.start_flusher().unwrap();
    let first = set(&cache, 1, 0, 1, &[]);
    set(&cache, 2, 0, 1, &[first]);
    let mut look = std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(20))).take(500);
    assert!(look.any(|()| cache.dirty_blocks() == 0), "the flusher writes what has just changed");
}

/// Prevents a device that idles while much waits to be written, and young files that are written although they go soon.
#[test]
fn contents_are_written_early_when_there_is_much_unless_they_die_young() {
    const BLOCKS: u64 = 200;
    let look = || std::iter::repeat_with(|| std::thread::sleep(Duration::from_millis(20)));
    for dies in [false, true] {
        let probe = Probe::new(512);
        let options = CacheOptions { cache_size: 1 << 20, ..CacheOptions::default() };
        let (cache, clock) = cache_with(&probe, options);
        if dies {
            for no in 300..400 {
                set(&cache, no, 0, 1, &[]);
                cache.lock().drop_changes(BlockNo(no), &[]);
            }
        }
        cache.start_flusher().unwrap();
        for no in 0..BLOCKS {
            cache.reserve(1024).unwrap();
            set(&cache, no, 0, 1, &[]);
        }
        assert_eq!(cache.stats().blocks_written_early, 0, "nothing is a moment old");
        clock.advance(Duration::from_millis(200));
        cache.reserve(1024).unwrap();
        if dies {
            assert!(look().take(10).all(|()| cache.stats().blocks_written == 0), "they go soon");
            continue;
        }
        let enough = (1 << 20) / 8 / 1024;
        assert!(look().take(500).any(|()| cache.dirty_blocks() <= enough), "nobody had to ask");
        assert!(
            cache.stats().blocks_written_early >= BLOCKS - 128,
            "because of their age they are not written"
        );
        cache.sync_all().unwrap();
        assert!((0..BLOCKS).all(|no| probe.byte(usize::try_from(no).unwrap(), 0) == 1));
    }
}

/// Prevents a long chain that is walked at each of its epochs, by whoever waits for its end or when it is old.
#[test]
fn chains_are_walked_a_few_times_only() {
    const LINKS: u64 = 500;
    let probe = Probe::new(512);
    let options = CacheOptions { write_back_age: Duration::from_millis(1), ..CacheOptions::default() };
    let (cache, clock) = cache_with(&probe, options);
    let chain = |value| {
        let link = |last, no| set(&cache, no, 0, value, &[last]);
        (0..LINKS).fold(PatchId::NONE, link)
    };
    cache.sync_patches(&[chain(1)]).unwrap();
    let waited = cache.stats().patches_walked;
    assert!((LINKS..6 * LINKS).contains(&waited), "{waited} patches");
    chain(2);
    clock.advance(Duration::from_secs(1));
    cache.start_flusher().unwrap();
    while cache.dirty_blocks() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let aged = cache.stats().patches_walked - waited;
    assert!((LINKS..6 * LINKS).contains(&aged), "{aged} patches");
}

#[test]
fn without_flushes_only_syncs_flush() {
    let probe = Probe::new(16);
    let options = CacheOptions { durability: Durability::Unsafe, ..CacheOptions::default() };
    let (cache, _) = cache_with(&probe, options);
    let below = set(&cache, 1, 0, 1, &[]);
    let above = set(&cache, 2, 0, 2, &[below]);
    cache.sync_patches(&[above]).unwrap();
    assert_eq!(probe.take_log(), [vec![1], vec![2], vec![]]);
}
