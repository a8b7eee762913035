//! Letting somebody else decide which thread goes on, in debug builds; nothing at all in release builds.
//!
//! What several threads do depends on where they take turns. A laboratory that wants to choose that, and to choose the same
//! again, runs its threads one at a time and hands over only where it matters: before a lock is taken, where one waits, and
//! where it asks for that itself. The lock types ([`lock`](crate::lock)) tell it, on threads that [`control`] has given to it.
//! Other threads, and release builds, pay nothing: the calls are not there without debug assertions, as the checks of
//! [`order`](crate::order), because both are the same sort of thing and a feature of the production crates could be left on.

use std::sync::Arc;

use crate::lock::Place;

/// Whether threads can be controlled in this build.
#[must_use]
pub fn can_control() -> bool {
    cfg!(debug_assertions)
}

/// Decides which thread goes on. All calls come from threads that it controls.
pub trait Scheduler: Send + Sync {
    /// The thread is about to take a lock, or to try: returns when it is its turn.
    fn point(&self, place: Place);
    /// The lock is another thread's: returns when that may be over and it is its turn.
    fn blocked(&self, place: Place);
    /// It has the lock.
    fn taken(&self, place: Place);
    /// It has the lock no more.
    fn released(&self, place: Place);
    /// Whether a thread waits for this lock exclusively: it comes before all who would share it from now on.
    fn has_writer_waiting(&self, lock: usize) -> bool;
    /// It waits until somebody notifies this condition, or with a limit, until nobody else can go on.
    fn wait(&self, condition: usize, has_limit: bool);
    /// It has notified all who wait for the condition.
    fn notified(&self, condition: usize);
}

#[cfg(debug_assertions)]
thread_local! {
    static SCHEDULER: std::cell::RefCell<Option<Arc<dyn Scheduler>>> = const { std::cell::RefCell::new(None) };
}

/// Gives this thread to a scheduler from now on, or back to nobody. Does nothing in release builds.
pub fn control(scheduler: Option<Arc<dyn Scheduler>>) {
    #[cfg(debug_assertions)]
    SCHEDULER.with_borrow_mut(|place| *place = scheduler);
    #[cfg(not(debug_assertions))]
    drop(scheduler);
}

/// Who controls this thread.
#[cfg(debug_assertions)]
pub(crate) fn scheduler() -> Option<Arc<dyn Scheduler>> {
    SCHEDULER.try_with(|place| place.borrow().clone()).ok().flatten()
}
