//! Every store is a point at which the power may go: what is left is the tree before the operation that was under way, or after it,
//! exactly.
//!
//! What it prevents: a commit before what it makes reachable, a word in two halves, half an operation, a volume that cannot be mounted.
//!
//! Under write-through each prefix of the stores is a state, word by word within those that are longer. Under epochs each set of words
//! of those that are between two fences may be durable: without one, one alone, and random ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::{Leaf, Op, Side};
use crate::image::Image;
use crate::operations::{operations, preparations, target};
use crate::support::{Event, Log, check, clock, empty, options, watched};
use fstitch_bpfs::{Bpfs, Caching, Medium, Optimizations, Options};
use fstitch_core::{FileSystem, ManualClock, Seed};

type Tree = BTreeMap<Vec<u8>, Leaf>;

/// What was looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    programs: u64,
    operations: u64,
    cuts: u64,
    states: u64,
    opened: u64,
}

impl Counts {
    fn say(&self) {
        let Self { programs, operations, cuts, states, opened } = self;
        println!(
            "{programs} programs, {operations} operations, {cuts} cuts, {states} states, of which {opened} were recovered and read"
        );
    }
}

/// How states are judged.
#[derive(Clone, Copy)]
struct Judge {
    options: Options,
    /// Times belong to the operation. Where they do not, time stands still, so that all of them are the same.
    exact: bool,
    /// Random sets of words for each epoch.
    choices: u64,
    /// The operation from which on time stands still.
    still_from: usize,
}

/// The tree that operations begin on; with `one_time`, everything has happened at once.
fn prepared(one_time: bool) -> Vec<u8> {
    let image = empty(1 << 20);
    let clock = clock();
    let (fs, _) = watched(&image, options(Optimizations::ALL), &clock);
    let fs = Arc::new(fs);
    let mut side = Side::new(Arc::<Bpfs>::clone(&fs) as Arc<dyn FileSystem>);
    for op in preparations() {
        clock.advance(Duration::from_secs(u64::from(!one_time)));
        let answer = side.run(&op);
        assert!(!matches!(answer, crate::driver::Answer::Failed(_)), "{op:?}: {answer:?}");
    }
    drop(side);
    check(&fs);
    fs.image()
}

impl Judge {
    fn new(optimizations: Optimizations, caching: Caching) -> Self {
        let choices = std::env::var("FSTITCH_CRASH_CHOICES").map_or(3, |choices| choices.parse().unwrap());
        let exact = optimizations.journal_times || !optimizations.times;
        Self {
            options: Options { caching, ..options(optimizations) },
            exact,
            choices,
            still_from: usize::MAX,
        }
    }

    fn see(&self, fs: Bpfs) -> Tree {
        Side::brief(Arc::new(fs)).tree()
    }

    /// Opens a state; what is there, and what opening it has stored.
    fn open(&self, medium: Medium, clock: &Arc<ManualClock>, story: &str) -> (Tree, Vec<Event>) {
        let log = Log::default();
        let watch = Some(Box::new(log.clone()) as _);
        let opened = Bpfs::open_watched(medium, self.options, Arc::<ManualClock>::clone(clock), watch);
        let fs = opened.unwrap_or_else(|error| panic!("{story}: it cannot be opened: {error}"));
        let report = fs.check().unwrap();
        assert!(report.is_clean(), "{story}: {:?}", report.findings);
        let events = std::mem::take(&mut *log.0.lock().unwrap());
        (self.see(fs), events)
    }

    /// Runs operations and judges every state of them.
    fn run(&self, images: &[Vec<u8>; 2], ops: &[Op], counts: &mut Counts) {
        let image = &images[usize::from(!self.exact)];
        let clock = clock();
        clock.advance(Duration::from_secs(if self.exact { 1000 } else { 0 }));
        let (fs, log) = watched(image, self.options, &clock);
        let fs = Arc::new(fs);
        let mut side = Side::new(Arc::<Bpfs>::clone(&fs) as Arc<dyn FileSystem>);
        let mut base = Image::new(image.clone());
        let mut trees = vec![self.open(base.medium(), &clock, "at the beginning").0];
        // Stores of operations before that are not durable yet.
        let mut epoch: Vec<(u64, Vec<u8>)> = Vec::new();
        counts.programs += 1;
        for (number, op) in ops.iter().enumerate() {
            if !self.exact && matches!(op, Op::Utimes(..)) {
                trees.push(trees[number].clone());
                continue;
            }
            clock.advance(Duration::from_secs(u64::from(self.exact && number < self.still_from)));
            let _ = side.run(op);
            counts.operations += 1;
            let events = std::mem::take(&mut *log.0.lock().unwrap());
            let story = format!(
                "{:?}, {:?}, operation {number} of {ops:?}",
                self.options.optimizations, self.options.caching
            );
            // What opening finds out anew may be wrong in memory.
            check(&fs);
            let (after, _) = self.open(Medium::copy_of(&fs.image()).unwrap(), &clock, &story);
            trees.push(after);
            match self.options.caching {
                Caching::WriteThrough => {
                    self.prefixes(&mut base, &events, &trees[number..], &clock, &story, counts)
                }
                Caching::Epochs => {
                    self.epochs((&mut base, &mut epoch), &events, &trees, &clock, &story, counts)
                }
            }
        }
        assert!(self.options.caching == Caching::Epochs || base.bytes() == fs.image(), "a store went by");
    }

    /// One of some trees, and not an older one than `from`; which.
    fn judge(
        &self,
        image: &mut Image,
        trees: &[Tree],
        from: usize,
        clock: &Arc<ManualClock>,
        story: &str,
        counts: &mut Counts,
    ) -> usize {
        counts.states += 1;
        counts.opened += 1;
        let (tree, events) = self.open(image.medium(), clock, story);
        let found = trees.iter().rposition(|one| *one == tree);
        let found = found.unwrap_or_else(|| {
            panic!("{story}: it is neither before nor after: {:?}", difference(&tree, trees))
        });
        assert!(found >= from, "{story}: it was after, and is before again");
        if !events.is_empty() {
            // Opening is cut as well.
            let mark = image.mark();
            for event in &events {
                let Event::Store(at, bytes) = event else { continue };
                for (at, word) in words(*at, bytes) {
                    image.apply_for_now(at, word);
                    counts.states += 1;
                    let (again, _) = self.open(image.medium(), clock, story);
                    assert_eq!(again, tree, "{story}: opening was cut off");
                }
            }
            image.back_to(mark);
        }
        found
    }

    fn prefixes(
        &self,
        base: &mut Image,
        events: &[Event],
        trees: &[Tree],
        clock: &Arc<ManualClock>,
        story: &str,
        counts: &mut Counts,
    ) {
        let (mut from, mut fenced) = (0, 0);
        for event in events {
            let Event::Store(at, bytes) = event else {
                fenced = from;
                continue;
            };
            let pieces = words(*at, bytes);
            let many = pieces.len();
            for (number, (at, word)) in pieces.into_iter().enumerate() {
                base.apply(at, word);
                // Of long stores of contents the beginning, the end and some between.
                if many <= 40 || number < 3 || number + 3 >= many || number % 61 == 0 {
                    counts.cuts += 1;
                    from = self.judge(base, trees, from, clock, story, counts);
                }
            }
        }
        if let [before, after] = trees {
            // What is behind the last fence may not have reached the medium when the operation returned.
            assert!(fenced == 1 || before == after, "{story}: it has returned, and is not durable");
        }
    }

    fn epochs(
        &self,
        (base, epoch): (&mut Image, &mut Vec<(u64, Vec<u8>)>),
        events: &[Event],
        trees: &[Tree],
        clock: &Arc<ManualClock>,
        story: &str,
        counts: &mut Counts,
    ) {
        for event in events {
            match event {
                Event::Store(at, bytes) => {
                    epoch.extend(words(*at, bytes).into_iter().map(|(at, word)| (at, word.to_vec())));
                    self.subsets(base, epoch, trees, clock, story, counts);
                }
                Event::Fence => {
                    for (at, word) in epoch.drain(..) {
                        base.apply(at, &word);
                    }
                }
            }
        }
    }

    fn subsets(
        &self,
        base: &mut Image,
        epoch: &[(u64, Vec<u8>)],
        trees: &[Tree],
        clock: &Arc<ManualClock>,
        story: &str,
        counts: &mut Counts,
    ) {
        counts.cuts += 1;
        let mut seed = Seed::new(counts.cuts);
        let few = epoch.len().min(6);
        let tail = epoch.len() - few;
        for choice in 0..self.choices + 2 * fstitch_core::num::to_u64(few) {
            let mark = base.mark();
            for (number, (at, word)) in epoch.iter().enumerate() {
                let nth = number.checked_sub(tail).map(fstitch_core::num::to_u64);
                let is_there = match choice.checked_sub(self.choices) {
                    None => seed.below(2) == 0,
                    // Without one, or one alone.
                    Some(one) if one % 2 == 0 => nth != Some(one / 2),
                    Some(one) => nth == Some(one / 2),
                };
                if is_there {
                    base.apply_for_now(*at, word);
                }
            }
            self.judge(base, trees, 0, clock, story, counts);
            base.back_to(mark);
        }
    }
}

/// What two trees differ in, for people.
fn difference(tree: &Tree, trees: &[Tree]) -> Vec<String> {
    let near = trees.last().unwrap();
    let other = &trees[trees.len().saturating_sub(2)];
    let paths: std::collections::BTreeSet<_> = tree.keys().chain(near.keys()).chain(other.keys()).collect();
    paths
        .into_iter()
        .filter(|path| tree.get(*path) != near.get(*path) || tree.get(*path) != other.get(*path))
        .map(|path| {
            let show = |leaf: Option<&Leaf>| format!("{leaf:?}").chars().take(300).collect::<String>();
            let name = String::from_utf8_lossy(path);
            format!(
                "\n{name}: found {}\n  before {}\n  after {}",
                show(tree.get(path)),
                show(other.get(path)),
                show(near.get(path))
            )
        })
        .collect()
}

/// The aligned words of a store, or what it has of them.
fn words(at: u64, bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut pieces = Vec::new();
    let mut done = 0;
    while done < bytes.len() {
        let from = at + done as u64;
        let len = usize::try_from(8 - from % 8).unwrap().min(bytes.len() - done);
        pieces.push((from, &bytes[done..done + len]));
        done += len;
    }
    pieces
}

const WRITE_THROUGH: [Optimizations; 6] = [
    Optimizations::SHADOW_PAGING,
    Optimizations::SHORT_CIRCUIT,
    Optimizations::APPEND_AND_TIMES,
    Optimizations::ALL_OF_THE_PAPER,
    Optimizations::JOURNAL,
    Optimizations::ALL,
];

/// All operations in the long form.
fn every() -> usize {
    std::env::var("FSTITCH_CRASH_STEP").map_or(4, |_| 1)
}

#[test]
fn every_operation_survives_at_every_store() {
    let (images, mut counts) = (images(), Counts::default());
    for optimizations in WRITE_THROUGH {
        for op in operations().into_iter().step_by(every()) {
            Judge::new(optimizations, Caching::WriteThrough).run(&images, &[op], &mut counts);
        }
    }
    counts.say();
    assert!(counts.states > 1_000, "{counts:?}");
}

#[test]
fn every_operation_survives_in_every_epoch() {
    let (images, mut counts) = (images(), Counts::default());
    for optimizations in [Optimizations::ALL_OF_THE_PAPER, Optimizations::ALL] {
        for op in operations().into_iter().step_by(every()) {
            Judge::new(optimizations, Caching::Epochs).run(&images, &[op], &mut counts);
        }
    }
    counts.say();
    assert!(counts.states > 1_000, "{counts:?}");
}

/// A file that became shorter, and that is not durable yet, grows again.
#[test]
fn what_an_end_hides_is_written_when_it_hides_it() {
    let (images, mut counts) = (images(), Counts::default());
    let path = |path: &[u8]| path.to_vec();
    let pairs = [
        [Op::Truncate(target(b"f"), 3), Op::Write(target(b"f"), 5, 100, 6)],
        [Op::Truncate(target(b"big"), 5000), Op::Write(target(b"big"), 5005, 50, 6)],
        [Op::Unlink(path(b"f")), Op::Create(path(b"other"), 0o644)],
        [Op::Unlink(path(b"h")), Op::Create(path(b"i"), 0o644)],
    ];
    for pair in pairs {
        Judge::new(Optimizations::ALL_OF_THE_PAPER, Caching::Epochs).run(&images, &pair, &mut counts);
    }
    counts.say();
}

/// The last name of a file that somebody holds goes, and its time follows: also where the directory has that time already, so that the name
/// is one word.
#[test]
fn the_last_name_of_a_held_file_goes_at_once() {
    let (images, mut counts) = (images(), Counts::default());
    let path = |path: &[u8]| path.to_vec();
    let held = [Op::Hold(path(b"f")), Op::Unlink(path(b"h")), Op::Create(path(b"other"), 0o644)];
    for end in [Op::Unlink(path(b"f")), Op::Rename(path(b"big"), path(b"f"), true)] {
        let ops = [&held[..], &[end]].concat();
        for optimizations in [Optimizations::ALL_OF_THE_PAPER, Optimizations::JOURNAL, Optimizations::ALL] {
            for caching in [Caching::WriteThrough, Caching::Epochs] {
                let judge = Judge::new(optimizations, caching);
                judge.run(&images, &ops, &mut counts);
                Judge { still_from: 3, ..judge }.run(&images, &ops, &mut counts);
            }
        }
    }
    counts.say();
}

/// The number of a file that went is the lowest free one, and its inode is written to only when the name that goes is durable.
#[test]
fn a_number_is_taken_again_when_its_name_is_gone_for_good() {
    let (images, mut counts) = (images(), Counts::default());
    let create = |name: &[u8], mode| Op::Create(name.to_vec(), mode);
    let ops = [create(b"one", 0o644), Op::Unlink(b"one".to_vec()), create(b"another", 0o755)];
    for optimizations in [Optimizations::ALL_OF_THE_PAPER, Optimizations::ALL] {
        Judge::new(optimizations, Caching::Epochs).run(&images, &ops, &mut counts);
    }
    counts.say();
}

/// The tree with times of their own, and with one for all.
fn images() -> [Vec<u8>; 2] {
    [prepared(false), prepared(true)]
}

/// All pairs, or every n-th of them.
#[test]
fn pairs_of_operations_survive() {
    let step: usize = std::env::var("FSTITCH_CRASH_STEP").map_or(101, |step| step.parse().unwrap());
    let (images, mut counts) = (images(), Counts::default());
    let all = operations();
    let pairs = all.iter().flat_map(|one| all.iter().map(move |other| [one.clone(), other.clone()]));
    for (number, pair) in pairs.enumerate() {
        if number % step == 0 {
            let caching = if number / step % 3 == 2 { Caching::Epochs } else { Caching::WriteThrough };
            let optimizations = WRITE_THROUGH[5 - number / step % 2 * 2];
            Judge::new(optimizations, caching).run(&images, &pair, &mut counts);
        }
    }
    counts.say();
    assert!(counts.states > 1_000, "{counts:?}");
}

/// Random programs by seed: `FSTITCH_CRASH_SEEDS=1..100`.
#[test]
fn random_programs_survive() {
    let range = std::env::var("FSTITCH_CRASH_SEEDS").unwrap_or_else(|_| "1..3".to_owned());
    let (first, end) = range.split_once("..").unwrap();
    let (images, mut counts) = (images(), Counts::default());
    let all = operations();
    for number in first.parse::<u64>().unwrap()..end.parse().unwrap() {
        let mut seed = Seed::new(number);
        let ops: Vec<Op> =
            (0..40).map(|_| all[usize::try_from(seed.below(all.len() as u64)).unwrap()].clone()).collect();
        let caching = if number % 2 == 0 { Caching::Epochs } else { Caching::WriteThrough };
        let optimizations = WRITE_THROUGH[usize::try_from(number % 6).unwrap()];
        println!("seed {number}: {optimizations:?}, {caching:?}");
        Judge::new(optimizations, caching).run(&images, &ops, &mut counts);
    }
    counts.say();
}
