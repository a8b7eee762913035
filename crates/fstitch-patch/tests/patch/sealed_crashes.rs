//! A volume with sums, its journal small, under random changes and power cuts: what recovery finds is sound by its sums.
//!
//! What it prevents: a bitmap beside the sum of another moment, which every reader takes for damage; a block sealed for its next owner
//! while it goes home as the last one's; a transaction that closes although nobody could say the sum of what it changed.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockWrite, Le, ManualClock, MemDevice, Result, Seed,
};
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::journal::{Area, Home, Log, replay};
use fstitch_patch::{
    Bitmap, Block, Cache, CacheOptions, JournalConfig, JournalMode, Numbers, Optimizations, PatchId,
    Placement, Seal, Spot, VolumeOptions,
};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 128;
/// The journal.
const AREA: (u64, u64) = (80, 40);
/// Blocks that belong to somebody, or to a file.
const OWNED: u64 = 6;
/// Says whose each of them is, in eight bytes: nobody's, an owner's, or a file's.
const TABLE: BlockNo = BlockNo(10);
/// Says of each bitmap, in 32 bytes: how many bits are set, and its sum.
const DESCRIPTORS: BlockNo = BlockNo(11);
const FILE: u64 = u64::MAX;
const BITMAPS: std::ops::Range<u64> = 20..23;
/// Where a block's own sum is.
const SUM_AT: usize = BLOCK - 8;

fn at(no: u64) -> usize {
    usize::try_from(no).unwrap()
}

/// A sum over bytes, the block's number and its owner.
fn sum(block: BlockNo, owner: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(block.get() ^ owner.rotate_left(32) ^ 0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Where the descriptors speak of a bitmap.
fn of_bitmap(no: u64) -> usize {
    at(no - BITMAPS.start) * 32
}

/// The volume's sums.
struct Sums {
    /// Those of bitmaps too.
    settles: bool,
}

impl Seal for Sums {
    fn covers(&self, kind: BlockKind) -> bool {
        matches!(kind, BlockKind::Directory | BlockKind::GroupDescriptor)
    }

    fn seal(&self, block: BlockNo, _kind: BlockKind, owner: u64, image: &mut [u8]) {
        Le::put_u64(image, SUM_AT, sum(block, owner, &image[..SUM_AT]));
    }

    fn verify(&self, _block: BlockNo, _kind: BlockKind, _owner: u64, _image: &[u8]) -> Result<()> {
        Ok(())
    }

    fn settle(&self, bitmaps: &[Bitmap<'_>], put: &mut dyn FnMut(BlockNo, usize, &[u8])) {
        for bitmap in bitmaps.iter().filter(|_| self.settles) {
            assert_eq!(bitmap.kind, BlockKind::BlockBitmap);
            let sum = sum(bitmap.block, 0, bitmap.contents);
            put(DESCRIPTORS, of_bitmap(bitmap.block.get()) + 8, &sum.to_le_bytes());
        }
    }
}

/// Where the volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    /// It is the device.
    Alone,
    /// In a file of a volume whose journal takes everything, backwards before [`FILE_END`].
    Inside,
}

/// The first block behind the file, which holds the blocks of the volume from the last one on.
const FILE_END: u64 = 70;

impl Where {
    fn place(self, no: BlockNo) -> BlockNo {
        match self {
            Self::Alone => no,
            Self::Inside => BlockNo(FILE_END - 1 - no.get()),
        }
    }
}

struct File {
    below: Arc<Cache>,
}

impl Placement for File {
    fn block_count(&self) -> u64 {
        40
    }

    fn find(&self, no: BlockNo) -> Option<Spot> {
        Some(Spot::stable(Where::Inside.place(no)))
    }

    fn logged_by(&self) -> Option<Arc<Cache>> {
        Some(Arc::clone(&self.below))
    }

    fn numbers(&self) -> Option<Arc<dyn Numbers>> {
        Some(Arc::new(Backwards))
    }
}

struct Backwards;

impl Numbers for Backwards {
    fn on_device(&self, own: BlockNo) -> Option<BlockNo> {
        Some(Where::Inside.place(own))
    }

    fn of_volume(&self, device: BlockNo) -> Option<BlockNo> {
        (FILE_END - 40..FILE_END).contains(&device.get()).then(|| Where::Inside.place(device))
    }
}

struct Run {
    seed: Seed,
    mode: JournalMode,
    place: Where,
    device: Arc<MemDevice>,
    cache: Arc<Cache>,
    /// Whose journal it is.
    logging: Arc<Cache>,
    area: Area,
    /// As formats do.
    descriptors: Block,
    owners: [u64; 6],
}

impl Run {
    fn new(mut seed: Seed, mode: JournalMode, (place, seal): (Where, Sums)) -> Self {
        let device = Arc::new(MemDevice::new(1024, BLOCKS));
        let area = Area::of_file([(BlockNo(AREA.0), AREA.1)]).unwrap();
        let mut journal = vec![0; BLOCK];
        let superblock = Superblock::new(1024, u32::try_from(AREA.1).unwrap(), 1, [9; 16]);
        superblock.encode_into(&mut journal[..SUPERBLOCK_SIZE]);
        let mut descriptors = vec![0; BLOCK];
        for no in BITMAPS {
            Le::put_u64(&mut descriptors, of_bitmap(no) + 8, sum(BlockNo(no), 0, &[0; BLOCK]));
        }
        seal.seal(DESCRIPTORS, BlockKind::GroupDescriptor, 0, &mut descriptors);
        let made = [(BlockNo(AREA.0), &journal), (place.place(DESCRIPTORS), &descriptors)];
        let write = |(block, data)| BlockWrite { block, kind: BlockKind::Superblock, data };
        device.write(&made.map(|(block, data): (_, &Vec<u8>)| write((block, &data[..])))).unwrap();
        let optimizations = Optimizations::combination(u8::try_from(seed.below(16)).unwrap());
        let options = CacheOptions { optimizations, ..CacheOptions::default() };
        let logging = Cache::new(Arc::clone(&device) as _, options, Arc::new(ManualClock::new()));
        let commit_interval = Duration::from_secs(5);
        let config = JournalConfig { mode, area: area.clone(), commit_interval };
        if place == Where::Inside {
            logging.set_seal(Arc::new(Sums { settles: false })).unwrap();
            logging.start_journal(config.clone()).unwrap();
        }
        let file = File { below: Arc::clone(&logging) };
        let cache = match place {
            Where::Alone => Arc::clone(&logging),
            Where::Inside => logging.volume(Arc::new(file), VolumeOptions::default()).unwrap(),
        };
        cache.set_seal(Arc::new(seal)).unwrap();
        if place == Where::Alone {
            cache.start_journal(config).unwrap();
        }
        let descriptors = cache.read(DESCRIPTORS, BlockKind::GroupDescriptor).unwrap();
        Self { seed, mode, place, device, cache, logging, area, descriptors, owners: [0; 6] }
    }

    /// A bit of a bitmap is taken for another one: nobody counts anything.
    fn reallocate(&mut self) {
        let no = BITMAPS.start + self.seed.below(BITMAPS.end - BITMAPS.start);
        let first = u32::try_from(self.seed.below(8 * 512)).unwrap();
        let _step = self.cache.begin(0, 1).unwrap();
        let bitmap = self.cache.read(BlockNo(no), BlockKind::BlockBitmap).unwrap();
        let mut tx = self.cache.lock();
        let is_set = |bit: u32| tx.data(&bitmap)[at(u64::from(bit / 8))] & (1 << (bit % 8)) != 0;
        let (set, clear) = (is_set(first), (first..8 * 1024).find(|&bit| is_set(bit) != is_set(first)));
        let Some(other) = clear else { return };
        tx.bits(&bitmap, first, 1, !set, &[]);
        tx.bits(&bitmap, other, 1, set, &[]);
    }

    /// A bit of a bitmap is flipped, and counted.
    fn allocate(&mut self) {
        let no = BITMAPS.start + self.seed.below(BITMAPS.end - BITMAPS.start);
        let bit = u32::try_from(self.seed.below(8 * 1024)).unwrap();
        let _step = self.cache.begin(0, 2).unwrap();
        let bitmap = self.cache.read(BlockNo(no), BlockKind::BlockBitmap).unwrap();
        let mut tx = self.cache.lock();
        let is_set = tx.data(&bitmap)[at(u64::from(bit / 8))] & (1 << (bit % 8)) != 0;
        let count = Le::u64(tx.data(&self.descriptors), of_bitmap(no));
        let count = if is_set { count - 1 } else { count + 1 };
        tx.bits(&bitmap, bit, 1, !is_set, &[]);
        tx.bytes(&self.descriptors, of_bitmap(no), &count.to_le_bytes(), &[]);
    }

    /// A block of somebody's is changed; or it is freed, and becomes another one's or a file's.
    fn change_hands(&mut self) {
        let no = self.seed.below(OWNED);
        let owner = self.owners[at(no)];
        if (1..FILE).contains(&owner) && self.seed.chance(1, 2) {
            let _step = self.cache.begin(0, 1).unwrap();
            let block = self.cache.read_owned(BlockNo(no), BlockKind::Directory, owner).unwrap();
            self.cache.lock().bytes(&block, 32, &self.seed.next_u64().to_le_bytes(), &[]);
            return;
        }
        let freed = self.give(no, 0, |cache| cache.lock().forget(BlockNo(no)));
        let (next, text) = (self.seed.below(4), self.seed.next_u64());
        let next = if next == 0 { FILE } else { next };
        // A file's contents wait until the block is free; what is logged need not.
        let befores: &[PatchId] = if next == FILE { &[freed] } else { &[] };
        if next == FILE || self.seed.chance(1, 2) {
            self.logging.close_transaction().unwrap();
        }
        self.give(no, next, |cache| {
            let (block, contents) = match next {
                FILE => (cache.fresh(BlockNo(no), BlockKind::Data).unwrap(), vec![0xda; BLOCK]),
                _ => {
                    let mut contents = vec![0; BLOCK];
                    Le::put_u64(&mut contents, 0, text);
                    (cache.fresh_owned(BlockNo(no), BlockKind::Directory, next).unwrap(), contents)
                }
            };
            let contents = BlockBuf::copy_of(&contents);
            cache.lock().init(&block, Arc::new(contents), befores);
        });
    }

    /// The table says whose a block is, in the transaction that makes it so.
    fn give(&mut self, no: u64, owner: u64, work: impl FnOnce(&Cache)) -> PatchId {
        let _step = self.cache.begin(BLOCK, 2).unwrap();
        let table = self.cache.read(TABLE, BlockKind::Inode).unwrap();
        let patch = self.cache.lock().bytes(&table, at(no) * 8, &owner.to_le_bytes(), &[]);
        work(&self.cache);
        self.owners[at(no)] = owner;
        patch
    }

    /// The power goes: what recovery makes of the medium. What is unsound there, by the sums.
    fn cut(&self) -> Vec<String> {
        let copy = MemDevice::from_image(1024, self.device.image());
        let home = Home { block_count: BLOCKS, shares_device: true };
        let mut log = Log::open(&copy, &self.area, home).unwrap();
        replay(&mut log, &copy, &|_, _| BlockKind::Data, &mut |_| {}).unwrap();
        let image = copy.image();
        let block = |no: BlockNo| &image[at(self.place.place(no).get()) * BLOCK..][..BLOCK];
        let mut unsound = Vec::new();
        let mut expect = |is_right: bool, what: String| unsound.extend((!is_right).then_some(what));
        let descriptors = block(DESCRIPTORS);
        let own = sum(DESCRIPTORS, 0, &descriptors[..SUM_AT]);
        expect(Le::u64(descriptors, SUM_AT) == own, "the descriptors".to_owned());
        for no in BITMAPS {
            let (bitmap, says) = (block(BlockNo(no)), &descriptors[of_bitmap(no)..]);
            let count: u64 = bitmap.iter().map(|byte| u64::from(byte.count_ones())).sum();
            expect(Le::u64(says, 0) == count, format!("the count of bitmap {no}"));
            expect(Le::u64(says, 8) == sum(BlockNo(no), 0, bitmap), format!("the sum of bitmap {no}"));
        }
        for no in 0..OWNED {
            let (owner, found) = (Le::u64(block(TABLE), at(no) * 8), block(BlockNo(no)));
            let is_right = match owner {
                0 => true,
                // Only these modes promise that contents are there when the file is.
                FILE => self.mode == JournalMode::Metadata || found.iter().all(|&byte| byte == 0xda),
                _ => Le::u64(found, SUM_AT) == sum(BlockNo(no), owner, &found[..SUM_AT]),
            };
            expect(is_right, format!("block {no} of owner {owner}"));
        }
        unsound
    }
}

/// The first thing that a cut finds to be unsound, in a run from this seed; and how many images were written with later
/// changes undone.
fn run(seed: u64, (mode, place): (JournalMode, Where), settles: bool) -> (Option<String>, u64) {
    let mut run = Run::new(Seed::new(seed), mode, (place, Sums { settles }));
    for _ in 0..300 {
        match run.seed.below(9) {
            0..=1 => run.allocate(),
            2..=4 => run.change_hands(),
            5 => drop(run.logging.close_transaction().unwrap()),
            6 => run.reallocate(),
            _ => {}
        }
        let (cache, seed) = (&run.cache, &mut run.seed);
        cache.step_blocks(&mut |_| seed.chance(1, 3)).unwrap();
        if let Some(unsound) = run.cut().into_iter().next() {
            return (Some(unsound), 0);
        }
    }
    run.cache.check_invariants();
    run.cache.sync_all().unwrap();
    run.logging.stop_journal().unwrap();
    (run.cut().into_iter().next(), run.cache.stats().blocks_written_undone)
}

#[test]
fn every_cut_leaves_sums_of_what_is_beside_them() {
    let mut undone = 0;
    let alone =
        [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full].map(|mode| (mode, Where::Alone));
    for how in alone.into_iter().chain([(JournalMode::Full, Where::Inside)]) {
        for seed in 0..40 {
            let (unsound, images) = run(seed, how, true);
            assert_eq!(unsound, None, "seed {seed}, {how:?}");
            undone += images;
        }
    }
    assert!(undone > 100, "transactions went home while later ones ran: {undone}");
}

#[test]
fn a_sum_that_is_not_settled_is_noticed() {
    for how in [(JournalMode::Metadata, Where::Alone), (JournalMode::Full, Where::Inside)] {
        let (unsound, _) = run(0, how, false);
        assert!(unsound.unwrap().starts_with("the sum of bitmap"), "{how:?}");
    }
}

#[test]
fn where_a_sum_has_no_place_nothing_becomes_stable() {
    let mut run = Run::new(Seed::new(1), JournalMode::Metadata, (Where::Alone, Sums { settles: true }));
    let before = run.cut();
    let bitmap = run.cache.read(BlockNo(BITMAPS.start), BlockKind::BlockBitmap).unwrap();
    let elsewhere = run.cache.fresh(TABLE, BlockKind::Inode).unwrap();
    // Nobody keeps the descriptors, and others take their memory.
    run.descriptors = elsewhere;
    let all = isize::try_from(run.cache.options().cache_size).unwrap();
    run.cache.account_external(all);
    run.cache.account_external(-all);
    let patch = run.cache.lock().bits(&bitmap, 5, 1, true, &[])[0];
    assert!(run.cache.sync_patches(&[patch]).is_err());
    let why = run.cache.poisoned().unwrap().to_string();
    assert!(why.contains("block 11"), "{why}");
    assert_eq!((run.cut(), run.device.image()[at(BITMAPS.start) * BLOCK]), (before, 0));
}

/// What was logged below is not home yet when the volume is closed, and the file is written.
#[test]
fn what_a_volume_leaves_in_the_log_below_is_its_files() {
    let mut run = Run::new(Seed::new(3), JournalMode::Full, (Where::Inside, Sums { settles: true }));
    (0..20).for_each(|_| {
        run.allocate();
        run.change_hands();
    });
    run.logging.close_transaction().unwrap();
    let Run { cache, logging, descriptors, device, .. } = run;
    let blocks: Vec<u64> = (0..OWNED).chain(BITMAPS).chain([DESCRIPTORS.get()]).collect();
    drop((cache, descriptors));
    for &no in &blocks {
        let _step = logging.begin(0, 1).unwrap();
        let block = logging.read(Where::Inside.place(BlockNo(no)), BlockKind::Data).unwrap();
        let mut tx = logging.lock();
        tx.bytes(&block, 100, b"a file's", &[]);
        tx.bytes(&block, SUM_AT, b"its sum!", &[]);
    }
    logging.sync_all().unwrap();
    logging.stop_journal().unwrap();
    let image = device.image();
    for no in blocks {
        let block = &image[at(Where::Inside.place(BlockNo(no)).get()) * BLOCK..][..BLOCK];
        assert_eq!((&block[100..108], &block[SUM_AT..]), (&b"a file's"[..], &b"its sum!"[..]), "block {no}");
    }
    assert!(logging.poisoned().is_none());
}
