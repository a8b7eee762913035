//! Requests through io_uring: a queue for each processor, and a thread on it. [`super`] has the states of a slot.
//!
//! The only unsafe code of the crate: the kernel reads and writes memory that it is told of by number.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Scope, ScopedJoinHandle};

use fstitch_core::num::to_u64;
use fstitch_core::{Errno, waiting};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno as Os;
use rustix::thread::CpuSet;
use smallvec::SmallVec;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::processors::{Share, shares};
use super::waiters::{PutOff, Waiters};
use super::{Device, Serve, Server, TRANSFER_MAX, dispatch};
use crate::wire::{InHeader, OutHeader, Reply, Room, Route, room_len};

/// Commands to `/dev/fuse` by io_uring.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Slots of a queue: at most, at least, and of all queues together unless that is fewer than the least. A request has its slot
/// until it is answered, also while it waits elsewhere; when all have theirs, further ones wait in the kernel. Each has a
/// mebibyte of addresses, of which memory is taken as requests need it.
const SLOTS_MAX: usize = 32;
const SLOTS_MIN: usize = 8;
const SLOTS_SUM: usize = 256;

/// What a completion is about that is no slot's.
const WAKE: u64 = u64::MAX;

/// Answers up to here are kept without memory of their own.
const SMALL: usize = 160;

thread_local! {
    /// The address of the [`Shared`] whose queues this thread serves.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// The part of a slot that both sides write.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Headers {
    /// [`InHeader`] of a request, [`OutHeader`] of an answer.
    message: [u8; 128],
    /// The structure of fixed length of a request.
    fixed: [u8; 128],
    flags: u64,
    /// Which request is answered.
    commit_id: u64,
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

/// The parameters of both commands.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Command {
    flags: u64,
    commit_id: u64,
    queue: u16,
    padding: [u8; 6],
}

/// Memory of a request and its answer, which the kernel and this process own by turns.
struct Slot {
    queue: u16,
    headers: *mut Headers,
    payload: *mut [u8],
    /// Address and length of both, which the kernel reads when the slot is registered.
    places: Box<[[usize; 2]; 2]>,
    commit_id: u64,
    /// The kernel will touch the memory no more.
    is_gone: bool,
}

impl Slot {
    fn new(queue: u16) -> Self {
        let headers = Box::into_raw(Box::new(Headers::new_zeroed()));
        let payload = Box::into_raw(vec![0_u8; TRANSFER_MAX].into_boxed_slice());
        let places =
            Box::new([[headers.addr(), size_of::<Headers>()], [payload.cast::<u8>().addr(), TRANSFER_MAX]]);
        Self { queue, headers, payload, places, commit_id: 0, is_gone: false }
    }

    /// The slot's memory.
    ///
    /// # Safety
    /// The slot is ours: its last completion has been seen, and nothing has been committed since.
    unsafe fn open(&mut self) -> (&mut Headers, &mut [u8]) {
        // SAFETY: both come from boxes that live as long as the slot; `&mut self` keeps others away, and the caller
        // keeps the kernel away.
        unsafe { (&mut *self.headers, &mut *self.payload) }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.is_gone {
            // SAFETY: both were boxes, and the kernel has given the slot up.
            drop(unsafe { (Box::from_raw(self.headers), Box::from_raw(self.payload)) });
        }
    }
}

/// What the other threads know of the thread that serves queues.
#[derive(Debug)]
struct Shared {
    finished: Mutex<Vec<Finished>>,
    /// Wakes the thread.
    wake: OwnedFd,
    /// The queues are not to be served after all.
    stop: AtomicBool,
}

/// An answer that waits to be committed.
#[derive(Debug)]
struct Finished {
    slot: usize,
    unique: u64,
    error: i32,
    body: Body,
}

#[derive(Debug)]
enum Body {
    Bytes(SmallVec<[u8; SMALL]>),
    /// As many bytes of the slot's own memory.
    InPlace(usize),
    /// No answer: the request would have to wait.
    PutOff,
}

/// Back through a slot.
#[derive(Debug)]
pub(crate) struct RingRoute {
    shared: Arc<Shared>,
    slot: usize,
    /// The request has memory of its own.
    is_copied: bool,
}

impl RingRoute {
    pub(crate) fn send(self, unique: u64, error: i32, parts: [&[u8]; 2]) {
        let mut bytes = SmallVec::from_slice(parts[0]);
        bytes.extend_from_slice(parts[1]);
        self.finish(unique, error, Body::Bytes(bytes));
    }

    /// The answer is in the room, which is the slot's memory unless the request was copied.
    pub(crate) fn send_in_place(self, unique: u64, room: Room<'_>, len: usize) {
        let body = match self.is_copied {
            true => Body::Bytes(SmallVec::from_slice(&room.0[..len])),
            false => Body::InPlace(len),
        };
        self.finish(unique, 0, body);
    }

    /// The request is to be done again by a thread that may wait. Only for the thread that serves the queue.
    pub(crate) fn put_off(self, unique: u64) {
        self.finish(unique, 0, Body::PutOff);
    }

    fn finish(self, unique: u64, error: i32, body: Body) {
        let shared = &self.shared;
        let first = {
            let mut finished = shared.finished.lock().unwrap_or_else(PoisonError::into_inner);
            finished.push(Finished { slot: self.slot, unique, error, body });
            finished.len() == 1
        };
        // The queue's own thread looks by itself before it waits.
        if first && OWN.get() != Arc::as_ptr(shared).addr() {
            shared.wake();
        }
    }
}

impl Shared {
    fn wake(&self) {
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            tracing::error!("waking a thread that serves: {error}");
        }
    }
}

/// Queues of one thread, and what it serves them with.
struct Queues {
    ring: IoUring<Entry128>,
    share: Share,
    /// Of each queue.
    slots: usize,
    shared: Arc<Shared>,
}

/// All queues, ready to be registered.
pub(crate) struct Rings(Vec<Queues>);

impl Rings {
    /// Makes what can fail.
    pub(super) fn prepare() -> Result<Self> {
        let shares = shares()?;
        let all: usize = shares.iter().map(|share| share.queues.len()).sum();
        let slots = (SLOTS_SUM / all).clamp(SLOTS_MIN, SLOTS_MAX);
        shares.into_iter().map(|share| Queues::new(share, slots)).collect::<Result<_>>().map(Self)
    }

    /// Starts a thread for each and returns when the kernel has accepted all queues.
    ///
    /// # Errors
    /// If it has not: then no thread is left.
    pub(super) fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        device: &'scope Arc<Device>,
        server: &'scope dyn Server,
        waiters: &Arc<Waiters>,
        watched: impl Fn(Serve<'scope>) -> Result<()> + Send + Copy + 'scope,
    ) -> Result<Vec<ScopedJoinHandle<'scope, Result<()>>>> {
        let (ready, registered) = channel();
        let shared: Vec<_> = self.0.iter().map(|queues| Arc::clone(&queues.shared)).collect();
        let mut threads = Vec::new();
        let mut failure = None;
        for queues in self.0 {
            let name = format!("fuse-queue-{}", queues.share.processor);
            let (ready, waiters) = (ready.clone(), Arc::clone(waiters));
            let serve = move || watched(Box::new(move || queues.serve(device, server, waiters, ready)));
            match std::thread::Builder::new().name(name).spawn_scoped(scope, serve) {
                Ok(thread) => threads.push(thread),
                Err(error) => failure = Some(error),
            }
        }
        drop(ready);
        for _ in 0..threads.len() {
            match registered.recv() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failure = Some(error),
                Err(_) => failure = failure.or_else(|| Some(Error::other("a queue's thread ended"))),
            }
        }
        let Some(error) = failure else { return Ok(threads) };
        for shared in shared {
            shared.stop.store(true, Ordering::Release);
            shared.wake();
        }
        for thread in threads {
            // It tells what it has told already.
            let _ = thread.join();
        }
        Err(error)
    }
}

impl Queues {
    fn new(share: Share, slots: usize) -> Result<Self> {
        let entries = share.queues.len() * slots + 1;
        let entries = u32::try_from(entries.next_power_of_two()).map_err(|_| ErrorKind::InvalidInput)?;
        // Made here and enabled by the thread that serves, which is then the only one that may submit.
        let ring = IoUring::<Entry128>::builder()
            .setup_r_disabled()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .dontfork()
            .build(entries)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Shared { finished: Mutex::default(), wake, stop: AtomicBool::new(false) };
        Ok(Self { ring, share, slots, shared: Arc::new(shared) })
    }

    fn serve(
        self,
        device: &Arc<Device>,
        server: &dyn Server,
        waiters: Arc<Waiters>,
        ready: Sender<Result<()>>,
    ) -> Result<()> {
        // Only this thread gets the queue's requests: while it waits, nobody else can.
        let _refuses = waiting::refuse();
        OWN.set(Arc::as_ptr(&self.shared).addr());
        stay_on(self.share.processor);
        let mut serving = match Serving::register(self, device, waiters) {
            Ok(serving) => serving,
            Err(error) => {
                let told = Error::new(error.kind(), error.to_string());
                // Whoever waits for it is there: it waits for every thread.
                let _ = ready.send(Err(told));
                return Err(error);
            }
        };
        let _ = ready.send(Ok(()));
        // Who waits would wait for ever for a thread that ends without a word.
        drop(ready);
        serving.run(server)
    }
}

/// Keeps this thread on `processor`, if it may run there. From elsewhere it serves as well, only later.
fn stay_on(processor: usize) {
    let allowed = rustix::thread::sched_getaffinity(None);
    if processor >= CpuSet::MAX_CPU || !allowed.is_ok_and(|allowed| allowed.is_set(processor)) {
        return;
    }
    let mut set = CpuSet::new();
    set.set(processor);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!("a thread cannot stay on processor {processor}: {error}");
    }
}

/// A thread's queues while they are served.
struct Serving {
    // The ring goes before the slots, so that the kernel has given up what it still owned.
    ring: IoUring<Entry128>,
    slots: Vec<Slot>,
    shared: Arc<Shared>,
    device: Arc<Device>,
    waiters: Arc<Waiters>,
    /// What had happened before serving began.
    early: Completions,
}

/// What has happened: what about, and with which result.
type Completions = SmallVec<[(u64, i32); 8]>;

impl Serving {
    /// Gives the kernel all slots.
    fn register(queues: Queues, device: &Arc<Device>, waiters: Arc<Waiters>) -> Result<Self> {
        let Queues { ring, share, slots, shared } = queues;
        ring.submitter().register_enable_rings()?;
        let slots = share.queues.iter().flat_map(|queue| (0..slots).map(|_| Slot::new(*queue))).collect();
        let early = Completions::new();
        let mut serving = Self { ring, slots, shared, device: Arc::clone(device), waiters, early };
        for slot in 0..serving.slots.len() {
            serving.push(serving.command(slot, REGISTER))?;
        }
        serving.watch()?;
        serving.ring.submit()?;
        // A slot that the kernel accepts completes with its first request, one that it refuses at once.
        serving.early = serving.completions();
        match serving.early.iter().find(|(about, result)| *about != WAKE && *result < 0 && !is_end(*result)) {
            Some((_, refused)) => Err(Error::from_raw_os_error(-refused)),
            None => Ok(serving),
        }
    }

    /// Serves until the kernel has given up all slots.
    fn run(&mut self, server: &dyn Server) -> Result<()> {
        let early = std::mem::take(&mut self.early);
        self.complete(early, server)?;
        while !self.has_ended() {
            self.commit_finished()?;
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if retried(&error) => {}
                Err(error) => return Err(error),
            }
            let completions = self.completions();
            self.complete(completions, server)?;
        }
        Ok(())
    }

    fn complete(&mut self, completions: Completions, server: &dyn Server) -> Result<()> {
        for (about, result) in completions {
            if about == WAKE {
                self.drain(result)?;
            } else {
                self.completed(server, slot_no(about), result)?;
            }
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.shared.stop.load(Ordering::Acquire) || self.slots.iter().all(|slot| slot.is_gone)
    }

    fn completions(&mut self) -> Completions {
        self.ring.completion().map(|entry| (entry.user_data(), Self::result(&entry))).collect()
    }

    /// The result of a completion. That of waiting for the event descriptor says whether it goes on being waited for.
    fn result(entry: &cqueue::Entry) -> i32 {
        if entry.user_data() == WAKE { i32::from(cqueue::more(entry.flags())) } else { entry.result() }
    }

    fn push(&mut self, entry: Entry128) -> Result<()> {
        // SAFETY: the memory that entries tell of belongs to slots, which live until the kernel has given them up.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.map_err(|_| Error::other("the submission queue is full"))
    }

    /// A command about a slot.
    fn command(&self, slot: usize, command: u32) -> Entry128 {
        let Slot { queue, commit_id, places, .. } = &self.slots[slot];
        let parameters = Command { flags: 0, commit_id: *commit_id, queue: *queue, padding: [0; 6] };
        let mut cmd = [0; 80];
        cmd[..size_of::<Command>()].copy_from_slice(parameters.as_bytes());
        let device = types::Fd(self.device.as_fd().as_raw_fd());
        let entry = opcode::UringCmd80::new(device, command).cmd(cmd);
        let about = to_u64(slot);
        if command == COMMIT_AND_FETCH {
            return entry.build().user_data(about);
        }
        let places = to_u64(std::ptr::from_ref(&**places).addr());
        with_length(entry.addr(Some(places)).build().user_data(about), 2)
    }

    /// Has the event descriptor wake this thread, until further notice.
    fn watch(&mut self) -> Result<()> {
        let readable = u32::from(rustix::event::PollFlags::IN.bits());
        let wait =
            opcode::PollAdd::new(types::Fd(self.shared.wake.as_raw_fd()), readable).multi(true).build();
        self.push(Entry128::from(wait).user_data(WAKE))
    }

    fn drain(&mut self, goes_on: i32) -> Result<()> {
        let mut count = [0; 8];
        match rustix::io::read(&self.shared.wake, &mut count) {
            Ok(_) | Err(Os::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        if goes_on == 0 { self.watch() } else { Ok(()) }
    }

    /// A slot is ours again: it carries a request, or the mount is gone.
    ///
    /// # Errors
    /// If the kernel does not take the slot back although the mount is there: its processor's requests would wait for ever.
    fn completed(&mut self, server: &dyn Server, no: usize, result: i32) -> Result<()> {
        let slot = &mut self.slots[no];
        if result < 0 {
            slot.is_gone = true;
            return if is_end(result) { Ok(()) } else { Err(Error::from_raw_os_error(-result)) };
        }
        let commit_id;
        {
            // SAFETY: the completion has made the slot ours.
            let (headers, payload) = unsafe { slot.open() };
            commit_id = headers.commit_id;
            let (header, _) = InHeader::read_from_prefix(&headers.message).expect("128 bytes");
            let filled = usize::try_from(headers.payload_len).unwrap_or(usize::MAX);
            let route = RingRoute { shared: Arc::clone(&self.shared), slot: no, is_copied: false };
            let reply = Reply::new(header.unique, Route::Ring(route));
            dispatch(server, header, (&headers.fixed, payload, filled), reply);
        }
        slot.commit_id = commit_id;
        Ok(())
    }

    /// Gives the kernel the answers that are there, and what would have to wait to those who may.
    fn commit_finished(&mut self) -> Result<()> {
        let finished =
            std::mem::take(&mut *self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner));
        for answer in finished {
            let no = answer.slot;
            // SAFETY: only a request that arrived in this slot and was not committed yet has an answer.
            let (headers, payload) = unsafe { self.slots[no].open() };
            let (error, len) = match &answer.body {
                Body::PutOff => {
                    let route = RingRoute { shared: Arc::clone(&self.shared), slot: no, is_copied: true };
                    if let Some(request) = self.waiters.give(PutOff::copy(headers, payload, route)) {
                        // Its reply answers `EIO` now, behind what is committed here.
                        drop(request);
                        self.shared.wake();
                    }
                    continue;
                }
                Body::InPlace(len) => (answer.error, *len),
                Body::Bytes(bytes) => match payload.get_mut(..bytes.len()) {
                    Some(place) => {
                        place.copy_from_slice(bytes);
                        (answer.error, bytes.len())
                    }
                    None => (-Errno::IO.0, 0),
                },
            };
            let len = u32::try_from(len).expect("a slot has a mebibyte");
            headers.payload_len = len;
            let header = OutHeader { len: len + 16, error, unique: answer.unique };
            header.write_to_prefix(&mut headers.message).expect("128 bytes");
            self.push(self.command(no, COMMIT_AND_FETCH))?;
        }
        Ok(())
    }
}

impl PutOff {
    /// The request in a slot, as it arrived: whoever was to answer it changes nothing of it, but what is in its room.
    fn copy(headers: &Headers, payload: &[u8], route: RingRoute) -> Self {
        let (header, _) = InHeader::read_from_prefix(&headers.message).expect("128 bytes");
        let filled = usize::try_from(headers.payload_len).map_or(payload.len(), |len| len.min(payload.len()));
        let mut rest = payload[..filled].to_vec();
        // What is not filled is for the contents of an answer.
        rest.resize(filled.max(room_len(header.opcode, &headers.fixed)), 0);
        let reply = Reply::new(header.unique, Route::Ring(route));
        Self { header, fixed: headers.fixed, rest, filled, reply }
    }
}

fn slot_no(about: u64) -> usize {
    usize::try_from(about).expect("a slot's number")
}

/// Whether a slot comes back because the mount is gone.
fn is_end(result: i32) -> bool {
    [Os::NOTCONN, Os::CONNABORTED, Os::CANCELED].iter().any(|os| -result == os.raw_os_error())
}

/// Whether waiting failed for a moment only.
fn retried(error: &Error) -> bool {
    [Os::INTR, Os::AGAIN, Os::BUSY].iter().any(|os| error.raw_os_error() == Some(os.raw_os_error()))
}

/// The entry with its field `len`, which the library does not set for commands.
fn with_length(mut entry: Entry128, len: u32) -> Entry128 {
    /// Where Linux has `len` in `struct io_uring_sqe`.
    const AT: usize = 24;
    const { assert!(size_of::<Entry128>() == 128) };
    // SAFETY: an entry is 128 bytes of plain numbers, laid out as the kernel wants them, and the field is aligned in it.
    unsafe { (&raw mut entry).cast::<u8>().add(AT).cast::<u32>().write(len) };
    entry
}
