//! Patchgroups: what their states allow, and their heads and tails. Design: `docs/design/patchgroups.md`.

use fstitch_core::Errno;

use crate::PatchId;
use crate::graph::patch::Vx;

/// Groups that exist at once in one cache, at most.
pub(crate) const GROUPS_MAX: usize = 1 << 16;

/// Where a group is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It has no changes, and may come after others.
    New,
    /// So many scopes have it engaged.
    Engaged(u32),
    /// It was engaged and may be again.
    Idle,
    /// Others come after it: it never changes again.
    Sealed,
}

/// What is asked of a group's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is to come after another one.
    DependsOn,
    /// Another one is to come after it.
    Before,
    Engage,
    Disengage,
    Sync,
    /// Forgets it; `None` comes after it.
    Close,
}

impl State {
    /// The table of `docs/design/patchgroups.md`: the state afterwards, `None` for a group that is gone.
    pub(crate) const fn after(self, step: Step) -> Result<Option<Self>, Errno> {
        Ok(Some(match (self, step) {
            (_, Step::Close) => return Ok(None),
            (_, Step::Sync) => self,
            (Self::New, Step::DependsOn) => Self::New,
            (Self::New | Self::Idle | Self::Sealed, Step::Before) => Self::Sealed,
            (Self::Engaged(_), Step::Before) => return Err(Errno::BUSY),
            (Self::New | Self::Idle, Step::Engage) => Self::Engaged(1),
            (Self::Engaged(u32::MAX), Step::Engage) => return Err(Errno::OVERFLOW),
            (Self::Engaged(scopes), Step::Engage) => Self::Engaged(scopes + 1),
            (Self::Engaged(1), Step::Disengage) => Self::Idle,
            (Self::Engaged(scopes), Step::Disengage) => Self::Engaged(scopes - 1),
            (_, Step::DependsOn | Step::Engage | Step::Disengage) => return Err(Errno::INVAL),
        }))
    }
}

/// A group.
#[derive(Debug)]
pub(crate) struct Group {
    /// The volume whose changes it may have.
    pub(crate) volume: Vx,
    pub(crate) state: State,
    /// The tails of what it comes after, until it has a head.
    pub(crate) befores: Vec<PatchId>,
    /// All its changes come after this.
    pub(crate) head: PatchId,
    /// Gathers its changes while it may have more.
    pub(crate) gather: PatchId,
    /// Comes after all its changes, once it is sealed.
    pub(crate) tail: PatchId,
}

impl Group {
    pub(crate) fn new(volume: Vx) -> Self {
        Self {
            volume,
            state: State::New,
            befores: Vec::new(),
            head: PatchId::NONE,
            gather: PatchId::NONE,
            tail: PatchId::NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: [Step; 6] =
        [Step::DependsOn, Step::Before, Step::Engage, Step::Disengage, Step::Sync, Step::Close];

    /// The table, written down a second time as in the document: rows are states, columns are steps.
    #[test]
    fn the_lifecycle_is_the_documents() {
        use State::{Engaged, Idle, New, Sealed};
        let (invalid, busy) = (Err(Errno::INVAL), Err(Errno::BUSY));
        let to = |state: State| Ok(Some(state));
        let gone = Ok(None);
        let table = [
            (New, [to(New), to(Sealed), to(Engaged(1)), invalid, to(New), gone]),
            (Engaged(1), [invalid, busy, to(Engaged(2)), to(Idle), to(Engaged(1)), gone]),
            (Engaged(7), [invalid, busy, to(Engaged(8)), to(Engaged(6)), to(Engaged(7)), gone]),
            (Idle, [invalid, to(Sealed), to(Engaged(1)), invalid, to(Idle), gone]),
            (Sealed, [invalid, to(Sealed), invalid, invalid, to(Sealed), gone]),
        ];
        for (state, row) in table {
            for (step, expected) in STEPS.into_iter().zip(row) {
                assert_eq!(state.after(step), expected, "{state:?}, {step:?}");
            }
        }
    }

    /// However the calls follow each other: dependencies come before the first engagement and before the seal, and a sealed
    /// group is never engaged. So what a group comes after is fixed before anything comes after it: no cycle can be built.
    #[test]
    fn no_sequence_of_calls_builds_a_cycle() {
        fn walk(state: State, was_engaged: bool, was_sealed: bool, depth: usize) {
            for step in STEPS {
                let Ok(Some(next)) = state.after(step) else { continue };
                assert!(step != Step::DependsOn || (!was_engaged && !was_sealed));
                assert!(step != Step::Engage || !was_sealed);
                if depth > 0 {
                    let (engaged, sealed) = (step == Step::Engage, step == Step::Before);
                    walk(next, was_engaged || engaged, was_sealed || sealed, depth - 1);
                }
            }
        }
        walk(State::New, false, false, 7);
    }
}
