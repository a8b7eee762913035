//! Persistent memory: images worked out by hand, and random histories against the words of `docs/design/crashlab.md`.
//!
//! A picture has a letter for each word of eight bytes; the region has two lines of eight words, of which the first three
//! of each line are used.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockNo, Seed};
use fstitch_crashlab::medium::{
    Access, Base, Cut, Event, History, Image, Level, Log, Mark, PersistentMemory, cut_at, for_each_choice,
    for_each_cut,
};
use proptest::prelude::*;

/// Words of the region that tests use, by their place in it.
const WORDS: [u64; 6] = [0, 1, 2, 8, 9, 10];

fn base() -> Arc<Base> {
    Base::of_memory(b"-".repeat(128))
}

fn memory() -> PersistentMemory<Image> {
    PersistentMemory::new(Image::new(base()))
}

/// Fills a word, named by its number in [`WORDS`], with a letter.
fn put(memory: &PersistentMemory<Image>, word: usize, letter: char) {
    memory.store(WORDS[word] * 8, letter.to_string().repeat(8).as_bytes()).unwrap();
}

fn flush(memory: &PersistentMemory<Image>, line: u64) {
    memory.flush(line * 64..line * 64 + 64).unwrap();
}

fn picture(image: &Image) -> String {
    let bytes = image.bytes();
    let letter = |word: &u64| {
        let at = BlockNo(*word).index() * 8;
        let word = &bytes[at..at + 8];
        assert!(word.iter().all(|byte| *byte == word[0]), "no word is torn");
        char::from(word[0])
    };
    WORDS.iter().map(letter).collect()
}

fn pictures(cut: &Cut) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    let coverage = for_each_choice(cut, u64::MAX, &mut Seed::new(0), &mut |choice| {
        all.insert(picture(&cut.image(choice)));
        true
    });
    assert_eq!(u128::from(coverage.visited), coverage.possible, "all of it is visited");
    all
}

/// The images that a cut after these events can leave.
fn after(events: &[Event], level: Level) -> BTreeSet<String> {
    let mut history = History::new(base(), level);
    events.iter().for_each(|event| history.apply(event));
    pictures(&history.cut())
}

fn list(memory: &PersistentMemory<Image>, level: Level) -> String {
    let log = memory.take();
    after(&log.events, level).into_iter().collect::<Vec<_>>().join(" ")
}

#[test]
fn words_of_one_line_arrive_each_by_itself() {
    let stored = || {
        let memory = memory();
        put(&memory, 0, 'a');
        put(&memory, 1, 'b');
        put(&memory, 0, 'c');
        memory
    };
    let all = "------ -b---- a----- ab---- c----- cb----";
    assert_eq!(list(&stored(), Level::M3), all);
    assert_eq!(
        list(&stored(), Level::M2),
        "------ a----- ab---- cb----",
        "a line holds a prefix of its stores"
    );
    assert_eq!(list(&stored(), Level::M0), "------ a----- ab---- cb----");
}

#[test]
fn lines_arrive_in_any_order_unless_the_caches_survive() {
    let stored = || {
        let memory = memory();
        put(&memory, 0, 'a');
        put(&memory, 3, 'b');
        memory
    };
    for level in [Level::M1, Level::M2, Level::M3] {
        assert_eq!(list(&stored(), level), "------ ---b-- a----- a--b--", "{level}");
    }
    assert_eq!(list(&stored(), Level::M0), "------ a----- a--b--");
}

#[test]
fn a_fence_settles_what_was_flushed_before_it() {
    let memory = memory();
    put(&memory, 0, 'a');
    put(&memory, 3, 'b');
    flush(&memory, 0);
    put(&memory, 0, 'c');
    memory.fence();
    let log = memory.take();
    let list = |level| after(&log.events, level).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(list(Level::M3), "a----- a--b-- c----- c--b--", "neither the other line nor the later store");
    assert_eq!(list(Level::M2), list(Level::M3));
    for level in [Level::M0, Level::M1] {
        assert_eq!(list(level), "c--b--", "where the caches survive, a fence suffices");
    }
}

#[test]
fn neither_a_flush_nor_a_fence_settles_anything_alone() {
    let memory = memory();
    put(&memory, 0, 'a');
    memory.fence();
    flush(&memory, 0);
    assert_eq!(list(&memory, Level::M3), "------ a-----");
}

#[test]
fn a_long_store_may_arrive_in_part() {
    let memory = memory();
    memory.store(0, &[b'a'; 24]).unwrap();
    assert_eq!(memory.take().events.len(), 3, "a store for each word");
    memory.store(0, &[b'a'; 24]).unwrap();
    assert_eq!(list(&memory, Level::M2), "------ a----- aa---- aaa---");
    memory.store(0, &[b'a'; 24]).unwrap();
    assert_eq!(list(&memory, Level::M3).split(' ').count(), 8);
}

#[test]
fn what_is_stored_is_read_across_words_and_lines() {
    let memory = memory();
    memory.store(61, b"across").unwrap();
    let offsets: Vec<(u64, usize)> = memory
        .take()
        .events
        .iter()
        .map(|event| match event {
            Event::Memory(Access::Store { offset, data, .. }) => (*offset, data.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(offsets, [(61, 3), (64, 3)]);
    assert_eq!(memory.load::<8>(60).unwrap(), *b"-across-");
    memory.flush(61..67).unwrap();
    memory.flush(70..70).unwrap();
    assert_eq!(memory.take().events, [Event::Memory(Access::Flush { lines: 0..2 })]);
    memory.persist(0, b"x").unwrap();
    assert_eq!(memory.load::<2>(0).unwrap(), *b"x-");
    assert_eq!(memory.take().events.len(), 3);
}

#[test]
fn nothing_happens_outside_the_region() {
    let memory = memory();
    assert_eq!(memory.bytes(), 128);
    assert!(memory.store(121, &[0; 8]).is_err() && memory.load::<8>(121).is_err());
    assert!(memory.flush(120..129).is_err() && memory.store(u64::MAX, &[0]).is_err());
    assert_eq!(memory.take().events, []);
    assert_eq!(memory.device().geometry().atomic_size, 8);
}

#[test]
fn an_atom_has_the_size_of_its_medium() {
    for (base, level, atom) in [
        (base(), Level::M3, 8),
        (base(), Level::M2, 64),
        (Base::new(4096, vec![0; 4096]), Level::M3, 512),
        (Base::new(4096, vec![0; 4096]), Level::M2, 4096),
        (Base::with_atoms(4096, 1024, vec![0; 4096]), Level::M3, 1024),
    ] {
        assert_eq!(History::new(base, level).atom(), atom);
    }
}

/// The definition, word by word: what a word may hold is its value at the last fence, or what was stored since. At M2 the
/// same of lines, at M1 of lines that nobody need flush.
fn naive(events: &[Event], level: Level) -> BTreeSet<String> {
    let line_of = |word: usize| word / 3;
    let stores: Vec<(usize, usize, char)> = events
        .iter()
        .enumerate()
        .filter_map(|(at, event)| match event {
            Event::Memory(Access::Store { offset, data, .. }) => {
                let word = WORDS.iter().position(|word| word * 8 == *offset).unwrap();
                Some((at, word, char::from(data[0])))
            }
            _ => None,
        })
        .collect();
    let flushed = |line: usize, from: usize, until: usize| {
        events[from..until].iter().any(|event| match event {
            Event::Memory(Access::Flush { lines }) => lines.contains(&u64::try_from(line).unwrap()),
            _ => false,
        })
    };
    let durable = |at: usize, word: usize| {
        (at..events.len()).any(|fence| {
            events[fence] == Event::Memory(Access::Fence)
                && (level < Level::M2 || flushed(line_of(word), at, fence))
        })
    };
    let replay = |start: &str, stores: &[(usize, usize, char)]| {
        let mut image = start.to_owned();
        for (_, word, letter) in stores {
            image.replace_range(*word..=*word, &letter.to_string());
        }
        image
    };
    // What can arrive by itself: all of memory, a line, or a word.
    let groups: Vec<Vec<usize>> = match level {
        Level::M0 => vec![(0..6).collect()],
        Level::M1 | Level::M2 => vec![(0..3).collect(), (3..6).collect()],
        Level::M3 => (0..6).map(|word| vec![word]).collect(),
    };
    let mut images = BTreeSet::from(["------".to_owned()]);
    for group in groups {
        let ours: Vec<_> = stores.iter().filter(|(_, word, _)| group.contains(word)).copied().collect();
        let least = ours.iter().rposition(|(at, word, _)| durable(*at, *word)).map_or(0, |last| last + 1);
        images = images
            .iter()
            .flat_map(|start| (least..=ours.len()).map(|count| replay(start, &ours[..count])))
            .collect();
    }
    images
}

#[derive(Clone, Debug)]
enum Step {
    Store(usize),
    Flush(u64),
    Fence,
    Begin,
    Promise,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..WORDS.len()).prop_map(Step::Store),
        3 => (0_u64..2).prop_map(Step::Flush),
        2 => Just(Step::Fence),
        1 => Just(Step::Begin),
        1 => Just(Step::Promise),
    ]
}

fn past(steps: &[Step]) -> Log {
    let memory = memory();
    let mut letters = 'a'..='z';
    let (mut begun, mut promises) = (0, 0);
    for step in steps {
        match step {
            Step::Store(word) => letters.next().into_iter().for_each(|letter| put(&memory, *word, letter)),
            Step::Flush(line) => flush(&memory, *line),
            Step::Fence => memory.fence(),
            Step::Begin => {
                memory.mark(Mark::Begin(begun));
                begun += 1;
            }
            Step::Promise => {
                memory.mark(Mark::Promise(promises));
                promises += 1;
            }
        }
    }
    memory.take()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_of_memory_is_its_definition(steps in prop::collection::vec(step(), 0..14)) {
        let log = past(&steps);
        for at in 0..=log.events.len() {
            let sets = Level::ALL.map(|level| after(&log.events[..at], level));
            for (set, level) in sets.iter().zip(Level::ALL) {
                prop_assert_eq!(set, &naive(&log.events[..at], level), "{} after {} of {:#?}", level, at, log.events);
            }
            for (milder, harsher) in sets.iter().zip(&sets[1..]) {
                prop_assert!(milder.is_subset(harsher), "after {} of {:#?}", at, log.events);
            }
        }
    }

    /// The moments that are visited stand for all moments, with windows as strict as theirs.
    #[test]
    fn no_image_of_memory_is_missed(steps in prop::collection::vec(step(), 0..14)) {
        let log = past(&steps);
        for level in Level::ALL {
            let mut visited = Vec::new();
            for_each_cut(History::new(base(), level), &log, &mut |cut| {
                visited.push((cut.progress, pictures(cut)));
                let again = cut_at(History::new(base(), level), &log, cut.at).unwrap();
                assert_eq!(pictures(&again), visited.last().unwrap().1);
            });
            let mut history = History::new(base(), level);
            for at in 0..=log.events.len() {
                let now = history.progress();
                for image in naive(&log.events[..at], level) {
                    let seen = visited.iter().any(|(progress, images)| {
                        progress.promises >= now.promises && progress.begun <= now.begun && images.contains(&image)
                    });
                    prop_assert!(seen, "{} at {} after {} of {:#?}", image, level, at, log.events);
                }
                log.events.get(at).into_iter().for_each(|event| history.apply(event));
            }
        }
    }
}
