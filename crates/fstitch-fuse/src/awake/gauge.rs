//! How long it takes to wake a thread that sleeps on another processor: what each request pays, and each answer.

use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::time::Duration;

use fstitch_core::Clock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Messages sent to and fro. On halted processors they take 3 ms together.
const ROUNDS: usize = 24;
/// No round begins later than this: beside programs that compute, each may take milliseconds.
const PATIENCE: Duration = Duration::from_millis(20);

/// What is sent to and fro, and what ends that. Messages that nobody has taken yet add up.
const MESSAGE: u64 = 1;
const END: u64 = 1 << 32;

/// The processors that this thread may run on.
pub(super) fn processors() -> Result<Vec<usize>> {
    let allowed = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| allowed.is_set(*processor)).collect())
}

/// Keeps this thread on one processor.
pub(super) fn stay_on(processor: usize) -> Result<()> {
    let mut one = CpuSet::new();
    one.set(processor);
    Ok(sched_setaffinity(None, &one)?)
}

/// The time from one thread's message to another one's waking on the other of two processors.
///
/// It is the lower quartile of some rounds: where processors sleep, all of them take long; where somebody else computes, some do.
///
/// # Errors
/// When threads cannot be started or kept apart.
pub(super) fn wake_up(pair: [usize; 2], clock: &dyn Clock) -> Result<Duration> {
    let (there, back) = (eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
    let start = |name: &str| std::thread::Builder::new().name(name.to_owned());
    std::thread::scope(|scope| {
        let answering = start("fuse-gauge-1").spawn_scoped(scope, || {
            // It answers wherever it runs: the other one waits.
            let placed = stay_on(pair[1]);
            while wait(&there)? < END {
                send(&back, MESSAGE)?;
            }
            placed
        })?;
        let asking = start("fuse-gauge-0").spawn_scoped(scope, || {
            stay_on(pair[0])?;
            ask(&there, &back, clock)
        });
        let asked = asking.map(|thread| thread.join());
        send(&there, END)?;
        let panicked = || Error::other("a thread that measures panicked");
        answering.join().map_err(|_| panicked())??;
        Ok(lower_quartile(asked?.map_err(|_| panicked())??))
    })
}

/// How long each of some rounds took, one way.
fn ask(there: &OwnedFd, back: &OwnedFd, clock: &dyn Clock) -> Result<Vec<Duration>> {
    let start = clock.elapsed();
    let mut rounds = Vec::with_capacity(ROUNDS);
    let mut before = start;
    while rounds.len() < ROUNDS && before.saturating_sub(start) < PATIENCE {
        send(there, MESSAGE)?;
        wait(back)?;
        let after = clock.elapsed();
        rounds.push(after.saturating_sub(before) / 2);
        before = after;
    }
    Ok(rounds)
}

fn lower_quartile(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds.get(rounds.len() / 4).copied().unwrap_or_default()
}

fn send(to: &OwnedFd, message: u64) -> Result<()> {
    rustix::io::retry_on_intr(|| rustix::io::write(to, &message.to_ne_bytes()))?;
    Ok(())
}

fn wait(on: &OwnedFd) -> Result<u64> {
    let mut message = [0; 8];
    rustix::io::retry_on_intr(|| rustix::io::read(on, &mut message))?;
    Ok(u64::from_ne_bytes(message))
}

#[cfg(test)]
mod tests {
    use fstitch_core::SystemClock;

    use super::*;

    #[test]
    fn a_wake_up_takes_some_time() {
        let processors = processors().unwrap();
        let [first, .., last] = processors[..] else { return };
        let took = wake_up([first, last], &SystemClock::new()).unwrap();
        assert!((Duration::from_nanos(100)..Duration::from_secs(1)).contains(&took), "{took:?}");
    }

    #[test]
    fn a_quarter_of_quick_rounds_counts() {
        let rounds = [90, 50, 7, 8, 60, 9, 70, 80].map(Duration::from_micros);
        assert_eq!(lower_quartile(rounds.to_vec()), Duration::from_micros(9));
    }
}
