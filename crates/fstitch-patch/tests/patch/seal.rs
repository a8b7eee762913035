//! Seals: what a format puts into a block at the moment of writing.
//!
//! What it prevents: a checksum of other contents than those that are written (patches undone, a block changed while it is in
//! flight, a copy in a journal), an image that is used before anybody looked at it, and a cost where no format asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, Le, ManualClock, MemDevice,
    Result, Seed, Structure,
};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{
    Cache, CacheOptions, JournalConfig, JournalMode, Linear, Numbers, Optimizations, PatchId, Placement,
    Seal, Spot, VolumeOptions,
};

const BLOCK: usize = 1024;
/// Where the sum is.
const SUM_AT: usize = BLOCK - 8;
/// Blocks that are changed; the even ones have sums.
const BLOCKS: u64 = 12;
/// The journal.
const AREA: (u64, u64) = (100, 40);
const SEALED: BlockKind = BlockKind::Inode;
const PLAIN: BlockKind = BlockKind::Data;

fn kind_of(block: u64) -> BlockKind {
    if block.is_multiple_of(2) { SEALED } else { PLAIN }
}

/// A sum over the block and its number.
fn sum(block: u64, image: &[u8]) -> u64 {
    image[..SUM_AT].iter().fold(block ^ 0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn is_sealed(block: u64, image: &[u8]) -> bool {
    Le::u64(image, SUM_AT) == sum(block, image)
}

#[derive(Default)]
struct Sums {
    sealed: AtomicU64,
    verified: AtomicU64,
}

impl Seal for Sums {
    fn covers(&self, kind: BlockKind) -> bool {
        kind == SEALED
    }

    fn seal(&self, block: BlockNo, kind: BlockKind, _owner: u64, image: &mut [u8]) {
        assert_eq!(kind, SEALED);
        self.sealed.fetch_add(1, Ordering::Relaxed);
        Le::put_u64(image, SUM_AT, sum(block.get(), image));
    }

    fn verify(&self, block: BlockNo, _kind: BlockKind, _owner: u64, image: &[u8]) -> Result<()> {
        self.verified.fetch_add(1, Ordering::Relaxed);
        // What was never written has none.
        if is_sealed(block.get(), image) || image.iter().all(|&byte| byte == 0) {
            return Ok(());
        }
        Err(Error::corrupt(Structure::Other("inode table"), block, "its sum is another one"))
    }
}

/// A device that looks at what it is given to write.
struct Watch {
    memory: MemDevice,
    /// The first block of the volume.
    first: u64,
    wrong: Mutex<Vec<u64>>,
    copies: AtomicU64,
}

impl Watch {
    fn new(first: u64) -> Arc<Self> {
        let memory = MemDevice::new(1024, 256);
        Arc::new(Self { memory, first, wrong: Mutex::default(), copies: AtomicU64::new(0) })
    }

    fn look(&self, write: &BlockWrite<'_>) {
        let right = match write.kind {
            SEALED => is_sealed(write.block.get() - self.first, write.data),
            BlockKind::JournalData => {
                self.copies.fetch_add(1, Ordering::Relaxed);
                // A block that has a sum says so.
                Le::u64(write.data, 8) != 1 || (0..BLOCKS).any(|home| is_sealed(home, write.data))
            }
            _ => true,
        };
        if !right {
            self.wrong.lock().unwrap().push(write.block.get());
        }
    }
}

impl BlockDevice for Watch {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.memory.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        writes.iter().for_each(|write| self.look(write));
        self.memory.write(writes)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

fn cache(device: &Arc<Watch>, combination: u8) -> Arc<Cache> {
    let optimizations = Optimizations::combination(combination);
    let options = CacheOptions { optimizations, ..CacheOptions::default() };
    Cache::new(Arc::clone(device) as _, options, Arc::new(ManualClock::new()))
}

/// Changes a few bytes of a block, after some earlier changes. Blocks with sums say so at byte 8.
fn change(cache: &Cache, seed: &mut Seed, patches: &mut Vec<PatchId>) {
    let block = seed.below(BLOCKS);
    let held = cache.read(BlockNo(block), kind_of(block)).unwrap();
    let offset = 16 + usize::try_from(seed.below(60)).unwrap() * 16;
    let befores: Vec<PatchId> = (0..seed.below(3))
        .filter_map(|_| patches.get(usize::try_from(seed.below(64)).unwrap()).copied())
        .collect();
    let mut tx = cache.lock();
    let mark = u64::from(kind_of(block) == SEALED).to_le_bytes();
    tx.bytes(&held, 8, &mark, &[]);
    patches.push(tx.bytes(&held, offset, &seed.next_u64().to_le_bytes(), &befores));
    drop(tx);
    if patches.len() > 64 {
        patches.remove(0);
    }
}

#[test]
fn whatever_is_written_has_the_sum_of_what_is_written() {
    let mut undone = 0;
    for combination in 0..16 {
        let (device, sums) = (Watch::new(0), Arc::new(Sums::default()));
        let cache = cache(&device, combination);
        cache.set_seal(Arc::clone(&sums) as _).unwrap();
        let (mut seed, mut patches) = (Seed::new(u64::from(combination)), Vec::new());
        for _ in 0..400 {
            change(&cache, &mut seed, &mut patches);
            if seed.chance(1, 3) {
                cache.step_blocks(&mut |_| seed.chance(1, 2)).unwrap();
            }
        }
        cache.sync_all().unwrap();
        assert!(device.wrong.lock().unwrap().is_empty(), "{combination}: {:?}", device.wrong);
        assert!(sums.sealed.load(Ordering::Relaxed) > 50);
        undone += cache.stats().blocks_written_undone;
    }
    assert!(undone > 50, "patches were undone: {undone}");
}

#[test]
fn what_was_read_is_looked_at_before_it_is_seen() {
    let device = Watch::new(0);
    let (mut seed, mut patches) = (Seed::new(7), Vec::new());
    let first = cache(&device, 15);
    first.set_seal(Arc::new(Sums::default())).unwrap();
    (0..100).for_each(|_| change(&first, &mut seed, &mut patches));
    first.sync_all().unwrap();
    // One of each kind goes bad.
    for block in [4, 5] {
        let mut data = vec![0; BLOCK];
        device.memory.read(&mut [BlockRead { block: BlockNo(block), kind: PLAIN, data: &mut data }]).unwrap();
        data[600] ^= 1;
        device.memory.write(&[BlockWrite { block: BlockNo(block), kind: PLAIN, data: &data }]).unwrap();
    }
    let (again, sums) = (cache(&device, 15), Arc::new(Sums::default()));
    again.set_seal(Arc::clone(&sums) as _).unwrap();
    for block in 0..BLOCKS {
        let found = again.read(BlockNo(block), kind_of(block));
        match found {
            Err(Error::Corrupt(corruption)) => assert_eq!((block, corruption.block), (4, Some(BlockNo(4)))),
            Err(error) => panic!("block {block}: {error}"),
            Ok(_) => assert_ne!(block, 4, "the bad one"),
        }
    }
    assert_eq!(sums.verified.load(Ordering::Relaxed), BLOCKS / 2);
    // It can be asked for again, and is looked at again.
    assert!(again.read(BlockNo(4), SEALED).is_err());
    assert_eq!(sums.verified.load(Ordering::Relaxed), BLOCKS / 2 + 1);
}

#[test]
fn copies_in_a_journal_have_the_sums_of_their_contents() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let device = Watch::new(0);
        let superblock = Superblock::new(1024, u32::try_from(AREA.1).unwrap(), 1, [9; 16]);
        let mut block = vec![0; BLOCK];
        superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
        let write = BlockWrite { block: BlockNo(AREA.0), kind: BlockKind::JournalSuperblock, data: &block };
        device.memory.write(&[write]).unwrap();
        let cache = cache(&device, 15);
        cache.set_seal(Arc::new(Sums::default())).unwrap();
        let area = Area::of_file([(BlockNo(AREA.0), AREA.1)]).unwrap();
        let commit_interval = Duration::from_secs(5);
        cache.start_journal(JournalConfig { mode, area, commit_interval }).unwrap();
        let (mut seed, mut patches) = (Seed::new(3), Vec::new());
        for _ in 0..60 {
            let handle = cache.begin(0, 2).unwrap();
            (0..3).for_each(|_| change(&cache, &mut seed, &mut patches));
            drop(handle);
            if seed.chance(1, 4) {
                cache.close_transaction().unwrap();
            }
            cache.step_blocks(&mut |_| seed.chance(1, 2)).unwrap();
        }
        cache.sync_all().unwrap();
        assert!(device.wrong.lock().unwrap().is_empty(), "{mode:?}: {:?}", device.wrong);
        assert!(device.copies.load(Ordering::Relaxed) > 20, "{mode:?}");
    }
}

/// Every second block of the device, backwards.
#[derive(Clone, Copy)]
struct Scattered {
    is_numbered: bool,
}

const LAST: u64 = 2 * (BLOCKS - 1);

impl Placement for Scattered {
    fn block_count(&self) -> u64 {
        BLOCKS
    }

    fn find(&self, no: BlockNo) -> Option<Spot> {
        self.on_device(no).map(Spot::stable)
    }

    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        self.is_numbered.then(|| Arc::new(*self) as _)
    }
}

impl Numbers for Scattered {
    fn on_device(&self, own: BlockNo) -> Option<BlockNo> {
        LAST.checked_sub(2 * own.get()).map(BlockNo)
    }

    fn of_volume(&self, device: BlockNo) -> Option<BlockNo> {
        let twice = LAST.checked_sub(device.get())?;
        twice.is_multiple_of(2).then_some(BlockNo(twice / 2))
    }
}

#[test]
fn a_volume_on_a_part_of_the_device_seals_by_its_own_numbers() {
    let device = Watch::new(30);
    let engine = cache(&device, 15);
    let placement = Arc::new(Linear { first: BlockNo(30), count: BLOCKS });
    let volume = engine.volume(placement, VolumeOptions::default()).unwrap();
    volume.set_seal(Arc::new(Sums::default())).unwrap();
    let (mut seed, mut patches) = (Seed::new(5), Vec::new());
    (0..200).for_each(|_| change(&volume, &mut seed, &mut patches));
    volume.sync_all().unwrap();
    assert!(device.wrong.lock().unwrap().is_empty(), "{:?}", device.wrong);
    let unknown = Arc::new(Scattered { is_numbered: false });
    let scattered = engine.volume(unknown, VolumeOptions::default()).unwrap();
    assert!(matches!(scattered.set_seal(Arc::new(Sums::default())), Err(Error::Unsupported(_))));
}

/// A volume with sums, and one in a file of it.
fn stack(combination: u8) -> (Arc<MemDevice>, Arc<Cache>, Arc<dyn Placement>) {
    let device = Arc::new(MemDevice::new(1024, 256));
    let optimizations = Optimizations::combination(combination);
    let options = CacheOptions { optimizations, ..CacheOptions::default() };
    let outer = Cache::new(Arc::clone(&device) as _, options, Arc::new(ManualClock::new()));
    outer.set_seal(Arc::new(Sums::default())).unwrap();
    (device, outer, Arc::new(Scattered { is_numbered: true }))
}

/// Fails unless each block of the inner volume that has a sum has the one of its own number.
fn assert_inner_sums(device: &MemDevice, what: &str) {
    let image = device.image();
    for no in (0..BLOCKS).filter(|&no| kind_of(no) == SEALED) {
        let at = usize::try_from(LAST - 2 * no).unwrap() * BLOCK;
        let block = &image[at..at + BLOCK];
        assert!(is_sealed(no, block) || block.iter().all(|&byte| byte == 0), "{what}: block {no}");
    }
}

#[test]
fn a_block_has_the_seal_of_the_innermost_volume() {
    for combination in 0..16 {
        let (device, outer, place) = stack(combination);
        // The outer volume has written the file, and looks into it while the inner one is at work.
        for no in 0..2 * BLOCKS {
            let block = outer.read(BlockNo(no), PLAIN).unwrap();
            outer.lock().bytes(&block, 700, &[0], &[]);
        }
        let inner = outer.volume(Arc::clone(&place), VolumeOptions::default()).unwrap();
        inner.set_seal(Arc::new(Sums::default())).unwrap();
        let (mut seed, mut patches) = (Seed::new(u64::from(combination)), Vec::new());
        let mut written = 0;
        for _ in 0..300 {
            change(&inner, &mut seed, &mut patches);
            if seed.chance(1, 3) {
                outer.read(BlockNo(seed.below(2 * BLOCKS)), PLAIN).unwrap();
            }
            if seed.chance(1, 4) {
                written += outer.step_blocks(&mut |_| seed.chance(1, 2)).unwrap();
            }
            assert_inner_sums(&device, &format!("combination {combination}"));
        }
        assert!(written > 50, "{written}");
        inner.sync_all().unwrap();
        assert_inner_sums(&device, "at the end");
    }
}

#[test]
fn a_volume_without_sums_in_one_that_has_them_is_left_alone() {
    let (device, outer, place) = stack(15);
    let inner = outer.volume(place, VolumeOptions::default()).unwrap();
    // What this volume has there means nothing to the outer one, which has read it as a file's.
    outer.read(BlockNo(LAST), PLAIN).unwrap();
    let block = inner.read(BlockNo(0), SEALED).unwrap();
    inner.lock().bytes(&block, SUM_AT, b"whatever", &[]);
    inner.sync_all().unwrap();
    drop(block);
    let at = BlockNo(LAST).index() * BLOCK;
    assert_eq!(&device.image()[at + SUM_AT..at + BLOCK], b"whatever");
    // Nor is it read as the outer one's, but by mistake.
    assert!(inner.read(BlockNo(0), SEALED).is_ok());
    assert!(matches!(outer.read(BlockNo(LAST), SEALED), Err(Error::Corrupt(_))));
    assert!(outer.read(BlockNo(LAST), PLAIN).is_ok());
}

#[test]
fn what_the_file_holds_is_verified_when_the_inner_volume_takes_it() {
    let (_, outer, place) = stack(15);
    let block = outer.read(BlockNo(LAST), PLAIN).unwrap();
    outer.lock().bytes(&block, 16, b"a file's", &[]);
    let inner = outer.volume(place, VolumeOptions::default()).unwrap();
    inner.set_seal(Arc::new(Sums::default())).unwrap();
    for _ in 0..2 {
        let Err(Error::Corrupt(corruption)) = inner.read(BlockNo(0), SEALED) else { panic!("it has no sum") };
        assert_eq!(corruption.block, Some(BlockNo(0)));
    }
    assert!(inner.read_many(&[(BlockNo(2), SEALED), (BlockNo(0), SEALED)]).is_err());
    assert!(inner.read(BlockNo(2), SEALED).is_ok(), "what was asked for with it");
}

#[test]
fn what_a_volume_leaves_is_its_files_again() {
    let (device, outer, place) = stack(0);
    let inner = outer.volume(Arc::clone(&place), VolumeOptions::default()).unwrap();
    inner.set_seal(Arc::new(Sums::default())).unwrap();
    let [block, first] = [0, 2].map(|no| inner.read(BlockNo(no), SEALED).unwrap());
    {
        let mut tx = inner.lock();
        let before = tx.bytes(&first, 16, b"first", &[]);
        tx.bytes(&block, 16, b"inner", &[]);
        tx.bytes(&block, 40, b"later", &[before]);
    }
    drop((block, first, inner));
    // What was not stable keeps its seal, whatever of it is written.
    let block = outer.read(BlockNo(LAST), PLAIN).unwrap();
    assert_eq!(outer.step_blocks(&mut |no| no == BlockNo(LAST)).unwrap(), 1);
    let written = device.image()[BlockNo(LAST).index() * BLOCK..][..BLOCK].to_vec();
    assert!(is_sealed(0, &written) && written[40..45] != *b"later" && written[16..21] == *b"inner");
    while outer.step_blocks(&mut |_| true).unwrap() > 0 {}
    let at = BlockNo(LAST).index() * BLOCK;
    assert!(is_sealed(0, &device.image()[at..at + BLOCK]), "changed before it was closed");
    // And in memory it is what the medium has: who copies the file gets that.
    assert!(is_sealed(0, &outer.read(BlockNo(LAST), PLAIN).unwrap().snapshot()), "read as a file's");
    // Then nobody looks at it any more.
    let again = outer.read(BlockNo(LAST), PLAIN).unwrap();
    outer.lock().bytes(&again, SUM_AT, b"a file's", &[]);
    outer.sync_all().unwrap();
    drop((block, again));
    assert_eq!(&device.image()[at + SUM_AT..at + BLOCK], b"a file's");
    let next = outer.volume(place, VolumeOptions::default()).unwrap();
    next.set_seal(Arc::new(Sums::default())).unwrap();
    assert!(next.read(BlockNo(0), SEALED).is_err(), "the file's owner has overwritten its sum");
}

#[test]
fn a_volume_is_closed_and_opened_again_in_one_cache() {
    let (device, outer, place) = stack(15);
    let mut seed = Seed::new(7);
    for round in 0..6 {
        let inner = outer.volume(Arc::clone(&place), VolumeOptions::default()).unwrap();
        inner.set_seal(Arc::new(Sums::default())).unwrap();
        let mut patches = Vec::new();
        // What it finds in memory is verified as it is found on the medium.
        (0..30).for_each(|_| change(&inner, &mut seed, &mut patches));
        inner.sync_all().unwrap();
        drop(inner);
        for no in (0..BLOCKS).filter(|_| round % 2 == 0) {
            let at = BlockNo(LAST - 2 * no);
            let found = outer.read(at, PLAIN).unwrap().snapshot();
            assert_eq!(
                found[..],
                device.image()[at.index() * BLOCK..][..BLOCK],
                "block {no} of round {round}"
            );
        }
    }
}

#[test]
fn volumes_that_are_read_share_the_zeros_of_holes() {
    let (_, outer, _) = stack(15);
    let options = VolumeOptions { read_only: true, ..VolumeOptions::default() };
    let opened = || {
        let volume = outer.volume(Arc::new(Nowhere), options).unwrap();
        volume.set_seal(Arc::new(Sums::default())).unwrap();
        volume
    };
    let (one, two) = (opened(), opened());
    for volume in [&one, &two, &one] {
        assert!(volume.read(BlockNo(3), SEALED).unwrap().snapshot().iter().all(|&byte| byte == 0));
        assert!(volume.read_owned(BlockNo(4), SEALED, 7).is_ok());
    }
}

/// A file of which no block has a place.
#[derive(Clone, Copy)]
struct Nowhere;

impl Placement for Nowhere {
    fn block_count(&self) -> u64 {
        BLOCKS
    }

    fn find(&self, _no: BlockNo) -> Option<Spot> {
        None
    }

    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        Some(Arc::new(*self))
    }
}

impl Numbers for Nowhere {
    fn on_device(&self, _own: BlockNo) -> Option<BlockNo> {
        None
    }

    fn of_volume(&self, _device: BlockNo) -> Option<BlockNo> {
        None
    }
}

#[test]
fn where_no_format_asks_nothing_is_touched() {
    let device = Watch::new(0);
    let cache = cache(&device, 15);
    let block = cache.read(BlockNo(2), SEALED).unwrap();
    cache.lock().bytes(&block, SUM_AT, b"whatever", &[]);
    cache.sync_all().unwrap();
    let image = device.memory.image();
    assert_eq!(&image[2 * BLOCK + SUM_AT..3 * BLOCK], b"whatever");
}
