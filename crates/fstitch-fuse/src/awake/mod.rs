//! Processors that stay awake while requests come fast (`awake`).
//!
//! Each request wakes its server and the answer wakes the client. Where an idle processor sleeps deeply, or is halted by a
//! hypervisor, that takes longer than most requests: 40 to 80 microseconds of waiting for 10 of work. So while requests come fast,
//! and a moment longer, idle processors are kept from sleeping: by asking the kernel for a latency of nothing, which takes root, or by
//! threads that spin when nobody else wants the processor.
//!
//! ```text
//!              12 requests in 4 ms                       measured to help
//!   Resting ───────────────────────► Judging (at most ─────────────────────► Held ──┐
//!      ▲ ▲                           every 10 s)                               │    │ 4 requests in 5 ms
//!      │ └── not worth while: ────────────┘                                    │ ◄──┘
//!      │     no request is looked at for 10 s                                  │
//!      └────────────────── fewer, or the verdict is 10 s old ──────────────────┘
//! ```
//!
//! A mount that is not used costs nothing: its thread waits, and so do those that spin. [`pace`] has the numbers, [`means`] the
//! decision, [`gauge`] measures.

mod gauge;
mod means;
mod pace;
mod spin;
mod surroundings;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fstitch_core::{Clock, SystemClock};

pub use self::means::Means;
use self::means::Verdict;
use self::pace::{Burst, Pace};
pub use self::spin::IdleClass;
use self::spin::Spinners;

/// A latency that is written here holds for as long as the file is open.
const LATENCY: &str = "/dev/cpu_dma_latency";

/// How long a verdict counts. The machine may be busy when it is mounted, and a notebook be unplugged.
const VERDICT_AGE: Duration = Duration::from_secs(10);

/// On more processors than this nothing spins: clients and servers may sleep on any of them.
const SPINNERS_MAX: usize = 8;

/// Whether idle processors are kept awake while requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AwakeMode {
    /// Where waking them is slow, while requests come fast.
    #[default]
    Auto,
    /// From the first request on.
    On,
    /// Never.
    Off,
}

impl FromStr for AwakeMode {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("`awake={word}`: it is `auto`, `on` or `off`")),
        }
    }
}

impl std::fmt::Display for AwakeMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

/// What is done, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AwakeReport {
    /// What was asked for.
    pub mode: AwakeMode,
    /// By what means processors are kept awake while requests come, if they are.
    pub means: Option<Means>,
    /// They are at this moment.
    pub held: bool,
    /// What a wake-up takes when nothing is done, where that was measured.
    pub wake_up: Option<Duration>,
    /// And with these means.
    pub shortened: Option<Duration>,
    /// Why, in words; empty with `off`.
    pub why: &'static str,
}

/// Tells what is done about idle processors, also when the mount is gone.
#[derive(Clone)]
pub struct AwakeWatch(Option<Arc<Shared>>);

impl AwakeWatch {
    /// What is done at this moment.
    #[must_use]
    pub fn report(&self) -> AwakeReport {
        let Some(shared) = &self.0 else {
            return AwakeReport { mode: AwakeMode::Off, ..AwakeReport::default() };
        };
        let Verdict { means, wake_up, shortened, why } = shared.lock().verdict.clone();
        let held = shared.held.load(Ordering::Relaxed);
        AwakeReport { mode: shared.mode, means, held, wake_up, shortened, why }
    }
}

impl std::fmt::Debug for AwakeWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.report().fmt(f)
    }
}

/// Keeps idle processors awake while it is told of many requests.
pub(crate) struct Awake {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    mode: AwakeMode,
    pace: Pace,
    clock: SystemClock,
    burst: Burst,
    /// Requests of this spell since it was looked at last.
    requests: AtomicU32,
    /// Processors are kept awake; requests are only counted.
    held: AtomicBool,
    /// The thread is told already.
    called: AtomicBool,
    /// Microseconds of the clock before which no request is looked at.
    deaf_until: AtomicU64,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    /// A spell begins.
    called: bool,
    stop: bool,
    verdict: Verdict,
}

impl Awake {
    /// Starts the thread that judges and holds; `None` where nothing is to be done.
    ///
    /// # Errors
    /// When it is asked for and there are no means to, or the thread cannot be started.
    pub(crate) fn new(mode: AwakeMode, class: Option<IdleClass>) -> std::io::Result<Option<Self>> {
        if mode == AwakeMode::Off {
            return Ok(None);
        }
        let holder = Holder::new(LATENCY.as_ref(), class);
        if mode == AwakeMode::On && holder.candidates().is_empty() {
            hold(LATENCY.as_ref())?;
        }
        Self::by(mode, holder).map(Some)
    }

    fn by(mode: AwakeMode, holder: Holder) -> std::io::Result<Self> {
        let verdict = Verdict { why: "not measured yet", ..Verdict::default() };
        let shared = Arc::new(Shared {
            mode,
            pace: if mode == AwakeMode::On { Pace::ASKED } else { Pace::UNASKED },
            clock: SystemClock::new(),
            burst: Burst::default(),
            requests: AtomicU32::new(0),
            held: AtomicBool::new(false),
            called: AtomicBool::new(false),
            deaf_until: AtomicU64::new(0),
            state: Mutex::new(State { called: false, stop: false, verdict }),
            wake: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("fuse-awake".to_owned()).spawn(move || own.serve(holder))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Tells what is done.
    pub(crate) fn watch(this: Option<&Self>) -> AwakeWatch {
        AwakeWatch(this.map(|awake| Arc::clone(&awake.shared)))
    }

    /// A request has come.
    pub(crate) fn note(&self) {
        let shared = &*self.shared;
        if shared.held.load(Ordering::Relaxed) {
            shared.requests.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if shared.called.load(Ordering::Relaxed) {
            return;
        }
        let now = shared.clock.elapsed();
        let deaf_until = Duration::from_micros(shared.deaf_until.load(Ordering::Relaxed));
        if now >= deaf_until
            && shared.burst.note(&shared.pace, now)
            && !shared.called.swap(true, Ordering::Relaxed)
        {
            shared.lock().called = true;
            shared.wake.notify_one();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut holder: Holder) {
        let mut judged = self.judge(&mut holder);
        while self.await_spell() {
            if self.clock.elapsed() >= judged + VERDICT_AGE {
                judged = self.judge(&mut holder);
            }
            let until = judged + VERDICT_AGE;
            let means = self.lock().verdict.means;
            match means.map(|means| holder.hold(means)) {
                Some(Ok(_held)) => self.stay(until),
                Some(Err(error)) => {
                    tracing::warn!("processors may sleep from now on: {error}");
                    self.lock().verdict = Verdict { why: "the means have failed", ..Verdict::default() };
                    self.be_deaf(until);
                }
                None => self.be_deaf(until),
            }
        }
    }

    /// Waits until requests come fast; false when it is to end.
    fn await_spell(&self) -> bool {
        self.burst.forget();
        self.called.store(false, Ordering::Relaxed);
        let mut state = self.lock();
        while !state.called && !state.stop {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.called = false;
        !state.stop
    }

    /// Measures and decides; returns when.
    fn judge(&self, holder: &mut Holder) -> Duration {
        let candidates = holder.candidates();
        let measure = |means| holder.measure(means, &self.clock);
        let verdict = if self.mode == AwakeMode::On {
            means::obey(&candidates, measure)
        } else {
            means::judge(surroundings::on_battery(), &candidates, measure)
        };
        tracing::debug!("idle processors: {verdict:?}");
        self.lock().verdict = verdict;
        self.clock.elapsed()
    }

    /// Keeps them awake while requests come, at most `until` this is to be judged again.
    fn stay(&self, until: Duration) {
        self.requests.store(0, Ordering::Relaxed);
        self.held.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        loop {
            let waited = self.wake.wait_timeout(state, self.pace.tick);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            let requests = self.requests.swap(0, Ordering::Relaxed);
            if state.stop || !self.pace.goes_on(requests) || self.clock.elapsed() >= until {
                break;
            }
        }
        self.held.store(false, Ordering::Relaxed);
    }

    fn be_deaf(&self, until: Duration) {
        let until = u64::try_from(until.as_micros()).unwrap_or(u64::MAX);
        self.deaf_until.store(until, Ordering::Relaxed);
    }
}

/// The means themselves.
struct Holder {
    latency: PathBuf,
    class: Option<IdleClass>,
    processors: Vec<usize>,
    /// Threads, once they were needed.
    spinners: Option<Spinners>,
}

/// Means in force for as long as it lives.
enum Held<'a> {
    Latency { _file: File },
    Spinning(&'a Spinners),
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Self::Spinning(spinners) = self {
            spinners.spin(false);
        }
    }
}

impl Holder {
    fn new(latency: &Path, class: Option<IdleClass>) -> Self {
        // Where the kernel does not say which there are, nothing is done.
        let processors = gauge::processors().unwrap_or_default();
        Self { latency: latency.to_owned(), class, processors, spinners: None }
    }

    /// What is possible here, the better first. With one processor nobody sleeps while another one works.
    fn candidates(&self) -> Vec<Means> {
        let several = self.processors.len() > 1;
        let spins = several
            && self.class.is_some()
            && self.processors.len() <= SPINNERS_MAX
            && !surroundings::is_rationed();
        let latency = (several && hold(&self.latency).is_ok()).then_some(Means::Latency);
        latency.into_iter().chain(spins.then_some(Means::Spinning)).collect()
    }

    fn hold(&mut self, means: Means) -> std::io::Result<Held<'_>> {
        if means == Means::Latency {
            return Ok(Held::Latency { _file: hold(&self.latency)? });
        }
        if self.spinners.is_none() {
            let class = self.class.ok_or(std::io::ErrorKind::Unsupported)?;
            self.spinners = Some(Spinners::start(&self.processors, class)?);
        }
        let spinners = self.spinners.as_ref().ok_or(std::io::ErrorKind::Unsupported)?;
        spinners.spin(true);
        Ok(Held::Spinning(spinners))
    }

    /// What a wake-up takes, with means in force or none.
    fn measure(&mut self, means: Option<Means>, clock: &dyn Clock) -> std::io::Result<Duration> {
        let [first, .., last] = self.processors[..] else {
            return Err(std::io::ErrorKind::Unsupported.into());
        };
        let _held = means.map(|means| self.hold(means)).transpose()?;
        gauge::wake_up([first, last], clock)
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
        self.shared.lock().stop = true;
        self.shared.wake.notify_one();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that keeps processors awake panicked");
        }
    }
}

#[cfg(test)]
mod tests;
