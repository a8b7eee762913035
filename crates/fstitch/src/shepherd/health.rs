//! `fstitch health`: how a volume that follows a policy is doing, and what to do about it.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use fstitch_shepherd::Shepherd;
use fstitch_shepherd::engine::{Opened, Trouble};
use serde::{Deserialize, Serialize};

use crate::control::client::if_mounted;
use crate::control::{Request, Response};
use crate::open::{self, Access};
use crate::output::{Outcome, json, text};

/// Arguments of `health`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The mount point of a volume that is mounted; or an image file or block device
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// How a volume is doing. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Health {
    /// `good`, `degraded` or `failing`.
    pub verdict: String,
    /// Why it is not good.
    pub causes: Vec<String>,
    /// What can be done.
    pub remedies: Vec<String>,
    /// The policy's description.
    pub policy: String,
    /// Blocks for copies and for what is moved.
    pub spares: u64,
    /// Of these, free ones.
    pub spares_free: u64,
    /// And those that cannot be written.
    pub spares_bad: u64,
    /// Copies that there are.
    pub copies: u64,
    /// Groups of blocks that have parity.
    pub groups: u64,
    /// Blocks that are not at home, because that could not be written.
    pub moved: u64,
    /// What has happened since the volume follows its policy.
    pub counts: Vec<Count>,
}

/// How often something has happened to blocks of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Count {
    /// The kind of block.
    pub kind: String,
    /// What has happened.
    pub what: String,
    /// How often.
    pub count: u64,
}

/// Looks at a volume that is open.
pub fn of(shepherd: &Shepherd, opened: &Opened) -> Health {
    let (counted, holdings) = (shepherd.lifetime(), shepherd.holdings());
    let mut health = Health {
        policy: shepherd.policy().description.clone(),
        spares: holdings.spares,
        spares_free: holdings.free,
        spares_bad: holdings.bad,
        copies: holdings.copies,
        groups: holdings.groups,
        moved: holdings.moved,
        counts: counted
            .counts()
            .map(|(kind, what, count)| Count {
                kind: kind.name().to_owned(),
                what: what.name().to_owned(),
                count,
            })
            .collect(),
        ..Health::default()
    };
    let mut is_failing = false;
    let mut cause = |fails: bool, count: u64, text: &str, remedy: &str| {
        if count > 0 {
            is_failing |= fails;
            health.causes.push(format!("{count} {text}"));
            if !health.remedies.iter().any(|other| other == remedy) {
                health.remedies.push(remedy.to_owned());
            }
        }
    };
    let replace = "copy the volume to another disk, and replace this one";
    let scrub = "run `fstitch scrub`, which restores what can be restored";
    cause(
        true,
        counted.all(Trouble::Propagated),
        "faults went to those who asked, as the policy says",
        replace,
    );
    cause(
        true,
        counted.all(Trouble::NotRenewed),
        "blocks cannot be written, and are read from copies",
        replace,
    );
    cause(true, holdings.moved, "blocks could not be written at home, and were moved", replace);
    cause(true, holdings.bad, "spares cannot be written", replace);
    cause(false, counted.all(Trouble::Renewed), "blocks were damaged, and restored from copies", scrub);
    cause(false, counted.all(Trouble::CopyLost), "copies could not be made", scrub);
    cause(false, counted.all(Trouble::MapLost), "blocks of the maps are lost", scrub);
    cause(false, opened.unverified, "blocks were taken as a crash had left them", scrub);
    let reported = counted.all(Trouble::Read) + counted.all(Trouble::Write);
    cause(false, reported, "errors were reported by the disk", scrub);
    health.verdict = match (is_failing, health.causes.is_empty()) {
        (true, _) => "failing",
        (false, true) => "good",
        (false, false) => "degraded",
    }
    .to_owned();
    health
}

impl Health {
    fn describe(&self, name: &str) -> Result<String> {
        let mut shown = format!("{name}: {}\n", self.verdict);
        for cause in &self.causes {
            writeln!(shown, "  because {cause}")?;
        }
        for remedy in &self.remedies {
            writeln!(shown, "  {remedy}")?;
        }
        writeln!(shown, "  {:<20} {}", "policy", self.policy)?;
        writeln!(
            shown,
            "  {:<20} {}, {} free, {} cannot be written",
            "spares", self.spares, self.spares_free, self.spares_bad
        )?;
        writeln!(shown, "  {:<20} {}", "copies", self.copies)?;
        writeln!(shown, "  {:<20} {}", "groups with parity", self.groups)?;
        writeln!(shown, "  {:<20} {}", "moved blocks", self.moved)?;
        for count in &self.counts {
            writeln!(shown, "  {:<20} {} of {}", count.what, count.count, count.kind)?;
        }
        Ok(shown)
    }
}

/// Runs `health`: success if it is good.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let name = arguments.image.display().to_string();
    let health = match if_mounted(&arguments.image)? {
        Some(mut connection) => match connection.ask(&Request::Health)? {
            Response::Health(health) => *health,
            Response::Error(reason) => bail!("{reason}"),
            other => bail!("an unexpected answer: {other:?}"),
        },
        None => {
            let opened = arguments.volume.open_kept(&arguments.image, Access::ReadOnly)?;
            let kept = opened.kept.with_context(|| format!("{name}: it follows no policy"))?;
            of(kept.shepherd(), kept.opened())
        }
    };
    if arguments.json {
        json(&health)?;
    } else {
        text(&health.describe(&name)?)?;
    }
    Ok(if health.verdict == "good" { Outcome::SUCCESS } else { Outcome::FAILURE })
}
