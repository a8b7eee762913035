//! The threads that do what would have to wait on a thread of a ring.
//!
//! ```text
//!   queue's thread ── tries ──► answered
//!                        └──── would wait: a copy of the request ──► line ──► a waiter does it from its beginning, and answers
//! ```
//!
//! A request that was put off has changed nothing, so it is done as if it arrived now: for the same caller, which waits for its
//! answer, and with the groups that the caller's process has. There is always a waiter with nothing to do, until there are
//! [`WAITERS_MAX`]: whoever takes a request while nobody else is idle starts another one first. With that many, requests stand
//! in line, at most one for each slot; what need not wait is still answered by the queues' own threads.
//!
//! They are not the helpers of [`crate::pool`]: with those at work for throttled writers, an fsync of somebody else would stand in
//! line behind them.

use std::collections::VecDeque;
use std::io::Result;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, Scope};

use super::{Server, dispatch};
use crate::wire::{InHeader, Reply};
use fstitch_core::lock::Unpoisoned;

/// Most requests that wait at a time, each on a thread.
pub(super) const WAITERS_MAX: usize = 32;
/// Waiters that stay although there is nothing to do.
const IDLE_MAX: usize = 2;

/// A request that was put off, with memory of its own.
pub(super) struct PutOff {
    pub header: InHeader,
    /// The structure of fixed length, and what is behind it.
    pub fixed: [u8; 128],
    /// What follows, of which the first `filled` bytes came with the request.
    pub rest: Vec<u8>,
    pub filled: usize,
    pub reply: Reply,
}

#[derive(Default)]
struct State {
    line: VecDeque<PutOff>,
    waiters: usize,
    /// Of these, those that have nothing to do.
    idle: usize,
    /// Nothing more is put off.
    over: bool,
}

/// Who waits.
#[derive(Default)]
pub(super) struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

/// Sends the waiters away when it is dropped, when they have done what is in line.
pub(super) struct Ending<'a>(&'a Waiters);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.state().over = true;
        self.0.changed.notify_all();
    }
}

impl Waiters {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// Ends them all at its end.
    pub(super) fn ending(&self) -> Ending<'_> {
        Ending(self)
    }

    /// Starts the first one.
    pub(super) fn start<'scope>(
        self: &Arc<Self>,
        scope: &'scope Scope<'scope, '_>,
        server: &'scope dyn Server,
    ) -> Result<()> {
        self.state().waiters += 1;
        self.spawn(scope, server)
    }

    /// Starts one who has been counted.
    fn spawn<'scope>(
        self: &Arc<Self>,
        scope: &'scope Scope<'scope, '_>,
        server: &'scope dyn Server,
    ) -> Result<()> {
        let waiters = Arc::clone(self);
        let serve = move || waiters.serve(scope, server);
        let started = Builder::new().name("fuse-waiter".into()).spawn_scoped(scope, serve);
        started.map(drop).inspect_err(|_| self.state().waiters -= 1)
    }

    /// Has a waiter do what was put off. Gives it back where there is none any more, because the mount is being ended.
    pub(super) fn give(&self, request: PutOff) -> Option<PutOff> {
        let mut state = self.state();
        if state.over {
            return Some(request);
        }
        state.line.push_back(request);
        drop(state);
        self.changed.notify_one();
        None
    }

    fn serve<'scope>(self: &Arc<Self>, scope: &'scope Scope<'scope, '_>, server: &'scope dyn Server) {
        while let Some((request, needs_another)) = self.next() {
            if needs_another && let Err(error) = self.spawn(scope, server) {
                tracing::warn!("requests that wait stand in line: {error}");
            }
            let PutOff { header, fixed, mut rest, filled, reply } = request;
            dispatch(server, header, (&fixed, &mut rest, filled), reply);
        }
    }

    /// The next request, and whether to start another waiter first, who is counted already; `None` when this one is needed no
    /// more, and is not counted any more.
    fn next(&self) -> Option<(PutOff, bool)> {
        let mut state = self.state();
        loop {
            if let Some(request) = state.line.pop_front() {
                let needs_another = state.idle == 0 && state.waiters < WAITERS_MAX;
                state.waiters += usize::from(needs_another);
                return Some((request, needs_another));
            }
            if state.over || state.idle >= IDLE_MAX {
                state.waiters -= 1;
                return None;
            }
            state.idle += 1;
            state = self.changed.wait(state).unpoisoned();
            state.idle -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{Device, DeviceRoute};
    use crate::wire::Route;

    fn put_off(unique: u64) -> PutOff {
        let nowhere = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let route = DeviceRoute::to(&Arc::new(Device::new(nowhere.into())));
        let header = InHeader { len: 0, opcode: 0, unique, nodeid: 1, uid: 0, gid: 0, pid: 0, padding: 0 };
        let reply = Reply::new(unique, Route::Device(route));
        PutOff { header, fixed: [0; 128], rest: Vec::new(), filled: 0, reply }
    }

    #[test]
    fn another_one_comes_whenever_nobody_is_left_until_there_are_many() {
        let waiters =
            Waiters { state: Mutex::new(State { waiters: 1, ..State::default() }), ..Waiters::default() };
        assert!((0..100).all(|unique| waiters.give(put_off(unique)).is_none()));
        for unique in 0..100 {
            let (request, needs_another) = waiters.next().unwrap();
            assert_eq!(request.header.unique, unique, "in line");
            // All who have taken one are at it.
            assert_eq!(needs_another, unique + 1 < u64::try_from(WAITERS_MAX).unwrap());
        }
        assert_eq!(waiters.state().waiters, WAITERS_MAX);
    }

    #[test]
    fn those_with_nothing_to_do_leave() {
        let state = State { waiters: 5, idle: IDLE_MAX, ..State::default() };
        let waiters = Waiters { state: Mutex::new(state), ..Waiters::default() };
        assert!(waiters.next().is_none());
        assert_eq!(waiters.state().waiters, 4);
        // While somebody is idle nobody else is started.
        assert!(waiters.give(put_off(1)).is_none());
        assert!(waiters.next().is_some_and(|(_, needs_another)| !needs_another));
    }

    #[test]
    fn at_the_end_what_is_in_line_is_done_first() {
        let waiters =
            Waiters { state: Mutex::new(State { waiters: 2, ..State::default() }), ..Waiters::default() };
        assert!(waiters.give(put_off(1)).is_none());
        drop(waiters.ending());
        assert!(
            waiters.give(put_off(2)).is_some_and(|request| request.header.unique == 2),
            "nobody would do it"
        );
        assert!(waiters.next().is_some_and(|(request, _)| request.header.unique == 1));
        assert!(waiters.next().is_none());
    }
}
