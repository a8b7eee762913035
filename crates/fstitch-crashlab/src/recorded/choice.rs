//! Which states of a recorded log are visited, and how they are named.

use std::fmt;
use std::str::FromStr;

use fstitch_core::Seed;
use fstitch_core::num::{to_u64, to_usize};

use crate::id::{parse_choice, write_choice};
use crate::medium::{Atom, Choice, Cut, for_each_choice};

/// A state of a recorded log: events before the cut, and which versions of the undecided atoms survived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedId {
    /// Events before the cut.
    pub cut: usize,
    /// What survived.
    pub survivors: Chosen,
}

/// Which versions survived. Cuts of a recorded log may leave tens of thousands of atoms open: too many for a command
/// line, unless they are alike or drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// Atom by atom.
    Versions(Choice),
    /// Drawn by this seed: each atom with `share` sixteenths of probability has lost its stable version.
    Drawn {
        /// From 1 to 15.
        share: u64,
        /// Seeds what is drawn.
        seed: u64,
    },
}

impl Chosen {
    /// The version of each atom; `None` where they are none of this cut's.
    pub(super) fn choice(&self, cut: &Cut) -> Option<Choice> {
        match self {
            Self::Versions(choice) => {
                let fits = choice.len() == cut.atoms.len()
                    && choice.iter().zip(&cut.atoms).all(|(&chosen, atom)| chosen <= last(atom));
                fits.then(|| choice.clone())
            }
            Self::Drawn { share, seed } => {
                let mut seed = Seed::new(*seed);
                Some(cut.atoms.iter().map(|atom| random_version(last(atom), *share, &mut seed)).collect())
            }
        }
    }
}

impl fmt::Display for RecordedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.cut)?;
        match &self.survivors {
            Chosen::Versions(choice) => write_choice(f, choice),
            Chosen::Drawn { share, seed } => write!(f, "drawn-{share}-{seed}"),
        }
    }
}

/// A word that names no state of a recorded log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` names no state of a log: expected CUT:CHOICE as a failure prints it")]
pub struct UnknownRecorded(String);

impl FromStr for RecordedId {
    type Err = UnknownRecorded;

    fn from_str(text: &str) -> Result<Self, UnknownRecorded> {
        let parse = || {
            let (cut, survivors) = text.trim().split_once(':')?;
            let survivors = match survivors.strip_prefix("drawn-") {
                Some(drawn) => {
                    let (share, seed) = drawn.split_once('-')?;
                    let share = share.parse().ok().filter(|share| (1..16).contains(share))?;
                    Chosen::Drawn { share, seed: seed.parse().ok()? }
                }
                None => Chosen::Versions(parse_choice(survivors)?),
            };
            Some(Self { cut: cut.parse().ok()?, survivors })
        };
        parse().ok_or_else(|| UnknownRecorded(text.to_owned()))
    }
}
/// Prefixes visited at a cut.
pub(super) fn prefixes(per_cut: u64) -> usize {
    usize::try_from(per_cut.div_ceil(3)).unwrap_or(usize::MAX).min(MAX_PREFIXES)
}

/// Each takes a byte for every undecided atom.
const MAX_PREFIXES: usize = 4096;

/// Visits every choice where `limit` suffices; otherwise a mixture in which none of the three kinds crowds out the
/// others. Returns how many were visited.
pub(super) fn choose(
    cut: &Cut,
    limit: u64,
    seed: &mut Seed,
    visit: &mut dyn FnMut(&[u8], &Chosen) -> bool,
) -> u64 {
    if cut.prefixes_only || cut.states() <= u128::from(limit) {
        let visit = &mut |choice: &[u8]| visit(choice, &Chosen::Versions(choice.to_vec()));
        return for_each_choice(cut, limit, seed, visit).visited;
    }
    let mut visited = 0;
    let mut visit = |chosen: Chosen| {
        visited += 1;
        let choice = chosen.choice(cut).expect("it was made for this cut");
        visit(&choice, &chosen) && visited < limit
    };
    let newest: Choice = cut.atoms.iter().map(last).collect();
    let few = usize::try_from(limit.div_ceil(3)).unwrap_or(usize::MAX);
    let mut more = cut.prefixes.iter().rev().take(few).all(|choice| visit(Chosen::Versions(choice.clone())));
    for at in 0..few {
        if !more {
            return visited;
        }
        let atoms = to_u64(cut.atoms.len());
        let odd = to_usize(seed.below(atoms));
        let mut choice = if at % 2 == 0 { newest.clone() } else { vec![0; newest.len()] };
        choice[odd] = newest[odd] - choice[odd];
        more = visit(Chosen::Versions(choice));
    }
    while more {
        more = visit(Chosen::Drawn { share: 1 + seed.below(15), seed: seed.next_u64() });
    }
    visited
}

/// The newest version of an atom.
fn last(atom: &Atom) -> u8 {
    u8::try_from(atom.candidates.len() - 1).expect("the history bounds them")
}

/// A version up to `last`; with `share` sixteenths of probability not the stable one.
fn random_version(last: u8, share: u64, seed: &mut Seed) -> u8 {
    match seed.chance(share, 16) {
        true => u8::try_from(1 + seed.below(u64::from(last))).expect("at most the last one"),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use fstitch_core::{BlockKind, Seed};

    use super::{Chosen, RecordedId, choose, prefixes};
    use crate::medium::{Base, Choice, Cut, Event, History, Level, RequestNo};

    fn cut(writes: u32, prefixes: usize) -> Cut {
        let mut history = History::new(Base::new(1024, vec![0; 1 << 20]), Level::M2);
        for no in 0..writes {
            let (request, block) = (RequestNo(no), u64::from(no % 700));
            let data = no.to_le_bytes().repeat(256).into();
            history.apply(&Event::Write { request, block, kind: BlockKind::Data, data, fua: false });
            history.apply(&Event::Ack(request));
        }
        history.cut_within(prefixes)
    }

    /// Prevents a table of prefixes that grows with the square of what is open, and a search that sees one kind only.
    #[test]
    fn a_wide_cut_is_sampled_in_every_way_within_its_limit() {
        let cut = cut(1000, prefixes(30));
        assert!(cut.prefixes.len() <= 12, "{} prefixes", cut.prefixes.len());
        assert_eq!(cut.prefixes.last().unwrap().iter().filter(|&&chosen| chosen > 0).count(), 700);
        let mut seen: Vec<Choice> = Vec::new();
        let visited = choose(&cut, 30, &mut Seed::new(1), &mut |choice, _| {
            seen.push(choice.to_vec());
            true
        });
        assert_eq!((visited, seen.len()), (30, 30));
        let survivors = |choice: &Choice| choice.iter().filter(|&&chosen| chosen > 0).count();
        let few = seen.iter().filter(|choice| survivors(choice) == 1).count();
        let most = seen.iter().filter(|choice| survivors(choice) == 699).count();
        assert!(few >= 3 && most >= 3, "{few} with one survivor, {most} with one loss");
        let different: BTreeSet<&Choice> = seen.iter().collect();
        assert!(different.len() > 25, "{} different ones", different.len());
        let valid = |choice: &Choice| {
            choice.iter().zip(&cut.atoms).all(|(&c, a)| usize::from(c) < a.candidates.len())
        };
        assert!(seen.iter().all(valid));
    }

    /// Prevents prefixes that depend on how many of them are wanted.
    #[test]
    fn few_prefixes_are_some_of_all_prefixes() {
        let (all, few) = (cut(50, usize::MAX), cut(50, 7));
        assert_eq!(all.prefixes.len(), 50, "writing zeros to block 0 changes nothing");
        assert!(few.prefixes.len() <= 9 && few.prefixes.iter().all(|choice| all.prefixes.contains(choice)));
        assert_eq!(few.prefixes.last(), all.prefixes.last());
    }

    #[test]
    fn small_cuts_are_visited_whole() {
        let cut = cut(4, prefixes(100));
        let mut seen = BTreeSet::new();
        let visited = choose(&cut, 100, &mut Seed::new(1), &mut |choice, _| seen.insert(choice.to_vec()));
        assert_eq!((visited, seen.len()), (8, 8), "three blocks, lost or not");
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let versions = [vec![], vec![0; 70_000], vec![1, 0, 0, 249]].map(Chosen::Versions);
        for survivors in versions.into_iter().chain([Chosen::Drawn { share: 15, seed: u64::MAX }]) {
            let id = RecordedId { cut: 12, survivors };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        let wrong =
            ["", "12", "x:1", "12:300", "12:0x99999999999", "1:0x16777216.0", "1:drawn-0-1", "1:drawn-3"];
        for bad in wrong {
            assert!(bad.parse::<RecordedId>().is_err(), "{bad}");
        }
    }

    /// Prevents lines that no shell takes, and that give another state than the one that was found.
    #[test]
    fn drawn_states_have_short_names_and_are_drawn_again() {
        let cut = cut(1000, prefixes(30));
        let mut names = Vec::new();
        choose(&cut, 30, &mut Seed::new(3), &mut |choice, chosen| {
            let id = RecordedId { cut: cut.at, survivors: chosen.clone() };
            let again: RecordedId = id.to_string().parse().expect("it was written");
            assert_eq!(again.survivors.choice(&cut).as_deref(), Some(choice));
            names.push(id.to_string());
            true
        });
        assert!(names.iter().all(|name| name.len() < 2000), "{names:?}");
        assert!(names.iter().filter(|name| name.contains("drawn")).count() >= 8);
    }
}
