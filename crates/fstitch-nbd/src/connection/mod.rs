//! A connection after its negotiation.
//!
//! Its threads take turns. Whoever has the turn reads requests, and does short ones himself: then nothing is handed over, all
//! that one system call has brought is done in a row, and the replies leave with one more. Before a request that may take long
//! he sends the replies and passes the turn on, so that the requests behind it are done meanwhile.
//!
//! ```text
//!            turn free ──► read ──► short: perform, reply to the batch ──┐
//!                ▲          ▲                                            │
//!                │          └────────────────────────────────────────────┘  send the batch before waiting for bytes
//!                │
//!                └── long: send the batch, pass the turn on ──► perform ──► send the reply ──► wait for the turn
//! ```
//!
//! **Invariants.** (1) At most one thread reads, and what is read is a sequence of whole requests with their payloads. (2) Each
//! request is performed once, and its reply appended once, after the export has returned. (3) Nobody waits for the client's bytes
//! while replies are unsent. (4) When the connection has ended, nobody reads; requests that were taken are performed and
//! answered; then the export is dropped.

pub(crate) mod input;
mod outbox;
mod pace;
mod session;

pub(crate) use input::{Input, PIECE_MAX};
pub(crate) use outbox::send_all;
pub(crate) use session::{Session, served_size};

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, Scope};

use fstitch_core::lock::{Condvar, Mutex};
use fstitch_core::num::to_usize;
use fstitch_core::order::rank;

use crate::options::Options;
use crate::proto::batch::Batch;
use crate::proto::request::{Command, Request};
use crate::stats::Stats;
use crate::stream::Stream;
use outbox::Outbox;
use pace::{Pace, Slot};

/// Replies are sent when there are so many bytes of them, whatever else there is to do.
const BATCH_MAX: usize = 1 << 18;
/// Memory for payloads beyond this is given back after use.
const PAYLOAD_KEPT: usize = 1 << 20;
/// Requests longer than this count against [`Options::held_max`].
const UNCOUNTED_MAX: u64 = 1 << 16;
/// Requests that are still taken after a stop: those that were in flight then, of any sensible client.
const DRAINED_MAX: usize = 1024;

/// Why a connection ends, other than by the client's wish.
pub(crate) enum Broken {
    /// The stream failed, or ended in the middle of a request.
    Stream,
    /// What the client sent is no request, and where the next one begins is unknown.
    Malformed,
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Self {
        Self::Stream
    }
}

/// Who reads. The buffer goes with the turn.
struct Turn {
    /// [nobody has the turn]
    input: Option<Input>,
    has_ended: bool,
    /// Threads that there are.
    threads: usize,
    /// Those that wait for the turn, each at a bell of its own: one is woken, the one whose memory is warmest.
    waiting: Vec<Arc<Condvar>>,
    /// Bytes of long requests under way.
    held: usize,
    /// Requests that may still be taken after a stop.
    drained_left: usize,
}

/// A long request, taken from the stream.
struct Task {
    request: Request,
    slot: Option<Slot>,
    /// What it counts against the limit.
    held: usize,
}

/// A thread's own memory.
#[derive(Default)]
struct Hand {
    batch: Batch,
    payload: Vec<u8>,
}

/// A client's connection to an export.
pub(crate) struct Connection<'a> {
    stream: &'a dyn Stream,
    session: Session,
    options: &'a Options,
    stats: &'a Stats,
    stopping: &'a AtomicBool,
    turn: Mutex<Turn, rank::Leaf>,
    /// Fewer bytes are held.
    freed: Condvar,
    outbox: Outbox,
    pace: Pace,
}

/// What a connection has from its server.
pub(crate) struct Place<'a> {
    pub(crate) stream: &'a dyn Stream,
    pub(crate) options: &'a Options,
    pub(crate) stats: &'a Stats,
    pub(crate) stopping: &'a AtomicBool,
}

/// A thread that panics takes the connection with it: its request will never be answered.
struct EndsOnPanic<'a>(&'a Connection<'a>);

impl Drop for EndsOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.end();
            self.0.stream.shutdown(Shutdown::Both);
        }
    }
}

impl<'a> Connection<'a> {
    /// Serves requests until the client or the stream has enough. `input` may hold requests already.
    pub(crate) fn run(place: &Place<'a>, session: Session, input: Input) {
        let turn = Turn {
            input: Some(input),
            has_ended: false,
            threads: 1,
            waiting: Vec::new(),
            held: 0,
            drained_left: DRAINED_MAX,
        };
        let connection = Self {
            stream: place.stream,
            session,
            options: place.options,
            stats: place.stats,
            stopping: place.stopping,
            turn: Mutex::new(turn),
            freed: Condvar::new(),
            outbox: Outbox::new(),
            pace: Pace::new(),
        };
        std::thread::scope(|scope| connection.work(scope));
    }

    fn work<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let _ends = EndsOnPanic(self);
        let mut hand = Hand::default();
        let bell = Arc::new(Condvar::new());
        while let Some(mut input) = self.take_turn(&bell) {
            let taken = self.serve(&mut input, &mut hand);
            self.send(&mut hand.batch);
            match taken {
                Ok(Some(task)) => {
                    self.pass_turn(scope, input);
                    self.perform_task(&task, &mut hand);
                }
                Ok(None) | Err(Broken::Stream) => self.end(),
                Err(Broken::Malformed) => {
                    self.stats.malformed.add(1);
                    self.end();
                }
            }
        }
    }

    /// Waits for the turn; `None` when there is nothing more to read.
    fn take_turn(&self, bell: &Arc<Condvar>) -> Option<Input> {
        let mut turn = self.turn.lock();
        loop {
            if turn.has_ended {
                return None;
            }
            if let Some(input) = turn.input.take() {
                turn.waiting.retain(|waiting| !Arc::ptr_eq(waiting, bell));
                return Some(input);
            }
            // It may have been rung for a turn that somebody else has taken meanwhile.
            if !turn.waiting.iter().any(|waiting| Arc::ptr_eq(waiting, bell)) {
                turn.waiting.push(Arc::clone(bell));
            }
            turn = bell.wait(turn, |_| ());
        }
    }

    /// Gives the turn to whoever waits for it, to a new thread, or else to whoever is done first.
    fn pass_turn<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, input: Input) {
        let mut turn = self.turn.lock();
        turn.input = Some(input);
        if let Some(bell) = turn.waiting.pop() {
            drop(turn);
            return bell.notify_all();
        }
        if turn.threads >= self.options.requests_max {
            return;
        }
        turn.threads += 1;
        drop(turn);
        let name = "nbd-worker".to_owned();
        if Builder::new().name(name).spawn_scoped(scope, || self.work(scope)).is_err() {
            self.turn.lock().threads -= 1;
        }
    }

    /// Nobody reads any more.
    fn end(&self) {
        let mut turn = self.turn.lock();
        turn.has_ended = true;
        let waiting = std::mem::take(&mut turn.waiting);
        drop(turn);
        waiting.iter().for_each(|bell| bell.notify_all());
        self.freed.notify_all();
    }

    fn send(&self, batch: &mut Batch) {
        self.outbox.send(self.stream, batch);
    }

    /// With the turn: does short requests until there is a long one, or no more.
    fn serve(&self, input: &mut Input, hand: &mut Hand) -> Result<Option<Task>, Broken> {
        loop {
            let Some(request) = self.next(input, hand)? else { return Ok(None) };
            let slot = Slot::of(&request);
            match slot.filter(|&slot| self.pace.is_quick(slot)) {
                Some(slot) => self.perform_quick(&request, slot, input, hand)?,
                None => return Ok(Some(self.load(request, slot, input, hand)?)),
            }
            if hand.batch.len() >= BATCH_MAX {
                self.send(&mut hand.batch);
            }
        }
    }

    /// The next request, without its payload; `None` if there is none.
    fn next(&self, input: &mut Input, hand: &mut Hand) -> Result<Option<Request>, Broken> {
        let dialect = self.session.dialect;
        let len = dialect.request_len();
        if !self.wait_for(len, input, hand)? || self.is_drained() {
            return Ok(None);
        }
        let request = Request::parse(dialect, &input.available()[..len]).ok_or(Broken::Malformed)?;
        if request.payload > u64::from(self.options.payload_max) {
            return Err(Broken::Malformed);
        }
        input.consume(len);
        Ok(if request.command == Command::Disconnect { None } else { Some(request) })
    }

    /// Whether enough was done after a stop.
    fn is_drained(&self) -> bool {
        if !self.stopping.load(Ordering::Relaxed) {
            return false;
        }
        let mut turn = self.turn.lock();
        turn.drained_left = turn.drained_left.saturating_sub(1);
        turn.drained_left == 0
    }

    /// Waits until `len` bytes are at hand; false if there will be fewer.
    fn wait_for(&self, len: usize, input: &mut Input, hand: &mut Hand) -> Result<bool, Broken> {
        while input.available().len() < len {
            self.send(&mut hand.batch);
            if !input.fill(self.stream)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Does a request at once, with its payload where it was received.
    fn perform_quick(
        &self,
        request: &Request,
        slot: Slot,
        input: &mut Input,
        hand: &mut Hand,
    ) -> Result<(), Broken> {
        let len = to_usize(request.payload);
        if !self.wait_for(len, input, hand)? {
            return Err(Broken::Stream);
        }
        let begun = self.options.clock.elapsed();
        self.session.perform(self.stats, request, &input.available()[..len], &mut hand.batch);
        self.pace.note(slot, self.options.clock.elapsed().saturating_sub(begun));
        input.consume(len);
        Ok(())
    }

    /// Takes a request with its payload, to be done without the turn.
    fn load(
        &self,
        request: Request,
        slot: Option<Slot>,
        input: &mut Input,
        hand: &mut Hand,
    ) -> Result<Task, Broken> {
        self.send(&mut hand.batch);
        let held = self.hold(&request);
        let len = to_usize(request.payload);
        if hand.payload.len() < len {
            hand.payload = vec![0; len];
        }
        if !input.take(self.stream, &mut hand.payload[..len])? {
            return Err(Broken::Stream);
        }
        Ok(Task { request, slot, held })
    }

    /// Waits until there is memory for a long request.
    fn hold(&self, request: &Request) -> usize {
        let is_read = request.command == Command::Read;
        let len =
            if is_read { request.len.min(u64::from(self.options.payload_max)) } else { request.payload };
        if len <= UNCOUNTED_MAX {
            return 0;
        }
        let len = to_usize(len);
        let mut turn = self.turn.lock();
        while turn.held > 0 && turn.held + len > self.options.held_max && !turn.has_ended {
            turn = self.freed.wait(turn, |_| ());
        }
        turn.held += len;
        len
    }

    fn perform_task(&self, task: &Task, hand: &mut Hand) {
        let len = to_usize(task.request.payload);
        let begun = self.options.clock.elapsed();
        self.session.perform(self.stats, &task.request, &hand.payload[..len], &mut hand.batch);
        if let Some(slot) = task.slot {
            self.pace.note(slot, self.options.clock.elapsed().saturating_sub(begun));
        }
        self.send(&mut hand.batch);
        if hand.payload.len() > PAYLOAD_KEPT {
            hand.payload = Vec::new();
        }
        if task.held > 0 {
            self.turn.lock().held -= task.held;
            self.freed.notify_all();
        }
    }
}
