//! `fstitch policy show`.

use std::fmt::Write;

use anyhow::Result;
use fstitch_shepherd::Policy;
use fstitch_shepherd::policy::{Chain, Direction, Kind};
use serde::Serialize;

use super::{policy_of, text_of};
use crate::output::{Outcome, json, text};

/// Arguments of `policy show`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The chain of every kind of block, instead of the text
    #[arg(long)]
    chains: bool,
    /// The name of a policy that comes with the program, or a file
    #[arg(value_name = "POLICY")]
    policy: String,
}

/// What a policy says. Field names are a contract.
#[derive(Serialize)]
struct Shown {
    description: String,
    on_fault: Option<String>,
    kinds: Vec<ShownKind>,
}

#[derive(Serialize)]
struct ShownKind {
    kind: &'static str,
    group: &'static str,
    read: Vec<String>,
    write: Vec<String>,
}

fn steps(chain: &Chain) -> Vec<String> {
    chain.steps().map(|step| step.to_string()).collect()
}

/// Runs `policy show`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let policy = policy_of(&arguments.policy)?;
    if arguments.json {
        json(&shown(policy))?;
    } else if arguments.chains {
        text(&table(&policy)?)?;
    } else {
        text(&text_of(&arguments.policy)?)?;
    }
    Ok(Outcome::SUCCESS)
}

fn shown(policy: Policy) -> Shown {
    let kind = |kind: Kind| ShownKind {
        kind: kind.name(),
        group: kind.group().name(),
        read: steps(policy.chain(kind, Direction::Read)),
        write: steps(policy.chain(kind, Direction::Write)),
    };
    let kinds = Kind::ALL.into_iter().map(kind).collect();
    Shown { description: policy.description, on_fault: policy.on_fault, kinds }
}

fn table(policy: &Policy) -> Result<String> {
    let mut lines = String::new();
    for kind in Kind::ALL {
        for direction in Direction::ALL {
            let name = if direction == Direction::Read { kind.name() } else { "" };
            writeln!(lines, "{name:<18} {:<5}  {}", direction.name(), policy.chain(kind, direction))?;
        }
    }
    Ok(lines)
}
