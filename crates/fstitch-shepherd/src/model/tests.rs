//! The model: what is said of the shipped policies, and what holds for any.

use proptest::prelude::*;

use super::*;
use crate::policy::{SHIPPED, Standing, shipped};
use fstitch_core::BlockKind;

const INODE: Kind = Kind::Block(BlockKind::Inode);
const DATA: Kind = Kind::Block(BlockKind::Data);

fn told(name: &str, kind: Kind, direction: Direction, scenario: &Scenario) -> (Vec<&'static str>, Seen) {
    let policy = Policy::parse(shipped(name).unwrap().text).unwrap();
    let story = explain(&policy, kind, direction, scenario);
    (story.events.iter().map(|event| event.name()).collect(), story.seen)
}

/// \[C\] figure 13: four runs of one policy, each with one defence fewer.
#[test]
fn defence_in_depth_goes_from_one_defence_to_the_next() {
    let mut scenario = Scenario::of(Fault::Corrupt);
    let read = |scenario: &Scenario| told("defence-in-depth", INODE, Direction::Read, scenario);
    assert_eq!(read(&scenario), (vec!["sum-differs", "copy-read", "renewed"], Seen::Right));
    scenario.copies = false;
    assert_eq!(read(&scenario), (vec!["sum-differs", "no-copy", "repaired", "renewed"], Seen::Right));
    scenario.repairable = false;
    assert_eq!(read(&scenario), (vec!["sum-differs", "no-copy", "no-repair", "checked"], Seen::Right));
    scenario.checkable = false;
    let all = vec!["sum-differs", "no-copy", "no-repair", "checked-in-vain", "propagated"];
    assert_eq!(read(&scenario), (all, Seen::Error));
}

#[test]
fn policies_do_what_their_names_say() {
    let eio = Scenario::of(Fault::Error);
    let transient = Scenario::of(Fault::Transient(2));
    let cases = [
        ("propagate", Direction::Read, eio, vec!["reported", "propagated"], Seen::Error),
        ("propagate", Direction::Read, Scenario::of(Fault::Corrupt), vec!["unnoticed"], Seen::Wrong),
        ("retry", Direction::Read, transient, vec!["reported", "asked-again"], Seen::Right),
        ("retry", Direction::Write, eio, vec!["reported", "asked-in-vain", "propagated"], Seen::Error),
        ("reiserfs", Direction::Write, transient, vec!["reported", "stopped"], Seen::Error),
        (
            "reboot",
            Direction::Read,
            Scenario::of(Fault::Transient(1)),
            vec!["reported", "remounted"],
            Seen::Right,
        ),
        ("reboot", Direction::Write, eio, vec!["reported", "remounted"], Seen::Error),
        (
            "checksum",
            Direction::Read,
            Scenario::of(Fault::Stale),
            vec!["sum-differs", "propagated"],
            Seen::Error,
        ),
        ("checksum", Direction::Write, Scenario::of(Fault::Lost), vec!["unnoticed"], Seen::Right),
        ("mirror-far", Direction::Read, eio, vec!["reported", "copy-read", "not-renewed"], Seen::Right),
        ("remap", Direction::Write, eio, vec!["reported", "moved"], Seen::Right),
        (
            "remap-mirror",
            Direction::Read,
            eio,
            vec!["reported", "copy-read", "renewed-elsewhere"],
            Seen::Right,
        ),
        (
            "parity",
            Direction::Read,
            Scenario::of(Fault::Zeroed),
            vec!["sum-differs", "reconstructed", "renewed"],
            Seen::Right,
        ),
    ];
    for (name, direction, scenario, events, seen) in cases {
        assert_eq!(told(name, DATA, direction, &scenario), (events, seen), "{name}");
    }
    // Sanity sees what breaks a rule, and nothing else.
    assert_eq!(told("sanity", INODE, Direction::Read, &Scenario::of(Fault::Zeroed)).1, Seen::Error);
    assert_eq!(told("sanity", INODE, Direction::Read, &Scenario::of(Fault::Stale)).1, Seen::Wrong);
}

/// A retry whose time is up asks less often than it may.
#[test]
fn delays_bound_attempts() {
    let policy = Policy::parse("[data]\nread = [\"retry 10 100ms within 250ms\"]").unwrap();
    let story = explain(&policy, DATA, Direction::Read, &Scenario::of(Fault::Transient(4)));
    assert_eq!(story.events[1], Event::AskedInVain(2));
}

#[test]
fn a_story_is_shown_line_by_line() {
    let policy = Policy::parse(shipped("remap").unwrap().text).unwrap();
    let story = explain(&policy, DATA, Direction::Write, &Scenario::of(Fault::Error));
    let lines =
        "the disk reports an error\nremap: written to a spare, and noted\nthe caller gets what it asked for";
    assert_eq!(story.to_string(), lines);
}

fn scenarios() -> impl Strategy<Value = Scenario> {
    let fault =
        prop_oneof![(0_usize..10).prop_map(|at| Fault::ALL[at]), (0_u32..9).prop_map(Fault::Transient)];
    (fault, prop::array::uniform9(any::<bool>())).prop_map(|(fault, flags)| {
        let [breaks_rules, copies, elsewhere, parity, repairable, checkable, remountable, writable, spares] =
            flags;
        Scenario {
            fault,
            breaks_rules,
            copies,
            elsewhere,
            parity,
            repairable,
            checkable,
            remountable,
            writable,
            spares,
        }
    })
}

proptest! {
    /// What holds of every shipped policy, kind and scenario.
    #[test]
    fn stories_keep_what_chains_say(which in 0_usize..SHIPPED.len(), kind in 0_usize..17, scenario in scenarios()) {
        let policy = Policy::parse(SHIPPED[which].text).unwrap();
        let kind = Kind::ALL[kind];
        for direction in Direction::ALL {
            let chain = policy.chain(kind, direction);
            let story = explain(&policy, kind, direction, &scenario);
            // It ends, and with its end only if nothing helped.
            prop_assert!(story.events.len() <= 2 * chain.answers.len() + 2, "{story}");
            let ended = matches!(story.events.last(), Some(Event::Ended(end)) if *end == chain.end);
            prop_assert_eq!(story.end.is_some(), ended);
            prop_assert!(!ended || story.seen == Seen::Error);
            // Verified reads are right or fail.
            if direction == Direction::Read && chain.stands(Standing::Verify) {
                prop_assert_ne!(story.seen, Seen::Wrong);
            }
            // What the disk reports reaches the caller, or something helped.
            if scenario.fault == Fault::Error && chain.answers.is_empty() {
                prop_assert_eq!(story.seen, Seen::Error);
            }
            prop_assert!(!story.is_latent || direction == Direction::Write);
        }
    }
}
