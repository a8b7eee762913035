//! Random histories: the model against the naive one, and the levels against each other.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_crashlab::medium::{Event, History, Level, Mark, Progress, RequestNo, for_each_cut};
use proptest::prelude::*;

use crate::naive;
use crate::past::{BLOCKS, Past, base, images_after, images_of};

/// Something that happens next, as far as it can.
#[derive(Clone, Debug)]
pub enum Step {
    Write {
        block: u64,
        fua: bool,
        half: bool,
    },
    Discard {
        block: u64,
    },
    /// The n-th of the writes under way is acknowledged.
    Ack(usize),
    Flush,
    FlushAcked(usize),
    FlushFailed(usize),
    Begin,
    Promise,
}

/// More writes than this make the naive model slow.
const WRITES: usize = 6;

pub fn step() -> impl Strategy<Value = Step> {
    let block = 0..BLOCKS;
    prop_oneof![
        6 => (block.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(block, fua, half)| Step::Write { block, fua, half }),
        1 => block.prop_map(|block| Step::Discard { block }),
        6 => (0_usize..4).prop_map(Step::Ack),
        3 => Just(Step::Flush),
        3 => (0_usize..2).prop_map(Step::FlushAcked),
        1 => (0_usize..2).prop_map(Step::FlushFailed),
        1 => Just(Step::Begin),
        1 => Just(Step::Promise),
    ]
}

/// A lawful log that follows the steps, one version of a block being a letter of its own.
pub fn past(steps: &[Step]) -> Past {
    let mut past = Past::new();
    let (mut writes, mut flushes): (Vec<RequestNo>, Vec<RequestNo>) = (vec![], vec![]);
    let mut letters = ('d'..='z').zip('D'..='Z');
    let (mut count, mut begun, mut promises) = (0, 0, 0);
    for step in steps {
        match step {
            Step::Write { block, fua, half } if count < WRITES => {
                let (low, high) = letters.next().unwrap();
                // Versions that are equal in one sector must not be counted twice.
                let text = if *half { format!("{low}#") } else { format!("{low}{high}") };
                let write = if *fua { past.write_fua(*block, &text) } else { past.write(*block, &text) };
                writes.push(write);
                count += 1;
            }
            Step::Discard { block } if count < WRITES => {
                writes.push(past.discard(*block, 1));
                count += 1;
            }
            Step::Ack(n) if *n < writes.len() => past.ack(writes.remove(*n)),
            Step::Flush => flushes.push(past.flush()),
            Step::FlushAcked(n) if *n < flushes.len() => past.flush_acked(flushes.remove(*n)),
            Step::FlushFailed(n) if *n < flushes.len() => {
                past.event(Event::FlushFailed(flushes.remove(*n)));
            }
            Step::Begin => {
                past.event(Event::Mark(Mark::Begin(begun)));
                begun += 1;
            }
            Step::Promise => {
                past.event(Event::Mark(Mark::Promise(promises)));
                promises += 1;
            }
            _ => {}
        }
    }
    past
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_model_is_the_definition(steps in prop::collection::vec(step(), 0..24)) {
        let log = past(&steps).log;
        for at in 0..=log.events.len() {
            for level in Level::ALL {
                let (ours, theirs) =
                    (images_after(&log, at, level), naive::images(&log.events[..at], level));
                prop_assert_eq!(ours, theirs, "{} after {} of {:#?}", level, at, log.events);
            }
        }
    }

    #[test]
    fn each_level_includes_the_one_before(steps in prop::collection::vec(step(), 0..24)) {
        let log = past(&steps).log;
        for at in 0..=log.events.len() {
            let sets = Level::ALL.map(|level| images_after(&log, at, level));
            for (milder, harsher) in sets.iter().zip(&sets[1..]) {
                prop_assert!(milder.is_subset(harsher), "after {} of {:#?}", at, log.events);
            }
        }
    }

    /// The moments that are visited stand for all moments.
    #[test]
    fn no_image_is_missed_between_the_visited_cuts(steps in prop::collection::vec(step(), 0..24)) {
        let log = past(&steps).log;
        for level in Level::ALL {
            let all: BTreeSet<String> =
                (0..=log.events.len()).flat_map(|at| images_after(&log, at, level)).collect();
            let mut visited = BTreeSet::new();
            let history = History::new(Arc::clone(&base()), level);
            for_each_cut(history, &log, &mut |cut| visited.extend(images_of(cut)));
            prop_assert_eq!(all, visited, "{} of {:#?}", level, log.events);
        }
    }

    /// Nor judged more mildly: an image that is possible somewhere is visited with at least the promises given
    /// there, and with no more operations begun.
    #[test]
    fn each_image_is_visited_with_its_strictest_window(steps in prop::collection::vec(step(), 0..24)) {
        let log = past(&steps).log;
        for level in Level::ALL {
            let mut visited: Vec<(Progress, BTreeSet<String>)> = Vec::new();
            let history = History::new(Arc::clone(&base()), level);
            for_each_cut(history, &log, &mut |cut| visited.push((cut.progress, images_of(cut))));
            let mut history = History::new(Arc::clone(&base()), level);
            for at in 0..=log.events.len() {
                let now = history.progress();
                let as_strict = |seen: &Progress| seen.promises >= now.promises && seen.begun <= now.begun;
                let covered: BTreeSet<&String> =
                    visited.iter().filter(|(seen, _)| as_strict(seen)).flat_map(|(_, images)| images).collect();
                for image in naive::images(&log.events[..at], level) {
                    prop_assert!(
                        covered.contains(&image), "{} at {} after {} of {:#?}", image, level, at, log.events
                    );
                }
                log.events.get(at).into_iter().for_each(|event| history.apply(event));
            }
        }
    }
}
