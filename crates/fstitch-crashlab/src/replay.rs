//! One state again: from its name to the image, the verdict, and what was lost.

use fstitch_core::Seed;

use crate::aftermath::Aftermath;
use crate::explore::Facts;
use crate::id::{StateId, UnknownState};
use crate::lab::{Lab, LabOptions, Recording};
use crate::medium::{Cut, Image, cut_at};
use crate::oracle::{Oracle, Violation};
use crate::system::{FindSystem, UnknownSystem};
use crate::workload::{self, Workload};

/// Why a state cannot be seen again.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The line is none.
    #[error(transparent)]
    Line(#[from] UnknownState),
    /// Nor is its system.
    #[error(transparent)]
    System(#[from] UnknownSystem),
    /// Nor is its workload.
    #[error("{0}")]
    Workload(String),
    /// The volume could not be made.
    #[error("the volume cannot be made: {0}")]
    Volume(#[from] fstitch_core::Error),
    /// The workload itself failed.
    #[error("the workload fails without a crash: {0}")]
    Failed(Violation),
    /// The log has no such cut, or the cut no such choice.
    #[error(
        "this state does not exist any more: the program has changed since, and the log is a different one ({0})"
    )]
    Gone(&'static str),
}

/// A state seen again.
pub struct Replay {
    /// Its name.
    pub id: StateId,
    /// The laboratory that it was made in.
    pub lab: Lab,
    /// The workload.
    pub workload: Workload,
    /// Its past.
    pub recording: Recording,
    /// When the power failed.
    pub cut: Cut,
    /// What is wrong with the state, if anything is.
    pub verdict: Result<(), Violation>,
    /// The state itself is lawful; what is wrong shows only when it is recovered, repaired or used.
    pub afterwards: bool,
}

/// The workload with this name: one of a family, or `ops/` with operations.
///
/// # Errors
/// When there is none, with the names that there are.
pub fn find_workload(name: &str) -> Result<Workload, ReplayError> {
    let (family, index) = workload::find(name).map_err(|error| ReplayError::Workload(error.to_string()))?;
    let index =
        index.ok_or_else(|| ReplayError::Workload(format!("{name} has no number: {name}/0 is the first")))?;
    family.get(index).ok_or_else(|| {
        ReplayError::Workload(format!(
            "{} has {} workloads; there is no {index}",
            family.name(),
            family.len()
        ))
    })
}

/// Samples of what happens after a crash; a run may have drawn another one.
const AFTERMATHS: u64 = 16;

/// What goes wrong only afterwards is found again by trying it some times.
fn live_on(aftermath: &Aftermath<'_>, image: &Image, allowed: u64) -> Result<(), Violation> {
    for seed in 0..AFTERMATHS {
        aftermath.live_on(image, 2, &mut Seed::new(seed))?;
    }
    aftermath.ask_installed_reference(image, allowed)
}

impl Replay {
    /// Makes the state again and judges it; `find` knows its system.
    ///
    /// # Errors
    /// When there is no such state.
    pub fn new(id: StateId, options: LabOptions, find: FindSystem) -> Result<Self, ReplayError> {
        let lab = Lab::new(find(&id.system)?, LabOptions { level: id.level, ..options })?;
        let workload = find_workload(&id.workload)?;
        let recording = lab.record(&workload).map_err(ReplayError::Failed)?;
        let cut = cut_at(lab.history(&recording), &recording.log, id.cut);
        let cut = cut.ok_or(ReplayError::Gone("no cut after so many events"))?;
        if !cut.permits(&id.choice) {
            return Err(ReplayError::Gone("other atoms are undecided"));
        }
        let image = cut.image(&id.choice);
        let facts = Facts::of(lab.system(), image.fork());
        let mut verdict = match &facts.shown {
            Ok(tree) => lab.oracle(&recording).at(cut.progress)(tree),
            Err(violation) => Err(violation.clone()),
        };
        let afterwards = verdict.is_ok();
        if let (Ok(()), Ok(tree)) = (&verdict, &facts.shown) {
            let aftermath = Aftermath { system: lab.system(), base: lab.base(), level: id.level, tree };
            verdict = live_on(&aftermath, &image, facts.allowed);
        }
        Ok(Self { id, lab, workload, recording, cut, verdict, afterwards })
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> Image {
        self.cut.image(&self.id.choice)
    }

    /// The atoms that are older than they could be: what was lost.
    pub fn lost(&self) -> impl Iterator<Item = usize> {
        let newest = self.cut.atoms.iter().map(|atom| atom.candidates.len() - 1);
        let pairs = self.id.choice.iter().map(|&chosen| usize::from(chosen)).zip(newest).enumerate();
        pairs.filter(|(_, (chosen, newest))| chosen < newest).map(|(at, _)| at)
    }
}
