//! Asks the laboratory everything that may bring a bug to light, the quick questions first, and ends at the first
//! violation: exit status 1, and a line that says what and where. `cargo xtask mutants` runs it on trees with seeded bugs.

use std::ops::ControlFlow;
use std::process::ExitCode;

use fstitch_crashlab::{Lab, LabOptions, Limits, Selection, soak};
use fstitch_systems::workloads::find;

/// A question: system, family, which workloads, choices at a cut, and how often an aftermath is lived through.
type Question = (&'static str, &'static str, Selection, u64, u64);

fn questions() -> Vec<Question> {
    let first = |count| Selection::Range(0..count);
    let sample = |count| Selection::Sample { seed: 1, draws: 0..count };
    vec![
        ("ext2-soft", "seq1", first(1360), 256, 64),
        ("ext2-soft", "random", first(24), 64, 64),
        ("ext2-soft-o0", "seq1", first(1360), 64, 64),
        ("ext2-soft-i256-c256", "random", first(24), 64, 64),
        ("ext2-soft-o1", "random", first(24), 48, 64),
        ("ext2-soft", "rare1", first(680), 64, 16),
        ("ext2-soft-o3-s16", "random", first(24), 48, 16),
        ("ext2-soft", "mail", first(2), 48, 64),
        ("ext2-soft-b4096", "postmark", first(2), 48, 64),
        ("ext2-soft", "seq2", sample(8_000), 48, 16),
        ("ext2-soft", "inodes", first(3), 32, 16),
        ("ext2-soft", "brim", first(6), 32, 64),
        ("ext2-soft-o0", "random", first(24), 64, 16),
        ("ext2-soft-k2048-n64", "random", first(24), 64, 4),
        ("ext2-soft", "seq3", sample(8_000), 32, 64),
        ("ext2-soft-c256-s16", "rm", first(1), 16, 4),
        ("ext2-soft", "random", Selection::Range(24..100), 32, 8),
    ]
}

/// What is asked while a block is held back: these workloads have few states each.
fn held_questions() -> Vec<Question> {
    let all = || Selection::Range(0..u64::MAX);
    let asked = [
        ("ext2-soft", "names"),
        ("ext2-soft-i256", "attrs"),
        ("ext2-soft-i256-p1", "attrs"),
        ("ext2-soft-p1", "attrs"),
        ("ext2-soft-o0-p1", "attrs"),
        ("ext2-soft-k400", "reuse"),
        ("ext2-soft", "sizes"),
        ("ext2-soft-p2", "sizes"),
        ("ext2-soft-o0-p2", "sizes"),
        ("ext2-soft-p4", "indexed"),
        ("ext2-soft-o0-p4", "indexed"),
        ("ext2-soft-p4", "indexed-apart"),
        ("ext2-soft-o0-p4", "indexed-apart"),
        ("ext2-soft", "seams"),
        ("ext2-soft-o0", "seams"),
        ("ext2-soft-o2", "seams"),
        ("ext2-soft-p8", "shared"),
        ("ext2-soft-i256-p8", "shared"),
        ("ext2-soft-o0-p8", "shared"),
        ("ext2-soft-k8480-n64", "groups"),
        ("ext2-soft-o0", "names"),
        ("ext2-soft-o0-k400", "reuse"),
        ("ext2-soft-s4", "sizes"),
        ("ext2-soft-o0-s4", "sizes"),
    ];
    asked.map(|(system, family)| (system, family, all(), 64, if family == "names" { 1 } else { 8 })).to_vec()
}

/// The questions that the arguments ask: `held` for the quick ones alone, or a system and a family, and how many workloads.
fn asked() -> Option<Vec<Question>> {
    if std::env::args().nth(1).is_some_and(|word| word == "held") {
        return Some(held_questions());
    }
    let mut arguments = std::env::args().skip(1).map(|argument| &*argument.leak());
    let (system, family) = (arguments.next()?, arguments.next()?);
    let count = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(u64::MAX);
    Some(vec![(system, family, Selection::Range(0..count), 64, 16)])
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    // A panic is a violation and is reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    for (system, family, selection, choices_per_cut, aftermath_every) in
        asked().unwrap_or_else(|| [held_questions(), questions()].concat())
    {
        let options = LabOptions { choices_per_cut, aftermath_every, depth: 1, ..LabOptions::default() };
        let lab = Lab::new(fstitch_systems::system(system)?, options)?;
        let (workloads, _) = find(family)?;
        let selection = match selection {
            Selection::Range(range) => Selection::Range(range.start..range.end.min(workloads.len())),
            sample @ Selection::Sample { .. } => sample,
        };
        let limits = Limits { states: u64::MAX, violations: 1, threads: 1 };
        let outcome = soak(&lab, &*workloads, &selection, limits, &|_| ControlFlow::Continue(()));
        if let Some(found) = outcome.found.first() {
            println!("{} [{}]", found.violation, found.id);
            return Ok(ExitCode::FAILURE);
        }
    }
    println!("nothing found");
    Ok(ExitCode::SUCCESS)
}
