//! Units of several streams against a model: each has the lists that it changes as they were when it first changed them.
//!
//! What it prevents: a unit that sees what is not its own, or does not see what is; an end that does half of it; a failure that leaves
//! half of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, Errno, MemDevice, Seed};
use fstitch_lld::{Aru, At, BlockId, Disk, EndError, FormatOptions, ListId, Options, Visibility};

/// Steps of a program, and after how many the power goes.
const STEPS: u64 = 600;
const CUT_EVERY: u64 = 29;
const BLOCK: usize = 512;

/// Lists, and what blocks have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    lists: BTreeMap<ListId, Vec<BlockId>>,
    contents: BTreeMap<BlockId, u8>,
}

#[derive(Clone, Debug)]
enum Op {
    NewList(ListId),
    DeleteList(ListId),
    /// Block, list, behind which.
    Insert(BlockId, ListId, Option<BlockId>),
    Delete(BlockId),
    Write(BlockId, u8),
}

impl Model {
    fn list_of(&self, block: BlockId) -> Option<ListId> {
        self.lists.iter().find(|(_, blocks)| blocks.contains(&block)).map(|(list, _)| *list)
    }

    /// Does it, or says that it cannot be done.
    fn perform(&mut self, op: &Op) -> Option<()> {
        match *op {
            Op::NewList(list) => drop(self.lists.insert(list, Vec::new())),
            Op::DeleteList(list) => {
                for block in self.lists.remove(&list)? {
                    self.contents.remove(&block);
                }
            }
            Op::Insert(block, list, after) => {
                let blocks = self.lists.get_mut(&list)?;
                let at = match after {
                    None => 0,
                    Some(after) => blocks.iter().position(|block| *block == after)? + 1,
                };
                blocks.insert(at, block);
                self.contents.insert(block, 0);
            }
            Op::Delete(block) => {
                let list = self.list_of(block)?;
                self.lists.get_mut(&list)?.retain(|other| *other != block);
                self.contents.remove(&block);
            }
            Op::Write(block, byte) => {
                self.list_of(block)?;
                self.contents.insert(block, byte);
            }
        }
        Some(())
    }
}

/// A unit, its own versions, and what it has done.
struct Stream<'a> {
    aru: Aru<'a>,
    /// Lists that it has changed, as it sees them; `None` if it or somebody else has deleted them.
    lists: BTreeMap<ListId, Option<Vec<BlockId>>>,
    contents: BTreeMap<BlockId, Option<u8>>,
    ops: Vec<Op>,
    /// Blocks that it has deleted, by themselves or with their lists: what it wrote to them goes nowhere.
    dropped: BTreeSet<BlockId>,
    /// In which lists blocks were when it wrote them.
    wrote: BTreeMap<BlockId, ListId>,
}

/// Somebody has deleted a list in the committed state.
fn list_is_gone(streams: &mut [Stream<'_>], list: ListId) {
    for stream in streams {
        if let Some(own) = stream.lists.get_mut(&list) {
            *own = None;
        }
    }
}

impl<'a> Stream<'a> {
    fn new(disk: &'a Disk) -> Self {
        let (lists, contents) = (BTreeMap::new(), BTreeMap::new());
        Self {
            aru: disk.begin(),
            lists,
            contents,
            ops: Vec::new(),
            dropped: BTreeSet::new(),
            wrote: BTreeMap::new(),
        }
    }

    fn list(&self, list: ListId, committed: &Model) -> Option<Vec<BlockId>> {
        match self.lists.get(&list) {
            Some(own) => own.clone(),
            None => committed.lists.get(&list).cloned(),
        }
    }

    /// A block that the unit sees in a list.
    fn pick(&self, committed: &Model, seed: &mut Seed) -> Option<(ListId, Option<BlockId>)> {
        let names: BTreeSet<ListId> = committed.lists.keys().chain(self.lists.keys()).copied().collect();
        let names: Vec<ListId> =
            names.into_iter().filter(|list| self.list(*list, committed).is_some()).collect();
        let list = *names.get(to_usize(seed.below(to_u64(names.len()).max(1))))?;
        let blocks = self.list(list, committed)?;
        let block = blocks.get(to_usize(seed.below(to_u64(blocks.len()).max(1)))).copied();
        Some((list, block))
    }

    fn step(&mut self, committed: &Model, seed: &mut Seed) {
        let Some((list, block)) = self.pick(committed, seed) else { return };
        let is_there = |stream: &Self, block: BlockId| match stream.contents.get(&block) {
            Some(own) => own.is_some(),
            None => committed.list_of(block).is_some(),
        };
        match (seed.below(12), block) {
            (0, _) => {
                let list = self.aru.new_list(false).unwrap();
                self.lists.insert(list, Some(Vec::new()));
                self.ops.push(Op::NewList(list));
            }
            (1, _) if seed.below(4) == 0 => {
                self.aru.delete_list(list).unwrap();
                for block in self.list(list, committed).unwrap() {
                    self.contents.insert(block, None);
                    self.dropped.insert(block);
                }
                // One that it wrote, and that somebody else has taken out of the list since, was in it for the unit.
                let wrote: Vec<BlockId> =
                    self.wrote.iter().filter(|(_, of)| **of == list).map(|(block, _)| *block).collect();
                for block in wrote {
                    self.contents.insert(block, None);
                    self.dropped.insert(block);
                }
                self.lists.insert(list, None);
                self.ops.push(Op::DeleteList(list));
            }
            (2..6, before) => {
                let before = before.filter(|_| seed.below(4) > 0);
                let done = self.aru.new_block(list, before.map_or(At::Start, At::After));
                if before.is_some_and(|before| !is_there(self, before)) {
                    assert_eq!(done.unwrap_err().errno(), Errno::NOENT);
                    return;
                }
                let block = done.unwrap();
                let mut blocks = self.list(list, committed).unwrap();
                let at = before.map_or(0, |before| blocks.iter().position(|b| *b == before).unwrap() + 1);
                blocks.insert(at, block);
                self.lists.insert(list, Some(blocks));
                self.contents.insert(block, Some(0));
                self.ops.push(Op::Insert(block, list, before));
            }
            (6..8, Some(block)) => {
                let done = self.aru.delete_block(block);
                if !is_there(self, block) {
                    assert_eq!(done.unwrap_err().errno(), Errno::NOENT);
                    return;
                }
                done.unwrap();
                let blocks = self.list(list, committed).unwrap();
                self.lists.insert(list, Some(blocks.into_iter().filter(|other| *other != block).collect()));
                self.contents.insert(block, None);
                self.dropped.insert(block);
                self.ops.push(Op::Delete(block));
            }
            (8..10, Some(block)) if is_there(self, block) => {
                let byte = seed.below(255).to_le_bytes()[0] + 1;
                self.aru.write(block, &[byte; BLOCK]).unwrap();
                self.contents.insert(block, Some(byte));
                self.wrote.insert(block, list);
                self.ops.push(Op::Write(block, byte));
            }
            _ => self.look(committed),
        }
    }

    /// All that it sees.
    fn look(&self, committed: &Model) {
        let names: BTreeSet<ListId> = committed.lists.keys().chain(self.lists.keys()).copied().collect();
        for list in names {
            let Some(expected) = self.list(list, committed) else {
                assert_eq!(self.aru.list_len(list).unwrap_err().errno(), Errno::NOENT);
                continue;
            };
            assert_eq!(self.aru.list_len(list).unwrap(), to_u64(expected.len()), "list {list}");
            let seen = (0..to_u64(expected.len())).map(|at| self.aru.block_at(list, at).unwrap().unwrap());
            assert_eq!(seen.collect::<Vec<_>>(), expected, "list {list}");
            for pair in expected.windows(2) {
                assert_eq!(self.aru.block_after(list, pair[0]).unwrap(), Some(pair[1]), "list {list}");
                assert_eq!(self.aru.block_before(list, pair[1]).unwrap(), Some(pair[0]), "list {list}");
            }
            if let (Some(first), Some(last)) = (expected.first(), expected.last()) {
                assert_eq!(self.aru.block_before(list, *first).unwrap(), None, "list {list}");
                assert_eq!(self.aru.block_after(list, *last).unwrap(), None, "list {list}");
            }
            for block in expected {
                let contents = match self.contents.get(&block) {
                    Some(own) => *own,
                    None => committed.contents.get(&block).copied(),
                };
                let mut bytes = [0xff; BLOCK];
                match (self.aru.read(block, &mut bytes), contents) {
                    (Ok(()), Some(byte)) => assert_eq!(bytes, [byte; BLOCK], "block {block}"),
                    (done, None) => assert_eq!(done.unwrap_err().errno(), Errno::NOENT, "block {block}"),
                    (Err(error), Some(_)) => panic!("block {block}: {error}"),
                }
            }
        }
    }
}

fn same(disk: &Disk, model: &Model, lists: ListId) -> bool {
    (1..lists).all(|list| {
        let Some(expected) = model.lists.get(&list) else { return disk.list_len(list).is_err() };
        let Ok(len) = disk.list_len(list) else { return false };
        let seen: Vec<BlockId> = (0..len).map(|at| disk.block_at(list, at).unwrap().unwrap()).collect();
        seen == *expected
            && seen.iter().all(|block| {
                let mut bytes = [0xff; BLOCK];
                disk.read(*block, &mut bytes).unwrap();
                bytes == [model.contents[block]; BLOCK]
            })
    })
}

fn options(visibility: Visibility) -> Options {
    Options { cache_size: 1 << 20, checkpoint_interval: 256 << 10, visibility, ..Options::default() }
}

/// Ends one of the units, or aborts it. Whether it was done, if it was to be.
fn end_one(
    streams: &mut Vec<Stream<'_>>,
    committed: &mut Model,
    seed: &mut Seed,
    (number, step): (u64, u64),
) -> Option<bool> {
    let at = to_usize(seed.below(to_u64(streams.len())));
    let Stream { aru, ops, dropped, .. } = streams.swap_remove(at);
    if seed.below(6) == 0 {
        aru.abort();
        return None;
    }
    let mut after = committed.clone();
    let done = ops.iter().try_for_each(|op| match op {
        Op::Write(block, _) if dropped.contains(block) => Some(()),
        op => after.perform(op),
    });
    match aru.end() {
        Ok(()) => {
            assert!(done.is_some(), "run {number}, step {step}: {ops:?}");
            for op in &ops {
                if let Op::DeleteList(list) = op {
                    list_is_gone(streams, *list);
                }
            }
            *committed = after;
            Some(true)
        }
        Err(EndError::Conflict(_)) => {
            assert!(done.is_none(), "run {number}, step {step}: {ops:?}");
            Some(false)
        }
        Err(EndError::Disk(error)) => panic!("run {number}, step {step}: {error}"),
    }
}

/// Several units at once, and operations outside of them; a failure every now and then.
fn random_run(number: u64) -> (u32, u32) {
    let mut seed = Seed::new(number);
    let device = Arc::new(MemDevice::from_image(512, vec![0; 8 << 20]));
    let format = FormatOptions { segment_size: 64 << 10, block_size: 512, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device) as Arc<dyn BlockDevice>, &format).unwrap();
    let (disk, _) =
        Disk::open(Arc::clone(&device) as Arc<dyn BlockDevice>, &options(Visibility::Own)).unwrap();
    let mut committed = Model::default();
    let mut since = vec![committed.clone()];
    let mut streams: Vec<Stream<'_>> = Vec::new();
    let mut lists = 1;
    let (mut ended, mut refused) = (0, 0);
    for step in 0..STEPS {
        if streams.len() < 4 && seed.below(3) == 0 {
            streams.push(Stream::new(&disk));
        }
        match seed.below(10) {
            0..6 if !streams.is_empty() => {
                let at = to_usize(seed.below(to_u64(streams.len())));
                streams[at].step(&committed, &mut seed);
            }
            6 if !streams.is_empty() && seed.below(2) == 0 => {
                match end_one(&mut streams, &mut committed, &mut seed, (number, step)) {
                    Some(true) => ended += 1,
                    Some(false) => refused += 1,
                    None => continue,
                }
            }
            _ => {
                let op = outside(&disk, &committed, &mut seed);
                if let Some(op) = op {
                    committed.perform(&op).unwrap();
                    if let Op::DeleteList(list) = op {
                        list_is_gone(&mut streams, list);
                    }
                }
            }
        }
        lists = lists.max(committed.lists.keys().next_back().map_or(1, |last| last + 1));
        since.push(committed.clone());
        if seed.below(40) == 0 {
            disk.flush().unwrap();
            since = vec![committed.clone()];
        }
        if step % CUT_EVERY == 0 {
            assert!(same(&disk, &committed, lists), "run {number}, step {step}");
            let cut: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, device.image()));
            let (found, _) = Disk::open(cut, &options(Visibility::Own)).unwrap();
            assert!(
                since.iter().any(|model| same(&found, model, lists)),
                "run {number}, step {step}: half of something"
            );
        }
    }
    assert!(disk.check(true, &mut |_| {}).unwrap().is_clean());
    (ended, refused)
}

fn outside(disk: &Disk, committed: &Model, seed: &mut Seed) -> Option<Op> {
    let names: Vec<ListId> = committed.lists.keys().copied().collect();
    let list = names.get(to_usize(seed.below(to_u64(names.len()).max(1)))).copied();
    let block = list.and_then(|list| {
        let blocks = &committed.lists[&list];
        blocks.get(to_usize(seed.below(to_u64(blocks.len()).max(1)))).copied()
    });
    Some(match (seed.below(10), list, block) {
        (0, ..) if names.len() < 5 => Op::NewList(disk.new_list(false).unwrap()),
        (1, Some(list), _) if seed.below(8) == 0 => {
            disk.delete_list(list).unwrap();
            Op::DeleteList(list)
        }
        (2..6, Some(list), before) => {
            Op::Insert(disk.new_block(list, before.map_or(At::Start, At::After)).unwrap(), list, before)
        }
        (6, _, Some(block)) => {
            disk.delete_block(block).unwrap();
            Op::Delete(block)
        }
        (7.., _, Some(block)) => {
            let byte = seed.below(255).to_le_bytes()[0] + 1;
            disk.write(block, &[byte; BLOCK]).unwrap();
            Op::Write(block, byte)
        }
        _ => return None,
    })
}

/// Those that are asked for by a variable, as first..end, or so many.
fn numbers(variable: &str, sample: u64) -> std::ops::Range<u64> {
    let Ok(given) = std::env::var(variable) else { return 0..sample };
    let (first, end) = given.split_once("..").expect("it is first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn units_see_their_own_versions_and_happen_as_a_whole() {
    let (mut ended, mut refused) = (0, 0);
    let numbers = numbers("FSTITCH_LLD_PROGRAMS", 40);
    for number in numbers.clone() {
        let (more_ended, more_refused) = random_run(number);
        ended += more_ended;
        refused += more_refused;
    }
    let programs = numbers.end - numbers.start;
    let (steps, cuts) = (programs * STEPS, programs * STEPS.div_ceil(CUT_EVERY));
    println!(
        "{programs} programs, {steps} operations, {cuts} cuts, {cuts} states, of which {cuts} were recovered and read"
    );
    assert!(
        u64::from(ended) > 5 * programs && 2 * u64::from(refused) > 3 * programs,
        "{ended} ended, {refused} refused"
    );
}

/// A disk that is read like that, and an ordered list on it with so many blocks.
fn with_list(visibility: Visibility, len: usize) -> (Disk, ListId, Vec<BlockId>) {
    let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::from_image(512, vec![0; 8 << 20]));
    let format = FormatOptions { segment_size: 64 << 10, block_size: 512, ..FormatOptions::default() };
    Disk::format(Arc::clone(&device), &format).unwrap();
    let (disk, _) = Disk::open(device, &options(visibility)).unwrap();
    let list = disk.new_list(false).unwrap();
    let mut blocks: Vec<BlockId> = (0..len).map(|_| disk.new_block(list, At::Start).unwrap()).collect();
    blocks.reverse();
    (disk, list, blocks)
}

/// The blocks of a list as a unit sees them.
fn seen(unit: &Aru<'_>, list: ListId) -> Vec<BlockId> {
    (0..unit.list_len(list).unwrap()).map(|at| unit.block_at(list, at).unwrap().unwrap()).collect()
}

#[test]
fn a_list_that_others_delete_takes_along_what_a_unit_has_put_into_it() {
    let (disk, list, _) = with_list(Visibility::Own, 2);
    let unit = disk.begin();
    let (written, made) =
        (unit.new_block(list, At::Start).unwrap(), unit.new_block(list, At::Start).unwrap());
    unit.write(written, &[7; BLOCK]).unwrap();
    disk.delete_list(list).unwrap();
    assert_eq!(unit.list_len(list).unwrap_err().errno(), Errno::NOENT);
    for block in [written, made] {
        assert_eq!(unit.write(block, &[8; BLOCK]).unwrap_err().errno(), Errno::NOENT, "block {block}");
        assert_eq!(unit.delete_block(block).unwrap_err().errno(), Errno::NOENT, "block {block}");
    }
    assert_eq!(unit.read(made, &mut [0; BLOCK]).unwrap_err().errno(), Errno::NOENT);
    assert!(matches!(unit.end(), Err(EndError::Conflict(_))));
    assert_eq!(disk.info().blocks, 0);
}

#[test]
fn a_unit_sees_its_list_although_others_fill_a_place_until_labels_move() {
    let (disk, list, blocks) = with_list(Visibility::Own, 3);
    let unit = disk.begin();
    let own = unit.new_block(list, At::After(blocks[1])).unwrap();
    let expected = [blocks[0], blocks[1], own, blocks[2]];
    // Each takes half of what is left there: labels have 64 bits, so that those of others have moved long before the end.
    let mut others = vec![blocks[0]];
    for _ in 0..200 {
        others.insert(1, disk.new_block(list, At::After(blocks[0])).unwrap());
        assert_eq!(seen(&unit, list), expected, "with {} of others", others.len() - 1);
    }
    for pair in expected.windows(2) {
        assert_eq!(unit.block_after(list, pair[0]).unwrap(), Some(pair[1]));
        assert_eq!(unit.block_before(list, pair[1]).unwrap(), Some(pair[0]));
    }
    unit.end().unwrap();
    others.extend(&expected[1..]);
    let committed = (0..disk.list_len(list).unwrap()).map(|at| disk.block_at(list, at).unwrap().unwrap());
    assert_eq!(committed.collect::<Vec<_>>(), others);
}

#[test]
fn the_latest_version_is_that_of_whoever_wrote_last() {
    let (disk, _, blocks) = with_list(Visibility::Latest, 1);
    disk.write(blocks[0], &[1; BLOCK]).unwrap();
    let units = [0; 3].map(|_| disk.begin());
    let mut bytes = [0xff; BLOCK];
    for (fill, writer) in (2..).zip([0, 1, 2, 0, 2, 1, 1, 0]) {
        units[writer].write(blocks[0], &[fill; BLOCK]).unwrap();
        disk.read(blocks[0], &mut bytes).unwrap();
        assert_eq!(bytes, [fill; BLOCK], "to the disk");
        for unit in &units {
            unit.read(blocks[0], &mut bytes).unwrap();
            assert_eq!(bytes, [fill; BLOCK], "to a unit");
        }
    }
    // Who has written last is gone: then whoever did before him.
    let [last, before, first] = units;
    last.abort();
    disk.read(blocks[0], &mut bytes).unwrap();
    assert_eq!(bytes, [8; BLOCK]);
    // A version that is committed is older than any that is not.
    before.end().unwrap();
    disk.read(blocks[0], &mut bytes).unwrap();
    assert_eq!(bytes, [6; BLOCK]);
    first.abort();
    disk.read(blocks[0], &mut bytes).unwrap();
    assert_eq!(bytes, [8; BLOCK]);
}
