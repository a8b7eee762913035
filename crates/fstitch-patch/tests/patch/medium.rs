//! Media that answer for each block: some blocks go elsewhere, some are lost.
//!
//! What it prevents: a change that is stable before it can be found, a wait without an end, and one bad block that takes the rest of
//! the device with it or passes unnoticed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, Le, ManualClock,
    MemDevice, Result, Seed,
};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::{
    Block, Cache, CacheOptions, Exception, Fate, JournalConfig, JournalMode, Linear, Medium, Optimizations,
    PatchId, PatchState, VolumeOptions,
    view::{Cause, Standing},
};

const BLOCK: usize = 1024;
/// Blocks that are changed.
const BLOCKS: u64 = 12;
/// The journal, where there is one.
const AREA: (u64, u64) = (20, 60);
/// Says where blocks went: pairs of numbers.
const MAP: u64 = 100;
/// Where they go.
const SPARES: u64 = 101;
const KIND: BlockKind = BlockKind::Inode;

/// What is to go wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flaw {
    #[default]
    None,
    /// It does not say that a block went elsewhere.
    Silent,
    /// It cannot note where.
    CannotNote,
    /// It notes where by a change that waits for the block.
    WaitsForIt,
}

#[derive(Default)]
struct State {
    /// Home blocks that cannot be written.
    bad: BTreeSet<u64>,
    /// Blocks for which there is nothing else.
    dead: BTreeSet<u64>,
    /// Where blocks are, as far as they are not at home.
    moved: BTreeMap<u64, u64>,
    /// Each block that was written, in order.
    written: Vec<u64>,
    flaw: Flaw,
    order: Option<Seed>,
}

type Watcher = Box<dyn FnMut(&Remapping) + Send>;

/// A device that writes what it cannot write at home to a spare block, and keeps a map of that.
struct Remapping {
    memory: MemDevice,
    state: Mutex<State>,
    /// The cache above, and the map in it.
    map: OnceLock<(Arc<Cache>, Block)>,
    /// What a silent one notes after all.
    unsaid: Mutex<Vec<u64>>,
    /// Looks at the medium after each block.
    watcher: Mutex<Option<Watcher>>,
    waits_for: Mutex<Option<PatchId>>,
}

impl Remapping {
    /// The medium and a cache over it.
    fn new(combination: u8) -> (Arc<Self>, Arc<Cache>) {
        let medium = Arc::new(Self {
            memory: MemDevice::new(1024, 200),
            state: Mutex::default(),
            map: OnceLock::new(),
            unsaid: Mutex::default(),
            watcher: Mutex::default(),
            waits_for: Mutex::default(),
        });
        let optimizations = Optimizations::combination(combination);
        let options = CacheOptions { optimizations, cache_size: 1 << 20, ..CacheOptions::default() };
        let cache = Cache::over(Arc::clone(&medium) as _, options, Arc::new(ManualClock::new()));
        let map = cache.read(BlockNo(MAP), BlockKind::Indirect).unwrap();
        assert!(medium.map.set((Arc::clone(&cache), map)).is_ok());
        (medium, cache)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn block(&self, no: u64) -> Vec<u8> {
        let mut data = vec![0; BLOCK];
        self.memory.read(&mut [BlockRead { block: BlockNo(no), kind: KIND, data: &mut data }]).unwrap();
        data
    }

    /// Where the map on the medium says that a block is.
    fn place(&self, no: u64) -> u64 {
        let map = self.block(MAP);
        let mut entries = (0..BLOCK / 16).map(|at| (Le::u64(&map, 16 * at), Le::u64(&map, 16 * at + 8)));
        entries.rfind(|&(home, spare)| spare != 0 && home == no).map_or(no, |(_, spare)| spare)
    }

    /// The block as it is found after a power cut now.
    fn after_cut(&self, no: u64) -> Vec<u8> {
        self.block(self.place(no))
    }

    fn note(&self, block: u64) -> PatchId {
        let (cache, map) = self.map.get().unwrap();
        let state = self.state();
        let spare = state.moved[&block];
        let at = usize::try_from(spare - SPARES).unwrap();
        let mut entry = [0; 16];
        Le::put_u64(&mut entry, 0, block);
        Le::put_u64(&mut entry, 8, spare);
        let befores: Vec<PatchId> = self.waits_for.lock().unwrap().iter().copied().collect();
        cache.lock().bytes(map, 16 * at, &entry, &befores)
    }

    /// A silent one notes behind everybody's back where blocks went.
    fn note_unsaid(&self) {
        let unsaid = std::mem::take(&mut *self.unsaid.lock().unwrap());
        for block in unsaid {
            self.note(block);
        }
    }
}

impl Medium for Remapping {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        for read in reads {
            let place = self.state().moved.get(&read.block.get()).copied().unwrap_or(read.block.get());
            read.data.copy_from_slice(&self.block(place));
        }
        Ok(())
    }

    fn store(&self, writes: &[BlockWrite<'_>]) -> Result<Vec<Exception>> {
        let mut exceptions = Vec::new();
        let mut batch: Vec<&BlockWrite<'_>> = writes.iter().collect();
        if let Some(seed) = &mut self.state().order {
            // Any order of the writes of a batch is lawful.
            (1..batch.len())
                .for_each(|at| batch.swap(at, usize::try_from(seed.below(at as u64 + 1)).unwrap()));
        }
        for write in batch {
            let (no, mut state) = (write.block.get(), self.state());
            state.written.push(no);
            if state.dead.contains(&no) {
                let why = std::io::Error::other("a bad block");
                let fate = Fate::Failed(Error::io(IoOp::Write, write.block, why));
                exceptions.push(Exception { block: write.block, fate });
                continue;
            }
            let is_new = state.bad.contains(&no) && !state.moved.contains_key(&no);
            if is_new {
                let spare = SPARES + state.moved.len() as u64;
                state.moved.insert(no, spare);
            }
            let place = state.moved.get(&no).copied().unwrap_or(no);
            let is_silent = state.flaw == Flaw::Silent;
            drop(state);
            if is_new && is_silent {
                self.unsaid.lock().unwrap().push(no);
            } else if is_new {
                exceptions.push(Exception { block: write.block, fate: Fate::Elsewhere });
            }
            self.memory.write(&[BlockWrite { block: BlockNo(place), ..*write }])?;
            if let Some(watcher) = &mut *self.watcher.lock().unwrap() {
                watcher(self);
            }
        }
        Ok(exceptions)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn record(&self, block: BlockNo) -> Result<PatchId> {
        let flaw = self.state().flaw;
        match flaw {
            Flaw::CannotNote => Err(Error::io(IoOp::Write, block, std::io::Error::other("the map is full"))),
            _ => Ok(self.note(block.get())),
        }
    }
}

/// A change: the version that a place of a block gets, and which changes it comes after.
#[derive(Clone, Debug)]
struct Change {
    block: u64,
    offset: usize,
    version: u64,
    befores: Vec<usize>,
}

#[derive(Clone, Default)]
struct Model(Arc<Mutex<Vec<Change>>>);

impl Model {
    /// Changes a place of a block, after some earlier changes.
    fn change(&self, cache: &Cache, seed: &mut Seed, patches: &mut Vec<PatchId>) {
        let (block, at) = (seed.below(BLOCKS), seed.below(40));
        let befores: Vec<usize> = (0..seed.below(3))
            .filter_map(|_| patches.len().checked_sub(1 + usize::try_from(seed.below(24)).unwrap()))
            .collect();
        let offset = 64 + usize::try_from(at).unwrap() * 16;
        let version = patches.len() as u64 + 1;
        let ids: Vec<PatchId> = befores.iter().map(|&no| patches[no]).collect();
        let held = cache.read(BlockNo(block), KIND).unwrap();
        // Known before it can be seen.
        self.0.lock().unwrap().push(Change { block, offset, version, befores });
        patches.push(cache.lock().bytes(&held, offset, &version.to_le_bytes(), &ids));
    }

    /// A change that is on the medium before one that it comes after.
    fn violation(&self, medium: &Remapping) -> Option<String> {
        let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|no| medium.after_cut(no)).collect();
        let changes = self.0.lock().unwrap();
        // What was overwritten by a later one is there as well: that one comes after it.
        let is_there = |change: &Change| {
            Le::u64(&blocks[usize::try_from(change.block).unwrap()], change.offset) >= change.version
        };
        let early = |change: &&Change| {
            is_there(change) && change.befores.iter().any(|&before| !is_there(&changes[before]))
        };
        changes.iter().find(early).map(|change| format!("{change:?} came too early"))
    }
}

/// Random changes and writes, with more and more bad blocks: the first violation, if there is one.
fn random_run(combination: u8, number: u64, flaw: Flaw) -> Option<String> {
    let (medium, cache) = Remapping::new(combination);
    let (model, found) = (Model::default(), Arc::new(Mutex::new(None)));
    let (seen, watched) = (Arc::clone(&found), model.clone());
    *medium.watcher.lock().unwrap() = Some(Box::new(move |medium| {
        let violation = watched.violation(medium);
        let mut seen = seen.lock().unwrap();
        *seen = seen.take().or(violation);
    }));
    let mut seed = Seed::new(number);
    (medium.state().flaw, medium.state().order) = (flaw, Some(Seed::new(number + 1)));
    let mut patches = Vec::new();
    for _ in 0..300 {
        model.change(&cache, &mut seed, &mut patches);
        if seed.chance(1, 30) {
            medium.state().bad.insert(seed.below(BLOCKS));
        }
        if seed.chance(1, 3) {
            cache.step_blocks(&mut |_| seed.chance(1, 2)).unwrap();
            medium.note_unsaid();
        }
        if seed.chance(1, 40) {
            let wanted = patches[usize::try_from(seed.below(patches.len() as u64)).unwrap()];
            cache.sync_patches(&[wanted]).unwrap();
            assert_eq!(cache.state(wanted), PatchState::Committed);
        }
        cache.check_invariants();
    }
    cache.sync_all().unwrap();
    medium.note_unsaid();
    cache.sync_all().unwrap();
    cache.check_invariants();
    assert!(medium.state().moved.len() > 2, "blocks went elsewhere");
    for change in &*model.0.lock().unwrap() {
        let there = Le::u64(&medium.after_cut(change.block), change.offset);
        assert!(there >= change.version, "{change:?} is missing: {there}");
    }
    found.lock().unwrap().take()
}

#[test]
fn nothing_is_stable_before_it_can_be_found() {
    for combination in 0..16 {
        for number in 0..6 {
            assert_eq!(random_run(combination, number, Flaw::None), None, "{combination}, {number}");
        }
    }
}

/// The oracle of the test above sees what it is there for.
#[test]
fn a_medium_that_does_not_say_where_blocks_went_is_seen() {
    let found = (0..6).filter(|&number| random_run(15, number, Flaw::Silent).is_some()).count();
    assert!(found >= 3, "{found} of 6 runs");
}

/// One change of a block, after another.
fn put(cache: &Cache, block: u64, offset: usize, befores: &[PatchId]) -> PatchId {
    let held = cache.read(BlockNo(block), KIND).unwrap();
    cache.lock().bytes(&held, offset, &[1], befores)
}

#[test]
fn a_block_elsewhere_waits_for_the_change_that_says_where() {
    let (medium, cache) = Remapping::new(15);
    medium.state().bad.insert(1);
    let first = put(&cache, 0, 0, &[]);
    let moved = put(&cache, 1, 0, &[first]);
    let last = put(&cache, 2, 0, &[moved]);
    assert_eq!((cache.step().unwrap(), cache.step().unwrap()), (1, 1));
    assert_eq!(cache.state(moved), PatchState::InFlight);
    assert_eq!(medium.place(1), 1, "nobody can find it");
    // It is changed again meanwhile, and seen as it is.
    put(&cache, 1, 8, &[]);
    assert_eq!(cache.read(BlockNo(1), KIND).unwrap().snapshot()[..9], [1, 0, 0, 0, 0, 0, 0, 0, 1]);
    let view = cache.view(16);
    let seen = |no| view.blocks.iter().find(|block| block.no == BlockNo(no)).unwrap();
    let Some(Cause::Elsewhere { patch, record }) = seen(1).why else { panic!("{:?}", seen(1)) };
    assert!(patch == moved && seen(MAP).patches.iter().any(|patch| patch.id == record), "{view:?}");
    let Some(Cause::Patch { standing, .. }) = seen(2).why else { panic!("{:?}", seen(2)) };
    assert!(standing == Standing::Elsewhere && view.epoch.is_none(), "{view:?}");
    assert_eq!(cache.step().unwrap(), 1, "the map alone: a block in flight is not written");
    assert_eq!((cache.state(moved), cache.state(last)), (PatchState::Committed, PatchState::Uncommitted));
    cache.sync_patches(&[last]).unwrap();
    cache.sync_all().unwrap();
    assert_eq!(medium.state().written, [0, 1, MAP, 2, 1]);
    assert_eq!((medium.after_cut(1)[0], medium.after_cut(1)[8]), (1, 1));
    cache.check_invariants();
}

/// Prevents that a change joins the one that says where the block is that it waits for.
#[test]
fn other_changes_of_the_maps_block_may_wait_for_what_it_maps() {
    for combination in 0..16 {
        let (medium, cache) = Remapping::new(combination);
        medium.state().bad.insert(1);
        let moved = put(&cache, 1, 0, &[]);
        cache.step().unwrap();
        let other = put(&cache, MAP, 900, &[moved]);
        cache.check_invariants();
        cache.sync_patches(&[other]).unwrap();
        assert_eq!((medium.place(1), medium.after_cut(1)[0], medium.block(MAP)[900]), (SPARES, 1, 1));
    }
}

#[test]
fn who_waits_for_a_block_has_the_map_written() {
    for flusher in [false, true] {
        let (medium, cache) = Remapping::new(15);
        if flusher {
            cache.start_flusher().unwrap();
        }
        medium.state().bad.extend([1, 2]);
        let first = put(&cache, 1, 0, &[]);
        let second = put(&cache, 2, 0, &[first]);
        cache.sync_patches(&[second]).unwrap();
        assert_eq!((medium.place(1), medium.place(2)), (SPARES, SPARES + 1));
        assert_eq!(cache.dirty_blocks(), 0);
    }
}

/// The map's own block is a bad one.
#[test]
fn the_map_may_be_elsewhere_itself() {
    let (medium, cache) = Remapping::new(15);
    medium.state().bad.insert(1);
    medium.state().dead.insert(MAP);
    let moved = put(&cache, 1, 0, &[]);
    let other = put(&cache, 3, 0, &[]);
    cache.sync_patches(&[other]).unwrap();
    assert!(
        matches!(cache.sync_patches(&[moved]), Err(Error::Io { .. })),
        "its record is lost, and so is it"
    );
    assert!(cache.sync_patches(&[moved]).is_err(), "for ever");
    cache.check_invariants();
}

#[test]
fn a_block_that_is_lost_takes_nothing_with_it_but_what_waits_for_it() {
    for flusher in [false, true] {
        let (medium, cache) = Remapping::new(15);
        if flusher {
            cache.start_flusher().unwrap();
        }
        medium.state().dead.insert(1);
        let first = put(&cache, 0, 0, &[]);
        let lost = put(&cache, 1, 0, &[first]);
        let behind = put(&cache, 2, 0, &[lost]);
        let beside = put(&cache, 3, 0, &[]);
        cache.sync_patches(&[beside]).unwrap();
        for _ in 0..3 {
            for patch in [lost, behind] {
                let Err(Error::Io { block, .. }) = cache.sync_patches(&[patch]) else { panic!("it is lost") };
                assert_eq!(block, BlockNo(1));
            }
            assert!(cache.sync_all().is_err(), "not everything is stable");
        }
        assert_eq!(cache.state(first), PatchState::Committed);
        assert!(cache.poisoned().is_none());
        let view = cache.view(16);
        let why = |no| view.blocks.iter().find(|block| block.no == BlockNo(no)).unwrap().why.clone();
        assert!(matches!(why(1), Some(Cause::Failed { .. })), "{view:?}");
        let standing = Standing::Failed;
        assert!(matches!(why(2), Some(Cause::Patch { standing: seen, .. }) if seen == standing), "{view:?}");
        // Work goes on.
        let later = put(&cache, 3, 8, &[beside]);
        cache.sync_patches(&[later]).unwrap();
        assert_eq!(cache.read(BlockNo(1), KIND).unwrap().snapshot()[0], 1, "what is lost is still in memory");
        assert_eq!(medium.state().written.iter().filter(|&&no| no == 1).count(), 1, "it is tried once");
        assert!(!medium.state().written.contains(&2));
        cache.check_invariants();
    }
}

/// A writer whose changes all wait for a lost block does not fill the memory, nor wait for ever.
#[test]
fn there_is_no_room_behind_a_lost_block_without_end() {
    for flusher in [false, true] {
        let (medium, cache) = Remapping::new(15);
        if flusher {
            cache.start_flusher().unwrap();
        }
        medium.state().dead.insert(1);
        let mut last = put(&cache, 1, 0, &[]);
        let mut refused = None;
        for no in 0..40_000 {
            refused = cache.reserve(BLOCK).err();
            if refused.is_some() {
                break;
            }
            last = put(&cache, 2 + no % 8, 8 * (1 + usize::try_from(no / 8 % 100).unwrap()), &[last]);
        }
        assert!(matches!(refused, Some(Error::Io { .. })), "{refused:?}");
        assert!(cache.stats().memory_bytes < 2 << 20);
    }
}

#[test]
fn a_block_whose_new_place_cannot_be_noted_is_lost() {
    for flaw in [Flaw::CannotNote, Flaw::WaitsForIt] {
        let (medium, cache) = Remapping::new(15);
        medium.state().bad.insert(1);
        medium.state().flaw = flaw;
        let moved = put(&cache, 1, 0, &[]);
        if flaw == Flaw::WaitsForIt {
            *medium.waits_for.lock().unwrap() = Some(moved);
        }
        let beside = put(&cache, 3, 0, &[]);
        cache.sync_patches(&[beside]).unwrap();
        assert!(matches!(cache.sync_patches(&[moved]), Err(Error::Io { .. })), "{flaw:?}");
        assert!(cache.sync_all().is_err());
    }
}

/// A volume with a journal, beside the map.
fn journaled(engine: &Arc<Cache>, medium: &Remapping, mode: JournalMode) -> Arc<Cache> {
    let superblock = Superblock::new(1024, u32::try_from(AREA.1).unwrap(), 1, [9; 16]);
    let mut block = vec![0; BLOCK];
    superblock.encode_into(&mut block[..SUPERBLOCK_SIZE]);
    let write = BlockWrite { block: BlockNo(AREA.0), kind: BlockKind::JournalSuperblock, data: &block };
    medium.memory.write(&[write]).unwrap();
    let placement = Arc::new(Linear { first: BlockNo(0), count: MAP });
    let volume = engine.volume(placement, VolumeOptions::default()).unwrap();
    let area = Area::of_file([(BlockNo(AREA.0), AREA.1)]).unwrap();
    let commit_interval = Duration::from_secs(5);
    volume.start_journal(JournalConfig { mode, area, commit_interval }).unwrap();
    volume
}

#[test]
fn blocks_of_a_log_and_their_homes_may_go_elsewhere() {
    for mode in [JournalMode::Metadata, JournalMode::Ordered, JournalMode::Full] {
        let (medium, engine) = Remapping::new(15);
        let volume = journaled(&engine, &medium, mode);
        let mut seed = Seed::new(11);
        for round in 0_u64..60 {
            let handle = volume.begin(0, 2).unwrap();
            put(&volume, seed.below(BLOCKS), 8 * (1 + usize::try_from(round).unwrap()), &[]);
            drop(handle);
            if seed.chance(1, 4) {
                let home = seed.below(2) == 0;
                let bad = if home { seed.below(BLOCKS) } else { AREA.0 + seed.below(AREA.1) };
                medium.state().bad.insert(bad);
                volume.close_transaction().unwrap();
            }
            engine.step_blocks(&mut |_| seed.chance(1, 2)).unwrap();
            engine.check_invariants();
        }
        volume.sync_all().unwrap();
        // What is stable in the log goes home.
        while engine.step().unwrap() > 0 {}
        let moved: Vec<u64> = medium.state().moved.keys().copied().collect();
        assert!(moved.iter().any(|&no| no < BLOCKS) && moved.iter().any(|&no| no >= AREA.0), "{moved:?}");
        for no in 0..BLOCKS {
            let newest = volume.read(BlockNo(no), KIND).unwrap().snapshot();
            assert!(medium.after_cut(no) == newest[..], "{mode:?}: block {no}");
        }
    }
}

#[test]
fn a_lost_block_of_a_log_ends_changes_of_that_volume_alone() {
    let (medium, engine) = Remapping::new(15);
    let volume = journaled(&engine, &medium, JournalMode::Metadata);
    let placement = Arc::new(Linear { first: BlockNo(150), count: 10 });
    let other = engine.volume(placement, VolumeOptions::default()).unwrap();
    medium.state().dead.extend(AREA.0 + 1..AREA.0 + AREA.1);
    let handle = volume.begin(0, 2).unwrap();
    let change = put(&volume, 3, 0, &[]);
    drop(handle);
    assert!(volume.sync_patches(&[change]).is_err());
    assert!(volume.sync_all().is_err() && volume.poisoned().is_some());
    assert!(volume.reserve(1).is_err());
    let beside = put(&other, 0, 0, &[]);
    other.reserve(1).unwrap();
    other.sync_patches(&[beside]).unwrap();
    other.sync_all().unwrap();
}
