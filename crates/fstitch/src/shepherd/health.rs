//! `fstitch health`: how a volume that follows a policy is doing, and what to do about it.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockNo, Overlay};
use fstitch_formats::Format;
use fstitch_formats::whose::Role;
use fstitch_shepherd::engine::{Opened, Trouble};
use fstitch_shepherd::{Shepherd, Stretch};
use serde::{Deserialize, Serialize};

use super::Kept;
use super::whose::Whose;
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
    /// Say whom this block belongs to, and nothing else; may be given several times
    #[arg(long, value_name = "NUMBER")]
    block: Vec<u64>,
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
    /// Whom blocks belong to that cannot be read.
    pub damaged: Whose,
    /// Blocks of which there are fewer copies than the policy asks for.
    pub short_blocks: u64,
    /// Whom they belong to.
    pub short: Whose,
    /// How often it was checked while in use, since it was mounted, because its policy says so of a fault.
    #[serde(default)]
    pub full_checks: u64,
    /// How often it was opened anew, since it was mounted, for the same reason.
    #[serde(default)]
    pub remounts: u64,
    /// The disks, if the volume is on several.
    #[serde(default)]
    pub array: Option<crate::disks::DiskList>,
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

/// Blocks with too few copies whose owners are looked for.
const SHORT_MAX: usize = 1 << 16;

impl Health {
    /// The same with the names of what is damaged, as `device` has it now, and of what has too few copies: of blocks that hold the same kind of thing in
    /// all of `states`, because what was not written yet has none. All of the volume is looked at, if there is a reason to.
    pub fn with_names(
        mut self,
        kept: &Kept,
        format: &dyn Format,
        device: &dyn BlockDevice,
        states: &[&dyn BlockDevice],
    ) -> Self {
        let shepherd = kept.shepherd();
        self.damaged = kept.whose(format, device, &kept.damaged());
        // Nobody misses what they held.
        self.damaged.owners.retain(|owner| owner.role != Role::Free.name());
        let is_degraded = shepherd.disks().is_some_and(|array| array.is_degraded());
        if is_degraded || shepherd.lifetime().all(Trouble::CopyLost) > 0 {
            match in_all(format, states) {
                Ok(blocks) => {
                    let short = shepherd.short_of_copies(&blocks, SHORT_MAX);
                    self.short_blocks = short.count;
                    self.short = kept.whose(format, device, &short.first);
                    self.short.others += short.count - to_u64(short.first.len());
                }
                Err(error) => tracing::warn!("copies were not counted: {}", crate::output::reasons(&error)),
            }
        }
        let damaged = self.damaged.blocks();
        if damaged > 0 {
            self.verdict = "failing".to_owned();
            self.causes.push(format!("{damaged} blocks cannot be read"));
            self.remedies.push("restore the files named below from a backup".to_owned());
        }
        if self.short_blocks > 0 {
            if self.verdict == "good" {
                self.verdict = "degraded".to_owned();
            }
            self.causes.push(format!("{} blocks have fewer copies than the policy asks", self.short_blocks));
            let remedy = match kept.disks() {
                // The room for copies is what it was made with.
                Some(_) => {
                    "give it the disk that is missing (`fstitch disk replace`); if none is, copy it to an array of larger disks: how much of \
                     it is for copies stays what it was made with"
                }
                None => "give it more room for copies (`fstitch tune --policy NAME --spares BLOCKS`)",
            };
            self.remedies.push(remedy.to_owned());
        }
        self
    }

    /// The same with what its mount has carried out.
    pub fn with_remedies(mut self, carried: crate::mount::gate::Carried) -> Self {
        (self.full_checks, self.remounts) = (carried.full_checks, carried.remounts);
        for (count, what) in [
            (self.full_checks, "times it was checked while in use, after a fault"),
            (self.remounts, "times it was opened anew after a fault, and what was not stable was given up"),
        ] {
            if count == 0 {
                continue;
            }
            if self.verdict == "good" {
                "degraded".clone_into(&mut self.verdict);
            }
            self.causes.push(format!("{count} {what}"));
            let remedy =
                "the log of the mount names the faults; if they go on, copy the volume to another disk";
            if !self.remedies.iter().any(|other| other == remedy) {
                self.remedies.push(remedy.to_owned());
            }
        }
        self
    }

    /// The same with the disks of a volume on several.
    pub fn on_disks(mut self, disks: Option<&crate::disks::Disks>) -> Self {
        self.array = disks.map(crate::disks::list);
        for (cause, remedy) in self.array.iter().flat_map(crate::disks::DiskList::causes) {
            if self.verdict == "good" {
                "degraded".clone_into(&mut self.verdict);
            }
            self.causes.push(cause);
            self.remedies.push(remedy);
        }
        self
    }

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
        if let Some(array) = &self.array {
            shown.push_str(&array.describe());
        }
        for count in &self.counts {
            writeln!(shown, "  {:<20} {} of {}", count.what, count.count, count.kind)?;
        }
        shown.push_str(&self.damaged.describe("damaged"));
        shown.push_str(&self.short.describe("too few copies"));
        Ok(shown)
    }
}

/// The blocks that hold the same kind of thing in all states of a volume.
fn in_all(format: &dyn Format, states: &[&dyn BlockDevice]) -> Result<Vec<Stretch>> {
    let keeps = format.keeps_maps().context("a format with maps keeps maps")?;
    let mut all: Option<Vec<Stretch>> = None;
    for state in states {
        let here = keeps.census(*state)?;
        all = Some(all.map_or_else(|| here.clone(), |before| common(&before, &here)));
    }
    Ok(all.unwrap_or_default())
}

/// What is in both of two lists, each in order.
fn common(one: &[Stretch], other: &[Stretch]) -> Vec<Stretch> {
    let end = |stretch: &Stretch| stretch.start.get() + stretch.count;
    let (mut ones, mut others) = (one.iter().peekable(), other.iter().peekable());
    let mut common = Vec::new();
    while let (Some(a), Some(b)) = (ones.peek(), others.peek()) {
        let (from, to) = (a.start.max(b.start), end(a).min(end(b)));
        if a.kind == b.kind && from.get() < to {
            common.push(Stretch { start: from, count: to - from.get(), kind: a.kind });
        }
        if end(a) <= end(b) {
            ones.next();
        } else {
            others.next();
        }
    }
    common
}

/// A volume that nobody has mounted, as it would be after recovery.
fn unmounted(arguments: &Arguments, work: impl FnOnce(&Kept, &dyn Format, &dyn BlockDevice)) -> Result<()> {
    let name = || arguments.image.display().to_string();
    let opened = arguments.volume.open_kept(&arguments.image, Access::ReadOnly)?;
    let kept = opened.kept.as_ref().with_context(|| format!("{}: it follows no policy", name()))?;
    let view = Overlay::new(Arc::clone(&opened.device));
    if opened.format.needs_recovery(&view).unwrap_or(false) {
        crate::recovery::recover_in_memory(opened.format, &view, arguments.volume.journal.as_deref())
            .with_context(name)?;
    }
    work(kept, opened.format, &view);
    Ok(())
}

/// Runs `health`: success if it is good.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    if !arguments.block.is_empty() {
        return whose(arguments);
    }
    let name = arguments.image.display().to_string();
    let health = match if_mounted(&arguments.image)? {
        Some(mut connection) => match connection.ask(&Request::Health)? {
            Response::Health(health) => *health,
            Response::Error(reason) => bail!("{reason}"),
            other => bail!("an unexpected answer: {other:?}"),
        },
        None => {
            let mut health = Health::default();
            unmounted(arguments, |kept, format, view| {
                health = of(kept.shepherd(), kept.opened()).with_names(kept, format, view, &[view]);
                health = std::mem::take(&mut health).on_disks(kept.disks());
            })?;
            health
        }
    };
    if arguments.json {
        json(&health)?;
    } else {
        text(&health.describe(&name)?)?;
    }
    Ok(if health.verdict == "good" { Outcome::SUCCESS } else { Outcome::FAILURE })
}

/// Says whom blocks belong to.
fn whose(arguments: &Arguments) -> Result<Outcome> {
    let mut found = Whose::default();
    match if_mounted(&arguments.image)? {
        Some(mut connection) => match connection.ask(&Request::Whose { blocks: arguments.block.clone() })? {
            Response::Whose(whose) => found = whose,
            Response::Error(reason) => bail!("{reason}"),
            other => bail!("an unexpected answer: {other:?}"),
        },
        None => unmounted(arguments, |kept, format, view| {
            let blocks: Vec<BlockNo> = arguments.block.iter().copied().map(BlockNo).collect();
            found = kept.whose(format, view, &blocks);
        })?,
    }
    if arguments.json {
        json(&found)?;
    } else {
        text(&found.describe("block of"))?;
    }
    Ok(Outcome::SUCCESS)
}

#[cfg(test)]
mod tests {
    use fstitch_core::BlockKind;

    use super::*;

    #[test]
    fn only_what_is_the_same_in_both_states_counts() {
        let stretch = |start, count, kind| Stretch { start: BlockNo(start), count, kind };
        let before = [stretch(10, 10, BlockKind::Data), stretch(30, 5, BlockKind::Directory)];
        let after = [
            stretch(5, 8, BlockKind::Data),
            stretch(15, 1, BlockKind::Data),
            stretch(16, 4, BlockKind::Inode),
            stretch(30, 9, BlockKind::Directory),
        ];
        let common = common(&before, &after);
        let expected = [
            stretch(10, 3, BlockKind::Data),
            stretch(15, 1, BlockKind::Data),
            stretch(30, 5, BlockKind::Directory),
        ];
        assert_eq!(common, expected);
    }
}
