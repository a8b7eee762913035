//! `fstitch tune --policy`, `fstitch mkfs --policy`: a volume that nobody uses gets a policy, or loses it.

use std::fmt::Write;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, BlockNo};
use fstitch_formats::{Format, KeepsMaps, MapsAt};
use fstitch_shepherd::policy::{Direction, Kind};
use fstitch_shepherd::{Policy, Room, Shepherd, Stretch, VolumeFacts};

use super::{Kept, options, over};
use crate::open::Access;
use crate::output::spinner;

/// A policy that was asked for, checked as far as it can be without a volume.
#[derive(Clone)]
pub struct Wanted {
    name: String,
    text: String,
    policy: Policy,
    /// Blocks for copies and for what is moved; what suits the volume if not said.
    spares: Option<u64>,
}

impl Wanted {
    /// Reads a policy that comes with the program, or a file, for a volume on so many disks.
    pub fn read(name: &str, spares: Option<u64>, disks: usize) -> Result<Self> {
        let text = crate::policy::text_of(name)?;
        let policy = Policy::parse(&text).map_err(|refused| anyhow::anyhow!("{name}: {refused}"))?;
        policy
            .check_volume(&text, &VolumeFacts { disks })
            .map_err(|refused| anyhow::anyhow!("{name}: {refused}"))?;
        Ok(Self { name: name.to_owned(), text, policy, spares })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// As it is written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it says.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

/// Spares that suit a volume: room for the copies of all that there is, and for what may come.
fn spares(policy: &Policy, blocks: &[Stretch], volume: u64, free: u64) -> u64 {
    let copies =
        |kind| u64::try_from(policy.chain(Kind::Block(kind), Direction::Write).copies(1)).unwrap_or(0);
    let needed: u64 = blocks.iter().map(|stretch| stretch.count * copies(stretch.kind)).sum();
    let of_data = copies(fstitch_core::BlockKind::Data);
    let moves = policy.any_answer(|answer| *answer == fstitch_shepherd::policy::Answer::Remap);
    let for_growth = if needed > 0 && of_data == 0 { needed / 2 + 64 } else { 0 };
    let group = policy.standing().find_map(|standing| match standing {
        fstitch_shepherd::policy::Standing::Parity { blocks } => Some(u64::from(*blocks)),
        _ => None,
    });
    // Each group has one, whatever is in it.
    let needed = needed + group.map_or(0, |group| volume.div_ceil(group));
    let left = free.saturating_sub(needed);
    // Each block that files get takes so many more.
    let for_data = left * of_data / (of_data + 1);
    let for_moves = if moves { (volume / 200).max(64) } else { 0 };
    needed + (for_data + for_growth + for_moves).min(left / 2)
}

/// Has the volume on `device` follow a policy; what it followed before it does not any more. Returns what is to be said about it.
pub fn adopt(
    device: &Arc<dyn BlockDevice>,
    format: &dyn Format,
    name: &str,
    wanted: &Wanted,
) -> Result<String> {
    let keeps = keeper(format)?;
    Shepherd::check(
        &wanted.policy,
        &options(keeps, &**device, name, (None, &Arc::default()), Arc::default())?,
    )
    .with_context(|| wanted.name.clone())?;
    abandon(device, format, name)?;
    let geometry = device.geometry();
    let uuid = keeps.uuid(&**device)?;
    ensure!(
        uuid != [0; 16],
        "a volume without a UUID cannot follow a policy: `fstitch tune -U random` gives it one"
    );
    let free = keeps.free(&**device)?;
    let display = spinner(false);
    display.set_message("looking at what the volume holds");
    display.tick();
    let before = keeps.census(&**device)?;
    let maps = Room::new(geometry.block_size, geometry.block_count, 0).blocks();
    let spares = match wanted.spares {
        Some(spares) => spares,
        None => spares(&wanted.policy, &before, geometry.block_count, free.saturating_sub(maps)),
    };
    let room = Room::new(geometry.block_size, geometry.block_count, spares);
    let area = keeps.make_room(&**device, room, crate::epoch::now()?)?;
    // What was taken has changed bitmaps and counts.
    let blocks = keeps.census(&**device)?;
    Shepherd::format(
        Arc::clone(device),
        &area,
        uuid,
        &wanted.text,
        &keeps.sealed(),
        &blocks,
        &mut |done, all| {
            display.set_message(format!("making sums and copies: {done} of {all} blocks"));
            display.tick();
        },
    )?;
    display.finish_and_clear();
    // That the maps are to be used is written through them: it changes a block that they speak of.
    let (shepherd, _) = Shepherd::open(
        Arc::clone(device),
        &area,
        options(keeps, &**device, name, (None, &Arc::default()), Arc::default())?,
    )?;
    keeps.finish(&shepherd, true)?;
    shepherd.close()?;
    let holdings = shepherd.holdings();
    let size = |blocks: u64| crate::size::show(blocks * u64::from(geometry.block_size));
    let mut said =
        format!("it follows the policy `{}` now; its maps take {}", wanted.name, size(to_u64(area.len())));
    if holdings.copies > 0 {
        write!(said, ", {} of that for {} copies", size(holdings.copies), holdings.copies)?;
    }
    let short = shepherd.short_of_copies(&blocks, 0).count;
    if short > 0 {
        write!(
            said,
            "; {short} blocks have fewer copies than it asks for, as there is no room: give it more with --spares"
        )?;
    }
    Ok(said)
}

/// Has the volume follow no policy. False if it followed none.
///
/// # Errors
/// Nothing was changed if there is something that only the maps have.
pub fn abandon(device: &Arc<dyn BlockDevice>, format: &dyn Format, name: &str) -> Result<bool> {
    let keeps = keeper(format)?;
    match keeps.maps(&**device)? {
        MapsAt::Nowhere => return Ok(false),
        MapsAt::Unfinished(_) => {
            keeps.give_back(&**device)?;
            return Ok(true);
        }
        MapsAt::Here(_) => {}
    }
    match over(device, format, Access::ReadWrite, (name, None)) {
        Ok(Some(kept)) => {
            leave_nothing_behind(&kept, format)?;
            // Through the maps, so that a cut leaves a volume that follows its policy or none.
            keeps.finish(&*kept.device(), false)?;
            kept.close()?;
        }
        Ok(None) => bail!("the maps of the policy have gone meanwhile"),
        Err(error) => return Err(error),
    }
    keeps.give_back(&**device)?;
    Ok(true)
}

/// Nothing may be readable by the maps alone.
fn leave_nothing_behind(kept: &Kept, format: &dyn Format) -> Result<()> {
    let shepherd = kept.shepherd();
    let whose = |blocks: &[BlockNo]| kept.whose(format, &**shepherd, blocks).some();
    let moved = shepherd.bring_home()?;
    if let Some(first) = moved.first() {
        bail!(
            "{} blocks cannot be written at home, block {first} among them: without the policy they would be lost ({}). Copy the volume to another disk",
            moved.len(),
            whose(&moved)
        );
    }
    let found = super::scrub::all(shepherd, &|_| fstitch_core::BlockKind::Data, &mut |_, _| {})?;
    if let Some(first) = found.not_restored.first() {
        bail!(
            "{} blocks can be read from copies alone, block {first} among them: without the policy they would be lost ({}). Copy the volume to another disk",
            found.not_restored.len(),
            whose(&found.not_restored)
        );
    }
    Ok(())
}

/// Whether opening failed because maps are damaged, and not because a disk was asked in vain, or a step is not known here.
pub fn are_damaged(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(fstitch_core::Error::Corrupt(_))))
}

/// Has the volume follow no policy although its maps are damaged, so that nobody can say what only they knew. What is to be said.
pub fn give_up(device: &Arc<dyn BlockDevice>, format: &dyn Format) -> Result<&'static str> {
    let keeps = keeper(format)?;
    ensure!(matches!(keeps.maps(&**device)?, MapsAt::Here(_)), "it follows no policy");
    keeps.finish(&**device, false)?;
    Ok(match keeps.give_back(&**device) {
        Ok(()) => "its maps are damaged: it follows no policy now, and what was moved is what it was before",
        Err(_) => {
            "its maps are damaged: it follows no policy now, and what was moved is what it was before. Check it, and run this again, which gives back their room"
        }
    })
}

fn keeper(format: &dyn Format) -> Result<&dyn KeepsMaps> {
    format.keeps_maps().with_context(|| format!("{} volumes cannot follow a policy", format.names()[0]))
}
