//! `fstitch fsck`: checks and repairs, offline on an image or online on a mount.

mod ask;

use std::fmt::Write;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail, ensure};
use fstitch_core::num::to_usize;
use fstitch_core::{
    BlockDevice, CheckReport, Clock, Error, FindingClass, Overlay, RepairMode, RepairOptions, SystemClock,
};
use fstitch_disk::{Direct, DiskOptions, FileDisk};
use fstitch_formats::{FORMATS, Format, KeepsMaps, MapsAt, Recovery};
use fstitch_fs::view::BlockView;
use serde::{Deserialize, Serialize};

use crate::control::client::Connection;
use crate::control::{Request, Response};
use crate::open::{self, Access};
use crate::output::{Outcome, json, spinner, text};
use crate::shepherd::{self, Kept, lost};
use crate::{claim, disks, probe, recovery};

/// fsck(8): nothing is wrong.
const CLEAN: Outcome = Outcome(0);
/// fsck(8): errors were corrected.
const CORRECTED: Outcome = Outcome(1);
/// fsck(8): errors were left.
const LEFT: Outcome = Outcome(4);
/// fsck(8): it could not do its work.
pub const OPERATIONAL: Outcome = Outcome(8);
/// fsck(8): wrong usage.
pub const USAGE: Outcome = Outcome(16);

/// Arguments of `fsck`.
#[derive(clap::Args)]
#[command(
    after_help = "Without -n, -p and -y it asks before it repairs. Where there is no terminal to ask on, and \
                        with --json and --online, it then only checks.\n\nExit codes: 0 nothing wrong, 1 errors corrected, 4 errors left, 8 could not check, \
                        16 wrong usage."
)]
pub struct Arguments {
    /// Only check
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no: bool,
    /// Repair what a crash may leave behind; anything else is left alone and reported
    #[arg(short = 'p', visible_short_alias = 'a')]
    preen: bool,
    /// Repair everything
    #[arg(short = 'y')]
    yes: bool,
    /// Check even if the volume is marked clean
    #[arg(short = 'f', long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// IMAGE is a mount point: check the mounted volume, and with -p or -y reclaim what a crash left behind
    #[arg(long)]
    online: bool,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device; with --online, the mount point
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// What a check found. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Report {
    /// What the journal brought, if there was something to replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Recovery>,
    /// The volume was marked clean and was not looked at further.
    pub skipped_clean: bool,
    /// How many findings there were.
    pub total: u64,
    /// How many of them are lawful after a crash.
    pub allowed: u64,
    /// How many of them are damage.
    pub corrupt: u64,
    /// How many changes were made to mend them.
    pub repaired: u64,
    /// How many findings are left.
    pub left: u64,
    /// The blocks of a journal that was made in place of one that nobody could use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_journal: Option<u32>,
    /// The findings, at most 10,000.
    pub findings: Vec<Finding>,
    /// Whether somebody has been shown them already.
    #[serde(skip)]
    told: bool,
    /// Whether a repair was tried.
    #[serde(skip)]
    tried: bool,
}

/// One finding.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Finding {
    /// `allowed` or `corrupt`.
    pub class: Class,
    /// A stable name, such as `block-leaked`.
    pub code: String,
    /// What and where, for people.
    pub text: String,
}

/// Whether a finding is lawful after a crash.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A crash under soft updates may leave it.
    Allowed,
    /// Damage.
    Corrupt,
}

impl Report {
    /// The report of a check that found `found`, after which `repaired` changes left `left` findings.
    pub fn new(found: &CheckReport, repaired: u64, left: u64) -> Self {
        let findings = found.findings.iter().map(|finding| Finding {
            class: match finding.class {
                FindingClass::Allowed => Class::Allowed,
                FindingClass::Corrupt => Class::Corrupt,
            },
            code: finding.code.to_owned(),
            text: finding.text.clone(),
        });
        Self {
            journal: None,
            skipped_clean: false,
            total: found.total,
            allowed: found.total - found.corrupt,
            corrupt: found.corrupt,
            repaired,
            left,
            new_journal: None,
            findings: findings.collect(),
            told: false,
            tried: false,
        }
    }

    fn outcome(&self) -> Outcome {
        match (self.left, self.repaired) {
            (0, 0) => CLEAN,
            (0, _) => CORRECTED,
            _ => LEFT,
        }
    }

    fn describe(&self, name: &str, repairing: bool) -> Result<String> {
        let mut shown = String::new();
        if let Some(journal) = &self.journal {
            writeln!(shown, "{name}: {}", journal.describe())?;
        }
        if self.skipped_clean {
            writeln!(shown, "{name}: marked clean; -f checks it all the same")?;
            return Ok(shown);
        }
        if !self.told {
            shown.push_str(&self.list()?);
        }
        self.conclude(&mut shown, name, repairing)?;
        if let Some(blocks) = self.new_journal {
            writeln!(shown, "{name}: a new journal of {blocks} blocks was made")?;
        }
        Ok(shown)
    }

    /// The findings, a line each.
    fn list(&self) -> Result<String> {
        let mut shown = String::new();
        for finding in &self.findings {
            let class = match finding.class {
                Class::Allowed => "allowed",
                Class::Corrupt => "CORRUPT",
            };
            writeln!(shown, "{class} {}: {}", finding.code, finding.text)?;
        }
        let listed = u64::try_from(self.findings.len())?;
        if listed < self.total {
            writeln!(shown, "… and {} more", self.total - listed)?;
        }
        Ok(shown)
    }

    fn conclude(&self, shown: &mut String, name: &str, repairing: bool) -> Result<()> {
        match (self.total, self.left) {
            (0, _) => writeln!(shown, "{name}: nothing wrong")?,
            (_, 0) => writeln!(shown, "{name}: {}, all mended", counted(self.total, "finding"))?,
            _ => writeln!(
                shown,
                "{name}: {} that a crash may leave, {}{}",
                counted(self.allowed, "finding"),
                counted(self.corrupt, "damage"),
                self.advice(repairing)
            )?,
        }
        Ok(())
    }

    fn advice(&self, repairing: bool) -> &'static str {
        match (self.corrupt, repairing) {
            (0, false) => "; -p mends them, and a mount does so by itself",
            (_, false) => "; -y repairs them (copy the image first if it matters)",
            (_, true) => "; not all could be mended, or -y is needed",
        }
    }
}

impl Arguments {
    /// Whether to ask before each repair: nothing else was said, and there is somebody to ask.
    fn asks(&self) -> bool {
        let decided = self.no || self.preen || self.yes || self.json || self.online;
        !decided && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }
}

/// `1 finding`, `2 findings`.
fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// Runs `fsck`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let report = if arguments.online { online(arguments)? } else { offline(arguments)? };
    if arguments.json {
        json(&report)?;
    } else {
        let name = arguments.image.display().to_string();
        text(&report.describe(&name, report.tried || arguments.preen || arguments.yes)?)?;
    }
    Ok(report.outcome())
}

fn online(arguments: &Arguments) -> Result<Report> {
    let repair = arguments.preen || arguments.yes;
    match Connection::required(&arguments.image)?.ask(&Request::Fsck { repair })? {
        Response::Fsck(report) => Ok(report),
        Response::Error(reason) => bail!("{reason}"),
        other => bail!("an unexpected answer: {other:?}"),
    }
}

fn offline(arguments: &Arguments) -> Result<Report> {
    let asks = arguments.asks();
    let mode = match (arguments.preen, arguments.yes) {
        (_, true) => RepairMode::Yes,
        (true, _) => RepairMode::Preen,
        _ => RepairMode::No,
    };
    let access = if mode == RepairMode::No && !asks { Access::ReadOnly } else { Access::ReadWrite };
    let (kept, found) = if disks::is_several(&arguments.image) {
        on_disks(arguments, access)?
    } else {
        on_disk(arguments, asks, access)?
    };
    let format = match found {
        Ok(found) => found.format,
        Err(other) => with_backup(&kept.view())?
            .ok_or_else(|| anyhow!("{}; nor is there a superblock where its copies would be", other.text))?,
    };
    let external = arguments.volume.journal.as_deref();
    let kept = match access {
        Access::ReadWrite => kept.claimed(&arguments.image, format, external.is_some())?,
        Access::ReadOnly => kept,
    };
    let view = kept.view();
    let disk: &dyn BlockDevice = &view;
    let had_journal = format.has_journal(disk);
    if mode == RepairMode::No && !asks && must_recover(format, disk)? {
        let view = Overlay::new(disk);
        let journal =
            recovery::recover_in_memory(format, &view, external).context("the journal cannot be replayed")?;
        return check(arguments, (format, &view), RepairMode::No, journal);
    }
    let journal = if mode != RepairMode::No || asks { recover(arguments, format, disk)? } else { None };
    let mut report = check(arguments, (format, disk), mode, journal)?;
    if had_journal && report.left == 0 && report.tried && !format.has_journal(disk) {
        let renewed = format.renew_journal(disk, SystemClock::new().now());
        report.new_journal = renewed.context("making another journal")?;
    }
    kept.close(format)?;
    Ok(report)
}

/// The volume on one disk, and what it seems to be.
fn on_disk(
    arguments: &Arguments,
    asks: bool,
    access: Access,
) -> Result<(Checked, Result<probe::Found, probe::Other>)> {
    let offset = arguments.volume.start(&arguments.image)?;
    if let Some(lost) = lost::instead(&arguments.image, (offset, access, Direct::Auto), access)? {
        let device = lost.kept.device();
        let block_size = lost.format.checked_in(device.geometry().block_size);
        let (kept, unit) = (Box::new(lost.kept), to_usize(block_size));
        return Ok((
            Checked::Kept { kept, device, unit },
            Ok(probe::Found { format: lost.format, block_size, is_shared: false }),
        ));
    }
    let found = probe::format(&arguments.image, offset)?;
    let disk = DiskOptions {
        block_size: found.as_ref().map_or(probe::UNTOLD_BLOCK, |found| found.block_size),
        offset,
        read_only: access == Access::ReadOnly,
        // Who only looks reads small pieces, mostly one after the other: the kernel reads ahead, and remembers.
        direct: if access == Access::ReadOnly { Direct::Never } else { Direct::Auto },
        ..DiskOptions::default()
    };
    if let Some(other) = found.as_ref().err().filter(|other| other.certain) {
        let alone = disks::alone(&arguments.image).filter(|_| offset == 0);
        return Err(alone.unwrap_or_else(|| anyhow!("{}", other.text)));
    }
    let disk = match open_to_check(&arguments.image, &disk, found.as_ref().ok()) {
        Err(error) if asks => return Err(error.context("cannot repair (-n only checks)")),
        disk => disk?,
    };
    Ok((through_policy(arguments, offset, disk, access)?, found))
}

/// Sectors of disks that read and write no smaller blocks past the kernel's memory.
const SECTOR_MAX: u32 = 4096;

/// Opens a disk; where other machines may be told who uses the volume that is to be mended, past what this machine remembers of it.
fn open_to_check(image: &Path, options: &DiskOptions, found: Option<&probe::Found>) -> Result<FileDisk> {
    let disk = open::disk(image, options)?;
    if options.read_only || !may_be_shared(&disk, found)? {
        return Ok(disk);
    }
    // The same disk may not be open twice.
    drop(disk);
    let direct = DiskOptions { direct: Direct::Always, ..options.clone() };
    match open::disk(image, &direct) {
        Err(error) if options.block_size < SECTOR_MAX => {
            open::disk(image, &DiskOptions { block_size: SECTOR_MAX, ..direct }).map_err(|_| error)
        }
        disk => disk,
    }
}

/// Whether other machines may be told who uses the volume on `disk`, whatever of it is damaged.
fn may_be_shared(disk: &dyn BlockDevice, found: Option<&probe::Found>) -> Result<bool> {
    let formats = found.map_or_else(|| FORMATS.to_vec(), |found| vec![found.format]);
    for shares in formats.iter().filter_map(|format| format.shares()) {
        if shares.may_be_shared(disk)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The volume on several disks. What it is may be too damaged to tell: then there may be copies of its superblock.
fn on_disks(arguments: &Arguments, access: Access) -> Result<(Checked, Result<probe::Found, probe::Other>)> {
    let other = |error: anyhow::Error| probe::Other {
        text: format!("{}: {}", arguments.image.display(), crate::output::reasons(&error)),
        certain: false,
    };
    if disks::stripe::is_one(&arguments.image) {
        let stripe = disks::stripe::open(&arguments.image, access, Direct::Auto)?;
        let found = probe::on_device(&stripe).map_err(other);
        return Ok((Checked::Plain { device: Arc::new(stripe), claim: None }, found));
    }
    let (kept, _) = open::array(&arguments.image, access, Direct::Auto, None)?;
    let device = kept.device();
    let found = probe::on_device(&*device).map_err(other);
    if let Ok(found) = &found {
        kept.judge_by(found.format)?;
    }
    let unit = to_usize(device.geometry().block_size);
    Ok((Checked::Kept { kept: Box::new(kept), device, unit }, found))
}

/// A volume to be checked, on its disk or on the shepherd that its policy has put before it.
enum Checked {
    Plain { device: Arc<dyn BlockDevice>, claim: Option<claim::Claimed> },
    Kept { kept: Box<Kept>, device: Arc<dyn BlockDevice>, unit: usize },
}

impl Checked {
    fn plain(disk: FileDisk) -> Self {
        Self::Plain { device: Arc::new(disk), claim: None }
    }

    /// The volume in the blocks in which it is checked.
    fn view(&self) -> BlockView<'_> {
        match self {
            Self::Plain { device, .. } => BlockView::new(&**device, to_usize(device.geometry().block_size)),
            Self::Kept { device, unit, .. } => BlockView::new(&**device, *unit),
        }
    }

    /// The same claimed by who mends it, if other machines are told who uses it. Where nothing tells that any more it is mended without.
    fn claimed(self, image: &Path, format: &dyn Format, by_other_journal: bool) -> Result<Self> {
        let Some(shares) = format.shares() else { return Ok(self) };
        let name = || image.display().to_string();
        let Self::Plain { device, .. } = self else {
            ensure!(!shares.may_be_shared(&self.view())?, "{}: {}", name(), open::SHARED_BY_DISKS);
            return Ok(self);
        };
        if !shares.may_be_shared(&device)? {
            return Ok(Self::Plain { device, claim: None });
        }
        ensure!(!by_other_journal, "{}: {}", name(), open::SHARED_JOURNAL);
        let claim = claim::Claimed::to_mend(&device, shares, image).with_context(name)?;
        Ok(Self::Plain { device: claim.as_ref().map_or(device, claim::Claimed::device), claim })
    }

    /// What was mended is known to the maps as well.
    fn close(self, format: &dyn Format) -> Result<()> {
        match self {
            Self::Plain { claim, .. } => claim.map_or(Ok(()), claim::Claimed::release),
            Self::Kept { kept, .. } => {
                kept.renew(format)?;
                kept.close()
            }
        }
    }
}

/// How often it is asked where maps are.
const MAPS_ASKED: u32 = 4;

/// Puts the shepherd before the disk of a volume that follows a policy. Maps that cannot be used keep nobody from looking, but from mending.
fn through_policy(arguments: &Arguments, offset: u64, disk: FileDisk, access: Access) -> Result<Checked> {
    let Ok(probe::Found { format, block_size, .. }) = probe::volume(&arguments.image, offset) else {
        return Ok(Checked::plain(disk));
    };
    let unit = to_usize(disk.geometry().block_size);
    let keeps = format.keeps_maps();
    let view = BlockView::new(&disk, to_usize(block_size));
    // What is asked in vain is asked again: much depends on the answer.
    let ask = |keeps: &dyn KeepsMaps| {
        let mut asked = (0..MAPS_ASKED).map(|_| keeps.maps(&view));
        let answer = asked.find(|answer| !matches!(answer, Err(Error::Io { .. })));
        answer.unwrap_or_else(|| keeps.maps(&view))
    };
    match keeps.map(ask) {
        Some(Ok(MapsAt::Here(_))) => {}
        Some(Err(error)) => {
            tracing::warn!("whether the volume follows a policy cannot be told: {error}");
            return Ok(Checked::plain(disk));
        }
        None | Some(Ok(_)) => return Ok(Checked::plain(disk)),
    }
    // The same disk may not be open twice.
    drop(disk);
    let options =
        DiskOptions { block_size, offset, read_only: access == Access::ReadOnly, ..DiskOptions::default() };
    let disk: Arc<dyn BlockDevice> = Arc::new(open::disk(&arguments.image, &options)?);
    let name = arguments.image.display().to_string();
    match shepherd::over(&disk, format, access, (&name, None)) {
        Ok(Some(kept)) => Ok(Checked::Kept { device: kept.device(), kept: Box::new(kept), unit }),
        Ok(None) => bail!("{name}: its policy was taken away meanwhile"),
        // What was moved would be taken for what it was before, and mended to death.
        Err(error) if access == Access::ReadWrite => {
            Err(error.context("nothing was checked (-n checks it as if it followed no policy)"))
        }
        Err(error) => {
            tracing::warn!(
                "{name}: {}; it is checked as if it followed none",
                crate::output::reasons(&error)
            );
            drop(disk);
            let options = DiskOptions { block_size: u32::try_from(unit)?, ..options };
            Ok(Checked::plain(open::disk(&arguments.image, &options)?))
        }
    }
}

/// The format of a volume whose start cannot be read, if there is something to repair it by.
fn with_backup(disk: &dyn BlockDevice) -> Result<Option<&'static dyn Format>> {
    for format in FORMATS {
        if format.has_backup(disk)? {
            return Ok(Some(*format));
        }
    }
    Ok(None)
}

/// Whether the volume is one that must be recovered. One whose superblock is damaged must be repaired first.
fn must_recover(format: &dyn Format, disk: &dyn BlockDevice) -> Result<bool> {
    match format.needs_recovery(disk) {
        Err(Error::Corrupt(_)) => Ok(false),
        other => Ok(other?),
    }
}

/// Replays the journal. With `-y`, one that cannot be replayed is given up: the volume goes on without.
fn recover(arguments: &Arguments, format: &dyn Format, disk: &dyn BlockDevice) -> Result<Option<Recovery>> {
    if !must_recover(format, disk)? {
        return Ok(None);
    }
    let external = arguments.volume.journal.as_deref();
    let recovered = match arguments.yes {
        true => recovery::recover_or_give_up(format, disk, external),
        false => recovery::recover(format, disk, external),
    };
    recovered.context("the journal cannot be replayed (-y goes on without it)")
}

fn check(
    arguments: &Arguments,
    (format, disk): (&dyn Format, &dyn BlockDevice),
    mode: RepairMode,
    journal: Option<Recovery>,
) -> Result<Report> {
    let asks = arguments.asks();
    if !arguments.force && format.is_marked_clean(disk) {
        return Ok(Report { journal, skipped_clean: true, ..Report::default() });
    }
    let repair = |mode| {
        let display = spinner(arguments.json);
        display.set_message("checking");
        display.enable_steady_tick(std::time::Duration::from_millis(100));
        let done = format.repair(disk, RepairOptions { mode, now: SystemClock::new().now() });
        display.finish_and_clear();
        done.with_context(|| format!("checking {}", arguments.image.display()))
    };
    let done = if asks {
        let mut dialogue = ask::Dialogue::new(std::io::stdin().lock(), std::io::stdout());
        ask::converse(&mut dialogue, repair, |found| Report::new(found, 0, found.total).list())?
    } else {
        repair(mode)?
    };
    let mut report = Report::new(&done.found, done.mended, done.left.total);
    report.journal = journal;
    report.told = asks;
    report.tried = done.runs > 1;
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(allowed: u64, corrupt: u64, repaired: u64, left: u64) -> Report {
        Report { total: allowed + corrupt, allowed, corrupt, repaired, left, ..Report::default() }
    }

    #[test]
    fn exit_codes_are_those_of_fsck() {
        assert_eq!(report(0, 0, 0, 0).outcome(), CLEAN);
        assert_eq!(report(2, 0, 3, 0).outcome(), CORRECTED);
        assert_eq!(report(2, 0, 0, 2).outcome(), LEFT);
        assert_eq!(report(2, 1, 2, 1).outcome(), LEFT);
    }

    #[test]
    fn classes_have_stable_names() {
        assert_eq!(serde_json::to_string(&Class::Allowed).unwrap(), r#""allowed""#);
        assert_eq!(serde_json::to_string(&Class::Corrupt).unwrap(), r#""corrupt""#);
    }
}
