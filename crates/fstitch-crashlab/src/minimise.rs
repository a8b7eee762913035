//! From a violation to the smallest one like it: few operations, then few lost atoms.

use std::ops::ControlFlow;

use crate::explore::Facts;
use crate::id::StateId;
use crate::lab::{Found, Lab};
use crate::medium::{Cut, for_each_cut};
use crate::oracle::{Judge, Oracle, Tree, Violation};
use crate::replay::Replay;
use crate::workload::{Op, Workload};

/// The smallest violation with the same code that dropping operations one by one leads to. `progress` is told before each
/// step how many operations are left; a break ends the search with what it has.
#[must_use]
pub fn minimise(replay: &Replay, progress: &mut dyn FnMut(usize) -> ControlFlow<()>) -> Option<Found> {
    let code = replay.verdict.as_ref().err()?.code;
    // What goes wrong only afterwards must be looked for in every state.
    let closer = replay.afterwards.then(|| replay.lab.looking_closer());
    let search = Search { lab: closer.as_ref().unwrap_or(&replay.lab), code };
    let mut best = search.of(&replay.workload)?;
    let mut workload = replay.workload.clone();
    let mut again = true;
    while again {
        again = false;
        for setup in [false, true] {
            let mut at = if setup { workload.setup.len() } else { workload.ops.len() };
            while at > 0 {
                at -= 1;
                if progress(workload.ops.len()).is_break() {
                    return Some(best);
                }
                let smaller = workload.without(setup, at);
                if let Some(found) = search.of(&smaller) {
                    (best, workload, again) = (found, smaller, true);
                }
            }
        }
    }
    Some(search.fewer_atoms(&workload, best))
}

impl Workload {
    /// The workload without one operation, under a name that contains what is left.
    fn without(&self, setup: bool, at: usize) -> Self {
        let mut smaller = self.clone();
        let list: &mut Vec<Op> = if setup { &mut smaller.setup } else { &mut smaller.ops };
        list.remove(at);
        smaller.name = format!("ops/{}", smaller.text());
        smaller
    }
}

struct Search<'a> {
    lab: &'a Lab,
    code: &'static str,
}

impl Search<'_> {
    fn of(&self, workload: &Workload) -> Option<Found> {
        let found = self.lab.run(workload, 0).found;
        found.into_iter().find(|found| found.violation.code == self.code)
    }

    /// The same cut with as many atoms as possible in their newest, or as many as possible in their stable version.
    fn fewer_atoms(&self, workload: &Workload, found: Found) -> Found {
        let Ok(recording) = self.lab.record(workload) else { return found };
        let mut best = found.clone();
        for_each_cut(self.lab.history(&recording), &recording.log, &mut |cut| {
            if cut.at != found.id.cut || cut.prefixes_only {
                return;
            }
            let oracle = self.lab.oracle(&recording);
            let lawful = oracle.at(cut.progress);
            let judge = |choice: &[u8]| self.judge(cut, &lawful, choice);
            let newest: Vec<u8> =
                cut.atoms.iter().map(|a| u8::try_from(a.candidates.len() - 1).expect("bounded")).collect();
            let oldest = vec![0; newest.len()];
            let ends = [newest, oldest].map(|end| towards(&found.id.choice, &end, &judge));
            let closest = ends.into_iter().min_by_key(|(_, differ)| *differ);
            if let Some((choice, _)) = closest
                && let Some(violation) = judge(&choice)
            {
                best = Found { id: StateId { choice, ..found.id.clone() }, violation };
            }
        });
        best
    }

    fn judge(&self, cut: &Cut, lawful: &Judge<'_, Tree>, choice: &[u8]) -> Option<Violation> {
        let facts = Facts::of(self.lab.system(), cut.image(choice));
        let violation = facts.shown.and_then(|tree| lawful(&tree)).err()?;
        (violation.code == self.code).then_some(violation)
    }
}

/// Changes the choice atom by atom into `end` where the violation stays; returns also how many atoms differ at last.
fn towards(choice: &[u8], end: &[u8], judge: &dyn Fn(&[u8]) -> Option<Violation>) -> (Vec<u8>, usize) {
    let mut choice = choice.to_vec();
    for at in 0..choice.len() {
        let before = std::mem::replace(&mut choice[at], end[at]);
        if before != end[at] && judge(&choice).is_none() {
            choice[at] = before;
        }
    }
    let differ = choice.iter().zip(end).filter(|(a, b)| a != b).count();
    (choice, differ)
}
