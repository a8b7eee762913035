//! The shepherd in the crash laboratory: after a power cut at any moment, and another in recovery, each block is a version that it may be,
//! and every copy that the policy asks for is there.
//!
//! What it prevents: sums that call right contents wrong after a crash, copies of another version than the home, spares that two blocks
//! have, maps that cannot be read.
//!
//! `FSTITCH_CRASH_SEEDS=first..end` says how many programs are cut, three for each number, `FSTITCH_CRASH_CHOICES=N` how many states at each
//! cut, `FSTITCH_CRASH_EVERY=N` which share of the faults is met (1: all).

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::machine::said::say;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, IoOp, MemDevice, Overlay, Seed};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{
    Counts, Defect, Fault, FaultDevice, FaultPlan, LabOptions, Level, Oracle, Outcome, Past, Recorder,
    Subject, Times,
};
use fstitch_shepherd::{Options, Remedy, Rules, Shepherd, Stretch};

const BLOCK: usize = 1024;
const VOLUME: u64 = 320;
/// Blocks that are written: of four runs.
const HOMES: [u64; 10] = [10, 11, 12, 70, 71, 130, 131, 132, 200, 201];

/// Those of them that hold something at first, and so have copies.
const FIRST_WITH_COPIES: [u64; 4] = [10, 11, 70, 130];

/// Sums and copies of metadata, sums of data; copies alone; sums alone; two copies; moves alone; moves with all
/// of it; parity, with moves.
const POLICIES: [&str; 8] = [
    "[metadata]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\"]\n[data]\nread = [\"verify\"]\nwrite = [\"verify\"]",
    "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror near\"]",
    "[all]\nread = [\"verify\"]\nwrite = [\"verify\"]",
    "[metadata]\nread = [\"mirror\", \"verify\"]\nwrite = [\"verify\", \"mirror near 2\"]",
    "[all]\nwrite = [\"remap\"]",
    "[all]\nread = [\"verify\", \"parity\"]\nwrite = [\"verify\", \"parity 8\"]",
    "[all]\nread = [\"parity\"]\nwrite = [\"parity 3\", \"remap\"]",
    "[metadata]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\", \"remap\"]\n[data]\nread = [\"verify\"]\nwrite = [\"verify\", \"remap\"]",
];

fn area() -> Vec<BlockNo> {
    (220..300).map(BlockNo).collect()
}

/// What a block is, as it is read.
fn kind(block: u64) -> BlockKind {
    if block.is_multiple_of(2) { BlockKind::Inode } else { BlockKind::Data }
}

/// Who can neither judge nor check anything.
struct Nothing;

impl Rules for Nothing {
    fn judge(&self, _: BlockKind, _: BlockNo, _: &[u8]) -> Option<String> {
        None
    }
}

impl Remedy for Nothing {
    fn full_check(&self) -> bool {
        false
    }

    fn remount(&self) -> bool {
        false
    }
}

fn options() -> Options {
    let (rules, remedy) = (Some(Arc::new(Nothing) as _), Some(Arc::new(Nothing) as _));
    Options { doubt_max: 2, pages_max: 1, scrubbed_at_once: 1, rules, remedy, ..Options::default() }
}

fn open(device: Arc<dyn BlockDevice>) -> Result<Shepherd, Violation> {
    let opened = Shepherd::open(device, &area(), options());
    let (shepherd, opened) = opened.map_err(|error| Violation::new("unreadable", error.to_string()))?;
    if opened.is_foreign || opened.maps_lost > 0 {
        return Err(Violation::new("maps", format!("{opened:?}")));
    }
    Ok(shepherd)
}

/// The two sectors of each home; and once more of those with copies, whose homes were unreadable before anything was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    homes: Vec<[u8; 2]>,
    copies: Vec<(usize, Option<[u8; 2]>)>,
}

fn read(shepherd: &Shepherd, block: u64) -> Result<[u8; 2], Violation> {
    read_as(shepherd, block, kind(block))
}

fn read_as(shepherd: &Shepherd, block: u64, kind: BlockKind) -> Result<[u8; 2], Violation> {
    let mut data = vec![0; BLOCK];
    let read = shepherd.read(&mut [BlockRead { block: BlockNo(block), kind, data: &mut data }]);
    read.map_err(|error| Violation::new("unreadable", error.to_string()))?;
    let halves = [data[0], data[512]];
    match data[..512].iter().all(|byte| *byte == halves[0])
        && data[512..].iter().all(|byte| *byte == halves[1])
    {
        true => Ok(halves),
        false => Err(Violation::new("torn-sector", format!("block {block}"))),
    }
}

/// Opens what a cut has left, once more with another cut meanwhile, and reads everything twice: from homes, and without them.
struct Reopened {
    policy: &'static str,
}

type Faulty = Arc<FaultDevice<Arc<dyn BlockDevice>>>;

fn lost(block: u64) -> FaultPlan {
    let fault = Fault { blocks: Some(block..block + 1), times: Times::Sticky, ..Fault::new(Defect::Error) };
    FaultPlan::one(fault)
}

impl Reopened {
    /// Homes that may have copies: half of them always, others while they are a directory's.
    fn mirrored(&self) -> impl Iterator<Item = (usize, u64)> {
        let any = self.policy.contains("mirror");
        HOMES.into_iter().enumerate().filter(move |_| any)
    }

    /// A home is lost as well as the power: what its copies hold; `None` if it has none.
    fn without(&self, device: Arc<dyn BlockDevice>, block: u64) -> Result<Option<[u8; 2]>, Violation> {
        let disk: Faulty = Arc::new(FaultDevice::new(Arc::new(Overlay::new(device)), lost(block)));
        // Whatever it is, it may have been a directory's.
        match read_as(&open(disk)?, block, BlockKind::Inode) {
            Err(violation) if violation.text.contains("injected") => Ok(None),
            found => found.map(Some),
        }
    }
}

impl Subject for Reopened {
    type Shown = Shown;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Shown, Violation> {
        let copies = self.mirrored().map(|(at, block)| Ok((at, self.without(Arc::clone(&device), block)?)));
        let copies = copies.collect::<Result<Vec<_>, Violation>>()?;
        let disk: Faulty = Arc::new(FaultDevice::new(device, FaultPlan::default()));
        let under = || Arc::clone(&disk) as Arc<dyn BlockDevice>;
        let cut = Fault { op: Some(IoOp::Write), nth: 6, ..Fault::new(Defect::Dead) };
        disk.set_plan(FaultPlan::one(cut));
        drop(Shepherd::open(under(), &area(), options()));
        disk.set_plan(FaultPlan::default());
        let shepherd = open(under())?;
        let homes: Vec<_> = HOMES.iter().map(|block| read(&shepherd, *block)).collect::<Result<_, _>>()?;
        for (at, block) in self.mirrored() {
            if kind(block) == BlockKind::Data || copies.contains(&(at, None)) {
                continue;
            }
            disk.set_plan(lost(block));
            if read(&shepherd, block)? != homes[at] {
                return Err(Violation::new("other-copy", format!("block {block} and its copy differ")));
            }
            disk.set_plan(FaultPlan::default());
        }
        Ok(Shown { homes, copies })
    }
}

/// What was written to each home, by the operations that did.
struct Written {
    writes: Vec<(usize, usize, u8)>,
    /// Those that have failed: nothing is promised of them, and nothing forbids them. By operation and home.
    failed: BTreeSet<(usize, usize)>,
    promised: Vec<usize>,
    /// Spares take no writes: with a home that is lost as well a copy may be as well.
    spares_fail: bool,
}

impl Oracle for Written {
    type Shown = Shown;

    fn at(&self, progress: Progress) -> Judge<'_, Shown> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let promised = count(progress.promises).checked_sub(1).map_or(0, |last| self.promised[last]);
        let begun = count(progress.begun);
        Box::new(move |shown| {
            let homes = shown.homes.iter().copied().map(Some).enumerate();
            for (home, halves) in homes.chain(shown.copies.iter().copied()) {
                let mine = self.writes.iter().filter(|(_, at, _)| *at == home);
                let has_failed = |operation: usize| self.failed.contains(&(operation, home));
                let last =
                    mine.clone().rfind(|(operation, ..)| *operation < promised && !has_failed(*operation));
                let stable = last.map_or(0, |(.., fill)| *fill);
                let lawful = |half: &u8| {
                    let window = |(operation, _, fill): &(usize, usize, u8)| {
                        let is_late = last.is_none_or(|(last, ..)| operation > last);
                        let is_open = *operation >= promised || (has_failed(*operation) && is_late);
                        is_open && *operation < begun && fill == half
                    };
                    *half == stable || mine.clone().any(window)
                };
                let is_lawful = match halves {
                    Some(halves) => halves.iter().all(lawful),
                    // It has a copy from its first write on, which the flush behind that has promised.
                    None if kind(HOMES[home]) == BlockKind::Data || self.spares_fail => true,
                    None => stable == 0 && !FIRST_WITH_COPIES.contains(&HOMES[home]),
                };
                if !is_lawful {
                    let what = format!("block {} holds {halves:?}; stable is {stable}", HOMES[home]);
                    return Err(Violation::new("not-a-version", what));
                }
            }
            Ok(())
        })
    }
}

/// A disk on which three homes cannot be written any more, each from some write of it on; and perhaps some spares.
fn worn(seed: &mut Seed, spares_fail: bool) -> FaultPlan {
    let fails = |block: u64, nth: u64| Fault {
        blocks: Some(block..block + 1),
        op: Some(IoOp::Write),
        nth,
        times: Times::Sticky,
        ..Fault::new(Defect::Error)
    };
    let homes = [0; 3].map(|_| HOMES[usize::try_from(seed.below(10)).unwrap()]);
    let homes = homes.map(|home| fails(home, 1 + seed.below(3)));
    let spares = [0; 2].map(|_| fails(290 + seed.below(10), 1 + seed.below(2)));
    let spares = spares.into_iter().filter(|_| spares_fail);
    FaultPlan { faults: homes.into_iter().chain(spares).collect(), ..FaultPlan::default() }
}

/// A random program, and all that cuts may leave of it.
fn explore(number: u64, level: Level, choices: u64) -> Outcome {
    let policy = POLICIES[usize::try_from(number).unwrap() % POLICIES.len()];
    let made = Arc::new(MemDevice::new(1024, VOLUME));
    let blocks = FIRST_WITH_COPIES.map(|block| Stretch::one(BlockNo(block), kind(block)));
    let device = Arc::clone(&made) as Arc<dyn BlockDevice>;
    Shepherd::format(device, &area(), [7; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    let base = Base::new(1024, made.image());
    let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
    let mut seed = Seed::new(number);
    let spares_fail = policy.contains("remap") && (!policy.contains("mirror") || number / 8 % 2 == 1);
    let plan = if policy.contains("remap") { worn(&mut seed, spares_fail) } else { FaultPlan::default() };
    let disk = FaultDevice::new(Arc::clone(&recorder), plan);
    let shepherd = open(Arc::new(disk)).unwrap();
    let mut oracle =
        Written { writes: Vec::new(), failed: BTreeSet::new(), promised: Vec::new(), spares_fail };
    let operations = program(&shepherd, (&recorder, 18), &mut seed, &mut oracle, true);
    if seed.below(2) == 0 {
        shepherd.close().unwrap();
        promise(&recorder, &mut oracle, operations);
    }
    drop(shepherd);
    let names = ("shepherd".to_owned(), format!("random-{number}"));
    let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
    Past { names, base, log: recorder.take(), subject: &Reopened { policy }, oracle: &oracle }.judge(options)
}

/// Random operations; how many writes. `succeeds`: nothing may fail.
fn program(
    shepherd: &Shepherd,
    (recorder, steps): (&Recorder<Image>, u8),
    seed: &mut Seed,
    oracle: &mut Written,
    succeeds: bool,
) -> usize {
    let mut operations = 0;
    for fill in 1..=steps {
        let stable = match seed.below(5) {
            0 => shepherd.flush(),
            1 => shepherd.settle(),
            _ => {
                recorder.mark(Mark::Begin(u32::try_from(operations).unwrap()));
                write_some(shepherd, seed, oracle, (operations, fill));
                recorder.mark(Mark::End(u32::try_from(operations).unwrap()));
                operations += 1;
                continue;
            }
        };
        assert!(stable.is_ok() || !succeeds, "{stable:?}");
        if stable.is_ok() {
            promise(recorder, oracle, operations);
        }
    }
    assert!(oracle.failed.is_empty() || !succeeds, "{:?}", oracle.failed);
    operations
}

/// What befalls the one disk: its `nth` write or flush fails, once; or the disk is dead from that write on.
const FAULTS: [(Defect, Option<IoOp>); 3] = [
    (Defect::Error, Some(IoOp::Write)),
    (Defect::Error, Some(IoOp::Flush)),
    (Defect::Dead, Some(IoOp::Write)),
];

/// Policies that answer a fault, by name.
const ANSWERING: [&str; 4] = ["remap", "remap-mirror", "parity", "defence-in-depth"];

/// A program that meets a fault at its `nth` write or flush; whether it came so far, and what cuts leave of it.
fn explore_fault(number: u64, which: usize, nth: u64, choices: u64) -> (bool, Outcome) {
    let name = ANSWERING[usize::try_from(number).unwrap() % ANSWERING.len()];
    let policy = fstitch_shepherd::policy::shipped(name).unwrap().text;
    let made = Arc::new(MemDevice::new(1024, VOLUME));
    let blocks = FIRST_WITH_COPIES.map(|block| Stretch::one(BlockNo(block), kind(block)));
    let device = Arc::clone(&made) as Arc<dyn BlockDevice>;
    Shepherd::format(device, &area(), [7; 16], policy, &[2], &blocks, &mut |_, _| {}).unwrap();
    let base = Base::new(1024, made.image());
    let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
    let disk = Arc::new(FaultDevice::new(Arc::clone(&recorder), FaultPlan::default()));
    let shepherd = open(Arc::clone(&disk) as Arc<dyn BlockDevice>).unwrap();
    let (defect, op) = FAULTS[which];
    disk.set_plan(FaultPlan::one(Fault { op, nth, ..Fault::new(defect) }));
    let mut oracle =
        Written { writes: Vec::new(), failed: BTreeSet::new(), promised: Vec::new(), spares_fail: true };
    program(&shepherd, (&recorder, 10), &mut Seed::new(number), &mut oracle, false);
    let has_struck = !disk.injected().is_empty();
    drop(shepherd);
    let names = ("shepherd".to_owned(), format!("fault-{number}"));
    let level = [Level::M1, Level::M2, Level::M3][usize::try_from(nth % 3).unwrap()];
    let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
    let subject = Reopened { policy };
    let outcome =
        Past { names, base, log: recorder.take(), subject: &subject, oracle: &oracle }.judge(options);
    assert_eq!(outcome.found, [], "program {number}, {defect:?} of {op:?} number {nth} at {level}");
    (has_struck, outcome)
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |given| given.parse().expect("a number"))
}

#[test]
fn a_fault_in_any_write_or_flush_leaves_versions() {
    let (choices, every) = (number("FSTITCH_CRASH_CHOICES", 4), number("FSTITCH_CRASH_EVERY", 29));
    let mut total = Counts::default();
    for program in seeds(0..8) {
        for which in 0..FAULTS.len() {
            for nth in (1 + program % every..).step_by(usize::try_from(every).unwrap()) {
                let (has_struck, outcome) = explore_fault(program, which, nth, choices);
                if !has_struck {
                    break;
                }
                total.add(&outcome.counts);
            }
        }
    }
    say(&total);
    assert!(total.cuts > 0 && total.checked > total.cuts, "{total:?}");
}

fn promise(recorder: &Recorder<Image>, oracle: &mut Written, operations: usize) {
    recorder.mark(Mark::Promise(u32::try_from(oracle.promised.len()).unwrap()));
    oracle.promised.push(operations);
}

/// A batch of one to three blocks; now and then a block is what it was not before, and the superblock is among them.
fn write_some(shepherd: &Shepherd, seed: &mut Seed, oracle: &mut Written, (operation, fill): (usize, u8)) {
    let data = vec![fill; BLOCK];
    let first = usize::try_from(seed.below(10)).unwrap();
    let count = usize::try_from(seed.below(3)).unwrap() + 1;
    let mut writes = Vec::new();
    for home in (first..HOMES.len()).take(count) {
        let block = HOMES[home];
        let kind = if kind(block) == BlockKind::Data && seed.below(4) == 0 {
            BlockKind::Directory
        } else {
            kind(block)
        };
        writes.push(BlockWrite { block: BlockNo(block), kind, data: &data });
        oracle.writes.push((operation, home, fill));
    }
    if seed.below(6) == 0 {
        writes.push(BlockWrite { block: BlockNo(1), kind: BlockKind::Superblock, data: &data });
    }
    let failed: BTreeSet<BlockNo> = match shepherd.put(&writes) {
        Ok(failed) => failed.into_iter().map(|(block, _)| block).collect(),
        Err(_) => writes.iter().map(|write| write.block).collect(),
    };
    let homes = (0..HOMES.len()).filter(|home| failed.contains(&BlockNo(HOMES[*home])));
    oracle.failed.extend(homes.map(|home| (operation, home)));
}

fn seeds(sample: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("FSTITCH_CRASH_SEEDS") else { return sample };
    let (first, end) = given.split_once("..").expect("first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

#[test]
fn every_cut_leaves_versions_and_their_copies() {
    let choices = number("FSTITCH_CRASH_CHOICES", 24);
    let mut total = Counts::default();
    for number in seeds(0..16).flat_map(|seed| 3 * seed..3 * seed + 3) {
        for level in [Level::M1, Level::M2, Level::M3] {
            let outcome = explore(number, level, choices);
            assert_eq!(outcome.found, [], "program {number} at {level}");
            total.add(&outcome.counts);
        }
    }
    say(&total);
    assert!(total.cuts > 0 && total.checked > total.cuts, "{total:?}");
}
