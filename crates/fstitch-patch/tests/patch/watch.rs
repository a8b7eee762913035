//! Looking at a cache, and hearing what it does.
//!
//! What it prevents: a cause that is none, a view that holds more than was asked for or hides that it holds less, an observer that
//! runs under the core lock, and events that vanish without being counted. That views and events agree with the graph on random
//! operations is tested beside the model (`src/graph/tests/watched.rs`).

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use fstitch_core::groups::{Engaged, GroupCall};
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Errno, Error, Geometry, IoOp, ManualClock,
    MemDevice, Result,
};
use fstitch_patch::journal::Area;
use fstitch_patch::journal::format::{SUPERBLOCK_SIZE, Superblock};
use fstitch_patch::view::{BlockView, Cause, GroupState, PatchRole, Ready, Standing};
use fstitch_patch::{
    Cache, CacheOptions, Event, JournalConfig, JournalMode, Observer, Optimizations, PatchId, PatchState,
    View, What,
};

const BLOCK: u32 = 1024;
const DATA: BlockKind = BlockKind::Data;

/// What to do in the middle of a write.
type Meanwhile = Box<dyn FnMut() -> Result<()> + Send>;

/// A device that does something else while it writes.
struct Probe {
    memory: MemDevice,
    meanwhile: Mutex<Option<Meanwhile>>,
}

impl BlockDevice for Probe {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }
    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.memory.read(reads)
    }
    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        if let Some(meanwhile) = &mut *self.meanwhile.lock().unwrap() {
            meanwhile()?;
        }
        self.memory.write(writes)
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _start: BlockNo, _count: u64) -> Result<()> {
        Ok(())
    }
}

struct World {
    device: Arc<Probe>,
    clock: Arc<ManualClock>,
    cache: Arc<Cache>,
}

impl World {
    fn new() -> Self {
        let device = Arc::new(Probe { memory: MemDevice::new(BLOCK, 200), meanwhile: Mutex::new(None) });
        let clock = Arc::new(ManualClock::new());
        // Every change is a patch of its own.
        let optimizations =
            Optimizations { hard_patches: false, overlap_merging: false, ..Optimizations::ALL };
        let options = CacheOptions { optimizations, ..CacheOptions::default() };
        let cache = Cache::new(Arc::clone(&device) as _, options, Arc::clone(&clock) as _);
        Self { device, clock, cache }
    }

    /// The same with a journal from block 100 on.
    fn journaled(mode: JournalMode) -> Self {
        let world = Self::new();
        let mut block = [0; 1024];
        Superblock::new(BLOCK, 60, 1, [9; 16]).encode_into(&mut block[..SUPERBLOCK_SIZE]);
        let write = BlockWrite { block: BlockNo(100), kind: BlockKind::JournalSuperblock, data: &block };
        world.device.memory.write(&[write]).unwrap();
        let area = Area::of_file([(BlockNo(100), 60)]).unwrap();
        let config = JournalConfig { mode, area, commit_interval: Duration::from_secs(5) };
        world.cache.start_journal(config).unwrap();
        world
    }

    fn change(&self, no: u64, offset: usize, befores: &[PatchId]) -> PatchId {
        self.change_of(no, DATA, offset, befores)
    }

    fn change_of(&self, no: u64, kind: BlockKind, offset: usize, befores: &[PatchId]) -> PatchId {
        let block = self.cache.read(BlockNo(no), kind).unwrap();
        self.cache.lock().bytes(&block, offset, &[7], befores)
    }

    /// Does something while the next epochs are written.
    fn meanwhile(&self, work: impl FnMut() -> Result<()> + Send + 'static) {
        *self.device.meanwhile.lock().unwrap() = Some(Box::new(work));
    }

    /// What is seen in the middle of the next epoch.
    fn seen_in_flight(&self) -> View {
        let seen = Arc::new(Mutex::new(None));
        let (cache, put) = (Arc::downgrade(&self.cache), Arc::clone(&seen));
        self.meanwhile(move || {
            *put.lock().unwrap() = cache.upgrade().map(|cache| cache.view(100));
            Ok(())
        });
        assert!(self.cache.step().unwrap() > 0);
        *self.device.meanwhile.lock().unwrap() = None;
        let seen = seen.lock().unwrap().take();
        seen.unwrap()
    }
}

fn block(view: &View, no: u64) -> &BlockView {
    view.blocks.iter().find(|block| block.no == BlockNo(no)).unwrap_or_else(|| panic!("{no} is in {view:?}"))
}

#[test]
fn what_is_ready_needs_no_cause() {
    let world = World::new();
    let patch = world.change(5, 0, &[]);
    world.clock.advance(Duration::from_secs(3));
    let held = world.cache.read(BlockNo(5), DATA).unwrap();
    let view = world.cache.view(10);
    let BlockView { ready, why, age, is_dirty, is_in_flight, is_pinned, .. } = block(&view, 5);
    assert_eq!((*ready, why, *age), (Ready::Whole, &None, Duration::from_secs(3)));
    assert!(*is_dirty && !is_in_flight && *is_pinned);
    let shown = &block(&view, 5).patches[0];
    assert_eq!((shown.id, shown.state, shown.role), (patch, PatchState::Uncommitted, PatchRole::Soft));
    assert_eq!((shown.bytes, shown.undo_bytes), (Some((0, 1)), 1));
    assert!(view.epoch.is_none() && view.left_out.is_nothing() && view.failure.is_none());
    drop(held);
    assert!(!block(&world.cache.view(10), 5).is_pinned);
    world.cache.sync_all().unwrap();
    assert!(world.cache.view(10).blocks.is_empty());
}

#[test]
fn a_block_waits_for_a_patch_of_another_one() {
    let world = World::new();
    let first = world.change(1, 0, &[]);
    let second = world.change(2, 0, &[first]);
    let third = world.change(3, 0, &[second]);
    world.change(3, 8, &[]);
    let why = |patch, before, no, standing| {
        let block = BlockNo(no);
        Some(Cause::Patch { patch, before, block, kind: DATA, standing, group: None, others: 0 })
    };
    let view = world.cache.view(10);
    assert_eq!(block(&view, 2).why, why(second, first, 1, Standing::Ready));
    assert_eq!(block(&view, 2).ready, Ready::No);
    assert_eq!(block(&view, 3).why, why(third, second, 2, Standing::Waits));
    assert_eq!(block(&view, 3).ready, Ready::Partly, "its other patch waits for nothing");
    let edges: Vec<(PatchId, PatchId)> = view.edges.iter().map(|edge| (edge.after, edge.before)).collect();
    assert!(edges.contains(&(second, first)) && edges.contains(&(third, second)) && edges.len() == 2);
    let many = world.change(4, 0, &[first, second, third]);
    let cause = block(&world.cache.view(10), 4).why.clone();
    assert!(
        matches!(cause, Some(Cause::Patch { patch, before, others: 2, .. }) if patch == many && before == third)
    );
}

#[test]
fn a_block_in_flight_says_so_and_others_wait_for_it() {
    let world = World::new();
    let first = world.change(1, 0, &[]);
    let second = world.change(2, 0, &[first]);
    let seen = world.seen_in_flight();
    let epoch = seen.epoch.as_ref().unwrap();
    assert_eq!((epoch.blocks, seen.totals.in_flight, seen.totals.dirty), (1, 1, 1));
    let flying = block(&seen, 1);
    assert_eq!((&flying.why, flying.ready, flying.is_in_flight), (&Some(Cause::InFlight), Ready::No, true));
    assert_eq!(flying.patches[0].state, PatchState::InFlight);
    let cause = block(&seen, 2).why.clone();
    let waits = |cause| match cause {
        Some(Cause::Patch { patch, before, standing, .. }) => (patch, before, standing),
        other => panic!("{other:?}"),
    };
    assert_eq!(waits(cause), (second, first, Standing::InFlight));
    // What is changed while its block is written waits for that, and so does who waits for it.
    let cache = Arc::downgrade(&world.cache);
    let seen = Arc::new(Mutex::new(None));
    let put = Arc::clone(&seen);
    let again = world.change(1, 0, &[]);
    world.meanwhile(move || {
        let Some(cache) = cache.upgrade() else { return Ok(()) };
        let [one, three] = [1, 3].map(|no| cache.read(BlockNo(no), DATA).unwrap());
        let mut tx = cache.lock();
        let later = tx.bytes(&one, 1, &[8], &[]);
        let after = tx.bytes(&three, 0, &[8], &[later]);
        drop(tx);
        *put.lock().unwrap() = Some((cache.view(10), later, after));
        Ok(())
    });
    world.cache.step().unwrap();
    let (view, later, after) = seen.lock().unwrap().take().unwrap();
    assert_eq!(block(&view, 1).patches.iter().map(|patch| patch.id).collect::<Vec<_>>(), [again, later]);
    assert!(block(&view, 1).is_dirty && block(&view, 1).is_in_flight);
    assert_eq!(waits(block(&view, 3).why.clone()), (after, later, Standing::Behind));
}

#[test]
fn an_operation_holds_what_is_not_complete() {
    let world = World::new();
    let held = world.cache.lock().hold(&[]);
    let patch = world.change(1, 0, &[held]);
    let view = world.cache.view(10);
    assert_eq!(block(&view, 1).why, Some(Cause::Held { patch, held, group: None }));
    assert_eq!((view.empties[0].id, view.empties[0].role), (held, PatchRole::Held));
    world.cache.lock().release(held);
    assert_eq!(block(&world.cache.view(10), 1).why, None);
}

#[test]
fn a_patchgroup_holds_a_block_back() {
    let world = World::new();
    let [before, after] = [0; 2].map(|_| world.cache.group(GroupCall::Create).unwrap());
    let change_for = |group, no| {
        world.cache.group(GroupCall::Engage(group)).unwrap();
        let patch = {
            let _engaged = Engaged::enter(&[group]);
            world.change(no, 0, &[])
        };
        world.cache.group(GroupCall::Disengage(group)).unwrap();
        patch
    };
    let first = change_for(before, 1);
    world.cache.group(GroupCall::Depend { after, before }).unwrap();
    let second = change_for(after, 2);
    let view = world.cache.view(10);
    let cause = block(&view, 2).why.clone();
    let Some(Cause::Patch { patch, before: waited_for, group, standing, .. }) = cause else {
        panic!("{cause:?}")
    };
    assert_eq!((patch, waited_for, standing), (second, first, Standing::Ready));
    assert_eq!(group, Some(after), "its own group asked for the order");
    let states: Vec<_> = view.groups.iter().map(|group| (group.id, group.state, group.is_waiting)).collect();
    assert_eq!(states, [(before, GroupState::Sealed, false), (after, GroupState::Idle, true)]);
    assert!(view.groups.iter().all(|group| !group.is_stable));
    world.cache.sync_all().unwrap();
    assert!(world.cache.view(10).groups.iter().all(|group| group.is_stable && !group.is_waiting));
    assert_eq!(world.cache.view(0).left_out.groups, 2);
}

#[test]
fn a_transaction_is_not_closed() {
    let world = World::journaled(JournalMode::Full);
    let handle = world.cache.begin(0, 4).unwrap();
    let patch = world.change_of(5, BlockKind::Inode, 0, &[]);
    let view = world.cache.view(10);
    let running = view.journals[0].running.clone().unwrap();
    assert_eq!((running.blocks, running.operations, running.is_closing), (1, 1, false));
    let sequence = running.sequence;
    let cause = Cause::Transaction { patch, volume: 0, sequence, operations: 1, is_closing: false };
    assert_eq!(block(&view, 5).why, Some(cause));
    assert!(block(&view, 5).patches[0].is_home);
    drop(handle);
    assert!(world.cache.close_transaction().unwrap());
    let view = world.cache.view(100);
    assert!(view.journals[0].running.is_none());
    let closed = view.journals[0].closed[0].clone();
    assert_eq!((closed.sequence, closed.blocks, closed.is_stable), (sequence, 1, false));
    let cause = block(&view, 5).why.clone();
    let Some(Cause::Patch { kind, standing, .. }) = cause else { panic!("{cause:?}") };
    assert_eq!((kind, standing), (BlockKind::JournalCommit, Standing::Waits), "the commit record is missing");
    world.cache.sync_all().unwrap();
    let view = world.cache.view(100);
    assert!(view.journals[0].closed[0].is_stable);
    assert_eq!(block(&view, 5).why, None, "it may go home");
}

#[test]
fn a_chain_that_is_too_long_is_called_one() {
    let world = World::new();
    let first = world.change(1, 0, &[]);
    let last = (0..100).fold(first, |last, _| world.cache.lock().empty(&[last]));
    let patch = world.change(2, 0, &[last]);
    let view = world.cache.view(1000);
    let cause = block(&view, 2).why.clone();
    let Some(Cause::Chain { patch: said, empty }) = cause else { panic!("{cause:?}") };
    assert_eq!(said, patch);
    assert!(view.empties.iter().any(|shown| shown.id == empty));
}

#[test]
fn a_small_view_shows_what_has_waited_longest_and_says_what_it_lacks() {
    let world = World::new();
    for no in 0..20 {
        world.clock.advance(Duration::from_secs(1));
        world.change(40 - no, 0, &[]);
    }
    // The youngest one is listed in its place.
    world.cache.step_blocks(&mut |no| no == BlockNo(40)).unwrap();
    let view = world.cache.view(3);
    let shown: Vec<u64> = view.blocks.iter().map(|block| block.no.get()).collect();
    assert_eq!(shown, [39, 38, 37]);
    assert_eq!((view.left_out.blocks, view.left_out.patches, view.totals.dirty), (16, 16, 19));
    for at in 0..5 {
        world.change(39, at, &[]);
    }
    let view = world.cache.view(3);
    assert_eq!((view.blocks[0].patches.len(), view.blocks[0].patches_left_out), (3, 3));
    assert_eq!(view.left_out.patches, 21);
}

/// Hears, and looks at the cache meanwhile, which it could not under the lock.
struct Ear {
    heard: Arc<Mutex<(Vec<Event>, Vec<u64>)>>,
    cache: Weak<Cache>,
}

impl Observer for Ear {
    fn observe(&mut self, events: &[Event], dropped: u64) {
        if let Some(cache) = self.cache.upgrade() {
            assert!(cache.view(10).left_out.groups == 0);
            assert!(cache.deliver(), "asked again it does nothing");
        }
        let mut heard = self.heard.lock().unwrap();
        heard.0.extend_from_slice(events);
        heard.1.push(dropped);
    }
}

type Heard = Arc<Mutex<(Vec<Event>, Vec<u64>)>>;

fn listen(cache: &Arc<Cache>, capacity: usize) -> Heard {
    let heard = Heard::default();
    let ear = Ear { heard: Arc::clone(&heard), cache: Arc::downgrade(cache) };
    cache.set_observer(Box::new(ear), capacity).unwrap();
    heard
}

fn what(heard: &Heard) -> Vec<What> {
    heard.lock().unwrap().0.drain(..).map(|event| event.what).collect()
}

#[test]
fn an_observer_hears_of_all_in_order() {
    let world = World::new();
    let early = world.change(9, 0, &[]);
    assert!(!world.cache.deliver(), "nobody looks");
    let heard = listen(&world.cache, 100);
    let first = world.change(1, 0, &[early]);
    let second = world.change(1, 8, &[]);
    world.clock.advance(Duration::from_secs(2));
    let clock = Arc::clone(&world.clock);
    world.meanwhile(move || {
        clock.advance(Duration::from_secs(1));
        Ok(())
    });
    world.cache.step().unwrap();
    assert!(heard.lock().unwrap().0.is_empty(), "nobody is told under the lock");
    assert!(world.cache.deliver());
    let at: Vec<Duration> = heard.lock().unwrap().0.iter().map(|event| event.at).collect();
    assert_eq!(at.iter().map(Duration::as_secs).collect::<Vec<_>>(), [0, 0, 0, 2, 2, 2, 2, 3, 3, 3]);
    let made = |patch| What::Made { patch, block: BlockNo(1), kind: DATA, role: PatchRole::Soft };
    let expected = [
        made(first),
        What::Waits { patch: first, before: early },
        made(second),
        What::Began { epoch: 1, blocks: 2, dirty: 2, waiters: 0 },
        What::Launched { block: BlockNo(1), kind: DATA, patches: 1, undone: 1 },
        What::Undone { patch: first },
        What::Launched { block: BlockNo(9), kind: DATA, patches: 1, undone: 0 },
        What::Ended { epoch: 1, failed: false },
        What::Committed { patch: second },
        What::Committed { patch: early },
    ];
    assert_eq!(what(&heard), expected);
    assert!(
        world
            .cache
            .set_observer(Box::new(Ear { heard, cache: Weak::new() }), 1)
            .is_err_and(|error| matches!(error, Error::Errno(Errno::BUSY)))
    );
}

#[test]
fn joins_and_failures_are_heard_of() {
    let world = World::new();
    let options = CacheOptions::default();
    let cache = Cache::new(Arc::clone(&world.device) as _, options, Arc::clone(&world.clock) as _);
    let heard = listen(&cache, 100);
    let one = cache.read(BlockNo(1), DATA).unwrap();
    let patch = cache.lock().bytes(&one, 0, &[1], &[]);
    assert_eq!(cache.lock().bytes(&one, 5, &[1], &[]), patch);
    world.meanwhile(|| Err(Error::io(IoOp::Write, BlockNo(1), std::io::Error::other("injected"))));
    cache.step().unwrap_err();
    let view = cache.view(10);
    assert!(view.failure.is_some() && block(&view, 1).is_in_flight && view.epoch.is_some(), "it stays so");
    cache.deliver();
    assert_eq!(
        what(&heard),
        [
            What::Made { patch, block: BlockNo(1), kind: DATA, role: PatchRole::Hard },
            What::Joined { patch },
            What::Began { epoch: 1, blocks: 1, dirty: 1, waiters: 0 },
            What::Launched { block: BlockNo(1), kind: DATA, patches: 1, undone: 0 },
            What::Ended { epoch: 1, failed: true },
            What::Poisoned,
        ]
    );
}

#[test]
fn what_found_no_room_is_counted() {
    let world = World::new();
    let heard = listen(&world.cache, 4);
    for at in 0..10 {
        world.change(1, at, &[]);
    }
    world.cache.deliver();
    world.change(2, 0, &[]);
    world.cache.deliver();
    world.cache.deliver();
    let (events, dropped) = std::mem::take(&mut *heard.lock().unwrap());
    assert_eq!((events.len(), dropped), (5, vec![6, 0]), "the first four, a gap of six, and one");
    world.change(3, 0, &[]);
    assert!(world.cache.take_observer().is_some());
    assert_eq!(heard.lock().unwrap().0.len(), 1, "the rest is told at the end");
    world.change(4, 0, &[]);
    assert!(!world.cache.deliver() && world.cache.take_observer().is_none());
    assert_eq!(heard.lock().unwrap().0.len(), 1, "nobody looks any more");
}
