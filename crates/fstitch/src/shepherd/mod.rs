//! Volumes that follow a policy: the shepherd lies between the disk and whoever uses a volume, commands and mounts alike.

pub mod adopt;
pub mod health;
pub mod scrub;
mod watch;
pub mod whose;

use std::sync::Arc;

use anyhow::{Context, Result};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Overlay};
use fstitch_formats::{Format, KeepsMaps, MapsAt};
use fstitch_shepherd::engine::Opened;
use fstitch_shepherd::{Options, Shepherd, Stretch};

use crate::open::Access;
use crate::output::spinner;
use crate::shepherd::whose::Whose;

pub use watch::Hook;
use watch::Noted;

/// A volume that follows a policy, as it is below everything.
pub struct Kept {
    shepherd: Arc<Shepherd>,
    opened: Opened,
    access: Access,
    noted: Arc<Noted>,
}

/// What a shepherd is told about who wants to hear of faults.
fn options(
    keeps: &dyn KeepsMaps,
    device: &dyn BlockDevice,
    name: &str,
    (hook, noted): (Option<&Hook>, &Arc<Noted>),
) -> Result<Options> {
    let watch = watch::watch(name.to_owned(), hook.cloned(), Arc::clone(noted));
    Ok(Options { watch, rules: Some(keeps.rules(device)?), ..Options::default() })
}

/// Blocks that are lost with a disk, at most, whose owners are named.
const LOST_MAX: usize = 1000;

/// Puts the shepherd over the disk of a volume that follows a policy. Who only reads writes nothing: what would be is kept in memory.
pub fn over(
    device: &Arc<dyn BlockDevice>,
    format: &dyn Format,
    access: Access,
    (name, hook): (&str, Option<&Hook>),
) -> Result<Option<Kept>> {
    let Some(keeps) = format.keeps_maps() else { return Ok(None) };
    let area = match keeps.maps(&**device)? {
        MapsAt::Nowhere => return Ok(None),
        MapsAt::Unfinished(_) => {
            tracing::warn!("{name}: {UNFINISHED}");
            return Ok(None);
        }
        MapsAt::Here(area) => area,
    };
    let below = match access {
        Access::ReadWrite => Arc::clone(device),
        Access::ReadOnly => Arc::new(Overlay::new(Arc::clone(device))) as Arc<dyn BlockDevice>,
    };
    let noted = Arc::default();
    let options = options(keeps, &**device, name, (hook, &noted))?;
    let options = Options { read_only: access == Access::ReadOnly, ..options };
    let opened = Shepherd::open(below, &area, options).context(
        "the maps of the volume's policy cannot be used; `fstitch tune --policy none` takes them away, and what only they knew with them",
    );
    let (shepherd, opened) = opened?;
    let kept = Kept { shepherd: Arc::new(shepherd), opened, access, noted };
    kept.say(name);
    Ok(Some(kept))
}

const UNFINISHED: &str = "giving the volume a policy was cut short: it follows none; \
    `fstitch tune --policy` begins anew, with `none` it gives back the room";

impl Kept {
    /// The volume, as everybody else is to see it.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        Arc::clone(&self.shepherd) as _
    }

    /// Who keeps it.
    pub fn shepherd(&self) -> &Arc<Shepherd> {
        &self.shepherd
    }

    /// What was found at opening.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Blocks that were asked for in vain since the volume was opened, and still cannot be read.
    pub fn damaged(&self) -> Vec<BlockNo> {
        let noted = self.noted.blocks().into_iter();
        let mut damaged: Vec<BlockNo> = noted.filter(|block| !self.shepherd.is_whole(*block)).collect();
        damaged.extend(self.shepherd.lost_with_a_disk(LOST_MAX).first);
        damaged
    }

    /// Names whom blocks belong to, as `device`, which is this or a cache over it, has it. Nobody hears of the faults on the way.
    pub fn whose(&self, format: &dyn Format, device: &dyn BlockDevice, blocks: &[BlockNo]) -> Whose {
        let found = self.noted.quietly(|| whose::name(format, device, blocks));
        found.unwrap_or_else(|error| {
            tracing::warn!("{}", crate::output::reasons(&error));
            Whose { others: fstitch_core::num::to_u64(blocks.len()), ..Whose::default() }
        })
    }

    /// Tells what opening has found.
    fn say(&self, name: &str) {
        let found = &self.opened;
        if found.is_foreign {
            tracing::warn!(
                "{name}: another program has written to it since it was used here: its sums and copies are of no use any more{}",
                if self.access == Access::ReadWrite { ", and are made again" } else { "" }
            );
        } else if found.was_in_use && found.examined > 0 {
            tracing::info!(
                "{name}: after a crash {} blocks were examined: {} were being written or are damaged, {} were restored from copies",
                found.examined,
                found.unverified,
                found.restored
            );
        }
        for (blocks, which) in [
            (&found.moved_at_home, "was written at home since, which counts"),
            (&found.moved_kept, "is read from its spare; the other program has seen what was there before"),
        ] {
            for block in blocks {
                tracing::warn!("{name}: block {block}, which could not be written and was moved, {which}");
            }
        }
        if found.maps_lost > 0 {
            tracing::warn!(
                "{name}: {} blocks of the maps are lost: `fstitch scrub` says what that means",
                found.maps_lost
            );
        }
    }

    /// Makes sums and copies again after somebody else has written; the volume needs no recovery any more.
    pub fn renew(&self, format: &dyn Format) -> Result<()> {
        if !self.opened.is_foreign || self.access == Access::ReadOnly {
            return Ok(());
        }
        let keeps = format.keeps_maps().context("a format with maps keeps maps")?;
        let blocks = keeps.census(&*self.shepherd)?;
        let display = spinner(false);
        self.shepherd.renew(&blocks, &mut |done, all| {
            display.set_message(format!("making sums and copies again: {done} of {all} blocks"));
            display.tick();
        })?;
        display.finish_and_clear();
        Ok(())
    }

    /// Leaves the volume to others. Everything above it is stable, or lost.
    pub fn close(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => self.shepherd.close().context("closing the maps of the volume's policy"),
            Access::ReadOnly => Ok(()),
        }
    }
}

/// What a block holds, by the census of a volume; data where that does not know it.
pub fn kind_of(blocks: &[Stretch], block: BlockNo) -> BlockKind {
    let at = blocks.partition_point(|stretch| stretch.start <= block);
    let found = at.checked_sub(1).and_then(|at| blocks.get(at));
    found
        .filter(|stretch| block.get() < stretch.start.get() + stretch.count)
        .map_or(BlockKind::Data, |stretch| stretch.kind)
}
