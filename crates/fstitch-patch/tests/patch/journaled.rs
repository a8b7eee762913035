//! A journaled cache under random changes, write-outs and power cuts, beside a model.
//!
//! What it prevents: a home block written before its transaction, a transaction half there, contents that are newer or
//! older than what points at them, log blocks overwritten too early, old copies over new contents, a full log that stops.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{
    BlockBuf, BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Le, ManualClock, MemDevice, Seed,
};
use fstitch_patch::journal::format::{MAGIC, SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::journal::{Area, Home, Log, replay};
use fstitch_patch::{Cache, CacheOptions, JournalConfig, JournalMode, Optimizations, PatchId, PatchState};

const BLOCK: usize = 1024;
const BLOCKS: u64 = 256;
const AREA: (u64, u64) = (100, 40);
/// Blocks whose kind is always logged; the first one counts transactions.
const LOGGED: u64 = 10;
/// Blocks of file contents.
const DATA: std::ops::Range<u64> = 20..28;
/// Blocks that are freed and used again as the other kind.
const FICKLE: std::ops::Range<u64> = 30..34;

/// What the blocks look like after a transaction, if it was the last one.
#[derive(Clone, Default)]
struct Moment {
    logged: BTreeMap<u64, Vec<u8>>,
    /// The least version of each block of contents.
    least: BTreeMap<u64, u64>,
    /// Blocks that are contents now and may hold copies in the log of when they were not.
    plain: Vec<u64>,
}

struct Run {
    seed: Seed,
    mode: JournalMode,
    device: Arc<MemDevice>,
    cache: Arc<Cache>,
    clock: Arc<ManualClock>,
    area: Area,
    /// After transaction n, for all that were closed.
    moments: Vec<Moment>,
    now: Moment,
    version: u64,
    /// Versions that must not be seen before this transaction.
    late: BTreeMap<u64, usize>,
    /// The last transaction that each block has late contents of.
    late_in: BTreeMap<u64, usize>,
    /// The late contents of the running transaction: the next one has them.
    least_next: BTreeMap<u64, u64>,
    /// Transactions promised to be stable.
    promised: usize,
    patches: Vec<(PatchId, usize)>,
    /// Fickle blocks that are metadata; the others are free or contents.
    metadata: BTreeMap<u64, bool>,
    /// The transaction in which a block was freed, and a patch of it.
    freed_in: BTreeMap<u64, (usize, PatchId)>,
}

/// A device with an empty journal, and where that is.
fn formatted() -> (Arc<MemDevice>, Area) {
    let device = Arc::new(MemDevice::new(1024, BLOCKS));
    let area = Area::of_file([(BlockNo(AREA.0), AREA.1)]).unwrap();
    let superblock = Superblock::new(1024, u32::try_from(AREA.1).unwrap(), 1, [9; 16]);
    let mut block = vec![0; BLOCK];
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write = BlockWrite { block: BlockNo(AREA.0), kind: BlockKind::JournalSuperblock, data: &block };
    device.write(&[write]).unwrap();
    (device, area)
}

impl Run {
    fn new(seed: u64, mode: JournalMode) -> Self {
        let (device, area) = formatted();
        let mut seed = Seed::new(seed);
        let optimizations = Optimizations::combination(u8::try_from(seed.below(16)).unwrap());
        let options = CacheOptions { optimizations, ..CacheOptions::default() };
        let clock = Arc::new(ManualClock::new());
        let cache = Cache::new(device.clone(), options, clock.clone());
        let commit_interval = Duration::from_secs(5);
        cache.start_journal(JournalConfig { mode, area: area.clone(), commit_interval }).unwrap();
        let logged = (0..LOGGED).map(|no| (no, vec![0; BLOCK])).collect();
        let mut now = Moment { logged, ..Moment::default() };
        if mode == JournalMode::Full {
            now.logged.extend(DATA.map(|no| (no, vec![0; BLOCK])));
        }
        let metadata = FICKLE.map(|no| (no, false)).collect();
        Self {
            seed,
            mode,
            device,
            cache,
            clock,
            area,
            moments: vec![now.clone()],
            now,
            version: 0,
            late: BTreeMap::new(),
            late_in: BTreeMap::new(),
            least_next: BTreeMap::new(),
            promised: 0,
            patches: Vec::new(),
            metadata,
            freed_in: BTreeMap::new(),
        }
    }

    fn running(&self) -> usize {
        self.moments.len()
    }

    fn log_change(&mut self, no: u64, kind: BlockKind) -> PatchId {
        let block = self.cache.fresh(BlockNo(no), kind).unwrap();
        let mut tx = self.cache.lock();
        let at = usize::try_from(self.seed.below(8)).unwrap() * 100;
        let magic = self.seed.below(6) == 0;
        let bytes = if magic { MAGIC.to_be_bytes().to_vec() } else { vec![self.seed.below(256) as u8; 90] };
        let at = if magic { 0 } else { at };
        let known = self.now.logged.entry(no).or_insert_with(|| vec![0; BLOCK]);
        known[at..at + bytes.len()].copy_from_slice(&bytes);
        tx.bytes(&block, at, &bytes, &[])
    }

    /// Something logged; transactions are told apart by a counter.
    fn change_metadata(&mut self) {
        let running = self.running();
        let no = 1 + self.seed.below(LOGGED - 1);
        let counter = u32::try_from(running).unwrap().to_le_bytes();
        let block = self.cache.fresh(BlockNo(0), BlockKind::Inode).unwrap();
        self.cache.lock().bytes(&block, 4, &counter, &[]);
        self.now.logged.get_mut(&0).unwrap()[4..8].copy_from_slice(&counter);
        let patch = self.log_change(no, BlockKind::Inode);
        self.patches.push((patch, running));
    }

    fn change_data(&mut self, late: bool) {
        self.change_metadata();
        let no = DATA.start + self.seed.below(DATA.end - DATA.start);
        self.version += 1;
        let mut contents = BlockBuf::zeroed(BLOCK);
        Le::put_u64(&mut contents, 0, self.version);
        let befores: Vec<PatchId> =
            if late { self.patches.last().iter().map(|p| p.0).collect() } else { vec![] };
        let block = self.cache.fresh(BlockNo(no), BlockKind::Data).unwrap();
        if self.mode == JournalMode::Full {
            self.now.logged.insert(no, contents.to_vec());
        }
        self.cache.lock().init(&block, Arc::new(contents), &befores);
        // What overwrites late contents is late itself: a file that grows over them closes the transaction first.
        let running = self.running();
        if late {
            self.late_in.insert(no, running);
        }
        if self.late_in.get(&no) == Some(&running) {
            self.late.insert(self.version, running);
            self.least_next.insert(no, self.version);
        } else {
            self.now.least.insert(no, self.version);
        }
    }

    /// A block changes between metadata and contents, with a free moment in between that ends with its transaction.
    fn change_fickle(&mut self) {
        self.change_metadata();
        let no = FICKLE.start + self.seed.below(FICKLE.end - FICKLE.start);
        if self.metadata[&no] {
            if self.seed.below(2) == 0 {
                self.log_change(no, BlockKind::Directory);
            } else {
                self.cache.lock().forget(BlockNo(no));
                self.metadata.insert(no, false);
                self.freed_in.insert(no, (self.running(), self.patches.last().unwrap().0));
                self.now.logged.remove(&no);
                self.now.plain.push(no);
            }
        } else if self.freed_in.get(&no).is_some_and(|freed| freed.0 == self.running()) {
            // Not to be used again for contents before its transaction is closed; as metadata it may be, at once.
            if self.seed.below(2) == 0 {
                self.freed_in.remove(&no);
                self.make_metadata(no);
            }
        } else if self.seed.below(2) == 0 {
            self.make_metadata(no);
        } else if self.mode != JournalMode::Full {
            let block = self.cache.fresh(BlockNo(no), BlockKind::Data).unwrap();
            self.version += 1;
            let mut contents = BlockBuf::zeroed(BLOCK);
            Le::put_u64(&mut contents, 0, self.version);
            contents[1000] = 0xda;
            // The old owner must be gone before its block shows something new.
            let reuse: Vec<PatchId> = self.freed_in.get(&no).iter().map(|freed| freed.1).collect();
            self.cache.lock().init(&block, Arc::new(contents), &reuse);
        }
    }

    fn make_metadata(&mut self, no: u64) {
        let block = self.cache.fresh(BlockNo(no), BlockKind::Directory).unwrap();
        let mut contents = BlockBuf::zeroed(BLOCK);
        contents[500] = u8::try_from(self.seed.below(256)).unwrap();
        self.now.logged.insert(no, contents.to_vec());
        self.now.plain.retain(|&other| other != no);
        self.now.least.remove(&no);
        self.metadata.insert(no, true);
        self.cache.lock().init(&block, Arc::new(contents), &[]);
    }

    fn close(&mut self) {
        if self.cache.close_transaction().unwrap() {
            self.moments.push(self.now.clone());
            self.now.least.append(&mut self.least_next);
        }
    }

    /// Before anything that may close the transaction on its own.
    fn sync(&mut self) {
        self.change_metadata();
        self.close();
        let at = usize::try_from(self.seed.below(u64::try_from(self.patches.len()).unwrap())).unwrap();
        let (patch, transaction) = self.patches[at];
        match self.seed.below(5) {
            0 => {
                self.cache.sync_all().unwrap();
                self.promised = self.moments.len() - 1;
            }
            _ => {
                self.cache.sync_patches(&[patch]).unwrap();
                self.promised = self.promised.max(transaction);
            }
        }
    }

    fn step(&mut self) {
        let mut choice = Seed::new(self.seed.next_u64());
        self.cache.step_blocks(&mut |_| choice.below(3) == 0).unwrap();
    }

    /// The power goes: what recovery makes of the medium must be one of the moments.
    fn cut(&mut self) {
        let image = self.device.image();
        let copy = MemDevice::from_image(1024, image.clone());
        let mut log =
            Log::open(&copy, &self.area, Home { block_count: BLOCKS, shares_device: true }).unwrap();
        replay(&mut log, &copy, &|_, _| BlockKind::Data, &mut |_| {}).unwrap();
        self.check_left_over(&image, &copy);
        let read = |device: &MemDevice, no: u64| {
            let mut data = vec![0; BLOCK];
            device
                .read(&mut [BlockRead { block: BlockNo(no), kind: BlockKind::Data, data: &mut data }])
                .unwrap();
            data
        };
        let found = usize::try_from(Le::u32(&read(&copy, 0), 4)).unwrap();
        // The counter of a transaction is its place among the moments.
        assert!(found >= self.promised, "transaction {} was promised, {found} is there", self.promised);
        assert!(found < self.moments.len(), "transaction {found} is not closed");
        let moment = &self.moments[found];
        for (&no, expected) in &moment.logged {
            assert!(read(&copy, no) == *expected, "block {no} after transaction {found}");
        }
        if self.mode == JournalMode::Full {
            return;
        }
        for no in DATA {
            let version = Le::u64(&read(&copy, no), 0);
            let after = self.late.get(&version);
            assert!(
                after.is_none_or(|&after| found >= after),
                "block {no} is ahead of transaction {after:?}"
            );
            if self.mode == JournalMode::Ordered {
                let least = moment.least.get(&no).copied().unwrap_or(0);
                assert!(version >= least, "block {no} holds version {version}, {least} was ordered");
            }
        }
        for &no in &moment.plain {
            let before = &image[usize::try_from(no).unwrap() * BLOCK..][..BLOCK];
            if before[1000] == 0xda {
                assert_eq!(read(&copy, no), before, "recovery wrote over the contents of block {no}");
            }
        }
    }
}

impl Run {
    /// No commit record is in the log that recovery did not come to: later transactions get the numbers from there on,
    /// and one that ends in front of it would make it count.
    fn check_left_over(&self, before: &[u8], after: &MemDevice) {
        let superblock = |image: &[u8]| {
            let at = usize::try_from(AREA.0).unwrap() * BLOCK;
            let blocks = u64::from(u32::try_from(AREA.1).unwrap());
            Superblock::parse(&image[at..at + SUPERBLOCK_SIZE], 1024, blocks).unwrap()
        };
        let next = superblock(&after.image()).sequence;
        for no in AREA.0 + 1..AREA.0 + AREA.1 {
            let block = &before[usize::try_from(no).unwrap() * BLOCK..][..BLOCK];
            let word = |at: usize| u32::from_be_bytes(block[at..at + 4].try_into().unwrap());
            assert!(
                word(0) != MAGIC || (1..=5).contains(&word(4)),
                "block {no} of the log only looks like one"
            );
            let is_commit = word(0) == MAGIC && word(4) == 2;
            assert!(!is_commit || word(8) < next.0, "transaction {} is committed beyond {}", word(8), next.0);
        }
    }
}

fn run(seed: u64, mode: JournalMode, steps: u64) {
    let mut run = Run::new(seed, mode);
    for _ in 0..steps {
        match run.seed.below(20) {
            0..=5 => run.change_metadata(),
            6..=8 => run.change_data(false),
            9 => run.change_data(true),
            10..=11 => run.change_fickle(),
            12 => run.close(),
            13 => run.sync(),
            14..=17 => run.step(),
            18 => run.clock.advance(Duration::from_secs(1)),
            _ => run.cut(),
        }
        if run.seed.below(40) == 0 {
            run.cache.check_invariants();
        }
    }
    run.close();
    run.cache.stop_journal().unwrap();
    run.promised = run.moments.len() - 1;
    let last = run.promised;
    run.cut();
    assert_eq!(run.device.image()[4], u8::try_from(last % 256).unwrap());
    assert_eq!(run.cache.dirty_blocks(), 0);
}

#[test]
fn every_cut_leaves_one_of_the_transactions() {
    for mode in [JournalMode::Ordered, JournalMode::Metadata, JournalMode::Full] {
        for seed in 0..60 {
            if std::panic::catch_unwind(|| run(seed, mode, 400)).is_err() {
                panic!("seed {seed}, {mode:?}");
            }
        }
    }
}

/// A cache with a journal, and a logged block changed in its running transaction.
fn one_change() -> (Run, PatchId) {
    let mut run = Run::new(1, JournalMode::Ordered);
    run.change_metadata();
    let patch = run.patches[0].0;
    (run, patch)
}

#[test]
fn an_fsync_writes_the_log_and_no_home() {
    let (mut run, patch) = one_change();
    run.cache.sync_patches(&[patch]).unwrap();
    let image = run.device.image();
    assert!(image[..usize::try_from(LOGGED).unwrap() * BLOCK].iter().all(|&byte| byte == 0));
    run.moments.push(run.now.clone());
    run.promised = 1;
    run.cut();
    // A second one does not wait for the homes of the first either.
    run.change_metadata();
    let patch = run.patches[1].0;
    run.cache.sync_patches(&[patch]).unwrap();
    assert!(run.device.image()[..usize::try_from(LOGGED).unwrap() * BLOCK].iter().all(|&byte| byte == 0));
}

#[test]
fn a_sync_closes_the_transaction_that_runs() {
    let (mut run, _) = one_change();
    run.cache.sync_all().unwrap();
    run.moments.push(run.now.clone());
    run.promised = 1;
    run.cut();
}

#[test]
fn a_transaction_waits_for_the_operation_under_way() {
    let (mut run, patch) = one_change();
    let (cache, keeper) = (Arc::clone(&run.cache), Arc::clone(&run.cache));
    let handle = keeper.begin(0, 4).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(move || cache.sync_patches(&[patch]).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "the operation is in the middle of a step");
        assert_eq!(run.cache.journal_status().unwrap().closed, 0);
        run.change_metadata();
        drop(handle);
    });
    run.moments.push(run.now.clone());
    run.promised = 1;
    run.cut();
}

#[test]
fn contents_in_a_block_whose_home_patch_waits_are_written_by_an_fsync() {
    // Each has its own optimisations.
    for (seed, is_committed) in (0..32).flat_map(|seed| [(seed, true), (seed, false)]) {
        let mut run = Run::new(seed, JournalMode::Metadata);
        let block = FICKLE.start;
        let logged = run.log_change(block, BlockKind::Directory);
        if is_committed {
            run.cache.sync_patches(&[logged]).unwrap();
        }
        let freeing = run.log_change(1, BlockKind::Inode);
        run.cache.lock().forget(BlockNo(block));
        if is_committed {
            run.cache.close_transaction().unwrap();
        }
        let reused = run.cache.fresh(BlockNo(block), BlockKind::Data).unwrap();
        let mut contents = BlockBuf::zeroed(BLOCK);
        contents.fill(0xda);
        let written = run.cache.lock().init(&reused, Arc::new(contents), &[freeing]);
        run.cache.sync_patches(&[written]).unwrap();
        let at = usize::try_from(block).unwrap() * BLOCK;
        assert!(run.device.image()[at..at + BLOCK].iter().all(|&byte| byte == 0xda), "seed {seed}");
    }
}

/// An fsync flushes the log and then its commit record; only one in many waits for home blocks and the tail.
#[test]
fn fsyncs_on_a_full_log_take_few_flushes() {
    const FSYNCS: u64 = 400;
    let device = Arc::new(MemDevice::new(1024, 1000));
    let superblock = Superblock::new(1024, 512, 1, [9; 16]);
    let mut block = vec![0; BLOCK];
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write = BlockWrite { block: BlockNo(400), kind: BlockKind::JournalSuperblock, data: &block };
    device.write(&[write]).unwrap();
    let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
    let area = Area::of_file([(BlockNo(400), 512)]).unwrap();
    let commit_interval = Duration::from_secs(5);
    cache.start_journal(JournalConfig { mode: JournalMode::Ordered, area, commit_interval }).unwrap();
    for round in 0..FSYNCS {
        let block = cache.fresh(BlockNo(round % 300), BlockKind::Inode).unwrap();
        let patch = cache.lock().bytes(&block, 0, &round.to_le_bytes(), &[]);
        cache.sync_patches(&[patch]).unwrap();
    }
    let flushes = cache.stats().flushes;
    assert!(flushes < FSYNCS * 22 / 10, "{flushes} flushes for {FSYNCS} fsyncs");
    cache.stop_journal().unwrap();
}

/// A block goes from one file to another, which is removed before anything is written: the first file's transaction waits for
/// its contents all the same, or a crash behind its commit record shows what was in the block before.
#[test]
fn contents_of_a_closed_transaction_stay_when_the_block_s_next_file_goes() {
    let (device, area) = formatted();
    let cache = Cache::new(device.clone(), CacheOptions::default(), Arc::new(ManualClock::new()));
    let commit_interval = Duration::from_secs(5);
    cache.start_journal(JournalConfig { mode: JournalMode::Ordered, area, commit_interval }).unwrap();
    let inode = cache.fresh(BlockNo(1), BlockKind::Inode).unwrap();
    let give = |byte: u8, reuse: &[PatchId]| {
        let _step = cache.begin(BLOCK, 1).unwrap();
        let contents = cache.fresh(BlockNo(20), BlockKind::Data).unwrap();
        let mut tx = cache.lock();
        // The block is taken in the transaction that runs from here on.
        tx.bytes(&inode, 4, &[byte], &[]);
        tx.note_new(&contents);
        tx.init(&contents, Arc::new(BlockBuf::copy_of(&[byte; BLOCK])), reuse);
        tx.bytes(&inode, 0, &[byte], &[])
    };
    let named = give(1, &[]);
    cache.close_transaction().unwrap();
    let freed = cache.lock().bytes(&inode, 0, &[2], &[]);
    cache.close_transaction().unwrap();
    give(3, &[freed]);
    // The next file is removed in the transaction that has made it.
    assert!(!cache.lock().drop_changes(BlockNo(20), &[]), "another one waits for what is in the block");
    cache.close_transaction().unwrap();
    // Nothing goes home but what the first transaction needs.
    while cache.state(named) != PatchState::Committed {
        assert!(cache.step_blocks(&mut |no| no.get() >= 20).unwrap() > 0);
    }
    let mut found = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(20), kind: BlockKind::Data, data: &mut found }]).unwrap();
    assert_eq!(found, vec![1; BLOCK]);
    cache.stop_journal().unwrap();
}

/// A node of pointers that the running transaction has made and ends: what its pointers led to is nobody's until the transaction ends, whatever
/// becomes of the node.
#[test]
fn what_a_node_of_the_running_transaction_has_cleared_stays_barred_when_the_node_goes() {
    let (device, area) = formatted();
    let cache = Cache::new(device, CacheOptions::default(), Arc::new(ManualClock::new()));
    let commit_interval = Duration::from_secs(5);
    cache.start_journal(JournalConfig { mode: JournalMode::Ordered, area, commit_interval }).unwrap();
    let inode = cache.fresh(BlockNo(1), BlockKind::Inode).unwrap();
    let clearing = {
        let _step = cache.begin(BLOCK, 1).unwrap();
        let node = cache.fresh(BlockNo(30), BlockKind::Indirect).unwrap();
        let mut tx = cache.lock();
        tx.bytes(&inode, 0, &[2], &[]);
        tx.note_new(&node);
        tx.init(&node, Arc::new(BlockBuf::copy_of(&[1; BLOCK])), &[]);
        tx.bytes(&node, 0, &[0], &[])
    };
    assert!(cache.lock().bars_reuse(clearing));
    assert!(cache.lock().drop_changes(BlockNo(30), &[]));
    assert!(cache.lock().bars_reuse(clearing), "the transaction has not ended");
    cache.close_transaction().unwrap();
    assert!(!cache.lock().bars_reuse(clearing));
    assert_ne!(cache.state(clearing), PatchState::Committed, "it is not on the medium");
    cache.check_invariants();
    cache.sync_all().unwrap();
    assert_eq!(cache.state(clearing), PatchState::Committed);
    cache.stop_journal().unwrap();
}
