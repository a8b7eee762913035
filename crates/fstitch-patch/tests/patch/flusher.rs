//! The flusher's thread beside threads that rewrite, free and sync, by every mechanism and with small caches.
//!
//! What it prevents: a flusher that panics because a block's place went to another one between two looks, which ends every
//! mount; and, should it ever panic, somebody who waits for ever, a sync that succeeds, or contents that cannot be read any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Clock, Geometry, MemDevice, Result,
    Seed, Timestamp,
};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode, Optimizations, PatchId};

const BLOCK: usize = 1024;
const THREADS: u64 = 3;
/// Blocks of contents of each thread; together they are more than is left dirty before contents are written early, and mostly less
/// than what makes the flusher write for room.
const FILES: u64 = 60;
/// A cache of which an eighth is dirty soon.
const CACHE: usize = 400 << 10;
const AREA: (u64, u32) = (1000, 600);
const BLOCKS: u64 = 1700;
/// Long enough to be written early.
const JUMP: Duration = Duration::from_millis(150);

/// A clock that stands still and jumps: what comes in between happens all at once.
#[derive(Default)]
struct Jumps {
    looks: AtomicU64,
    /// Looking at it panics in the flusher's thread.
    is_broken: AtomicBool,
}

impl Clock for Jumps {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn elapsed(&self) -> Duration {
        let is_flusher = std::thread::current().name() == Some("fstitch-flusher");
        assert!(!is_flusher || !self.is_broken.load(Ordering::Relaxed), "the clock is broken");
        let looks = self.looks.fetch_add(1, Ordering::Relaxed);
        JUMP * u32::try_from(looks / 500).unwrap()
    }
}

fn options(cache_size: usize) -> CacheOptions {
    CacheOptions { cache_size, ..CacheOptions::default() }
}

fn keep_journal(device: &dyn BlockDevice, cache: &Cache, mode: JournalMode) {
    let mut block = vec![0; BLOCK];
    Superblock::new(1024, AREA.1, 1, [9; 16]).encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write = BlockWrite { block: BlockNo(AREA.0), kind: BlockKind::JournalSuperblock, data: &block };
    device.write(&[write]).unwrap();
    let area = Area::of_file([(BlockNo(AREA.0), u64::from(AREA.1))]).unwrap();
    let commit_interval = Duration::from_secs(5);
    cache.start_journal(JournalConfig { mode, area, commit_interval }).unwrap();
}

/// Whether a thread has done enough: its rounds, and then until something was written early, which a busy machine's scheduler may
/// put off, but not for ever. Where contents are logged nothing is.
fn is_over(cache: &Cache, round: u64, rounds: u64) -> bool {
    round > rounds && (cache.stats().blocks_written_early > 0 || round > 50 * rounds)
}

/// What one thread does to its own blocks: contents come, are rewritten, and now and then are freed unwritten, each with a
/// change of a block that points at it. Returns what its blocks must hold in the end.
fn rewrite(cache: &Cache, thread: u64, rounds: u64) -> Vec<(BlockNo, u64)> {
    let first = 10 + thread * FILES;
    let mut seed = Seed::new(thread);
    let mut newest = vec![0; usize::try_from(FILES).unwrap()];
    for round in 1.. {
        if round % 500 == 0 && is_over(cache, round, rounds) {
            break;
        }
        cache.reserve(2 * BLOCK).unwrap();
        let handle = cache.begin(BLOCK, 2).unwrap();
        let no = seed.below(FILES);
        let block = cache.fresh(BlockNo(first + no), BlockKind::Data).unwrap();
        let mut contents = BlockBuf::zeroed(BLOCK);
        contents[..8].copy_from_slice(&round.to_le_bytes());
        let written = cache.lock().init(&block, Arc::new(contents), &[]);
        let pointers = cache.fresh(BlockNo(thread), BlockKind::Inode).unwrap();
        let at = usize::try_from(no).unwrap();
        let pointed = cache.lock().bytes(&pointers, 8 * at, &round.to_le_bytes(), &[written]);
        newest[at] = round;
        drop(block);
        // A file that was made and removed: its place is free for the next block at once. Not often, or contents die too young to be
        // written early.
        if seed.chance(1, 30) {
            let lost = cache.lock().bytes(&pointers, 8 * at, &[0; 8], &[pointed]);
            cache.lock().forget(BlockNo(first + no));
            cache.lock().drop_changes(BlockNo(first + no), &[lost]);
            let block = cache.fresh(BlockNo(first + no), BlockKind::Data).unwrap();
            cache.lock().init(&block, Arc::new(BlockBuf::zeroed(BLOCK)), &[lost]);
            newest[at] = 0;
        }
        drop(handle);
        if seed.chance(1, 200) {
            match seed.chance(1, 2) {
                true => cache.sync_all().unwrap(),
                false => cache.sync_patches(&[pointed]).unwrap(),
            }
        }
    }
    (first..).map(BlockNo).zip(newest).collect()
}

/// Returns how many blocks were written early.
fn everybody_works(mode: Option<JournalMode>, options: CacheOptions, rounds: u64) -> u64 {
    let device = Arc::new(MemDevice::new(1024, BLOCKS));
    let cache = Cache::new(device.clone(), options, Arc::new(Jumps::default()));
    if let Some(mode) = mode {
        keep_journal(&*device, &cache, mode);
    }
    cache.start_flusher().unwrap();
    let newest: Vec<(BlockNo, u64)> = std::thread::scope(|scope| {
        let work = |thread| {
            let cache = &cache;
            scope.spawn(move || rewrite(cache, thread, rounds))
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    cache.sync_all().unwrap();
    if mode.is_some() {
        cache.stop_journal().unwrap();
    }
    for (no, round) in newest {
        let mut data = vec![0; BLOCK];
        device.read(&mut [BlockRead { block: no, kind: BlockKind::Data, data: &mut data }]).unwrap();
        assert_eq!(data[..8], round.to_le_bytes(), "{mode:?}: block {no}");
    }
    cache.stats().blocks_written_early
}

#[test]
fn soft_updates() {
    assert!(everybody_works(None, options(CACHE), 30_000) > 0, "nothing was written early");
}

#[test]
fn soft_updates_with_every_combination_of_optimisations() {
    let early = (0..16).map(|bits| {
        let optimizations = Optimizations::combination(bits);
        everybody_works(None, CacheOptions { optimizations, ..options(CACHE) }, 4000)
    });
    assert!(early.sum::<u64>() > 0, "nothing was written early");
}

#[test]
fn no_order() {
    let ordering = fstitch_patch::Ordering::Dropped;
    let early = everybody_works(None, CacheOptions { ordering, ..options(CACHE) }, 30_000);
    assert!(early > 0, "nothing was written early");
}

#[test]
fn journals() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered] {
        assert!(
            everybody_works(Some(mode), options(CACHE), 10_000) > 0,
            "{mode:?}: nothing was written early"
        );
    }
    // Where contents are logged they are home patches, which have time.
    everybody_works(Some(JournalMode::Full), options(CACHE), 1000);
}

/// A device whose writes panic from some moment on.
struct Breaks {
    device: MemDevice,
    is_broken: AtomicBool,
}

impl BlockDevice for Breaks {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        assert!(!self.is_broken.load(Ordering::Relaxed), "the device is broken");
        self.device.write(writes)
    }
    fn flush(&self) -> Result<()> {
        self.device.flush()
    }
    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

/// Works until an error comes, which must come although the flusher, for which all wait, is gone.
fn work_to_the_end(cache: &Cache, thread: u64) -> (Vec<(BlockNo, u8)>, fstitch_core::Error) {
    let mut newest = Vec::new();
    for round in 0_u64.. {
        if let Err(error) = cache.reserve(8 * BLOCK) {
            return (newest, error);
        }
        let no = BlockNo(10 + thread * 300 + round % 300);
        let block = cache.fresh(no, BlockKind::Data).unwrap();
        let value = u8::try_from(1 + round % 250).unwrap();
        let _patch: PatchId = cache.lock().bytes(&block, 0, &[value; 16], &[]);
        newest.retain(|&(other, _)| other != no);
        newest.push((no, value));
    }
    unreachable!("the rounds never end")
}

fn after_a_panic(break_it: impl Fn(&Breaks, &Jumps), what: &str) {
    let medium = Breaks { device: MemDevice::new(1024, BLOCKS), is_broken: AtomicBool::new(false) };
    let (device, clock) = (Arc::new(medium), Arc::new(Jumps::default()));
    let cache = Cache::new(device.clone(), options(512 << 10), clock.clone());
    cache.start_flusher().unwrap();
    break_it(&device, &clock);
    let ends: Vec<_> = std::thread::scope(|scope| {
        let work = |thread| {
            let cache = &cache;
            scope.spawn(move || work_to_the_end(cache, thread))
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let status = cache.poisoned().expect("the cache says that it failed").to_string();
    assert!(status.contains("the flusher panicked") && status.contains(what), "{status}");
    for (newest, error) in ends {
        // Who comes before the flusher has said what happened learns it from the lock.
        assert!(error.to_string().contains("panic"), "{error}");
        // What was written is still there to be copied elsewhere.
        for (no, value) in newest {
            let (_, data) = cache.read_snapshot(no, BlockKind::Data).unwrap();
            assert_eq!(data[..16], [value; 16], "block {no}");
        }
    }
    cache.sync_all().unwrap_err();
    cache.sync_patches(&[]).unwrap_err();
    cache.sync_all().unwrap_err();
}

#[test]
fn a_flusher_that_panics_on_the_device_ends_every_wait_and_keeps_what_can_be_read() {
    after_a_panic(|device, _| device.is_broken.store(true, Ordering::Relaxed), "the device is broken");
}

#[test]
fn a_flusher_that_panics_with_the_core_lock_held_does_the_same() {
    after_a_panic(|_, clock| clock.is_broken.store(true, Ordering::Relaxed), "the clock is broken");
}
