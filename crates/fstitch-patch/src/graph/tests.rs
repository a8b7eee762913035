//! The graph beside a naive model: a list of changes with dependencies, and replay.
//!
//! What it prevents: an optimisation that writes a change before what it depends on, loses one, undoes too much
//! or too little, or leaves something that can never be written.

mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::{BlockBuf, BlockKind, BlockNo, Clock, Le, ManualClock, Seed};
use proptest::prelude::*;

use super::create::Contents;
use super::patch::{Change, Px, Site, Sx, Undo};
use super::{Graph, Readiness, at};
use crate::{Optimizations, PatchId, PatchState};

const BLOCK_SIZE: usize = 512;
const BLOCKS: u64 = 5;

/// One change as the model keeps it.
struct Logical {
    block: usize,
    change: Change,
    bytes: Vec<u8>,
    befores: Vec<usize>,
    id: PatchId,
    dropped: bool,
    /// It left its block, but whoever waits for it waits for what it waited for.
    hollow: bool,
}

/// A block of the whole device.
fn site(slots: &[Sx], block: usize) -> Site {
    Site { volume: 0, slot: slots[block], no: BlockNo(u64::try_from(block).unwrap()) }
}

/// The graph, the model and the medium.
struct World {
    graph: Graph,
    clock: Arc<ManualClock>,
    slots: Vec<Sx>,
    changes: Vec<Logical>,
    medium: Vec<Vec<u8>>,
    initial: Vec<Vec<u8>>,
    in_flight: BTreeMap<usize, super::Frozen>,
    /// Held empty patches.
    held: Vec<PatchId>,
    /// What stands for some changes together, as fsync keeps them, and which they are.
    gathered: (PatchId, Vec<usize>),
    /// For the canary: the graph is not told of the dependencies.
    forgets: bool,
    /// What somebody knows who hears of events only.
    replay: watched::Replay,
}

impl World {
    fn new(optimizations: Optimizations) -> Self {
        let clock = Arc::new(ManualClock::new());
        let mut graph = Graph::new(optimizations, Arc::clone(&clock) as Arc<dyn Clock>);
        // Soon there are no marks left, and all are wiped.
        graph.mark = u32::MAX - 20;
        graph.watch(Some(Box::new(crate::observer::Ring::new(1 << 16))));
        let initial: Vec<Vec<u8>> = (0..BLOCKS).map(|n| vec![u8::try_from(n).unwrap(); BLOCK_SIZE]).collect();
        let slots = (0..BLOCKS)
            .map(|n| {
                let data = Arc::new(BlockBuf::copy_of(&initial[usize::try_from(n).unwrap()]));
                graph.add_slot(BlockNo(n), BlockKind::Data, Some(data))
            })
            .collect();
        let medium = initial.clone();
        Self {
            graph,
            clock,
            slots,
            changes: vec![],
            medium,
            initial,
            in_flight: BTreeMap::new(),
            held: vec![],
            gathered: (PatchId::NONE, vec![]),
            forgets: false,
            replay: watched::Replay::default(),
        }
    }

    /// Creates a random change with random befores among the earlier ones.
    fn create(&mut self, seed: &mut Seed) {
        let block = pick(seed, self.slots.len());
        let (change, bytes) = random_change(seed);
        self.create_this(seed, block, (change, bytes));
    }

    /// Creates a change with random befores.
    fn create_this(&mut self, seed: &mut Seed, block: usize, (change, bytes): (Change, Vec<u8>)) {
        let n = self.changes.len();
        let count = if n == 0 { 0 } else { pick(seed, 4) };
        let mut befores: BTreeSet<usize> = BTreeSet::new();
        for _ in 0..count {
            // Mostly recent ones: those are uncommitted.
            befores.insert(n - 1 - pick(seed, n.min(12)));
        }
        let mut ids: Vec<PatchId> = befores.iter().map(|&at| self.changes[at].id).collect();
        if self.forgets {
            ids.clear();
        }
        if seed.chance(1, 8) {
            ids = vec![self.graph.empty(0, &ids)];
        }
        if let Some(&held) = self.held.last().filter(|_| seed.chance(1, 4)) {
            ids.push(held);
        }
        let contents = match change {
            Change::Bits { .. } => Contents::Flip,
            _ if bytes.len() == BLOCK_SIZE => Contents::Block(Arc::new(BlockBuf::copy_of(&bytes))),
            _ => Contents::Bytes(&bytes),
        };
        let id = self.graph.change(site(&self.slots, block), change, &contents, &ids);
        self.changes.push(Logical {
            block,
            change,
            bytes,
            befores: befores.into_iter().collect(),
            id,
            dropped: false,
            hollow: false,
        });
    }

    /// Adds the newest change to what is gathered, now and then anew.
    fn gather(&mut self, seed: &mut Seed) {
        let Some(newest) = self.changes.len().checked_sub(1) else { return };
        if seed.chance(1, 8) {
            self.gathered = (PatchId::NONE, vec![]);
        }
        self.gathered.0 = self.graph.gather(0, self.gathered.0, self.changes[newest].id);
        self.gathered.1.push(newest);
    }

    /// Puts back what a patch has replaced, and takes both out of the block if they are one patch; or tries the second alone.
    fn end_again(&mut self, seed: &mut Seed) {
        let soft = |(px, patch): (Px, &super::patch::Patch)| match (patch.undo(), patch.change()) {
            (Undo::Bytes(old), change @ Change::Bytes { .. }) => Some((px, patch.slot, change, old.to_vec())),
            _ => None,
        };
        let all: Vec<_> = self.graph.arena.iter().filter_map(soft).collect();
        if all.is_empty() {
            return;
        }
        let (px, sx, change, old) = all[pick(seed, all.len())].clone();
        let block = self.slots.iter().position(|&slot| slot == sx).expect("a block of the world");
        let last = if seed.chance(2, 3) {
            self.create_this(seed, block, (change, old));
            self.changes.last().expect("just made").id
        } else {
            self.graph.arena.id(px)
        };
        if self.graph.arena.resolve(last) != Some(px) {
            return;
        }
        let same = |logical: &Logical| self.graph.arena.resolve(logical.id) == Some(px);
        let one: Vec<usize> = (0..self.changes.len()).filter(|&at| same(&self.changes[at])).collect();
        if !self.graph.hollow(last) {
            return;
        }
        for at in one {
            self.changes[at].hollow = true;
        }
    }

    fn state(&self, at: usize) -> PatchState {
        self.graph.state(self.changes[at].id)
    }

    /// The block with the changes for which `included` holds, in creation order.
    fn replay(&self, block: usize, included: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut bytes = self.initial[block].clone();
        for (at_change, logical) in self.changes.iter().enumerate() {
            let counts = !logical.dropped && !logical.hollow;
            if logical.block == block && counts && included(at_change) {
                replay_one(&mut bytes, logical);
            }
        }
        bytes
    }

    fn launch(&mut self, block: usize) {
        if self.graph.readiness(self.slots[block]) == Readiness::None {
            return;
        }
        let frozen = self.graph.launch(self.slots[block]);
        let expected = self.replay(block, |at| self.state(at) != PatchState::Uncommitted);
        assert_eq!(frozen.image[..], expected[..], "undo is exact (invariant 7)");
        assert!(self.in_flight.insert(block, frozen).is_none(), "one version in flight (invariant 2)");
    }

    /// Launches contents as they are written early.
    fn launch_ripe(&mut self, seed: &mut Seed) {
        let horizon = self.clock.elapsed().saturating_sub(Duration::from_secs(seed.below(4)));
        for sx in self.graph.take_ripe_contents(horizon, (0, 3)) {
            assert!(self.graph.slot(sx).dirtied_at <= horizon, "what is younger stays");
            assert_eq!(self.graph.readiness(sx), Readiness::All, "what is written early is written whole");
            self.launch(self.slots.iter().position(|&slot| slot == sx).expect("a block of the world"));
        }
    }

    /// Frees a block: its unflown changes vanish, and what waited for them waits for what they waited for and for
    /// the changes that cut the block off.
    fn drop_block(&mut self, seed: &mut Seed) {
        let block = pick(seed, self.slots.len());
        let n = self.changes.len();
        let cut_off: Vec<usize> = (0..pick(seed, 3).min(n))
            .map(|_| n - 1 - pick(seed, n.min(12)))
            .filter(|&at| self.changes[at].block != block)
            .collect();
        let gone: Vec<usize> = (0..n)
            .filter(|&at| self.changes[at].block == block && self.state(at) == PatchState::Uncommitted)
            .filter(|&at| !self.changes[at].dropped && !self.changes[at].hollow)
            .collect();
        let ids: Vec<PatchId> = cut_off.iter().map(|&at| self.changes[at].id).collect();
        let slot = self.slots[block];
        let no = self.graph.slots[super::at(slot)].no;
        if !self.graph.drop_changes((0, no), slot, &ids) {
            return;
        }
        // A dropped patch that stood for all that is gathered stands for nothing any more.
        if self.gathered.1.iter().any(|at| gone.contains(at)) {
            self.gathered = (PatchId::NONE, vec![]);
        }
        for &at_gone in gone.iter().rev() {
            let inherited = self.changes[at_gone].befores.clone();
            self.changes[at_gone].dropped = true;
            for logical in &mut self.changes[at_gone + 1..] {
                if logical.befores.contains(&at_gone) {
                    logical.befores.extend(&inherited);
                    let outside = logical.block != block;
                    logical.befores.extend(cut_off.iter().filter(|_| outside));
                }
            }
        }
        let stable = BlockBuf::copy_of(&self.replay(block, |at| self.state(at) == PatchState::Committed));
        self.graph.slot_mut(self.slots[block]).data = Some(Arc::new(stable));
    }

    /// Memory is short: clean blocks are forgotten, and read again into whatever places are free.
    fn forget_and_load(&mut self) {
        let is_clean = |&block: &usize| self.graph.slot(self.slots[block]).is_clean();
        let clean: Vec<usize> = (0..self.slots.len()).filter(is_clean).collect();
        for &block in &clean {
            self.graph.remove_slot(self.slots[block]);
        }
        for &block in &clean {
            let data = Some(Arc::new(BlockBuf::copy_of(&self.medium[block])));
            let no = BlockNo(u64::try_from(block).unwrap());
            self.slots[block] = self.graph.add_slot(no, BlockKind::Data, data);
        }
    }

    fn land(&mut self, block: usize) {
        let Some(frozen) = self.in_flight.remove(&block) else { return };
        self.medium[block] = frozen.image.to_vec();
        self.graph.commit(frozen.slot);
        self.check_medium();
    }

    /// Disk safety (invariant 1), with overlaps on a block counted as dependencies.
    fn check_medium(&self) {
        let committed = |at: usize| self.state(at) == PatchState::Committed;
        for (at_change, logical) in self.changes.iter().enumerate() {
            if logical.dropped || !committed(at_change) {
                continue;
            }
            for &before in &logical.befores {
                assert!(committed(before), "change {at_change} is stable before its before {before}");
            }
            for (earlier, other) in self.changes[..at_change].iter().enumerate() {
                let is_there = |one: &Logical| !one.dropped && !one.hollow;
                let both = is_there(other) && is_there(logical) && other.block == logical.block;
                let overlaps = both && other.change.overlaps(logical.change);
                assert!(
                    !overlaps || committed(earlier),
                    "change {at_change} is stable before {earlier} below it"
                );
            }
        }
        if self.graph.state(self.gathered.0) == PatchState::Committed {
            for &at in &self.gathered.1 {
                assert!(committed(at), "the gather is stable before its member {at}");
            }
        }
        for block in 0..self.slots.len() {
            assert_eq!(self.medium[block], self.replay(block, committed), "the medium holds what committed");
        }
    }

    fn check_cache(&self) {
        for (block, &sx) in self.slots.iter().enumerate() {
            let data = self.graph.slot(sx).loaded();
            assert_eq!(data[..], self.replay(block, |_| true)[..], "the cache is the newest (invariant 4)");
        }
        self.graph.check_invariants();
    }

    /// The walk from both ends finds what one from the top finds.
    fn check_walks(&mut self, seed: &mut Seed) {
        let waiting: Vec<Px> =
            self.graph.arena.iter().filter(|(_, patch)| !patch.in_flight).map(|(px, _)| px).collect();
        if waiting.is_empty() {
            return;
        }
        let (start, target) = (waiting[pick(seed, waiting.len())], waiting[pick(seed, waiting.len())]);
        let (mut below, mut todo) = (BTreeSet::new(), vec![start]);
        while let Some(px) = todo.pop() {
            if below.insert(px) && !self.graph.patch(px).in_flight {
                todo.extend(self.graph.live_befores(px).chain(self.graph.implicit_before(px)));
            }
        }
        assert_eq!(self.graph.reaches(&[start], target), below.contains(&target), "{start} to {target}");
    }

    /// Liveness: whatever is left can be written, and each write-out commits something.
    fn drain(&mut self) {
        for held in std::mem::take(&mut self.held) {
            self.graph.release(held);
        }
        for block in 0..self.slots.len() {
            self.land(block);
        }
        let mut rounds = 0;
        while !self.graph.dirty().is_empty() {
            let before = self.graph.arena.live();
            for block in 0..self.slots.len() {
                self.launch(block);
            }
            assert!(!self.in_flight.is_empty(), "something can always be written (invariant 5)");
            for block in 0..self.slots.len() {
                self.land(block);
            }
            assert!(self.graph.arena.live() < before, "each epoch commits something");
            rounds += 1;
            assert!(rounds <= self.changes.len() + 1, "rewrites are bounded");
        }
        assert!((0..self.changes.len()).all(|at| self.state(at) == PatchState::Committed));
        assert_eq!(self.graph.arena.live(), 0, "nothing is left behind");
        self.check_replay();
        self.check_medium();
    }
}

fn replay_one(bytes: &mut [u8], logical: &Logical) {
    match logical.change {
        Change::Bytes { offset, .. } => {
            bytes[at(offset)..at(offset) + logical.bytes.len()].copy_from_slice(&logical.bytes);
        }
        Change::Bits { word, mask } => {
            let now = Le::u64(bytes, at(word) * 8);
            Le::put_u64(bytes, at(word) * 8, now ^ mask);
        }
        Change::Empty => {}
    }
}

fn pick(seed: &mut Seed, bound: usize) -> usize {
    usize::try_from(seed.below(u64::try_from(bound).unwrap())).unwrap()
}

/// Small ranges near each other, so that they overlap often; now and then bits or the whole block.
fn random_change(seed: &mut Seed) -> (Change, Vec<u8>) {
    let fill = u8::try_from(seed.below(256)).unwrap();
    match seed.below(10) {
        0 => (Change::Bytes { offset: 0, len: 512 }, vec![fill; BLOCK_SIZE]),
        1..=3 => {
            let mask = (seed.next_u64() & seed.next_u64() & seed.next_u64()) | 1;
            (Change::Bits { word: u32::try_from(seed.below(3)).unwrap(), mask }, vec![])
        }
        _ => {
            let offset = u32::try_from(seed.below(40)).unwrap();
            let len = u32::try_from(1 + seed.below(12)).unwrap();
            (Change::Bytes { offset, len }, vec![fill; at(len)])
        }
    }
}

fn run(seed: u64, combination: u8, steps: usize, forgets: bool) {
    let mut seed = Seed::new(seed);
    let mut world = World::new(Optimizations::combination(combination));
    world.forgets = forgets;
    if seed.chance(1, 2) {
        world.graph.join_age = Duration::from_secs(5);
    }
    // In half of the runs nearly everything happens within one tick of the clock.
    let ticks = if seed.chance(1, 2) { 1 } else { 8 };
    for step in 1..=steps {
        if seed.chance(1, ticks) {
            world.clock.advance(Duration::from_secs(seed.below(3)));
        }
        world.graph.new_moment();
        match seed.below(14) {
            13 => world.forget_and_load(),
            12 => world.end_again(&mut seed),
            0..=6 => {
                world.create(&mut seed);
                if seed.chance(1, 2) {
                    world.gather(&mut seed);
                }
            }
            7 | 8 => {
                let block = pick(&mut seed, world.slots.len());
                world.launch(block);
            }
            9 if seed.chance(1, 2) => world.launch_ripe(&mut seed),
            9 => {
                let block = pick(&mut seed, world.slots.len());
                world.land(block);
            }
            10 if seed.chance(1, 2) => world.drop_block(&mut seed),
            10 if world.held.len() < 2 => {
                let held = world.graph.hold(0, &[]);
                world.held.push(held);
            }
            _ => {
                if let Some(held) = world.held.pop() {
                    world.graph.release(held);
                }
            }
        }
        world.check_cache();
        world.check_walks(&mut seed);
        world.check_replay();
        if step % 4 == 0 {
            world.check_view(step % 7);
        }
    }
    world.drain();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, max_shrink_iters: 10_000, ..ProptestConfig::default() })]

    /// Random graphs and write-out orders for every combination of the optimisations.
    #[test]
    fn random_graphs_keep_the_invariants(seed: u64, combination in 0_u8..16, steps in 1_usize..80) {
        run(seed, combination, steps, false);
    }
}

/// A walk that met its own mark where it has not been would take a cycle for none.
#[test]
fn marks_are_wiped_before_they_are_given_again() {
    let mut world = World::new(Optimizations::ALL);
    let mut seed = Seed::new(1);
    (0..40).for_each(|_| world.create(&mut seed));
    for last in [u32::MAX - 4, u32::MAX - 3, u32::MAX - 2, u32::MAX - 1, u32::MAX] {
        // Walks came here when marks were small.
        let all: Vec<Px> = world.graph.arena.iter().map(|(px, _)| px).collect();
        all.into_iter().for_each(|px| world.graph.patch_mut(px).mark = 1 + px % 8);
        world.graph.mark = last;
        for _ in 0..4 {
            let marks = world.graph.next_marks();
            let has_one = world.graph.arena.iter().any(|(_, patch)| marks.contains(&patch.mark));
            assert!(marks[0] != marks[1] && !marks.contains(&0) && !has_one, "{marks:?} behind {last}");
        }
    }
}

/// The canary: a graph that is not told of dependencies must be found out.
#[test]
#[should_panic(expected = "is stable before its before")]
fn forgotten_dependencies_are_found() {
    for seed in 0..50 {
        run(seed, 15, 60, true);
    }
}
