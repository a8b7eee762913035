//! A few threads for work that must not hold up the workers: waiting for the medium.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::supervised::message;

type Job = Box<dyn FnOnce() + Send>;

/// Helper threads that take jobs in order. Every job answers one request, so the kernel's limit on requests
/// bounds the queue. Dropping the pool waits until all jobs are done.
pub(crate) struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` helpers.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let (jobs, source) = channel::<Job>();
        let source = Arc::new(Mutex::new(source));
        let start = |no| {
            let source = Arc::clone(&source);
            std::thread::Builder::new().name(format!("fuse-helper-{no}")).spawn(move || serve(&source))
        };
        let threads = (0..threads).map(start).collect::<std::io::Result<_>>()?;
        Ok(Self { jobs: Some(jobs), threads })
    }

    /// Has a helper do `job`.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) {
        let jobs = self.jobs.as_ref().expect("only drop takes the sender");
        if let Err(refused) = jobs.send(Box::new(job)) {
            // No helper takes jobs any more: do it here rather than leave the request unanswered.
            (refused.0)();
        }
    }
}

fn serve(source: &Mutex<Receiver<Job>>) {
    loop {
        let next = match source.lock() {
            Ok(source) => source.recv(),
            Err(_) => return,
        };
        match next {
            Ok(job) => survive(job),
            Err(_) => return,
        }
    }
}

/// Does a job. One that panics leaves its request to the reply, which answers `EIO` when it is dropped; the helper
/// goes on.
fn survive(job: Job) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
        tracing::error!("a panic in a helper thread: {}", message(&*panic));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a helper thread panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn dropping_waits_for_all_jobs() {
        let done = Arc::new(AtomicU32::new(0));
        let pool = Pool::new(2).unwrap();
        for _ in 0..100 {
            let done = Arc::clone(&done);
            pool.run(move || {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 100);
    }

    #[test]
    fn a_panicking_job_ends_no_helper() {
        let done = Arc::new(AtomicU32::new(0));
        let pool = Pool::new(1).unwrap();
        pool.run(|| panic!("this job is broken"));
        let counted = Arc::clone(&done);
        pool.run(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        drop(pool);
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }
}
