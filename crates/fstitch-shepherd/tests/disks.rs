//! Several disks: one dies at any moment, with the power or without; another takes its place; and nothing that has a copy elsewhere is lost.
//!
//! What it prevents: an answer that only a dead disk knows of, a disk that comes back and is believed, a successor that is read before it has
//! anything, maps that are whole on one disk only.
//!
//! `FSTITCH_CRASH_SEEDS=first..end` says how many programs are cut, `FSTITCH_CRASH_CHOICES=N` how many states at each cut.
#![allow(clippy::unwrap_used, reason = "a test fails where it cannot go on")]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Error, Geometry, IoOp, MemDevice, Overlay,
    Result, Seed,
};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{Counts, LabOptions, Level, Oracle, Outcome, Past, Recorder, Subject};
use fstitch_shepherd::disks::{DiskState, Found, Hot, Plan, label_of, write_labels};
use fstitch_shepherd::engine::Opened;
use fstitch_shepherd::{Array, Options, Policy, Shepherd, Stretch};

const BLOCK: usize = 1024;
/// Blocks of each disk.
const DISK: u64 = 400;
const DISKS: usize = 3;

/// Two of everything, on two disks; directories on all; with sums and without.
const POLICIES: [&str; 3] = [
    "[all]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\", \"remap\"]",
    "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror other-disk\"]\n[directory]\nwrite = [\"verify\", \"all-disks\"]",
    "[all]\nread = [\"verify\", \"retry 1\", \"mirror\"]\nwrite = [\"verify\", \"all-disks\", \"remap\"]",
];

/// A medium that is several disks, each of which dies after so many requests. What is flushed on one disk is stable when every disk that lives
/// has been flushed since it was written to: the medium has but one flush, and must not promise more than a disk does.
struct Machine<D> {
    medium: D,
    dirty: Mutex<Vec<bool>>,
    dead: Vec<AtomicBool>,
    left: Vec<AtomicU64>,
    /// Requests until the power fails, for all at once.
    power: AtomicU64,
}

struct Disk<D> {
    machine: Arc<Machine<D>>,
    no: usize,
    blocks: u64,
}

impl<D: BlockDevice> Machine<D> {
    fn new(medium: D, disks: usize) -> Arc<Self> {
        Arc::new(Self {
            medium,
            dirty: Mutex::new(vec![false; disks]),
            dead: (0..disks).map(|_| AtomicBool::new(false)).collect(),
            left: (0..disks).map(|_| AtomicU64::new(u64::MAX)).collect(),
            power: AtomicU64::new(u64::MAX),
        })
    }

    fn kill(&self, disk: usize) {
        self.dead[disk].store(true, Ordering::SeqCst);
        self.dirty.lock().unwrap()[disk] = false;
    }
}

impl<D: BlockDevice> Disk<D> {
    fn ask(&self, op: IoOp) -> Result<()> {
        let is_over = |left: &AtomicU64| {
            let is_over = left.load(Ordering::SeqCst) == 0;
            left.fetch_sub(u64::from(!is_over), Ordering::SeqCst);
            is_over
        };
        if is_over(&self.machine.left[self.no]) {
            self.machine.kill(self.no);
        }
        let no_power = is_over(&self.machine.power);
        if no_power || self.machine.dead[self.no].load(Ordering::SeqCst) {
            return Err(Error::io(op, BlockNo(0), std::io::Error::other("the disk is dead")));
        }
        Ok(())
    }

    fn at(&self, block: BlockNo) -> BlockNo {
        assert!(block.get() < self.blocks, "block {block} of a disk of {}", self.blocks);
        BlockNo(u64::try_from(self.no).unwrap() * DISK + block.get())
    }
}

impl<D: BlockDevice> BlockDevice for Disk<D> {
    fn geometry(&self) -> Geometry {
        Geometry { block_count: self.blocks, ..self.machine.medium.geometry() }
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.ask(IoOp::Read)?;
        for read in reads {
            let block = self.at(read.block);
            self.machine.medium.read(&mut [BlockRead { block, kind: read.kind, data: &mut *read.data }])?;
        }
        Ok(())
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.ask(IoOp::Write)?;
        self.machine.dirty.lock().unwrap()[self.no] = true;
        let moved: Vec<_> =
            writes.iter().map(|write| BlockWrite { block: self.at(write.block), ..*write }).collect();
        self.machine.medium.write(&moved)
    }

    fn flush(&self) -> Result<()> {
        self.ask(IoOp::Flush)?;
        let mut dirty = self.machine.dirty.lock().unwrap();
        dirty[self.no] = false;
        if dirty.iter().any(|dirty| *dirty) { Ok(()) } else { self.machine.medium.flush() }
    }

    fn discard(&self, _: BlockNo, _: u64) -> Result<()> {
        self.ask(IoOp::Discard)
    }
}

fn disks<D: BlockDevice + 'static>(machine: &Arc<Machine<D>>) -> Vec<Option<Arc<dyn BlockDevice>>> {
    let disk = |no| Arc::new(Disk { machine: Arc::clone(machine), no, blocks: DISK }) as Arc<dyn BlockDevice>;
    (0..machine.dead.len()).map(|no| Some(disk(no))).collect()
}

fn plan(disks: usize) -> Plan {
    let name = |no: usize| [u8::try_from(no + 1).unwrap(); 16];
    Plan {
        uuid: [7; 16],
        block_size: 1024,
        first: 2,
        disks: (0..disks).map(|no| (name(no), DISK)).collect(),
        hot: Vec::new(),
    }
}

/// A new array on a medium of memory.
fn made(policy: &str, disks_of: usize) -> Arc<MemDevice> {
    let medium = Arc::new(MemDevice::new(1024, DISK * u64::try_from(disks_of).unwrap()));
    let machine = Machine::new(Arc::clone(&medium), disks_of);
    let given = disks(&machine);
    let label = label_of(&plan(disks_of), &Policy::parse(policy).unwrap()).unwrap();
    let all: Vec<_> = given.iter().flatten().cloned().collect();
    write_labels(&all, &label).unwrap();
    let (array, _) = Array::open(&given, false).unwrap();
    Shepherd::format_array(&Arc::new(array), policy).unwrap();
    medium
}

fn open(given: &[Option<Arc<dyn BlockDevice>>]) -> Result<(Shepherd, Opened, Found)> {
    let (array, found) = Array::open(given, false)?;
    let array = Arc::new(array);
    let area = array.area();
    let options =
        Options { doubt_max: 2, pages_max: 1, disks: Some(Arc::clone(&array)), ..Options::default() };
    let (shepherd, opened) = Shepherd::open(array, &area, options)?;
    Ok((shepherd, opened, found))
}

fn kind(block: u64) -> BlockKind {
    if block.is_multiple_of(12) { BlockKind::Directory } else { BlockKind::Data }
}

fn put(shepherd: &Shepherd, block: u64, fill: u8) -> Result<()> {
    shepherd.write(&[BlockWrite { block: BlockNo(block), kind: kind(block), data: &[fill; BLOCK] }])
}

fn get(shepherd: &Shepherd, block: u64) -> Result<[u8; 2]> {
    let mut data = vec![0; BLOCK];
    shepherd.read(&mut [BlockRead { block: BlockNo(block), kind: kind(block), data: &mut data }])?;
    let halves = [data[0], data[512]];
    let are_whole = data[..512].iter().all(|byte| *byte == halves[0])
        && data[512..].iter().all(|byte| *byte == halves[1]);
    assert!(are_whole, "block {block} has a torn sector");
    Ok(halves)
}

fn rebuild(shepherd: &Shepherd) -> Vec<BlockNo> {
    let mut lost = Vec::new();
    while let Some(step) = shepherd.rebuild(50).unwrap() {
        assert_eq!(step.failed, 0, "the new disk takes everything");
        lost.extend(step.lost);
    }
    lost
}

/// A disk of memory with room for any of the array's.
fn fresh() -> Arc<dyn BlockDevice> {
    let device = MemDevice::new(1024, DISK);
    let junk = vec![0xee; BLOCK];
    for block in (0..DISK).map(BlockNo) {
        device.write(&[BlockWrite { block, kind: BlockKind::Data, data: &junk }]).unwrap();
    }
    Arc::new(device)
}

#[test]
fn each_disk_may_die_and_be_replaced_while_the_volume_is_in_use() {
    for policy in POLICIES {
        for dying in 0..DISKS {
            let machine = Machine::new(made(policy, DISKS), DISKS);
            let mut given = disks(&machine);
            let (shepherd, ..) = open(&given).unwrap();
            let volume = shepherd.blocks();
            assert!(volume > 100, "{volume}");
            for block in 0..volume {
                put(&shepherd, block, 1).unwrap();
            }
            machine.kill(dying);
            for block in (0..volume).step_by(2) {
                put(&shepherd, block, 2).unwrap();
            }
            shepherd.flush().unwrap();
            let expected = |block: u64| if block.is_multiple_of(2) { [2; 2] } else { [1; 2] };
            for block in 0..volume {
                assert_eq!(get(&shepherd, block).unwrap(), expected(block), "block {block} without its disk");
            }
            assert!(matches!(shepherd.disks().unwrap().state(dying), DiskState::Out { .. }));
            let new = fresh();
            shepherd.replace_disk(dying, &new, [99; 16]).unwrap();
            // While it is rebuilt.
            shepherd.rebuild(40).unwrap().unwrap();
            put(&shepherd, 20, 3).unwrap();
            put(&shepherd, volume - 1, 3).unwrap();
            assert_eq!(get(&shepherd, volume - 2).unwrap(), expected(volume - 2));
            assert_eq!(rebuild(&shepherd), [], "{policy}");
            assert_eq!(shepherd.disks().unwrap().state(dying), DiskState::Whole);
            // Each other one may die now.
            shepherd.close().unwrap();
            drop(shepherd);
            given[dying] = Some(new);
            for other in (0..DISKS).filter(|other| *other != dying) {
                let mut left = given.clone();
                left[other] = None;
                let views: Vec<Option<Arc<dyn BlockDevice>>> = left
                    .iter()
                    .map(|disk| disk.clone().map(|disk| Arc::new(Overlay::new(disk)) as Arc<dyn BlockDevice>))
                    .collect();
                let (shepherd, _, found) = open(&views).unwrap();
                assert_eq!(found.missing, [other]);
                for block in 0..volume {
                    let expected = if block == 20 || block == volume - 1 { [3; 2] } else { expected(block) };
                    assert_eq!(
                        get(&shepherd, block).unwrap(),
                        expected,
                        "block {block} from {dying} for {other}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_disk_that_comes_back_is_not_believed() {
    let machine = Machine::new(made(POLICIES[0], DISKS), DISKS);
    let given = disks(&machine);
    let (shepherd, ..) = open(&given).unwrap();
    let volume = shepherd.blocks();
    (0..volume).for_each(|block| put(&shepherd, block, 1).unwrap());
    shepherd.close().unwrap();
    drop(shepherd);
    let mut without = given.clone();
    without[1] = None;
    let (shepherd, ..) = open(&without).unwrap();
    (0..volume).for_each(|block| put(&shepherd, block, 2).unwrap());
    shepherd.close().unwrap();
    drop(shepherd);
    let (shepherd, _, found) = open(&given).unwrap();
    assert_eq!((found.missing, found.degraded), (vec![], vec![1]));
    for block in 0..volume {
        assert_eq!(get(&shepherd, block).unwrap(), [2; 2], "block {block}");
    }
}

#[test]
fn disks_that_were_used_apart_are_not_joined() {
    let machine = Machine::new(made(POLICIES[0], 2), 2);
    let given = disks(&machine);
    for alone in 0..2 {
        let mut left = given.clone();
        left[1 - alone] = None;
        let (shepherd, ..) = open(&left).unwrap();
        put(&shepherd, 5, 7).unwrap();
        shepherd.close().unwrap();
    }
    let refused = Array::open(&given, false).unwrap_err().to_string();
    assert!(refused.contains("two volumes now"), "{refused}");
}

#[test]
fn what_has_no_copy_is_lost_with_its_disk_and_says_so() {
    let policy = "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]";
    let machine = Machine::new(made(policy, 2), 2);
    let given = disks(&machine);
    let (shepherd, ..) = open(&given).unwrap();
    let volume = shepherd.blocks();
    (0..30).for_each(|block| put(&shepherd, block, 1).unwrap());
    shepherd.flush().unwrap();
    let on_the_first = shepherd.disks().unwrap().disk_of(BlockNo(1));
    assert_eq!(on_the_first, Some(0));
    put(&shepherd, 1, 2).unwrap();
    let written = [Stretch { start: BlockNo(0), count: 30, kind: BlockKind::Data }];
    let data: Vec<BlockNo> = (0..30).filter(|block| kind(*block) == BlockKind::Data).map(BlockNo).collect();
    assert_eq!(shepherd.lost_without(&written, None), []);
    assert_eq!(shepherd.lost_without(&written, Some(0)), data, "directories have a copy elsewhere");
    assert_eq!(shepherd.lost_without(&written, Some(1)), []);
    machine.kill(0);
    shepherd.flush().unwrap_err();
    shepherd.flush().unwrap();
    put(&shepherd, 1, 3).unwrap_err();
    get(&shepherd, 1).unwrap_err();
    assert_eq!(get(&shepherd, 12).unwrap(), [1; 2], "a directory has a copy");
    assert_eq!(shepherd.lost_without(&written, None), data);
    shepherd.replace_disk(0, &fresh(), [99; 16]).unwrap();
    let lost = rebuild(&shepherd);
    let data_of_the_first = (0..volume)
        .filter(|block| *block >= 30 || kind(*block) == BlockKind::Data)
        .map(BlockNo)
        .filter(|block| shepherd.disks().unwrap().disk_of(*block) == Some(0));
    assert_eq!(lost, data_of_the_first.collect::<Vec<_>>());
    let error = get(&shepherd, 1).unwrap_err().to_string();
    assert!(error.contains("the only one was on a disk that has failed"), "{error}");
    put(&shepherd, 1, 4).unwrap();
    assert_eq!(get(&shepherd, 1).unwrap(), [4; 2], "it is written again");
    assert_eq!(shepherd.lost_without(&written, None), data[1..], "what the new disk holds there is nothing");
    get(&shepherd, 2).unwrap_err();
}

#[test]
fn a_hot_spare_takes_the_place_of_a_dead_disk() {
    let machine = Machine::new(made(POLICIES[1], DISKS), DISKS);
    let mut given = disks(&machine);
    let hot = fresh();
    {
        let (array, _) = Array::open(&given, false).unwrap();
        let small: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(1024, DISK / 2));
        array.set_hot(Hot::Add(&small, [98; 16])).unwrap_err();
        array.set_hot(Hot::Add(&hot, [99; 16])).unwrap();
    }
    given.push(Some(hot));
    let (shepherd, _, found) = open(&given).unwrap();
    assert_eq!(found, Found { places: vec![Some(0), Some(1), Some(2), Some(3)], ..Found::default() });
    assert_eq!(shepherd.take_hot().unwrap(), None, "nobody is out");
    let volume = shepherd.blocks();
    (0..volume).for_each(|block| put(&shepherd, block, 1).unwrap());
    machine.kill(2);
    put(&shepherd, volume - 1, 2).unwrap();
    assert_eq!(shepherd.take_hot().unwrap(), Some(2));
    assert_eq!(rebuild(&shepherd), []);
    shepherd.close().unwrap();
    drop(shepherd);
    let (shepherd, _, found) = open(&given).unwrap();
    assert_eq!(found.strangers, [2], "the dead one is nobody's any more");
    assert_eq!((found.missing, found.degraded), (vec![], vec![]));
    assert_eq!(get(&shepherd, volume - 1).unwrap(), [2; 2]);
}

#[test]
fn the_last_disk_is_not_put_out() {
    let machine = Machine::new(made(POLICIES[0], 2), 2);
    let (shepherd, ..) = open(&disks(&machine)).unwrap();
    put(&shepherd, 3, 1).unwrap();
    machine.kill(0);
    put(&shepherd, 3, 2).unwrap();
    machine.kill(1);
    put(&shepherd, 3, 3).unwrap_err();
    shepherd.flush().unwrap_err();
    assert_eq!(shepherd.disks().unwrap().state(1), DiskState::Whole);
}

/// Opens what a cut has left: with all disks, without the one that had died and its successor, and, where all are whole, without each one in
/// turn. Each time it is opened twice, the first time with another cut meanwhile.
struct Reopened {
    /// Of the machine: those of the array, and the successor.
    disks: usize,
    dead: Option<usize>,
    homes: Vec<u64>,
}

/// What was read from each home; `None` if it could not be.
type View = Vec<Option<[u8; 2]>>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    views: Vec<View>,
}

impl Reopened {
    /// What is read without some disks, and whether the others are whole.
    fn view(
        &self,
        device: &Arc<dyn BlockDevice>,
        away: &[usize],
    ) -> std::result::Result<(View, bool), Violation> {
        let unreadable = |error: Error| Violation::new("unreadable", format!("{error}, without {away:?}"));
        let machine = Machine::new(Overlay::new(Arc::clone(device)), self.disks);
        let mut given = disks(&machine);
        away.iter().for_each(|away| given[*away] = None);
        machine.power.store(90, Ordering::SeqCst);
        drop(open(&given));
        machine.power.store(u64::MAX, Ordering::SeqCst);
        let (shepherd, opened, found) = open(&given).map_err(unreadable)?;
        if opened.maps_lost > 0 {
            return Err(Violation::new("maps", format!("{opened:?}")));
        }
        let view = self
            .homes
            .iter()
            .map(|home| {
                get(&shepherd, *home)
                    .inspect_err(|e| {
                        if *home == 367 {
                            eprintln!(
                                "{e} {opened:?} {found:?} {:?} away {away:?}",
                                shepherd.disks().unwrap().label()
                            )
                        }
                    })
                    .ok()
            })
            .collect();
        Ok((view, found.degraded.is_empty()))
    }
}

impl Subject for Reopened {
    type Shown = Shown;

    fn show(&self, device: Arc<dyn BlockDevice>) -> std::result::Result<Shown, Violation> {
        let (view, are_whole) = self.view(&device, &[])?;
        let mut views = vec![view];
        if let Some(dead) = self.dead {
            views.push(self.view(&device, &[dead, self.disks - 1])?.0);
        }
        // It may have died after the cut, or its successor be whole.
        if are_whole {
            for away in 0..self.disks {
                match self.view(&device, &[away]) {
                    // The power went while the labels were learning that the successor is whole: nobody had been told.
                    Err(violation) if violation.text.contains("is rebuilding") => {}
                    view => views.push(view?.0),
                }
            }
        }
        Ok(Shown { views })
    }
}

/// What was written to each home, by the operations that did.
#[derive(Default)]
struct Written {
    writes: Vec<(usize, usize, u8)>,
    promised: Vec<usize>,
    homes: Vec<u64>,
}

impl Oracle for Written {
    type Shown = Shown;

    fn at(&self, progress: Progress) -> Judge<'_, Shown> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let promised = count(progress.promises).checked_sub(1).map_or(0, |last| self.promised[last]);
        let begun = count(progress.begun);
        Box::new(move |shown| {
            for (no, view) in shown.views.iter().enumerate() {
                for (home, halves) in view.iter().enumerate() {
                    let mine = self.writes.iter().filter(|(_, at, _)| *at == home);
                    let stable = mine.clone().rfind(|(operation, ..)| *operation < promised);
                    let stable = stable.map_or(0, |(.., fill)| *fill);
                    let lawful = |half: &u8| {
                        let window = |(operation, _, fill): &(usize, usize, u8)| {
                            (promised..begun).contains(operation) && fill == half
                        };
                        *half == stable || mine.clone().any(window)
                    };
                    // What was never written has no copy.
                    let is_lawful = halves.map_or(stable == 0, |halves| halves.iter().all(lawful));
                    if !is_lawful {
                        let what = format!(
                            "block {} holds {halves:?} in view {no}; stable is {stable}",
                            self.homes[home]
                        );
                        return Err(Violation::new("not-a-version", what));
                    }
                }
            }
            Ok(())
        })
    }
}

/// A random program during which a disk dies, and is replaced now and then; and all that cuts may leave of it.
fn explore(number: u64, level: Level, choices: u64) -> Outcome {
    let policy = POLICIES[usize::try_from(number).unwrap() % POLICIES.len()];
    let count = 2 + usize::try_from(number / 3 % 2).unwrap();
    // A disk more, which is the successor.
    let all = count + 1;
    let medium = made(policy, count);
    let mut image = medium.image();
    image.resize(all * usize::try_from(DISK).unwrap() * BLOCK, 0xee);
    let base = Base::new(1024, image);
    let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
    let machine = Machine::new(Arc::clone(&recorder), all);
    let mut given = disks(&machine);
    let successor = given.pop().flatten().unwrap();
    let mut seed = Seed::new(number);
    let (shepherd, ..) = open(&given).unwrap();
    let volume = shepherd.blocks();
    let homes: Vec<u64> = (0..10).map(|_| seed.below(volume)).collect();
    let homes: Vec<u64> = homes.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let dying = usize::try_from(seed.below(u64::try_from(count).unwrap())).unwrap();
    let dies = number / 6 % 3;
    if dies > 0 {
        machine.left[dying].store(4 + seed.below(60), Ordering::SeqCst);
    }
    let mut oracle = Written { homes: homes.clone(), ..Written::default() };
    let mut operations = 0;
    let mut is_replaced = false;
    for fill in 1..=16 {
        match seed.below(6) {
            0 => {
                eprintln!("flush");
                shepherd.flush().unwrap()
            }
            1 => {
                eprintln!("settle");
                shepherd.settle().unwrap()
            }
            2 if dies == 2 => {
                eprintln!("rebuild? {:?}", shepherd.disks().unwrap().state(dying));
                let is_out = matches!(shepherd.disks().unwrap().state(dying), DiskState::Out { .. });
                if is_out && !is_replaced {
                    shepherd.replace_disk(dying, &successor, [99; 16]).unwrap();
                    is_replaced = true;
                }
                shepherd.rebuild(1 + seed.below(volume)).unwrap();
                continue;
            }
            _ => {
                recorder.mark(Mark::Begin(u32::try_from(operations).unwrap()));
                write_some(&shepherd, &mut seed, &mut oracle, (operations, fill));
                recorder.mark(Mark::End(u32::try_from(operations).unwrap()));
                operations += 1;
                continue;
            }
        }
        recorder.mark(Mark::Promise(u32::try_from(oracle.promised.len()).unwrap()));
        oracle.promised.push(operations);
    }
    eprintln!(
        "homes {:?} {:?} dying {dying}",
        homes,
        homes.iter().map(|h| shepherd.disks().unwrap().disk_of(BlockNo(*h))).collect::<Vec<_>>()
    );
    drop(shepherd);
    let names = ("shepherd".to_owned(), format!("disks-{number}"));
    let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
    // A disk that may have died, and its successor that may have been whole: what is left must be enough.
    let dead = (dies > 0).then_some(dying);
    let subject = Reopened { disks: all, dead, homes };
    Past { names, base, log: recorder.take(), subject: &subject, oracle: &oracle }.judge(options)
}

/// A batch of one to three blocks.
fn write_some(shepherd: &Shepherd, seed: &mut Seed, oracle: &mut Written, (operation, fill): (usize, u8)) {
    let data = vec![fill; BLOCK];
    let count = usize::try_from(seed.below(3)).unwrap() + 1;
    let first = usize::try_from(seed.below(u64::try_from(oracle.homes.len()).unwrap())).unwrap();
    let mut writes = BTreeMap::new();
    for home in (first..oracle.homes.len()).take(count) {
        writes.insert(oracle.homes[home], fill);
        oracle.writes.push((operation, home, fill));
    }
    let writes: Vec<BlockWrite<'_>> = writes
        .keys()
        .map(|block| BlockWrite { block: BlockNo(*block), kind: kind(*block), data: &data })
        .collect();
    eprintln!("write {operation} {fill} {:?}", writes.iter().map(|w| w.block).collect::<Vec<_>>());
    shepherd.write(&writes).unwrap();
}

fn seeds(sample: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("FSTITCH_CRASH_SEEDS") else { return sample };
    let (first, end) = given.split_once("..").expect("first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn every_cut_leaves_versions_on_the_disks_that_are_left() {
    let choices = std::env::var("FSTITCH_CRASH_CHOICES").map_or(8, |given| given.parse().expect("a number"));
    let mut total = Counts::default();
    for number in seeds(0..18) {
        for level in [Level::M1, Level::M2, Level::M3] {
            let outcome = explore(number, level, choices);
            assert_eq!(outcome.found, [], "program {number} at {level}");
            total.add(&outcome.counts);
        }
    }
    println!("{total:?}");
    assert!(total.cuts > 0 && total.checked > total.cuts, "{total:?}");
}
