//! Directories with hash-tree indexes, in blocks of 1 KiB: names of 250 bytes, so that a leaf holds three.
//!
//! `leaves` are steps on a directory of one full block, which begins its index, and on one with a dozen leaves; `roots` on one whose
//! index has a full root. Each with a sync of every kind or none behind it, and with and without the cache writing in between:
//! the number is that of the step times eight, plus that. `leaves-random` are runs of steps in two such directories; the number is a
//! seed.

use std::fmt::Write;

use fstitch_core::Seed;
use fstitch_crashlab::workload::Family;

use super::steps::{Runs, Step, Steps};

/// Bytes that make a name long.
const PADDING: usize = 244;

/// A text in which `@7` stands for the long name of this number.
fn long(text: &str) -> String {
    let mut long = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('@') {
        let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
        let (number, behind) = behind.split_at(digits);
        let _ = write!(long, "{before}n{number:0>4}-{}", "x".repeat(PADDING));
        rest = behind;
    }
    long + rest
}

/// Long names in `dir` for the file `/f`.
fn links(dir: &str, numbers: std::ops::Range<u64>) -> String {
    numbers.fold(String::new(), |text, no| text + &format!(";link /f {dir}/@{no}"))
}

/// `/d` is one block that is full, `/e` has an index.
fn few() -> String {
    let text = format!(
        "create /f;append /f 3000;create /g;mkdir /d{};mkdir /e{};mkdir /d/s;unlink /d/@2;mkdir /e/s",
        links("/d", 0..3),
        links("/e", 100..130)
    );
    long(&text)
}

/// Names with which the root of `/d` has room for a few leaves more, with and without sums: the sixth or seventh new name fills it.
const NEARLY: u64 = 250;

fn many() -> String {
    long(&format!("create /f;append /f 3000;mkdir /d{}", links("/d", 0..NEARLY)))
}

const FEW: [Step; 24] = [
    // The index begins.
    ("link /f /d/@3;link /f /d/@4", "/d"),
    ("create /d/@3;append /d/@3 2000;create /d/@4", "/d/@4"),
    ("mkdir /d/@3;mkdir /d/@4", "/d/@4"),
    ("link /f /d/@3;rename /d/@0 /d/@5;rename /d/@1 /d/@6", "/d"),
    ("link /f /d/@3;rename /g /d/@4", "/d/@4"),
    ("link /f /d/@3;rename /e/@100 /d/@4", "/d"),
    ("link /f /d/@3;rename /d/s /d/@4", "/d"),
    ("tmpfile /d /d/@3 2000;tmpfile /d /d/@4 2000", "/d"),
    ("link /f /d/@3;link /f /d/@4;unlink /d/@0;unlink /d/@1", "/d"),
    ("link /f /d/@3;link /f /d/@4;unlink /d/@3;link /f /d/@3", "/d"),
    ("symlink /d/@3 400;symlink /d/@4 20", "/d"),
    (
        "link /f /d/@3;link /f /d/@4;unlink /d/@0;unlink /d/@1;unlink /d/@3;unlink /d/@4;rmdir /d/s;rmdir /d",
        "/",
    ),
    // Leaves are split.
    ("link /f /e/@1", "/e"),
    ("link /f /e/@1;link /f /e/@2;link /f /e/@3;link /f /e/@4;link /f /e/@5;link /f /e/@6", "/e"),
    ("create /e/@1;create /e/@2;create /e/@3;create /e/@4;append /e/@4 1000", "/e/@4"),
    ("mkdir /e/@1;mkdir /e/@2;mkdir /e/@3;mkdir /e/@4", "/e/@4"),
    ("rename /e/@100 /e/@1;rename /e/@101 /e/@2;rename /e/@102 /e/@3;rename /e/@103 /e/@4", "/e"),
    ("rename /d/@0 /e/@1;rename /d/@1 /e/@2;rename /g /e/@3;rename /d/s /e/@4", "/e"),
    ("rename /e/s /e/@1;create /e/@1/in;link /f /e/@2;link /f /e/@3", "/e"),
    ("unlink /e/@110;link /f /e/@1;unlink /e/@111;link /f /e/@2;unlink /e/@112;link /f /e/@3", "/e"),
    ("exchange /e/@100 /d/@0;link /f /e/@1;link /f /e/@2;exchange /e/@100 /e/s", "/e"),
    ("link /f /e/@1;link /f /e/@2;unlink /e/@1;unlink /e/@2;link /f /e/@1;link /f /e/@2", "/e"),
    ("hold /g;link /g /e/@1;link /f /e/@2;unlink /g;link /f /e/@3;unlink /e/@1;release /g", "/e"),
    ("create /e/a;create /e/b;create /e/c;rename /e/a /e/@1;rename /e/b /e/@2;rename /e/c /e/@100", "/e"),
];

const MANY: [Step; 4] = [
    (
        "link /f /d/@301;link /f /d/@302;link /f /d/@303;link /f /d/@304;link /f /d/@305;link /f /d/@306;link /f /d/@307;\
         link /f /d/@308;link /f /d/@309;link /f /d/@310;link /f /d/@311;link /f /d/@312;link /f /d/@313;link /f /d/@314",
        "/d",
    ),
    (
        "rename /d/@1 /d/@301;rename /d/@2 /d/@302;rename /d/@3 /d/@303;rename /d/@4 /d/@304;rename /d/@5 /d/@305;\
         rename /d/@6 /d/@306;rename /d/@7 /d/@307;rename /d/@8 /d/@308;rename /d/@9 /d/@309;rename /d/@10 /d/@310",
        "/d",
    ),
    (
        "create /d/@301;create /d/@302;create /d/@303;create /d/@304;create /d/@305;create /d/@306;create /d/@307;create /d/@308;\
         create /d/@309;create /d/@310;create /d/@311;create /d/@312;unlink /d/@301;unlink /d/@302",
        "/d/@312",
    ),
    (
        "mkdir /d/@301;mkdir /d/@302;mkdir /d/@303;mkdir /d/@304;mkdir /d/@305;mkdir /d/@306;mkdir /d/@307;mkdir /d/@308;\
         mkdir /d/@309;mkdir /d/@310;mkdir /d/@311;mkdir /d/@312",
        "/d/@312",
    ),
];

/// Steps of a run.
const RUN: usize = 40;
/// Numbers of names of a run, in each of two directories.
const NAMES: u64 = 24;

/// Draws a step of a run.
fn step(seed: &mut Seed) -> String {
    let dirs = [["/d", "/e"][usize::from(seed.chance(1, 4))], ["/d", "/e"][usize::from(seed.chance(1, 4))]];
    let [a, b] = dirs.map(|dir| {
        let no = seed.below(NAMES);
        // Some are short.
        if no.is_multiple_of(5) { format!("{dir}/s{no}") } else { format!("{dir}/@{no}") }
    });
    let text = match seed.below(16) {
        0..=4 => format!("create {a}"),
        5..=7 => format!("link /f {a}"),
        8 => format!("mkdir {a}"),
        9 => format!("unlink {a}"),
        10 | 11 => format!("rename {a} {b}"),
        12 => format!("fsync {a}"),
        13 => format!("fsync {}", dirs[0]),
        _ => format!("write-out 8 {}", seed.below(1 << 20)),
    };
    long(&text)
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Steps {
            name: "leaves",
            about: "steps that begin indexes of directories and split their leaves, with every sync",
            files: few,
            steps: &FEW,
            spell: long,
        }),
        Box::new(Steps {
            name: "roots",
            about: "steps that fill the root of a directory's index, with every sync",
            files: many,
            steps: &MANY,
            spell: long,
        }),
        Box::new(Runs {
            name: "leaves-random",
            about: "runs of steps in two directories of long names; the number is a seed",
            files: || long(&format!("create /f;mkdir /d{};mkdir /e", links("/d", 50..53))),
            steps: RUN,
            step,
        }),
    ]
}
