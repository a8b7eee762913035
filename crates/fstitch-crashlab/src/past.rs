//! Takes apart what is no file system: the user runs the workload, and brings the subject and the oracle.

use std::sync::Arc;

use fstitch_core::Seed;
use fstitch_core::num::to_u64;

use crate::explore::{Explorer, Facts, Known, Subject};
use crate::id::StateId;
use crate::judging::Judging;
use crate::lab::{LabOptions, Outcome};
use crate::medium::{Base, Event, History, Image, Level, Log, Mark, cut_at, for_each_cut};
use crate::oracle::{Oracle, Violation};
use crate::replay::ReplayError;

/// What one run of a workload did to a medium, with all that is needed to judge what cuts could have left.
///
/// The log comes from a [`Recorder`](crate::Recorder) or from [`PersistentMemory`](crate::medium::PersistentMemory), with marks
/// where operations begin and where something was promised: the oracle is told how many of each lie before a cut.
pub struct Past<'a, S: Subject + ?Sized> {
    /// The first two parts of a state's name: words without `:` and blanks.
    pub names: (String, String),
    /// The medium before.
    pub base: Arc<Base>,
    /// What happened to it.
    pub log: Log,
    /// Recovers and reads an image.
    pub subject: &'a S,
    /// Knows what images may show.
    pub oracle: &'a dyn Oracle<Shown = S::Shown>,
}

/// Images that are kept in mind.
const KNOWN_IMAGES: usize = 4096;

impl<S: Subject + ?Sized> Past<'_, S> {
    /// Judges what cuts could have left. Of the options, those of the aftermath and of the reference checker are a file
    /// system's business.
    #[must_use]
    pub fn judge(&self, options: LabOptions) -> Outcome {
        let mut outcome = Outcome::default();
        let begins = |event: &&Event| matches!(event, Event::Mark(Mark::Begin(_)));
        let operations = self.log.events.iter().filter(begins).count();
        outcome.counts.operations = to_u64(operations);
        outcome.counts.workloads = 1;
        let known = Known::new(KNOWN_IMAGES);
        let mut judging = Judging {
            options,
            name: &|cut, choice| self.id(options.level, cut, choice),
            oracle: self.oracle,
            explorer: Explorer::new(self.subject, &known, &self.log, (None, options.seed)),
            afterwards: &|_| Ok(()),
            seed: Seed::new(options.seed),
            outcome: &mut outcome,
        };
        for_each_cut(self.history(options.level), &self.log, &mut |cut| judging.cut(cut));
        outcome
    }

    /// Makes a state again: its image, and the verdict on it.
    ///
    /// # Errors
    /// When this past has no such state.
    pub fn replay(&self, id: &StateId) -> Result<(Image, Result<(), Violation>), ReplayError> {
        if (&id.system, &id.workload) != (&self.names.0, &self.names.1) {
            return Err(ReplayError::Gone("another system or workload"));
        }
        let cut = cut_at(self.history(id.level), &self.log, id.cut);
        let cut = cut.ok_or(ReplayError::Gone("no cut after so many events"))?;
        if !cut.permits(&id.choice) {
            return Err(ReplayError::Gone("other atoms are undecided"));
        }
        let image = cut.image(&id.choice);
        let facts = Facts::of(self.subject, image.fork());
        let verdict = facts.shown.and_then(|shown| self.oracle.at(cut.progress)(&shown));
        Ok((image, verdict))
    }

    fn history(&self, level: Level) -> History {
        History::new(Arc::clone(&self.base), level)
    }

    fn id(&self, level: Level, cut: usize, choice: &[u8]) -> StateId {
        let (system, workload) = self.names.clone();
        StateId { system, workload, level, cut, choice: choice.to_vec() }
    }
}
