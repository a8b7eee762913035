//! What files give up and others get at once, on the peculiar volume that is nearly full: blocks of files, maps, directories, links and
//! attributes that become one another, inodes that come again, and operations that find no room in the middle.
//!
//! `crowded` are steps with a sync of every kind behind each; the number is that of the step times eight, plus that. `crowded-random` are runs
//! of steps; the number is a seed.

use fstitch_core::Seed;
use fstitch_crashlab::workload::Family;

use super::steps::{Runs, Step, Steps, pick};

/// Bytes that make a name long: a directory's block of 1 KiB has four.
const LONG: usize = 200;

/// A text in which `LONG` stands for what makes a name long.
fn spell(text: &str) -> String {
    text.replace("LONG", &"n".repeat(LONG))
}

/// Steps, and what a sync behind each is about.
const STEPS: [Step; 80] = [
    // Blocks of a file become another one's: allocated and filled, written at once, piece by piece, in no order.
    ("unlink /a;create /n;allocate /n 0 20480;write /n 0 20480", "/n"),
    ("unlink /a;create /n;append /n 20480", "/n"),
    (
        "unlink /a;create /n;append /n 1024;append /n 1024;append /n 1024;append /n 3000;append /n 1000;append /n 5000",
        "/n",
    ),
    (
        "unlink /a;create /n;write /n 2048 1024;write /n 0 1024;write /n 3072 1024;write /n 1024 1024;write /n 6144 1024;write /n 4096 1024;\
         write /n 7168 1024;write /n 5120 1024;write /n 10240 1024;write /n 8192 1024;write /n 11264 1024;write /n 9216 1024",
        "/n",
    ),
    (
        "truncate /a 3000;append /o 1500;append /o 1500;append /o 1500;append /o 1500;append /a 1500;append /a 1500",
        "/o",
    ),
    ("unlink /a;create /n;allocate /n 0 16384;write /n 5000 3000;write /n 12288 1024", "/n"),
    ("unlink /a;create /n;allocate-keep-size /n 0 20480;append /n 5000;append /n 9000", "/n"),
    ("unlink /a;create /n;append /n 20480;unlink /n;create /m;append /m 20480", "/m"),
    ("unlink /a;unlink /b;create /n;append /n 40000", "/n"),
    ("unlink /a;sync;create /n;append /n 20480", "/n"),
    ("unlink /a;fsync /;create /n;allocate /n 0 20480;write /n 0 20480;unlink /n;append /b 20000", "/b"),
    ("unlink /a;create /n;append /n 20480;fdatasync /n;truncate /n 0;append /o 20000", "/o"),
    ("truncate /a 0;append /b 20000", "/b"),
    ("truncate /a 5000;append /b 15000", "/b"),
    ("truncate /a 5000;allocate /b 24576 15360;write /b 24576 15360", "/b"),
    ("punch /a 4096 8192;append /b 8000", "/b"),
    ("punch /a 0 24576;write /b 24576 20480", "/b"),
    ("punch /a 0 8192;allocate /o 1024 7168;write /o 1024 7168", "/o"),
    ("punch /a 5120 1024;punch /a 9216 2048;append /o 3000;append /o 4000", "/o"),
    ("rename /o /a;append /b 20480", "/b"),
    ("rename /b /a;create /n;allocate /n 0 20480;write /n 0 20480", "/n"),
    ("create /n;append /n 3000;rename /n /a;append /o 20000", "/o"),
    ("exchange /a /o;truncate /o 100;append /a 20000", "/a"),
    ("unlink /a;tmpfile / /n 20000", "/n"),
    ("hold /a;unlink /a;append /b 5000;release /a;append /b 10000", "/b"),
    ("hold /a;unlink /a;truncate /a 0;create /n;append /n 20000;release /a", "/n"),
    ("hold /a;unlink /a;punch /a 0 16384;allocate /o 1024 12288;write /o 1024 12288;release /a", "/o"),
    ("collapse /a 4096 8192;append /b 8000", "/b"),
    ("unlink /b;insert /a 4096 8192;append /o 8000;write /a 4096 8192", "/a"),
    // A block has had two files before anything is written, and the second one goes.
    ("write /s 12288 7168;punch /s 16384 4096;append /x 61;rename /l /s;write /o 22528 4096;unlink /o", "/"),
    // The file gets its own blocks again.
    ("truncate /a 0;append /a 20480", "/a"),
    ("truncate /a 0;allocate /a 0 20480;write /a 4096 8192", "/a"),
    ("punch /a 4096 8192;write /a 4096 8192", "/a"),
    ("punch /a 4096 8192;allocate /a 4096 8192;write /a 5120 4096", "/a"),
    ("zero /a 4096 8192;write /a 6144 2048", "/a"),
    // Unwritten blocks.
    ("write /u 0 16384", "/u"),
    ("write /u 5000 3000;append /u 3000", "/u"),
    ("punch /a 0 8192;punch /u 4096 4096;write /u 4096 4096;append /u 8000", "/u"),
    ("zero /a 0 24576;punch /a 8192 8192;write /u 0 16384;append /u 8000", "/u"),
    ("unlink /u;create /n;append /n 16384", "/n"),
    ("unlink /u;create /n;allocate /n 0 16384;write /n 1024 14000", "/n"),
    // Directories where files were, and files where directories were.
    ("unlink /a;mkdir /n;create /n/x;append /n/x 10000", "/n/x"),
    ("unlink /a;link /x /d/LONG6;link /x /d/LONG7;link /x /d/LONG8;link /x /d/LONG9;link /x /d/LONG10", "/d"),
    (
        "truncate /a 0;link /x /e/LONG0;link /x /e/LONG1;link /x /e/LONG2;link /x /e/LONG3;link /x /e/LONG4",
        "/e",
    ),
    (
        "unlink /d/LONG0;unlink /d/LONG1;unlink /d/LONG2;unlink /d/LONG3;unlink /d/LONG4;unlink /d/LONG5;rmdir /d;append /o 8000",
        "/o",
    ),
    ("rmdir /e;create /n;append /n 5000", "/n"),
    ("rmdir /e;append /o 5000", "/o"),
    ("rmdir /e;mkdir /n;link /x /n/x", "/n"),
    ("unlink /o;mkdir /n;mkdir /n/m;rename /n/m /e", "/e"),
    // Maps where contents were, and contents where maps were.
    ("unlink /s;create /n;append /n 15000", "/n"),
    ("truncate /s 0;append /b 14000", "/b"),
    ("punch /s 0 16384;append /b 12000", "/b"),
    ("unlink /s;setxattr /o user.a 600;append /o 14000", "/o"),
    (
        "unlink /b;create /n;write /n 0 1024;write /n 2048 1024;write /n 4096 1024;write /n 6144 1024;write /n 8192 1024;\
         write /n 400000 1024",
        "/n",
    ),
    ("truncate /a 0;write /s 1024 1024;write /s 30720 1024;write /s 40960 1024", "/s"),
    ("unlink /b;write /o 12288 1024;write /o 300000 1024;append /o 20000", "/o"),
    // Attributes and links.
    ("removexattr /x user.a;append /o 5000", "/o"),
    ("unlink /a;setxattr /o user.a 600;append /o 20000", "/o"),
    ("setxattr /x user.a 700;append /o 4000", "/o"),
    ("removexattr /x user.a;setxattr /o user.b 500;append /o 4000", "/o"),
    ("unlink /y;append /o 6000", "/o"),
    ("setxattr /y user.a 20;mkdir /n;append /o 5000", "/o"),
    ("unlink /l;append /o 5000", "/o"),
    ("unlink /a;symlink /n 200;append /o 20000", "/o"),
    ("unlink /l;symlink /n 300;append /o 4000", "/o"),
    // Inodes that come again.
    ("unlink /o;create /n;append /n 3000", "/n"),
    ("unlink /o;mkdir /n;link /x /n/x", "/n"),
    ("rmdir /e;create /n;append /n 2000;setxattr /n user.a 20", "/n"),
    ("unlink /l;create /n;setxattr /n user.a 20;append /n 100", "/n"),
    ("create /n;create /m;create /k;create /j;unlink /n;create /j;append /j 100", "/j"),
    ("unlink /o;symlink /n 30;unlink /n;create /n;append /n 2000", "/n"),
    ("create /n;append /n 1000;create /m;create /k;unlink /n;unlink /m;mkdir /m;link /x /m/n", "/m"),
    // There is no room, in the middle of something.
    ("append /o 50000", "/o"),
    ("allocate /o 0 60000;append /o 3000;truncate /o 100", "/o"),
    ("create /n;append /n 50000;append /n 1000;unlink /n;append /o 3000", "/o"),
    ("create /n;write /n 3000000 9000;tmpfile / /m 20000", "/n"),
    ("unlink /a;append /o 50000;unlink /o;append /b 10000", "/b"),
    (
        "link /x /e/LONG0;link /x /e/LONG1;link /x /e/LONG2;link /x /e/LONG3;link /x /e/LONG4;link /x /e/LONG5;\
         link /x /e/LONG6;link /x /e/LONG7;link /x /e/LONG8;link /x /e/LONG9;link /x /e/LONG10;link /x /e/LONG11;link /x /e/LONG12;\
         link /x /e/LONG13;link /x /e/LONG14;link /x /e/LONG15;link /x /e/LONG16;link /x /e/LONG17;link /x /e/LONG18;rename /o /e/LONG19",
        "/e",
    ),
    ("symlink /n 200;symlink /m 200;symlink /k 200;unlink /n;mkdir /n;setxattr /o user.a 600", "/"),
    (
        "setxattr /o user.a 600;setxattr /a user.a 500;setxattr /b user.a 400;setxattr /u user.a 300;setxattr /s user.a 410;unlink /l;\
         setxattr /u user.a 310",
        "/u",
    ),
];

/// Steps of a run.
const RUN: usize = 24;
/// Files that a run knows, and names that it makes and removes.
const FILES: [&str; 8] = ["/a", "/b", "/s", "/u", "/o", "/x", "/n", "/m"];
const NAMES: [&str; 10] = ["/a", "/b", "/s", "/o", "/y", "/l", "/n", "/m", "/e/k", "/d/LONG2"];

/// Draws a step of a run.
fn step(seed: &mut Seed) -> String {
    let path = pick(seed, &FILES);
    let (name, other) = (pick(seed, &NAMES), pick(seed, &NAMES));
    let crooked = if seed.chance(1, 4) { seed.below(1024) } else { 0 };
    let offset = seed.below(26) * 1024 + crooked;
    let longest = if seed.chance(1, 4) { 30 } else { 8 };
    let len = (1 + seed.below(longest)) * 1024;
    let text = match seed.below(32) {
        0..=3 => format!("append {path} {}", len - crooked),
        4 | 5 => format!("write {path} {offset} {len}"),
        6..=8 => format!("allocate {path} {offset} {len};write {path} {offset} {len}"),
        9 => format!("allocate-keep-size {path} {offset} {len}"),
        10 => format!("punch {path} {offset} {len}"),
        11 => format!("zero {path} {offset} {len}"),
        12 | 13 => format!("truncate {path} {}", offset / 2),
        14..=17 => format!("unlink {name}"),
        18 | 19 => format!("create {name}"),
        20 | 21 => format!("rename {name} {other}"),
        22 => format!("setxattr {path} user.a {}", 100 + 5 * (len / 1024)),
        23 => format!("removexattr {path} user.a"),
        24 => format!("symlink {name} {}", 40 + 5 * (len / 1024)),
        25 => pick(seed, &["mkdir /k", "rmdir /k", "rmdir /e", "mkdir /e", "mkdir /n"]).to_owned(),
        26 => format!("link /x {}/LONG{}", pick(seed, &["/d", "/e", "/k"]), seed.below(20)),
        27 => format!("hold {path}"),
        28 => format!("release {path}"),
        29 => pick(seed, &["sync", "fsync /", "fsync /n", "fdatasync /a", "fdatasync /b", "fsync /d"])
            .to_owned(),
        _ => format!("write-out 8 {}", seed.below(1 << 20)),
    };
    spell(&text)
}

/// The families of this file.
pub(super) fn families() -> Vec<Box<dyn Family>> {
    vec![
        Box::new(Steps {
            name: "crowded",
            about: "steps on a peculiar volume that is nearly full, with every sync",
            files: String::new,
            steps: &STEPS,
            spell,
        }),
        Box::new(Runs {
            name: "crowded-random",
            about: "runs of steps on a peculiar volume that is nearly full; the number is a seed",
            files: String::new,
            steps: RUN,
            step,
        }),
    ]
}
