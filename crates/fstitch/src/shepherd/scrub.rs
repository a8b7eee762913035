//! `fstitch scrub`: everything that the maps of a policy speak of is read and compared; of a format whose blocks have checksums of
//! their own, all blocks in use.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Clock, SystemClock};
use fstitch_formats::whose::Role;
use fstitch_formats::{Format, HasSums, ScrubPlace};
use fstitch_shepherd::engine::Scrubbed;
use fstitch_shepherd::{Shepherd, Stretch};
use serde::{Deserialize, Serialize};

use super::Kept;
use super::whose::Whose;
use crate::control::client::if_mounted;
use crate::control::{Request, Response};
use crate::open::{self, Access};
use crate::output::{Outcome, json, spinner, text};

/// Blocks that are looked at while writes wait.
const STEP: u64 = Shepherd::SCRUBBED_AT_ONCE;
/// Of a mounted volume: bytes that one request looks at.
const REQUEST_BYTES: u64 = 64 << 20;
/// Blocks that are named one by one.
const NAMED_MAX: usize = 1000;

/// Arguments of `scrub`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// At most so many bytes a second
    #[arg(long, value_name = "BYTES", value_parser = crate::size::bytes)]
    rate: Option<u64>,
    /// Begin at this block, where an earlier scrub was stopped (of a volume that follows a policy)
    #[arg(long, value_name = "BLOCK", default_value_t = 0)]
    from: u64,
    #[command(flatten)]
    volume: open::Arguments,
    /// The image file or block device; or the mount point of a volume that is mounted
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
}

/// What a scrub found. Field names are a contract (`docs/control-socket.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct Found {
    /// Blocks of the volume that have sums or copies.
    pub blocks: u64,
    /// Blocks that were read, copies included.
    pub blocks_read: u64,
    /// The block where it goes on; none at the end.
    pub next_block: Option<u64>,
    /// The same where the format's own checksums are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_place: Option<ScrubPlace>,
    /// Blocks that could not be read or were not what was written, and are again.
    pub restored: Vec<u64>,
    /// The same, which cannot be written: their copies are read until they can.
    pub not_restored: Vec<u64>,
    /// Copies that were written again.
    pub copies_written: u64,
    /// Blocks of which nothing is left that is right.
    pub lost: Vec<u64>,
    /// Blocks without a sum that have a copy which is another than their home.
    pub differing: Vec<u64>,
    /// Whom the lost, differing and not restored ones belong to.
    pub damaged: Whose,
}

impl Found {
    /// The same with the owners of what is damaged, as `device` has them.
    fn named(done: Scrubbed, next_block: Option<u64>, by: (&Kept, &dyn Format, &dyn BlockDevice)) -> Self {
        let (kept, format, device) = by;
        let damaged: Vec<BlockNo> = [&done.lost, &done.differing, &done.not_restored]
            .into_iter()
            .flat_map(|blocks| blocks.iter().take(NAMED_MAX).copied())
            .collect();
        kept.noted.add(&done.lost);
        let damaged = kept.whose(format, device, &damaged);
        Self { damaged, ..Self::new(done, next_block) }
    }

    fn new(done: Scrubbed, next_block: Option<u64>) -> Self {
        let numbers =
            |blocks: Vec<BlockNo>| blocks.into_iter().take(NAMED_MAX).map(BlockNo::get).collect::<Vec<u64>>();
        Self {
            blocks: done.blocks,
            blocks_read: done.read,
            next_block,
            next_place: None,
            restored: numbers(done.restored),
            not_restored: numbers(done.not_restored),
            copies_written: done.copies_written,
            lost: numbers(done.lost),
            differing: numbers(done.differing),
            damaged: Whose::default(),
        }
    }

    fn add(&mut self, other: Self) {
        self.blocks += other.blocks;
        self.blocks_read += other.blocks_read;
        self.next_block = other.next_block;
        self.next_place = other.next_place;
        self.restored.extend(other.restored);
        self.not_restored.extend(other.not_restored);
        self.copies_written += other.copies_written;
        self.lost.extend(other.lost);
        self.differing.extend(other.differing);
        self.damaged.add(other.damaged);
    }

    fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.differing.is_empty() && self.not_restored.is_empty()
    }

    fn describe(&self, name: &str) -> Result<String> {
        let mut shown = String::new();
        for (blocks, what) in [
            (&self.restored, "was damaged, and has been restored"),
            (&self.not_restored, "cannot be written: its copy is read in its place"),
            (&self.lost, "is LOST: nothing is left of it that is what was written"),
            (&self.differing, "DIFFERS from its copy, and no sum says which of them is right"),
        ] {
            for block in blocks {
                writeln!(shown, "block {block} {what}")?;
            }
        }
        shown.push_str(&self.damaged.describe("damaged"));
        let verdict = match (self.is_sound(), self.restored.len(), self.copies_written) {
            (true, 0, 0) => "all of it is as it was written".to_owned(),
            (true, blocks, copies) => format!(
                "all of it is as it was written again: {blocks} blocks and {copies} copies were restored"
            ),
            (false, ..) => format!(
                "{} blocks lost, {} in doubt, {} without a home",
                self.lost.len(),
                self.differing.len(),
                self.not_restored.len()
            ),
        };
        let copies = match self.blocks_read - self.blocks {
            0 => String::new(),
            copies => format!(", {copies} of them copies"),
        };
        writeln!(shown, "{name}: {} blocks read{copies}; {verdict}", self.blocks_read)?;
        Ok(shown)
    }
}

/// Goes over a whole volume.
pub fn all(
    shepherd: &Shepherd,
    kind: &dyn Fn(BlockNo) -> BlockKind,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Scrubbed> {
    let mut done = Scrubbed::default();
    for from in (0..shepherd.blocks()).step_by(usize::try_from(STEP)?) {
        done.add(shepherd.scrub(BlockNo(from), STEP, kind)?);
        progress(from + STEP, shepherd.blocks());
    }
    shepherd.settle()?;
    Ok(done)
}

/// Goes over a part of a mounted volume, whose blocks are now as `device` has them.
pub fn part(kept: &Kept, format: &dyn Format, device: &dyn BlockDevice, from: u64) -> Result<Found> {
    let shepherd = kept.shepherd();
    let mut done = Scrubbed::default();
    let block_size = u64::from(shepherd.geometry().block_size);
    let mut at = from;
    while at < shepherd.blocks() && done.read * block_size < REQUEST_BYTES {
        done.add(shepherd.scrub(BlockNo(at), STEP, &|_| BlockKind::Data)?);
        at += STEP;
    }
    if at >= shepherd.blocks() {
        shepherd.settle()?;
    }
    let next = (at < shepherd.blocks()).then_some(at);
    Ok(Found::named(done, next, (kept, format, device)))
}

/// Waits so that no more than `rate` bytes a second are read.
struct Pace {
    clock: SystemClock,
    rate: Option<u64>,
}

impl Pace {
    fn wait(&self, bytes: u64) {
        let Some(rate) = self.rate.filter(|rate| *rate > 0) else { return };
        let due = Duration::from_secs_f64(to_f64(bytes) / to_f64(rate));
        std::thread::sleep(due.saturating_sub(self.clock.elapsed()));
    }
}

#[expect(clippy::cast_precision_loss, reason = "what is waited for and shown need not be exact")]
fn to_f64(n: u64) -> f64 {
    n as f64
}

/// Runs `scrub`.
pub fn run(arguments: &Arguments) -> Result<Outcome> {
    let name = arguments.image.display().to_string();
    let found = match if_mounted(&arguments.image)? {
        Some(_) => mounted(arguments)?,
        None => unmounted(arguments)?,
    };
    if arguments.json {
        json(&found)?;
    } else {
        text(&found.describe(&name)?)?;
    }
    Ok(if found.is_sound() { Outcome::SUCCESS } else { Outcome::FAILURE })
}

fn mounted(arguments: &Arguments) -> Result<Found> {
    let display = spinner(arguments.json);
    let pace = Pace { clock: SystemClock::new(), rate: arguments.rate };
    let mut found = Found::default();
    let mut request = Request::Scrub { from: arguments.from, place: None };
    loop {
        let mut connection = if_mounted(&arguments.image)?.context("the volume was unmounted meanwhile")?;
        match connection.ask(&request)? {
            Response::Scrub(part) => found.add(part),
            Response::Error(reason) => bail!("{reason}"),
            other => bail!("an unexpected answer: {other:?}"),
        }
        let up_to = found.next_block.map(|block| format!(", up to block {block}")).unwrap_or_default();
        display.set_message(format!("{} blocks read{up_to}", found.blocks_read));
        display.tick();
        pace.wait(found.blocks_read * 4096);
        request = match (found.next_block, found.next_place) {
            (Some(from), _) => Request::Scrub { from, place: None },
            (None, Some(place)) => Request::Scrub { from: 0, place: Some(place) },
            (None, None) => break,
        };
    }
    display.finish_and_clear();
    Ok(found)
}

fn unmounted(arguments: &Arguments) -> Result<Found> {
    let name = || arguments.image.display().to_string();
    let opened = match arguments.volume.open_kept(&arguments.image, Access::ReadWrite) {
        Ok(opened) if opened.kept.is_none() => {
            opened.close()?;
            return with_sums(arguments)?.with_context(|| format!("{}: {NONE}", name()));
        }
        // To compare takes no writing where nothing can be mended.
        Err(error) if open::is_only_readable(&arguments.image) => {
            return with_sums(arguments)?.ok_or(error);
        }
        opened => opened?,
    };
    let kept = opened.kept.as_ref().context("it was looked at")?;
    if let Some(report) =
        crate::recovery::recover(opened.format, &*opened.device, arguments.volume.journal.as_deref())?
    {
        tracing::info!("{}: {}", name(), report.describe());
    }
    kept.renew(opened.format)?;
    let keeps = opened.format.keeps_maps().context("a format with maps keeps maps")?;
    // It says of which kind blocks are that are counted, which is no reason not to mend them.
    let blocks = kept.noted.quietly(|| keeps.census(&*opened.device)).unwrap_or_default();
    let shepherd: &Arc<Shepherd> = kept.shepherd();
    let display = spinner(arguments.json);
    let pace = Pace { clock: SystemClock::new(), rate: arguments.rate };
    let block_size = u64::from(shepherd.geometry().block_size);
    let kind = |block: BlockNo| super::kind_of(&blocks, block);
    let mut done = Scrubbed::default();
    let all = shepherd.blocks();
    let mut at = arguments.from;
    while at < all {
        done.add(shepherd.scrub(BlockNo(at), STEP, &kind)?);
        at += STEP;
        let left = pace.clock.elapsed().as_secs_f64() * to_f64(all.saturating_sub(at)) / to_f64(at.max(1));
        display.set_message(format!("{} of {all} blocks, {left:.0} s left", at.min(all)));
        display.tick();
        pace.wait(done.read * block_size);
    }
    display.finish_and_clear();
    forget_free(&mut done, &blocks, (kept, opened.format, &*opened.device));
    let found = Found::named(done, None, (kept, opened.format, &*opened.device));
    kept.close()?;
    Ok(found)
}

/// What is said of a volume that has neither.
pub const NONE: &str =
    "it follows no policy, and its format has no checksums of its blocks: there is nothing to compare";

/// Goes over a volume that follows no policy; `None` if its format has no checksums of its blocks.
fn with_sums(arguments: &Arguments) -> Result<Option<Found>> {
    let volume = arguments.volume.open(&arguments.image, Access::ReadOnly)?;
    let Some(sums) = volume.fs.sums() else { return Ok(None) };
    let display = spinner(arguments.json);
    let pace = Pace { clock: SystemClock::new(), rate: arguments.rate };
    let mut found = Found::default();
    let mut place = None;
    loop {
        found.add(sums_part(sums, arguments.from, place)?);
        place = found.next_place;
        display.set_message(format!("{} of about {} blocks", found.blocks, sums.used()));
        display.tick();
        pace.wait(found.blocks * 4096);
        if place.is_none() {
            break;
        }
    }
    display.finish_and_clear();
    volume.close()?;
    Ok(Some(found))
}

/// A part of a volume whose format has checksums of its blocks.
pub fn sums_part(sums: &dyn HasSums, from: u64, place: Option<ScrubPlace>) -> Result<Found> {
    ensure!(
        from == 0,
        "such a scrub goes by trees and inodes, and does not begin at a block: leave --from away"
    );
    let part = sums.compare(place)?;
    Ok(Found {
        blocks: part.blocks,
        blocks_read: part.blocks,
        next_place: part.next,
        lost: part.damaged.into_iter().map(BlockNo::get).collect(),
        damaged: Whose::from(part.owners),
        ..Found::default()
    })
}

/// Free blocks of a disk that was replaced are marked as lost as well, and those that the format keeps in reserve: nobody misses them. Unless all
/// that the census does not know are such ones, all are told.
fn forget_free(done: &mut Scrubbed, blocks: &[Stretch], by: (&Kept, &dyn Format, &dyn BlockDevice)) {
    let (kept, format, device) = by;
    if kept.disks().is_none() {
        return;
    }
    let is_unknown = |block: &BlockNo| !super::is_known(blocks, *block);
    let unknown: Vec<BlockNo> = done.lost.iter().copied().filter(is_unknown).collect();
    let whose = kept.whose(format, device, &unknown);
    let nobodys = [Role::Free.name(), Role::Reserved.name()];
    let free = whose.owners.iter().filter(|owner| nobodys.contains(&owner.role.as_str()));
    if whose.unread == 0 && free.map(|owner| owner.blocks).sum::<u64>() == to_u64(unknown.len()) {
        done.lost.retain(|block| !is_unknown(block));
    }
}
