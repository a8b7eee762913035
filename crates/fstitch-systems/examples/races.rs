//! Asks the thread laboratory: runs programs of several threads under many schedules and ends at the first violation, with exit
//! status 1 and a line that says what, and the id that replays it. `cargo xtask races` runs it on trees whose fixes were taken out.
//!
//! ```text
//! races [PROGRAM] [--system NAME] [--preemptions N] [--fine] [--random SEED] [--most N]
//! races --replay ID
//! ```

use std::ops::ControlFlow;
use std::process::ExitCode;

use fstitch_crashlab::threads::{Grain, Plan, Program, Schedule, ThreadLab, ThreadOptions};
use fstitch_crashlab::{Found, StateId};

type Failure = Box<dyn std::error::Error>;

/// What the arguments ask for.
struct Asked {
    programs: Vec<String>,
    system: String,
    preemptions: u32,
    grain: Grain,
    random: Option<u64>,
    most: u64,
    replay: Option<StateId>,
}

impl Asked {
    fn read() -> Result<Self, Failure> {
        let mut asked = Self {
            programs: Vec::new(),
            system: "ext2-soft".to_owned(),
            preemptions: 1,
            grain: Grain::Coarse,
            random: None,
            most: 20_000,
            replay: None,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--system" => asked.system = value()?,
                "--preemptions" => asked.preemptions = value()?.parse()?,
                "--fine" => asked.grain = Grain::Fine,
                "--random" => asked.random = Some(value()?.parse()?),
                "--most" => asked.most = value()?.parse()?,
                "--replay" => asked.replay = Some(value()?.parse()?),
                _ => asked.programs.push(word),
            }
        }
        if asked.programs.is_empty() {
            asked.programs = Program::names().into_iter().map(str::to_owned).collect();
        }
        Ok(asked)
    }

    fn plan(&self) -> Plan {
        let bounded = Plan::Bounded { preemptions: self.preemptions, grain: self.grain };
        self.random.map_or(bounded, |seed| Plan::Random { seed })
    }
}

fn named(name: &str) -> Result<Program, Failure> {
    let unknown = || format!("there is no program `{name}`; there are {}", Program::names().join(", "));
    Ok(Program::named(name).ok_or_else(unknown)?)
}

fn lab(system: &str) -> Result<ThreadLab, Failure> {
    Ok(ThreadLab::new(fstitch_systems::system(system)?, ThreadOptions::default())?)
}

fn replay(id: &StateId) -> Result<ExitCode, Failure> {
    let parts: Vec<&str> = id.workload.split('/').collect();
    let ["threads", name, schedule] = parts[..] else {
        return Err("it names no schedule: expected SYSTEM:threads/PROGRAM/SCHEDULE:LEVEL:CUT:CHOICE".into());
    };
    let (lab, program, schedule) = (lab(&id.system)?, named(name)?, schedule.parse::<Schedule>()?);
    let (_, found) = lab.prepare(&program)?.run(&schedule);
    Ok(said(found.as_ref()))
}

fn said(found: Option<&Found>) -> ExitCode {
    match found {
        Some(found) => {
            println!("{} [{}]", found.violation, found.id);
            ExitCode::FAILURE
        }
        None => {
            println!("nothing found");
            ExitCode::SUCCESS
        }
    }
}

fn main() -> Result<ExitCode, Failure> {
    // A panic is a violation and is reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    let asked = Asked::read()?;
    if let Some(id) = &asked.replay {
        return replay(id);
    }
    let lab = lab(&asked.system)?;
    for name in &asked.programs {
        let program = named(name)?;
        let mut prepared = match lab.prepare(&program) {
            Ok(prepared) => prepared,
            Err(violation) => {
                println!("{violation} [{name} without threads]");
                return Ok(ExitCode::FAILURE);
            }
        };
        let found = prepared.search(asked.plan(), asked.most, &mut |_| ControlFlow::Continue(()));
        let counts = prepared.counts();
        eprintln!(
            "{name}: {} schedules of {} steps each, {} pasts, {} images{}",
            counts.schedules,
            counts.steps / counts.schedules.max(1),
            counts.pasts,
            counts.images,
            if counts.is_complete { ", all there are" } else { "" }
        );
        if found.is_some() {
            return Ok(said(found.as_ref()));
        }
    }
    Ok(said(None))
}
