//! Processors that stay awake while requests come (`awake`).
//!
//! Each request wakes its server and the answer wakes the client. Where an idle processor sleeps deeply, or is halted by a
//! hypervisor, that takes longer than most requests: 40 to 80 microseconds of waiting for 10 of work. While requests come,
//! and a moment longer, the kernel is asked for a latency of nothing.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// A latency that is written here holds for as long as the file is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// How long without a request the processors are kept awake: at least this, at most twice this.
const LINGER: Duration = Duration::from_millis(20);

/// Keeps idle processors awake while it is told of requests.
pub(crate) struct Awake {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    file: PathBuf,
    /// A request came since this was looked at last.
    asked: AtomicBool,
    /// The latency is asked for; requests need not say so.
    held: AtomicBool,
    stop: Mutex<bool>,
    wake: Condvar,
}

impl Awake {
    /// Starts the thread that asks the kernel.
    ///
    /// # Errors
    /// As [`keep_awake`], or when the thread cannot be started.
    pub(crate) fn new() -> std::io::Result<Self> {
        Self::by(LATENCY.as_ref())
    }

    fn by(file: &Path) -> std::io::Result<Self> {
        hold(file)?;
        let shared = Arc::new(Shared {
            file: file.to_owned(),
            asked: AtomicBool::new(false),
            held: AtomicBool::new(false),
            stop: Mutex::new(false),
            wake: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("fuse-awake".to_owned()).spawn(move || own.serve())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// A request has come.
    pub(crate) fn note(&self) {
        let shared = &*self.shared;
        // In one order with what the thread does: either it sees the request, or this that it must be woken.
        shared.asked.store(true, Ordering::SeqCst);
        if !shared.held.load(Ordering::SeqCst) {
            // Under the lock, or the thread might be about to wait.
            let _stop = shared.stop.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_one();
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        while !*stop {
            if !self.asked.swap(false, Ordering::SeqCst) {
                stop = self.wake.wait(stop).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let _latency = match hold(&self.file) {
                Ok(latency) => latency,
                Err(error) => {
                    tracing::warn!("processors may sleep from now on: {error}");
                    return;
                }
            };
            self.held.store(true, Ordering::SeqCst);
            loop {
                let (guard, _) = self.wake.wait_timeout(stop, LINGER).unwrap_or_else(PoisonError::into_inner);
                stop = guard;
                if *stop || !self.asked.swap(false, Ordering::SeqCst) {
                    break;
                }
            }
            self.held.store(false, Ordering::SeqCst);
        }
    }
}

/// Keeps idle processors awake for as long as the file that is returned is open: for who measures.
///
/// # Errors
/// When `/dev/cpu_dma_latency` is not there or cannot be written, which takes root.
pub fn keep_awake() -> std::io::Result<File> {
    hold(LATENCY.as_ref())
}

/// Asks for a latency of nothing.
fn hold(path: &Path) -> std::io::Result<File> {
    let named =
        |error: std::io::Error| std::io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut file = File::options().write(true).open(path).map_err(named)?;
    file.write_all(&0_u32.to_ne_bytes()).map_err(named)?;
    Ok(file)
}

impl Drop for Awake {
    fn drop(&mut self) {
        *self.shared.stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that keeps processors awake panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_hold_it_and_silence_lets_it_go() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let awake = Awake::by(file.path()).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), [0; 4], "a latency of nothing");
        let held = || awake.shared.held.load(Ordering::Relaxed);
        for _ in 0..2 {
            awake.note();
            wait_until(held);
            wait_until(|| !held());
        }
        awake.note();
        drop(awake);
    }

    fn wait_until(done: impl Fn() -> bool) {
        let mut patience = 5_000;
        while !done() {
            std::thread::sleep(Duration::from_millis(1));
            patience -= 1;
            assert!(patience > 0, "it never came");
        }
    }

    #[test]
    fn without_the_file_it_does_not_start() {
        assert!(Awake::by(Path::new("/dev/no/such/file")).is_err());
    }
}
