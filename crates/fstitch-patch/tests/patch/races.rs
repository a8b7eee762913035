//! Syncs beside changes that begin the next transaction.
//!
//! What it prevents: a sync that fails, or never ends, because others go on working.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Geometry, ManualClock, MemDevice, Result,
};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode};

const AREA: (u64, u32) = (20, 40);

type Work = Box<dyn FnMut() + Send>;

/// Calls somebody back with each flush, when the cache holds only its epoch lock.
struct Interrupted {
    device: MemDevice,
    work: Mutex<Option<Work>>,
}

impl BlockDevice for Interrupted {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.device.write(writes)
    }
    fn flush(&self) -> Result<()> {
        let work = self.work.lock().unwrap().take();
        if let Some(mut work) = work {
            work();
            *self.work.lock().unwrap() = Some(work);
        }
        self.device.flush()
    }
    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

fn journaled(mode: JournalMode) -> (Arc<Interrupted>, Arc<Cache>) {
    let device = Arc::new(Interrupted { device: MemDevice::new(1024, 64), work: Mutex::new(None) });
    let mut block = vec![0; 1024];
    Superblock::new(1024, AREA.1, 1, [9; 16]).encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write = BlockWrite { block: BlockNo(AREA.0), kind: BlockKind::JournalSuperblock, data: &block };
    device.write(&[write]).unwrap();
    let cache = Cache::new(device.clone(), CacheOptions::default(), Arc::new(ManualClock::new()));
    let area = Area::of_file([(BlockNo(AREA.0), u64::from(AREA.1))]).unwrap();
    let commit_interval = Duration::from_secs(5);
    cache.start_journal(JournalConfig { mode, area, commit_interval }).unwrap();
    (device, cache)
}

#[test]
fn a_sync_takes_along_contents_that_come_after_the_next_transaction() {
    let (device, cache) = journaled(JournalMode::Metadata);
    let inode = cache.fresh(BlockNo(1), BlockKind::Inode).unwrap();
    let data = cache.fresh(BlockNo(2), BlockKind::Data).unwrap();
    cache.lock().bytes(&inode, 0, &[1; 8], &[]);
    cache.lock().bytes(&data, 0, &[2; 100], &[]);
    let mut times = 0;
    let other = Arc::clone(&cache);
    // While the sync writes the log, somebody shortens the file: what is zeroed comes after the new length.
    let shorten = move || {
        times += 1;
        if times == 1 {
            let shortened = other.lock().bytes(&inode, 0, &[3; 8], &[]);
            other.lock().bytes(&data, 50, &[0; 50], &[shortened]);
        }
    };
    *device.work.lock().unwrap() = Some(Box::new(shorten));
    cache.sync_all().unwrap();
    *device.work.lock().unwrap() = None;
    assert_eq!(device.device.image()[2048], 2, "the contents are stable");
    cache.stop_journal().unwrap();
}

#[test]
fn a_sync_ends_although_others_close_transactions() {
    let (device, cache) = journaled(JournalMode::Ordered);
    let inode = cache.fresh(BlockNo(1), BlockKind::Inode).unwrap();
    let patch = cache.lock().bytes(&inode, 0, &[1; 8], &[]);
    let mut times = 0_u64;
    let other = Arc::clone(&cache);
    let go_on = move || {
        times += 1;
        assert!(times < 50, "the sync waits for what came after it");
        other.lock().bytes(&inode, 0, &times.to_le_bytes(), &[]);
        other.close_transaction().unwrap();
    };
    *device.work.lock().unwrap() = Some(Box::new(go_on));
    cache.sync_all().unwrap();
    *device.work.lock().unwrap() = None;
    assert_eq!(cache.state(patch), fstitch_patch::PatchState::Committed);
    cache.stop_journal().unwrap();
}

/// Prevents a sync that takes the marks of another for its own: it found nothing to write, and ended the volume.
#[test]
fn many_who_wait_for_chains_of_their_own_all_get_them() {
    const THREADS: usize = 4;
    const LINKS: usize = 7;
    // Flushes take a moment, so that the others come to wait.
    let pause: Work = Box::new(|| std::thread::sleep(Duration::from_micros(100)));
    let device = Arc::new(Interrupted { device: MemDevice::new(1024, 64), work: Mutex::new(Some(pause)) });
    let cache = Cache::new(device.clone(), CacheOptions::default(), Arc::new(ManualClock::new()));
    let fresh = |no| cache.fresh(BlockNo(no), BlockKind::Data).unwrap();
    let blocks: Vec<_> = (0..u64::try_from(THREADS * LINKS).unwrap()).map(fresh).collect();
    let work = |thread: usize| {
        for round in 1..=100 {
            let mut last = Vec::new();
            for block in &blocks[thread * LINKS..][..2 * thread + 1] {
                last = vec![cache.lock().bytes(block, 0, &[round; 8], &last)];
            }
            cache.sync_patches(&last).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let work = &work;
            scope.spawn(move || work(thread));
        }
    });
    let written = device.device.image().chunks(1024).filter(|block| block[..8] == [100; 8]).count();
    assert_eq!(written, 1 + 3 + 5 + 7);
}
