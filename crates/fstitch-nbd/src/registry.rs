//! The connections of a server, so that they can be ended.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use fstitch_core::Clock;
use fstitch_core::lock::{Condvar, Mutex};
use fstitch_core::order::rank;

use crate::stream::Stream;

#[derive(Default)]
struct Open {
    /// No more are let in.
    is_closed: bool,
    next: u64,
    streams: BTreeMap<u64, Arc<dyn Stream>>,
}

/// Who is connected.
pub(crate) struct Registry {
    open: Mutex<Open, rank::Leaf>,
    left: Condvar,
}

impl Registry {
    pub(crate) fn new() -> Self {
        Self { open: Mutex::new(Open::default()), left: Condvar::new() }
    }

    /// Lets a connection in, if there are fewer than `max` and the server does not stop.
    pub(crate) fn enter(&self, stream: &Arc<dyn Stream>, max: usize) -> Option<Entered<'_>> {
        let mut open = self.open.lock();
        if open.is_closed || open.streams.len() >= max {
            return None;
        }
        let id = open.next;
        open.next += 1;
        open.streams.insert(id, Arc::clone(stream));
        Some(Entered { registry: self, id })
    }

    /// Lets nobody in any more.
    pub(crate) fn close(&self) {
        self.open.lock().is_closed = true;
    }

    /// How many are connected.
    pub(crate) fn len(&self) -> usize {
        self.open.lock().streams.len()
    }

    /// Ends one or both ways of all connections.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        let streams: Vec<_> = self.open.lock().streams.values().map(Arc::clone).collect();
        for stream in streams {
            stream.shutdown(how);
        }
    }

    /// Waits until nobody is connected, or so long at most; how many are left.
    pub(crate) fn wait(&self, clock: &dyn Clock, limit: Duration) -> usize {
        let deadline = clock.elapsed() + limit;
        let mut open = self.open.lock();
        while !open.streams.is_empty() {
            let left = deadline.saturating_sub(clock.elapsed());
            if left.is_zero() {
                break;
            }
            open = self.left.wait_timeout(open, left, |_| ());
        }
        open.streams.len()
    }
}

/// A connection that is registered as long as this lives.
pub(crate) struct Entered<'a> {
    registry: &'a Registry,
    id: u64,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let stream = self.registry.open.lock().streams.remove(&self.id);
        if let Some(stream) = stream {
            stream.shutdown(Shutdown::Both);
        }
        self.registry.left.notify_all();
    }
}
