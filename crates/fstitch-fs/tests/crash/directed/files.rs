//! Lengths, contents and pointers of files.

use fstitch_core::FileSystem;

use super::rig::{Rig, contents};
use super::{Judgement, Script};

const KIB: u64 = 1024;

fn kib(n: usize) -> usize {
    n * 1024
}

/// `/a` has one of these lengths, and then these bytes: runs of a byte, each up to its end; `None` for any.
type Runs<'a> = &'a [(usize, &'a [(usize, Option<u8>)])];

fn expect_runs(fs: &dyn FileSystem, lawful: Runs<'_>) -> Result<(), String> {
    let Some(found) = contents(fs, "/a") else { return Ok(()) };
    let Some((_, runs)) = lawful.iter().find(|(len, _)| *len == found.len()) else {
        return Err(format!("/a has {} bytes", found.len()));
    };
    let mut start = 0;
    for &(end, byte) in *runs {
        let differs = |&at: &usize| byte.is_some_and(|byte| found[at] != byte);
        if let Some(at) = (start..end).find(differs) {
            return Err(format!("byte {at} of {} in /a is {:#x}, not {byte:x?}", found.len(), found[at]));
        }
        start = end;
    }
    Ok(())
}

fn play(prepare: &dyn Fn(&Rig), work: &dyn Fn(&Rig), lawful: Runs<'_>) {
    Script { prepare, work, expect: &|fs, _| expect_runs(fs, lawful), ..Script::default() }.play();
}

#[test]
fn appending() {
    let all = |len: usize| [(len, Some(1))];
    let lawful: Runs<'_> =
        &[(1500, &all(1500)), (1900, &all(1900)), (5000, &all(5000)), (kib(20), &all(kib(20)))];
    let work = |rig: &Rig| {
        rig.write("/a", 1500, 1, 400);
        rig.write("/a", 1900, 1, 3100);
        rig.write("/a", 5000, 1, kib(20) - 5000);
    };
    play(&|rig| rig.create("/a", 1, 1500), &work, lawful);
}

#[test]
fn appending_within_a_block() {
    let lawful: Runs<'_> = &[(1500, &[(1500, Some(1))]), (1900, &[(1900, Some(1))])];
    play(&|rig| rig.create("/a", 1, 1500), &|rig| rig.write("/a", 1500, 1, 400), lawful);
}

#[test]
fn shrinking() {
    let short = kib(5) + 100;
    for len in [kib(8) + 500, kib(20) + 500, kib(300) + 500] {
        let lawful: Runs<'_> = &[(len, &[(len, Some(1))]), (short, &[(short, Some(1))])];
        let work = |rig: &Rig| rig.truncate("/a", 5 * KIB + 100);
        play(&|rig| rig.create("/a", 1, len), &work, lawful);
    }
}

#[test]
fn shrinking_and_growing() {
    let short = kib(14) + 100;
    for len in [kib(15), kib(20) + 500, kib(300) + 500] {
        let long = kib(310);
        let grown = [(short, Some(1)), (long, Some(0))];
        let lawful: Runs<'_> = &[(len, &[(len, Some(1))]), (short, &[(short, Some(1))]), (long, &grown)];
        let work = |rig: &Rig| {
            rig.truncate("/a", 14 * KIB + 100);
            rig.truncate("/a", 310 * KIB);
        };
        play(&|rig| rig.create("/a", 1, len), &work, lawful);
    }
}

#[test]
fn growing_after_two_clearings() {
    let first = [(kib(2), None), (kib(150), Some(1))];
    let grown = [(kib(2), None), (kib(150), Some(1)), (kib(210), Some(0))];
    let lawful: Runs<'_> =
        &[(kib(200), &[(kib(2), None), (kib(200), Some(1))]), (kib(150), &first), (kib(210), &grown)];
    let work = |rig: &Rig| {
        rig.truncate("/a", 150 * KIB);
        rig.punch("/a", 0, 2 * KIB);
        rig.truncate("/a", 210 * KIB);
    };
    play(&|rig| rig.create("/a", 1, kib(200)), &work, lawful);
}

#[test]
fn growing_after_a_zeroed_tail_and_a_clearing() {
    let first = [(kib(2), None), (kib(13) + 10, Some(1))];
    let grown = [(kib(2), None), (kib(13) + 10, Some(1)), (kib(16), Some(0))];
    let lawful: Runs<'_> =
        &[(kib(14), &[(kib(2), None), (kib(14), Some(1))]), (kib(13) + 10, &first), (kib(16), &grown)];
    let work = |rig: &Rig| {
        rig.truncate("/a", 13 * KIB + 10);
        rig.punch("/a", 0, 2 * KIB);
        rig.truncate("/a", 16 * KIB);
    };
    play(&|rig| rig.create("/a", 1, kib(14)), &work, lawful);
    let written = |rig: &Rig| {
        rig.truncate("/a", 13 * KIB + 10);
        rig.write("/a", 15 * KIB, 0, kib(1));
    };
    play(&|rig| rig.create("/a", 1, kib(14)), &written, lawful);
}

#[test]
fn punching() {
    let lawful: Runs<'_> = &[(
        kib(300),
        &[(kib(3), Some(1)), (kib(6), None), (kib(30), Some(1)), (kib(290), None), (kib(300), Some(1))],
    )];
    let work = |rig: &Rig| {
        rig.punch("/a", 3 * KIB, 3 * KIB);
        rig.punch("/a", 30 * KIB, 260 * KIB);
    };
    play(&|rig| rig.create("/a", 1, kib(300)), &work, lawful);
}

#[test]
fn writing_into_holes_under_indirect_blocks() {
    let work = |rig: &Rig| {
        rig.create("/a", 1, 0);
        rig.write("/a", 300 * KIB, 1, kib(2));
        rig.write("/a", 20 * KIB, 1, kib(2));
        rig.create("/b", 2, 0);
        rig.write("/b", 70_000 * KIB, 2, kib(1));
    };
    let expect: Judgement<'_> = &|fs, _| {
        let Some(found) = contents(fs, "/a") else { return Ok(()) };
        let lost = found.len() > kib(300) && found[kib(300)..].contains(&0);
        if lost { Err("a hole where something was written".into()) } else { Ok(()) }
    };
    Script { work: &work, expect, read: false, ..Script::default() }.play();
}

/// The way to the last block leads through a pointer that was written for an earlier one, without a growth.
#[test]
fn growing_through_an_indirect_block_that_is_not_reachable_yet() {
    let prepare = |rig: &Rig| {
        rig.create("/a", 1, 0);
        rig.write("/a", 300 * KIB, 1, kib(1));
        rig.truncate("/a", 600 * KIB);
    };
    let work = |rig: &Rig| {
        rig.write("/a", 530 * KIB, 1, kib(1));
        rig.write("/a", 600 * KIB, 1, kib(1));
    };
    let expect: Judgement<'_> = &|fs, _| {
        let found = contents(fs, "/a").unwrap();
        let lost = found.len() > kib(600) && found[kib(600)..] != [1; 1024];
        if lost { Err("a hole where something was written".into()) } else { Ok(()) }
    };
    Script { prepare: &prepare, work: &work, expect, ..Script::default() }.play();
}

/// What was written and flown is freed only after its pointers, however short its life was.
#[test]
fn blocks_that_came_and_went() {
    let works: [&dyn Fn(&Rig); 5] = [
        &|rig| rig.truncate("/a", 3 * KIB),
        &|rig| rig.punch("/a", 2 * KIB, 2 * KIB),
        &|rig| rig.punch("/a", 14 * KIB, 2 * KIB),
        &|rig| rig.unlink("/a"),
        &|rig| {
            rig.truncate("/a", 0);
            rig.write("/a", 0, 1, 20 << 10);
            rig.truncate("/a", 0);
            rig.write("/a", 0, 1, 2 << 10);
        },
    ];
    for then in works {
        for len in [kib(20), kib(300)] {
            let work = |rig: &Rig| {
                rig.create("/a", 1, len);
                rig.sync();
                then(rig);
            };
            Script { work: &work, ..Script::default() }.play();
        }
    }
}

/// A large file loses its blocks in steps, all of them after its name.
#[test]
fn a_large_file_is_removed() {
    let lawful: Runs<'_> = &[(kib(600), &[(kib(600), Some(1))])];
    let prepare = |rig: &Rig| rig.create("/a", 1, kib(600));
    let work = |rig: &Rig| rig.unlink("/a");
    let expect: Judgement<'_> = &|fs, _| expect_runs(fs, lawful);
    Script { prepare: &prepare, work: &work, expect, step_bytes: 4096, ..Script::default() }.play();
}

/// The hole in which the file ends is filled together with others, then the file grows from there: its length must wait for
/// the pointer to the block that holds the seam.
#[test]
fn growing_from_a_hole_that_was_filled() {
    let (short, long) = (kib(15) + 100, kib(15) + 2100);
    let old = [(kib(13), Some(1)), (short, None)];
    let grown = [(kib(13), Some(1)), (short, None), (long, Some(1))];
    let prepare = |rig: &Rig| {
        rig.create("/a", 1, kib(13));
        rig.truncate("/a", 15 * KIB + 100);
    };
    let work = |rig: &Rig| {
        rig.write("/a", 13 * KIB, 1, kib(2) + 50);
        rig.write("/a", 15 * KIB + 100, 1, 2000);
    };
    play(&prepare, &work, &[(short, &old), (long, &grown)]);
}
