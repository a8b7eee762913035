//! The scheduler: of real threads exactly one runs at a time, and a schedule says which.
//!
//! ```text
//!   ready ──turn──► running ──point──► ready          a lock is about to be asked for
//!     ▲                │ ├──blocked──► blocked ──released──► ready
//!     │                │ ├──wait─────► waiting ──notified──► ready
//!     └────────────────┘ └──end──────► done
//! ```
//!
//! **Invariants.** 1. A thread runs production code only while it has the turn, until the run was ended early. 2. What happens is a
//! function of the program and the schedule. 3. The turn is handed over at a step only, and every step is in the trace. 4. If no
//! thread is ready and one is not done, that is a deadlock, and the run ends with who holds what and who waits for what.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::lock::{Access, Place};
use fstitch_core::order::Rank;
use fstitch_core::schedule::{Scheduler, control};

use super::schedule::Schedule;

/// How long a thread may run from one step to the next before it counts as stuck: it waits for something that is not controlled.
const PATIENCE: Duration = Duration::from_secs(30);
/// A run of more steps has no end.
const STEPS_MAX: u32 = 200_000;

/// A step of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who had the turn.
    pub from: u8,
    /// Whether it could have gone on: another one in its place is a preemption then.
    pub is_free: bool,
    /// Who could go on, one bit each.
    pub ready: u64,
    /// Who did.
    pub to: u8,
    /// What it was about to do to a lock; `None` at the ends of operations and where it waits.
    pub rank: Option<Rank>,
}

/// Why a run ended before its threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// No thread can go on.
    Deadlock(String),
    /// One goes on for ever, or waits for what is not controlled.
    Stuck(String),
    /// The schedule names a thread that cannot go on: it is from another program.
    Foreign,
    /// A thread panicked, the first one if there are several: others do because of locks that were held.
    Panic(String),
}

/// What came of threads.
#[derive(Clone, Debug)]
pub struct Played {
    /// The steps.
    pub steps: Vec<Step>,
    /// Why they did not come to their ends, if so. Some may be anywhere then, and go on to the end of the process.
    pub end: Option<End>,
}

/// What a thread does; it may pass the turn between two parts.
pub type Body = Box<dyn FnOnce(&Turn) + Send>;

/// Runs threads under a schedule.
///
/// # Panics
/// In builds without debug assertions: there nobody can control threads.
#[must_use]
pub fn play(schedule: &Schedule, bodies: Vec<Body>) -> Played {
    assert!(fstitch_core::schedule::can_control(), "threads are controlled in builds with debug assertions");
    let turns = Turns::new(bodies.len(), schedule.clone());
    let live = |(no, body): (usize, Body)| {
        let turn = Arc::new(Turn { turns: Arc::clone(&turns), no });
        std::thread::spawn(move || turn.live(body))
    };
    let threads: Vec<_> = bodies.into_iter().enumerate().map(live).collect();
    let (end, steps) = turns.wait();
    if matches!(end, None | Some(End::Panic(_))) {
        threads.into_iter().for_each(|thread| thread.join().expect("panics were caught"));
    }
    Played { steps, end }
}

#[derive(Clone, Copy, Debug)]
enum Status {
    Ready,
    Blocked(Place),
    Waiting { condition: usize, has_limit: bool },
    Done,
}

struct State {
    schedule: Schedule,
    /// Switches that were made.
    switched: usize,
    running: usize,
    threads: Vec<Status>,
    steps: Vec<Step>,
    /// Who holds which lock.
    held: BTreeMap<usize, Vec<(usize, Place)>>,
    end: Option<End>,
    panic: Option<String>,
}

/// The turns of a run.
struct Turns {
    state: Mutex<State>,
    /// Somebody else has the turn, or the run has ended.
    handed: Condvar,
}

/// What unwinds the threads of a run that has ended early.
struct Stopped;

impl Turns {
    fn new(threads: usize, schedule: Schedule) -> Arc<Self> {
        assert!((1..=64).contains(&threads), "a step has a bit for each thread");
        let mut state = State {
            schedule,
            switched: 0,
            running: 0,
            threads: vec![Status::Ready; threads],
            steps: Vec::new(),
            held: BTreeMap::new(),
            end: None,
            panic: None,
        };
        state.hand_over(None);
        Arc::new(Self { state: Mutex::new(state), handed: Condvar::new() })
    }

    /// Waits until all threads are done, or the run has ended early.
    fn wait(&self) -> (Option<End>, Vec<Step>) {
        let mut state = self.state();
        while !state.is_over() {
            state = self.pause(state);
        }
        let end = state.end.clone().or_else(|| state.panic.clone().map(End::Panic));
        (end, state.steps.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unpoisoned()
    }

    /// Waits for a step. If there is none for long, the run ends.
    fn pause<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let before = state.steps.len();
        let (mut state, waited) = self.handed.wait_timeout(state, PATIENCE).unpoisoned();
        if waited.timed_out() && state.steps.len() == before && !state.is_over() {
            let what = format!("thread {} makes no step\n{}", state.running, state.report());
            state.end = Some(End::Stuck(what));
            self.handed.notify_all();
        }
        state
    }
}

/// What a panic says.
pub fn said(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

/// A thread's place in a run.
pub struct Turn {
    turns: Arc<Turns>,
    no: usize,
}

impl Turn {
    /// The thread is between two operations.
    pub fn pass(&self) {
        self.hand_over(Status::Ready, None);
    }

    /// The thread from its first turn to its end.
    fn live(self: Arc<Self>, body: Body) {
        control(Some(Arc::clone(&self) as Arc<dyn Scheduler>));
        let lived = catch_unwind(AssertUnwindSafe(|| {
            self.wait_for(self.turns.state());
            body(&self);
        }));
        control(None);
        let mut state = self.turns.state();
        if let Err(panic) = lived
            && !panic.is::<Stopped>()
        {
            state.panic.get_or_insert(format!("thread {}: {}", self.no, said(&*panic)));
        }
        state.threads[self.no] = Status::Done;
        if state.end.is_none() {
            state.hand_over(None);
        }
        self.turns.handed.notify_all();
    }

    fn hand_over(&self, status: Status, rank: Option<Rank>) {
        let mut state = self.turns.state();
        if state.end.is_none() {
            state.threads[self.no] = status;
            state.hand_over(rank);
            if state.running == self.no && state.end.is_none() {
                return;
            }
            self.turns.handed.notify_all();
        }
        self.wait_for(state);
    }

    fn wait_for<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        while state.end.is_none() && state.running != self.no {
            state = self.turns.pause(state);
        }
        if state.end.is_none() {
            return;
        }
        drop(state);
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new(Stopped));
        }
        // It unwinds already, with others who do: what it still asks for they give back.
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Scheduler for Turn {
    fn point(&self, place: Place) {
        self.hand_over(Status::Ready, Some(place.rank));
    }

    fn blocked(&self, place: Place) {
        self.hand_over(Status::Blocked(place), Some(place.rank));
    }

    fn taken(&self, place: Place) {
        self.turns.state().held.entry(place.lock).or_default().push((self.no, place));
    }

    fn released(&self, place: Place) {
        let mut state = self.turns.state();
        if let Some(holders) = state.held.get_mut(&place.lock) {
            if let Some(at) = holders.iter().position(|(holder, _)| *holder == self.no) {
                holders.remove(at);
            }
            if holders.is_empty() {
                state.held.remove(&place.lock);
            }
        }
        for status in &mut state.threads {
            if matches!(status, Status::Blocked(other) if other.lock == place.lock) {
                *status = Status::Ready;
            }
        }
    }

    fn has_writer_waiting(&self, lock: usize) -> bool {
        let waits = |status: &Status| match status {
            Status::Blocked(place) => place.lock == lock && place.access == Access::Exclusive,
            _ => false,
        };
        self.turns.state().threads.iter().any(waits)
    }

    fn wait(&self, condition: usize, has_limit: bool) {
        self.hand_over(Status::Waiting { condition, has_limit }, None);
    }

    fn notified(&self, condition: usize) {
        for status in &mut self.turns.state().threads {
            if matches!(status, Status::Waiting { condition: other, .. } if *other == condition) {
                *status = Status::Ready;
            }
        }
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.end.is_some() || self.threads.iter().all(|status| matches!(status, Status::Done))
    }

    fn ready(&self) -> u64 {
        let bits = self.threads.iter().enumerate();
        bits.filter(|(_, status)| matches!(status, Status::Ready)).fold(0, |bits, (no, _)| bits | 1 << no)
    }

    /// Gives the turn to whoever comes next.
    fn hand_over(&mut self, rank: Option<Rank>) {
        let mut ready = self.ready();
        if ready == 0 {
            self.time_out();
            ready = self.ready();
        }
        if ready == 0 {
            if !self.is_over() {
                self.end = Some(End::Deadlock(self.report()));
            }
            return;
        }
        let step = u32::try_from(self.steps.len()).expect("bounded below");
        if step == STEPS_MAX {
            self.end = Some(End::Stuck(format!("{STEPS_MAX} steps, and no end\n{}", self.report())));
            return;
        }
        let by_itself = (0..self.threads.len()).map(|more| (self.running + more) % self.threads.len());
        let by_itself = { by_itself }.find(|no| ready >> no & 1 == 1).expect("somebody is ready");
        let switch = self.schedule.0.get(self.switched).filter(|switch| switch.step == step);
        let to = match switch {
            Some(switch) => usize::from(switch.thread),
            None => by_itself,
        };
        if to >= self.threads.len() || ready >> to & 1 == 0 {
            self.end = Some(End::Foreign);
            return;
        }
        self.switched += usize::from(switch.is_some());
        let small = |no: usize| u8::try_from(no).expect("at most 64 threads");
        let is_free = !self.steps.is_empty() && ready >> self.running & 1 == 1;
        self.steps.push(Step { from: small(self.running), is_free, ready, to: small(to), rank });
        self.running = to;
    }

    /// Time passes only where nothing else happens: those who wait with a limit go on.
    fn time_out(&mut self) {
        for status in &mut self.threads {
            if matches!(status, Status::Waiting { has_limit: true, .. }) {
                *status = Status::Ready;
            }
        }
    }

    /// Who waits for what, and who holds it.
    fn report(&self) -> String {
        let mut text = String::new();
        for (no, status) in self.threads.iter().enumerate() {
            let held: Vec<String> = self
                .held
                .values()
                .flatten()
                .filter(|(holder, _)| *holder == no)
                .map(|(_, place)| format!("{:?} {:?} ({})", place.access, place.rank, place.line))
                .collect();
            let doing = match status {
                Status::Ready => "could go on".to_owned(),
                Status::Done => "is done".to_owned(),
                Status::Waiting { .. } => "waits for somebody to notify it".to_owned(),
                Status::Blocked(place) => {
                    let holders = self.held.get(&place.lock).map_or(&[][..], |holders| holders);
                    let is_shared = |access| access == Access::Shared;
                    let is_barred =
                        is_shared(place.access) && holders.iter().all(|(_, held)| is_shared(held.access));
                    let by = if is_barred {
                        "behind one who waits for it alone".to_owned()
                    } else {
                        let holders: Vec<String> = holders.iter().map(|(no, _)| no.to_string()).collect();
                        format!("which thread {} holds", holders.join(" and "))
                    };
                    format!("waits for {:?} {:?} ({}), {by}", place.access, place.rank, place.line)
                }
            };
            let _ = writeln!(text, "thread {no} {doing}; it holds {}", or_nothing(&held));
        }
        text.truncate(text.trim_end().len());
        text
    }
}

fn or_nothing(held: &[String]) -> String {
    if held.is_empty() { "nothing".to_owned() } else { held.join(", ") }
}
