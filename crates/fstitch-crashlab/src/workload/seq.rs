//! All short sequences, in the manner of ACE: every operation that matters on a small set of files, with a sync of
//! every kind or none after each, on objects that are stable and on objects that are as young as the operations, with
//! and without the cache writing in between.
//!
//! A workload's number is its digits in mixed radix, so that any of them is made without making the others:
//!
//! ```text
//! number = ((… (core, sync) of the last step …, (core, sync) of the first step), young, write-outs)
//! ```
//!
//! What seldom happens has families of its own (`rare1`, `rare2`), so that the numbers of the others stay. In `rare2`
//! a pair is a rare step and any step, and a further digit says whether the rare one comes last.

use super::op::Op;
use super::rare::RARE;
use super::{Family, Workload};

/// What is there before, old or young. Files end inside a block, at its end, and behind indirect pointers.
const FILES: &str = "mkdir /A;mkdir /B;mkdir /A/C;create /foo;append /foo 5000;create /A/foo;append /A/foo 15000;\
                     create /A/bar;append /A/bar 3072;setxattr /foo user.old 30;setxattr /A/bar user.oldbig 400";

/// Operations, and the object that a sync after them is about.
pub(super) type Core = (&'static str, &'static str);

/// The usual steps.
const CORES: [Core; 68] = [
    ("create /new", "/new"),
    ("create /A/new", "/A/new"),
    ("create /A/C/new;append /A/C/new 6000", "/A/C/new"),
    ("create /new;append /new 500;append /new 14000", "/new"),
    ("mkdir /D", "/D"),
    ("mkdir /A/D", "/A/D"),
    ("mkdir /D;create /D/new;append /D/new 2000", "/D/new"),
    ("mknod /A/pipe fifo", "/A/pipe"),
    ("mknod /dev char-device", "/dev"),
    ("symlink /A/fast 20", "/A/fast"),
    ("symlink /A/slow 200", "/A/slow"),
    ("link /foo /A/link", "/A/link"),
    ("link /A/foo /link", "/link"),
    ("link /A/bar /A/link", "/A/bar"),
    ("unlink /foo", "/"),
    ("unlink /A/foo", "/A"),
    ("unlink /A/bar", "/A"),
    ("rmdir /B", "/"),
    ("rmdir /A/C", "/A"),
    ("rename /foo /moved", "/moved"),
    ("rename /foo /A/moved", "/A/moved"),
    ("rename /A/foo /moved", "/moved"),
    ("rename /foo /A/foo", "/A/foo"),
    ("rename /A/foo /foo", "/foo"),
    ("rename /A/foo /A/bar", "/A/bar"),
    ("rename /A /E", "/E"),
    ("rename /A /B/A", "/B/A"),
    ("rename /A/C /B/C", "/B/C"),
    ("rename /A/C /B", "/B"),
    ("rename /B /A/C", "/A/C"),
    ("rename-noreplace /foo /B/free", "/B/free"),
    ("exchange /A/foo /A/bar", "/A/bar"),
    ("write /foo 0 1000", "/foo"),
    ("write /foo 500 4000", "/foo"),
    ("write /A/foo 0 20000", "/A/foo"),
    ("append /foo 700", "/foo"),
    ("append /A/foo 5000", "/A/foo"),
    ("append /A/bar 20000", "/A/bar"),
    ("write /foo 40000 2000", "/foo"),
    ("write /A/bar 300000 1500", "/A/bar"),
    ("truncate /foo 0", "/foo"),
    ("truncate /A/foo 0", "/A/foo"),
    ("truncate /A/foo 1500", "/A/foo"),
    ("truncate /foo 30000", "/foo"),
    ("truncate /A/bar 100", "/A/bar"),
    ("truncate /A/foo 1500;append /A/foo 3000", "/A/foo"),
    ("allocate /foo 0 20000", "/foo"),
    ("allocate /A/bar 2000 15000", "/A/bar"),
    ("punch /A/foo 1000 6000", "/A/foo"),
    ("punch /foo 0 4096", "/foo"),
    ("zero /A/foo 500 9000", "/A/foo"),
    ("zero-keep-size /foo 2000 2000", "/foo"),
    ("setxattr /foo user.a 20", "/foo"),
    ("setxattr /A/foo user.big 500", "/A/foo"),
    ("setxattr /A user.dir 300", "/A"),
    ("setxattr /foo user.old 100", "/foo"),
    ("removexattr /foo user.old", "/foo"),
    ("removexattr /A/bar user.oldbig", "/A/bar"),
    ("chmod /foo 600", "/foo"),
    ("chown /A/foo 5", "/A/foo"),
    ("chmod /A 700", "/A"),
    ("tmpfile /A /A/tmp 3000", "/A/tmp"),
    ("tmpfile / /B/tmp 15000", "/B/tmp"),
    ("hold /foo;unlink /foo;create /foo;append /foo 2000;release /foo", "/foo"),
    ("unlink /A/foo;create /A/foo;append /A/foo 9000", "/A/foo"),
    ("create /t;append /t 8000;unlink /t;create /u;append /u 8000", "/u"),
    (
        "create /A/C/LONG;rename /A/bar /A/C/LONG2;link /foo /A/C/LONG3;mkdir /A/C/LONG4;create /A/C/LONG5",
        "/A/C",
    ),
    ("link /foo /B/new;unlink /foo", "/B/new"),
];

/// What may follow a step.
const SYNCS: u64 = 5;
/// A usual step's digit.
const STEP: u64 = 68 * SYNCS;
/// A rare step's digit.
const RARE_STEP: u64 = 34 * SYNCS;

const _: () = assert!(CORES.len() == 68 && RARE.len() == 34);

/// The steps of a sequence.
enum Steps {
    /// So many usual ones.
    Usual(u32),
    /// A rare one.
    Rare,
    /// A rare one and any, in both orders.
    RareAndAny,
}

impl Steps {
    fn count(&self) -> u64 {
        match *self {
            Self::Usual(steps) => STEP.pow(steps),
            Self::Rare => RARE_STEP,
            Self::RareAndAny => 2 * RARE_STEP * (STEP + RARE_STEP),
        }
    }

    /// The steps of sequence `number`, each with what follows it.
    fn take(&self, number: u64) -> Vec<(Core, u64)> {
        let usual = |digit: u64| (core(&CORES, digit / SYNCS), digit % SYNCS);
        let rare = |digit: u64| (core(&RARE, digit / SYNCS), digit % SYNCS);
        match *self {
            Self::Usual(steps) => (0..steps).map(|step| usual(number / STEP.pow(step) % STEP)).collect(),
            Self::Rare => vec![rare(number)],
            Self::RareAndAny => {
                let (last, digit, any) = (number % 2 == 1, number / 2 % RARE_STEP, number / 2 / RARE_STEP);
                let any = if any < STEP { usual(any) } else { rare(any - STEP) };
                if last { vec![any, rare(digit)] } else { vec![rare(digit), any] }
            }
        }
    }
}

fn core(table: &[Core], at: u64) -> Core {
    table[usize::try_from(at).expect("an index below the table's length")]
}

/// All sequences of one shape.
struct Sequences {
    name: &'static str,
    about: &'static str,
    steps: Steps,
}

/// The families of this file.
pub fn families() -> Vec<Box<dyn Family>> {
    let family = |name, about, steps| Box::new(Sequences { name, about, steps }) as Box<dyn Family>;
    vec![
        family("seq1", "every single operation that matters, with every sync", Steps::Usual(1)),
        family("seq2", "every pair of them", Steps::Usual(2)),
        family("seq3", "every sequence of three: for samples", Steps::Usual(3)),
        family("rare1", "every operation that seldom happens, with every sync", Steps::Rare),
        family("rare2", "every pair of one of these and any other", Steps::RareAndAny),
    ]
}

fn ops(text: &str) -> Vec<Op> {
    let long = text.replace("LONG", &"n".repeat(200));
    long.split(';').map(|op| op.parse().expect("the tables above are tested")).collect()
}

/// The sync that follows a step.
fn sync(digit: u64, object: &str) -> Option<Op> {
    let parent =
        object.rsplit_once('/').map_or("/", |(parent, _)| if parent.is_empty() { "/" } else { parent });
    match digit {
        1 => Some(Op::Fsync { path: object.to_owned() }),
        2 => Some(Op::Fdatasync { path: object.to_owned() }),
        3 => Some(Op::Fsync { path: parent.to_owned() }),
        4 => Some(Op::Sync),
        _ => None,
    }
}

impl Family for Sequences {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> &str {
        self.about
    }

    fn len(&self) -> u64 {
        4 * self.steps.count()
    }

    fn get(&self, index: u64) -> Option<Workload> {
        if index >= self.len() {
            return None;
        }
        let (young, write_outs) = (index % 2 == 1, index / 2 % 2 == 1);
        let (mut setup, mut list) = (ops(FILES), vec![]);
        if young {
            std::mem::swap(&mut setup, &mut list);
        }
        for (step, ((core, object), digit)) in (0_u64..).zip(self.steps.take(index / 4)) {
            for (at, op) in (0_u64..).zip(ops(core)) {
                list.push(op);
                if write_outs {
                    list.push(Op::WriteOut { share: 8, seed: index * 64 + step * 16 + at });
                }
            }
            list.extend(sync(digit, object));
        }
        Some(Workload { name: format!("{}/{index}", self.name), setup, ops: list })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_operations() {
        assert!(ops(FILES).len() > 5);
        CORES.iter().chain(&RARE).for_each(|(core, _)| assert!(!ops(core).is_empty()));
    }

    #[test]
    fn numbers_mean_the_same_for_ever() {
        let [one, two, three] = [0, 1, 2].map(|at| families().remove(at));
        assert_eq!((one.len(), two.len(), three.len()), (1360, 462_400, 157_216_000));
        let text = two.get(4711).unwrap().text();
        assert_eq!(twox_hash::XxHash3_64::oneshot(text.as_bytes()), 13_520_480_214_912_971_327, "{text}");
        assert!(one.get(1360).is_none());
    }

    #[test]
    fn sequences_differ() {
        let two = families().remove(1);
        let mut seen = std::collections::BTreeSet::new();
        assert!((0..20_000).all(|index| seen.insert(two.get(index * 23).unwrap().text())));
    }
}
