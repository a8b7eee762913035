//! Runs every workload in every contender, repetition by repetition, so that all of them meet the same moods of the
//! machine.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use fstitch_core::num::to_usize;
use fstitch_core::{Clock, SystemClock};
use fstitch_fuse::Transport;

use crate::contender::{Contender, Medium, Tools};
use crate::meter::{Meter, Sample};
use crate::processors::Processors;
use crate::report::goals;
use crate::results::{Cell, Gap, Results};
use crate::transport;
use crate::warm;
use crate::workload::{self, At, LeftOut, Scale, Tree, Workload};

/// What is raced.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How much is done.
    pub scale: Scale,
    /// How often, at most.
    pub repetitions: u32,
    /// When no further repetition is begun that would end later.
    pub time: Duration,
    /// The contenders, in the order of reports.
    pub contenders: Vec<Contender>,
    /// Names of the workloads; all if empty.
    pub workloads: Vec<String>,
    /// The media.
    pub media: Vec<Medium>,
    /// A directory in memory for what programs need.
    pub scratch: PathBuf,
    /// Which way requests reach our servers, where the machine is not left as it is found.
    pub transport: Transport,
}

/// The workloads that the conventional, synchronous mode takes part in, because each change waits for the medium there.
const SYNCHRONOUS: [&str; 3] = ["small", "tree", "mail"];

/// By how many places the first contender moves from repetition to repetition.
const FIRST_STEP: usize = 5;

/// What is running, for people who wait.
pub struct Step<'a> {
    /// Steps done.
    pub done: usize,
    /// Steps in all.
    pub total: usize,
    /// The present one.
    pub what: &'a str,
}

/// Is told of each step before it begins. An error ends everything, and what was made is taken away.
pub type Say<'a> = dyn FnMut(&Step<'_>) -> Result<()> + 'a;

/// Makes the image of a medium, every byte of it written, so that no contender pays for its allocation.
///
/// # Errors
/// When it cannot be written.
pub fn prepare(medium: &Medium, bytes: u64) -> Result<()> {
    const PIECE: usize = 8 << 20;
    let mut file = File::create(&medium.image).with_context(|| medium.image.display().to_string())?;
    let (zeros, mut left) = (vec![0; PIECE], bytes);
    while left > 0 {
        let piece = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        file.write_all(&zeros[..piece]).with_context(|| medium.image.display().to_string())?;
        left -= u64::try_from(piece)?;
    }
    Ok(file.sync_all()?)
}

impl Plan {
    /// Runs repetition after repetition, as many as fit into the time; the first one always. Where not all workloads fit any
    /// more, those are repeated that tell most about the goals in so little time. What fails is noted as a gap.
    ///
    /// # Errors
    /// Those of `say`.
    pub fn race(&self, tools: &Tools, tree: &Tree, results: &mut Results, say: &mut Say<'_>) -> Result<()> {
        let clock = SystemClock::new();
        let contenders = self.able(tools, results);
        let workloads = self.able_workloads(results);
        let mut spent = vec![Duration::ZERO; workloads.len()];
        for repetition in 0..self.repetitions {
            let chosen = match repetition {
                0 => (0..workloads.len()).collect(),
                _ => {
                    let ratios = ratios(&workloads, results);
                    that_fit(&spent, &ratios, self.time.saturating_sub(clock.elapsed()))
                }
            };
            let steps: Vec<_> = chosen
                .iter()
                .flat_map(|&at| {
                    self.steps(workloads[at], &contenders, repetition).map(move |step| (at, step))
                })
                .collect();
            let total = steps.len();
            for (done, (at, (medium, workload, contender))) in steps.into_iter().enumerate() {
                let begun = clock.elapsed();
                let what = format!("{} {} {}", medium.name, workload.name, contender.name());
                say(&Step { done, total, what: &format!("{what} ({})", repetition + 1) })?;
                // Where each change waits for the medium, the small amount of work takes long enough.
                let scale = if contender.is_synchronous() { Scale::Quick } else { self.scale };
                let scale = (scale, self.scratch.as_path());
                match self.run_once(tools, (contender, medium), workload, (scale, tree)) {
                    Ok(samples) => results.cells.extend(samples.into_iter().map(|sample| Cell {
                        medium: medium.name.to_owned(),
                        workload: workload.name.to_owned(),
                        contender: contender.name(),
                        repetition,
                        sample,
                    })),
                    Err(error) => {
                        results.gaps.push(Gap { what, why: format!("{error:#}"), is_failure: true });
                    }
                }
                let took = clock.elapsed().saturating_sub(begun);
                // The first time takes part in everything, so no later one takes longer but by the machine's mood.
                if repetition == 0 {
                    spent[at] += took;
                }
            }
            if chosen.len() < workloads.len() {
                results.repeated = chosen.iter().map(|&at| workloads[at].name.to_owned()).collect();
                break;
            }
            results.repetitions = repetition + 1;
        }
        Ok(())
    }

    /// The contenders that can be started here.
    fn able(&self, tools: &Tools, results: &mut Results) -> Vec<Contender> {
        let mut able = self.contenders.clone();
        able.retain(|&contender| match tools.lacks(contender) {
            None => true,
            Some(why) => {
                results.gaps.push(Gap { what: contender.name(), why, is_failure: false });
                false
            }
        });
        able
    }

    /// The workloads that can be run here.
    fn able_workloads(&self, results: &mut Results) -> Vec<&'static Workload> {
        let wanted = |workload: &&Workload| {
            self.workloads.is_empty() || self.workloads.iter().any(|name| name == workload.name)
        };
        let mut able: Vec<&Workload> = workload::ALL.iter().filter(wanted).collect();
        for Workload { name, left_out, .. } in &able {
            for left in left_out.iter().filter(|left| self.applies(left)) {
                let medium = left.medium.map_or(String::new(), |medium| format!("{medium}: "));
                let what = format!("{medium}{name}: {}", left.contenders.join(", "));
                results.gaps.push(Gap { what, why: left.why.to_owned(), is_failure: false });
            }
        }
        able.retain(|workload| match workload.programs.iter().find(|program| !is_installed(program)) {
            None => true,
            Some(program) => {
                let why = format!("{program} is not installed");
                results.gaps.push(Gap { what: workload.name.to_owned(), why, is_failure: false });
                false
            }
        });
        able
    }

    /// Whether contenders are left out: of one medium only if they are raced on another.
    fn applies(&self, left: &LeftOut) -> bool {
        left.medium.is_none() || self.media.len() > 1
    }

    /// What one repetition does in a workload, in order.
    fn steps<'a>(
        &'a self,
        workload: &'static Workload,
        contenders: &[Contender],
        repetition: u32,
    ) -> impl Iterator<Item = (&'a Medium, &'static Workload, Contender)> + use<'a> {
        let order: Vec<Contender> =
            turns(contenders.len(), repetition).into_iter().map(|at| contenders[at]).collect();
        self.media.iter().flat_map(move |medium| {
            let fits = |contender: &&Contender| {
                contender.takes_part(workload.name)
                    && (workload.programs.is_empty() || contender.is_mounted())
                    && !workload
                        .left_out
                        .iter()
                        .any(|left| self.applies(left) && left.is(&contender.name(), medium.name))
                    && (!contender.is_synchronous()
                        || (repetition == 0 && SYNCHRONOUS.contains(&workload.name)))
            };
            let step = |&contender: &Contender| (medium, workload, contender);
            order.iter().filter(fits).map(step).collect::<Vec<_>>()
        })
    }

    /// One workload in one contender, from an empty volume to the unmount.
    fn run_once(
        &self,
        tools: &Tools,
        (contender, medium): (Contender, &Medium),
        workload: &Workload,
        ((scale, scratch), tree): ((Scale, &Path), &Tree),
    ) -> Result<Vec<Sample>> {
        // Of two transports the kernel offers what it is told to; afterwards it is as it was.
        let is_tuned = workload.processors != Processors::AsFound;
        let _chosen = is_tuned.then(|| transport::choose(self.transport));
        let _held = workload.processors.hold()?;
        let running = tools.start(contender, medium)?;
        let counters = || running.counters();
        let at = At { place: &*running.place, host: running.host.as_deref(), scale, tree, scratch };
        let settle = || running.settle();
        warm::before(contender, tools, scratch, scale.of(workload.memory, workload.memory / 4))?;
        let mut meter = Meter::new(&*running.place, running.server, (&counters, &settle));
        let done = workload.run(&at, &mut meter);
        let samples = meter.finish();
        let stopped = running.stop();
        done?;
        stopped?;
        Ok(samples)
    }
}

/// How many of the goals' ratios each workload has.
fn ratios(workloads: &[&Workload], results: &Results) -> Vec<u32> {
    let goals = goals(results);
    let all = || goals.iter().flat_map(|goal| &goal.checked);
    let of = |workload: &&Workload| all().filter(|checked| checked.workload == workload.name).count();
    workloads.iter().map(|workload| u32::try_from(of(workload)).unwrap_or(u32::MAX)).collect()
}

/// Which of the workloads that took so long fit into the time once more, in their order: all, or those that have the most
/// ratios for their time.
fn that_fit(spent: &[Duration], ratios: &[u32], time: Duration) -> Vec<usize> {
    let mut best: Vec<usize> = (0..spent.len()).collect();
    best.sort_by_key(|&at| spent[at].checked_div(ratios[at]).unwrap_or(Duration::MAX));
    let mut end = Duration::ZERO;
    best.retain(|&at| {
        let fits = end + spent[at] <= time;
        end += if fits { spent[at] } else { Duration::ZERO };
        fits
    });
    best.sort_unstable();
    best
}

/// In which order so many take their turns. Another one begins each time, and each comes after another one: who comes next
/// finds the machine, its memory above all, as the one before has left it.
fn turns(count: usize, repetition: u32) -> Vec<usize> {
    let repetition = to_usize(repetition);
    let strides: Vec<usize> = (1..count.max(2)).filter(|&stride| is_coprime(stride, count)).collect();
    let (first, stride) = (repetition * FIRST_STEP, strides[repetition % strides.len()]);
    (0..count).map(|no| (first + no * stride) % count).collect()
}

/// Whether two numbers have no common divisor but 1.
fn is_coprime(one: usize, other: usize) -> bool {
    if other == 0 { one == 1 } else { is_coprime(other, one % other) }
}

/// Whether a program is in the path.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_most_about_the_goals_is_repeated_where_not_all_fits() {
        let seconds =
            |all: &[u64]| -> Vec<Duration> { all.iter().map(|&s| Duration::from_secs(s)).collect() };
        let (spent, ratios) = (seconds(&[5, 90, 1, 40, 5]), [1, 9, 0, 20, 2]);
        let fit = |time| that_fit(&spent, &ratios, Duration::from_secs(time));
        assert_eq!(fit(141), [0, 1, 2, 3, 4]);
        assert_eq!(fit(140), [0, 1, 3, 4]);
        assert_eq!(fit(135), [0, 2, 3, 4], "what does not fit leaves room for others");
        assert_eq!(fit(6), [2, 4]);
        assert!(fit(0).is_empty());
    }

    #[test]
    fn everybody_has_a_turn_and_nobody_always_the_same_one_before() {
        for (count, repetition) in (0..20).flat_map(|count| (0..6).map(move |repetition| (count, repetition)))
        {
            let mut turns = turns(count, repetition);
            turns.sort_unstable();
            assert!(turns.into_iter().eq(0..count), "{count} contenders, repetition {repetition}");
        }
        let before = |who: usize, repetition| {
            let turns = turns(15, repetition);
            turns.iter().position(|&turn| turn == who).and_then(|at| Some(turns[at.checked_sub(1)?]))
        };
        for who in 0..15 {
            let befores = [before(who, 0), before(who, 1), before(who, 2)];
            let differ = befores[0] != befores[1] && befores[1] != befores[2] && befores[0] != befores[2];
            assert!(differ, "{who}: {befores:?}");
        }
    }
}
