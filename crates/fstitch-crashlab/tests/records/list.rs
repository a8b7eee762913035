//! A list of blocks on a disk, changed two at a time through a journal.
//!
//! **Layout**, in blocks of 1024 bytes, that is two atoms of a disk each:
//!
//! ```text
//!   0  commit: the number of the operation under way from 1 on, or 0, in the first byte
//!   1  first copy, 2  second copy: in each half the block's number, and what fills it
//!   3… the list; each block is filled with one byte
//! ```
//!
//! **Order of an operation:** copies, flush, commit, flush, blocks in place, flush, no commit, flush. Recovery writes the
//! blocks of the copies in place where there is a commit.

use std::sync::Arc;

use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, Result};
use fstitch_crashlab::medium::{Base, Image, Mark, Progress};
use fstitch_crashlab::oracle::{Judge, Violation};
use fstitch_crashlab::{Level, Oracle, Past, Recorder, Subject};

use crate::{found, lawful};

const BLOCK: usize = 1024;
const LIST: u64 = 3;
const LEN: u64 = 4;

/// What the list shows: the byte that fills each block.
type List = Vec<u8>;

/// How an operation goes about it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    AsDesigned,
    WithoutFlushBeforeCommit,
    WithoutFlushAfterCommit,
    WithoutFlushAtTheEnd,
}

/// Operation `no` fills these blocks with these bytes.
fn change(no: u8) -> [(u64, u8); 2] {
    [(u64::from(no) % LEN, no + 1), (u64::from(no + 1) % LEN, no + 101)]
}

fn write(device: &dyn BlockDevice, block: u64, data: &[u8]) -> Result<()> {
    device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }])
}

fn read(device: &dyn BlockDevice, block: u64) -> Result<Vec<u8>> {
    let mut data = vec![0; BLOCK];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut data }])?;
    Ok(data)
}

/// One half of a copy.
fn half((block, fill): (u64, u8)) -> Vec<u8> {
    let mut half = vec![fill; BLOCK / 2];
    half[0] = u8::try_from(block).unwrap();
    half
}

fn run(device: &dyn BlockDevice, no: u8, how: Change) -> Result<()> {
    for (copy, changed) in (1..).zip(change(no)) {
        write(device, copy, &half(changed).repeat(2))?;
    }
    if how != Change::WithoutFlushBeforeCommit {
        device.flush()?;
    }
    write(device, 0, &[vec![no + 1], vec![0; BLOCK - 1]].concat())?;
    if how != Change::WithoutFlushAfterCommit {
        device.flush()?;
    }
    for (block, fill) in change(no) {
        write(device, LIST + block, &[fill; BLOCK])?;
    }
    if how != Change::WithoutFlushAtTheEnd {
        device.flush()?;
    }
    write(device, 0, &[0; BLOCK])?;
    device.flush()
}

/// Recovers the list and reads it.
struct Volume;

impl Volume {
    fn recover(device: &dyn BlockDevice) -> Result<()> {
        if read(device, 0)?[0] == 0 {
            return Ok(());
        }
        for copy in 1..LIST {
            let copy = read(device, copy)?;
            let halves: Vec<u8> = copy.chunks(BLOCK / 2).flat_map(|half| [half[1]; BLOCK / 2]).collect();
            write(device, LIST + u64::from(copy[0]), &halves)?;
        }
        device.flush()
    }
}

impl Subject for Volume {
    type Shown = List;

    fn show(&self, device: Arc<dyn BlockDevice>) -> std::result::Result<List, Violation> {
        let fail = |error: fstitch_core::Error| Violation::new("unreadable", error.to_string());
        Self::recover(&*device).map_err(fail)?;
        let fill = |no: u64| {
            let block = read(&*device, LIST + no).map_err(fail)?;
            match block.iter().all(|byte| *byte == block[0]) {
                true => Ok(block[0]),
                false => Err(Violation::new("torn-block", format!("block {no}"))),
            }
        };
        (0..LEN).map(fill).collect()
    }
}

/// The list after each number of operations: what is shown is one of them, not older than promised.
struct Versions(Vec<List>);

impl Oracle for Versions {
    type Shown = List;

    fn at(&self, progress: Progress) -> Judge<'_, List> {
        let count = |n: u32| usize::try_from(n).unwrap();
        let window = count(progress.promises)..=count(progress.begun);
        Box::new(move |list| match self.0[window.clone()].contains(list) {
            true => Ok(()),
            false => Err(Violation::new("not-atomic", format!("{list:?} is none of {window:?}"))),
        })
    }
}

/// Runs some operations and hands what happened to `look`.
fn with_past<T>(how: Change, look: impl Fn(&Past<'_, Volume>) -> T) -> T {
    let base = Base::new(1024, vec![0; BLOCK * 7]);
    let recorder = Recorder::new(Image::new(Arc::clone(&base)));
    let mut versions = vec![vec![0; 4]];
    for no in 0..5_u8 {
        recorder.mark(Mark::Begin(no.into()));
        run(&recorder, no, how).unwrap();
        recorder.mark(Mark::End(no.into()));
        recorder.mark(Mark::Promise(no.into()));
        let mut list = versions.last().unwrap().clone();
        for (block, fill) in change(no) {
            list[BlockNo(block).index()] = fill;
        }
        versions.push(list);
    }
    let names = ("journaled-list".to_owned(), "changes/0".to_owned());
    look(&Past { names, base, log: recorder.take(), subject: &Volume, oracle: &Versions(versions) })
}

#[test]
fn a_journaled_list_survives_every_cut_at_every_level() {
    for level in Level::ALL {
        let outcome = with_past(Change::AsDesigned, |past| lawful(past, level));
        assert!(outcome.counts.cuts >= 20, "before each flush: {:?}", outcome.counts);
    }
    let torn = with_past(Change::AsDesigned, |past| lawful(past, Level::M3));
    assert_eq!(
        torn.counts.generated,
        5 * (1 + 16 + 2 + 16 + 2) + 1,
        "nothing, four atoms, one, four, one; the end"
    );
}

#[test]
fn a_commit_that_is_stable_before_its_copies_is_found() {
    for level in [Level::M2, Level::M3] {
        let code = with_past(Change::WithoutFlushBeforeCommit, |past| found(past, level));
        assert!(["not-atomic", "torn-block"].contains(&code), "{level}: {code}");
    }
    with_past(Change::WithoutFlushBeforeCommit, |past| lawful(past, Level::M0));
}

#[test]
fn blocks_in_place_before_the_commit_are_found() {
    for level in [Level::M2, Level::M3] {
        let code = with_past(Change::WithoutFlushAfterCommit, |past| found(past, level));
        assert!(["not-atomic", "torn-block"].contains(&code), "{level}: {code}");
    }
}

#[test]
fn a_commit_that_is_gone_before_its_blocks_are_in_place_is_found() {
    for level in [Level::M2, Level::M3] {
        let code = with_past(Change::WithoutFlushAtTheEnd, |past| found(past, level));
        assert!(["not-atomic", "torn-block"].contains(&code), "{level}: {code}");
    }
}
