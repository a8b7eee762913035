//! One run of all passes.

use fstitch_core::{CheckReport, FindingClass, Result, Timestamp};

use super::groups::{self, Layout};
use super::state::{Mending, State};
use super::volume::Volume;
use super::{claims, connect, copies, dirs, inodes, links, maps, supers};

/// How to run.
pub(super) struct Run {
    pub(super) mending: Mending,
    pub(super) now: Timestamp,
    /// The volume was not unmounted in an orderly way.
    pub(super) is_unclean: bool,
}

/// What was found, and how many changes were made.
pub(super) type Done = (CheckReport, u64);

/// The report of a volume whose superblock is damaged.
pub(super) fn hopeless(problem: impl Into<String>) -> CheckReport {
    let mut report = CheckReport::default();
    report.push(FindingClass::Corrupt, "superblock-damaged", problem);
    report
}

impl Run {
    /// All passes, up to the first that changed something; what was found, and how many changes were made. Or why nothing can be looked
    /// for by this superblock, whatever its copies say of single numbers.
    pub(super) fn all(&self, volume: &Volume<'_>) -> Result<std::result::Result<Done, &'static str>> {
        let mut state = State::new(volume, self.mending, self.now);
        if copies::settle(volume, &mut state)? {
            if let Some(why) = supers::why_unusable(volume) {
                return Ok(Err(why));
            }
            let Some(layout) = Layout::of(volume) else { return Ok(Err("no maps")) };
            self.passes(volume, &mut state, &layout)?;
        }
        if state.mended > 0 {
            volume.source.flush()?;
        }
        Ok(Ok((state.report, state.mended)))
    }

    fn passes(&self, volume: &Volume<'_>, state: &mut State, layout: &Layout) -> Result<()> {
        supers::check(volume, state)?;
        if state.mended > 0 {
            return Ok(());
        }
        claims::claim_metadata(volume, state);
        for group in 0..volume.shape.groups {
            state.initialised.push(groups::initialised(volume, layout, group)?);
        }
        for group in 0..volume.shape.groups {
            inodes::scan_group(volume, state, group)?;
        }
        inodes::judge_doubts(volume, state)?;
        claims::settle_shared(volume, state)?;
        if state.mended > 0 {
            return Ok(());
        }
        dirs::run(volume, state)?;
        if state.mended > 0 {
            return Ok(());
        }
        let tops = connect::run(volume, state)?;
        if state.mended > 0 {
            return Ok(());
        }
        links::run(volume, state, &tops)?;
        if state.mended > 0 {
            return Ok(());
        }
        maps::run(volume, state, layout)?;
        supers::check_clean(volume, state, self.is_unclean)
    }
}
