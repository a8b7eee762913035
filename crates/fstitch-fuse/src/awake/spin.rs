//! Threads that keep processors from halting by running on them, for everybody who may not ask the kernel for that.
//!
//! They are of the scheduling class that gets what nobody else wants (`SCHED_IDLE`): whoever wakes on their processor runs at once,
//! and the scheduler looks upon the processor as idle when it chooses a place for a thread.

use std::io::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::gauge::stay_on;

/// Puts the calling thread into the class of those who get what nobody else wants. A value from outside, because it takes a system
/// call that no safe wrapper exists for.
#[derive(Clone, Copy, Debug)]
pub struct IdleClass(pub fn() -> Result<()>);

impl PartialEq for IdleClass {
    /// There is one such class, whichever way leads into it.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for IdleClass {}

/// One thread on each of some processors.
pub(super) struct Spinners {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Looked at all the time.
    spinning: AtomicBool,
    /// What they wait for while they do not spin.
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    Rest,
    Spin,
    End,
}

impl Spinners {
    /// Starts threads, which rest.
    ///
    /// # Errors
    /// Unless all are of the idle class and on their processors: nothing else may spin.
    pub(super) fn start(processors: &[usize], class: IdleClass) -> Result<Self> {
        let mut spinners = Self { shared: Arc::default(), threads: Vec::new() };
        let (ready, placed) = channel();
        for processor in processors {
            let (shared, processor, ready) = (Arc::clone(&spinners.shared), *processor, ready.clone());
            let thread = std::thread::Builder::new().name(format!("fuse-awake-{processor}"));
            spinners.threads.push(thread.spawn(move || {
                let done = class.0().and_then(|()| stay_on(processor));
                let is_placed = done.is_ok();
                // Whoever started it waits for this.
                let _ = ready.send(done);
                drop(ready);
                if is_placed {
                    shared.serve();
                }
            })?);
        }
        drop(ready);
        for _ in processors {
            placed.recv().map_err(|_| Error::other("a thread ended early"))??;
        }
        Ok(spinners)
    }

    /// Has them spin, or rest.
    pub(super) fn spin(&self, spin: bool) {
        self.shared.want(if spin { Wanted::Spin } else { Wanted::Rest });
    }
}

impl Shared {
    fn want(&self, wanted: Wanted) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        self.spinning.store(wanted == Wanted::Spin, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn serve(&self) {
        loop {
            while self.spinning.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            while *wanted == Wanted::Rest {
                wanted = self.changed.wait(wanted).unwrap_or_else(PoisonError::into_inner);
            }
            if *wanted == Wanted::End {
                return;
            }
        }
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        self.shared.want(Wanted::End);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that keeps a processor awake panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Ticks of processor time that the threads of this process named `fuse-awake-…` have had.
    fn ticks() -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let stats = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
        let of_spinners = stats.filter(|stat| stat.contains("(fuse-awake-"));
        of_spinners
            .map(|stat| {
                let fields: Vec<_> =
                    stat.rsplit_once(") ").unwrap().1.split(' ').map(str::to_owned).collect();
                fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
            })
            .sum()
    }

    #[test]
    fn they_spin_when_told_and_rest_otherwise() {
        let processors = crate::awake::gauge::processors().unwrap();
        let spinners = Spinners::start(&processors[..1], IdleClass(|| Ok(()))).unwrap();
        for _ in 0..2 {
            spinners.spin(true);
            let before = ticks();
            for _ in 0..5_000 {
                if ticks() > before {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(ticks() > before, "it spins");
            spinners.spin(false);
            std::thread::sleep(Duration::from_millis(50));
            let before = ticks();
            std::thread::sleep(Duration::from_millis(200));
            assert!(ticks() <= before + 1, "it rests");
        }
    }

    #[test]
    fn without_the_idle_class_nothing_spins() {
        let refused = IdleClass(|| Err(Error::other("no such class")));
        assert!(Spinners::start(&[0], refused).is_err());
    }
}
