//! The stream as threads share it, and who of them writes: one at a time, without the stream.
//!
//! ```text
//!   a client fills a segment ──► asks the background ──► write_out        (composing goes on)
//!   a client waits for stability ──► writes and flushes for all who wait  (write_out, too)
//! ```

use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use fstitch_core::lock::{Condvar, Mutex, MutexGuard};
use fstitch_core::order::rank;
use fstitch_core::{Error, Result};

use crate::stream::Stream;

/// With so many segments in the queue, and so many bytes, whoever fills it waits for those who write.
const QUEUED_SEGMENTS: u64 = 2;
const QUEUED_BYTES: u64 = 2 << 20;

/// What the background is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// A segment is in the queue.
    write: bool,
    /// The disk is let go.
    end: bool,
}

/// The stream, and what threads wait for.
pub(crate) struct Shared {
    stream: Mutex<Stream, rank::Epoch>,
    /// Something has been written, or nobody writes any more.
    written: Condvar,
    /// The background was told something.
    told: Condvar,
    /// Bytes in the queue with which they are to be written.
    queue_bytes: u64,
}

/// Says what has become of a thread that panics while it writes: nobody waits for it for ever.
struct Panics<'a>(&'a Shared);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut stream = self.0.stream.lock();
            stream.log.is_writing = false;
            stream.poison.get_or_insert(Error::Poisoned("a thread panicked while it wrote".into()));
            self.0.written.notify_all();
        }
    }
}

impl Shared {
    pub(crate) fn new(stream: Stream) -> Self {
        let queue_bytes = u64::from(stream.shape.segment_units) * u64::from(stream.shape.unit);
        Self { stream: Mutex::new(stream), written: Condvar::new(), told: Condvar::new(), queue_bytes }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock()
    }

    /// Waits until something has been written.
    fn wait<'a>(&'a self, stream: MutexGuard<'a, Stream>) -> MutexGuard<'a, Stream> {
        self.written.wait(stream, |_| panic!("another thread panicked with the disk in its hands"))
    }

    /// Writes what is queued, and if asked for makes it stable, while others go on with the stream. Nobody else may be writing.
    fn write_out<'a>(&'a self, mut stream: MutexGuard<'a, Stream>, flush: bool) -> MutexGuard<'a, Stream> {
        let queue = stream.log.take_queue();
        let medium = Arc::clone(&stream.log.medium);
        stream.log.is_writing = true;
        let panics = Panics(self);
        // The medium is taken before the stream is let go, so that nobody who has the stream can overtake.
        let mut writing = medium.hold();
        drop(stream);
        let mut done = writing.write(&queue);
        if flush && done.is_ok() {
            done = writing.flush();
        }
        let reached = writing.reached().clone();
        drop(writing);
        drop(panics);
        let mut stream = self.stream.lock();
        stream.log.is_writing = false;
        stream.log.has_reached(&reached);
        stream.noted(done).ok();
        self.written.notify_all();
        stream
    }

    /// Everything up to now is stable when this returns: one thread writes and flushes for all who wait.
    pub(crate) fn make_stable<'a>(&'a self, mut stream: MutexGuard<'a, Stream>) -> Result<()> {
        let newest = stream.log.newest();
        loop {
            if stream.log.stable() >= newest {
                return stream.check_poison();
            }
            stream.check_poison()?;
            if stream.log.is_writing {
                stream = self.wait(stream);
            } else {
                stream.close()?;
                stream = self.write_out(stream, true);
            }
        }
    }

    /// Keeps what is queued within bounds, after an operation: the background writes it, or whoever has filled it.
    fn settle<'a>(&'a self, mut stream: MutexGuard<'a, Stream>, has_background: bool) {
        while stream.log.queued_bytes() >= self.queue_bytes && stream.poison.is_none() {
            if !has_background && !stream.log.is_writing {
                drop(self.write_out(stream, false));
                return;
            }
            if has_background && !stream.told.write {
                stream.told.write = true;
                self.told.notify_all();
            }
            if stream.log.queued_bytes() < QUEUED_BYTES.max(QUEUED_SEGMENTS * self.queue_bytes) {
                return;
            }
            stream = self.wait(stream);
        }
    }

    /// What the background does until the disk is let go.
    fn serve(&self) {
        let mut stream = self.lock();
        while !stream.told.end {
            if !stream.told.write {
                stream =
                    self.told.wait(stream, |_| panic!("another thread panicked with the disk in its hands"));
            } else if stream.log.is_writing {
                stream = self.wait(stream);
            } else {
                stream.told.write = false;
                if stream.poison.is_none() && stream.log.queued_bytes() > 0 {
                    stream = self.write_out(stream, false);
                } else {
                    // A checkpoint or the cleaner has written what somebody waits for.
                    self.written.notify_all();
                }
            }
        }
    }
}

/// The stream, and the thread that writes what clients have filled, from the first time that they have.
pub(crate) struct Held {
    shared: Arc<Shared>,
    /// `None` if clients write by themselves; in it `None` if no thread could be had.
    background: Option<OnceLock<Option<JoinHandle<()>>>>,
}

impl Held {
    pub(crate) fn new(stream: Stream, in_background: bool) -> Self {
        Self { shared: Arc::new(Shared::new(stream)), background: in_background.then(OnceLock::new) }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// As [`Shared::settle`].
    pub(crate) fn settle<'a>(&'a self, stream: MutexGuard<'a, Stream>) {
        let is_full = stream.log.queued_bytes() >= self.shared.queue_bytes;
        let has_background = is_full && self.has_background();
        self.shared.settle(stream, has_background);
    }

    fn has_background(&self) -> bool {
        let Some(background) = &self.background else { return false };
        let start = || {
            let shared = Arc::clone(&self.shared);
            Builder::new().name("lld-writer".into()).spawn(move || shared.serve()).ok()
        };
        background.get_or_init(start).is_some()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(thread) = self.background.take().and_then(OnceLock::into_inner).flatten() else { return };
        // Whoever has panicked with the stream in his hands does not keep the disk from being let go.
        self.shared.stream.lock_mended(|_| {}).told.end = true;
        self.shared.told.notify_all();
        // If it has panicked nothing more was written, and who waited for that was told.
        let _ = thread.join();
    }
}
