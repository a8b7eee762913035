//! Which schedules are tried: all with few preemptions, the fewest first, or a sample.

use std::collections::VecDeque;

use fstitch_core::Seed;
use fstitch_core::num::to_usize;
use fstitch_core::order::Rank;

use super::schedule::{Schedule, Switch};
use super::turns::Step;

/// Where threads may be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Before locks that are held for long, and at the ends of operations.
    Coarse,
    /// Before every lock.
    Fine,
}

impl Grain {
    fn has(self, step: &Step) -> bool {
        self == Self::Fine || step.rank.is_none_or(|rank| rank <= Rank::Inode || rank == Rank::Epoch)
    }
}

/// Which schedules are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// All with so many preemptions at most (CHESS), the fewest first.
    Bounded {
        /// Preemptions.
        preemptions: u32,
        /// Where.
        grain: Grain,
    },
    /// A sample of those with up to three, at any place.
    Random {
        /// Chooses them.
        seed: u64,
    },
}

impl Plan {
    /// Runs schedules of the plan by `run`, which gives back the steps and what is wrong, until something is, or it says that there
    /// were enough. True if there is no other schedule in the plan.
    ///
    /// # Errors
    /// What is wrong.
    pub fn search<F>(self, run: &mut dyn FnMut(&Schedule) -> Tried<F>) -> Result<bool, F> {
        match self {
            Self::Bounded { preemptions, grain } => bounded(preemptions, grain, run),
            Self::Random { seed } => random(seed, run),
        }
    }
}

/// What came of a schedule.
pub enum Tried<F> {
    /// Nothing is wrong with these steps.
    Fine(Vec<Step>),
    /// This is wrong.
    Wrong(F),
    /// Nobody wants to know more.
    Enough,
}

fn bounded<F>(preemptions: u32, grain: Grain, run: &mut dyn FnMut(&Schedule) -> Tried<F>) -> Result<bool, F> {
    let levels = to_usize(preemptions) + 1;
    let mut queues: Vec<VecDeque<Schedule>> = vec![VecDeque::new(); levels];
    queues[0].push_back(Schedule::default());
    let cheapest = |queues: &mut Vec<VecDeque<Schedule>>| {
        queues.iter_mut().enumerate().find_map(|(cost, queue)| Some((cost, queue.pop_front()?)))
    };
    while let Some((cost, schedule)) = cheapest(&mut queues) {
        let steps = match run(&schedule) {
            Tried::Fine(steps) => steps,
            Tried::Wrong(found) => return Err(found),
            Tried::Enough => return Ok(false),
        };
        for (step, more) in branches(&schedule, &steps, grain) {
            let cost = cost + usize::from(steps[step].is_free);
            if let Some(queue) = queues.get_mut(cost) {
                queue.push_back(more);
            }
        }
    }
    Ok(true)
}

fn random<F>(seed: u64, run: &mut dyn FnMut(&Schedule) -> Tried<F>) -> Result<bool, F> {
    for draw in 0_u64.. {
        let mut dice = Seed::new(seed ^ draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut schedule = Schedule::default();
        // Each switch is drawn from the steps that there are when those before it are made.
        for _ in 0..=1 + dice.below(3) {
            let steps = match run(&schedule) {
                Tried::Fine(steps) => steps,
                Tried::Wrong(found) => return Err(found),
                Tried::Enough => return Ok(false),
            };
            let Some(more) = draw_branch(&schedule, &steps, &mut dice) else { break };
            schedule = more;
        }
    }
    Ok(true)
}

/// The schedules that differ from one in one more switch behind the last, each with its step.
fn branches(schedule: &Schedule, steps: &[Step], grain: Grain) -> Vec<(usize, Schedule)> {
    let from = first_open(schedule);
    let mut all = Vec::new();
    for (at, step) in steps.iter().enumerate().skip(from).filter(|(_, step)| !step.is_free || grain.has(step))
    {
        let others = (0..64_u8).filter(|&thread| step.ready >> thread & 1 == 1 && thread != step.to);
        all.extend(others.map(|thread| (at, with(schedule, at, thread))));
    }
    all
}

fn draw_branch(schedule: &Schedule, steps: &[Step], dice: &mut Seed) -> Option<Schedule> {
    let all = branches(schedule, steps, Grain::Fine);
    let len = u64::try_from(all.len()).ok().filter(|len| *len > 0)?;
    let at = usize::try_from(dice.below(len)).expect("it is an index");
    all.into_iter().nth(at).map(|(_, schedule)| schedule)
}

fn first_open(schedule: &Schedule) -> usize {
    schedule.0.last().map_or(0, |switch| to_usize(switch.step) + 1)
}

fn with(schedule: &Schedule, at: usize, thread: u8) -> Schedule {
    let mut schedule = schedule.clone();
    schedule.0.push(Switch { step: u32::try_from(at).expect("runs are bounded"), thread });
    schedule
}
