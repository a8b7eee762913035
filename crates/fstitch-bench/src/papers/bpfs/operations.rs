//! What an operation costs in this process, on memory, written through: each is durable when it returns.

use anyhow::{Result, ensure};
use fstitch_bpfs::{Bpfs, Counts, Options};
use fstitch_core::{Clock, FileSystem, InodeNo, RenameMode, Seed, SystemClock};
use fstitch_posix::time::AtimePolicy;

use super::{CALLER, each, in_memory, since};
use crate::papers::goal::{circumstances, columns, goal_row, plain_row, spread};
use crate::papers::{Setting, strings};
use crate::report::Wanted;
use crate::results::Table;
use crate::workload::{FILLER, len};

/// Operations of a round: few, so that a round is over before the machine gives the processor to somebody else.
const ROUND: u64 = 1_000;
const BLOCK: u64 = 4096;
/// Bytes of the file that is written over.
const FILE: u64 = 16 << 20;

/// An operation, a thousand of which are a round.
pub(super) struct Operation {
    pub(super) name: &'static str,
    /// Nanoseconds at most.
    pub(super) wanted: Option<f64>,
    /// Seconds of so many of each round.
    rounds: Vec<f64>,
    /// What the last round has stored.
    counts: Counts,
}

impl Operation {
    const fn new(name: &'static str, wanted: Option<f64>) -> Self {
        let counts = Counts { bytes: 0, lines: 0, wide_lines: 0, fences: 0, commits: 0, journaled: 0 };
        Self { name, wanted, rounds: Vec::new(), counts }
    }

    /// Nanoseconds of each operation, by rounds.
    pub(super) fn nanoseconds(&self) -> Vec<f64> {
        self.rounds.iter().map(|took| took * 1e9 / crate::meter::seconds(ROUND)).collect()
    }

    /// What an operation has stored, and how many times it waited for that: bytes, lines, wide lines, fences.
    pub(super) fn stored(&self) -> [String; 4] {
        let Counts { bytes, lines, wide_lines, fences, .. } = self.counts;
        [bytes, lines, wide_lines, fences].map(|number| each(number, ROUND))
    }

    fn measure(&mut self, fs: &Bpfs, work: impl Fn(u64) -> Result<()>) -> Result<()> {
        let (before, clock) = (fs.counts(), SystemClock::new());
        (0..ROUND).try_for_each(work)?;
        self.rounds.push(clock.elapsed().as_secs_f64());
        self.counts = since(fs.counts(), before);
        Ok(())
    }
}

pub fn table(setting: &Setting<'_>) -> Result<Table> {
    let rounds = len(setting.scale.of(300, 3));
    let mut table = Table {
        name: "bpfs operations".into(),
        title: "BPFS: an operation in process, on memory, written through".into(),
        is_goal: true,
        about: format!(
            "{} Rounds of {ROUND}, so {rounds} times as many of each; nanoseconds of one. Volatile memory, of which every page was touched before; its \
             lines are counted, not written back, so that persistent memory adds what lines and fences cost there. A create is `mknod` and \
             `forget`, in a directory of {ROUND} names; appends make a file of {ROUND} blocks; overwrites are anywhere in {} MiB. Times are \
             among what changes at once, and go on in steps of 4 ms, so that most operations leave them as they are. Behind that, for each operation: bytes stored, lines of 64 and of 256 bytes, fences.",
            circumstances(&[], rounds),
            FILE >> 20
        ),
        columns: [columns(), strings(["bytes", "lines", "256 B", "fences"])].concat(),
        ..Table::default()
    };
    let options = Options { atime: AtimePolicy::NoAtime, ..Options::default() };
    for operation in run(setting, options, rounds)? {
        let took = spread(operation.nanoseconds())?;
        let row = match operation.wanted {
            Some(limit) => goal_row(operation.name, " ns", took, Wanted::AtMost(limit)),
            None => plain_row(operation.name, " ns", took),
        };
        table.rows.push([row, operation.stored().to_vec()].concat());
    }
    Ok(table)
}

/// Runs all operations so many times, in rounds.
pub(super) fn run(setting: &Setting<'_>, options: Options, rounds: usize) -> Result<Vec<Operation>> {
    let fs = in_memory(&setting.memory, 64 << 20, options)?;
    let names: Vec<Vec<u8>> = (0..ROUND).map(|no| format!("f{no:06}").into_bytes()).collect();
    let others: Vec<Vec<u8>> = (0..ROUND).map(|no| format!("g{no:06}").into_bytes()).collect();
    let mut create = Operation::new("create", Some(1000.0));
    let mut append = Operation::new("append 4 KiB", Some(1000.0));
    let mut unlink = Operation::new("unlink", Some(800.0));
    let mut rename = Operation::new("rename", None);
    let mut words = Operation::new("overwrite 16 B", None);
    let mut blocks = Operation::new("overwrite 4 KiB", None);
    let large = make(&fs, fs.root(), b"large")?;
    for at in (0..FILE).step_by(FILLER.len()) {
        write(&fs, large, at, &FILLER)?;
    }
    for no in 0..rounds {
        let dir = fs.mkdir(&CALLER, fs.root(), b"d", 0o755)?.attr.ino;
        create.measure(&fs, |no| make(&fs, dir, &names[len(no)]).map(drop))?;
        rename.measure(&fs, |no| {
            let (from, to) = ((dir, &*names[len(no)]), (dir, &*others[len(no)]));
            Ok(fs.rename(&CALLER, from, to, RenameMode::Replace)?)
        })?;
        unlink.measure(&fs, |no| Ok(fs.unlink(&CALLER, dir, &others[len(no)])?))?;
        fs.forget(dir, 1);
        fs.rmdir(&CALLER, fs.root(), b"d")?;
        let file = make(&fs, fs.root(), b"file")?;
        append.measure(&fs, |no| write(&fs, file, no * BLOCK, &FILLER[..len(BLOCK)]))?;
        fs.unlink(&CALLER, fs.root(), b"file")?;
        let mut numbers = Seed::new(u64::try_from(no)?);
        let places: Vec<u64> = (0..ROUND).map(|_| numbers.below(FILE / BLOCK)).collect();
        let words_of = [u8::try_from(no % 256)?; 16];
        words.measure(&fs, |no| write(&fs, large, places[len(no)] * BLOCK + no % 250 * 16, &words_of))?;
        blocks.measure(&fs, |no| write(&fs, large, places[len(no)] * BLOCK, &FILLER[..len(BLOCK)]))?;
    }
    let report = fs.check()?;
    ensure!(report.is_clean(), "{:?}", report.findings);
    Ok(vec![create, append, unlink, rename, words, blocks])
}

/// Makes a file that nobody refers to but by its name.
pub(super) fn make(fs: &Bpfs, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
    let ino = fs.mknod(&CALLER, dir, name, 0o100_644, 0)?.attr.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

/// Writes all of some bytes.
pub(super) fn write(fs: &Bpfs, ino: InodeNo, at: u64, bytes: &[u8]) -> Result<()> {
    let written = fs.write(&CALLER, ino, at, bytes)?;
    ensure!(written == bytes.len(), "{written} of {} bytes", bytes.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::tests::quick;

    #[test]
    fn each_operation_stores_what_it_stores_alone() {
        let table = quick(table);
        let row = |name: &str| table.rows.iter().find(|row| row[0] == name).unwrap();
        let number = |name: &str, column: usize| row(name)[column].parse::<f64>().unwrap();
        // From what one stores whose times are those of the one before, and whose block is the one that was there, so that its pointer
        // is, to what [D] Fig 3.8's test counts of one a second later, and a little for blocks of entries and of pointers.
        for (name, bytes, fences) in [
            ("create", 56.0..102.0, 2.0..3.2),
            ("append 4 KiB", 4100.0..4180.0, 2.0..3.1),
            ("unlink", 4.0..56.0, 1.0..3.1),
            ("overwrite 16 B", 24.0..80.0, 2.0..3.1),
        ] {
            assert!(bytes.contains(&number(name, 6)), "{:?}", row(name));
            assert!(fences.contains(&number(name, 9)), "{:?}", row(name));
        }
        assert_eq!(table.rows.iter().filter(|row| row[3] != "-").count(), 3, "the goals");
    }
}
