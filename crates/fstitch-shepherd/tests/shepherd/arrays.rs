//! Several disks in the crash laboratory: a fault in every write and every flush, and a power cut at every moment, with another in recovery.
//!
//! What it prevents: an answer that only a dead disk knows of, a successor that is believed too early, copies of another version than the
//! home, labels and maps that are torn on each disk elsewhere.
//!
//! `FSTITCH_CRASH_SEEDS=first..end` says which programs are run, `FSTITCH_CRASH_EVERY=N` each how many-th of their faults (1: all),
//! `FSTITCH_CRASH_CHOICES=N` how many states at each cut.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::machine::said::say;
use crate::machine::*;
use fstitch_core::{BlockDevice, BlockNo, BlockWrite, Error, Overlay, Seed};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{Counts, LabOptions, Level, Oracle, Outcome, Past, Recorder, Subject};
use fstitch_shepherd::Shepherd;
use fstitch_shepherd::disks::DiskState;
use fstitch_shepherd::engine::Scrubbed;

/// What befalls a disk at one of its writes and flushes, counted from 0.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// From there on it answers nothing.
    Death(usize, u64),
    /// That request fails, and no other.
    Hiccup(usize, u64),
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

fn scrubbed(shepherd: &Shepherd) -> Result<Scrubbed, Violation> {
    let scrubbed = shepherd.scrub(BlockNo(0), shepherd.blocks(), &|block| kind(block.get()));
    scrubbed.map_err(|error| Violation::new("scrub", error.to_string()))
}

impl Reopened {
    /// What is read without some disks, and whether all others are whole.
    fn view(&self, device: &Arc<dyn BlockDevice>, away: &[usize]) -> Result<(View, bool), Violation> {
        let unreadable = |error: Error| Violation::new("unreadable", format!("{error}, without {away:?}"));
        let machine = Machine::new(Overlay::new(Arc::clone(device)), self.disks);
        let mut given = disks(&machine);
        away.iter().for_each(|away| given[*away] = None);
        machine.power.store(25, Ordering::SeqCst);
        drop(open(&given));
        machine.power.store(u64::MAX, Ordering::SeqCst);
        let (shepherd, opened, found) = open(&given).map_err(unreadable)?;
        if opened.maps_lost > 0 {
            return Err(Violation::new("maps", format!("{opened:?}")));
        }
        let view = self.homes.iter().map(|home| get(&shepherd, *home).ok()).collect();
        let array = shepherd.disks().unwrap();
        let is_whole = |disk: usize| array.state(disk) == DiskState::Whole;
        let is_away = |disk: usize| found.missing.contains(&disk);
        let are_whole = (0..array.disks()).all(|disk| is_whole(disk) || is_away(disk));
        if are_whole && away.is_empty() {
            // What is lacking is made again, and then nothing is.
            let first = scrubbed(&shepherd)?;
            let second = scrubbed(&shepherd)?;
            // What is lost is what was never written: the views are of the rest.
            let is_alike =
                |scrubbed: &Scrubbed| scrubbed.differing.is_empty() && scrubbed.not_restored.is_empty();
            let is_done = second.copies_written == 0 && second.restored.is_empty();
            if !is_alike(&first) || !is_alike(&second) || !is_done || second.degraded > 0 {
                return Err(Violation::new("redundancy", format!("{first:?}, then {second:?}")));
            }
        }
        Ok((view, are_whole))
    }
}

impl Subject for Reopened {
    type Shown = Shown;

    fn show(&self, device: Arc<dyn BlockDevice>) -> Result<Shown, Violation> {
        let (view, are_whole) = self.view(&device, &[])?;
        let mut views = vec![view];
        if let Some(dead) = self.dead {
            views.push(self.view(&device, &[dead, self.disks - 1])?.0);
        }
        // One may have died after the cut, or the successor be whole.
        if are_whole {
            for away in 0..self.disks {
                match self.view(&device, &[away]) {
                    // The power went while the labels were learning that the successor is whole: nobody had been told, and two are too many.
                    Err(violation) if violation.text.contains("is rebuilding") => {}
                    Ok((_, false)) => {}
                    view => views.push(view?.0),
                }
            }
        }
        Ok(Shown { views })
    }
}

/// A block that an operation wrote.
struct Write {
    operation: usize,
    home: usize,
    fill: u8,
    /// Nothing is promised of it, and nothing forbids it.
    has_failed: bool,
}

/// What was written to each home, by the operations that did.
#[derive(Default)]
struct Written {
    writes: Vec<Write>,
    promised: Vec<usize>,
    homes: Vec<u64>,
}

impl Written {
    /// Whether a sector of a home may be this; `None` for one that cannot be read.
    fn is_lawful(&self, home: usize, half: Option<u8>, promised: usize, begun: usize) -> bool {
        let mine = self.writes.iter().filter(|write| write.home == home && write.operation < begun);
        let stable = mine.clone().rfind(|write| write.operation < promised && !write.has_failed);
        let since = |write: &&Write| {
            write.operation >= promised
                || (write.has_failed && stable.is_none_or(|stable| write.operation > stable.operation))
        };
        match half {
            Some(half) => {
                stable.map_or(0, |write| write.fill) == half
                    || mine.clone().filter(since).any(|write| write.fill == half)
            }
            // What was never written has no copy.
            None => stable.is_none(),
        }
    }
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
                    let sectors = halves.map_or([None; 2], |halves| halves.map(Some));
                    if !sectors.iter().all(|half| self.is_lawful(home, *half, promised, begun)) {
                        let block = self.homes[home];
                        let what = format!("block {block} holds {halves:?} in view {no}");
                        return Err(Violation::new("not-a-version", what));
                    }
                }
            }
            Ok(())
        })
    }
}

/// A random program on an array.
struct Run {
    recorder: Arc<Recorder<Image>>,
    machine: Arc<Machine<Arc<Recorder<Image>>>>,
    shepherd: Shepherd,
    successor: Arc<dyn BlockDevice>,
    /// Whether a disk that is out is replaced.
    replaces: bool,
    seed: Seed,
    oracle: Written,
    operations: usize,
}

/// Disks of a program's array.
fn count_of(program: u64) -> usize {
    2 + usize::try_from(program / 5 % 3).unwrap()
}

impl Run {
    fn new(program: u64) -> (Self, Arc<Base>) {
        let shipped = fstitch_shepherd::policy::shipped("d-graid").unwrap().text;
        let policies = [POLICIES[0], POLICIES[1], shipped, POLICIES[2], POLICIES[0]];
        let count = count_of(program);
        let medium = made(policies[usize::try_from(program % 5).unwrap()], count);
        let mut image = medium.image();
        image.resize((count + 1) * usize::try_from(DISK).unwrap() * BLOCK, 0xee);
        let base = Base::new(1024, image);
        let recorder = Arc::new(Recorder::new(Image::new(Arc::clone(&base))));
        let machine = Machine::new(Arc::clone(&recorder), count + 1);
        let mut given = disks(&machine);
        let successor = given.pop().flatten().unwrap();
        let (shepherd, ..) = open(&given).unwrap();
        let mut seed = Seed::new(program);
        let homes: BTreeSet<u64> = (0..8).map(|_| seed.below(shepherd.blocks())).collect();
        let oracle = Written { homes: homes.into_iter().collect(), ..Written::default() };
        let replaces = seed.below(3) > 0;
        (Self { recorder, machine, shepherd, successor, replaces, seed, oracle, operations: 0 }, base)
    }

    /// All of it, with a fault that counts from here on.
    fn go(&mut self, fault: Option<Fault>) {
        match fault {
            Some(Fault::Death(disk, nth)) => self.machine.left[disk].store(nth, Ordering::SeqCst),
            Some(Fault::Hiccup(disk, nth)) => self.machine.hiccup[disk].store(nth, Ordering::SeqCst),
            None => {}
        }
        self.machine.asked.iter().for_each(|asked| asked.store(0, Ordering::SeqCst));
        for fill in 1..=12 {
            let done = match self.seed.below(6) {
                0 => self.shepherd.flush(),
                1 => self.shepherd.settle(),
                2 => {
                    self.rebuild();
                    continue;
                }
                _ => {
                    self.write_some(fill);
                    continue;
                }
            };
            if done.is_ok() {
                self.recorder.mark(Mark::Promise(u32::try_from(self.oracle.promised.len()).unwrap()));
                self.oracle.promised.push(self.operations);
            }
        }
    }

    fn rebuild(&mut self) {
        let array = Arc::clone(self.shepherd.disks().unwrap());
        let is_out = |disk: &usize| matches!(array.state(*disk), DiskState::Out { .. });
        if let Some(out) = (0..array.disks()).find(is_out).filter(|_| self.replaces) {
            self.shepherd.replace_disk(out, &self.successor, [99; 16]).unwrap();
            self.replaces = false;
        }
        let count = 1 + self.seed.below(2 * self.shepherd.blocks());
        self.shepherd.rebuild(count).unwrap();
    }

    /// A batch of one to three blocks.
    fn write_some(&mut self, fill: u8) {
        let data = vec![fill; BLOCK];
        let count = usize::try_from(self.seed.below(3)).unwrap() + 1;
        let first =
            usize::try_from(self.seed.below(u64::try_from(self.oracle.homes.len()).unwrap())).unwrap();
        let homes: BTreeMap<u64, usize> = (first..self.oracle.homes.len())
            .take(count)
            .map(|home| (self.oracle.homes[home], home))
            .collect();
        let writes: Vec<BlockWrite<'_>> = homes
            .keys()
            .map(|block| BlockWrite { block: BlockNo(*block), kind: kind(*block), data: &data })
            .collect();
        let operation = self.operations;
        self.recorder.mark(Mark::Begin(u32::try_from(operation).unwrap()));
        let failed = match self.shepherd.put(&writes) {
            Ok(failed) => failed.into_iter().map(|(block, _)| block.get()).collect(),
            Err(_) => homes.keys().copied().collect::<BTreeSet<u64>>(),
        };
        self.recorder.mark(Mark::End(u32::try_from(operation).unwrap()));
        for (block, home) in homes {
            let has_failed = failed.contains(&block);
            self.oracle.writes.push(Write { operation, home, fill, has_failed });
        }
        self.operations += 1;
    }
}

/// Every fault that a program can meet.
fn faults(program: u64) -> Vec<Fault> {
    let (mut run, _) = Run::new(program);
    run.go(None);
    let asked = run.machine.asked.iter().map(|asked| asked.load(Ordering::SeqCst)).take(count_of(program));
    let each = asked.enumerate().flat_map(|(disk, asked)| {
        (0..asked).flat_map(move |nth| [Fault::Death(disk, nth), Fault::Hiccup(disk, nth)])
    });
    each.collect()
}

/// A program with a fault, and all that cuts may leave of it.
fn explore(program: u64, fault: Option<Fault>, level: Level, choices: u64) -> Outcome {
    let (mut run, base) = Run::new(program);
    run.go(fault);
    let Run { recorder, machine, shepherd, oracle, .. } = run;
    if let Some(Fault::Death(..)) = fault {
        let failed = oracle.writes.iter().filter(|write| write.has_failed).count();
        assert_eq!(failed, 0, "all has a copy: program {program}, {fault:?}");
    }
    drop((shepherd, machine));
    let dead = match fault {
        Some(Fault::Death(disk, _)) => Some(disk),
        _ => None,
    };
    let names = ("shepherd".to_owned(), format!("arrays-{program}"));
    let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
    let subject = Reopened { disks: count_of(program) + 1, dead, homes: oracle.homes.clone() };
    Past { names, base, log: recorder.take(), subject: &subject, oracle: &oracle }.judge(options)
}

fn seeds(sample: Range<u64>) -> Range<u64> {
    let Ok(given) = std::env::var("FSTITCH_CRASH_SEEDS") else { return sample };
    let (first, end) = given.split_once("..").expect("first..end");
    first.parse().expect("a number")..end.parse().expect("a number")
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |given| given.parse().expect("a number"))
}

#[test]
fn every_cut_leaves_versions_on_the_disks_that_are_left() {
    let (choices, every) = (number("FSTITCH_CRASH_CHOICES", 6), number("FSTITCH_CRASH_EVERY", 71));
    let mut total = Counts::default();
    let mut faulty = 0;
    for program in seeds(0..15) {
        let chosen = |at: &u64| (at + program).is_multiple_of(every);
        let chosen = (0..).zip(faults(program)).filter(|(at, _)| chosen(at));
        let faults = std::iter::once((program, None)).chain(chosen.map(|(at, fault)| (at, Some(fault))));
        for (at, fault) in faults {
            let level = [Level::M1, Level::M2, Level::M3][usize::try_from(at % 3).unwrap()];
            let outcome = explore(program, fault, level, choices);
            assert_eq!(outcome.found, [], "program {program}, {fault:?} at {level}");
            total.add(&outcome.counts);
            faulty += u64::from(fault.is_some());
        }
    }
    println!("{faulty} faults");
    say(&total);
    assert!(faulty > 0 && total.checked > total.cuts, "{total:?}");
}
