//! What one request's changes belong to.

use std::sync::Arc;

use fstitch_core::groups::{Engaged, GroupId};
use fstitch_core::{InodeNo, Result};

use super::chain::Chain;
use super::set::Set;
use super::{Found, Scopes};

/// The groups of one request. It keeps them engaged, so it must be gone before the request is answered.
#[derive(Default)]
pub(crate) struct Work(Option<Box<Groups>>);

struct Groups {
    engaged: Vec<GroupId>,
    chains: Vec<Arc<Chain>>,
    _set: Option<Arc<Set>>,
}

impl Work {
    /// Does a change for these groups, on this thread.
    pub(crate) fn run<T>(&self, change: impl FnOnce() -> T) -> T {
        let Some(groups) = &self.0 else { return change() };
        let mut engaged = groups.engaged.clone();
        let _steps: Vec<_> = groups.chains.iter().map(|chain| chain.enter(&mut engaged)).collect();
        let _engaged = Engaged::enter(&engaged);
        change()
    }

    /// The groups that it is for.
    #[cfg(test)]
    pub(super) fn groups(&self) -> Vec<GroupId> {
        self.run(|| fstitch_core::groups::with_engaged(<[GroupId]>::to_vec))
    }
}

impl Scopes {
    /// What a change of these inodes by a thread belongs to.
    ///
    /// # Errors
    /// `EAGAIN` if the process's set cannot be known, `ENFILE` where too many processes have sets.
    pub(crate) fn work(&self, tid: u32, inodes: &[InodeNo]) -> Result<Work> {
        if !self.is_used() {
            return Ok(Work::default());
        }
        let set = match self.find(tid)? {
            Found::Scoped(scope) => Some(scope.set()),
            Found::Hidden | Found::Quiet(_) => None,
        };
        let engaged = set.as_ref().map_or_else(Vec::new, |set| set.engaged(inodes));
        let own = set.as_ref().and_then(|set| set.chain.clone());
        let chains: Vec<_> = self.everybody().or(own).into_iter().collect();
        if engaged.is_empty() && chains.is_empty() {
            return Ok(Work::default());
        }
        Ok(Work(Some(Box::new(Groups { engaged, chains, _set: set }))))
    }

    /// What pages belong to that the kernel writes back in nobody's name: whoever uses ordered fsync may have
    /// changed them.
    pub(crate) fn work_for_all(&self) -> Work {
        if !self.is_used() {
            return Work::default();
        }
        let chains = self.chains();
        if chains.is_empty() {
            return Work::default();
        }
        Work(Some(Box::new(Groups { engaged: Vec::new(), chains, _set: None })))
    }

    /// All orders that are kept, each once.
    pub(super) fn chains(&self) -> Vec<Arc<Chain>> {
        let mut all: Vec<Arc<Chain>> = self.everybody().into_iter().collect();
        all.extend(self.known().scopes().filter_map(|scope| scope.set().chain.clone()));
        all.sort_by_key(|chain| Arc::as_ptr(chain).addr());
        all.dedup_by(|one, other| Arc::ptr_eq(one, other));
        all
    }

    /// The order that this thread's fsync is a point of.
    ///
    /// # Errors
    /// As [`Self::work`].
    pub(crate) fn order_of(&self, tid: u32) -> Result<Option<Order>> {
        if !self.is_used() {
            return Ok(None);
        }
        if let Some(everybody) = self.everybody() {
            return Ok(Some(Order(everybody)));
        }
        Ok(match self.find(tid)? {
            Found::Scoped(scope) => scope.set().chain.clone().map(Order),
            Found::Hidden | Found::Quiet(_) => None,
        })
    }
}

/// An order whose next point is asked for.
pub(crate) struct Order(Arc<Chain>);

impl Order {
    /// Orders at once, or `None`: [`Self::point`] then waits.
    pub(crate) fn try_point(&self) -> Option<Result<()>> {
        self.0.try_point()
    }

    /// # Errors
    /// As `fsync`, where everything had to be made stable.
    pub(crate) fn point(&self) -> Result<()> {
        self.0.point()
    }
}
