//! How requests arrive and answers leave.
//!
//! ```text
//!                     kernel                                  this process
//!   client ─► request ─┬─ /dev/fuse ───── read, writev ─────► workers (Device)
//!                      └─ io_uring, one queue a processor ──► a thread on that processor (Ring)
//! ```
//!
//! **`/dev/fuse`** is there on every kernel: one of a few workers, on whatever processor, reads each request. The
//! processor on which it sleeps must be woken first, and the client's for the answer.
//!
//! **io_uring** (Linux 6.14 and later, where `/sys/module/fuse/parameters/enable_uring` says `Y`): each processor has a
//! queue, and a thread that stays on it. A request goes to the queue of its client's processor, so client and server
//! take turns on one processor that is awake, and clients on several processors do not meet. Messages without an answer
//! still come through `/dev/fuse`, and so do notices to the kernel.
//!
//! Workers that wait have others stand in for them (`crew`). Nobody can stand in for a thread of a ring: it refuses to wait
//! ([`fstitch_core::waiting`]), and what would have to is put off, done again by threads that may (`waiters`).
//!
//! # The life of a slot
//!
//! A queue has a few slots: memory for a request and its answer.
//!
//! ```text
//!   register ──► the kernel's ── completion: a request ──► ours ── commit: its answer ──► the kernel's ──► …
//!                    │                     put off: copied ──► ours, to the answer of a waiter
//!                    └────────── completion: an error (the mount is gone) ──► freed
//! ```
//!
//! Invariants: only who owns a slot touches its memory; a slot is committed by the thread of its queue alone (the kernel
//! delivers to the thread that committed last); what helper threads have answered waits in a list until that thread,
//! woken through an event descriptor, commits it. Memory that the kernel may still own is never freed.
//!
//! Once the kernel has been told that io_uring is to be used, it holds requests back until every possible processor's
//! queue is there. So all that can fail is prepared before the greeting is answered, and where that fails `/dev/fuse` is
//! used; what fails afterwards ends the mount.

mod crew;
mod device;
mod greeting;
mod processors;
mod ring;
mod waiters;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;

use fstitch_core::Errno;

use self::crew::Crew;
pub(crate) use self::device::{Device, DeviceRoute};
pub(crate) use self::ring::RingRoute;
use self::ring::Rings;
use self::waiters::Waiters;
use crate::supervised::message;
use crate::wire::{Capabilities, InHeader, Reply, Request};

/// The longest read or write in one request, in bytes.
pub(crate) const TRANSFER_MAX: usize = 1 << 20;

/// Which way requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Transport {
    /// io_uring where the kernel offers it, `/dev/fuse` otherwise.
    #[default]
    Auto,
    /// `/dev/fuse`.
    Device,
    /// io_uring, or no mount at all.
    IoUring,
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "device" => Ok(Self::Device),
            "io_uring" => Ok(Self::IoUring),
            _ => Err(format!("`transport={word}`: it is `auto`, `device` or `io_uring`")),
        }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Device => "device",
            Self::IoUring => "io_uring",
        })
    }
}

/// Who answers requests.
pub(crate) trait Server: Sync {
    fn serve(&self, request: Request<'_>, reply: Reply);
}

/// A connection to the kernel after the greeting.
pub(crate) struct Session {
    device: Arc<Device>,
    /// What is prepared for io_uring, if that was agreed upon.
    rings: Option<Rings>,
}

/// A failure to agree with the kernel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetError {
    /// io_uring was demanded.
    #[error("{0}")]
    NoRing(String),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl Session {
    /// Greets the kernel on `device`. `choose` says what is wanted of what the kernel offers.
    pub(crate) fn greet(
        device: OwnedFd,
        transport: Transport,
        choose: impl FnOnce(Capabilities) -> Capabilities,
    ) -> Result<Self, GreetError> {
        let device = Arc::new(Device::new(device));
        let greeting = greeting::receive(&device)?;
        let offered = greeting.offered();
        let rings = if transport == Transport::Device { None } else { prepare(offered, transport)? };
        let mut wanted = choose(offered);
        if rings.is_some() {
            wanted = wanted.with(Capabilities::OVER_IO_URING);
        }
        greeting.answer(&device, wanted)?;
        Ok(Self { device, rings })
    }

    /// The way for notices to the kernel.
    pub(crate) fn device(&self) -> Arc<Device> {
        Arc::clone(&self.device)
    }

    /// Which way requests come, of the two.
    pub(crate) fn transport(&self) -> Transport {
        if self.rings.is_some() { Transport::IoUring } else { Transport::Device }
    }

    /// Serves until the mount is gone. Over `/dev/fuse`, `workers` threads do. `failed` is called as soon as a thread can
    /// no longer serve; it must end the mount, even one in use.
    ///
    /// # Errors
    /// The first thread's that failed.
    pub(crate) fn run(
        self,
        server: &dyn Server,
        workers: usize,
        failed: &(dyn Fn() + Sync),
    ) -> std::io::Result<()> {
        let Self { device, rings } = self;
        let readers = if rings.is_some() { 1 } else { workers };
        let watched = |serve: Serve<'_>| {
            let ended = catch_unwind(AssertUnwindSafe(serve));
            let ended = ended.unwrap_or_else(|panic| {
                Err(std::io::Error::other(format!("a panic while serving: {}", message(&*panic))))
            });
            ended.inspect_err(|error| {
                tracing::error!("serving requests: {error}");
                failed();
            })
        };
        let read = |leaves: &dyn Fn() -> bool| {
            let device = &device;
            watched(Box::new(move || device::serve(device, server, leaves)))
        };
        let crew = Arc::new(Crew::new(readers));
        let waiters = Arc::new(Waiters::default());
        std::thread::scope(|scope| {
            let _at_last = waiters.ending();
            let started = (|| -> std::io::Result<Vec<_>> {
                let mut threads = match rings {
                    Some(rings) => {
                        waiters.start(scope, server)?;
                        rings.start(scope, &device, server, &waiters, watched)?
                    }
                    None => Vec::new(),
                };
                threads.extend(crew.start(scope, read)?);
                Ok(threads)
            })();
            // Those that were started would serve a part of the requests only.
            let threads = started.inspect_err(|_| failed())?;
            let mut first = Ok(());
            for thread in threads {
                let panicked = |_| Err(std::io::Error::other("a thread that serves panicked"));
                first = first.and(thread.join().unwrap_or_else(panicked));
            }
            first
        })
    }
}

/// What a thread that serves does until the mount is gone.
type Serve<'a> = Box<dyn FnOnce() -> std::io::Result<()> + 'a>;

/// Rings for all processors, if the kernel offers them and they can be had.
fn prepare(offered: Capabilities, transport: Transport) -> Result<Option<Rings>, GreetError> {
    let rings = if offered.has(Capabilities::OVER_IO_URING) {
        Rings::prepare().map_err(|error| format!("FUSE over io_uring cannot be used: {error}"))
    } else {
        Err("the kernel does not offer FUSE over io_uring: it takes Linux 6.14 or later, and \
             `echo Y > /sys/module/fuse/parameters/enable_uring` as root"
            .to_owned())
    };
    match rings {
        Ok(rings) => Ok(Some(rings)),
        Err(why) if transport == Transport::IoUring => Err(GreetError::NoRing(why)),
        Err(why) => {
            tracing::debug!("{why}");
            Ok(None)
        }
    }
}

/// Takes one message apart and has it served. The message lies in `fixed` and the first `filled` bytes of `rest`.
fn dispatch(
    server: &dyn Server,
    header: InHeader,
    (fixed, rest, filled): (&[u8], &mut [u8], usize),
    reply: Reply,
) {
    let Some(request) = Request::decode(header, fixed, rest, filled) else {
        tracing::warn!("a request of operation {} that the protocol does not allow", header.opcode);
        return reply.error(Errno::INVAL);
    };
    // The reply answers by itself when it is dropped.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| server.serve(request, reply))) {
        tracing::error!("a panic while serving operation {}: {}", header.opcode, message(&*panic));
    }
}
