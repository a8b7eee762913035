//! Seals that are also about whose a block is.
//!
//! What it prevents: a block that somebody else gets than its owner, because the cache had it already; damage
//! that is refused once and then found in the cache. `sealed_crashes.rs` has what a crash leaves of blocks that change hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, Error, Le, ManualClock, MemDevice, Result, Structure,
};
use fstitch_patch::{Cache, CacheOptions, Linear, Seal, VolumeOptions};

const BLOCK: usize = 1024;
/// Whose the block is, by its contents; 0 for those of a file.
const OWNER_AT: usize = 8;
/// Where the sum is.
const SUM_AT: usize = BLOCK - 8;
const OWNED: BlockKind = BlockKind::Directory;
const BLOCKS: u64 = 6;

/// A sum over the block, its number and its owner, which it does not say by itself.
fn sum(block: u64, owner: u64, image: &[u8]) -> u64 {
    image[..SUM_AT].iter().fold(block ^ owner.rotate_left(32) ^ 0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[derive(Default)]
struct Owned {
    verified: AtomicU64,
}

impl Seal for Owned {
    fn covers(&self, kind: BlockKind) -> bool {
        kind == OWNED
    }

    fn seal(&self, block: BlockNo, _kind: BlockKind, owner: u64, image: &mut [u8]) {
        Le::put_u64(image, SUM_AT, sum(block.get(), owner, image));
    }

    fn verify(&self, block: BlockNo, _kind: BlockKind, owner: u64, image: &[u8]) -> Result<()> {
        if owner == 0 {
            return Ok(());
        }
        self.verified.fetch_add(1, Ordering::Relaxed);
        if Le::u64(image, SUM_AT) == sum(block.get(), owner, image) {
            return Ok(());
        }
        Err(Error::corrupt(Structure::DirectoryEntry(None), block, "its sum is another one"))
    }
}

/// A block's contents as its owner makes them.
fn contents(owner: u64, text: u64) -> Arc<BlockBuf> {
    let mut block = vec![0; BLOCK];
    Le::put_u64(&mut block, OWNER_AT, owner);
    Le::put_u64(&mut block, 16, text);
    Arc::new(BlockBuf::copy_of(&block))
}

fn cache_with(device: Arc<dyn BlockDevice>) -> (Arc<Cache>, Arc<Owned>) {
    let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
    let seal = Arc::new(Owned::default());
    cache.set_seal(Arc::clone(&seal) as _).unwrap();
    (cache, seal)
}

/// A volume where block 2 is owner 7's, and nothing is in memory.
fn volume() -> (Arc<Cache>, Arc<Owned>) {
    let device = Arc::new(MemDevice::new(1024, 256));
    let (first, _) = cache_with(Arc::clone(&device) as _);
    let block = first.fresh_owned(BlockNo(2), OWNED, 7).unwrap();
    first.lock().init(&block, contents(7, 1), &[]);
    first.sync_all().unwrap();
    cache_with(device)
}

fn is_refused(cache: &Cache, owner: u64) -> bool {
    let found = cache.read_owned(BlockNo(2), OWNED, owner).map(drop);
    let with_contents = cache.read_owned_snapshot(BlockNo(2), OWNED, owner).map(drop);
    assert_eq!(found.is_err(), with_contents.is_err());
    match found {
        Err(Error::Corrupt(corruption)) => {
            assert_eq!(corruption.block, Some(BlockNo(2)));
            true
        }
        Err(error) => panic!("{error}"),
        Ok(()) => false,
    }
}

#[test]
fn who_does_not_own_a_block_never_gets_it() {
    // Nobody has it in memory; somebody has, who did not say whose it is; its owner has.
    type Before = fn(&Cache);
    let befores: [Before; 4] = [
        |_| {},
        |cache| cache.prefetch(&[(BlockNo(2), OWNED)]),
        |cache| drop(cache.read(BlockNo(2), BlockKind::Data).unwrap()),
        |cache| drop(cache.read_owned(BlockNo(2), OWNED, 7).unwrap()),
    ];
    for before in befores {
        let (cache, _) = volume();
        before(&cache);
        for _ in 0..2 {
            assert!(is_refused(&cache, 8), "owner 8 is refused each time");
            assert!(!is_refused(&cache, 7), "its owner gets it");
        }
    }
}

#[test]
fn a_block_is_verified_once_and_when_the_first_owner_asks() {
    let (cache, seal) = volume();
    cache.prefetch(&[(BlockNo(2), OWNED)]);
    assert_eq!(seal.verified.load(Ordering::Relaxed), 0);
    let misses = cache.stats().cache_misses;
    (0..3).for_each(|_| assert!(!is_refused(&cache, 7)));
    assert_eq!((seal.verified.load(Ordering::Relaxed), cache.stats().cache_misses), (1, misses));
    let (cache, seal) = volume();
    (0..3).for_each(|_| assert!(!is_refused(&cache, 7)));
    assert_eq!(seal.verified.load(Ordering::Relaxed), 1, "without a look ahead too");
}

#[test]
fn a_block_that_a_file_changed_as_its_own_is_judged_by_what_it_holds() {
    let (cache, _) = volume();
    let block = cache.read(BlockNo(2), BlockKind::Data).unwrap();
    cache.lock().bytes(&block, 16, &[9], &[]);
    drop(block);
    (0..2).for_each(|_| assert!(is_refused(&cache, 7)));
}

#[test]
fn who_makes_a_block_anew_is_its_owner() {
    let (cache, _) = volume();
    assert!(!is_refused(&cache, 7));
    let block = cache.fresh_owned(BlockNo(2), OWNED, 8).unwrap();
    cache.lock().init(&block, contents(8, 2), &[]);
    assert!(is_refused(&cache, 7) && !is_refused(&cache, 8));
    cache.sync_all().unwrap();
    assert!(is_refused(&cache, 7) && !is_refused(&cache, 8));
    let block = cache.fresh(BlockNo(2), BlockKind::Data).unwrap();
    cache.lock().init(&block, contents(0, 3), &[]);
    assert!(is_refused(&cache, 8), "it is a file's now");
}

#[test]
fn a_volume_on_a_part_of_the_device_has_owners_by_its_own_numbers() {
    let device = Arc::new(MemDevice::new(1024, 256));
    for (round, refused) in [(7, false), (8, true)] {
        let options = CacheOptions::default();
        let engine = Cache::new(Arc::clone(&device) as _, options, Arc::new(ManualClock::new()));
        let part = Arc::new(Linear { first: BlockNo(30), count: BLOCKS });
        let volume = engine.volume(part, VolumeOptions::default()).unwrap();
        volume.set_seal(Arc::new(Owned::default())).unwrap();
        if round == 7 {
            let block = volume.fresh_owned(BlockNo(2), OWNED, 7).unwrap();
            volume.lock().init(&block, contents(7, 1), &[]);
        }
        assert_eq!(is_refused(&volume, round), refused);
        volume.sync_all().unwrap();
    }
    let mut image = device.image();
    let image = &mut image[32 * BLOCK..33 * BLOCK];
    assert_eq!(Le::u64(image, SUM_AT), sum(2, 7, image));
}

#[test]
fn where_no_format_asks_an_owner_is_nothing() {
    let device = Arc::new(MemDevice::new(1024, 256));
    let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
    (7..9).for_each(|owner| assert!(!is_refused(&cache, owner)));
}
