//! `fstitch policy list`.

use anyhow::Result;
use fstitch_shepherd::policy::SHIPPED;
use serde::Serialize;

use super::policy_of;
use crate::output::{Outcome, json, text};

/// Arguments of `policy list`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A policy. Field names are a contract.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    description: String,
}

/// Runs `policy list`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let listed = |name| Ok(Listed { name, description: policy_of(name)?.description });
    let all: Vec<Listed> = SHIPPED.iter().map(|shipped| listed(shipped.name)).collect::<Result<_>>()?;
    if arguments.json {
        json(&all)?;
    } else {
        let width = all.iter().map(|one| one.name.len()).max().unwrap_or(0);
        text(
            &all.iter().map(|one| format!("{:width$}  {}\n", one.name, one.description)).collect::<String>(),
        )?;
    }
    Ok(Outcome::SUCCESS)
}
