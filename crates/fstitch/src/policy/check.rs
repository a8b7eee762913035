//! `fstitch policy check`.

use anyhow::Result;
use fstitch_shepherd::policy::{BadPolicy, Direction, Group, Kind};
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
    /// What is lawful, and perhaps not what was meant.
    warnings: Vec<&'a str>,
}

/// A volume with a journal needs that as much as what it is the journal of.
const BARE_JOURNAL: &str = "metadata has copies and the journal has none: of a volume with a journal that is lost, metadata cannot be recovered after \
    a crash. A table `[journal]` gives it copies: read = [\"mirror\"], write = [\"mirror …\"]";

/// What may not have been meant.
fn warnings(policy: &Policy) -> Vec<&'static str> {
    let has_copies = |group: Group| {
        let mut kinds = Kind::ALL.into_iter().filter(|kind| kind.group() == group);
        kinds.any(|kind| policy.chain(kind, Direction::Write).keeps_copies())
    };
    let is_bare = has_copies(Group::Metadata) && !has_copies(Group::Journal);
    is_bare.then_some(BARE_JOURNAL).into_iter().collect()
}

/// Runs `policy check`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let source = text_of(&arguments.policy)?;
    let (refused, warnings) = match judged(&source, usize::from(arguments.disks)) {
        Ok(policy) => (None, warnings(&policy)),
        Err(refused) => (Some(refused), Vec::new()),
    };
    if arguments.json {
        json(&Verdict {
            right: refused.is_none(),
            line: refused.as_ref().map(|refused| refused.line),
            what: refused.as_ref().map(|refused| refused.what.as_str()),
            remedy: refused
                .as_ref()
                .map(|refused| refused.remedy.as_str())
                .filter(|remedy| !remedy.is_empty()),
            warnings,
        })?;
    } else if let Some(refused) = &refused {
        eprintln!("fstitch: {}: {refused}", arguments.policy);
    } else {
        text(&format!("{}: nothing is wrong with it\n", arguments.policy))?;
        for warning in warnings {
            text(&format!("{}: but {warning}\n", arguments.policy))?;
        }
    }
    Ok(if refused.is_some() { Outcome::FAILURE } else { Outcome::SUCCESS })
}

fn judged(text: &str, disks: usize) -> Result<Policy, BadPolicy> {
    let policy = Policy::parse(text)?;
    policy.check_volume(text, &VolumeFacts { disks })?;
    Ok(policy)
}
