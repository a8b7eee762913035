//! What a phase of a workload costs: time, processors, and what reached the device.

use std::fs;

use anyhow::{Context, Result};
use fstitch_core::{Clock, SystemClock};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::place::Place;

/// What reached a device, as it counts itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Write requests.
    pub write_requests: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Flushes of its cache.
    pub flushes: u64,
}

impl Device {
    fn since(self, before: Self) -> Self {
        Self {
            write_requests: self.write_requests - before.write_requests,
            bytes_written: self.bytes_written - before.bytes_written,
            flushes: self.flushes - before.flushes,
        }
    }
}

/// One phase, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The phase.
    pub phase: String,
    /// Operations done.
    pub operations: u64,
    /// Seconds until the last operation returned.
    pub work_s: f64,
    /// Seconds until everything was stable as well.
    pub wall_s: f64,
    /// Processor seconds of this process and the programs it ran.
    pub client_s: f64,
    /// Processor seconds of the server, where there is one.
    pub server_s: f64,
    /// Processor seconds of the whole machine, the kernel's own threads included.
    pub machine_s: f64,
    /// What reached the device, where that is counted.
    pub device: Option<Device>,
}

/// Tells what reached the device so far.
pub type Counters<'a> = dyn Fn() -> Result<Option<Device>> + 'a;

/// Makes stable what a contender itself leaves volatile.
pub type Settle<'a> = dyn Fn() -> Result<()> + 'a;

/// Measures the phases of a workload.
pub struct Meter<'a> {
    place: &'a dyn Place,
    server: Option<u32>,
    counters: &'a Counters<'a>,
    settle: &'a Settle<'a>,
    clock: SystemClock,
    samples: Vec<Sample>,
}

impl<'a> Meter<'a> {
    /// Measures work in `place`, which the process `server` may serve.
    #[must_use]
    pub fn new(
        place: &'a dyn Place,
        server: Option<u32>,
        (counters, settle): (&'a Counters<'a>, &'a Settle<'a>),
    ) -> Self {
        Self { place, server, counters, settle, clock: SystemClock::new(), samples: Vec::new() }
    }

    /// Does `work` and makes it stable, and notes what that cost.
    ///
    /// # Errors
    /// Those of the work.
    pub fn phase(&mut self, name: &str, operations: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
        self.sync()?;
        let device = (self.counters)()?;
        let before = self.moment()?;
        work().with_context(|| format!("the phase `{name}`"))?;
        let work_s = self.clock.elapsed().as_secs_f64() - before.wall_s;
        self.sync()?;
        let after = self.moment()?;
        let device = match (device, (self.counters)()?) {
            (Some(before), Some(after)) => Some(after.since(before)),
            _ => None,
        };
        self.samples.push(Sample {
            phase: name.to_owned(),
            operations,
            work_s,
            wall_s: after.wall_s - before.wall_s,
            client_s: after.client_s - before.client_s,
            server_s: after.server_s - before.server_s,
            machine_s: after.machine_s - before.machine_s,
            device,
        });
        Ok(())
    }

    /// What was measured.
    #[must_use]
    pub fn finish(self) -> Vec<Sample> {
        self.samples
    }

    fn sync(&self) -> Result<()> {
        self.place.sync()?;
        (self.settle)()
    }

    fn moment(&self) -> Result<Moment> {
        Ok(Moment {
            client_s: process_seconds("self")?,
            server_s: self.server.map_or(Ok(0.0), |pid| process_seconds(&pid.to_string()))?,
            machine_s: machine_seconds()?,
            wall_s: self.clock.elapsed().as_secs_f64(),
        })
    }
}

struct Moment {
    wall_s: f64,
    client_s: f64,
    server_s: f64,
    machine_s: f64,
}

fn ticks_to_seconds(ticks: u64) -> f64 {
    seconds(ticks) / seconds(rustix::param::clock_ticks_per_second())
}

/// A count as a number of which ratios can be taken. Counts here stay far below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts of this crate stay far below 2^53")]
pub(crate) fn seconds(count: u64) -> f64 {
    count as f64
}

/// Processor seconds of a process, of its ended threads and awaited children as well.
pub(crate) fn process_seconds(pid: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).context("the processor time of a process")?;
    // The name of the program, in parentheses, may hold anything.
    let (_, fields) = text.rsplit_once(')').context("no name in /proc/PID/stat")?;
    let ticks = fields.split_whitespace().skip(11).take(4).map(str::parse::<u64>);
    Ok(ticks_to_seconds(ticks.sum::<Result<u64, _>>()?))
}

/// Processor seconds of this process alone, to the nanosecond.
pub(crate) fn own_seconds() -> f64 {
    clock_seconds(ClockId::ProcessCPUTime)
}

/// Processor seconds of this thread.
pub(crate) fn thread_seconds() -> f64 {
    clock_seconds(ClockId::ThreadCPUTime)
}

fn clock_seconds(clock: ClockId) -> f64 {
    let now = clock_gettime(clock);
    let count = |number: i64| seconds(u64::try_from(number).expect("clocks of processor time begin at 0"));
    count(now.tv_sec) + count(now.tv_nsec) / 1e9
}

/// Processor seconds of the machine since it was started, in which it was not idle.
fn machine_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("the processor time of the machine")?;
    let line = text.lines().next().unwrap_or_default();
    let numbers: Vec<u64> = line.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    // User, nice, system; idle and waiting are left out; interrupts of both sorts.
    let busy = [0, 1, 2, 5, 6].iter().filter_map(|&at| numbers.get(at)).sum();
    Ok(ticks_to_seconds(busy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_grows_with_work() {
        let (before, machine) = (process_seconds("self").unwrap(), machine_seconds().unwrap());
        let mut sum = 0_u64;
        while process_seconds("self").unwrap() < before + 0.05 {
            sum = (0..100_000).fold(sum, u64::wrapping_add);
        }
        assert!(machine_seconds().unwrap() > machine, "{sum}");
        let (process, thread) = (own_seconds(), thread_seconds());
        std::thread::spawn(move || (0..3_000_000).fold(sum, |sum, one| std::hint::black_box(sum ^ one)))
            .join()
            .unwrap();
        assert!(
            own_seconds() - process > 4.0 * (thread_seconds() - thread),
            "another thread's time is not this one's"
        );
    }
}
