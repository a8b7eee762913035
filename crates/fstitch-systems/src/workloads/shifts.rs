//! Ranges that are taken out of files of extents, and holes that are put in, on the files of [`super::extents`].
//!
//! `shifts` are steps on trees of one level and less, `shifts-deep` on a tree of two levels, each with a sync of every kind or none behind it
//! and with and without the cache writing in between: the number is that of the step times eight, plus that. `shifts-random` are runs of
//! sixteen steps on three such files; the number is a seed.

use fstitch_core::Seed;
use fstitch_crashlab::workload::Family;

use super::extents::{FILES, deep_files};
use super::steps::{Runs, Step, Steps};

/// Steps on files of few extents.
const SHALLOW: [Step; 48] = [
    // A part of an extent goes: the middle, both ends, more.
    ("collapse /f 4096 4096", "/f"),
    ("collapse /f 0 1024", "/f"),
    ("collapse /f 1024 18432", "/f"),
    ("collapse /f 0 19456", "/f"),
    // Several go, with holes; a hole alone; what becomes one extent with what is behind it.
    ("collapse /a 0 30720", "/a"),
    ("collapse /a 1024 8192", "/a"),
    ("collapse /a 4096 16384", "/a"),
    ("collapse /a 2048 2048", "/a"),
    ("collapse /a 22528 4096", "/a"),
    ("insert /f 4096 4096;collapse /f 4096 4096", "/f"),
    ("insert /f 4096 4096;write /f 4096 4096;collapse /f 4096 4096", "/f"),
    // Unwritten ones, and those behind the end.
    ("collapse /u 10240 61440", "/u"),
    ("collapse /u 0 40960", "/u"),
    ("collapse /u 41984 1024", "/u"),
    ("collapse /k 0 1024", "/k"),
    ("collapse /k 0 1024;append /k 3000", "/k"),
    // A hole comes into an extent, between two, before all, into a hole, before the last block.
    ("insert /f 4096 1024", "/f"),
    ("insert /f 0 4096", "/f"),
    ("insert /f 19456 4096", "/f"),
    ("insert /a 2048 2048", "/a"),
    ("insert /a 3072 10240", "/a"),
    ("insert /a 0 102400", "/a"),
    ("insert /a 1024 1024", "/a"),
    ("insert /u 20480 10240", "/u"),
    ("insert /u 43008 1024", "/u"),
    ("insert /k 1024 2048", "/k"),
    ("insert /k 0 1024;append /k 3000", "/k"),
    // More than fit the inode.
    ("insert /f 1024 1024;insert /f 3072 1024;insert /f 5120 1024;insert /f 7168 1024", "/f"),
    ("insert /a 1024 1024;collapse /a 5120 4096;insert /a 0 1024;collapse /a 2048 1024", "/a"),
    ("insert /a 13312 1024;collapse /a 1024 30720", "/a"),
    // Contents that were written before, and are written behind.
    ("write /f 8192 2048;collapse /f 4096 4096", "/f"),
    ("write /f 8192 2048;insert /f 4096 4096", "/f"),
    ("collapse /f 4096 4096;write /f 4096 3000", "/f"),
    ("insert /f 4096 4096;write /f 8192 3000", "/f"),
    ("insert /f 4096 4096;write /f 4096 4096", "/f"),
    ("insert /f 4096 4096;write /f 3000 7000", "/f"),
    ("append /f 5000;collapse /f 0 8192", "/f"),
    ("write /u 20480 4096;collapse /u 19456 1024;write /u 19456 1024", "/u"),
    // What has gone serves others, and the same file.
    ("collapse /f 1024 8192;append /f 9000", "/f"),
    ("collapse /f 4096 4096;create /n;append /n 8192", "/n"),
    ("collapse /a 0 20480;append /u 20000", "/u"),
    // Beside other changes of the file.
    ("truncate /f 9000;insert /f 8192 1024;truncate /f 12000", "/f"),
    ("truncate /f 9000;collapse /f 4096 1024;truncate /f 12000", "/f"),
    ("zero /f 4096 8192;insert /f 8192 1024;write /f 4096 1024", "/f"),
    ("punch /f 8192 4096;collapse /f 4096 4096", "/f"),
    ("setxattr /f user.x 300;collapse /f 4096 4096;chmod /f 600", "/f"),
    ("hold /f;unlink /f;collapse /f 4096 4096;insert /f 1024 1024;release /f", "/"),
    ("collapse /f 4096 4096;rename /f /a", "/a"),
];

/// Steps on the deep file `/d`.
const DEEP: [Step; 20] = [
    ("collapse /d 0 1024", "/d"),
    ("collapse /d 1024 1024", "/d"),
    ("collapse /d 90112 90112", "/d"),
    ("collapse /d 2048 430080", "/d"),
    ("collapse /d 0 433152", "/d"),
    ("collapse /d 0 204800;collapse /d 0 204800", "/d"),
    ("insert /d 0 1024", "/d"),
    ("insert /d 90112 4096", "/d"),
    ("insert /d 91136 1048576", "/d"),
    ("insert /d 433152 1024", "/d"),
    ("write /d 90112 5120;collapse /d 92160 1024", "/d"),
    ("write /d 90112 5120;insert /d 92160 1024", "/d"),
    ("write /d 90112 90112;insert /d 120832 2048", "/d"),
    ("write /d 90112 90112;collapse /d 120832 2048;write /d 118784 4096", "/d"),
    ("collapse /d 200704 1024;write /d 100352 3072", "/d"),
    ("insert /d 100352 1024;append /d 1024;collapse /d 0 2048", "/d"),
    ("punch /d 0 90112;collapse /d 0 90112", "/d"),
    ("truncate /d 200000;insert /d 1024 1024;truncate /d 210000", "/d"),
    ("collapse /d 2048 204800;create /n;append /n 100000", "/d"),
    ("hold /d;unlink /d;collapse /d 90112 90112;insert /d 1024 1024;release /d", "/"),
];

/// Steps of a run.
const RUN: usize = 16;
/// Blocks among which a run works.
const REACH: u64 = 80;

/// Draws a step of a run.
fn step(seed: &mut Seed) -> String {
    let path = ["/f", "/a", "/u"][usize::try_from(seed.below(3)).expect("three")].to_owned();
    let crooked = if seed.chance(1, 4) { seed.below(1024) } else { 0 };
    // Often near the start, where the files are.
    let reach = if seed.chance(1, 2) { 20 } else { REACH };
    let at = seed.below(reach) * 1024;
    let longest = if seed.chance(1, 6) { 40 } else { 5 };
    let len = (1 + seed.below(longest)) * 1024;
    match seed.below(20) {
        0..=3 => format!("write {path} {} {}", at + crooked, len - crooked),
        4 | 5 => format!("append {path} {len}"),
        6..=9 => format!("collapse {path} {at} {len}"),
        10..=13 => format!("insert {path} {at} {len}"),
        14 => format!("punch {path} {} {len}", at + crooked),
        15 => format!("allocate {path} {at} {len}"),
        16 => format!("truncate {path} {}", at + crooked),
        17 => format!("fsync {path}"),
        18 => format!("fdatasync {path}"),
        _ => format!("write-out 8 {}", seed.below(1 << 20)),
    }
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Steps {
            name: "shifts",
            about: "ranges taken out of files of few extents and holes put in, with every sync",
            files: || FILES.to_owned(),
            steps: &SHALLOW,
            spell: str::to_owned,
        }),
        Box::new(Steps {
            name: "shifts-deep",
            about: "the same on a file whose tree of extents has two levels",
            files: deep_files,
            steps: &DEEP,
            spell: str::to_owned,
        }),
        Box::new(Runs {
            name: "shifts-random",
            about: "runs of steps on three files of extents with ranges that go and come; the number is a seed",
            files: || FILES.to_owned(),
            steps: RUN,
            step,
        }),
    ]
}
