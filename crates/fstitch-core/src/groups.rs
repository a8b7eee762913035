//! Patchgroups, as far as all layers share them: names, calls, and which groups a thread works for. Design:
//! `docs/design/patchgroups.md`.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names a group for ever in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u64);

impl GroupId {
    /// A name that nobody had.
    #[must_use]
    pub fn fresh() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

/// What can be asked of groups: \[D\] §2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupCall {
    /// Makes a group.
    Create,
    /// All changes of `after` come after those of `before`, which is sealed by it.
    Depend {
        /// It must be new.
        after: GroupId,
        /// It must not be engaged.
        before: GroupId,
    },
    /// A scope engages the group: its operations are the group's from now on.
    Engage(GroupId),
    /// A scope engages it no longer.
    Disengage(GroupId),
    /// Makes the group's changes stable, and what they come after.
    Sync(GroupId),
    /// Forgets the group; its order stays. Nobody may have it engaged any more.
    Close(GroupId),
}

thread_local! {
    static ENGAGED: RefCell<Vec<GroupId>> = const { RefCell::new(Vec::new()) };
}

/// As long as it lives, what this thread changes belongs to some groups.
#[derive(Debug)]
pub struct Engaged {
    before: Vec<GroupId>,
    /// It is about one thread.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Engaged {
    /// Works for these groups, and for no others.
    #[must_use]
    pub fn enter(groups: &[GroupId]) -> Self {
        let before = ENGAGED.replace(groups.to_vec());
        Self { before, _not_send: std::marker::PhantomData }
    }
}

impl Drop for Engaged {
    fn drop(&mut self) {
        ENGAGED.set(std::mem::take(&mut self.before));
    }
}

/// The groups that this thread works for.
pub fn with_engaged<T>(look: impl FnOnce(&[GroupId]) -> T) -> T {
    ENGAGED.with_borrow(|engaged| look(engaged))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engagements_nest_and_end() {
        let (one, two) = (GroupId::fresh(), GroupId::fresh());
        let outer = Engaged::enter(&[one]);
        {
            let _inner = Engaged::enter(&[one, two]);
            assert_eq!(with_engaged(<[GroupId]>::to_vec), [one, two]);
        }
        assert_eq!(with_engaged(<[GroupId]>::to_vec), [one]);
        drop(outer);
        assert!(with_engaged(<[GroupId]>::is_empty) && one != two);
    }
}
