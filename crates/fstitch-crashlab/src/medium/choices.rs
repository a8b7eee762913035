//! Which of the possible images are looked at: all of them where that is feasible, otherwise the ones that find bugs.

use fstitch_core::Seed;
use fstitch_core::num::to_u64;

use super::history::Cut;

/// Up to this many undecided atoms (of two versions each; fewer of more) every choice is visited.
pub const EXHAUSTIVE_ATOMS: u32 = 16;

/// How much of what is possible was visited at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Coverage {
    /// Choices visited; a sampled one may come twice.
    pub visited: u64,
    /// Choices possible.
    pub possible: u128,
}

/// Visits choices of `cut`, at most about `limit` of them, until `visit` says false.
///
/// All of them in Gray order, where neighbours differ in one atom, if there are at most 2^[`EXHAUSTIVE_ATOMS`] and at
/// most `limit`. Otherwise the prefixes of the order of issue, every single atom lost and every single one
/// surviving, the same for pairs, and then a sample that `seed` chooses.
pub fn for_each_choice(
    cut: &Cut,
    limit: u64,
    seed: &mut Seed,
    visit: &mut dyn FnMut(&[u8]) -> bool,
) -> Coverage {
    let possible = cut.states();
    let mut visited = 0;
    let mut visit = |choice: &[u8]| {
        visited += 1;
        visit(choice) && visited < limit
    };
    if cut.prefixes_only {
        let _ = cut.prefixes.iter().all(|choice| visit(choice));
    } else if possible <= 1 << EXHAUSTIVE_ATOMS && possible <= u128::from(limit) {
        in_gray_order(cut, &mut visit);
    } else {
        let _ = by_pattern(cut, &mut visit) && sample(cut, seed, &mut visit);
    }
    Coverage { visited, possible }
}

/// The largest choice of each atom: its newest version.
fn newest(cut: &Cut) -> Vec<u8> {
    let last = |atom: &super::history::Atom| u8::try_from(atom.candidates.len() - 1).expect("bounded");
    cut.atoms.iter().map(last).collect()
}

/// The reflected mixed-radix Gray code: every choice once, one atom changing by one version at each step.
fn in_gray_order(cut: &Cut, visit: &mut dyn FnMut(&[u8]) -> bool) {
    let last = newest(cut);
    let mut choice = vec![0; last.len()];
    let mut rising = vec![true; last.len()];
    while visit(&choice) {
        // The first atom that can go on in its direction moves; those before it turn around.
        let Some(at) =
            (0..last.len()).find(|&at| if rising[at] { choice[at] < last[at] } else { choice[at] > 0 })
        else {
            return;
        };
        rising[..at].iter_mut().for_each(|up| *up = !*up);
        choice[at] = if rising[at] { choice[at] + 1 } else { choice[at] - 1 };
    }
}

/// Prefixes, then one or two atoms that are lost while all others arrived, or that arrived while all others were lost.
fn by_pattern(cut: &Cut, visit: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let (oldest, newest) = (vec![0; cut.atoms.len()], newest(cut));
    if !cut.prefixes.iter().all(|choice| visit(choice)) {
        return false;
    }
    let mut exceptional = |atoms: &[usize]| {
        [(&newest, &oldest), (&oldest, &newest)].iter().all(|(most, few)| {
            let mut choice = (*most).clone();
            atoms.iter().for_each(|&at| choice[at] = few[at]);
            visit(&choice)
        })
    };
    let n = cut.atoms.len();
    (0..n).all(|at| exceptional(&[at])) && (0..n).all(|a| (0..a).all(|b| exceptional(&[a, b])))
}

/// Random choices; the share of survivors is random too, so that nearly empty and nearly full ones come as well.
fn sample(cut: &Cut, seed: &mut Seed, visit: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    loop {
        let share = 1 + seed.below(15);
        let mut pick = |atom: &super::history::Atom| {
            let later = to_u64(atom.candidates.len() - 1);
            let choice = if seed.chance(share, 16) { 1 + seed.below(later) } else { 0 };
            u8::try_from(choice).expect("bounded")
        };
        let choice: Vec<u8> = cut.atoms.iter().map(&mut pick).collect();
        if !visit(&choice) {
            return false;
        }
    }
}
