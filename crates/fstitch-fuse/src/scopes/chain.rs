//! Ordered fsync: a chain of groups, of which the last one is engaged.
//!
//! ```text
//!   changes ─► group 1 ◄── group 2 ◄── group 3 (engaged)      each ordering point: the next group
//! ```
//!
//! At an ordering point no change of the chain may be under way, because the group that ends there can take no
//! more. Where some are for too long, everything is made stable instead, which orders as well.

use std::sync::atomic::{AtomicBool, Ordering as Memory};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use fstitch_core::groups::{GroupCall, GroupId};
use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Error, Result, waiting};

use super::Ordering;
use super::set::end;

/// How long an ordering point waits for changes that are under way.
const PATIENCE: Duration = Duration::from_millis(50);

/// An ordering point after more changes than these is not made at once: the file system looks at what they touched.
const FEW: usize = 64;

/// One order that a tree of processes keeps.
pub(crate) struct Chain {
    fs: Arc<dyn Ordering>,
    /// How often its changes are made stable, if at all.
    pub durable_every: Option<Duration>,
    /// Every change is an ordering point, not only fsync.
    every_change: bool,
    state: Mutex<State>,
    /// No change is under way.
    rest: Condvar,
    /// Something changed since all was last made stable.
    unstable: AtomicBool,
}

struct State {
    /// `None` after a failure: from then on, ordering points make everything stable.
    engaged: Option<GroupId>,
    /// Changes under way.
    working: usize,
    /// Changes that the engaged group may have.
    changes: usize,
}

/// One change under way.
pub(super) struct Step(Arc<Chain>);

impl Chain {
    /// # Errors
    /// `EOPNOTSUPP` where the file system keeps no order.
    pub(super) fn start(
        fs: &Arc<dyn Ordering>,
        durable_every: Option<Duration>,
        every_change: bool,
    ) -> Result<Arc<Self>> {
        let first = begin(&**fs)?;
        Ok(Arc::new(Self {
            fs: Arc::clone(fs),
            durable_every,
            every_change,
            state: Mutex::new(State { engaged: Some(first), working: 0, changes: 0 }),
            rest: Condvar::new(),
            unstable: AtomicBool::new(false),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// A change begins; the group that it belongs to is added to `groups`.
    pub(super) fn enter(self: &Arc<Self>, groups: &mut Vec<GroupId>) -> Step {
        if self.every_change {
            // Its change comes after this.
            let _waits = waiting::allow();
            self.point_before_change();
        }
        let mut state = self.lock();
        state.working += 1;
        state.changes = state.changes.saturating_add(1);
        groups.extend(state.engaged);
        self.unstable.store(true, Memory::Release);
        Step(Arc::clone(self))
    }

    /// An ordering point, unless it would have to wait or has much to look at: then `None`.
    pub(super) fn try_point(&self) -> Option<Result<()>> {
        let mut state = self.lock();
        if state.changes == 0 {
            return Some(Ok(()));
        }
        if state.working > 0 || state.changes > FEW {
            return None;
        }
        self.advance(&mut state).then_some(Ok(()))
    }

    /// An ordering point.
    ///
    /// # Errors
    /// As `fsync`, where everything had to be made stable.
    pub(super) fn point(&self) -> Result<()> {
        let state = self.lock();
        let waited = self.rest.wait_timeout_while(state, PATIENCE, |state| state.working > 0);
        let (mut state, _) = waited.unpoisoned();
        if state.changes == 0 || (state.working == 0 && self.advance(&mut state)) {
            return Ok(());
        }
        drop(state);
        self.settle()
    }

    /// An ordering point between the last change and the next. Changes that are under way together have no order.
    fn point_before_change(&self) {
        let mut state = self.lock();
        if state.working > 0 || state.changes == 0 || self.advance(&mut state) {
            return;
        }
        drop(state);
        // What a sync cannot make stable, later syncs report.
        if let Err(error) = self.settle() {
            tracing::debug!("a sync instead of an ordering point: {error}");
        }
    }

    /// Makes everything stable.
    pub(super) fn settle(&self) -> Result<()> {
        self.unstable.store(false, Memory::Release);
        self.fs.sync().inspect_err(|_| self.unstable.store(true, Memory::Release))
    }

    pub(super) fn is_unstable(&self) -> bool {
        self.unstable.load(Memory::Acquire)
    }

    /// Goes on with the next group. Where that fails, with none. Where this thread would have to wait and must not, nothing
    /// happens.
    fn advance(&self, state: &mut State) -> bool {
        let Some(last) = state.engaged else { return false };
        match self.next(last) {
            Err(Error::WouldWait) => false,
            Ok(next) => {
                *state = State { engaged: Some(next), working: 0, changes: 0 };
                true
            }
            Err(error) => {
                tracing::warn!("ordered fsync goes on as plain fsync: {error}");
                state.engaged = None;
                false
            }
        }
    }

    /// The group after `last`, which is closed also where this fails, unless with [`Error::WouldWait`].
    fn next(&self, last: GroupId) -> Result<GroupId> {
        let fs = &*self.fs;
        // First what may have to wait.
        let made = fs.group(GroupCall::Create);
        if matches!(made, Err(Error::WouldWait)) {
            return made;
        }
        let ended = fs.group(GroupCall::Disengage(last));
        let next = made.and_then(|next| {
            let after = GroupCall::Depend { after: next, before: last };
            let engaged = ended.and_then(|_| fs.group(after)).and_then(|_| fs.group(GroupCall::Engage(next)));
            engaged.map(|_| next).inspect_err(|_| end(fs, GroupCall::Close(next)))
        });
        end(fs, GroupCall::Close(last));
        next
    }
}

/// A new group that is engaged.
fn begin(fs: &dyn Ordering) -> Result<GroupId> {
    let first = fs.group(GroupCall::Create)?;
    fs.group(GroupCall::Engage(first)).map(|_| first).inspect_err(|_| end(fs, GroupCall::Close(first)))
}

impl Drop for Step {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.working -= 1;
        if state.working == 0 {
            self.0.rest.notify_all();
        }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let engaged = self.state.get_mut().unpoisoned().engaged.take();
        if let Some(last) = engaged {
            end(&*self.fs, GroupCall::Disengage(last));
            end(&*self.fs, GroupCall::Close(last));
        }
    }
}
