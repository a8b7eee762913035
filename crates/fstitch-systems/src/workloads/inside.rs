//! Files and directories that lie in their inodes, on the peculiar volume of ext4 that has them: moved out, cut, removed, renamed, and what is
//! around that. What they hold was stable before: no crash may lose it.
//!
//! `inside` are steps with a sync of every kind behind each; the number is that of the step times eight, plus that. `inside-random` are
//! runs of steps; the number is a seed.

use fstitch_core::Seed;
use fstitch_crashlab::workload::Family;

use super::steps::{Runs, Step, Steps, pick};

/// Steps, and what a sync behind each is about.
const STEPS: [Step; 39] = [
    ("append /i/f50 5", "/i/f50"),
    ("write /i/f100 10 20", "/i/f100"),
    ("write /i/f100 0 100;append /i/g100 1", "/i/f100"),
    ("write /i/f30 2000 100", "/i/f30"),
    ("append /i/f50 3000", "/i/f50"),
    ("truncate /i/f100 70", "/i/f100"),
    ("truncate /i/f100 0", "/i/f100"),
    ("truncate /i/f100 0;append /i/f100 50", "/i/f100"),
    ("truncate /i/f30 5000", "/i/f30"),
    ("truncate /i/f50 10;append /i/f50 100;truncate /i/f50 20", "/i/f50"),
    ("allocate /i/f100 0 3000", "/i/f100"),
    ("allocate-keep-size /i/f50 0 2048;append /i/f50 1000", "/i/f50"),
    ("zero /i/f100 10 50", "/i/f100"),
    ("punch /i/f100 0 100", "/i/f100"),
    ("append /i/f50 5;truncate /i/f50 0", "/i/f50"),
    ("append /i/f50 5;unlink /i/f50", "/i"),
    ("unlink /i/f100", "/i"),
    ("hold /i/f100;unlink /i/f100;append /i/g100 5;release /i/f100", "/i/g100"),
    ("link /i/f50 /i/few/l;append /i/few/l 5", "/i/few/l"),
    ("setxattr /i/f50 user.a 20;append /i/f50 5", "/i/f50"),
    ("setxattr /i/f100 user.a 300;truncate /i/f100 99", "/i/f100"),
    ("create /i/few/n", "/i/few/n"),
    ("create /i/none/n;append /i/none/n 2000", "/i/none/n"),
    ("mkdir /i/more/d;create /i/more/d/n", "/i/more/d/n"),
    ("unlink /i/few/a", "/i/few"),
    ("unlink /i/more/f;create /i/more/f", "/i/more/f"),
    ("create /i/few/n;unlink /i/few/a;unlink /i/few/n", "/i/few"),
    ("create /i/more/n;unlink /i/more/f;unlink /i/more/e", "/i/more"),
    ("create /i/more/n;rename /i/more/f /i/more/e;rename /i/f50 /i/more/d", "/i/more"),
    ("unlink /i/few/a;unlink /i/few/b;unlink /i/few/c;rmdir /i/few", "/i"),
    ("rename /i/few/a /i/few/n;rename /i/few/b /i/few/c", "/i/few"),
    ("rename /i/more/f /i/few/b;rename /i/f50 /i/more/a", "/i/more"),
    ("rename /i/more/z /i/none/z;create /i/none/z/n", "/i/none/z/n"),
    ("rename /i/more /i/few/m;rename /i/none /m", "/i/few/m"),
    ("rmdir /i/none;rmdir /i/more/z;rename /i/f50 /i/f100", "/i"),
    (
        "create /i/few/n;rename /i/few/a /i/few/n;append /i/few/n 10;rmdir /i/more/z;mkdir /i/more/z",
        "/i/few/n",
    ),
    // The attribute moves the names that are in the value of another one, by one of them and by many.
    ("rename /i/f50 /i/more/e;setxattr /i/more user.a 12;unlink /i/more/f", "/i/more"),
    ("rename /i/more/e /i/more/f;setxattr /i/more user.a 24;rename /i/more/d /i/more/f", "/i/more"),
    (
        "setxattr /i/more user.a 90;rename /i/f50 /i/more/d;removexattr /i/more user.a;unlink /i/more/d",
        "/i/more",
    ),
];

/// Steps of a run.
const RUN: usize = 16;

/// Draws a step of a run.
fn step(seed: &mut Seed) -> String {
    let names =
        ["/i/f30", "/i/f50", "/i/f100", "/i/few/a", "/i/more/a", "/i/none/n", "/i/more/e", "/i/few/b"];
    let (path, other) = (pick(seed, &names), pick(seed, &names));
    let (offset, len) = (seed.below(130), 1 + seed.below(90));
    match seed.below(16) {
        0..=2 => format!("write {path} {offset} {len}"),
        3 => format!("append {path} {len}"),
        4 | 5 => format!("truncate {path} {offset}"),
        6 | 7 => format!("create {path}"),
        8 => format!("unlink {path}"),
        9..=11 => format!("rename {path} {other}"),
        12 => format!("setxattr {} user.a {len}", pick(seed, &[path, "/i/more", "/i/few"])),
        13 => pick(
            seed,
            &[
                "rename /i/more/z /i/none/z",
                "rename /i/none /i/few/m",
                "rename /i/few /i/more/q",
                "rmdir /i/none",
            ],
        )
        .to_owned(),
        14 => format!("fsync {path}"),
        _ => format!("write-out 8 {}", seed.below(1 << 20)),
    }
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Steps {
            name: "inside",
            about: "steps on what lies in inodes of a peculiar volume, with every sync",
            files: String::new,
            steps: &STEPS,
            spell: str::to_owned,
        }),
        Box::new(Runs {
            name: "inside-random",
            about: "runs of steps on what lies in inodes of a peculiar volume; the number is a seed",
            files: String::new,
            steps: RUN,
            step,
        }),
    ]
}
