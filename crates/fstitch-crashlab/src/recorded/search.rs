//! The search: at moments spread over the log, choices of what survived, each looked at once.

use std::sync::Arc;

use fstitch_core::Seed;
use fstitch_core::num::to_usize;

use super::choice::{Chosen, RecordedId, choose};
use super::{MAX_SAMPLES, Question, Recorded, RecordedOptions, RecordedOutcome};
use crate::explore::{AtCut, Explorer, Facts, Known, Origin};
use crate::judging::{Lawful, counter};
use crate::medium::{Cut, Event, Image, Log, RequestNo};
use crate::oracle::{Tree, Violation};

/// Images that are kept in mind: consecutive cuts share one or two.
pub(super) const KNOWN_IMAGES: usize = 64;

/// How many moments to go on so that `budget` states suffice for the `rest` of the moments, of which one takes
/// `states / cuts` of them.
fn stride(rest: u64, (states, cuts): (u64, u64), budget: u64) -> u64 {
    let wanted = u128::from(rest) * u128::from(states);
    let strides = wanted.checked_div(u128::from(cuts) * u128::from(budget));
    strides.map_or(u64::MAX, |stride| u64::try_from(stride).unwrap_or(u64::MAX))
}
pub(super) struct Search<'a> {
    pub(super) recorded: &'a Recorded,
    pub(super) options: RecordedOptions,
    pub(super) known: &'a Known,
    /// What the images look like, more or less: they share its memory.
    pub(super) like: Arc<Tree>,
    pub(super) seed: Seed,
    pub(super) outcome: RecordedOutcome,
    /// What programs are asked.
    pub(super) question: Option<&'a mut Question>,
    /// Why it could not be asked any more.
    pub(super) unasked: Option<std::io::Error>,
}

impl<'a> Search<'a> {
    pub(super) fn is_done(&self) -> bool {
        self.unasked.is_some()
            || self.outcome.found.len() >= self.options.lab.max_violations
            || self.outcome.counts.generated >= self.options.states
    }

    /// The next moment to visit, `from` being the first one left: by what a cut took so far, the states last until the
    /// end, where enough of them are kept for the last moment.
    pub(super) fn next_after(&self, from: u64) -> u64 {
        let (counts, per_cut) = (&self.outcome.counts, self.options.lab.choices_per_cut.max(1));
        let budget = self.options.states.saturating_sub(counts.generated.saturating_add(per_cut));
        let took = if counts.cuts == 0 { (per_cut, 1) } else { (counts.generated, counts.cuts) };
        from.saturating_add(stride(self.outcome.moments.saturating_sub(from), took, budget))
    }

    pub(super) fn cut(&mut self, cut: &Cut) {
        let (lab, left) = (self.options.lab, self.options.states - self.outcome.counts.generated);
        let limit = lab.choices_per_cut.max(1).min(left);
        let log = undecided(cut);
        // The image in which everything arrived is looked at first: most others look much like it.
        let newest = cut.prefixes.last().expect("nothing written is a prefix too");
        let mut first = self.explorer(&log);
        self.look(&mut first.at(cut), newest, &Chosen::Versions(newest.clone()));
        drop(first);
        let mut explorer = self.explorer(&log);
        let mut images = explorer.at(cut);
        let mut choosing = Seed::new(self.seed.next_u64());
        let visited = choose(cut, limit, &mut choosing, &mut |choice, chosen| {
            let is_enough =
                |search: &Self| search.unasked.is_some() || search.outcome.found.len() >= lab.max_violations;
            if !is_enough(self) && choice != newest {
                self.look(&mut images, choice, chosen);
            }
            !is_enough(self)
        });
        let counts = &mut self.outcome.counts;
        counts.cuts += 1;
        counts.cuts_exhausted += u64::from(cut.states() == u128::from(visited));
        counts.generated += visited;
    }

    fn explorer(&mut self, log: &Log) -> Explorer<'a> {
        let like = (Some(Arc::clone(&self.like)), self.seed.next_u64());
        Explorer::new(&*self.recorded.system, self.known, log, like)
    }

    /// Finds out about one state and judges it, unless one that looks the same was judged.
    fn look(&mut self, images: &mut AtCut<'_, '_>, choice: &[u8], chosen: &Chosen) {
        let (facts, origin) = images.facts(choice);
        *counter(&mut self.outcome.counts, origin) += 1;
        if origin != Origin::Checked {
            return;
        }
        self.outcome.counts.judged += 1;
        let id = || RecordedId { cut: images.cut().at, survivors: chosen.clone() };
        match self.judge(&facts, &|| images.image(choice)) {
            Ok(()) => self.sample(id),
            Err(violation) => self.outcome.found.push((id(), violation)),
        }
        if let Ok(tree) = &facts.shown {
            self.like = Arc::new(tree.clone());
        }
    }

    /// Every lawful state has the same chance to be named.
    fn sample(&mut self, id: impl Fn() -> RecordedId) {
        let samples = &mut self.outcome.samples;
        if samples.len() < MAX_SAMPLES {
            samples.push(id());
            return;
        }
        let place = to_usize(self.seed.below(self.outcome.counts.judged));
        if let Some(sample) = samples.get_mut(place) {
            *sample = id();
        }
    }

    fn judge(&mut self, facts: &Facts, image: &dyn Fn() -> Image) -> Result<(), Violation> {
        let tree = facts.shown.as_ref().map_err(Violation::clone)?;
        let lab = self.options.lab;
        let aftermath = self.recorded.aftermath(tree, lab.level);
        let (seed, counts) = (&mut self.seed, &mut self.outcome.counts);
        aftermath.sample(&lab, Lawful { shown: tree, allowed: facts.allowed, image, seed, counts })?;
        match self.question.as_mut().map(|question| question.put(tree)) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => {
                self.unasked = Some(error);
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// A log of the blocks in which the images of a cut differ: all that the explorer needs to tell them apart.
fn undecided(cut: &Cut) -> Log {
    let mut log = Log::new(cut.base.geometry());
    let request = RequestNo(0);
    log.events.extend(cut.atoms.iter().map(|atom| Event::Discard { request, start: atom.block, count: 1 }));
    log
}

#[cfg(test)]
mod tests {
    use super::stride;

    /// Prevents cuts that all lie at the beginning, or that leave most of the states unused.
    #[test]
    fn cuts_are_spread_over_the_log() {
        assert_eq!(stride(1000, (16, 1), 0), u64::MAX, "straight to the end");
        assert_eq!(stride(1000, (16, 1), 16_000), 1);
        assert_eq!(stride(1000, (16, 1), 1_000_000), 0, "every moment");
        assert_eq!(stride(1000, (400, 100), 200), 20, "four states each: fifty more cuts");
        assert_eq!(stride(u64::MAX, (u64::MAX, 1), 1), u64::MAX);
    }
}
