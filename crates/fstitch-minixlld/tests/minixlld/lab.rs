//! MinixLLD in the crash laboratory: after a power cut at any moment the tree is what it was after some of its operations, one behind
//! the other, and not before the last sync.
//!
//! What it prevents: half an operation, a lost sync, an inode that belongs to nobody, a volume that cannot be mounted.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::support::Minix;
use fstitch_core::{BlockDevice, BlockNo, BlockRead, BlockWrite, CheckReport, Geometry, Result};
use fstitch_crashlab::medium::Base;
use fstitch_crashlab::{
    Counts, Lab, LabOptions, Level, Limits, Mounted, Promise, Selection, System, soak, workload,
};

/// Runs a sample of a family at every level.
fn run(family: &str, draws: u64, choices: u64) -> Counts {
    let mut counts = Counts::default();
    for (seed, level) in (1..).zip(Level::ALL) {
        let options = LabOptions { level, choices_per_cut: choices, ..LabOptions::default() };
        let lab = Lab::new(Arc::new(Minix::default()), options).unwrap();
        let (family, _) = workload::find(family).unwrap();
        let limits = Limits { states: u64::MAX, violations: 1, threads: 2 };
        let selection = Selection::Sample { seed, draws: 0..draws };
        let outcome = soak(&lab, &*family, &selection, limits, &|_| ControlFlow::Continue(()));
        let found: Vec<String> =
            outcome.found.iter().map(|found| format!("{}: {}", found.id, found.violation)).collect();
        assert_eq!(found, [""; 0], "at {level}");
        counts.add(&outcome.counts);
    }
    counts
}

#[test]
fn single_operations_survive() {
    let counts = run("seq1", 40, 64);
    assert!(counts.checked > 500, "{counts:?}");
    assert!(counts.aftermaths > 0, "{counts:?}");
}

#[test]
fn pairs_of_operations_survive() {
    let counts = run("seq2", 15, 32);
    assert!(counts.checked > 200, "{counts:?}");
}

#[test]
fn rare_operations_and_held_files_survive() {
    run("rare1", 10, 32);
    run("rare2", 5, 32);
}

#[test]
fn random_programs_survive() {
    let counts = run("random", 1, 16);
    assert!(counts.cuts > 100, "{counts:?}");
}

/// A device that says that it has flushed, and has not.
struct Lying(Arc<dyn BlockDevice>);

impl BlockDevice for Lying {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.0.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.0.write(writes)
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.0.discard(start, count)
    }
}

/// How a flaw gets into a mount.
type Mount = fn(Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>>;

/// MinixLLD with a flaw.
struct Flawed {
    minix: Minix,
    name: &'static str,
    mount: Mount,
}

impl System for Flawed {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn format(&self) -> Result<Arc<Base>> {
        self.minix.format()
    }

    fn promise(&self) -> Promise {
        self.minix.promise()
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        (self.mount)(device)
    }

    fn open(&self, device: Arc<dyn BlockDevice>) -> Result<Box<dyn Mounted>> {
        self.minix.open(device)
    }

    fn check(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.minix.check(device)
    }

    fn recover(&self, device: Arc<dyn BlockDevice>) -> Result<()> {
        self.minix.recover(device)
    }

    fn repair(&self, device: &Arc<dyn BlockDevice>) -> Result<CheckReport> {
        self.minix.repair(device)
    }
}

/// What the laboratory finds in a program.
fn found(flawed: Flawed, program: &str) -> bool {
    let lab = Lab::new(Arc::new(flawed), LabOptions::default()).unwrap();
    let (family, _) = workload::find(program).unwrap();
    !lab.run(&family.get(0).unwrap(), 0).found.is_empty()
}

#[test]
fn a_sync_that_does_nothing_is_found() {
    let mount = |device| Minix::default().mount(Arc::new(Lying(device)));
    let forgetful = Flawed { minix: Minix::default(), name: "minixlld-forgetful", mount };
    assert!(found(forgetful, "ops/create /a;append /a 5000;sync;create /b"));
}

#[test]
fn operations_that_are_no_units_are_found() {
    for program in [
        "ops/create /a;append /a 70000;sync;rename /a /b",
        "ops/mkdir /d;sync;mkdir /d/e;create /d/f;append /d/f 300000;unlink /d/f",
    ] {
        let apart = Flawed { minix: Minix::default(), name: "minixlld-apart", mount: Minix::mount_apart };
        assert!(found(apart, program), "{program}");
    }
}
