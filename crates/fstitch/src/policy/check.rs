//! `fstitch policy check`.

use anyhow::Result;
use fstitch_shepherd::policy::BadPolicy;
use fstitch_shepherd::{Policy, VolumeFacts};
use serde::Serialize;

use super::text_of;
use crate::output::{Outcome, json, text};

/// Arguments of `policy check`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// For a volume on so many disks
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    disks: u16,
    /// The name of a policy that comes with the program, or a file
    #[arg(value_name = "POLICY")]
    policy: String,
}

/// The verdict. Field names are a contract.
#[derive(Serialize)]
struct Verdict<'a> {
    right: bool,
    line: Option<usize>,
    what: Option<&'a str>,
    remedy: Option<&'a str>,
}

/// Runs `policy check`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let source = text_of(&arguments.policy)?;
    let refused = refusal(&source, usize::from(arguments.disks)).err();
    if arguments.json {
        json(&Verdict {
            right: refused.is_none(),
            line: refused.as_ref().map(|refused| refused.line),
            what: refused.as_ref().map(|refused| refused.what.as_str()),
            remedy: refused
                .as_ref()
                .map(|refused| refused.remedy.as_str())
                .filter(|remedy| !remedy.is_empty()),
        })?;
    } else if let Some(refused) = &refused {
        eprintln!("fstitch: {}: {refused}", arguments.policy);
    } else {
        text(&format!("{}: nothing is wrong with it\n", arguments.policy))?;
    }
    Ok(if refused.is_some() { Outcome::FAILURE } else { Outcome::SUCCESS })
}

fn refusal(text: &str, disks: usize) -> Result<(), BadPolicy> {
    Policy::parse(text)?.check_volume(text, &VolumeFacts { disks })
}
