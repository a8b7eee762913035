//! What a thread that must not wait is answered where it would have to.
//!
//! What it prevents: an operation that is done again elsewhere although a part of it has happened, and room or a place in a
//! transaction that nobody gives back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fstitch_core::waiting::refuse;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockWrite, Error, ManualClock, MemDevice};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode, PatchId};

const BLOCK: usize = 1024;

fn cache(cache_size: usize) -> Arc<Cache> {
    let options = CacheOptions { cache_size, ..CacheOptions::default() };
    Cache::new(Arc::new(MemDevice::new(1024, 4096)), options, Arc::new(ManualClock::new()))
}

fn journaled() -> Arc<Cache> {
    let device = MemDevice::new(1024, 256);
    let area = Area::of_file([(BlockNo(100), 40)]).unwrap();
    let mut block = vec![0; BLOCK];
    Superblock::new(1024, 40, 1, [9; 16]).encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let kind = BlockKind::JournalSuperblock;
    device.write(&[BlockWrite { block: BlockNo(100), kind, data: &block }]).unwrap();
    let cache = Cache::new(Arc::new(device), CacheOptions::default(), Arc::new(ManualClock::new()));
    let commit_interval = Duration::from_secs(5);
    cache.start_journal(JournalConfig { mode: JournalMode::Ordered, area, commit_interval }).unwrap();
    cache
}

fn set(cache: &Cache, no: u64, kind: BlockKind, befores: &[PatchId]) -> PatchId {
    let block = cache.read(BlockNo(no), kind).unwrap();
    cache.lock().bytes(&block, 0, &[1], befores)
}

fn would_wait<T>(done: Result<T, Error>) -> bool {
    matches!(done, Err(Error::WouldWait))
}

fn until(happens: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if happens() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not come to that");
}

#[test]
fn where_there_is_no_room_nothing_is_written_and_nobody_is_counted() {
    let cache = cache(512 << 10);
    let refusing = refuse();
    let dirtied = (0..4096).find(|&no| {
        let refused = would_wait(cache.reserve_first(BLOCK));
        if !refused {
            set(&cache, no, BlockKind::Data, &[]);
        }
        refused
    });
    assert!(dirtied.is_some_and(|count| count > 100), "there was room for some: {dirtied:?}");
    let stats = cache.stats();
    assert_eq!((stats.waits, stats.epochs, stats.blocks_written), (0, 0, 0));
    // In the middle of an operation it waits all the same, which makes room.
    cache.reserve(BLOCK).unwrap();
    assert!(cache.stats().waits == 1 && cache.stats().blocks_written > 0);
    cache.reserve_first(BLOCK).unwrap();
    drop(refusing);
    cache.sync_all().unwrap();
}

#[test]
fn a_transaction_is_neither_entered_nor_closed_by_whoever_is_refused() {
    let cache = journaled();
    let under_way = cache.begin(0, 1).unwrap();
    let refusing = refuse();
    assert!(would_wait(cache.begin_first(0, 30)), "there is no room in it for so many blocks");
    drop(cache.begin_first(0, 1).expect("nobody has asked for its end"));
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            drop(cache.begin(0, 30).unwrap());
            ended.store(true, Ordering::SeqCst);
        });
        // Now somebody waits for its end, and it takes nobody more.
        until(|| would_wait(cache.begin_first(0, 1)));
        assert!(!ended.load(Ordering::SeqCst));
        // Were a place in it kept, it would not end.
        drop(under_way);
    });
    assert!(ended.load(Ordering::SeqCst));
    drop(cache.begin_first(0, 1).unwrap());
    drop(refusing);
}

#[test]
fn the_end_of_a_transaction_is_asked_for_only_where_it_can_be_had_at_once() {
    let cache = journaled();
    let under_way = cache.begin(0, 2).unwrap();
    let logged = set(&cache, 1, BlockKind::Inode, &[]);
    let _refusing = refuse();
    assert!(cache.lock().awaits_running(logged));
    assert!(would_wait(cache.close_before(logged)));
    drop(cache.begin_first(0, 1).expect("nobody has asked for its end"));
    drop(under_way);
    assert!(cache.close_before(logged).unwrap(), "nobody is in it, so nobody has to be waited for");
    assert!(!cache.lock().awaits_running(logged));
}
