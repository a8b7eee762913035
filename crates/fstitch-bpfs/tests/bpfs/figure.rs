//! [D] Fig 3.8 again: how many bytes each system call stores, with more and more of the optimisations. No row may be above the
//! dissertation's, and what the micro-journal is for costs what was promised.
//!
//! What it prevents: an operation that copies what it need not. The table of the page is what this prints.

use crate::rows::{COLUMNS, ROWS, Row, mounted, prepare};
use crate::support::{clock, empty, watched};
use fstitch_bpfs::{Counts, Optimizations};

const APPEND_ALONE: Optimizations = Optimizations { append: true, ..Optimizations::SHORT_CIRCUIT };

/// What a row stores in a column.
fn measured(image: &[u8], row: &Row, optimizations: Optimizations) -> Counts {
    let clock = clock();
    let (fs, _) = watched(image, mounted(optimizations), &clock);
    prepare(&fs, &clock, row);
    let before = fs.counts();
    (row.act)(&fs);
    let after = fs.counts();
    Counts {
        bytes: after.bytes - before.bytes,
        lines: after.lines - before.lines,
        wide_lines: after.wide_lines - before.wide_lines,
        fences: after.fences - before.fences,
        commits: after.commits - before.commits,
        journaled: after.journaled - before.journaled,
    }
}

#[test]
fn no_row_stores_more_than_the_dissertation_s() {
    let image = empty(16 << 20);
    println!(
        "| call | SP | + SC | + A or T | + A and T | + other | + journal | + times in it | lines | 256 B | fences |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let mut above = Vec::new();
    for row in ROWS {
        let all = COLUMNS.map(|column| measured(&image, row, column));
        let mut bytes = all.map(|counts| counts.bytes);
        // The dissertation's column is that of the better one of two.
        bytes[2] = bytes[2].min(measured(&image, row, APPEND_ALONE).bytes);
        let last = all[6];
        let cells: Vec<String> = bytes.iter().map(u64::to_string).collect();
        println!(
            "| {} | {} | {} | {} | {} |",
            row.name,
            cells.join(" | "),
            last.lines,
            last.wide_lines,
            last.fences
        );
        for (column, (found, paper)) in bytes.iter().zip(row.paper).enumerate() {
            if *found > paper {
                above.push(format!("{}, column {column}: {found} instead of {paper}", row.name));
            }
        }
    }
    assert_eq!(above, [""; 0]);
}

#[test]
fn what_the_journal_is_for_is_small() {
    let image = empty(16 << 20);
    let limits = [
        ("rename file", 128),
        ("rename directory", 128),
        ("rename file over a file", 128),
        ("rename file to another directory", 256),
        ("rename directory to another directory", 256),
        ("overwrite 16 B at 0", 96),
        ("overwrite 8 B at 4092", 96),
    ];
    for (name, limit) in limits {
        let row = ROWS.iter().find(|row| row.name == name).unwrap();
        let found = measured(&image, row, Optimizations::JOURNAL).bytes;
        assert!(found <= limit, "{name}: {found} bytes, {limit} at most");
    }
}
