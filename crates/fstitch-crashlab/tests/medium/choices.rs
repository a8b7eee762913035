//! Which choices are visited.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::{BlockKind, Seed};
use fstitch_crashlab::medium::{Base, Cut, Event, History, Level, RequestNo, for_each_choice};
use proptest::prelude::*;

/// A cut at which block n has `versions[n]` volatile versions, one after the other.
fn cut(versions: &[u8]) -> Cut {
    let base = Base::new(512, vec![0; versions.len() * 512]);
    let mut history = History::new(Arc::clone(&base), Level::M2);
    let mut request = 0;
    for (block, &count) in versions.iter().enumerate() {
        for version in 1..=count {
            let data = vec![version; 512].into();
            let block = u64::try_from(block).unwrap();
            let no = RequestNo(request);
            history.apply(&Event::Write { request: no, block, kind: BlockKind::Data, data, fua: false });
            history.apply(&Event::Ack(no));
            request += 1;
        }
    }
    history.cut()
}

fn visited(cut: &Cut, limit: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let coverage = for_each_choice(cut, limit, &mut Seed::new(7), &mut |choice| {
        all.push(choice.to_vec());
        true
    });
    assert_eq!(coverage.visited, u64::try_from(all.len()).unwrap());
    assert_eq!(coverage.possible, cut.states());
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn gray_order_visits_each_choice_once_and_changes_one_atom_at_a_time(
        versions in prop::collection::vec(1_u8..4, 0..7),
    ) {
        let cut = cut(&versions);
        let all = visited(&cut, u64::MAX);
        let expected: usize = versions.iter().map(|&count| usize::from(count) + 1).product();
        prop_assert_eq!(all.len(), expected);
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), expected);
        for pair in all.windows(2) {
            let changes: Vec<_> = pair[0].iter().zip(&pair[1]).filter(|(a, b)| a != b).collect();
            prop_assert_eq!(changes.len(), 1);
            prop_assert_eq!(changes[0].0.abs_diff(*changes[0].1), 1, "by one version");
        }
    }
}

#[test]
fn sixteen_atoms_are_visited_exhaustively_and_seventeen_by_pattern() {
    assert_eq!(visited(&cut(&[1; 16]), u64::MAX).len(), 1 << 16);
    let (wide, limit) = (cut(&[1; 17]), 5_000);
    let all = visited(&wide, limit);
    assert_eq!(all.len(), 5_000);
    let set: BTreeSet<Vec<u8>> = all.into_iter().collect();
    let with = |atoms: &[usize], most: u8| {
        let mut choice = vec![most; 17];
        atoms.iter().for_each(|&at| choice[at] = 1 - most);
        choice
    };
    for n in 0..=17 {
        let first: Vec<usize> = (0..n).collect();
        assert!(set.contains(&with(&first, 0)), "the first {n} writes");
    }
    for a in 0..17 {
        for most in [0, 1] {
            assert!(set.contains(&with(&[a], most)), "all {most} but {a}");
            for b in 0..a {
                assert!(set.contains(&with(&[a, b], most)), "all {most} but {a} and {b}");
            }
        }
    }
    // 18 prefixes, 2 * 17 singles and 2 * 136 pairs, some of which coincide; the rest is drawn.
    assert!(set.len() > 2_000, "samples differ: {}", set.len());
}

#[test]
fn old_versions_come_up_by_pattern_too() {
    let wide = cut(&[3; 20]);
    let all = visited(&wide, 20_000);
    for version in 0..=3 {
        for atom in 0..20 {
            assert!(all.iter().any(|choice| choice[atom] == version), "version {version} of {atom}");
        }
    }
}

#[test]
fn a_limit_is_kept_and_the_same_seed_draws_the_same() {
    let wide = cut(&[2; 30]);
    for limit in [1, 10, 1_000] {
        let all = visited(&wide, limit);
        assert_eq!(u64::try_from(all.len()).unwrap(), limit);
        assert_eq!(all, visited(&wide, limit));
    }
}

#[test]
fn a_decided_medium_has_one_image() {
    assert_eq!(visited(&cut(&[]), 100), [Vec::<u8>::new()]);
    assert_eq!(cut(&[]).states(), 1);
}

#[test]
fn hundreds_of_versions_keep_the_oldest_and_the_newest() {
    let base = Base::new(512, vec![0; 512]);
    let mut history = History::new(base, Level::M2);
    for n in 1..=400_u32 {
        let mut data = vec![1; 512];
        data[..4].copy_from_slice(&n.to_le_bytes());
        let (request, data) = (RequestNo(n), data.into());
        history.apply(&Event::Write { request, block: 0, kind: BlockKind::Data, data, fua: false });
    }
    let cut = history.cut();
    let atom = &cut.atoms[0];
    let newest = u8::try_from(atom.candidates.len() - 1).unwrap();
    assert_eq!(atom.bytes(newest)[..4], 400_u32.to_le_bytes());
    assert_eq!(atom.bytes(0)[..4], [0; 4]);
    assert_eq!(atom.bytes(1)[..4], 1_u32.to_le_bytes());
}
