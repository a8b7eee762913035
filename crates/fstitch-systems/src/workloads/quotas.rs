//! What several users, groups and projects have, on the peculiar volume that counts it: files that change hands, grow, shrink and go, those
//! that are held without a name, and limits that are met. No crash may leave usage that is not what there is.
//!
//! `quotas` are steps with a sync of every kind behind each; the number is that of the step times eight, plus that. `quotas-random` are runs
//! of steps; the number is a seed.

use fstitch_core::Seed;
use fstitch_crashlab::workload::Family;

use super::steps::{Runs, Step, Steps, pick};

/// Steps, and what a sync behind each is about.
const STEPS: [Step; 60] = [
    // Somebody makes, writes and removes something.
    ("as 1 11;create /m/n;append /m/n 5000", "/m/n"),
    ("as 1 11;append /m/a 10000", "/m/a"),
    ("as 1 11;write /m/s 1024 9000;write /m/s 100000 1024", "/m/s"),
    ("as 4 40000;create /n;append /n 3000", "/n"),
    ("append /m/a 5000;truncate /m/a 1000", "/m/a"),
    ("truncate /m/a 0", "/m/a"),
    ("punch /m/s 0 16384", "/m/s"),
    ("allocate /m/a 0 30000;write /m/a 8192 4096", "/m/a"),
    ("allocate-keep-size /w/b 0 40960;truncate /w/b 5000", "/w/b"),
    ("zero /w/b 2048 4096;append /w/b 2000", "/w/b"),
    ("collapse /w/b 1024 2048;insert /w/b 2048 1024", "/w/b"),
    ("unlink /m/a", "/m"),
    ("unlink /m/s;unlink /m/a;rmdir /m", "/"),
    ("unlink /w/x;unlink /w/l;unlink /w/b", "/w"),
    ("as 2 12;mkdir /w/d;create /w/d/f;append /w/d/f 3000;unlink /w/d/f;rmdir /w/d", "/w"),
    ("as 2 12;mkdir /w/d;mkdir /w/d/e;symlink /w/d/l 200;symlink /w/d/s 20", "/w/d"),
    ("as 2 12;symlink /w/n 200;unlink /w/l;mknod /w/p fifo", "/w"),
    ("as 2 12;tmpfile /w /w/t 5000", "/w/t"),
    ("as 7 7;tmpfile /w /w/b 5000", "/w"),
    ("unlink /m/a;as 2 12;create /m/a;append /m/a 3000", "/m/a"),
    // Attributes.
    ("setxattr /m/a user.a 600", "/m/a"),
    ("removexattr /w/x user.a;append /w/x 3000", "/w/x"),
    ("setxattr /w/x user.a 700;chown /w/x 1 11", "/w/x"),
    // Names that move.
    ("link /m/a /w/h;unlink /m/a", "/w/h"),
    ("rename /m/a /w/b", "/w/b"),
    ("exchange /m/a /w/b;unlink /m/a", "/w/b"),
    ("as 1 11;create /m/n;append /m/n 3000;rename /m/n /w/b", "/w/b"),
    ("rename /w /m/w;unlink /m/w/b", "/m/w"),
    // Nobody sees it any more, and somebody has it still.
    ("hold /m/a;unlink /m/a;append /m/a 5000;release /m/a", "/m"),
    ("hold /m/a;unlink /m/a;append /m/a 5000", "/m"),
    ("hold /m/s;unlink /m/s;truncate /m/s 3000;chown /m/s 2 12;append /m/s 4000;release /m/s", "/m"),
    ("hold /w/b;rename /m/a /w/b;chown /w/b 2 12;truncate /w/b 100", "/w/b"),
    // Others get it.
    ("chown /m/a 2 12", "/m/a"),
    ("chown /m/a 300;chown /m/a 1", "/m/a"),
    ("chown /m/a 70000 70000", "/m/a"),
    ("chown /m/a 1879048192 1879048192;append /m/a 5000", "/m/a"),
    ("chown /m/a 2 12;append /m/a 3000;chown /m/a 500 7;truncate /m/a 1000", "/m/a"),
    ("chown /m/a 0 0;chown /w/b 0 0;chown /w/x 0 0;unlink /w/b", "/w/x"),
    (
        "chown /m/s 500 600;chown /m/a 800 900;chown /w/b 66000 67000;chown /w/x 131072 16777216;chown /m 4000000000 9",
        "/m/s",
    ),
    ("chown /m 2 12;as 2 12;create /m/z;append /m/z 2000", "/m/z"),
    ("chown /w/l 5 5;chown /p 2 12;chown /m 70001 3", "/"),
    // Projects.
    ("project /m/a 5", "/m/a"),
    ("project /m/a 77;append /m/a 3000;chown /m/a 2", "/m/a"),
    ("project /p/e 0;append /p/e 3000", "/p/e"),
    ("as 1 11;create /p/n;append /p/n 3000;unlink /p/e", "/p/n"),
    ("as 2 12;mkdir /p/d;create /p/d/n;append /p/d/n 3000", "/p/d/n"),
    ("rename /m/a /p/a;project /m/a 5;rename /m/a /p/a", "/p/a"),
    ("rename /p/e /m/e;project /m/e 1000000;append /m/e 1000", "/m/e"),
    ("project /m 9;create /m/q;append /m/q 1000", "/m/q"),
    // Limits.
    ("as 3 13;append /t/c 30000", "/t/c"),
    (
        "as 3 13;create /t/1;create /t/2;create /t/3;create /t/4;create /t/5;create /t/6;append /t/1 3000",
        "/t/1",
    ),
    ("as 3 13;allocate /t/c 0 40000;allocate /t/c 0 18432;write /t/c 0 20000", "/t/c"),
    ("as 3 13;write /t/c 500000 20000;truncate /t/c 3000;append /t/c 20000", "/t/c"),
    ("as 3 13;truncate /t/c 0;append /t/c 30000;unlink /t/c;create /t/c;append /t/c 9000", "/t/c"),
    (
        "as 3 13;mkdir /t/d;mkdir /t/e;symlink /t/l 200;setxattr /t/c user.a 600;mkdir /t/d/e;append /t/c 30000",
        "/t/c",
    ),
    ("as 1 11;create /p/x;append /p/x 40000;create /p/y;append /p/y 1000", "/p/x"),
    ("as 1 11;chown /m/a 3 13;chown /w/b 3 13;chown /m/s 3 13;chown /w/x 3", "/m/a"),
    ("as 1 11;chown /w/b 1;project /m/a 5;project /m/s 5;append /m/s 30000", "/m/s"),
    ("as 8 14;create /1;create /2;create /3;append /3 9000;unlink /1;truncate /3 3000", "/3"),
    ("as 3 13;hold /t/c;unlink /t/c;create /t/c;append /t/c 20000;release /t/c;append /t/c 12000", "/t/c"),
];

/// Steps of a run.
const RUN: usize = 24;
const FILES: [&str; 7] = ["/m/a", "/m/s", "/w/b", "/w/x", "/t/c", "/p/e", "/n"];
const NAMES: [&str; 9] = ["/m/a", "/w/b", "/w/l", "/t/c", "/p/e", "/n", "/m/n", "/p/n", "/t/n"];
/// Who acts, and who gets something.
const OWNERS: [&str; 9] =
    ["0 0", "1 11", "2 12", "3 13", "3 14", "8 14", "300 500", "70000 131072", "1879048192 4000000000"];

/// Draws a step of a run.
fn step(seed: &mut Seed) -> String {
    let path = pick(seed, &FILES);
    let (name, other) = (pick(seed, &NAMES), pick(seed, &NAMES));
    let crooked = if seed.chance(1, 4) { seed.below(1024) } else { 0 };
    let offset = seed.below(30) * 1024 + crooked;
    let longest = if seed.chance(1, 4) { 25 } else { 5 };
    let len = (1 + seed.below(longest)) * 1024;
    match seed.below(32) {
        0..=2 => format!("as {}", pick(seed, &OWNERS)),
        3..=5 => format!("append {path} {}", len - crooked),
        6 | 7 => format!("write {path} {offset} {len}"),
        8 => format!("allocate {path} {offset} {len}"),
        9 => format!("punch {path} {offset} {len}"),
        10 | 11 => format!("truncate {path} {}", offset / 2),
        12 | 13 => format!("unlink {name}"),
        14 | 15 => format!("create {name}"),
        16 => format!("rename {name} {other}"),
        17 => format!("link {name} {other}"),
        18 => format!("symlink {name} {}", 40 + 5 * (len / 1024)),
        19..=22 => format!("chown {} {}", pick(seed, &[path, name, "/m", "/t"]), pick(seed, &OWNERS)),
        23 | 24 => format!("project {path} {}", pick(seed, &["0", "5", "77", "1000000"])),
        25 => format!("setxattr {path} user.a {}", 100 + 20 * (len / 1024)),
        26 => pick(seed, &["mkdir /m/d", "rmdir /m/d", "mkdir /p/d", "mkdir /t/d", "rename /m/d /w/d"])
            .to_owned(),
        27 => format!("hold {path}"),
        28 => format!("release {path}"),
        29 => pick(seed, &["sync", "fsync /m/a", "fsync /w/b", "fdatasync /t/c", "fsync /p/e", "fsync /m"])
            .to_owned(),
        _ => format!("write-out 8 {}", seed.below(1 << 20)),
    }
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Steps {
            name: "quotas",
            about: "steps of several owners on a peculiar volume that counts what they have, with every sync",
            files: String::new,
            steps: &STEPS,
            spell: str::to_owned,
        }),
        Box::new(Runs {
            name: "quotas-random",
            about: "runs of steps of several owners on such a volume; the number is a seed",
            files: String::new,
            steps: RUN,
            step,
        }),
    ]
}
