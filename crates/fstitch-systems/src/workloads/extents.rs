//! Files whose maps are trees of extents: split, joined, converted, cut and folded, with blocks of 1 KiB, so that a leaf holds 84
//! entries and the inode 4.
//!
//! `extents` are steps on trees of one level and on files of unwritten blocks, `deep` on a tree of two levels, each with a sync of
//! every kind or none behind it and with and without the cache writing in between: the number is that of the step times
//! eight, plus that. `extents-random` are runs of twenty steps on three such files; the number is a seed.

use std::fmt::Write;

use fstitch_core::Seed;
use fstitch_crashlab::workload::Family;

use super::steps::{Runs, Step, Steps};

/// Files of one level and less: `/f` is one extent, `/a` six with holes between, `/u` is unwritten with a written part, `/k` has blocks
/// behind its end.
pub(super) const FILES: &str = "create /f;append /f 20480;create /a;write /a 0 2048;write /a 4096 1024;write /a 8192 1024;write /a 12288 3000;\
                     write /a 20480 1024;write /a 30720 1024;create /u;allocate /u 0 102400;write /u 40960 4096;\
                     create /k;append /k 1500;allocate-keep-size /k 0 51200";

/// Steps on them.
const SHALLOW: [Step; 46] = [
    // A hole is filled: apart from others, joining one, joining two.
    ("write /a 6144 1024", "/a"),
    ("write /a 2048 1024", "/a"),
    ("write /a 2048 2048", "/a"),
    ("write /a 0 40960", "/a"),
    ("append /a 3000", "/a"),
    ("write /a 1048576 1024", "/a"),
    // Unwritten blocks get contents: at both ends, in the middle, beside the written part, all of them, a part of one.
    ("write /u 0 1024", "/u"),
    ("write /u 101376 1024", "/u"),
    ("write /u 20480 2048", "/u"),
    ("write /u 39936 1024", "/u"),
    ("write /u 45056 1024", "/u"),
    ("write /u 10240 60000", "/u"),
    ("write /u 0 102400", "/u"),
    ("write /u 20500 10", "/u"),
    ("write /u 20480 1024;write /u 22528 1024;write /u 24576 1024", "/u"),
    ("write /u 20480 1024;write /u 61440 1024;write /u 81920 1024;write /u 92160 1024", "/u"),
    ("append /k 1000", "/k"),
    ("append /k 40000", "/k"),
    ("write /k 30720 1024", "/k"),
    // Blocks are kept.
    ("allocate /a 0 40960", "/a"),
    ("allocate /a 5000 5000", "/a"),
    ("allocate-keep-size /a 40960 40960", "/a"),
    ("allocate-keep-size /f 0 81920;append /f 1000", "/f"),
    ("create /n;allocate /n 0 20480;write /n 5120 1024", "/n"),
    ("create /n;append /n 1000;allocate-keep-size /n 0 300000;append /n 5000", "/n"),
    // Blocks are zeroed.
    ("zero /f 4096 4096", "/f"),
    ("zero /f 5000 5000", "/f"),
    ("zero /a 0 40960", "/a"),
    ("zero /f 0 20480;write /f 8192 1024", "/f"),
    ("zero-keep-size /u 30720 20480", "/u"),
    // Blocks go: from the middle, from an end, over several extents, all but little.
    ("punch /f 4096 4096", "/f"),
    ("punch /f 0 4096", "/f"),
    ("punch /a 4096 16384", "/a"),
    ("punch /a 2048 40960", "/a"),
    ("punch /u 10240 61440", "/u"),
    ("punch /f 2048 1024;punch /f 6144 1024;punch /f 10240 1024;punch /f 14336 1024", "/f"),
    ("punch /f 4096 4096;write /f 4096 4096", "/f"),
    ("truncate /a 13000", "/a"),
    ("truncate /a 2048", "/a"),
    ("truncate /u 50000;append /u 3000", "/u"),
    ("truncate /k 1000", "/k"),
    ("truncate /k 1500", "/k"),
    ("truncate /a 0;append /a 20000", "/a"),
    ("unlink /a", "/"),
    ("hold /u;unlink /u;write /u 20480 1024;truncate /u 30000;release /u", "/"),
    (
        "create /n;create /m;append /n 1024;append /m 1024;append /n 1024;append /m 1024;append /n 1024;append /m 1024",
        "/n",
    ),
];

/// Pieces of the deep file, from its end on, each a block with a hole before it: leaves are split in the middle, so that they are half
/// full and a second level is needed.
const PIECES: u64 = 212;
/// Where the deep file's other blocks are.
const DEEP_END: u64 = 2 * PIECES * 1024;

/// Steps on the deep file `/d`, and on others beside it.
const DEEP: [Step; 24] = [
    ("write /d 1024 1024", "/d"),
    ("write /d 100352 1024;write /d 102400 1024;write /d 104448 1024", "/d"),
    ("append /d 1024;append /d 1024", "/d"),
    ("write /d 600000 1024", "/d"),
    ("write /d 0 434176", "/d"),
    ("write /d 90112 90112", "/d"),
    ("allocate /d 0 434176", "/d"),
    ("allocate /d 102400 20480;write /d 108544 1024", "/d"),
    ("allocate-keep-size /d 440000 200000;write /d 500000 1024", "/d"),
    ("zero /d 90112 90112", "/d"),
    ("zero /d 0 434176", "/d"),
    ("zero /d 86016 40960;write /d 102400 1024", "/d"),
    ("punch /d 90112 90112", "/d"),
    ("punch /d 2048 430000", "/d"),
    ("punch /d 0 434176", "/d"),
    ("punch /d 0 430000;append /d 1024", "/d"),
    ("truncate /d 200000", "/d"),
    ("truncate /d 3000", "/d"),
    ("truncate /d 8000;append /d 5000", "/d"),
    ("truncate /d 0;append /d 20480", "/d"),
    ("truncate /d 100000;truncate /d 400000;write /d 300000 1024", "/d"),
    ("unlink /d", "/"),
    ("hold /d;unlink /d;truncate /d 100000;release /d", "/"),
    ("create /n;append /n 3000;rename /n /d", "/d"),
];

pub(super) fn deep_files() -> String {
    let mut text = "create /d".to_owned();
    for at in (0..PIECES).rev() {
        let _ = write!(text, ";write /d {} 1024", 2 * at * 1024);
    }
    let _ = write!(text, ";truncate /d {DEEP_END}");
    text
}

/// Steps of a run.
const RUN: usize = 20;
/// Blocks that a run's files may have.
const REACH: u64 = 120;

/// Draws a step of a run.
fn step(seed: &mut Seed) -> String {
    let path = ["/f", "/a", "/u"][usize::try_from(seed.below(3)).expect("three")].to_owned();
    // Often at a block's border, sometimes in the middle of one.
    let crooked = if seed.chance(1, 4) { seed.below(1024) } else { 0 };
    let offset = seed.below(REACH) * 1024 + crooked;
    let longest = if seed.chance(1, 4) { 60 } else { 5 };
    let len = (1 + seed.below(longest)) * 1024;
    match seed.below(20) {
        0..=5 => format!("write {path} {offset} {}", len - crooked),
        6 | 7 => format!("append {path} {len}"),
        8 | 9 => format!("allocate {path} {offset} {len}"),
        10 => format!("allocate-keep-size {path} {offset} {len}"),
        11..=13 => format!("punch {path} {offset} {len}"),
        14 => format!("zero {path} {offset} {len}"),
        15 => format!("zero-keep-size {path} {offset} {len}"),
        16 => format!("truncate {path} {offset}"),
        17 => format!("fsync {path}"),
        18 => format!("fdatasync {path}"),
        _ => format!("write-out 8 {}", seed.below(1 << 20)),
    }
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Steps {
            name: "extents",
            about: "steps on files of few extents and of unwritten blocks, with every sync",
            files: || FILES.to_owned(),
            steps: &SHALLOW,
            spell: str::to_owned,
        }),
        Box::new(Steps {
            name: "deep",
            about: "steps on a file whose tree of extents has two levels, with every sync",
            files: deep_files,
            steps: &DEEP,
            spell: str::to_owned,
        }),
        Box::new(Runs {
            name: "extents-random",
            about: "runs of steps on three files of extents; the number is a seed",
            files: || FILES.to_owned(),
            steps: RUN,
            step,
        }),
    ]
}
