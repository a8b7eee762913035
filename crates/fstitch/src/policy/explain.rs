//! `fstitch policy explain`.

use std::fmt::Write;

use anyhow::Result;
use clap::ValueEnum;
use fstitch_shepherd::Policy;
use fstitch_shepherd::model::{Fault, Scenario, Seen, Story, explain};
use fstitch_shepherd::policy::{Direction, Kind};
use serde::Serialize;

use super::policy_of;
use crate::output::{Outcome, json, text};

/// What `--help` says.
pub const HELP: &str = "Say what will happen when something fails.\n\n\
    The answer comes from a model that shares nothing with what carries policies out but the policy itself. Without --fault every \
    fault is gone through. What a step could use is there and right, unless --lost names it.";

/// Arguments of `policy explain`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// What fails at the block's home
    #[arg(long, value_name = "FAULT", value_parser = fault)]
    fault: Option<Fault>,
    /// What else is lost, as a list with commas
    #[arg(long, value_name = "WHAT", value_delimiter = ',')]
    lost: Vec<Lost>,
    /// The name of a policy that comes with the program, or a file
    #[arg(value_name = "POLICY")]
    policy: String,
    /// The kind of block, as in `policy show --chains`
    #[arg(value_name = "KIND", value_parser = kind)]
    kind: Kind,
    /// read or write
    #[arg(value_name = "DIRECTION", value_parser = direction)]
    direction: Direction,
}

/// Something that a step could have used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Lost {
    /// All copies
    Copies,
    /// The parity, or another block of its group
    Parity,
    /// The repair by the format's rules
    Repair,
    /// What a full check could make sound
    Check,
    /// The home, which cannot be written any more
    Home,
    /// Spare blocks, or room in the map
    Spares,
}

fn fault(name: &str) -> Result<Fault, String> {
    let names = || Fault::ALL.map(Fault::name).join(", ");
    Fault::of_name(name).ok_or_else(|| format!("there are {}", names()))
}

fn kind(name: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::of_name(name).ok_or_else(|| format!("there are {}", names()))
}

fn direction(name: &str) -> Result<Direction, String> {
    Direction::ALL
        .into_iter()
        .find(|direction| direction.name() == name)
        .ok_or_else(|| "there are read, write".into())
}

/// One fault and what comes of it. Names and words of events are a contract.
#[derive(Serialize)]
struct Told {
    fault: &'static str,
    events: Vec<&'static str>,
    seen: &'static str,
    latent: bool,
}

/// Runs `policy explain`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let policy = policy_of(&arguments.policy)?;
    let faults = arguments.fault.map_or_else(|| Fault::ALL.to_vec(), |fault| vec![fault]);
    let stories: Vec<(Fault, Story)> =
        faults.into_iter().map(|fault| (fault, story(&policy, arguments, fault))).collect();
    if arguments.json {
        json(&stories.iter().map(|(fault, story)| told(*fault, story)).collect::<Vec<_>>())?;
    } else {
        text(&lines(&stories)?)?;
    }
    Ok(Outcome::SUCCESS)
}

fn story(policy: &Policy, arguments: &Arguments, fault: Fault) -> Story {
    let mut scenario = Scenario::of(fault);
    for lost in &arguments.lost {
        match lost {
            Lost::Copies => scenario.copies = false,
            Lost::Parity => scenario.parity = false,
            Lost::Repair => scenario.repairable = false,
            Lost::Check => scenario.checkable = false,
            Lost::Home => scenario.writable = false,
            Lost::Spares => scenario.spares = false,
        }
    }
    explain(policy, arguments.kind, arguments.direction, &scenario)
}

fn told(fault: Fault, story: &Story) -> Told {
    let seen = match story.seen {
        Seen::Right => "right",
        Seen::Wrong => "wrong",
        Seen::Error => "eio",
    };
    let events = story.events.iter().map(|event| event.name()).collect();
    Told { fault: fault.name(), events, seen, latent: story.is_latent }
}

/// Each story below the name of its fault, if there are several.
fn lines(stories: &[(Fault, Story)]) -> Result<String> {
    let mut lines = String::new();
    for (fault, story) in stories {
        let shown = story.to_string();
        if stories.len() == 1 {
            writeln!(lines, "{shown}")?;
        } else {
            writeln!(lines, "{}\n  {}", fault.name(), shown.replace('\n', "\n  "))?;
        }
    }
    Ok(lines)
}
