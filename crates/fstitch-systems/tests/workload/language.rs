//! The language in which workloads are written down, and the bytes that they write.

use std::collections::BTreeMap;

use fstitch_core::Seed;
use fstitch_crashlab::workload::{Op, Workload, fill};
use fstitch_systems::workloads::families;

#[test]
fn what_is_printed_is_read_again() {
    let mut dice = Seed::new(1);
    for family in families() {
        for _ in 0..100 {
            let bound = if family.len() == u64::MAX { 1 << 40 } else { family.len() };
            let workload = family.get(dice.below(bound)).unwrap();
            for op in workload.setup.iter().chain(&workload.ops) {
                assert_eq!(op.to_string().parse::<Op>().as_ref(), Ok(op));
            }
            let again = Workload::parse(&workload.text()).unwrap();
            assert_eq!((again.setup, again.ops), (workload.setup, workload.ops), "{}", workload.name);
        }
    }
}

#[test]
fn arbitrary_lines_are_refused_or_read_without_loss() {
    let words =
        ["create", "rename", "punch", "/a", "/A/b", "0", "77", "-1", "user.x", "", "99999999999999999999"];
    let mut dice = Seed::new(2);
    for _ in 0..20_000 {
        let count = dice.below(6);
        let pick = |dice: &mut Seed| words[usize::try_from(dice.below(11)).unwrap()];
        let line: Vec<&str> = (0..count).map(|_| pick(&mut dice)).collect();
        if let Ok(op) = line.join(" ").parse::<Op>() {
            assert_eq!(op.to_string().parse::<Op>(), Ok(op));
        }
    }
}

/// Two operations of one workload never write the same eight bytes, wherever they write; set-up operations count
/// from 2^20.
#[test]
fn eight_bytes_name_their_operation_and_place() {
    let mut owners = BTreeMap::new();
    for no in (0..600).chain((1 << 20)..(1 << 20) + 600) {
        for offset in (0..16_384).step_by(512).chain([40_000, 300_000]) {
            let mut word = [0; 8];
            fill(no, offset, &mut word);
            assert!(!word.contains(&0), "zeros are holes");
            let before = owners.insert(word, (no, offset));
            assert_eq!(before, None, "operation {no} at {offset} writes the same");
        }
    }
}

#[test]
fn pieces_of_a_pattern_fit_together() {
    let mut whole = vec![0; 1000];
    fill(7, 13, &mut whole);
    for cut in [1, 2, 3, 8, 500, 999] {
        let mut pieces = vec![0; 1000];
        let (first, second) = pieces.split_at_mut(cut);
        fill(7, 13, first);
        fill(7, 13 + u64::try_from(cut).unwrap(), second);
        assert_eq!(whole, pieces, "cut at {cut}");
    }
}
