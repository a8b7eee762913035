//! Runs workloads and judges every image that a power cut could have left of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, Errno, InodeNo, Result, Seed};
use rustc_hash::FxHashMap;

use crate::aftermath::Aftermath;
use crate::explore::{Explorer, Known};
use crate::id::StateId;
use crate::judging::Judging;
use crate::medium::{Base, Bytes, History, Image, Level, Log, Mark, Recorder, for_each_cut};
use crate::oracle::{Ledger, Tree, TreeOracle, Violation, What};
use crate::system::{Step, System};
use crate::workload::{Op, Target, Workload};

/// How hard to look.
#[derive(Clone, Copy, Debug)]
pub struct LabOptions {
    /// How badly the medium behaves.
    pub level: Level,
    /// Choices visited at a cut, at most.
    pub choices_per_cut: u64,
    /// Of the images that are checked, one in so many is also recovered twice, repaired, used and emptied.
    pub aftermath_every: u64,
    /// One in so many is also judged by the reference checker, if the system has one; 0 for none.
    pub reference_every: u64,
    /// Cuts during recovery nest so deep.
    pub depth: u32,
    /// Chooses what is sampled.
    pub seed: u64,
    /// Violations of one workload that are reported; then it ends.
    pub max_violations: usize,
}

impl Default for LabOptions {
    fn default() -> Self {
        Self {
            level: Level::M2,
            choices_per_cut: 1 << 16,
            aftermath_every: 64,
            reference_every: 0,
            depth: 2,
            seed: 0,
            max_violations: 1,
        }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Workloads run.
    pub workloads: u64,
    /// Operations run.
    pub operations: u64,
    /// Operations that failed, as POSIX allows.
    pub refused: u64,
    /// Cuts.
    pub cuts: u64,
    /// Cuts of which every possible image was visited.
    pub cuts_exhausted: u64,
    /// States visited.
    pub generated: u64,
    /// Images recovered, checked and read.
    pub checked: u64,
    /// States whose image was known.
    pub same_image: u64,
    /// States whose image differs only where nobody reads.
    pub same_reads: u64,
    /// Pruned states that were checked all the same, and found to be as known.
    pub control: u64,
    /// Comparisons with what was promised.
    pub judged: u64,
    /// Images recovered twice, repaired, used and emptied.
    pub aftermaths: u64,
    /// Images looked at that a cut during recovery left.
    pub during_recovery: u64,
    /// Images judged by the reference checker.
    pub reference: u64,
}

impl Counts {
    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        let mine = self.fields_mut();
        let theirs = { *other }.fields_mut().map(|field| *field);
        mine.into_iter().zip(theirs).for_each(|(mine, theirs)| *mine += theirs);
    }

    fn fields_mut(&mut self) -> [&mut u64; 14] {
        [
            &mut self.workloads,
            &mut self.operations,
            &mut self.refused,
            &mut self.cuts,
            &mut self.cuts_exhausted,
            &mut self.generated,
            &mut self.checked,
            &mut self.same_image,
            &mut self.same_reads,
            &mut self.control,
            &mut self.judged,
            &mut self.aftermaths,
            &mut self.during_recovery,
            &mut self.reference,
        ]
    }
}

/// A violation and how to see it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The state.
    pub id: StateId,
    /// What is wrong with it.
    pub violation: Violation,
}

/// What came of a workload.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was looked at.
    pub counts: Counts,
    /// What was found.
    pub found: Vec<Found>,
}

/// A workload's past: what happened to the medium, and what the workload saw.
pub struct Recording {
    /// The medium before.
    pub start: BTreeMap<u64, Bytes>,
    /// What happened to it.
    pub log: Log,
    /// What the workload saw and was promised.
    pub ledger: Ledger,
    /// The errors with which operations failed, by number.
    pub refused: BTreeMap<u32, String>,
}

/// The blocks of a volume that differ from a fresh one.
type Start = Arc<BTreeMap<u64, Bytes>>;

/// Epochs that a volume at rest takes to become clean, at most.
const MAX_DRAIN: usize = 100_000;

/// A laboratory for one system.
pub struct Lab {
    system: Arc<dyn System>,
    base: Arc<Base>,
    options: LabOptions,
    known: Known,
    /// Volumes after a set-up, by its operations.
    starts: Mutex<FxHashMap<Vec<Op>, Start>>,
}

/// Set-ups that are kept.
const MAX_STARTS: usize = 1024;
/// Images that are kept in mind.
const KNOWN_IMAGES: usize = 200_000;

impl Lab {
    /// Makes a fresh volume.
    ///
    /// # Errors
    /// When the system's parameters fit no volume.
    pub fn new(system: Arc<dyn System>, options: LabOptions) -> Result<Self> {
        let base = system.format()?;
        Ok(Self { system, base, options, known: Known::new(KNOWN_IMAGES), starts: Mutex::default() })
    }

    /// The system under test.
    #[must_use]
    pub fn system(&self) -> &dyn System {
        &*self.system
    }

    /// The fresh volume.
    #[must_use]
    pub fn base(&self) -> &Arc<Base> {
        &self.base
    }

    /// How hard it looks.
    #[must_use]
    pub fn options(&self) -> &LabOptions {
        &self.options
    }

    /// The same laboratory, which tries in every state what must work after a crash.
    pub(crate) fn looking_closer(&self) -> Self {
        let options = LabOptions { aftermath_every: 1, ..self.options };
        let (system, base) = (Arc::clone(&self.system), Arc::clone(&self.base));
        Self { system, base, options, known: Known::new(KNOWN_IMAGES), starts: Mutex::default() }
    }

    fn start(&self, workload: &Workload) -> Result<Start> {
        let known = self.starts.lock().unpoisoned().get(&workload.setup).map(Arc::clone);
        if let Some(start) = known {
            return Ok(start);
        }
        let image = Arc::new(Image::new(Arc::clone(&self.base)));
        let mounted = self.system.mount(Arc::<Image>::clone(&image))?;
        let write_out = |choose: &mut dyn FnMut(Step) -> bool| mounted.write_out(choose);
        let mut target = Target::new(mounted.fs(), &write_out);
        for (no, op) in (0_u32..).zip(&workload.setup) {
            // A set-up that does not fit is the workload's business; anything else is not.
            match op.run(&mut target, SETUP + no) {
                // What a format does not have is left out.
                Err(error) if ![Errno::NOSPC, Errno::OPNOTSUPP].contains(&error.errno()) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        drop(target);
        mounted.unmount()?;
        let start = Arc::new(image.changed());
        let mut starts = self.starts.lock().unpoisoned();
        if starts.len() >= MAX_STARTS {
            starts.clear();
        }
        starts.insert(workload.setup.clone(), Arc::clone(&start));
        Ok(start)
    }

    /// Runs a workload and writes down what happens.
    ///
    /// # Errors
    /// When the volume cannot be mounted, read or written: there is no crash yet.
    pub fn record(&self, workload: &Workload) -> std::result::Result<Recording, Violation> {
        let fail = |error: fstitch_core::Error| Violation::new("workload-failed", error.to_string());
        let start = self.start(workload).map_err(fail)?;
        let image = Image::with(Arc::clone(&self.base), BTreeMap::clone(&start));
        let recorder = Arc::new(Recorder::new(image));
        let device: Arc<dyn BlockDevice> = Arc::<Recorder<Image>>::clone(&recorder);
        let mounted = self.system.mount(device).map_err(fail)?;
        let fs = mounted.fs();
        let see = |before: Option<&Tree>, held: &[InodeNo]| {
            Tree::read_with(fs, before, held)
                .map_err(|error| Violation::new("unreadable-alive", error.to_string()))
        };
        let mut ledger = Ledger::new(see(None, &[])?);
        let mut refused = BTreeMap::new();
        let write_out = |choose: &mut dyn FnMut(Step) -> bool| mounted.write_out(choose);
        let mut target = Target::new(fs, &write_out);
        for (no, op) in (0_u32..).zip(&workload.ops) {
            let what = promised(op, ledger.tree());
            recorder.mark(Mark::Begin(no));
            let done = op.run(&mut target, no);
            recorder.mark(Mark::End(no));
            let tree = see(Some(ledger.tree()), &target.held())?;
            ledger.push(tree);
            match (done, what) {
                (Ok(()), Some(what)) => {
                    let promise = ledger.promise(what, ledger.version());
                    recorder.mark(Mark::Promise(promise));
                }
                (Ok(()), None) => {}
                (Err(error), _) => drop(refused.insert(no, error.to_string())),
            }
        }
        drop(target);
        let drain = if workload.is_written_out() { MAX_DRAIN } else { 0 };
        for _ in 0..drain {
            if mounted.write_out(&mut |_| true).map_err(fail)? == 0 {
                break;
            }
        }
        mounted.unmount().map_err(fail)?;
        let promise = ledger.promise(What::Everything, ledger.version());
        recorder.mark(Mark::Promise(promise));
        Ok(Recording { start: BTreeMap::clone(&start), log: recorder.take(), ledger, refused })
    }

    /// The history of a recording's medium at its start.
    #[must_use]
    pub fn history(&self, recording: &Recording) -> History {
        History::from_stable(Arc::clone(&self.base), recording.start.clone(), self.options.level)
    }

    /// What a cut of a recording may show.
    #[must_use]
    pub fn oracle<'a>(&self, recording: &'a Recording) -> TreeOracle<'a> {
        TreeOracle { ledger: &recording.ledger, promise: self.system.promise() }
    }

    /// Runs a workload and judges what cuts could have left. `index` makes its samples its own.
    #[must_use]
    pub fn run(&self, workload: &Workload, index: u64) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.counts.workloads = 1;
        outcome.counts.operations = to_u64(workload.ops.len());
        match self.record(workload) {
            Ok(recording) => self.judge(workload, &recording, index, &mut outcome),
            Err(violation) => outcome.found.push(Found { id: self.id(workload, 0, vec![]), violation }),
        }
        outcome
    }

    /// A panic while `workload` ran, as a violation.
    pub(crate) fn panicked(&self, workload: &Workload, text: &str) -> Found {
        Found { id: self.id(workload, 0, vec![]), violation: Violation::new("panic", text) }
    }

    fn id(&self, workload: &Workload, cut: usize, choice: Vec<u8>) -> StateId {
        let (system, workload) = (self.system.name(), workload.name.clone());
        StateId { system, workload, level: self.options.level, cut, choice }
    }

    fn judge(&self, workload: &Workload, recording: &Recording, index: u64, outcome: &mut Outcome) {
        outcome.counts.refused = to_u64(recording.refused.len());
        let seed = self.options.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let like = Arc::clone(recording.ledger.tree());
        let mut judging = Judging {
            options: self.options,
            name: &|cut, choice| self.id(workload, cut, choice.to_vec()),
            oracle: &self.oracle(recording),
            explorer: Explorer::new(&*self.system, &self.known, &recording.log, (Some(like), seed)),
            afterwards: &|lawful| {
                let (system, base, level) = (&*self.system, &self.base, self.options.level);
                Aftermath { system, base, level, tree: lawful.shown }.sample(&self.options, lawful)
            },
            seed: Seed::new(seed),
            outcome,
        };
        for_each_cut(self.history(recording), &recording.log, &mut |cut| judging.cut(cut));
    }
}

/// Numbers of set-up operations, so that their bytes are nobody else's.
const SETUP: u32 = 1 << 20;

/// What the success of an operation promises.
fn promised(op: &Op, tree: &Tree) -> Option<What> {
    match op {
        Op::Sync => Some(What::Everything),
        Op::Fsync { path } => Some(What::Object { id: tree.find(path)?, data_only: false }),
        Op::Fdatasync { path } => Some(What::Object { id: tree.find(path)?, data_only: true }),
        _ => None,
    }
}
