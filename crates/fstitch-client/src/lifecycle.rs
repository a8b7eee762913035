//! The lifecycle of a group, where no file system keeps it: the table of `docs/design/patchgroups.md`.

use rustix::io::Errno;

/// What a group may still do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing has happened: it may get dependencies.
    New,
    /// So many scopes have it engaged.
    Engaged(u32),
    /// It was engaged.
    Idle,
    /// Another group depends on it.
    Sealed,
}

/// What is done to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It gets a dependency.
    DependOn,
    /// It becomes one.
    BeDependedOn,
    Engage,
    Disengage,
}

impl State {
    /// The state after a step, or why it cannot be taken.
    pub(crate) fn after(self, step: Step) -> Result<Self, Errno> {
        match (self, step) {
            (Self::New, Step::DependOn) => Ok(Self::New),
            (Self::Engaged(_), Step::BeDependedOn) => Err(Errno::BUSY),
            (Self::New | Self::Idle | Self::Sealed, Step::BeDependedOn) => Ok(Self::Sealed),
            (Self::New | Self::Idle, Step::Engage) => Ok(Self::Engaged(1)),
            (Self::Engaged(scopes), Step::Engage) => {
                scopes.checked_add(1).map(Self::Engaged).ok_or(Errno::AGAIN)
            }
            (Self::Engaged(1), Step::Disengage) => Ok(Self::Idle),
            (Self::Engaged(scopes), Step::Disengage) => Ok(Self::Engaged(scopes - 1)),
            (Self::Engaged(_) | Self::Idle | Self::Sealed, Step::DependOn)
            | (Self::Sealed, Step::Engage)
            | (Self::New | Self::Idle | Self::Sealed, Step::Disengage) => Err(Errno::INVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State::{Engaged, Idle, New, Sealed};
    use super::*;

    /// One row per state, in the order of the columns of the design: depend(it, P), depend(Q, it), engage, disengage.
    #[test]
    fn the_table_is_the_design_s() {
        let steps = [Step::DependOn, Step::BeDependedOn, Step::Engage, Step::Disengage];
        let table = [
            (New, [Ok(New), Ok(Sealed), Ok(Engaged(1)), Err(Errno::INVAL)]),
            (Engaged(1), [Err(Errno::INVAL), Err(Errno::BUSY), Ok(Engaged(2)), Ok(Idle)]),
            (Engaged(2), [Err(Errno::INVAL), Err(Errno::BUSY), Ok(Engaged(3)), Ok(Engaged(1))]),
            (Idle, [Err(Errno::INVAL), Ok(Sealed), Ok(Engaged(1)), Err(Errno::INVAL)]),
            (Sealed, [Err(Errno::INVAL), Ok(Sealed), Err(Errno::INVAL), Err(Errno::INVAL)]),
        ];
        for (state, row) in table {
            assert_eq!(steps.map(|step| state.after(step)), row, "{state:?}");
        }
    }
}
