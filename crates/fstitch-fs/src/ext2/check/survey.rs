//! What a volume has that other features would meet: asked before they change, in a run that changes nothing.

use std::collections::BTreeMap;

use fstitch_core::{BlockDevice, CheckReport, Error, Result, Timestamp};

use super::claims::allocatable;
use super::quota::Usages;
use super::run::Run;
use super::state::{Mending, State, USED, Volume};
use super::{supers, tails};
use crate::ext2::layout::quota::{Dquot, Header, QuotaKind};
use crate::ext2::layout::superblock::Superblock;
use crate::ext2::num::{idx, wide};
use crate::ext2::quota::tree::build;
use crate::view::BlockView;

/// Directories of which every one is said to have no room.
const NAMED_MAX: usize = 3;
/// Blocks of a new file that its map has one block for, at least.
const PER_MAP_BLOCK: u64 = 64;
/// Blocks of a map besides.
const MAP_BLOCKS: u64 = 4;

/// A question about features to come, and its answer.
pub(in crate::ext2) struct Survey {
    /// The volume with these features.
    target: Superblock,
    /// Kinds of usage that get a file.
    kinds: [bool; 3],
    /// Some directories that have no room for sums.
    pub(in crate::ext2) crowded: Vec<u32>,
    /// Blocks that all directories without room take when they are written anew.
    pub(in crate::ext2) crowded_blocks: u64,
    /// Blocks that new files of quotas take.
    pub(in crate::ext2) quota_blocks: u64,
    /// Blocks that there are for all that.
    pub(in crate::ext2) allocatable: u64,
    /// An inode that is free.
    pub(in crate::ext2) spare_inode: Option<u32>,
}

/// Checks the volume on `device`, and says what it has that the features of `target` would meet; `kinds` of quotas get a file.
///
/// # Errors
/// Those of the device; `Corrupt` without a superblock that makes sense.
pub(in crate::ext2) fn survey(
    device: &dyn BlockDevice,
    target: Superblock,
    kinds: [bool; 3],
) -> Result<(CheckReport, Option<Survey>)> {
    let raw = supers::raw_superblock(device)?;
    let shape = supers::parse(&raw, device.geometry().bytes())?;
    let view = BlockView::new(device, idx(shape.block_size));
    let asked = Survey {
        target,
        kinds,
        crowded: Vec::new(),
        crowded_blocks: 0,
        quota_blocks: 0,
        allocatable: 0,
        spare_inode: None,
    };
    let mut run =
        Run { mending: Mending::Nothing, now: Timestamp::default(), judging: None, survey: Some(asked) };
    let outcome = run.all(&view, raw, shape)?;
    Ok((outcome.report, outcome.survey))
}

/// Blocks that a new file of so many takes, with its map.
fn with_map(blocks: u64) -> u64 {
    blocks + blocks / PER_MAP_BLOCK + MAP_BLOCKS
}

impl Survey {
    /// Has a run answer.
    pub(super) fn ask(self, state: &mut State) {
        if self.kinds != [false; 3] && state.usage.is_none() {
            state.usage = Some(Usages::default());
        }
        state.survey = Some(self);
    }

    /// What only the whole run knows.
    pub(super) fn conclude(&mut self, volume: &Volume<'_>, state: &State) -> Result<()> {
        for ((kind, usage), wanted) in
            QuotaKind::ALL.into_iter().zip(state.usage.iter().flatten()).zip(self.kinds)
        {
            if wanted {
                let entry = |(&id, _): (&u32, _)| (id, Dquot::default());
                let entries: BTreeMap<u32, Dquot> = usage.iter().map(entry).collect();
                let bytes = build(kind, &Header::EMPTY, &entries)?.len();
                self.quota_blocks += with_map(wide(bytes.div_ceil(volume.block_size())));
            }
        }
        if self.crowded_blocks + self.quota_blocks > 0 {
            self.allocatable = allocatable(volume, state)?;
        }
        let free = |&ino: &u32| state.inodes[idx(ino)] & USED == 0;
        self.spare_inode = (volume.shape.first_ino..=volume.shape.inodes_count).find(free);
        Ok(())
    }
}

/// Looks whether directory `ino` has room for sums, if that is asked.
pub(super) fn dir(volume: &Volume<'_>, state: &mut State, ino: u32) -> Result<()> {
    let Some(mut survey) = state.survey.take() else { return Ok(()) };
    let mut found = Ok(None);
    if survey.target.features.has_sums() && !volume.has_sums() {
        found = match tails::blocks_anew(volume, state, (ino, &survey.target)) {
            // The look at its names says what is wrong.
            Err(Error::Corrupt(_)) => Ok(None),
            found => found,
        };
    }
    if let Ok(Some(blocks)) = found {
        if survey.crowded.len() < NAMED_MAX {
            survey.crowded.push(ino);
        }
        survey.crowded_blocks += with_map(wide(blocks));
    }
    state.survey = Some(survey);
    found.map(|_| ())
}
