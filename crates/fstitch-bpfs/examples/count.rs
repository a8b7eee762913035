//! What the rows of \[D\] Fig 3.8 store, by the gate's count and by a trace of all stores that valgrind has made.
//!
//! ```text
//! count prepare DIR COLUMN   makes the volume of each row of a column
//! count run DIR COLUMN       opens each, does what its row says, and prints the gate's count and where the volume was mapped
//! count sum RUN TRACE        compares what `run` has printed with what lackey has traced meanwhile
//! ```
//!
//! Before and behind what is measured a word is stored that is nowhere else stored to. Between the two, all stores to the volume's
//! addresses are added up. The C library copies most lengths by stores that overlap: of one call what was stored twice is counted once,
//! as the caller meant it; `raw` is the sum with it.

#![allow(clippy::unwrap_used, reason = "it fails where it cannot go on")]

#[path = "../tests/bpfs/support/rows.rs"]
#[allow(dead_code, reason = "the test uses the rest of it")]
mod rows;
#[path = "../tests/bpfs/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fstitch_bpfs::{Bpfs, Medium, mkfs};
use fstitch_core::ManualClock;
use rows::{COLUMNS, ROWS, mounted, prepare};
use support::{clock, mkfs_options};

/// A store to it is a border of what is measured.
static BORDER: AtomicU64 = AtomicU64::new(0);

fn image(dir: &str, row: usize) -> String {
    format!("{dir}/row-{row}")
}

fn open(path: &str, column: usize, clock: &Arc<ManualClock>) -> Bpfs {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let medium = Medium::file(file, false).unwrap();
    Bpfs::open(medium, mounted(COLUMNS[column]), Arc::<ManualClock>::clone(clock)).unwrap()
}

fn prepare_all(dir: &str, column: usize) {
    for (number, row) in ROWS.iter().enumerate() {
        let path = image(dir, number);
        let file = File::create_new(&path).unwrap();
        file.set_len(8 << 20).unwrap();
        drop(file);
        let file = File::options().read(true).write(true).open(&path).unwrap();
        mkfs(Medium::file(file, false).unwrap(), &mkfs_options()).unwrap();
        let clock = clock();
        prepare(&open(&path, column, &clock), &clock, row);
    }
}

/// Where something is mapped, in hexadecimal numbers.
fn mapped(what: &str) -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let lines = maps.lines().filter(|line| line.ends_with(what));
    lines.map(|line| line.split(' ').next().unwrap().replace('-', " ")).collect()
}

fn run(dir: &str, column: usize) {
    println!("border {:x}", BORDER.as_ptr().addr());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libraries = maps.lines().filter(|line| line.contains("/libc.so") || line.contains("vgpreload"));
    libraries.for_each(|line| println!("library {}", line.split(' ').next().unwrap().replace('-', " ")));
    for (number, row) in ROWS.iter().enumerate() {
        let path = image(dir, number);
        let clock = clock();
        clock.advance(Duration::from_secs(100));
        let fs = open(&path, column, &clock);
        let at = mapped(&path);
        assert_eq!(at.len(), 1, "the volume is mapped once");
        let before = fs.counts().bytes;
        BORDER.store(1, Ordering::SeqCst);
        (row.act)(&fs);
        BORDER.store(2, Ordering::SeqCst);
        println!("row {} {} {}", at[0], fs.counts().bytes - before, row.name);
    }
}

/// A store, and whether the C library made it.
struct Store {
    at: u64,
    len: u64,
    /// The number of the call, or none.
    call: Option<u64>,
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).unwrap()
}

/// Stores between borders, pair by pair.
fn brackets(trace: &str, border: u64, libraries: &[Range<u64>]) -> Vec<Vec<Store>> {
    let (mut brackets, mut is_open, mut calls, mut in_library) = (Vec::new(), false, 0, false);
    for line in BufReader::new(File::open(trace).unwrap()).lines() {
        let line = line.unwrap();
        let Some((kind, place)) = line.split_at_checked(3) else { continue };
        let Some((at, len)) = place.split_once(',') else { continue };
        let (Ok(at), Ok(len)) = (u64::from_str_radix(at.trim(), 16), len.trim().parse()) else { continue };
        match kind {
            "I  " => {
                let was =
                    std::mem::replace(&mut in_library, libraries.iter().any(|range| range.contains(&at)));
                calls += u64::from(in_library && !was);
            }
            " S " | " M " if at == border => {
                is_open = !is_open;
                if is_open {
                    brackets.push(Vec::new());
                }
            }
            " S " | " M " if is_open => {
                let call = in_library.then_some(calls);
                brackets.last_mut().unwrap().push(Store { at, len, call });
            }
            _ => {}
        }
    }
    brackets
}

fn sum(run: &str, trace: &str) {
    let said = std::fs::read_to_string(run).unwrap();
    let words = |prefix: &str| -> Vec<Vec<String>> {
        let lines = said.lines().filter_map(|line| line.strip_prefix(prefix));
        lines.map(|line| line.splitn(4, ' ').map(str::to_owned).collect()).collect()
    };
    let border = hex(&words("border ")[0][0]);
    let libraries: Vec<_> = words("library ").iter().map(|range| hex(&range[0])..hex(&range[1])).collect();
    let (rows, brackets) = (words("row "), brackets(trace, border, &libraries));
    assert_eq!(rows.len(), brackets.len(), "each row has its borders");
    for (row, stores) in rows.iter().zip(brackets) {
        let region = hex(&row[0])..hex(&row[1]);
        let (mut raw, mut counted, mut of_call, mut seen) = (0, 0, None, BTreeSet::new());
        for store in stores.iter().filter(|store| region.contains(&store.at)) {
            raw += store.len;
            if store.call.is_none() || store.call != of_call {
                seen.clear();
                of_call = store.call;
            }
            counted += (store.at..store.at + store.len).filter(|byte| seen.insert(*byte)).count();
        }
        println!("{}\t{counted}\t{raw}\t{}", row[2], row[3]);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["prepare", dir, column] => prepare_all(dir, column.parse().unwrap()),
        ["run", dir, column] => run(dir, column.parse().unwrap()),
        ["sum", run, trace] => sum(run, trace),
        _ => {
            eprintln!("usage: count prepare DIR COLUMN | count run DIR COLUMN | count sum RUN TRACE");
            std::process::exit(2);
        }
    }
}
