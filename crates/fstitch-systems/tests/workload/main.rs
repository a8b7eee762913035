//! The workloads themselves: that they mean something, and the same thing for ever.
//!
//! What it prevents: workloads that do nothing because every operation is refused, numbers that silently come to mean
//! another workload (results and replay lines would lie), and file systems blamed for what a workload got wrong. Every
//! workload runs on the model file system here, without a crash.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

mod families;
mod language;

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{Errno, Error, FileSystem, ManualClock};
use fstitch_crashlab::Step;
use fstitch_crashlab::workload::{Op, Target, Workload};
use fstitch_fs::model::{Model, ModelOptions};
use fstitch_systems::workloads::find;

/// Numbers of set-up operations, so that their bytes are nobody else's.
const SETUP: u32 = 1 << 20;

/// What came of the operations of some workloads, by verb.
#[derive(Default)]
struct Tally {
    done: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    errors: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn note(&mut self, workload: &Workload, op: &Op, outcome: Result<(), Error>) {
        let verb = op.to_string().split(' ').next().unwrap().to_owned();
        match outcome {
            Ok(()) => *self.done.entry(verb).or_default() += 1,
            Err(Error::Errno(errno)) => {
                assert!(LAWFUL.contains(&errno), "{}: {op}: {errno:?}", workload.name);
                *self.refused.entry(verb).or_default() += 1;
                *self.errors.entry(errno.name()).or_default() += 1;
            }
            Err(error) => panic!("{}: {op}: {error}", workload.name),
        }
    }

    /// Operations that succeeded, of a hundred.
    fn success(&self) -> u64 {
        let (done, refused): (u64, u64) = (self.done.values().sum(), self.refused.values().sum());
        100 * done / (done + refused).max(1)
    }
}

/// What programs must expect.
const LAWFUL: [Errno; 15] = [
    Errno::NOENT,
    Errno::EXIST,
    Errno::NOTDIR,
    Errno::ISDIR,
    Errno::NOTEMPTY,
    Errno::NOSPC,
    Errno::NODATA,
    Errno::INVAL,
    Errno::NAMETOOLONG,
    Errno::PERM,
    Errno::BUSY,
    Errno::RANGE,
    Errno::NODEV,
    Errno::ACCES,
    Errno::FBIG,
];

/// A volume of the laboratory's usual size, so far as the model knows sizes; with maps of extents if the workload is about them.
fn model(workload: &Workload) -> Model {
    let options = ModelOptions {
        block_size: 1024,
        blocks: 4096 - 64,
        inodes: 246,
        size_max: (12 + 256 + 256 * 256) << 10,
        symlink_max: 1023,
        unwritten: ["extents", "deep", "shifts"].iter().any(|family| workload.name.starts_with(family)),
        shifts: workload.name.starts_with("shifts"),
        ..ModelOptions::default()
    };
    Model::with(options, Arc::new(ManualClock::new()))
}

/// Runs a workload on the model; afterwards every reference has been given back.
fn run(workload: &Workload, tally: &mut Tally) {
    let fs = model(workload);
    let write_out = |_: &mut dyn FnMut(Step) -> bool| Ok(0);
    let mut target = Target::new(&fs, &write_out);
    for (no, op) in (SETUP..).zip(&workload.setup) {
        // Only filling a volume may be refused before anything has begun.
        match op.run(&mut target, no) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.errno(), Errno::NOSPC, "{}: set-up: {op}", workload.name),
        }
    }
    for (no, op) in (0..).zip(&workload.ops) {
        tally.note(workload, op, op.run(&mut target, no));
    }
    drop(target);
    let report = fs.check().unwrap();
    assert!(report.is_clean(), "{}: {:?}", workload.name, report.findings);
    let stat = fs.statfs().unwrap();
    let named = count(&fs);
    assert_eq!(stat.inodes - stat.inodes_free, named, "{}: a reference was kept", workload.name);
}

/// Inodes that have a name, the root included.
fn count(fs: &Model) -> u64 {
    let mut seen = std::collections::BTreeSet::from([fs.root()]);
    let mut dirs = vec![fs.root()];
    while let Some(dir) = dirs.pop() {
        let mut children = vec![];
        fs.readdir(dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                children.push((entry.ino, entry.kind));
            }
            true
        })
        .unwrap();
        for (ino, kind) in children {
            if seen.insert(ino) && kind == Some(fstitch_core::FileKind::Directory) {
                dirs.push(ino);
            }
        }
    }
    u64::try_from(seen.len()).unwrap()
}

/// Runs these workloads of a family.
fn run_all(family: &str, indices: impl Iterator<Item = u64>) -> Tally {
    let (family, _) = find(family).unwrap();
    let mut tally = Tally::default();
    for index in indices {
        run(&family.get(index).unwrap(), &mut tally);
    }
    println!(
        "{}: {} % succeed; refused {:?}, by verb {:?} of {:?}",
        family.name(),
        tally.success(),
        tally.errors,
        tally.refused,
        tally.done
    );
    tally
}
