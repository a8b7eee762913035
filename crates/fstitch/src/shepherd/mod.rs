//! Volumes that follow a policy: the shepherd lies between the disk and whoever uses a volume, commands and mounts alike.

pub mod adopt;
mod attendant;
pub mod health;
pub mod lost;
pub mod scrub;
mod watch;
pub mod whose;

use std::sync::{Arc, OnceLock, Weak};

use anyhow::{Context, Result};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, Overlay};
use fstitch_formats::{Format, KeepsMaps, MapsAt};
use fstitch_shepherd::engine::Opened;
use fstitch_shepherd::policy::Answer;
use fstitch_shepherd::{Era, Options, Remedy, Rules, Shepherd, Stretch};

use crate::disks::Disks;
use crate::open::Access;
use crate::output::spinner;
use crate::shepherd::whose::Whose;

use attendant::Attendant;
pub use watch::Hook;
use watch::Noted;

/// A volume that follows a policy, as it is below everything.
pub struct Kept {
    shepherd: Arc<Shepherd>,
    opened: Opened,
    access: Access,
    noted: Arc<Noted>,
    /// The disks, if the volume is on several.
    disks: Option<Disks>,
    /// The format's rules, which are found through the shepherd where that is in front of several disks.
    late: Arc<Late>,
    /// Who is asked for `full-check` and `remount`.
    attendant: Arc<Attendant>,
}

/// Rules that are not known before the volume can be read.
#[derive(Default)]
struct Late(OnceLock<Arc<dyn Rules>>);

impl Rules for Late {
    fn judge(&self, kind: BlockKind, block: BlockNo, data: &[u8]) -> Option<String> {
        self.0.get()?.judge(kind, block, data)
    }

    fn repair(
        &self,
        kind: BlockKind,
        block: BlockNo,
        data: &[u8],
        read: &dyn Fn(BlockNo, BlockKind) -> Option<Vec<u8>>,
    ) -> Option<Vec<u8>> {
        self.0.get()?.repair(kind, block, data, read)
    }
}

/// What a shepherd is told about who wants to hear of faults.
fn options(
    keeps: &dyn KeepsMaps,
    device: &dyn BlockDevice,
    name: &str,
    (hook, noted): (Option<&Hook>, &Arc<Noted>),
    attendant: Arc<Attendant>,
) -> Result<Options> {
    let watch = watch::watch(name.to_owned(), hook.cloned(), Arc::clone(noted));
    Ok(Options {
        watch,
        rules: Some(keeps.rules(device)?),
        remedy: Some(attendant as _),
        ..Options::default()
    })
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
    let (noted, attendant) = (Arc::default(), Arc::<Attendant>::default());
    let options = options(keeps, &**device, name, (hook, &noted), Arc::clone(&attendant))?;
    let options = Options { read_only: access == Access::ReadOnly, ..options };
    let opened = Shepherd::open(below, &area, options).context(
        "the maps of the volume's policy cannot be used; `fstitch tune --policy none` takes them away, and what only they knew with them",
    );
    let (shepherd, opened) = opened?;
    let late = Arc::default();
    let kept = Kept { shepherd: Arc::new(shepherd), opened, access, noted, disks: None, late, attendant };
    kept.say(name);
    Ok(Some(kept))
}

/// Puts the shepherd over the disks of an array, seen as `device`. What the format says of its blocks is told later, by [`Kept::judge_by`].
pub fn over_disks(
    disks: Disks,
    device: Arc<dyn BlockDevice>,
    (name, hook): (&str, Option<&Hook>),
) -> Result<Kept> {
    let access = disks.access();
    let below = match access {
        Access::ReadWrite => device,
        Access::ReadOnly => Arc::new(Overlay::new(device)) as Arc<dyn BlockDevice>,
    };
    let (late, noted) = (Arc::new(Late::default()), Arc::default());
    let attendant = Arc::<Attendant>::default();
    let options = Options {
        watch: watch::watch(name.to_owned(), hook.cloned(), Arc::clone(&noted)),
        rules: Some(Arc::clone(&late) as _),
        remedy: Some(Arc::clone(&attendant) as _),
        disks: Some(Arc::clone(disks.array())),
        read_only: access == Access::ReadOnly,
        ..Options::default()
    };
    let opened = Shepherd::open(below, &disks.array().area(), options);
    let (shepherd, opened) = opened.context("the maps of the array's policy cannot be used")?;
    let (shepherd, disks) = (Arc::new(shepherd), Some(disks));
    let kept = Kept { shepherd, opened, access, noted, disks, late, attendant };
    kept.say(name);
    Ok(kept)
}

const UNFINISHED: &str = "giving the volume a policy was cut short: it follows none; \
    `fstitch tune --policy` begins anew, with `none` it gives back the room";

impl Kept {
    /// The volume, as everybody else is to see it. What fails here never has the volume checked or opened anew: that is for those who use the
    /// file system.
    pub fn device(&self) -> Arc<dyn BlockDevice> {
        if self.needs_attendance() { Arc::new(self.era()) } else { Arc::clone(&self.shepherd) as _ }
    }

    /// Whether its policy has steps that only a mount can carry out.
    pub fn needs_attendance(&self) -> bool {
        self.shepherd.policy().any_answer(|answer| matches!(answer, Answer::FullCheck | Answer::Remount))
    }

    /// A new opening of the volume.
    pub fn era(&self) -> Era {
        Era::new(Arc::clone(&self.shepherd))
    }

    /// From now on `mount` carries out what only a mount can.
    pub fn attended_by(&self, mount: Weak<dyn Remedy>) {
        self.attendant.take_over(mount);
    }

    /// Who keeps it.
    pub fn shepherd(&self) -> &Arc<Shepherd> {
        &self.shepherd
    }

    /// The disks, if the volume is on several.
    pub fn disks(&self) -> Option<&Disks> {
        self.disks.as_ref()
    }

    /// From now on blocks are judged by the rules of a format.
    pub fn judge_by(&self, format: &dyn Format) -> Result<()> {
        let Some(keeps) = format.keeps_maps() else { return Ok(()) };
        let rules = keeps.rules(&*self.shepherd)?;
        // Who asks a second time has the same rules.
        let _known = self.late.0.set(rules);
        Ok(())
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

/// Whether a block holds something, by the census of a volume.
pub fn is_known(blocks: &[Stretch], block: BlockNo) -> bool {
    let at = blocks.partition_point(|stretch| stretch.start <= block);
    let found = at.checked_sub(1).and_then(|at| blocks.get(at));
    found.is_some_and(|stretch| block.get() < stretch.start.get() + stretch.count)
}

/// What a block holds, by the census of a volume; data where that does not know it.
pub fn kind_of(blocks: &[Stretch], block: BlockNo) -> BlockKind {
    let at = blocks.partition_point(|stretch| stretch.start <= block);
    let found = at.checked_sub(1).and_then(|at| blocks.get(at));
    found
        .filter(|stretch| block.get() < stretch.start.get() + stretch.count)
        .map_or(BlockKind::Data, |stretch| stretch.kind)
}
