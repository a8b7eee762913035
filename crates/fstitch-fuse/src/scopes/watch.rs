//! The thread that forgets processes at their end and makes orders durable in time.

use std::sync::atomic::{AtomicBool, Ordering as Memory};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{Clock, Errno, Result, SystemClock};

use super::Scopes;
use super::chain::Chain;

/// How often processes are looked at while groups are in use.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The shortest pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// The thread, started when somebody first uses groups.
#[derive(Debug, Default)]
pub(super) struct Watch {
    thread: Mutex<Option<JoinHandle<()>>>,
    ended: Arc<AtomicBool>,
    refused: AtomicBool,
}

/// When an order was last made durable.
struct Kept {
    chain: Weak<Chain>,
    last: Duration,
}

impl Watch {
    /// Starts the thread, if it is not there.
    pub(super) fn start(&self, scopes: &Arc<Scopes>) -> Result<()> {
        let mut thread = self.thread.lock().unpoisoned();
        if thread.is_none() {
            let (scopes, ended) = (Arc::downgrade(scopes), Arc::clone(&self.ended));
            let started = std::thread::Builder::new().name("fuse-scopes".to_owned());
            *thread = Some(started.spawn(move || watch(&scopes, &ended)).map_err(|_| Errno::NFILE)?);
        }
        Ok(())
    }

    /// Has the thread look again: there is more to watch.
    pub(super) fn wake(&self) {
        if let Ok(thread) = self.thread.lock()
            && let Some(thread) = &*thread
        {
            thread.thread().unpark();
        }
    }

    /// Has the thread end; nobody uses what it looks at any more.
    fn dismiss(&self) {
        self.ended.store(true, Memory::Release);
        self.wake();
    }

    /// Waits until the thread has ended.
    pub(super) fn stop(&self) {
        self.ended.store(true, Memory::Release);
        let thread = self.thread.lock().unpoisoned().take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            if thread.join().is_err() {
                tracing::error!("the thread that watches processes panicked");
            }
        }
    }

    /// Whether nobody was refused before.
    pub(super) fn first_refusal(&self) -> bool {
        !self.refused.swap(true, Memory::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Not awaited: it may be this thread that drops the last reference.
        self.dismiss();
    }
}

fn watch(scopes: &Weak<Scopes>, ended: &AtomicBool) {
    let clock = SystemClock::new();
    let mut kept = Vec::new();
    while !ended.load(Memory::Acquire) {
        let Some(scopes) = scopes.upgrade() else { return };
        scopes.sweep();
        let pause = keep(&scopes.chains(), &mut kept, &clock);
        let used = scopes.is_used();
        drop(scopes);
        if used {
            std::thread::park_timeout(pause);
        } else {
            kept.clear();
            std::thread::park();
        }
    }
}

/// Makes durable what is due; answers when to look again.
fn keep(chains: &[Arc<Chain>], kept: &mut Vec<Kept>, clock: &dyn Clock) -> Duration {
    let mut pause = LOOK_EVERY;
    kept.retain(|kept| kept.chain.strong_count() > 0);
    for chain in chains {
        let Some(every) = chain.durable_every else { continue };
        let now = clock.elapsed();
        let at = kept.iter().position(|kept| std::ptr::eq(kept.chain.as_ptr(), Arc::as_ptr(chain)));
        let at = at.unwrap_or_else(|| {
            kept.push(Kept { chain: Arc::downgrade(chain), last: now });
            kept.len() - 1
        });
        let due = kept[at].last + every;
        if due <= now {
            if chain.is_unstable()
                && let Err(error) = chain.settle()
            {
                tracing::error!("making ordered changes durable: {error}");
            }
            kept[at].last = clock.elapsed();
            pause = pause.min(every);
        } else {
            pause = pause.min(due - now);
        }
    }
    pause.max(PAUSE_MIN)
}
