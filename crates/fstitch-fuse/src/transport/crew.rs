//! The threads that read requests from `/dev/fuse`, and those that stand in for them while they wait.
//!
//! Operations wait in few places: for room in the cache, for the end of a journal's transaction, while the volume is checked.
//! With all workers waiting there nobody would answer the `stat` of somebody else. A worker says when it begins to wait
//! ([`fstitch_core::waiting`]); when it was the last one that did not, a keeper, which sleeps otherwise, starts a stand-in. A
//! stand-in leaves after a request that it has answered while enough others do not wait.

use std::io::Result;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use fstitch_core::lock::Unpoisoned;
use fstitch_core::waiting::{Watcher, watch};

/// Most threads that read at a time. When so many wait, everybody does: each has memory for the longest write.
const CREW_MAX: usize = 32;

struct State {
    /// Threads that serve, stand-ins included.
    serving: usize,
    /// Of these, those that wait.
    waiting: usize,
    /// The mount is gone.
    over: bool,
}

/// Who serves.
pub(super) struct Crew {
    state: Mutex<State>,
    changed: Condvar,
    workers: usize,
}

impl Crew {
    /// With `workers` that serve all the time.
    pub(super) fn new(workers: usize) -> Self {
        let state = State { serving: workers, waiting: 0, over: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), workers }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// Starts the workers and their keeper. `serve` serves until the mount is gone, or until after a request what it is given
    /// says so.
    pub(super) fn start<'scope, S>(
        self: &Arc<Self>,
        scope: &'scope Scope<'scope, '_>,
        serve: S,
    ) -> Result<Vec<ScopedJoinHandle<'scope, Result<()>>>>
    where
        S: Fn(&dyn Fn() -> bool) -> Result<()> + Copy + Send + 'scope,
    {
        let mut threads = Vec::new();
        for no in 0..self.workers {
            let crew = Arc::clone(self);
            let worker = move || {
                watch(Arc::clone(&crew) as _);
                let ended = serve(&|| false);
                crew.end();
                ended
            };
            threads.push(Builder::new().name(format!("fuse-worker-{no}")).spawn_scoped(scope, worker)?);
        }
        let crew = Arc::clone(self);
        let keeper = move || {
            crew.keep(scope, serve);
            Ok(())
        };
        threads.push(Builder::new().name("fuse-keeper".into()).spawn_scoped(scope, keeper)?);
        Ok(threads)
    }

    /// Starts stand-ins until the mount is gone.
    fn keep<'scope, S>(self: &Arc<Self>, scope: &'scope Scope<'scope, '_>, serve: S)
    where
        S: Fn(&dyn Fn() -> bool) -> Result<()> + Copy + Send + 'scope,
    {
        while self.needs_one() {
            let crew = Arc::clone(self);
            let stand_in = move || {
                watch(Arc::clone(&crew) as _);
                // A failure was told, and has ended the mount.
                let _ = serve(&|| crew.dismisses());
            };
            if let Err(error) = Builder::new().name("fuse-stand-in".into()).spawn_scoped(scope, stand_in) {
                tracing::warn!("nobody stands in for threads that wait: {error}");
                return self.lacks_one();
            }
        }
    }

    /// Waits until a stand-in is needed, who counts from then on; false when the mount is gone.
    pub(super) fn needs_one(&self) -> bool {
        let mut state = self.state();
        loop {
            if state.over {
                return false;
            }
            if state.serving == state.waiting && state.serving < CREW_MAX {
                state.serving += 1;
                return true;
            }
            state = self.changed.wait(state).unpoisoned();
        }
    }

    /// Whether a stand-in is needed no more, and so does not count any more.
    pub(super) fn dismisses(&self) -> bool {
        let mut state = self.state();
        let leaves = state.serving - state.waiting > self.workers;
        state.serving -= usize::from(leaves);
        leaves
    }

    /// One who was to stand in could not be started.
    pub(super) fn lacks_one(&self) {
        self.state().serving -= 1;
    }

    /// The mount is gone.
    pub(super) fn end(&self) {
        self.state().over = true;
        self.changed.notify_all();
    }
}

impl Watcher for Crew {
    fn begins(&self) {
        let mut state = self.state();
        state.waiting += 1;
        if state.waiting == state.serving {
            self.changed.notify_all();
        }
    }

    fn ends(&self) {
        self.state().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_stands_in_as_long_as_all_others_wait() {
        let crew = Crew::new(2);
        crew.begins();
        assert!(!crew.dismisses());
        crew.begins();
        assert!(crew.needs_one(), "both wait");
        crew.begins();
        assert!(crew.needs_one(), "so does the one who stands in");
        assert!(!crew.dismisses());
        crew.ends();
        assert!(!crew.dismisses(), "two serve");
        crew.ends();
        assert!(crew.dismisses() && !crew.dismisses(), "three serve, then two");
        crew.end();
        assert!(!crew.needs_one());
    }

    #[test]
    fn there_is_an_end_to_it() {
        let crew = Crew::new(1);
        (1..CREW_MAX).for_each(|_| {
            crew.begins();
            assert!(crew.needs_one());
        });
        crew.begins();
        crew.end();
        assert!(!crew.needs_one());
    }
}
