//! Goes through the images of a log, cut by cut, and has each different one judged.

use std::sync::Arc;

use fstitch_core::Seed;
use rustc_hash::FxHashMap;

use crate::explore::{Explorer, Facts, Origin, Subject};
use crate::id::StateId;
use crate::lab::{Counts, Found, LabOptions, Outcome};
use crate::medium::{Cut, Image, for_each_choice};
use crate::oracle::Oracle;

/// A lawful image that was checked, for whoever wants to know more of it.
pub(crate) struct Lawful<'a, T> {
    /// What it shows.
    pub shown: &'a T,
    /// Findings of the checker that a crash may leave.
    pub allowed: u64,
    /// Makes the image.
    pub image: &'a dyn Fn() -> Image,
    /// Chooses what is sampled.
    pub seed: &'a mut Seed,
    /// What was looked at.
    pub counts: &'a mut Counts,
}

/// What must hold of a lawful image besides.
pub(crate) type Afterwards<'a, T> = &'a dyn Fn(Lawful<'_, T>) -> Result<(), crate::oracle::Violation>;

/// The judgement of one log's images.
pub(crate) struct Judging<'a, S: Subject + ?Sized> {
    pub options: LabOptions,
    /// Names a state: events before the cut, and the choice.
    pub name: &'a dyn Fn(usize, &[u8]) -> StateId,
    pub oracle: &'a dyn Oracle<Shown = S::Shown>,
    pub explorer: Explorer<'a, S>,
    pub afterwards: Afterwards<'a, S::Shown>,
    pub seed: Seed,
    pub outcome: &'a mut Outcome,
}

impl<S: Subject + ?Sized> Judging<'_, S> {
    /// Judges the images of one cut.
    pub(crate) fn cut(&mut self, cut: &Cut) {
        let options = &self.options;
        if self.outcome.found.len() >= options.max_violations {
            return;
        }
        let judge = self.oracle.at(cut.progress);
        // Facts that were judged at this cut; they are kept, so that their addresses stay theirs.
        let mut judged: FxHashMap<*const Facts<S::Shown>, Arc<Facts<S::Shown>>> = FxHashMap::default();
        let mut images = self.explorer.at(cut);
        let (counts, found) = (&mut self.outcome.counts, &mut self.outcome.found);
        let mut sampling = self.seed.clone();
        self.seed.next_u64();
        let coverage = for_each_choice(cut, options.choices_per_cut, &mut sampling, &mut |choice| {
            let (facts, origin) = images.facts(choice);
            *counter(counts, origin) += 1;
            if judged.insert(Arc::as_ptr(&facts), Arc::clone(&facts)).is_some() {
                return true;
            }
            counts.judged += 1;
            let mut verdict = facts.shown.as_ref().map_err(Clone::clone).and_then(&judge);
            if let (Ok(()), Ok(shown), Origin::Checked) = (&verdict, &facts.shown, origin) {
                let image = &|| images.image(choice);
                let (allowed, seed) = (facts.allowed, &mut self.seed);
                verdict = (self.afterwards)(Lawful { shown, allowed, image, seed, counts });
            }
            if let Err(violation) = verdict {
                found.push(Found { id: (self.name)(cut.at, choice), violation });
            }
            found.len() < options.max_violations
        });
        counts.cuts += 1;
        counts.cuts_exhausted += u64::from(coverage.possible == u128::from(coverage.visited));
        counts.generated += coverage.visited;
    }
}

/// The count that a state of this origin belongs to.
pub(crate) fn counter(counts: &mut Counts, origin: Origin) -> &mut u64 {
    match origin {
        Origin::Checked => &mut counts.checked,
        Origin::SameImage => &mut counts.same_image,
        Origin::SameReads => &mut counts.same_reads,
        Origin::Control => &mut counts.control,
    }
}
