//! The thread that commits by age.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use fstitch_core::lock::{Condvar, Mutex};
use fstitch_core::order::rank;
use fstitch_core::{BlockNo, Error, IoOp, Result};

use super::volume::Waffle;

/// How often ages are looked at: this often, or four times in the age.
const TICK_MAX: Duration = Duration::from_millis(500);
const TICK_MIN: Duration = Duration::from_millis(5);

/// When to stop.
#[derive(Default)]
struct Stop {
    is_over: Mutex<bool, rank::Leaf>,
    told: Condvar,
}

/// The thread.
pub(super) struct Ager {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Ager {
    /// Commits what is of this age from now on, as long as the volume is there.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(super) fn start(fs: Weak<Waffle>, age: Duration) -> Result<Self> {
        let stop = Arc::new(Stop::default());
        let seen = Arc::clone(&stop);
        let tick = (age / 4).clamp(TICK_MIN, TICK_MAX);
        let builder = std::thread::Builder::new().name("fstitch-commit".to_owned());
        let thread = builder.spawn(move || {
            loop {
                // Who stops it may have said so while it was at work.
                let mut is_over = seen.is_over.lock();
                if !*is_over {
                    is_over = seen.told.wait_timeout(is_over, tick, |_| ());
                }
                if *is_over {
                    return;
                }
                drop(is_over);
                let Some(fs) = fs.upgrade() else { return };
                // What is old does not wait for a large snapshot.
                let meanwhile = || fs.commit_if_old(age).map(|()| !*seen.is_over.lock());
                let done = [fs.purge_slowly(&meanwhile), fs.commit_if_old(age)];
                // Whoever changes or syncs the volume next is told: it takes no changes any more.
                if done.iter().any(Result::is_err) && fs.has_ended() {
                    return;
                }
            }
        });
        let thread = thread.map_err(|error| Error::io(IoOp::Write, BlockNo(0), error))?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Stops, and waits for the thread to end.
    pub(super) fn stop(mut self) {
        self.tell();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened; there is nobody left to tell.
            drop(thread.join());
        }
    }

    fn tell(&self) {
        *self.stop.is_over.lock() = true;
        self.stop.told.notify_all();
    }
}

impl Drop for Ager {
    /// The thread itself may be who drops the volume: it is not waited for.
    fn drop(&mut self) {
        self.tell();
    }
}
